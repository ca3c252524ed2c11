//! The receiving end of a UDP socket: where the pass over a queue leaves datagrams and errors, and where
//! receivers find them. It knows nothing of sending, of its binding or of the host.

use super::{
    Groups,
    buffer::{Buffer, Meta},
    options::Options,
};
use crate::{
    host::DeliveryHook,
    inet::{Datagram, SocketError, UdpEndpoint},
    ledger::{CLOSE, ESTABLISHED, Place, Standing},
    napi::{Context, Driver, NapiId, Pass, Waiter, WakeList},
    socket::{
        readiness::{Events, WaitQueue, Watch, tell},
        source::Source,
        waiting::{Bed, Followed, Something, Waiting},
    },
    sync::lock,
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

/// What a socket has counted: how its datagrams found their way in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketStats {
    /// Datagrams found by the socket's own busy poll.
    pub own_polls: u64,
    /// Datagrams delivered by another thread's or socket's busy poll.
    pub other_polls: u64,
    /// Datagrams delivered by the interrupt's side.
    pub interrupts: u64,
    /// Datagrams that came through the kernel (fragments, loopback, other interfaces).
    pub kernel: u64,
    /// Datagrams dropped because the receive buffer was full.
    pub drops: u64,
}

/// The receiving end.
pub(super) struct Endpoint {
    pub(super) options: Options,
    pub(super) waiting: Waiting,
    groups: RwLock<Groups>,
    hook: Option<DeliveryHook>,
    /// Datagrams that went past the queue, see [`find`](super::find).
    direct: AtomicU64,
    /// Not zero if a receive would return at once. Written under the lock of `rx`, read without.
    attention: AtomicU64,
    rx: Mutex<Receive>,
    /// What a send must look at first, of [`SHUT`] and [`ERROR`]. Written under the lock of `rx`.
    sending: AtomicU32,
    connected: AtomicBool,
    closed: AtomicBool,
}

/// Shut down for writing.
const SHUT: u32 = 1;
/// An error is pending.
const ERROR: u32 = 2;

#[derive(Debug, Default)]
struct Receive {
    buffer: Buffer,
    wait: WaitQueue,
    error: Option<i32>,
    shut: bool,
    followed: Followed,
    stats: SocketStats,
    /// Its line in the host's ledger, and whether it is connected.
    place: Option<(Place, u8)>,
}

impl Receive {
    /// Keeps the ledger, if there is one.
    #[inline]
    fn note(&self) {
        if let Some((place, state)) = &self.place {
            let (unread, napi) = (self.buffer.bytes(), self.followed.napi());
            place.note(&Standing { state: *state, unread, napi, ..Standing::default() });
        }
    }

    fn attention(&self) -> u64 {
        self.buffer.len() as u64 + u64::from(self.error.is_some()) + u64::from(self.shut)
    }

    /// A receive would return at once for another reason than an error, of which poll tells by itself (`datagram_poll`).
    fn is_readable(&self) -> bool {
        self.buffer.len() > 0 || self.shut
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("options", &self.options).field("rx", &self.rx).finish()
    }
}

