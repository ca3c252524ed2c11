//! `Epoll`: repeated waits for any of many sockets. A socket that becomes ready is put on the ready list
//! (`event_poll`); a wait looks only at that list, never at all members.

use super::{
    busy::{BusyLimits, BusyLoopEnd, busy_loop},
    kernel_fds::KernelFdCheck,
    readiness::{Events, Watch},
    ready_fd::ReadyFd,
    source::{Socket, Source},
};
use crate::{
    Host,
    inet::Poller,
    napi::{self, KernelFds, Waiter, Wake},
    signal,
    spin::SpinTurn,
    sync::lock,
    time,
};
use event_poll::{EventPoll, Item, key};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

mod event_poll;

/// An epoll's own busy-poll parameters (`EPIOCSPARAMS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollParams {
    /// Microseconds that a wait may busy poll; 0: the host's `busy_poll` decides.
    pub busy_poll_usecs: u32,
    /// Packets per pass; 0 means 8.
    pub busy_poll_budget: u16,
    /// Leave the queues to pollers for longer after a wait. Busy polls one pass even if no time is set.
    pub prefer_busy_poll: bool,
}

/// An event that a wait reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// The events found.
    pub events: Events,
    /// The value that the socket was added with.
    pub data: u64,
}

/// A set of sockets to wait for. Any number of threads may use it at once; an event wakes one of them.
///
/// It busy polls every queue that its members' packets come from. Linux busy polls one napi id.
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
    set: Arc<EventPoll>,
}

impl Epoll {
    /// An empty set.
    pub fn new(host: &Host) -> Epoll {
        Epoll { host: Some(host.clone()), set: Arc::default() }
    }

    /// An empty set without a host: it busy polls by its own parameters alone.
    #[doc(hidden)]
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

