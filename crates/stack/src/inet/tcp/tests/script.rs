//! One connection, its peer played by the test, and time that stands still unless told to go on. What can
//! be said in a test is on the page of `tests`.
//!
//! Owns setting up, the way of segments and time; what is expected, what the application does and what always
//! holds are in the files below.

mod application;
mod expect;
mod rules;

use super::super::{
    Config, TcpOptions,
    connection::{Connection, Outgoing, Start, State},
    handshake::{Answer, Request},
    parse,
    segment::{Flags, Options, Sacks, Segment},
    seq::Seq,
    shared::Shared,
};
use super::notation::{Line, Word};
use crate::{inet::counters::Counters, time::Instant, wire::tcp::Packet};
use std::{collections::VecDeque, fmt::Write, ops::RangeInclusive, sync::Arc, time::Duration};

/// Our initial sequence number: both sides' numbers wrap within each script, ours over zero, the peer's over
/// the sign bit.
const ISS: Seq = Seq(0xffff_fc00);
/// The peer's.
const IRS: Seq = Seq(0x7fff_ff00);
/// When a script begins. At that moment our timestamps show [`TS_START`].
const START: Instant = Instant::from_millis(5_000_000);
/// TSval at the start; a TSval in a script is this and the milliseconds since.
pub(super) const TS_START: u32 = 1_000;
/// The window of an injected segment that names none, until one names another.
const PEER_WINDOW: u16 = 65_535;
/// What a peer offers that is not told otherwise.
const PEER_OPTIONS: &str = "<mss 1000,sackOK>";
const OUR_MSS: u16 = 1_000;

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What a script begins with.
pub(super) struct Setup {
    config: Config,
    options: TcpOptions,
    mss: u16,
    peer: String,
    round_trip: Duration,
}

impl Setup {
    pub(super) fn new() -> Setup {
        Setup {
            config: Config::default(),
            options: TcpOptions::default(),
            mss: OUR_MSS,
            peer: PEER_OPTIONS.to_owned(),
            round_trip: Duration::ZERO,
        }
    }

    /// Changes the host's settings.
    pub(super) fn config(mut self, change: impl FnOnce(&mut Config)) -> Setup {
        change(&mut self.config);
        self
    }

    /// Changes the socket's options.
    pub(super) fn options(mut self, change: impl FnOnce(&mut TcpOptions)) -> Setup {
        change(&mut self.options);
        self
    }

    /// What our path takes, bytes of segment without options; 1000 if not said.
    pub(super) fn mss(mut self, mss: u16) -> Setup {
        self.mss = mss;
        self
    }

    /// What the peer's SYN says in `established`: `"win 8000 <mss 1000,sackOK,ts 1 0,ws 7>"`.
    pub(super) fn peer(mut self, options: &str) -> Setup {
        self.peer = options.to_owned();
        self
    }

    /// How long the handshake of `established` takes; none if not said.
    pub(super) fn round_trip(mut self, round_trip: Duration) -> Setup {
        self.round_trip = round_trip;
        self
    }

    fn script(self) -> Script {
        let counters = Arc::new(Counters::new());
        let shared = Shared::new(self.config, counters, 7);
        let start_millis = (START.nanos() / 1_000_000) as u32;
        Script {
            start: Start {
                iss: ISS,
                ts_offset: TS_START.wrapping_sub(start_millis),
                mss: self.mss,
            },
            shared,
            options: self.options,
            peer: self.peer,
            request: None,
            connection: None,
            now: START,
            sent: VecDeque::new(),
            log: String::new(),
            jammed: false,
            written: 0,
            read: 0,
            window: PEER_WINDOW,
            peer_shift: None,
            our_shift: None,
            peer_mss: None,
            room: 0,
            offered: None,
            acked: None,
        }
    }

    /// A connection that opens actively; its SYN is to be expected.
    pub(super) fn connect(self) -> Script {
        let mut script = self.script();
        script.connection =
            Some(Connection::connect(&script.shared, &script.options, script.start, script.now));
        script.transmit();
        script
    }

    /// A listener; a SYN is to be injected.
    pub(super) fn listen(self) -> Script {
        self.script()
    }

    /// A connection opened actively, its handshake done, numbers where they began.
    pub(super) fn established(self) -> Script {
        let syn_ack = format!("S. 0:0(0) ack 1 {}", self.peer);
        let round_trip = self.round_trip;
        let mut t = self.connect();
        t.expect("S 0:0(0)");
        t.advance(round_trip);
        t.inject(&syn_ack);
        t.expect(". 1:1(0) ack 1");
        t.check_state(State::Established);
        t
    }

