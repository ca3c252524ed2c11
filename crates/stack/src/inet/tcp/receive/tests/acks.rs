//! When received data is acknowledged.

use super::*;

/// A receiver in the middle of a connection: the quick acknowledgments are used up.
fn settled() -> (Receiver, Instant) {
    let mut rx = receiver(1 << 20);
    let now = Instant::from_millis(1000);
    rx.window();
    for _ in 0..ack::QUICK {
        assert_eq!(data(&mut rx, MSS, now), AckNeed::Now);
        drain(&mut rx, now);
        tell(&mut rx);
    }
    (rx, now + MS)
}

fn data(rx: &mut Receiver, len: u32, now: Instant) -> AckNeed {
    rx.segment(rx.next(), &vec![1; len as usize], false, now);
    rx.ack_need()
}

fn drain(rx: &mut Receiver, now: Instant) {
    rx.discard(usize::MAX, now);
}

fn tell(rx: &mut Receiver) {
    rx.window();
    rx.acknowledged();
    assert_eq!(rx.ack_need(), AckNeed::None);
}

#[test]
fn at_the_start_every_segment_is_acknowledged_at_once_then_every_second() {
    let (mut rx, now) = settled();
    for _ in 0..10 {
        assert_eq!(data(&mut rx, MSS, now), AckNeed::By(now + 40 * MS));
        assert_eq!(data(&mut rx, MSS, now), AckNeed::Now);
        drain(&mut rx, now);
        tell(&mut rx);
    }
}

#[test]
fn a_small_window_is_worth_few_quick_acknowledgments() {
    let mut rx = receiver(5 * MSS);
    tell(&mut rx);
    for _ in 0..2 {
        assert_eq!(data(&mut rx, 100, Instant::ZERO), AckNeed::Now);
        tell(&mut rx);
    }
    rx.answered(Instant::ZERO);
    assert!(matches!(data(&mut rx, 100, Instant::ZERO), AckNeed::By(_)));
}

#[test]
fn in_pingpong_mode_the_answer_carries_the_acknowledgment() {
    let mut rx = receiver(65_535);
    let mut now = Instant::ZERO;
    assert_eq!(data(&mut rx, 1, now), AckNeed::Now);
    tell(&mut rx);
    for _ in 0..100 {
        now = now + MS;
        drain(&mut rx, now);
        rx.answered(now);
        tell(&mut rx);
        assert_eq!(data(&mut rx, 1, now), AckNeed::By(now + 40 * MS));
        drain(&mut rx, now);
        assert_eq!(rx.ack_need(), AckNeed::By(now + 40 * MS), "the answer may still come");
    }
    // No answer comes: from then on none is expected, and data that was read is acknowledged.
    now = now + 40 * MS;
    rx.ack_timer(now);
    assert_eq!(rx.ack_need(), AckNeed::Now);
    tell(&mut rx);
    let late = now + MS;
    assert!(matches!(data(&mut rx, 1, late), AckNeed::By(_)));
    drain(&mut rx, late);
    assert_eq!(rx.ack_need(), AckNeed::Now);
}

//= RFC 9293 3.8.6.3 test
//# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18), but an ACK should not be excessively delayed; in [...]
#[test]
fn the_delay_follows_the_gaps_and_stays_between_40_and_200_ms() {
    let (mut rx, mut now) = settled();
    // Each delay was in vain: it doubles, and then follows the gap.
    for expected in [40, 80, 160, 200, 200] {
        let AckNeed::By(by) = data(&mut rx, 100, now) else { panic!("{:?}", rx.ack_need()) };
        assert_eq!(by.since(now), expected * MS);
        rx.ack_timer(now + MS);
        assert_ne!(rx.ack_need(), AckNeed::Now, "too early");
        rx.ack_timer(by);
        assert_eq!(rx.ack_need(), AckNeed::Now);
        tell(&mut rx);
        now = by;
    }
    // Close together: back to 40 ms.
    let mut delays = Vec::new();
    for _ in 0..10 {
        if let AckNeed::By(by) = data(&mut rx, 100, now) {
            delays.push(by.since(now));
        }
        tell(&mut rx);
        now = now + MS;
    }
    assert!(delays.last().is_some_and(|last| *last < 41 * MS), "{delays:?}");
    // After a pause the sender may be in slow start again.
    now = now + 300 * MS;
    assert_eq!(data(&mut rx, MSS, now), AckNeed::Now);
}

