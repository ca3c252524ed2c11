//! A thread that sleeps, and waking it. Every sleep of the stack (a receive, a poll, an epoll wait) is on
//! a [`Waiter`] that is its thread's meanwhile: a word for the fast answer and an eventfd, so that a thread can wait
//! for its own wake-up and for a NIC's interrupt in one call.
//!
//! No wake-up is lost: who waits first makes itself known (under the lock of what it waits for), then looks
//! once more, then sleeps; [`wake`](Waiter::wake) in between turns the sleep into a return.

use crate::{
    pool::{Last, Lent, Pool},
    sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock},
    sys::{self, drain, eventfd, signal},
    time::{self, Instant},
};
use std::{
    any::Any,
    cell::Cell,
    convert::Infallible,
    io,
    ops::Deref,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicI32, AtomicPtr},
    },
    time::Duration,
};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

/// Where one thread sleeps.
#[derive(Debug)]
pub struct Waiter {
    state: AtomicU32,
    /// 1: in the queue of those who wait for one thing. Changed under the lock of that queue.
    queued: AtomicU32,
    event: OwnedFd,
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// [`Waiter::wake`].
    Woken,
    /// The other descriptor is readable.
    Readable,
    /// Something of [`Outside`] is there.
    Outside,
    /// The time is over.
    Timeout,
    /// A signal was handled.
    Interrupted,
}

/// What a thread has while it sleeps, and other threads before and after it.
#[derive(Debug)]
struct ThreadWaiter {
    waiter: Arc<Waiter>,
    /// What else is needed to wake it, of who stands above.
    above: Option<std::sync::Arc<dyn Any + Send + Sync>>,
}

/// There is one for each thread of those that have slept at once.
static WAITERS: Pool<ThreadWaiter> = Pool::new();

// None of these has a destructor.
thread_local! {
    static LAST: Last<ThreadWaiter> = const { Cell::new(ptr::null()) };
    /// The waiter the thread has now; null if it has none.
    static CURRENT: AtomicPtr<Waiter> = const { AtomicPtr::new(ptr::null_mut()) };
    /// Its eventfd, below zero as long as there is none.
    static CURRENT_EVENT: AtomicI32 = const { AtomicI32::new(-1) };
}

/// The calling thread's waiter, until this is dropped.
pub struct CurrentWaiter(Lent<ThreadWaiter>);

static ON_FIRST: OnceLock<fn()> = OnceLock::new();

/// Has `hook` called by each thread that is about to sleep in the stack for the first time. The first hook given stays.
pub(crate) fn on_first_sleep(hook: fn()) {
    let _ = ON_FIRST.set(hook);
}

impl Waiter {
    pub(crate) fn new() -> io::Result<Waiter> {
        Ok(Waiter { state: AtomicU32::new(AWAKE), queued: AtomicU32::new(0), event: eventfd()? })
    }

    /// One for the calling thread, the one it had last if nobody else has it. Wake-ups for its wait before, or for
    /// another thread's, may come late: a wait that finds nothing goes on.
    ///
    /// # Errors
    /// No descriptor is left (EMFILE, ENFILE).
    pub fn of_this_thread() -> io::Result<CurrentWaiter> {
        let is_first = LAST.get().is_null();
        let slot = WAITERS.lend(&LAST, || Ok::<_, io::Error>(ThreadWaiter::new(Waiter::new()?)))?;
        CURRENT.with(|mine| mine.store(Arc::as_ptr(&slot.waiter).cast_mut(), Ordering::Relaxed));
        // Before the thread looks whether it was called off: see `Caller::call_off`.
        CURRENT_EVENT.with(|event| event.store(slot.waiter.event.as_raw_fd(), Ordering::SeqCst));
        if is_first && let Some(hook) = ON_FIRST.get() {
            hook();
        }
        Ok(CurrentWaiter(slot))
    }

    /// Wakes the calling thread's own, if it has one: for a signal's handler.
    pub(crate) fn wake_this_thread() {
        let mine = CURRENT.with(|mine| mine.load(Ordering::Relaxed));
        // SAFETY: a waiter is never freed; but what is this thread's now is so while its handler runs.
        if let Some(waiter) = unsafe { mine.as_ref() } {
            waiter.wake();
        }
    }

    /// Where the eventfd of the calling thread's own stands, below zero as long as it has none; valid as long as the
    /// thread lives. To make it readable ends a sleep, for no reason.
    pub(crate) fn event_of_this_thread() -> *const AtomicI32 {
        CURRENT_EVENT.with(ptr::from_ref)
    }

    /// In a child after fork(2): waiters are its parent's, and are left behind. Their descriptors are closed already,
    /// or another's by now.
    pub(crate) fn forget_all() {
        WAITERS.forget(&LAST);
    }

