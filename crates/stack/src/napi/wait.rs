//! A thread that sleeps, and waking it. Every sleep of the stack (a receive, a poll, an epoll wait) is on
//! a [`Waiter`] that the thread borrows for the wait. It has an atomic for the fast path and an eventfd, so that a
//! thread can wait for its wake-up and for a NIC's interrupt in one call. A waiter may also stand for a task of an
//! async runtime, or for a descriptor that a program waits for in the kernel: these are armed, and sleep elsewhere.
//!
//! No wake-up is lost: a thread first registers its waiter (under the lock of what it waits for), then looks
//! once more, then sleeps. If [`wake`](Waiter::wake) comes in between, the sleep returns at once.

use super::leader_epoll::{KeptFd, LeaderEpoll, Place};
use crate::{
    pool::{Last, Lent, Pool},
    sync::{Arc, AtomicU32, Mutex, Ordering, lock},
    sys::{self, drain, eventfd, signal},
    time::Instant,
};
use std::{
    cell::Cell,
    collections::TryReserveError,
    convert::Infallible,
    io,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicI32, AtomicPtr},
    },
    task::Waker,
    time::Duration,
};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

/// One thread's sleep and its wake-up.
#[derive(Debug)]
pub struct Waiter {
    state: AtomicU32,
    /// 1: it stands in a wait queue. Changed under the lock of that queue.
    queued: AtomicU32,
    sleeper: Sleeper,
}

/// What a wake-up wakes.
#[derive(Debug)]
enum Sleeper {
    /// The thread that polls this eventfd.
    Event(OwnedFd),
    /// A task, by the waker of its last poll.
    Task(Mutex<Option<Waker>>),
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// [`Waiter::wake`].
    Woken,
    /// The queue's interrupt has fired.
    Interrupt,
    /// A descriptor of [`KernelFds`] is ready.
    KernelFds,
    /// The time is over.
    Timeout,
    /// A signal was handled.
    Signal,
}

/// A waiter, and what watches sockets for it. A thread borrows one for its sleep; others have it before
/// and after.
#[derive(Debug)]
struct ThreadWaiter {
    waiter: Arc<Waiter>,
    watcher: Option<std::sync::Arc<WakeOnEvent>>,
}

/// As many as threads have ever slept at once.
static WAITERS: Pool<ThreadWaiter> = Pool::new();

// None of these has a destructor.
thread_local! {
    static LAST: Last<ThreadWaiter> = const { Cell::new(ptr::null()) };
    /// The waiter that the thread has borrowed; null if none.
    static CURRENT: AtomicPtr<Waiter> = const { AtomicPtr::new(ptr::null_mut()) };
    /// The eventfd of that waiter; negative if there is none.
    static CURRENT_EVENT: AtomicI32 = const { AtomicI32::new(-1) };
}

/// The calling thread's waiter, until this is dropped.
pub struct CurrentWaiter(Lent<ThreadWaiter>);

static ON_FIRST: OnceLock<fn()> = OnceLock::new();

/// Each thread calls `hook` before it sleeps in the stack for the first time. The first hook given stays.
pub(crate) fn on_first_sleep(hook: fn()) {
    let _ = ON_FIRST.set(hook);
}

impl Waiter {
    pub(crate) fn new() -> io::Result<Waiter> {
        Ok(Waiter::of(Sleeper::Event(eventfd()?)))
    }

    /// The waiter of a task, which is woken by its waker.
    pub(crate) fn of_task() -> Waiter {
        Waiter::of(Sleeper::Task(Mutex::new(None)))
    }

    fn of(sleeper: Sleeper) -> Waiter {
        Waiter { state: AtomicU32::new(AWAKE), queued: AtomicU32::new(0), sleeper }
    }

