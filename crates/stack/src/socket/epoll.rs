//! `Epoll`: waiting for any of many sockets, again and again. A socket that becomes ready puts itself on
//! the ready list; a wait looks at that list only, never at all members.

use super::{
    busy::{Busy, Terms, busy_loop},
    readiness::{Events, Watch},
    source::{Socket, Source},
};
use crate::{
    Host,
    napi::{self, Context, NapiId, Poller, Waiter, Wake, WakeList},
    sync::lock,
    time,
};
use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

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
    host: Host,
    set: Arc<Set>,
}

#[derive(Debug, Default)]
struct Set {
    items: Mutex<HashMap<usize, Arc<Item>>>,
    ready: Mutex<Ready>,
    /// Items on the ready list; read without its lock.
    waiting: AtomicUsize,
    /// The contexts that members' packets come over.
    contexts: Mutex<Arc<Vec<Arc<Context>>>>,
    usecs: AtomicU32,
    budget: AtomicU32,
    prefer: AtomicBool,
}

#[derive(Debug, Default)]
struct Ready {
    items: VecDeque<Arc<Item>>,
    sleepers: VecDeque<Arc<Waiter>>,
}

/// One member.
#[derive(Debug)]
struct Item {
    me: Weak<Item>,
    set: Weak<Set>,
    source: Weak<dyn Source>,
    data: u64,
    /// What is waited for; nothing, once a one-shot member was reported.
    interest: AtomicU32,
    /// On the ready list.
    queued: AtomicBool,
    napi: AtomicU32,
}

impl Item {
    fn set_interest(&self, events: Events) {
        let always = Events::ERROR | Events::HANGUP;
        self.interest.store((events | always).0, Ordering::Release);
    }

