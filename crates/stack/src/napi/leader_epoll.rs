//! The epoll instance on which the leader sleeps: on its own wake-up, the interrupt, and perhaps one descriptor of the
//! kernel's. All stay registered from one sleep to the next, so that a sleep is one call, which costs half as much as
//! ppoll(2) on them. A level that another thread left behind must not keep the leader awake, so what does not belong to
//! it is removed.

use super::wait::{Waiter, Wake};
use crate::{
    sync::{Arc, AtomicU64, Mutex, Ordering, lock},
    sys::{self, drain},
    time::{self, Instant},
};
use std::{
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    process,
    sync::{PoisonError, Weak},
    time::Duration,
};

const INTERRUPT: u64 = 0;
const ALARM: u64 = 1;
const KEPT: u64 = 2;
/// The first waiter's; the others follow.
const WAITER: u64 = 3;

/// The threads that take turns as the leader without being registered anew.
const WAITERS: usize = 4;

/// Shorter waits use the system call's own timeout, whose timer is started and stopped for each call.
const SHORT: Duration = Duration::from_millis(1);

/// One thread at a time sleeps on it.
#[derive(Debug)]
pub(crate) struct LeaderEpoll {
    instance: std::sync::Arc<Instance>,
    alarm: sys::Alarm,
    /// When the alarm expires, in nanoseconds; `u64::MAX` if it is not set. Used by one sleeper at a time.
    alarm_at: AtomicU64,
}

#[derive(Debug)]
struct Instance {
    epoll: OwnedFd,
    registered: Mutex<Registered>,
}

/// The descriptors registered.
#[derive(Debug, Default)]
struct Registered {
    waiters: [Option<Arc<Waiter>>; WAITERS],
    /// Which waiter makes room for a new one.
    next: usize,
    interrupt: Option<RawFd>,
    kept: Option<RawFd>,
    /// The one that the last sleep wanted.
    wanted: Option<RawFd>,
}

/// Where a waiter is registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

/// A descriptor of the kernel's that a sleep may leave registered. Dropping this removes it from all instances, and
/// closes it.
#[derive(Debug)]
pub struct KeptFd {
    fd: ManuallyDrop<OwnedFd>,
    /// The process that made it: in a child the numbers mean something else.
    process: u32,
    /// Where it may be registered.
    instances: std::sync::Mutex<Vec<Weak<Instance>>>,
}

impl KeptFd {
    /// Keeps `fd`.
    #[must_use]
    pub fn new(fd: OwnedFd) -> std::sync::Arc<KeptFd> {
        let instances = std::sync::Mutex::default();
        let (fd, process) = (ManuallyDrop::new(fd), process::id());
        std::sync::Arc::new(KeptFd { fd, process, instances })
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn note(&self, instance: &std::sync::Arc<Instance>) {
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.retain(|known| known.strong_count() > 0);
        if !instances.iter().any(|known| known.as_ptr() == std::sync::Arc::as_ptr(instance)) {
            instances.push(std::sync::Arc::downgrade(instance));
        }
    }
}

impl Drop for KeptFd {
    fn drop(&mut self) {
        if process::id() != self.process {
            return;
        }
        let fd = self.raw_fd();
        let instances = self.instances.get_mut().unwrap_or_else(PoisonError::into_inner);
        instances.drain(..).filter_map(|it| it.upgrade()).for_each(|it| it.forget_kept(fd));
        // SAFETY: not used any more.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

impl Instance {
    fn control(&self, op: i32, fd: RawFd, events: i32, data: u64) -> io::Result<()> {
        sys::epoll_control(self.epoll.as_raw_fd(), op, fd, events as u32, data)
    }

    /// Removes what is registered, which cannot fail.
    fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, INTERRUPT);
    }

    fn forget_kept(&self, fd: RawFd) {
        let mut registered = lock(&self.registered);
        if registered.kept == Some(fd) {
            registered.kept = None;
            self.remove(fd);
        }
    }

    /// Removes a waiter whose thread does not sleep here.
    #[cold]
    fn forget_waiter(&self, at: usize) {
        let mut registered = lock(&self.registered);
        let waiter = registered.waiters.get_mut(at).and_then(Option::take);
        waiter.into_iter().for_each(|waiter| self.remove(waiter.event()));
    }
}

impl LeaderEpoll {
    pub(crate) fn new() -> io::Result<LeaderEpoll> {
        let instance = Instance { epoll: sys::epoll()?, registered: Mutex::default() };
        let leader_epoll = LeaderEpoll {
            instance: std::sync::Arc::new(instance),
            alarm: sys::Alarm::new()?,
            alarm_at: AtomicU64::new(u64::MAX),
        };
        let alarm = leader_epoll.alarm.fd();
        leader_epoll.instance.control(libc::EPOLL_CTL_ADD, alarm, libc::EPOLLIN, ALARM)?;
        Ok(leader_epoll)
    }

