//! Drives one TCP connection by arbitrary bytes: its application, its peer, time, and an off-path sender that has to
//! guess. Shared by the test `tcp_random` and the fuzz target.
//!
//! It knows what was injected and what the application wrote, so it asserts after every step: bytes sent are the bytes
//! written; bytes read, acknowledged or reported by SACK were injected; no acknowledgment and no window edge moves
//! back; memory stays within its bounds; no timer fires for ever at one instant; and no guess resets, opens or feeds
//! the connection.

use busypoll_stack::{
    inet::tcp::{
        Algorithm, BufferSizes, Config, TcpOptions,
        connection::{Connection, Outgoing, Start, State},
        handshake::{Agreed, Answer, Request},
        segment::{Flags, Options, Sacks, Segment},
        seq::Seq,
        shared::Shared,
    },
    time::Instant,
    wire::Rest,
};
use std::{
    io::{IoSlice, IoSliceMut},
    net::Shutdown,
    ops::Range,
    sync::Arc,
    time::Duration,
};

/// The most that either buffer may grow to.
const BUFFER: u32 = 256 << 10;
/// Memory allowed beyond the buffers: a partly filled chunk at either end of each, and as much again to be safe.
const SLACK: u64 = 64 << 10;

/// The input bytes, read one after the other; zeroes after the end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, limit: u8) -> u8 {
        self.byte() % limit
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

/// The byte of either stream at an offset.
fn content(offset: u32) -> u8 {
    (offset.wrapping_mul(131) ^ (offset >> 8).wrapping_mul(29)) as u8
}

/// The state that a guess may not change.
type Fingerprint = (State, u64, u64, usize, usize);

struct Walk {
    shared: Arc<Shared>,
    connection: Connection,
    now: Instant,
    iss: Seq,
    /// Where `bytes_acked` counts from: from our SYN if we connected, after it if we accepted.
    acked_from: Seq,
    irs: Seq,
    ts_offset: u32,
    timestamps: bool,
    /// Ranges of the peer's stream that have been injected; they do not touch each other.
    injected: Vec<Range<i64>>,
    /// Offsets of the FINs that were injected.
    fins: Vec<i64>,
    /// The bytes that the application has written and read.
    written: u32,
    read: u32,
    /// The number after the last one sent.
    sent: Seq,
    /// The last acknowledgment sent: number and window edge.
    last_ack: Option<(Seq, Seq)>,
    shift: u8,
    peer_ts: u32,
}

/// How far a walk got: a test checks that it tests something.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) states: Vec<State>,
    pub(crate) read: u64,
    pub(crate) acked: u64,
    pub(crate) sent_again: u64,
}

/// Runs one walk, until the bytes end.
pub(crate) fn walk(bytes: &[u8]) -> Seen {
    let mut choices = Choices(bytes);
    let mut seen = Seen::default();
    let Some(mut walk) = Walk::begin(&mut choices) else { return seen };
    while !choices.0.is_empty() {
        let state = walk.connection.state();
        if !seen.states.contains(&state) {
            seen.states.push(state);
        }
        walk.step(&mut choices);
        walk.settle();
        walk.check();
    }
    let info = walk.connection.info(walk.now);
    (seen.read, seen.acked) = (walk.read.into(), info.bytes_acked);
    seen.sent_again = info.total_retrans.into();
    let shared = walk.shared.clone();
    drop(walk);
    assert_eq!(shared.memory().used(), 0, "memory of a connection that is gone");
    assert_eq!(shared.established(), 0, "TcpCurrEstab of a connection that is gone");
    seen
}

