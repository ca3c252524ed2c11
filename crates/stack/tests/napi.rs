//! NAPI contexts over the real cable, with threads and descriptors: which thread delivers, and that one always does.

use busypoll_stack::{
    napi::{
        BUSY_POLL_BUDGET, BusyPoll, Contexts, KernelFds, Parts, Pass, PlacedCounters, PolledBy,
        Poller, Serving, Upper, WATCHDOG, Waiter, Wake,
    },
    nic::{Coalesce, Frame, Nic, TxQueue, cable},
    time::{Instant, now},
};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

static CONTEXTS: Contexts<Inbox> = Contexts::new();

/// Longer than any machine needs; only a fault takes it.
const NEVER: Duration = Duration::from_secs(60);

fn this_thread() -> libc::pthread_t {
    // SAFETY: a plain call.
    unsafe { libc::pthread_self() }
}

/// The upper layer with one queue: takes numbered frames and wakes the waiters.
#[derive(Default)]
struct Inbox {
    inside: Mutex<Inside>,
    /// Frames delivered so far.
    count: AtomicU64,
}

#[derive(Default)]
struct Inside {
    frames: Vec<u64>,
    /// The thread and driver of the last delivery.
    by: Option<(libc::pthread_t, PolledBy)>,
    waiters: Vec<Arc<Waiter>>,
}

impl Upper for Inbox {
    type Flow = ();
    type Socket = ();
    type Deferred = ();
    type Meta = ();

    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_, Self>) {
        let mut inside = self.inside.lock().unwrap();
        inside.frames.push(u64::from_be_bytes(frame.bytes[14..22].try_into().unwrap()));
        inside.by = Some((this_thread(), pass.polled_by));
        inside.waiters.drain(..).for_each(|waiter| pass.wake.push(waiter));
        self.count.fetch_add(1, Ordering::Release);
    }

    fn tick(&self, _pass: &mut Pass<'_, Self>) -> Option<Instant> {
        None
    }
}

impl Inbox {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until `count` frames have come; `sleep` puts the thread to sleep.
    fn wait_for(&self, count: u64, mut sleep: impl FnMut(&Arc<Waiter>) -> Wake) {
        let waiter = Waiter::of_this_thread().unwrap();
        while self.count() < count {
            waiter.start();
            let mut inside = self.inside.lock().unwrap();
            if self.count() >= count {
                return;
            }
            inside.waiters.push(waiter.clone());
            drop(inside);
            let wake = sleep(&waiter);
            assert_ne!(wake, Wake::Timeout, "{} of {count} frames, then nothing", self.count());
        }
    }

    /// Waits without driving the context.
    fn await_delivery(&self, count: u64) {
        self.wait_for(count, |waiter| waiter.sleep(Some(NEVER), &mut KernelFds::none()));
    }

    fn by(&self) -> (libc::pthread_t, PolledBy) {
        self.inside.lock().unwrap().by.unwrap()
    }
}

/// A context in service on one end of a cable, and the transmit side of the other end.
struct Bench {
    serving: Serving<Inbox>,
    inbox: Arc<Inbox>,
    peer: Peer,
}

struct Peer {
    tx: Box<dyn TxQueue>,
    sent: u64,
}

impl Peer {
    fn send(&mut self) {
        let number = self.sent.to_be_bytes();
        let mut fill = |frame: &mut [u8]| {
            frame.fill(0);
            frame[14..22].copy_from_slice(&number);
        };
        while self.tx.push(60, false, &mut fill).is_err() {
            thread::yield_now();
        }
        self.tx.flush();
        self.sent += 1;
    }
}

fn bench(watchdog: Duration) -> Bench {
    let (mut near, mut far) = cable::pair(cable::Config::default()).unwrap();
    let queue = near.open(0).unwrap();
    let inbox = Arc::new(Inbox::default());
    let name = near.info().name.clone();
    let serving = CONTEXTS
        .start(Parts {
            device: name,
            queue: 0,
            rx: queue.rx,
            interrupt: queue.interrupt,
            upper: inbox.clone(),
            watchdog,
            counters: PlacedCounters::default(),
        })
        .unwrap();
    Bench { serving, inbox, peer: Peer { tx: far.open(0).unwrap().tx, sent: 0 } }
}