    /// The eventfd that its wake-ups make readable; none for a task's waiter.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.sleeper {
            Sleeper::Event(event) => Some(event.as_fd()),
            Sleeper::Task(_) => None,
        }
    }

    /// The same as a number; negative if there is none.
    pub(super) fn event(&self) -> RawFd {
        self.event_fd().map_or(-1, |event| event.as_raw_fd())
    }

    /// A waiter for the calling thread: the one it had last, unless another thread has it. Late wake-ups meant for an
    /// earlier wait, of this or another thread, are possible: a wait that finds nothing goes on.
    ///
    /// # Errors
    /// No descriptor is left (EMFILE, ENFILE).
    pub fn of_this_thread() -> io::Result<CurrentWaiter> {
        let is_first = LAST.get().is_null();
        let slot = WAITERS.lend(&LAST, || Ok::<_, io::Error>(ThreadWaiter::new(Waiter::new()?)))?;
        CURRENT.with(|mine| mine.store(Arc::as_ptr(&slot.waiter).cast_mut(), Ordering::Relaxed));
        // Before the thread reads its cancel flag: see `CancelHandle::cancel`.
        CURRENT_EVENT.with(|event| event.store(slot.waiter.event(), Ordering::SeqCst));
        if is_first && let Some(hook) = ON_FIRST.get() {
            hook();
        }
        Ok(CurrentWaiter(slot))
    }

    /// Wakes the calling thread's waiter, if it has one. For a signal handler.
    pub(crate) fn wake_this_thread() {
        let mine = CURRENT.with(|mine| mine.load(Ordering::Relaxed));
        // SAFETY: a waiter is never freed, and the thread keeps this one while its handler runs.
        if let Some(waiter) = unsafe { mine.as_ref() } {
            waiter.wake();
        }
    }

    /// The cell that holds the eventfd of the calling thread's waiter, negative while it has none. Valid while the
    /// thread lives. Making the eventfd readable ends a sleep without a wake-up.
    pub(crate) fn event_of_this_thread() -> *const AtomicI32 {
        CURRENT_EVENT.with(ptr::from_ref)
    }

    /// In a child after fork(2): forgets the parent's waiters. Their descriptors are closed already, or reused.
    pub(crate) fn forget_all() {
        WAITERS.forget(&LAST);
    }

    /// Starts a new wait: forgets wake-ups of earlier ones. To be called before the waiter is registered anywhere.
    pub fn start(&self) {
        // Not a plain store: a following look without a lock could be reordered before it, and a wake-up between the
        // two would be lost.
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Ends the sleep, or keeps it from beginning. Any thread may call it, any number of times.
    pub fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            match &self.sleeper {
                Sleeper::Event(event) => signal(event.as_raw_fd()),
                Sleeper::Task(waker) => wake_task(waker),
            }
        }
    }

    /// The task sleeps: the next wake-up wakes `waker`. False if a wake-up has come since [`start`](Waiter::start) or
    /// the last call; it is forgotten, and the caller looks again. Either way the caller must look once more, or
    /// register the waiter under the lock of what it waits for, before the task may sleep.
    pub(crate) fn arm_task(&self, waker: &Waker) -> bool {
        if let Sleeper::Task(current) = &self.sleeper {
            // Not dropped under the lock: a waker's drop may run any code.
            let before = lock(current).replace(waker.clone());
            drop(before);
        }
        self.state.swap(ASLEEP, Ordering::AcqRel) != WOKEN
    }

    /// Makes the eventfd unreadable: the next wake-up makes it readable again. The caller looks once more after this,
    /// and calls [`wake`](Waiter::wake) if what it waits for is there: a wake-up until now is forgotten.
    pub(crate) fn arm_event(&self) {
        drain(self.event());
        self.state.swap(ASLEEP, Ordering::AcqRel);
    }

    /// Whether [`wake`](Waiter::wake) was called since [`start`](Waiter::start).
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Whether it still stands in the wait queue it was put in. For its own thread, once awake: a wake-up by that queue
    /// removes it first.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_queued(&self, queued: bool) {
        self.queued.store(queued.into(), Ordering::Relaxed);
    }

    /// Sleeps until woken (or, rarely, spuriously), until `timeout` is over (`None`: never), or until a descriptor of
    /// `kernel_fds` is ready. Returns at once if it was woken before.
    pub fn sleep(&self, timeout: Option<Duration>, kernel_fds: &mut KernelFds) -> Wake {
        self.sleep_with_fd(None, timeout, kernel_fds)
    }

    /// As [`sleep`](Waiter::sleep), and until `other` is readable.
    pub(crate) fn sleep_with_fd(
        &self,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
        kernel_fds: &mut KernelFds,
    ) -> Wake {
        let own = [self.event(), other.map_or(-1, |other| other.as_raw_fd())];
        self.sleep_with(|| kernel_fds.poll_with(own, timeout))
    }

    /// As [`sleep`](Waiter::sleep), but until `deadline`, or until another descriptor of `leader_epoll` fires, where the
    /// waiter is registered at `place`.
    pub(crate) fn sleep_on_leader_epoll(
        &self,
        leader_epoll: &LeaderEpoll,
        place: Place,
        deadline: Option<Instant>,
    ) -> Wake {
        self.sleep_with(|| leader_epoll.wait(place, deadline))
    }

    fn sleep_with(&self, wait: impl FnOnce() -> Wake) -> Wake {
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return Wake::Woken;
        }
        let wake = wait();
        if wake == Wake::Woken {
            // This may be a late wake-up of an earlier wait: then the caller looks once and finds nothing.
            drain(self.event());
        }
        let woken = self
            .state
            .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire)
            .is_err();
        if woken { Wake::Woken } else { wake }
    }
}

