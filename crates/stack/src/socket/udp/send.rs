//! Sending: over a path that the socket keeps, or through the kernel where it shares the interface.

use super::{Inner, UdpSocket};
use crate::{
    inet::{Inet, Path, SendError},
    napi::{Driver, Pass},
    socket::{NOBODY, options::errno, waiting::Bed},
    sync::lock,
    time::{self, Instant},
};
use std::{
    io::{self, IoSlice},
    net::{SocketAddr, ToSocketAddrs},
    sync::atomic::Ordering,
    time::Duration,
};

/// A datagram to be sent by [`UdpSocket::send_many`].
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its bytes.
    pub payload: &'a [u8],
    /// Where to; `None`: where the socket is connected to.
    pub to: Option<SocketAddr>,
}

/// To so many peers in turn a socket sends without looking for a way; one more takes the place of the oldest.
const WAYS: usize = 16;

/// The paths lately sent over, each with the address it was asked for; `None`: the peer's.
#[derive(Debug, Default)]
pub(super) struct Ways {
    found: Vec<(Option<SocketAddr>, Path)>,
    /// The oldest, once there is no room for more.
    oldest: usize,
}

impl Ways {
    /// The place of the path that was found for `to`, if it is still good.
    #[inline]
    fn to(&self, to: Option<SocketAddr>, inet: &Inet) -> Option<usize> {
        self.found.iter().position(|(asked, path)| *asked == to && path.is_current(inet))
    }

    /// Keeps a path, in place of an older one for the same address; its place.
    fn keep(&mut self, to: Option<SocketAddr>, path: Path) -> usize {
        let at = match self.found.iter().position(|(asked, _)| *asked == to) {
            Some(outdated) => outdated,
            None if self.found.len() < WAYS => {
                // Most sockets need only one.
                let more = if self.found.is_empty() { 1 } else { WAYS - self.found.len() };
                self.found.reserve_exact(more);
                self.found.push((to, path));
                return self.found.len() - 1;
            }
            None => {
                let oldest = self.oldest;
                self.oldest = (oldest + 1) % WAYS;
                oldest
            }
        };
        self.found[at] = (to, path);
        at
    }

    /// Forgets them all.
    pub(super) fn forget(&mut self) {
        self.found.clear();
        self.oldest = 0;
    }
}

impl UdpSocket {
    /// Sends a datagram to where the socket is connected to.
    ///
    /// # Errors
    /// EDESTADDRREQ if it is not connected, EMSGSIZE, EPIPE after shutdown, EHOSTUNREACH, ENETUNREACH, a
    /// pending error (ECONNREFUSED from an earlier datagram), `WouldBlock` if the ring is full and the
    /// socket non-blocking (or the write timeout over).
    #[inline]
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.0.send_all(&[Outgoing { payload, to: None }]).map(|_| payload.len())
    }

    /// Sends a datagram to `to`.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    #[inline]
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = to.to_socket_addrs()?.next().ok_or_else(|| errno(libc::EDESTADDRREQ))?;
        self.0.send_all(&[Outgoing { payload, to: Some(to) }]).map(|_| payload.len())
    }

    /// Sends datagrams in order, those that go the same way with one doorbell. Returns how many were sent;
    /// fewer than asked for only if a later one failed.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send), if the first one fails.
    pub fn send_many(&self, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
        self.0.send_all(datagrams)
    }
}

