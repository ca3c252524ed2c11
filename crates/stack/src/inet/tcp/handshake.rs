//! The handshake: the negotiation of options, our SYN, and the half-open connection of a listener.

use super::{
    Config, Ecn, TcpOptions,
    connection::{Connection, NEVER, Outgoing, Start, State, clamp_mss, sizes},
    input::millis,
    output::{DEFAULT_MSS, Out},
    receive::Receiver,
    recovery::{self, Recovery},
    segment::{Flags, Options, Segment},
    seq::Seq,
    shared::Shared,
};
use crate::{inet::Count, time::Instant};
use std::time::Duration;

//= RFC 6298 2
//# (2.1) Until a round-trip time (RTT) measurement has been made for a segment sent between the sender and receiver,
//# the sender SHOULD set RTO <- 1 second
/// The RTO of a SYN.
const FIRST_RTO: Duration = Duration::from_secs(1);

/// How many SYN-ACK timeouts it takes to cover `span`, and how long these are (`secs_to_retrans`, `retrans_to_secs`).
pub fn timeouts_for(span: Duration, config: &Config) -> (u8, Duration) {
    let (mut count, mut rto, mut whole) = (0, FIRST_RTO, Duration::ZERO);
    while whole < span && count < u8::MAX {
        whole += rto;
        rto = (rto * 2).min(config.tcp_rto_max);
        count += 1;
    }
    (count, whole)
}

/// The options that both SYNs negotiate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The largest segment the peer accepts, bytes of data without options.
    pub mss: u16,
    /// The shifts of the peer's windows and of ours; `None`: no scaling.
    pub window_scale: Option<(u8, u8)>,
    /// SACK, both ways.
    pub sack: bool,
    /// Timestamps, both ways.
    pub timestamps: bool,
    /// ECN, both ways.
    pub ecn: bool,
}

/// The retransmission state of our SYN or SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct SynState {
    /// When it was sent first, and last.
    pub(super) first: Instant,
    pub(super) last: Instant,
    /// How often it was sent, and how often it timed out.
    pub(super) sent: u8,
    pub(super) timeouts: u8,
    /// The present timeout.
    pub(super) rto: Duration,
    /// It is to be sent.
    pub(super) due: bool,
}

impl SynState {
    pub(super) fn new(now: Instant) -> SynState {
        SynState { first: now, last: now, sent: 0, timeouts: 0, rto: FIRST_RTO, due: true }
    }

    /// A timeout: it is sent again, and the interval doubles, except for the first `linear` timeouts.
    pub(super) fn timed_out(&mut self, linear: u8, config: &Config) {
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts > linear {
            self.rto = (self.rto * 2).min(config.tcp_rto_max);
        }
        self.due = true;
    }

    fn sent(&mut self, now: Instant) {
        if self.sent == 0 {
            self.first = now;
        }
        self.last = now;
        self.sent = self.sent.saturating_add(1);
        self.due = false;
    }
}

impl Connection {
    /// The window scale our SYN offers.
    pub(super) fn shift_offered(&self) -> Option<u8> {
        shift_offered(&self.shared.config, &self.options)
    }

