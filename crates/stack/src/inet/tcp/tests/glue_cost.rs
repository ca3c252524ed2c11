//! The cost of a connection, at the level of [`Inet`](crate::inet::Inet): not tests, run by hand.
//!
//! ```text
//! cargo test --release -p busypoll-stack --lib glue_cost -- --ignored --nocapture
//! ```
//!
//! Instructions: the same under `valgrind --tool=callgrind` with `ROUNDS=1000` and `ROUNDS=2000`, of which only the
//! difference matters.

use super::hosts::*;
use crate::{
    inet::{
        Addressing, Inet, Interface, Pass, Path,
        tcp::{ConnectOptions, Flow, ListenOptions, Listening, connection::Connection, flow::Core},
    },
    napi::PolledBy,
    nic::{Checksum, Frame, Info, RingFull, TxQueue},
    time::Instant,
    wire::MacAddr,
};
use std::{
    cell::RefCell,
    io::{IoSlice, IoSliceMut},
    sync::{Arc, Mutex},
    time::Duration,
};

/// A ring of 64 frames that allocates nothing.
#[derive(Clone)]
struct Ring(Arc<Mutex<Frames>>);

/// Room, and the lengths of the frames in it.
type Frames = (Vec<[u8; 1600]>, Vec<usize>);

impl Ring {
    fn new() -> Ring {
        Ring(Arc::new(Mutex::new((vec![[0; 1600]; 64], Vec::with_capacity(64)))))
    }
}

impl TxQueue for Ring {
    fn push(
        &mut self,
        len: usize,
        _: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        let (frames, lens) = &mut *self.0.lock().unwrap();
        let room = frames.get_mut(lens.len()).ok_or(RingFull)?;
        fill(&mut room[..len]);
        lens.push(len);
        Ok(())
    }

    fn flush(&mut self) {}
}

struct End {
    inet: Arc<Inet>,
    iface: Arc<Interface>,
    ring: Ring,
}

fn ends() -> [End; 2] {
    [1, 2].map(|n: u8| {
        let inet = Inet::new(n.into(), Box::new(|_| ()));
        let own = Addressing::Own(vec![format!("10.0.0.{n}/24").parse().unwrap()]);
        let info = Info {
            name: "cost".into(),
            mode: "test".into(),
            mac: MacAddr([2, 0, 0, 0, 0, n]),
            mtu: 1500,
            queues: 1,
            // As over a cable.
            tx_checksum: true,
            ifindex: None,
        };
        let ring = Ring::new();
        let iface = inet.add_interface(info, vec![Box::new(ring.clone())], own);
        End { inet, iface, ring }
    })
}

/// Delivers all that `from` has sent to `to`, in one pass; returns how many frames.
fn carry(from: &End, to: &End, now: Instant) -> usize {
    let mut pass = Pass { batched: true, ..Pass::new(None, now, PolledBy::Interrupt) };
    let ring = &mut *from.ring.0.lock().unwrap();
    let (frames, lens) = (&ring.0, &mut ring.1);
    let count = lens.len();
    for (frame, len) in frames.iter().zip(lens.drain(..)) {
        let frame = Frame::whole(&frame[..len], Checksum::Partial);
        to.inet.receive(&to.iface, 0, frame, &mut pass);
    }
    to.inet.end_of_pass(&mut pass);
    count
}

