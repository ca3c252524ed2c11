//! The round-trip estimator and the retransmission timeout (RFC 6298), and the shortest round trip of the last
//! minutes (RFC 8985 section 5.2).

use super::super::seq::Seq;
use crate::time::Instant;
use std::{hint::cold_path, time::Duration};

//= RFC 6298 2
//# (2.1) Until a round-trip time (RTT) measurement has been made for a segment sent between the sender and receiver,
//# the sender SHOULD set RTO <- 1 second
const INITIAL: Duration = Duration::from_secs(1);
//= RFC 6298 5
//# the RTO MUST be re-initialized to 3 seconds when data transmission begins (i.e., after the three-way handshake
//# completes).
const AFTER_LOST_SYN: Duration = Duration::from_secs(3);
/// How long the shortest round trip is kept: from half of `net.ipv4.tcp_min_rtt_wlen` up to all of it.
/// Nanoseconds.
const HALF_WINDOW: u64 = 150_000_000_000;
/// An hour is longer than any timeout, and eight times that does not overflow. Nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

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
    /// The smallest and the largest timeout, ns.
    min: i64,
    max: i64,
    /// How often it is doubled.
    pub backoff: u32,
    /// The shortest of this half of the window and of the one before, ns; `u64::MAX`: none.
    shortest: [u64; 2],
    half: Instant,
}

impl Rtt {
    pub fn new(now: Instant, syn_lost: bool, min: Duration, max: Duration) -> Rtt {
        Rtt {
            srtt: 0,
            deviation: 0,
            largest: 0,
            variation: 0,
            round: Seq(0),
            rto: nanos(if syn_lost { AFTER_LOST_SYN } else { INITIAL }),
            min: nanos(min),
            max: nanos(max),
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
    /// Takes a sample, ns. `una` and `nxt` delimit the rounds. No value that is divided is
    /// negative: a shift does.
    #[inline(always)]
    pub fn sample(&mut self, rtt: u64, una: Seq, nxt: Seq) {
        let (rtt, min) = (rtt.clamp(1, LONGEST) as i64, self.min);
        if self.srtt == 0 {
            self.srtt = rtt * 8;
            self.deviation = rtt * 2;
            self.variation = self.deviation.max(min);
            self.largest = self.variation;
            self.round = nxt;
        } else {
            let error = rtt - (self.srtt >> 3);
            self.srtt = (self.srtt + error).max(8);
            let mut change = error.abs() - (self.deviation >> 2);
            if error < 0 && change > 0 {
                change >>= 3;
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
        self.rto = ((self.srtt >> 3) + self.variation.max(min)).min(self.max);
        self.backoff = 0;
    }

    //= RFC 8985 6.2
    //# The sender SHOULD track a windowed min-filtered estimate of recent RTT measurements that can adapt when
    //# migrating to significantly longer paths rather than tracking a simple global minimum of all RTT measurements.
    /// Takes a sample that a delayed acknowledgment has not lengthened more than necessary.
    #[inline(always)]
    pub fn shortest(&mut self, rtt: u64, now: Instant) {
        // A segment sent and answered within one pass, which has a single time, was not measured.
        if rtt == 0 {
            return;
        }
        if now.nanos_since(self.half) > HALF_WINDOW {
            self.half = now;
            self.shortest = [u64::MAX, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(rtt);
    }

    /// The smoothed round trip, ns.
    #[inline]
    pub fn smoothed(&self) -> Option<u64> {
        (self.srtt != 0).then_some((self.srtt >> 3) as u64)
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
    /// The timeout, with backoff, ns.
    #[inline]
    pub fn rto(&self) -> u64 {
        match self.backoff {
            0 => self.rto as u64,
            backoff => {
                cold_path();
                self.rto.saturating_mul(1 << backoff.min(20)).min(self.max) as u64
            }
        }
    }

    /// When the timeout that began at `from` is over.
    #[inline(always)]
    pub fn timeout(&self, from: Instant) -> Instant {
        Instant::from_nanos(from.nanos().saturating_add(self.rto()))
    }

    /// The smallest timeout, ns.
    #[inline]
    pub fn min_rto(&self) -> u64 {
        self.min as u64
    }

    /// `TCP_RTO_MIN_US` is set.
    pub fn set_min_rto(&mut self, least: Duration) {
        self.min = nanos(least);
        self.max = self.max.max(self.min);
    }
}

fn nanos(span: Duration) -> i64 {
    u64::try_from(span.as_nanos()).unwrap_or(LONGEST).min(LONGEST) as i64
}

#[inline]
fn span(nanos: i64) -> Duration {
    Duration::from_nanos(nanos.max(0) as u64)
}