fn config(choices: &mut Choices<'_>) -> Config {
    let what = choices.byte();
    let sizes = |initial| BufferSizes { initial, max: BUFFER };
    Config {
        tcp_rmem: sizes(choices.of(&[300, 4096, 65_536, 131_072])),
        tcp_wmem: sizes(choices.of(&[1000, 16_384, 131_072])),
        tcp_mem: choices.of(&[256 << 20, 100_000]),
        tcp_sack: what & 1 == 0,
        tcp_timestamps: what & 2 == 0,
        tcp_window_scaling: what & 4 == 0,
        tcp_congestion_control: if what & 8 == 0 { Algorithm::Cubic } else { Algorithm::NewReno },
        tcp_ecn: if what & 16 == 0 {
            busypoll_stack::inet::tcp::Ecn::On
        } else {
            busypoll_stack::inet::tcp::Ecn::Off
        },
        ..Config::default()
    }
}

fn options(choices: &mut Choices<'_>) -> TcpOptions {
    let what = choices.byte();
    TcpOptions {
        nodelay: what & 1 != 0,
        cork: what & 2 != 0,
        keepalive: what & 4 != 0,
        user_timeout: Duration::from_secs(u64::from(what >> 6)),
        linger: (what & 8 != 0).then_some(Duration::ZERO),
        max_segment: if what & 16 != 0 { 100 } else { 0 },
        quick_ack: (what & 32 != 0).then_some(what & 1 == 0),
        // Every byte of the peer's is read in order; `inet/tcp/tests/urgent.rs` tests out-of-band data.
        oob_inline: true,
        ..TcpOptions::default()
    }
}

impl Walk {
    /// A connection that has connected, or has accepted.
    fn begin(choices: &mut Choices<'_>) -> Option<Walk> {
        let shared = Shared::alone(config(choices), 1);
        let options = options(choices);
        let now = Instant::from_millis(choices.of(&[0, 1, 10_000, 5_000_000_000]));
        let iss = Seq(choices.of(&[0, 1, u32::MAX - 500, i32::MAX as u32 - 500, 12_345]));
        let irs = Seq(choices.of(&[0, 1, u32::MAX - 500, i32::MAX as u32 - 500, 54_321]));
        let mss = choices.of(&[1460, 1460, 88, 9000, 65_495]);
        let start = Start { iss, ts_offset: choices.of(&[0, u32::MAX - 100]), mss };
        let peer = peer_options(choices, 1);
        let syn = Segment {
            seq: irs,
            flags: Flags::SYN,
            window: choices.of(&[65_535, 0, 1000]),
            options: peer.clone(),
            ..Segment::default()
        };
        let ack = Segment {
            seq: irs + 1,
            ack: iss + 1,
            flags: Flags::ACK,
            window: choices.of(&[65_535, 0, 1000]),
            options: Options { timestamps: peer.timestamps, ..Options::default() },
            ..Segment::default()
        };
        let connection = match choices.below(4) {
            0 | 1 => Connection::connect(&shared, &options, start, now),
            how => {
                let mut request = if how == 2 {
                    Request::new(&shared, &options, &syn, start, now)
                } else {
                    let agreed = Agreed {
                        mss: choices.of(&[0, 536, 1460, u16::MAX]),
                        window_scale: peer.window_scale.map(|shift| (shift, 0)),
                        ..Agreed::default()
                    };
                    Request::from_cookie(&shared, &options, &ack, agreed, start, now)
                };
                let _ = request.syn_ack(now);
                for _ in 0..choices.below(3) {
                    // Guesses at the connection in SYN_RECEIVED.
                    let wrong = Segment {
                        ack: iss + 2 + choices.word() % (u32::MAX - 1),
                        flags: Flags(
                            choices.byte() & !(Flags::RST.0 | Flags::SYN.0) | Flags::ACK.0,
                        ),
                        seq: irs + 1,
                        ..Segment::default()
                    };
                    let answer = request.segment(&shared, &wrong, now);
                    assert!(!matches!(answer, Answer::Accept | Answer::Forget), "{wrong:?}");
                    let reset = Segment {
                        seq: irs + 2 + choices.word() % (u32::MAX - 1),
                        flags: Flags::RST,
                        ..Segment::default()
                    };
                    let answer = request.segment(&shared, &reset, now);
                    assert!(!matches!(answer, Answer::Accept | Answer::Forget), "{reset:?}");
                }
                if !matches!(request.segment(&shared, &ack, now), Answer::Accept) {
                    return None;
                }
                let mut new = Connection::accepted(&shared, &options, &request, mss, now);
                new.segment(&ack, now);
                new
            }
        };
        let sent = iss + u32::from(connection.state() != State::SynSent);
        let mut walk = Walk {
            shared,
            connection,
            now,
            iss,
            acked_from: sent,
            irs,
            ts_offset: start.ts_offset,
            timestamps: false,
            injected: Vec::new(),
            fins: Vec::new(),
            written: 0,
            read: 0,
            sent,
            last_ack: None,
            shift: 0,
            peer_ts: 1000,
        };
        walk.learn();
        walk.settle();
        if walk.connection.state() == State::SynSent && choices.below(4) != 0 {
            let answer = Segment {
                ack: iss + 1,
                flags: Flags(Flags::SYN.0 | Flags::ACK.0 | choices.byte() & Flags::ECE.0),
                ..syn
            };
            walk.segment(answer);
            walk.settle();
        }
        Some(walk)
    }

