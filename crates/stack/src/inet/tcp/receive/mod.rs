//! The receiving half of a connection: what has arrived and in which order, what the application may read, how much
//! more the peer may send, and when and how to acknowledge.
//!
//! Knows sequence numbers, bytes and the time it is given; nothing of states, timestamps or the wire format.

use super::{
    BufferSizes,
    memory::{CHUNK, Memory},
    segment::Sacks,
    seq::Seq,
    store::{Pieces, Store},
};
use crate::{sync::Arc, time::Instant, wire::Data};
use std::{hint::cold_path, io::IoSliceMut, ops::Range, time::Duration};

mod ack;
mod autotune;
mod reassembly;
#[cfg(test)]
mod tests;
mod window;

pub use ack::AckNeed;
use ack::Acks;
pub(super) use ack::DELAY_MIN;
use autotune::Autotune;
use reassembly::Reassembly;
use window::Window;

/// While memory is scarce the window beyond the buffered data is this many segments (Linux's
/// `tcp_adjust_rcv_ssthresh`).
const SCARCE: u32 = 4;
/// How far below RCV.NXT a number still counts as received before.
const PAST: u32 = 1 << 30;

/// The result of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    /// By how many bytes RCV.NXT has advanced, a FIN not counted: new data to read.
    pub(super) new_in_order: usize,
    /// With this segment all data up to the peer's FIN has arrived.
    pub(super) fin_reached: bool,
    /// There is a hole before it.
    pub(super) out_of_order: bool,
    /// Some or all of its data had arrived before.
    pub(super) duplicate: bool,
    /// It filled, or began to fill, the first hole.
    pub(super) filled_hole: bool,
    /// Data was dropped because memory is exhausted, or there are too many holes: some of this segment's, or
    /// out-of-order data from before.
    pub(super) dropped: bool,
    /// A waiting reader has [taken](DirectReader) the data: it is not in the buffer.
    pub(super) taken: bool,
}

/// Offers data to a waiting reader if it is all there is to read. The reader takes all of it, past the buffer, or
/// nothing. Returns whether it did.
pub(super) type DirectReader<'a> = dyn FnMut(&[u8], &[&[u8]]) -> bool + 'a;

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    /// From the first byte that the application has not read.
    store: Store,
    /// RCV.NXT.
    next: Seq,
    /// The data that has arrived beyond it.
    reassembly: Reassembly,
    /// The number of the peer's FIN, once it has arrived, in order or not.
    fin: Option<Seq>,
    window: Window,
    autotune: Autotune,
    acks: Acks,
    /// Duplicate data that was not reported yet.
    duplicate: Option<(Seq, Seq)>,
    /// Data before this is no duplicate: the number of the first byte, or 2^30 before RCV.NXT.
    oldest_duplicate: Seq,
    /// Whether to report duplicates at all.
    reports_duplicates: bool,
    /// The most data in a segment that the peer may send us.
    mss: u32,
}

impl Receiver {
    /// For a connection whose peer's SYN had number `irs`, and whose own SYN announced
    /// [`initial_window`](Receiver::initial_window) and `shift`.
    pub(super) fn new(
        irs: Seq,
        sizes: BufferSizes,
        shift: u8,
        mss: u32,
        memory: Arc<Memory>,
        now: Instant,
    ) -> Receiver {
        let next = irs + 1;
        let limit = sizes.initial;
        Receiver {
            store: Store::new(next, memory),
            next,
            reassembly: Reassembly::default(),
            fin: None,
            window: Window::new(next, limit, shift),
            autotune: Autotune::new(next, limit, sizes.max, mss, now),
            acks: Acks::new(next, mss),
            duplicate: None,
            oldest_duplicate: next,
            reports_duplicates: true,
            mss: mss.max(1),
        }
    }

    /// The window field of our SYN.
    pub(super) fn initial_window(sizes: BufferSizes) -> u16 {
        Window::initial(sizes.initial)
    }