#[test]
fn the_second_short_segment_does_not_prolong_the_wait() {
    let (mut rx, now) = settled();
    let by = now + 40 * MS;
    assert_eq!(data(&mut rx, 10, now), AckNeed::By(by));
    assert_eq!(data(&mut rx, 10, now + 20 * MS), AckNeed::By(by));
}

//= RFC 5681 4.2 test
//# Out-of-order data segments SHOULD be acknowledged immediately, in order to accelerate loss recovery.
//= RFC 5681 4.2 test
//# To provide feedback to senders recovering from losses, the receiver SHOULD send an immediate ACK when it [...]
#[test]
fn out_of_order_duplicate_and_hole_filling_data_is_acknowledged_at_once() {
    let (mut rx, now) = settled();
    rx.answered(now);
    let next = rx.next();
    let mut segment = |seq: Seq, len: usize| {
        let arrived = rx.segment(seq, &vec![1; len], false, now);
        let need = rx.ack_need();
        tell(&mut rx);
        (arrived, need)
    };
    let beyond = segment(next + 100, 100);
    assert!(beyond.0.out_of_order && beyond.1 == AckNeed::Now);
    let half = segment(next, 50);
    assert!(half.0.filled_hole && half.1 == AckNeed::Now, "part of a hole");
    let rest = segment(next + 50, 50);
    assert!(rest.0.filled_hole && rest.0.new_in_order == 150 && rest.1 == AckNeed::Now);
    let again = segment(next, 100);
    assert!(again.0.duplicate && again.1 == AckNeed::Now);
    // After a loss the next few are acknowledged at once too.
    assert_eq!(segment(next + 200, 100).1, AckNeed::Now);
    let old = rx.next() - 100u32;
    assert!(!rx.acceptable(old, 100));
    rx.unacceptable(old, 100, now);
    assert_eq!((rx.ack_need(), rx.sacks().len()), (AckNeed::Now, 1));
}

/// asterinas#485: segments as large as the window, 10 ms each; then segments as large as the sender's buffer.
#[test]
fn a_segment_that_fills_a_buffer_is_acknowledged_at_once() {
    for (mss, limit) in [(65_495, 65_535), (30_000, 40_000), (65_495, 6 << 20), (16_384, 1 << 20)] {
        let sizes = BufferSizes { initial: limit, max: limit };
        let memory = Arc::new(Memory::new(1 << 30));
        let shift = Receiver::shift_for(sizes);
        let mut rx = Receiver::new(Seq(7), sizes, shift, mss, memory, Instant::ZERO);
        for n in 0..100 {
            let now = Instant::from_millis(n);
            rx.answered(now);
            let len = mss.min(rx.window());
            assert_eq!(
                data(&mut rx, len, now),
                AckNeed::Now,
                "segment {n} of {len}, buffer {limit}"
            );
            drain(&mut rx, now);
            tell(&mut rx);
        }
    }
}

/// A full-sized segment is what the peer sends, which may be less than we could take.
//= RFC 9293 3.8.6.3 test
//# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of new data
#[test]
fn every_second_segment_of_a_peer_with_a_small_mss_is_acknowledged() {
    let (mut rx, now) = settled();
    // Its segments have become smaller; the second one shows that.
    for _ in 0..2 {
        data(&mut rx, 1200, now);
    }
    tell(&mut rx);
    for _ in 0..10 {
        assert!(matches!(data(&mut rx, 1200, now), AckNeed::By(_)));
        assert_eq!(data(&mut rx, 1200, now), AckNeed::Now);
        tell(&mut rx);
    }
}