    fn learn(&mut self) {
        let info = self.connection.info(self.now);
        self.timestamps = info.timestamps;
        self.shift = info.window_scale.map_or(0, |(_, ours)| ours);
    }

    /// RCV.NXT without FIN, and SND.UNA.
    fn numbers(&mut self) -> (Seq, Seq) {
        let info = self.connection.info(self.now);
        (self.irs + 1 + info.bytes_received as u32, self.acked_from + info.bytes_acked as u32)
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let now = self.now;
        match choices.below(20) {
            0..=6 => self.peer(choices),
            7 | 8 => self.off_path(choices),
            9 | 10 => {
                let len = choices.of(&[1, 10, 1000, 10_000, 100_000]);
                let bytes: Vec<_> = (0..len).map(|n| content(self.written + n)).collect();
                let (left, right) = bytes.split_at(bytes.len() / 3);
                let pieces = [IoSlice::new(left), IoSlice::new(right)];
                if let Ok(sent) = self.connection.send(&pieces, choices.byte() & 7 == 0, now) {
                    assert!(sent as u32 <= len);
                    self.written += sent as u32;
                }
            }
            11 | 12 => self.read(choices),
            13 => {
                let span = choices.of(&[1, 40, 200, 1000, 10_000, 200_000, 10_000_000u64]);
                self.now = now + Duration::from_millis(span);
            }
            14 | 15 => {
                if let Some(deadline) = self.connection.deadline() {
                    self.now = self.now.max(deadline);
                }
            }
            16 => {
                // A ring with little room.
                let room = choices.below(4);
                self.transmit(room.into());
            }
            17 => self.connection.configure(now, |old| *old = options(choices)),
            18 => self.connection.path_mss(choices.of(&[0, 48, 536, 1400, 9000]), now),
            _ => match choices.below(12) {
                0 => self.connection.close(now),
                1 => self.connection.abort(now),
                2 => {
                    let _ = self.connection.shutdown(Shutdown::Read, now);
                }
                3 | 4 => {
                    let _ = self.connection.shutdown(Shutdown::Write, now);
                }
                5 => {
                    let _ = self.connection.take_error();
                }
                6 => {
                    let _ = self.connection.take_time_wait();
                }
                _ => {}
            },
        }
        let _ = (self.connection.ready(), self.connection.lingers(), self.connection.take_notify());
    }