    /// Sends our SYN or, if the peer's SYN came first, our SYN-ACK (simultaneous open); or a RST to a segment that
    /// answers neither.
    #[cold]
    pub(super) fn send_syn(&mut self, now: Instant, out: &mut Out<'_>) {
        if !self.send_reset(now, out) {
            return;
        }
        let due = self.syn_state.as_deref().copied().filter(|syn_state| syn_state.due);
        let Some(mut syn_state) = due else {
            if self.state == State::SynReceived && self.ack_now {
                self.send_ack(now, out);
            }
            return;
        };
        let config = &self.shared.config;
        let answer = self.state == State::SynReceived;
        // RFC 3168 section 6.1.1.1: a host that gets no answer to an ECN-setup SYN may try without ECN.
        let ecn = !answer && config.tcp_ecn == Ecn::On && syn_state.sent == 0;
        let shift =
            if answer { self.scaled.then_some(self.rcv_shift) } else { self.shift_offered() };
        //= RFC 7323 3.2
        //# and MAY send a TSopt in <SYN,ACK> only if it received a TSopt in the initial <SYN> segment for the
        //# connection.
        let timestamps = if answer { self.timestamps } else { config.tcp_timestamps };
        //= RFC 9293 3.7.1
        //# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
        //= RFC 9293 3.7.1
        //# TCP implementations SHOULD send an MSS Option in every SYN segment when its receive MSS differs from the
        //# default 536 for IPv4 or 1220 for IPv6 (SHLD-5), and MAY send it always (MAY-3).
        let options = Options {
            mss: Some(self.adv_mss),
            window_scale: shift,
            sack_permitted: if answer { self.sack } else { config.tcp_sack },
            timestamps: timestamps.then(|| (self.timestamp(now), self.ts_recent)),
            ..Options::default()
        };
        let mut flags = Flags::SYN;
        if answer {
            flags = flags | Flags::ACK;
        }
        if ecn {
            flags = flags | Flags::ECE | Flags::CWR;
        }
        let segment = Segment {
            seq: self.snd_una,
            ack: if answer { self.receiver.next() } else { Seq(0) },
            flags,
            window: Receiver::initial_window(sizes(config.tcp_rmem, self.options.receive_buffer)),
            options,
            ..Segment::default()
        };
        if !out(&Outgoing { segment, ..Outgoing::default() }) {
            return;
        }
        self.counts.segs_out += 1;
        if self.snd_nxt != self.snd_una {
            self.count(Count::TcpRetransSegs);
        }
        self.snd_nxt = self.snd_una + 1;
        self.ack_now = false;
        syn_state.sent(now);
        self.probe_at = self.within_user_timeout(now + syn_state.rto, syn_state.first);
        self.syn_state = Some(Box::new(syn_state));
    }

    /// A segment in SYN-SENT.
    #[cold]
    pub(super) fn answer_to_syn(&mut self, segment: &Segment<'_>, now: Instant) {
        let ack = segment.flags.has(Flags::ACK);
        if ack {
            //= RFC 9293 3.10.7.3
            //# If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless the RST bit is set, if so drop the
            //# segment and return)
            let ours = self.snd_una.before(segment.ack) && segment.ack.at_most(self.snd_nxt);
            if !ours || self.echoes_invalid_timestamp(segment, now) {
                if !segment.flags.has(Flags::RST) {
                    self.refuse(segment);
                }
                return;
            }
        }
        //= RFC 9293 3.10.7.3
        //# If the ACK was acceptable, then signal to the user "error: connection reset", drop the segment, enter
        //# CLOSED state, delete TCB, and return. Otherwise (no ACK), drop the segment and return.
        if segment.flags.has(Flags::RST) {
            if ack {
                self.fail(libc::ECONNREFUSED);
            }
            return;
        }
        if !segment.flags.has(Flags::SYN) {
            return;
        }
        self.agree(segment, now);
        if ack {
            let asked = self.shared.config.tcp_ecn == Ecn::On;
            let agrees = segment.flags.has(Flags::ECE) && !segment.flags.has(Flags::CWR);
            self.ecn = asked && agrees;
            //= RFC 9293 3.10.7.3
            //# If SND.UNA > ISS (our SYN has been ACKed), change the connection state to ESTABLISHED, form an ACK
            //# segment <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>
            self.established(segment, now);
            self.ack_now = true;
        } else {
            //= RFC 9293 3.10.7.3
            //# Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
            // Simultaneous open.
            self.enter(State::SynReceived);
            self.syn_state = Some(Box::new(SynState::new(now)));
        }
    }

