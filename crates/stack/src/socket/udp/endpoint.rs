//! The receive side of a UDP socket: passes put datagrams and errors here, receivers take them. It does not depend on
//! sending, the binding or the host.

use super::{Groups, buffer::Buffer, options::Options};
use crate::{
    host::DeliveryHook,
    inet::{Context, Datagram, Meta, Pass, SocketError, UdpEndpoint},
    ledger::{CLOSE, DirectCount, ESTABLISHED, LedgerSlot, SocketCounts, SocketState},
    napi::{NapiId, PolledBy, Waiter, WakeList},
    socket::{
        readiness::{Events, WaitQueue, Watch, notify_watchers},
        source::Source,
        task_wait::{Direction, TaskChannel, prepare},
        waiting::{AlreadyReady, KnownNapi, LastNapi, WaitChannel, WaitOptions},
    },
    sync::lock,
    time::Instant,
    wire::{Data, Rest},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

/// The counters of a socket, by the kind of pass that delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketStats {
    /// Datagrams delivered by the socket's own busy poll.
    pub own_polls: u64,
    /// Datagrams delivered by another thread's or socket's busy poll.
    pub other_polls: u64,
    /// Datagrams delivered by the interrupt thread.
    pub interrupts: u64,
    /// Datagrams that came through the kernel (fragments out of order, loopback, other interfaces).
    pub kernel: u64,
    /// Datagrams dropped because the receive buffer was full.
    pub drops: u64,
}

impl SocketStats {
    /// How many datagrams were queued, of those that an endpoint counts itself.
    fn queued(&self) -> u32 {
        [self.own_polls, self.other_polls, self.interrupts, self.kernel]
            .iter()
            .fold(0, |sum: u32, count| sum.wrapping_add(*count as u32))
    }
}

/// The receive side.
pub(super) struct Endpoint {
    pub(super) options: Options,
    pub(super) waiting: WaitOptions,
    groups: RwLock<Groups>,
    hook: Option<DeliveryHook>,
    /// The number of direct deliveries, see [`direct_delivery`](super::direct_delivery).
    direct: DirectCount,
    /// Not zero if a receive would return at once. Written under the lock of `rx`, read without it.
    pending: AtomicU64,
    rx: Mutex<Receive>,
    /// What of its `last_napi` is read without its lock.
    known_napi: KnownNapi,
    /// The flags that a send must check first: [`SHUT`], [`ERROR`] and [`LEFT`]. Written under the lock of `rx`.
    sending: AtomicU32,
    connected: AtomicBool,
    closed: AtomicBool,
    /// See [`UdpSocket::set_looks`](super::UdpSocket::set_looks).
    pub(super) looks: AtomicBool,
}

/// Shut down for writing.
const SHUT: u32 = 1;
/// An error is pending.
const ERROR: u32 = 2;
/// It stays: another socket has taken the place of this one.
const LEFT: u32 = 4;

#[derive(Debug, Default)]
struct Receive {
    buffer: Buffer,
    wait: WaitQueue,
    error: Option<i32>,
    shut: bool,
    last_napi: LastNapi,
    stats: SocketStats,
    /// Its entry in the host's ledger, and its state there.
    ledger_entry: Option<(LedgerSlot, u8)>,
}

impl Receive {
    /// Updates the entry in the ledger, if there is one.
    #[inline]
    fn update_ledger(&self) {
        if let Some((ledger_entry, state)) = &self.ledger_entry {
            let (unread, napi) = (self.buffer.bytes(), self.last_napi.napi());
            let SocketStats { own_polls, other_polls, interrupts, kernel, drops } = self.stats;
            ledger_entry.note(&SocketState {
                state: *state,
                unread,
                napi,
                counts: SocketCounts {
                    own_polls,
                    other_polls,
                    interrupts,
                    kernel,
                    drops,
                    ..SocketCounts::default()
                },
                ..SocketState::default()
            });
        }
    }

    fn pending(&self) -> u64 {
        self.buffer.len() as u64 + u64::from(self.error.is_some()) + u64::from(self.shut)
    }

    /// Whether a receive would return a datagram or the end. An error alone does not make a socket readable
    /// (`datagram_poll`).
    fn is_readable(&self) -> bool {
        self.buffer.len() > 0 || self.shut
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("options", &self.options).field("rx", &self.rx).finish()
    }
}

