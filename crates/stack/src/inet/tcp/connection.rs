//! One connection (RFC 9293's TCB): the calls of the application, and what the connection reports about itself.
//!
//! Segments come in by [`Connection::segment`] (`input`), time by [`Connection::timer`] (`timers`). Segments to send
//! go out by [`Connection::transmit`] (`output`). No lock, no clock, no I/O. After each other call the caller calls
//! `transmit`, then [`Connection::take_notify`] and [`Connection::deadline`].

use super::{
    BufferSizes, TcpOptions,
    handshake::{Agreed, Request, SynState},
    isn,
    marks::Marks,
    options::CompactOptions,
    receive::Receiver,
    recovery::{self, Recovery},
    segment::Segment,
    send_buffer::SendBuffer,
    seq::Seq,
    shared::Shared,
    steady::Steady,
    store::Pieces,
    urgent::Urgent,
};
use crate::{
    inet::{Count, SocketError},
    sync::Ordering,
    time::Instant,
};
use std::{io, sync::Arc};

/// The states of RFC 9293. A listener is not a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// We sent a SYN.
    SynSent,
    /// Both SYNs are sent, ours is not acknowledged.
    SynReceived,
    /// Data flows.
    Established,
    /// We sent FIN, or will after the data before it.
    FinWait1,
    /// Our FIN is acknowledged.
    FinWait2,
    /// The peer sent FIN.
    CloseWait,
    /// Both sent FIN, ours is not acknowledged.
    Closing,
    /// The peer sent FIN, then we did.
    LastAck,
    /// Both sides are closed; late segments expire.
    TimeWait,
    /// There is no connection (any more).
    Closed,
}

impl State {
    /// Whether RFC 4022's `tcpCurrEstab` counts this state.
    fn is_current(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }

    /// Linux's number of the state (include/net/tcp_states.h), as in `struct tcp_info`.
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
    /// The header, without data. The window is as on the wire, already scaled.
    pub segment: Segment<'static>,
    /// Its data.
    pub payload: Pieces<'a>,
    /// The IP header carries ECT(0) (RFC 3168).
    pub ecn_capable: bool,
    /// Nothing else is to be sent: the doorbell rings at once, before recovery has recorded the segment.
    pub last: bool,
}

/// The start parameters of a connection, besides its options.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The initial sequence number (RFC 6528).
    pub iss: Seq,
    /// The offset of our timestamps.
    pub ts_offset: u32,
    /// The largest segment of the path, without options: MTU minus IP header minus 20.
    pub mss: u16,
}

/// What a TIME_WAIT entry keeps of a closed connection.
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
    /// With timestamps: TS.Recent, and the offset of ours.
    pub timestamps: Option<(u32, u32)>,
    /// When it ends.
    pub until: Instant,
}

/// A RST to send: its sequence number, and its acknowledgment if it has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reset {
    pub(super) seq: Seq,
    pub(super) ack: Option<Seq>,
}

/// A time that never comes: the timer is not set, or the event has not happened. An `Option` would be twice as large
/// and slower to compare.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The counters of `TCP_INFO`.
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