    /// The window scale to offer in our SYN.
    pub(super) fn shift_for(sizes: BufferSizes) -> u8 {
        Window::shift_for(sizes.max.max(sizes.initial))
    }

    /// RCV.NXT.
    #[inline]
    pub(super) fn next(&self) -> Seq {
        self.next
    }

    /// Whether a segment with this number and SEG.LEN lies in the window, up to the furthest edge ever announced.
    #[inline]
    pub(super) fn acceptable(&self, seq: Seq, len: u32) -> bool {
        self.window.acceptable(self.next, seq, len)
    }

    /// A segment with `len` bytes of data was not acceptable. If the data is old, the acknowledgment that it calls
    /// for reports it as a duplicate (RFC 2883 section 4).
    pub(super) fn unacceptable(&mut self, seq: Seq, len: usize, now: Instant) {
        if let Some(again) = self.find_duplicate(&(seq..seq + len as u32)) {
            self.report(again);
            self.acks.enter_quick(self.window.edge() - self.next, now);
        } else {
            self.acks.at_once(now);
        }
    }

    /// Processes the data, and the FIN, of a segment. Bytes outside the window are ignored.
    #[cfg(test)]
    pub(super) fn segment(&mut self, seq: Seq, payload: &[u8], fin: bool, now: Instant) -> Arrived {
        self.segment_for(seq, payload.into(), fin, now, &mut |_, _| false)
    }

    /// As `segment`, for a reader that may be waiting.
    #[inline(always)]
    pub(super) fn segment_for(
        &mut self,
        seq: Seq,
        data: Data<'_>,
        fin: bool,
        now: Instant,
        reader: &mut DirectReader<'_>,
    ) -> Arrived {
        let len = data.len();
        let next_and_no_other =
            seq == self.next && !fin && self.fin.is_none() && self.reassembly.is_empty();
        let room = (self.window.edge() - seq) as usize;
        if !next_and_no_other || len > room || self.store.allowed(seq, len, self.granted()) < len {
            return self.segment_slow(seq, &data, fin, now);
        }
        let taken = len > 0 && self.available() == 0 && reader(data.first, data.rest.pieces());
        if taken {
            self.taken_directly(len, now);
        } else if len > 0 {
            self.next += len as u32;
            self.store.write(seq, data.first);
            if !data.rest.is_empty() {
                let mut at = seq + data.first.len() as u32;
                for piece in data.rest.pieces() {
                    self.store.write(at, piece);
                    at += piece.len() as u32;
                }
            }
            self.in_order(len, now);
        }
        Arrived { new_in_order: len, taken, ..Arrived::default() }
    }

    /// Whether `len` bytes at RCV.NXT, less than a full segment, would be all there is to read.
    #[inline(always)]
    pub(super) fn takes_directly(&self, len: usize) -> bool {
        len > 0
            && len < self.acks.rcv_mss() as usize
            && self.store.start() == self.next
            && self.fin.is_none()
            && self.reassembly.is_empty()
            && len <= (self.window.edge() - self.next) as usize
            && !self.store.memory().exhausted()
    }

    /// A waiting reader has taken the next `len` bytes, and the buffer is empty.
    #[inline(always)]
    pub(super) fn taken_directly(&mut self, len: usize, now: Instant) {
        self.next += len as u32;
        self.store.skip(self.next);
        self.in_order(len, now);
        self.was_read(now);
        self.acks.taken();
    }

    /// Whether nothing is unread, out of order or to be reported, and [each segment is answered](Acks::is_steady): requests
    /// and responses of less than `most` bytes alternate.
    pub(super) fn is_steady(&self, most: usize) -> bool {
        self.acks.is_steady()
            && self.store.is_clear()
            && self.store.start() == self.next
            && self.fin.is_none()
            && !self.has_sacks()
            && most < self.acks.rcv_mss() as usize
            && most < self.window.limit() as usize / 2
    }