    /// A SYN-ACK that echoes a timestamp from before our first SYN, or from the future, belongs to an earlier
    /// connection (Linux's `tcp_rcv_synsent_state_process`).
    fn echoes_invalid_timestamp(&self, segment: &Segment<'_>, now: Instant) -> bool {
        let Some((_, echo)) = segment.options.timestamps else { return false };
        let Some(syn_state) = &self.syn_state else { return false };
        let first = self.timestamp(syn_state.first);
        let since_first = self.timestamp(now).wrapping_sub(first);
        self.shared.config.tcp_timestamps && echo != 0 && echo.wrapping_sub(first) > since_first
    }

    /// Takes over the options of the peer's SYN.
    fn agree(&mut self, syn: &Segment<'_>, now: Instant) {
        let config = &self.shared.config;
        let options = &syn.options;
        self.peer_mss = clamp_mss(options.mss.unwrap_or(DEFAULT_MSS), &self.options);
        let ours = self.shift_offered();
        //= RFC 7323 2.2
        //# both sides MUST send Window Scale options in their <SYN> segments to enable window scaling in either
        //# direction.
        //= RFC 7323 2.3
        //# Upon receiving a <SYN> segment with a Window Scale option containing shift.cnt = S, a TCP MUST set
        //# Snd.Wind.Shift to S and MUST set Rcv.Wind.Shift to R
        let scale = options.window_scale.zip(ours);
        self.scaled = scale.is_some();
        (self.snd_shift, self.rcv_shift) = scale.unwrap_or((0, 0));
        self.sack = config.tcp_sack && options.sack_permitted;
        self.timestamps = config.tcp_timestamps && options.timestamps.is_some();
        if let Some((value, _)) = options.timestamps {
            (self.ts_recent, self.ts_recent_at) = (value, now);
        }
        let sizes = sizes(config.tcp_rmem, self.options.receive_buffer);
        let (mss, memory) = (self.adv_mss.into(), self.shared.memory.clone());
        let quick = self.receiver.quick_ack();
        self.receiver = Receiver::new(syn.seq, sizes, self.rcv_shift, mss, memory, now);
        if !quick {
            self.receiver.set_quick_ack(false);
        }
        self.last_ack_sent = self.receiver.next();
        self.apply_receive_options();
    }

    /// Our SYN is acknowledged by `segment`, which also sets the window.
    pub(super) fn established(&mut self, segment: &Segment<'_>, now: Instant) {
        let syn_state = self.syn_state.take();
        let retransmissions =
            syn_state.as_ref().map_or(0, |syn_state| u32::from(syn_state.sent.saturating_sub(1)));
        //= RFC 6298 3
        //# TCP MUST use Karn's algorithm [KP87] for taking RTT samples. That is, RTT samples MUST NOT be made using
        //# segments that were retransmitted
        // Unless a timestamp shows which transmission was answered.
        let echoed = segment.options.timestamps.filter(|_| self.timestamps);
        let sent = match (retransmissions, echoed) {
            (0, _) => syn_state.map(|syn_state| syn_state.last),
            (_, Some((_, echo))) => self.echo_time(echo, now),
            _ => None,
        };
        self.probe_at = NEVER;
        // Linux counts our SYN on an active open. On a passive open the connection has sent nothing yet: the SYN-ACK
        // was the request's.
        self.counts.bytes_acked += u64::from(self.counts.segs_out > 0);
        self.snd_una = segment.ack;
        //= RFC 7323 2.2
        //# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT be scaled.
        let shift = if segment.flags.has(Flags::SYN) { 0 } else { self.snd_shift };
        self.snd_wnd = u32::from(segment.window) << shift;
        self.snd_wnd_max = self.snd_wnd;
        self.snd_wl1 = segment.seq;
        self.snd_mss = self.effective_mss();
        let settings = recovery::Settings::new(&self.shared.config, &self.options);
        let agreed = recovery::Agreed {
            sack: self.sack,
            timestamps: self.timestamps.then_some(Duration::from_millis(1)),
            ecn: self.ecn,
            rtt: sent.map(|sent| now - sent),
            retransmissions,
        };
        self.recovery = Recovery::new(settings, agreed, self.snd_mss, self.snd_una, now);
        // tcp_init_buffer_space: room for the first windows.
        let clamp = u32::from(self.peer_mss).max(self.snd_mss);
        self.buffer.expand(clamp, self.recovery.congestion_window() / self.snd_mss.max(1));
        self.last_ack_at = now;
        self.last_data_in = now;
        self.soft_error = None;
        self.enter(if self.fin_queued { State::FinWait1 } else { State::Established });
        self.notify = true;
        if self.options.keepalive {
            self.arm_keepalive(now, now);
        }
    }
}

