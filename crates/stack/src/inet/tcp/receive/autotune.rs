//! The size of the receive buffer: dynamic right-sizing, as Linux's `tcp_rcv_space_adjust`. What the application
//! reads within one round trip is what the sender could send in it. The buffer has to hold twice that, and more while
//! the rate grows.

use super::super::seq::Seq;
use crate::time::Instant;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Autotune {
    /// What the buffer may grow to.
    max: u32,
    /// The most read within one round trip. Bytes.
    space: u32,
    /// Where and when the present measurement of it began.
    from: Seq,
    since: Instant,
    rtt: RoundTrip,
}

/// The round trip as the receiver sees it. Microseconds, to keep an idle connection small.
#[derive(Debug)]
struct RoundTrip {
    /// Smoothed; zero while unknown.
    smoothed: u32,
    /// When RCV.NXT reaches `until`, one window of data has arrived since `since`; valid if `measuring`.
    until: Seq,
    since: Instant,
    measuring: bool,
}

impl Autotune {
    pub(super) fn new(next: Seq, limit: u32, max: u32, mss: u32, now: Instant) -> Autotune {
        let rtt = RoundTrip { smoothed: 0, until: next, since: now, measuring: false };
        // RFC 6928: a sender begins with ten segments.
        let space = limit.min(mss.saturating_mul(10)).max(1);
        Autotune { max: max.max(limit), space, from: next, since: now, rtt }
    }

    pub(super) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt.smoothed.into())
    }

    pub(super) fn space(&self) -> u32 {
        self.space
    }

    /// The application has fixed the size.
    pub(super) fn fix(&mut self) {
        self.max = 0;
    }

    /// Data has come up to `next`; the window ends at `edge`.
    #[inline]
    pub(super) fn arrived(&mut self, next: Seq, edge: Seq, now: Instant) {
        if self.rtt.until.at_most(next) {
            self.rtt.window(edge, now);
        }
    }

    /// The timestamp that the peer echoed shows that data took this long to arrive after our segment.
    #[inline]
    pub(super) fn sample(&mut self, rtt: Duration) {
        let sample = micros(rtt);
        let old = self.rtt.smoothed;
        self.rtt.smoothed = if old == 0 { sample } else { old - old / 8 + sample / 8 };
    }

    /// Whether a round trip is over, and [`read`](Autotune::read) has something to measure.
    #[inline(always)]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let smoothed = self.rtt.smoothed;
        smoothed != 0
            && (smoothed == 1 || now.nanos_since(self.since) >= u64::from(smoothed) * 1_000)
    }

    /// The application has read up to `read` and has left `unread` bytes: returns the limit the buffer should have
    /// now, `limit` at least.
    #[cold]
    pub(super) fn read(
        &mut self,
        read: Seq,
        unread: u32,
        limit: u32,
        mss: u32,
        now: Instant,
    ) -> u32 {
        // Unread data was delayed by the application, not by the buffer.
        let copied = (read - self.from).saturating_sub(unread);
        self.from = read;
        self.since = now;
        if copied <= self.space {
            return limit;
        }
        // Twice what was read: the sender doubles its window each round trip in slow start. And as much again as the
        // rate has grown by.
        let want = 2 * u64::from(copied) + 16 * u64::from(mss);
        let grown = want * u64::from(copied - self.space) / u64::from(self.space.max(1));
        self.space = copied;
        limit.max((want + 2 * grown).min(self.max.into()) as u32)
    }
}

impl RoundTrip {
    /// A window of data takes one round trip if the sender fills the window, and more if not: so the smallest sample
    /// counts.
    fn window(&mut self, edge: Seq, now: Instant) {
        let sample = micros(now.since(self.since));
        if self.measuring && (self.smoothed == 0 || sample < self.smoothed) {
            self.smoothed = sample;
        }
        (self.until, self.since, self.measuring) = (edge, now, true);
    }
}

/// At least one.
#[inline]
fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_nanos() / 1_000).unwrap_or(u32::MAX).max(1)
}
