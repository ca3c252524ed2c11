//! AF_UNIX sockets: a stream, or datagrams.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use socket2::SockRef;

use crate::arm::Protocol;
use crate::clock::Clock;
use crate::kernel::{Wait, once, one_line, send_all};
use crate::workload::{self, Endpoint, GIVE_UP};

/// Two sockets joined.
pub(super) fn pair(protocol: Protocol) -> Result<(OwnedFd, OwnedFd), String> {
    let kind = match protocol {
        Protocol::Udp => SocketType::DGRAM,
        Protocol::Tcp => SocketType::STREAM,
    };
    rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map_err(|e| format!("socketpair: {e}"))
}

/// One end.
pub(super) struct Unix<'a> {
    socket: OwnedFd,
    protocol: Protocol,
    wait: Wait,
    clock: &'a Clock,
}

impl<'a> Unix<'a> {
    pub(super) fn new(
        socket: OwnedFd,
        protocol: Protocol,
        wait: Wait,
        clock: &'a Clock,
    ) -> Result<Self, String> {
        wait.apply(&socket)?;
        let give_up = SockRef::from(&socket).set_write_timeout(Some(GIVE_UP));
        give_up.map_err(one_line("SO_SNDTIMEO"))?;
        Ok(Self { socket, protocol, wait, clock })
    }

    /// An end of the stream.
    fn or_end(&self, received: Option<usize>) -> io::Result<Option<usize>> {
        match (self.protocol, received) {
            (Protocol::Tcp, Some(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            (_, other) => Ok(other),
        }
    }
}

impl Endpoint for Unix<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        send_all(&self.socket, message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.protocol {
            Protocol::Udp => self.wait.recv(&self.socket, buffer, self.clock),
            Protocol::Tcp => workload::fill(buffer, |rest| {
                self.or_end(self.wait.recv(&self.socket, rest, self.clock)?)
            }),
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.or_end(once(&self.socket, buffer, RecvFlags::DONTWAIT)?)
    }
}
