//! The few plain system calls that several floors need.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// What a call that returns a new descriptor returned: the descriptor, or the error it reports.
pub(crate) fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: by the caller's word a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new non-blocking eventfd.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes an eventfd readable.
pub(crate) fn signal(event: RawFd) {
    let one = 1u64;
    // SAFETY: eight readable bytes. It can only fail by being readable already.
    unsafe { libc::write(event, (&raw const one).cast(), 8) };
}

/// Makes an eventfd (or timerfd) not readable.
pub(crate) fn drain(event: RawFd) {
    let mut count = 0u64;
    // SAFETY: eight writable bytes. It can only fail by not being readable.
    unsafe { libc::read(event, (&raw mut count).cast(), 8) };
}

/// A time span as the kernel takes it.
pub(crate) fn timespec(span: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}
