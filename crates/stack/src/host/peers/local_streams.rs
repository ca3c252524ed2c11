//! AF_UNIX streams between this process and others: both agree on the byte from which on a connection that the kernel has
//! made goes over a link, and on the one from which on it is the kernel's again.
//!
//! The process that has connected asks the one that has accepted. Each makes sure that none of its threads uses the
//! kernel's socket; then all that the peer has sent by the kernel is there. The one that is asked answers, and gives the
//! kernel's socket up once the other one says so: before that each can go back.
//!
//! Either process leaves it. It asks the other one, which may be stopped: until that one answers, nothing has changed. Then
//! both stop the stream, exchange what they have received and not read, and send by the kernel what the peer has not read.
//! Neither goes on before both have done so.

use super::{
    Linked, PATIENCE, Peers, Shared,
    requests::{
        Answer, DONE, LEAVE_STREAM, MOVE_STREAM, NOT_ACCEPTED, NOT_NOW, Process, Received,
        answer_on, ends_of, request, send_data, send_request,
    },
};
use crate::{
    Link,
    host::Host,
    inet::tcp::{Failed, Left, ends_of_local_stream, local_stream_of},
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

/// The send buffer of a connection over which a stream is left: all of its data fits into it, so that no send waits.
const LEAVE_BUFFER: i32 = 1 << 20;

/// Moves the stream with these ends, local and remote, to a link, at the request of its other process. The last function
/// answers that this process is ready, and returns whether the other one goes on.
pub type MoveStream = fn(&Host, (SocketAddr, SocketAddr), Link, &mut dyn FnMut() -> bool) -> bool;

/// Gives the stream with these ends back to the kernel, at the request of its other process, which has left this. The last
/// function tells that process what this one had, once the kernel has what this one had to send, and returns when the
/// other one has sent, too. False: not now.
pub type LeaveStream = fn((SocketAddr, SocketAddr), &Left, &mut dyn FnMut(&Left)) -> bool;

static SERVED: OnceLock<(MoveStream, LeaveStream)> = OnceLock::new();

/// From now on streams of this process move and leave by these, at the requests of others.
#[doc(hidden)]
pub fn serve_local_streams(moves: MoveStream, leaves: LeaveStream) {
    let _ = SERVED.set((moves, leaves));
}

/// How long a process waits until the other one has sent what it had to send. It may have been stopped in that moment: then
/// its part comes when it runs.
const SENT: Duration = Duration::from_secs(1);

/// A stream that this process is leaving: what it had, and what the other process had, if that one asks at the same time.
pub(super) struct Leaving {
    ends: (SocketAddr, SocketAddr),
    had: Left,
    asks_too: Option<(Left, OwnedFd)>,
}

/// What the other process had of a stream that both leave.
pub(crate) struct Exchanged {
    pub(crate) theirs: Left,
    /// It has asked at the same time, by this.
    asks_too: Option<OwnedFd>,
}

impl Exchanged {
    /// This process has sent what it had to send; waits until the other one has.
    pub(crate) fn finish(&self, asked: &Asked) {
        let by = self.asks_too.as_ref().unwrap_or(&asked.0);
        for socket in [Some(&asked.0), self.asks_too.as_ref()].into_iter().flatten() {
            let _ = message::send(socket.as_fd(), &[DONE], &[], libc::MSG_DONTWAIT);
        }
        wait_until_sent(by);
    }
}

fn wait_until_sent(by: &OwnedFd) {
    let _ = unix::set_timeouts(by, SENT);
    // Nothing depends on it but the moment at which the data is there.
    let _ = message::receive(by.as_fd(), &mut [0; 1]);
}

/// The other process of a stream has been asked to leave it.
#[derive(Debug)]
pub struct Asked(OwnedFd);

impl Asked {
    /// Whether the other process is ready, within `limit`.
    ///
    /// # Errors
    /// `WouldBlock`: it must be asked again.
    pub fn is_ready(&self, limit: Duration) -> io::Result<bool> {
        let mut entry = [libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        if sys::poll_all(&mut entry, Some(limit)) <= 0 {
            return Ok(false);
        }
        let mut answer = [0; 1];
        match message::receive(self.0.as_fd(), &mut answer) {
            Ok((1, _)) if answer[0] == READY => Ok(true),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Tells the other process what this one had. Returns what that one had, however long it is stopped meanwhile.
    fn exchange(&self, ours: &Left) -> io::Result<Left> {
        send_data(&self.0, NOT_ACCEPTED, ours.next, &ours.unread)?;
        unix::set_timeouts(&self.0, Duration::ZERO)?;
        match answer_on(&self.0)? {
            Answer::NotAccepted(Received { next, data }) => Ok(Left { next, unread: data }),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
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

/// The names of a stream with this local end as ss(8) shows them, local and remote: a path, `@` and an abstract name, or `*`,
/// and the socket's inode number. `None`: the end is no such stream's.
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

/// What sock_diag(7) says of the AF_UNIX socket with this inode number: the attribute of that kind (include/uapi/linux/unix_diag.h).
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

    /// Moves the stream whose connected socket, of this process, has this inode number. `ready` is called when the other
    /// process is ready, with the ends, local and remote, and the link, and returns whether this one is. Returns whether
    /// the stream goes over the link from now on.
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
        sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, LEAVE_BUFFER)?;
        match send_request(&socket, LEAVE_STREAM, (remote, local)) {
            Ok(()) => Ok(Asked(socket)),
            // This process was stopped meanwhile, and the other one did not wait for so long.
            Err(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// This process leaves a stream, which does not change meanwhile. Returns what the other one had.
    ///
    /// # Errors
    /// `WouldBlock`: not now.
    pub(crate) fn leave_both(
        &self,
        asked: &Asked,
        ends: (SocketAddr, SocketAddr),
        ours: &Left,
    ) -> Result<Exchanged, Failed<io::Error>> {
        let leaving = Leaving { ends, had: ours.clone(), asks_too: None };
        lock(&self.shared.leaving).push(leaving);
        let theirs = asked.exchange(ours).ok();
        let mut all = lock(&self.shared.leaving);
        let at = all.iter().position(|it| it.ends == ends);
        let (told, asks_too) = at.and_then(|at| all.swap_remove(at).asks_too).unzip();
        match theirs.or(told) {
            Some(theirs) => Ok(Exchanged { theirs, asks_too }),
            None => Err(Failed::Stays(io::ErrorKind::WouldBlock.into())),
        }
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
        sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, LEAVE_BUFFER)?;
        message::send(socket.as_fd(), &[READY], &[], 0)?;
        let theirs = match answer_on(socket)? {
            Answer::NotAccepted(Received { next, data }) => Left { next, unread: data },
            _ => return Ok(()),
        };
        let answer = |had: &Left| {
            // The other process waits for it, unless it has ended.
            let _ = send_data(socket, NOT_ACCEPTED, had.next, &had.unread);
        };
        if let Some(it) = lock(&self.leaving).iter_mut().find(|it| it.ends == ends) {
            it.asks_too = Some((theirs, socket.try_clone()?));
            answer(&it.had);
            return Ok(());
        }
        let left = leaves(ends, &theirs, &mut |had| {
            answer(had);
            let _ = message::send(socket.as_fd(), &[DONE], &[], libc::MSG_DONTWAIT);
            wait_until_sent(socket);
        });
        match left {
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
    // What was sent before this is still there; nothing can be sent after it.
    // SAFETY: a plain system call.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RD) };
    goes()
}
