//! How two processes get a cable: one listens at a name, the other connects. The name is an abstract unix socket's, so it
//! goes when the process ends. The kernel says which user the other process has.

use super::{
    Coalesce, Config,
    between::{ProcessCable, Side},
    memory::{Memory, Shape},
};
use crate::{
    sync::{AtomicU32, Ordering},
    sys,
    unix::{self, message},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
    sync::Mutex,
    time::{Duration, Instant},
};

/// The first bytes that the listener sends, by which the other end recognises it; the last byte is the version.
const MAGIC: u32 = 0x6270_6302;

/// Bytes of the listener's message: magic, MTU, ring, number.
const OFFER: usize = 16;

/// How long a process that has connected waits for the listener's message, which is sent when the listener accepts.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long [`dial_first`] waits for each name.
const DIAL_PATIENCE: Duration = Duration::from_millis(20);

fn full_name(name: &str) -> String {
    format!("busypoll-cable-{name}")
}

/// Listens for other processes that want a cable.
///
/// ```
/// use busypoll_stack::nic::{Nic, cable};
/// let name = format!("example-{}", std::process::id());
/// let rendezvous = cable::listen(&name)?;
/// // In another process:
/// let other = std::thread::spawn(move || cable::connect(&name));
/// let ours = rendezvous.accept(cable::Config::default())?;
/// assert_ne!(ours.info().mac, other.join().unwrap()?.info().mac);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Another process of this network namespace listens at `name` (`AddrInUse`); the name is longer than 92 bytes.
pub fn listen(name: &str) -> io::Result<Rendezvous> {
    Ok(Rendezvous { socket: unix::listen(&full_name(name), libc::SOCK_STREAM)? })
}

/// As [`listen`]; [`Rendezvous::accept`] fails with `WouldBlock` if no process waits.
pub(crate) fn listen_nonblocking(name: &str) -> io::Result<Rendezvous> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    Ok(Rendezvous { socket: unix::listen(&full_name(name), kind)? })
}

/// A name at which other processes connect.
#[derive(Debug)]
pub struct Rendezvous {
    socket: OwnedFd,
}

impl AsFd for Rendezvous {
    /// Readable when a process waits to be accepted.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Rendezvous {
    /// Waits for a process of this user, or of root, and joins a cable with it. Others are sent away. Of `config`, the
    /// number of queues must be 1, and there is no interrupt moderation.
    ///
    /// # Errors
    /// An invalid configuration; no memory or descriptor left.
    pub fn accept(&self, config: Config) -> io::Result<ProcessCable> {
        if config.queues != 1 || config.coalesce != Coalesce::default() {
            let what = "cable: between processes it has one queue and no interrupt moderation";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let shape = shape_of(&config)?;
        loop {
            let listener = self.socket.as_raw_fd();
            let flags = libc::SOCK_CLOEXEC;
            // SAFETY: no address is wanted.
            let accepted =
                unsafe { libc::accept4(listener, ptr::null_mut(), ptr::null_mut(), flags) };
            let socket = match sys::owned(accepted) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // It has gone again (accept(2)).
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => continue,
                socket => socket?,
            };
            let (pid, user) = unix::peer(socket.as_fd())?;
            if !unix::trusts(user) || sys::has_hung_up(socket.as_raw_fd()) {
                continue;
            }
            let (memory, number, offer, file) = make_offer(shape)?;
            // If it has gone already, the next one may not have.
            if send_offer(&socket, &offer, &[file.as_raw_fd()]).is_ok() {
                return ProcessCable::new(memory, socket, Side::Listener, number, pid);
            }
        }
    }
}

fn shape_of(config: &Config) -> io::Result<Shape> {
    let mtu = u32::try_from(config.mtu).unwrap_or(u32::MAX);
    Shape { mtu, ring: config.ring }.checked()
}

/// A cable's memory and number, and what the other process gets of it.
fn make_offer(shape: Shape) -> io::Result<(Memory, u32, [u8; OFFER], OwnedFd)> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let (memory, file) = Memory::create(shape)?;
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let mut offer = [0; OFFER];
    for (to, word) in offer.chunks_exact_mut(4).zip([MAGIC, shape.mtu, shape.ring, number]) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Ok((memory, number, offer, file))
}

/// Joins a cable with the process at the other end of `channel`, which has asked for one and takes it by [`join_by`]. The
/// channel remains as it is.
///
/// # Errors
/// That process has gone; no memory or descriptor left.
pub(crate) fn offer_by(channel: &OwnedFd, config: &Config, pid: i32) -> io::Result<ProcessCable> {
    let (memory, number, offer, file) = make_offer(shape_of(config)?)?;
    let (ours, theirs) = unix::pair(libc::SOCK_STREAM)?;
    send_offer(channel, &offer, &[file.as_raw_fd(), theirs.as_raw_fd()])?;
    // As in `join_by`.
    ProcessCable::new(memory, ours.try_clone()?, Side::Listener, number, pid)
}

