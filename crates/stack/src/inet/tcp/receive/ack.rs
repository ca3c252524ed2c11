//! When to acknowledge: RFC 9293 section 3.8.6.3 (delayed acknowledgments), RFC 5681 section 4.2, and Linux's
//! practice (`tcp_input.c`, `tcp_output.c`).

use super::super::seq::Seq;
use crate::time::Instant;

/// The acknowledgment that is owed to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckNeed {
    /// Nothing.
    None,
    /// An acknowledgment, with data or alone, by this time.
    By(Instant),
    /// An acknowledgment at once.
    Now,
}

//= RFC 9293 3.8.6.3
//# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18), but an ACK should not be excessively delayed; in
//# particular, the delay MUST be less than 0.5 seconds (MUST-40).
//= RFC 5681 4.2
//# Specifically, an ACK SHOULD be generated for at least every second full-sized segment, and MUST be generated
//# within 500 ms of the arrival of the first unacknowledged packet.
/// The shortest and the longest delay. Microseconds.
pub(in crate::inet::tcp) const DELAY_MIN: u32 = 40_000;
pub(super) const DELAY_MAX: u32 = 200_000;
/// How many segments are acknowledged at once when a connection is new, or when its sender may have restarted slow
/// start: its window then grows with each acknowledgment.
pub(super) const QUICK: u8 = 16;
/// The size of a full segment, until a larger one has arrived.
const FULL_MIN: u32 = 536;
/// How long an acknowledgment of more than a segment may wait for a reader that was polling and has not come back.
/// Shorter than the least slack of a sender's tail loss probe.
const HELD: u64 = 1_000_000;
/// This much is acknowledged at once however large the segments are: compared to it an acknowledgment costs nothing,
/// and the sender's buffer may not hold a second segment (asterinas#485: a 64 KiB segment per 10 ms).
const PLENTY: u32 = 16 << 10;

#[derive(Debug)]
pub(super) struct Acks {
    /// The number in the last acknowledgment.
    last_acked: Seq,
    /// Data, or something else to be acknowledged, has arrived since.
    due: bool,
    /// The acknowledgment must not wait.
    now: bool,
    /// It should not wait, except for the answer of a polling reader.
    quickly: bool,
    /// `TCP_QUICKACK` is set: it does not wait for that answer either.
    quick_ack_set: bool,
    /// If it may wait: until when.
    deadline: Instant,
    /// How many more acknowledgments are sent at once.
    quick: u8,
    /// We answer what arrives, and the answer carries the acknowledgment (Linux's pingpong mode).
    pingpong: bool,
    /// How many short segments have arrived since the last acknowledgment: the peer has nothing more to send.
    short_segments: u8,
    /// The size of the peer's full segments, as far as it has shown, and of its last segment.
    rcv_mss: u32,
    last_len: u32,
    /// Whether data has ever arrived; when it last did, and the delay that follows from how often it does.
    /// Microseconds, to keep an idle connection small.
    has_received: bool,
    last: Instant,
    delay: u32,
}

impl Acks {
    pub(super) fn new(next: Seq, mss: u32) -> Acks {
        Acks {
            last_acked: next,
            due: false,
            now: false,
            quickly: false,
            quick_ack_set: false,
            deadline: Instant::ZERO,
            quick: 0,
            pingpong: false,
            short_segments: 0,
            rcv_mss: FULL_MIN.min(mss).max(1),
            last_len: 0,
            has_received: false,
            last: Instant::ZERO,
            delay: DELAY_MIN,
        }
    }

    #[inline]
    pub(super) fn need(&self) -> AckNeed {
        match (self.due, self.now || self.quickly) {
            (false, _) => AckNeed::None,
            (true, true) => AckNeed::Now,
            (true, false) => AckNeed::By(self.deadline),
        }
    }

    /// The size of the peer's full segments.
    #[inline]
    pub(super) fn rcv_mss(&self) -> u32 {
        self.rcv_mss
    }

