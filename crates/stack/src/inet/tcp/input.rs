//! Receives a segment: RFC 9293 section 3.10.7, in its order. Most segments are the expected ones and take the fast
//! path (Van Jacobson's header prediction).

use super::{
    connection::{Connection, NEVER, Reset, State},
    receive::DirectReader,
    recovery::AckEvent,
    segment::{Flags, Segment},
    seq::Seq,
};
use crate::{inet::Count, time::Instant};
use std::{hint::cold_path, time::Duration};

/// How long TS.Recent is valid: after that the peer's clock may have gone half round.
const TS_RECENT_LIFE: Duration = Duration::from_secs(24 * 24 * 3_600);

/// 2 MSL: Linux's `TCP_TIMEWAIT_LEN`, where RFC 9293 has 4 minutes.
pub(super) const TIME_WAIT: Duration = Duration::from_secs(60);

/// The control bits checked before the fast path.
const SPECIAL: u8 = Flags::FIN.0
    | Flags::SYN.0
    | Flags::RST.0
    | Flags::ACK.0
    | Flags::URG.0
    | Flags::ECE.0
    | Flags::CWR.0;

impl Connection {
    /// Processes a segment.
    #[inline]
    pub fn segment(&mut self, segment: &Segment<'_>, now: Instant) {
        self.segment_for(segment, now, &mut |_, _| false);
    }

    /// As [`segment`](Connection::segment), for a reader that may be waiting. The data is offered to the reader if
    /// there is no other [notification](Connection::take_notify). Returns whether the reader took it.
    #[inline(always)]
    pub(super) fn segment_for(
        &mut self,
        segment: &Segment<'_>,
        now: Instant,
        reader: &mut DirectReader<'_>,
    ) -> bool {
        self.counts.segs_in = self.counts.segs_in.wrapping_add(1);
        if !self.predicted(segment) {
            self.slow_path(segment, now);
            return false;
        }
        self.update_ts_recent(segment, now);
        self.acknowledged(segment, now);
        if segment.data_len() == 0 {
            return false;
        }
        // With SO_RCVLOWAT above 1 the data is buffered, so that the reader gets all of it at once.
        let may = !self.notify && self.options.receive_low_water <= 1;
        let taken = self.data(segment, now, &mut |data, rest| may && reader(data, rest));
        if taken && self.receiver.window_update_due() {
            // The sender of a stream may be waiting for this window update alone.
            match segment.data_len() >= self.full_segment() {
                true => self.ack_now = true,
                false => self.receiver.announce_quickly(now),
            }
        }
        taken
    }

    /// Whether it is the next data or an acknowledgment of what we sent, with nothing unusual about it.
    #[inline]
    fn predicted(&self, segment: &Segment<'_>) -> bool {
        let timestamps = match segment.options.timestamps {
            Some((value, _)) if self.timestamps => self.ts_recent.wrapping_sub(value) as i32 <= 0,
            _ => true,
        };
        segment.flags.0 & SPECIAL == Flags::ACK.0
            && self.fast
            && segment.seq == self.receiver.next()
            && self.snd_una.at_most(segment.ack)
            && segment.ack.at_most(self.snd_nxt)
            && timestamps
            && !segment.congested
    }

    #[cold]
    #[inline(never)]
    fn slow_path(&mut self, segment: &Segment<'_>, now: Instant) {
        match self.state {
            State::Closed => {}
            State::SynSent => self.answer_to_syn(segment, now),
            _ => self.synchronized(segment, now),
        }
    }

