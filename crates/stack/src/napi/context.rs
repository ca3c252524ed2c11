//! A NAPI context: one receive queue, its ownership word and its counters. The two ways in meet here: a receiving
//! thread calls [`Context::busy_poll`], the interrupt thread ([`interrupt`](super::interrupt)) calls
//! [`Context::napi_poll`], and both call the same [`Context::drive`].

use super::{
    KernelFds, NapiId, Pass, PolledBy, Poller, Upper, Waiter, Wake, Word,
    asleep::any_unbound_sleeper,
    counters::{PlacedCounters, Stats},
    handoff::{Handoff, ResignAction, Successor},
    interrupt::Line,
    word::Refused,
};
use crate::{
    nic::{Interrupt, RxQueue},
    sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, fence, spin_wait},
    time::{self, Instant},
};
use std::{hint::cold_path, io, sync::atomic::AtomicU8, time::Duration};

/// The most packets of one pass on behalf of the interrupt (`NAPI_POLL_WEIGHT`).
pub const NAPI_POLL_WEIGHT: usize = 64;

/// The most packets of one busy-poll pass unless set otherwise (`BUSY_POLL_BUDGET`).
pub const BUSY_POLL_BUDGET: usize = 8;

/// The watchdog checks a queue this many times its period after the last poll. With the default period of 200 us, a
/// packet that pollers left behind waits less than 1 ms, if it could wake a thread. Preferred pollers keep the queue
/// this long; so do all pollers while no thread sleeps.
const GRACE_FACTOR: u32 = 4;

/// A check that finds pollers and no sleeper but a leader doubles the time to the next check, at most this many times:
/// to 6.4 ms with the default period. A check costs a poller on the same CPU some microseconds.
const MAX_BACKOFF: u8 = 3;

/// So many passes that do not wake the leader end its turn: it sleeps on as a follower.
const LEADER_PASSES: u32 = 64;

/// How many times one busy-poll pass polls a ring that stays empty.
const EMPTY_POLLS: u32 = 8;

/// The result of a busy-poll pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyPoll {
    /// This many packets were delivered, to any socket.
    Found(usize),
    /// Another thread owns the queue: look at your own socket and try again.
    Refused,
    /// The context is closed for good.
    Gone,
}

/// What a context is made of.
pub struct Parts<U: Upper> {
    /// The name of the device.
    pub device: String,
    /// The number of the queue on that device.
    pub queue: u32,
    /// The queue.
    pub rx: Box<dyn RxQueue>,
    /// Its interrupt.
    pub interrupt: Arc<dyn Interrupt>,
    /// The floor above.
    pub upper: Arc<U>,
    /// The watchdog's period for this queue.
    pub watchdog: Duration,
    /// Where it counts.
    pub counters: PlacedCounters,
}

/// One receive queue.
pub struct Context<U: Upper> {
    id: NapiId,
    device: String,
    queue: u32,
    pub(super) word: Word,
    rx: UnsafeCell<Box<dyn RxQueue>>,
    upper: Arc<U>,
    pub(super) counters: PlacedCounters,
    pub(super) handoff: Handoff,
    pub(super) line: Line,
    watchdog: Duration,
    /// When a poller last owned the queue, in nanoseconds; 0 if the queue is left to no poller. The lowest bit: the
    /// poller is preferred.
    last_poll: AtomicU64,
    /// How many times the time to the watchdog's next check was doubled. Not an atomic of [`crate::sync`], because it
    /// only decides when checks happen.
    backoff: AtomicU8,
    /// When a leader last polled the queue, in nanoseconds: shows how fast packets come.
    last_leader_pass: AtomicU64,
    /// Threads asleep here that are not the leader.
    followers: AtomicU32,
}

// SAFETY: `rx` is the only field that is not Sync, and only the owner by `word` touches it.
unsafe impl<U: Upper> Sync for Context<U> {}

impl<U: Upper> std::fmt::Debug for Context<U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("id", &self.id).field("device", &self.device).finish()
    }
}