    /// Data in order has arrived, up to `next`, in a segment of `len` bytes. `window` is the window announced,
    /// `limit` what the buffer may hold.
    #[inline(always)]
    pub(super) fn data(
        &mut self,
        len: u32,
        next: Seq,
        window: u32,
        limit: u32,
        mss: u32,
        now: Instant,
    ) {
        self.measure(len, mss);
        self.adapt(window, now);
        let unacked = next - self.last_acked;
        //= RFC 9293 3.8.6.3
        //# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of new data
        // If a reader polls a burst from the queue itself, the ACK waits until the burst is over (as GRO and LRO
        // gather for one NAPI poll), unless the sender's window may still be small.
        let enough = unacked > self.rcv_mss;
        let plenty = unacked >= PLENTY.min(limit / 2);
        self.schedule(plenty || enough && self.quick > 0, now);
        self.quickly |= enough || self.quick > 0 && !self.pingpong;
        if enough {
            self.deadline =
                self.deadline.min(Instant::from_nanos(now.nanos().saturating_add(HELD)));
        }
    }

    /// Whether the application answers each segment before the next one comes, as in [`data_steadily`](Acks::data_steadily).
    pub(super) fn is_steady(&self) -> bool {
        self.pingpong && self.has_received && self.delay == DELAY_MIN
    }

    /// Whether the last segment was answered, and it came so lately that the delay stays.
    #[inline(always)]
    pub(super) fn continues(&self, now: Instant) -> bool {
        !self.due && now.nanos_since(self.last) <= u64::from(DELAY_MIN / 2) * 1_000
    }

    /// As [`data`](Acks::data) and [`taken`](Acks::taken), for a short segment, while this [is steady](Acks::is_steady)
    /// and [continues](Acks::continues).
    #[inline(always)]
    pub(super) fn data_steadily(&mut self, len: u32, now: Instant) {
        (self.last_len, self.last, self.short_segments) = (len, now, 1);
        self.deadline =
            Instant::from_nanos(now.nanos().saturating_add(u64::from(DELAY_MIN) * 1_000));
        self.due = true;
    }

    //= RFC 5681 4.2
    //# Out-of-order data segments SHOULD be acknowledged immediately, in order to accelerate loss recovery.
    //= RFC 5681 4.2
    //# To provide feedback to senders recovering from losses, the receiver SHOULD send an immediate ACK when it
    //# receives a data segment that fills in all or part of a gap in the sequence space.
    /// Something arrived that the sender must learn at once: data out of order, a filled hole, a duplicate.
    #[inline]
    pub(super) fn at_once(&mut self, now: Instant) {
        (self.has_received, self.last) = (true, now);
        self.schedule(true, now);
    }

    /// The peer should learn something soon; the reader's answer can carry it as well.
    pub(super) fn quickly(&mut self, now: Instant) {
        self.schedule(false, now);
        self.quickly = true;
    }

    /// As [`at_once`](Acks::at_once), and the sender may be in recovery: the next few are sent at once too.
    pub(super) fn enter_quick(&mut self, window: u32, now: Instant) {
        self.pingpong = false;
        self.delay = DELAY_MIN;
        self.refill(window);
        self.at_once(now);
    }

    /// A FIN has arrived in order. The application is likely to close too, and one segment can then carry both
    /// (Linux's `tcp_fin` enters pingpong mode before it decides whether to be quick).
    pub(super) fn fin(&mut self, now: Instant) {
        self.pingpong = true;
        // If no data has ever arrived there is no rhythm to derive a delay from (Linux's `ato` is 0).
        self.schedule(!self.has_received, now);
    }

    /// A segment with ACK number `next` was sent.
    #[inline]
    pub(super) fn ack_sent(&mut self, next: Seq) {
        self.last_acked = next;
        self.due = false;
        (self.now, self.quickly) = (false, false);
        self.short_segments = 0;
        self.quick = self.quick.saturating_sub(1);
    }

    /// We send data: soon after receiving some, it is an answer.
    #[inline]
    pub(super) fn answered(&mut self, now: Instant) {
        if !self.pingpong && self.has_received && self.since_last(now) < self.delay {
            self.pingpong = true;
        }
    }

