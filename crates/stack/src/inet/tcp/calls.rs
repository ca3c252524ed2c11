//! The application's calls on a connection: send, receive, shut down, close, options; and what poll(2) reports.

use super::{
    Ready, TcpOptions,
    connection::{Connection, State, errno},
    options::CompactOptions,
    output::DEFAULT_MSS,
    recovery::Settings,
};
use crate::{inet::Count, sync::Ordering, time::Instant};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    time::Duration,
};

/// The largest segment that Linux gives to a device (`GSO_LEGACY_MAX_SIZE`).
const LARGE_SEGMENT: u32 = 65_536;

impl Connection {
    /// Queues bytes to send; `more` (`MSG_MORE`) says that others follow. Returns how many had room.
    ///
    /// # Errors
    /// EAGAIN: no room, or not connected yet. EPIPE: shut down for writing. Else the pending error, once.
    #[inline(always)]
    pub fn send(&mut self, data: &[IoSlice<'_>], more: bool, now: Instant) -> io::Result<usize> {
        if !matches!(self.state, State::Established | State::CloseWait) || self.error.is_some() {
            return Err(self.cannot_send());
        }
        if self.write_shut {
            return Err(errno(libc::EPIPE));
        }
        if self.snd_una == self.snd_nxt {
            self.recovery.idle_restart(now);
        }
        let taken = self.buffer.push(data, self.may_queue());
        self.more = more;
        if taken < data.iter().map(|piece| piece.len()).sum() {
            self.nospace = true;
            if taken == 0 {
                return Err(errno(libc::EAGAIN));
            }
        }
        Ok(taken)
    }

    /// Whether [`send`](Connection::send) would take a full segment.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
            && self.buffer.takes(self.snd_mss as usize)
            && self.may_queue() >= self.snd_mss as usize
    }

    /// The pending error, once; but as often as asked if it is none of the system's: then the connection is another
    /// owner's, and all calls go there.
    #[cold]
    fn pending_error(&mut self) -> Option<i32> {
        const FIRST_INTERNAL: i32 = 512;
        match self.error {
            Some(error) if error >= FIRST_INTERNAL => Some(error),
            _ => self.error.take(),
        }
    }

    #[cold]
    fn cannot_send(&mut self) -> io::Error {
        if self.is_local_stream && self.error.is_none_or(|error| error == libc::ECONNRESET) {
            // A reset is left to the reader (`unix_stream_sendmsg`).
            return errno(libc::EPIPE);
        }
        // sk_stream_error: a pending error takes precedence over EPIPE.
        let waiting = matches!(self.state, State::SynSent | State::SynReceived) && !self.write_shut;
        errno(self.pending_error().unwrap_or(if waiting { libc::EAGAIN } else { libc::EPIPE }))
    }

