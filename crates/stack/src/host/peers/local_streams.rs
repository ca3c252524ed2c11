//! AF_UNIX streams between this process and others: both agree on the byte from which on a connection that the kernel
//! has made goes over a link, and on the one from which on it is the kernel's again.
//!
//! The process that has connected asks the one that has accepted. Each makes sure that none of its threads uses the
//! kernel's socket; then all that the peer has sent by the kernel is there. The one that is asked answers, and gives
//! the kernel's socket up once the other one says so: before that each can go back.
//!
//! Either process leaves it. It asks the other one, which may be stopped: until that one answers, nothing has changed.
//! Each lends the other one its kernel's socket, stops the stream, and sends itself by that what it has received and
//! not read: so nothing that a program has seen is ever away. Then they exchange the numbers of the bytes they wait
//! for, and send the rest by the kernel. The one that has asked goes back if the answer does not come in time; the
//! other one cannot answer after that.

use super::{
    Linked, PATIENCE, Peers, Shared,
    requests::{DONE, LEAVE_STREAM, MOVE_STREAM, NOT_NOW, Process, ends_of, request, send_request},
};
use crate::{
    Link,
    host::Host,
    inet::tcp::{Left, ends_of_local_stream, local_stream_of},
    nic::{
        cable,
        xdp::netlink::{Request, Socket},
    },
    sync::lock,
    sys,
    unix::{self, message},
    wire::MacAddr,
};
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// The answers of both processes before a stream moves.
const READY: u8 = b'R';
const GO: u8 = b'G';

/// A process that leaves a stream: this, and the number of the byte it waits for.
const LEFT: u8 = b'L';

/// Moves the stream with these ends, local and remote, to a link, at the request of its other process. The last
/// function answers that this process is ready, and returns whether the other one goes on.
pub type MoveStream = fn(&Host, (SocketAddr, SocketAddr), Link, &mut dyn FnMut() -> bool) -> bool;

/// Gives the stream with these ends back to the kernel, at the request of its other process. False: not now.
pub type LeaveStream = fn((SocketAddr, SocketAddr), &mut Leave<'_>) -> bool;

static SERVED: OnceLock<(MoveStream, LeaveStream)> = OnceLock::new();

/// From now on streams of this process move and leave by these, at the requests of others.
#[doc(hidden)]
pub fn serve_local_streams(moves: MoveStream, leaves: LeaveStream) {
    let _ = SERVED.set((moves, leaves));
}

/// How long a process waits until the other one has sent the rest. It may have been stopped in that moment: then the
/// rest comes when it runs.
const SENT: Duration = Duration::from_millis(100);

/// A stream that this process is leaving: the number of the byte it waits for, and that of the other process, if that
/// one asks at the same time, and by what.
pub(super) struct Leaving {
    ends: (SocketAddr, SocketAddr),
    next: u32,
    asks_too: Option<(u32, OwnedFd)>,
}

/// The number of the byte for which the other process waits, of a stream that both leave.
pub(crate) struct Exchanged {
    pub(crate) next: u32,
    /// It has asked at the same time, by this.
    asks_too: Option<OwnedFd>,
}

impl Exchanged {
    /// This process has sent the rest; waits until the other one has.
    pub(crate) fn finish(&self, asked: &Asked) {
        for socket in [Some(&asked.0), self.asks_too.as_ref()].into_iter().flatten() {
            let _ = message::send(socket.as_fd(), &[DONE], &[], libc::MSG_DONTWAIT);
        }
        wait_until_sent(self.asks_too.as_ref().unwrap_or(&asked.0));
    }
}

/// Nothing depends on it but the moment at which the rest is there.
fn wait_until_sent(by: &OwnedFd) {
    let _ = unix::set_timeouts(by, SENT);
    let _ = message::receive(by.as_fd(), &mut [0; 1]);
}

/// The request of the other process of a stream to leave it.
pub struct Leave<'a> {
    shared: &'a Shared,
    socket: &'a OwnedFd,
    ends: (SocketAddr, SocketAddr),
    is_answered: bool,
}