fn join(ends: &[End; 2], server: &Listening, now: Instant) -> (Flow, Flow) {
    let [a, b] = ends;
    let mut pass = Pass::new(None, now, PolledBy::Interrupt);
    let (local, remote) = ("10.0.0.1:0".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    let options = ConnectOptions::default();
    let client = a.inet.tcp_connect(
        local,
        remote,
        &options,
        None,
        Arc::new(TestEndpoint::default()),
        &mut pass,
    );
    let client = client.unwrap();
    client.send_syn(&mut pass);
    while carry(a, b, now) + carry(b, a, now) > 0 {}
    let served = server.accept().unwrap();
    served.attach(Arc::new(TestEndpoint::default()), &mut pass);
    (client, served)
}

fn listen(end: &End) -> Listening {
    let at = "10.0.0.2:80".parse().unwrap();
    end.inet
        .tcp_listen(at, ListenOptions::default(), None, Arc::new(TestEndpoint::default()))
        .unwrap()
}

/// `from` sends, the frames are delivered, and `to` reads.
fn transfer(ends: (&End, &End), flows: (&Flow, &Flow), data: &[u8], now: Instant) {
    let mut pass = Pass::new(None, now, PolledBy::Interrupt);
    assert_eq!(flows.0.send(&[IoSlice::new(data)], false, &mut pass).unwrap(), data.len());
    carry(ends.0, ends.1, now);
    thread_local!(static INTO: RefCell<Vec<u8>> = RefCell::new(vec![0; 16_384]));
    INTO.with_borrow_mut(|into| {
        let into = &mut [IoSliceMut::new(&mut into[..data.len()])];
        assert_eq!(flows.1.recv(into, false, &mut pass).unwrap(), data.len());
    });
}

fn rounds() -> u32 {
    std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(100_000)
}

#[test]
#[ignore = "a measurement"]
fn a_request_and_its_response() {
    for connections in [1, 10_000] {
        if connections > 1 && std::env::var("ROUNDS").is_ok() {
            return;
        }
        let ends = ends();
        let [a, b] = &ends;
        let server = listen(b);
        let mut now = Instant::from_millis(1000);
        let flows: Vec<_> = (0..connections).map(|_| join(&ends, &server, now)).collect();
        let (client, served) = flows.last().unwrap();
        let start = std::time::Instant::now();
        for _ in 0..rounds() {
            now = now + Duration::from_micros(5);
            transfer((a, b), (client, served), b"?", now);
            transfer((b, a), (served, client), b"!", now);
        }
        let cost = start.elapsed().as_nanos() as f64 / f64::from(rounds());
        println!("request and response, {connections} connections: {cost:.0} ns");
        now = now + Duration::from_millis(1);
        let mut pass = Pass::new(None, now, PolledBy::Interrupt);
        a.inet.tick(&mut pass);
    }
}

#[test]
#[ignore = "a measurement"]
fn a_stream() {
    let ends = ends();
    let [a, b] = &ends;
    let server = listen(b);
    let mut now = Instant::from_millis(1000);
    let (client, served) = join(&ends, &server, now);
    let data = vec![1; 8 * 1448];
    let start = std::time::Instant::now();
    for _ in 0..rounds() {
        now = now + Duration::from_micros(20);
        transfer((a, b), (&client, &served), &data, now);
        carry(b, a, now);
    }
    let cost = start.elapsed().as_nanos() as f64 / f64::from(rounds()) / 8.0;
    println!("full segment, sent, received and read: {cost:.0} ns");
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[ignore = "a measurement"]
fn memory_of_an_idle_connection() {
    let ends = ends();
    let [a, b] = &ends;
    let server = listen(b);
    let mut now = Instant::from_millis(1000);
    let mut flows = Vec::with_capacity(20_000);
    let mut grow = |to: usize| {
        while flows.len() < to {
            let (client, served) = join(&ends, &server, now);
            transfer((a, b), (&client, &served), b"?", now);
            transfer((b, a), (&served, &client), b"!", now);
            flows.push((client, served));
            now = now + Duration::from_millis(1);
            for end in &ends {
                end.inet.tick(&mut Pass::new(None, now, PolledBy::Interrupt));
            }
        }
    };
    grow(1_000);
    let before = resident();
    grow(11_000);
    // Both ends are in this process.
    let each = (resident() - before) / 20_000;
    println!("an idle connection: {each} bytes resident");
    let sizes = [size_of::<Core>(), size_of::<Connection>(), size_of::<Path>()];
    println!("Core: {}, its Connection: {}, its Path: {}", sizes[0], sizes[1], sizes[2]);
}

#[test]
#[ignore = "a measurement"]
fn connect_request_close() {
    let ends = ends();
    let [a, b] = &ends;
    let server = listen(b);
    let mut now = Instant::from_millis(1000);
    let start = std::time::Instant::now();
    let rounds = rounds().min(20_000);
    for _ in 0..rounds {
        now = now + Duration::from_micros(50);
        let (client, served) = join(&ends, &server, now);
        transfer((a, b), (&client, &served), b"?", now);
        transfer((b, a), (&served, &client), b"!", now);
        let mut pass = Pass::new(None, now, PolledBy::Interrupt);
        served.close(&mut pass);
        carry(b, a, now);
        client.close(&mut pass);
        while carry(a, b, now) + carry(b, a, now) > 0 {}
    }
    let cost = start.elapsed().as_nanos() as f64 / f64::from(rounds);
    println!("connect, request, response, close: {cost:.0} ns for both ends");
}