/// Ownership of the queue, released also when a pass panics.
struct Owned<'a>(&'a Word);

impl Drop for Owned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl<U: Upper> Context<U> {
    pub(super) fn new(id: NapiId, parts: Parts<U>) -> io::Result<Context<U>> {
        Ok(Context {
            id,
            device: parts.device,
            queue: parts.queue,
            word: Word::new(),
            rx: UnsafeCell::new(parts.rx),
            upper: parts.upper,
            counters: parts.counters,
            handoff: Handoff::new(),
            line: Line::new(parts.interrupt)?,
            watchdog: parts.watchdog,
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

    /// Its counters. Makes a system call over AF_XDP, where the kernel counts dropped packets.
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
    pub fn busy_poll(&self, budget: usize, now: Instant, poller: &mut Poller<'_, U>) -> BusyPoll {
        if let Err(refused) = self.word.lock_poll() {
            return self.refused(refused);
        }
        let owned = Owned(&self.word);
        self.note_poll(now, poller.prefer);
        let mut pass = Pass {
            direct: poller.direct.as_mut().map(|direct| &mut **direct as _),
            expected_flow: poller.expected_flow,
            expected_socket: poller.expected_socket,
            ..Pass::new(Some(self.id), now, PolledBy::BusyPoll(poller.name))
        };
        let mut found = 0;
        // Polling an empty ring costs a few instructions, taking and releasing the queue tens of nanoseconds: poll
        // more than once.
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

    /// One pass on behalf of the interrupt, by the interrupt thread or by a leader. `None` if refused.
    pub(super) fn napi_poll(&self, now: Instant) -> Option<usize> {
        if self.word.lock_napi().is_err() {
            self.counters.napi_yields.add_shared();
            return None;
        }
        let owned = Owned(&self.word);
        let mut pass = Pass::new(Some(self.id), now, PolledBy::Interrupt);
        let found = self.drive(NAPI_POLL_WEIGHT, &mut pass);
        self.counters.polls.add(1);
        drop(owned);
        pass.wake.wake_all();
        Some(found)
    }

    /// The pass of both ways in: from the ring, frame by frame, to the floor above. The caller owns the queue.
    #[inline]
    fn drive(&self, budget: usize, pass: &mut Pass<'_, U>) -> usize {
        let upper = &*self.upper;
        pass.batched = true;
        let found = self.rx.with_mut(|rx| {
            // SAFETY: the caller owns the queue by `word`; no other thread touches `rx` until it is released.
            unsafe { &mut *rx }.poll(budget, &mut |frame| upper.receive(frame, pass))
        });
        if found > 0 {
            self.counters.packets.add(found as u64);
            upper.end_of_pass(pass);
        }
        found
    }

    /// Runs the timers of the floor above. Returns when it wants the next call.
    pub(super) fn tick(&self) -> Option<Instant> {
        let mut pass = Pass::new(Some(self.id), time::now(), PolledBy::Interrupt);
        let next = self.upper.tick(&mut pass);
        pass.wake.wake_all();
        next
    }

    /// Makes the interrupt thread call [`Upper::tick`] by `deadline`. For a deadline set outside of `tick`.
    pub fn tick_by(&self, deadline: Instant) {
        self.line.kick_by(deadline);
    }

    /// Records that a poller owns the queue at `now`.
    #[inline]
    pub(super) fn note_poll(&self, now: Instant, prefer: bool) {
        self.last_poll.store(now.nanos() & !1 | u64::from(prefer), Ordering::Relaxed);
    }

    /// When a poller last owned the queue, and whether it is preferred.
    fn last_poll(&self) -> (Instant, bool) {
        let noted = self.last_poll.load(Ordering::Relaxed);
        (Instant::from_nanos(noted & !1), noted & 1 != 0)
    }

    /// Whether a thread sleeps that a packet of this queue could wake. If none does, the receivers are computing, and
    /// polling the ring now would only take CPU time from them.
    pub(super) fn has_sleeper(&self) -> bool {
        self.has_dependent_sleeper() || self.handoff.has_leader()
    }

    /// Whether a thread sleeps that would not notice a packet left on the ring. A leader would: it waits on the
    /// interrupt.
    fn has_dependent_sleeper(&self) -> bool {
        self.followers.load(Ordering::SeqCst) > 0 || any_unbound_sleeper()
    }

    /// Unmasks the line on which a leader sleeps. True if frames wait: then the line is masked and does not wake it, and
    /// the caller has them polled.
    pub(super) fn rearm_for_leader(&self) -> bool {
        self.handoff.has_leader() && !self.line.interrupt.unmask()
    }

    /// Whether the queue was polled recently enough to stay with its pollers.
    pub(super) fn is_polled(&self, now: Instant) -> bool {
        self.in_grace(now, self.has_sleeper())
    }

    /// Whether the last poller's grace period is not over yet. It is longer if no thread sleeps.
    fn in_grace(&self, now: Instant, has_sleeper: bool) -> bool {
        let (last, prefers) = self.last_poll();
        let grace = if prefers || !has_sleeper { self.max_grace() } else { self.watchdog };
        last != Instant::ZERO && now.since(last) < grace
    }

    /// When the watchdog must check the queue at the latest.
    pub(super) fn check_due(&self) -> Instant {
        let backoff = self.backoff.load(Ordering::Relaxed);
        self.last_poll().0 + self.max_grace().saturating_mul(1 << backoff)
    }

    fn max_grace(&self) -> Duration {
        self.watchdog.saturating_mul(GRACE_FACTOR)
    }

    /// The watchdog's check. False: there is nothing to watch any more, or pollers have left and the interrupt thread
    /// was kicked.
    pub(super) fn check_pollers(&self, now: Instant) -> bool {
        if !self.handoff.is_watching() {
            return false;
        }
        if self.word.is_polled() {
            // A pass may take long, because its answers may be sent by a system call. Its thread has not left.
            self.note_poll(now, self.last_poll().1);
        }
        let polled = self.in_grace(now, self.has_sleeper());
        let may_wait = polled && !self.rearm_for_leader() && !self.has_dependent_sleeper();
        let backoff = match may_wait {
            true => MAX_BACKOFF.min(self.backoff.load(Ordering::Relaxed) + 1),
            false => 0,
        };
        self.backoff.store(backoff, Ordering::Relaxed);
        if polled {
            // A poller may have slept in between.
            self.line.leader_epoll.detach(|| self.handoff.has_leader());
        } else {
            self.line.kick();
        }
        polled
    }

    /// A thread that relies on the watchdog goes to sleep: the next check comes after the shortest time again.
    pub(super) fn reset_backoff(&self) {
        if self.backoff.load(Ordering::Relaxed) > 0 && self.backoff.swap(0, Ordering::Relaxed) > 0 {
            // The interrupt thread registers with the watchdog anew, which then checks in time.
            self.line.kick();
        }
    }

    /// The caller stops polling, and sleeps where this context does not see it: in a runtime, or in the kernel. The
    /// interrupt thread takes the queue over at once; the watchdog would let the next packet wait.
    pub(crate) fn leave_to_interrupt(&self) {
        self.last_poll.store(0, Ordering::Relaxed);
        // The interrupt thread stores its state, then loads `last_poll`: one of the two sees the other's store. (If the
        // processor has reordered those, the watchdog makes up for it later.)
        fence(Ordering::SeqCst);
        if self.handoff.needs_kick() {
            self.line.kick();
        }
    }

    /// The same, if the queue is left to pollers.
    pub(crate) fn leave_to_interrupt_if_polled(&self) {
        if self.last_poll.load(Ordering::Relaxed) != 0 {
            self.leave_to_interrupt();
        }
    }

    /// Puts the calling thread to sleep until `waiter` is woken, `timeout` is over (`None`: never), a signal was
    /// handled, or a descriptor of `kernel_fds` is ready. If no other thread does, it waits on the queue's interrupt
    /// itself, as the *leader*: a packet then wakes the receiver directly, without a hop over the interrupt thread.
    pub fn sleep(
        &self,
        waiter: &Arc<Waiter>,
        timeout: Option<Duration>,
        kernel_fds: &mut KernelFds,
    ) -> Wake {
        if !self.handoff.lead() {
            return self.sleep_as_follower(waiter, timeout, kernel_fds);
        }
        let deadline = timeout.map(|timeout| time::now() + timeout);
        let before = self.last_leader_pass.load(Ordering::Relaxed).max(self.last_poll().0.nanos());
        let wake = self.sleep_as_leader(waiter, deadline, kernel_fds);
        let latest = self.last_leader_pass.load(Ordering::Relaxed);
        let flows = before > 0 && latest.saturating_sub(before) < self.watchdog.as_nanos() as u64;
        // Threads that came to sleep while we led are followers: they rely on the interrupt thread now. So does this
        // thread, if it goes on sleeping as a follower.
        let successor = if wake.is_none() || self.followers.load(Ordering::SeqCst) > 0 {
            self.last_poll.store(0, Ordering::Relaxed);
            Successor::Followers
        } else if flows && latest > before {
            self.note_poll(Instant::from_nanos(latest), false);
            Successor::Leader
        } else {
            Successor::InterruptThread
        };
        match self.handoff.resign(successor) {
            ResignAction::Nothing => {}
            ResignAction::Arm => self.line.arm(),
            ResignAction::Kick => self.line.kick(),
        }
        match wake {
            Some(wake) => wake,
            None => {
                let left = deadline.map(|deadline| deadline - time::now());
                self.sleep_as_follower(waiter, left, kernel_fds)
            }
        }
    }

    fn sleep_as_follower(
        &self,
        waiter: &Waiter,
        timeout: Option<Duration>,
        kernel_fds: &mut KernelFds,
    ) -> Wake {
        self.followers.fetch_add(1, Ordering::SeqCst);
        self.reset_backoff();
        let wake = waiter.sleep(timeout, kernel_fds);
        self.followers.fetch_sub(1, Ordering::SeqCst);
        wake
    }

    /// `None`: other threads poll the queue; sleep without its interrupt.
    fn sleep_as_leader(
        &self,
        waiter: &Arc<Waiter>,
        deadline: Option<Instant>,
        kernel_fds: &mut KernelFds,
    ) -> Option<Wake> {
        let interrupt = self.line.interrupt.fd();
        // Of other descriptors of the kernel's a registration gains nothing: one ppoll waits for all.
        let place = match kernel_fds.are_kept() {
            false => None,
            true => {
                let kept = kernel_fds.kept();
                match self.line.leader_epoll.register(waiter, interrupt, kept) {
                    Err(_) if kept.is_none() => return None,
                    registered => registered.ok(),
                }
            }
        };
        if self.handoff.take_interrupt() {
            self.line.disarm();
        }
        let (mut empty_polls, mut passes) = (0, 0);
        loop {
            if place.is_none() {
                // ppoll(2) would return for an edge that is left.
                self.line.interrupt.clear_edges();
            }
            if self.line.interrupt.unmask() {
                // It may have fired together with a wake-up, and would not report that again: so it is masked.
                let wake = match place {
                    Some(place) => {
                        let leader_epoll = &self.line.leader_epoll;
                        let wake = waiter.sleep_on_leader_epoll(leader_epoll, place, deadline);
                        self.line.interrupt.mask_for_edges();
                        wake
                    }
                    None => {
                        let left = deadline.map(|deadline| deadline - time::now());
                        let wake = waiter.sleep_with_fd(Some(interrupt), left, kernel_fds);
                        self.line.interrupt.mask();
                        wake
                    }
                };
                if wake != Wake::Interrupt {
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
            // A flood for other threads must not keep this one from its deadline and from `kernel_fds`.
            passes += 1;
            if passes == LEADER_PASSES {
                return None;
            }
        }
    }
}
