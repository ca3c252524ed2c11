//! CUBIC (RFC 9438) in integers: bytes, milliseconds. Owns the state of the curve.

use super::Growth;
use crate::time::Instant;
use std::time::Duration;

//= RFC 9438 5.1
//# Therefore, _C_ SHOULD be set to 0.4.
/// C is 0.4 segments per second cubed, so W segments take (2.5 W)^(1/3) seconds: ms^3 per segment.
const CUBED_PER_SEGMENT: u64 = 2_500_000_000;
/// The curve is followed this far from its middle, ms: a quarter of an hour.
const FURTHEST: u64 = 1 << 20;

/// The curve of one flow. Names as in RFC 9438.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// Where this stage of congestion avoidance began; `None`: not yet.
    epoch: Option<Instant>,
    /// W_max: the middle of the curve, bytes; 0 after a timeout.
    w_max: u32,
    /// cwnd_prior: the window before the last reduction.
    prior: u32,
    /// K: from the epoch to the middle, ms.
    k: u32,
    /// W_est: what Reno would have, bytes.
    w_est: u32,
    /// Remainders of growth not yet whole bytes.
    credit: u64,
    est_credit: u64,
}

impl Cubic {
    /// The window after an ACK in congestion avoidance.
    pub fn avoid(&mut self, cwnd: u32, mss: u32, growth: &Growth) -> u32 {
        let (cwnd64, mss64) = (u64::from(cwnd.max(1)), u64::from(mss.max(1)));
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin(cwnd, mss64, growth.now),
        };
        let elapsed = millis(growth.now.since(epoch));
        let acked = u64::from(growth.delivered);

        //= RFC 9438 4.3
        //# Once _W_est_ has grown to reach the _cwnd_ at the time of most recently setting _ssthresh_ -- that is,
        //# _W_est_ >= _cwnd_prior_ -- the sender SHOULD set α__cubic_ to 1 to ensure that it can achieve the same
        //# congestion window increment rate as Reno, which uses AIMD(1, 0.5).
        // Alpha is 3(1-b)/(1+b) = 9/17 before.
        let (numerator, denominator) = if self.w_est < self.prior { (9, 17) } else { (1, 1) };
        self.est_credit += acked * mss64 * numerator;
        let whole = self.est_credit / (cwnd64 * denominator);
        self.est_credit -= whole * cwnd64 * denominator;
        self.w_est = self.w_est.saturating_add(whole.min(u64::from(cwnd)) as u32);

