//! Two connections joined by a link that loses, duplicates and reorders, in virtual time and from a seed. In every
//! run each side reads what the other wrote, and both connections end.

use super::{
    Algorithm, Config, Ecn, TcpOptions,
    connection::{Connection, Start, State},
    handshake::{Answer, Request},
    segment::{Flags, Segment},
    seq::Seq,
    shared::Shared,
};
use crate::{inet::counters::Counters, time::Instant};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io::{ErrorKind, IoSlice, IoSliceMut},
    net::Shutdown,
    sync::Arc,
    time::Duration,
};

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        ((self.next() >> 32) * limit) >> 32
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }
}

#[derive(Clone, Debug)]
struct Link {
    delay: Duration,
    jitter: Duration,
    loss: u64,
    duplicate: u64,
    marked: u64,
}

/// A segment in flight.
struct Packet {
    segment: Segment<'static>,
    payload: Vec<u8>,
    congested: bool,
}

/// One side: the data it has to write, and the data it has read.
struct Side {
    shared: Arc<Shared>,
    options: TcpOptions,
    connection: Option<Connection>,
    request: Option<Request>,
    to_write: Vec<u8>,
    written: usize,
    read: Vec<u8>,
    /// How much is read at a time, and how long the reader then sleeps.
    gulp: usize,
    pause: Duration,
    reads_at: Instant,
    ended: bool,
}

impl Side {
    fn new(config: &Config, options: TcpOptions, to_write: Vec<u8>) -> Side {
        let shared = Shared::new(config.clone(), Arc::new(Counters::new()), 7.into());
        Side {
            shared,
            options,
            connection: None,
            request: None,
            to_write,
            written: 0,
            read: Vec::new(),
            gulp: usize::MAX,
            pause: Duration::ZERO,
            reads_at: Instant::ZERO,
            ended: false,
        }
    }

    fn state(&self) -> State {
        self.connection.as_ref().map_or(State::Closed, Connection::state)
    }