    /// Starts a new wait: forgets wake-ups meant for earlier ones. Call it before making the waiter known
    /// to whoever is to wake it.
    pub fn start(&self) {
        // Not a mere store: a look that follows without a lock would come before it, and a wake-up between the two be
        // lost.
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Ends the wait, or keeps it from beginning. Any thread may call it, any number of times.
    pub fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            signal(self.event.as_raw_fd());
        }
    }

    /// Whether [`wake`](Waiter::wake) was called since [`start`](Waiter::start).
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Whether it stands in the queue it was put in. To be asked by its own thread, once awake: a wake-up by
    /// that queue takes it off first.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_queued(&self, queued: bool) {
        self.queued.store(queued.into(), Ordering::Relaxed);
    }

    /// Sleeps until woken (or, rarely, for no reason), `timeout` is over (`None`: never), or something of
    /// `outside` is there. Returns at once if it was woken before.
    pub fn sleep(&self, timeout: Option<Duration>, outside: &mut Outside) -> Wake {
        self.sleep_among(None, timeout, outside)
    }

    /// As [`sleep`](Waiter::sleep), and until `other` is readable.
    pub(crate) fn sleep_among(
        &self,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
        outside: &mut Outside,
    ) -> Wake {
        let own = [self.event.as_raw_fd(), other.map_or(-1, |other| other.as_raw_fd())];
        self.sleep_with(|| outside.poll_with(own, timeout))
    }

    /// As [`sleep`](Waiter::sleep), but until `deadline`, or until what else `bedside` has fires.
    pub(crate) fn sleep_beside(&self, bedside: &Bedside, deadline: Option<Instant>) -> Wake {
        self.sleep_with(|| {
            loop {
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 3];
                let limit = bedside.limit(deadline);
                let count = sys::epoll_wait(bedside.epoll.as_raw_fd(), &mut events, limit);
                let Ok(count) = usize::try_from(count) else { return Wake::Interrupted };
                let has = |what| events[..count].iter().any(|event| event.u64 == what);
                if has(WAITER) {
                    return Wake::Woken;
                } else if has(OTHER) {
                    return Wake::Readable;
                } else if has(ALARM) {
                    bedside.alarm_expired();
                } else {
                    return Wake::Timeout;
                }
            }
        })
    }

    fn sleep_with(&self, wait: impl FnOnce() -> Wake) -> Wake {
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return Wake::Woken;
        }
        let wake = wait();
        if wake == Wake::Woken {
            // Perhaps the late echo of an earlier wait's wake-up: then the caller looks in vain, once.
            drain(self.event.as_raw_fd());
        }
        let woken = self
            .state
            .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire)
            .is_err();
        if woken { Wake::Woken } else { wake }
    }
}

impl ThreadWaiter {
    fn new(waiter: Waiter) -> ThreadWaiter {
        ThreadWaiter { waiter: Arc::new(waiter), above: None }
    }
}

impl CurrentWaiter {
    /// What `make` has made of this waiter when it was asked for first.
    pub(crate) fn above<T: Send + Sync + 'static>(
        &mut self,
        make: impl FnOnce(&Arc<Waiter>) -> T,
    ) -> std::sync::Arc<T> {
        let ThreadWaiter { waiter, above } = &mut *self.0;
        let known = above.clone().and_then(|above| above.downcast().ok());
        known.unwrap_or_else(|| {
            let new = std::sync::Arc::new(make(waiter));
            *above = Some(new.clone());
            new
        })
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

/// Descriptors of the kernel's that a sleep minds as well: what poll(2) reports of them ends it.
#[derive(Debug, Default)]
pub struct Outside {
    /// The first [`OWN`] places are the sleeper's own, filled in when it sleeps.
    fds: Vec<libc::pollfd>,
}

/// The sleeper's own: its wake-up, and what else wakes it.
const OWN: usize = 2;

const NONE: libc::pollfd = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };

impl Outside {
    /// None.
    pub const fn nothing() -> Outside {
        Outside { fds: Vec::new() }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fds.len() <= OWN
    }

    /// Adds one. `events` as in poll(2).
    pub fn push(&mut self, fd: RawFd, events: i16) {
        if self.fds.is_empty() {
            self.fds.resize(OWN, NONE);
        }
        self.fds.push(libc::pollfd { fd, events, revents: 0 });
    }

    /// Removes all, and keeps the memory.
    pub fn clear(&mut self) {
        self.fds.clear();
    }

    /// What was last found of them, in the order they were added in.
    pub fn found(&self) -> &[libc::pollfd] {
        self.fds.get(OWN..).unwrap_or_default()
    }

    /// Minds the one at `at` no more, in the order they were added in.
    pub fn pass_over(&mut self, at: usize) {
        if let Some(fd) = self.fds.get_mut(at + OWN) {
            fd.fd = -1;
        }
    }

    /// Looks at them without waiting: whether something is there.
    pub fn look(&mut self) -> bool {
        !self.is_empty() && self.poll_with([-1; OWN], Some(Duration::ZERO)) == Wake::Outside
    }

