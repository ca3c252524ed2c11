//! One connection, its peer played by the test, and time that stands still unless told to go on. What can
//! be said in a test is on the page of `tests`.
//!
//! Whatever a script asks for, some things are seen to all the time ([`Script::keep_the_rules`]): the
//! stream's every byte, windows, the MSS.

use super::super::{
    Config, Ready, TcpOptions,
    connection::{Connection, Outgoing, Start, State},
    handshake::{Answer, Request},
    info::TcpInfo,
    parse,
    segment::{Flags, Options, Sacks, Segment},
    seq::Seq,
    shared::Shared,
};
use super::notation::{Line, Word, letters};
use crate::{
    inet::{SocketError, counters::Counters},
    time::Instant,
    wire::tcp::Packet,
};
use std::{
    collections::VecDeque,
    fmt::Write,
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

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

    /// What the peer has promised, for [`Script::keep_the_rules`].
    fn note_peer(&mut self, segment: &Segment<'_>) {
        let mut shift = self.peer_shift.unwrap_or(0);
        if segment.flags.has(Flags::SYN) {
            self.peer_shift = segment.options.window_scale;
            self.peer_mss = segment.options.mss;
            shift = 0;
        }
        if self.our_shift.is_none() && self.offered.is_some() {
            shift = 0; // we did not offer to scale, or have not been asked
        }
        let edge = (i64::from(segment.window)) << shift;
        let ack =
            if segment.flags.has(Flags::ACK) { relative(segment.ack, self.start.iss) } else { 1 };
        self.room = self.room.max(ack + edge);
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

    /// What holds for each segment, in every script.
    fn keep_the_rules(&mut self, sent: &Sent, header: usize) {
        let seq = relative(sent.segment.seq, self.start.iss);
        let len = sent.payload.len();
        let log = &self.log;
        assert_eq!(sent.payload, stream(seq - 1, len, true), "not the stream's bytes\n{log}");
        if sent.segment.flags.has(Flags::RST) {
            return;
        }
        // RFC 6691: the peer's MSS does not count options; our segments do.
        let mss = usize::from(self.peer_mss.unwrap_or(536));
        assert!(len == 0 || header - 20 + len <= mss, "more than the peer's MSS\n{log}");
        assert!(len == 0 || seq + len as i64 <= self.room, "beyond the peer's window\n{log}");
        if sent.segment.flags.has(Flags::SYN) {
            self.our_shift = sent.segment.options.window_scale;
        }
        if !sent.segment.flags.has(Flags::ACK) {
            self.offered.get_or_insert(0);
            return;
        }
        let scales = self.peer_shift.is_some() && !sent.segment.flags.has(Flags::SYN);
        let shift = if scales { self.our_shift.unwrap_or(0) } else { 0 };
        let ack = relative(sent.segment.ack, IRS);
        let edge = ack + (i64::from(sent.segment.window) << shift);
        // RFC 9293 section 3.8.6: "A TCP receiver SHOULD NOT shrink the window".
        assert!(self.offered.is_none_or(|was| edge >= was), "the window's edge moved left\n{log}");
        assert!(self.acked.is_none_or(|was| ack >= was), "an acknowledgment taken back\n{log}");
        (self.offered, self.acked) = (Some(edge), Some(ack));
    }

    /// The next segment sent is this. Only what is written is compared, and PSH only if written.
    #[track_caller]
    pub(super) fn expect(&mut self, text: &str) {
        let line = Line::read(text);
        let Some(sent) = self.sent.pop_front() else {
            panic!("expected {text}\n     but nothing was sent\n{}", self.log);
        };
        if let Err(what) = self.compare(&line, &sent) {
            panic!(
                "expected {text}\n     got {}\n     {what} differs\n{}",
                self.text(&sent),
                self.log
            );
        }
    }

    fn compare(&self, line: &Line, sent: &Sent) -> Result<(), &'static str> {
        let same = |is: bool, what| if is { Ok(()) } else { Err(what) };
        let ignored = if line.flags.has(Flags::PSH) { 0 } else { Flags::PSH.0 };
        same(line.flags.0 & !ignored == sent.segment.flags.0 & !ignored, "a flag")?;
        let start = relative(sent.segment.seq, self.start.iss);
        let end = start + sent.payload.len() as i64 + i64::from(sent.segment.flags.has(Flags::FIN));
        let range = (start, end, sent.payload.len());
        same(line.range.is_none_or(|want| want == range), "the range")?;
        same(line.ack.is_none_or(|ack| ack == relative(sent.segment.ack, IRS)), "ack")?;
        same(line.window.is_none_or(|window| window == sent.segment.window), "win")?;
        same(
            line.ecn.is_none() || (line.ecn.as_deref() == Some("ect0")) == sent.ecn_capable,
            "ECN",
        )?;
        let options = &sent.segment.options;
        for word in &line.options {
            match *word {
                Word::Mss(mss) => same(options.mss == Some(mss), "mss")?,
                Word::SackPermitted => same(options.sack_permitted, "sackOK")?,
                Word::Timestamps(v, e) => same(options.timestamps == Some((v, e)), "ts")?,
                Word::WindowScale(shift) => same(options.window_scale == Some(shift), "ws")?,
                Word::Sacks(ref want) => same(*want == self.sacks(options), "sack")?,
                Word::No("mss") => same(options.mss.is_none(), "mss")?,
                Word::No("sackOK") => same(!options.sack_permitted, "sackOK")?,
                Word::No("ts") => same(options.timestamps.is_none(), "ts")?,
                Word::No("ws") => same(options.window_scale.is_none(), "ws")?,
                Word::No(_) => same(options.sacks.is_empty(), "sack")?,
            }
        }
        Ok(())
    }

    fn sacks(&self, options: &Options) -> Vec<(i64, i64)> {
        options.sacks.iter().map(|b| (relative(b.start, IRS), relative(b.end, IRS))).collect()
    }

    /// A segment in the words of `notation`.
    fn text(&self, sent: &Sent) -> String {
        let start = relative(sent.segment.seq, self.start.iss);
        let len = sent.payload.len();
        let end = start + len as i64 + i64::from(sent.segment.flags.has(Flags::FIN));
        let mut text = if sent.ecn_capable { "[ect0] ".to_owned() } else { String::new() };
        let _ = write!(text, "{} {start}:{end}({len})", letters(sent.segment.flags));
        if sent.segment.flags.has(Flags::ACK) {
            let _ = write!(text, " ack {}", relative(sent.segment.ack, IRS));
        }
        let _ = write!(text, " win {}", sent.segment.window);
        let options = &sent.segment.options;
        let mut words = Vec::new();
        words.extend(options.mss.map(|mss| format!("mss {mss}")));
        words.extend(options.sack_permitted.then(|| "sackOK".to_owned()));
        words.extend(options.timestamps.map(|(value, echo)| format!("ts {value} {echo}")));
        words.extend(options.window_scale.map(|shift| format!("ws {shift}")));
        if !options.sacks.is_empty() {
            let blocks = self.sacks(options).into_iter().map(|(from, to)| format!(" {from}:{to}"));
            words.push(format!("sack{}", blocks.collect::<String>()));
        }
        if !words.is_empty() {
            let _ = write!(text, " <{}>", words.join(","));
        }
        text
    }

    /// The data from `from` to `to` is sent next, in order, in segments of any size.
    #[track_caller]
    pub(super) fn expect_data(&mut self, from: i64, to: i64) {
        let mut at = from;
        while at < to {
            let log = &self.log;
            let Some(sent) = self.sent.pop_front() else {
                panic!("expected data from {at} to {to}, but nothing more was sent\n{log}");
            };
            let start = relative(sent.segment.seq, self.start.iss);
            assert_eq!(start, at, "expected data from {at} on\n{log}");
            assert!(!sent.payload.is_empty(), "expected data from {at} on\n{log}");
            at += sent.payload.len() as i64;
        }
        assert_eq!(at, to, "more data than expected\n{}", self.log);
    }

    /// Nothing was sent beyond what was expected.
    #[track_caller]
    pub(super) fn expect_nothing(&mut self) {
        if let Some(sent) = self.sent.front() {
            panic!("sent and not expected: {}\n{}", self.text(sent), self.log);
        }
    }

    /// How many bytes our last acknowledgment lets the peer send.
    pub(super) fn offers(&self) -> i64 {
        self.offered.unwrap_or(0) - self.acked.unwrap_or(0)
    }

    /// What we acknowledged last.
    pub(super) fn acked(&self) -> i64 {
        self.acked.unwrap_or(0)
    }

    /// Whether something was sent that is to be expected.
    pub(super) fn sent_some(&self) -> bool {
        !self.sent.is_empty()
    }

    /// The ranges of data sent and not expected, which is forgotten.
    pub(super) fn take(&mut self) -> Vec<(i64, i64)> {
        let range = |sent: &Sent| {
            let start = relative(sent.segment.seq, self.start.iss);
            (start, start + sent.payload.len() as i64)
        };
        let ranges = self.sent.iter().map(range).filter(|(start, end)| start < end).collect();
        self.sent.clear();
        ranges
    }

    /// Forgets what was sent and not expected; tells how many segments that were.
    pub(super) fn ignore(&mut self) -> usize {
        self.sent.drain(..).count()
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

    // -- the application

    #[track_caller]
    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("there is a connection")
    }

    fn say(&mut self, what: &str) {
        let _ = writeln!(self.log, "{:>9} - {what}", self.clock());
    }

    /// Writes `len` bytes, which all find room.
    #[track_caller]
    pub(super) fn send(&mut self, len: usize) {
        let sent = self.try_send(len, false);
        assert!(matches!(sent, Ok(n) if n == len), "send({len}) = {sent:?}\n{}", self.log);
    }

    /// Writes `len` bytes with `MSG_MORE`.
    #[track_caller]
    pub(super) fn send_more(&mut self, len: usize) {
        let sent = self.try_send(len, true);
        assert!(matches!(sent, Ok(n) if n == len), "send({len}) = {sent:?}\n{}", self.log);
    }

    /// Writes up to `len` bytes.
    pub(super) fn try_send(&mut self, len: usize, more: bool) -> io::Result<usize> {
        self.say(&format!("send {len}"));
        let now = self.now;
        let data = stream(self.written as i64, len, true);
        let sent = self.connection().send(&[IoSlice::new(&data)], more, now);
        self.written += sent.as_ref().copied().unwrap_or(0);
        self.transmit();
        sent
    }

    /// Reads exactly `len` bytes, and they are the peer's.
    #[track_caller]
    pub(super) fn recv(&mut self, len: usize) {
        let mut left = len;
        while left > 0 {
            match self.try_recv(left) {
                Ok(n) if n > 0 => left -= n,
                other => panic!("recv({len}): {other:?} with {left} to go\n{}", self.log),
            }
        }
    }

    /// Reads up to `len` bytes.
    #[track_caller]
    pub(super) fn try_recv(&mut self, len: usize) -> io::Result<usize> {
        self.say(&format!("recv {len}"));
        let now = self.now;
        let mut into = vec![0; len];
        let got = self.connection().recv(&mut [IoSliceMut::new(&mut into)], false, now);
        if let Ok(n) = got {
            let want = stream(self.read as i64, n, false);
            assert_eq!(into[..n], want, "not the bytes the peer sent\n{}", self.log);
            self.read += n;
        }
        self.transmit();
        got
    }

    /// There is nothing to read now, and more may come.
    #[track_caller]
    pub(super) fn recv_nothing(&mut self) {
        let got = self.try_recv(1).map_err(|e| e.kind());
        assert_eq!(got, Err(io::ErrorKind::WouldBlock), "\n{}", self.log);
    }

    /// The peer has sent all.
    #[track_caller]
    pub(super) fn recv_end(&mut self) {
        let got = self.try_recv(1).map_err(|e| e.kind());
        assert_eq!(got, Ok(0), "the end of the stream\n{}", self.log);
    }

    pub(super) fn shutdown_write(&mut self) {
        self.say("shutdown(write)");
        let now = self.now;
        self.connection().shutdown(Shutdown::Write, now).expect("connected");
        self.transmit();
    }

    pub(super) fn shutdown_read(&mut self) {
        self.say("shutdown(read)");
        let now = self.now;
        self.connection().shutdown(Shutdown::Read, now).expect("connected");
        self.transmit();
    }

    pub(super) fn close(&mut self) {
        self.say("close");
        let now = self.now;
        self.connection().close(now);
        self.transmit();
    }

    pub(super) fn abort(&mut self) {
        self.say("abort");
        let now = self.now;
        self.connection().abort(now);
        self.transmit();
    }

    pub(super) fn configure(&mut self, change: impl FnOnce(&mut TcpOptions)) {
        self.say("setsockopt");
        let now = self.now;
        self.connection().configure(now, change);
        self.transmit();
    }

    pub(super) fn state(&mut self) -> State {
        self.connection().state()
    }

    #[track_caller]
    pub(super) fn check_state(&mut self, want: State) {
        let is = self.state();
        assert_eq!(is, want, "\n{}", self.log);
    }

    pub(super) fn ready(&mut self) -> Ready {
        self.connection().ready()
    }

    /// `SO_ERROR`: the errno, none afterwards.
    pub(super) fn error(&mut self) -> Option<i32> {
        self.connection().take_error()
    }

    pub(super) fn info(&mut self) -> TcpInfo {
        let now = self.now;
        self.connection().info(now)
    }

    /// Everything else a connection can be asked.
    pub(super) fn with<T>(&mut self, ask: impl FnOnce(&mut Connection, Instant) -> T) -> T {
        let now = self.now;
        let answer = ask(self.connection(), now);
        self.transmit();
        answer
    }

    /// Whether the SYN was forgotten, or never came.
    pub(super) fn is_listening(&self) -> bool {
        self.request.is_none() && self.connection.is_none()
    }

    // -- the host

    /// The transmit ring is full from now on, or has room again.
    pub(super) fn jam(&mut self, jammed: bool) {
        self.say(if jammed { "ring full" } else { "ring empty" });
        self.jammed = jammed;
        self.transmit();
    }

    /// An ICMP error comes that quotes our segment at `quoted`.
    pub(super) fn icmp(&mut self, error: SocketError, quoted: i64) {
        self.say(&format!("icmp {error:?} about {quoted}"));
        let quoted = absolute(quoted, self.start.iss);
        self.connection().unreachable(error, quoted);
        self.transmit();
    }

    /// ICMP says about our segment at `quoted` that the path takes `mss` bytes.
    pub(super) fn icmp_too_big(&mut self, mss: u16, quoted: i64) {
        self.say(&format!("icmp too big: {mss} about {quoted}"));
        let (now, quoted) = (self.now, absolute(quoted, self.start.iss));
        self.connection().path_mss(mss, quoted, now);
        self.transmit();
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
