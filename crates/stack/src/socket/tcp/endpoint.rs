//! The socket's side of a connection or a listener: its readiness, in one atomic that is read without a lock, and its
//! wait queues. The protocol layer notifies it under the lock of the flow or listener, so it calls nothing of TCP.

use super::owner;
use crate::{
    inet::{
        Context, Pass,
        tcp::{Ready, TcpEndpoint},
    },
    napi::{NapiId, PolledBy, Waiter},
    socket::{
        readiness::{Events, WaitQueue, Watch, notify_watchers},
        task_wait::{Direction, TaskChannel, prepare},
        udp::SocketStats,
        waiting::{AlreadyReady, KnownNapi, LastNapi, WaitChannel, WaitOptions},
    },
    sync::lock,
    wire::Data,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

/// The readiness and the wait queues of a TCP socket.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) waiting: WaitOptions,
    /// Whether an event wakes one reader only: a connection to accept does, data wakes all.
    wakes_one: bool,
    /// The readiness when last read, as [`Ready`] in the lowest byte; above it the number of events.
    state: AtomicU64,
    /// The process, group or thread that gets SIGURG.
    pub(super) owner: owner::Word,
    /// An acknowledgment waits to go with the receiver's answer.
    ack_deferred: AtomicBool,
    /// Bytes sent since a sender last polled the queue.
    sent_since_poll: AtomicU32,
    /// What of `last_napi` is read without its lock.
    known_napi: KnownNapi,
    /// The number of sleepers and watchers: an event takes no lock if there are none.
    waiters: AtomicUsize,
    waits: Mutex<WaitQueues>,
    /// Events by the driver of the pass: own polls, other polls, interrupts.
    by_driver: [AtomicU64; 3],
}

#[derive(Debug, Default)]
struct WaitQueues {
    /// Sleepers that receive or accept, and all watchers.
    reading: WaitQueue,
    /// Sleepers that send or connect.
    writing: WaitQueue,
    last_napi: LastNapi,
}

/// The state of an endpoint as it was read once.
#[derive(Clone, Copy)]
pub(super) struct Snapshot(u64);

/// A sender that always finds room polls the queue after this many bytes.
const POLL_AFTER_BYTES: u32 = 64 * 1024;

const READY: u64 = 0xff;
const EVENT: u64 = 0x100;

impl Snapshot {
    /// The readiness at that time.
    #[inline]
    pub(super) fn ready(self) -> Ready {
        Ready((self.0 & READY) as u8)
    }
}

impl Endpoint {
    /// The endpoint of a stream.
    pub(super) fn new(waiting: WaitOptions) -> Endpoint {
        Endpoint {
            waiting,
            wakes_one: false,
            state: AtomicU64::new(0),
            owner: owner::Word::default(),
            ack_deferred: AtomicBool::new(false),
            sent_since_poll: AtomicU32::new(0),
            known_napi: KnownNapi::default(),
            waiters: AtomicUsize::new(0),
            waits: Mutex::default(),
            by_driver: Default::default(),
        }
    }

    /// The endpoint of a listener.
    pub(super) fn of_listener(waiting: WaitOptions) -> Endpoint {
        Endpoint { wakes_one: true, ..Endpoint::new(waiting) }
    }

    /// The readiness at the last event, less what was cleared since.
    #[inline]
    pub(super) fn ready(&self) -> Ready {
        self.snapshot().ready()
    }

