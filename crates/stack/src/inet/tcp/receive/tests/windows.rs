//! The window announced: silly windows, scaling, the right edge, scarce memory.

use super::*;
use proptest::prelude::*;

/// Announces the window, and returns it in bytes.
fn announce(rx: &mut Receiver) -> u32 {
    let window = rx.window();
    rx.acknowledged();
    window
}

fn fill(rx: &mut Receiver, len: usize) {
    let mut left = len;
    while left > 0 {
        let len = left.min(MSS as usize);
        assert_eq!(rx.segment(rx.next(), &vec![7; len], false, Instant::ZERO).new_in_order, len);
        left -= len;
    }
}

fn skip(rx: &mut Receiver, len: usize) {
    rx.discard(len, Instant::ZERO);
}

//= RFC 7323 2.2 test
//# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT be scaled.
#[test]
fn the_syn_announces_no_more_than_its_field_holds() {
    for (initial, field, max, shift) in [
        (1000, 1000, 1000, 0),
        (65_535, 65_535, 65_535, 0),
        (65_536, 65_535, 65_536, 1),
        (131_072, 65_535, 6 << 20, 7),
        (131_072, 65_535, 1 << 30, 14),
        (131_072, 65_535, u32::MAX, 14),
    ] {
        let sizes = BufferSizes { initial, max };
        assert_eq!(Receiver::initial_window(sizes), field);
        assert_eq!(Receiver::shift_for(sizes), shift, "up to {max}");
    }
}

//= RFC 9293 3.8.6.2.2 test
//# The suggested SWS avoidance algorithm for the receiver is to keep RCV.NXT+RCV.WND fixed until the reduction [...]
//= RFC 9293 3.8.6.2.2 test
//# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
#[test]
fn no_silly_window() {
    for (limit, step) in [(65_536, MSS), (4096, MSS), (2000, 1000)] {
        let mut rx = receiver(limit);
        announce(&mut rx);
        fill(&mut rx, limit as usize);
        assert_eq!(announce(&mut rx), 0, "limit {limit}");
        skip(&mut rx, step as usize - 2);
        assert_eq!(announce(&mut rx), 0, "limit {limit}: almost a step read");
        assert!(!rx.window_update_due());
        skip(&mut rx, 2);
        assert!(rx.window_update_due());
        let window = announce(&mut rx);
        assert!((step - 1..=step).contains(&window), "limit {limit}: {window}");
        assert!(!rx.window_update_due());
    }
}

#[test]
fn a_bare_window_update_is_sent_only_when_the_window_doubles() {
    let mut rx = receiver(60_000);
    announce(&mut rx);
    fill(&mut rx, 20_000);
    skip(&mut rx, 20_000);
    assert!(!rx.window_update_due(), "two thirds are open");
    fill(&mut rx, 15_000);
    skip(&mut rx, 4_000);
    assert!(!rx.window_update_due(), "25000 left, 49000 possible");
    skip(&mut rx, 1_000);
    assert!(rx.window_update_due(), "25000 left, 50000 possible");
}

/// xarxa's audit 080: rounding to the unit of the window scale retracts the right edge.
//= RFC 9293 3.8.6 test
//# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the left (SHLD-14).
#[test]
fn the_edge_stays_although_the_field_is_rounded() {
    let sizes = BufferSizes { initial: 60_000, max: 6 << 20 };
    let memory = Arc::new(Memory::new(1 << 30));
    let mut rx = Receiver::new(Seq(0), sizes, 7, MSS, memory, Instant::ZERO);
    announce(&mut rx);
    let mut edge = rx.next() + announce(&mut rx);
    for len in [1, 100, 127, 128, 129, 1000, 3].into_iter().chain([1460; 20]) {
        fill(&mut rx, len);
        let window = announce(&mut rx);
        assert_eq!(window % 128, 0);
        assert!(edge.at_most(rx.next() + window), "after {len} bytes");
        edge = rx.next() + window;
    }
}