#[test]
fn the_acknowledgment_of_a_fin_waits_for_ours_but_not_for_ever() {
    // Also for a new connection, whose data is acknowledged at once.
    let mut new = receiver(1 << 20);
    assert_eq!(data(&mut new, 10, Instant::ZERO), AckNeed::Now);
    tell(&mut new);
    assert!(new.segment(new.next(), &[], true, Instant::ZERO).fin_reached);
    assert_eq!(new.ack_need(), AckNeed::By(Instant::ZERO + 40 * MS));

    let (mut rx, now) = settled();
    assert!(rx.segment(rx.next(), &[], true, now).fin_reached);
    assert_eq!(rx.ack_need(), AckNeed::By(now + 40 * MS));
    tell(&mut rx);
    // The FIN comes again: our acknowledgment was lost.
    rx.unacceptable(rx.next() - 1u32, 0, now);
    assert_eq!((rx.ack_need(), rx.sacks().len()), (AckNeed::Now, 0));
}

#[test]
fn quickack_can_be_set() {
    let (mut rx, now) = settled();
    rx.answered(now);
    assert!(!rx.quick_ack());
    assert!(matches!(data(&mut rx, 10, now), AckNeed::By(_)));
    rx.set_quick_ack(true);
    assert_eq!((rx.ack_need(), rx.quick_ack()), (AckNeed::Now, true));
    tell(&mut rx);
    rx.set_quick_ack(true);
    assert_eq!(rx.ack_need(), AckNeed::None);
    rx.set_quick_ack(false);
    assert!(matches!(data(&mut rx, 10, now), AckNeed::By(_)));
}

#[test]
fn only_a_quick_acknowledgment_can_be_left_to_the_reader() {
    let mut rx = receiver(1 << 20);
    let now = Instant::ZERO;
    let late = AckNeed::By(now + 40 * MS);
    rx.window();
    assert_eq!(data(&mut rx, 10, now), AckNeed::Now);
    drain(&mut rx, now);
    assert!(rx.leave_ack_to_reader());
    assert_eq!(rx.ack_need(), late);
    rx.reader_waits();
    assert_eq!(rx.ack_need(), AckNeed::Now);
    tell(&mut rx);
    rx.reader_waits();
    assert_eq!(rx.ack_need(), AckNeed::None);
    // The second full-sized segment, and a segment that leaves a hole, are acknowledged at once.
    data(&mut rx, MSS, now);
    assert!(rx.leave_ack_to_reader());
    assert_eq!(data(&mut rx, MSS, now), AckNeed::Now);
    assert!(!rx.leave_ack_to_reader());
    assert_eq!(rx.ack_need(), AckNeed::Now);
    tell(&mut rx);
    rx.segment(rx.next() + 10, &[1; 10], false, now);
    assert!(!rx.leave_ack_to_reader());
    tell(&mut rx);
    rx.set_quick_ack(true);
    data(&mut rx, 10, now);
    assert!(!rx.leave_ack_to_reader(), "TCP_QUICKACK is set");
}

#[test]
fn the_acknowledgment_of_a_burst_is_left_to_its_reader_up_to_a_size_and_a_time() {
    let (mut rx, now) = settled();
    let held = AckNeed::By(now + MS);
    assert_eq!(data(&mut rx, MSS, now), AckNeed::By(now + 40 * MS));
    let mut unacked = MSS;
    while unacked + MSS < 16 << 10 {
        // If another thread polled the queue, the ACK would be sent now.
        assert_eq!(data(&mut rx, MSS, now), AckNeed::Now);
        assert!(rx.leave_ack_to_reader());
        drain(&mut rx, now);
        assert_eq!(rx.ack_need(), held);
        unacked += MSS;
    }
    assert_eq!(data(&mut rx, MSS, now), AckNeed::Now);
    assert!(!rx.leave_ack_to_reader(), "plenty");
    tell(&mut rx);
    // The reader has taken it and does not come back: this does not count as a delayed ACK in vain.
    data(&mut rx, MSS, now);
    data(&mut rx, MSS, now);
    assert!(rx.leave_ack_to_reader());
    drain(&mut rx, now);
    rx.ack_timer(now + MS);
    assert_eq!(rx.ack_need(), AckNeed::Now);
    tell(&mut rx);
    // The sender may have waited for it: the next ACKs are not left to the reader.
    data(&mut rx, MSS, now + MS);
    assert_eq!(data(&mut rx, MSS, now + MS), AckNeed::Now);
    assert!(!rx.leave_ack_to_reader());
}
