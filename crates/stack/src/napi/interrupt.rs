//! The interrupt's side of a context: the line that fires and the thread that answers. Linux's softirq,
//! as a thread: it sleeps on the armed interrupt, polls the queue until it is empty, arms, sleeps.
//!
//! The same thread is the watchdog: while pollers come and go the interrupt stays masked, and the thread
//! only looks now and then whether they have gone.

use super::{context::NAPI_POLL_WEIGHT, handoff::Rest, wait::Bedside};
use crate::{
    napi::Context,
    nic::Interrupt,
    sync::{Arc, AtomicU32, AtomicU64, Ordering},
    sys,
    time::{self, Instant},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// For so many times the watchdog's time the queue is left to pollers that are preferred; no look is later
/// after their last poll. With the default of 200 us a packet left behind still waits less than 1 ms.
pub(super) const WATCHDOG_STRETCH: u32 = 4;

const INTERRUPT: u64 = 0;
const CALL: u64 = 1;
const ALARM: u64 = 2;

/// The line from the queue's interrupt to its thread.
pub(super) struct Line {
    pub(super) interrupt: Arc<dyn Interrupt>,
    /// Where a leader waits for it.
    pub(super) bedside: Bedside,
    epoll: OwnedFd,
    call: OwnedFd,
    /// The watchdog's. Pollers set it on while they are at it, so that the thread need not wake to see that
    /// they are: a wake-up beside a spinner costs the spinner tens of microseconds.
    alarm: sys::Alarm,
    stop: AtomicU32,
    /// When the thread wakes by itself at the latest, in nanoseconds; the end of time while it is awake.
    wakes: AtomicU64,
}

impl Line {
    pub(super) fn new(interrupt: Arc<dyn Interrupt>) -> io::Result<Line> {
        let epoll = sys::epoll()?;
        let call = sys::eventfd()?;
        let alarm = sys::Alarm::new()?;
        let add = |fd: RawFd, events, data| {
            sys::epoll_control(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, events, data)
        };
        add(call.as_raw_fd(), libc::EPOLLIN as u32, CALL)?;
        add(alarm.fd().as_raw_fd(), libc::EPOLLIN as u32, ALARM)?;
        add(interrupt.fd().as_raw_fd(), 0, INTERRUPT)?;
        Ok(Line {
            bedside: Bedside::new(interrupt.fd())?,
            interrupt,
            epoll,
            call,
            alarm,
            stop: AtomicU32::new(0),
            wakes: AtomicU64::new(u64::MAX),
        })
    }

    /// The next event of the unmasked interrupt wakes the thread, once.
    pub(super) fn arm(&self) {
        if !self.interrupt.unmask() {
            // Packets wait and nobody else is there to take them.
            return self.call();
        }
        let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        self.modify(events);
    }

    /// The interrupt no longer wakes the thread.
    pub(super) fn disarm(&self) {
        self.modify(0);
    }

    fn modify(&self, events: u32) {
        let fd = self.interrupt.fd().as_raw_fd();
        // Both descriptors are ours and registered: it cannot fail but for want of kernel memory, and then
        // the thread is called to look for itself.
        let epoll = self.epoll.as_raw_fd();
        if sys::epoll_control(epoll, libc::EPOLL_CTL_MOD, fd, events, INTERRUPT).is_err() {
            self.call();
        }
    }

    /// Wakes the thread, whatever it waits for.
    pub(super) fn call(&self) {
        sys::signal(self.call.as_raw_fd());
    }

    /// The watchdog is to look after `span`, not earlier.
    #[cold]
    pub(super) fn put_off(&self, span: Duration) {
        self.alarm.set(span);
    }

    /// Sees to it that the thread is awake by `deadline`.
    pub(super) fn call_by(&self, deadline: Instant) {
        if deadline.nanos() < self.wakes.load(Ordering::SeqCst) {
            self.call();
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(1, Ordering::Release);
        self.call();
    }

    /// Sleeps until the armed interrupt fires, a call, the alarm, or `timeout`. True if the interrupt fired.
    fn sleep(&self, watching: bool, timeout: Option<Duration>) -> bool {
        let wakes = timeout.map_or(u64::MAX, |timeout| (time::now() + timeout).nanos());
        self.wakes.store(wakes, Ordering::SeqCst);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 3];
        let alarm = watching.then_some(&self.alarm);
        let count = sys::epoll_wait_alarm(self.epoll.as_raw_fd(), &mut events, alarm, timeout);
        let ready = &events[..usize::try_from(count).unwrap_or(0)];
        if ready.iter().any(|event| event.u64 == CALL) {
            sys::drain(self.call.as_raw_fd());
        }
        if watching || ready.iter().any(|event| event.u64 == ALARM) {
            self.alarm.set(Duration::ZERO);
        }
        ready.iter().any(|event| event.u64 == INTERRUPT)
    }
}

/// The interrupt thread's whole life.
pub(super) fn serve(context: &Context) {
    let mut fired = false;
    let mut watched = false;
    let mut watch = context.watchdog;
    // 1 ns: the default slack of 50 us would add to every watchdog and timer.
    // SAFETY: changes nothing but this thread's timer slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    while context.line.stop.load(Ordering::Acquire) == 0 {
        context.handoff.run();
        // From here on a new deadline calls us: we may already have asked for the next one.
        context.line.wakes.store(u64::MAX, Ordering::SeqCst);
        let due = context.tick();
        let found = look(context, fired, watched);
        watched = matches!(found, Look::Watch(_));
        match found {
            Look::Again => fired = false,
            Look::Watch(most) => {
                context.handoff.watch();
                context.line.alarm.set(watch.min(most));
                context.line.sleep(true, until(due));
                fired = false;
                watch = (watch * 2).min(context.watchdog * WATCHDOG_STRETCH);
            }
            Look::Rest => {
                watch = context.watchdog;
                // A leader that sleeps relies on the interrupt being unmasked, and we may have masked it.
                if !context.line.interrupt.unmask() {
                    // Nor leave it to a leader that has not got so far: that would be to spin on it.
                    fired = false;
                    continue;
                }
                if context.handoff.rest() == Rest::Arm {
                    context.line.arm();
                }
                fired = context.line.sleep(false, until(due));
                if fired {
                    context.counters.interrupts.add_shared();
                }
            }
        }
    }
}

enum Look {
    /// There may be more: look again at once.
    Again,
    /// Pollers are about: leave the queue to them and look again, after this time at the most.
    Watch(Duration),
    /// The queue is empty.
    Rest,
}

fn look(context: &Context, fired: bool, watched: bool) -> Look {
    let now = time::now();
    if let Some(most) = context.polled_lately(now) {
        return Look::Watch(most);
    }
    if fired && context.handoff.has_leader() {
        // It was woken by the same packet, and takes it.
        return Look::Rest;
    }
    if !context.handoff.has_leader() {
        context.line.interrupt.mask();
    }
    match context.napi_poll(now) {
        None => {
            if context.handoff.has_leader() {
                context.line.interrupt.unmask();
            }
            Look::Watch(context.watchdog)
        }
        Some(found) => {
            if found > 0 && watched {
                context.counters.watchdogs.add(1);
            }
            if found == NAPI_POLL_WEIGHT { Look::Again } else { Look::Rest }
        }
    }
}

/// How long it is until a deadline.
fn until(due: Option<Instant>) -> Option<Duration> {
    due.map(|due| due - time::now())
}