    /// What the application does: writes, reads, closes.
    fn act(&mut self, now: Instant, rng: &mut Rng) {
        let Some(connection) = &mut self.connection else { return };
        while self.written < self.to_write.len() {
            let len = 1 + rng.below(20_000) as usize;
            let some =
                &self.to_write[self.written..][..len.min(self.to_write.len() - self.written)];
            match connection.send(&[IoSlice::new(some)], rng.chance(100), now) {
                Ok(sent) => self.written += sent,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        let established = !matches!(connection.state(), State::SynSent | State::SynReceived);
        if self.written == self.to_write.len() && established && !self.ended {
            self.ended = true;
            connection.shutdown(Shutdown::Write, now).unwrap();
        }
        while self.reads_at <= now {
            let mut room = vec![0; self.gulp.min(1 << 16)];
            match connection.recv(&mut [IoSliceMut::new(&mut room)], false, now) {
                Ok(0) => break,
                Ok(read) => {
                    self.read.extend_from_slice(&room[..read]);
                    self.reads_at = now + self.pause;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        let bound = connection.options().receive_buffer.max(6_291_456) as usize;
        assert!(connection.unread() <= bound);
    }

    fn deadline(&self) -> Option<Instant> {
        let connection = self.connection.as_ref();
        let reading =
            connection.filter(|connection| connection.unread() > 0).map(|_| self.reads_at);
        let request = self.request.as_ref().map(Request::deadline);
        [connection.and_then(Connection::deadline), request, reading].into_iter().flatten().min()
    }
}

struct World {
    now: Instant,
    sides: [Side; 2],
    link: Link,
    rng: Rng,
    under_way: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    packets: Vec<Option<Packet>>,
    steps: u64,
}

impl World {
    fn new(seed: u64, link: Link, sides: [Side; 2]) -> World {
        let rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let now = Instant::from_millis(1_000);
        let under_way = BinaryHeap::new();
        World { now, sides, link, rng, under_way, packets: Vec::new(), steps: 0 }
    }

    fn start(&mut self, from: usize, iss: u32) -> Start {
        let _ = from;
        Start { iss: Seq(iss), ts_offset: self.rng.next() as u32, mss: 1_460 }
    }

    fn connect(&mut self, from: usize) {
        let iss = self.rng.next() as u32;
        let start = self.start(from, iss);
        let side = &mut self.sides[from];
        side.connection = Some(Connection::connect(&side.shared, &side.options, start, self.now));
    }

    fn put(&mut self, to: usize, packet: Packet) {
        let copies = match () {
            () if self.rng.chance(self.link.loss) => 0,
            () if self.rng.chance(self.link.duplicate) => 2,
            () => 1,
        };
        for _ in 0..copies {
            let jitter = self.rng.below(self.link.jitter.as_nanos() as u64 + 1);
            let at = self.now + self.link.delay + Duration::from_nanos(jitter);
            let id = self.packets.len();
            let copy = Packet {
                segment: packet.segment.clone(),
                payload: packet.payload.clone(),
                congested: packet.congested,
            };
            self.packets.push(Some(copy));
            self.under_way.push(Reverse((at, id as u64, to)));
        }
    }

    fn transmit(&mut self, from: usize) {
        // Sometimes the ring is full, and the rest is sent later.
        if self.rng.chance(50) {
            let room = self.rng.below(4);
            self.transmit_some(from, room);
        }
        self.transmit_some(from, u64::MAX);
    }

    fn transmit_some(&mut self, from: usize, mut room: u64) {
        let mut out = Vec::new();
        let marked = self.link.marked;
        let rng = &mut self.rng;
        if let Some(connection) = &mut self.sides[from].connection {
            connection.transmit(self.now, &mut |outgoing| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                let payload: Vec<u8> = outgoing.payload.clone().flatten().copied().collect();
                assert_eq!(payload.len(), outgoing.payload.len());
                assert!(payload.len() <= 1_460);
                let congested = outgoing.ecn_capable && rng.chance(marked);
                out.push(Packet { segment: outgoing.segment.clone(), payload, congested });
                true
            });
        }
        for packet in out {
            self.put(1 - from, packet);
        }
    }

    fn deliver(&mut self, to: usize, packet: &Packet) {
        let segment = Segment {
            payload: &packet.payload,
            congested: packet.congested,
            ..packet.segment.clone()
        };
        let now = self.now;
        let side = &mut self.sides[to];
        if let Some(connection) = &mut side.connection {
            connection.segment(&segment, now);
            return;
        }
        let Some(request) = &mut side.request else {
            if segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK) {
                let start = Start { iss: Seq(u32::MAX - 5_000), ts_offset: 5, mss: 1_460 };
                let mut request = Request::new(&side.shared, &side.options, &segment, start, now);
                let segment = request.syn_ack(now).segment;
                side.request = Some(request);
                self.put(1 - to, Packet { segment, payload: Vec::new(), congested: false });
            }
            return;
        };
        match request.segment(&side.shared, &segment, now) {
            Answer::Accept => {
                let request = side.request.take().unwrap();
                let mut connection =
                    Connection::accepted(&side.shared, &side.options, &request, 1_460, now);
                connection.segment(&segment, now);
                side.connection = Some(connection);
            }
            Answer::SynAck => {
                let segment = request.syn_ack(now).segment;
                self.put(1 - to, Packet { segment, payload: Vec::new(), congested: false });
            }
            Answer::Send(outgoing) => {
                self.put(
                    1 - to,
                    Packet { segment: outgoing.segment, payload: Vec::new(), congested: false },
                );
            }
            Answer::Ignore => {}
            Answer::Forget => panic!("no side resets"),
        }
    }

    /// One event; false if there is none.
    fn step(&mut self) -> bool {
        self.steps += 1;
        assert!(self.steps < 2_000_000, "no end in sight at {:?}: {:?}", self.now, self.states());
        let packet = self.under_way.peek().map(|Reverse((at, ..))| *at);
        let timers = self.sides.iter().filter_map(Side::deadline);
        let Some(next) = timers.chain(packet).min() else { return false };
        self.now = self.now.max(next);
        while let Some(&Reverse((at, id, to))) = self.under_way.peek()
            && at <= self.now
        {
            self.under_way.pop();
            let packet = self.packets[id as usize].take().unwrap();
            self.deliver(to, &packet);
            self.act(to);
        }
        for index in 0..2 {
            let side = &mut self.sides[index];
            if let Some(connection) = &mut side.connection
                && connection.deadline().is_some_and(|at| at <= self.now)
            {
                connection.timer(self.now);
            }
            if let Some(request) = &mut side.request
                && request.deadline() <= self.now
            {
                if let Answer::SynAck = request.timer(&side.shared, self.now) {
                    let segment = request.syn_ack(self.now).segment;
                    let packet = Packet { segment, payload: Vec::new(), congested: false };
                    self.put(1 - index, packet);
                } else {
                    side.request = None;
                }
            }
            self.act(index);
        }
        true
    }

    fn act(&mut self, index: usize) {
        let now = self.now;
        self.sides[index].act(now, &mut self.rng);
        self.transmit(index);
    }

    fn states(&self) -> [State; 2] {
        [self.sides[0].state(), self.sides[1].state()]
    }

    /// Runs until nothing is left to happen; panics if a byte is wrong.
    fn run(&mut self) {
        while self.step() {}
        for index in 0..2 {
            let (here, there) = (&self.sides[index], &self.sides[1 - index]);
            let same = here.read.iter().zip(&there.to_write).take_while(|(a, b)| a == b).count();
            assert_eq!(
                same,
                there.to_write.len(),
                "{index}: {:?} of {}",
                self.states(),
                here.read.len()
            );
            assert_eq!(here.read.len(), same);
            assert_eq!(here.state(), State::Closed);
            assert_eq!(here.shared.memory.used(), 0, "memory of {index}");
        }
    }
}

fn data(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    (0..len).map(|_| rng.next() as u8).collect()
}

fn clean() -> Link {
    let delay = Duration::from_micros(50);
    Link { delay, jitter: Duration::ZERO, loss: 0, duplicate: 0, marked: 0 }
}

#[test]
fn a_clean_link_carries_both_directions() {
    let config = Config::default();
    let side = |seed, len| Side::new(&config, TcpOptions::default(), data(seed, len));
    let mut world = World::new(1, clean(), [side(1, 1_000_000), side(2, 300_000)]);
    world.connect(0);
    world.transmit(0);
    world.run();
}

/// One run with everything drawn from the seed: options on both sides, amounts, loss, readers.
fn any(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut config = Config {
        tcp_sack: !rng.chance(200),
        tcp_timestamps: !rng.chance(300),
        tcp_window_scaling: !rng.chance(200),
        tcp_ecn: if rng.chance(500) { Ecn::On } else { Ecn::Passive },
        ..Config::default()
    };
    if rng.chance(300) {
        config.tcp_congestion_control = Algorithm::NewReno;
    }
    let side = |rng: &mut Rng| {
        let options = TcpOptions {
            nodelay: rng.chance(300),
            cork: rng.chance(100),
            keepalive: rng.chance(200),
            receive_buffer: if rng.chance(300) { 1_000 + rng.below(20_000) as u32 } else { 0 },
            send_buffer: if rng.chance(300) { 1_000 + rng.below(20_000) as u32 } else { 0 },
            ..TcpOptions::default()
        };
        let magnitude = rng.below(18);
        let len = rng.below(1 << magnitude) as usize;
        let mut side = Side::new(&config, options, data(rng.next(), len));
        if rng.chance(300) {
            side.gulp = 1 + rng.below(5_000) as usize;
            side.pause = Duration::from_micros(rng.below(20_000));
        }
        side
    };
    let sides = [side(&mut rng), side(&mut rng)];
    let loss = rng.below(200);
    let link = Link {
        delay: Duration::from_micros(rng.below(30_000)),
        jitter: Duration::from_micros(rng.below(5_000)),
        loss,
        duplicate: rng.below(50),
        marked: rng.below(100),
    };
    let mut world = World::new(seed, link, sides);
    world.connect(0);
    world.transmit(0);
    if rng.chance(150) {
        // Simultaneous open.
        world.connect(1);
        world.transmit(1);
    }
    world.run();
}

#[test]
fn whatever_the_link_does_every_byte_arrives_and_both_sides_end() {
    let runs = std::env::var("SEEDS").map_or(300, |seeds| seeds.parse().unwrap());
    for seed in 1..=runs {
        let run = std::panic::catch_unwind(|| any(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}

#[test]
fn one_seed() {
    if let Ok(seed) = std::env::var("SEED") {
        any(seed.parse().unwrap());
    }
}
