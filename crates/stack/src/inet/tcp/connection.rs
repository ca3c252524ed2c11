//! One connection (RFC 9293's TCB): what the application does to it, and what it can say about itself.
//!
//! Segments come in by [`Connection::segment`] (`input`), time by [`Connection::timer`] (`timers`), and what is
//! to be sent goes out by [`Connection::transmit`] (`output`). No lock, no clock, no I/O; whoever holds a
//! connection calls `transmit` after each of the other calls, and looks at [`Connection::take_news`] and
//! [`Connection::deadline`] then.

use super::{
    BufferSizes, TcpOptions,
    handshake::{Agreed, Opening, Request},
    isn,
    marks::Marks,
    options::Own,
    receive::Receiver,
    recovery::{self, Recovery},
    segment::Segment,
    send_buffer::SendBuffer,
    seq::Seq,
    shared::Shared,
    store::Pieces,
    urgent::Urgent,
};
use crate::{
    inet::{Count, SocketError},
    sync::Ordering,
    time::Instant,
};
use std::{io, sync::Arc};

/// The states of RFC 9293 section 3.3.2; a listener is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// We sent a SYN.
    SynSent,
    /// Both SYNs are sent, ours is not acknowledged.
    SynReceived,
    /// Data flows.
    Established,
    /// We sent FIN, or will once the data before it is sent.
    FinWait1,
    /// Our FIN is acknowledged.
    FinWait2,
    /// The peer sent FIN.
    CloseWait,
    /// Both sent FIN, ours is not acknowledged.
    Closing,
    /// The peer sent FIN, then we did.
    LastAck,
    /// All is said; stray segments die.
    TimeWait,
    /// There is no connection (any more).
    Closed,
}

impl State {
    /// RFC 4022's `tcpCurrEstab` counts it.
    fn is_current(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }

    /// As Linux numbers them (include/net/tcp_states.h), in `struct tcp_info` and elsewhere.
    pub fn number(self) -> u8 {
        match self {
            State::Established => 1,
            State::SynSent => 2,
            State::SynReceived => 3,
            State::FinWait1 => 4,
            State::FinWait2 => 5,
            State::TimeWait => 6,
            State::Closed => 7,
            State::CloseWait => 8,
            State::LastAck => 9,
            State::Closing => 11,
        }
    }
}

/// A segment on its way out.
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    /// Its header; no data. The window is as it goes on the wire, scaled already.
    pub segment: Segment<'static>,
    /// Its data.
    pub payload: Pieces<'a>,
    /// The IP header says ECT(0) (RFC 3168).
    pub ecn_capable: bool,
    /// It is all there is to send: the doorbell rings at once, not after recovery has been told of it.
    pub last: bool,
}

/// What a connection begins with, besides its options.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The initial sequence number (RFC 6528).
    pub iss: Seq,
    /// What our timestamps start from (RFC 7323 section 7.1).
    pub ts_offset: u32,
    /// The largest segment the path takes, without options: MTU less IP header less 20.
    pub mss: u16,
}

/// What TIME_WAIT must know of a connection that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    /// SND.NXT.
    pub snd_nxt: Seq,
    /// RCV.NXT.
    pub rcv_nxt: Seq,
    /// The window last offered, bytes.
    pub rcv_window: u32,
    /// The same as it goes on the wire.
    pub window: u16,
    /// With timestamps: the peer's last one, and what ours start from.
    pub timestamps: Option<(u32, u32)>,
    /// When it ends.
    pub until: Instant,
}

/// A RST to be sent: its number, and its acknowledgment if it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reset {
    pub(super) seq: Seq,
    pub(super) ack: Option<Seq>,
}

/// A time that does not come: there is no such timer, or it has not happened. Not an `Option`, which would be
/// twice as large, and slower to compare.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// What `TCP_INFO` counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) segs_in: u32,
    pub(super) segs_out: u32,
    pub(super) data_segs_in: u32,
    pub(super) data_segs_out: u32,
    pub(super) bytes_acked: u64,
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
}