/// Wakes the task. Without the lock: a waker may poll its task at once, which arms the waiter again.
#[cold]
fn wake_task(waker: &Mutex<Option<Waker>>) {
    let waker = lock(waker).take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Wakes a waiter at each event of what it watches: the floor of the sockets makes it a watcher.
#[derive(Debug)]
pub(crate) struct WakeOnEvent(pub(crate) Arc<Waiter>);

impl ThreadWaiter {
    fn new(waiter: Waiter) -> ThreadWaiter {
        ThreadWaiter { waiter: Arc::new(waiter), watcher: None }
    }
}

impl CurrentWaiter {
    /// What watches sockets for this waiter; made at the first call.
    pub(crate) fn watcher(&mut self) -> std::sync::Arc<WakeOnEvent> {
        let ThreadWaiter { waiter, watcher } = &mut *self.0;
        watcher.get_or_insert_with(|| std::sync::Arc::new(WakeOnEvent(waiter.clone()))).clone()
    }
}

impl Deref for CurrentWaiter {
    type Target = Arc<Waiter>;

    #[inline]
    fn deref(&self) -> &Arc<Waiter> {
        &self.0.waiter
    }
}

impl Drop for CurrentWaiter {
    fn drop(&mut self) {
        CURRENT_EVENT.with(|event| event.store(-1, Ordering::Relaxed));
        CURRENT.with(|mine| mine.store(ptr::null_mut(), Ordering::Relaxed));
    }
}

/// Kernel descriptors that a sleep waits for as well: it ends when poll(2) reports one of them.
#[derive(Debug, Default)]
pub struct KernelFds {
    /// The first [`OWN`] entries are the sleeper's own, filled in when it sleeps.
    fds: Vec<libc::pollfd>,
    /// One of them.
    kept: Option<std::sync::Arc<KeptFd>>,
}

/// How many descriptors are the sleeper's own: its eventfd and one other.
const OWN: usize = 2;

const NONE: libc::pollfd = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };

impl KernelFds {
    /// No descriptors.
    pub const fn none() -> KernelFds {
        KernelFds { fds: Vec::new(), kept: None }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fds.len() <= OWN
    }

    /// Adds a descriptor. `events` as in poll(2).
    pub fn push(&mut self, fd: RawFd, events: i16) {
        if self.fds.is_empty() {
            self.fds.resize(OWN, NONE);
        }
        self.fds.push(libc::pollfd { fd, events, revents: 0 });
    }