    /// A connection opened passively, its handshake done.
    pub(super) fn accepted(self) -> Script {
        let syn = format!("S 0:0(0) {}", self.peer);
        let echo = if syn.contains("ts ") { format!(" <ts 2 {TS_START}>") } else { String::new() };
        let mut t = self.listen();
        t.inject(&syn);
        t.expect("S. 0:0(0) ack 1");
        t.inject(&format!(". 1:1(0) ack 1{echo}"));
        t.check_state(State::Established);
        t
    }
}

/// A segment that was sent.
struct Sent {
    at: Instant,
    segment: Segment<'static>,
    payload: Vec<u8>,
    ecn_capable: bool,
}

/// One connection and its peer.
pub(super) struct Script {
    start: Start,
    shared: Arc<Shared>,
    options: TcpOptions,
    peer: String,
    request: Option<Request>,
    connection: Option<Connection>,
    now: Instant,
    sent: VecDeque<Sent>,
    log: String,
    jammed: bool,
    /// Bytes the application has written and read.
    written: usize,
    read: usize,
    /// What the peer offers in segments that do not say.
    window: u16,
    peer_shift: Option<u8>,
    our_shift: Option<u8>,
    peer_mss: Option<u16>,
    /// The right edge of the peer's window, the furthest ever, relative.
    room: i64,
    /// The right edge of our window and our acknowledgment, the furthest ever, relative.
    offered: Option<i64>,
    acked: Option<i64>,
}