impl UdpEndpoint for Endpoint {
    #[inline]
    fn datagram(&self, datagram: &Datagram<'_>, pass: &mut Pass<'_>) -> bool {
        if let Some(hook) = &self.hook {
            hook();
        }
        let meta = Meta {
            len: datagram.payload.len() as u32,
            napi: pass.napi,
            from: datagram.from,
            to: datagram.to,
            ttl: datagram.ttl,
            tos: datagram.tos,
            arrived: pass.now,
        };
        if !self.has_attention() && pass.put(self.poller(), datagram.payload, &meta) {
            self.direct.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let limit = self.options.receive_buffer.load(Ordering::Relaxed) as usize;
        let mut rx = lock(&self.rx);
        // It came too late by a moment, and goes the way of what was queued.
        if self.closed.load(Ordering::Relaxed) {
            return true;
        }
        if !rx.buffer.push(meta, datagram.payload, limit) {
            rx.stats.drops += 1;
            return false;
        }
        match pass.driver {
            Driver::BusyPoll(poller) if poller == self.poller() => rx.stats.own_polls += 1,
            Driver::BusyPoll(_) => rx.stats.other_polls += 1,
            Driver::Interrupt => rx.stats.interrupts += 1,
            Driver::Kernel => rx.stats.kernel += 1,
        }
        rx.followed.follow(pass.napi);
        rx.note();
        self.attention.store(rx.attention(), Ordering::Release);
        let sleeper = rx.wait.next_sleeper();
        let watchers = rx.wait.watchers();
        drop(rx);
        if let Some(sleeper) = sleeper {
            pass.wake.push(sleeper);
        }
        tell(watchers.as_ref(), Events::READABLE, pass.napi, &mut pass.wake);
        true
    }

    fn hears(&self, group: IpAddr, interface: u32, source: IpAddr) -> bool {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.hears(group, interface, source)
    }

    fn error(&self, error: SocketError, _remote: SocketAddr, pass: &mut Pass<'_>) {
        // Who sends to many is not told that one is missing (`__udp4_lib_err`, without IP_RECVERR).
        let told = error.hard || error.errno == libc::EMSGSIZE && self.options.discover().is_told();
        if !told || !self.connected.load(Ordering::Relaxed) {
            return;
        }
        self.fail(error.errno, &mut pass.wake);
    }
}

impl Endpoint {
    pub(super) fn new(busy_read: u32, hook: Option<DeliveryHook>) -> Endpoint {
        Endpoint {
            options: Options::new(),
            waiting: Waiting::new(busy_read),
            groups: RwLock::default(),
            hook,
            direct: AtomicU64::new(0),
            attention: AtomicU64::new(0),
            rx: Mutex::default(),
            sending: AtomicU32::new(0),
            connected: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn groups(&self) -> Groups {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_groups(&self, groups: Groups) {
        *self.groups.write().unwrap_or_else(PoisonError::into_inner) = groups;
    }

    /// Whether a receive would return at once.
    #[inline]
    pub(super) fn has_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire) != 0
    }

    /// Changes the receive state and tells everybody.
    fn change(&self, wake: &mut WakeList, events: Events, change: impl FnOnce(&mut Receive)) {
        let mut rx = lock(&self.rx);
        change(&mut rx);
        self.attention.store(rx.attention(), Ordering::Release);
        rx.wait.drain_sleepers().for_each(|sleeper| wake.push(sleeper));
        let (watchers, napi) = (rx.wait.watchers(), rx.followed.napi());
        drop(rx);
        tell(watchers.as_ref(), events, napi, wake);
    }

    /// An error is pending from now on, and everybody is told.
    fn fail(&self, errno: i32, wake: &mut WakeList) {
        self.change(wake, Events::ERROR, |rx| {
            rx.error = Some(errno);
            self.sending.fetch_or(ERROR, Ordering::Release);
        });
    }

    /// An error that was taken is pending again.
    pub(super) fn put_back_error(&self, errno: i32) {
        let mut wake = WakeList::default();
        self.fail(errno, &mut wake);
        wake.wake_all();
    }

    /// What there is without waiting: the pending error, else `take` a datagram, else the end.
    ///
    /// `None` if there is nothing.
    pub(super) fn take<T>(
        &self,
        take: impl FnOnce(&mut Buffer) -> Option<T>,
    ) -> Option<io::Result<Option<T>>> {
        if !self.has_attention() {
            return None;
        }
        let mut rx = lock(&self.rx);
        let result = if let Some(errno) = self.take_error_of(&mut rx) {
            Err(io::Error::from_raw_os_error(errno))
        } else if let Some(taken) = take(&mut rx.buffer) {
            Ok(Some(taken))
        } else if rx.shut {
            return Some(Ok(None));
        } else {
            return None;
        };
        rx.note();
        self.attention.store(rx.attention(), Ordering::Release);
        // A sleeper may have been woken for a datagram that someone else then took, and others for one each:
        // who leaves data behind passes the word on.
        let next = if rx.buffer.len() > 0 { rx.wait.next_sleeper() } else { None };
        drop(rx);
        if let Some(next) = next {
            next.wake();
        }
        Some(result)
    }

    /// The pending error, cleared.
    pub(super) fn take_error(&self) -> Option<i32> {
        let mut rx = lock(&self.rx);
        let error = self.take_error_of(&mut rx);
        self.attention.store(rx.attention(), Ordering::Release);
        error
    }

    #[inline]
    fn take_error_of(&self, rx: &mut Receive) -> Option<i32> {
        let error = rx.error.take();
        if error.is_some() {
            self.sending.fetch_and(!ERROR, Ordering::Release);
        }
        error
    }

    /// Why a send fails before it begins: the pending error, which it takes, or EPIPE.
    #[inline]
    pub(super) fn may_send(&self) -> Result<(), i32> {
        match self.sending.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => self.take_error().map_or_else(|| self.check_open(), Err),
        }
    }

    fn check_open(&self) -> Result<(), i32> {
        if self.is_shut_for_writing() { Err(libc::EPIPE) } else { Ok(()) }
    }

