//! A malicious peer: its segments must cost bounded memory and bounded time.

use super::super::reassembly::INTERVALS;
use super::*;

#[test]
fn single_bytes_with_holes_between_cost_a_bounded_list_and_window() {
    let memory = Arc::new(Memory::new(1 << 30));
    let sizes = BufferSizes { initial: 6 << 20, max: 6 << 20 };
    let mut rx = Receiver::new(Seq(0), sizes, 7, MSS, memory.clone(), Instant::ZERO);
    let zero = rx.next();
    let window = rx.window();
    let mut kept = 0;
    for n in 0..200_000u32 {
        // Backwards and in the middle: each is inserted before others.
        let offset = 1 + n.wrapping_mul(0x9e37_79b1) % (window - 2);
        let arrived = rx.segment(zero + offset, &[1], false, Instant::ZERO);
        assert!(arrived.out_of_order && rx.ack_need() == AckNeed::Now);
        kept += usize::from(!arrived.dropped && !arrived.duplicate);
        rx.sacks();
    }
    assert!(rx.reassembly.iter().count() <= INTERVALS);
    assert!(kept >= INTERVALS);
    assert!(memory.used() <= u64::from(window) + CHUNK as u64);
    // And honest data after it is still received, hole by hole.
    let mut at = 0;
    while at < window {
        let len = MSS.min(window - at);
        rx.segment(zero + at, &vec![2; len as usize], false, Instant::ZERO);
        at += len;
    }
    assert_eq!((rx.available(), rx.reassembly.is_empty()), (window as usize, true));
    rx.discard(usize::MAX, Instant::ZERO);
    assert_eq!(memory.used(), 0);
}

/// Received data is not replaced by what an outsider later sends into the window; nor may one segment that covers
/// many holes cost more than their number.
#[test]
fn the_first_copy_of_a_byte_is_kept() {
    let mut rx = receiver(65_535);
    let zero = rx.next();
    for n in 0..INTERVALS as u32 {
        rx.segment(zero + 1 + 2 * n, b"a", false, Instant::ZERO);
    }
    let all = vec![b'b'; 2 * INTERVALS + 1];
    let arrived = rx.segment(zero, &all, false, Instant::ZERO);
    assert_eq!(arrived.new_in_order, all.len());
    let bytes = super::read(&mut rx, Instant::ZERO);
    assert!(bytes.chunks_exact(2).all(|pair| pair == b"ba"));
}

#[test]
fn a_fin_that_contradicts_received_data_does_not_count() {
    let mut rx = receiver(65_535);
    let zero = rx.next();
    rx.segment(zero + 10, b"later", false, Instant::ZERO);
    let now = Instant::ZERO;
    assert!(!rx.segment(zero, b"end", true, now).fin_reached, "data lies behind it");
    assert!(!rx.segment(zero + 70_000, b"", true, now).fin_reached, "outside the window");
    rx.segment(zero + 15, b"", true, now);
    rx.segment(zero + 20, b"more", true, now);
    rx.segment(zero + 12, b"", true, now);
    let arrived = rx.segment(zero, b"0123456789", false, now);
    assert!(arrived.fin_reached);
    assert_eq!(super::read(&mut rx, now), b"end3456789later");
    assert!(rx.finished());
    let after = rx.segment(rx.next(), b"and more", true, now);
    assert_eq!(after.new_in_order, 0);
    assert!(!after.fin_reached && rx.finished() && rx.available() == 0);
}
