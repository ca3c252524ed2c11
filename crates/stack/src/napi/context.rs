//! A NAPI context: one receive queue, who owns it, and what it counts. The two ways in meet here:
//! [`Context::busy_poll`] is called by a receiving thread, [`interrupt`](super::interrupt) by the
//! interrupt's thread, and both come down to the same [`Context::drive`].

use super::{
    Direct, Driver, NapiId, Outside, Pass, Poller, Upper, Waiter, Wake, Word,
    asleep::any_unbound_sleeper,
    counters::{Counters, Stats},
    handoff::{Handoff, Heir, Parting},
    interrupt::Line,
    word::Refused,
};
use crate::{
    nic::{Interrupt, RxQueue},
    sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, spin_wait},
    time::{self, Instant},
};
use std::{hint::cold_path, io, sync::atomic::AtomicU8, time::Duration};

/// The most packets one pass of the interrupt's side may take (`NAPI_POLL_WEIGHT`).
pub const NAPI_POLL_WEIGHT: usize = 64;

/// The most packets one busy-poll pass takes unless told otherwise (`BUSY_POLL_BUDGET`).
pub const BUSY_POLL_BUDGET: usize = 8;

/// After so many times the watchdog's time from their last poll it is seen whether pollers have gone. With
/// the default of 200 us a packet left behind waits less than 1 ms, if it could wake a thread. Preferred pollers are
/// waited for as long, and all where nobody sleeps.
const GRACE_FACTOR: u32 = 4;

/// Where it finds pollers and nobody asleep look after look, each is put off twice as long as the one before, so
/// often: to 6.4 ms with the default. A look costs who polls on its CPU some microseconds.
const MAX_BACKOFF: u8 = 3;

/// How often one busy-poll pass looks at a ring that stays empty.
const EMPTY_POLLS: u32 = 8;

/// What a busy-poll pass came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyPoll {
    /// So many packets were delivered, to whomever.
    Found(usize),
    /// Someone else drives the queue: look at your own socket and try again.
    Refused,
    /// The context is closed and will not come back.
    Gone,
}

/// One receive queue.
pub struct Context {
    id: NapiId,
    device: String,
    queue: u32,
    pub(super) word: Word,
    rx: UnsafeCell<Box<dyn RxQueue>>,
    upper: Arc<dyn Upper>,
    pub(super) counters: Counters,
    pub(super) handoff: Handoff,
    pub(super) line: Line,
    watchdog: Duration,
    /// When a poller last had the queue, in nanoseconds, 0 if it is left to none; the lowest bit: it is preferred.
    last_poll: AtomicU64,
    /// How often the watchdog's looks have been put off. Not of [`crate::sync`]: it decides when they are, and no more.
    backoff: AtomicU8,
    /// When a leader last took packets, in nanoseconds: the pace of the flow.
    last_leader_pass: AtomicU64,
    /// Threads asleep here that do not lead.
    followers: AtomicU32,
}

// SAFETY: `rx` is the only part that is not Sync, and only the owner by `word` touches it.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("id", &self.id).field("device", &self.device).finish()
    }
}

/// The queue, owned: given back also by a pass that panics.
struct Owned<'a>(&'a Word);

impl Drop for Owned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl Context {
    pub(super) fn new(
        id: NapiId,
        device: String,
        queue: u32,
        rx: Box<dyn RxQueue>,
        interrupt: Arc<dyn Interrupt>,
        upper: Arc<dyn Upper>,
        watchdog: Duration,
    ) -> io::Result<Context> {
        Ok(Context {
            id,
            device,
            queue,
            word: Word::new(),
            rx: UnsafeCell::new(rx),
            upper,
            counters: Counters::default(),
            handoff: Handoff::new(),
            line: Line::new(interrupt)?,
            watchdog,
            last_poll: AtomicU64::new(0),
            backoff: AtomicU8::new(0),
            last_leader_pass: AtomicU64::new(0),
            followers: AtomicU32::new(0),
        })
    }

    /// Its id.
    #[inline]
    pub fn id(&self) -> NapiId {
        self.id
    }

    /// The name of the device it belongs to.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The number of its queue on that device.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// What it has counted so far. One system call over AF_XDP, where the kernel counts what is dropped.
    pub fn stats(&self) -> Stats {
        self.counters.snapshot(self.line.interrupt.dropped())
    }

    /// The queue's interrupt, for its moderation.
    pub fn interrupt(&self) -> &Arc<dyn Interrupt> {
        &self.line.interrupt
    }

    /// Whether it is closed for good.
    pub fn is_gone(&self) -> bool {
        self.word.is_disabled()
    }

    pub(super) fn enable(&self) {
        self.word.enable();
    }

    pub(super) fn disable(&self) {
        while !self.word.disable() {
            spin_wait();
        }
    }