//= RFC 7323 2.2
//# Thus, a TCP that is prepared to scale windows SHOULD send the option, even if its own scale factor is 1 and the
//# exponent 0.
fn shift_offered(config: &Config, options: &TcpOptions) -> Option<u8> {
    let sizes = sizes(config.tcp_rmem, options.receive_buffer);
    config.tcp_window_scaling.then(|| Receiver::shift_for(sizes))
}

/// A SYN that was answered, with the answer not acknowledged yet: an entry of a listener's SYN queue, or what a
/// cookie brought back.
#[derive(Clone, Debug)]
pub struct Request {
    /// Our initial sequence number.
    pub iss: Seq,
    /// The peer's.
    pub irs: Seq,
    /// The negotiated options.
    pub agreed: Agreed,
    pub(super) ts_offset: u32,
    pub(super) ts_recent: u32,
    pub(super) syn_state: SynState,
    /// The window and the MSS that we announced.
    window: u16,
    mss: u16,
    /// The window of its SYN.
    peer_window: u16,
    answered_at: Option<Instant>,
    /// The start of the timeout that ends at [`Request::deadline`].
    waits_from: Instant,
    /// `TCP_DEFER_ACCEPT`: so many timeouts pass before an ACK without data completes the handshake.
    defer: u8,
    /// When the first ACK came that would complete the handshake without `TCP_DEFER_ACCEPT`.
    acked_at: Option<Instant>,
}

/// What to do with a [`Request`], after a segment or a timeout.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The handshake is complete: make a connection, and pass this segment to it.
    Accept,
    /// Nothing.
    Ignore,
    /// Send this; the request stays.
    Send(Outgoing<'static>),
    /// Send [`Request::syn_ack`] again.
    SynAck,
    /// The request has failed: remove it.
    Forget,
}

impl Request {
    /// For a SYN. `start.mss` is the MSS of the path.
    pub fn new(
        shared: &Shared,
        options: &TcpOptions,
        syn: &Segment<'_>,
        start: Start,
        now: Instant,
    ) -> Request {
        let config = &shared.config;
        let said = &syn.options;
        // RFC 3168 section 6.1.1: ECE and CWR both, "an ECN-setup SYN packet".
        let ecn = config.tcp_ecn != Ecn::Off && syn.flags.has(Flags::ECE | Flags::CWR);
        let agreed = Agreed {
            mss: said.mss.unwrap_or(DEFAULT_MSS),
            window_scale: said.window_scale.zip(shift_offered(config, options)),
            sack: config.tcp_sack && said.sack_permitted,
            timestamps: config.tcp_timestamps && said.timestamps.is_some(),
            ecn,
        };
        Request {
            iss: start.iss,
            irs: syn.seq,
            agreed,
            ts_offset: start.ts_offset,
            ts_recent: said.timestamps.map_or(0, |(value, _)| value),
            syn_state: SynState::new(now),
            window: Receiver::initial_window(sizes(config.tcp_rmem, options.receive_buffer)),
            mss: clamp_mss(start.mss, options),
            peer_window: syn.window,
            answered_at: None,
            waits_from: now,
            defer: timeouts_for(options.defer_accept, config).0,
            acked_at: None,
        }
    }

