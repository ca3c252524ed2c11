//! A socket's receive buffer: datagrams in order, each copied in once from the ring. Its memory grows to the most that
//! the socket has needed, up to its limit; a socket that has queued no datagram has none.

use crate::{
    inet::Meta,
    memory_pressure::{self, Level},
    wire::Data,
};
use std::{
    collections::VecDeque,
    io::{IoSliceMut, Read},
};

/// What each datagram counts in addition to its bytes, so that empty ones are limited too.
const OVERHEAD: usize = 64;

/// Datagrams waiting to be received.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    metas: VecDeque<Meta>,
    bytes: VecDeque<u8>,
}

impl Buffer {
    /// The number of datagrams.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.metas.len()
    }

    /// The number of their bytes.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a datagram. False if that would take more than `limit` bytes; an empty buffer always takes one.
    #[inline]
    pub(super) fn push(&mut self, meta: Meta, payload: &[u8], limit: usize) -> bool {
        let takes = self.make_room(payload.len(), limit);
        if takes {
            self.metas.push_back(meta);
            self.bytes.extend(payload);
        }
        takes
    }

    /// As [`push`](Buffer::push), for a datagram in several pieces.
    pub(super) fn push_pieces(&mut self, meta: Meta, payload: &Data<'_>, limit: usize) -> bool {
        let takes = self.make_room(payload.len(), limit);
        if takes {
            self.metas.push_back(meta);
            payload.pieces().for_each(|piece| self.bytes.extend(piece));
        }
        takes
    }

    #[inline]
    fn make_room(&mut self, len: usize, limit: usize) -> bool {
        let used = self.bytes.len() + (self.metas.len() + 1) * OVERHEAD;
        if used + len > limit && !self.metas.is_empty() {
            return false;
        }
        let has_room = self.metas.len() < self.metas.capacity()
            && self.bytes.capacity() - self.bytes.len() >= len;
        has_room || self.grow(len)
    }

    /// Allocates room for one more datagram of `len` bytes, if there is memory. While it is short, one datagram at a time
    /// keeps the socket in service.
    #[cold]
    fn grow(&mut self, len: usize) -> bool {
        let refused = if self.metas.is_empty() { Level::Out } else { Level::Short };
        !memory_pressure::is(refused)
            && self.metas.try_reserve(1).is_ok()
            && self.bytes.try_reserve(len).is_ok()
    }

    /// The oldest datagram.
    pub(super) fn front(&self) -> Option<&Meta> {
        self.metas.front()
    }

    /// Moves the oldest datagram into `into`; bytes that do not fit are lost, as with any datagram socket.
    /// Returns its metadata and the number of bytes copied.
    #[inline]
    pub(super) fn pop(&mut self, into: &mut [u8]) -> Option<(Meta, usize)> {
        let meta = self.metas.pop_front()?;
        let len = meta.len as usize;
        let copied = len.min(into.len());
        // Reading from a VecDeque cannot fail.
        let _ = self.bytes.read_exact(&mut into[..copied]);
        if copied < len {
            self.bytes.drain(..len - copied);
        }
        Some((meta, copied))
    }

    /// As [`pop`](Buffer::pop), into several buffers, one after the other.
    pub(super) fn pop_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> Option<(Meta, usize)> {
        if let [one] = into {
            return self.pop(one);
        }
        let found = self.peek(into)?;
        self.metas.pop_front();
        self.bytes.drain(..found.0.len as usize);
        Some(found)
    }

    /// Copies the oldest datagram into several buffers without removing it.
    pub(super) fn peek(&self, into: &mut [IoSliceMut<'_>]) -> Option<(Meta, usize)> {
        let meta = *self.metas.front()?;
        let (head, tail) = self.bytes.as_slices();
        let first = (meta.len as usize).min(head.len());
        let second = (meta.len as usize - first).min(tail.len());
        let copied = scatter([&head[..first], &tail[..second]], into);
        Some((meta, copied))
    }

    /// Drops all datagrams and frees the memory.
    pub(super) fn clear(&mut self) {
        *self = Buffer::default();
    }
}

