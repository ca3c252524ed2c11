//! Which segment to send next: retransmissions, then new data as far as both windows and Nagle allow, then probes,
//! then a bare ACK if no segment carried it.

use super::{
    connection::{Connection, NEVER, Outgoing, State},
    receive::AckNeed,
    segment::{Flags, Options, Sacks, Segment},
    seq::Seq,
};
use crate::{inet::Count, time::Instant};
use std::{hint::cold_path, ops::Range};

/// Where segments go. It returns false if there was no room: the segment counts as not sent.
pub(super) type Out<'o> = dyn FnMut(&Outgoing<'_>) -> bool + 'o;

//= RFC 9293 3.7.1
//# If an MSS Option is not received at connection setup, TCP implementations MUST assume a default send MSS of 536
//# (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
/// The MSS of a peer that names none; as in Linux also over IPv6.
pub(super) const DEFAULT_MSS: u16 = 536;
/// Timestamps in every segment, padded to whole words.
const TIMESTAMPS_LEN: u32 = 12;
/// The most bytes of options.
const OPTIONS_MAX: u32 = 40;

/// A segment of new data, which begins at SND.NXT.
struct NextSegment {
    end: Seq,
    small: bool,
}

impl Connection {
    /// Whether [`transmit`](Connection::transmit) may have something to send: never false if it has.
    #[inline(always)]
    pub(super) fn has_to_send(&self) -> bool {
        self.ack_now
            || self.receiver.ack_need() == AckNeed::Now
            || self.duplicate_acks > 0
            || self.has_unsent()
            || self.probe_due
            || self.tail_probe.is_some()
            || self.reset.is_some()
            || self.syn_state.as_ref().is_some_and(|syn_state| syn_state.due)
            || (self.snd_una != self.snd_nxt && self.recovery.next_retransmission().is_some())
    }