        //= RFC 9438 4.2
        //# To summarize, CUBIC computes both W_cubic(_t_) and _W_est_ (see Section 4.3) on receiving a new ACK in
        //# congestion avoidance and chooses the larger of the two values.
        //= RFC 9438 4.3
        //# If so, CUBIC is in the Reno-friendly region and _cwnd_ SHOULD be set to _W_est_ at each reception of a new
        //# ACK.
        if self.at(elapsed, mss64) < u64::from(self.w_est) {
            return cwnd.max(self.w_est);
        }
        //= RFC 9438 4.2
        //# Upon receiving a new ACK during congestion avoidance, CUBIC computes the _target_ congestion window size
        //# after the next _RTT_ using Figure 1 as follows, where _RTT_ is the smoothed round-trip time. The lower and
        //# upper bounds below ensure that CUBIC's congestion window increase rate is non-decreasing and is less than
        //# the increase rate of slow start [SXEZ19].
        let target = self.at(elapsed + millis(growth.srtt), mss64).clamp(cwnd64, cwnd64 * 3 / 2);
        //= RFC 9438 4.4
        //# In this region, _cwnd_ MUST be incremented by [...] for each received new ACK, where _target_ is
        //# calculated as described in Section 4.2.
        //= RFC 9438 4.5
        //# In this region, _cwnd_ MUST be incremented by [...] for each received new ACK, where _target_ is
        //# calculated as described in Section 4.2.
        // By (target - cwnd) / cwnd, counted in bytes acknowledged.
        self.credit += (target - cwnd64) * acked;
        let whole = self.credit / cwnd64;
        self.credit -= whole * cwnd64;
        cwnd.saturating_add(whole.min(cwnd64) as u32)
    }

    /// W_cubic(t), bytes: `C * (t - K)^3 + W_max`.
    fn at(&self, elapsed: u64, mss: u64) -> u64 {
        let k = u64::from(self.k);
        let distance = elapsed.abs_diff(k).min(FURTHEST);
        // 1,024ths of a segment: at most 2^60 / 2^21, so that no MSS overflows it.
        let segments = distance.pow(3) / (CUBED_PER_SEGMENT / 1_024);
        let bytes = (segments * mss) >> 10;
        let middle = u64::from(self.w_max);
        if elapsed < k { middle.saturating_sub(bytes) } else { middle + bytes }
    }

    /// A stage of congestion avoidance begins.
    fn begin(&mut self, cwnd: u32, mss: u64, now: Instant) -> Instant {
        self.epoch = Some(now);
        (self.w_est, self.credit, self.est_credit) = (cwnd, 0, 0);
        //= RFC 9438 4.2
        //# _K_ is the time period that the above function takes to increase the congestion window size at the
        //# beginning of the current congestion avoidance stage to _W_max_ if there are no further congestion events.
        let below = self.w_max.saturating_sub(cwnd);
        self.k = cube_root(u64::from(below) * CUBED_PER_SEGMENT / mss);
        self.w_max = self.w_max.max(cwnd);
        now
    }

    //= RFC 9438 4.6
    //# The parameter β__cubic_ SHOULD be set to 0.7, which is different from the multiplicative decrease factor used
    //# in [RFC5681] (and [RFC6675]) during fast recovery.
    /// Congestion: the new threshold.
    pub fn reduce(&mut self, cwnd: u32) -> u32 {
        self.epoch = None;
        self.prior = cwnd;
        //= RFC 9438 4.7
        //# To speed up this bandwidth release by existing flows, the following fast convergence mechanism SHOULD be
        //# implemented.
        // W_max = cwnd * (1 + beta) / 2 if the window falls.
        self.w_max = if cwnd < self.w_max { scale(cwnd, 17, 20) } else { cwnd };
        scale(cwnd, 7, 10)
    }

    //= RFC 9438 4.8
    //# During the first congestion avoidance stage after a timeout, CUBIC increases its congestion window size using
    //# Figure 1, where _t_ is the elapsed time since the beginning of the current congestion avoidance stage, _K_ is
    //# set to 0, and _W_max_ is set to the congestion window size at the beginning of the current congestion
    //# avoidance stage.
    //= RFC 9438 4.8
    //# In addition, for the Reno-friendly region, _W_est_ SHOULD be set to the congestion window size at the
    //# beginning of the current congestion avoidance stage.
    /// A timeout. The window before it still limits how long W_est grows by alpha.
    pub fn timed_out(&mut self) {
        *self = Cubic { prior: self.prior, ..Cubic::default() };
    }

    //= RFC 9438 5.8
    //# Per Section 4.2, it is required that _t_ in Figure 1 not include application-limited periods, such as idle
    //# periods; otherwise, W_cubic(_t_) might be very high after restarting from these periods.
    /// The connection was idle for `span`: shifts the curve. While the application sends less than the window allows
    /// the clock goes on, as in Linux.
    pub fn idle(&mut self, span: Duration) {
        self.epoch = self.epoch.map(|epoch| epoch + span);
    }

    /// After a long idle time the window has changed: a new stage begins with it.
    pub fn restart(&mut self) {
        self.epoch = None;
    }
}

fn scale(bytes: u32, numerator: u64, denominator: u64) -> u32 {
    (u64::from(bytes) * numerator / denominator) as u32
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(FURTHEST * 2)
}

/// The largest number whose cube is at most `value`.
fn cube_root(value: u64) -> u32 {
    let mut root: u64 = 0;
    for bit in (0..22).rev() {
        let next: u64 = root | 1 << bit;
        if next.checked_pow(3).is_some_and(|cube| cube <= value) {
            root = next;
        }
    }
    root as u32
}

#[cfg(test)]
mod tests {
    use super::super::super::super::seq::Seq;
    use super::*;