impl Endpoint {
    /// A datagram has arrived, and `rest` of its data follows its payload.
    #[inline(always)]
    fn arrived(&self, datagram: &Datagram<'_>, rest: Rest<'_>, pass: &mut Pass<'_>) -> bool {
        let data = Data { first: datagram.payload, rest };
        if let Some(hook) = &self.hook {
            hook();
        }
        let meta = Meta {
            len: data.len() as u32,
            napi: pass.napi,
            from: datagram.from,
            to: datagram.to,
            ttl: datagram.ttl,
            tos: datagram.tos,
            arrived: pass.now,
        };
        if !self.is_pending()
            && match rest.is_empty() {
                true => pass.deliver_direct(self.poller_id(), datagram.payload, Some(&meta)),
                false => pass.deliver_direct_pieces(self.poller_id(), &data, Some(&meta)),
            }
        {
            self.direct.count(pass);
            return true;
        }
        let limit = self.options.receive_buffer.load(Ordering::Relaxed) as usize;
        let mut rx = lock(&self.rx);
        // The socket was closed just now: the datagram is discarded like the queued ones.
        if self.closed.load(Ordering::Relaxed) {
            return true;
        }
        let queued = match rest.is_empty() {
            true => rx.buffer.push(meta, datagram.payload, limit),
            false => rx.buffer.push_pieces(meta, &data, limit),
        };
        if !queued {
            rx.stats.drops += 1;
            rx.update_ledger();
            return false;
        }
        match pass.polled_by {
            PolledBy::BusyPoll(poller) if poller == self.poller_id() => rx.stats.own_polls += 1,
            PolledBy::BusyPoll(_) => rx.stats.other_polls += 1,
            PolledBy::Interrupt => rx.stats.interrupts += 1,
            PolledBy::Kernel => rx.stats.kernel += 1,
        }
        rx.last_napi.mark(pass.napi);
        pass.napi.into_iter().for_each(|napi| self.known_napi.mark(napi));
        rx.update_ledger();
        if let Some((ledger_entry, _)) = &rx.ledger_entry
            && ledger_entry.is_traced()
        {
            ledger_entry.trace_queued(rx.stats.queued(), pass);
        }
        self.pending.store(rx.pending(), Ordering::Release);
        let sleeper = rx.wait.pop_sleeper();
        let watchers = rx.wait.watchers();
        drop(rx);
        if let Some(sleeper) = sleeper {
            pass.wake.push(sleeper);
        }
        notify_watchers(watchers.as_ref(), Events::READABLE, pass.napi, &mut pass.wake);
        true
    }
}

impl UdpEndpoint for Endpoint {
    #[inline]
    fn datagram(&self, datagram: &Datagram<'_>, pass: &mut Pass<'_>) -> bool {
        self.arrived(datagram, Rest::NONE, pass)
    }

    fn datagram_in_pieces(
        &self,
        datagram: &Datagram<'_>,
        rest: Rest<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        self.arrived(datagram, rest, pass)
    }

    fn accepts_group(&self, group: IpAddr, interface: u32, source: IpAddr) -> bool {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.accepts_group(group, interface, source)
    }

    fn error(&self, error: SocketError, _remote: SocketAddr, pass: &mut Pass<'_>) {
        // An unconnected socket gets no ICMP errors (`__udp4_lib_err`, without IP_RECVERR).
        let reported = error.hard
            || error.errno == libc::EMSGSIZE && self.options.discover().reports_too_big();
        if !reported || !self.connected.load(Ordering::Relaxed) {
            return;
        }
        self.set_error(error.errno, &mut pass.wake);
    }
}

