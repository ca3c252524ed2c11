//! The busy loop: the receiving thread drives the queues itself until what it waits for is there. Linux's
//! `napi_busy_loop`.

use super::{
    courtesy::Courtesy,
    crowd::{PATIENCE, Spinner},
};
use crate::{
    napi::{BusyPoll, Context, Poller},
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
pub(super) enum Busy {
    /// What was waited for is there.
    Ready,
    /// The time is over, or others need this CPU: one that busy polls, too, or computes.
    TimeOver,
    /// Every context is gone.
    Gone,
}

/// How long and how much to busy poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// How long; no time at all makes exactly one pass over each queue.
    pub(super) span: Duration,
    /// Packets a pass.
    pub(super) budget: usize,
    /// The caller itself will not wait longer than this.
    pub(super) deadline: Option<Instant>,
}

/// Polls `contexts` in turn until `ready`, which is told the time and how many packets the last look has found, or
/// until the poller has its own find. Takes no lock, and makes no system call before [`Courtesy`] is due. A queue
/// that someone else owns is passed over: its packets come to us by that owner's hand.
///
/// A signal's handler may run in the midst of it and goes unnoticed; one that was put off ([`signal`]) ends it.
#[inline]
pub(super) fn busy_loop(
    contexts: &[Arc<Context>],
    terms: &Terms,
    poller: &mut Poller<'_>,
    mut ready: impl FnMut(Instant, usize) -> bool,
) -> Busy {
    let mut now = time::now();
    let patient_until = now + PATIENCE;
    let mut courtesy = Courtesy::new(now);
    let mut spinner = None;
    let end = now + terms.span;
    let end = terms.deadline.map_or(end, |deadline| end.min(deadline));
    loop {
        let mut gone = 0;
        for context in contexts {
            let found = match context.busy_poll(terms.budget, now, poller) {
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
            if poller.direct.as_ref().is_some_and(|direct| direct.is_filled()) || ready(now, found)
            {
                return Busy::Ready;
            }
        }
        if gone == contexts.len() {
            return Busy::Gone;
        }
        if courtesy.is_due(now) && !courtesy.pay(now) {
            return Busy::TimeOver;
        }
        now = time::now();
        if now >= end || signal::is_put_off() {
            cold_path();
            return Busy::TimeOver;
        }
        if now >= patient_until && spinner.is_none() {
            cold_path();
            spinner = Spinner::enter();
            if spinner.is_none() {
                contexts.iter().for_each(|context| context.count_crowded());
                return Busy::TimeOver;
            }
        }
    }
}