    /// Whether the next `len` bytes, which come `now`, are as those before, while the receiver
    /// [is steady](Receiver::is_steady).
    #[inline(always)]
    pub(super) fn continues(&self, len: usize, now: Instant) -> bool {
        self.acks.continues(now)
            && len <= (self.window.edge() - self.next) as usize
            && !self.store.memory().exhausted()
    }

    /// As [`taken_directly`](Receiver::taken_directly), if the receiver [continues](Receiver::continues) as before.
    #[inline(always)]
    pub(super) fn taken_steadily(&mut self, len: usize, now: Instant) {
        self.next += len as u32;
        self.store.skip(self.next);
        self.autotune.arrived(self.next, self.window.edge(), now);
        self.acks.data_steadily(len as u32, now);
        self.was_read(now);
    }

    /// As [`window`](Receiver::window), while nothing is unread.
    #[inline(always)]
    pub(super) fn window_steadily(&mut self) -> u32 {
        if self.store.memory().pressure() {
            cold_path();
            return self.window();
        }
        let window = self.window.offer_empty(self.next, self.mss);
        self.window.announced(self.next, window);
        window
    }

    /// The slow path: old data, data out of order, FIN.
    fn segment_slow(&mut self, seq: Seq, data: &Data<'_>, fin: bool, now: Instant) -> Arrived {
        let end = seq + data.len() as u32;
        let mut arrived = Arrived::default();
        if fin {
            self.record_fin(end);
        }
        if let Some(again) = self.find_duplicate(&(seq..end)) {
            arrived.duplicate = true;
            self.report(again);
        }
        //= RFC 9293 3.10.7.4
        //# If a segment's contents straddle the boundary between old and new, only the new parts are processed.
        let new = seq.max(self.next)..end.min(self.window.edge()).min(self.fin.unwrap_or(end));
        let some = new.start.before(new.end);
        if new.start != self.next {
            arrived.out_of_order = some || fin;
            arrived.dropped = some && !self.queue_out_of_order(seq, data, new);
        } else if some {
            self.advance(seq, data, new, &mut arrived);
        }
        if self.fin == Some(self.next) {
            self.next += 1;
            arrived.fin_reached = true;
            // The peer can send nothing twice from now on (`tcp_fin` resets the SACK state).
            self.duplicate = None;
        }
        let trimmed = (self.next.max(seq)).before(end);
        let Arrived { out_of_order, filled_hole, dropped, .. } = arrived;
        if arrived.duplicate {
            self.acks.enter_quick(self.window.edge() - self.next, now);
        } else if out_of_order || filled_hole || dropped || trimmed {
            self.acks.at_once(now);
        } else if arrived.new_in_order > 0 {
            self.in_order(data.len(), now);
        }
        if arrived.fin_reached {
            self.acks.fin(now);
        }
        arrived
    }

    /// Data in order. `new` is not empty.
    fn advance(&mut self, seq: Seq, data: &Data<'_>, mut new: Range<Seq>, arrived: &mut Arrived) {
        let len = (new.end - new.start) as usize;
        let mut allowed = self.store.allowed(new.start, len, self.granted());
        if allowed < len && !self.reassembly.is_empty() {
            // RFC 2018 section 8 lets a receiver that runs out of memory drop what it holds out of order.
            self.reassembly.clear();
            self.store.cut(self.next);
            allowed = self.store.allowed(new.start, len, self.granted());
            arrived.dropped = true;
        }
        arrived.dropped |= allowed < len;
        new.end = new.start + allowed as u32;
        arrived.filled_hole = !self.reassembly.is_empty();
        self.write_new(seq, data, new.clone());
        self.next = self.reassembly.advance(new.end);
        arrived.new_in_order = (self.next - new.start) as usize;
    }

    //= RFC 9293 3.10.7.4
    //# Segments with higher beginning sequence numbers SHOULD be held for later processing (SHLD-31).
    /// Data beyond a hole; returns whether it was kept. `new` is not empty.
    fn queue_out_of_order(&mut self, seq: Seq, data: &Data<'_>, new: Range<Seq>) -> bool {
        let len = (new.end - new.start) as usize;
        let fits = self.reassembly.fits(&new);
        let fits = fits && self.store.allowed(new.start, len, self.granted()) == len;
        if fits {
            self.write_new(seq, data, new.clone());
            self.reassembly.add(new);
        }
        fits
    }