impl Endpoint {
    pub(super) fn new(busy_read: u32, hook: Option<DeliveryHook>) -> Endpoint {
        Endpoint {
            options: Options::new(),
            waiting: WaitOptions::new(busy_read),
            groups: RwLock::default(),
            hook,
            direct: DirectCount::default(),
            pending: AtomicU64::new(0),
            rx: Mutex::default(),
            known_napi: KnownNapi::default(),
            sending: AtomicU32::new(0),
            connected: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            looks: AtomicBool::new(true),
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
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Changes the receive state, wakes all sleepers and notifies all watchers.
    fn change(&self, wake: &mut WakeList, events: Events, change: impl FnOnce(&mut Receive)) {
        let mut rx = lock(&self.rx);
        change(&mut rx);
        self.pending.store(rx.pending(), Ordering::Release);
        rx.wait.drain_sleepers().for_each(|sleeper| wake.push(sleeper));
        let (watchers, napi) = (rx.wait.watchers(), rx.last_napi.napi());
        drop(rx);
        notify_watchers(watchers.as_ref(), events, napi, wake);
    }

    /// Makes an error pending, wakes all sleepers and notifies all watchers.
    fn set_error(&self, errno: i32, wake: &mut WakeList) {
        self.change(wake, Events::ERROR, |rx| {
            rx.error = Some(errno);
            self.sending.fetch_or(ERROR, Ordering::Release);
        });
    }

    /// Makes an error that was taken pending again.
    pub(super) fn restore_error(&self, errno: i32) {
        let mut wake = WakeList::default();
        self.set_error(errno, &mut wake);
        wake.wake_all();
    }

    /// Receives without waiting: the pending error; else what `take` takes from the buffer; else the end (`Ok(None)`).
    ///
    /// `None` if there is nothing to receive.
    pub(super) fn take<T>(
        &self,
        take: impl FnOnce(&mut Buffer) -> Option<T>,
    ) -> Option<io::Result<Option<T>>> {
        if !self.is_pending() {
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
        rx.update_ledger();
        if let Some((ledger_entry, _)) = &rx.ledger_entry
            && ledger_entry.is_traced()
        {
            ledger_entry.trace_taken(rx.stats.queued().wrapping_sub(rx.buffer.len() as u32));
        }
        self.pending.store(rx.pending(), Ordering::Release);
        // Another thread may take the datagram that a sleeper was woken for. So a receiver that leaves datagrams
        // behind wakes the next sleeper.
        let next = if rx.buffer.len() > 0 { rx.wait.pop_sleeper() } else { None };
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
        self.pending.store(rx.pending(), Ordering::Release);
        error
    }

    /// Another socket takes its place: every call returns `errno` from now on.
    pub(super) fn leave(&self, errno: i32) {
        let mut wake = WakeList::default();
        self.change(&mut wake, Events::ERROR, |rx| {
            rx.error = Some(errno);
            self.sending.fetch_or(ERROR | LEFT, Ordering::Release);
        });
        wake.wake_all();
    }

    /// Moves the oldest datagram into `payload`.
    #[cold]
    pub(super) fn take_out(&self, payload: &mut Vec<u8>) -> Option<Meta> {
        let mut rx = lock(&self.rx);
        payload.resize(rx.buffer.front()?.len as usize, 0);
        let taken = rx.buffer.pop(payload).map(|(meta, _)| meta);
        self.pending.store(rx.pending(), Ordering::Release);
        taken
    }

    #[inline]
    fn take_error_of(&self, rx: &mut Receive) -> Option<i32> {
        if self.sending.load(Ordering::Relaxed) & LEFT != 0 {
            return rx.error;
        }
        let error = rx.error.take();
        if error.is_some() {
            self.sending.fetch_and(!ERROR, Ordering::Release);
        }
        error
    }

    /// Whether a send may begin. The error is the pending one, which is cleared, or EPIPE.
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

    /// A call that began then has sent datagrams.
    #[inline]
    pub(super) fn sent(&self, began: Instant) {
        self.direct.sent(began);
    }

    /// Records whether the socket has a peer: only then does it get ICMP errors.
    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// Sets its entry in the host's ledger.
    pub(super) fn set_ledger_entry(&self, ledger_entry: Option<LedgerSlot>, connected: bool) {
        let state = if connected { ESTABLISHED } else { CLOSE };
        let mut rx = lock(&self.rx);
        self.direct.publish(ledger_entry.as_ref());
        rx.ledger_entry = ledger_entry.map(|ledger_entry| (ledger_entry, state));
        rx.update_ledger();
    }

    /// Ends receiving, sending or both, wakes all sleepers and notifies all watchers.
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

    /// Closes it: discards datagrams, tells the watchers and removes them, frees the memory.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut rx = lock(&self.rx);
        rx.shut = true;
        rx.buffer.clear();
        self.direct.publish(None);
        rx.ledger_entry = None;
        rx.last_napi.forget();
        let watchers = rx.wait.take_watchers();
        drop(rx);
        for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
            watch.closed();
        }
    }

    pub(super) fn stats(&self) -> SocketStats {
        let mut stats = lock(&self.rx).stats;
        stats.own_polls += self.direct.get();
        stats
    }

    /// The number of datagrams in the buffer, and the size of the first.
    pub(super) fn queued(&self) -> (usize, usize) {
        let rx = lock(&self.rx);
        (rx.buffer.len(), rx.buffer.front().map_or(0, |meta| meta.len as usize))
    }
}

impl WaitChannel for Endpoint {
    #[inline]
    fn is_ready(&self) -> bool {
        self.is_pending()
    }