    fn read(&mut self, choices: &mut Choices<'_>) {
        let mut room = vec![0; choices.of(&[1, 100, 1460, 100_000])];
        let peek = choices.byte() & 7 == 0;
        let into = &mut [IoSliceMut::new(&mut room)];
        if let Ok(len) = self.connection.recv(into, peek, self.now) {
            for (n, &byte) in room[..len].iter().enumerate() {
                let at = self.read + n as u32;
                assert_eq!(byte, content(at), "byte {at} of what the peer sent");
            }
            if !peek {
                self.read += len as u32;
            }
        }
    }

    /// A segment of the peer, or of a sender that knows all numbers.
    fn peer(&mut self, choices: &mut Choices<'_>) {
        let (next, una) = self.numbers();
        let edge = self.last_ack.map_or(next, |(_, edge)| edge);
        let small = u32::from(choices.byte());
        let seq = match choices.below(12) {
            0..=5 => next,
            6 => next + small,
            7 => next + small * 1460,
            8 => next - small,
            9 => edge - small,
            10 => next - 1,
            _ => Seq(choices.word()),
        };
        let ack = match choices.below(10) {
            0..=3 => self.sent,
            4 => una,
            5 => una + small,
            6 => una + small * 1448,
            7 => self.sent + small,
            8 => una - small,
            _ => Seq(choices.word()),
        };
        let flags = match choices.below(12) {
            0..=6 => Flags::ACK,
            7 => Flags::ACK | Flags::PSH,
            8 => Flags::ACK | Flags::FIN,
            9 => Flags::ACK | Flags::ECE,
            10 => Flags::ACK | Flags::CWR,
            _ => Flags(choices.byte()),
        };
        let len = choices.of(&[0, 0, 0, 1, 10, 100, 536, 1460, 1460, 9000]);
        let payload: Vec<_> = (0..len)
            .map(|n| content((seq + n).distance(self.irs + 1).wrapping_neg() as u32))
            .collect();
        let mut options = Options::default();
        if self.timestamps && choices.byte() & 31 != 0 {
            let echo = ((self.now.nanos() / 1_000_000) as u32).wrapping_add(self.ts_offset);
            let echo = echo.wrapping_sub(choices.of(&[0, 1, 50, 0, 1, 50, u32::MAX, 1 << 31]));
            self.peer_ts = self.peer_ts.wrapping_add(choices.of(&[0, 1, 10, 100]));
            let value =
                self.peer_ts.wrapping_sub(choices.of(&[0, 0, 0, 0, 0, 0, 1, 5000, 1 << 31]));
            options.timestamps = Some((value, echo));
        }
        for _ in 0..choices.of(&[0, 0, 0, 1, 2, 4]) {
            let start = una + u32::from(choices.byte()) * choices.of(&[1, 100, 1448]);
            let len = u32::from(choices.byte()) * choices.of(&[1, 100, 1448, 1 << 23]);
            options.sacks.push(start..start + len);
        }
        let (window, urgent) = (choices.of(&[65_535, 65_535, 1000, 1, 0]), small as u16);
        let congested = choices.byte() & 15 == 0;
        // In up to three pieces.
        let cut = |byte: u8| usize::from(byte) * payload.len() / 255;
        let (a, b) = (cut(choices.byte()), cut(choices.byte()));
        let rest = &[&payload[a.min(b)..a.max(b)], &payload[a.max(b)..]][..];
        let (payload, rest) = match a {
            0 => (&payload[..], Rest::NONE),
            _ => (&payload[..a.min(b)], Rest::of(&rest)),
        };
        let segment =
            Segment { seq, ack, flags, window, urgent, options, congested, payload, rest };
        self.segment(segment);
    }