/// The byte at `offset` of a stream; ours and the peer's differ.
fn content(offset: i64, ours: bool) -> u8 {
    let mixed = (offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    mixed as u8 ^ if ours { 0x55 } else { 0 }
}

fn stream(from: i64, len: usize, ours: bool) -> Vec<u8> {
    (from..from + len as i64).map(|offset| content(offset, ours)).collect()
}

fn relative(seq: Seq, to: Seq) -> i64 {
    i64::from(to.distance(seq))
}

fn absolute(relative: i64, to: Seq) -> Seq {
    to + relative as u32
}

impl Script {
    /// The usual connection: opened actively, MSS 1000, SACK, no timestamps, no window scaling, the peer's
    /// window 65535.
    pub(super) fn established() -> Script {
        Setup::new().established()
    }

    // -- the peer

    /// A segment comes from the peer. Data is the peer's stream at that place.
    #[track_caller]
    pub(super) fn inject(&mut self, text: &str) {
        self.expect_nothing();
        let line = Line::read(text);
        let (start, end, len) = line.range.unwrap_or((1, 1, 0));
        let control = i64::from(line.flags.has(Flags::FIN)); // as in packetdrill SYN does not count
        assert!(
            end == start + len as i64 || end == start + len as i64 + control,
            "{text:?}: length"
        );
        self.window = line.window.unwrap_or(self.window);
        let payload = stream(start - 1, len, false);
        let segment = Segment {
            seq: absolute(start, IRS),
            ack: line.ack.map_or(Seq(0), |ack| absolute(ack, self.start.iss)),
            flags: line.flags,
            window: self.window,
            urgent: 0,
            options: self.options_of(&line),
            congested: line.ecn.as_deref() == Some("ce"),
            payload: &payload,
        };
        self.note_peer(&segment);
        let _ = writeln!(self.log, "{:>9} < {text}", self.clock());
        // Through the bytes and back: what the wire cannot say cannot be injected.
        let mut bytes = vec![0; parse::header_len(&segment.options) + len];
        let mut packet = parse::lay(&mut bytes, (9, 9), &segment).expect("it fits a segment");
        packet.payload_mut().copy_from_slice(&payload);
        let packet = Packet::new_checked(&bytes[..]).expect("as it was laid");
        let segment = parse::parse(&packet, segment.congested);
        self.arrive(&segment);
        self.transmit();
    }

    /// As `inject`; what was sent before it and not expected is forgotten.
    pub(super) fn inject_quietly(&mut self, text: &str) {
        self.ignore();
        self.inject(text);
    }

    fn options_of(&self, line: &Line) -> Options {
        let mut options = Options::default();
        for word in &line.options {
            match *word {
                Word::Mss(mss) => options.mss = Some(mss),
                Word::SackPermitted => options.sack_permitted = true,
                Word::Timestamps(value, echo) => options.timestamps = Some((value, echo)),
                Word::WindowScale(shift) => options.window_scale = Some(shift),
                Word::Sacks(ref blocks) => {
                    let mut sacks = Sacks::default();
                    for &(start, end) in blocks {
                        let iss = self.start.iss;
                        assert!(sacks.push(absolute(start, iss)..absolute(end, iss)), "too many");
                    }
                    options.sacks = sacks;
                }
                Word::No(name) => panic!("no {name}: just do not write it"),
            }
        }
        options
    }

    fn arrive(&mut self, segment: &Segment<'_>) {
        if let Some(connection) = &mut self.connection {
            connection.segment(segment, self.now);
            return;
        }
        let Some(request) = &mut self.request else {
            let (shared, options) = (&self.shared, &self.options);
            let mut request = Request::new(shared, options, segment, self.start, self.now);
            self.note(&request.syn_ack(self.now));
            self.request = Some(request);
            return;
        };
        match request.segment(&self.shared, segment, self.now) {
            Answer::Accept => {
                let (shared, options, mss) = (&self.shared, &self.options, self.start.mss);
                let mut connection = Connection::accepted(shared, options, request, mss, self.now);
                connection.segment(segment, self.now);
                (self.request, self.connection) = (None, Some(connection));
            }
            Answer::Ignore => {}
            Answer::Send(outgoing) => self.note(&outgoing),
            Answer::SynAck => {
                let syn_ack = request.syn_ack(self.now);
                self.note(&syn_ack);
            }
            Answer::Forget => self.request = None,
        }
    }

    // -- what is sent

    fn transmit(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let (now, jammed) = (self.now, self.jammed);
        connection.transmit(now, &mut |outgoing| {
            if !jammed {
                self.note(outgoing);
            }
            !jammed
        });
        self.connection = Some(connection);
    }

    fn note(&mut self, outgoing: &Outgoing<'_>) {
        let payload = outgoing.payload.clone().collect::<Vec<_>>().concat();
        // Through the bytes and back: what goes on the wire is what counts.
        let mut bytes = vec![0; parse::header_len(&outgoing.segment.options)];
        let packet = parse::lay(&mut bytes, (9, 9), &outgoing.segment);
        packet.expect("what is sent fits a segment");
        let packet = Packet::new_checked(&bytes[..]).expect("as it was laid");
        let segment = parse::parse(&packet, false);
        assert_eq!(segment, outgoing.segment, "the wire says something else");
        let sent = Sent {
            at: self.now,
            segment: outgoing.segment.clone(),
            ecn_capable: outgoing.ecn_capable,
            payload,
        };
        let text = self.text(&sent);
        let _ = writeln!(self.log, "{:>9} > {text}", self.clock());
        self.keep_the_rules(&sent, bytes.len());
        self.sent.push_back(sent);
        assert!(self.sent.len() < 10_000, "it does not stop sending:\n{}", self.log);
    }

    // -- time

    /// Time goes on, and what falls due is done when it falls due.
    #[track_caller]
    pub(super) fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        while self.step(end) {}
        self.now = end;
    }

    /// Goes on to the next deadline, if there is one up to `end`.
    #[track_caller]
    fn step(&mut self, end: Instant) -> bool {
        let Some(deadline) = self.deadline().filter(|deadline| *deadline <= end) else {
            return false;
        };
        self.now = self.now.max(deadline);
        self.fire();
        let mut rounds = 0;
        while self.deadline().is_some_and(|next| next <= self.now) {
            self.fire();
            rounds += 1;
            assert!(rounds < 20, "a timer that stands still\n{}", self.log);
        }
        true
    }

    fn deadline(&self) -> Option<Instant> {
        match (&self.connection, &self.request) {
            (Some(connection), _) => connection.deadline(),
            (None, Some(request)) => Some(request.deadline()),
            (None, None) => None,
        }
    }

    fn fire(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.timer(self.now);
        } else if let Some(request) = &mut self.request {
            if request.timer(&self.shared) {
                let syn_ack = request.syn_ack(self.now);
                self.note(&syn_ack);
            } else {
                self.request = None;
            }
        }
        self.transmit();
    }

    /// Time goes on, and nothing is sent.
    #[track_caller]
    pub(super) fn silent(&mut self, span: Duration) {
        self.expect_nothing();
        self.advance(span);
        self.expect_nothing();
    }

    /// The next thing sent is this, so many milliseconds from now; nothing comes earlier. Time stands there
    /// afterwards.
    #[track_caller]
    pub(super) fn expect_after(&mut self, millis: RangeInclusive<u64>, text: &str) {
        if *millis.start() > 0 {
            self.expect_nothing();
        }
        let start = self.now;
        let end = start + ms(*millis.end());
        while self.sent.is_empty() && self.step(end) {}
        let Some(sent) = self.sent.front() else {
            panic!("expected {text}\n     but nothing was sent within {millis:?} ms\n{}", self.log);
        };
        let after = sent.at.since(start);
        let early = after < ms(*millis.start());
        assert!(!early, "expected {text} after {millis:?} ms, came after {after:?}\n{}", self.log);
        self.expect(text);
    }

    fn clock(&self) -> String {
        format!("{:.3}", self.now.since(START).as_secs_f64())
    }
}

impl Drop for Script {
    /// What was sent last must have been expected too.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.expect_nothing();
        }
    }
}