impl Leave<'_> {
    /// Lends the other process this one's kernel's socket. Returns what that one has left; `None`: it does not leave
    /// it, or has its answer already.
    pub fn accept(&mut self, kernel: BorrowedFd<'_>) -> Option<Left> {
        message::send(self.socket.as_fd(), &[READY], &[kernel.as_raw_fd()], 0).ok()?;
        let mut word = [0; 5];
        let (len, mut lent) = message::receive(self.socket.as_fd(), &mut word).ok()?;
        let theirs = Left { next: number_in(&word[..len])?, kernel: lent.pop()? };
        let by = self.socket.try_clone().ok()?;
        let mut all = lock(&self.shared.leaving);
        let Some(both) = all.iter_mut().find(|it| it.ends == self.ends) else {
            return Some(theirs);
        };
        self.is_answered = send_number(self.socket, both.next, None).is_ok();
        if self.is_answered {
            both.asks_too = Some((theirs.next, by));
        }
        None
    }

    /// This process has left the stream, and waits for the byte of this number, if the other one still waits for the
    /// answer.
    pub(crate) fn answer(&self, next: u32) -> io::Result<()> {
        send_number(self.socket, next, None)
    }

    /// This process has sent the rest; waits until the other one has.
    pub(crate) fn finish(&self) {
        let _ = message::send(self.socket.as_fd(), &[DONE], &[], libc::MSG_DONTWAIT);
        wait_until_sent(self.socket);
    }
}

fn send_number(by: &OwnedFd, next: u32, kernel: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut word = [LEFT; 5];
    word[1..].copy_from_slice(&next.to_ne_bytes());
    let lent = kernel.map(|it| it.as_raw_fd());
    message::send(by.as_fd(), &word, lent.as_slice(), 0).map(drop)
}

