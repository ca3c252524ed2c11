//! A background process beside a program: no child of it, in a session of its own, with no descriptor of the program's.
//! So signals, job control and the exit status stay the program's own, and a reader of the program's output sees its
//! end.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Starts a daemon that does `work` and ends. The calling process must have one thread.
///
/// # Errors
/// fork(2) fails.
pub(crate) fn spawn(work: impl FnOnce()) -> io::Result<()> {
    // SAFETY: this process has one thread, so its child may call anything.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: the child ends at once, and nothing else waits for it.
        child => unsafe {
            libc::waitpid(child, std::ptr::null_mut(), 0);
            return Ok(());
        },
    }
    // SAFETY: plain calls in a process of one thread.
    unsafe {
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    work();
    // SAFETY: no destructor of the parent's must run here.
    unsafe { libc::_exit(0) }
}

/// Releases what this process has inherited: the current directory, input, output, and all descriptors but `kept` and
/// standard error. No value may own one of the others, as it would close it a second time.
pub(crate) fn close_all_but(kept: &[BorrowedFd<'_>]) {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    let _ = std::env::set_current_dir("/");
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept.into_iter().chain([u32::MAX]) {
        if fd > from {
            // The system call: glibc has a function for it from 2.34 on.
            // SAFETY: descriptors that this process does not use.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}

/// Releases standard error as well.
pub(crate) fn close_stderr() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