    /// The state now. Taken before the flow's readiness is read, so that an event in between is not lost.
    #[inline]
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot(self.state.load(Ordering::Acquire))
    }

    /// Stores the readiness that was read from the flow after `snapshot`, unless an event has come since. Returns whether
    /// none has.
    pub(super) fn set_ready(&self, snapshot: Snapshot, ready: Ready) -> bool {
        let seen = snapshot.0 & !READY | u64::from(ready.0);
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        seen == snapshot.0 || self.state.compare_exchange(snapshot.0, seen, done, failed).is_ok()
    }

    /// Clears `ready`, none of which held on the flow after `snapshot`, unless an event has come since.
    #[inline]
    pub(super) fn clear_ready(&self, snapshot: Snapshot, ready: Ready) {
        let _ = self.set_ready(snapshot, Ready((snapshot.0 & READY) as u8 & !ready.0));
    }

    /// Whether an acknowledgment waits for the receiver's answer. Clears the flag.
    #[inline]
    pub(super) fn take_deferred_ack(&self) -> bool {
        self.ack_deferred.load(Ordering::Relaxed)
            && self.ack_deferred.swap(false, Ordering::Relaxed)
    }

    /// Counts `len` bytes sent. True if the sender is to poll the queue for acknowledgments.
    #[inline]
    pub(super) fn count_sent(&self, len: usize) -> bool {
        let sent_since_poll =
            self.sent_since_poll.load(Ordering::Relaxed).saturating_add(len as u32);
        let enough = sent_since_poll >= POLL_AFTER_BYTES;
        self.sent_since_poll.store(if enough { 0 } else { sent_since_poll }, Ordering::Relaxed);
        enough
    }

    /// Whether there are sleepers or watchers.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    pub(super) fn napi(&self) -> Option<NapiId> {
        lock(&self.waits).last_napi.napi()
    }

    pub(super) fn context(&self) -> Option<Arc<Context>> {
        let context = lock(&self.waits).last_napi.context();
        self.known_napi.keep(context.as_ref());
        context
    }

    pub(super) fn watch(&self, watch: Arc<dyn Watch>) {
        let mut waits = lock(&self.waits);
        waits.reading.add_watcher(watch);
        self.update_waiters(&waits);
    }

    pub(super) fn unwatch(&self, watch: &Arc<dyn Watch>) {
        let mut waits = lock(&self.waits);
        waits.reading.remove_watcher(watch);
        self.update_waiters(&waits);
    }

    /// Tells the watchers that the socket is closed, and removes them.
    pub(super) fn close(&self) {
        let mut waits = lock(&self.waits);
        let watchers = waits.reading.take_watchers();
        self.update_waiters(&waits);
        drop(waits);
        for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
            watch.closed();
        }
    }

    /// Wakes one more reader, for the next connection to accept.
    pub(super) fn wake_next_reader(&self) {
        if self.waiters.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waits = lock(&self.waits);
        let next = waits.reading.pop_sleeper();
        self.update_waiters(&waits);
        drop(waits);
        if let Some(next) = next {
            next.wake();
        }
    }

    pub(super) fn stats(&self) -> SocketStats {
        let [own_polls, other_polls, interrupts] = self.deliveries();
        SocketStats { own_polls, other_polls, interrupts, ..SocketStats::default() }
    }

    /// The socket's id as a poller.
    #[inline]
    fn poller_id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn update_waiters(&self, waits: &WaitQueues) {
        let count = waits.reading.len() + waits.writing.len();
        self.waiters.store(count, Ordering::SeqCst);
    }

    #[inline]
    fn count_driver(&self, pass: &Pass<'_>) {
        let by = match pass.polled_by {
            PolledBy::BusyPoll(poller) if poller == self.poller_id() => 0,
            PolledBy::BusyPoll(_) => 1,
            PolledBy::Interrupt => 2,
            PolledBy::Kernel => return,
        };
        // One writer at a time, under the flow's lock.
        let count = self.by_driver[by].load(Ordering::Relaxed);
        self.by_driver[by].store(count + 1, Ordering::Relaxed);
    }

    /// The socket busy polls this context's queue from now on.
    #[cold]
    pub(super) fn mark_napi(&self, napi: NapiId) {
        let mut waits = lock(&self.waits);
        waits.last_napi.mark(Some(napi));
        self.known_napi.mark(napi);
    }

    /// Notifies sleepers and watchers of the readiness without a new event.
    pub(super) fn notify_again(&self, pass: &mut Pass<'_>) {
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.notify(Ready(0), self.ready(), None, pass);
        }
    }

    /// Wakes the sleepers and notifies the watchers that `ready` concerns.
    #[cold]
    fn notify(&self, before: Ready, ready: Ready, napi: Option<NapiId>, pass: &mut Pass<'_>) {
        let mut waits = lock(&self.waits);
        if ready.any(Ready::READABLE) {
            if self.wakes_one {
                waits.reading.pop_sleeper().into_iter().for_each(|one| pass.wake.push(one));
            } else {
                waits.reading.drain_sleepers().for_each(|one| pass.wake.push(one));
            }
        }
        if ready.any(Ready::WRITABLE) {
            waits.writing.drain_sleepers().for_each(|one| pass.wake.push(one));
        }
        let watchers = waits.reading.watchers();
        self.update_waiters(&waits);
        drop(waits);
        // More data is a new event even if there was some already. Room is one only if there was none before: `before`
        // may not know that a sender saw none, so `WRITE_SPACE` says it.
        let always = if ready.any(Ready::WRITE_SPACE) { Ready::WRITABLE } else { Ready::default() };
        let more = Ready::READABLE | Ready::URGENT;
        let new = Ready(ready.0 & (!before.0 | more.0 | always.0));
        notify_watchers(watchers.as_ref(), events(new), napi, &mut pass.wake);
    }
}

