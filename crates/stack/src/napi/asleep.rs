//! Going to sleep for what queues bring. Who knows the one queue its packets come over sleeps at it. Who knows none
//! yet, or several, is *astray*: any queue may be left to its pollers while it sleeps, so the watchdog must know that
//! there is somebody to wake.

use super::{Context, Outside, Waiter, Wake};
use crate::sync::Arc;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Threads asleep astray. Not of [`crate::sync`]: it decides how patient the watchdog is, and nothing else.
static UNBOUND: AtomicU32 = AtomicU32::new(0);

/// Whether a thread may sleep that any queue could wake.
pub(super) fn any_unbound_sleeper() -> bool {
    UNBOUND.load(Ordering::Relaxed) > 0
}

/// Puts the calling thread to sleep for what `contexts` bring, at the first of them, until `waiter` is woken,
/// `timeout` is over (`None`: never), a signal was handled, or something of `outside` is there.
pub fn sleep_for(
    contexts: &[Arc<Context>],
    waiter: &Arc<Waiter>,
    timeout: Option<Duration>,
    outside: &mut Outside,
) -> Wake {
    let astray = u32::from(contexts.len() != 1);
    UNBOUND.fetch_add(astray, Ordering::Relaxed);
    if astray > 0 {
        contexts.iter().for_each(|context| context.reset_backoff());
    }
    let wake = match contexts.first() {
        Some(context) => context.sleep(waiter, timeout, outside),
        None => waiter.sleep(timeout, outside),
    };
    UNBOUND.fetch_sub(astray, Ordering::Relaxed);
    wake
}
