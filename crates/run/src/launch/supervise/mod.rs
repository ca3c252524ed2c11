//! The supervisor of programs that cannot be preloaded: static ones, and Go's.
//!
//! A seccomp filter has the kernel notify the supervisor, a process beside the program, of a few calls: those that make
//! sockets and epoll instances, give them addresses, or set `SO_BUSY_POLL`. A socket on which the program sets that
//! option itself is left alone. All other calls run as usual. The supervisor makes epoll instances, with their
//! parameters, and passes them to the program. It cannot do that with a socket, which would belong to the supervisor's
//! network namespace. So a socket is taken (pidfd_getfd) and configured when it gets an address, before that call
//! continues; a datagram socket that never gets one, shortly after it was made. Accepted sockets inherit the options.
//!
//! Neither process is a child of the other: signals, job control and the exit status are the program's own. The
//! supervisor ends with the last process under the filter. A second process restarts it if it is killed, as calls under
//! a filter without a supervisor fail with `ENOSYS`.
//!
//! No signal handler of the program runs while the supervisor works on a call. But one may run before the supervisor
//! has received the notification, and the call then ends with `EINTR`. So the thread that answers does nothing else,
//! and another thread watches the processes.

mod filter;
mod outstanding;
mod serve;
mod spin_policy;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use busypoll_policy::Launch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use self::outstanding::Outstanding;
use crate::daemonize;

/// When fork is tried again after it failed.
const RETRY: Duration = Duration::from_millis(100);

/// Puts this process, the program it executes and all its children under a supervisor. Returns whether this has set
/// no_new_privs, which is needed without `CAP_SYS_ADMIN`.
///
/// # Errors
/// Those of the system; `EBUSY` if such a supervisor exists already.
pub(super) fn begin(launch: &Launch) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let program = pidfd_open(getpid(), PidfdFlags::empty())?;
    daemonize::spawn(move || keep_serving(theirs, &program, launch))?;
    let (notifications, no_new_privs) = filter::install()?;
    hand_over(&ours, &notifications)?;
    Ok(no_new_privs)
}

/// Serves in a child, and restarts it if it is killed.
fn keep_serving(from: OwnedFd, program: &OwnedFd, launch: &Launch) {
    let Ok(Some(notifications)) = receive(&from) else { return };
    drop(from);
    let Ok(outstanding) = Outstanding::new() else { return };
    daemonize::close_all_but(&[notifications.as_fd(), program.as_fd()]);
    loop {
        // SAFETY: this process has one thread, so its child may call anything.
        match unsafe { libc::fork() } {
            0 => {
                close_stderr_after(program);
                serve::serve(&notifications, &outstanding, launch);
                // SAFETY: no destructor of the parent's must run here.
                unsafe { libc::_exit(0) }
            }
            // While a process under the filter is left, its calls need an answer.
            -1 if is_in_use(&notifications) => thread::sleep(RETRY),
            -1 => return,
            worker => {
                daemonize::close_stderr();
                let mut status = 0;
                // SAFETY: `status` is valid for writes.
                let waited = unsafe { libc::waitpid(worker, &raw mut status, 0) };
                if waited < 0 || libc::WIFEXITED(status) {
                    return;
                }
            }
        }
    }
}

/// Releases standard error when the program has ended, so that its reader sees the end even if a daemon of the program
/// lives on.
fn close_stderr_after(program: &OwnedFd) {
    let Ok(program) = program.try_clone() else { return };
    thread::spawn(move || {
        while poll(&mut [PollFd::new(&program, PollFlags::IN)], None).is_err() {}
        daemonize::close_stderr();
    });
}

/// Whether a process under the filter lives.
fn is_in_use(notifications: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(notifications, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // If poll is interrupted, HUP is not set.
    let _ = poll(&mut fds, Some(&now));
    !fds[0].revents().contains(PollFlags::HUP)
}

fn hand_over(to: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(to, &[IoSlice::new(b"!")], &mut control, SendFlags::empty())?;
    Ok(())
}

fn receive(from: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}