    /// Writes the part of `new` that is not there yet; `data` begins at `seq`.
    fn write_new(&mut self, seq: Seq, data: &Data<'_>, new: Range<Seq>) {
        for gap in self.reassembly.gaps(new) {
            let mut at = gap.start;
            for piece in data.range((gap.start - seq) as usize, (gap.end - seq) as usize) {
                self.store.write(at, piece);
                at += piece.len() as u32;
            }
        }
    }

    #[inline(always)]
    fn in_order(&mut self, len: usize, now: Instant) {
        let (window, limit) = (self.window.edge() - self.next, self.window.limit());
        self.autotune.arrived(self.next, self.window.edge(), now);
        self.acks.data(len as u32, self.next, window, limit, self.mss, now);
    }

    /// Records where the peer's data ends. The first FIN counts, unless data has arrived that would lie behind it.
    fn record_fin(&mut self, at: Seq) {
        let behind = self.reassembly.end().unwrap_or(self.next).max(self.next);
        if self.fin.is_none() && behind.at_most(at) && at.at_most(self.window.edge()) {
            self.fin = Some(at);
        }
    }

    /// The first run of bytes in `range` that arrived before (RFC 2883 section 4).
    fn find_duplicate(&self, range: &Range<Seq>) -> Option<Range<Seq>> {
        let old = range.start..range.end.min(self.data_end());
        if self.oldest_duplicate.at_most(old.start) && old.start.before(old.end) {
            return Some(old);
        }
        self.reassembly.duplicate(range)
    }

    /// Reports duplicate data with the next acknowledgment, in one block with what is to be reported already if they
    /// meet (Linux's `tcp_dsack_extend`).
    fn report(&mut self, again: Range<Seq>) {
        if !self.reports_duplicates {
            return;
        }
        let new = (again.start, again.end);
        self.duplicate = Some(match self.duplicate {
            Some((start, end)) if start.at_most(new.1) && new.0.at_most(end) => {
                (start.min(new.0), end.max(new.1))
            }
            Some(old) => old,
            None => new,
        });
    }

    /// How many chunks a connection may always have: enough for the window to advance by a segment.
    fn granted(&self) -> usize {
        1 + self.mss.max(self.window.unit()) as usize / CHUNK
    }

    /// How many bytes the application can read now.
    #[inline]
    pub(super) fn available(&self) -> usize {
        (self.data_end() - self.store.start()) as usize
    }

    /// Whether a reader that waits for `low` bytes (`SO_RCVLOWAT`) should read: they are there, or no more can arrive
    /// until it reads (Linux's `tcp_epollin_ready`).
    #[inline]
    pub(super) fn is_readable(&self, low: u32) -> bool {
        let available = self.available();
        available >= low.max(1) as usize
            || available > 0 && self.window.edge() - self.next <= self.acks.rcv_mss()
    }

    /// RCV.NXT, a FIN not counted.
    #[inline]
    fn data_end(&self) -> Seq {
        if self.fin_reached() { self.next - 1u32 } else { self.next }
    }

    /// Whether all data up to the peer's FIN has come.
    #[inline]
    pub(super) fn fin_reached(&self) -> bool {
        self.fin.is_some_and(|fin| fin.before(self.next))
    }

    /// Whether the application has read all data up to the peer's FIN.
    #[cfg(test)]
    #[inline]
    pub(super) fn finished(&self) -> bool {
        self.fin_reached() && self.available() == 0
    }