    /// Adds one that may stay registered after the wait.
    pub fn push_kept(&mut self, kept: &std::sync::Arc<KeptFd>) {
        self.push(kept.raw_fd(), libc::POLLIN);
        self.kept = Some(kept.clone());
    }

    /// Whether none has to be registered anew for each wait.
    pub(super) fn are_kept(&self) -> bool {
        self.fds.len() <= OWN + usize::from(self.kept.is_some())
    }

    /// The one that may stay registered.
    pub(super) fn kept(&self) -> Option<&std::sync::Arc<KeptFd>> {
        self.kept.as_ref()
    }

    /// Makes room for `count` descriptors.
    ///
    /// # Errors
    /// There is no memory for so many.
    pub fn try_reserve(&mut self, count: usize) -> Result<(), TryReserveError> {
        self.fds.try_reserve(OWN + count)
    }

    /// Removes all, and keeps the memory.
    pub fn clear(&mut self) {
        self.fds.clear();
        self.kept = None;
    }

    /// The last results of poll(2), in the order of addition.
    pub fn found(&self) -> &[libc::pollfd] {
        self.fds.get(OWN..).unwrap_or_default()
    }

    /// Ignores the descriptor at `at`, in the order of addition, from now on.
    pub fn ignore(&mut self, at: usize) {
        if let Some(fd) = self.fds.get_mut(at + OWN) {
            fd.fd = -1;
        }
    }

    /// Polls them without waiting: whether one is ready.
    pub fn look(&mut self) -> bool {
        !self.is_empty() && self.poll_with([-1; OWN], Some(Duration::ZERO)) == Wake::KernelFds
    }

    /// Polls them and the sleeper's own. If several are ready, the wake-up is reported first, and these last.
    fn poll_with(&mut self, own: [RawFd; OWN], timeout: Option<Duration>) -> Wake {
        let mut alone = [NONE; OWN];
        let fds = if self.fds.is_empty() { &mut alone[..] } else { &mut self.fds[..] };
        for (place, fd) in fds.iter_mut().zip(own) {
            place.fd = fd;
        }
        match sys::poll_all(fds, timeout) {
            0 => Wake::Timeout,
            1.. if fds[0].revents != 0 => Wake::Woken,
            1.. if fds[1].revents != 0 => Wake::Interrupt,
            1.. => Wake::KernelFds,
            _ => Wake::Signal,
        }
    }
}

/// The threads to wake after a pass. They are woken after the queue is released, so that a woken thread that takes our
/// CPU does not find the queue owned.
#[derive(Default)]
pub struct WakeList {
    first: Option<Arc<Waiter>>,
    more: Option<Lent<Vec<Arc<Waiter>>>>,
}

/// The lists' memory.
static LISTS: Pool<Vec<Arc<Waiter>>> = Pool::new();

thread_local!(static LIST: Last<Vec<Arc<Waiter>>> = const { Cell::new(ptr::null()) });

impl WakeList {
    /// Adds a waiter. Allocates only if there are more than a thread has ever had to wake at once.
    #[inline]
    pub fn push(&mut self, waiter: Arc<Waiter>) {
        match &self.first {
            None => self.first = Some(waiter),
            Some(_) => self.push_more(waiter),
        }
    }

    #[cold]
    fn push_more(&mut self, waiter: Arc<Waiter>) {
        let more = self.more.get_or_insert_with(|| {
            let Ok(mut list) = LISTS.lend(&LIST, || Ok::<_, Infallible>(Vec::new()));
            // Entries of a thread that did not wake them.
            list.clear();
            list
        });
        more.push(waiter);
    }

    /// Wakes them all.
    #[inline]
    pub fn wake_all(&mut self) {
        if let Some(first) = self.first.take() {
            first.wake();
            if let Some(more) = self.more.take() {
                wake(more);
            }
        }
    }
}

#[cold]
fn wake(mut waiters: Lent<Vec<Arc<Waiter>>>) {
    waiters.drain(..).for_each(|waiter| waiter.wake());
}
