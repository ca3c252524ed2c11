//! The predicted path against the general path: twin connections get the same segments, calls and times, at random; one
//! may predict, the other never does. After each step all of their state and all that they have sent are equal.

use super::super::{
    Config, Ecn, TcpOptions,
    connection::{Connection, NEVER, Outgoing, Start, State},
    plain::Plain,
    predicted::MOST,
    segment::{Flags, Options, Sacks, Segment},
    seq::Seq,
    shared::Shared,
};
use crate::{inet::counters::Counters, time::Instant};
use std::{
    io::{IoSlice, IoSliceMut},
    net::Shutdown,
    sync::Arc,
    time::Duration,
};

const PAYLOAD: [u8; 4000] = [7; 4000];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * u64::from(limit)) >> 32) as u32
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// A connection and what it has sent: headers, and data.
struct Side {
    connection: Connection,
    sent: Vec<(Segment<'static>, Vec<u8>)>,
    predicts: bool,
    /// How many segments were received in a steady exchange.
    steady: u32,
}

/// How often a segment, and a call to send, took the predicted path.
#[derive(Default)]
struct Predicted {
    received: u32,
    sent: u32,
}

impl Side {
    fn new(config: &Config, options: &TcpOptions, iss: Seq, predicts: bool, now: Instant) -> Side {
        let shared = Shared::new(config.clone(), Arc::new(Counters::new()), 7.into());
        let start = Start { iss, ts_offset: 5, mss: 1460 };
        let connection = Connection::connect(&shared, options, start, now);
        Side { connection, sent: Vec::new(), predicts, steady: 0 }
    }

    fn transmit(&mut self, room: bool, now: Instant) {
        let sent = &mut self.sent;
        self.connection.transmit(now, &mut |out: &Outgoing<'_>| {
            if room {
                sent.push((out.segment.clone(), out.payload.clone().collect::<Vec<_>>().concat()));
            }
            room
        });
        self.connection.take_notify();
        self.connection.take_write_space();
    }

    fn segment(&mut self, segment: &Segment<'_>, reads: bool, room: bool, now: Instant) -> bool {
        let plain = plain(segment).filter(|_| self.predicts);
        let data = segment.payload;
        let plain = plain.filter(|_| (1..=MOST).contains(&data.len()));
        let predicted =
            plain.is_some_and(|plain| self.connection.take_predicted(&plain, data, now, || reads));
        self.steady += u32::from(predicted && self.connection.is_steady());
        let taken = predicted || {
            self.connection.settle();
            self.connection.segment_for(segment, now, &mut |_, _| reads)
        };
        if taken {
            // In a steady exchange the flow does not ask.
            assert!(!(self.connection.leave_ack_to_reader() && self.connection.is_steady()));
        }
        if predicted {
            let due = self.connection.rests_until();
            assert_eq!(due.is_none(), self.connection.has_to_send());
            if let Some(due) = due {
                assert_eq!(self.connection.deadline().unwrap_or(NEVER), due);
                return true;
            }
            self.connection.settle();
        }
        if !taken || self.connection.has_to_send() {
            self.transmit(room, now);
        }
        predicted
    }

    fn send(&mut self, data: &[u8], more: bool, room: bool, now: Instant) -> bool {
        let mut header = None;
        if self.predicts && !more {
            header = self.connection.predict_sending(data.len(), now);
        }
        // Without room the general path tries, and fails, too.
        let predicted = room && header.is_some();
        if let Some(plain) = header.filter(|_| room) {
            self.connection.sent_predicted(data, now);
            self.sent.push((general(&plain), data.to_vec()));
        }
        if predicted {
            let until = self.connection.busy_until(now);
            if !self.connection.is_steady() {
                assert!(Some(until) <= self.connection.deadline());
            }
        } else {
            self.connection.settle();
            // What was refused shows in the state.
            let _ = self.connection.send(&[IoSlice::new(data)], more, now);
            self.transmit(room, now);
        }
        predicted
    }
}

fn plain(segment: &Segment<'_>) -> Option<Plain> {
    let stamps = segment.options.timestamps?;
    let only = Options { timestamps: Some(stamps), ..Options::default() };
    let flags = segment.flags;
    let plain = segment.options == only && flags | Flags::PSH == Flags::ACK | Flags::PSH;
    let Segment { seq, ack, window, .. } = *segment;
    (plain && !segment.congested).then_some(Plain { seq, ack, flags, window, stamps })
}

fn general(plain: &Plain) -> Segment<'static> {
    let Plain { seq, ack, flags, window, stamps } = *plain;
    let options = Options { timestamps: Some(stamps), ..Options::default() };
    Segment { seq, ack, flags, window, options, ..Segment::default() }
}