    /// One pass of a busy poll: at most `budget` packets, delivered on the calling thread. Never blocks.
    #[inline]
    pub fn busy_poll(&self, budget: usize, now: Instant, poller: &mut Poller<'_>) -> BusyPoll {
        if let Err(refused) = self.word.lock_poll() {
            return self.refused(refused);
        }
        let owned = Owned(&self.word);
        self.note_poll(now, poller.prefer);
        let mut pass = Pass {
            direct: poller.direct.as_mut().map(|direct| &mut **direct as &mut dyn Direct),
            likely: poller.likely,
            ..Pass::new(Some(self.id), now, Driver::BusyPoll(poller.name))
        };
        let mut found = 0;
        // Looking at an empty ring costs a few instructions, taking and giving up the queue tens of
        // nanoseconds: look more than once.
        for _ in 0..EMPTY_POLLS {
            found = self.drive(budget, &mut pass);
            if found > 0 {
                break;
            }
        }
        if found == 0 {
            self.counters.bp_misses.add(1);
        } else {
            self.counters.bp_cleaned.add(found as u64);
        }
        drop(owned);
        pass.wake.wake_all();
        if found > 0 && self.handoff.take_needless_interrupt() {
            cold_path();
            self.line.kick();
        }
        BusyPoll::Found(found)
    }

    #[cold]
    fn refused(&self, refused: Refused) -> BusyPoll {
        match refused {
            Refused::Disabled => BusyPoll::Gone,
            Refused::Owned => {
                self.counters.bp_yields.add_shared();
                BusyPoll::Refused
            }
        }
    }

    pub(crate) fn count_crowded(&self) {
        self.counters.bp_crowded.add_shared();
    }

    /// One pass on behalf of the interrupt, by its thread or by a leader in its place. `None` if refused.
    pub(super) fn napi_poll(&self, now: Instant) -> Option<usize> {
        if self.word.lock_napi().is_err() {
            self.counters.napi_yields.add_shared();
            return None;
        }
        let owned = Owned(&self.word);
        let mut pass = Pass::new(Some(self.id), now, Driver::Interrupt);
        let found = self.drive(NAPI_POLL_WEIGHT, &mut pass);
        self.counters.polls.add(1);
        drop(owned);
        pass.wake.wake_all();
        Some(found)
    }

    /// Both ways in come to this: ring, frame, floor above. The caller owns the queue.
    #[inline]
    fn drive(&self, budget: usize, pass: &mut Pass<'_>) -> usize {
        let upper = &*self.upper;
        pass.batched = true;
        let found = self.rx.with_mut(|rx| {
            // SAFETY: the caller owns the queue by `word`; nobody else touches `rx` until it is released.
            unsafe { &mut *rx }.poll(budget, &mut |frame| upper.receive(frame, pass))
        });
        if found > 0 {
            self.counters.packets.add(found as u64);
            upper.end_of_pass(pass);
        }
        found
    }

    /// Does the floor above's timed work; when it wants the next call.
    pub(super) fn tick(&self) -> Option<Instant> {
        let mut pass = Pass::new(Some(self.id), time::now(), Driver::Interrupt);
        let next = self.upper.tick(&mut pass);
        pass.wake.wake_all();
        next
    }

    /// Sees to it that [`Upper::tick`] is called by `deadline`, for a deadline set outside of it.
    pub fn tick_by(&self, deadline: Instant) {
        self.line.kick_by(deadline);
    }

    /// A poller has the queue at `now`.
    #[inline]
    pub(super) fn note_poll(&self, now: Instant, prefer: bool) {
        self.last_poll.store(now.nanos() & !1 | u64::from(prefer), Ordering::Relaxed);
    }

    /// When a poller last had the queue, and whether it is preferred.
    fn last_poll(&self) -> (Instant, bool) {
        let noted = self.last_poll.load(Ordering::Relaxed);
        (Instant::from_nanos(noted & !1), noted & 1 != 0)
    }

    /// Whether a thread sleeps that a packet could wake. If none does, whom packets are for computes, and taking them
    /// off the ring now would only take the CPU from it.
    fn has_sleeper(&self) -> bool {
        let followers = self.followers.load(Ordering::SeqCst);
        followers > 0 || self.handoff.has_leader() || any_unbound_sleeper()
    }

    /// Whether pollers had the queue a moment ago.
    pub(super) fn is_polled(&self, now: Instant) -> bool {
        self.in_grace(now, self.has_sleeper())
    }

    /// Whether the queue is still left to who polled it last, with somebody asleep or not.
    fn in_grace(&self, now: Instant, has_sleeper: bool) -> bool {
        let (last, prefers) = self.last_poll();
        let grace = if prefers || !has_sleeper { self.max_grace() } else { self.watchdog };
        last != Instant::ZERO && now.since(last) < grace
    }

    /// When the watchdog must look at the latest.
    pub(super) fn check_due(&self) -> Instant {
        let backoff = self.backoff.load(Ordering::Relaxed);
        self.last_poll().0 + self.max_grace().saturating_mul(1 << backoff)
    }

    fn max_grace(&self) -> Duration {
        self.watchdog.saturating_mul(GRACE_FACTOR)
    }

