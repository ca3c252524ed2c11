//! One spinner a CPU. Two threads that busy poll on one CPU keep each other from running: each waits for
//! the other's whole time slice, and a round trip takes a hundred times as long as with no polling at all.
//! A thread that has polled for a while in vain, and finds that another one does so on its CPU, gives up
//! and sleeps.

use crate::{say::say, sys};
use std::{
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Who has polled this long in vain looks round. Short waits pay nothing for it.
pub(super) const PATIENCE: Duration = Duration::from_micros(20);

/// CPUs watched; on those beyond, everybody polls as he likes.
const CPUS: usize = 1024;

/// Which thread busy polls on a CPU, by a number of its own; 0: none.
static SPINNING: [AtomicUsize; CPUS] = [const { AtomicUsize::new(0) }; CPUS];

/// In a child after fork(2): nobody polls yet.
pub(crate) fn forget_all() {
    SPINNING.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
}

/// A thread that has polled past its [`PATIENCE`]. It may be moved to another CPU and is then not noticed
/// there: the rule is for threads that stay where they are.
pub(super) struct Spinner {
    cpu: usize,
    me: usize,
}

impl Spinner {
    /// Enters the calling thread. `None` if another is on this CPU already.
    pub(super) fn enter() -> Option<Spinner> {
        // Its address is the thread's own, and not 0.
        thread_local!(static ME: u8 = const { 0 });
        let me = ME.with(|me| std::ptr::from_ref(me).addr());
        let cpu = sys::current_cpu().unwrap_or(CPUS);
        let alone = SPINNING.get(cpu).is_none_or(|slot| {
            slot.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        if alone {
            return Some(Spinner { cpu, me });
        }
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            say(format_args!(
                "two threads busy poll on CPU {cpu}: one of them sleeps instead. Pin them apart, or poll \
                 for a shorter time."
            ));
        });
        None
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(slot) = SPINNING.get(self.cpu) {
            // Fails only if it was never ours.
            let _ = slot.compare_exchange(self.me, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
