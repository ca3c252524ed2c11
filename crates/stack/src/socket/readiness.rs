//! Readiness: what a socket can do now, and telling those who watch for it.

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
    /// A receive would not wait: data, or the end (EPOLLIN). An error is [`ERROR`](Events::ERROR) alone, as in Linux.
    pub const READABLE: Events = Events(libc::EPOLLIN as u32);
    /// A send would not wait (EPOLLOUT).
    pub const WRITABLE: Events = Events(libc::EPOLLOUT as u32);
    /// An error is pending (EPOLLERR); reported whether asked for or not.
    pub const ERROR: Events = Events(libc::EPOLLERR as u32);
    /// Both directions are shut down (EPOLLHUP); reported whether asked for or not.
    pub const HANGUP: Events = Events(libc::EPOLLHUP as u32);
    /// The other side sends no more, or receiving is shut down here (EPOLLRDHUP).
    pub const READ_HANGUP: Events = Events(libc::EPOLLRDHUP as u32);
    /// Urgent data can be received (EPOLLPRI).
    pub const URGENT: Events = Events(libc::EPOLLPRI as u32);
    /// Report when something comes, not as long as something is there (EPOLLET).
    pub const EDGE: Events = Events(libc::EPOLLET as u32);
    /// Report once, then not again until modified (EPOLLONESHOT).
    pub const ONE_SHOT: Events = Events(libc::EPOLLONESHOT as u32);
    /// Of several sets that watch a socket so, wake one that waits (EPOLLEXCLUSIVE).
    pub const EXCLUSIVE: Events = Events(libc::EPOLLEXCLUSIVE as u32);
    /// EPOLLRDNORM: with [`READABLE`](Events::READABLE), always.
    const READ_NORMAL: Events = Events(libc::EPOLLRDNORM as u32);
    /// EPOLLWRNORM: with [`WRITABLE`](Events::WRITABLE), always.
    const WRITE_NORMAL: Events = Events(libc::EPOLLWRNORM as u32);

    /// No event.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether one of `events` is in the set.
    pub const fn has(self, events: Events) -> bool {
        self.0 & events.0 != 0
    }

    /// What of `self` is reported to someone who asked for `interest`.
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

/// Someone who wants to know when a socket becomes ready: an epoll's item, a poll in progress.
pub trait Watch: Send + Sync {
    /// Something came: `events`, over the NAPI context `napi`. Called without the socket's lock.
    /// True if somebody waits here who will see to it.
    fn notify(&self, events: Events, napi: Option<NapiId>, wake: &mut WakeList) -> bool;

    /// The socket is closed; nothing more comes from it. Called without the socket's lock.
    fn closed(&self) {}

    /// Whether it is enough that one such watcher is told, if that one sees to it ([`Events::EXCLUSIVE`]).
    fn is_exclusive(&self) -> bool {
        false
    }
}

/// Tells `watchers` of `events`: all, but of those that are exclusive only until one sees to it.
pub(super) fn tell(
    watchers: Option<&Watchers>,
    events: Events,
    napi: Option<NapiId>,
    wake: &mut WakeList,
) {
    let mut seen_to = false;
    for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
        if watch.is_exclusive() {
            seen_to = seen_to || watch.notify(events, napi, wake);
        } else {
            watch.notify(events, napi, wake);
        }
    }
}

/// Who waits for one socket: sleeping callers, of whom something to take wakes the first, and watchers, who
/// all are told.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// The one asleep longest. Most often there is no other.
    first: Option<Arc<Waiter>>,
    /// Those behind it. Boxed, because an idle socket pays for what is not there.
    #[allow(clippy::box_collection)]
    rest: Option<Box<VecDeque<Arc<Waiter>>>>,
    /// Shared with those who tell them at this moment, without the socket's lock.
    watchers: Option<Watchers>,
}

/// Those who watch one socket.
pub(super) type Watchers = Arc<Vec<Arc<dyn Watch>>>;

impl WaitQueue {
    /// How many sleep and watch.
    pub(super) fn len(&self) -> usize {
        self.asleep() + self.watchers.as_ref().map_or(0, |watchers| watchers.len())
    }

    fn asleep(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    pub(super) fn sleep(&mut self, waiter: Arc<Waiter>) {
        waiter.set_queued(true);
        match &self.first {
            None => self.first = Some(waiter),
            Some(_) => self.rest.get_or_insert_default().push_back(waiter),
        }
    }

    /// True if it was still waiting: nobody took it off to wake it.
    pub(super) fn leave(&mut self, waiter: &Arc<Waiter>) -> bool {
        let is = |sleeper: &Arc<Waiter>| Arc::ptr_eq(sleeper, waiter);
        if self.first.as_ref().is_some_and(is) {
            return self.next_sleeper().is_some();
        }
        let off = self.rest.as_mut().and_then(|rest| rest.remove(rest.iter().position(is)?));
        off.inspect(|off| off.set_queued(false)).is_some()
    }

    #[inline]
    pub(super) fn next_sleeper(&mut self) -> Option<Arc<Waiter>> {
        let off = self.first.take()?;
        self.first = self.rest.as_mut().and_then(|rest| rest.pop_front());
        off.set_queued(false);
        Some(off)
    }

    /// Needs new memory only for more watchers than ever before, or while they are being told.
    pub(super) fn watch(&mut self, watch: Arc<dyn Watch>) {
        Arc::make_mut(self.watchers.get_or_insert_default()).push(watch);
    }

    pub(super) fn unwatch(&mut self, watch: &Arc<dyn Watch>) {
        if let Some(watchers) = &mut self.watchers {
            Arc::make_mut(watchers).retain(|watcher| !Arc::ptr_eq(watcher, watch));
        }
    }

    /// The watchers, to be told once the socket's lock is released.
    #[inline]
    pub(super) fn watchers(&self) -> Option<Watchers> {
        self.watchers.as_ref().filter(|watchers| !watchers.is_empty()).cloned()
    }

    /// The watchers, who watch no more.
    pub(super) fn forget_watchers(&mut self) -> Option<Watchers> {
        self.watchers.take()
    }

    /// Everybody, for an event that concerns all.
    pub(super) fn drain_sleepers(&mut self) -> impl Iterator<Item = Arc<Waiter>> {
        std::iter::from_fn(|| self.next_sleeper())
    }
}

impl std::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} asleep, watched: {}", self.asleep(), self.watchers.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Watcher {
        exclusive: bool,
        sees_to_it: bool,
        told: AtomicU32,
    }

    impl Watch for Watcher {
        fn notify(&self, _: Events, _: Option<NapiId>, _: &mut WakeList) -> bool {
            self.told.fetch_add(1, Ordering::Relaxed);
            self.sees_to_it
        }

        fn is_exclusive(&self) -> bool {
            self.exclusive
        }
    }

    /// `EPOLLEXCLUSIVE`.
    #[test]
    fn of_exclusive_watchers_none_is_told_after_one_that_sees_to_it() {
        let watchers = [(true, false), (true, true), (true, true), (false, false), (true, false)];
        let watchers = watchers.map(|(exclusive, sees_to_it)| {
            Arc::new(Watcher { exclusive, sees_to_it, told: AtomicU32::new(0) })
        });
        let mut queue = WaitQueue::default();
        watchers.iter().for_each(|watcher| queue.watch(watcher.clone()));
        tell(queue.watchers().as_ref(), Events::READABLE, None, &mut WakeList::default());
        let told = watchers.each_ref().map(|watcher| watcher.told.load(Ordering::Relaxed));
        assert_eq!(told, [1, 1, 0, 1, 0]);
    }
}