    /// A segment in a synchronized state.
    fn synchronized(&mut self, segment: &Segment<'_>, now: Instant) {
        // Simultaneous open: the peer's SYN again, now with the ACK of ours. The SYN itself was processed before.
        let stripped;
        let crossed = self.state == State::SynReceived
            && segment.flags.has(Flags::SYN | Flags::ACK)
            && !segment.flags.has(Flags::RST)
            && segment.seq + 1 == self.receiver.next();
        let segment = if crossed {
            let flags = Flags(segment.flags.0 & !Flags::SYN.0);
            //= RFC 7323 2.2
            //# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT be
            //# scaled.
            // Without SYN it will be scaled, so it is shifted back here.
            let window = segment.window >> self.snd_shift;
            stripped = Segment { seq: segment.seq + 1, flags, window, ..segment.clone() };
            &stripped
        } else {
            segment
        };
        //= RFC 9293 3.10.7.4
        //# if the ACK bit is off, drop the segment and return
        if !self.valid(segment, now) || !segment.flags.has(Flags::ACK) {
            return;
        }
        if self.state == State::SynReceived {
            //= RFC 9293 3.10.7.4
            //# If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state
            //= RFC 9293 3.10.7.4
            //# If the segment acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST>
            if !self.snd_una.before(segment.ack) || segment.ack.after(self.snd_nxt) {
                self.refuse(segment);
                return;
            }
            self.established(segment, now);
        }
        if segment.ack.after(self.snd_nxt) {
            //= RFC 9293 3.10.7.4
            //# If the ACK acks something not yet sent (SEG.ACK > SND.NXT), then send an ACK, drop the segment, and
            //# return.
            return self.challenge(now);
        }
        //= RFC 5961 5.2
        //# The ACK value is considered acceptable only if it is in the range of ((SND.UNA - MAX.SND.WND) <= SEG.ACK
        //# <= SND.NXT). All incoming segments whose ACK value doesn't satisfy the above condition MUST be discarded
        //# and an ACK sent back.
        // An ACK of what was never sent, below our SYN, is not acceptable either.
        let age = self.snd_una - segment.ack;
        if age > self.snd_wnd_max || u64::from(age) > self.counts.bytes_acked + 1 {
            return self.challenge(now);
        }
        self.update_ts_recent(segment, now);
        self.acknowledged(segment, now);
        self.fin_acknowledged(now);
        if self.urgent.is_some() || segment.flags.has(Flags::URG) {
            self.look_for_urgent(segment, now);
        }
        match self.state {
            State::Established | State::FinWait1 | State::FinWait2 => {
                if segment.data_len() == 0 && !segment.flags.has(Flags::FIN) {
                    return;
                }
                if self.read_shut && self.state != State::Established && self.brings_data(segment) {
                    //= RFC 9293 3.6.1
                    //# If such a host issues a CLOSE call while received data is still pending in the TCP connection,
                    //# or if new data is received after CLOSE is called, its TCP implementation SHOULD send a RST to
                    //# show that data was lost (SHLD-3).
                    self.count(Count::TCPAbortOnData);
                    self.refuse(segment);
                    return self.fail(libc::ECONNRESET);
                }
                self.data(segment, now, &mut |_, _| false);
            }
            // After the peer's FIN no data can come.
            _ => {}
        }
    }

    /// First to fourth check: sequence number, RST, SYN; and PAWS before them all.
    fn valid(&mut self, segment: &Segment<'_>, now: Instant) -> bool {
        let rst = segment.flags.has(Flags::RST);
        let syn = segment.flags.has(Flags::SYN);
        //= RFC 7323 5.3
        //# Also, PAWS processing MUST take precedence over the regular TCP acceptability check
        //= RFC 7323 5.3
        //# R1) If there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is valid
        //# (see later discussion), and if the RST bit is not set, then treat the arriving segment as not acceptable:
        //= RFC 7323 5.2
        //# When an <RST> segment is received, it MUST NOT be subjected to the PAWS check
        if let Some((value, _)) = segment.options.timestamps
            && self.timestamps
            && !rst
            && self.is_paws_old(value, now)
        {
            self.count(Count::PAWSEstab);
            // A pure ACK that was overtaken gets no answer.
            if syn || !segment.is_empty() || segment.seq != self.receiver.next() {
                self.unacceptable(segment, now);
            }
            return false;
        }
        // An ACK overtaken by data that we have not acknowledged yet still counts. So does an ACK with more data than
        // the window takes.
        let overtaken = segment.is_empty()
            && !rst
            && self.last_ack_sent.at_most(segment.seq)
            && segment.seq.at_most(self.receiver.next());
        let acceptable = self.receiver.acceptable(segment.seq, segment.len())
            || self.receiver.acceptable(segment.seq, 0)
            || overtaken;
        if rst {
            //= RFC 5961 3.2
            //# 1) If the RST bit is set and the sequence number is outside the current receive window, silently drop
            //# the segment.
            //= RFC 5961 3.2
            //# 2) If the RST bit is set and the sequence number exactly matches the next expected sequence number
            //# (RCV.NXT), then TCP MUST reset the connection.
            //= RFC 5961 3.2
            //# 3) If the RST bit is set and the sequence number does not exactly match the next expected sequence
            //# value, yet is within the current receive window (RCV.NXT < SEG.SEQ < RCV.NXT+RCV.WND), TCP MUST send
            //# an acknowledgment (challenge ACK):
            if segment.seq == self.receiver.next() {
                self.reset_by_peer();
            } else if acceptable {
                self.challenge(now);
            }
            return false;
        }
        if syn && self.state != State::TimeWait {
            //= RFC 5961 4.2
            //# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also referred to as
            //# challenge ACK) to the remote peer:
            //= RFC 5961 4.2
            //# After sending the acknowledgment, TCP MUST drop the unacceptable segment and stop processing further.
            self.count(Count::TCPSYNChallenge);
            self.challenge(now);
            return false;
        }
        if !acceptable {
            self.unacceptable(segment, now);
        }
        acceptable
    }

