//! A UDP socket of the stack as an endpoint.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use busypoll_stack::{Host, UdpSocket};

use super::{Wait, one_line};
use crate::clock::Clock;
use crate::stamps::Recorder;
use crate::workload::{Endpoint, Polling, RECEIVE_TIMEOUT};

/// A UDP socket of the stack.
pub struct Udp<'a> {
    socket: UdpSocket,
    host: Host,
    wait: Wait,
    clock: &'a Clock,
    connected: bool,
    only_from: Option<IpAddr>,
    recorder: Option<Recorder>,
}

impl<'a> Udp<'a> {
    /// Connects to the server.
    ///
    /// # Errors
    /// A message of one line.
    pub fn client(
        host: &Host,
        server: SocketAddr,
        wait: Wait,
        clock: &'a Clock,
    ) -> Result<Self, String> {
        let mut end = Self::server(host, (Ipv4Addr::UNSPECIFIED, 0).into(), wait, clock)?;
        end.socket.connect(server).map_err(one_line)?;
        end.connected = true;
        Ok(end)
    }

    /// Serves on an address. Connects to the first sender.
    ///
    /// # Errors
    /// A message of one line.
    pub fn server(
        host: &Host,
        at: SocketAddr,
        wait: Wait,
        clock: &'a Clock,
    ) -> Result<Self, String> {
        let socket = UdpSocket::bind(host, at).map_err(|e| format!("bind {at}: {e}"))?;
        let options = || {
            socket.set_busy_poll(wait.busy_poll())?;
            socket.set_nonblocking(wait == Wait::Pass)?;
            socket.set_read_timeout(Some(RECEIVE_TIMEOUT))
        };
        options().map_err(one_line)?;
        Ok(Self {
            socket,
            host: host.clone(),
            wait,
            clock,
            connected: false,
            only_from: None,
            recorder: None,
        })
    }

    /// Ignores messages that are not from `peer`.
    pub fn only_from(self, peer: IpAddr) -> Self {
        Self { only_from: Some(peer), ..self }
    }

    pub(super) fn recorded(self, recorder: Option<&Recorder>) -> Self {
        Self { recorder: recorder.cloned(), ..self }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let received = match self.connected {
            true => self.socket.recv(buffer).map(Some),
            false => self.first(buffer),
        };
        if let Some(recorder) = &self.recorder
            && received.is_ok()
        {
            recorder.returned(self.clock);
        }
        match received {
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                Ok(None)
            }
            other => other,
        }
    }

    #[cold]
    fn first(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let (n, peer) = self.socket.recv_from(buffer)?;
        if self.only_from.is_some_and(|only| only != peer.ip()) {
            return Ok(None);
        }
        self.socket.connect(peer)?;
        self.connected = true;
        Ok(Some(n))
    }
}

impl Endpoint for Udp<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.socket.send(message).map(drop)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if self.wait != Wait::Pass {
            return self.receive(buffer);
        }
        let give_up = self.clock.now() + self.clock.ticks(RECEIVE_TIMEOUT);
        loop {
            if let Some(n) = self.receive(buffer)? {
                return Ok(Some(n));
            }
            if self.clock.now() > give_up {
                return Ok(None);
            }
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive(buffer)
    }

    fn polling(&self) -> Polling {
        let napi_id = self.socket.incoming_napi_id().map_or(0, |id| id.get());
        super::polling(&self.host, napi_id, self.socket.stats().own_polls)
    }
}
