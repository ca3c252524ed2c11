//! The cost of the buffers. A measurement, run by hand: `cargo test --release -p busypoll-stack --lib
//! receive::tests::cost -- --ignored --nocapture`.

use super::super::super::{send_buffer::SendBuffer, store::Pieces};
use super::*;
use std::{hint::black_box, io::IoSlice};

const LEN: usize = 1460;
const TURNS: u32 = 2_000_000;

fn time(what: &str, turns: u32, mut turn: impl FnMut(u32)) {
    (0..turns / 10).for_each(&mut turn);
    let clock = std::time::Instant::now();
    (0..turns).for_each(turn);
    let nanos = clock.elapsed().as_nanos() as f64 / f64::from(turns);
    println!("{nanos:8.1} ns  {what}");
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_segment() {
    let (frame, mut room) = (vec![1; LEN], vec![0; 64 << 10]);
    time("to copy 1460 bytes twice", TURNS, |_| {
        let (one, two) = room.split_at_mut(LEN);
        black_box(&mut *one).copy_from_slice(black_box(&frame));
        black_box(&mut two[..LEN]).copy_from_slice(black_box(one));
    });
    for len in [1, LEN] {
        let mut rx = receiver(1 << 20);
        time(&format!("{len} bytes in, acknowledged, read"), TURNS, |n| {
            let now = Instant::from_micros(n.into());
            rx.segment(rx.next(), black_box(&frame[..len]), false, now);
            rx.window();
            rx.acknowledged();
            rx.read(&mut [IoSliceMut::new(&mut room)], now);
        });
    }
    let mut rx = receiver(1 << 20);
    time("1460 bytes in, read 64 KiB at a time", TURNS, |n| {
        let now = Instant::from_micros(n.into());
        rx.segment(rx.next(), black_box(&frame), false, now);
        if n % 2 == 0 {
            rx.window();
            rx.acknowledged();
        }
        if rx.available() >= 64 << 10 {
            rx.read(&mut [IoSliceMut::new(&mut room)], now);
        }
    });
    let mut rx = receiver(1 << 20);
    time("1460 bytes in, every 50th lost and sent again 20 later", TURNS, |n| {
        let now = Instant::from_micros(n.into());
        let base = rx.next();
        for n in (1..20).chain([0]) {
            rx.segment(base + n * LEN as u32, black_box(&frame), false, now);
            rx.window();
            black_box(rx.sacks());
            rx.acknowledged();
        }
        rx.discard(usize::MAX, now);
    });
    let mut rx = receiver(6 << 20);
    rx.window();
    for n in 0..reassembly::INTERVALS as u32 {
        rx.segment(rx.next() + 1000 + n * 2000, b"x", false, Instant::ZERO);
    }
    time("a byte out of order and its blocks, among 512 intervals", TURNS / 10, |n| {
        let at = rx.next() + 1000 + n % 512 * 2000;
        rx.segment(at, b"x", false, Instant::ZERO);
        black_box(rx.sacks());
        rx.acknowledged();
    });
    for len in [1, LEN, 64 << 10] {
        let sizes = BufferSizes { initial: 1 << 20, max: 1 << 20 };
        let mut tx = SendBuffer::new(Seq(7), sizes, Arc::new(Memory::new(1 << 30)));
        let written = vec![7; len];
        let all = |pieces: Pieces<'_>, room: &mut [u8]| {
            let mut at = 0;
            for piece in pieces {
                room[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
        };
        time(&format!("{len} bytes written, laid in segments, acknowledged"), TURNS / 10, |_| {
            tx.push(&[IoSlice::new(black_box(&written))], usize::MAX);
            while !tx.is_empty() {
                let end = tx.end().min(tx.start() + LEN as u32);
                all(tx.pieces(tx.start()..end), black_box(&mut room));
                tx.ack(end);
            }
        });
    }
}