    //= RFC 9293 3.10.7.4
    //# If an incoming segment is not acceptable, an acknowledgment should be sent in reply (unless the RST bit is
    //# set, if so drop the segment and return):
    fn unacceptable(&mut self, segment: &Segment<'_>, now: Instant) {
        //= RFC 9293 3.10.7.4
        //# The only thing that can arrive in this state is a retransmission of the remote FIN. Acknowledge it, and
        //# restart the 2 MSL timeout.
        // The peer did not receive our last acknowledgment.
        if self.state == State::TimeWait && segment.flags.has(Flags::FIN) {
            self.slow_at = now + TIME_WAIT;
        }
        // Answers to data or to a FIN cannot loop; other answers can, between two confused peers
        // (tcp_oow_rate_limited).
        let data = !segment.is_empty() && !segment.flags.has(Flags::SYN);
        if data || self.may_answer(now) {
            self.receiver.unacceptable(segment.seq, segment.data_len(), now);
            self.ack_now = true;
        }
    }

    //= RFC 5961 7
    //# An implementation SHOULD include an ACK throttling mechanism to be conservative.
    /// A challenge ACK, if the limits allow one.
    pub(super) fn challenge(&mut self, now: Instant) {
        if self.may_answer(now) && self.shared.challenges.allow(now) {
            self.count(Count::TCPChallengeACK);
            self.ack_now = true;
        }
    }

    fn may_answer(&mut self, now: Instant) -> bool {
        let interval = self.shared.config.tcp_invalid_ratelimit;
        let may = self.challenged_at == NEVER || now.since(self.challenged_at) >= interval;
        if may {
            self.challenged_at = now;
        }
        may
    }

    //= RFC 9293 3.10.7.1
    //# If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK> If the ACK bit
    //# is on, <SEQ=SEG.ACK><CTL=RST>
    /// The RST that answers a segment.
    pub(super) fn refuse(&mut self, segment: &Segment<'_>) {
        self.reset = Some(if segment.flags.has(Flags::ACK) {
            Reset { seq: segment.ack, ack: None }
        } else {
            Reset { seq: Seq(0), ack: Some(segment.end()) }
        });
    }

    //= RFC 9293 3.10.7.4
    //# If the RST bit is set, then any outstanding RECEIVEs and SEND should receive "reset" responses.
    //= RFC 9293 3.6
    //# then the local application MUST be informed whether it closed normally or was aborted (MUST-12).
    fn reset_by_peer(&mut self) {
        match self.state {
            // RFC 1337, fix (1).
            State::TimeWait if self.shared.config.tcp_rfc1337 => {}
            State::TimeWait => self.end(),
            // tcp_reset: the peer has sent everything, so only writing fails.
            State::CloseWait => self.fail(libc::EPIPE),
            _ => self.fail(libc::ECONNRESET),
        }
    }

