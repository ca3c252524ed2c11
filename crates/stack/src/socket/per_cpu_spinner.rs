//! At most one busy-polling thread per CPU. Two threads that busy poll on one CPU keep each other from running: each
//! waits for the other's whole time slice, and a round trip takes a hundred times as long as with no polling at all.
//! A thread that has polled for a while in vain, and finds another one polling on its CPU, gives up and sleeps.

use crate::{stderr, sys};
use std::{
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A thread checks its CPU for another spinner after it has polled this long in vain. Shorter waits pay nothing.
pub(super) const GRACE_PERIOD: Duration = Duration::from_micros(20);

/// The CPUs covered. On CPUs with higher numbers the rule does not apply.
const CPUS: usize = 1024;

/// The thread that busy polls on each CPU, as a number unique to the thread; 0: none.
static SPINNING: [AtomicUsize; CPUS] = [const { AtomicUsize::new(0) }; CPUS];

/// Clears all slots, in a child after fork(2): no thread of the child polls yet.
pub(crate) fn clear() {
    SPINNING.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
}

/// The slot of a thread that has polled past its [`GRACE_PERIOD`]. A thread that is moved to another CPU is not noticed
/// there: the rule is for pinned threads.
#[derive(Debug)]
pub(super) struct Spinner {
    cpu: usize,
    me: usize,
}

impl Spinner {
    /// Enters the calling thread. `None` if another thread polls on this CPU already.
    pub(super) fn enter() -> Option<Spinner> {
        // The address of a thread-local is unique to the thread, and not 0.
        thread_local!(static ME: u8 = const { 0 });
        let me = ME.with(|me| std::ptr::from_ref(me).addr());
        let cpu = sys::current_cpu().unwrap_or(CPUS);
        let entered = SPINNING.get(cpu).map_or(Ok(0), |slot| {
            slot.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed)
        });
        match entered {
            Ok(_) => return Some(Spinner { cpu, me }),
            // The thread's own: its runtime has several poller tasks, or one and a call that busy polls.
            Err(other) if other == me => return Some(Spinner { cpu: CPUS, me }),
            Err(_) => {}
        }
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            stderr::print(format_args!(
                "two threads busy poll on CPU {cpu}: one of them sleeps instead. Pin them to \
                 different CPUs, or poll for a shorter time."
            ));
        });
        None
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(slot) = SPINNING.get(self.cpu) {
            // Fails only if the slot was never ours.
            let _ = slot.compare_exchange(self.me, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
