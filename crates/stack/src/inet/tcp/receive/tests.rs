//! The receiver in virtual time.

use super::*;

mod acks;
mod growth;
mod hostile;
mod model;
mod windows;

const MSS: u32 = 1460;
const MS: Duration = Duration::from_millis(1);

fn receiver(limit: u32) -> Receiver {
    let sizes = BufferSizes { min: 4096, initial: limit, max: limit };
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