    #[inline]
    fn poller_id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    #[inline]
    fn context(&self) -> Option<Arc<Context>> {
        let context = lock(&self.rx).last_napi.context();
        self.known_napi.keep(context.as_ref());
        context
    }

    #[inline]
    fn known_context(&self) -> Option<&Arc<Context>> {
        self.known_napi.context()
    }

    fn prepare_to_wait(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, AlreadyReady> {
        let mut rx = lock(&self.rx);
        if rx.pending() > 0 {
            return Err(AlreadyReady);
        }
        rx.wait.add_sleeper(waiter.clone());
        Ok(rx.last_napi.context())
    }

    fn finish_wait(&self, waiter: &Arc<Waiter>) {
        let mut rx = lock(&self.rx);
        // If a wake-up had removed the waiter, which leaves without a receive, the wake-up goes to the next.
        let next = if rx.wait.remove_sleeper(waiter) || rx.buffer.len() == 0 {
            None
        } else {
            rx.wait.pop_sleeper()
        };
        drop(rx);
        if let Some(next) = next {
            next.wake();
        }
    }
}

/// A send never waits for an event: see `wait_for_room`.
impl TaskChannel for Endpoint {
    fn prepare_task(
        &self,
        direction: Direction,
        waiter: &Arc<Waiter>,
    ) -> Result<Option<Arc<Context>>, AlreadyReady> {
        match direction {
            Direction::Read => prepare(self, &self.waiting, waiter),
            Direction::Write => Err(AlreadyReady),
        }
    }

    fn finish_task(&self, direction: Direction, waiter: &Arc<Waiter>) {
        if direction == Direction::Read {
            self.finish_wait(waiter);
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
        (writable || self.is_pending()) && !self.readiness().reported(interest).is_empty()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn napi(&self) -> Option<NapiId> {
        lock(&self.rx).last_napi.napi()
    }

    fn context(&self) -> Option<Arc<Context>> {
        WaitChannel::context(self)
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        lock(&self.rx).wait.add_watcher(watch);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        lock(&self.rx).wait.remove_watcher(watch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    /// A thread that was woken for a datagram may find that another thread has taken it, and sleep again.
    #[test]
    fn only_a_receiver_that_leaves_a_datagram_behind_wakes_the_next_sleeper() {
        let endpoint = Endpoint::new(0, None);
        let at = SocketAddr::from(([10, 0, 0, 1], 7));
        let datagram = Datagram { from: at, to: at, ttl: 64, tos: 0, payload: b"x" };
        let mut pass = Pass::new(None, Instant::ZERO, PolledBy::Kernel);
        for _ in 0..2 {
            assert!(endpoint.datagram(&datagram, &mut pass));
        }
        let sleepers = [(); 2].map(|()| Arc::new(Waiter::new().unwrap()));
        for sleeper in &sleepers {
            sleeper.start();
            lock(&endpoint.rx).wait.add_sleeper(sleeper.clone());
        }
        let woken = || sleepers.each_ref().map(|sleeper| sleeper.is_woken());
        let take = || endpoint.take(|buffer| buffer.pop(&mut [0; 1])).unwrap().unwrap().unwrap();
        take();
        assert_eq!(woken(), [true, false]);
        take();
        assert_eq!(woken(), [true, false]);
    }
}
