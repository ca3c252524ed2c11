//! The epoll calls. The kernel serves waits on a set without an active socket of ours.

use super::{Deadline, kernel_waiters};
use crate::{
    config, errno,
    inside::{Inside, Restart},
    kernel, memory,
    stack::{
        common::{answer, error},
        epoll_set::{self, EpollSet, Memberships},
        file::{FILES, File, Ref, fd_of_set},
        host, internal_fds,
    },
};
use busypoll_stack::{EpollParams, Source};
use libc::{c_int, epoll_event, sigset_t, timespec};
use std::{io, slice, sync::Arc};

/// The kernel's limit on the events of a wait (EP_MAX_EVENTS).
const MOST: usize = c_int::MAX as usize / size_of::<epoll_event>();

/// The events that are allowed with EPOLLEXCLUSIVE (EPOLLEXCLUSIVE_OK_BITS).
const EXCLUSIVE_OK: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLRDNORM
    | libc::EPOLLWRNORM
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET
    | libc::EPOLLEXCLUSIVE) as u32;

/// Enters an instance that the program has made.
fn made(fd: c_int) -> c_int {
    if fd >= 0
        && let Some(config) = config::get().filter(|config| config.is_stack())
        && let Some(_inside) = Inside::enter()
        && !memory::is_short()
    {
        FILES.set(fd, FILES.hold(File::of_set(EpollSet::new(host::settings(config)))));
    }
    fd
}

/// # Safety
/// That of epoll_create(2).
pub unsafe fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's contract.
    made(unsafe { kernel::epoll_create(size) })
}

/// # Safety
/// That of epoll_create1(2).
pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    made(unsafe { internal_fds::epoll_create1_other(flags) })
}

/// On an instance that is not in the table: made before the library was loaded, or inherited.
///
/// # Safety
/// That of epoll_ctl(2).
#[inline]
pub unsafe fn epoll_ctl_other(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        match FILES.has(fd) {
            true => perhaps_with_member(epoll, operation, fd, event),
            false => kernel::epoll_ctl(epoll, operation, fd, event),
        }
    }
}

/// # Safety
/// That of epoll_ctl(2).
unsafe fn perhaps_with_member(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if FILES.get(fd).is_none_or(|file| !file.is_member()) {
        // SAFETY: the caller's contract.
        return unsafe { kernel::epoll_ctl(epoll, operation, fd, event) };
    }
    let config = config::get().filter(|_| is_epoll(epoll));
    match config.zip(Inside::enter()) {
        Some(_) if memory::is_short() => answer(Err(error(libc::ENOMEM))),
        Some((config, inside)) => {
            let set = EpollSet::new(host::settings(config));
            set.has_kernel_members();
            FILES.set(epoll, FILES.hold(File::of_set(set)));
            drop(inside);
            match FILES.get(epoll) {
                // SAFETY: the caller's contract.
                Some(file) => unsafe { epoll_ctl(file, epoll, operation, fd, event) },
                // SAFETY: the caller's contract.
                None => unsafe { kernel::epoll_ctl(epoll, operation, fd, event) },
            }
        }
        // SAFETY: the caller's contract.
        None => unsafe { kernel::epoll_ctl(epoll, operation, fd, event) },
    }
}

/// Whether it is an epoll instance.
fn is_epoll(fd: c_int) -> bool {
    let path = format!("/proc/self/fd/{fd}");
    let link = rustix::fs::readlink(path, Vec::new());
    link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventpoll]")
}

/// Whether epoll_ctl(2) with these descriptors changes the kernel's half alone: that of a marked set is known to have
/// members.
#[inline]
pub fn is_kernel_member(epoll: c_int, fd: c_int) -> bool {
    FILES.is_marked(epoll) && !FILES.has(fd)
}

/// # Safety
/// That of epoll_ctl(2).
pub unsafe fn epoll_ctl(
    file: Ref,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let member = FILES.get(fd).filter(|member| member.is_member());
    // SAFETY: the caller's contract.
    let other = || unsafe { kernel::epoll_ctl(epoll, operation, fd, event) };
    let (Some(set), Some(member)) = (file.set(), member) else {
        let result = other();
        if result == 0
            && operation == libc::EPOLL_CTL_ADD
            && let Some(set) = file.set()
        {
            set.has_kernel_members();
            file.mark();
        }
        return result;
    };
    let Some(_inside) = Inside::enter() else { return other() };
    // SAFETY: the caller's contract.
    answer(unsafe { control_member(set, epoll, operation, fd, &member, event) }.map(|()| 0))
}

