//! One owner per device. Owns the lock by which a second process learns who the first one is.
//!
//! The lock is a listening socket with an abstract name: one name space per network namespace, as
//! interface indexes are, and the kernel lets go of it however its holder ends. Whoever finds the name
//! taken connects to it and asks for the peer's credentials; nothing is exchanged. Who asked stays in the
//! backlog until the holder [dismisses](Lock::dismiss) him.

use crate::sys;
use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    thread,
    time::{Duration, Instant},
};

/// As many may ask at once.
const BACKLOG: libc::c_int = 128;

/// Held as long as this process drives the device.
pub(super) struct Lock(UnixListener);

impl Drop for Lock {
    /// A process that another thread is starting has our descriptors for a moment, and with them the name. Whoever
    /// asks hears that nobody listens any more, and not that we still own the device.
    fn drop(&mut self) {
        // SAFETY: a plain system call.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Why there was no lock to be had.
pub(super) enum Denied {
    /// The PID of the owner; 0 if it lives in a PID namespace we cannot see.
    OwnedBy(i32),
    Failed(io::Error),
}

fn name(ifindex: u32) -> String {
    format!("busypoll/xdp/{ifindex}")
}

impl Lock {
    /// Takes the device `ifindex` of the calling thread's network namespace; if it is taken, whose it is is not asked
    /// before `give_up`: each question stays in the owner's backlog.
    pub(super) fn take(ifindex: u32, give_up: Instant) -> Result<Lock, Denied> {
        loop {
            let bound = SocketAddr::from_abstract_name(name(ifindex))
                .and_then(|address| UnixListener::bind_addr(&address));
            match bound {
                Ok(listener) => {
                    listener.set_nonblocking(true).map_err(Denied::Failed)?;
                    return Ok(Lock(listener));
                }
                Err(e) if e.kind() != io::ErrorKind::AddrInUse => return Err(Denied::Failed(e)),
                Err(_) if Instant::now() < give_up => thread::sleep(Duration::from_millis(5)),
                Err(_) => return Err(owner(ifindex).map_or_else(Denied::Failed, Denied::OwnedBy)),
            }
        }
    }

    /// Makes room for others to ask. Who has asked has his answer already.
    pub(super) fn dismiss(&self) {
        while self.0.accept().is_ok() {}
    }
}

/// From now on this process is the one that `lock`, handed over by another, names.
pub(super) fn name_this_process(lock: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel notes who listens at each listen(2) anew (`unix_listen`, net/unix/af_unix.c).
    // SAFETY: a plain system call.
    match unsafe { libc::listen(lock.as_raw_fd(), BACKLOG) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn owner(ifindex: u32) -> io::Result<i32> {
    // SAFETY: no pointers. Not blocking: where nobody accepts, a full backlog would hold us for ever.
    let fd = sys::owned(unsafe {
        libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    })?;
    // SAFETY: all zeros is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = name(ifindex);
    for (to, from) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let length = (std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as u32;
    // SAFETY: `length` bytes of a valid address.
    let connected =
        unsafe { libc::connect(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
    if connected != 0 {
        let error = io::Error::last_os_error();
        // The backlog is full of askers before us: owned, by whom is beyond telling.
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) };
    }
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED writes at most `length` bytes of a ucred.
    let got = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut credentials).cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(credentials.pid)
}
