//! The receiver in virtual time.

use super::*;

mod acks;
mod cost;
mod growth;
mod hostile;
mod model;
mod windows;

const MSS: u32 = 1460;
const MS: Duration = Duration::from_millis(1);

fn receiver(limit: u32) -> Receiver {
    let sizes = BufferSizes { initial: limit, max: limit };
    let memory = Arc::new(Memory::new(1 << 30));
    Receiver::new(
        Seq(u32::MAX - 1000),
        sizes,
        Receiver::shift_for(sizes),
        MSS,
        memory,
        Instant::ZERO,
    )
}

fn read(receiver: &mut Receiver, now: Instant) -> Vec<u8> {
    let mut bytes = vec![0; receiver.available()];
    let len = receiver.read(&mut [IoSliceMut::new(&mut bytes)], now);
    assert_eq!(len, bytes.len());
    bytes
}

#[test]
fn a_hole_is_filled_and_the_fin_that_came_before_counts() {
    let mut rx = receiver(65536);
    let (next, now) = (rx.next(), Instant::ZERO);
    let last = rx.segment(next + 3, b"def", true, now);
    assert!(last.out_of_order && !last.fin_reached && rx.available() == 0);
    assert_eq!(rx.sacks().iter().collect::<Vec<_>>(), [next + 3..next + 6]);
    let first = rx.segment(next, b"abc", false, now);
    assert!(first.filled_hole && first.fin_reached && first.new_in_order == 6, "{first:?}");
    assert_eq!((rx.next(), rx.ack_need()), (next + 7, AckNeed::Now));
    assert_eq!(read(&mut rx, now + MS), b"abcdef");
    assert!(rx.finished());
}
/// The memory of an idle connection for these: their part of 2 KiB.
#[test]
fn the_receiver_of_an_idle_connection_is_small() {
    assert!(size_of::<Receiver>() <= 232, "{}", size_of::<Receiver>());
    let send = size_of::<super::super::send_buffer::SendBuffer>();
    assert!(send <= 88, "{send}");
}

/// RFC 2883's examples 4.1 to 4.3.2, with one segment of 500 bytes less before each.
#[test]
fn duplicates_are_reported_once_and_first() {
    let mut rx = receiver(65_535);
    let now = Instant::ZERO;
    let zero = rx.next();
    let mut reported = |seq: u32, len: usize| {
        let seq = zero + seq;
        if rx.acceptable(seq, len as u32) {
            rx.segment(seq, &vec![0; len], false, now);
        } else {
            rx.unacceptable(seq, len, now);
        }
        let blocks = rx.sacks().iter().map(|run| (run.start - zero, run.end - zero)).collect();
        rx.acknowledged();
        (rx.next() - zero, blocks)
    };
    let blocks = |blocks: &[(u32, u32)]| blocks.to_vec();
    assert_eq!(reported(0, 500), (500, vec![]));
    assert_eq!(reported(0, 500), (500, blocks(&[(0, 500)])), "4.1: below the acknowledgment");
    assert_eq!(reported(1000, 500), (500, blocks(&[(1000, 1500)])));
    assert_eq!(reported(1500, 500), (500, blocks(&[(1000, 2000)])));
    assert_eq!(
        reported(1000, 500),
        (500, blocks(&[(1000, 1500), (1000, 2000)])),
        "4.2.1: within a block"
    );
    assert_eq!(reported(2500, 500), (500, blocks(&[(2500, 3000), (1000, 2000)])));
    assert_eq!(
        reported(1500, 1000),
        (500, blocks(&[(1500, 2000), (1000, 3000)])),
        "4.3.1: its first part came before"
    );
    assert_eq!(
        reported(0, 1000),
        (3000, blocks(&[(0, 500)])),
        "part of it old, the rest fills the hole"
    );
    rx.set_report_duplicates(false);
    rx.unacceptable(zero, 500, now);
    assert_eq!((rx.sacks().len(), rx.ack_need()), (0, AckNeed::Now));
}

#[test]
fn a_reader_that_waits_for_more_than_can_arrive_is_woken() {
    let mut rx = receiver(10_000);
    rx.window();
    let mut fill = |len: usize| {
        rx.segment(rx.next(), &vec![0; len], false, Instant::ZERO);
        rx.is_readable(100_000)
    };
    assert!(!fill(5_000));
    assert!(!fill(3_000));
    assert!(fill(1_500), "less than a segment has room");
    assert!(!receiver(10_000).is_readable(0), "nothing there");
}
