//! Calls on descriptors: close, dup and the like, fcntl, ioctl.

use super::{
    activation,
    common::{answer, error},
    companion_options,
    file::{FILES, Live, Ref, enter},
    handover_parent, internal_fds, libc_io, local_stream_end, unsupported_options, wait,
};
use crate::{
    errno,
    inside::{Inside, is_inside},
    kernel, real,
};
use libc::c_int;
use std::sync::atomic::Ordering;

/// # Safety
/// That of close(2).
pub unsafe fn close(file: Ref, fd: c_int) -> c_int {
    let inside = Inside::enter();
    if inside.is_some() {
        local_stream_end::before_close(&file, fd);
    }
    let is_shared = inside.is_some()
        && !file.is_kernel_owned()
        && matches!(file.live(), Some(Live::Stream(_)))
        && handover_parent::is_shared(&file);
    if is_shared {
        handover_parent::keep_companion(&file, fd);
    }
    // Removed from the table before the number is free. The last reference closes our socket here.
    FILES.clear(fd);
    if is_shared {
        handover_parent::closed(&file);
    }
    drop(file);
    // SAFETY: the caller's contract.
    let closed = unsafe { real::close(fd) };
    drop(inside);
    closed
}

/// close(2) of a descriptor that is not a socket of ours. The program cannot close the library's own.
///
/// # Safety
/// That of close(2).
pub unsafe fn close_other(fd: c_int) -> c_int {
    if FILES.is_internal(fd) {
        if !is_inside() {
            errno::set(libc::EBADF);
            return -1;
        }
        FILES.clear(fd);
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::close(fd) }
}

/// # Safety
/// That of close_range(2).
pub unsafe fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    // The kernel refuses flags that it does not know.
    let known = (libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE) as c_int;
    let inside = if flags & !known == 0 { Inside::enter() } else { None };
    let Some(_inside) = inside else {
        // SAFETY: the caller's contract.
        return unsafe { kernel::close_range(first, last, flags) };
    };
    let only_marks = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    let mut from = first;
    if first <= last {
        for (fd, file) in FILES.all() {
            let Ok(number) = u32::try_from(fd) else { continue };
            if !(first..=last).contains(&number) {
                continue;
            }
            match file {
                // A socket is closed with its range, by the kernel.
                Some(file) if !only_marks => {
                    local_stream_end::before_close(&file, fd);
                    FILES.clear_if(fd, &file);
                }
                Some(_) => {}
                None => {
                    if from < number {
                        // SAFETY: the caller's contract, for a part of the range.
                        let closed = unsafe { kernel::close_range(from, number - 1, flags) };
                        if closed != 0 {
                            return closed;
                        }
                    }
                    from = number + 1;
                    if number == last {
                        return 0;
                    }
                }
            }
        }
    }
    // SAFETY: the caller's contract, for the rest of the range.
    unsafe { kernel::close_range(from, last, flags) }
}

/// # Safety
/// That of closefrom(3).
pub unsafe fn closefrom(first: c_int) {
    // SAFETY: the caller's contract.
    unsafe { close_range(first.max(0).cast_unsigned(), u32::MAX, 0) };
}

/// `fd` is a new descriptor of `file`.
fn copied(fd: c_int, file: &Ref) -> c_int {
    if fd < 0 {
        return fd;
    }
    libc_io::check_standard(fd, file);
    if file.is_kernel_owned() && file.set().is_none() {
        handover_parent::escapes(file);
        replaced(fd);
    } else if let Some(_inside) = Inside::enter() {
        FILES.set(fd, file.clone());
        for_exec(file);
    }
    fd
}

/// A child duplicates a connection or listener of its parent's, or clears its close-on-exec flag: it is for the program
/// that the child will execute.
fn for_exec(file: &Ref) {
    if file.inherited().is_some() || file.is_parents_listener() {
        file.for_exec.store(true, Ordering::Relaxed);
    }
}

/// # Safety
/// That of dup(2).
pub unsafe fn dup(file: Ref, fd: c_int) -> c_int {
    // SAFETY: the caller's contract.
    copied(unsafe { real::dup(fd) }, &file)
}

/// `to` does not refer to our file any more.
fn replaced(to: c_int) {
    if let Some(_inside) = Inside::enter() {
        FILES.clear(to);
    }
}

