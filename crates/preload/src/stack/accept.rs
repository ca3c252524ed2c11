//! accept(2) and accept4(2): a connection over our queues, or one that the kernel has made.

use super::{
    address,
    common::{answer, checked, companion, error},
    companion_options,
    file::{FILES, File, Live, Ref, enter},
    handover_parent, internal_fds, libc_io, local_stream, not_accelerated,
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
use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::{AsRawFd, BorrowedFd},
    time::Instant,
};

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
    if file.is_nonblocking() {
        let by_kernel = |companion: BorrowedFd<'_>| {
            // SAFETY: the caller's contract.
            checked(unsafe { real::accept4(companion.as_raw_fd(), addr, len, flags) })
        };
        if let Some(accepted) = listener.accept_of_kernel(by_kernel) {
            return answer(accepted.and_then(|new| {
                FILES.clear(new);
                import(&file, fd, listener, new, flags)?;
                Ok(new.cast_unsigned() as usize)
            }));
        }
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
            let made = file_of(file, fd, (stream, remote), flags);
            let fd = reserved.take(flags);
            enter_accepted(fd, made).map(|()| (fd, Some(remote)))
        }
        Ok(Accepted::Kernel(stream, why)) => {
            report_left(why);
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

/// Takes the connection `new`, which the kernel has made and the program does not know yet, over to the stack, if its
/// packets come over our queues. Else it stays as it is.
///
/// # Errors
/// No memory for its file: it is closed.
fn import(
    file: &File,
    fd: c_int,
    listener: &TcpListener,
    new: c_int,
    flags: c_int,
) -> io::Result<()> {
    if !listener.may_import(&companion(new)) {
        return Ok(());
    }
    // Without descriptors for both it stays the kernel's.
    let Ok(reserved) = ReservedFd::reserve(file.domain, flags) else { return Ok(()) };
    let Some(copy) = internal_fds::copy_of(new) else { return Ok(()) };
    match listener.import(TcpStream::from(copy)) {
        Ok(ours) => {
            let made = file_of(file, fd, ours, flags);
            // SAFETY: two descriptors of ours; SOCK_CLOEXEC is O_CLOEXEC. Both are open: it cannot fail.
            unsafe { real::dup3(reserved.0, new, flags & libc::SOCK_CLOEXEC) };
            enter_accepted(new, made)
        }
        Err((_kernel, why)) => {
            report_left(why);
            Ok(())
        }
    }
}

/// The file of a connection of ours that was accepted from `file`, at `fd`.
fn file_of(
    file: &File,
    fd: c_int,
    (stream, remote): (busypoll_stack::TcpStream, SocketAddr),
    flags: c_int,
) -> File {
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    // It cannot fail.
    let _ = stream.set_nonblocking(nonblocking);
    let made = file.accepted(fd, stream, remote);
    made.set_nonblocking(nonblocking);
    made
}

/// From now on `fd` is the program's, and this file.
///
/// # Errors
/// No memory for it: `fd` is closed.
fn enter_accepted(fd: c_int, made: File) -> io::Result<()> {
    let made = FILES.hold(made);
    if FILES.set(fd, made.clone()) {
        handover_parent::accepted(&made);
        libc_io::check_accepted(fd, &made);
        return Ok(());
    }
    // SAFETY: the program does not know it yet.
    unsafe { real::close(fd) };
    Err(error(libc::EMFILE))
}

fn report_left(why: Option<&'static str>) {
    if let Some(why) = why {
        not_accelerated::report(
            LEFT.of(why),
            format_args!("{}: an accepted connection: {why}", not_accelerated::device()),
            "it stays with the kernel, and so does any like it",
        );
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