    /// The application has read; `all`: everything there was.
    #[inline]
    pub(super) fn read(&mut self, all: bool, next: Seq) {
        // An acknowledgment of more than a segment is sent at once, unless it was left to the reader.
        self.now |= self.due && self.quickly && next - self.last_acked > self.rcv_mss;
        if all {
            self.taken();
        }
    }

    /// Nothing is left unread. A peer that sent a short segment waits for nothing but the answer; if none is likely,
    /// the acknowledgment is sent now (Linux's `tcp_cleanup_rbuf`).
    #[inline]
    pub(super) fn taken(&mut self) {
        let answer_unlikely = self.short_segments > 1 || self.short_segments == 1 && !self.pingpong;
        self.quickly |= self.due && answer_unlikely;
    }

    /// The reader was waiting for what has arrived, and has all of it: it is about to answer, or to wait again.
    /// Returns whether an acknowledgment that would be sent at once waits for that, at most as long as any other.
    #[inline]
    pub(super) fn leave_to_reader(&mut self) -> bool {
        let waits = self.quickly && !self.now && !self.quick_ack_set;
        self.quickly &= !waits;
        waits
    }

    /// The reader waits again: no answer will carry the acknowledgment.
    pub(super) fn reader_waits(&mut self) {
        self.now |= self.due;
    }

    /// The delay is over and nothing carried the acknowledgment, which says `next`: no answer was to be expected.
    pub(super) fn expired(&mut self, next: Seq, now: Instant) {
        if self.due && self.deadline <= now {
            match self.pingpong {
                // It has waited for a reader, not for an answer, and the sender may have waited for us.
                _ if next - self.last_acked > self.rcv_mss => self.quick = QUICK,
                true => {
                    self.pingpong = false;
                    self.delay = DELAY_MIN;
                }
                false => self.delay = (self.delay * 2).min(DELAY_MAX),
            }
            self.now = true;
        }
    }

    /// `TCP_QUICKACK`: as in Linux temporary, not for ever.
    pub(super) fn set_quick(&mut self, quick: bool) {
        (self.pingpong, self.quick_ack_set) = (!quick, quick);
        self.now |= quick && self.due;
    }

    /// What `TCP_QUICKACK` reads.
    pub(super) fn is_quick(&self) -> bool {
        !self.pingpong
    }

    fn schedule(&mut self, now: bool, time: Instant) {
        let by = Instant::from_nanos(time.nanos().saturating_add(u64::from(self.delay) * 1_000));
        self.deadline = if self.due { self.deadline.min(by) } else { by };
        self.due = true;
        self.now |= now;
    }

    #[inline(always)]
    fn measure(&mut self, len: u32, mss: u32) {
        if len >= self.rcv_mss {
            self.rcv_mss = len.min(mss.max(FULL_MIN));
        } else {
            // Two equal shorter segments in a row, but not small ones: the path's MTU has become smaller.
            if len == self.last_len && len >= FULL_MIN {
                self.rcv_mss = len;
            }
            self.short_segments = self.short_segments.saturating_add(1);
        }
        self.last_len = len;
    }

    /// The delay follows the gaps between segments, from 40 ms up.
    #[inline(always)]
    fn adapt(&mut self, window: u32, now: Instant) {
        match self.since_last(now) {
            _ if !self.has_received => self.refill(window),
            gap if gap <= DELAY_MIN / 2 => self.delay = self.delay / 2 + DELAY_MIN / 2,
            gap if gap < self.delay => self.delay = self.delay / 2 + gap,
            // The sender's window may have been reset meanwhile.
            gap if gap > DELAY_MAX => self.refill(window),
            _ => {}
        }
        self.delay = self.delay.clamp(DELAY_MIN, DELAY_MAX);
        (self.has_received, self.last) = (true, now);
    }

    /// Microseconds.
    #[inline]
    fn since_last(&self, now: Instant) -> u32 {
        let nanos = now.nanos().saturating_sub(self.last.nanos());
        u32::try_from(nanos / 1_000).unwrap_or(u32::MAX)
    }

    fn refill(&mut self, window: u32) {
        let half = (window / (2 * self.rcv_mss)).clamp(2, QUICK.into()) as u8;
        self.quick = self.quick.max(half);
    }
}
