//! Readiness of a socket, its wait queue, and the notification of its watchers.

use crate::napi::{NapiId, Waiter, WakeList};
use std::{
    collections::VecDeque,
    ops::{BitAnd, BitOr},
    sync::Arc,
};

/// A set of events, with the numbers of poll(2) and epoll(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(pub u32);

impl Events {
    /// A receive would not wait: there is data, or the end of it (EPOLLIN). An error alone is [`ERROR`](Events::ERROR)
    /// only, as in Linux.
    pub const READABLE: Events = Events(libc::EPOLLIN as u32);
    /// A send would not wait (EPOLLOUT).
    pub const WRITABLE: Events = Events(libc::EPOLLOUT as u32);
    /// An error is pending (EPOLLERR); reported whether asked for or not.
    pub const ERROR: Events = Events(libc::EPOLLERR as u32);
    /// Both directions are shut down (EPOLLHUP); reported whether asked for or not.
    pub const HANGUP: Events = Events(libc::EPOLLHUP as u32);
    /// The peer sends no more, or receiving is shut down here (EPOLLRDHUP).
    pub const READ_HANGUP: Events = Events(libc::EPOLLRDHUP as u32);
    /// Urgent data can be received (EPOLLPRI).
    pub const URGENT: Events = Events(libc::EPOLLPRI as u32);
    /// Edge-triggered (EPOLLET).
    pub const EDGE: Events = Events(libc::EPOLLET as u32);
    /// Report once, then not again until the member is modified (EPOLLONESHOT).
    pub const ONE_SHOT: Events = Events(libc::EPOLLONESHOT as u32);
    /// Wake only one of the sets that watch a socket with this flag (EPOLLEXCLUSIVE).
    pub const EXCLUSIVE: Events = Events(libc::EPOLLEXCLUSIVE as u32);
    /// EPOLLRDNORM: with [`READABLE`](Events::READABLE), always.
    const READ_NORMAL: Events = Events(libc::EPOLLRDNORM as u32);
    /// EPOLLWRNORM: with [`WRITABLE`](Events::WRITABLE), always.
    const WRITE_NORMAL: Events = Events(libc::EPOLLWRNORM as u32);

    /// No event.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether any of `events` is in the set.
    pub const fn has(self, events: Events) -> bool {
        self.0 & events.0 != 0
    }

    /// The events of `self` that are reported to a watcher with this `interest`.
    pub fn reported(self, interest: Events) -> Events {
        let mut there = self;
        if self.has(Events::READABLE) {
            there = there | Events::READ_NORMAL;
        }
        if self.has(Events::WRITABLE) {
            there = there | Events::WRITE_NORMAL;
        }
        there & (interest | Events::ERROR | Events::HANGUP)
    }
}

impl BitOr for Events {
    type Output = Events;
    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

impl BitAnd for Events {
    type Output = Events;
    fn bitand(self, other: Events) -> Events {
        Events(self.0 & other.0)
    }
}

/// A watcher of a socket: a member of an epoll set, a poll in progress.
pub trait Watch: Send + Sync {
    /// The socket has `events`, from the NAPI context `napi`. Called without the socket's lock.
    /// True if a thread waits here that will handle them.
    fn notify(&self, events: Events, napi: Option<NapiId>, wake: &mut WakeList) -> bool;

    /// The socket is closed and has no more events. Called without the socket's lock.
    fn closed(&self) {}

    /// Whether the threads that wait for it ask each source for a
    /// [companion to poll](super::source::Source::companion_to_poll).
    fn polls_companions(&self) -> bool {
        false
    }

    /// Whether the event may stop at the first such watcher that handles it ([`Events::EXCLUSIVE`]).
    fn is_exclusive(&self) -> bool {
        false
    }
}

/// Notifies `watchers` of `events`: all of them, except the exclusive ones after the first that handles the event.
pub(super) fn notify_watchers(
    watchers: Option<&Watchers>,
    events: Events,
    napi: Option<NapiId>,
    wake: &mut WakeList,
) {
    let mut handled = false;
    for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
        if watch.is_exclusive() {
            handled = handled || watch.notify(events, napi, wake);
        } else {
            watch.notify(events, napi, wake);
        }
    }
}