impl Inner {
    /// As [`send_all`](Inner::send_all) with one datagram, whose bytes lie in pieces.
    pub(super) fn send_pieces(
        &self,
        pieces: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<usize> {
        let len = pieces.iter().map(|piece| piece.len()).fold(0, usize::saturating_add);
        self.endpoint.may_send().map_err(errno)?;
        if len > self.endpoint.options.send_buffer.load(Ordering::Relaxed) as usize {
            return Err(errno(libc::EMSGSIZE));
        }
        let inet = self.host.inet();
        let mut waited: Option<Option<Instant>> = dont_wait.then_some(Some(Instant::ZERO));
        let mut ways = lock(&self.ways);
        let by_kernel = |waited| match pieces {
            [one] => self.send_by_kernel(&Outgoing { payload: one, to }, waited),
            many => {
                let whole: Vec<u8> = many.iter().flat_map(|piece| piece.iter().copied()).collect();
                self.send_by_kernel(&Outgoing { payload: &whole, to }, waited)
            }
        };
        loop {
            let Some(path) = self.way(to, &mut ways)? else {
                return by_kernel(&mut waited).map(|()| len);
            };
            let mut pass = Pass::new(None, time::now(), Driver::Kernel);
            let result = match pieces {
                [one] => inet.udp_send(path, &**one, &mut pass),
                many => inet.udp_send(path, many, &mut pass),
            };
            pass.wake.wake_all();
            match result {
                Ok(()) => return Ok(len),
                Err(SendError::UseKernel) => return by_kernel(&mut waited).map(|()| len),
                Err(SendError::RingFull) => self.wait_for_room(&mut waited)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[inline]
    fn send_all(&self, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
        self.endpoint.may_send().map_err(errno)?;
        let limit = self.endpoint.options.send_buffer.load(Ordering::Relaxed) as usize;
        let mut ways = lock(&self.ways);
        let mut sent = 0;
        while let Some(first) = datagrams.get(sent) {
            // Those that go the same way go together.
            let fits = |datagram: &&Outgoing<'_>| {
                datagram.to == first.to && datagram.payload.len() <= limit
            };
            let run = datagrams[sent..].iter().take_while(fits).count();
            let result = match run {
                0 => Err(errno(libc::EMSGSIZE)),
                _ => self.send_run(&datagrams[sent..sent + run], &mut ways),
            };
            match result {
                Ok(count) => sent += count,
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends some of `run`, at least one; all are for one address.
    #[inline]
    fn send_run(&self, run: &[Outgoing<'_>], ways: &mut Ways) -> io::Result<usize> {
        let Some(first) = run.first() else { return Ok(0) };
        let by_kernel = || self.send_by_kernel(first, &mut None).map(|()| 1);
        let inet = self.host.inet();
        let mut waited: Option<Option<Instant>> = None;
        loop {
            let Some(path) = self.way(first.to, ways)? else { return by_kernel() };
            let mut pass = Pass::new(None, time::now(), Driver::Kernel);
            let result = match run {
                [one] => inet.udp_send(path, one.payload, &mut pass).map(|()| 1),
                many => inet.udp_send_many(path, many.iter().map(|one| one.payload), &mut pass),
            };
            pass.wake.wake_all();
            match result {
                Ok(count) => return Ok(count),
                Err(SendError::UseKernel) => return by_kernel(),
                Err(SendError::RingFull) => self.wait_for_room(&mut waited)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The way to `to` (or the peer), kept or found. `None`: the kernel's business.
    #[inline]
    fn way<'w>(&self, to: Option<SocketAddr>, ways: &'w mut Ways) -> io::Result<Option<&'w Path>> {
        let place = match ways.to(to, self.host.inet()) {
            Some(place) => Some(place),
            None => self.find_way(to, ways)?,
        };
        Ok(place.map(|place| &ways.found[place].1))
    }

    /// Resolves a way and keeps it; its place.
    #[cold]
    fn find_way(&self, to: Option<SocketAddr>, ways: &mut Ways) -> io::Result<Option<usize>> {
        let (local, remote) = self.with_binding(to.unwrap_or(NOBODY), |bound| {
            let remote = to.or(bound.remote).ok_or_else(|| errno(libc::EDESTADDRREQ))?;
            match bound.inet.is_beyond(remote) {
                true => Err(SendError::NoRoute.into()),
                false => Ok((bound.inet.local(), remote)),
            }
        })?;
        let queue = self.endpoint.context().map_or(0, |context| context.queue());
        let options = self.endpoint.options.path();
        match self.host.inet().path(local, remote, queue, options, time::now()) {
            Ok(path) => Ok(Some(ways.keep(to, path))),
            Err(SendError::UseKernel) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the device run, which is behind: neither ring nor kernel has an interrupt for room. `waited`
    /// keeps how long that may go on.
    #[cold]
    fn wait_for_room(&self, waited: &mut Option<Option<Instant>>) -> io::Result<()> {
        let deadline = *waited.get_or_insert_with(|| self.endpoint.waiting.writing.deadline());
        if self.endpoint.waiting.is_nonblocking()
            || deadline.is_some_and(|deadline| time::now() >= deadline)
        {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        std::thread::sleep(Duration::from_micros(20));
        Ok(())
    }

    fn send_by_kernel(
        &self,
        datagram: &Outgoing<'_>,
        waited: &mut Option<Option<Instant>>,
    ) -> io::Result<()> {
        loop {
            let result = self.with_binding(datagram.to.unwrap_or(NOBODY), |bound| {
                let to = datagram.to.or(bound.remote).ok_or_else(|| errno(libc::EDESTADDRREQ))?;
                match &bound.kernel {
                    Some(kernel) => kernel.send_to(datagram.payload, to),
                    None => Err(errno(libc::ENETUNREACH)),
                }
            });
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_room(waited)?;
                }
                other => return other,
            }
        }
    }
}
