//! The round-trip estimator and the retransmission timeout (RFC 6298), and the shortest round trip of the last
//! minutes (RFC 8985 section 5.2).

use super::super::seq::Seq;
use crate::time::Instant;
use std::time::Duration;

//= RFC 6298 2
//# (2.1) Until a round-trip time (RTT) measurement has been made for a segment sent between the sender and receiver,
//# the sender SHOULD set RTO <- 1 second
const INITIAL: Duration = Duration::from_secs(1);
//= RFC 6298 5
//# the RTO MUST be re-initialized to 3 seconds when data transmission begins (i.e., after the three-way handshake
//# completes).
const AFTER_LOST_SYN: Duration = Duration::from_secs(3);
/// How long the shortest round trip is kept: from half of `net.ipv4.tcp_min_rtt_wlen` up to all of it.
const HALF_WINDOW: Duration = Duration::from_secs(150);

/// The estimators of one path. They differ from RFC 6298 as Linux does (tcp_rtt_estimator in net/ipv4/tcp_input.c):
/// the variation is the largest of each round trip, falls slowly, does not grow when a round trip is shorter than
/// expected, and is at least the minimum RTO: `RTO = SRTT + max(min, variation)`.
#[derive(Debug)]
pub(super) struct Rtt {
    /// Eight times the smoothed round trip, ns; 0: none measured.
    srtt: i64,
    /// Four times the mean deviation, ns.
    deviation: i64,
    /// The largest of `deviation` in this round.
    largest: i64,
    /// The part of the timeout that is added to the round trip.
    variation: i64,
    /// The round ends when this is acknowledged.
    round: Seq,
    /// The timeout without backoff, ns.
    rto: i64,
    /// How often it is doubled.
    pub backoff: u32,
    /// The shortest of this half of the window and of the one before, ns; `u64::MAX`: none.
    shortest: [u64; 2],
    half: Instant,
}

impl Rtt {
    pub fn new(now: Instant, syn_lost: bool) -> Rtt {
        Rtt {
            srtt: 0,
            deviation: 0,
            largest: 0,
            variation: 0,
            round: Seq(0),
            rto: nanos(if syn_lost { AFTER_LOST_SYN } else { INITIAL }),
            backoff: 0,
            shortest: [u64::MAX; 2],
            half: now,
        }
    }

    //= RFC 6298 2
    //# (2.2) When the first RTT measurement R is made, the host MUST set SRTT <- R RTTVAR <- R/2 RTO <- SRTT + max
    //# (G, K*RTTVAR)
    //= RFC 6298 2
    //# SRTT <- (1 - alpha) * SRTT + alpha * R'
    //= RFC 6298 5
    //# Note that after retransmitting, once a new RTT measurement is obtained (which can only happen when new data
    //# has been sent and acknowledged), the computations outlined in Section 2 are performed, including the
    //# computation of RTO, which may result in "collapsing" RTO back down after it has been subject to exponential
    //# back off (rule 5.5).
    /// Takes a sample. `una` and `nxt` delimit the rounds.
    #[inline(always)]
    pub fn sample(&mut self, rtt: Duration, una: Seq, nxt: Seq, min: Duration, max: Duration) {
        let (rtt, min) = (nanos(rtt).max(1), nanos(min));
        if self.srtt == 0 {
            self.srtt = rtt * 8;
            self.deviation = rtt * 2;
            self.variation = self.deviation.max(min);
            self.largest = self.variation;
            self.round = nxt;
        } else {
            let error = rtt - self.srtt / 8;
            self.srtt = (self.srtt + error).max(8);
            let mut change = error.abs() - self.deviation / 4;
            if error < 0 && change > 0 {
                change /= 8;
            }
            self.deviation += change;
            if self.deviation > self.largest {
                self.largest = self.deviation;
                self.variation = self.variation.max(self.largest);
            }
            if una.after(self.round) {
                if self.largest < self.variation {
                    self.variation -= (self.variation - self.largest) / 4;
                }
                self.round = nxt;
                self.largest = min;
            }
        }
        self.rto = (self.srtt / 8 + self.variation.max(min)).min(nanos(max));
        self.backoff = 0;
    }

    //= RFC 8985 6.2
    //# The sender SHOULD track a windowed min-filtered estimate of recent RTT measurements that can adapt when
    //# migrating to significantly longer paths rather than tracking a simple global minimum of all RTT measurements.
    /// Takes a sample that a delayed acknowledgment has not lengthened more than necessary.
    #[inline(always)]
    pub fn shortest(&mut self, rtt: Duration, now: Instant) {
        // A segment sent and answered within one pass, which has a single time, was not measured.
        if rtt.is_zero() {
            return;
        }
        if now.since(self.half) > HALF_WINDOW {
            self.half = now;
            self.shortest = [u64::MAX, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(nanos(rtt) as u64);
    }

    /// The smoothed round trip.
    #[inline]
    pub fn srtt(&self) -> Option<Duration> {
        (self.srtt != 0).then(|| span(self.srtt / 8))
    }

    /// The part of the timeout that is added to the round trip.
    pub fn variation(&self) -> Duration {
        span(self.variation)
    }

    /// The shortest round trip.
    pub fn min(&self) -> Option<Duration> {
        let shortest = self.shortest[0].min(self.shortest[1]);
        (shortest != u64::MAX).then(|| Duration::from_nanos(shortest))
    }

    //= RFC 6298 5
    //# (5.5) The host MUST set RTO <- RTO * 2 ("back off the timer"). The maximum value discussed in (2.5) above may
    //# be used to provide an upper bound to this doubling operation.
    //= RFC 6298 2
    //# (2.5) A maximum value MAY be placed on RTO provided it is at least 60 seconds.
    /// The timeout, with backoff.
    pub fn rto(&self, max: Duration) -> Duration {
        match self.backoff {
            0 => span(self.rto),
            backoff => span(self.rto).saturating_mul(1 << backoff.min(20)).min(max),
        }
    }

    /// When the timeout that began at `from` is over.
    #[inline(always)]
    pub fn timeout(&self, from: Instant, max: Duration) -> Instant {
        match self.backoff {
            0 => Instant::from_nanos(from.nanos().saturating_add(self.rto as u64)),
            _ => from + self.rto(max),
        }
    }
}

#[inline]
fn nanos(span: Duration) -> i64 {
    // An hour is longer than any timeout, and eight times that does not overflow.
    span.as_secs().min(3_600) as i64 * 1_000_000_000 + i64::from(span.subsec_nanos())
}

#[inline]
fn span(nanos: i64) -> Duration {
    Duration::from_nanos(nanos.max(0) as u64)
}