/// The waiters of one socket: sleepers, of which an event wakes the first, and watchers, which are all notified.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// The waiter that has slept longest. Most often it is the only one.
    first: Option<Arc<Waiter>>,
    /// The waiters behind it. Boxed, to keep an idle socket small.
    #[allow(clippy::box_collection)]
    rest: Option<Box<VecDeque<Arc<Waiter>>>>,
    /// Shared with threads that notify them without the socket's lock.
    watchers: Option<Watchers>,
}

/// The watchers of one socket.
pub(super) type Watchers = Arc<Vec<Arc<dyn Watch>>>;

impl WaitQueue {
    /// The number of sleepers and watchers.
    pub(super) fn len(&self) -> usize {
        self.sleepers() + self.watchers.as_ref().map_or(0, |watchers| watchers.len())
    }

    fn sleepers(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    pub(super) fn add_sleeper(&mut self, waiter: Arc<Waiter>) {
        waiter.set_queued(true);
        match &self.first {
            None => self.first = Some(waiter),
            Some(_) => self.rest.get_or_insert_default().push_back(waiter),
        }
    }

    /// True if the waiter was still queued, false if a wake-up had removed it.
    pub(super) fn remove_sleeper(&mut self, waiter: &Arc<Waiter>) -> bool {
        let is = |sleeper: &Arc<Waiter>| Arc::ptr_eq(sleeper, waiter);
        if self.first.as_ref().is_some_and(is) {
            return self.pop_sleeper().is_some();
        }
        let off = self.rest.as_mut().and_then(|rest| rest.remove(rest.iter().position(is)?));
        off.inspect(|off| off.set_queued(false)).is_some()
    }

    #[inline]
    pub(super) fn pop_sleeper(&mut self) -> Option<Arc<Waiter>> {
        let off = self.first.take()?;
        self.first = self.rest.as_mut().and_then(|rest| rest.pop_front());
        off.set_queued(false);
        Some(off)
    }

    /// Allocates only for more watchers than ever before, or while they are being notified.
    pub(super) fn add_watcher(&mut self, watch: Arc<dyn Watch>) {
        Arc::make_mut(self.watchers.get_or_insert_default()).push(watch);
    }

    pub(super) fn remove_watcher(&mut self, watch: &Arc<dyn Watch>) {
        if let Some(watchers) = &mut self.watchers {
            Arc::make_mut(watchers).retain(|watcher| !Arc::ptr_eq(watcher, watch));
        }
    }

    /// The watchers, to be notified after the socket's lock is released.
    #[inline]
    pub(super) fn watchers(&self) -> Option<Watchers> {
        self.watchers.as_ref().filter(|watchers| !watchers.is_empty()).cloned()
    }

    /// Removes and returns the watchers.
    pub(super) fn take_watchers(&mut self) -> Option<Watchers> {
        self.watchers.take()
    }

    /// Removes and returns all sleepers, for an event that concerns all of them.
    pub(super) fn drain_sleepers(&mut self) -> impl Iterator<Item = Arc<Waiter>> {
        std::iter::from_fn(|| self.pop_sleeper())
    }
}

impl std::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} asleep, watched: {}", self.sleepers(), self.watchers.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Watcher {
        exclusive: bool,
        handles: bool,
        notified: AtomicU32,
    }

    impl Watch for Watcher {
        fn notify(&self, _: Events, _: Option<NapiId>, _: &mut WakeList) -> bool {
            self.notified.fetch_add(1, Ordering::Relaxed);
            self.handles
        }

        fn is_exclusive(&self) -> bool {
            self.exclusive
        }
    }

    /// `EPOLLEXCLUSIVE`.
    #[test]
    fn no_exclusive_watcher_is_notified_after_one_that_handles_the_event() {
        let watchers = [(true, false), (true, true), (true, true), (false, false), (true, false)];
        let watchers = watchers.map(|(exclusive, handles)| {
            Arc::new(Watcher { exclusive, handles, notified: AtomicU32::new(0) })
        });
        let mut queue = WaitQueue::default();
        watchers.iter().for_each(|watcher| queue.add_watcher(watcher.clone()));
        notify_watchers(
            queue.watchers().as_ref(),
            Events::READABLE,
            None,
            &mut WakeList::default(),
        );
        let notified = watchers.each_ref().map(|watcher| watcher.notified.load(Ordering::Relaxed));
        assert_eq!(notified, [1, 1, 0, 1, 0]);
    }
}
