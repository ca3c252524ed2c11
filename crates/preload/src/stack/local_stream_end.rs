//! AF_UNIX streams become the kernel's again: at a call that only the kernel can serve, and before their last
//! descriptor is closed, so that the kernel keeps what the peer has not read. If the process at the other end is
//! stopped, a thread does it when that process runs; until then the stream is full.

use super::{
    common::lock,
    file::{FILES, File, Live, Ref, is_same},
    handover_parent, internal_fds,
};
use crate::{
    errno,
    inside::{ERESTARTSYS, Inside},
};
use busypoll_stack::{Events, Leave, thread};
use libc::c_int;
use std::{
    io, mem,
    net::{Shutdown, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard},
    thread::sleep,
    time::{Duration, Instant},
};

/// A process that does not answer for so long is stopped, or short of CPU time.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long the thread waits for the other process of one stream before it looks at the next.
const TURN: Duration = Duration::from_millis(5);

/// A stream that becomes the kernel's when its other process runs.
struct Pending {
    file: Ref,
    companion: OwnedFd,
}

/// The thread runs while there are any.
static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

/// Held across a fork.
pub struct Forking(MutexGuard<'static, Vec<Pending>>);

impl Forking {
    pub fn take() -> Forking {
        Forking(lock(&PENDING))
    }

    /// In the child: these are the parent's, and so is the thread.
    pub fn in_child(&mut self) {
        mem::forget(mem::take(&mut *self.0));
    }
}

/// `file`, at `fd`, is the kernel's from now on. False: it has ended; or it [will be](is_pending), and shows before
/// that it is shut down as `how` says.
pub fn leave(file: &Ref, fd: c_int, how: Option<Shutdown>) -> bool {
    if how.is_some() && is_pending(file) {
        postpone(file, fd, how);
        return file.is_kernel_owned();
    }
    match give_until(file, fd, Instant::now() + PATIENCE) {
        Ok(()) => true,
        Err(late) if late.kind() == io::ErrorKind::TimedOut => {
            postpone(file, fd, how);
            false
        }
        Err(_) => false,
    }
}

/// Whether it will be the kernel's when its other process runs.
pub fn is_pending(file: &Ref) -> bool {
    lock(&PENDING).iter().any(|it| is_same(&it.file, file))
}

fn give_until(file: &Ref, fd: c_int, until: Instant) -> io::Result<()> {
    // SAFETY: open, by the contract of the program's call.
    handover_parent::give_stream(file, unsafe { BorrowedFd::borrow_raw(fd) }, Some(until))
}

#[cold]
fn postpone(file: &Ref, fd: c_int, how: Option<Shutdown>) {
    let Some(Live::Stream(stream)) = file.live() else { return };
    match how {
        Some(how) => {
            if how != Shutdown::Read {
                file.local_stream.get().into_iter().for_each(|stream| stream.later.end());
            }
            stream.shut_before_leaving(how);
        }
        None => stream.hold_sends(),
    }
    let mut pending = lock(&PENDING);
    if file.is_kernel_owned() || pending.iter().any(|it| is_same(&it.file, file)) {
        return;
    }
    let Some(companion) = internal_fds::copy_of(fd) else { return };
    let is_first = pending.is_empty();
    pending.push(Pending { file: file.clone(), companion });
    drop(pending);
    if is_first && thread::spawn("busypoll/leave", leave_pending).is_err() {
        lock(&PENDING).clear();
    }
}

fn leave_pending() {
    let mut at = 0;
    loop {
        let mut pending = lock(&PENDING);
        if pending.is_empty() {
            return;
        }
        at = (at + 1) % pending.len();
        let file = pending[at].file.clone();
        let companion = pending[at].companion.as_fd().try_clone_to_owned();
        drop(pending);
        let Ok(companion) = companion else {
            sleep(TURN);
            continue;
        };
        let until = Some(Instant::now() + TURN);
        let given = handover_parent::give_stream(&file, companion.as_fd(), until);
        if given.as_ref().is_err_and(|late| late.kind() == io::ErrorKind::TimedOut) {
            continue;
        }
        pending = lock(&PENDING);
        pending.retain(|it| !is_same(&it.file, &file));
    }
}

/// The program closes `fd`, a descriptor of `file`, here or in the program that it executes. Called inside.
pub fn before_close(file: &Ref, fd: c_int) {
    if file.domain != libc::AF_UNIX || file.is_kernel_owned() {
        return;
    }
    let Some(live @ Live::Stream(_)) = file.live() else { return };
    let is_other =
        |(at, known): (c_int, Option<Ref>)| at != fd && known.is_some_and(|it| is_same(&it, file));
    if live.socket().readiness().has(Events::HANGUP) || FILES.all().any(is_other) {
        return;
    }
    let _errno = errno::Saved::new();
    leave(file, fd, None);
}

/// The program puts another file at `fd`.
pub fn before_replacing(fd: c_int) {
    if let Some(file) = FILES.get(fd)
        && let Some(_inside) = Inside::enter()
    {
        before_close(&file, fd);
    }
}

/// This process ends: all of its streams become the kernel's, those whose other processes are stopped until then.
pub fn end_all(until: Instant) {
    for (fd, file) in FILES.all() {
        if let Some(file) = file {
            before_close(&file, fd);
        }
    }
    wait_until_left(until);
}

/// Streams that this process has closed would end with its memory.
pub fn wait_until_left(until: Instant) {
    while !lock(&PENDING).is_empty() && Instant::now() < until {
        sleep(Duration::from_millis(1));
    }
}

/// Whether `file`, at `fd`, goes on over memory until its other process, which is stopped, runs; then it is the
/// kernel's.
pub fn waits_for_other(file: &Ref, fd: c_int) -> bool {
    let Some(Live::Stream(stream)) = file.live().filter(|_| !file.is_kernel_owned()) else {
        return false;
    };
    !stream.readiness().has(Events::HANGUP)
        && (is_pending(file) || !leave(file, fd, None) && is_pending(file))
}

/// The other process leaves the stream with these ends, and so does this one. False: not now.
pub fn leaves(ends: (SocketAddr, SocketAddr), request: &mut Leave<'_>) -> bool {
    let is_it = |file: &File| {
        let stream = file.local_stream.get().filter(|_| !file.is_kernel_owned());
        matches!(file.live(), Some(Live::Stream(_)))
            && stream.and_then(|stream| stream.ends()) == Some(ends)
    };
    let Some((file, companion)) = pending(is_it).or_else(|| handover_parent::find(is_it)) else {
        return false;
    };
    let Some(theirs) = request.accept(companion.as_fd()) else { return false };
    let Ok(_giving) = file.activation.try_lock() else { return false };
    let Some(Live::Stream(stream)) = file.live().filter(|_| !file.is_kernel_owned()) else {
        return false;
    };
    let companion = companion.as_fd();
    let steps = handover_parent::steps_of_leaving(&file, companion);
    let left = stream.leave_local_stream_too(request, &theirs, companion, ERESTARTSYS, steps);
    if left.is_ok() {
        handover_parent::left(&file);
    }
    left.is_ok()
}

/// One that may be closed already.
fn pending(is_it: impl Fn(&File) -> bool) -> Option<(Ref, OwnedFd)> {
    let all = lock(&PENDING);
    let found = all.iter().find(|it| is_it(&it.file))?;
    Some((found.file.clone(), found.companion.try_clone().ok()?))
}
