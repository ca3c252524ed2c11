//! The data that the application has sent and the peer has not acknowledged yet, by sequence number.

use super::{
    BufferSizes,
    memory::Memory,
    seq::Seq,
    store::{Pieces, Store},
};
use crate::sync::Arc;
#[cfg(test)]
use crate::wire::checksum::Sum;
use std::{io::IoSlice, ops::Range};

/// How many chunks a connection may always have, so that it can send even when memory is exhausted.
const GRANTED: usize = 1;

/// Linux's overhead of each segment: `MAX_TCP_HEADER` and `struct skb_shared_info`; and `struct sk_buff`.
const OVERHEAD: u32 = 256 + 320;
const DESCRIPTOR: u32 = 256;

/// `TCP_INIT_CWND`.
const FIRST_WINDOW: u32 = 10;

/// Bytes from SND.UNA on.
#[derive(Debug)]
pub(super) struct SendBuffer {
    store: Store,
    /// The present limit of what it holds.
    limit: u32,
    /// The most it may grow to.
    max: u32,
}

impl SendBuffer {
    /// An empty buffer; its first byte will be number `first`: the one after the SYN.
    pub(super) fn new(first: Seq, sizes: BufferSizes, memory: Arc<Memory>) -> SendBuffer {
        let limit = sizes.initial.max(1);
        SendBuffer { store: Store::new(first, memory), limit, max: sizes.max.max(limit) }
    }