/// # Safety
/// That of epoll_ctl(2).
unsafe fn control_member(
    set: &Arc<EpollSet>,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    member: &Ref,
    event: *mut epoll_event,
) -> io::Result<()> {
    if operation == libc::EPOLL_CTL_ADD && memory::is_short() {
        return Err(error(libc::ENOMEM));
    }
    let memberships = member.memberships();
    let given = || match event.is_null() {
        // SAFETY: the caller's contract.
        false => Ok(unsafe { event.read_unaligned() }),
        true => Err(error(libc::EFAULT)),
    };
    match operation {
        libc::EPOLL_CTL_ADD => {
            // Held from the start, so that outer sets and members that are activated find it.
            set.hold_kernel_fd(epoll);
            member.set().into_iter().for_each(|inner| inner.hold_kernel_fd(fd));
            let given = given()?;
            check(set, member, given.events)?;
            match source_of(member) {
                None => {
                    // SAFETY: the caller's contract.
                    unsafe { set.add_inactive(epoll, fd, memberships, member.set(), event) }?;
                    // It may have been activated meanwhile, without finding this set.
                    source_of(member).into_iter().for_each(|source| {
                        set.activate_member(memberships.id(), &source, fd_of_set)
                    });
                    // A thread that waits already does not come by here to activate it.
                    if set.is_waited_for() {
                        set.activate_members();
                    }
                    Ok(())
                }
                Some(source) => {
                    set.add(fd, memberships, member.set(), &source, given, fd_of_set)?;
                    leave_if_kernels(member, fd);
                    Ok(())
                }
            }
        }
        libc::EPOLL_CTL_MOD => set.modify(epoll, fd, memberships.id(), given()?),
        libc::EPOLL_CTL_DEL => set.remove(epoll, fd, memberships.id()),
        _ => Err(error(libc::EINVAL)),
    }
}

/// After `member`, at `fd`, was added as ours: it may have become the kernel's meanwhile, without finding the set.
fn leave_if_kernels(member: &Ref, fd: c_int) {
    if member.live().is_some() && member.is_kernel_owned() {
        let successor = FILES.get(fd).filter(|now| now.is_member());
        let memberships = successor.as_ref().unwrap_or(member).memberships();
        member.memberships().transfer_to(memberships);
    }
}

/// Refuses what the kernel would refuse.
fn check(set: &Arc<EpollSet>, member: &Ref, events: u32) -> io::Result<()> {
    let is_itself = member.set().is_some_and(|inner| Arc::ptr_eq(inner, set));
    let exclusive = events & libc::EPOLLEXCLUSIVE as u32 != 0;
    if is_itself || exclusive && (member.set().is_some() || events & !EXCLUSIVE_OK != 0) {
        return Err(error(libc::EINVAL));
    }
    Ok(())
}

/// The event source of a member, once it is active.
fn source_of(member: &Ref) -> Option<Arc<dyn Source>> {
    match member.set() {
        Some(inner) => inner.is_mixed().then(|| inner.source()),
        None => member.live().map(|live| live.socket().events()),
    }
}

/// ioctl(2) on a set: `EPIOCSPARAMS` applies to our half as well, and `EPIOCGPARAMS` returns our half's parameters once
/// waits are ours.
///
/// # Safety
/// That of ioctl(2).
pub unsafe fn ioctl(
    set: &EpollSet,
    epoll: c_int,
    request: libc::c_ulong,
    argument: usize,
) -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { kernel::ioctl(epoll, request, argument) };
    let Some(_inside) = Inside::enter().filter(|_| result == 0) else { return result };
    let given = std::ptr::with_exposed_provenance_mut::<libc::epoll_params>(argument);
    if request == libc::EPIOCSPARAMS as libc::c_ulong {
        // SAFETY: the kernel has just read it.
        let given = unsafe { given.read_unaligned() };
        set.set_params(EpollParams {
            busy_poll_usecs: given.busy_poll_usecs,
            busy_poll_budget: given.busy_poll_budget,
            prefer_busy_poll: given.prefer_busy_poll != 0,
        });
    } else if request == libc::EPIOCGPARAMS as libc::c_ulong && set.is_mixed() {
        let ours = set.params();
        // SAFETY: the kernel has just written it.
        unsafe {
            given.write_unaligned(libc::epoll_params {
                busy_poll_usecs: ours.busy_poll_usecs,
                busy_poll_budget: ours.busy_poll_budget,
                prefer_busy_poll: ours.prefer_busy_poll.into(),
                ..given.read_unaligned()
            });
        }
    }
    result
}

/// # Safety
/// That of epoll_wait(2).
pub unsafe fn epoll_wait(
    file: Ref,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
) -> c_int {
    let deadline = Ok(Deadline::from_millis(timeout));
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { kernel::epoll_wait(epoll, events, room, timeout) };
    // SAFETY: the caller's contract.
    unsafe { wait(file, epoll, events, room, deadline, std::ptr::null(), by_kernel) }
}

