//! Datagrams as recvmsg(2) and sendmsg(2) move them: in pieces, with their full length, waiting or not call by
//! call. For those who bring the calls of C to our sockets.

use super::{
    UdpSocket,
    buffer::{Buffer, Meta},
    endpoint::Endpoint,
    find::Find,
};
use crate::{
    napi::{Direct, NapiId},
    socket::{NOBODY, waiting::Call},
    time::Instant,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
};

/// How one receive goes, whatever its socket's options say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveFlags {
    /// What is received stays (`MSG_PEEK`).
    pub peek: bool,
    /// `WouldBlock` instead of waiting (`MSG_DONTWAIT`).
    pub dont_wait: bool,
}

/// A datagram received by [`UdpSocket::recv_message`].
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// How many of its bytes were copied.
    pub copied: usize,
    /// How many it has; more than were copied if there was not enough room.
    pub len: usize,
    /// Who sent it; port 0 if there was none, as the socket is shut down.
    pub from: SocketAddr,
    /// The local address that it was sent to.
    pub to: SocketAddr,
    /// The hops it had left (IPv4's time to live, IPv6's hop limit).
    pub ttl: u8,
    /// IPv4's type of service, IPv6's traffic class.
    pub tos: u8,
    /// The NAPI context whose queue it came over; `None`: through the kernel.
    pub napi: Option<NapiId>,
    /// When the pass that found it began.
    pub arrived: Instant,
}

impl Message {
    fn new((meta, copied): (Meta, usize)) -> Message {
        let Meta { len, napi, from, to, ttl, tos, arrived } = meta;
        Message { copied, len: len as usize, from, to, ttl, tos, napi, arrived }
    }
}

/// Receives one datagram into pieces, past the queue if its own poll finds it.
struct One<'a, 'b> {
    endpoint: &'a Endpoint,
    find: Find<'a, 'b>,
    peek: bool,
}

impl Call for One<'_, '_> {
    type Output = Option<(Meta, usize)>;

    #[inline]
    fn attempt(&mut self) -> Option<io::Result<Self::Output>> {
        if let Some(found) = self.find.take() {
            return Some(Ok(Some(found)));
        }
        let into = &mut *self.find.into;
        self.endpoint.take(|waiting: &mut Buffer| match self.peek {
            true => waiting.peek(into),
            false => waiting.pop_pieces(into),
        })
    }

    #[inline]
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        // What is only looked at has to stay.
        if self.peek { None } else { Some(&mut self.find) }
    }
}

impl UdpSocket {
    /// Receives a datagram into `pieces`, one after the other; what does not fit is lost. Waits as
    /// [`recv`](UdpSocket::recv), but for what `flags` say.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn recv_message(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> io::Result<Message> {
        let nothing = Message {
            copied: 0,
            len: 0,
            from: NOBODY,
            to: NOBODY,
            ttl: 0,
            tos: 0,
            napi: None,
            arrived: Instant::ZERO,
        };
        Ok(self.receive_one(pieces, flags)?.map_or(nothing, Message::new))
    }

    /// `None`: the socket is shut down.
    #[inline]
    pub(super) fn receive_one(
        &self,
        into: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> io::Result<Option<(Meta, usize)>> {
        let endpoint = &*self.0.endpoint;
        let waiting = &endpoint.waiting;
        let at_once = flags.dont_wait || waiting.is_nonblocking();
        let call = One { endpoint, find: Find::new(into), peek: flags.peek };
        waiting.wait_unless(at_once, endpoint, &waiting.reading, call)
    }

    /// Sends a datagram made of `pieces` to `to`, or to where the socket is connected to. Does not wait for room
    /// on the ring if `dont_wait`.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    pub fn send_message(
        &self,
        pieces: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<usize> {
        self.0.send_pieces(pieces, to, dont_wait)
    }
}