    #[test]
    fn cube_roots_are_exact() {
        for root in [0u64, 1, 2, 9, 1_000, 22_000, 2_642_244] {
            assert_eq!(u64::from(cube_root(root.pow(3))), root);
            assert_eq!(u64::from(cube_root((root + 1).pow(3) - 1)), root);
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    //= RFC 9438 4.8 test
    //# During the first congestion avoidance stage after a timeout, CUBIC increases its congestion window size [...]
    //= RFC 9438 4.8 test
    //# In addition, for the Reno-friendly region, _W_est_ SHOULD be set to the congestion window size at the [...]
    #[test]
    fn after_a_timeout_the_curve_begins_at_its_middle() {
        let mut cubic = Cubic::default();
        cubic.reduce(100_000);
        cubic.timed_out();
        cubic.begin(30_000, 1_000, Instant::from_millis(1_000));
        assert_eq!((cubic.k, cubic.w_max, cubic.w_est), (0, 30_000, 30_000));
    }

    #[test]
    fn a_time_is_counted_up_to_half_an_hour() {
        assert_eq!(millis(Duration::from_secs(1_800)), 1_800_000);
        assert_eq!(millis(Duration::MAX), 2 * FURTHEST);
    }

    /// The window over time against the formulas of RFC 9438 in floating point, stepped ACK by ACK.
    //= RFC 9438 5.1 test
    //# Therefore, _C_ SHOULD be set to 0.4.
    //= RFC 9438 4.2 test
    //# To summarize, CUBIC computes both W_cubic(_t_) and _W_est_ (see Section 4.3) on receiving a new ACK in [...]
    //= RFC 9438 4.2 test
    //# Upon receiving a new ACK during congestion avoidance, CUBIC computes the _target_ congestion window size [...]
    //= RFC 9438 4.4 test
    //# In this region, _cwnd_ MUST be incremented by [...] for each received new ACK, where _target_ is [...]
    //= RFC 9438 4.5 test
    //# In this region, _cwnd_ MUST be incremented by [...] for each received new ACK, where _target_ is [...]
    //= RFC 9438 4.2 test
    //# _K_ is the time period that the above function takes to increase the congestion window size at the [...]
    #[test]
    fn the_curve_is_that_of_the_formulas() {
        for (rtt_ms, w_max, mss) in
            [(20u64, 100u32, 1448u32), (100, 1_000, 1448), (1, 40, 8948), (50, 4_000, 536)]
        {
            let mut cubic = Cubic::default();
            let start = w_max * mss;
            let mut cwnd = cubic.reduce(start);
            let (beta, c) = (0.7f64, 0.4f64);
            let w_max = f64::from(w_max);
            let mut reference = w_max * beta;
            let mut w_est = reference;
            let k = ((w_max - reference) / c).cbrt();
            let rtt = Duration::from_millis(rtt_ms);
            let mut now = Instant::from_millis(1_000);
            let epoch = now;
            for round in 0..(20_000 / rtt_ms).min(2_000) {
                let segments = (cwnd / mss).max(1);
                for _ in 0..segments {
                    let (una, nxt) = (Seq(0), Seq(0));
                    let growth = Growth { delivered: mss, srtt: rtt, rtt: None, una, nxt, now };
                    cwnd = cubic.avoid(cwnd, mss, &growth);
                    let t = now.since(epoch).as_secs_f64();
                    let w = |t: f64| c * (t - k).powi(3) + w_max;
                    let alpha = if w_est < w_max { 9.0 / 17.0 } else { 1.0 };
                    w_est += alpha / reference;
                    reference = if w(t) < w_est {
                        reference.max(w_est)
                    } else {
                        let target = w(t + rtt.as_secs_f64()).clamp(reference, 1.5 * reference);
                        reference + (target - reference) / reference
                    };
                    now = now + rtt / segments;
                }
                let ours = f64::from(cwnd) / f64::from(mss);
                assert!(
                    (ours / reference - 1.0).abs() < 0.02,
                    "rtt {rtt_ms} round {round}: {ours} {reference}"
                );
            }
            assert!(cwnd > start, "it went beyond the middle: {cwnd}");
        }
    }

    //= RFC 9438 4.6 test
    //# The parameter β__cubic_ SHOULD be set to 0.7, which is different from the multiplicative decrease factor [...]
    //= RFC 9438 4.7 test
    //# To speed up this bandwidth release by existing flows, the following fast convergence mechanism SHOULD be [...]
    #[test]
    fn fast_convergence_lowers_w_max_when_the_window_falls() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.reduce(100_000), 70_000);
        assert_eq!(cubic.w_max, 100_000);
        assert_eq!(cubic.reduce(90_000), 63_000);
        assert_eq!(cubic.w_max, 76_500);
    }

    //= RFC 9438 4.3 test
    //# Once _W_est_ has grown to reach the _cwnd_ at the time of most recently setting _ssthresh_ -- that is, [...]
    #[test]
    fn after_a_timeout_w_est_grows_by_alpha_up_to_the_window_before_it() {
        let mss = 1_000;
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.reduce(20 * mss);
        cubic.timed_out();
        // The round trip is so short that the curve does not move.
        let (srtt, now) = (Duration::ZERO, Instant::from_millis(1_000));
        let mut grown = Vec::new();
        for _ in 0..30 {
            let before = cwnd;
            let delivered = cwnd;
            let growth = Growth { delivered, srtt, rtt: None, una: Seq(0), nxt: Seq(0), now };
            cwnd = cubic.avoid(cwnd, mss, &growth);
            grown.push(cwnd - before);
            let expected = if before < 20 * mss { 520..=530 } else { 990..=1_020 };
            assert!(expected.contains(&(cwnd - before)), "at {before}: {grown:?}");
        }
    }

    #[test]
    fn no_input_overflows() {
        let mut cubic = Cubic::default();
        let mut cwnd = 1u32 << 30;
        for i in 0..64u64 {
            let now = Instant::from_nanos(1u64 << i);
            let srtt = Duration::from_nanos(1u64 << (63 - i));
            let growth =
                Growth { delivered: u32::MAX, srtt, rtt: None, una: Seq(0), nxt: Seq(0), now };
            cwnd = cubic.avoid(cwnd.clamp(1, 1 << 30), 65_535, &growth);
            if i % 7 == 0 {
                cwnd = cubic.reduce(cwnd);
            }
            let tiny = Growth { delivered: 1, ..growth };
            cubic.avoid(1, 1, &tiny);
        }
    }
}