    /// The host at the other end of the link has ended: as a reset.
    #[cold]
    pub(super) fn peer_ended(&mut self) {
        match self.state {
            State::SynSent => self.fail(libc::ECONNREFUSED),
            _ if self.is_local_stream && self.buffer.start() == self.buffer.end() => {
                (self.peer_done, self.read_shut) = (true, true);
                self.end();
            }
            _ => self.reset_by_peer(),
        }
    }

    /// Whether all that is left is to send, and there is nothing to be sent yet.
    pub(super) fn only_sends(&self) -> bool {
        self.state == State::CloseWait && self.buffer.start() == self.buffer.end()
    }

    //= RFC 7323 5.5
    //# If TS.Recent is found to be invalid, then the segment is accepted, regardless of the failure of the timestamp
    //# check, and rule R3 updates TS.Recent with the TSval from the new segment.
    /// PAWS: whether a TSval is older than TS.Recent.
    fn is_paws_old(&self, value: u32, now: Instant) -> bool {
        // As in Linux (`tcp_paws_check`), 0 is no time: some peers begin with it, and of a connection that the kernel has
        // made none is known.
        self.ts_recent.wrapping_sub(value) as i32 > 0
            && self.ts_recent != 0
            && now.since(self.ts_recent_at) < TS_RECENT_LIFE
    }

    //= RFC 7323 4.3
    //# If: SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent then SEG.TSval is copied to TS.Recent; otherwise, it
    //# is ignored.
    //= RFC 7323 4.3
    //# Thus, when delayed ACKs are in use, the receiver SHOULD reply with the TSval field from the earliest
    //# unacknowledged segment.
    //= RFC 7323 4.3
    //# An <ACK> for an out-of-order segment SHOULD, therefore, contain the timestamp from the most recent segment
    //# that advanced RCV.NXT.
    //= RFC 7323 4.3
    //# Thus, the timestamp from the latest segment (which filled the hole) MUST be echoed.
    #[inline]
    fn update_ts_recent(&mut self, segment: &Segment<'_>, now: Instant) {
        if let Some((value, _)) = segment.options.timestamps
            && self.timestamps
        {
            self.note_timestamp(segment.seq, value, now);
        }
    }

    /// The same, for a segment that begins at `seq` and has the TSval `value`.
    #[inline]
    pub(super) fn note_timestamp(&mut self, seq: Seq, value: u32, now: Instant) {
        if seq.at_most(self.last_ack_sent) {
            self.ts_recent = value;
            self.ts_recent_at = now;
        }
    }

    /// Fifth, the ACK field, which lies between SND.UNA less a window and SND.NXT: updates the window and recovery.
    #[inline(always)]
    fn acknowledged(&mut self, segment: &Segment<'_>, now: Instant) {
        // An ACK that was overtaken says nothing about the present state (tcp_ack's `old_ack`).
        let old = segment.ack.before(self.snd_una);
        if !old {
            self.last_ack_at = now;
            self.probes_out = 0;
            // tcp_ack: "Something worked..."
            self.soft_error = None;
        }
        let advances = segment.ack.after(self.snd_una);
        let (newer, same_window) =
            self.update_window(segment.seq, segment.ack, segment.window, advances);
        let pure = segment.is_empty() && same_window;
        if self.snd_una == self.snd_nxt {
            // Data that does not change the window does not postpone a probe (`tcp_rcv_established`'s fast path).
            if self.probe_at != NEVER && !old && (segment.data_len() == 0 || !same_window) {
                cold_path();
                if newer && !same_window {
                    // The path was idle meanwhile (tcp_ack_update_window).
                    self.recovery.idle_restart(now);
                }
                self.ack_while_probing(now);
            }
            // Nothing was in flight, so there is nothing to recover; but a duplicate may report that retransmitted
            // data had arrived before.
            if !pure && segment.options.sacks.is_empty() {
                return;
            }
        }
        if !advances && !pure && segment.options.sacks.is_empty() && !segment.flags.has(Flags::ECE)
        {
            return;
        }
        let ece = self.ecn && segment.flags.has(Flags::ECE);
        let all = segment.ack == self.buffer.end();
        let done = segment.options.sacks.is_empty()
            && !ece
            && match all {
                true => self.recovery.acked_all_fast(segment.ack, now),
                false => self.recovery.acked_fast(segment.ack, now).is_some(),
            };
        if !done {
            self.acknowledged_slow(segment, pure, ece, now);
        }
        if advances {
            self.advance(segment.ack);
        }
    }

