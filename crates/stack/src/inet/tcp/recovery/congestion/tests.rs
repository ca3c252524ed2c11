//! What the window does, over both algorithms.

use super::*;

const MSS: u32 = 1_000;

fn growth(delivered: u32, ms: u64) -> Growth {
    let now = Instant::from_millis(ms);
    let srtt = Duration::from_millis(20);
    Growth { delivered, srtt, rtt: None, una: Seq(0), nxt: Seq(0), now }
}

/// A round of a slow start in which the round trip takes `rtt` ms: eight samples, then its end is acknowledged.
fn round(congestion: &mut Congestion, number: u32, rtt: u64) {
    let (una, nxt) = (Seq(number * 100), Seq((number + 1) * 100));
    for seen in 0..8 {
        let rtt = Some(Duration::from_millis(rtt));
        let una = if seen == 7 { una } else { una + u32::MAX };
        congestion.watch(&Growth { rtt, una, nxt, ..growth(MSS, 1_000) });
    }
}

//= RFC 5681 4.1 test
//# For the purposes of this standard, we define RW = min(IW,cwnd).
#[test]
fn the_restart_window_is_the_initial_window() {
    for (mss, window) in [(536, 5_360), (1_448, 14_480), (8_948, 89_480)] {
        let congestion = Congestion::new(Algorithm::Cubic, mss, false);
        assert_eq!((congestion.cwnd, congestion.restart_window()), (window, window));
    }
    let small = Congestion { cwnd: 2_000, ..Congestion::new(Algorithm::Cubic, 8_948, false) };
    assert_eq!(small.restart_window(), 2_000);
}

/// RFC 9406 section 4.3: five rounds of conservative slow start, by a quarter, and then congestion avoidance.
#[test]
fn a_longer_round_trip_slows_the_first_slow_start_and_ends_it_after_five_rounds() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS, false);
    round(&mut congestion, 1, 20);
    round(&mut congestion, 2, 20);
    let grow = |congestion: &mut Congestion| {
        let before = congestion.cwnd;
        congestion.grow(&growth(4 * MSS, 1_000));
        congestion.cwnd - before
    };
    assert_eq!(grow(&mut congestion), 4 * MSS);
    for number in 3..7 {
        round(&mut congestion, number, 40);
        assert_eq!((grow(&mut congestion), congestion.ssthresh), (MSS, NO_THRESHOLD), "{number}");
    }
    round(&mut congestion, 7, 40);
    assert_eq!(congestion.ssthresh, congestion.cwnd);
}

/// A later slow start, up to a threshold, is not slowed by what the first one has measured.
#[test]
fn a_slow_start_up_to_a_threshold_is_not_conservative() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS, false);
    for (number, rtt) in [(1, 20), (2, 20), (3, 40)] {
        round(&mut congestion, number, rtt);
    }
    congestion.ssthresh = 1_000 * MSS;
    let before = congestion.cwnd;
    congestion.grow(&growth(4 * MSS, 1_000));
    assert_eq!(congestion.cwnd - before, 4 * MSS);
}

#[test]
fn an_undone_reduction_leaves_the_curve_as_it_was() {
    let avoiding = || {
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS, false);
        congestion.cwnd = 100 * MSS;
        congestion.reduce();
        congestion.cwnd = congestion.ssthresh;
        (0..100).for_each(|at| congestion.grow(&growth(20 * MSS, 1_000 + at * 20)));
        congestion
    };
    let (mut undone, mut other) = (avoiding(), avoiding());
    let saved = undone.reduce();
    undone.undo(&saved);
    for at in 100..400 {
        undone.grow(&growth(20 * MSS, 1_000 + at * 20));
        other.grow(&growth(20 * MSS, 1_000 + at * 20));
        assert_eq!(undone.cwnd, other.cwnd, "at {at}");
    }
}
