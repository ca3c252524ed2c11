//! The cost of a request and its response in the connection layer, and the size of a connection. A measurement, run
//! by hand: `cargo test --release -p busypoll-stack --lib tcp::cost -- --ignored --nocapture`; for instructions under
//! `valgrind --tool=callgrind`, with `TURNS` set.

use super::{
    Config, TcpOptions,
    connection::{Connection, Start},
    handshake::Request,
    segment::Segment,
    seq::Seq,
    shared::Shared,
};
use crate::{inet::counters::Counters, time::Instant};
use std::{
    hint::black_box,
    io::{IoSlice, IoSliceMut},
    sync::Arc,
    time::Duration,
};

/// The segments that go from one connection to the other at once.
type Wire = Vec<(Segment<'static>, Vec<u8>)>;

fn exchange(from: &mut Connection, to: &mut Connection, wire: &mut Wire, now: Instant) {
    let mut used = 0;
    from.transmit(now, &mut |outgoing| {
        let (segment, payload) = &mut wire[used];
        segment.clone_from(&outgoing.segment);
        payload.clear();
        outgoing.payload.clone().for_each(|piece| payload.extend_from_slice(piece));
        used += 1;
        true
    });
    for (header, payload) in &wire[..used] {
        to.segment(&Segment { payload, ..header.clone() }, now);
    }
    black_box((from.deadline(), to.deadline(), to.take_notify(), to.ready()));
}

pub(super) fn pair(options: &TcpOptions) -> [Connection; 2] {
    let shared = Shared::new(Config::default(), Arc::new(Counters::new()), 1.into());
    let now = Instant::from_millis(1);
    let start = Start { iss: Seq(1), ts_offset: 0, mss: 1460 };
    let mut client = Connection::connect(&shared, options, start, now);
    let mut request = None;
    client.transmit(now, &mut |syn| {
        request = Some(Request::new(&shared, options, &syn.segment, start, now));
        true
    });
    let mut request = request.unwrap();
    client.segment(&request.syn_ack(now).segment, now);
    let mut server = Connection::accepted(&shared, options, &request, 1460, now);
    client.transmit(now, &mut |ack| {
        server.segment(&ack.segment, now);
        true
    });
    [client, server]
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_request_and_its_response() {
    println!("{} bytes in a Connection", size_of::<Connection>());
    for part in [
        size_of::<super::recovery::Recovery>(),
        size_of::<super::receive::Receiver>(),
        size_of::<super::send_buffer::SendBuffer>(),
        size_of::<TcpOptions>(),
    ] {
        println!("  {part} in one of recovery, receiver, send buffer, options");
    }
    let turns: u64 = std::env::var("TURNS").map_or(1_000_000, |turns| turns.parse().unwrap());
    let [mut client, mut server] = pair(&TcpOptions { nodelay: true, ..TcpOptions::default() });
    let mut wire: Wire = (0..64).map(|_| (Segment::default(), Vec::with_capacity(2048))).collect();
    let mut now = Instant::from_millis(2);
    let mut byte = [7];
    let clock = std::time::Instant::now();
    for _ in 0..turns {
        for turn in 0..2 {
            let (from, to) = match turn {
                0 => (&mut client, &mut server),
                _ => (&mut server, &mut client),
            };
            now = now + Duration::from_micros(5);
            from.send(&[IoSlice::new(&byte)], false, now).unwrap();
            exchange(from, to, &mut wire, now);
            exchange(to, from, &mut wire, now);
            assert_eq!(to.recv(&mut [IoSliceMut::new(&mut byte)], false, now).unwrap(), 1);
            exchange(to, from, &mut wire, now);
        }
    }
    let nanos = clock.elapsed().as_nanos() as f64 / turns as f64;
    println!("{nanos:.1} ns for a request and its response, both ends");
    println!("{:?}", client.info(now));
}
