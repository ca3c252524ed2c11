//! Gives a connection of this process, or an AF_UNIX stream, to the kernel. The process at the other end may be stopped:
//! each call says until when it waits for that.

use super::{Answer, Ends, PARENT, Parent, SOON};
use crate::{
    inside::ERESTARTSYS,
    stack::{
        activation::deactivate,
        common::{error, lock},
        companion_options,
        file::{Live, Ref},
        host,
    },
};
use libc::c_int;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Mutex, MutexGuard, TryLockError},
    thread::sleep,
    time::{Duration, Instant},
};

/// Hands a connection of this process, whose companion is `fd`, over to the kernel. The process at the other end may be
/// stopped: waits for it until then.
///
/// # Errors
/// It is not connected (any more), or the process lacks the capability; `TimedOut`. Then it stays ours.
pub fn hand_over(file: &Ref, fd: c_int, until: Option<Instant>) -> io::Result<()> {
    // SAFETY: open, by the contract of the program's call.
    let companion = unsafe { BorrowedFd::borrow_raw(fd) };
    give_to_kernel(file, companion, true, until, |_, _, _| Answer::Yes).map(drop)
}

/// Returns what `handed` does, of the file in its place and its ends. No process is forked in between.
pub(super) fn give_to_kernel(
    file: &Ref,
    companion: BorrowedFd<'_>,
    is_used: bool,
    until: Option<Instant>,
    handed: impl FnOnce(&mut Parent, Ref, Ends) -> Answer,
) -> io::Result<Answer> {
    if file.domain == libc::AF_UNIX {
        return give_stream(file, companion, until).map(|()| Answer::Yes);
    }
    let _giving = match until {
        None => lock(&file.activation),
        Some(until) => lock_by(&file.activation, until).ok_or(io::ErrorKind::TimedOut)?,
    };
    if file.is_kernel_owned() {
        return Ok(Answer::Yes);
    }
    let Some(live @ Live::Stream(stream)) = file.live() else { return Err(error(libc::EINVAL)) };
    let ends = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
    companion_options::copy_to_companion(live, companion.as_raw_fd());
    let on_handed_over = || file.set_kernel_owned();
    stream.hand_over(companion, is_used, ERESTARTSYS, host::repair, until, on_handed_over)?;
    // In the epoll sets of this process the companion takes its place.
    let mut parent = lock(&PARENT);
    let file_now = deactivate(file);
    file_now.set_kernel_owned();
    Ok(ends.map_or(Answer::Yes, |ends| handed(&mut parent, file_now, ends)))
}

/// Gives an AF_UNIX stream back to the kernel, at both ends. The process at the other end may be stopped: waits for it
/// until then.
///
/// # Errors
/// `TimedOut`; the stream has ended.
pub fn give_stream(
    file: &Ref,
    companion: BorrowedFd<'_>,
    until: Option<Instant>,
) -> io::Result<()> {
    const LOOK: Duration = Duration::from_millis(50);
    let left = || until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
    loop {
        if file.is_kernel_owned() {
            return Ok(());
        }
        let Some(Live::Stream(stream)) = file.live() else { return Err(error(libc::EINVAL)) };
        let given = stream.ask_to_leave().and_then(|asked| {
            let peer = loop {
                if let Some(peer) = asked.is_ready(left().min(LOOK))? {
                    break peer;
                }
                if left().is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            };
            let _giving = lock(&file.activation);
            if !file.is_kernel_owned() {
                let sockets = (companion, peer.as_fd());
                let steps = steps_of_leaving(file, companion);
                stream.leave_local_stream(&asked, sockets, ERESTARTSYS, steps)?;
                self::left(file);
            }
            Ok(())
        });
        match given {
            Err(later) if later.kind() == io::ErrorKind::WouldBlock => {
                if left().is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                sleep(SOON);
            }
            given => return given,
        }
    }
}

/// What is done with `file` when the kernel has all that was sent by it, and then when the kernel has it.
pub fn steps_of_leaving(file: &Ref, companion: BorrowedFd<'_>) -> (impl FnOnce(), impl FnOnce()) {
    let send_later = move || {
        file.local_stream.get().into_iter().for_each(|stream| stream.later.send(companion));
    };
    (send_later, || file.set_kernel_owned())
}

/// The kernel has `file`, which was ours. No process is forked in between.
pub fn left(file: &Ref) {
    let _parent = lock(&PARENT);
    deactivate(file).set_kernel_owned();
}

/// Waits, but not past `until`, for a thread that has the lock.
fn lock_by<T>(mutex: &Mutex<T>, until: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(locked) => return Some(locked),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => sleep(SOON),
        }
    }
}

/// Hands these over, each with its companion: first those whose other process answers at once, then the others, until
/// then.
pub fn hand_over_each(mut files: Vec<(Ref, c_int)>, until: Instant) {
    for wait_until in [Instant::now(), until] {
        files.retain(|(file, fd)| {
            // A process that is stopped costs some time, and what needs no other process none.
            let is_over = Instant::now() >= until && file.needs_other_process();
            let is_late = |error: io::Error| error.kind() == io::ErrorKind::TimedOut;
            is_over || hand_over(file, *fd, Some(wait_until)).is_err_and(is_late)
        });
    }
}
