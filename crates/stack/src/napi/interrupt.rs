//! The interrupt's side of a context: the line that fires and the thread that answers. Linux's softirq,
//! as a thread: it sleeps on the armed interrupt, polls the queue until it is empty, arms, sleeps.
//!
//! While pollers come and go the interrupt stays masked and the thread sleeps until it is called: by the
//! [watchdog](super::watchdog), when they have gone, or for a timer.

use super::{context::NAPI_POLL_WEIGHT, handoff::Rest, wait::Bedside, watchdog::Watchdog};
use crate::{
    napi::Context,
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
    /// Where a leader waits for it.
    pub(super) bedside: Bedside,
    epoll: OwnedFd,
    kick_event: OwnedFd,
    /// 1: the interrupt's descriptor is in `epoll`, perhaps without a mask. Only a hint.
    registered: AtomicU32,
    stop: AtomicU32,
    /// When the thread wakes by itself at the latest, in nanoseconds; the end of time while it is awake.
    wakes: AtomicU64,
}

impl Line {
    pub(super) fn new(interrupt: Arc<dyn Interrupt>) -> io::Result<Line> {
        let epoll = sys::epoll()?;
        let kick_event = sys::eventfd()?;
        let events = libc::EPOLLIN as u32;
        let add = libc::EPOLL_CTL_ADD;
        sys::epoll_control(epoll.as_raw_fd(), add, kick_event.as_raw_fd(), events, KICK)?;
        Ok(Line {
            bedside: Bedside::new()?,
            interrupt,
            epoll,
            kick_event,
            registered: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            wakes: AtomicU64::new(u64::MAX),
        })
    }

    /// The next event of the unmasked interrupt wakes the thread, once.
    pub(super) fn arm(&self) {
        if !self.interrupt.unmask() {
            // Packets wait and nobody else is there to take them.
            return self.kick();
        }
        let (add, modify) = (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD);
        let known = self.registered.swap(1, Ordering::Relaxed) != 0;
        let (likely, else_this) = if known { (modify, add) } else { (add, modify) };
        // Both descriptors are ours: the second cannot fail but for want of kernel memory, and then the
        // thread is called to look for itself.
        if self.control(likely).is_err() && self.control(else_this).is_err() {
            self.kick();
        }
    }

    /// The interrupt no longer wakes the thread. Its descriptor is taken out, not only masked: what stays
    /// registered is called back by the kernel for every packet, whoever takes it.
    pub(super) fn disarm(&self) {
        if self.registered.swap(0, Ordering::Relaxed) != 0 {
            // It is not there if another thread was faster.
            let _ = self.control(libc::EPOLL_CTL_DEL);
        }
    }

    fn control(&self, op: libc::c_int) -> io::Result<()> {
        let fd = self.interrupt.fd().as_raw_fd();
        let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        sys::epoll_control(self.epoll.as_raw_fd(), op, fd, events, INTERRUPT)
    }

    /// Wakes the thread, whatever it waits for.
    pub(super) fn kick(&self) {
        sys::signal(self.kick_event.as_raw_fd());
    }

    /// Sees to it that the thread is awake by `deadline`.
    pub(super) fn kick_by(&self, deadline: Instant) {
        if deadline.nanos() < self.wakes.load(Ordering::SeqCst) {
            self.kick();
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(1, Ordering::Release);
        self.kick();
    }

    /// Sleeps until the armed interrupt fires, a call, or `timeout`. True if the interrupt fired.
    fn sleep(&self, timeout: Option<Duration>) -> bool {
        let wakes = timeout.map_or(u64::MAX, |timeout| (time::now() + timeout).nanos());
        self.wakes.store(wakes, Ordering::SeqCst);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        let count = sys::epoll_wait(self.epoll.as_raw_fd(), &mut events, timeout);
        let ready = &events[..usize::try_from(count).unwrap_or(0)];
        if ready.iter().any(|event| event.u64 == KICK) {
            sys::drain(self.kick_event.as_raw_fd());
        }
        ready.iter().any(|event| event.u64 == INTERRUPT)
    }
}

/// The interrupt thread's whole life.
pub(super) fn serve(context: &Arc<Context>, watchdog: &Watchdog) {
    let mut fired = false;
    let mut watched = false;
    // 1 ns: the default slack of 50 us would add to every timer.
    // SAFETY: changes nothing but this thread's timer slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    while context.line.stop.load(Ordering::Acquire) == 0 {
        context.handoff.run();
        // From here on a new deadline calls us: we may already have asked for the next one.
        context.line.wakes.store(u64::MAX, Ordering::SeqCst);
        let due = context.tick();
        let found = poll_queue(context, fired, watched);
        watched = matches!(found, NextStep::Watch);
        match found {
            NextStep::PollAgain => fired = false,
            NextStep::Watch => {
                // Out of every packet's way.
                context.line.disarm();
                context.line.bedside.detach(|| context.handoff.has_leader());
                context.handoff.watch();
                watchdog.watch(context);
                context.line.sleep(until(due));
                fired = false;
            }
            NextStep::Idle => {
                // A leader that sleeps relies on the interrupt being unmasked, and we may have masked it.
                if !context.line.interrupt.unmask() {
                    // Nor leave it to a leader that has not got so far: that would be to spin on it.
                    fired = false;
                    continue;
                }
                if context.handoff.rest() == Rest::Arm {
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
    /// There may be more: look again at once.
    PollAgain,
    /// Pollers are about: leave the queue to them and the watchdog.
    Watch,
    /// The queue is empty.
    Idle,
}

fn poll_queue(context: &Context, fired: bool, watched: bool) -> NextStep {
    let now = time::now();
    if context.is_polled(now) {
        return NextStep::Watch;
    }
    if fired && context.handoff.has_leader() {
        // It was woken by the same packet, and takes it.
        return NextStep::Idle;
    }
    if !context.handoff.has_leader() {
        context.line.interrupt.mask();
    }
    match context.napi_poll(now) {
        None => {
            if context.handoff.has_leader() && !context.line.interrupt.unmask() {
                // The leader sleeps on a masked line: a look soon finds what waits there.
                context.reset_backoff();
            }
            // Its owner is as good as a poller that was there just now.
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

/// How long it is until a deadline.
fn until(due: Option<Instant>) -> Option<Duration> {
    due.map(|due| due - time::now())
}