struct Twins {
    sides: [Side; 2],
    random: Random,
    now: Instant,
    /// SND.NXT of the peer, and its window field.
    peer: Seq,
    window: u16,
    timestamps: bool,
    /// Segments and calls to send mostly alternate.
    alternates: bool,
    turns: u32,
    predicted: Predicted,
}

impl Twins {
    fn established(seed: u64) -> Twins {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut config = Config::default();
        let mut options = TcpOptions { nodelay: random.chance(50), ..TcpOptions::default() };
        if random.chance(10) {
            config.tcp_ecn = Ecn::On;
        }
        if random.chance(10) {
            options.receive_buffer = 6_000;
        }
        if random.chance(10) {
            options.notsent_low_water = 1;
        }
        let timestamps = random.chance(95);
        let (iss, peer) = (Seq(random.below(u32::MAX)), Seq(random.below(u32::MAX)));
        let now = Instant::from_millis(10_000);
        let sides = [true, false].map(|predicts| {
            let mut side = Side::new(&config, &options, iss, predicts, now);
            side.transmit(true, now);
            side
        });
        let window = 2_000;
        let alternates = random.chance(60);
        let mut twins = Twins {
            sides,
            random,
            now,
            peer,
            window,
            timestamps,
            alternates,
            turns: 0,
            predicted: Predicted::default(),
        };
        twins.now = now + Duration::from_micros(50);
        let options = Options {
            mss: Some(1460),
            window_scale: Some(4),
            sack_permitted: true,
            timestamps: timestamps.then_some((9_000, 10_005)),
            ..Options::default()
        };
        let flags = Flags::SYN | Flags::ACK;
        let ack = iss + 1;
        twins.give(
            &Segment { seq: peer, ack, flags, window: 32_000, options, ..Segment::default() },
            false,
        );
        twins.peer = peer + 1;
        twins
    }

    fn one(&self) -> &Connection {
        &self.sides[1].connection
    }

    fn give(&mut self, segment: &Segment<'_>, reads: bool) {
        let room = !self.random.chance(3);
        let now = self.now;
        let [one, two] = self.sides.each_mut().map(|side| side.segment(segment, reads, room, now));
        assert!(!two);
        self.predicted.received += u32::from(one);
    }

