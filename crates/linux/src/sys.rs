//! System calls that std does not wrap. All `unsafe` of this crate is here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::{c_int, c_ulong, c_void, socklen_t};

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An integer option.
pub(crate) fn get_option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: `value` and `len` outlive the call and `len` is the size of `value`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast::<c_void>(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// The cookie of the network namespace of a socket (`SO_NETNS_COOKIE`, Linux 5.14).
pub(crate) fn get_netns_cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const SO_NETNS_COOKIE: c_int = 71;
    let mut value: u64 = 0;
    let mut len = size_of::<u64>() as socklen_t;
    // SAFETY: `value` and `len` outlive the call and `len` is the size of `value`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut value).cast::<c_void>(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// `TCP_ULP`: the upper layer protocol on a TCP socket, if any.
pub(crate) fn get_tcp_ulp(fd: BorrowedFd<'_>) -> Option<String> {
    // TCP_ULP_NAME_MAX (include/net/tcp.h).
    let mut name = [0_u8; 16];
    let mut len = name.len() as socklen_t;
    // SAFETY: `name` and `len` outlive the call and `len` is the size of `name`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_ULP,
            name.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    })
    .ok()?;
    let text: Vec<u8> = name.into_iter().take(len as usize).take_while(|b| *b != 0).collect();
    String::from_utf8(text).ok().filter(|text| !text.is_empty())
}

/// Sets an integer option.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the kernel only reads `value`, of the size given, during the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        )
    })
}

pub(crate) fn get_epoll_params(fd: BorrowedFd<'_>) -> io::Result<libc::epoll_params> {
    let mut p = libc::epoll_params {
        busy_poll_usecs: 0,
        busy_poll_budget: 0,
        prefer_busy_poll: 0,
        __pad: 0,
    };
    // SAFETY: EPIOCGPARAMS writes one `epoll_params`, which `p` is. A descriptor of another kind
    // refuses the request, whose type byte 0x8A belongs to epoll.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::EPIOCGPARAMS, &raw mut p) })?;
    Ok(p)
}

pub(crate) fn set_epoll_params(fd: BorrowedFd<'_>, p: libc::epoll_params) -> io::Result<()> {
    // SAFETY: EPIOCSPARAMS only reads one `epoll_params`, which `p` is.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::EPIOCSPARAMS, &raw const p) })
}

/// `SIOCETHTOOL` on a device: `request[0]` is the command, the kernel answers in place.
///
/// The caller must give a buffer at least as long as the command and the lengths inside it require.
pub(crate) fn ethtool(socket: impl AsFd, device: &str, request: &mut [u32]) -> io::Result<()> {
    const SIOCETHTOOL: u32 = 0x8946;
    // SAFETY: `ifreq` is plain data, for which all zeroes is a valid value.
    let mut ifr: libc::ifreq = unsafe { std::mem::zeroed() };
    // The kernel would cut such a name and find another device.
    if device.len() >= ifr.ifr_name.len() || device.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in ifr.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    ifr.ifr_ifru.ifru_data = request.as_mut_ptr().cast::<libc::c_char>();
    // SAFETY: `ifr` names the device with a terminating zero and points at `request`, which is
    // valid for writes during the call and, by this function's contract, long enough.
    check(unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL as libc::Ioctl, &raw mut ifr)
    })
}

/// Words of an affinity mask: room for 8192 CPUs, the most any Linux configuration has.
pub(crate) const MASK_WORDS: usize = 8192 / c_ulong::BITS as usize;

/// The affinity mask of the calling thread.
pub(crate) fn get_affinity() -> io::Result<[c_ulong; MASK_WORDS]> {
    let mut mask = [0; MASK_WORDS];
    // SAFETY: the length given is that of `mask`; the kernel writes no more than it.
    check(unsafe {
        libc::sched_getaffinity(0, size_of_val(&mask), (&raw mut mask).cast::<libc::cpu_set_t>())
    })?;
    Ok(mask)
}

/// Sets the affinity mask of the calling thread.
pub(crate) fn set_affinity(mask: &[c_ulong; MASK_WORDS]) -> io::Result<()> {
    // SAFETY: the length given is that of `mask`; the kernel only reads it.
    check(unsafe {
        libc::sched_setaffinity(0, size_of_val(mask), (&raw const *mask).cast::<libc::cpu_set_t>())
    })
}

/// An unused io_uring with one entry.
#[cfg(feature = "bpf")]
pub(crate) fn io_uring() -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    // struct io_uring_params of include/uapi/linux/io_uring.h: 120 bytes, all zero = defaults.
    let mut params = [0u64; 15];
    // SAFETY: the kernel reads and writes one `io_uring_params`, which `params` is as long as.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    let fd = c_int::try_from(fd).unwrap_or(-1);
    check(fd)?;
    // SAFETY: the kernel has just created this descriptor and nothing else uses it.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}
