//! Which thread takes packets while no thread busy polls. The queue is always in one of these states, so that no packet
//! stays on the ring while all threads sleep:
//!
//! - `RUNNING`: the interrupt thread is awake and will poll.
//! - `ARMED`: the interrupt is unmasked and wakes the interrupt thread.
//! - `WATCHING`: the interrupt is masked because pollers come and go; the interrupt thread sleeps until the
//!   [watchdog](super::watchdog) finds that they have left.
//! - `PARKED`: a sleeping receiver, the *leader*, waits on the interrupt itself; the interrupt thread
//!   sleeps without a timeout. A leader that leaves arms the interrupt for the interrupt thread.
//!
//! This file decides; [`context`](super::context) and [`interrupt`](super::interrupt) act on the decision. It is
//! model-checked in `tests/loom.rs`.

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

/// How the interrupt thread goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleAction {
    /// Arm the interrupt, then sleep until it fires.
    Arm,
    /// Only sleep: the leader, or its successor, arms the interrupt if necessary.
    Park,
}

/// Which threads take the queue after a leader that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// The next leader or poller, which comes soon because packets are flowing. The watchdog watches meanwhile, which
    /// saves arming and disarming the interrupt.
    Leader,
    /// The interrupt thread, on behalf of the followers that sleep here.
    Followers,
    /// The interrupt thread. No thread sleeps here.
    InterruptThread,
}

/// What a leader that leaves must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResignAction {
    /// Nothing: the interrupt thread will poll.
    Nothing,
    /// Arm the interrupt.
    Arm,
    /// Kick the interrupt thread.
    Kick,
}

impl Default for Handoff {
    fn default() -> Self {
        Handoff::new()
    }
}

impl Handoff {
    /// The initial state: the interrupt thread is about to run, and there is no leader.
    pub fn new() -> Handoff {
        Handoff { thread: AtomicU32::new(RUNNING), leader: AtomicU32::new(0) }
    }

    /// The interrupt thread woke up, for any reason.
    pub fn run(&self) {
        self.thread.store(RUNNING, Ordering::SeqCst);
    }

    /// The interrupt thread is going to sleep until the watchdog kicks it.
    pub fn watch(&self) {
        self.thread.store(WATCHING, Ordering::SeqCst);
    }

    /// Whether the queue is left to pollers and the watchdog.
    #[inline]
    pub fn is_watching(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == WATCHING
    }

    /// Whether the interrupt thread must be kicked for the interrupt to be armed soon: it sleeps until the watchdog kicks
    /// it, or is awake and may be about to.
    pub fn needs_kick(&self) -> bool {
        matches!(self.thread.load(Ordering::SeqCst), RUNNING | WATCHING)
    }

    /// The interrupt thread has found the queue empty and is going to sleep.
    pub fn go_idle(&self) -> IdleAction {
        // A leader that leaves writes `leader`, then reads `thread`. We write `thread`, then read `leader`. So one side
        // sees the other's write.
        self.thread.store(PARKED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // The thread that changes `PARKED` to `ARMED` must arm the interrupt.
        let arm = !self.has_leader()
            && self
                .thread
                .compare_exchange(PARKED, ARMED, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        if arm { IdleAction::Arm } else { IdleAction::Park }
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

    /// The leader takes the interrupt over from the interrupt thread. True if it was armed: disarm it.
    pub fn take_interrupt(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == ARMED
            && self
                .thread
                .compare_exchange(ARMED, PARKED, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }

    /// A poller has found packets. True if the interrupt was armed: kick the interrupt thread, so that it sees that
    /// threads are polling. Otherwise it would wake for every packet, find the ring empty, and sleep again.
    #[inline]
    pub fn take_needless_interrupt(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == ARMED
            && self
                .thread
                .compare_exchange(ARMED, RUNNING, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// The leader leaves the queue to `successor`. Returns what it must do for the interrupt thread.
    #[must_use]
    pub fn resign(&self, successor: Successor) -> ResignAction {
        self.leader.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let next = if successor == Successor::Leader { WATCHING } else { ARMED };
        let thread = self.thread.compare_exchange(PARKED, next, Ordering::SeqCst, Ordering::SeqCst);
        match thread {
            // The kicked thread registers the queue with the watchdog.
            Ok(_) if successor == Successor::Leader => ResignAction::Kick,
            // `ARMED` although there was a leader: another thread armed after this leader took the interrupt, and this
            // leader has masked it since.
            Ok(_) | Err(ARMED) => ResignAction::Arm,
            // The watchdog would let the followers wait too long.
            Err(WATCHING) if successor == Successor::Followers => ResignAction::Kick,
            Err(_) => ResignAction::Nothing,
        }
    }
}
