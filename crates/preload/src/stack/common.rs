//! What the modules of this plane share: results as C functions return them, locks, queries of a companion.

use crate::{errno, real::Failed, spin_policy};
use libc::c_int;
use rustix::fs::{Mode, OFlags, RawDir, open};
use std::{
    io,
    mem::{ManuallyDrop, MaybeUninit},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsRawFd, FromRawFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Returns as a C function does, with `errno`.
#[inline]
pub fn answer<T: Failed + TryFrom<usize>>(result: io::Result<usize>) -> T {
    match result {
        Ok(value) => {
            if value > 0 {
                spin_policy::count_step();
            }
            T::try_from(value).unwrap_or(T::FAILED)
        }
        Err(error) => {
            errno::set(code(&error));
            T::FAILED
        }
    }
}

/// The errno of an error.
pub fn code(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        io::ErrorKind::BrokenPipe => libc::EPIPE,
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::PermissionDenied => libc::EPERM,
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull => libc::ENOBUFS,
        _ => libc::EIO,
    })
}

pub fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// The result of a system call that returned `result`.
pub fn checked<T: Copy + PartialOrd + Default>(result: T) -> io::Result<T> {
    if result < T::default() { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A companion, to query it: it stays open.
pub fn companion<T: FromRawFd>(fd: c_int) -> ManuallyDrop<T> {
    // SAFETY: open, by the contract of the program's call; not closed by us.
    ManuallyDrop::new(unsafe { T::from_raw_fd(fd) })
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of a companion; port 0: it is not bound.
pub fn local(fd: c_int) -> io::Result<SocketAddr> {
    // The type does not matter for a query of its address.
    companion::<UdpSocket>(fd).local_addr()
}

/// The unspecified address of the family of `address`.
pub fn any_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The companion's peer.
pub fn remote(fd: c_int) -> Option<SocketAddr> {
    companion::<UdpSocket>(fd).peer_addr().ok()
}

/// A time span of setsockopt(2); zero means no limit.
pub fn span(time: libc::timeval) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    let span = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    (!span.is_zero()).then_some(span)
}

/// Calls `what` for each open descriptor.
pub fn for_each_fd(mut what: impl FnMut(c_int)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Without /proc there is nothing to list.
    let Ok(dir) = open("/proc/self/fd", flags, Mode::empty()) else { return };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(fd) = number
            && fd != dir.as_raw_fd()
        {
            what(fd);
        }
    }
}