fn number_in(word: &[u8]) -> Option<u32> {
    match *word {
        [LEFT, a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

/// After this the other process can send nothing more by `socket`; what it has sent is still there.
pub(super) fn end_receiving(socket: &OwnedFd) {
    // SAFETY: a plain system call.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RD) };
}

/// The other process of a stream has been asked to leave it.
#[derive(Debug)]
pub struct Asked(OwnedFd);

impl Asked {
    /// The kernel's socket of the other process, if that is ready within `limit`.
    ///
    /// # Errors
    /// `WouldBlock`: it must be asked again.
    pub fn is_ready(&self, limit: Duration) -> io::Result<Option<OwnedFd>> {
        let mut entry = [libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        if sys::poll_all(&mut entry, Some(limit)) <= 0 {
            return Ok(None);
        }
        let mut answer = [0; 1];
        let mut lent = match message::receive(self.0.as_fd(), &mut answer) {
            Ok((1, lent)) if answer[0] == READY => lent,
            _ => return Err(io::ErrorKind::WouldBlock.into()),
        };
        lent.pop().map(Some).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// This process waits for the byte `next`, and lends its `kernel`'s socket. Returns for which the other one waits.
    fn exchange(&self, next: u32, kernel: BorrowedFd<'_>) -> io::Result<u32> {
        send_number(&self.0, next, Some(kernel))?;
        let mut word = [0; 5];
        let mut answer = || {
            let (len, _) = message::receive(self.0.as_fd(), &mut word)?;
            number_in(&word[..len]).ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
        };
        answer().or_else(|_| {
            end_receiving(&self.0);
            answer()
        })
    }
}

impl AsFd for Asked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A stream is published under its connected socket's inode number.
fn name(inode: u32) -> String {
    format!("unix-{inode}")
}

/// Whether another process offers to move the stream whose connected socket has this inode number.
#[doc(hidden)]
pub fn is_stream_offered(inode: u32) -> bool {
    let found = cable::dial_first(std::iter::once(name(inode)));
    found.is_ok_and(|(_, pid)| pid != 0 && pid.cast_unsigned() != std::process::id())
}

/// The inode number of the socket that `inode`'s is connected to.
///
/// # Errors
/// No sock_diag in this kernel; it is not connected.
#[doc(hidden)]
pub fn peer_inode(inode: u32) -> io::Result<u32> {
    const PEER: u16 = 2;
    let peer =
        diagnose(inode, PEER, |value| value.first_chunk().map(|it| u32::from_ne_bytes(*it)))?;
    peer.filter(|inode| *inode != 0).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// The names of a stream with this local end as ss(8) shows them, local and remote: a path, `@` and an abstract name,
/// or `*`, and the socket's inode number. `None`: the end is no such stream's.
#[doc(hidden)]
pub fn stream_names(local: SocketAddr) -> Option<(String, String)> {
    const NAME: u16 = 0;
    let (connected, is_accepted) = local_stream_of(local)?;
    let accepted = peer_inode(connected).unwrap_or(0);
    let name = |inode| {
        let name = diagnose(inode, NAME, |value| Some(value.to_vec())).ok().flatten();
        let name = name.unwrap_or_default();
        let name = match &*name {
            [] => "*".to_owned(),
            [0, name @ ..] => format!("@{}", String::from_utf8_lossy(name)),
            path => String::from_utf8_lossy(path).trim_end_matches('\0').to_owned(),
        };
        format!("{} {inode}", name.escape_default())
    };
    let (connected, accepted) = (name(connected), name(accepted));
    Some(if is_accepted { (accepted, connected) } else { (connected, accepted) })
}

/// What sock_diag(7) says of the AF_UNIX socket with this inode number: the attribute of that kind
/// (include/uapi/linux/unix_diag.h).
fn diagnose<T>(
    inode: u32,
    wanted: u16,
    read: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const MESSAGE: usize = 16;
    /// UDIAG_SHOW_NAME, UDIAG_SHOW_PEER.
    const SHOWN: u32 = 1 | 4;
    // `unix_diag_req`: family, protocol, states, inode, what to show, and any cookie.
    let mut request = [0; 24];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].fill(0xff);
    request[8..12].copy_from_slice(&inode.to_ne_bytes());
    request[12..16].copy_from_slice(&SHOWN.to_ne_bytes());
    request[16..].fill(0xff);
    let mut found = None;
    let mut socket = Socket::of(libc::NETLINK_SOCK_DIAG)?;
    socket.request(Request::new(SOCK_DIAG_BY_FAMILY, &request), &mut |message| {
        let mut attributes = message.attributes(MESSAGE);
        found = attributes.find(|(kind, _)| *kind == wanted).and_then(|(_, value)| read(value));
    })?;
    Ok(found)
}

/// The name of a stream at which its other process finds this one. Dropping it ends that.
#[derive(Debug)]
pub struct StreamOffer {
    host: std::sync::Weak<super::Inner>,
    name: Arc<cable::Rendezvous>,
}

/// How many there are in this process.
static OFFERS: AtomicUsize = AtomicUsize::new(0);

/// How many streams this process offers.
#[doc(hidden)]
pub fn offers() -> usize {
    OFFERS.load(Ordering::Relaxed)
}

impl Drop for StreamOffer {
    fn drop(&mut self) {
        OFFERS.fetch_sub(1, Ordering::Relaxed);
        if let Some(inner) = self.host.upgrade()
            && let Some(peers) = inner.peers.get()
        {
            peers.withdraw_name(&self.name);
        }
    }
}

impl Host {
    /// Offers to move the stream whose connected socket has this inode number to a link.
    #[doc(hidden)]
    pub fn offer_stream(&self, inode: u32) -> Option<StreamOffer> {
        let rendezvous = self.peers()?.publish_name(&name(inode)).ok()?;
        OFFERS.fetch_add(1, Ordering::Relaxed);
        Some(StreamOffer { host: Arc::downgrade(&self.inner), name: rendezvous })
    }

    /// Moves the stream whose connected socket, of this process, has this inode number. `ready` is called when the
    /// other process is ready, with the ends, local and remote, and the link, and returns whether this one is. Returns
    /// whether the stream goes over the link from now on.
    #[doc(hidden)]
    pub fn move_stream(
        &self,
        inode: u32,
        ready: &mut dyn FnMut((SocketAddr, SocketAddr), Link) -> bool,
    ) -> bool {
        self.peers().is_some_and(|peers| peers.move_stream(self, inode, ready).unwrap_or(false))
    }
}

/// The ends of a stream, as the socket that has connected sees them.
#[doc(hidden)]
pub fn stream_ends(inode: u32) -> Option<(SocketAddr, SocketAddr)> {
    ends_of_local_stream(inode)
}

impl Peers {
    fn move_stream(
        &self,
        host: &Host,
        inode: u32,
        ready: &mut dyn FnMut((SocketAddr, SocketAddr), Link) -> bool,
    ) -> io::Result<bool> {
        let Some(ends) = ends_of_local_stream(inode) else { return Ok(false) };
        let Some(link) = self.look_up(host, std::iter::once(name(inode))) else { return Ok(false) };
        let Some(peer) = self.shared.peer_of(link.0) else { return Ok(false) };
        let socket = request(&peer, MOVE_STREAM, (ends.1, ends.0), PATIENCE)?;
        let links = lock(&self.shared.links);
        let known = links.iter().find(|it| it.link == link).map(|it| it.macs[0]);
        drop(links);
        // Both must mean the same one.
        message::send(socket.as_fd(), &known.ok_or(io::ErrorKind::NotConnected)?.0, &[], 0)?;
        let mut answer = [0; 1];
        if message::receive(socket.as_fd(), &mut answer)?.0 != 1 || answer[0] != READY {
            return Ok(false);
        }
        if !ready(ends, link) {
            return Ok(false);
        }
        message::send(socket.as_fd(), &[GO], &[], 0)?;
        Ok(true)
    }

    /// Asks the other process of a stream to leave it, too.
    ///
    /// # Errors
    /// `WouldBlock`: it takes no requests now; those of reaching it.
    pub(crate) fn ask_to_leave(
        &self,
        link: u32,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> io::Result<Asked> {
        let peer = self.shared.peer_of(link).ok_or(io::ErrorKind::NotConnected)?;
        let socket = peer.connect(PATIENCE)?;
        match send_request(&socket, LEAVE_STREAM, (remote, local)) {
            Ok(()) => Ok(Asked(socket)),
            // This process was stopped meanwhile, and the other one did not wait for so long.
            Err(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// This process leaves a stream to its `kernel`'s socket, waits for the byte `next`, and does not change the stream
    /// meanwhile.
    ///
    /// # Errors
    /// `WouldBlock`: not now.
    pub(crate) fn leave_both(
        &self,
        asked: &Asked,
        ends: (SocketAddr, SocketAddr),
        next: u32,
        kernel: BorrowedFd<'_>,
    ) -> io::Result<Exchanged> {
        lock(&self.shared.leaving).push(Leaving { ends, next, asks_too: None });
        let theirs = asked.exchange(next, kernel).ok();
        let mut all = lock(&self.shared.leaving);
        let at = all.iter().position(|it| it.ends == ends);
        let (told, asks_too) = at.and_then(|at| all.swap_remove(at).asks_too).unzip();
        let next = theirs.or(told).ok_or(io::ErrorKind::WouldBlock)?;
        Ok(Exchanged { next, asks_too })
    }
}

impl Shared {
    /// Answers a request about a stream.
    pub(super) fn answer_about_stream(
        &self,
        kind: u8,
        request: &[u8],
        socket: &OwnedFd,
    ) -> io::Result<()> {
        let ends = ends_of(request);
        let Some((moves, leaves)) = SERVED.get() else { return Ok(()) };
        if kind == MOVE_STREAM {
            let pid = unix::peer(socket.as_fd())?.0;
            let process = Process::here(pid.cast_unsigned());
            let mut theirs = MacAddr::default();
            message::receive(socket.as_fd(), &mut theirs.0)?;
            let is_it = |it: &&Linked| it.peer.process == process && it.macs[1] == theirs;
            let link = lock(&self.links).iter().find(is_it).map(|it| it.link);
            let Some((link, inner)) = link.zip(self.host.upgrade()) else { return Ok(()) };
            moves(&Host { inner }, ends, link, &mut || other_goes_on(socket));
            return Ok(());
        }
        let mut leave = Leave { shared: self, socket, ends, is_answered: false };
        match leaves(ends, &mut leave) || leave.is_answered {
            true => Ok(()),
            false => message::send(socket.as_fd(), &[NOT_NOW], &[], 0).map(drop),
        }
    }
}

/// This process is ready. If the other one does not go on in time, it never does.
fn other_goes_on(socket: &OwnedFd) -> bool {
    if message::send(socket.as_fd(), &[READY], &[], 0).is_err() {
        return false;
    }
    let mut word = [0; 1];
    let mut goes =
        || matches!(message::receive(socket.as_fd(), &mut word), Ok((1, _)) if word[0] == GO);
    if goes() {
        return true;
    }
    end_receiving(socket);
    goes()
}
