//! Lines on standard error, which belongs to the application.

use std::{fmt::Display, io, mem, os::fd::RawFd, ptr};

/// Prints one line. The reader may be gone: an application that would not have written there itself must not end by
/// SIGPIPE or a panic.
pub(crate) fn print(what: impl Display) {
    // In one write, because the application writes there, too.
    write(libc::STDERR_FILENO, format!("busypoll: {what}\n").as_bytes());
}

fn write(fd: RawFd, line: &[u8]) {
    without_sigpipe(|| {
        // By number, because the caller may hold locks: see `sys`.
        // SAFETY: readable for its length.
        let written = unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
        written < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE)
    });
}

/// Calls `write`, which returns whether it failed with EPIPE. Discards the SIGPIPE of that write, which is not the
/// application's, and restores `errno`. Neither locks nor allocates.
pub fn without_sigpipe(write: impl FnOnce() -> bool) {
    // SAFETY: the sets are plain data and valid for the calls, the limit is a timespec of zeros, `errno` is the
    // thread's own. The wait goes by number, as in `write`.
    unsafe {
        let errno = *libc::__errno_location();
        let (mut pipe, mut before, mut pending) = (mem::zeroed(), mem::zeroed(), mem::zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        libc::sigpending(&raw mut pending);
        // A SIGPIPE that was pending before is the application's.
        if write() && libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            let at_once: libc::timespec = mem::zeroed();
            let (set, information) = (&raw const pipe, ptr::null_mut::<libc::siginfo_t>());
            let len = libc::c_long::from(64 / 8);
            libc::syscall(libc::SYS_rt_sigtimedwait, set, information, &raw const at_once, len);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, os::fd::AsRawFd};

    thread_local!(static SIGPIPES: Cell<u32> = const { Cell::new(0) });

    extern "C" fn count_sigpipe(_: libc::c_int) {
        SIGPIPES.set(SIGPIPES.get() + 1);
    }

    fn errno() -> i32 {
        io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn a_line_without_a_reader_raises_no_sigpipe_and_keeps_errno() {
        let (reader, writer) = io::pipe().unwrap();
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = libc::EDOM };
        write(writer.as_raw_fd(), b"busypoll: something\n");
        assert_eq!(errno(), libc::EDOM);
        drop(reader);
        // SAFETY: a handler that only counts; a write without a reader also fails with an error.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = count_sigpipe as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGPIPE, &raw const action, ptr::null_mut());
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = libc::EDOM };
        write(writer.as_raw_fd(), b"busypoll: nothing\n");
        assert_eq!((SIGPIPES.get(), errno()), (0, libc::EDOM));
        // SAFETY: readable bytes.
        unsafe { libc::write(writer.as_raw_fd(), b"!".as_ptr().cast(), 1) };
        assert_eq!(SIGPIPES.get(), 1, "the mask is what it was");
    }
}