impl TcpEndpoint for Endpoint {
    #[inline]
    fn changed(&self, ready: Ready, napi: Option<NapiId>, pass: &mut Pass<'_>) {
        let mut before = self.state.load(Ordering::Relaxed);
        // A full barrier: a sleeper counts itself and then reads the state, this thread does the reverse. A listener's
        // companion notifies, too, without the listener's lock: hence the loop, so that each event counts.
        loop {
            let level = ready.0 & !Ready::WRITE_SPACE.0;
            let after = (before & !READY).wrapping_add(EVENT) | u64::from(level);
            let (done, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            match self.state.compare_exchange_weak(before, after, done, failed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        self.count_driver(pass);
        if let Some(napi) = napi
            && !self.known_napi.is(napi)
        {
            self.mark_napi(napi);
        }
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.notify(Ready((before & READY) as u8), ready, napi, pass);
        }
    }

    #[inline]
    fn take(&self, napi: Option<NapiId>, data: &[u8], pass: &mut Pass<'_>) -> bool {
        // The first packet from a new queue takes the ordinary path, which records the napi id.
        let known = napi.is_some_and(|napi| self.known_napi.is(napi));
        let taken = known && pass.deliver_direct(self.poller_id(), data, None);
        if taken {
            self.count_driver(pass);
        }
        taken
    }

    fn take_pieces(&self, napi: Option<NapiId>, data: &Data<'_>, pass: &mut Pass<'_>) -> bool {
        let known = napi.is_some_and(|napi| self.known_napi.is(napi));
        let taken = known && pass.deliver_direct_pieces(self.poller_id(), data, None);
        if taken {
            self.count_driver(pass);
        }
        taken
    }

    fn receives(&self, pass: &Pass<'_>) -> bool {
        pass.polled_by == PolledBy::BusyPoll(self.poller_id()) && pass.direct.is_some()
    }

    fn urgent(&self) {
        self.owner.signal();
    }

    fn ack_deferred_to_reader(&self) {
        self.ack_deferred.store(true, Ordering::Relaxed);
    }

    fn deliveries(&self) -> [u64; 3] {
        self.by_driver.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// The readiness as events of poll(2).
pub(super) fn events(ready: Ready) -> Events {
    let names = [
        (Ready::READABLE, Events::READABLE),
        (Ready::WRITABLE, Events::WRITABLE),
        (Ready::READ_CLOSED, Events::READ_HANGUP),
        (Ready::HANGUP, Events::HANGUP),
        (Ready::ERROR, Events::ERROR),
        (Ready::URGENT, Events::URGENT),
    ];
    let there = names.iter().filter(|(bit, _)| ready.has(*bit));
    there.fold(Events::default(), |events, (_, event)| events | *event)
}

/// The wait channel of receive and accept.
pub(super) struct ReadChannel<'a>(pub(super) &'a Endpoint);

/// The wait channel of send and connect.
pub(super) struct WriteChannel<'a>(pub(super) &'a Endpoint);

macro_rules! wait_channel {
    ($channel:ident, $queue:ident, $ready:expr) => {
        impl WaitChannel for $channel<'_> {
            #[inline]
            fn is_ready(&self) -> bool {
                self.0.ready().any($ready)
            }

            #[inline]
            fn poller_id(&self) -> usize {
                self.0.poller_id()
            }

            #[inline]
            fn context(&self) -> Option<Arc<Context>> {
                self.0.context()
            }

            #[inline]
            fn known_context(&self) -> Option<&Arc<Context>> {
                self.0.known_napi.context()
            }

            fn prepare_to_wait(
                &self,
                waiter: &Arc<Waiter>,
            ) -> Result<Option<Arc<Context>>, AlreadyReady> {
                let mut waits = lock(&self.0.waits);
                waits.$queue.add_sleeper(waiter.clone());
                self.0.update_waiters(&waits);
                if self.0.state.load(Ordering::SeqCst) & u64::from($ready.0) != 0 {
                    waits.$queue.remove_sleeper(waiter);
                    self.0.update_waiters(&waits);
                    return Err(AlreadyReady);
                }
                Ok(waits.last_napi.context())
            }

            fn finish_wait(&self, waiter: &Arc<Waiter>) {
                let mut waits = lock(&self.0.waits);
                let waited = waits.$queue.remove_sleeper(waiter);
                self.0.update_waiters(&waits);
                drop(waits);
                // A wake-up had removed this waiter, which leaves without an accept: the wake-up goes to the next.
                if !waited && self.0.wakes_one {
                    self.0.wake_next_reader();
                }
            }
        }
    };
}

wait_channel!(ReadChannel, reading, Ready::READABLE);
wait_channel!(WriteChannel, writing, Ready::WRITABLE);

impl TaskChannel for Endpoint {
    fn prepare_task(
        &self,
        direction: Direction,
        waiter: &Arc<Waiter>,
    ) -> Result<Option<Arc<Context>>, AlreadyReady> {
        match direction {
            Direction::Read => prepare(&ReadChannel(self), &self.waiting, waiter),
            Direction::Write => prepare(&WriteChannel(self), &self.waiting, waiter),
        }
    }