/// Copies `from` into the buffers of `into`, one after the other. Returns the number of bytes copied.
pub(super) fn scatter<'a>(
    from: impl IntoIterator<Item = &'a [u8]>,
    into: &mut [IoSliceMut<'_>],
) -> usize {
    let mut from = from.into_iter();
    let mut rest = from.next().unwrap_or_default();
    let mut copied = 0;
    for piece in into {
        let mut at = 0;
        while at < piece.len() {
            if rest.is_empty() {
                match from.next() {
                    Some(next) => rest = next,
                    None => return copied,
                }
                continue;
            }
            let len = rest.len().min(piece.len() - at);
            piece[at..at + len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
            at += len;
            copied += len;
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{time::Instant, wire::Rest};
    use std::net::SocketAddr;

    fn meta(len: usize) -> Meta {
        let address = SocketAddr::from(([10, 0, 0, 1], 7));
        let (len, arrived) = (len as u32, Instant::ZERO);
        Meta { len, napi: None, from: address, to: address, ttl: 64, tos: 0, arrived }
    }

    #[test]
    fn a_datagram_in_pieces_is_kept_as_in_one() {
        let (mut buffer, bytes) = (Buffer::default(), [1, 2, 3, 4, 5]);
        let rest = &[&bytes[2..2], &bytes[2..4], &bytes[4..]][..];
        let data = Data { first: &bytes[..2], rest: Rest::of(&rest) };
        assert!(buffer.push_pieces(meta(5), &data, 0), "an empty buffer takes one");
        assert!(!buffer.push_pieces(meta(5), &data, 2 * OVERHEAD + 9));
        assert!(buffer.push_pieces(meta(5), &data, 2 * OVERHEAD + 10));
        for _ in 0..2 {
            let mut into = [0; 9];
            assert_eq!(
                buffer.pop(&mut into).map(|(meta, copied)| (meta.len, copied)),
                Some((5, 5))
            );
            assert_eq!(into[..5], bytes);
        }
    }

    #[test]
    fn datagrams_come_out_as_they_went_in_across_wraparound() {
        let mut buffer = Buffer::default();
        let mut into = [0; 300];
        for round in 0..1000usize {
            let payload: Vec<u8> = (0..round % 257).map(|i| (i + round) as u8).collect();
            assert!(buffer.push(meta(payload.len()), &payload, 10_000));
            assert!(buffer.push(meta(1), &[round as u8], 10_000));
            let (_, peeked) = buffer.peek(&mut [IoSliceMut::new(&mut into)]).unwrap();
            assert_eq!(into[..peeked], payload);
            let (_, copied) = buffer.pop(&mut into).unwrap();
            assert_eq!(into[..copied], payload);
            assert_eq!(buffer.pop(&mut into).unwrap().1, 1);
            assert_eq!(into[0], round as u8);
        }
        assert!(buffer.pop(&mut into).is_none());
    }

    #[test]
    fn a_datagram_within_the_limit_fits_and_an_empty_buffer_takes_any() {
        let two = 2 * OVERHEAD + 5 + 3;
        for (limit, fits) in [(two, true), (two - 1, false), (0, false)] {
            let mut buffer = Buffer::default();
            assert!(buffer.push(meta(5), b"12345", limit));
            assert_eq!(buffer.push(meta(3), b"678", limit), fits, "{limit}");
            assert_eq!((buffer.len(), buffer.bytes()), if fits { (2, 8) } else { (1, 5) });
        }
    }

    #[test]
    fn a_short_buffer_cuts_one_datagram_but_not_the_next() {
        let mut buffer = Buffer::default();
        buffer.push(meta(5), b"12345", 1000);
        buffer.push(meta(2), b"67", 1000);
        let mut into = [0; 3];
        assert_eq!(buffer.pop(&mut into).unwrap().1, 3);
        assert_eq!(&into, b"123");
        assert_eq!(buffer.pop(&mut into).unwrap().1, 2);
        assert_eq!(&into[..2], b"67");
    }

    #[test]
    fn several_buffers_receive_the_same_bytes_as_one_across_wraparound() {
        let mut buffer = Buffer::default();
        for round in 0..600usize {
            let payload: Vec<u8> = (0..round % 97).map(|i| (i + round) as u8).collect();
            buffer.push(meta(payload.len()), &payload, 100_000);
            buffer.push(meta(2), &[1, 2], 100_000);
            let (mut a, mut b, mut c) = ([0; 7], [0; 0], [0; 61]);
            let take =
                |buffer: &mut Buffer, peek: bool, a: &mut [u8], b: &mut [u8], c: &mut [u8]| {
                    let mut pieces = [IoSliceMut::new(a), IoSliceMut::new(b), IoSliceMut::new(c)];
                    match peek {
                        true => buffer.peek(&mut pieces).unwrap(),
                        false => buffer.pop_vectored(&mut pieces).unwrap(),
                    }
                };
            for peek in [true, false] {
                let (meta, copied) = take(&mut buffer, peek, &mut a, &mut b, &mut c);
                assert_eq!((meta.len as usize, copied), (payload.len(), payload.len().min(68)));
                let got = [&a[..], &c[..]].concat();
                assert_eq!(got[..copied], payload[..copied]);
            }
            let (_, copied) = take(&mut buffer, false, &mut a, &mut b, &mut c);
            assert_eq!((copied, &a[..2]), (2, &[1, 2][..]));
        }
    }

    /// The ring is never empty, so it does not start anew.
    #[test]
    fn a_datagram_across_the_end_of_the_ring_is_no_longer_than_it_is() {
        let mut buffer = Buffer::default();
        let (mut into, mut split) = ([0; 20], 0);
        assert!(buffer.push(meta(5), &[0; 5], 10_000));
        for round in 1..200 {
            assert!(buffer.push(meta(5), &[round; 5], 10_000));
            split += usize::from((1..5).contains(&buffer.bytes.as_slices().0.len()));
            let (_, copied) = buffer.peek(&mut [IoSliceMut::new(&mut into)]).unwrap();
            assert_eq!((copied, &into[..5]), (5, &[round - 1; 5][..]));
            buffer.pop(&mut into).unwrap();
        }
        assert!(split > 0);
    }

    #[test]
    fn the_limit_holds_for_empty_datagrams_too() {
        let mut buffer = Buffer::default();
        let taken = (0..100).filter(|_| buffer.push(meta(0), &[], 640)).count();
        assert_eq!(taken, 10);
        let mut one = Buffer::default();
        assert!(one.push(meta(5), b"large", 1), "a buffer smaller than a datagram still takes one");
    }
}