/// # Safety
/// That of dup2(2).
pub unsafe fn dup2(file: Ref, fd: c_int, to: c_int) -> c_int {
    if fd == to {
        return fd;
    }
    // SAFETY: the caller's contract.
    unsafe { dup3(file, fd, to, 0) }
}

/// # Safety
/// That of dup3(2).
pub unsafe fn dup3(file: Ref, fd: c_int, to: c_int, flags: c_int) -> c_int {
    if FILES.is_internal(to) {
        errno::set(libc::EBUSY);
        return -1;
    }
    local_stream_end::before_replacing(to);
    // SAFETY: the caller's contract.
    copied(unsafe { real::dup3(fd, to, flags) }, &file)
}

/// dup2(2) of a descriptor that is not a socket of ours.
///
/// # Safety
/// That of dup2(2).
pub unsafe fn dup2_other(fd: c_int, to: c_int) -> c_int {
    if FILES.is_internal(to) && !is_inside() {
        errno::set(libc::EBUSY);
        return -1;
    }
    if fd != to {
        local_stream_end::before_replacing(to);
    }
    // SAFETY: the caller's contract.
    let copy = unsafe { kernel::dup2(fd, to) };
    if copy >= 0 && fd != to {
        replaced(to);
    }
    copy
}

/// dup3(2) of a descriptor that is not a socket of ours.
///
/// # Safety
/// That of dup3(2).
pub unsafe fn dup3_other(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if FILES.is_internal(to) && !is_inside() {
        errno::set(libc::EBUSY);
        return -1;
    }
    local_stream_end::before_replacing(to);
    // SAFETY: the caller's contract.
    let copy = unsafe { kernel::dup3(fd, to, flags) };
    if copy >= 0 {
        // Inside, the library itself reuses one of its numbers.
        match is_inside() {
            true => FILES.clear(to),
            false => replaced(to),
        }
    }
    copy
}

/// # Safety
/// That of fcntl(2).
pub unsafe fn fcntl(file: Ref, fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract, here and below.
    match command {
        // The stack duplicates a companion for itself.
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if is_inside() => internal_fds::duplicate(fd),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            // SAFETY: the caller's contract.
            copied(unsafe { real::fcntl(fd, command, argument) }, &file)
        }
        libc::F_GETFL => {
            // SAFETY: the caller's contract.
            let flags = unsafe { real::fcntl(fd, command, argument) };
            match flags {
                0.. if file.is_nonblocking() => flags | libc::O_NONBLOCK,
                0.. => flags & !libc::O_NONBLOCK,
                _ => flags,
            }
        }
        libc::F_SETFL => {
            if argument as c_int & libc::O_ASYNC != 0
                && let Some((_inside, file)) = enter(file.clone())
                && !activation::require(&file, fd, unsupported_options::ASYNC)
            {
                return answer(Err(error(libc::EINVAL)));
            }
            let on = argument as c_int & libc::O_NONBLOCK != 0;
            // SAFETY: the caller's contract.
            let result = unsafe { real::fcntl(fd, command, argument) };
            if result == 0 {
                set_nonblocking(&file, on);
                if argument as c_int & libc::O_ASYNC == 0 {
                    clear_async(&file);
                }
            }
            result
        }
        libc::F_SETOWN | F_SETOWN_EX => {
            // SAFETY: the caller's contract.
            owned(&file, fd, unsafe { real::fcntl(fd, command, argument) })
        }
        libc::F_SETFD => {
            if argument as c_int & libc::FD_CLOEXEC == 0 {
                for_exec(&file);
            }
            // SAFETY: the caller's contract.
            unsafe { real::fcntl(fd, command, argument) }
        }
        // SAFETY: the caller's contract.
        _ => unsafe { real::fcntl(fd, command, argument) },
    }
}

/// `O_ASYNC` was cleared.
fn clear_async(file: &Ref) {
    let _inside = Inside::enter();
    file.drop_requirement(unsupported_options::ASYNC);
}

/// After the kernel has set the owner of a socket (F_SETOWN): copies it to our socket.
fn owned(file: &Ref, fd: c_int, result: c_int) -> c_int {
    if result == 0
        && let Some((_inside, file)) = enter(file.clone())
    {
        file.set_has_complex_options();
        if let Some(live) = file.live() {
            companion_options::copy_owner(fd, live);
        }
    }
    result
}