/// One connection. Fields with names of RFC 9293 mean what they mean there.
#[derive(Debug)]
pub struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) state: State,
    /// Negotiated: timestamps, SACK, ECN.
    pub(super) timestamps: bool,
    pub(super) sack: bool,
    pub(super) ecn: bool,
    /// A CE mark has come, and its sender has not answered with CWR: our ACKs carry ECE.
    pub(super) echo_ce: bool,
    /// The next new data carries CWR.
    pub(super) cwr_due: bool,
    /// An ACK is sent at once, whatever the receiver says.
    pub(super) ack_now: bool,
    /// The number of duplicate ACKs due, one for each segment out of order: a peer without SACK counts them.
    pub(super) duplicate_acks: u8,
    /// `MSG_MORE`, until the end of the next `transmit`.
    pub(super) more: bool,
    /// The application found no room, or little: report write space once there is some (SOCK_NOSPACE).
    pub(super) nospace: bool,
    /// There is write space now, not reported yet.
    pub(super) write_space: bool,
    pub(super) notify: bool,
    /// Established, and no urgent data is known of: see [`predicted`](Connection::predicted).
    pub(super) fast: bool,
    pub(super) steady: Steady,
    /// An urgent pointer has come that was not reported yet (SIGURG).
    pub(super) sigurg_due: bool,
    /// Linux's `sk_shutdown`: the application can no longer read, or write.
    pub(super) read_shut: bool,
    pub(super) write_shut: bool,
    /// The peer's FIN has come, and all data before it (`SOCK_DONE`).
    pub(super) peer_done: bool,
    /// A FIN follows the data.
    pub(super) fin_queued: bool,
    /// No socket holds the connection any more.
    pub(super) orphan: bool,
    /// It ends by the rules of AF_UNIX: see [`local_stream`](super::local_stream).
    pub(super) is_local_stream: bool,

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
    /// Bytes of data per segment, after the options that every segment carries.
    pub(super) snd_mss: u32,
    /// The MSS of the peer, or the application's limit on it (Linux's `mss_clamp`), and of the path, without options.
    pub(super) peer_mss: u16,
    pub(super) path_mss: u16,
    /// What we announced.
    pub(super) adv_mss: u16,
    /// The end of the last segment smaller than the MSS (Minshall).
    pub(super) small_end: Seq,
    /// Last.ACK.sent of RFC 7323.
    pub(super) last_ack_sent: Seq,
    /// TS.Recent, and when it was set.
    pub(super) ts_recent: u32,
    pub(super) ts_recent_at: Instant,
    pub(super) ts_offset: u32,
    /// The TSecr of the receiver's last round-trip sample.
    pub(super) ts_measured: u32,

    pub(super) buffer: SendBuffer,
    pub(super) recovery: Recovery,
    pub(super) receiver: Receiver,
    pub(super) urgent: Option<Urgent>,
    pub(super) marks: Option<Box<Marks>>,

    /// A tail loss probe is due: new data, or else this range again.
    pub(super) tail_probe: Option<std::ops::Range<Seq>>,
    pub(super) syn_state: Option<Box<SynState>>,
    pub(super) reset: Option<Reset>,
    /// An empty segment that the peer has to answer is due.
    pub(super) probe_due: bool,
    /// Data that Nagle's algorithm held back is sent.
    pub(super) push_due: bool,
    /// Data held back for any reason is sent, as far as the window allows.
    pub(super) forced: bool,
    /// Unanswered probes, and how often their interval was doubled.
    pub(super) probes_out: u8,
    pub(super) probe_backoff: u8,
    /// The next SYN retransmission or zero-window probe.
    pub(super) probe_at: Instant,
    /// Keep-alive, or the end of FIN_WAIT_2 or TIME_WAIT.
    pub(super) slow_at: Instant,
    /// Since when retransmissions have brought no acknowledgment.
    pub(super) stuck_since: Instant,
    /// Since when the window is closed and probed.
    pub(super) closed_since: Instant,
    /// When the last answer to an unacceptable segment was sent.
    pub(super) challenged_at: Instant,
    pub(super) last_ack_at: Instant,
    pub(super) last_data_in: Instant,
    pub(super) last_data_out: Instant,

    pub(super) error: Option<i32>,
    pub(super) soft_error: Option<i32>,
    pub(super) options: CompactOptions,
    pub(super) counts: Counts,
}

impl Connection {
    /// Active open: `transmit` returns the SYN.
    pub fn connect(
        shared: &Arc<Shared>,
        options: &TcpOptions,
        start: Start,
        now: Instant,
    ) -> Connection {
        let mut new = Connection::new(shared, options, start, Agreed::default(), Seq(0), now);
        new.rcv_shift = new.shift_offered().unwrap_or(0);
        new.syn_state = Some(Box::new(SynState::new(now)));
        new
    }