    /// The watchdog's look. False: there is nothing to watch any more, or pollers have gone and the
    /// interrupt thread was called.
    pub(super) fn check_pollers(&self, now: Instant) -> bool {
        if !self.handoff.is_watching() {
            return false;
        }
        if self.word.is_polled() {
            // A pass may take long, as what it answers may be sent by a system call: who is in one has not gone.
            self.note_poll(now, self.last_poll().1);
        }
        let has_sleeper = self.has_sleeper();
        let polled = self.in_grace(now, has_sleeper);
        let backoff = match polled && !has_sleeper {
            true => MAX_BACKOFF.min(self.backoff.load(Ordering::Relaxed) + 1),
            false => 0,
        };
        self.backoff.store(backoff, Ordering::Relaxed);
        if polled {
            // A poller may have slept in between.
            self.line.bedside.detach(|| self.handoff.has_leader());
        } else {
            self.line.kick();
        }
        polled
    }

    /// A thread goes to sleep that relies on the watchdog: the next look is not put off.
    pub(super) fn reset_backoff(&self) {
        if self.backoff.load(Ordering::Relaxed) > 0 && self.backoff.swap(0, Ordering::Relaxed) > 0 {
            // The interrupt thread has the watchdog look in time.
            self.line.kick();
        }
    }

    /// Puts the calling thread to sleep until `waiter` is woken, `timeout` is over (`None`: never), a signal
    /// was handled, or something of `outside` is there. If nobody else does, it waits on the queue's interrupt
    /// itself, as the *leader*: a packet then wakes the receiver directly, with no hop over the interrupt's thread.
    pub fn sleep(
        &self,
        waiter: &Arc<Waiter>,
        timeout: Option<Duration>,
        outside: &mut Outside,
    ) -> Wake {
        if !self.handoff.lead() {
            return self.sleep_as_follower(waiter, timeout, outside);
        }
        let deadline = timeout.map(|timeout| time::now() + timeout);
        let before = self.last_leader_pass.load(Ordering::Relaxed).max(self.last_poll().0.nanos());
        let wake = self.sleep_as_leader(waiter, deadline, outside);
        let latest = self.last_leader_pass.load(Ordering::Relaxed);
        let flows = before > 0 && latest.saturating_sub(before) < self.watchdog.as_nanos() as u64;
        // Others who sleep here could not lead, for we did: they rely on the interrupt thread now. So do we, if we go
        // on to sleep as one of them.
        let heir = if wake.is_none() || self.followers.load(Ordering::SeqCst) > 0 {
            self.last_poll.store(0, Ordering::Relaxed);
            Heir::Sleepers
        } else if flows && latest > before {
            self.note_poll(Instant::from_nanos(latest), false);
            Heir::Leader
        } else {
            Heir::Nobody
        };
        match self.handoff.resign(heir) {
            Parting::Nothing => {}
            Parting::Arm => self.line.arm(),
            Parting::Call => self.line.kick(),
        }
        match wake {
            Some(wake) => wake,
            None => {
                let left = deadline.map(|deadline| deadline - time::now());
                self.sleep_as_follower(waiter, left, outside)
            }
        }
    }

    fn sleep_as_follower(
        &self,
        waiter: &Waiter,
        timeout: Option<Duration>,
        outside: &mut Outside,
    ) -> Wake {
        self.followers.fetch_add(1, Ordering::SeqCst);
        self.reset_backoff();
        let wake = waiter.sleep(timeout, outside);
        self.followers.fetch_sub(1, Ordering::SeqCst);
        wake
    }

    /// `None`: others drive the queue; sleep without its interrupt.
    fn sleep_as_leader(
        &self,
        waiter: &Arc<Waiter>,
        deadline: Option<Instant>,
        outside: &mut Outside,
    ) -> Option<Wake> {
        let interrupt = self.line.interrupt.fd();
        // Who minds things outside polls them all in one call, and is not helped by what stays registered.
        let has_kernel_fds = !outside.is_empty();
        if !has_kernel_fds && self.line.bedside.admit(waiter, interrupt).is_err() {
            return None;
        }
        if self.handoff.take_interrupt() {
            self.line.disarm();
        }
        let mut empty_polls = 0;
        loop {
            if self.line.interrupt.unmask() {
                let wake = if has_kernel_fds {
                    let left = deadline.map(|deadline| deadline - time::now());
                    waiter.sleep_among(Some(interrupt), left, outside)
                } else {
                    waiter.sleep_beside(&self.line.bedside, deadline)
                };
                // It may have fired beside a wake-up, too, and would not say so again.
                self.line.interrupt.mask();
                if wake != Wake::Readable {
                    return Some(wake);
                }
                self.counters.interrupts.add_shared();
            }
            let now = time::now();
            self.last_leader_pass.store(now.nanos(), Ordering::Relaxed);
            match self.napi_poll(now) {
                None => return None,
                Some(0) if empty_polls == 2 => return None,
                Some(0) => empty_polls += 1,
                Some(_) => empty_polls = 0,
            }
            if waiter.is_woken() {
                return Some(Wake::Woken);
            }
        }
    }
}
