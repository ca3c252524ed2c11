//! Descriptors passed to another process by `SCM_RIGHTS`. The receiver gets the kernel's socket. That works for a
//! listener or a UDP socket, but the companion of a connection of ours is not connected. So the connection is handed
//! over to the kernel first; if that fails, it is not passed.

use super::{
    activation,
    common::{answer, error},
    companion_address,
    file::{FILES, Live, Ref, enter},
    foreign, handover_parent, internal_fds, iovec, links, local_stream, local_stream_end,
    not_accelerated, udp_links,
};
use crate::{
    errno,
    inside::{Inside, is_inside},
    real,
    report::Once,
};
use busypoll_policy::Protocol;
use libc::{c_int, mmsghdr, msghdr, ssize_t};
use std::os::fd::BorrowedFd;

static REPORTED: Once = Once::new();
static HANDED: Once = Once::new();

/// Whether `message` passes a connection that stays ours; that is then reported.
///
/// # Safety
/// `message` is valid for sendmsg(2).
unsafe fn passes_connection(message: &msghdr) -> bool {
    let mut passes = false;
    // SAFETY: the caller's contract.
    unsafe {
        foreign::for_each_passed(message, |fd| {
            companion_address::may_be_shared();
            passes |= !may_pass(fd);
        });
    }
    if passes {
        REPORTED.report(format_args!(
            "a connection on the stack plane cannot be passed to another process: sendmsg fails with EOPNOTSUPP"
        ));
    }
    passes
}

/// Whether the file at `fd` can be passed to another process; hands a connection over to the kernel.
fn may_pass(fd: c_int) -> bool {
    let Some(file) = FILES.get(fd) else { return true };
    let entered = enter(file.clone());
    handover_parent::escapes(&file);
    let Some((_inside, file)) = entered else { return true };
    if file.domain == libc::AF_UNIX && file.live().is_none() {
        local_stream::leave_inside(&file, fd);
        return true;
    }
    if !matches!(file.live(), Some(Live::Stream(_))) {
        if let Some(Live::Listener(_)) = file.live() {
            links::give_back(false);
            foreign::share_listener(fd);
        } else if file.protocol == Protocol::Udp && udp_links::is_on() {
            activation::share_udp(&[file]);
        }
        return true;
    }
    let handed = handover_parent::hand_over(&file, fd, None).is_ok();
    if handed {
        let why = format_args!(
            "{}: a connection is passed to another process",
            not_accelerated::device()
        );
        not_accelerated::report(&HANDED, why, "it is handed over to the kernel");
    }
    handed
}

/// sendmsg(2) on an AF_UNIX stream of ours, with descriptors, while its other process is stopped: they are sent when
/// that runs. `None`: it is not stopped, or the stream is full. Called outside.
///
/// # Safety
/// That of sendmsg(2).
pub unsafe fn send_later(
    file: &Ref,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Option<ssize_t> {
    let stream = file.local_stream.get().filter(|_| flags & libc::MSG_OOB == 0)?;
    let _errno = errno::Saved::new();
    // SAFETY: the caller's contract, here and below.
    let message = unsafe { message.as_ref() }.filter(|it| unsafe { has_rights_alone(it) })?;
    let waits = Inside::enter().is_some_and(|_inside| local_stream_end::waits_for_other(file, fd));
    // SAFETY: as above.
    if !waits || unsafe { passes_connection(message) } {
        return None;
    }
    let _inside = Inside::enter()?;
    let mut passed = Some(Vec::new());
    // SAFETY: as above.
    unsafe {
        foreign::for_each_passed(message, |fd| {
            passed = passed.take().zip(internal_fds::copy_of(fd)).map(|(mut all, copy)| {
                all.push(copy);
                all
            });
        });
    }
    let passed = passed?;
    let (iov, count) = (message.msg_iov, message.msg_iovlen);
    // SAFETY: open, by the contract of the program's call.
    let companion = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: as above.
    let kept = unsafe {
        iovec::with_readable(iov, count, libc::EMSGSIZE, |buffers| {
            Ok(stream.later.add(companion, buffers, passed))
        })
    };
    kept.ok().flatten().map(|len| len as ssize_t)
}

/// # Safety
/// `message` is valid for sendmsg(2).
unsafe fn has_rights_alone(message: &msghdr) -> bool {
    // SAFETY: ancillary data as its header says; null or a header within it.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(message);
        first
            .as_ref()
            .is_some_and(|it| (it.cmsg_level, it.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS))
            && libc::CMSG_NXTHDR(message, first).is_null()
    }
}

/// # Safety
/// `message` is null or valid for sendmsg(2).
unsafe fn is_refused(message: *const msghdr) -> bool {
    // SAFETY: the caller's contract.
    FILES.end() > 0
        && !is_inside()
        && unsafe { message.as_ref().is_some_and(|it| passes_connection(it)) }
}

/// sendmsg(2) on a descriptor that is not a socket of ours.
///
/// # Safety
/// That of sendmsg(2).
pub unsafe fn sendmsg_other(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    unsafe {
        match is_refused(message) {
            true => answer(Err(error(libc::EOPNOTSUPP))),
            false => real::sendmsg(fd, message, flags),
        }
    }
}

/// sendmmsg(2) on a descriptor that is not a socket of ours.
///
/// # Safety
/// That of sendmmsg(2).
pub unsafe fn sendmmsg_other(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    // SAFETY: the caller's contract, here and below.
    unsafe {
        let refused = |at: usize| is_refused(&raw const (*messages.add(at)).msg_hdr);
        let looked_at =
            if messages.is_null() { 0 } else { (count as usize).min(iovec::UIO_MAXIOV) };
        let first_refused = (0..looked_at).position(refused);
        match first_refused {
            Some(0) => answer(Err(error(libc::EOPNOTSUPP))),
            // The messages before it are sent.
            Some(first_refused) => real::sendmmsg(fd, messages, first_refused as u32, flags),
            None => real::sendmmsg(fd, messages, count, flags),
        }
    }
}
