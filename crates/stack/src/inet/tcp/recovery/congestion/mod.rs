//! Congestion control: how large the window may be. Owns the window, and the choice of the algorithm.

mod cubic;
mod hystart;
#[cfg(test)]
mod tests;

use super::super::{Algorithm, seq::Seq};
use crate::time::Instant;
use cubic::Cubic;
use hystart::HyStart;
use std::time::Duration;

//= RFC 5681 3.1
//# The initial value of ssthresh SHOULD be set arbitrarily high (e.g., to the size of the largest possible advertised
//# window), but ssthresh MUST be reduced in response to congestion.
/// No slow-start threshold yet.
pub(super) const NO_THRESHOLD: u32 = u32::MAX;
/// The window at the start of a connection (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
/// The window stays below this, so that adding bytes to it cannot overflow.
const LARGEST: u32 = 1 << 30;

/// What congestion control uses of an ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Bytes delivered.
    pub delivered: u32,
    /// The smoothed round trip.
    pub srtt: Duration,
    /// The round trip it measured.
    pub rtt: Option<Duration>,
    pub una: Seq,
    pub nxt: Seq,
    pub now: Instant,
}

/// The window, and the algorithm that moves it.
#[derive(Debug)]
pub(super) struct Congestion {
    /// The congestion window, bytes.
    pub cwnd: u32,
    /// Slow start below, congestion avoidance from here on, bytes.
    pub ssthresh: u32,
    pub mss: u32,
    control: Control,
    hystart: HyStart,
}

/// The state of an algorithm.
#[derive(Debug)]
enum Control {
    /// Bytes acknowledged towards the next segment's growth (RFC 3465 section 2.1).
    NewReno(u32),
    Cubic(Cubic),
}

/// The values that an undo restores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    cwnd: u32,
    ssthresh: u32,
    cubic: Option<Cubic>,
}

impl Congestion {
    /// Ten segments, however large, as in Linux; RFC 6928 section 2 would have two of more than 7,300 bytes. One segment
    /// if the SYN was lost more than once.
    pub fn new(algorithm: Algorithm, mss: u32, syn_lost: bool) -> Congestion {
        let initial = if syn_lost { mss } else { INITIAL_SEGMENTS * mss };
        let control = Control::new(algorithm);
        Congestion {
            cwnd: initial,
            ssthresh: NO_THRESHOLD,
            mss,
            control,
            hystart: HyStart::default(),
        }
    }

    //= RFC 5681 4.1
    //# For the purposes of this standard, we define RW = min(IW,cwnd).
    /// The restart window.
    pub fn restart_window(&self) -> u32 {
        (INITIAL_SEGMENTS * self.mss).min(self.cwnd)
    }

    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        self.control = Control::new(algorithm);
    }

    /// Whether the window is below the threshold.
    #[inline]
    pub fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    //= RFC 9293 3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion avoidance, and
    //# exponential backoff of RTO to avoid creating congestion collapse conditions (MUST-19).
    //= RFC 5681 3.1
    //# The slow start and congestion avoidance algorithms MUST be used by a TCP sender to control the amount of
    //# outstanding data being injected into the network.
    /// `delivered` bytes of a flow that fills its window were delivered: the window grows.
    pub fn grow(&mut self, growth: &Growth) {
        let mut delivered = growth.delivered;
        if self.slow_start() {
            let part = if self.ssthresh == NO_THRESHOLD {
                self.hystart.share(delivered)
            } else {
                delivered
            };
            // By all that the ACK covers (RFC 3465 with no limit, as in Linux), where RFC 5681 adds a segment per
            // ACK: the burst that follows is no larger than what was in flight.
            let target = self.cwnd.saturating_add(part).min(self.ssthresh).min(LARGEST);
            delivered = delivered.saturating_sub(target - self.cwnd);
            self.cwnd = target;
            if self.slow_start() {
                return;
            }
        }
        match &mut self.control {
            //= RFC 5681 3.1
            //# The RECOMMENDED way to increase cwnd during congestion avoidance is to count the number of bytes that
            //# have been acknowledged by ACKs for new data.
            //= RFC 5681 3.1
            //# Note that during congestion avoidance, cwnd MUST NOT be increased by more than SMSS bytes per RTT.
            Control::NewReno(credit) => {
                *credit = credit.saturating_add(delivered);
                if *credit >= self.cwnd {
                    *credit -= self.cwnd;
                    self.cwnd = (self.cwnd + self.mss).min(LARGEST);
                }
            }
            Control::Cubic(cubic) => {
                let growth = Growth { delivered, ..*growth };
                self.cwnd = cubic.avoid(self.cwnd, self.mss, &growth).min(LARGEST);
            }
        }
    }

    /// On each ACK in slow start before the first loss: has the round trip begun to grow (RFC 9406)?
    pub fn watch(&mut self, growth: &Growth) {
        if self.ssthresh == NO_THRESHOLD && self.hystart.acked(growth) {
            self.ssthresh = self.cwnd;
        }
    }

    /// Congestion: reduces the threshold, and returns what an undo restores. The caller reduces the window.
    pub fn reduce(&mut self) -> Saved {
        let saved = Saved { cwnd: self.cwnd, ssthresh: self.ssthresh, cubic: self.cubic() };
        let least = 2 * self.mss;
        self.ssthresh = match &mut self.control {
            //= RFC 5681 3.1
            //# ssthresh = max (FlightSize / 2, 2*SMSS) (4)
            // Of the window, as in Linux: it does not grow beyond what is used.
            Control::NewReno(credit) => {
                *credit = 0;
                self.cwnd / 2
            }
            Control::Cubic(cubic) => cubic.reduce(self.cwnd),
        }
        .max(least);
        saved
    }

    /// A timeout: CUBIC starts anew.
    pub fn timed_out(&mut self) {
        if let Control::Cubic(cubic) = &mut self.control {
            cubic.timed_out();
        }
    }

    /// The reduction was needless.
    pub fn undo(&mut self, saved: &Saved) {
        self.cwnd = self.cwnd.max(saved.cwnd);
        self.ssthresh = self.ssthresh.max(saved.ssthresh);
        if let (Control::Cubic(cubic), Some(saved)) = (&mut self.control, saved.cubic) {
            *cubic = saved;
        }
    }

    /// Nothing was in flight for `span`, which does not count.
    pub fn idle(&mut self, span: Duration) {
        if let Control::Cubic(cubic) = &mut self.control {
            cubic.idle(span);
        }
    }

    /// The window has shrunk because the connection was idle.
    pub fn restart(&mut self) {
        if let Control::Cubic(cubic) = &mut self.control {
            cubic.restart();
        }
    }

    fn cubic(&self) -> Option<Cubic> {
        match &self.control {
            Control::Cubic(cubic) => Some(*cubic),
            Control::NewReno(_) => None,
        }
    }
}

impl Control {
    fn new(algorithm: Algorithm) -> Control {
        match algorithm {
            Algorithm::Cubic => Control::Cubic(Cubic::default()),
            Algorithm::NewReno => Control::NewReno(0),
        }
    }
}