    /// Takes the window of a segment, if it is newer than the one known. Returns whether it is, and whether it is the same.
    #[inline(always)]
    pub(super) fn update_window(
        &mut self,
        seq: Seq,
        ack: Seq,
        window: u16,
        advances: bool,
    ) -> (bool, bool) {
        //= RFC 7323 2.3
        //# SND.WND = SEG.WND << Snd.Wind.Shift
        let window = u32::from(window) << self.snd_shift;
        let same_window = window == self.snd_wnd;
        //= RFC 9293 3.10.7.4
        //# If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND <- SEG.WND, set SND.WL1
        //# <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
        // Of two segments that differ only in the window, the larger window counts, as they may have been reordered
        // (tcp_may_update_window).
        let newer = advances
            || ack == self.snd_una
                && (self.snd_wl1.before(seq)
                    || self.snd_wl1 == seq && (window > self.snd_wnd || window == 0));
        if newer {
            self.snd_wl1 = seq;
            self.snd_wnd = window;
            self.snd_wnd_max = self.snd_wnd_max.max(window);
        }
        (newer, same_window)
    }

    /// The slow path of an ACK: recovery gets all of it.
    #[cold]
    fn acknowledged_slow(&mut self, segment: &Segment<'_>, pure: bool, ece: bool, now: Instant) {
        let echoed = match segment.options.timestamps {
            Some((_, echo)) if self.timestamps => self.echo_time(echo, now),
            _ => None,
        };
        let edge = self.snd_una.max(segment.ack) + self.snd_wnd;
        let unsent = self.snd_nxt.before(self.buffer.end()) && self.snd_nxt.before(edge);
        let sacks = &segment.options.sacks;
        let event = AckEvent { ack: segment.ack, sacks, echoed, ece, pure, unsent };
        self.recovery.acked(&event, now);
    }

    #[inline(always)]
    fn advance(&mut self, ack: Seq) {
        self.counts.bytes_acked += u64::from(ack - self.snd_una);
        self.snd_una = ack;
        self.buffer.ack(ack);
        self.stuck_since = NEVER;
        if self.tail_probe.is_some() {
            cold_path();
            self.tail_probe = None;
        }
        if !self.buffer.is_empty() {
            self.buffer.grow(self.recovery.congestion_window());
        }
        self.check_write_space();
    }

    /// A waiter that found no write space is notified once there is some.
    #[inline]
    pub(super) fn check_write_space(&mut self) {
        if self.nospace && self.is_writable() {
            self.nospace = false;
            (self.write_space, self.notify) = (true, true);
        }
    }

    /// The state changes when our FIN is acknowledged.
    fn fin_acknowledged(&mut self, now: Instant) {
        if !self.fin_queued || self.snd_una != self.buffer.end() + 1 {
            return;
        }
        match self.state {
            //= RFC 9293 3.10.7.4
            //# if the FIN segment is now acknowledged, then enter FIN-WAIT-2
            State::FinWait1 => {
                self.enter(State::FinWait2);
                self.notify = true;
                if self.orphan {
                    self.wait_for_fin(now);
                }
            }
            //= RFC 9293 3.10.7.4
            //# if the ACK acknowledges our FIN, then enter the TIME-WAIT state
            State::Closing => self.time_wait(now),
            //= RFC 9293 3.10.7.4
            //# If our FIN is now acknowledged, delete the TCB, enter the CLOSED state, and return.
            State::LastAck => self.end(),
            _ => {}
        }
    }

    /// Whether the segment has data that we have not received.
    fn brings_data(&self, segment: &Segment<'_>) -> bool {
        let end = segment.seq + segment.data_len() as u32;
        segment.data_len() > 0 && end.after(self.receiver.next())
    }

