//! One connection, its peer played by the test, and time that advances only when the script says so. The page of
//! `tests` lists what a script can do.
//!
//! Owns the setup, the delivery of segments, and time. The expectations, the application and the rules for every
//! segment are in the files below.

mod application;
mod expect;
mod rules;

use super::{
    floor::{BareConnection, ScriptTarget, Sent},
    notation::{Line, Word},
    over_inet::{Family, OverInet},
};
use crate::{
    inet::tcp::{
        Config, TcpOptions,
        connection::State,
        parse,
        segment::{Flags, Options, Sacks, Segment},
        seq::Seq,
    },
    time::Instant,
};
use std::{cell::Cell, collections::VecDeque, fmt::Write, ops::RangeInclusive, time::Duration};

/// The peer's initial sequence number: it wraps over the sign bit within each script, as ours does over zero.
const IRS: Seq = Seq(0x7fff_ff00);
/// When a script begins. Our timestamps then show [`TS_START`].
const START: Instant = Instant::from_millis(5_000_000);
/// TSval at the start; a TSval in a script is this and the milliseconds since.
pub(super) const TS_START: u32 = 1_000;
/// The window of an injected segment that names none, until one names another.
const PEER_WINDOW: u16 = 65_535;
/// The options of a peer if the script names none.
const PEER_OPTIONS: &str = "<mss 1000,sackOK>";
const OUR_MSS: u16 = 1_000;

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The start of a script.
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

    /// The MSS of our path, without options; 1000 by default.
    pub(super) fn mss(mut self, mss: u16) -> Setup {
        self.mss = mss;
        self
    }

    /// The window and options of the peer's SYN in `established`: `"win 8000 <mss 1000,sackOK,ts 1 0,ws 7>"`.
    pub(super) fn peer(mut self, options: &str) -> Setup {
        self.peer = options.to_owned();
        self
    }

    /// How long the handshake of `established` takes; zero by default.
    pub(super) fn round_trip(mut self, round_trip: Duration) -> Setup {
        self.round_trip = round_trip;
        self
    }

    fn script(self) -> Script {
        let target: Box<dyn ScriptTarget> = match TARGET.get() {
            None => Box::new(BareConnection::new(self.config, self.options, self.mss)),
            Some(family) => {
                Box::new(OverInet::new(family, self.config, self.options, self.mss, START))
            }
        };
        Script {
            target,
            iss: None,
            ts_shift: None,
            now: START,
            sent: VecDeque::new(),
            log: String::new(),
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

    /// A connection that opens actively; the script expects its SYN.
    pub(super) fn connect(self) -> Script {
        let mut script = self.script();
        script.target.connect(script.now);
        script.transmit();
        script
    }

    /// A listener; the script injects a SYN.
    pub(super) fn listen(self) -> Script {
        let mut script = self.script();
        script.target.listen();
        script
    }

    /// A connection opened actively, with the handshake done; numbers count from there.
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
}

thread_local! {
    /// The floor of this thread's scripts: a bare connection by default.
    static TARGET: Cell<Option<Family>> = const { Cell::new(None) };
}

/// Runs scripts over a whole host.
pub(super) fn over(family: Family, scripts: impl FnOnce()) {
    TARGET.set(Some(family));
    scripts();
    TARGET.set(None);
}

/// One connection and its peer.
pub(super) struct Script {
    target: Box<dyn ScriptTarget>,
    /// Our initial sequence number, and the distance of our timestamps from those of the script, once our SYN has
    /// shown them.
    iss: Option<Seq>,
    ts_shift: Option<u32>,
    now: Instant,
    sent: VecDeque<(Instant, Sent)>,
    log: String,
    /// Bytes the application has written and read.
    written: usize,
    read: usize,
    /// The window of the peer's segments that name none.
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

    /// A segment comes from the peer. Its data is that of the peer's stream at that number.
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
            ack: line.ack.map_or(Seq(0), |ack| absolute(ack, self.iss())),
            flags: line.flags,
            window: self.window,
            urgent: line.urgent.unwrap_or(0),
            options: self.options_of(&line),
            congested: line.ecn.as_deref() == Some("ce"),
            payload: &payload,
            ..Segment::default()
        };
        self.record_peer(&segment);
        let _ = writeln!(self.log, "{:>9} < {text}", self.clock());
        let mut bytes = vec![0; parse::header_len(&segment.options) + len];
        let room = parse::write_header(&mut bytes, (9, 9), &segment).expect("it fits a segment");
        room.copy_from_slice(&payload);
        self.target.segment(&mut bytes, segment.congested, self.now);
        self.transmit();
    }

    /// The peer sends until our window is closed, acknowledging 1; returns where that ends.
    pub(super) fn fill_window(&mut self) -> i64 {
        let mut at = 1;
        while self.offers() > 0 {
            let len = self.offers().min(1_000);
            self.inject(&format!(". {at}:{}({len}) ack 1", at + len));
            at += len;
            self.advance(ms(300));
            self.ignore();
        }
        at
    }

    /// As `inject`; segments sent before it and not expected are dropped.
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
                Word::Timestamps(value, echo) => {
                    let shift = if echo == 0 { 0 } else { self.ts_shift.unwrap_or(0) };
                    options.timestamps = Some((value, echo.wrapping_add(shift)));
                }
                Word::WindowScale(shift) => options.window_scale = Some(shift),
                Word::Sacks(ref blocks) => {
                    let mut sacks = Sacks::default();
                    for &(start, end) in blocks {
                        let iss = self.iss();
                        assert!(sacks.push(absolute(start, iss)..absolute(end, iss)), "too many");
                    }
                    options.sacks = sacks;
                }
                Word::No(name) => panic!("no {name}: leave it out"),
            }
        }
        options
    }

    fn iss(&self) -> Seq {
        self.iss.unwrap_or_default()
    }

    // -- segments sent

    /// For each segment sent and not expected yet: whether it is marked as the last; on a bare connection.
    pub(super) fn last_marks(&self) -> Vec<bool> {
        self.sent.iter().map(|(_, sent)| sent.last).collect()
    }

    fn transmit(&mut self) {
        for mut sent in self.target.sent(self.now) {
            if sent.segment.flags.has(Flags::SYN) && self.iss.is_none() {
                self.iss = Some(sent.segment.seq);
            }
            if let Some((value, _)) = &mut sent.segment.options.timestamps {
                let shown = TS_START + self.now.since(START).as_millis() as u32;
                *value =
                    value.wrapping_sub(*self.ts_shift.get_or_insert(value.wrapping_sub(shown)));
            }
            let text = self.text(&sent);
            let _ = writeln!(self.log, "{:>9} > {text}", self.clock());
            self.check_rules(&sent);
            self.sent.push_back((self.now, sent));
        }
        assert!(self.sent.len() < 10_000, "it does not stop sending:\n{}", self.log);
    }

    // -- time

    /// Time passes, and timers fire when they are due.
    #[track_caller]
    pub(super) fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        while self.step(end) {}
        self.now = end;
    }

    /// Advances to the next deadline, if there is one up to `end`.
    #[track_caller]
    fn step(&mut self, end: Instant) -> bool {
        let Some(deadline) = self.target.deadline(self.now).filter(|deadline| *deadline <= end)
        else {
            return false;
        };
        self.now = self.now.max(deadline);
        self.fire();
        let mut rounds = 0;
        while self.target.deadline(self.now).is_some_and(|next| next <= self.now) {
            self.fire();
            rounds += 1;
            assert!(rounds < 20, "a timer that does not advance\n{}", self.log);
        }
        true
    }

    fn fire(&mut self) {
        self.target.timer(self.now);
        self.transmit();
    }

    /// Time passes, and nothing is sent.
    #[track_caller]
    pub(super) fn silent(&mut self, span: Duration) {
        self.expect_nothing();
        self.advance(span);
        self.expect_nothing();
    }

    /// The next segment is this one, so many milliseconds from now, and none comes earlier. The clock stays there.
    #[track_caller]
    pub(super) fn expect_after(&mut self, millis: RangeInclusive<u64>, text: &str) {
        if *millis.start() > 0 {
            self.expect_nothing();
        }
        let start = self.now;
        // A host's timers may be late by a quarter of a millisecond.
        let slack = if TARGET.get().is_some() { 1 } else { 0 };
        let end = start + ms(*millis.end() + slack);
        while self.sent.is_empty() && self.step(end) {}
        let Some((at, _)) = self.sent.front() else {
            panic!("expected {text}\n     but nothing was sent within {millis:?} ms\n{}", self.log);
        };
        let after = at.since(start);
        let early = after + ms(slack) < ms(*millis.start());
        assert!(!early, "expected {text} after {millis:?} ms, came after {after:?}\n{}", self.log);
        self.expect(text);
    }

    fn clock(&self) -> String {
        format!("{:.3}", self.now.since(START).as_secs_f64())
    }
}

impl Drop for Script {
    /// The last segments sent must have been expected too.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.expect_nothing();
        }
    }
}