    /// Reads received data, and leaves it in the buffer if `peek`. 0: the end of the stream.
    ///
    /// # Errors
    /// EAGAIN: nothing there. Else the pending error, once.
    pub fn recv(
        &mut self,
        into: &mut [IoSliceMut<'_>],
        peek: bool,
        now: Instant,
    ) -> io::Result<usize> {
        // Data that came before a reset can still be read, as in Linux.
        let read = if self.urgent.is_some() {
            self.read_beside_urgent(into, peek, now)
        } else if peek {
            self.receiver.peek(into)
        } else {
            self.receiver.read(into, now)
        };
        if read > 0 {
            // The rest may be less than `SO_RCVLOWAT`: readiness has changed.
            let low = self.options.receive_low_water;
            self.notify |= low > 1 && !self.receiver.is_readable(low);
            if !peek && self.receiver.window_update_due() {
                self.ack_now = true;
            }
            return Ok(read);
        }
        let resets = self.is_local_stream && self.error.is_some();
        if self.receiver.available() > 0 || self.peer_done && !resets {
            return Ok(0);
        }
        match self.pending_error() {
            Some(error) => Err(errno(error)),
            None if self.read_shut || self.state == State::Closed => Ok(0),
            None => Err(errno(libc::EAGAIN)),
        }
    }

    /// A reader has just taken the data. Returns whether our ACK waits until the reader answers or [waits
    /// again](Connection::reader_waits).
    #[inline]
    pub(super) fn leave_ack_to_reader(&mut self) -> bool {
        self.receiver.leave_ack_to_reader()
    }

    /// The reader has no answer yet, and waits for more: the next `transmit` sends the ACK that is due.
    pub(super) fn reader_waits(&mut self) {
        self.receiver.reader_waits();
    }

    /// shutdown(2): with `Write` or `Both`, FIN is sent after the queued data.
    ///
    /// # Errors
    /// ENOTCONN: there is no connection.
    pub fn shutdown(&mut self, how: Shutdown, now: Instant) -> io::Result<()> {
        match self.state {
            State::Closed => return Err(errno(libc::ENOTCONN)),
            // inet_shutdown disconnects the socket, which leaves nothing shut.
            State::SynSent => {
                self.fail(libc::ECONNRESET);
                (self.read_shut, self.write_shut) = (false, false);
                return Ok(());
            }
            _ => {}
        }
        self.read_shut |= how != Shutdown::Write;
        if how != Shutdown::Read {
            self.write_shut = true;
            self.queue_fin(now);
        }
        self.notify = true;
        Ok(())
    }

    /// close(2): queued data is still sent, then FIN. If data was left unread or `SO_LINGER` is 0, a RST is sent at
    /// once instead. The caller drives the connection until [`Connection::is_done`].
    pub fn close(&mut self, now: Instant) {
        if self.orphan {
            return;
        }
        self.orphan = true;
        (self.read_shut, self.write_shut) = (true, true);
        let orphans = self.shared.orphans.fetch_add(1, Ordering::Relaxed);
        let unread = self.receiver.available() > 0;
        match self.state {
            State::Closed | State::SynSent => return self.end(),
            State::TimeWait => {}
            //= RFC 9293 3.6.1
            //# If such a host issues a CLOSE call while received data is still pending in the TCP connection, or if
            //# new data is received after CLOSE is called, its TCP implementation SHOULD send a RST to show that data
            //# was lost (SHLD-3).
            _ if unread => {
                self.count(Count::TCPAbortOnClose);
                return self.end_with_reset();
            }
            _ if self.options.linger == Some(Duration::ZERO) => {
                self.count(Count::TCPAbortOnData);
                return self.end_with_reset();
            }
            _ if orphans >= self.shared.config.tcp_max_orphans => {
                self.count(Count::TCPAbortOnMemory);
                return self.end_with_reset();
            }
            State::FinWait2 => self.wait_for_fin(now),
            _ => self.queue_fin(now),
        }
        self.receiver.clear();
    }

    /// The process exits, and the kernel would [`close`](Connection::close) the connection: does as much of that as
    /// other threads that still wait on it do not see.
    pub fn close_at_exit(&mut self, now: Instant) {
        if self.receiver.available() > 0 || self.options.linger == Some(Duration::ZERO) {
            self.count(Count::TCPAbortOnClose);
            return self.end_with_reset();
        }
        // A connection that is not established has nothing to send.
        let _ = self.shutdown(Shutdown::Write, now);
    }

    //= RFC 9293 3.10.5
    //# Send a reset segment: <SEQ=SND.NXT><CTL=RST>
    /// Resets the connection. What was not sent is lost; ECONNABORTED is pending.
    pub fn abort(&mut self, _now: Instant) {
        if self.state != State::Closed {
            self.end_with_reset();
            self.error = Some(libc::ECONNABORTED);
        }
    }

    /// The options.
    pub fn options(&self) -> TcpOptions {
        self.options.get()
    }

    /// Changes options; the next `transmit` sends the data that this releases.
    pub fn configure(&mut self, now: Instant, change: impl FnOnce(&mut TcpOptions)) {
        let old = self.options();
        let mut new = old;
        change(&mut new);
        if new == old {
            return;
        }
        self.options = CompactOptions::new(&new);
        self.notify |= new.receive_low_water != old.receive_low_water;
        self.notify |= new.oob_inline != old.oob_inline;
        if new.nodelay && (!old.nodelay || old.cork && !new.cork) {
            self.push();
        }
        if new.keepalive && !old.keepalive {
            self.arm_keepalive(now, now);
        } else if new.keepalive && new.keep_idle != old.keep_idle {
            // The idle time so far counts (`tcp_sock_set_keepidle_locked`).
            self.arm_keepalive(self.last_heard(), now);
        }
        if new.send_buffer != old.send_buffer && new.send_buffer > 0 {
            self.buffer.set_limit(new.send_buffer);
        }
        if new.receive_buffer != old.receive_buffer && new.receive_buffer > 0 {
            self.receiver.set_limit(new.receive_buffer);
        }
        if let Some(algorithm) = new.congestion
            && new.congestion != old.congestion
        {
            self.recovery.set_algorithm(algorithm);
        }
        if new.rto_min != old.rto_min {
            self.recovery.set_min_rto(Settings::new(&self.shared.config, &new).min_rto);
        }
        if new.quick_ack.is_some() || new.window_clamp != old.window_clamp {
            self.apply_receive_options();
        }
    }

    /// Data held back so far is sent now, corked or not; later data may be held back again (Linux's
    /// `TCP_NAGLE_PUSH`).
    pub fn push(&mut self) {
        self.push_due |= self.has_unsent();
    }

    pub(super) fn apply_receive_options(&mut self) {
        self.receiver.set_window_clamp(self.options.window_clamp);
        self.receiver.set_report_duplicates(self.shared.config.tcp_dsack);
        if !self.shared.config.tcp_moderate_rcvbuf {
            self.receiver.keep_limit();
        }
        // Applied once for each call: applications set it again after every read.
        if let Some(quick) = self.options.quick_ack {
            self.receiver.set_quick_ack(quick);
            self.options = CompactOptions::new(&TcpOptions { quick_ack: None, ..self.options() });
        }
    }

    /// What poll(2) reports (`tcp_poll` in net/ipv4/tcp.c).
    pub fn ready(&mut self) -> Ready {
        let mut ready = Ready::default();
        if self.read_shut && self.write_shut || self.state == State::Closed {
            ready = ready | Ready::HANGUP;
        }
        if self.read_shut {
            ready = ready | Ready::READABLE | Ready::READ_CLOSED;
        }
        if !matches!(self.state, State::SynSent | State::SynReceived) {
            let mut apart = 0;
            if self.urgent.is_some() {
                apart = self.out_of_band_len();
                if self.has_urgent() {
                    ready = ready | Ready::URGENT;
                }
            }
            let low = self.options.receive_low_water;
            let low = if apart > 0 { low.max(1) + 1 } else { low };
            if self.receiver.is_readable(low) {
                ready = ready | Ready::READABLE;
            } else if self.receiver.available() > apart {
                ready = ready | Ready::BELOW_LOWAT;
            }
            // An AF_UNIX stream that its own program has shut down is as full as it was (`unix_poll`).
            let open = self.is_local_stream && self.state == State::Established;
            if self.write_shut && !open || self.is_writable() {
                ready = ready | Ready::WRITABLE;
            } else {
                // A thread that polled this may wait for room, although none of its sends was cut short
                // (SOCK_NOSPACE).
                self.nospace = true;
            }
        }
        if self.error.is_some() {
            ready = ready | Ready::ERROR;
        }
        ready
    }

    /// `sk_stream_is_writeable`: a third of the buffer is free, and less than half of `TCP_NOTSENT_LOWAT` waits to be
    /// sent.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        let low = self.notsent_low_water();
        if self.is_local_stream {
            return self.buffer.is_writable() && self.room_at_peer() > self.snd_mss as usize / 2;
        }
        self.buffer.is_writable() && (low == u32::MAX || self.unsent() < low.div_ceil(2) as usize)
    }