impl Bench {
    /// Makes the interrupt thread leave the queue to the pollers for the watchdog's time: waits for its first pass,
    /// which would find the frames sent later, then polls.
    fn keep_to_pollers(&self) {
        while self.serving.context().stats().polls == 0 {
            thread::yield_now();
        }
        while self.serving.context().busy_poll(1, now(), &mut Poller::new(0)) != BusyPoll::Found(0)
        {
        }
    }
}

/// A few random bits, different on every call.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 11
}

/// A random delay of up to about a microsecond.
fn random_delay(state: &mut u64) {
    for _ in 0..random(state) % 256 {
        std::hint::spin_loop();
    }
}

#[test]
fn a_busy_poll_delivers_on_the_calling_thread() {
    let mut bench = bench(NEVER);
    let context = bench.serving.context().clone();
    bench.keep_to_pollers();
    bench.peer.send();
    while bench.inbox.count() == 0 {
        assert_ne!(context.busy_poll(BUSY_POLL_BUDGET, now(), &mut Poller::new(7)), BusyPoll::Gone);
    }
    assert_eq!(bench.inbox.by(), (this_thread(), PolledBy::BusyPoll(7)));
    let stats = context.stats();
    assert_eq!((stats.bp_cleaned, stats.packets), (1, 1));
    assert!(stats.bp_misses > 0);
}

/// No unbounded drain: a pass takes at most its budget, however many frames there are.
#[test]
fn the_budget_bounds_a_pass() {
    let mut bench = bench(NEVER);
    let context = bench.serving.context().clone();
    bench.keep_to_pollers();
    (0..5).for_each(|_| bench.peer.send());
    let mut found = Vec::new();
    while bench.inbox.count() < 5 {
        if let BusyPoll::Found(count @ 1..) = context.busy_poll(2, now(), &mut Poller::new(0)) {
            found.push(count);
        }
    }
    assert_eq!(found, [2, 2, 1]);
}

#[test]
fn the_interrupt_thread_delivers_when_no_thread_polls() {
    let mut bench = bench(WATCHDOG);
    for count in 1..=1_000 {
        bench.peer.send();
        bench.inbox.await_delivery(count);
        let (thread, driver) = bench.inbox.by();
        assert_eq!(driver, PolledBy::Interrupt);
        assert_eq!(Some(thread), bench.serving.thread().map(|thread| thread.id()));
    }
    assert_eq!(bench.serving.context().stats().bp_cleaned, 0);
}

#[test]
fn the_watchdog_takes_a_queue_that_its_pollers_left() {
    let mut bench = bench(Duration::from_millis(5));
    let context = bench.serving.context().clone();
    let mut count = 0;
    // On a busy machine a poll may come too late to keep the interrupt thread away: then that thread delivers and no
    // watchdog is needed. But not every time.
    for _ in 0..1_000 {
        // The first frame's interrupt sees the recent poll and leaves the line masked.
        for _ in 0..2 {
            bench.peer.send();
            context.busy_poll(1, now(), &mut Poller::new(0));
            count += 1;
        }
        bench.peer.send();
        count += 1;
        bench.inbox.await_delivery(count);
        if context.stats().watchdogs > 0 {
            assert_eq!(bench.inbox.by().1, PolledBy::Interrupt);
            return;
        }
    }
    panic!("the watchdog never took the queue: {:?}", context.stats());
}

#[test]
fn a_packet_wakes_the_leader_itself() {
    let mut bench = bench(WATCHDOG);
    let context = bench.serving.context().clone();
    let inbox = bench.inbox.clone();
    let me = this_thread();
    // The interrupt thread may win some races, but not all of them.
    for count in 1..=10_000 {
        let peer = &mut bench.peer;
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(1));
                peer.send();
            });
            inbox.wait_for(count, |waiter| {
                context.sleep(waiter, Some(NEVER), &mut KernelFds::none())
            });
        });
        if inbox.by() == (me, PolledBy::Interrupt) {
            return;
        }
    }
    panic!("never once");
}

