//! The interrupt's side of a context: the interrupt line and the thread that it wakes. It is Linux's softirq
//! as a thread: it sleeps on the armed interrupt, polls the queue until it is empty, arms, sleeps.
//!
//! While pollers come and go the interrupt stays masked and the thread sleeps until it is kicked: by the
//! [watchdog](super::watchdog), when they have left, or for a timer.

use super::{
    context::NAPI_POLL_WEIGHT, handoff::IdleAction, leader_epoll::LeaderEpoll, watchdog::Watchdog,
};
use crate::{
    napi::{Context, Upper},
    nic::Interrupt,
    sync::{Arc, AtomicU32, AtomicU64, Ordering},
    sys,
    time::{self, Instant},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

const INTERRUPT: u64 = 0;
const KICK: u64 = 1;

/// The line from the queue's interrupt to its thread.
pub(super) struct Line {
    pub(super) interrupt: Arc<dyn Interrupt>,
    /// A leader waits here for the interrupt.
    pub(super) leader_epoll: LeaderEpoll,
    epoll: OwnedFd,
    kick_event: OwnedFd,
    /// 1: the interrupt's descriptor is registered in `epoll`, perhaps disabled (EPOLLONESHOT). Only a hint.
    registered: AtomicU32,
    stop: AtomicU32,
    /// When the sleeping thread times out, in nanoseconds; `u64::MAX` if never, or if it is awake.
    wakes_at: AtomicU64,
}

impl Line {
    pub(super) fn new(interrupt: Arc<dyn Interrupt>) -> io::Result<Line> {
        let epoll = sys::epoll()?;
        let kick_event = sys::eventfd()?;
        let events = libc::EPOLLIN as u32;
        let add = libc::EPOLL_CTL_ADD;
        sys::epoll_control(epoll.as_raw_fd(), add, kick_event.as_raw_fd(), events, KICK)?;
        Ok(Line {
            leader_epoll: LeaderEpoll::new()?,
            interrupt,
            epoll,
            kick_event,
            registered: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            wakes_at: AtomicU64::new(u64::MAX),
        })
    }

    /// The next event of the unmasked interrupt wakes the thread, once.
    pub(super) fn arm(&self) {
        self.interrupt.clear_edges();
        if !self.interrupt.unmask() {
            // Packets wait on the ring, and no other thread takes them.
            return self.kick();
        }
        let (add, modify) = (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD);
        let known = self.registered.swap(1, Ordering::Relaxed) != 0;
        let (likely, else_this) = if known { (modify, add) } else { (add, modify) };
        // Both descriptors are ours: the second call can fail only for lack of kernel memory. Then the thread is kicked
        // and polls.
        if self.control(likely).is_err() && self.control(else_this).is_err() {
            self.kick();
        }
    }

    /// The interrupt no longer wakes the thread. Its descriptor is removed, not only masked: the kernel runs the
    /// callback of a registered descriptor for every packet.
    pub(super) fn disarm(&self) {
        if self.registered.swap(0, Ordering::Relaxed) != 0 {
            // It fails if another thread has removed it already.
            let _ = self.control(libc::EPOLL_CTL_DEL);
        }
    }

    fn control(&self, op: libc::c_int) -> io::Result<()> {
        let fd = self.interrupt.fd().as_raw_fd();
        let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        sys::epoll_control(self.epoll.as_raw_fd(), op, fd, events, INTERRUPT)
    }

    /// Wakes the thread, so that it looks at its queue and its timers.
    pub(super) fn kick(&self) {
        sys::signal(self.kick_event.as_raw_fd());
    }

    /// Makes the thread wake by `deadline`.
    pub(super) fn kick_by(&self, deadline: Instant) {
        if deadline.nanos() < self.wakes_at.load(Ordering::SeqCst) {
            self.kick();
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(1, Ordering::Release);
        self.kick();
    }

    /// Sleeps until the armed interrupt fires, a kick, or `timeout`. True if the interrupt fired.
    fn sleep(&self, timeout: Option<Duration>) -> bool {
        let wakes_at = timeout.map_or(u64::MAX, |timeout| (time::now() + timeout).nanos());
        self.wakes_at.store(wakes_at, Ordering::SeqCst);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        let count = sys::epoll_wait(self.epoll.as_raw_fd(), &mut events, timeout);
        let ready = &events[..usize::try_from(count).unwrap_or(0)];
        if ready.iter().any(|event| event.u64 == KICK) {
            sys::drain(self.kick_event.as_raw_fd());
        }
        ready.iter().any(|event| event.u64 == INTERRUPT)
    }
}

/// The interrupt thread's main loop.
pub(super) fn serve<U: Upper>(context: &Arc<Context<U>>, watchdog: &Watchdog<U>) {
    let mut fired = false;
    let mut watched = false;
    // 1 ns: the default slack of 50 us would add to every timer.
    // SAFETY: changes nothing but this thread's timer slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    while context.line.stop.load(Ordering::Acquire) == 0 {
        context.handoff.run();
        // From here on every new deadline kicks this thread: `tick` below may already have returned the next one.
        context.line.wakes_at.store(u64::MAX, Ordering::SeqCst);
        let due = context.tick();
        let found = poll_queue(context, fired, watched);
        watched = matches!(found, NextStep::Watch);
        match found {
            NextStep::PollAgain => fired = false,
            NextStep::Watch => {
                // So that packets run no epoll callbacks meanwhile.
                context.line.disarm();
                context.line.leader_epoll.detach(|| context.handoff.has_leader());
                context.handoff.watch();
                watchdog.watch(context);
                context.line.sleep(until(due));
                fired = false;
            }
            NextStep::Idle => {
                // A sleeping leader relies on the unmasked interrupt, and this thread may have masked it.
                if !context.line.interrupt.unmask() {
                    // Frames wait. Poll them here even if there is a leader: it may not be ready yet, and leaving them
                    // to it would make this loop spin.
                    fired = false;
                    continue;
                }
                if context.handoff.go_idle() == IdleAction::Arm {
                    context.line.arm();
                }
                fired = context.line.sleep(until(due));
                if fired {
                    context.counters.interrupts.add_shared();
                }
            }
        }
    }
}

enum NextStep {
    /// There may be more packets: poll again at once.
    PollAgain,
    /// Threads are busy polling: leave the queue to them and the watchdog.
    Watch,
    /// The queue is empty: sleep.
    Idle,
}

fn poll_queue<U: Upper>(context: &Context<U>, fired: bool, watched: bool) -> NextStep {
    let now = time::now();
    if context.is_polled(now) && !context.rearm_for_leader() {
        return NextStep::Watch;
    }
    if fired && context.handoff.has_leader() {
        // The same packet has woken the leader, which takes it.
        return NextStep::Idle;
    }
    if !context.handoff.has_leader() {
        context.line.interrupt.mask();
    }
    match context.napi_poll(now) {
        None => {
            if context.rearm_for_leader() {
                // The next check of the watchdog must come soon.
                context.reset_backoff();
            }
            // The queue's owner counts as a poller that was here just now.
            context.note_poll(now, false);
            NextStep::Watch
        }
        Some(found) => {
            if found > 0 && watched {
                context.counters.watchdogs.add(1);
            }
            if found == NAPI_POLL_WEIGHT { NextStep::PollAgain } else { NextStep::Idle }
        }
    }
}

/// The time left until a deadline.
fn until(due: Option<Instant>) -> Option<Duration> {
    due.map(|due| due - time::now())
}
