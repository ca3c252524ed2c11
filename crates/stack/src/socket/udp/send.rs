//! Send: over a path that the socket has cached, or through the kernel on a shared interface.

use super::{Inner, UdpSocket};
use crate::{
    host::Accepted,
    inet::{Inet, Pass, Path, Payload, SendError},
    napi::PolledBy,
    socket::{UNSPECIFIED, options::errno, waiting::WaitChannel},
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
    /// The destination; `None`: the socket's peer.
    pub to: Option<SocketAddr>,
}

/// The number of paths that a socket caches; one more replaces the oldest.
const CACHED_PATHS: usize = 16;

/// The paths used lately, each with its destination; `None`: the peer.
#[derive(Debug, Default)]
pub(super) struct PathCache {
    entries: Vec<(Option<SocketAddr>, Path)>,
    /// The index of the oldest entry, once the cache is full.
    oldest: usize,
    /// Of the paths over links, what says that the other process takes datagrams there.
    accepted: Vec<(Option<SocketAddr>, Accepted)>,
}

impl PathCache {
    /// The index of the path to `to`, if it is still current.
    #[inline]
    fn find(&self, to: Option<SocketAddr>, inet: &Inet) -> Option<usize> {
        self.entries.iter().position(|(asked, path)| {
            *asked == to
                && path.is_current(inet)
                && (!path.is_over_link() || self.accepted(to).is_some_and(Accepted::is_still))
        })
    }

    /// What the process that the path to `to` leads to has said.
    fn accepted(&self, to: Option<SocketAddr>) -> Option<&Accepted> {
        self.accepted.iter().find(|(asked, _)| *asked == to).map(|(_, accepted)| accepted)
    }

    /// Adds a path, in place of an older one to the same destination. Returns its index.
    fn keep(&mut self, to: Option<SocketAddr>, path: Path, accepted: Option<Accepted>) -> usize {
        self.accepted.retain(|(asked, _)| *asked != to);
        self.accepted.extend(accepted.map(|accepted| (to, accepted)));
        let at = match self.entries.iter().position(|(asked, _)| *asked == to) {
            Some(outdated) => outdated,
            None if self.entries.len() < CACHED_PATHS => {
                // Most sockets need only one path.
                let more =
                    if self.entries.is_empty() { 1 } else { CACHED_PATHS - self.entries.len() };
                self.entries.reserve_exact(more);
                self.entries.push((to, path));
                return self.entries.len() - 1;
            }
            None => {
                let oldest = self.oldest;
                self.oldest = (oldest + 1) % CACHED_PATHS;
                let replaced = self.entries[oldest].0;
                self.accepted.retain(|(asked, _)| *asked != replaced);
                oldest
            }
        };
        self.entries[at] = (to, path);
        at
    }

    /// Drops all paths.
    pub(super) fn forget(&mut self) {
        self.entries.clear();
        self.accepted.clear();
        self.oldest = 0;
    }
}

impl UdpSocket {
    /// Sends a datagram to the socket's peer.
    ///
    /// # Errors
    /// EDESTADDRREQ if it is not connected, EMSGSIZE, EPIPE after shutdown, EHOSTUNREACH, ENETUNREACH, a
    /// pending error (ECONNREFUSED from an earlier datagram), `WouldBlock` if the ring is full and the
    /// socket non-blocking (or the write timeout over).
    #[inline]
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.0.send_payload(payload, None, false)
    }

    /// Sends a datagram to `to`.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    #[inline]
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = to.to_socket_addrs()?.next().ok_or_else(|| errno(libc::EDESTADDRREQ))?;
        self.0.send_payload(payload, Some(to), false)
    }

    /// Sends datagrams in order; successive ones to the same destination share a doorbell. Returns the number sent;
    /// fewer than given only if a later one failed.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send), if the first one fails.
    pub fn send_many(&self, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
        self.0.send_all(datagrams)
    }
}