    fn segment(&mut self, segment: Segment<'_>) {
        let offset = i64::from((self.irs + 1).distance(segment.seq));
        let end = offset + segment.data_len() as i64;
        if segment.flags.has(Flags::FIN) {
            self.fins.push(end);
        }
        if end > offset {
            self.injected.push(offset..end);
            self.injected.sort_by_key(|run| run.start);
            let mut merged: Vec<Range<i64>> = Vec::new();
            for run in self.injected.drain(..) {
                match merged.last_mut() {
                    Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
                    _ => merged.push(run),
                }
            }
            self.injected = merged;
        }
        let before = self.connection.state();
        self.connection.segment(&segment, self.now);
        if before == State::SynSent && self.connection.state() != State::Closed {
            self.irs = if segment.flags.has(Flags::SYN) { segment.seq } else { self.irs };
            // Segments from before belong to no connection.
            (self.injected, self.fins) = (Vec::new(), Vec::new());
        }
        self.learn();
    }

    fn fingerprint(&mut self) -> Fingerprint {
        let info = self.connection.info(self.now);
        let unread = self.connection.unread();
        (
            info.state,
            info.bytes_received,
            info.bytes_acked,
            unread,
            self.connection.unacknowledged(),
        )
    }

    /// An off-path sender that knows addresses and ports and guesses the rest, wrongly.
    fn off_path(&mut self, choices: &mut Choices<'_>) {
        let before = self.fingerprint();
        let state = self.connection.state();
        let (next, una) = self.numbers();
        // Never RCV.NXT, with or without a FIN.
        let seq = next + 2 + choices.of(&[0, 1, 100, 10_000, u32::MAX / 2, u32::MAX - 3]);
        let far = choices.word() % (1 << 30);
        let ack = choices.of(&[self.sent + 1 + far, una - (1 << 30) - far]);
        let payload = vec![0xee; choices.of(&[0, 1, 1460])];
        let (seq, ack, flags) = match choices.below(6) {
            0 => (seq, ack, Flags::RST),
            1 => (seq, ack, Flags::RST | Flags::ACK),
            2 if state != State::SynSent => (Seq(choices.word()), ack, Flags::SYN),
            3 => (Seq(choices.word()), ack, Flags::SYN | Flags::ACK),
            4 => (choices.of(&[next, seq]), ack, Flags::ACK | Flags(choices.byte() & Flags::FIN.0)),
            // Without ACK: the segment is dropped.
            _ => (
                choices.of(&[next, seq]),
                ack,
                Flags(choices.byte() & (Flags::FIN.0 | Flags::URG.0)),
            ),
        };
        let segment =
            Segment { seq, ack, flags, window: 9, payload: &payload, ..Segment::default() };
        self.connection.segment(&segment, self.now);
        assert_eq!(
            self.fingerprint(),
            before,
            "{segment:?} was a guess, RCV.NXT {next}, SND.UNA {una}"
        );
    }

    /// Runs everything that is due now.
    fn settle(&mut self) {
        self.transmit(64);
        for _ in 0..16 {
            match self.connection.deadline() {
                Some(deadline) if deadline <= self.now => self.connection.timer(self.now),
                _ => return,
            }
            self.transmit(64);
        }
        panic!("timers for ever at {:?}: {:?}", self.now, self.connection);
    }

    fn transmit(&mut self, room: usize) {
        let state = self.connection.state();
        let (next, una) = self.numbers();
        let info = self.connection.info(self.now);
        let mut sent = Vec::new();
        let mut left = room;
        self.connection.transmit(self.now, &mut |outgoing| {
            let fits = left > 0;
            left = left.saturating_sub(1);
            if fits {
                let payload: Vec<u8> = outgoing.payload.clone().flatten().copied().collect();
                assert_eq!(payload.len(), outgoing.payload.len());
                sent.push((outgoing.segment.clone(), payload, ecn_is_right(outgoing)));
            }
            fits
        });
        for (segment, payload, ecn_is_right) in sent {
            let flags = segment.flags;
            assert!(ecn_is_right && segment.payload.is_empty());
            if flags.has(Flags::RST) {
                continue;
            }
            let end = segment.end() + payload.len() as u32;
            if flags.has(Flags::SYN) {
                assert!(segment.seq == self.iss && payload.is_empty());
                assert!(matches!(state, State::SynSent | State::SynReceived));
                self.sent = self.sent.max(end);
                continue;
            }
            let offset = segment.seq - (self.iss + 1);
            for (n, &byte) in payload.iter().enumerate() {
                let at = offset + n as u32;
                assert!(at < self.written && byte == content(at), "byte {at} of what was written");
            }
            assert!(
                payload.len() as u32 <= info.snd_mss.max(1),
                "{} of {}",
                payload.len(),
                info.snd_mss
            );
            assert!(end.at_most(self.iss + 2 + self.written), "beyond what was written, and a FIN");
            if end.after(self.sent) {
                assert!(end.at_most(una + info.snd_wnd), "new data beyond the window: {segment:?}");
                assert!(segment.seq.at_most(self.sent), "a hole in what was sent");
                self.sent = end;
            }
            if segment.flags.has(Flags::ACK) {
                self.check_ack(&segment, next);
            }
        }
    }