    /// Sleeps until a descriptor fires, or `deadline`. For the thread whose waiter is registered at `place`.
    pub(super) fn wait(&self, place: Place, deadline: Option<Instant>) -> Wake {
        let own = WAITER + place.0 as u64;
        loop {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; WAITERS + WAITER as usize];
            let limit = self.limit(deadline);
            let count = sys::epoll_wait(self.instance.epoll.as_raw_fd(), &mut events, limit);
            let Ok(count) = usize::try_from(count) else { return Wake::Signal };
            let fired = events.get(..count).unwrap_or_default();
            let has = |what| fired.iter().any(|event| event.u64 == what);
            if fired.is_empty() {
                return Wake::Timeout;
            } else if has(own) {
                return Wake::Woken;
            } else if has(INTERRUPT) {
                return Wake::Interrupt;
            } else if has(KEPT) {
                return Wake::KernelFds;
            }
            if has(ALARM) {
                self.alarm_expired();
            }
            let others = fired.iter().filter_map(|event| event.u64.checked_sub(WAITER));
            others.for_each(|at| self.instance.forget_waiter(at as usize));
        }
    }

    /// The timeout of the epoll call. A wait with a deadline seldom ends by it, so the alarm of an earlier wait is left
    /// running, and is set again only after it has expired.
    fn limit(&self, deadline: Option<Instant>) -> Option<Duration> {
        let deadline = deadline?;
        if self.alarm_at.load(Ordering::Relaxed) <= deadline.nanos() {
            return None;
        }
        let left = deadline - time::now();
        if left < SHORT {
            return Some(left);
        }
        self.alarm_at.store(deadline.nanos(), Ordering::Relaxed);
        self.alarm.set(left);
        None
    }

    /// The alarm has expired.
    fn alarm_expired(&self) {
        drain(self.alarm.fd());
        self.alarm_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// Registers `waiter`, `interrupt`, which is always the same descriptor, and `kept`; a descriptor kept before is removed.
    ///
    /// # Errors
    /// No memory left in the kernel. For `kept` also: epoll instances are nested too deep; or the last sleep wanted
    /// another one (`WouldBlock`). To register an instance takes as long as it has members, so threads with different
    /// instances must not do it in turn.
    pub(crate) fn register(
        &self,
        waiter: &Arc<Waiter>,
        interrupt: BorrowedFd<'_>,
        kept: Option<&std::sync::Arc<KeptFd>>,
    ) -> io::Result<Place> {
        let (instance, add) = (&self.instance, libc::EPOLL_CTL_ADD);
        let mut registered = lock(&instance.registered);
        let is_known = |known: &Option<Arc<Waiter>>| {
            known.as_ref().is_some_and(|known| Arc::ptr_eq(known, waiter))
        };
        let at = match registered.waiters.iter().position(is_known) {
            Some(at) => at,
            None => {
                let at = registered.next;
                registered.next = (at + 1) % WAITERS;
                if let Some(before) = registered.waiters[at].take() {
                    instance.remove(before.event());
                }
                instance.control(add, waiter.event(), libc::EPOLLIN, WAITER + at as u64)?;
                registered.waiters[at] = Some(waiter.clone());
                at
            }
        };
        if registered.interrupt.is_none() {
            // Edge-triggered: a waiting thread polls the queue first, so only later events matter.
            let events = libc::EPOLLIN | libc::EPOLLET;
            instance.control(add, interrupt.as_raw_fd(), events, INTERRUPT)?;
            registered.interrupt = Some(interrupt.as_raw_fd());
        }
        let wanted = kept.map(|kept| kept.raw_fd());
        let was_wanted = std::mem::replace(&mut registered.wanted, wanted) == wanted;
        if registered.kept != wanted {
            if let Some(before) = registered.kept.take() {
                instance.remove(before);
            }
            if let Some(kept) = kept {
                if !was_wanted {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                kept.note(instance);
                instance.control(add, kept.raw_fd(), libc::EPOLLIN, KEPT)?;
                registered.kept = Some(kept.raw_fd());
            }
        }
        Ok(Place(at))
    }

    /// Removes the interrupt until the next [`register`](LeaderEpoll::register), unless a thread is about to
    /// wait (`is_wanted`): the kernel runs the callback of a registered descriptor for every packet, even if no thread
    /// sleeps. A thread that wants to wait makes `is_wanted` true before it calls `register`.
    pub(crate) fn detach(&self, is_wanted: impl FnOnce() -> bool) {
        let mut registered = lock(&self.instance.registered);
        if !is_wanted()
            && let Some(interrupt) = registered.interrupt.take()
        {
            self.instance.remove(interrupt);
        }
    }
}