/// sockatmark(3).
///
/// # Safety
/// None beyond what ioctl(2) asks.
pub unsafe fn sockatmark(file: Ref, fd: c_int) -> c_int {
    let mut at_mark: c_int = 0;
    // SAFETY: a valid pointer for the answer.
    match unsafe { ioctl(file, fd, SIOCATMARK, (&raw mut at_mark).expose_provenance()) } {
        0 => at_mark,
        failed => failed,
    }
}

fn set_nonblocking(file: &Ref, on: bool) {
    let _inside = Inside::enter();
    file.set_nonblocking(on);
}

/// fcntl(2) of a descriptor that is not a socket of ours.
///
/// # Safety
/// That of fcntl(2).
pub unsafe fn fcntl_other(fd: c_int, command: c_int, argument: usize) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) && is_inside() {
        return internal_fds::duplicate(fd);
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::fcntl(fd, command, argument) }
}

/// # Safety
/// That of ioctl(2).
pub unsafe fn ioctl(file: Ref, fd: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    if let Some(set) = file.set() {
        // SAFETY: the caller's contract.
        return unsafe { wait::ioctl(set, fd, request, argument) };
    }
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::ioctl(fd, request, argument) };
    let value = std::ptr::with_exposed_provenance_mut::<c_int>(argument);
    if request == libc::FIONCLEX {
        for_exec(&file);
        return by_kernel();
    }
    if request == libc::FIONBIO {
        // SAFETY: the caller's contract.
        let Some(on) = (unsafe { value.as_ref() }) else { return by_kernel() };
        let result = by_kernel();
        if result == 0 {
            set_nonblocking(&file, *on != 0);
        }
        return result;
    }
    if request == FIOASYNC
        // SAFETY: the caller's contract.
        && let Some(on) = unsafe { value.as_ref() }
    {
        if *on == 0 {
            clear_async(&file);
            return by_kernel();
        }
        let Some((inside, file)) = enter(file) else { return by_kernel() };
        if !activation::require(&file, fd, unsupported_options::ASYNC) {
            return answer(Err(error(libc::EINVAL)));
        }
        drop(file);
        drop(inside);
        return by_kernel();
    }
    if matches!(request, FIOSETOWN | SIOCSPGRP) {
        return owned(&file, fd, by_kernel());
    }
    // SIOCINQ is FIONREAD, SIOCOUTQ is TIOCOUTQ (include/uapi/linux/sockios.h).
    if !matches!(request, libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK) {
        return by_kernel();
    }
    let Some((_inside, file)) = enter(file) else { return by_kernel() };
    let count = match (file.live(), request) {
        (Some(Live::Udp(_)), SIOCOUTQNSD | SIOCATMARK) => return by_kernel(),
        (Some(Live::Stream(stream)), SIOCATMARK) => stream.is_at_mark().into(),
        (Some(Live::Udp(udp)), libc::FIONREAD) => udp.waiting().1,
        (Some(Live::Udp(_)), _) => 0,
        (Some(Live::Stream(stream)), libc::FIONREAD) => stream.unread(),
        (Some(Live::Stream(stream)), libc::TIOCOUTQ) => stream.unacknowledged(),
        (Some(Live::Stream(stream)), _) => {
            stream.info().map_or(0, |info| info.notsent_bytes as usize)
        }
        _ => return by_kernel(),
    };
    // It was handed over meanwhile, and was empty then.
    if file.is_kernel_owned() {
        return by_kernel();
    }
    // SAFETY: the caller's contract.
    match unsafe { value.as_mut() } {
        Some(value) => *value = c_int::try_from(count).unwrap_or(c_int::MAX),
        None => return answer(Err(error(libc::EFAULT))),
    }
    0
}

/// include/uapi/asm-generic/ioctls.h.
const FIOASYNC: libc::c_ulong = 0x5452;

/// include/uapi/asm-generic/fcntl.h.
const F_SETOWN_EX: c_int = 15;

/// include/uapi/asm-generic/sockios.h.
const FIOSETOWN: libc::c_ulong = 0x8901;
const SIOCSPGRP: libc::c_ulong = 0x8902;
const SIOCATMARK: libc::c_ulong = 0x8905;

/// include/uapi/linux/sockios.h.
const SIOCOUTQNSD: libc::c_ulong = 0x894b;