/// Rounding up must not give ever more room to a peer that uses a little less than a unit each time.
#[test]
fn rounding_up_does_not_creep_beyond_the_buffer() {
    let sizes = BufferSizes { initial: 10_000, max: 10_000 };
    let memory = Arc::new(Memory::new(1 << 30));
    let mut rx = Receiver::new(Seq(0), sizes, 7, MSS, memory, Instant::ZERO);
    for _ in 0..10_000 {
        let window = announce(&mut rx);
        let left = rx.window.edge() - rx.next();
        let len = left.min(window).min(127);
        fill(&mut rx, len as usize);
        assert!(rx.available() <= 10_000 + 1250 + 128, "{} bytes", rx.available());
    }
    assert_eq!(announce(&mut rx), 0);
}

//= RFC 9293 3.8.6 test
//# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the left (SHLD-14).
//= RFC 7323 2.4 test
//# When window scaling is in effect, the receiver SHOULD track the actual maximum window sequence number
#[test]
fn a_smaller_buffer_does_not_shrink_the_window() {
    let mut rx = receiver(65_000);
    let edge = rx.next() + announce(&mut rx);
    rx.set_limit(8_000);
    fill(&mut rx, 30_000);
    assert_eq!(rx.next() + announce(&mut rx), edge);
    assert!(rx.acceptable(edge - MSS, MSS));
    skip(&mut rx, 30_000);
    assert_eq!(rx.next() + announce(&mut rx), edge, "the old window is larger than the new buffer");
    fill(&mut rx, 35_000);
    assert_eq!(announce(&mut rx), 0);
    skip(&mut rx, 35_000);
    assert_eq!(announce(&mut rx), 8_000);
}

#[test]
fn a_clamp_bounds_the_window_and_does_not_close_it() {
    let mut rx = receiver(65_000);
    rx.set_window_clamp(1000);
    fill(&mut rx, 65_000);
    assert_eq!(announce(&mut rx), 0);
    skip(&mut rx, 65_000);
    assert_eq!(announce(&mut rx), 1000);
}

//= RFC 9293 3.10.7.4 test
//# There are four cases for the acceptability test for an incoming segment:
//= RFC 7323 2.4 test
//# The receiver MUST honor, as in window, any segment that would have been in window for any <ACK> sent by the [...]
#[test]
fn segments_in_the_window_are_acceptable() {
    let mut rx = receiver(1000);
    let next = rx.next();
    for (offset, len, acceptable) in [
        (0i32, 0, true),
        (999, 0, true),
        (1000, 0, true), // On the edge: more than the table says, see `Window::acceptable`.
        (1001, 0, false),
        (-1, 0, false),
        (0, 1, true),
        (999, 1, true),
        (1000, 1, false),
        (999, 500, true),
        (-1, 1, false),
        (-1, 2, true),
        (-500, 500, false),
        (-500, 5000, true),
        (i32::MIN, 1, false),
        (i32::MAX, 1, false),
    ] {
        let seq = Seq(next.0.wrapping_add(offset as u32));
        assert_eq!(rx.acceptable(seq, len), acceptable, "{offset}, {len} bytes");
    }
    fill(&mut rx, 1000);
    announce(&mut rx);
    let next = rx.next();
    for (seq, len, acceptable) in
        [(next, 0, true), (next, 1, false), (next - 1u32, 2, false), (next + 1, 0, false)]
    {
        assert_eq!(rx.acceptable(seq, len), acceptable, "window 0: {seq}, {len} bytes");
    }
}