    /// Moves readable data to `into`; returns how many bytes.
    pub(super) fn read(&mut self, into: &mut [IoSliceMut<'_>], now: Instant) -> usize {
        let len = self.peek(into);
        self.discard(len, now);
        len
    }

    /// As [`read`](Receiver::read), but the data stays.
    #[inline]
    pub(super) fn peek(&self, into: &mut [IoSliceMut<'_>]) -> usize {
        self.peek_part(0, usize::MAX, into)
    }

    /// As [`peek`](Receiver::peek), after the first `skip` bytes, and `most` bytes at the most.
    pub(super) fn peek_part(&self, skip: usize, most: usize, into: &mut [IoSliceMut<'_>]) -> usize {
        let skip = skip.min(self.available());
        let there = (self.available() - skip).min(most);
        let (mut at, mut left) = (self.store.start() + skip as u32, there);
        for slice in into {
            let mut room = &mut slice[..];
            for piece in self.store.pieces(at, left.min(room.len())) {
                let (here, rest) = room.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                room = rest;
                at += piece.len() as u32;
                left -= piece.len();
            }
        }
        there - left
    }

    /// The first byte not read yet.
    pub(super) fn read_up_to(&self) -> Seq {
        self.store.start()
    }

    /// RCV.NXT and the right edge of the window offered last.
    pub(super) fn offered(&self) -> (Seq, Seq) {
        (self.next, self.window.edge())
    }

    /// The peer may send up to `edge`: the kernel has announced that, before the connection was taken over from it.
    pub(super) fn honour(&mut self, edge: Seq) {
        if edge.after(self.next) {
            self.window.announced(self.next, edge - self.next);
        }
    }

    /// What can be read.
    pub(super) fn unread(&self) -> Pieces<'_> {
        self.store.pieces(self.store.start(), self.available())
    }

    /// Drops readable data, `len` bytes at the most.
    pub(super) fn discard(&mut self, len: usize, now: Instant) {
        let len = len.min(self.available());
        if len == 0 {
            return;
        }
        self.store.discard(self.store.start() + len as u32);
        self.was_read(now);
        self.acks.read(self.available() == 0, self.next);
    }

    /// The data before the store's first byte was read, some of it just now: adapts the buffer.
    #[inline(always)]
    fn was_read(&mut self, now: Instant) {
        if !self.store.memory().pressure() && self.autotune.is_due(now) {
            let read = self.store.start();
            let (limit, unread) = (self.window.limit(), self.available() as u32);
            let larger = self.autotune.read(read, unread, limit, self.mss, now);
            if larger > limit {
                self.window.set_limit(larger);
            }
        }
    }

    /// The window to announce now, in bytes: a multiple of the unit of our window scale. Called for every segment
    /// sent, with [`acknowledged`](Receiver::acknowledged).
    #[inline]
    pub(super) fn window(&mut self) -> u32 {
        let window = self.offer();
        self.window.announced(self.next, window);
        window
    }

    #[inline(always)]
    fn offer(&self) -> u32 {
        let memory = self.store.memory();
        let free = if memory.pressure() { self.scarce() } else { u32::MAX };
        self.window.offer(self.store.start(), self.next, self.mss, free)
    }

    #[cold]
    fn scarce(&self) -> u32 {
        let few = self.mss.saturating_mul(SCARCE).max(self.window.unit());
        self.store.allowed(self.next, few as usize, self.granted()) as u32
    }

    /// Whether the application has read so much that a window update is sent even without any other reason: the
    /// window can be twice what it is (Linux's `tcp_cleanup_rbuf`).
    #[inline(always)]
    pub(super) fn window_update_due(&self) -> bool {
        let left = self.window.edge() - self.next;
        left <= self.window.limit() / 2 && !self.fin_reached() && self.is_worth_an_update(left)
    }

    #[cold]
    fn is_worth_an_update(&self, left: u32) -> bool {
        let new = self.offer();
        new > left && new / 2 >= left
    }

    /// A window update is due, and a polling reader may answer and carry it.
    #[cold]
    pub(super) fn announce_quickly(&mut self, now: Instant) {
        self.acks.quickly(now);
    }

    /// Whether there are SACK blocks to send.
    #[inline]
    pub(super) fn has_sacks(&self) -> bool {
        self.duplicate.is_some() || !self.reassembly.is_empty()
    }

    /// The SACK blocks to send: duplicate data first (RFC 2883), then held data, newest first (RFC 2018 section 4).
    pub(super) fn sacks(&self) -> Sacks {
        let mut sacks = Sacks::default();
        if let Some((start, end)) = self.duplicate {
            sacks.push(start..end);
        }
        if !self.reassembly.is_empty() {
            for block in self.reassembly.newest() {
                if !sacks.push(block) {
                    break;
                }
            }
        }
        sacks
    }

    /// When an acknowledgment has to be sent.
    #[inline]
    pub(super) fn ack_need(&self) -> AckNeed {
        self.acks.need()
    }

    /// A segment with ACK was sent, with [`next`](Receiver::next), [`window`](Receiver::window) and
    /// [`sacks`](Receiver::sacks).
    #[inline]
    pub(super) fn acknowledged(&mut self) {
        self.acks.ack_sent(self.next);
        self.duplicate = None;
        if self.next - self.oldest_duplicate > PAST {
            self.oldest_duplicate = self.next - PAST;
        }
    }

    /// See [`Acks::leave_to_reader`].
    #[inline]
    pub(super) fn leave_ack_to_reader(&mut self) -> bool {
        self.acks.leave_to_reader()
    }

    /// See [`Acks::reader_waits`].
    pub(super) fn reader_waits(&mut self) {
        self.acks.reader_waits();
    }

    /// The time of [`AckNeed::By`] has come: from here on it is [`AckNeed::Now`].
    pub(super) fn ack_timer(&mut self, now: Instant) {
        self.acks.expired(self.next, now);
    }

    /// We send new data (not a retransmission).
    #[inline]
    pub(super) fn answered(&mut self, now: Instant) {
        self.acks.answered(now);
    }

    /// `tcp_dsack`: whether [`sacks`](Receiver::sacks) reports duplicate data; it does by default.
    pub(super) fn set_report_duplicates(&mut self, report: bool) {
        self.reports_duplicates = report;
    }

    /// `TCP_QUICKACK`.
    pub(super) fn set_quick_ack(&mut self, quick: bool) {
        self.acks.set_quick(quick);
    }

    /// What `TCP_QUICKACK` reads.
    pub(super) fn quick_ack(&self) -> bool {
        self.acks.is_quick()
    }

    /// A segment with data echoed a timestamp of ours of this age: the round trip as the receiver sees it.
    #[inline]
    pub(super) fn round_trip(&mut self, rtt: Duration) {
        self.autotune.sample(rtt);
    }

    /// The same, smoothed: `tcpi_rcv_rtt`. Zero while unknown.
    pub(super) fn rtt(&self) -> Duration {
        self.autotune.rtt()
    }

    /// The most the application has read in one round trip: `tcpi_rcv_space`. Bytes.
    pub(super) fn space(&self) -> u32 {
        self.autotune.space()
    }

    /// The size of the peer's full segments, as far as it has shown: `tcpi_rcv_mss`.
    pub(super) fn peer_mss(&self) -> u32 {
        self.acks.rcv_mss()
    }

    /// The present limit of the buffer: `SO_RCVBUF`.
    pub(super) fn limit(&self) -> u32 {
        self.window.limit()
    }

    /// Limits the window whatever the buffer holds: `TCP_WINDOW_CLAMP`. Bytes; 0: no limit.
    pub(super) fn set_window_clamp(&mut self, bytes: u32) {
        self.window.set_clamp(bytes);
    }

    /// Fixes the size of the buffer: `SO_RCVBUF`. A window once announced stays valid.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.window.set_limit(limit);
        self.keep_limit();
    }

    /// Stops the autotuning of the buffer.
    pub(super) fn keep_limit(&mut self) {
        self.autotune.fix();
    }

    /// Drops all data: the connection is closed.
    pub(super) fn clear(&mut self) {
        self.reassembly.clear();
        self.store.cut(self.next);
        self.store.clear();
    }
}
