//! `Epoll`: waiting for any of many sockets, again and again. A socket that becomes ready puts itself on
//! the ready list (`set`); a wait looks at that list only, never at all members.

use super::{
    beside::{Beside, Look},
    busy::{Busy, Terms, busy_loop},
    readiness::{Events, Watch},
    source::{Socket, Source},
};
use crate::{
    Host,
    napi::{self, Outside, Poller, Waiter, Wake},
    signal,
    spin::Turn,
    sync::lock,
    time,
};
use set::{Item, Set, key};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

mod set;

/// An epoll's own busy-poll parameters (`EPIOCSPARAMS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollParams {
    /// Microseconds that a wait may busy poll; 0: the host's `busy_poll` decides.
    pub busy_poll_usecs: u32,
    /// Packets a pass; 0 means 8.
    pub busy_poll_budget: u16,
    /// Leave the queues to pollers for longer after a wait; busy polls one pass even with no time given.
    pub prefer_busy_poll: bool,
}

/// What a wait reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// What is there.
    pub events: Events,
    /// What the socket was added with.
    pub data: u64,
}

/// A set of sockets to wait for. Any number of threads may use it at once; an event wakes one of them.
///
/// Unlike Linux's, which follows one napi id, it busy polls every queue that its members' packets come
/// over.
///
/// ```
/// use busypoll_stack::{Epoll, EpollParams, Events, Host, UdpSocket, nic::cable};
/// use std::time::Duration;
/// # let (a, _b) = cable::pair(cable::Config::default())?;
/// # let host = Host::builder().interface(a, "10.0.0.1/24").build()?;
/// let socket = UdpSocket::bind(&host, "10.0.0.1:5000")?;
/// let epoll = Epoll::new(&host);
/// epoll.set_params(EpollParams { busy_poll_usecs: 50, ..EpollParams::default() })?;
/// epoll.add(&socket, Events::READABLE, 7)?;
/// socket.send_to(b"to myself", "10.0.0.1:5000")?;
/// let mut events = Vec::new();
/// epoll.wait(&mut events, 16, Some(Duration::from_secs(1)))?;
/// assert_eq!(events[0].data, 7);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Epoll {
    host: Option<Host>,
    set: Arc<Set>,
}

impl Epoll {
    /// An empty set.
    pub fn new(host: &Host) -> Epoll {
        Epoll { host: Some(host.clone()), set: Arc::default() }
    }

    /// An empty set for sources of no host in particular: it busy polls by its own parameters alone.
    pub fn detached() -> Epoll {
        Epoll { host: None, set: Arc::default() }
    }

    /// Adds `socket`; `data` comes back with its events. Events: [`Events::READABLE`] and
    /// [`Events::WRITABLE`], with [`Events::EDGE`] and [`Events::ONE_SHOT`].
    ///
    /// # Errors
    /// EEXIST if it is a member.
    pub fn add(&self, socket: &dyn Socket, events: Events, data: u64) -> io::Result<()> {
        self.add_source(&socket.shared_source(), 0, events, data).map(drop)
    }

    /// Adds `source`, once for each `tag`, as epoll(7) has a file once for each descriptor of it. What is
    /// returned may be told of events that the source itself does not see.
    ///
    /// # Errors
    /// EEXIST if it is a member under that tag.
    pub fn add_source(
        &self,
        source: &Arc<dyn Source>,
        tag: u64,
        events: Events,
        data: u64,
    ) -> io::Result<Arc<dyn Watch>> {
        let key = key(&Arc::downgrade(source), tag);
        let item = Item::new(&self.set, source, tag, events, data);
        let mut items = lock(&self.set.items);
        if items.get(&key).is_some_and(|known| known.source.strong_count() > 0) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        items.insert(key, item.clone());
        drop(items);
        source.watch(item.clone());
        if let Some(napi) = source.napi() {
            item.follow(&self.set, napi);
        }
        self.set.look_at(&item, &**source);
        Ok(item)
    }