/// The cable that the process at the other end of `channel` offers.
///
/// # Errors
/// It offers none; no memory or descriptor left.
pub(crate) fn join_by(channel: &OwnedFd, pid: i32) -> io::Result<ProcessCable> {
    let (offer, mut descriptors) = receive_offer(channel)?;
    let (Some(socket), Some(file)) = (descriptors.pop(), descriptors.pop()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    // A copy is one of the library's descriptors, which the program does not close by chance.
    join_offer(&offer, &file, socket.try_clone()?, pid)
}

/// A cable to the process that listens at `name`, which must be of this user or of root. Waits until it accepts, for 5 s
/// at the most.
///
/// # Errors
/// No process listens there (`ConnectionRefused`), or one of another user (`PermissionDenied`); it does not accept
/// (`TimedOut`); no memory or descriptor left.
pub fn connect(name: &str) -> io::Result<ProcessCable> {
    let (socket, pid) = dial(name, PATIENCE)?;
    join(socket, pid)
}

/// A connection to the process that listens at `name`, and that process. Closed again, it has no effect there.
pub(crate) fn dial(name: &str, patience: Duration) -> io::Result<(OwnedFd, i32)> {
    let socket =
        unix::connect(&full_name(name), libc::SOCK_STREAM, patience).map_err(or_timed_out)?;
    trusted(socket)
}

fn trusted(socket: OwnedFd) -> io::Result<(OwnedFd, i32)> {
    let (pid, user) = unix::peer(socket.as_fd())?;
    if !unix::trusts(user) {
        let what = format!("user {user} listens there, which is neither root nor this user");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok((socket, pid))
}

/// A socket that [`dial_first`] has not connected, and the process that made it: for the next call, so that a name at
/// which no process listens costs one system call.
static UNCONNECTED: Mutex<Option<(u32, OwnedFd)>> = Mutex::new(None);

/// The names at which a process of another user has been found, and until when they are not tried again: each try makes
/// that process do work for nothing.
static UNTRUSTED: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

/// How long one is remembered, and how many are.
const REMEMBERED: Duration = Duration::from_secs(1);
const MOST_REMEMBERED: usize = 64;

fn is_untrusted(name: &str) -> bool {
    let Ok(mut all) = UNTRUSTED.try_lock() else { return false };
    if !all.is_empty() {
        let now = Instant::now();
        all.retain(|(_, until)| now < *until);
    }
    all.iter().any(|(known, _)| known == name)
}

fn set_untrusted(name: &str) {
    if let Ok(mut all) = UNTRUSTED.try_lock() {
        all.truncate(MOST_REMEMBERED - 1);
        all.push((name.to_owned(), Instant::now() + REMEMBERED));
    }
}

/// A connection to the first of these names at which a process listens, and that process; each is waited for for 20 ms at
/// the most.
///
/// # Errors
/// None listens (`ConnectionRefused`), or one does not accept (another kind); the first one is another user's, or was a moment ago (`PermissionDenied`).
pub(crate) fn dial_first(
    names: impl Iterator<Item = impl AsRef<str>>,
) -> io::Result<(OwnedFd, i32)> {
    let pid = std::process::id();
    // Only tried: a child of a fork finds it as another thread had it.
    let kept = UNCONNECTED.try_lock().ok().and_then(|mut kept| kept.take());
    let socket = match kept {
        Some((of, socket)) if of == pid => socket,
        other => {
            // A child does not have the descriptor any more.
            std::mem::forget(other);
            unix::unconnected(libc::SOCK_STREAM, DIAL_PATIENCE)?
        }
    };
    let mut kind = io::ErrorKind::ConnectionRefused;
    for name in names {
        if is_untrusted(name.as_ref()) {
            kind = io::ErrorKind::PermissionDenied;
            break;
        }
        match unix::connect_to(&socket, &full_name(name.as_ref())) {
            Ok(_) => return trusted(socket).inspect_err(|_| set_untrusted(name.as_ref())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => kind = error.kind(),
        }
    }
    if let Ok(mut kept) = UNCONNECTED.try_lock() {
        *kept = Some((pid, socket));
    }
    Err(kind.into())
}

/// The cable that the process at the other end of `socket` offers.
pub(crate) fn join(socket: OwnedFd, pid: i32) -> io::Result<ProcessCable> {
    let (offer, mut descriptors) = receive_offer(&socket)?;
    let file = descriptors.pop().ok_or_else(no_cable)?;
    join_offer(&offer, &file, socket, pid)
}

fn join_offer(
    offer: &[u8; OFFER],
    file: &OwnedFd,
    socket: OwnedFd,
    pid: i32,
) -> io::Result<ProcessCable> {
    let mut words =
        offer.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap_or_default()));
    let mut next = || words.next().unwrap_or(0);
    let (magic, mtu, ring, number) = (next(), next(), next(), next());
    if magic != MAGIC {
        let what = "cable: the other process has another version of busypoll";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let memory = Memory::open(file, Shape { mtu, ring }.checked()?)?;
    ProcessCable::new(memory, socket, Side::Connector, number, pid)
}

/// A call whose timeout has passed fails as if the socket were non-blocking.
fn or_timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "cable: the other process does not accept")
        }
        _ => error,
    }
}

fn send_offer(socket: &OwnedFd, bytes: &[u8; OFFER], descriptors: &[RawFd]) -> io::Result<()> {
    match message::send(socket.as_fd(), bytes, descriptors, libc::MSG_DONTWAIT)? {
        OFFER => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn receive_offer(socket: &OwnedFd) -> io::Result<([u8; OFFER], Vec<OwnedFd>)> {
    let mut bytes = [0; OFFER];
    let (len, descriptors) = message::receive(socket.as_fd(), &mut bytes).map_err(or_timed_out)?;
    match len {
        0 => Err(io::ErrorKind::ConnectionReset.into()),
        OFFER => Ok((bytes, descriptors)),
        _ => Err(no_cable()),
    }
}

fn no_cable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "cable: what listens there has no cable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_another_user_is_not_tried_again() {
        let [theirs, ours] =
            ["theirs", "ours"].map(|name| format!("test-{name}-{}", std::process::id()));
        let _both = [&theirs, &ours].map(|name| listen(name).unwrap());
        assert!(dial_first([&theirs].into_iter()).is_ok());
        set_untrusted(&theirs);
        // The kernel has the address, and no less specific one.
        let refused = dial_first([&theirs, &ours].into_iter()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(dial_first([&ours, &theirs].into_iter()).is_ok());
    }
}
