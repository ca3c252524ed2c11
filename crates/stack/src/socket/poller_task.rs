//! The poller task: a task of an async runtime that busy polls a host's queues while the runtime's other tasks wait.

use super::{
    per_cpu_spinner::{GRACE_PERIOD, Spinner},
    yield_policy::YieldPolicy,
};
use crate::{
    Host,
    host::PollerSlot,
    inet::{Context, Poller},
    napi::{BUSY_POLL_BUDGET, BusyPoll},
    time::{self, Instant},
};
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

/// Busy polls the queues of a [`Host`] for the tasks of an async runtime, as a blocking call does for its thread: after a
/// task has begun to wait, and after each packet, for `busy_poll`; then it leaves the queues to their interrupts until
/// the next task waits. Spawn it once for each host, on the runtime whose tasks use the host's sockets.
///
/// It makes one pass over each queue and lets the other tasks run, so timers, tasks and other I/O go on meanwhile. It
/// is for runtimes of one thread: in others its wake-ups cross threads. As every busy-polling thread it needs a CPU of
/// its own; a thread that finds another one polling on its CPU stops.
///
/// It ends when the host is closed.
#[derive(Debug)]
pub struct PollerTask {
    slot: Arc<PollerSlot>,
    contexts: Vec<Arc<Context>>,
    span: Duration,
    /// The busy poll in progress.
    turn: Option<Turn>,
}

/// One busy poll: as one call of a blocking thread.
#[derive(Debug)]
struct Turn {
    end: Instant,
    check_cpu_at: Instant,
    yield_policy: YieldPolicy,
    spinner: Option<Spinner>,
}

impl Turn {
    fn begin(now: Instant, span: Duration) -> Turn {
        Turn {
            end: now + span,
            check_cpu_at: now + GRACE_PERIOD,
            yield_policy: YieldPolicy::new(now),
            spinner: None,
        }
    }

    /// Whether to poll on after a pass that found nothing.
    #[inline]
    fn goes_on(&mut self, now: Instant, contexts: &[Arc<Context>]) -> bool {
        if self.yield_policy.is_due(now) && !self.yield_policy.yield_or_sleep(now) {
            return false;
        }
        if now >= self.check_cpu_at && self.spinner.is_none() {
            self.spinner = Spinner::enter();
            if self.spinner.is_none() {
                contexts.iter().for_each(|context| context.count_crowded());
                return false;
            }
        }
        now < self.end
    }
}

impl PollerTask {
    /// The poller task of `host`, which polls for up to `busy_poll` at a time.
    ///
    /// # Errors
    /// EBUSY if the host has one.
    pub fn new(host: &Host, busy_poll: Duration) -> io::Result<PollerTask> {
        let slot = host.poller_slot().clone();
        if !slot.take() {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let contexts = host.contexts().cloned().collect();
        Ok(PollerTask { slot, contexts, span: busy_poll, turn: None })
    }

    /// One pass over each queue. `None` if all are closed.
    #[inline]
    fn pass(&self, now: Instant) -> Option<usize> {
        let mut poller = Poller::new(Arc::as_ptr(&self.slot).addr());
        let (mut found, mut gone) = (0, 0);
        for context in &self.contexts {
            match context.busy_poll(BUSY_POLL_BUDGET, now, &mut poller) {
                BusyPoll::Found(count) => found += count,
                BusyPoll::Refused => {}
                BusyPoll::Gone => gone += 1,
            }
        }
        (gone < self.contexts.len()).then_some(found)
    }

    fn leave_to_interrupts(&self) {
        self.contexts.iter().for_each(|context| context.leave_to_interrupt());
    }
}

impl Future for PollerTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let now = time::now();
        let Some(found) = this.pass(now) else { return Poll::Ready(()) };
        let waiter = this.slot.waiter();
        if found > 0 || waiter.is_woken() {
            waiter.start();
            this.turn = Some(Turn::begin(now, this.span));
        }
        if this.turn.as_mut().is_some_and(|turn| turn.goes_on(now, &this.contexts)) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.turn = None;
        if waiter.arm_task(cx.waker()) {
            this.leave_to_interrupts();
        } else {
            // A task has begun to wait meanwhile.
            waiter.wake();
        }
        Poll::Pending
    }
}

impl Drop for PollerTask {
    fn drop(&mut self) {
        self.slot.release();
        self.leave_to_interrupts();
    }
}
