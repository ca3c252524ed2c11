//! The upper end of a connection or a listener: what has happened below, in one word that is read without a
//! lock, and who waits for it. Told under the lock of what it belongs to, it calls nothing of TCP.

use super::owner;
use crate::{
    inet::tcp::{Ready, TcpEndpoint},
    napi::{Context, Driver, NapiId, Pass, Waiter},
    socket::{
        readiness::{Events, WaitQueue, Watch, tell},
        udp::SocketStats,
        waiting::{Bed, Followed, Something, Waiting},
    },
    sync::lock,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

/// What a socket of TCP waits by.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) waiting: Waiting,
    /// Whether one thing that happens is for one sleeper: connections to accept are, data is for all.
    each: bool,
    /// How things stood when last seen, as [`Ready`] in the lowest byte; above it, how often something has
    /// happened.
    word: AtomicU64,
    /// Who is sent SIGURG.
    pub(super) owner: owner::Word,
    /// An acknowledgment is left to whom it was told.
    ack_left: AtomicBool,
    /// Bytes sent since a sender last looked at the queue.
    poured: AtomicU32,
    /// The napi id last followed.
    napi: AtomicU32,
    /// How many wait, so that what happens need not lock for nobody.
    waiters: AtomicUsize,
    waits: Mutex<Waits>,
    found: [AtomicU64; 3],
}

#[derive(Debug, Default)]
struct Waits {
    /// Those asleep until they can receive or accept, and all who watch.
    reading: WaitQueue,
    /// Those asleep until they can send, or are connected.
    writing: WaitQueue,
    followed: Followed,
}

/// A moment in the life of an endpoint.
#[derive(Clone, Copy)]
pub(super) struct Moment(u64);

/// How much a sender that finds room sends before he looks at the queue.
const POURED: u32 = 64 * 1024;

const READY: u64 = 0xff;
const ONCE: u64 = 0x100;

impl Moment {
    /// How things were.
    #[inline]
    pub(super) fn ready(self) -> Ready {
        Ready((self.0 & READY) as u8)
    }
}

impl Endpoint {
    /// Of a stream.
    pub(super) fn new(waiting: Waiting) -> Endpoint {
        Endpoint {
            waiting,
            each: false,
            word: AtomicU64::new(0),
            owner: owner::Word::default(),
            ack_left: AtomicBool::new(false),
            poured: AtomicU32::new(0),
            napi: AtomicU32::new(0),
            waiters: AtomicUsize::new(0),
            waits: Mutex::default(),
            found: Default::default(),
        }
    }

    /// Of a listener.
    pub(super) fn of_listener(waiting: Waiting) -> Endpoint {
        Endpoint { each: true, ..Endpoint::new(waiting) }
    }

    /// How things were when something last happened, less what was found to have passed since.
    #[inline]
    pub(super) fn ready(&self) -> Ready {
        self.moment().ready()
    }

    /// Now. To be taken before looking below at how things stand.
    #[inline]
    pub(super) fn moment(&self) -> Moment {
        Moment(self.word.load(Ordering::Acquire))
    }

    /// As seen below since `moment`, things stand like this: noted, unless something has happened meanwhile.
    pub(super) fn stands(&self, moment: Moment, ready: Ready) {
        let seen = moment.0 & !READY | u64::from(ready.0);
        if seen != moment.0 {
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.word.compare_exchange(moment.0, seen, done, failed);
        }
    }

    /// Below was none of `ready` any more since `moment`.
    #[inline]
    pub(super) fn passed(&self, moment: Moment, ready: Ready) {
        self.stands(moment, Ready((moment.0 & READY) as u8 & !ready.0));
    }

    /// Whether an acknowledgment was left to the receiver's answer: told once.
    #[inline]
    pub(super) fn take_ack_left(&self) -> bool {
        self.ack_left.load(Ordering::Relaxed) && self.ack_left.swap(false, Ordering::Relaxed)
    }

    /// `len` bytes have been sent. Whether so many that acknowledgments of some may have come.
    #[inline]
    pub(super) fn pours(&self, len: usize) -> bool {
        let poured = self.poured.load(Ordering::Relaxed).saturating_add(len as u32);
        let enough = poured >= POURED;
        self.poured.store(if enough { 0 } else { poured }, Ordering::Relaxed);
        enough
    }