#[test]
fn a_sleep_ends_by_its_timeout() {
    let bench = bench(WATCHDOG);
    let waiter = Waiter::of_this_thread().unwrap();
    // Short and long by turns: a timer set for one sleep must neither shorten nor outlast the next.
    for millis in [1, 30, 3, 0, 20, 40, 2] {
        let timeout = Duration::from_millis(millis);
        let start = now();
        waiter.start();
        let wake = bench.serving.context().sleep(&waiter, Some(timeout), &mut KernelFds::none());
        assert_eq!(wake, Wake::Timeout);
        assert!(now() - start >= timeout, "{:?} instead of {timeout:?}", now() - start);
    }
}

#[test]
fn the_timer_of_an_earlier_sleep_does_not_end_a_later_one() {
    let mut bench = bench(WATCHDOG);
    let context = bench.serving.context().clone();
    let inbox = bench.inbox.clone();
    // The first sleep ends by a frame, long before its timer would expire during the second.
    for (count, timeout) in [(1, 50), (2, 5_000)] {
        let peer = &mut bench.peer;
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(count * count * 40 - 20));
                peer.send();
            });
            let timeout = Duration::from_millis(timeout);
            inbox.wait_for(count, |waiter| {
                match context.sleep(waiter, Some(timeout), &mut KernelFds::none()) {
                    // On a busy machine the first frame may be late.
                    Wake::Timeout if count == 1 => Wake::Woken,
                    wake => wake,
                }
            });
        });
        assert_eq!(inbox.count(), count);
    }
}

#[test]
fn unmasking_a_moderated_interrupt_again_keeps_its_timer_running() {
    let coalesce = Coalesce { rx_usecs: 60_000_000, ..Coalesce::default() };
    let config = cable::Config { coalesce, ..cable::Config::default() };
    let (mut near, mut far) = cable::pair(config).unwrap();
    let queue = near.open(0).unwrap();
    let mut peer = Peer { tx: far.open(0).unwrap().tx, sent: 0 };
    assert!(queue.interrupt.unmask());
    peer.send();
    // The frame waits until the minute is over: the interrupt will fire then.
    assert!(queue.interrupt.unmask());
    queue.interrupt.mask();
    assert!(!queue.interrupt.unmask(), "a frame waits and no interrupt will fire any more");
}

/// Rounds of a ping-pong between two threads that never busy poll.
const ROUNDS: u64 = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };
/// The same over a cable.
const CABLE_ROUNDS: u64 = if cfg!(debug_assertions) { 25_000 } else { 250_000 };

#[test]
fn no_wake_up_is_lost() {
    // Two sleeps and two wake-ups a round.
    let (near, far) = (Arc::new(Inbox::default()), Arc::new(Inbox::default()));
    let play = |mine: Arc<Inbox>, other: Arc<Inbox>, serves: bool, mut seed: u64| {
        let frame = [0; 60];
        for round in 1..=ROUNDS {
            let hit = |seed: &mut u64| {
                random_delay(seed);
                let checksum = busypoll_stack::nic::Checksum::Unverified;
                let mut pass = Pass::new(None, Instant::ZERO, PolledBy::Kernel);
                other.receive(Frame::whole(&frame, checksum), &mut pass);
                pass.wake.wake_all();
            };
            if serves {
                hit(&mut seed);
            }
            mine.wait_for(round, |waiter| {
                random_delay(&mut seed);
                waiter.sleep(Some(NEVER), &mut KernelFds::none())
            });
            if !serves {
                hit(&mut seed);
            }
        }
    };
    thread::scope(|scope| {
        let (a, b) = (near.clone(), far.clone());
        scope.spawn(move || play(a, b, true, 1));
        scope.spawn(move || play(far, near, false, 2));
    });
}