    fn finish_task(&self, direction: Direction, waiter: &Arc<Waiter>) {
        match direction {
            Direction::Read => ReadChannel(self).finish_wait(waiter),
            Direction::Write => WriteChannel(self).finish_wait(waiter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::stream::pass, *};
    use crate::napi::{KernelFds, Wake};
    use std::{thread, time::Duration};

    /// One thread signals an event as soon as the other has seen the last one, give or take some steps; the other
    /// checks and goes to sleep. So in nearly every round the event comes just before, during or after the way to
    /// sleep.
    fn rounds(count: u64, ready: Ready, sleeps: impl Fn(&Endpoint, &Arc<Waiter>)) {
        let endpoint = Endpoint::new(WaitOptions::new(0));
        let (seen, over) = (AtomicU64::new(0), AtomicU64::new(0));
        let waiter = Arc::new(Waiter::new().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..count {
                    while seen.load(Ordering::Acquire) < round {
                        if over.load(Ordering::Relaxed) > 0 {
                            return;
                        }
                        thread::yield_now();
                    }
                    (0..round % 61).for_each(|_| std::hint::black_box(()));
                    let mut pass = pass();
                    endpoint.changed(ready, None, &mut pass);
                    pass.wake.wake_all();
                }
            });
            // A wake-up that was lost ends the other thread as well.
            let _over = Over(&over);
            for round in 1..=count {
                loop {
                    let snapshot = endpoint.snapshot();
                    if snapshot.ready().any(ready) {
                        endpoint.clear_ready(snapshot, ready);
                        break;
                    }
                    sleeps(&endpoint, &waiter);
                }
                seen.store(round, Ordering::Release);
            }
        });
    }

    struct Over<'a>(&'a AtomicU64);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(1, Ordering::Relaxed);
        }
    }

    /// As `waiting::sleep`, but with a time limit.
    fn sleep(channel: &impl WaitChannel, waiter: &Arc<Waiter>) {
        waiter.start();
        if channel.prepare_to_wait(waiter).is_err() {
            return;
        }
        let wake = waiter.sleep(Some(Duration::from_secs(10)), &mut KernelFds::none());
        assert_ne!(wake, Wake::Timeout, "a wake-up was lost");
        if waiter.is_queued() || !waiter.is_woken() {
            channel.finish_wait(waiter);
        }
    }

    fn both(count: u64) {
        rounds(count, Ready::READABLE, |endpoint, waiter| sleep(&ReadChannel(endpoint), waiter));
        rounds(count, Ready::WRITABLE, |endpoint, waiter| sleep(&WriteChannel(endpoint), waiter));
    }

    #[test]
    fn no_event_on_the_way_to_sleep_is_missed() {
        both(50_000);
    }

    /// Two connections may have come while one thread was to be woken for them.
    #[test]
    fn the_next_reader_is_woken_once_and_only_if_there_is_one() {
        let endpoint = Endpoint::new(WaitOptions::new(0));
        endpoint.wake_next_reader();
        let sleepers = [(); 2].map(|()| Arc::new(Waiter::new().unwrap()));
        for sleeper in &sleepers {
            sleeper.start();
            assert!(ReadChannel(&endpoint).prepare_to_wait(sleeper).is_ok());
        }
        for after in [[true, false], [true, true]] {
            endpoint.wake_next_reader();
            assert_eq!(sleepers.each_ref().map(|sleeper| sleeper.is_woken()), after);
        }
    }

    #[test]
    #[ignore = "twenty million rounds; to be run in release after any change to waiting"]
    fn no_event_on_the_way_to_sleep_is_missed_in_millions_of_rounds() {
        both(10_000_000);
    }
}