/// One connection. Fields with names of RFC 9293 section 3.3.1 mean what they mean there.
#[derive(Debug)]
pub struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) state: State,
    /// Agreed: timestamps, SACK, ECN.
    pub(super) timestamps: bool,
    pub(super) sack: bool,
    pub(super) ecn: bool,
    /// A CE mark has come and its sender has not said CWR: our acknowledgments say ECE.
    pub(super) echo_ce: bool,
    /// The next new data says CWR.
    pub(super) say_cwr: bool,
    /// An ACK goes out at once, whatever the receiver says.
    pub(super) ack_now: bool,
    /// So many duplicate ACKs are due, one for each segment out of order: a peer without SACK counts them.
    pub(super) duplicate_acks: u8,
    /// `MSG_MORE`, until the next `transmit` is over.
    pub(super) more: bool,
    /// The application found no room, or saw that there is little: tell it when there is some.
    pub(super) starved: bool,
    /// And now there is room, which nobody has been told.
    pub(super) room: bool,
    pub(super) news: bool,
    /// Established, and no urgent data is known of: see [`predicted`](Connection::predicted).
    pub(super) fast: bool,
    /// An urgent pointer has come that nobody was told of.
    pub(super) urgent_news: bool,
    /// The halves of Linux's `sk_shutdown`: what the application can do no more.
    pub(super) read_shut: bool,
    pub(super) write_shut: bool,
    /// The peer's FIN has come, and all data before it (`SOCK_DONE`).
    pub(super) peer_done: bool,
    /// A FIN follows the data.
    pub(super) fin_queued: bool,
    /// No socket holds it any more.
    pub(super) orphan: bool,

    pub(super) snd_una: Seq,
    pub(super) snd_nxt: Seq,
    pub(super) snd_wnd: u32,
    pub(super) snd_wl1: Seq,
    /// MAX.SND.WND: the largest window the peer ever offered.
    pub(super) snd_wnd_max: u32,
    /// Windows are scaled; the shift of the peer's, and of ours.
    pub(super) scaled: bool,
    pub(super) snd_shift: u8,
    pub(super) rcv_shift: u8,
    /// Bytes of data per segment: options that every segment carries are taken off.
    pub(super) snd_mss: u32,
    /// What the peer takes, or the application lets it have (Linux's `mss_clamp`), and the path, without options.
    pub(super) peer_mss: u16,
    pub(super) path_mss: u16,
    /// What we announced.
    pub(super) adv_mss: u16,
    /// Where the last segment of less than the MSS ended (Minshall).
    pub(super) small_end: Seq,
    /// Last.ACK.sent of RFC 7323.
    pub(super) last_ack_sent: Seq,
    /// TS.Recent, and when it was learnt.
    pub(super) ts_recent: u32,
    pub(super) ts_recent_at: Instant,
    pub(super) ts_offset: u32,
    /// The TSecr that gave the last round trip to the receiver.
    pub(super) ts_measured: u32,

    pub(super) buffer: SendBuffer,
    pub(super) recovery: Recovery,
    pub(super) receiver: Receiver,
    pub(super) urgent: Option<Urgent>,
    pub(super) marks: Option<Box<Marks>>,

    /// A tail loss probe is due, of this range if there is nothing new.
    pub(super) tail_probe: Option<std::ops::Range<Seq>>,
    pub(super) opening: Option<Box<Opening>>,
    pub(super) reset: Option<Reset>,
    /// An empty segment that calls for an answer is due.
    pub(super) probe_due: bool,
    /// What Nagle's algorithm held back goes out.
    pub(super) push_due: bool,
    /// What was held back for whatever reason goes out, as far as the window allows.
    pub(super) forced: bool,
    /// Probes without an answer, and how often their interval was doubled.
    pub(super) probes_out: u8,
    pub(super) probe_backoff: u8,
    /// The SYN again, or the next zero-window probe.
    pub(super) probe_at: Instant,
    /// Keep-alive, or the end of FIN_WAIT_2 or TIME_WAIT.
    pub(super) slow_at: Instant,
    /// Since when nothing is acknowledged in spite of retransmissions.
    pub(super) stuck_since: Instant,
    /// Since when the window is closed and probed.
    pub(super) closed_since: Instant,
    /// When an answer to an unacceptable segment left last.
    pub(super) challenged_at: Instant,
    pub(super) last_ack_at: Instant,
    pub(super) last_data_in: Instant,
    pub(super) last_data_out: Instant,

    pub(super) error: Option<i32>,
    pub(super) soft_error: Option<i32>,
    pub(super) options: Own,
    pub(super) counts: Counts,
}