    /// Changes what `socket` is waited for; arms a one-shot member anew.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn modify(&self, socket: &dyn Socket, events: Events) -> io::Result<()> {
        self.modify_source(&socket.shared_source(), 0, events, None)
    }

    /// The same for a source under a tag; `data` replaces what comes back with its events.
    ///
    /// # Errors
    /// ENOENT if it is not a member under that tag; EINVAL if it was added with [`Events::EXCLUSIVE`].
    pub fn modify_source(
        &self,
        source: &Arc<dyn Source>,
        tag: u64,
        events: Events,
        data: Option<u64>,
    ) -> io::Result<()> {
        let item = self.member(source, tag)?;
        if item.interest().has(Events::EXCLUSIVE) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if let Some(data) = data {
            item.set_data(data);
        }
        item.set_interest(events);
        self.set.look_at(&item, &**source);
        Ok(())
    }

    /// Removes `socket`. A socket that is dropped leaves by itself.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn remove(&self, socket: &dyn Socket) -> io::Result<()> {
        self.remove_source(&socket.shared_source(), 0)
    }

    /// The same for a source under a tag.
    ///
    /// # Errors
    /// ENOENT if it is not a member under that tag.
    pub fn remove_source(&self, source: &Arc<dyn Source>, tag: u64) -> io::Result<()> {
        let item = self.member(source, tag)?;
        item.retire();
        lock(&self.set.items).remove(&key(&item.source, tag));
        let watch: Arc<dyn Watch> = item;
        source.unwatch(&watch);
        Ok(())
    }

    fn member(&self, source: &Arc<dyn Source>, tag: u64) -> io::Result<Arc<Item>> {
        let key = key(&Arc::downgrade(source), tag);
        let item = lock(&self.set.items).get(&key).cloned();
        item.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// The set as a source of events, for a set around it: readable while a wait would find something.
    pub fn as_source(&self) -> Arc<dyn Source> {
        self.set.clone()
    }

    /// The busy-poll parameters.
    pub fn params(&self) -> EpollParams {
        EpollParams {
            busy_poll_usecs: self.set.usecs.load(Ordering::Relaxed),
            busy_poll_budget: self.set.budget.load(Ordering::Relaxed) as u16,
            prefer_busy_poll: self.set.prefer.load(Ordering::Relaxed),
        }
    }

    /// Sets the busy-poll parameters.
    ///
    /// # Errors
    /// EINVAL above 2^31 - 1 microseconds, as in Linux.
    pub fn set_params(&self, params: EpollParams) -> io::Result<()> {
        if i32::try_from(params.busy_poll_usecs).is_err() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.set.usecs.store(params.busy_poll_usecs, Ordering::Relaxed);
        self.set.budget.store(params.busy_poll_budget.into(), Ordering::Relaxed);
        self.set.prefer.store(params.prefer_busy_poll, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for events, at most `most` (at least 1), and writes them to `events`, which is emptied first.
    /// Busy polls by the epoll's own parameters, else by the host's `busy_poll`; then sleeps. Returns how
    /// many; 0 only when `timeout` is over (`None`: never).
    ///
    /// # Errors
    /// `Interrupted` by a signal while it sleeps, as [`UdpSocket::recv`](crate::UdpSocket::recv);
    /// EINVAL for no room, or no descriptor left for the thread's eventfd.
    pub fn wait(
        &self,
        events: &mut Vec<EpollEvent>,
        most: usize,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        if most == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        events.clear();
        let deadline = timeout.map(|timeout| time::now() + timeout);
        loop {
            self.take(events, most);
            if !events.is_empty() {
                return Ok(events.len());
            }
            let left = deadline.map(|deadline| deadline - time::now());
            if !self.wait_beside(left, &mut Outside::nothing())? {
                self.take(events, most);
                return Ok(events.len());
            }
        }
    }

    /// Adds what is there to `events`, up to `most` in all, without waiting.
    pub fn take(&self, events: &mut Vec<EpollEvent>, most: usize) {
        self.set.collect(events, most);
    }

    /// Waits, as [`wait`](Epoll::wait) does, until there is something to [`take`](Epoll::take), or `beside` has
    /// something. False when `timeout` is over (`None`: never); true may be a false alarm. No time at all makes
    /// one pass over each queue.
    ///
    /// # Errors
    /// `Interrupted` by a signal while it sleeps, as [`UdpSocket::recv`](crate::UdpSocket::recv),
    /// or no descriptor left for the thread's eventfd.
    pub fn wait_beside(
        &self,
        timeout: Option<Duration>,
        beside: &mut dyn Beside,
    ) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| time::now() + timeout);
        let at_once = timeout == Some(Duration::ZERO);
        let turn = Turn::begin(if at_once { Duration::ZERO } else { self.span() });
        loop {
            if turn.may_poll() && self.busy_poll(deadline, beside) || self.set.is_ready() {
                return Ok(true);
            }
            if at_once {
                return Ok(false);
            }
            let left = deadline.map(|deadline| deadline - time::now());
            match self.sleep(left, beside.outside())? {
                _ if self.set.is_ready() => return Ok(true),
                Wake::Outside => return Ok(true),
                Wake::Timeout => return Ok(false),
                Wake::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
                Wake::Woken | Wake::Readable => {
                    if signal::is_put_off() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
            }
        }
    }

    /// How long a wait busy polls.
    fn span(&self) -> Duration {
        let micros = match self.set.usecs.load(Ordering::Relaxed) {
            0 => self.host.as_ref().map_or(0, Host::busy_poll),
            own => own,
        };
        Duration::from_micros(micros.into())
    }

    /// True if `beside` has something.
    fn busy_poll(&self, deadline: Option<time::Instant>, beside: &mut dyn Beside) -> bool {
        let (params, span) = (self.params(), self.span());
        if span.is_zero() && !params.prefer_busy_poll {
            return false;
        }
        let begun = time::now();
        let end = begun + span;
        let mut look = Look::new(begun, beside);
        let _spinning = Spinning::enter(&self.set);
        loop {
            let contexts = self.set.contexts();
            if contexts.is_empty() {
                return false;
            }
            let terms = Terms {
                span: end - time::now(),
                budget: match params.busy_poll_budget {
                    0 => napi::BUSY_POLL_BUDGET,
                    own => own.into(),
                },
                deadline,
            };
            let mut poller = Poller {
                prefer: params.prefer_busy_poll,
                ..Poller::new(Arc::as_ptr(&self.set).addr())
            };
            // Members that have come since may have queues of their own.
            let mut others = false;
            let busy = busy_loop(&contexts, &terms, &mut poller, |now, _| {
                self.set.is_ready()
                    || look.is_due(now) && {
                        others = !Arc::ptr_eq(&contexts, &self.set.contexts());
                        others || look.found()
                    }
            });
            if busy == Busy::Gone {
                self.set.forget_the_gone();
            }
            if !others {
                return look.has_found();
            }
        }
    }

    fn sleep(&self, timeout: Option<Duration>, outside: &mut Outside) -> io::Result<Wake> {
        let waiter = Waiter::of_this_thread()?;
        waiter.start();
        if signal::is_put_off() {
            return Ok(Wake::Interrupted);
        }
        if !self.set.join(&waiter) {
            return Ok(Wake::Woken);
        }
        let wake = napi::sleep_for(&self.set.contexts(), &waiter, timeout, outside);
        self.set.leave(&waiter);
        Ok(wake)
    }
}

/// A thread that busy polls for a set.
struct Spinning<'a>(&'a Set);

impl Spinning<'_> {
    fn enter(set: &Set) -> Spinning<'_> {
        set.spinning.fetch_add(1, Ordering::Relaxed);
        Spinning(set)
    }
}

impl Drop for Spinning<'_> {
    fn drop(&mut self) {
        self.0.spinning.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        self.set.close();
    }
}