    /// Whether somebody sleeps here or watches.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    pub(super) fn napi(&self) -> Option<NapiId> {
        lock(&self.waits).followed.napi()
    }

    pub(super) fn context(&self) -> Option<Arc<Context>> {
        lock(&self.waits).followed.context()
    }

    pub(super) fn watch(&self, watch: Arc<dyn Watch>) {
        let mut waits = lock(&self.waits);
        waits.reading.watch(watch);
        self.count(&waits);
    }

    pub(super) fn unwatch(&self, watch: &Arc<dyn Watch>) {
        let mut waits = lock(&self.waits);
        waits.reading.unwatch(watch);
        self.count(&waits);
    }

    /// The socket is closed: who watches forgets it.
    pub(super) fn close(&self) {
        let mut waits = lock(&self.waits);
        let watchers = waits.reading.forget_watchers();
        self.count(&waits);
        drop(waits);
        for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
            watch.closed();
        }
    }

    /// Wakes one more sleeper: there is more than one thing to take.
    pub(super) fn pass_on(&self) {
        if self.waiters.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waits = lock(&self.waits);
        let next = waits.reading.next_sleeper();
        self.count(&waits);
        drop(waits);
        if let Some(next) = next {
            next.wake();
        }
    }

    pub(super) fn stats(&self) -> SocketStats {
        let [own_polls, other_polls, interrupts] =
            self.found.each_ref().map(|count| count.load(Ordering::Relaxed));
        SocketStats { own_polls, other_polls, interrupts, ..SocketStats::default() }
    }

    /// The name under which it busy polls.
    #[inline]
    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn count(&self, waits: &Waits) {
        let count = waits.reading.len() + waits.writing.len();
        self.waiters.store(count, Ordering::SeqCst);
    }

    #[inline]
    fn note_driver(&self, pass: &Pass<'_>) {
        let by = match pass.driver {
            Driver::BusyPoll(poller) if poller == self.name() => 0,
            Driver::BusyPoll(_) => 1,
            Driver::Interrupt => 2,
            Driver::Kernel => return,
        };
        // One writer at a time, under the lock below.
        let count = self.found[by].load(Ordering::Relaxed);
        self.found[by].store(count + 1, Ordering::Relaxed);
    }

    /// From now on polls this context's queue.
    #[cold]
    pub(super) fn follow(&self, napi: NapiId) {
        let mut waits = lock(&self.waits);
        waits.followed.follow(Some(napi));
        self.napi.store(napi.get(), Ordering::Relaxed);
    }

    /// Tells whoever waits how things stand, though nothing has happened.
    pub(super) fn remind(&self, pass: &mut Pass<'_>) {
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.tell(Ready(0), self.ready(), None, pass);
        }
    }

    /// Wakes and tells those for whom this is.
    #[cold]
    fn tell(&self, before: Ready, ready: Ready, napi: Option<NapiId>, pass: &mut Pass<'_>) {
        let mut waits = lock(&self.waits);
        if ready.any(Ready::READABLE) {
            if self.each {
                waits.reading.next_sleeper().into_iter().for_each(|one| pass.wake.push(one));
            } else {
                waits.reading.drain_sleepers().for_each(|one| pass.wake.push(one));
            }
        }
        if ready.any(Ready::WRITABLE) {
            waits.writing.drain_sleepers().for_each(|one| pass.wake.push(one));
        }
        let watchers = waits.reading.watchers();
        self.count(&waits);
        drop(waits);
        // More data is news also where there was some; that there still is room is not, unless somebody saw that there
        // was none, of which the word may know nothing.
        let always = if ready.any(Ready::ROOM) { Ready::WRITABLE } else { Ready::default() };
        let more = Ready::READABLE | Ready::URGENT;
        let news = Ready(ready.0 & (!before.0 | more.0 | always.0));
        tell(watchers.as_ref(), events(news), napi, &mut pass.wake);
    }
}