    /// Seventh and eighth: data and FIN. Returns whether the reader took the data.
    #[inline(always)]
    fn data(&mut self, segment: &Segment<'_>, now: Instant, reader: &mut DirectReader<'_>) -> bool {
        let fin = segment.flags.has(Flags::FIN);
        if self.ecn {
            self.check_ce_mark(segment);
        }
        if segment.data_len() >= self.full_segment() {
            self.measure_receiver_rtt(segment, now);
        }
        let arrived = self.receiver.segment_for(segment.seq, segment.data(), fin, now, reader);
        self.counts.data_segs_in = self.counts.data_segs_in.wrapping_add(1);
        self.counts.bytes_received += arrived.new_in_order as u64;
        self.last_data_in = now;
        self.notify |= arrived.new_in_order > 0 && !arrived.taken;
        if arrived.out_of_order && !self.sack {
            cold_path();
            self.duplicate_acks = self.duplicate_acks.saturating_add(1);
        } else if arrived.new_in_order > 0 {
            self.duplicate_acks = 0;
        }
        if arrived.fin_reached {
            self.fin_received(now);
        }
        arrived.taken
    }

    /// The size of the peer's full segments.
    #[inline]
    pub(super) fn full_segment(&self) -> usize {
        self.receiver.peer_mss() as usize
    }

    /// RFC 3168 section 6.1.3: "the TCP data receiver sets the ECN-Echo flag" from a CE mark on, until the
    /// sender says CWR.
    #[cold]
    fn check_ce_mark(&mut self, segment: &Segment<'_>) {
        if segment.flags.has(Flags::CWR) {
            self.echo_ce = false;
            // Its window may be down to one segment: the ACK should not be delayed.
            self.ack_now = true;
        }
        if segment.congested {
            self.ack_now |= !self.echo_ce;
            self.echo_ce = true;
        }
    }

    #[cold]
    fn measure_receiver_rtt(&mut self, segment: &Segment<'_>, now: Instant) {
        if let Some((_, echo)) = segment.options.timestamps
            && self.timestamps
            && echo != self.ts_measured
            && let Some(at) = self.echo_time(echo, now)
        {
            self.ts_measured = echo;
            self.receiver.round_trip(now - at);
        }
    }

    //= RFC 9293 3.10.7.4
    //# If the FIN bit is set, signal the user "connection closing" and return any pending RECEIVEs with same message,
    //# advance RCV.NXT over the FIN, and send an acknowledgment for the FIN.
    #[cold]
    fn fin_received(&mut self, now: Instant) {
        (self.peer_done, self.read_shut, self.notify) = (true, true, true);
        match self.state {
            State::Established => self.enter(State::CloseWait),
            State::FinWait1 => {
                self.enter(State::Closing);
                self.ack_now = true;
            }
            State::FinWait2 => {
                self.time_wait(now);
                self.ack_now = true;
            }
            _ => {}
        }
        if self.is_local_stream && self.state == State::CloseWait {
            self.peer_closed();
        }
    }

    //= RFC 9293 3.6.1
    //# When a connection is closed actively, it MUST linger in the TIME-WAIT state for a time 2xMSL (Maximum Segment
    //# Lifetime) (MUST-13).
    fn time_wait(&mut self, now: Instant) {
        self.enter(State::TimeWait);
        (self.read_shut, self.write_shut, self.notify) = (true, true, true);
        self.probe_at = NEVER;
        self.slow_at = now + TIME_WAIT;
    }

    //= RFC 7323 4.1
    //# Values of this clock MUST be at least approximately proportional to real time, in order to measure actual RTT.
    //= RFC 7323 5.4
    //# It MUST tick at least once for each 2^31 bytes sent.
    /// Our timestamp clock: milliseconds.
    #[inline]
    pub(super) fn timestamp(&self, now: Instant) -> u32 {
        millis(now).wrapping_add(self.ts_offset)
    }

    /// When our timestamp clock first showed `echo`, if that is possible.
    #[inline]
    pub(super) fn echo_time(&self, echo: u32, now: Instant) -> Option<Instant> {
        let age = self.timestamp(now).wrapping_sub(echo);
        let ms = now.nanos() / 1_000_000;
        (age as i32 >= 0 && u64::from(age) <= ms).then(|| Instant::from_millis(ms - u64::from(age)))
    }
}

/// Milliseconds, wrapping.
#[inline]
pub(super) fn millis(now: Instant) -> u32 {
    (now.nanos() / 1_000_000) as u32
}