    /// Whether there is data, or a FIN, that was never sent.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.snd_nxt.before(self.buffer.end() + u32::from(self.fin_queued))
    }

    /// Passes everything that may be sent now to `out`, segment by segment. If `out` returns false there was no room:
    /// the segment counts as not sent, and the caller tries again later.
    #[inline]
    pub fn transmit(&mut self, now: Instant, out: &mut Out<'_>) {
        if self.has_to_send() || self.probe_at != NEVER {
            self.transmit_some(now, out);
        }
    }

    fn transmit_some(&mut self, now: Instant, out: &mut Out<'_>) {
        match self.state {
            State::Closed => {
                self.send_reset(now, out);
            }
            State::SynSent | State::SynReceived => self.send_syn(now, out),
            _ if self.marks.is_some() => self.transmit_marked(now, out),
            _ => self.transmit_all::<false>(now, out),
        }
    }

    /// Sends everything allowed in a synchronised connection. `MARKED`: some of its data may have
    /// [marks](super::marks).
    #[inline(always)]
    pub(super) fn transmit_all<const MARKED: bool>(&mut self, now: Instant, out: &mut Out<'_>) {
        let all = self.send_new_first(now, out)
            && self.retransmit(now, out)
            && self.send_tail_probe(now, out)
            && self.send_new::<MARKED>(now, out)
            && self.send_probe(now, out)
            && self.send_ack(now, out);
        if all {
            (self.more, self.forced) = (false, false);
            if self.push_due {
                cold_path();
                self.push_due = self.has_unsent();
            }
            self.update_probe_timer(now);
        }
    }

    /// F-RTO: sends new data, whose acknowledgment shows whether a timeout was spurious (RFC 5682). Nagle and a cork
    /// do not hold it back (Linux's `tcp_xmit_recovery`). If the windows do, lost data is retransmitted at once.
    #[inline(always)]
    fn send_new_first(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        if self.recovery.wants_new() {
            cold_path();
            let before = std::mem::replace(&mut self.push_due, true);
            let all = self.send_new::<true>(now, out);
            self.push_due = before;
            if !all {
                return false;
            }
            if self.recovery.wants_new() {
                self.recovery.has_nothing_new();
            }
        }
        true
    }

    /// Retransmits what recovery has found lost.
    #[inline(always)]
    fn retransmit(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        if self.snd_una == self.snd_nxt {
            return true;
        }
        while let Some(mut range) = self.recovery.next_retransmission() {
            cold_path();
            if self.marks.is_some()
                && let Some(end) = self.record_end(range.start)
            {
                range.end = range.end.min(end);
            }
            //= RFC 9293 3.8.6
            //# However, a sending TCP peer MUST be robust against window shrinking, which may cause the "usable
            //# window" (see Section 3.8.6.2.1) to become negative (MUST-34). If this happens, the sender SHOULD NOT
            //# send new data (SHLD-15), but SHOULD retransmit normally the old unacknowledged data between SND.UNA
            //# and SND.UNA+SND.WND (SHLD-16).
            // The head is sent in any case, to ask whether the window is open again.
            if range.end.after(self.snd_edge()) && range.start != self.snd_una {
                return true;
            }
            if !self.emit(range.clone(), false, now, out) {
                return false;
            }
            self.count(Count::TcpRetransSegs);
            self.recovery.resent(range, now);
        }
        true
    }

    //= RFC 8985 7.3
    //# If both conditions are met, then the sender SHOULD transmit a previously unsent data segment, if one exists
    //# and the receive window allows, and increment the FlightSize accordingly.
    //= RFC 8985 7.3
    //# If such an unsent segment is not available, then the sender SHOULD retransmit the highest-sequence segment
    //# sent so far and set TLP.is_retrans to true.
    /// Sends the tail loss probe, if one is due.
    #[inline(always)]
    fn send_tail_probe(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        let Some(range) = self.tail_probe.take() else { return true };
        cold_path();
        let range = self.last_record(range);
        let next = self.next_segment::<true>(true);
        let sent = match &next {
            Some(next) => self.send_next(next, now, out),
            None if range.start.before(self.snd_una) => return true,
            // The window was shrunk below it: the timeout has to recover it.
            None if range.end.after(self.snd_edge()) && range.start != self.snd_una => {
                return true;
            }
            None => self.emit(range.clone(), false, now, out),
        };
        match (sent, next) {
            (false, _) => self.tail_probe = Some(range),
            (true, None) => {
                self.count(Count::TcpRetransSegs);
                self.recovery.resent(range, now);
            }
            (true, Some(_)) => {}
        }
        sent
    }

    /// Sends new data, as much as is allowed.
    #[inline]
    fn send_new<const MARKED: bool>(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        let several = !MARKED && self.buffer.end() - self.snd_nxt > 2 * self.snd_mss;
        if several && !self.send_burst(now, out) {
            return false;
        }
        while self.has_unsent()
            && let Some(next) = self.next_segment::<MARKED>(false)
        {
            if !self.send_next(&next, now, out) {
                return false;
            }
        }
        true
    }

    /// Sends a burst of full segments of new data, but not the last segment, which may carry PSH and FIN. Their
    /// headers differ in the sequence number alone, and recovery records all of them at once.
    #[inline(never)]
    fn send_burst(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        let (start, len) = (self.snd_nxt, self.snd_mss);
        if self.segment_limit() != len || self.receiver.has_sacks() {
            return true;
        }
        self.recovery.process_deferred_ack();
        let unsent = self.buffer.end() - start;
        let may = (unsent - 1).min(self.snd_edge() - start).min(self.recovery.room());
        if may < 2 * len {
            return true;
        }
        // CWR is taken only once it can be sent: recovery may still undo the reduction.
        self.cwr_due |= self.ecn && self.recovery.take_cwr();
        if self.cwr_due {
            return true;
        }
        let end = start + may / len * len;
        let mut one = self.header(start, Flags::ACK, 0, now);
        one.ecn_capable = self.ecn;
        while one.segment.seq != end {
            let seq = one.segment.seq;
            one.payload = self.buffer.pieces(seq..seq + len);
            if !out(&one) {
                break;
            }
            one.segment.seq = seq + len;
        }
        let sent = start..one.segment.seq;
        if sent.start != sent.end {
            let bytes = sent.end - sent.start;
            self.data_sent(bytes / len, bytes, true, now);
            self.snd_nxt = sent.end;
            self.recovery.sent(sent.clone(), now);
            self.forced = false;
        }
        sent.end == end
    }

    /// The next segment of new data, if it may be sent now. `probe`: congestion control and Nagle do not matter.
    #[inline(always)]
    fn next_segment<const MARKED: bool>(&self, probe: bool) -> Option<NextSegment> {
        if !self.has_unsent() {
            return None;
        }
        let start = self.snd_nxt;
        let unsent = self.buffer.end() - start;
        let most = self.segment_limit();
        let mut len = unsent.min(most);
        let window = self.snd_edge() - start;
        if self.forced {
            cold_path();
            len = len.min(window);
        }
        if MARKED && let Some(end) = self.record_end(start) {
            len = len.min(end - start);
        }
        let mut fin = self.fin_queued && len == unsent;
        if fin && window <= len {
            fin = false;
        }
        //= RFC 9293 3.8.6.2.1
        //# A TCP implementation MUST include a SWS avoidance algorithm in the sender (MUST-38).
        //= RFC 5681 2
        //# At any given time, a TCP MUST NOT send data with a sequence number higher than the sum of the highest
        //# acknowledged sequence number and the minimum of cwnd and rwnd.
        // A segment is sent whole or not at all, until the probe timer sets `forced`.
        if len > window || len == 0 && !fin {
            return None;
        }
        // A FIN without data does not wait for congestion control.
        if !probe && len > 0 && !self.recovery.has_room() {
            return None;
        }
        let small = len < most;
        let may_wait = small && !fin && !probe && !self.push_due && !self.forced;
        if may_wait && self.nagle_holds() && !(MARKED && self.is_marked_to_go(start + len)) {
            return None;
        }
        Some(NextSegment { end: start + len + u32::from(fin), small: small && len > 0 })
    }

    fn send_next(&mut self, next: &NextSegment, now: Instant, out: &mut Out<'_>) -> bool {
        let range = self.snd_nxt..next.end;
        if !self.emit(range.clone(), true, now, out) {
            return false;
        }
        self.snd_nxt = next.end;
        self.recovery.sent(range, now);
        if next.small {
            self.small_end = next.end;
        }
        self.forced = false;
        true
    }

    //= RFC 9293 3.7.4
    //# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments (SHLD-7).
    //= RFC 9293 3.7.4
    //# However, there MUST be a way for an application to disable the Nagle algorithm on an individual connection
    //# (MUST-17).
    /// Whether a segment smaller than the MSS waits for more data: corked, or Nagle's algorithm in Minshall's
    /// variant, where only an earlier small segment in flight is a reason to wait.
    #[inline]
    pub(super) fn nagle_holds(&self) -> bool {
        let small_in_flight =
            self.snd_una.before(self.small_end) && self.small_end.at_most(self.snd_nxt);
        self.options.cork || self.more || !self.options.nodelay && small_in_flight
    }

    //= RFC 9293 3.8.6.2.1
    //# (3) or if at least a fraction Fs of the maximum window can be sent
    /// The most bytes of data in the next segment: the MSS less options, and no more than half of the largest window
    /// ever offered, so that one segment does not use up a small window (`tcp_bound_to_half_wnd`).
    #[inline]
    fn segment_limit(&self) -> u32 {
        let mut most = self.snd_mss;
        if self.snd_wnd_max < 2 * most {
            cold_path();
            let small = self.snd_wnd_max <= DEFAULT_MSS.into();
            most = most.min(if small { self.snd_wnd_max } else { self.snd_wnd_max / 2 }).max(1);
        }
        if self.receiver.has_sacks() {
            most = self.limit_beside_sacks(most);
        }
        most
    }

    #[cold]
    fn limit_beside_sacks(&self, most: u32) -> u32 {
        let blocks = self.sacks(OPTIONS_MAX).len() as u32;
        let len = if blocks == 0 { 0 } else { 4 + 8 * blocks };
        most.min(self.snd_mss.saturating_sub(len)).max(1)
    }

    //= RFC 9293 3.8.4
    //# An implementation SHOULD send a keep-alive segment with no data (SHLD-12)
    /// Keep-alive and zero-window probe: as in Linux and BSD an empty segment below the window, which the peer has to
    /// answer.
    #[inline]
    fn send_probe(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        if self.probe_due {
            cold_path();
            self.probe_due = !self.emit_bare(self.snd_una - 1, Flags::ACK, now, out);
        }
        !self.probe_due
    }

    #[inline]
    pub(super) fn send_ack(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        //= RFC 9293 3.10.7.4
        //# if the TCP endpoint is processing a series of queued segments, it MUST process them all before sending any
        //# ACK segments (MUST-59).
        //= RFC 5681 3.2
        //# A TCP receiver SHOULD send an immediate duplicate ACK when an out-of-order segment arrives.
        // Segments that came together are acknowledged together, except to a peer without SACK, which needs three
        // duplicates to see a loss.
        while self.duplicate_acks > 0 {
            cold_path();
            if !self.emit_bare(self.sendable_seq(), Flags::ACK, now, out) {
                return false;
            }
            self.duplicate_acks -= 1;
        }
        let due = self.ack_now || self.receiver.ack_need() == AckNeed::Now;
        !due || self.emit_bare(self.sendable_seq(), Flags::ACK, now, out)
    }

    /// The end of the peer's window.
    #[inline]
    pub(super) fn snd_edge(&self) -> Seq {
        self.snd_una + self.snd_wnd
    }

    /// The sequence number of an empty segment: SND.NXT, or the end of the window if that was shrunk below SND.NXT by
    /// more than the scale rounds off (`tcp_acceptable_seq`).
    pub(super) fn sendable_seq(&self) -> Seq {
        let edge = self.snd_edge();
        let within = self.snd_nxt - edge < 1 << self.snd_shift;
        if within { self.snd_nxt } else { edge }
    }

    #[cold]
    pub(super) fn send_reset(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        let Some(reset) = self.reset else { return true };
        let flags = if reset.ack.is_some() { Flags::RST | Flags::ACK } else { Flags::RST };
        let segment = Segment {
            seq: reset.seq,
            ack: reset.ack.unwrap_or_default(),
            flags,
            options: Options { timestamps: self.timestamp_option(now), ..Options::default() },
            ..Segment::default()
        };
        let sent = out(&Outgoing { segment, ..Outgoing::default() });
        if sent {
            self.reset = None;
            self.count(Count::TcpOutRsts);
            self.counts.segs_out = self.counts.segs_out.wrapping_add(1);
        }
        sent
    }

    /// Sends `range` of the sequence space: data, FIN, or both.
    #[inline(always)]
    fn emit(&mut self, range: Range<Seq>, new: bool, now: Instant, out: &mut Out<'_>) -> bool {
        let data_end = self.buffer.end();
        let mut flags = Flags::ACK;
        if range.end.after(data_end) && self.fin_queued {
            cold_path();
            flags = flags | Flags::FIN;
        }
        let len = range.end.min(data_end) - range.start;
        //= RFC 9293 3.9.1.2
        //# (1) MUST NOT buffer data indefinitely (MUST-60), and (2) MUST set the PSH bit in the last buffered segment
        //# (i.e., when there is no more queued data to be sent) (MUST-61).
        if len > 0 && data_end.at_most(range.end) {
            flags = flags | Flags::PSH;
        }
        // RFC 3168 section 6.1.5: ECT codepoints must not be set in retransmissions.
        let ecn_capable = self.ecn && new && len > 0;
        if ecn_capable {
            cold_path();
            self.cwr_due |= self.recovery.take_cwr();
            if self.cwr_due {
                flags = flags | Flags::CWR;
            }
        }
        let spare = self.snd_mss.saturating_sub(len);
        let mut outgoing = self.header(range.start, flags, spare, now);
        outgoing.last = new && range.end == data_end + u32::from(self.fin_queued);
        outgoing.payload = self.buffer.pieces(range);
        outgoing.ecn_capable = ecn_capable;
        if !out(&outgoing) {
            return false;
        }
        self.cwr_due &= !ecn_capable;
        if len > 0 {
            self.data_sent(1, len, new, now);
        } else {
            self.segments_sent(1);
        }
        true
    }

    /// Sends an empty segment.
    fn emit_bare(&mut self, seq: Seq, flags: Flags, now: Instant, out: &mut Out<'_>) -> bool {
        let sent = out(&self.header(seq, flags, OPTIONS_MAX, now));
        if sent {
            self.segments_sent(1);
        }
        sent
    }

    /// The header of any segment of a synchronised connection. `spare`: how many bytes of SACK blocks it may have.
    #[inline(always)]
    fn header(&mut self, seq: Seq, flags: Flags, spare: u32, now: Instant) -> Outgoing<'static> {
        let window = self.receiver.window();
        // Filled in place, as it is large.
        let mut outgoing = Outgoing::default();
        let segment = &mut outgoing.segment;
        (segment.seq, segment.ack) = (seq, self.receiver.next());
        segment.flags = if self.echo_ce { flags | Flags::ECE } else { flags };
        segment.window = self.on_the_wire(window);
        segment.options.timestamps = self.timestamp_option(now);
        if self.receiver.has_sacks() {
            segment.options.sacks = self.sacks(spare);
        }
        outgoing
    }

    //= RFC 7323 3.2
    //# the TSopt MUST be sent in every non-<RST> segment for the duration of the connection, and SHOULD be sent in an
    //# <RST> segment
    //= RFC 7323 3.2
    //# When the ACK bit is set in an outgoing segment, the sender MUST echo a recently received TSval sent by the
    //# remote TCP in the TSval field of a Timestamps option.
    /// TSval and TSecr.
    #[inline]
    fn timestamp_option(&self, now: Instant) -> Option<(u32, u32)> {
        self.timestamps.then(|| (self.timestamp(now), self.ts_recent))
    }

    /// The SACK blocks of a segment with room for `spare` bytes of them.
    #[cold]
    fn sacks(&self, spare: u32) -> Sacks {
        if !self.sack {
            return Sacks::default();
        }
        let taken = if self.timestamps { TIMESTAMPS_LEN } else { 0 };
        let room = spare.min(OPTIONS_MAX - taken).saturating_sub(4) / 8;
        let mut sacks = self.receiver.sacks();
        sacks.truncate(room as usize);
        sacks
    }

    /// Segments with data, and an acknowledgment, were sent.
    #[inline(always)]
    pub(super) fn data_sent(&mut self, segments: u32, bytes: u32, new: bool, now: Instant) {
        self.counts.data_segs_out = self.counts.data_segs_out.wrapping_add(segments);
        self.counts.bytes_sent += u64::from(bytes);
        if new {
            self.last_data_out = now;
            self.receiver.answered(now);
        }
        self.segments_sent(segments);
    }

    /// Segments with an acknowledgment were sent.
    #[inline(always)]
    fn segments_sent(&mut self, segments: u32) {
        self.counts.segs_out = self.counts.segs_out.wrapping_add(segments);
        self.receiver.acknowledged();
        self.last_ack_sent = self.receiver.next();
        self.ack_now = false;
    }

    //= RFC 7323 2.3
    //# The window field (SEG.WND) of every outgoing segment, with the exception of <SYN> segments, MUST be
    //# right-shifted by Rcv.Wind.Shift bits:
    #[inline]
    pub(super) fn on_the_wire(&self, window: u32) -> u16 {
        (window >> self.rcv_shift).min(u16::MAX.into()) as u16
    }

    //= RFC 9293 3.7.1
    //# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS", MUST be the smaller
    //# (MUST-16) of the send MSS (that reflects the available reassembly buffer size at the remote host, the EMTU_R
    //# [19]) and the largest transmission size permitted by the IP layer (EMTU_S [19]):
    /// SND.MSS: what peer, path and application allow, less options.
    pub(super) fn effective_mss(&self) -> u32 {
        let least = self.shared.config.tcp_min_snd_mss;
        let mss = self.peer_mss.min(self.path_mss).max(least);
        u32::from(mss) - if self.timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    /// The MSS of the path has changed. `mss` as in [`Start`](super::connection::Start).
    pub fn path_mss(&mut self, mss: u16, now: Instant) {
        if self.state == State::Closed || mss == self.path_mss {
            return;
        }
        self.path_mss = mss;
        let mss = self.effective_mss();
        if mss != self.snd_mss {
            self.snd_mss = mss;
            self.recovery.set_mss(mss, now);
        }
    }

    /// Whether a segment that began at `seq` can be in flight (Linux's `tcp_v4_err`).
    pub(super) fn is_in_flight(&self, seq: Seq) -> bool {
        self.state != State::Closed && self.snd_una.at_most(seq) && seq.at_most(self.snd_nxt)
    }
}