    /// An acknowledgment is true and takes nothing back.
    fn check_ack(&mut self, segment: &Segment<'_>, next: Seq) {
        let fin = i64::from((self.irs + 1).distance(next));
        assert!(
            segment.ack == next || segment.ack == next + 1 && self.fins.contains(&fin),
            "{segment:?} but RCV.NXT is {next}"
        );
        let edge = segment.ack + (u32::from(segment.window) << self.shift);
        if let Some((ack, old)) = self.last_ack {
            assert!(ack.at_most(segment.ack), "the acknowledgment went back: {segment:?}");
            assert!(
                edge.distance(old) < 1 << self.shift,
                "the edge went back to {edge} from {old}"
            );
        }
        let old = self.last_ack.map_or(edge, |(_, old)| old);
        self.last_ack = Some((segment.ack, edge.max(old)));
        self.all_injected(0, fin);
        for (n, block) in segment.options.sacks.iter().enumerate() {
            assert!(block.start.before(block.end), "{segment:?}");
            assert!(n == 0 || block.start.after(segment.ack), "{segment:?}");
            let start = i64::from((self.irs + 1).distance(block.start));
            self.all_injected(start, start + i64::from(block.end - block.start));
        }
    }

    fn all_injected(&self, from: i64, to: i64) {
        let all = from >= to || self.injected.iter().any(|run| run.start <= from && to <= run.end);
        assert!(all, "{from}..{to} was acknowledged but never injected: {:?}", self.injected);
    }

    fn check(&self) {
        let used = self.shared.memory().used();
        let held = 2 * u64::from(BUFFER + BUFFER / 8) + SLACK;
        assert!(used <= held, "{used} bytes of memory");
        assert!(self.connection.unread() as u32 <= BUFFER + BUFFER / 8);
        assert!(self.connection.unacknowledged() as u32 <= BUFFER);
        let current = matches!(self.connection.state(), State::Established | State::CloseWait);
        assert_eq!(self.shared.established(), current.into(), "TcpCurrEstab");
        if self.connection.state() == State::Closed {
            assert!(self.connection.deadline().is_none() && self.connection.is_done());
        }
    }
}

fn ecn_is_right(outgoing: &Outgoing<'_>) -> bool {
    // RFC 3168 section 6.1.4 and 6.1.1: neither pure acknowledgments nor SYNs.
    !outgoing.ecn_capable || !outgoing.payload.is_empty() && !outgoing.segment.flags.has(Flags::SYN)
}

fn peer_options(choices: &mut Choices<'_>, ts: u32) -> Options {
    Options {
        mss: choices.of(&[Some(1460), None, Some(0), Some(536), Some(u16::MAX)]),
        window_scale: choices.of(&[Some(7), None, Some(0), Some(14)]),
        sack_permitted: choices.byte() & 3 != 0,
        timestamps: (choices.byte() & 1 == 0).then_some((ts, 0)),
        sacks: Sacks::default(),
    }
}