    /// For a cookie that came back in `ack`, with the options of the SYN in `agreed`. `agreed.window_scale` has the
    /// peer's shift; ours is the one we always offer.
    pub fn from_cookie(
        shared: &Shared,
        options: &TcpOptions,
        ack: &Segment<'_>,
        agreed: Agreed,
        start: Start,
        now: Instant,
    ) -> Request {
        let config = &shared.config;
        let theirs = agreed.window_scale.map(|(theirs, _)| theirs);
        let window_scale = theirs.zip(shift_offered(config, options));
        // It is not known when the SYN-ACK was sent.
        let syn_state = SynState { sent: 2, due: false, ..SynState::new(now) };
        Request {
            iss: start.iss,
            irs: ack.seq - 1,
            agreed: Agreed { window_scale, ..agreed },
            ts_offset: start.ts_offset,
            ts_recent: ack.options.timestamps.map_or(0, |(value, _)| value),
            syn_state,
            window: Receiver::initial_window(sizes(config.tcp_rmem, options.receive_buffer)),
            mss: clamp_mss(start.mss, options),
            peer_window: ack.window,
            answered_at: None,
            waits_from: now,
            // With a cookie there was no request to defer.
            defer: 0,
            acked_at: None,
        }
    }

    /// The ACK of a SYN-ACK that was sent once came after `rtt`, as far as the connection's estimators go.
    pub(super) fn acknowledged_after(&mut self, rtt: Duration, now: Instant) {
        let nanos = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
        let sent = Instant::from_nanos(now.nanos().saturating_sub(nanos));
        self.syn_state = SynState { sent: 1, due: false, ..SynState::new(sent) };
    }

