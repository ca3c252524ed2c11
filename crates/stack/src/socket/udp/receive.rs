//! Receive: take a queued datagram, else busy poll, else sleep ([`WaitOptions::wait`](super::super::waiting)).

use super::{ReceiveFlags, UdpSocket, buffer::Buffer};
use crate::{napi::NapiId, socket::UNSPECIFIED, time::Instant};
use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
};

/// Room for a datagram, filled by [`UdpSocket::recv_many`].
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The buffer for its bytes.
    pub buffer: &'a mut [u8],
    /// The number of bytes received.
    pub len: usize,
    /// The sender.
    pub from: Option<SocketAddr>,
    /// The local address that it was sent to.
    pub to: Option<SocketAddr>,
    /// The NAPI context that it came from.
    pub napi: Option<NapiId>,
    /// The time when the pass that found it began.
    pub arrived: Instant,
}

impl<'a> Incoming<'a> {
    /// Room for a datagram of up to `buffer.len()` bytes.
    pub fn new(buffer: &'a mut [u8]) -> Incoming<'a> {
        Incoming { buffer, len: 0, from: None, to: None, napi: None, arrived: Instant::ZERO }
    }

    /// Receives the oldest datagram of `queued`.
    fn fill(&mut self, queued: &mut Buffer) -> Option<()> {
        let (meta, len) = queued.pop(self.buffer)?;
        self.len = len;
        (self.from, self.to) = (Some(meta.from), Some(meta.to));
        (self.napi, self.arrived) = (meta.napi, meta.arrived);
        Some(())
    }
}

impl UdpSocket {
    /// Receives a datagram; bytes that do not fit into `buffer` are lost. Busy polls and then sleeps while there
    /// is none. Returns 0 after [`shutdown`](UdpSocket::shutdown).
    ///
    /// # Errors
    /// `WouldBlock` if non-blocking or the read timeout is over, a pending error (ECONNREFUSED and its like),
    /// `Interrupted` by a signal whose handler ran while it slept. A handler that runs during the busy poll ends the
    /// call only if it says so: see [`signal`](crate::signal).
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let into = &mut [IoSliceMut::new(buffer)];
        let taken = self.receive_one(into, ReceiveFlags::default(), |_, len| len)?;
        Ok(taken.unwrap_or(0))
    }

    /// As [`recv`](UdpSocket::recv), and returns the sender's address.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let into = &mut [IoSliceMut::new(buffer)];
        let taken =
            self.receive_one(into, ReceiveFlags::default(), |meta, len| (len, meta.from))?;
        Ok(taken.unwrap_or((0, UNSPECIFIED)))
    }

    /// As [`recv`](UdpSocket::recv), but the datagram stays queued.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buffer).map(|(len, _)| len)
    }

    /// As [`recv_from`](UdpSocket::recv_from), but the datagram stays queued.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let flags = ReceiveFlags { peek: true, ..ReceiveFlags::default() };
        let into = &mut [IoSliceMut::new(buffer)];
        let seen = self.receive_one(into, flags, |meta, len| (len, meta.from))?;
        Ok(seen.unwrap_or((0, UNSPECIFIED)))
    }

    /// Receives up to `into.len()` datagrams: waits for the first as [`recv`](UdpSocket::recv) does, then
    /// takes the queued ones. Returns the number.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn recv_many(&self, into: &mut [Incoming<'_>]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let mut fill = |queued: &mut Buffer| {
            let count = into.iter_mut().map_while(|room| room.fill(queued)).count();
            (count > 0).then_some(count)
        };
        let endpoint = &*self.0.endpoint;
        let waiting = &endpoint.waiting;
        let taken = waiting.wait(endpoint, &waiting.reading, || endpoint.take(&mut fill))?;
        Ok(taken.unwrap_or(0))
    }
}
