//! The busy loop: the waiting thread polls the receive queues itself until its data has come. Linux's
//! `napi_busy_loop`.

use super::{
    per_cpu_spinner::{GRACE_PERIOD, Spinner},
    yield_policy::YieldPolicy,
};
use crate::{
    inet::{Context, Poller},
    napi::BusyPoll,
    signal,
    time::{self, Instant},
};
use std::{
    hint::{cold_path, spin_loop},
    sync::Arc,
    time::Duration,
};

/// How a busy loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BusyLoopEnd {
    /// The data or event has come.
    Ready,
    /// The time is over, a signal was put off, or another thread needs this CPU.
    TimeOver,
    /// Every NAPI context is gone.
    Gone,
}

/// How long and how much to busy poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyLimits {
    /// How long to poll; zero makes exactly one pass over each queue.
    pub(super) span: Duration,
    /// Packets per pass.
    pub(super) budget: usize,
    /// The deadline of the call itself.
    pub(super) deadline: Option<Instant>,
}

/// Polls `contexts` in turn until `ready` returns true or a packet was delivered straight into the poller's buffer.
/// `ready` gets the time and the number of packets of the last pass. Takes no lock, and makes no system call before
/// [`YieldPolicy`] is due. A queue that another thread owns is skipped: its owner delivers our packets.
///
/// A signal handler that runs during the loop does not end it; a signal that was put off ([`signal`]) does.
#[inline]
pub(super) fn busy_loop(
    contexts: &[Arc<Context>],
    limits: &BusyLimits,
    poller: &mut Poller<'_>,
    mut ready: impl FnMut(Instant, usize) -> bool,
) -> BusyLoopEnd {
    let begun = time::now();
    // A request or a response is often there already: all else is for those that wait.
    if let Some(end) = poll_each(contexts, limits.budget, begun, poller, &mut ready) {
        return end;
    }
    let mut now = begun;
    let check_cpu_at = begun + GRACE_PERIOD;
    let mut yield_policy = YieldPolicy::new(begun);
    let mut spinner = None;
    let end = begun + limits.span;
    let end = limits.deadline.map_or(end, |deadline| end.min(deadline));
    loop {
        if yield_policy.is_due(now) && !yield_policy.yield_or_sleep(now) {
            return BusyLoopEnd::TimeOver;
        }
        now = time::now();
        if now >= end || signal::has_deferred_signal() {
            cold_path();
            return BusyLoopEnd::TimeOver;
        }
        if now >= check_cpu_at && spinner.is_none() {
            cold_path();
            spinner = Spinner::enter();
            if spinner.is_none() {
                contexts.iter().for_each(|context| context.count_crowded());
                return BusyLoopEnd::TimeOver;
            }
        }
        if let Some(end) = poll_each(contexts, limits.budget, now, poller, &mut ready) {
            return end;
        }
    }
}

/// One pass over each queue, until one of them ends the loop.
#[inline(always)]
fn poll_each(
    contexts: &[Arc<Context>],
    budget: usize,
    now: Instant,
    poller: &mut Poller<'_>,
    ready: &mut impl FnMut(Instant, usize) -> bool,
) -> Option<BusyLoopEnd> {
    let mut gone = 0;
    for context in contexts {
        let found = match context.busy_poll(budget, now, poller) {
            BusyPoll::Found(found) => found,
            BusyPoll::Refused => {
                cold_path();
                spin_loop();
                0
            }
            BusyPoll::Gone => {
                cold_path();
                gone += 1;
                0
            }
        };
        if poller.direct.as_ref().is_some_and(|direct| direct.is_filled()) || ready(now, found) {
            return Some(BusyLoopEnd::Ready);
        }
    }
    (gone == contexts.len()).then_some(BusyLoopEnd::Gone)
}