#[test]
fn scarce_memory_keeps_windows_small_and_open() {
    let memory = Arc::new(Memory::new(60 * CHUNK as u64));
    let sizes = BufferSizes { initial: 1 << 20, max: 1 << 20 };
    for mss in [MSS, 8948, 65_000] {
        let new = || Receiver::new(Seq(0), sizes, 4, mss, memory.clone(), Instant::ZERO);
        let mut rx = new();
        let promised = announce(&mut rx);
        assert_eq!(promised, 65_535 << 4);
        let mut hog: Vec<_> = (0..45).map(|_| memory.take()).collect();
        assert!(memory.pressure() && !memory.exhausted());

        let mut late = new();
        fill(&mut late, 65_535);
        assert_eq!(announce(&mut late), (mss * SCARCE) & !15, "a few segments, not the buffer");
        skip(&mut late, 65_535);

        hog.extend((0..20).map(|_| memory.take()));
        assert!(memory.exhausted());
        assert_eq!(announce(&mut rx), promised, "what was announced stays");
        // But data beyond what keeps the connection moving is dropped, and counts as lost.
        let arrived = rx.segment(rx.next(), &vec![1; 200_000], false, Instant::ZERO);
        assert!(arrived.dropped && arrived.new_in_order < 100_000, "{arrived:?}");
        assert_eq!(rx.ack_need(), AckNeed::Now);
        let used = memory.used();
        let arrived = rx.segment(rx.next() + 1, &[1; 100], false, Instant::ZERO);
        assert!(arrived.dropped || memory.used() == used);

        for _ in 0..20 {
            let len = announce(&mut late).min(mss) as usize;
            assert!(len == mss as usize, "{len}");
            fill(&mut late, len);
            skip(&mut late, len);
        }
        hog.into_iter().for_each(|chunk| memory.give(chunk));
    }
    assert_eq!(memory.used(), 0);
}

#[test]
fn out_of_order_data_is_dropped_for_data_in_order() {
    let memory = Arc::new(Memory::new(4 * CHUNK as u64));
    let sizes = BufferSizes { initial: 65_000, max: 65_000 };
    let mut rx = Receiver::new(Seq(0), sizes, 0, MSS, memory.clone(), Instant::ZERO);
    let zero = rx.next();
    for n in [1, 3, 5] {
        let at = zero + n * CHUNK as u32;
        let arrived = rx.segment(at, &[9; 1000], false, Instant::ZERO);
        assert!(arrived.out_of_order && !arrived.dropped);
    }
    let hog = [memory.take(), memory.take()];
    // Acknowledged data is kept, data that was only reported is dropped.
    let arrived = rx.segment(zero, &[1; 1000], false, Instant::ZERO);
    assert!(arrived.dropped && arrived.new_in_order == 1000, "{arrived:?}");
    assert!(rx.sacks().is_empty());
    assert_eq!(memory.used(), 3 * CHUNK as u64);
    assert_eq!(read(&mut rx, Instant::ZERO), [1; 1000]);
    hog.into_iter().for_each(|chunk| memory.give(chunk));
    let arrived = rx.segment(zero + 1000, &[2; 10_000], false, Instant::ZERO);
    assert_eq!(arrived.new_in_order, 10_000);
    assert_eq!(read(&mut rx, Instant::ZERO), [2; 10_000]);
}

proptest! {
    /// In every sequence of steps, the edge that the peer has seen never moves left by a unit or more, and everything
    /// up to it is accepted.
    #[test]
    fn the_edge_never_moves_left(
        shift in 0..15u8,
        limit in 1000..2_000_000u32,
        steps in prop::collection::vec((0..4usize, 0..3000usize, 0..40_000usize), 1..200),
    ) {
        let sizes = BufferSizes { initial: limit, max: limit };
        let memory = Arc::new(Memory::new(1 << 30));
        let mut rx = Receiver::new(Seq(u32::MAX - 5000), sizes, shift, MSS, memory, Instant::ZERO);
        let mut most = rx.next() + u32::from(Receiver::initial_window(sizes));
        for (what, len, read) in steps {
            match what {
                0 | 1 => {
                    let len = len.min((most - rx.next()) as usize);
                    let arrived = rx.segment(rx.next(), &vec![1; len], false, Instant::ZERO);
                    prop_assert_eq!(arrived.new_in_order, len);
                }
                2 => skip(&mut rx, read),
                _ => {
                    let window = announce(&mut rx);
                    let edge = rx.next() + window;
                    prop_assert!(edge.distance(most) < 1 << shift);
                    most = most.max(edge);
                    prop_assert!(rx.available() as u32 + window <= limit.max(2 << shift) / 8 * 9 + 65_536);
                }
            }
            prop_assert_eq!(rx.window.edge(), most);
        }
    }
}