    /// Passive open: the SYN-ACK of `request` has been answered. The caller then passes that answer to
    /// [`Connection::segment`], which makes the connection established. `mss` as in [`Start`].
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
        new.syn_state = Some(Box::new(request.syn_state));
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
            cwr_due: false,
            ack_now: false,
            duplicate_acks: 0,
            more: false,
            nospace: false,
            write_space: false,
            notify: false,
            fast: false,
            steady: Steady::No,
            sigurg_due: false,
            read_shut: false,
            write_shut: false,
            peer_done: false,
            fin_queued: false,
            orphan: false,
            is_local_stream: false,
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
            syn_state: None,
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
            options: CompactOptions::new(options),
            counts: Counts::default(),
            shared: shared.clone(),
        };
        new.snd_mss = new.effective_mss();
        new.apply_receive_options();
        new
    }

    /// The connection is idle: frees the memory it does not need meanwhile.
    pub(super) fn free_idle_memory(&mut self) {
        self.recovery.free_idle_memory();
    }

    /// Whether a waiter is to be notified of something that happened since the last call: data or the end of the
    /// stream has come, there is write space, the connection is made or closed.
    #[inline]
    pub fn take_notify(&mut self) -> bool {
        // With little allowed to wait unsent, sending makes write space; so may an option.
        self.check_write_space();
        std::mem::take(&mut self.notify)
    }

    /// Whether a notification is due.
    #[inline]
    pub(super) fn has_notify(&self) -> bool {
        self.notify
    }

    /// Whether the last notification includes write space for a waiter that had found none.
    #[inline]
    pub(super) fn take_write_space(&mut self) -> bool {
        std::mem::take(&mut self.write_space)
    }

    /// `SO_ERROR`: the pending errno, which is cleared.
    pub fn take_error(&mut self) -> Option<i32> {
        self.error.take()
    }

    /// Makes an error that was taken pending again, unless there is another.
    pub fn restore_error(&mut self, errno: i32) {
        self.error.get_or_insert(errno);
        self.notify = true;
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

    /// Segments retransmitted so far.
    #[inline]
    pub(super) fn retransmitted(&self) -> u32 {
        self.recovery.total_retrans()
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

    /// The same, and one more for the peer's FIN, even if it was read (`tcp_inq_hint`).
    pub fn unread_with_fin(&self) -> usize {
        self.receiver.available() + usize::from(self.peer_done)
    }

    /// The present sizes of both buffers: `SO_SNDBUF`, `SO_RCVBUF`.
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

    /// Closed by the application, with data or FIN not acknowledged yet: `SO_LINGER` waits for this.
    pub fn lingers(&self) -> bool {
        self.orphan && self.is_unacknowledged()
    }

    /// Whether it is shut down for sending, and data or the FIN is not acknowledged yet.
    pub fn is_unacknowledged(&self) -> bool {
        matches!(self.state, State::FinWait1 | State::Closing | State::LastAck)
    }

    /// Closed, and nothing left to send: it can be freed once the application has dropped it.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state == State::Closed && self.reset.is_none()
    }

    /// In TIME_WAIT, with everything sent: returns what a TIME_WAIT entry needs to replace the connection, which is
    /// [`State::Closed`] afterwards.
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

    /// Ends an orphan in FIN_WAIT_2, so that a new connection of ours can use its 4-tuple. Returns the first sequence
    /// number of the new one. Linux keeps such an orphan among its TIME_WAIT entries.
    pub fn reuse_fin_wait2(&mut self) -> Option<Seq> {
        let over = self.orphan && self.state == State::FinWait2 && self.timestamps;
        over.then(|| {
            self.end();
            isn::after(self.snd_nxt)
        })
    }

    //= RFC 9293 3.9.2.2
    //# TCP implementations MUST act on an ICMP error message passed up from the IP layer, directing it to the
    //# connection that created the error (MUST-54).
    /// An ICMP error has come about the segment that began at `quoted` (RFC 5927 section 4.1, RFC 5461).
    pub fn unreachable(&mut self, error: SocketError, quoted: Seq) {
        if !self.is_in_flight(quoted) {
            return;
        }
        match self.state {
            // As Linux, and against RFC 1122 section 4.2.3.9, this ends a connection that is being made.
            State::SynSent | State::SynReceived => self.fail(error.errno),
            //= RFC 9293 3.9.2.2
            //# Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST NOT abort
            //# the connection (MUST-56), and it SHOULD make the information available to the application (SHLD-25).
            // RFC 5461: reported only when the connection fails later.
            _ => self.soft_error = Some(error.errno),
        }
    }

    /// In FIN_WAIT_2 without a socket: limits the wait for the peer's FIN.
    pub(super) fn wait_for_fin(&mut self, now: Instant) {
        let wait = self.options.linger2.unwrap_or(self.shared.config.tcp_fin_timeout);
        if wait.is_zero() {
            return self.end_with_reset();
        }
        self.slow_at = now + wait;
    }

    /// Ends the connection with an error; data received before can still be read.
    #[cold]
    pub(super) fn fail(&mut self, error: i32) {
        if self.state != State::Closed {
            self.error = Some(error);
            self.end();
        }
    }

    /// `tcp_done`: closes the connection.
    pub(super) fn end(&mut self) {
        match self.state {
            State::SynSent | State::SynReceived => self.count(Count::TcpAttemptFails),
            state if state.is_current() => self.count(Count::TcpEstabResets),
            _ => {}
        }
        self.enter(State::Closed);
        (self.read_shut, self.write_shut, self.notify) = (true, true, true);
        (self.ack_now, self.probe_due) = (false, false);
        (self.probe_at, self.slow_at, self.tail_probe, self.syn_state) = (NEVER, NEVER, None, None);
        self.buffer.clear();
        if self.orphan {
            self.receiver.clear();
        }
    }

    /// Changes the state.
    pub(super) fn enter(&mut self, state: State) {
        match (self.state.is_current(), state.is_current()) {
            (false, true) => self.count(Count::TcpCurrEstab),
            (true, false) => self.shared.counters.decrement(Count::TcpCurrEstab),
            _ => {}
        }
        self.state = state;
        self.update_fast_path();
    }

    /// As [`end`](Connection::end), with a RST to the peer, if the peer knows of the connection.
    pub(super) fn end_with_reset(&mut self) {
        let all_acked = self.fin_queued && self.snd_una == self.buffer.end() + 1;
        let silent = match self.state {
            State::SynSent | State::Closed | State::TimeWait => true,
            // tcp_need_reset: the peer has sent its FIN here, so it needs a RST only if it lacks data.
            State::Closing | State::LastAck => all_acked,
            _ => false,
        };
        if !silent {
            let ack = Some(self.receiver.next());
            self.reset = Some(Reset { seq: self.sendable_seq(), ack });
        }
        self.end();
    }

    /// The number after our SYN, before anything else is sent.
    pub(super) fn syn_end(&self) -> Seq {
        self.snd_una + 1
    }

    #[cold]
    pub(super) fn count(&self, count: Count) {
        self.shared.counters.add(count);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // With the host dropped, no other call closes the connection and corrects the counters.
        self.enter(State::Closed);
        if self.orphan {
            self.shared.orphans.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The sizes of a buffer; the socket may have fixed them.
pub(super) fn sizes(host: BufferSizes, fixed: u32) -> BufferSizes {
    match fixed {
        0 => host,
        fixed => BufferSizes { initial: fixed, max: fixed },
    }
}

/// An MSS within the application's limit (`TCP_MAXSEG`): that option of our SYN, and of the peer's.
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
