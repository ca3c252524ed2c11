//! Going to sleep for packets. A thread that knows the one queue its packets come over sleeps on that queue. A thread
//! that knows none yet, or several, is an *unbound sleeper*: a packet on any queue could wake it, and that queue may be
//! left to its pollers. So the watchdog must know that such a thread exists.

use super::{Context, KernelFds, Upper, Waiter, Wake};
use crate::sync::Arc;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// The number of unbound sleepers. Not an atomic of [`crate::sync`], because it only decides how long the watchdog
/// waits.
static UNBOUND: AtomicU32 = AtomicU32::new(0);

/// Whether there is a sleeper that a packet on any queue could wake.
pub(super) fn any_unbound_sleeper() -> bool {
    UNBOUND.load(Ordering::Relaxed) > 0
}

/// Puts the calling thread to sleep on the first of `contexts`, until `waiter` is woken, `timeout` is over (`None`:
/// never), a signal was handled, or a descriptor of `kernel_fds` is ready.
pub fn sleep_for<U: Upper>(
    contexts: &[Arc<Context<U>>],
    waiter: &Arc<Waiter>,
    timeout: Option<Duration>,
    kernel_fds: &mut KernelFds,
) -> Wake {
    let unbound = u32::from(contexts.len() != 1);
    UNBOUND.fetch_add(unbound, Ordering::Relaxed);
    if unbound > 0 {
        contexts.iter().for_each(|context| context.reset_backoff());
        // The caller sleeps on the first queue's interrupt alone: it stops polling the others.
        contexts.iter().skip(1).for_each(|context| context.leave_to_interrupt_if_polled());
    }
    let wake = match contexts.first() {
        Some(context) => context.sleep(waiter, timeout, kernel_fds),
        None => waiter.sleep(timeout, kernel_fds),
    };
    UNBOUND.fetch_sub(unbound, Ordering::Relaxed);
    wake
}
