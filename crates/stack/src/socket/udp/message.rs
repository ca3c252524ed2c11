//! Receive and send as recvmsg(2) and sendmsg(2) do it: with several buffers, the full length, and flags for each call.
//! For a library that maps the C calls to our sockets.

use super::{UdpSocket, buffer::Buffer, direct_delivery::ReceiveBuffers, endpoint::Endpoint};
use crate::{
    inet::{Context, Meta, UdpEndpoint},
    napi::{DirectBuffer, NapiId, Waiter},
    socket::{
        UNSPECIFIED,
        waiting::{AlreadyReady, Call, WaitChannel},
    },
    time::Instant,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
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
    fn new(meta: &Meta, copied: usize) -> Message {
        let &Meta { len, napi, from, to, ttl, tos, arrived } = meta;
        Message { copied, len: len as usize, from, to, ttl, tos, napi, arrived }
    }
}

/// Receives one datagram into several buffers; by direct delivery if its own poll finds it.
struct ReceiveCall<'a, 'b> {
    endpoint: &'a Endpoint,
    direct: ReceiveBuffers<'a, 'b>,
    peek: bool,
}

impl ReceiveCall<'_, '_> {
    /// Takes a queued datagram, or what else makes the call return.
    #[inline(never)]
    fn take_queued(&mut self) -> Option<io::Result<Option<usize>>> {
        let ReceiveBuffers { into, meta, .. } = &mut self.direct;
        self.endpoint.take(|waiting: &mut Buffer| {
            let (found, copied) = match self.peek {
                true => waiting.peek(into)?,
                false => waiting.pop_vectored(into)?,
            };
            *meta = Some(found);
            Some(copied)
        })
    }
}

impl Call for ReceiveCall<'_, '_> {
    /// How many bytes had room; `None`: the socket is shut down.
    type Output = Option<usize>;

    #[inline(always)]
    fn attempt(&mut self) -> Option<io::Result<Self::Output>> {
        if let Some(found) = self.direct.take_delivered() {
            return Some(Ok(Some(found)));
        }
        if self.endpoint.is_pending() { self.take_queued() } else { None }
    }

    #[inline]
    fn direct(&mut self) -> Option<&mut dyn DirectBuffer<Meta>> {
        // A peeked datagram has to stay in the queue.
        if self.peek { None } else { Some(&mut self.direct) }
    }
}

/// The wait channel of a receive: the endpoint's, with the name by which inet knows it.
struct ReceiveChannel<'a> {
    endpoint: &'a Endpoint,
    expected: &'a Arc<dyn UdpEndpoint>,
}

impl WaitChannel for ReceiveChannel<'_> {
    #[inline]
    fn is_ready(&self) -> bool {
        self.endpoint.is_ready()
    }

    #[inline]
    fn poller_id(&self) -> usize {
        self.endpoint.poller_id()
    }

    #[inline]
    fn expected_socket(&self) -> Option<&Arc<dyn UdpEndpoint>> {
        Some(self.expected)
    }

    #[inline]
    fn context(&self) -> Option<Arc<Context>> {
        self.endpoint.context()
    }

    #[inline]
    fn known_context(&self) -> Option<&Arc<Context>> {
        self.endpoint.known_context()
    }

    fn prepare_to_wait(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, AlreadyReady> {
        self.endpoint.prepare_to_wait(waiter)
    }

    fn finish_wait(&self, waiter: &Arc<Waiter>) {
        self.endpoint.finish_wait(waiter);
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
        Ok(self.receive_one(pieces, flags, Message::new)?.unwrap_or(nothing))
    }

    /// Receives one datagram; `found` gets what is known of it, and how many of its bytes had room. `None`: the socket
    /// is shut down.
    #[inline(always)]
    pub(super) fn receive_one<R>(
        &self,
        into: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
        found: impl FnOnce(&Meta, usize) -> R,
    ) -> io::Result<Option<R>> {
        let endpoint = &*self.0.endpoint;
        let waiting = &endpoint.waiting;
        let nonblocking = flags.dont_wait || waiting.is_nonblocking();
        let direct = ReceiveBuffers::new(into);
        let mut call = ReceiveCall { endpoint, direct, peek: flags.peek };
        let channel = ReceiveChannel { endpoint, expected: &self.0.expected };
        let copied =
            waiting.wait_nonblocking_if(nonblocking, &channel, &waiting.reading, &mut call)?;
        Ok(call.direct.meta.as_ref().zip(copied).map(|(meta, copied)| found(meta, copied)))
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
