//! Who sees to the queue while nobody polls it. At every instant one of these holds, so that no packet
//! sleeps in the ring while everybody sleeps:
//!
//! - `RUNNING`: the interrupt thread is awake and will look.
//! - `ARMED`: the interrupt is unmasked and wakes the interrupt thread.
//! - `WATCHING`: the interrupt is masked because pollers come and go; the interrupt thread looks at the
//!   latest after the watchdog's time.
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

    /// The interrupt thread is going to look again after the watchdog's time.
    pub fn watch(&self) {
        self.thread.store(WATCHING, Ordering::SeqCst);
    }

    /// Whether it is going to.
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

    /// The leader leaves; what it must do on behalf of the interrupt thread. With `back_soon` the queue is
    /// left to a leader to come, with the interrupt thread watching: a flow of packets then costs neither
    /// arming nor disarming.
    #[must_use]
    pub fn resign(&self, back_soon: bool) -> Parting {
        self.leader.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let next = if back_soon { WATCHING } else { ARMED };
        let thread = self.thread.compare_exchange(PARKED, next, Ordering::SeqCst, Ordering::SeqCst);
        match thread {
            Ok(_) if back_soon => Parting::Call,
            // `ARMED` beside a leader: someone armed after this one took the interrupt, and it has masked
            // since.
            Ok(_) | Err(ARMED) => Parting::Arm,
            // It may have found us about, and would leave the queue alone for longer than others like.
            Err(WATCHING) if !back_soon => Parting::Call,
            Err(_) => Parting::Nothing,
        }
    }
}