    /// Whether it has a peer: only then is it told what becomes of its datagrams.
    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// It stands in the host's ledger from now on; `connected`: with a peer.
    pub(super) fn enlist(&self, place: Option<Place>, connected: bool) {
        let state = if connected { ESTABLISHED } else { CLOSE };
        let mut rx = lock(&self.rx);
        rx.place = place.map(|place| (place, state));
        rx.note();
    }

    /// Ends receiving, sending or both, and tells whoever waits.
    pub(super) fn shut(&self, reading: bool, writing: bool) {
        let mut wake = WakeList::default();
        self.change(&mut wake, Events::READABLE | Events::READ_HANGUP | Events::HANGUP, |rx| {
            rx.shut |= reading;
            if writing {
                self.sending.fetch_or(SHUT, Ordering::Release);
            }
        });
        wake.wake_all();
    }

    fn is_shut_for_writing(&self) -> bool {
        self.sending.load(Ordering::Acquire) & SHUT != 0
    }

    /// The end: nothing more comes in, who watches forgets it, the memory is given back.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut rx = lock(&self.rx);
        rx.shut = true;
        rx.buffer.clear();
        rx.place = None;
        rx.followed.forget();
        let watchers = rx.wait.forget_watchers();
        drop(rx);
        for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
            watch.closed();
        }
    }

    pub(super) fn stats(&self) -> SocketStats {
        let mut stats = lock(&self.rx).stats;
        stats.own_polls += self.direct.load(Ordering::Relaxed);
        stats
    }

    /// How many datagrams wait, and the size of the first.
    pub(super) fn queued(&self) -> (usize, usize) {
        let rx = lock(&self.rx);
        (rx.buffer.len(), rx.buffer.front().map_or(0, |meta| meta.len as usize))
    }
}

impl Bed for Endpoint {
    #[inline]
    fn is_ready(&self) -> bool {
        self.has_attention()
    }

    #[inline]
    fn poller(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    #[inline]
    fn context(&self) -> Option<Arc<Context>> {
        lock(&self.rx).followed.context()
    }

    fn join(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, Something> {
        let mut rx = lock(&self.rx);
        if rx.attention() > 0 {
            return Err(Something);
        }
        rx.wait.sleep(waiter.clone());
        Ok(rx.followed.context())
    }

    fn leave(&self, waiter: &Arc<Waiter>) {
        let mut rx = lock(&self.rx);
        // If it had been taken off to be woken and leaves without looking, the wake-up goes to the next.
        let next = if rx.wait.leave(waiter) || rx.buffer.len() == 0 {
            None
        } else {
            rx.wait.next_sleeper()
        };
        drop(rx);
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Source for Endpoint {
    fn readiness(&self) -> Events {
        let rx = lock(&self.rx);
        let mut events = Events::WRITABLE;
        if rx.is_readable() {
            events = events | Events::READABLE;
        }
        if rx.error.is_some() {
            events = events | Events::ERROR;
        }
        if rx.shut {
            events = events | Events::READ_HANGUP;
        }
        if rx.shut && self.is_shut_for_writing() {
            events = events | Events::HANGUP;
        }
        events
    }

    fn is_ready_for(&self, interest: Events) -> bool {
        let writable = interest.has(Events::WRITABLE);
        (writable || self.has_attention()) && !self.readiness().reported(interest).is_empty()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn napi(&self) -> Option<NapiId> {
        lock(&self.rx).followed.napi()
    }

    fn context(&self) -> Option<Arc<Context>> {
        Bed::context(self)
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        lock(&self.rx).wait.watch(watch);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        lock(&self.rx).wait.unwatch(watch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    /// One that was woken for a datagram may find that somebody else has it, and sleep again.
    #[test]
    fn who_leaves_a_datagram_behind_wakes_the_next_sleeper_and_no_other_does() {
        let endpoint = Endpoint::new(0, None);
        let at = SocketAddr::from(([10, 0, 0, 1], 7));
        let datagram = Datagram { from: at, to: at, ttl: 64, tos: 0, payload: b"x" };
        let mut pass = Pass::new(None, Instant::ZERO, Driver::Kernel);
        for _ in 0..2 {
            assert!(endpoint.datagram(&datagram, &mut pass));
        }
        let sleepers = [(); 2].map(|()| Arc::new(Waiter::new().unwrap()));
        for sleeper in &sleepers {
            sleeper.start();
            lock(&endpoint.rx).wait.sleep(sleeper.clone());
        }
        let woken = || sleepers.each_ref().map(|sleeper| sleeper.is_woken());
        let take = || endpoint.take(|buffer| buffer.pop(&mut [0; 1])).unwrap().unwrap().unwrap();
        take();
        assert_eq!(woken(), [true, false]);
        take();
        assert_eq!(woken(), [true, false]);
    }
}