impl Connection {
    /// Opens actively: `transmit` gives the SYN.
    pub fn connect(
        shared: &Arc<Shared>,
        options: &TcpOptions,
        start: Start,
        now: Instant,
    ) -> Connection {
        let mut new = Connection::new(shared, options, start, Agreed::default(), Seq(0), now);
        new.rcv_shift = new.shift_offered().unwrap_or(0);
        new.opening = Some(Box::new(Opening::new(now)));
        new
    }

    /// Opens passively: the SYN-ACK of `request` has been answered. To be followed by [`Connection::segment`]
    /// with that answer, which makes it established. `mss` as in [`Start`].
    pub fn accepted(
        shared: &Arc<Shared>,
        options: &TcpOptions,
        request: &Request,
        mss: u16,
        now: Instant,
    ) -> Connection {
        let start = Start { iss: request.iss, ts_offset: request.ts_offset, mss };
        let mut new = Connection::new(shared, options, start, request.agreed, request.irs, now);
        new.state = State::SynReceived;
        new.snd_nxt = request.iss + 1;
        new.ts_recent = request.ts_recent;
        new.opening = Some(Box::new(request.opening));
        new
    }

    fn new(
        shared: &Arc<Shared>,
        options: &TcpOptions,
        start: Start,
        agreed: Agreed,
        irs: Seq,
        now: Instant,
    ) -> Connection {
        let config = &shared.config;
        let Start { iss, ts_offset, mss } = start;
        let adv_mss = clamp_mss(mss, options);
        let (snd_shift, rcv_shift) = agreed.window_scale.unwrap_or((0, 0));
        let send_sizes = sizes(config.tcp_wmem, options.send_buffer);
        let receive_sizes = sizes(config.tcp_rmem, options.receive_buffer);
        let memory = shared.memory.clone();
        let settings = recovery::Settings::new(config, options);
        let receive_mss = u32::from(adv_mss);
        let mut new = Connection {
            state: State::SynSent,
            timestamps: agreed.timestamps,
            sack: agreed.sack,
            ecn: agreed.ecn,
            echo_ce: false,
            say_cwr: false,
            ack_now: false,
            duplicate_acks: 0,
            more: false,
            starved: false,
            room: false,
            news: false,
            fast: false,
            urgent_news: false,
            read_shut: false,
            write_shut: false,
            peer_done: false,
            fin_queued: false,
            orphan: false,
            snd_una: iss,
            snd_nxt: iss,
            snd_wnd: 0,
            snd_wl1: irs,
            snd_wnd_max: 0,
            scaled: agreed.window_scale.is_some(),
            snd_shift,
            rcv_shift,
            snd_mss: 0,
            peer_mss: clamp_mss(agreed.mss, options),
            path_mss: mss,
            adv_mss,
            small_end: iss,
            last_ack_sent: irs + 1,
            ts_recent: 0,
            ts_recent_at: now,
            ts_offset,
            ts_measured: 0,
            buffer: SendBuffer::new(iss + 1, send_sizes, memory.clone()),
            recovery: Recovery::new(settings, recovery::Agreed::default(), 536, iss + 1, now),
            receiver: Receiver::new(irs, receive_sizes, rcv_shift, receive_mss, memory, now),
            urgent: None,
            marks: None,
            tail_probe: None,
            opening: None,
            reset: None,
            probe_due: false,
            push_due: false,
            forced: false,
            probes_out: 0,
            probe_backoff: 0,
            probe_at: NEVER,
            slow_at: NEVER,
            stuck_since: NEVER,
            closed_since: NEVER,
            challenged_at: NEVER,
            last_ack_at: now,
            last_data_in: now,
            last_data_out: now,
            error: None,
            soft_error: None,
            options: Own::new(options),
            counts: Counts::default(),
            shared: shared.clone(),
        };
        new.snd_mss = new.effective_mss();
        new.apply_receive_options();
        new
    }