/// # Safety
/// That of epoll_pwait(2).
pub unsafe fn epoll_pwait(
    file: Ref,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let deadline = Ok(Deadline::from_millis(timeout));
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { kernel::epoll_pwait(epoll, events, room, timeout, mask) };
    // SAFETY: the caller's contract.
    unsafe { wait(file, epoll, events, room, deadline, mask, by_kernel) }
}

/// # Safety
/// That of epoll_pwait2(2).
pub unsafe fn epoll_pwait2(
    file: Ref,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    let deadline = unsafe { Deadline::from_timespec(timeout) };
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { kernel::epoll_pwait2(epoll, events, room, timeout, mask) };
    // SAFETY: the caller's contract.
    unsafe { wait(file, epoll, events, room, deadline, mask, by_kernel) }
}

/// Waits in our half, or by the kernel's own call while no member of the set is active.
///
/// # Safety
/// `events` has room for `room` events; `mask` is null or valid; `by_kernel` writes as many events as it returns.
unsafe fn wait(
    file: Ref,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    deadline: io::Result<Deadline>,
    mask: *const sigset_t,
    by_kernel: impl Fn() -> c_int,
) -> c_int {
    let (Some(set), Some(mut inside)) = (file.set(), Inside::enter()) else {
        return by_kernel();
    };
    set.activate_members();
    let mut file = file;
    while file.set().is_some_and(|set| set.begin_kernel_wait()) {
        let index = kernel_waiters::begin(file);
        drop(inside);
        let found = by_kernel();
        let failed = errno::Saved::new();
        let Some(again) = Inside::enter() else { return found };
        inside = again;
        let ended = kernel_waiters::end(index);
        let left = match usize::try_from(found) {
            Ok(written @ 1..) => {
                // SAFETY: the kernel has written as many.
                epoll_set::split_off_wakeup(unsafe { slice::from_raw_parts_mut(events, written) })
            }
            _ => found,
        };
        match ended {
            Some(again) if left == 0 && found != 0 => file = again,
            ended => {
                drop((ended, inside, failed));
                return left;
            }
        }
    }
    let Some(set) = file.set() else { return by_kernel() };
    let room = usize::try_from(room).ok().filter(|room| (1..=MOST).contains(room));
    // SAFETY: the caller's contract.
    let mask = unsafe { mask.as_ref() };
    let result = match (room, deadline) {
        (None, _) => Err(error(libc::EINVAL)),
        (_, Err(error)) => Err(error),
        (Some(room), Ok(deadline)) => {
            let mut nowhere = [epoll_event { events: 0, u64: 0 }];
            let out = match events.is_null() {
                // SAFETY: the caller's contract: writable, and only written.
                false => unsafe { slice::from_raw_parts_mut(events, room) },
                true => &mut nowhere,
            };
            // The kernel fails only when it writes the first event.
            match wait_for(&inside, set, epoll, out, deadline, mask) {
                Ok(1..) if events.is_null() => Err(error(libc::EFAULT)),
                result => result,
            }
        }
    };
    drop(file);
    answer(result)
}

fn wait_for(
    inside: &Inside,
    set: &Arc<EpollSet>,
    epoll: c_int,
    out: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&sigset_t>,
) -> io::Result<usize> {
    // With a mask, readiness must win over a signal before the sleep.
    let found = match deadline.waits() && mask.is_none() {
        true => set.take_events_before_wait(epoll, out)?,
        false => set.take_events(epoll, out)?,
    };
    if found > 0 {
        return Ok(found);
    }
    inside.wait_masked(
        mask,
        Restart::NeverNorAfterStop,
        || Ok(None),
        || {
            loop {
                if let Err(error) = set.wait(epoll, deadline.left()) {
                    // The kernel may have an event, of which nothing was seen yet. It goes before the error.
                    return match set.take_events(epoll, out) {
                        Ok(found @ 1..) => Ok(found),
                        _ => Err(error),
                    };
                }
                set.activate_members();
                let found = set.take_events_after_wait(epoll, out)?;
                if found > 0 || deadline.is_over() {
                    return Ok(found);
                }
            }
        },
    )
}

/// How sets identify their members.
impl File {
    /// Its id as a member, and the sets it is in.
    pub fn memberships(&self) -> &Memberships {
        self.set().map_or(&self.memberships, |set| &set.memberships)
    }

    /// Whether sets track it: it is a set itself, or a socket that may be activated.
    fn is_member(&self) -> bool {
        self.set().is_some() || !self.is_kernel_owned()
    }
}