    /// Takes the one shot. False if another wait was faster, or the member has been modified since and queues
    /// itself again.
    fn disarm(&self, interest: Events) -> bool {
        let (old, none) = (interest.0, Events::default().0);
        self.interest.compare_exchange(old, none, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Watch for Item {
    fn notify(&self, events: Events, napi: Option<NapiId>, wake: &mut WakeList) {
        let Some(set) = self.set.upgrade() else { return };
        if let Some(napi) = napi
            && self.napi.swap(napi.get(), Ordering::Relaxed) != napi.get()
        {
            set.learn(napi);
        }
        let interest = Events(self.interest.load(Ordering::Acquire));
        if interest.is_empty() || events.reported(interest).is_empty() {
            return;
        }
        if let Some(item) = self.me.upgrade()
            && let Some(sleeper) = set.enqueue(item)
        {
            wake.push(sleeper);
        }
    }

    fn closed(&self) {
        // A one-shot member that was reported is on no list where a wait would find it closed.
        if let Some(set) = self.set.upgrade() {
            lock(&set.items).remove(&key(&self.source));
        }
    }
}

impl Set {
    /// Puts an item on the ready list. Returns a sleeper, taken off its queue, to wake for it.
    fn enqueue(&self, item: Arc<Item>) -> Option<Arc<Waiter>> {
        if item.queued.swap(true, Ordering::AcqRel) {
            return None;
        }
        let mut ready = lock(&self.ready);
        ready.items.push_back(item);
        self.waiting.store(ready.items.len(), Ordering::Release);
        ready.sleepers.pop_front()
    }

    fn learn(&self, napi: NapiId) {
        let Some(context) = napi::by_id(napi) else { return };
        let mut contexts = lock(&self.contexts);
        if !contexts.iter().any(|known| known.id() == napi) {
            let live = contexts.iter().filter(|known| !known.is_gone()).cloned();
            *contexts = Arc::new(live.chain([context]).collect());
        }
    }

    fn forget_the_gone(&self) {
        let mut contexts = lock(&self.contexts);
        let live = contexts.iter().filter(|known| !known.is_gone()).cloned();
        *contexts = Arc::new(live.collect());
    }

    fn contexts(&self) -> Arc<Vec<Arc<Context>>> {
        lock(&self.contexts).clone()
    }

    fn is_ready(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Moves up to `most` events from the ready list to `events`.
    fn collect(&self, events: &mut Vec<EpollEvent>, most: usize) {
        if !self.is_ready() {
            return;
        }
        let turns = lock(&self.ready).items.len();
        for _ in 0..turns {
            if events.len() == most {
                // We were woken for these too, and leave them to another.
                if let Some(sleeper) = lock(&self.ready).sleepers.pop_front() {
                    sleeper.wake();
                }
                return;
            }
            let item = {
                let mut ready = lock(&self.ready);
                let item = ready.items.pop_front();
                self.waiting.store(ready.items.len(), Ordering::Release);
                item
            };
            let Some(item) = item else { return };
            // Off the list before we look: what comes after the look puts it back.
            item.queued.store(false, Ordering::SeqCst);
            let Some(source) = item.source.upgrade().filter(|source| !source.is_closed()) else {
                lock(&self.items).remove(&key(&item.source));
                continue;
            };
            let interest = Events(item.interest.load(Ordering::Acquire));
            let found = source.readiness().reported(interest);
            if interest.is_empty() || found.is_empty() {
                continue;
            }
            let event = EpollEvent { events: found, data: item.data };
            if interest.has(Events::ONE_SHOT) {
                if !item.disarm(interest) {
                    continue;
                }
            } else if !interest.has(Events::EDGE) {
                // Level-triggered members stay on the list for as long as they are ready.
                if let Some(sleeper) = self.enqueue(item) {
                    sleeper.wake();
                }
            }
            events.push(event);
        }
    }
}

impl Epoll {
    /// An empty set.
    pub fn new(host: &Host) -> Epoll {
        Epoll { host: host.clone(), set: Arc::default() }
    }

    /// Adds `socket`; `data` comes back with its events. Events: [`Events::READABLE`] and
    /// [`Events::WRITABLE`], with [`Events::EDGE`] and [`Events::ONE_SHOT`].
    ///
    /// # Errors
    /// EEXIST if it is a member.
    pub fn add(&self, socket: &dyn Socket, events: Events, data: u64) -> io::Result<()> {
        let source = socket.shared_source();
        let key = key(&Arc::downgrade(&source));
        let item = Arc::new_cyclic(|me| Item {
            me: me.clone(),
            set: Arc::downgrade(&self.set),
            source: Arc::downgrade(&source),
            data,
            interest: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            napi: AtomicU32::new(0),
        });
        item.set_interest(events);
        let mut items = lock(&self.set.items);
        if items.get(&key).is_some_and(|known| known.source.strong_count() > 0) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        items.insert(key, item.clone());
        drop(items);
        source.watch(item.clone());
        if let Some(napi) = source.napi() {
            item.napi.store(napi.get(), Ordering::Relaxed);
            self.set.learn(napi);
        }
        self.look_at(&item, &*source);
        Ok(())
    }

    /// Changes what `socket` is waited for; arms a one-shot member anew.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn modify(&self, socket: &dyn Socket, events: Events) -> io::Result<()> {
        let item = self.member(socket)?;
        item.set_interest(events);
        self.look_at(&item, socket.source());
        Ok(())
    }

    /// Removes `socket`. A socket that is dropped leaves by itself.
    ///
    /// # Errors
    /// ENOENT if it is not a member.
    pub fn remove(&self, socket: &dyn Socket) -> io::Result<()> {
        let item = self.member(socket)?;
        item.interest.store(0, Ordering::Release);
        lock(&self.set.items).remove(&key(&item.source));
        let watch: Arc<dyn Watch> = item;
        socket.source().unwatch(&watch);
        Ok(())
    }

    fn member(&self, socket: &dyn Socket) -> io::Result<Arc<Item>> {
        let key = key(&Arc::downgrade(&socket.shared_source()));
        let item = lock(&self.set.items).get(&key).cloned();
        item.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Queues a member that is ready already.
    fn look_at(&self, item: &Arc<Item>, source: &dyn Source) {
        let interest = Events(item.interest.load(Ordering::Acquire));
        if !source.readiness().reported(interest).is_empty()
            && let Some(sleeper) = self.set.enqueue(item.clone())
        {
            sleeper.wake();
        }
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
    /// `Interrupted` by a signal, EINVAL for no room, or no descriptor left for the thread's eventfd.
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
        self.set.collect(events, most);
        if !events.is_empty() {
            return Ok(events.len());
        }
        let deadline = timeout.map(|timeout| time::now() + timeout);
        loop {
            self.busy_poll(deadline);
            self.set.collect(events, most);
            if !events.is_empty() || timeout == Some(Duration::ZERO) {
                return Ok(events.len());
            }
            let left = deadline.map(|deadline| deadline - time::now());
            let wake = self.sleep(left)?;
            self.set.collect(events, most);
            match wake {
                _ if !events.is_empty() => return Ok(events.len()),
                Wake::Timeout => return Ok(0),
                Wake::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
                Wake::Woken | Wake::Readable => {}
            }
        }
    }

    fn busy_poll(&self, deadline: Option<time::Instant>) {
        let params = self.params();
        let micros = match params.busy_poll_usecs {
            0 => self.host.busy_poll(),
            own => own,
        };
        if micros == 0 && !params.prefer_busy_poll {
            return;
        }
        let terms = Terms {
            span: Duration::from_micros(micros.into()),
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
        let contexts = self.set.contexts();
        if !contexts.is_empty()
            && busy_loop(&contexts, &terms, &mut poller, || self.set.is_ready()) == Busy::Gone
        {
            self.set.forget_the_gone();
        }
    }

    fn sleep(&self, timeout: Option<Duration>) -> io::Result<Wake> {
        let waiter = Waiter::of_this_thread()?;
        waiter.start();
        {
            let mut ready = lock(&self.set.ready);
            if !ready.items.is_empty() {
                return Ok(Wake::Woken);
            }
            ready.sleepers.push_back(waiter.clone());
        }
        let wake = match self.set.contexts().first() {
            Some(context) => context.sleep(&waiter, timeout),
            None => waiter.sleep(timeout),
        };
        let mut ready = lock(&self.set.ready);
        ready.sleepers.retain(|sleeper| !Arc::ptr_eq(sleeper, &waiter));
        Ok(wake)
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for item in std::mem::take(&mut *lock(&self.set.items)).into_values() {
            if let Some(source) = item.source.upgrade() {
                let watch: Arc<dyn Watch> = item;
                source.unwatch(&watch);
            }
        }
    }
}

/// What a member is found by.
fn key(source: &Weak<dyn Source>) -> usize {
    source.as_ptr().addr()
}