    /// Polls them and the sleeper's own. Of several, its wake-up is reported first, and these here last.
    fn poll_with(&mut self, own: [RawFd; OWN], timeout: Option<Duration>) -> Wake {
        let mut alone = [NONE; OWN];
        let fds = if self.fds.is_empty() { &mut alone[..] } else { &mut self.fds[..] };
        for (place, fd) in fds.iter_mut().zip(own) {
            place.fd = fd;
        }
        match sys::poll_all(fds, timeout) {
            0 => Wake::Timeout,
            1.. if fds[0].revents != 0 => Wake::Woken,
            1.. if fds[1].revents != 0 => Wake::Readable,
            1.. => Wake::Outside,
            _ => Wake::Interrupted,
        }
    }
}

const OTHER: u64 = 0;
const WAITER: u64 = 1;
const ALARM: u64 = 2;

/// Waits that end sooner have the kernel's own timer, which is started and stopped with each.
const SHORT: Duration = Duration::from_millis(1);

/// A descriptor to wait on beside one's own wake-up, by one thread at a time. Both stay registered from
/// one wait to the next, which makes waiting one call, and half as dear as ppoll(2) on the two.
#[derive(Debug)]
pub(crate) struct Bedside {
    epoll: OwnedFd,
    registered: Mutex<Registered>,
    alarm: sys::Alarm,
    /// When the alarm alarm_at, in nanoseconds; the end of time if it is not set. Of one sleeper at a time.
    alarm_at: AtomicU64,
}

/// What is registered.
#[derive(Debug, Default)]
struct Registered {
    waiter: Option<Arc<Waiter>>,
    other: Option<RawFd>,
}

impl Bedside {
    pub(crate) fn new() -> io::Result<Bedside> {
        let bedside = Bedside {
            epoll: sys::epoll()?,
            registered: Mutex::default(),
            alarm: sys::Alarm::new()?,
            alarm_at: AtomicU64::new(u64::MAX),
        };
        let alarm = bedside.alarm.fd();
        bedside.control(libc::EPOLL_CTL_ADD, alarm, libc::EPOLLIN, ALARM)?;
        Ok(bedside)
    }

    /// How long the kernel is to wait at the most. A wait with a timeout seldom ends by it: the alarm of an
    /// earlier one serves, and is set anew only once it has rung.
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

    /// The alarm has rung.
    fn alarm_expired(&self) {
        drain(self.alarm.fd());
        self.alarm_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// Lets `waiter` wait here from now on, beside `other`: always the same descriptor.
    ///
    /// # Errors
    /// No memory left in the kernel.
    pub(crate) fn admit(&self, waiter: &Arc<Waiter>, other: BorrowedFd<'_>) -> io::Result<()> {
        let mut registered = lock(&self.registered);
        if !registered.waiter.as_ref().is_some_and(|known| Arc::ptr_eq(known, waiter)) {
            if let Some(before) = registered.waiter.take() {
                self.control(libc::EPOLL_CTL_DEL, before.event.as_raw_fd(), 0, WAITER)?;
            }
            let event = waiter.event.as_raw_fd();
            self.control(libc::EPOLL_CTL_ADD, event, libc::EPOLLIN, WAITER)?;
            registered.waiter = Some(waiter.clone());
        }
        if registered.other.is_none() {
            // Edge-triggered: who waits has looked since, so only what comes from now on counts.
            let events = libc::EPOLLIN | libc::EPOLLET;
            self.control(libc::EPOLL_CTL_ADD, other.as_raw_fd(), events, OTHER)?;
            registered.other = Some(other.as_raw_fd());
        }
        Ok(())
    }

    /// Takes the other descriptor out until somebody is admitted again, unless somebody is about to wait:
    /// what is registered is called back by the kernel for every packet, asleep or not. Who asks makes
    /// himself known to `is_wanted` before he is admitted.
    pub(crate) fn detach(&self, is_wanted: impl FnOnce() -> bool) {
        let mut registered = lock(&self.registered);
        if !is_wanted()
            && let Some(other) = registered.other.take()
        {
            // It is registered; there is nothing in taking it out that could fail.
            let _ = self.control(libc::EPOLL_CTL_DEL, other, 0, OTHER);
        }
    }

    fn control(&self, op: i32, fd: RawFd, events: i32, data: u64) -> io::Result<()> {
        sys::epoll_control(self.epoll.as_raw_fd(), op, fd, events as u32, data)
    }
}

/// What threads are to be woken when a pass over the queue is over: after the queue is released, so that a
/// woken thread that takes our CPU does not find it owned.
#[derive(Default)]
pub struct WakeList {
    first: Option<Arc<Waiter>>,
    more: Option<Lent<Vec<Arc<Waiter>>>>,
}

/// The memory of lists.
static LISTS: Pool<Vec<Arc<Waiter>>> = Pool::new();

thread_local!(static LIST: Last<Vec<Arc<Waiter>>> = const { Cell::new(ptr::null()) });

impl WakeList {
    /// Adds a waiter. Allocates only for more than a thread has ever had to wake at once.
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
            // Of who has not woken them.
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
