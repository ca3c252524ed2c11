//! Adding files to a set, activating and removing them.

use super::{
    EpollSet, FindFd, Memberships,
    member::{Half, Key, Member, OwnEvents},
};
use crate::{
    real,
    stack::common::{checked, error, lock},
};
use busypoll_stack::{Events, Source};
use libc::{c_int, epoll_event};
use rustix::net::{SocketType, sockopt};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    sync::{Arc, Weak, atomic::Ordering},
};

/// The bits that say how events are reported, not which.
const MODES: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP) as u32;

impl EpollSet {
    /// Adds an inactive file: its companion, by the kernel's own rules.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    ///
    /// # Safety
    /// `event` is valid for epoll_ctl(2).
    pub unsafe fn add_inactive(
        self: &Arc<EpollSet>,
        epoll: c_int,
        fd: c_int,
        memberships: &Memberships,
        inner: Option<&Arc<EpollSet>>,
        event: *mut epoll_event,
    ) -> io::Result<()> {
        self.hold_kernel_fd(epoll);
        let mut members = lock(&self.members);
        let key = (memberships.id(), fd);
        let known = members.get(&key);
        if known.is_some_and(|known| !matches!(known.half, Half::Kernel)) {
            // The kernel does not know this member.
            return Err(error(libc::EEXIST));
        }
        members.try_reserve(1).map_err(|_| error(libc::ENOMEM))?;
        let known = members.get(&key);
        // SAFETY: the caller's contract.
        checked(unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, event) })?;
        // It was known already: another process that shares the instance has removed it.
        let shared = known.is_some_and(|known| known.shared);
        // SAFETY: the kernel has read it.
        let epoll_event { events, u64: data } = unsafe { event.read_unaligned() };
        let inner = inner.map(Arc::downgrade);
        let member = Member { events, data, half: Half::Kernel, shared, own_events: None, inner };
        if members.insert(key, member).is_none() {
            self.inactive.fetch_add(1, Ordering::Relaxed);
        }
        self.look_again.store(0, Ordering::Relaxed);
        self.has_kernel_members();
        drop(members);
        memberships.add(self);
        Ok(())
    }

    /// Adds an active file.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn add(
        self: &Arc<EpollSet>,
        fd: c_int,
        memberships: &Memberships,
        inner: Option<&Arc<EpollSet>>,
        source: &Arc<dyn Source>,
        event: epoll_event,
        find: FindFd,
    ) -> io::Result<()> {
        if inner.is_some_and(|inner| !self.may_contain(inner)) {
            return Err(error(libc::ELOOP));
        }
        let mut members = lock(&self.members);
        let key = (memberships.id(), fd);
        if members.contains_key(&key) {
            return Err(error(libc::EEXIST));
        }
        members.try_reserve(1).map_err(|_| error(libc::ENOMEM))?;
        let half = self.enter(fd, source, event.events, event.u64, inner)?;
        let inner = inner.map(Arc::downgrade);
        let (events, data) = (event.events, event.u64);
        members.insert(key, Member { events, data, half, shared: false, own_events: None, inner });
        drop(members);
        memberships.add(self);
        self.activate(find);
        Ok(())
    }

    /// Puts a source into our half.
    fn enter(
        &self,
        fd: c_int,
        source: &Arc<dyn Source>,
        events: u32,
        data: u64,
        inner: Option<&Arc<EpollSet>>,
    ) -> io::Result<Half> {
        let watch = self.ours.add_source(source, tag(fd), Events(events), data)?;
        if let Some(inner) = inner {
            inner
                .kernel()
                .map_or(Ok(()), |kernel| self.nested_notify.watch_inner(inner, kernel, &watch))?;
        }
        Ok(Half::Ours(Arc::downgrade(source)))
    }

    /// Changes the events of a member. A file that is not a member here may be a member of the kernel's instance, here
    /// and in [`remove`](EpollSet::remove).
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn modify(
        &self,
        epoll: c_int,
        fd: c_int,
        id: usize,
        mut event: epoll_event,
    ) -> io::Result<()> {
        let in_kernel = |event: &mut epoll_event| {
            // SAFETY: valid for the call.
            checked(unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, event) }).map(drop)
        };
        let mut members = lock(&self.members);
        let Some(member) = members.get_mut(&(id, fd)) else { return in_kernel(&mut event) };
        let exclusive = event.events & libc::EPOLLEXCLUSIVE as u32 != 0;
        match &member.half {
            Half::Kernel => member.ignore_removed(in_kernel(&mut event))?,
            _ if exclusive => return Err(error(libc::EINVAL)),
            half => {
                if let Half::Ours(source) = half {
                    let source = source.upgrade().ok_or_else(|| error(libc::ENOENT))?;
                    let (events, data) = (Events(event.events), Some(event.u64));
                    self.ours.modify_source(&source, tag(fd), events, data)?;
                }
                if member.shared {
                    // Another process may have removed it.
                    let _ = in_kernel(&mut event);
                }
            }
        }
        (member.events, member.data) = (event.events, event.u64);
        Ok(())
    }

    /// Removes a member. The lock makes both halves one step for a file that is activated meanwhile.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn remove(&self, epoll: c_int, fd: c_int, id: usize) -> io::Result<()> {
        let in_kernel = || {
            // SAFETY: a plain system call.
            let result =
                unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
            checked(result).map(drop)
        };
        let mut members = lock(&self.members);
        let Some(member) = members.remove(&(id, fd)) else { return in_kernel() };
        if member.half.is_inactive() {
            self.inactive.fetch_sub(1, Ordering::Relaxed);
        }
        if matches!(member.half, Half::Kernel) {
            return member.ignore_removed(in_kernel());
        }
        if member.shared {
            // Another process may have removed it.
            let _ = in_kernel();
        }
        let Half::Ours(source) = member.half else { return Ok(()) };
        let source = source.upgrade().ok_or_else(|| error(libc::ENOENT))?;
        self.ours.remove_source(&source, tag(fd)).map(drop)
    }

    /// The file `id` is deactivated and replaced by `new`: its members go back to the kernel's half, with its
    /// companion.
    pub fn replace_file(&self, id: usize, new: usize) {
        let mut members = lock(&self.members);
        let renamed: Vec<Key> = members.keys().filter(|key| key.0 == id).copied().collect();
        for key in renamed {
            let Some(mut member) = members.remove(&key) else { continue };
            if let Half::Ours(source) = &member.half {
                // It cannot fail: it is a member.
                let removed = source.upgrade().map(|it| self.ours.remove_source(&it, tag(key.1)));
                self.inactive.fetch_add(1, Ordering::Relaxed);
                // A one-shot member that was reported waits to be armed again.
                let is_armed = !matches!(removed, Some(Ok(false)));
                let events = if is_armed { member.events } else { member.events & MODES };
                let mut event = epoll_event { events, u64: member.data };
                if let Some(kernel) = self.kernel() {
                    // If the descriptor is closed, it was the last one that could have named it.
                    // SAFETY: valid for the call.
                    unsafe {
                        real::epoll_ctl(kernel, libc::EPOLL_CTL_ADD, key.1, &raw mut event);
                    }
                    self.has_kernel_members();
                }
                (member.half, member.own_events) = (Half::Kernel, None);
            }
            members.insert((new, key.1), member);
        }
    }

    /// The file `id` was activated: its members move to our half.
    pub fn activate_member(
        self: &Arc<EpollSet>,
        id: usize,
        source: &Arc<dyn Source>,
        find: FindFd,
    ) {
        self.hold_inherited(find);
        let mut members = lock(&self.members);
        let mut adopted = false;
        for ((of, fd), member) in members.iter_mut() {
            if *of != id || !member.half.is_inactive() {
                continue;
            }
            if let (Half::Kernel, Some(kernel)) = (&member.half, self.kernel())
                && !(member.shared && has_events_for_others(*fd))
            {
                // If the descriptor is closed, it was the last one that could have named it.
                // SAFETY: a plain system call.
                unsafe { real::epoll_ctl(kernel, libc::EPOLL_CTL_DEL, *fd, ptr::null_mut()) };
                // Even if what follows fails.
                member.half = Half::Pending;
                member.shared = false;
            }
            member.own_events =
                member.shared.then(|| Arc::new(OwnEvents(Arc::downgrade(source))) as _);
            let source = member.own_events.as_ref().unwrap_or(source);
            let inner = member.inner.as_ref().and_then(Weak::upgrade);
            if let Ok(half) = self.enter(*fd, source, member.events, member.data, inner.as_ref()) {
                member.half = half;
                self.inactive.fetch_sub(1, Ordering::Relaxed);
                adopted = true;
            }
        }
        drop(members);
        if adopted {
            self.activate(find);
        }
    }

    /// Whether no other process shares the kernel's instance with the members of file `id`, all of which are in it, and
    /// armed: of a one-shot member only the kernel knows.
    pub fn has_alone(&self, id: usize) -> bool {
        let members = lock(&self.members);
        let mut its = members.iter().filter(|(key, _)| key.0 == id);
        its.all(|(_, member)| {
            let is_one_shot = member.events & libc::EPOLLONESHOT as u32 != 0;
            matches!(member.half, Half::Kernel) && !member.shared && !is_one_shot
        })
    }

    /// The file `id` is closed.
    pub fn forget(&self, id: usize) {
        let mut members = lock(&self.members);
        members.retain(|(of, _), member| {
            let stays = *of != id;
            if !stays && member.half.is_inactive() {
                self.inactive.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }
}

/// Whether the companion `fd` has events for another process that has it in a set: connections of a listener, room to
/// send. A stream's companion is not connected, and thus always ready (EPOLLHUP).
fn has_events_for_others(fd: c_int) -> bool {
    // SAFETY: a closed descriptor is only an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let is_stream = sockopt::socket_type(fd).is_ok_and(|kind| kind == SocketType::STREAM);
    !is_stream || listens(fd.as_raw_fd())
}

pub fn listens(fd: c_int) -> bool {
    // SAFETY: a closed descriptor is only an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    sockopt::socket_acceptconn(fd).is_ok_and(|listens| listens)
}

fn tag(fd: c_int) -> u64 {
    u64::from(fd.cast_unsigned())
}