    /// Nothing is under way: memory that an idle connection can do without goes back.
    pub(super) fn rest(&mut self) {
        self.recovery.rest();
    }

    /// Something has happened since this was asked last that a waiter may wait for: data or the end has come,
    /// there is room again, the connection is made or over.
    #[inline]
    pub fn take_news(&mut self) -> bool {
        // Sending makes room where little may wait to be sent, and an option may.
        self.look_for_room();
        std::mem::take(&mut self.news)
    }

    /// Whether there is news that nobody has been told.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.news
    }

    /// Whether part of the last news was that there is room again for who had seen that there was none.
    #[inline]
    pub(super) fn take_room(&mut self) -> bool {
        std::mem::take(&mut self.room)
    }

    /// The pending errno, which is none afterwards (`SO_ERROR`).
    pub fn take_error(&mut self) -> Option<i32> {
        self.error.take()
    }

    /// An error that was taken is pending again, unless there is another.
    pub fn put_back_error(&mut self, errno: i32) {
        self.error.get_or_insert(errno);
        self.news = true;
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// The next sequence number expected.
    #[inline]
    pub(super) fn rcv_nxt(&self) -> Seq {
        self.receiver.next()
    }

    /// What `TCP_QUICKACK` reads.
    pub fn quick_ack(&self) -> bool {
        self.receiver.quick_ack()
    }

    /// Bytes there to read (`SIOCINQ`).
    #[inline]
    pub fn unread(&self) -> usize {
        if self.urgent.is_some() { self.unread_before_urgent() } else { self.receiver.available() }
    }

    /// The same with the peer's end, which counts as one, also when it was read (`tcp_inq_hint`).
    pub fn unread_with_end(&self) -> usize {
        self.receiver.available() + usize::from(self.peer_done)
    }

    /// What both buffers hold at present: `SO_SNDBUF`, `SO_RCVBUF`.
    pub fn buffers(&self) -> (u32, u32) {
        (self.buffer.limit(), self.receiver.limit())
    }

    /// Bytes taken by `send` and not acknowledged yet (`SIOCOUTQ`).
    pub fn unacknowledged(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes taken by `send` and not sent yet (`SIOCOUTQNSD`).
    pub fn unsent(&self) -> usize {
        (self.buffer.end() - self.snd_nxt) as usize
    }

    /// Closed by the application and not yet sure that the peer has all: what `SO_LINGER` waits for.
    pub fn lingers(&self) -> bool {
        self.orphan && matches!(self.state, State::FinWait1 | State::Closing | State::LastAck)
    }

    /// Over, and nothing left to send: it can be forgotten once the application lets go.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state == State::Closed && self.reset.is_none()
    }

    /// Once in TIME_WAIT, with all sent: what a TIME_WAIT entry needs to stand in for the connection, which
    /// is [`State::Closed`] afterwards.
    pub fn take_time_wait(&mut self) -> Option<TimeWait> {
        if self.state != State::TimeWait || self.ack_now {
            return None;
        }
        let until = self.slow_at;
        let rcv_window = self.receiver.window();
        let time_wait = TimeWait {
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.receiver.next(),
            rcv_window,
            window: self.on_the_wire(rcv_window),
            timestamps: self.timestamps.then_some((self.ts_recent, self.ts_offset)),
            until,
        };
        self.end();
        Some(time_wait)
    }

    /// Makes room for a new connection of ours between the same ends, if nobody has this one any more and all it had
    /// to say has arrived: where the new one's sequence numbers must begin. Linux keeps it among its TIME_WAIT entries.
    pub fn give_way(&mut self) -> Option<Seq> {
        let over = self.orphan && self.state == State::FinWait2 && self.timestamps;
        over.then(|| {
            self.end();
            isn::after(self.snd_nxt)
        })
    }

    /// An ICMP error has come about the segment that began at `quoted` (RFC 5927 section 4.1, RFC 5461).
    pub fn unreachable(&mut self, error: SocketError, quoted: Seq) {
        if !self.is_in_flight(quoted) {
            return;
        }
        match self.state {
            // As Linux, and against RFC 1122 section 4.2.3.9, a connection being made is given up at once.
            State::SynSent | State::SynReceived => self.fail(error.errno),
            // RFC 5461: told only when the connection fails anyway.
            _ => self.soft_error = Some(error.errno),
        }
    }

    /// In FIN_WAIT_2, and no socket is there to see the peer's FIN: not for ever.
    pub(super) fn wait_for_fin(&mut self, now: Instant) {
        let wait = self.options.linger2.unwrap_or(self.shared.config.tcp_fin_timeout);
        if wait.is_zero() {
            return self.end_with_reset();
        }
        self.slow_at = now + wait;
    }

    /// An error ends it; what has come can still be read.
    #[cold]
    pub(super) fn fail(&mut self, error: i32) {
        if self.state != State::Closed {
            self.error = Some(error);
            self.end();
        }
    }

    /// `tcp_done`: no connection any more.
    pub(super) fn end(&mut self) {
        match self.state {
            State::SynSent | State::SynReceived => self.count(Count::TcpAttemptFails),
            state if state.is_current() => self.count(Count::TcpEstabResets),
            _ => {}
        }
        self.enter(State::Closed);
        (self.read_shut, self.write_shut, self.news) = (true, true, true);
        (self.ack_now, self.probe_due) = (false, false);
        (self.probe_at, self.slow_at, self.tail_probe, self.opening) = (NEVER, NEVER, None, None);
        self.buffer.clear();
        if self.orphan {
            self.receiver.clear();
        }
    }

    /// The next state.
    pub(super) fn enter(&mut self, state: State) {
        match (self.state.is_current(), state.is_current()) {
            (false, true) => self.count(Count::TcpCurrEstab),
            (true, false) => self.shared.counters.one_less(Count::TcpCurrEstab),
            _ => {}
        }
        self.state = state;
        self.settle_fast();
    }

    /// As [`end`](Connection::end), and the peer is told, if it knows of the connection.
    pub(super) fn end_with_reset(&mut self) {
        let all_acked = self.fin_queued && self.snd_una == self.buffer.end() + 1;
        let silent = match self.state {
            State::SynSent | State::Closed | State::TimeWait => true,
            // tcp_need_reset: here the peer is done unless it lacks data.
            State::Closing | State::LastAck => all_acked,
            _ => false,
        };
        if !silent {
            let ack = Some(self.receiver.next());
            self.reset = Some(Reset { seq: self.sendable_seq(), ack });
        }
        self.end();
    }

    #[cold]
    pub(super) fn count(&self, count: Count) {
        self.shared.counters.add(count);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The host goes, and no connection of it ends any more.
        self.enter(State::Closed);
        if self.orphan {
            self.shared.orphans.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The sizes of a buffer, which the socket may have fixed.
pub(super) fn sizes(host: BufferSizes, fixed: u32) -> BufferSizes {
    match fixed {
        0 => host,
        fixed => BufferSizes { initial: fixed, max: fixed },
    }
}

/// An MSS, no larger than the application allows: that option of our SYN, and of the peer's.
pub(super) fn clamp_mss(mss: u16, options: &TcpOptions) -> u16 {
    match options.max_segment {
        0 => mss,
        most => mss.min(most),
    }
}

#[inline]
pub(super) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}