#[test]
fn no_packet_sleeps_in_the_ring_while_a_leader_sleeps() {
    let (mut one, mut two) = (bench(WATCHDOG), bench(WATCHDOG));
    // Each side answers the other's frame; a frame left in the ring stops both.
    std::mem::swap(&mut one.peer, &mut two.peer);
    let play = |bench: &mut Bench, serves: bool, mut seed: u64| {
        let context = bench.serving.context().clone();
        for round in 1..=CABLE_ROUNDS {
            if serves {
                bench.peer.send();
            }
            random_delay(&mut seed);
            if random(&mut seed).is_multiple_of(4) {
                context.busy_poll(1, now(), &mut Poller::new(0));
            }
            bench.inbox.wait_for(round, |waiter| {
                random_delay(&mut seed);
                context.sleep(waiter, Some(NEVER), &mut KernelFds::none())
            });
            if !serves {
                bench.peer.send();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&mut one, true, 3));
        play(&mut two, false, 4);
    });
}

#[test]
fn every_packet_is_delivered_once_whichever_thread_polls() {
    const FRAMES: u64 = if cfg!(debug_assertions) { 50_000 } else { 500_000 };
    let mut bench = bench(WATCHDOG);
    let context = bench.serving.context().clone();
    let polling = AtomicBool::new(true);
    thread::scope(|scope| {
        for poller in 0..3 {
            let (context, polling) = (&context, &polling);
            scope.spawn(move || {
                let mut seed = poller as u64 + 1;
                while polling.load(Ordering::Relaxed) {
                    context.busy_poll(
                        BUSY_POLL_BUDGET,
                        now(),
                        &mut Poller { prefer: poller == 0, ..Poller::new(poller) },
                    );
                    match random(&mut seed) % 64 {
                        // Away long enough for the watchdog to act.
                        0 => thread::sleep(WATCHDOG * 3),
                        1..8 => thread::yield_now(),
                        _ => random_delay(&mut seed),
                    }
                }
            });
        }
        let (inbox, leader) = (bench.inbox.clone(), context.clone());
        scope.spawn(move || {
            for count in (1..=FRAMES).step_by(3) {
                inbox.wait_for(count, |waiter| {
                    leader.sleep(waiter, Some(NEVER), &mut KernelFds::none())
                });
            }
        });
        let mut seed = 9;
        for frame in 0..FRAMES {
            bench.peer.send();
            if random(&mut seed).is_multiple_of(512) {
                thread::sleep(WATCHDOG);
            }
            random_delay(&mut seed);
            if frame == FRAMES / 2 {
                // From here on no thread polls.
                polling.store(false, Ordering::Relaxed);
            }
        }
        bench.inbox.await_delivery(FRAMES);
    });
    let inside = bench.inbox.inside.lock().unwrap();
    assert!(inside.frames.iter().copied().eq(0..FRAMES), "lost, doubled or out of order");
    let stats = context.stats();
    assert_eq!(stats.packets, FRAMES);
    assert!(stats.bp_cleaned > 0 && stats.bp_cleaned < FRAMES, "{stats:?}");
}

#[test]
fn a_closed_context_stays_closed_while_others_look_it_up_and_poll_it() {
    let mut ids = HashSet::new();
    for _ in 0..200 {
        let mut bench = bench(WATCHDOG);
        let id = bench.serving.context().id();
        assert!(ids.insert(id), "id {id} was used again");
        let closed = AtomicBool::new(false);
        thread::scope(|scope| {
            for poller in 0..2 {
                let closed = &closed;
                scope.spawn(move || {
                    loop {
                        let after = closed.load(Ordering::Acquire);
                        let Some(context) = CONTEXTS.by_id(id) else { return };
                        assert!(!after, "found after it was closed");
                        if context.busy_poll(1, now(), &mut Poller::new(poller)) == BusyPoll::Gone {
                            assert!(context.is_gone());
                        }
                    }
                });
            }
            (0..8).for_each(|_| bench.peer.send());
            let held = bench.serving.context().clone();
            drop(bench.serving);
            closed.store(true, Ordering::Release);
            let count = bench.inbox.count();
            assert_eq!(held.busy_poll(1, now(), &mut Poller::new(0)), BusyPoll::Gone);
            bench.peer.send();
            assert_eq!(bench.inbox.count(), count, "delivered by a closed context");
        });
    }
}