    /// Adds `source`, once for each `tag`, as epoll(7) has a file once for each of its descriptors. The returned
    /// watcher may be notified of events that the source itself does not see.
    ///
    /// # Errors
    /// EEXIST if it is a member under that tag; ENOMEM.
    #[doc(hidden)]
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
        items.try_reserve(1).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        items.insert(key, item.clone());
        drop(items);
        source.watch(item.clone());
        if source.counts_waits() {
            self.set.add_counting(item.clone());
        }
        if let Some(napi) = source.napi() {
            item.mark_napi(&self.set, napi);
        }
        self.set.queue_if_ready(&item, &**source);
        Ok(item)
    }

    /// Changes the events of `socket`; arms a one-shot member again.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn modify(&self, socket: &dyn Socket, events: Events) -> io::Result<()> {
        self.modify_source(&socket.shared_source(), 0, events, None)
    }

    /// The same for a source under a tag; `data` replaces the value that comes back with its events.
    ///
    /// # Errors
    /// ENOENT if it is not a member under that tag; EINVAL if it was added with [`Events::EXCLUSIVE`].
    #[doc(hidden)]
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
        self.set.queue_if_ready(&item, &**source);
        Ok(())
    }

    /// Removes `socket`. A dropped socket is removed by itself.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn remove(&self, socket: &dyn Socket) -> io::Result<()> {
        self.remove_source(&socket.shared_source(), 0).map(drop)
    }

    /// The same for a source under a tag. Returns whether it could still report events: a one-shot member that was reported
    /// cannot.
    ///
    /// # Errors
    /// ENOENT if it is not a member under that tag.
    #[doc(hidden)]
    pub fn remove_source(&self, source: &Arc<dyn Source>, tag: u64) -> io::Result<bool> {
        let item = self.member(source, tag)?;
        let was_armed = !item.clear_interest().is_empty();
        lock(&self.set.items).remove(&key(&item.source, tag));
        self.set.remove_counting(&item);
        let watch: Arc<dyn Watch> = item;
        source.unwatch(&watch);
        Ok(was_armed)
    }

    fn member(&self, source: &Arc<dyn Source>, tag: u64) -> io::Result<Arc<Item>> {
        let key = key(&Arc::downgrade(source), tag);
        let item = lock(&self.set.items).get(&key).cloned();
        item.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// The set as a source of events, to be added to another set: readable while a wait would find an event.
    #[doc(hidden)]
    pub fn as_source(&self) -> Arc<dyn Source> {
        self.set.clone()
    }

    /// A descriptor that is readable while a wait would find an event, for programs that wait in the kernel. To be
    /// [cleared](ReadyFd::clear) once a wait with no time has found none.
    ///
    /// # Errors
    /// No descriptor is left (EMFILE, ENFILE).
    pub fn ready_fd(&self) -> io::Result<ReadyFd> {
        let poller_slot = self.host.as_ref().map(|host| host.poller_slot().clone());
        ReadyFd::of_source(&self.as_source(), Events::READABLE, poller_slot)
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
    /// Busy polls by the epoll's own parameters, else by the host's `busy_poll`; then sleeps. Returns the number
    /// of events; 0 only when `timeout` is over (`None`: never).
    ///
    /// # Errors
    /// `Interrupted` by a signal while it sleeps, as [`UdpSocket::recv`](crate::UdpSocket::recv);
    /// EINVAL if `most` is 0; or no descriptor left for the thread's eventfd.
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
            self.take_events(events, most);
            if !events.is_empty() {
                return Ok(events.len());
            }
            let left = deadline.map(|deadline| deadline - time::now());
            if !self.wait_with_kernel_fds(left, &mut KernelFds::none())? {
                self.take_events(events, most);
                return Ok(events.len());
            }
        }
    }

    /// Moves the events found now to `events`, up to `most` in all, without waiting.
    pub fn take_events(&self, events: &mut Vec<EpollEvent>, most: usize) {
        self.set.collect(events, most);
    }

    /// Whether there may be an event to [take](Epoll::take_events).
    pub fn is_ready(&self) -> bool {
        self.set.is_ready()
    }

    /// Waits, as [`wait`](Epoll::wait) does, until there is an event to [take](Epoll::take_events) or one of
    /// `kernel_fds` is ready. False when `timeout` is over (`None`: never); true may be spurious. A zero timeout makes
    /// one pass over each queue.
    ///
    /// # Errors
    /// `Interrupted` by a signal while it sleeps, as [`UdpSocket::recv`](crate::UdpSocket::recv),
    /// or no descriptor left for the thread's eventfd.
    #[doc(hidden)]
    pub fn wait_with_kernel_fds(
        &self,
        timeout: Option<Duration>,
        kernel_fds: &mut KernelFds,
    ) -> io::Result<bool> {
        self.wait_since(self.epoch(), timeout, kernel_fds)
    }

    /// The number of [`end_waits`](Epoll::end_waits) so far.
    pub fn epoch(&self) -> u32 {
        self.set.epoch()
    }

    /// Ends the waits of all threads, for a caller that has more descriptors of the kernel's to wait for.
    pub fn end_waits(&self) {
        self.set.end_waits();
    }

    /// As [`wait_with_kernel_fds`](Epoll::wait_with_kernel_fds), and returns true if [`end_waits`](Epoll::end_waits)
    /// was called since `epoch` was read.
    ///
    /// # Errors
    /// As there.
    pub fn wait_since(
        &self,
        epoch: u32,
        timeout: Option<Duration>,
        kernel_fds: &mut KernelFds,
    ) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| time::now() + timeout);
        let nonblocking = timeout == Some(Duration::ZERO);
        let turn = SpinTurn::begin(if nonblocking { Duration::ZERO } else { self.span() });
        let counted = if nonblocking { None } else { self.set.count_wait() };
        counted.iter().for_each(|counted| counted.add_companions(&self.set, kernel_fds));
        loop {
            if turn.may_poll() && self.busy_poll(epoch, deadline, kernel_fds) || self.set.is_ready()
            {
                return Ok(true);
            }
            if nonblocking {
                return Ok(false);
            }
            let left = deadline.map(|deadline| deadline - time::now());
            match self.sleep(epoch, left, kernel_fds)? {
                _ if self.set.is_ready() || self.epoch() != epoch => return Ok(true),
                Wake::KernelFds => return Ok(true),
                Wake::Timeout => return Ok(false),
                Wake::Signal => return Err(io::ErrorKind::Interrupted.into()),
                Wake::Woken | Wake::Interrupt => {
                    if signal::has_deferred_signal() {
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

    /// Whether a wait does not busy poll, by the set's parameters.
    pub fn sleeps_at_once(&self) -> bool {
        self.span().is_zero() && !self.params().prefer_busy_poll
    }

    /// True if one of `kernel_fds` is ready, or there may be more of them.
    fn busy_poll(
        &self,
        epoch: u32,
        deadline: Option<time::Instant>,
        kernel_fds: &mut KernelFds,
    ) -> bool {
        let (params, span) = (self.params(), self.span());
        if span.is_zero() && !params.prefer_busy_poll {
            return false;
        }
        let begun = time::now();
        let end = begun + span;
        let mut kernel = KernelFdCheck::new(begun, kernel_fds);
        let _polling = BusyPollerCount::enter(&self.set);
        loop {
            let contexts = self.set.contexts();
            if contexts.is_empty() {
                return false;
            }
            let limits = BusyLimits {
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
            // Members added during the loop may bring new queues: then start over with those.
            let mut changed = false;
            let is_over = || self.epoch() != epoch;
            let busy = busy_loop(&contexts, &limits, &mut poller, |now, _| {
                self.set.is_ready()
                    || kernel.is_due(now) && {
                        changed = !Arc::ptr_eq(&contexts, &self.set.contexts());
                        changed || is_over() || kernel.check()
                    }
            });
            if busy == BusyLoopEnd::Gone {
                self.set.forget_gone_contexts();
            }
            if !changed {
                return is_over() || kernel.has_found();
            }
        }
    }

    fn sleep(
        &self,
        epoch: u32,
        timeout: Option<Duration>,
        kernel_fds: &mut KernelFds,
    ) -> io::Result<Wake> {
        let waiter = Waiter::of_this_thread()?;
        waiter.start();
        if signal::has_deferred_signal() {
            return Ok(Wake::Signal);
        }
        if !self.set.prepare_to_wait(&waiter) {
            return Ok(Wake::Woken);
        }
        if self.epoch() != epoch {
            self.set.finish_wait(&waiter);
            return Ok(Wake::Woken);
        }
        let wake = napi::sleep_for(&self.set.contexts(), &waiter, timeout, kernel_fds);
        self.set.finish_wait(&waiter);
        Ok(wake)
    }
}

/// Counts a thread among the set's busy pollers while it lives.
struct BusyPollerCount<'a>(&'a EventPoll);

impl BusyPollerCount<'_> {
    fn enter(set: &EventPoll) -> BusyPollerCount<'_> {
        set.busy_pollers.fetch_add(1, Ordering::Relaxed);
        BusyPollerCount(set)
    }
}

impl Drop for BusyPollerCount<'_> {
    fn drop(&mut self) {
        self.0.busy_pollers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        self.set.close();
    }
}
