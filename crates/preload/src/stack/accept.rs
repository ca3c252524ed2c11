//! accept(2) and accept4(2): a connection over our queues, or one that the kernel has made.

use super::{
    address,
    common::{answer, checked, error},
    companion_options,
    file::{FILES, File, Live, Ref, enter},
    internal_fds, libc_io, local_stream, not_accelerated,
    sockets::FLAGS,
    wait,
};
use crate::{
    errno,
    inside::{Inside, Restart, is_inside},
    kernel, memory, real,
    report::OncePer,
};
use busypoll_stack::{Accepted, TcpListener};
use libc::{c_int, sockaddr, socklen_t};
use std::{io, net::SocketAddr, os::fd::AsRawFd, time::Instant};

/// A line for each reason why an accepted connection stays with the kernel.
static LEFT: OncePer<8> = OncePer::new();

/// # Safety
/// That of accept(2).
pub unsafe fn accept(file: Ref, fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { accept4(file, fd, addr, len, 0) }
}

/// # Safety
/// That of accept4(2).
pub unsafe fn accept4(
    file: Ref,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let by_kernel = |file: &File| {
        let begun = Instant::now();
        loop {
            // SAFETY: the caller's contract.
            let accepted = unsafe { kernel::accept4(fd, addr, len, flags) };
            // The companion is nonblocking while another process, in which the listener is active, accepts from it.
            if accepted >= 0 || errno::get() != libc::EAGAIN || file.is_nonblocking() {
                return accepted;
            }
            let limit = companion_options::timeout(fd, libc::SO_RCVTIMEO);
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            let restart = if limit.is_some() { Restart::Never } else { Restart::BySignal };
            match wait::wait_for_kernel_fd(fd, libc::POLLIN, left, restart) {
                Ok(0) => return answer(Err(error(libc::EAGAIN))),
                Ok(_) => {}
                Err(error) => return answer(Err(error)),
            }
        }
    };
    if file.domain == libc::AF_UNIX {
        let accepted = by_kernel(&file);
        if accepted >= 0 && !file.is_kernel_owned() {
            local_stream::accepted(accepted, flags);
        }
        return accepted;
    }
    let kept = file.clone();
    let Some((inside, file)) = enter(file) else { return by_kernel(&kept) };
    drop(kept);
    let Some(Live::Listener(listener)) = file.activate(fd) else {
        drop(inside);
        return by_kernel(&file);
    };
    if flags & !FLAGS != 0 {
        return answer(Err(error(libc::EINVAL)));
    }
    let accepted = accept_from(&inside, &file, fd, listener, flags);
    if let Ok((new, remote)) = &accepted
        // SAFETY: the caller's contract.
        && let Err(wrong) = unsafe { address::write_if_asked(*remote, file.domain, addr, len) }
    {
        // The kernel as well has taken the connection by then, and closes it.
        FILES.clear(*new);
        // SAFETY: made above.
        unsafe { real::close(*new) };
        return answer(Err(wrong));
    }
    answer(accepted.and_then(|(fd, _)| usize::try_from(fd).map_err(|_| error(libc::EMFILE))))
}

/// The descriptor comes first, as in the kernel: without one no connection is taken.
fn accept_from(
    inside: &Inside,
    file: &File,
    fd: c_int,
    listener: &TcpListener,
    flags: c_int,
) -> io::Result<(c_int, Option<SocketAddr>)> {
    if memory::is_short() {
        return Err(error(libc::ENOBUFS));
    }
    let reserved = ReservedFd::reserve(file.domain, flags)?;
    let restart = match listener.accept_timeout() {
        Some(_) => Restart::Never,
        None => Restart::BySignal,
    };
    match inside.wait(restart, || listener.accept_any(false)) {
        Ok(Accepted::Ours(stream, remote)) => {
            let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
            // It cannot fail.
            let _ = stream.set_nonblocking(nonblocking);
            let file = file.accepted(fd, stream, remote);
            file.set_nonblocking(nonblocking);
            let fd = reserved.take(flags);
            let file = FILES.hold(file);
            if FILES.set(fd, file.clone()) {
                libc_io::check_accepted(fd, &file);
                return Ok((fd, Some(remote)));
            }
            // SAFETY: taken just above.
            unsafe { real::close(fd) };
            Err(error(libc::EMFILE))
        }
        Ok(Accepted::Kernel(stream, why)) => {
            if let Some(why) = why {
                not_accelerated::report(
                    LEFT.of(why),
                    format_args!("{}: an accepted connection: {why}", not_accelerated::device()),
                    "it stays with the kernel, and so does any like it",
                );
            }
            let remote = stream.peer_addr().ok();
            let cloexec = flags & libc::SOCK_CLOEXEC;
            let blocking = stream.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
            // SAFETY: two descriptors of ours; SOCK_CLOEXEC is O_CLOEXEC.
            let over = || checked(unsafe { real::dup3(stream.as_raw_fd(), reserved.0, cloexec) });
            blocking.and_then(|()| over())?;
            let fd = reserved.take(flags);
            FILES.clear(fd);
            Ok((fd, remote))
        }
        Err(error) => Err(error),
    }
}

/// A descriptor that is reserved for a connection to come, as the kernel does: the program cannot use it, nor can a
/// child.
struct ReservedFd(c_int);

impl ReservedFd {
    /// A companion holds the number: a new socket made with `flags`.
    fn reserve(domain: c_int, flags: c_int) -> io::Result<ReservedFd> {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags;
        // SAFETY: a plain system call.
        let fd = checked(unsafe { real::socket(domain, kind, 0) })?;
        FILES.set_internal(fd);
        Ok(ReservedFd(fd))
    }

    /// Gives the number to the program, with close-on-exec as `flags` say. The caller enters the file.
    fn take(self, flags: c_int) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        if flags & libc::SOCK_CLOEXEC == 0 {
            // SAFETY: our own descriptor. It cannot fail.
            unsafe { real::fcntl(fd, libc::F_SETFD, 0) };
        }
        fd
    }
}

impl Drop for ReservedFd {
    fn drop(&mut self) {
        let _errno = errno::Saved::new();
        FILES.clear(self.0);
        // SAFETY: made by `reserve`.
        unsafe { real::close(self.0) };
    }
}

/// accept(2) on a listener that is not ours.
///
/// # Safety
/// That of accept(2).
pub unsafe fn accept_other(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { accept4_other(fd, addr, len, 0) }
}

/// # Safety
/// That of accept4(2).
pub unsafe fn accept4_other(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if is_inside() {
        // SAFETY: the caller's contract.
        return internal_fds::make_internal(unsafe { real::accept4(fd, addr, len, flags) });
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::accept4(fd, addr, len, flags) }
}
