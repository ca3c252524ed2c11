//! HyStart++ (RFC 9406): the first slow start ends when the round trip grows, before packets are lost. Owns
//! the measurements of two rounds.

use super::{super::super::seq::Seq, Growth};

/// RFC 9406 section 4.3, in ns and counts.
const MIN_THRESHOLD: u64 = 4_000_000;
const MAX_THRESHOLD: u64 = 16_000_000;
const DIVISOR: u64 = 8;
const SAMPLES: u8 = 8;
const GROWTH_DIVISOR: u32 = 4;
const ROUNDS: u8 = 5;

/// The state of one slow start.
#[derive(Debug)]
pub(super) struct HyStart {
    /// windowEnd: the round ends when this is acknowledged; `None`: no round yet.
    end: Option<Seq>,
    /// lastRoundMinRTT, currentRoundMinRTT, ns; `u64::MAX`: infinity.
    last: u64,
    current: u64,
    samples: u8,
    /// cssBaselineMinRtt, in conservative slow start; 0: in slow start.
    baseline: u64,
    rounds: u8,
    /// The remainder of the division by four.
    remainder: u32,
}

impl Default for HyStart {
    fn default() -> HyStart {
        HyStart {
            end: None,
            last: u64::MAX,
            current: u64::MAX,
            samples: 0,
            baseline: 0,
            rounds: 0,
            remainder: 0,
        }
    }
}

impl HyStart {
    /// How much the window grows for `delivered` bytes.
    pub fn share(&mut self, delivered: u32) -> u32 {
        if self.baseline == 0 {
            return delivered;
        }
        let all = delivered.saturating_add(self.remainder);
        self.remainder = all % GROWTH_DIVISOR;
        all / GROWTH_DIVISOR
    }

    /// Takes an ACK; true when slow start should end.
    pub fn acked(&mut self, growth: &Growth) -> bool {
        if let Some(rtt) = growth.rtt {
            self.current =
                self.current.min(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).max(1));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES {
            if self.baseline == 0 {
                let threshold = (self.last / DIVISOR).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
                if self.last != u64::MAX && self.current >= self.last + threshold {
                    (self.baseline, self.rounds) = (self.current, 0);
                }
            } else if self.current < self.baseline {
                // "If currentRoundMinRTT < cssBaselineMinRtt": the delay was noise; slow start goes on.
                self.baseline = 0;
            }
        }
        if self.end.is_some_and(|end| growth.una.before(end)) {
            return false;
        }
        (self.last, self.current, self.samples) = (self.current, u64::MAX, 0);
        self.end = Some(growth.nxt);
        if self.baseline == 0 {
            return false;
        }
        self.rounds += 1;
        self.rounds >= ROUNDS
    }
}
