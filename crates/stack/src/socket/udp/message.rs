//! Receive and send as recvmsg(2) and sendmsg(2) do it: with several buffers, the full length, and flags for each call.
//! For a library that maps the C calls to our sockets.

use super::{
    UdpSocket,
    buffer::{Buffer, Meta},
    direct_delivery::ReceiveBuffers,
    endpoint::Endpoint,
};
use crate::{
    napi::{DirectBuffer, NapiId},
    socket::{UNSPECIFIED, waiting::Call},
    time::Instant,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
};

/// The flags of one receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveFlags {
    /// The data stays unread (`MSG_PEEK`).
    pub peek: bool,
    /// `WouldBlock` instead of waiting (`MSG_DONTWAIT`).
    pub dont_wait: bool,
}

/// A datagram received by [`UdpSocket::recv_message`].
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The number of bytes copied.
    pub copied: usize,
    /// The full length; greater than `copied` if the buffers were too small.
    pub len: usize,
    /// The sender; port 0 if there is no datagram, because the socket is shut down.
    pub from: SocketAddr,
    /// The local address that it was sent to.
    pub to: SocketAddr,
    /// The hops it had left (IPv4's time to live, IPv6's hop limit).
    pub ttl: u8,
    /// IPv4's type of service, IPv6's traffic class.
    pub tos: u8,
    /// The NAPI context that it came from; `None`: through the kernel.
    pub napi: Option<NapiId>,
    /// The time when the pass that found it began.
    pub arrived: Instant,
}

impl Message {
    fn new((meta, copied): (Meta, usize)) -> Message {
        let Meta { len, napi, from, to, ttl, tos, arrived } = meta;
        Message { copied, len: len as usize, from, to, ttl, tos, napi, arrived }
    }
}

/// Receives one datagram into several buffers; by direct delivery if its own poll finds it.
struct ReceiveCall<'a, 'b> {
    endpoint: &'a Endpoint,
    direct: ReceiveBuffers<'a, 'b>,
    peek: bool,
}

impl Call for ReceiveCall<'_, '_> {
    type Output = Option<(Meta, usize)>;

    #[inline]
    fn attempt(&mut self) -> Option<io::Result<Self::Output>> {
        if let Some(found) = self.direct.take_delivered() {
            return Some(Ok(Some(found)));
        }
        let into = &mut *self.direct.into;
        self.endpoint.take(|waiting: &mut Buffer| match self.peek {
            true => waiting.peek(into),
            false => waiting.pop_vectored(into),
        })
    }

    #[inline]
    fn direct(&mut self) -> Option<&mut dyn DirectBuffer> {
        // A peeked datagram has to stay in the queue.
        if self.peek { None } else { Some(&mut self.direct) }
    }
}

impl UdpSocket {
    /// Receives a datagram into `pieces`, one after the other; bytes that do not fit are lost. Waits as
    /// [`recv`](UdpSocket::recv), except for the `flags`.
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
            from: UNSPECIFIED,
            to: UNSPECIFIED,
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
        let nonblocking = flags.dont_wait || waiting.is_nonblocking();
        let call = ReceiveCall { endpoint, direct: ReceiveBuffers::new(into), peek: flags.peek };
        waiting.wait_nonblocking_if(nonblocking, endpoint, &waiting.reading, call)
    }

    /// Sends a datagram made of `pieces` to `to`, or to the socket's peer. Does not wait for room on the ring if
    /// `dont_wait`.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    pub fn send_message(
        &self,
        pieces: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<usize> {
        self.0.send_vectored(pieces, to, dont_wait)
    }
}
