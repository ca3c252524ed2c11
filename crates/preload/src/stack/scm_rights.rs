//! Descriptors passed to another process by `SCM_RIGHTS`. The receiver gets the kernel's socket. That works for a
//! listener or a UDP socket, but the companion of a connection of ours is not connected. So the connection is handed
//! over to the kernel first; if that fails, it is not passed.

use super::{
    activation,
    common::{answer, error},
    companion_address,
    file::{FILES, Live, enter},
    foreign, handover_parent, iovec, links, local_stream, not_accelerated, udp_links,
};
use crate::{inside::is_inside, real, report::Once};
use busypoll_policy::Protocol;
use libc::{c_int, mmsghdr, msghdr, ssize_t};

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
