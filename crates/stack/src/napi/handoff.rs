//! Who sees to the queue while nobody polls it. At every instant one of these holds, so that no packet
//! sleeps in the ring while everybody sleeps:
//!
//! - `RUNNING`: the interrupt thread is awake and will look.
//! - `ARMED`: the interrupt is unmasked and wakes the interrupt thread.
//! - `WATCHING`: the interrupt is masked because pollers come and go; the interrupt thread sleeps until the
//!   [watchdog](super::watchdog) sees that they have gone.
//! - `PARKED`: a sleeping receiver, the *leader*, waits on the interrupt itself; the interrupt thread
//!   sleeps without a clock. A leader that leaves arms the interrupt on its behalf.
//!
//! This file decides; [`context`](super::context) does what was decided. It is model-checked in
//! `tests/loom.rs`.

use crate::sync::{AtomicU32, Ordering, fence};

const RUNNING: u32 = 0;
const ARMED: u32 = 1;
const WATCHING: u32 = 2;
const PARKED: u32 = 3;

/// The state of the interrupt thread, and whether there is a leader.
#[derive(Debug)]
pub struct Handoff {
    thread: AtomicU32,
    leader: AtomicU32,
}

/// How the interrupt thread is to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Arm the interrupt, then sleep until it fires.
    Arm,
    /// Sleep; the leader, or who it hands over to, arms the interrupt if need be.
    Park,
}

/// Whom a leader that leaves leaves the queue to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heir {
    /// A leader or poller soon to come: packets flow. With the watchdog watching, that costs neither arming
    /// nor disarming.
    Leader,
    /// The interrupt thread, for others who sleep here.
    Sleepers,
    /// The interrupt thread.
    Nobody,
}

/// What a leader that leaves must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// Nothing: the interrupt thread will look.
    Nothing,
    /// Arm the interrupt.
    Arm,
    /// Call the interrupt thread.
    Call,
}

impl Default for Handoff {
    fn default() -> Self {
        Handoff::new()
    }
}

impl Handoff {
    /// The interrupt thread is about to run; there is no leader.
    pub fn new() -> Handoff {
        Handoff { thread: AtomicU32::new(RUNNING), leader: AtomicU32::new(0) }
    }

    /// The interrupt thread woke up, whatever the reason.
    pub fn run(&self) {
        self.thread.store(RUNNING, Ordering::SeqCst);
    }

    /// The interrupt thread is going to sleep until the watchdog calls it.
    pub fn watch(&self) {
        self.thread.store(WATCHING, Ordering::SeqCst);
    }

    /// Whether the queue is left to pollers and the watchdog.
    #[inline]
    pub fn is_watching(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == WATCHING
    }

    /// The interrupt thread, having found the queue empty, is going to sleep until called.
    pub fn rest(&self) -> Rest {
        // A leader that leaves writes `leader`, then reads `thread`; we write `thread`, then read `leader`:
        // one of us sees the other.
        self.thread.store(PARKED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Whoever moves it from `PARKED` to `ARMED` must arm the interrupt.
        let arm = !self.has_leader()
            && self
                .thread
                .compare_exchange(PARKED, ARMED, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        if arm { Rest::Arm } else { Rest::Park }
    }

    /// Whether a leader waits on the interrupt itself.
    pub fn has_leader(&self) -> bool {
        self.leader.load(Ordering::SeqCst) != 0
    }

    /// A receiver that is about to sleep offers to be the leader. True if it now is.
    pub fn lead(&self) -> bool {
        self.leader.load(Ordering::Relaxed) == 0
            && self.leader.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The leader takes the interrupt from the thread that it would wake. True if it was armed: disarm it.
    pub fn take_interrupt(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == ARMED
            && self
                .thread
                .compare_exchange(ARMED, PARKED, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }

    /// A poller has found packets. True if their interrupt was armed: call the thread, so that it sees that
    /// pollers are about. Else it would wake for every packet, find nothing, and sleep on.
    #[inline]
    pub fn take_needless_interrupt(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == ARMED
            && self
                .thread
                .compare_exchange(ARMED, RUNNING, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// The leader leaves, to `heir`; what it must do on behalf of the interrupt thread.
    #[must_use]
    pub fn resign(&self, heir: Heir) -> Parting {
        self.leader.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let next = if heir == Heir::Leader { WATCHING } else { ARMED };
        let thread = self.thread.compare_exchange(PARKED, next, Ordering::SeqCst, Ordering::SeqCst);
        match thread {
            // It has the watchdog watch.
            Ok(_) if heir == Heir::Leader => Parting::Call,
            // `ARMED` beside a leader: someone armed after this one took the interrupt, and it has masked
            // since.
            Ok(_) | Err(ARMED) => Parting::Arm,
            // The watchdog would leave them alone for longer than they like.
            Err(WATCHING) if heir == Heir::Sleepers => Parting::Call,
            Err(_) => Parting::Nothing,
        }
    }
}