    /// Appends as much as there is room for, `most` bytes at the most; returns how many.
    #[inline(always)]
    pub(super) fn push(&mut self, from: &[IoSlice<'_>], most: usize) -> usize {
        let mut pushed = 0;
        for piece in from {
            let at = self.store.end();
            let room = self.room().min(most - pushed);
            let len = self.store.allowed(at, piece.len().min(room), GRANTED);
            self.store.write(at, piece.get(..len).unwrap_or_default());
            pushed += len;
            if len < piece.len() {
                break;
            }
        }
        pushed
    }

    /// Appends `data`, which it [takes](SendBuffer::takes).
    #[inline(always)]
    pub(super) fn append(&mut self, data: &[u8]) {
        self.store.append(data);
    }

    /// Bytes not acknowledged, sent or not: `SIOCOUTQ`.
    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.store.end() - self.store.start()) as usize
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.store.end() == self.store.start()
    }

    /// How many more bytes it takes.
    #[inline]
    pub(super) fn room(&self) -> usize {
        (self.limit as usize).saturating_sub(self.len())
    }

    /// Whether a waiting sender should be woken: a third of the buffer is free, as in Linux's
    /// `sk_stream_is_writeable`, so that a sender is woken for more than a segment.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        let used = self.len();
        let room = self.room();
        // With nothing in flight no ACK would wake a sender that waits for memory: its call reports the shortage
        // instead.
        let is_allowed = used == 0 || self.store.allowed(self.end(), 1, GRANTED) > 0;
        room > 0 && room >= used / 2 && is_allowed
    }

    /// Whether `len` more bytes would be taken now.
    #[inline(always)]
    pub(super) fn takes(&self, len: usize) -> bool {
        self.room() >= len && self.store.allowed(self.end(), len, GRANTED) >= len
    }

    /// SND.UNA as far as data is concerned: the first byte kept.
    #[inline]
    pub(super) fn start(&self) -> Seq {
        self.store.start()
    }

    /// The number of the next byte pushed; a FIN gets this number.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.store.end()
    }

    //= RFC 6675 4
    //# SACK information is advisory and therefore SACKed data MUST NOT be removed from the TCP's retransmission
    //# buffer until the data is cumulatively acknowledged [RFC2018].
    /// Drops the bytes before `una`, which may count a SYN or a FIN.
    #[inline]
    pub(super) fn ack(&mut self, una: Seq) {
        self.store.discard(una);
    }

    /// Drops all bytes.
    #[inline(always)]
    pub(super) fn ack_all(&mut self) {
        self.store.discard_all();
    }

    /// The bytes of a range that may count a SYN or a FIN.
    #[inline]
    pub(super) fn pieces(&self, range: Range<Seq>) -> Pieces<'_> {
        let start = range.start.max(self.start());
        self.store.pieces(start, (range.end - start) as usize)
    }

    /// Copies the bytes of a range to the front of `to`; returns how many, and their sum.
    #[cfg(test)]
    pub(super) fn copy(&self, range: Range<Seq>, to: &mut [u8]) -> (usize, Sum) {
        let (mut copied, mut sum) = (0, Sum::ZERO);
        for piece in self.pieces(range) {
            let Some(room) = to.get_mut(copied..copied + piece.len()) else { break };
            room.copy_from_slice(piece);
            let part = Sum::of(room);
            sum = sum.plus(if copied % 2 == 1 { part.shifted() } else { part });
            copied += piece.len();
        }
        (copied, sum)
    }

    /// The present limit: `SO_SNDBUF`.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Fixes the limit: `SO_SNDBUF`.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit.max(1);
        self.max = self.limit;
    }

    /// Takes no more.
    pub(super) fn hold(&mut self) {
        (self.limit, self.max) = (0, 0);
    }

    /// The connection is made: the limit becomes what Linux's buffer has for its first windows, overhead included
    /// (`tcp_sndbuf_expand`).
    pub(super) fn expand(&mut self, mss: u32, window: u32) {
        let segment = (mss + OVERHEAD).next_power_of_two() + DESCRIPTOR;
        let want = segment.saturating_mul(2 * window.max(FIRST_WINDOW)).min(self.max);
        self.limit = self.limit.max(want);
    }

    /// Lets the limit grow with the congestion window (bytes): two windows, one in flight and one to come, as Linux's
    /// `tcp_sndbuf_expand`. Called when the window has grown and was used up.
    #[inline]
    pub(super) fn grow(&mut self, congestion_window: u32) {
        let want = congestion_window.saturating_mul(2).min(self.max);
        if want > self.limit && !self.store.memory().pressure() {
            self.limit = want;
        }
    }

    /// Drops everything: the connection is closed.
    pub(super) fn clear(&mut self) {
        self.store.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::memory::CHUNK, *};
    use proptest::prelude::*;

    fn buffer(first: u32, initial: u32, max: u32, memory: u64) -> SendBuffer {
        let sizes = BufferSizes { initial, max };
        SendBuffer::new(Seq(first), sizes, Arc::new(Memory::new(memory)))
    }

    fn push(buffer: &mut SendBuffer, bytes: &[u8]) -> usize {
        buffer.push(&[IoSlice::new(bytes)], usize::MAX)
    }

    fn all(buffer: &SendBuffer, range: Range<Seq>) -> Vec<u8> {
        buffer.pieces(range).collect::<Vec<_>>().concat()
    }

    #[test]
    fn syn_and_fin_take_numbers_but_no_bytes() {
        let iss = Seq(u32::MAX);
        let mut buffer = buffer((iss + 1).0, 100, 100, 1 << 20);
        assert_eq!(push(&mut buffer, b"abcdef"), 6);
        assert_eq!(all(&buffer, iss..iss + 4), b"abc");
        buffer.ack(iss);
        buffer.ack(iss + 1);
        assert_eq!((buffer.len(), buffer.start()), (6, iss + 1));
        buffer.ack(iss + 3);
        assert_eq!(all(&buffer, iss + 4..iss + 8), b"def");
        buffer.ack(iss + 8);
        assert!(buffer.is_empty() && buffer.end() == iss + 7);
    }

    #[test]
    fn the_buffer_takes_what_its_limit_allows_and_grows_with_the_window() {
        let mut buffer = buffer(1, 1000, 5000, 1 << 20);
        let two = [IoSlice::new(&[1; 700]), IoSlice::new(&[2; 700])];
        assert_eq!((buffer.push(&two, 900), buffer.push(&two, 900)), (900, 100));
        assert_eq!((buffer.room(), buffer.is_writable()), (0, false));
        buffer.grow(100);
        assert_eq!(buffer.limit(), 1000);
        buffer.grow(700);
        assert_eq!((buffer.limit(), buffer.room(), buffer.is_writable()), (1400, 400, false));
        buffer.grow(u32::MAX);
        assert_eq!((buffer.limit(), buffer.is_writable()), (5000, true));
        buffer.set_limit(2000);
        buffer.grow(u32::MAX);
        assert_eq!(buffer.limit(), 2000);
    }

    #[test]
    fn under_pressure_the_buffer_does_not_grow_and_without_memory_it_still_moves() {
        let chunk = CHUNK as u64;
        let mut buffer = buffer(1, 1 << 20, 4 << 20, 6 * chunk);
        // Memory is used up: a large write takes what fits, the next takes nothing.
        assert_eq!(push(&mut buffer, &vec![1; 1 << 20]), 1 << 20);
        assert!(buffer.store.memory().exhausted());
        assert_eq!(push(&mut buffer, &[1]), 0);
        buffer.grow(4 << 20);
        assert_eq!(buffer.limit(), 1 << 20);
        // Another connection of the host gets its granted chunk.
        let sizes = BufferSizes { initial: 1 << 20, max: 1 << 20 };
        let mut other = SendBuffer::new(Seq(1), sizes, buffer.store.memory().clone());
        for _ in 0..10 {
            assert_eq!(push(&mut other, &vec![2; 3 * CHUNK]), CHUNK);
            assert!(!other.is_writable(), "or a waiting sender would try for ever");
            assert_eq!(push(&mut other, &[2]), 0);
            other.ack(other.end());
        }
        // As the first one drains, it is refilled at the rate of its grant.
        for _ in 0..1000 {
            let una = buffer.start() + 1000;
            buffer.ack(una);
            push(&mut buffer, &[3; 1000]);
            if buffer.is_empty() {
                break;
            }
        }
        buffer.ack(buffer.end());
        assert!(push(&mut buffer, &[3; 1000]) == 1000);
    }

    proptest! {
        #[test]
        fn equals_a_vector(
            first: u32,
            steps in prop::collection::vec((0..3000usize, 0..3000u32, 0..20_000usize), 1..60),
        ) {
            let mut buffer = buffer(first, 10_000, 10_000, 1 << 20);
            let mut sent = Vec::new();
            let mut una = 0;
            for (n, (len, acked, view)) in steps.into_iter().enumerate() {
                let bytes: Vec<_> = (0..len).map(|i| (n * 7 + i) as u8).collect();
                let (left, right) = bytes.split_at(len / 3);
                let pieces = [IoSlice::new(left), IoSlice::new(&[]), IoSlice::new(right)];
                let taken = buffer.push(&pieces, usize::MAX);
                prop_assert_eq!(taken, len.min(10_000 - (sent.len() - una)));
                sent.extend_from_slice(&bytes[..taken]);
                una = sent.len().min(una + acked as usize);
                buffer.ack(Seq(first) + una as u32);
                prop_assert_eq!(buffer.len(), sent.len() - una);
                let from = una + view.min(sent.len() - una);
                let range = Seq(first) + from as u32..Seq(first) + (from + view) as u32;
                let mut copy = vec![0; view];
                let (copied, sum) = buffer.copy(range.clone(), &mut copy);
                let expected = &sent[from..sent.len().min(from + view)];
                prop_assert_eq!(&copy[..copied], expected);
                prop_assert_eq!(sum.fold(), Sum::of(expected).fold());
                prop_assert_eq!(all(&buffer, range), expected);
            }
        }
    }
}