    /// How many more bytes may wait to be sent. `TCP_NOTSENT_LOWAT` keeps Linux from beginning a large segment, but
    /// not from filling one: the limit is exceeded by up to one large segment.
    #[inline(always)]
    pub(super) fn may_queue(&self) -> usize {
        let low = self.notsent_low_water();
        if low == u32::MAX {
            return usize::MAX;
        }
        if self.is_local_stream {
            return self.room_at_peer();
        }
        // `tcp_xmit_size_goal`: no larger than half of the largest window the peer ever offered.
        let large = match self.snd_wnd_max {
            0 => LARGE_SEGMENT,
            small if small <= DEFAULT_MSS.into() => small,
            window => LARGE_SEGMENT.min(window / 2),
        };
        let segment = (large / self.snd_mss).max(1) * self.snd_mss;
        (low as usize).next_multiple_of(segment as usize).saturating_sub(self.unsent())
    }

    /// How many more bytes the peer has room for, and a segment that waits for room: its acknowledgment wakes the sender.
    fn room_at_peer(&self) -> usize {
        let (most, end) = (self.snd_una + self.snd_wnd + self.snd_mss, self.buffer.end());
        if end.before(most) { (most - end) as usize } else { 0 }
    }

    #[inline]
    fn notsent_low_water(&self) -> u32 {
        match self.options.notsent_low_water {
            0 => self.shared.config.tcp_notsent_lowat,
            low => low,
        }
    }

    //= RFC 9293 3.10.4
    //# Queue this until all preceding SENDs have been segmentized, then form a FIN segment and send it.
    /// Queues a FIN after the data.
    fn queue_fin(&mut self, _now: Instant) {
        match self.state {
            State::Established => self.enter(State::FinWait1),
            State::CloseWait => self.enter(State::LastAck),
            //= RFC 9293 3.10.4
            //# If no SENDs have been issued and there is no pending data to send, then form a FIN segment and send
            //# it, and enter FIN-WAIT-1 state; otherwise, queue for processing after entering ESTABLISHED state.
            State::SynReceived => {}
            _ => return,
        }
        self.fin_queued = true;
    }
}