    //= RFC 9293 3.10.7.2
    //# Set RCV.NXT to SEG.SEQ+1, IRS is set to SEG.SEQ, and any other control or text should be queued for processing
    //# later. ISS should be selected and a SYN segment sent of the form: <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
    /// The SYN-ACK, to be sent now.
    pub fn syn_ack(&mut self, now: Instant) -> Outgoing<'static> {
        self.syn_state.sent(now);
        self.waits_from = now;
        let mut flags = Flags::SYN | Flags::ACK;
        if self.agreed.ecn {
            flags = flags | Flags::ECE;
        }
        let options = Options {
            mss: Some(self.mss),
            window_scale: self.agreed.window_scale.map(|(_, ours)| ours),
            sack_permitted: self.agreed.sack,
            ..self.timestamps(now)
        };
        let segment = Segment {
            seq: self.iss,
            ack: self.irs + 1,
            flags,
            window: self.window,
            options,
            ..Segment::default()
        };
        Outgoing { segment, ..Outgoing::default() }
    }

    /// The answer to the [SYN-ACK](Request::syn_ack), with the window of the peer's SYN.
    pub(super) fn ack_over_link(&self) -> Segment<'static> {
        // The window of a segment with SYN is not scaled.
        let flags = Flags::SYN | Flags::ACK;
        let window = self.peer_window;
        Segment { seq: self.irs, ack: self.iss + 1, flags, window, ..Segment::default() }
    }

    /// The RST in place of the SYN-ACK.
    pub(super) fn refusal(&self) -> Segment<'static> {
        let flags = Flags::RST | Flags::ACK;
        Segment { ack: self.irs + 1, flags, ..Segment::default() }
    }

    fn timestamps(&self, now: Instant) -> Options {
        let value = millis(now).wrapping_add(self.ts_offset);
        let timestamps = self.agreed.timestamps.then_some((value, self.ts_recent));
        Options { timestamps, ..Options::default() }
    }

    /// When the timeout ends: as a rule the SYN-ACK is then sent again.
    pub fn deadline(&self) -> Instant {
        self.waits_from + self.syn_state.rto
    }

    /// The timeout has ended (`syn_ack_recalc`).
    pub fn timer(&mut self, shared: &Shared, now: Instant) -> Answer {
        let timeouts = self.syn_state.timeouts;
        let deferred = |until: u8| self.acked_at.is_some() && timeouts < until;
        if timeouts >= shared.config.tcp_synack_retries && !deferred(self.defer) {
            return Answer::Forget;
        }
        // The last SYN-ACK of the deferral asks for an ACK that will complete the handshake.
        let silent = deferred(self.defer.saturating_sub(1));
        self.syn_state.timed_out(0, &shared.config);
        self.waits_from = now;
        if silent { Answer::Ignore } else { Answer::SynAck }
    }

    /// A segment for this request, which is in SYN-RECEIVED, by the rules of Linux's `tcp_check_req`. Changes only
    /// the rate limit of answers and the state of the deferral.
    pub fn segment(&mut self, shared: &Shared, segment: &Segment<'_>, now: Instant) -> Answer {
        let flags = segment.flags;
        let next = self.irs + 1;
        let old = match segment.options.timestamps {
            Some((value, _)) if self.agreed.timestamps => {
                self.ts_recent.wrapping_sub(value) as i32 > 0
            }
            _ => false,
        };
        let syn_only =
            Flags::SYN.0 == flags.0 & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN).0;
        if syn_only && segment.seq == self.irs && !old {
            return if self.may_answer(shared, now) { Answer::SynAck } else { Answer::Ignore };
        }
        if flags.has(Flags::RST) {
            //= RFC 5961 3.2
            //# 2) If the RST bit is set and the sequence number exactly matches the next expected sequence number
            //# (RCV.NXT), then TCP MUST reset the connection.
            //= RFC 9293 3.10.7.4
            //# If this connection was initiated with a passive OPEN (i.e., came from the LISTEN state), then return
            //# this connection to LISTEN state and return. The user need not be informed.
            return if segment.seq == next { Answer::Forget } else { Answer::Ignore };
        }
        //= RFC 9293 3.10.7.4
        //# If the segment acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST>
        if flags.has(Flags::ACK) && segment.ack != self.iss + 1 {
            let seq = segment.ack;
            let segment = Segment { seq, flags: Flags::RST, ..Segment::default() };
            return Answer::Send(Outgoing { segment, ..Outgoing::default() });
        }
        let edge = next + u32::from(self.window);
        let within = next.at_most(segment.seq) && segment.seq.at_most(edge);
        let again = flags.has(Flags::SYN) && segment.seq == self.irs;
        //= RFC 5961 4.2
        //# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also referred to as
        //# challenge ACK) to the remote peer:
        // A SYN with another number does not belong to this connection. If its sender has started anew, the sender
        // resets what our answer shows it.
        let other = flags.has(Flags::SYN) && !again;
        if old || other || !(within || again) {
            if old {
                shared.counters.add(Count::PAWSEstab);
            }
            return if self.may_answer(shared, now) {
                Answer::Send(self.bare_ack(now))
            } else {
                Answer::Ignore
            };
        }
        if !flags.has(Flags::ACK) {
            return Answer::Ignore;
        }
        if segment.is_empty() && self.syn_state.timeouts < self.defer {
            self.acked_at.get_or_insert(now);
            shared.counters.add(Count::TcpExtTCPDeferAcceptDrop);
            return Answer::Ignore;
        }
        if let Some(acked_at) = self.acked_at {
            // The time since then is not part of the round trip.
            self.syn_state.last = self.syn_state.last + (now - acked_at);
        }
        Answer::Accept
    }

    fn bare_ack(&self, now: Instant) -> Outgoing<'static> {
        let shift = self.agreed.window_scale.map_or(0, |(_, ours)| ours);
        let segment = Segment {
            seq: self.iss + 1,
            ack: self.irs + 1,
            flags: Flags::ACK,
            window: self.window >> shift,
            options: self.timestamps(now),
            ..Segment::default()
        };
        Outgoing { segment, ..Outgoing::default() }
    }

    fn may_answer(&mut self, shared: &Shared, now: Instant) -> bool {
        let interval = shared.config.tcp_invalid_ratelimit;
        let may = self.answered_at.is_none_or(|at| now.since(at) >= interval);
        if may {
            self.answered_at = Some(now);
        }
        may
    }
}
