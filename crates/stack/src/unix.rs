//! Unix sockets by which processes find each other: abstract names within a network namespace, paths between two. Any
//! process may listen at any name, so an answer counts only if the kernel says that a [trusted](trusts) user listens there.

pub(crate) mod message;

use crate::sys;
use std::{
    fs, io, mem,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::SocketAddr,
    },
    time::Duration,
};

/// Whether this process trusts processes of `user`: root and its own user.
pub fn trusts(user: u32) -> bool {
    // SAFETY: plain system calls.
    user == 0 || unsafe { user == libc::geteuid() || user == libc::getuid() }
}

/// The PID (0 if it is not visible from here) and the user of the process at the other end. For a connection to a
/// listener, that is the process that called listen(2).
///
/// # Errors
/// It is no unix socket.
pub fn peer(connection: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for a ucred, and its length.
    let got = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if got == 0 { Ok((credentials.pid, credentials.uid)) } else { Err(io::Error::last_os_error()) }
}

/// The abstract names in this network namespace that consist of `prefix` and hexadecimal digits, without those of
/// closed sockets (proc(5), /proc/net/unix).
pub fn names(prefix: &str) -> Vec<String> {
    // An abstract name may contain any bytes.
    let sockets = fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let sockets = String::from_utf8_lossy(&sockets);
    let name = |line: &str| line.rsplit(' ').next()?.strip_prefix('@').map(str::to_owned);
    // Any process may listen at a name that only begins with the prefix, and names are printed.
    let is_one = |name: &String| {
        let id = name.strip_prefix(prefix);
        id.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let mut names: Vec<String> = sockets.lines().filter_map(name).filter(is_one).collect();
    // Connections that a listener accepted have its name, too.
    names.sort();
    names.dedup();
    names
}

/// An abstract name, or the path of a socket if it begins with a slash, in the kernel's layout.
///
/// # Errors
/// It is too long.
pub(crate) fn address(name: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let is_path = name.starts_with('/');
    // Checks the length.
    match is_path {
        true => SocketAddr::from_pathname(name)?,
        false => SocketAddr::from_abstract_name(name)?,
    };
    // SAFETY: all zeros is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // An abstract name begins with a zero byte, a path ends with one.
    for (to, from) in address.sun_path.iter_mut().skip((!is_path).into()).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, len as libc::socklen_t))
}

/// A socket of this type (with flags) that is bound to a name.
///
/// # Errors
/// The name is taken; no descriptor left.
pub(crate) fn bind(name: &str, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let socket = sys::owned(unsafe { libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0) })?;
    let (address, len) = address(name)?;
    // SAFETY: a valid address of that length.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket of this type (with flags) that listens at a name.
///
/// # Errors
/// The name is taken; no descriptor left.
pub(crate) fn listen(name: &str, kind: libc::c_int) -> io::Result<OwnedFd> {
    let socket = bind(name, kind)?;
    // SAFETY: a plain system call.
    match unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket of this type that is connected to the one that listens at a name. Each of its calls waits for `patience` at
/// the most.
///
/// # Errors
/// Those of connect(2): nothing listens there, or its backlog is full for so long.
pub(crate) fn connect(name: &str, kind: libc::c_int, patience: Duration) -> io::Result<OwnedFd> {
    let socket = unconnected(kind, patience)?;
    connect_to(&socket, name).map(|()| socket)
}

/// A socket of this type whose calls wait for `patience` at the most.
///
/// # Errors
/// No descriptor left.
pub(crate) fn unconnected(kind: libc::c_int, patience: Duration) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let socket = sys::owned(unsafe { libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0) })?;
    set_timeouts(&socket, patience).map(|()| socket)
}

/// Connects `socket` to the one that listens at a name. After an error it can be used again.
///
/// # Errors
/// Those of connect(2): nothing listens there, or its backlog is full for so long as a call may wait.
pub(crate) fn connect_to(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let (address, len) = address(name)?;
    // SAFETY: a valid address of that length.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Two sockets of this type that are connected to each other.
///
/// # Errors
/// No descriptor left.
pub(crate) fn pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [-1; 2];
    // SAFETY: room for two descriptors.
    let made =
        unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
    match made {
        0 => Ok((sys::owned(pair[0])?, sys::owned(pair[1])?)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Limits how long one call on a socket waits.
pub(crate) fn set_timeouts(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    let limit = libc::timeval {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_usec: limit.subsec_micros().into(),
    };
    [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO]
        .into_iter()
        .try_for_each(|option| sys::set_option(socket, libc::SOL_SOCKET, option, limit))
}

/// The listen(2) backlog.
pub(crate) const BACKLOG: libc::c_int = 128;
