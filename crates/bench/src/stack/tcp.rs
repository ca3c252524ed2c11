//! A TCP connection of the stack as an endpoint.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use busypoll_stack::{Host, TcpListener, TcpStream};

use super::{Wait, one_line};
use crate::clock::Clock;
use crate::slot::Announce;
use crate::workload::{self, Endpoint, GIVE_UP, Polling, RECEIVE_TIMEOUT};

/// A TCP connection with `TCP_NODELAY`.
pub struct Tcp<'a> {
    stream: TcpStream,
    host: Host,
    wait: Wait,
    clock: &'a Clock,
}

impl<'a> Tcp<'a> {
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
        let stream = TcpStream::connect_timeout(host, &server, Duration::from_secs(2))
            .map_err(|e| format!("cannot connect to {server}: {e}"))?;
        Self::new(stream, host, wait, clock)
    }

    /// Listens, announces the address, and accepts the first connection.
    ///
    /// # Errors
    /// A message of one line; also if no client connects within five seconds.
    pub fn server(
        host: &Host,
        at: SocketAddr,
        wait: Wait,
        clock: &'a Clock,
        announce: &Announce,
        only_from: Option<IpAddr>,
    ) -> Result<Self, String> {
        Self::accept(&Self::listen(host, at, announce)?, host, wait, clock, only_from)
    }

    /// Listens, and announces the address.
    pub(super) fn listen(
        host: &Host,
        at: SocketAddr,
        announce: &Announce,
    ) -> Result<TcpListener, String> {
        let listener = TcpListener::bind(host, at).map_err(|e| format!("listen at {at}: {e}"))?;
        listener.set_accept_timeout(Some(RECEIVE_TIMEOUT)).map_err(one_line)?;
        announce.ready(at);
        Ok(listener)
    }

    /// Accepts the next connection.
    pub(super) fn accept(
        listener: &TcpListener,
        host: &Host,
        wait: Wait,
        clock: &'a Clock,
        only_from: Option<IpAddr>,
    ) -> Result<Self, String> {
        let give_up = Instant::now() + GIVE_UP;
        loop {
            match listener.accept() {
                Ok((_, peer)) if only_from.is_some_and(|only| only != peer.ip()) => {}
                Ok((stream, _)) => return Self::new(stream, host, wait, clock),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < give_up => {}
                Err(e) => return Err(format!("no client connected: {e}")),
            }
        }
    }

    fn new(stream: TcpStream, host: &Host, wait: Wait, clock: &'a Clock) -> Result<Self, String> {
        let options = || {
            stream.set_nodelay(true)?;
            stream.set_busy_poll(wait.busy_poll())?;
            stream.set_nonblocking(wait == Wait::Pass)?;
            stream.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
            stream.set_write_timeout(Some(GIVE_UP))
        };
        options().map_err(one_line)?;
        Ok(Self { stream, host: host.clone(), wait, clock })
    }

    /// Receives once; none after [`RECEIVE_TIMEOUT`].
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let give_up = self.clock.now() + self.clock.ticks(RECEIVE_TIMEOUT);
        loop {
            match once(&self.stream, buffer)? {
                None if self.wait == Wait::Pass && self.clock.now() < give_up => {}
                other => return Ok(other),
            }
        }
    }
}

fn once(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match stream.read(buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(n) => Ok(Some(n)),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

impl Endpoint for Tcp<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(message).map_err(|e| match e.kind() {
            // The open loop's client does not wait: a message that does not fit is lost.
            io::ErrorKind::WouldBlock if self.wait != Wait::Pass => workload::unfinished(),
            _ => e,
        })
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        workload::fill(buffer, |rest| self.receive(rest))
    }

    fn recv_some(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive(buffer)
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        once(&self.stream, buffer)
    }

    fn abandon(&mut self) {
        let _ = self.stream.set_linger(Some(Duration::ZERO));
    }

    fn polling(&self) -> Polling {
        let napi_id = self.stream.incoming_napi_id().map_or(0, |id| id.get());
        super::polling(&self.host, napi_id, self.stream.stats().own_polls)
    }
}
