//! Autotuning, in a small model: a sender that fills the window at a given rate, a path, an application.

use super::*;
use std::collections::VecDeque;

struct World {
    rtt_ms: u64,
    /// The capacity of the path and the sender. Bytes per millisecond.
    rate: usize,
    /// The reading rate of the application. Bytes per millisecond.
    reads: usize,
    timestamps: bool,
}

/// Runs for so many milliseconds; returns the bytes received.
fn run(rx: &mut Receiver, world: &World, from: u64, ms: u64) -> usize {
    let mut path: VecDeque<(u64, Seq, usize)> = VecDeque::new();
    let mut acks: VecDeque<(u64, Seq)> = VecDeque::new();
    let (mut sent, mut edge) = (rx.next(), rx.window.edge());
    let start = rx.next();
    for tick in from..from + ms {
        let now = Instant::from_millis(tick);
        while let Some((_, at)) = acks.pop_front_if(|(due, _)| *due <= tick) {
            edge = edge.max(at);
        }
        let mut room = world.rate;
        while room > 0 && sent.before(edge) {
            let len = room.min(MSS as usize).min((edge - sent) as usize);
            path.push_back((tick + world.rtt_ms / 2, sent, len));
            sent += len as u32;
            room -= len;
        }
        while let Some((_, seq, len)) = path.pop_front_if(|(due, ..)| *due <= tick) {
            assert_eq!(rx.segment(seq, &vec![1; len], false, now).new_in_order, len);
            if world.timestamps {
                rx.round_trip(world.rtt_ms as u32 * MS);
            }
        }
        rx.discard(world.reads, now);
        if rx.ack_need() == AckNeed::Now || rx.window_update_due() {
            let at = rx.next() + rx.window();
            rx.acknowledged();
            acks.push_back((tick + world.rtt_ms.div_ceil(2), at));
        }
    }
    (rx.next() - start) as usize
}

fn growing(memory: u64) -> Receiver {
    let sizes = BufferSizes { initial: 128 << 10, max: 6 << 20 };
    Receiver::new(Seq(9), sizes, 7, MSS, Arc::new(Memory::new(memory)), Instant::ZERO)
}

#[test]
fn a_long_fast_path_gets_its_window_within_a_few_round_trips() {
    for timestamps in [true, false] {
        // 100 Mbit/s x 100 ms: 1.25 MB.
        let world = World { rtt_ms: 100, rate: 12_500, reads: usize::MAX, timestamps };
        let mut rx = growing(1 << 30);
        run(&mut rx, &world, 0, 1000);
        assert!(rx.limit() >= 2_000_000, "timestamps {timestamps}: {}", rx.limit());
        // Less one round trip, in which nothing has arrived yet.
        let got = run(&mut rx, &world, 1000, 1000);
        assert!(got >= 11_200_000, "timestamps {timestamps}: the path is not full: {got}");
        assert!((50..200).contains(&rx.rtt().as_millis()), "{:?}", rx.rtt());
    }
}

#[test]
fn the_buffer_stops_growing_at_its_maximum() {
    let world = World { rtt_ms: 200, rate: 1_000_000, reads: usize::MAX, timestamps: true };
    let mut rx = growing(1 << 30);
    run(&mut rx, &world, 0, 3000);
    assert_eq!(rx.limit(), 6 << 20);
}

#[test]
fn a_short_path_does_not_grow_the_buffer() {
    let world = World { rtt_ms: 2, rate: 5_000, reads: usize::MAX, timestamps: true };
    let mut rx = growing(1 << 30);
    run(&mut rx, &world, 0, 3000);
    assert!(rx.limit() <= 256 << 10, "{}", rx.limit());
}

#[test]
fn a_slow_reader_does_not_grow_a_buffer() {
    let world = World { rtt_ms: 50, rate: 12_500, reads: 1_000, timestamps: true };
    let mut rx = growing(1 << 30);
    run(&mut rx, &world, 0, 5000);
    assert!(rx.limit() <= 256 << 10, "{}", rx.limit());
}

#[test]
fn a_size_fixed_by_the_application_stays() {
    let world = World { rtt_ms: 100, rate: 12_500, reads: usize::MAX, timestamps: true };
    let mut rx = growing(1 << 30);
    rx.set_limit(100_000);
    run(&mut rx, &world, 0, 2000);
    assert_eq!(rx.limit(), 100_000);
}

#[test]
fn under_pressure_the_receive_buffer_does_not_grow() {
    let world = World { rtt_ms: 100, rate: 12_500, reads: usize::MAX, timestamps: true };
    let mut rx = growing(100 * CHUNK as u64);
    let hog: Vec<_> = (0..70).map(|_| rx.store.memory().take()).collect();
    run(&mut rx, &world, 0, 2000);
    assert_eq!(rx.limit(), 128 << 10);
    hog.into_iter().for_each(|chunk| rx.store.memory().give(chunk));
    run(&mut rx, &world, 2000, 1000);
    assert!(rx.limit() >= 2_000_000, "{}", rx.limit());
}