impl Inner {
    /// As [`send_all`](Inner::send_all) with one datagram made of several buffers.
    pub(super) fn send_vectored(
        &self,
        pieces: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<usize> {
        match pieces {
            [one] => self.send_payload(&**one, to, dont_wait),
            many => self.send_payload(many, to, dont_wait),
        }
    }

    /// Sends one datagram.
    #[inline]
    fn send_payload<P: Payload + ?Sized>(
        &self,
        payload: &P,
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<usize> {
        let len = payload.len();
        self.endpoint.may_send().map_err(errno)?;
        if len > self.endpoint.options.send_buffer.load(Ordering::Relaxed) as usize {
            return Err(errno(libc::EMSGSIZE));
        }
        let inet = self.host.inet();
        let mut waited: Option<Option<Instant>> = dont_wait.then_some(Some(Instant::ZERO));
        let mut paths = lock(&self.paths);
        loop {
            let Some(path) = self.path_to(to, &mut paths)? else {
                return self.send_payload_by_kernel(payload, to, &mut waited);
            };
            let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
            let result = inet.udp_send(path, payload, &mut pass);
            pass.wake.wake_all();
            match result {
                Ok(()) => {
                    self.endpoint.sent(pass.now);
                    return Ok(len);
                }
                Err(SendError::UseKernel) => {
                    return self.send_payload_by_kernel(payload, to, &mut waited);
                }
                Err(SendError::RingFull) if !path.is_over_link() => {
                    self.wait_for_room(&mut waited)?;
                }
                Err(SendError::RingFull) => {
                    match self.send_to_process(to, &paths, payload, dont_wait) {
                        None => {}
                        Some(Ok(())) => return Ok(len),
                        Some(Err(error)) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[cold]
    fn send_payload_by_kernel<P: Payload + ?Sized>(
        &self,
        payload: &P,
        to: Option<SocketAddr>,
        waited: &mut Option<Option<Instant>>,
    ) -> io::Result<usize> {
        let mut whole = vec![0; payload.len()];
        payload.copy_to(&mut whole);
        self.send_by_kernel(&Outgoing { payload: &whole, to }, waited)?;
        Ok(whole.len())
    }

    #[inline]
    fn send_all(&self, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
        self.endpoint.may_send().map_err(errno)?;
        let limit = self.endpoint.options.send_buffer.load(Ordering::Relaxed) as usize;
        let mut paths = lock(&self.paths);
        let mut sent = 0;
        while let Some(first) = datagrams.get(sent) {
            // Datagrams to the same destination are sent together.
            let fits = |datagram: &&Outgoing<'_>| {
                datagram.to == first.to && datagram.payload.len() <= limit
            };
            let run = datagrams[sent..].iter().take_while(fits).count();
            let result = match run {
                0 => Err(errno(libc::EMSGSIZE)),
                _ => self.send_run(&datagrams[sent..sent + run], &mut paths),
            };
            match result {
                Ok(count) => sent += count,
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends some of `run`, at least one; all have the same destination.
    #[inline]
    fn send_run(&self, run: &[Outgoing<'_>], paths: &mut PathCache) -> io::Result<usize> {
        let Some(first) = run.first() else { return Ok(0) };
        let by_kernel = || self.send_by_kernel(first, &mut None).map(|()| 1);
        let inet = self.host.inet();
        let mut waited: Option<Option<Instant>> = None;
        loop {
            let Some(path) = self.path_to(first.to, paths)? else { return by_kernel() };
            let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
            let result = match run {
                [one] => inet.udp_send(path, one.payload, &mut pass).map(|()| 1),
                many => inet.udp_send_many(path, many.iter().map(|one| one.payload), &mut pass),
            };
            pass.wake.wake_all();
            match result {
                Ok(count) => {
                    self.endpoint.sent(pass.now);
                    return Ok(count);
                }
                Err(SendError::UseKernel) => return by_kernel(),
                Err(SendError::RingFull) if !path.is_over_link() => {
                    self.wait_for_room(&mut waited)?;
                }
                Err(SendError::RingFull) => {
                    match self.send_to_process(first.to, paths, first.payload, false) {
                        None => {}
                        Some(Ok(())) => return Ok(1),
                        Some(Err(error)) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The path to `to` (or the peer), cached or looked up. `None`: the kernel sends it.
    #[inline]
    fn path_to<'w>(
        &self,
        to: Option<SocketAddr>,
        paths: &'w mut PathCache,
    ) -> io::Result<Option<&'w Path>> {
        let index = match paths.find(to, self.host.inet()) {
            Some(index) => Some(index),
            None => self.look_up_path(to, paths)?,
        };
        Ok(index.map(|index| &paths.entries[index].1))
    }

    /// Looks up a path and caches it. Returns its index.
    #[cold]
    fn look_up_path(
        &self,
        to: Option<SocketAddr>,
        paths: &mut PathCache,
    ) -> io::Result<Option<usize>> {
        let (local, remote) = self.with_binding(to.unwrap_or(UNSPECIFIED), |bound| {
            let remote = to.or(bound.remote).ok_or_else(|| errno(libc::EDESTADDRREQ))?;
            match bound.inet.is_ipv4_but_v6only(remote) {
                true => Err(SendError::NoRoute.into()),
                false => Ok((bound.inet.local(), remote)),
            }
        })?;
        let queue = self.endpoint.context().map_or(0, |context| context.queue());
        let options = self.endpoint.options.path();
        match self.host.inet().path(local, remote, queue, options, time::now()) {
            Ok(path) => Ok(Some(paths.keep(to, path, None))),
            Err(SendError::UseKernel) => Ok(self.link_path(local, remote, options).map(|found| {
                let (path, accepted) = found;
                paths.keep(to, path, Some(accepted))
            })),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits a moment for room on the ring: neither the ring nor the kernel has an interrupt for that. `waited` keeps
    /// the deadline between calls.
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

    /// Sends a datagram, or drops it, for which the ring to a process had no room. `None`: it takes none here any more.
    #[cold]
    fn send_to_process<P: Payload + ?Sized>(
        &self,
        to: Option<SocketAddr>,
        paths: &PathCache,
        payload: &P,
        dont_wait: bool,
    ) -> Option<Result<(), SendError>> {
        let is_nonblocking = dont_wait || self.endpoint.waiting.is_nonblocking();
        let (_, path) = paths.entries.iter().find(|(asked, _)| *asked == to)?;
        paths.accepted(to)?.send_later(is_nonblocking, || {
            let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
            path.has_room().then(|| self.host.inet().udp_send_slow(path, payload, &mut pass))
        })
    }

    fn send_by_kernel(
        &self,
        datagram: &Outgoing<'_>,
        waited: &mut Option<Option<Instant>>,
    ) -> io::Result<()> {
        loop {
            let result = self.with_binding(datagram.to.unwrap_or(UNSPECIFIED), |bound| {
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
