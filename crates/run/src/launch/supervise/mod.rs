//! The supervisor of programs that no library sees: static ones, and Go's.
//!
//! A seccomp filter has the kernel tell a process beside the program, the supervisor, of the few calls
//! that make sockets and epoll instances, give them addresses, or set `SO_BUSY_POLL`, which is then left
//! to the program; all others run as ever. An epoll instance is made by the supervisor, with its
//! parameters, and handed over. A socket is not: one made outside would belong to the maker's network
//! namespace. It is taken (pidfd_getfd) and set when its address is, before that call goes on; a datagram
//! socket that never gets one, shortly after it appeared. Accepted ones inherit.
//!
//! The program is no child of the supervisor, nor the other way round: signals, job control and the
//! exit status are the program's own. The supervisor ends with the last process under the filter. It is
//! kept by a second process, as calls under a filter whose supervisor is gone fail with `ENOSYS`.
//!
//! No handler of the program runs while the supervisor works at a call, but one may before the supervisor has heard of it:
//! the call then ends with `EINTR`. So the thread that answers does nothing else, and another one looks after processes.

mod filter;
mod harm;
mod outstanding;
mod serve;

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
use crate::apart;

/// When it is tried again where no process was to be had.
const AGAIN: Duration = Duration::from_millis(100);

/// Puts this process, what it becomes by exec, and all its children under a supervisor. Whether none of them gains
/// rights by an exec any more, which is the price for an ordinary user.
///
/// # Errors
/// The system's; `EBUSY` where a supervisor of this kind is there already.
pub(super) fn begin(launch: &Launch) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let program = pidfd_open(getpid(), PidfdFlags::empty())?;
    apart::leave_behind(move || keep(theirs, &program, launch))?;
    let (notifications, gave_up_rights) = filter::install()?;
    hand_over(&ours, &notifications)?;
    Ok(gave_up_rights)
}

/// Serves in a child, and in another should that one be killed.
fn keep(from: OwnedFd, program: &OwnedFd, launch: &Launch) {
    let Ok(Some(notifications)) = receive(&from) else { return };
    drop(from);
    let Ok(outstanding) = Outstanding::new() else { return };
    apart::only_keep(&[notifications.as_fd(), program.as_fd()]);
    loop {
        // SAFETY: this process has one thread, so its child may do all that it may.
        match unsafe { libc::fork() } {
            0 => {
                fall_silent_after(program);
                serve::serve(&notifications, &outstanding, launch);
                // SAFETY: nothing of the parent's is to be undone here.
                unsafe { libc::_exit(0) }
            }
            // As long as somebody is left, calls would fail without an answer.
            -1 if is_in_use(&notifications) => thread::sleep(AGAIN),
            -1 => return,
            worker => {
                apart::fall_silent();
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

/// Lets go of standard error when the program has ended: whoever reads there sees that, though a daemon of the
/// program's lives on.
fn fall_silent_after(program: &OwnedFd) {
    let Ok(program) = program.try_clone() else { return };
    thread::spawn(move || {
        while poll(&mut [PollFd::new(&program, PollFlags::IN)], None).is_err() {}
        apart::fall_silent();
    });
}

/// Whether a process under the filter lives.
fn is_in_use(notifications: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(notifications, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Interrupted, it has seen nothing.
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