    /// The next segment of the peer as it ought to be.
    fn segment(&mut self, len: usize) -> Segment<'static> {
        let stamp = (self.now.nanos() / 1_000_000) as u32 - 1_000;
        let timestamps = self.timestamps.then_some((stamp, stamp + 1_005));
        Segment {
            seq: self.peer,
            ack: self.one().snd_nxt,
            flags: if len > 0 { Flags::ACK | Flags::PSH } else { Flags::ACK },
            window: self.window,
            options: Options { timestamps, ..Options::default() },
            payload: &PAYLOAD[..len],
            ..Segment::default()
        }
    }

    fn len(&mut self) -> usize {
        match self.random.below(20) {
            0 => 1460.min(1 + self.random.below(2_000) as usize),
            1 => 1448,
            _ => 1 + self.random.below(40) as usize,
        }
    }

    fn receive(&mut self) {
        let len = self.len();
        let segment = self.segment(len);
        let reads = self.random.chance(if self.alternates { 97 } else { 90 });
        self.give(&segment, reads);
        self.peer = self.one().rcv_nxt();
    }

    fn send(&mut self) {
        let len = if self.random.chance(3) { 4_000 } else { self.len() };
        let (more, room) = (self.random.chance(3), !self.random.chance(3));
        let now = self.now;
        let [one, two] =
            self.sides.each_mut().map(|side| side.send(&PAYLOAD[..len], more, room, now));
        assert!(!two);
        self.predicted.sent += u32::from(one);
    }

    /// A segment that is not as it ought to be.
    fn odd(&mut self) {
        let len = if self.random.chance(50) { self.len() } else { 0 };
        let mut segment = self.segment(len);
        let step = 1 + self.random.below(60);
        match self.random.below(14) {
            0 => segment.seq += step,
            1 => segment.seq = segment.seq - step,
            2 => segment.ack = segment.ack - step.min(segment.ack - self.one().snd_una),
            3 => segment.ack += step,
            4 => segment.ack = self.one().snd_una,
            5 => self.window = [0, 10, 300, 2_000, 4_000][step as usize % 5],
            6 => segment.options.timestamps = Some((step, step)),
            7 => segment.options.timestamps = None,
            8 => segment.congested = true,
            9 => segment.flags = segment.flags | Flags::ECE,
            10 => {
                let mut sacks = Sacks::default();
                let end = self.one().snd_nxt;
                sacks.push(end - step..end);
                (segment.ack, segment.options.sacks) = (self.one().snd_una, sacks);
            }
            11 => (segment.urgent, segment.flags) = (step as u16, segment.flags | Flags::URG),
            12 if self.random.chance(10) => segment.flags = segment.flags | Flags::FIN,
            13 if self.random.chance(5) => segment.flags = Flags::RST | Flags::ACK,
            _ => {}
        }
        segment.window = self.window;
        let reads = self.random.chance(50);
        self.give(&segment, reads);
        self.peer = self.one().rcv_nxt();
    }

    fn wait(&mut self) {
        let span = match self.random.below(4) {
            0 => Duration::from_micros(1 + u64::from(self.random.below(100))),
            1 => Duration::from_millis(1 + u64::from(self.random.below(100))),
            2 => Duration::from_secs(u64::from(self.random.below(4))),
            _ => self.one().deadline().map_or(Duration::ZERO, |at| at - self.now),
        };
        self.now = self.now + span;
        let room = !self.random.chance(3);
        let due = self.one().deadline().is_some_and(|at| at <= self.now);
        for side in &mut self.sides {
            if due {
                side.connection.settle();
                assert!(side.connection.deadline().is_some_and(|at| at <= self.now));
                side.connection.timer(self.now);
                side.transmit(room, self.now);
            }
        }
    }

    fn call(&mut self) {
        let (call, choice, now) = (self.random.below(9), self.random.chance(50), self.now);
        let shut = self.random.chance(3);
        for side in &mut self.sides {
            let connection = &mut side.connection;
            connection.settle();
            match call {
                0..=3 => {
                    let mut buffer = [0; 5_000];
                    let len = if choice { buffer.len() } else { 10 };
                    let _ = connection.recv(&mut [IoSliceMut::new(&mut buffer[..len])], false, now);
                }
                4 => connection.reader_waits(),
                5 => connection.configure(now, |options| options.nodelay = choice),
                6 => connection.configure(now, |options| options.cork = choice),
                7 => {
                    connection.configure(now, |options| {
                        options.receive_low_water = if choice { 5 } else { 0 };
                    });
                }
                _ if shut => drop(connection.shutdown(Shutdown::Write, now)),
                _ => drop(connection.ready()),
            }
            side.transmit(true, now);
        }
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_micros(u64::from(self.random.below(30)));
        let choice = if self.alternates && !self.random.chance(3) {
            self.turns += 1;
            self.turns % 2 * 45
        } else {
            self.random.below(100)
        };
        match choice {
            0..45 => self.receive(),
            45..83 => self.send(),
            83..87 => self.odd(),
            87..92 => self.wait(),
            92..95 => self.call(),
            _ => {
                let ack = self.segment(0);
                self.give(&ack, false);
            }
        }
        let settles = self.random.chance(if self.alternates { 3 } else { 50 });
        let [one, two] = &mut self.sides;
        assert_eq!(one.sent, two.sent);
        one.sent.clear();
        two.sent.clear();
        if !settles {
            return;
        }
        one.connection.settle();
        let (one_state, two_state) = (state(&one.connection), state(&two.connection));
        let differ: Vec<_> = one_state.iter().zip(&two_state).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty(), "predicted, general: {differ:?}");
    }
}

/// All that a connection holds but the bytes of its chunks, of which those not written are undefined.
fn state(connection: &Connection) -> Vec<String> {
    let mut text = format!("{connection:?}");
    while let Some(from) = text.find("Some([") {
        let to = text[from..].find("])").map_or(text.len(), |len| from + len);
        text.replace_range(from..to, "chunk");
    }
    text.split(", ").map(str::to_owned).collect()
}

#[test]
fn what_is_predicted_is_what_the_general_path_does() {
    let (mut received, mut sent, mut steady, mut steps) = (0, 0, 0, 0);
    for seed in 0..200 {
        let mut twins = Twins::established(seed);
        for _ in 0..if twins.alternates { 200 } else { 60 } {
            twins.step();
            steps += 1;
            if twins.one().state() == State::Closed {
                break;
            }
        }
        received += twins.predicted.received;
        sent += twins.predicted.sent;
        steady += twins.sides[0].steady;
    }
    // Else nothing was compared.
    assert!(received > steps / 20 && sent > steps / 20, "{received} and {sent} of {steps}");
    assert!(steady > steps / 25, "{steady} of {steps}");
}
