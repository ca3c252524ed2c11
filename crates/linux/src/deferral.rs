//! The cost of deferred interrupts: how long a packet may wait that no poll finds.
//!
//! After a poll the interrupt of a queue stays masked, and a timer polls it after gro-flush-timeout, up to
//! defer-hard-irqs times. A packet that comes after the busy poll has ended waits for that timer. This pays for threads
//! that prefer busy polling, keep polling, and would be disturbed by interrupts; for all others it is a loss.
//!
//! Kernel source: `net/core/dev.c` (`napi_complete_done`, `busy_poll_stop`), `Documentation/networking/napi.rst`.

use std::time::Duration;

/// The threads that poll a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pollers {
    /// How long the longest wait polls, in microseconds; `None`: no thread polls, or the time is unknown.
    pub longest_usecs: Option<u32>,
    /// Whether any of them prefers busy polling.
    pub prefer: bool,
}

/// What the deferral of a queue's interrupts does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// None: interrupts are not deferred.
    Free,
    /// A packet that comes after the longest poll waits up to this long, and no thread prefers busy polling, so that
    /// nothing is gained.
    Loss(Duration),
    /// The same delay, but a thread prefers busy polling, for which it may pay.
    Price(Duration),
}

/// How long a packet that no poll finds may wait; `None` if interrupts are not deferred.
#[must_use]
pub fn wait(defer_hard_irqs: Option<u32>, gro_flush_timeout_ns: Option<u64>) -> Option<Duration> {
    let both =
        defer_hard_irqs.is_some_and(|n| n > 0) && gro_flush_timeout_ns.is_some_and(|t| t > 0);
    both.then(|| Duration::from_nanos(gro_flush_timeout_ns.unwrap_or(0)))
}

/// The cost of these settings for the packets of a queue with these pollers.
///
/// ```
/// use busypoll_linux::deferral::{Cost, Pollers, cost};
/// let polled = Pollers { longest_usecs: Some(10), prefer: false };
/// assert!(matches!(cost(Some(100), Some(500_000), polled), Cost::Loss(_)));
/// ```
#[must_use]
pub fn cost(
    defer_hard_irqs: Option<u32>,
    gro_flush_timeout_ns: Option<u64>,
    pollers: Pollers,
) -> Cost {
    match wait(defer_hard_irqs, gro_flush_timeout_ns) {
        None => Cost::Free,
        Some(wait) if pollers.prefer => Cost::Price(wait),
        // A poll longer than the timer finds most packets.
        Some(wait)
            if pollers.longest_usecs.is_some_and(|us| wait <= Duration::from_micros(us.into())) =>
        {
            Cost::Price(wait)
        }
        Some(wait) => Cost::Loss(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_longer_than_any_poll_is_a_loss_unless_a_thread_prefers_busy_polling() {
        let polls = |longest_usecs, prefer| Pollers { longest_usecs, prefer };
        let half = Duration::from_micros(500);
        for (defer, flush, pollers, expected) in [
            (0, 500_000, polls(None, false), Cost::Free),
            (100, 0, polls(None, false), Cost::Free),
            (100, 500_000, polls(None, false), Cost::Loss(half)),
            (100, 500_000, polls(Some(10), false), Cost::Loss(half)),
            (100, 500_000, polls(Some(500), false), Cost::Price(half)),
            (100, 500_000, polls(Some(10), true), Cost::Price(half)),
        ] {
            assert_eq!(
                cost(Some(defer), Some(flush), pollers),
                expected,
                "{defer} {flush} {pollers:?}"
            );
        }
    }
}