impl TcpEndpoint for Endpoint {
    #[inline]
    fn changed(&self, ready: Ready, napi: Option<NapiId>, pass: &mut Pass<'_>) {
        let mut before = self.word.load(Ordering::Relaxed);
        // A full barrier: who sleeps counts himself and then reads the word, we do the reverse. Of a listener the
        // kernel's connections tell, too, and not under its lock: each must count.
        loop {
            let stands = ready.0 & !Ready::ROOM.0;
            let after = (before & !READY).wrapping_add(ONCE) | u64::from(stands);
            let (done, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            match self.word.compare_exchange_weak(before, after, done, failed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        self.note_driver(pass);
        if let Some(napi) = napi
            && self.napi.load(Ordering::Relaxed) != napi.get()
        {
            self.follow(napi);
        }
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.tell(Ready((before & READY) as u8), ready, napi, pass);
        }
    }

    #[inline]
    fn take(&self, napi: Option<NapiId>, data: &[u8], pass: &mut Pass<'_>) -> bool {
        // Of a queue not followed yet it is told in the ordinary way.
        let known = napi.is_some_and(|napi| self.napi.load(Ordering::Relaxed) == napi.get());
        let taken = known && pass.put(self.name(), data, &());
        if taken {
            self.note_driver(pass);
        }
        taken
    }

    fn receives(&self, pass: &Pass<'_>) -> bool {
        pass.driver == Driver::BusyPoll(self.name()) && pass.direct.is_some()
    }

    fn urgent(&self) {
        self.owner.signal();
    }

    fn ack_is_left(&self) {
        self.ack_left.store(true, Ordering::Relaxed);
    }
}

/// Readiness by the names of poll(2).
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

/// Where those wait who receive or accept.
pub(super) struct Reading<'a>(pub(super) &'a Endpoint);

/// Where those wait who send or connect.
pub(super) struct Writing<'a>(pub(super) &'a Endpoint);

macro_rules! bed {
    ($bed:ident, $queue:ident, $ready:expr) => {
        impl Bed for $bed<'_> {
            #[inline]
            fn is_ready(&self) -> bool {
                self.0.ready().any($ready)
            }

            #[inline]
            fn poller(&self) -> usize {
                self.0.name()
            }

            #[inline]
            fn context(&self) -> Option<Arc<Context>> {
                self.0.context()
            }

            fn join(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, Something> {
                let mut waits = lock(&self.0.waits);
                waits.$queue.sleep(waiter.clone());
                self.0.count(&waits);
                if self.0.word.load(Ordering::SeqCst) & u64::from($ready.0) != 0 {
                    waits.$queue.leave(waiter);
                    self.0.count(&waits);
                    return Err(Something);
                }
                Ok(waits.followed.context())
            }

            fn leave(&self, waiter: &Arc<Waiter>) {
                let mut waits = lock(&self.0.waits);
                let waited = waits.$queue.leave(waiter);
                self.0.count(&waits);
                drop(waits);
                // It had been taken off to be woken, and leaves without looking.
                if !waited && self.0.each {
                    self.0.pass_on();
                }
            }
        }
    };
}

bed!(Reading, reading, Ready::READABLE);
bed!(Writing, writing, Ready::WRITABLE);

#[cfg(test)]
mod tests {
    use super::{super::stream::pass, *};
    use crate::napi::{Outside, Wake};
    use std::{thread, time::Duration};

    /// One thread tells as soon as the other has seen what it told before, give or take some steps; the other looks
    /// and goes to sleep. So what is told comes on its way to bed, before and after, in nearly every round.
    fn rounds(count: u64, ready: Ready, sleeps: impl Fn(&Endpoint, &Arc<Waiter>)) {
        let endpoint = Endpoint::new(Waiting::new(0));
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
                    let moment = endpoint.moment();
                    if moment.ready().any(ready) {
                        endpoint.passed(moment, ready);
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

    /// As `waiting::sleep` does, but not for ever.
    fn sleep(bed: &impl Bed, waiter: &Arc<Waiter>) {
        waiter.start();
        if bed.join(waiter).is_err() {
            return;
        }
        let wake = waiter.sleep(Some(Duration::from_secs(10)), &mut Outside::nothing());
        assert_ne!(wake, Wake::Timeout, "a wake-up was lost");
        if waiter.is_queued() || !waiter.is_woken() {
            bed.leave(waiter);
        }
    }

    fn both(count: u64) {
        rounds(count, Ready::READABLE, |endpoint, waiter| sleep(&Reading(endpoint), waiter));
        rounds(count, Ready::WRITABLE, |endpoint, waiter| sleep(&Writing(endpoint), waiter));
    }

    #[test]
    fn nothing_told_on_the_way_to_bed_is_missed() {
        both(50_000);
    }

    #[test]
    #[ignore = "twenty million rounds; to be run in release after any change to waiting"]
    fn nothing_in_millions_of_rounds() {
        both(10_000_000);
    }
}
