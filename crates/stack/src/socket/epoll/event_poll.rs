//! The interest list, the ready list and the sleepers of an epoll set (Linux: `struct eventpoll`). A member that
//! becomes ready is put on the ready list; no wait looks at all members.

use super::EpollEvent;
use crate::{
    inet::{Context, by_id},
    napi::{KernelFds, NapiId, Waiter, WakeList},
    pool::{Last, Lent, Pool},
    socket::{
        readiness::{Events, WaitQueue, Watch, notify_watchers},
        source::Source,
    },
    sync::lock,
    word_hash::WordMap,
};
use std::{
    cell::Cell,
    collections::VecDeque,
    convert::Infallible,
    ptr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

/// The key of a member: the address of its source, and its tag.
pub(super) type Key = (usize, u64);

pub(super) fn key(source: &Weak<dyn Source>, tag: u64) -> Key {
    (source.as_ptr().addr(), tag)
}

#[derive(Debug, Default)]
pub(super) struct EventPoll {
    pub(super) items: Mutex<WordMap<Key, Arc<Item>>>,
    /// Those members that count waits.
    counting: Mutex<Vec<Arc<Item>>>,
    has_counting: AtomicBool,
    /// Waits poll companions of members.
    polls_companions: AtomicBool,
    ready: Mutex<Ready>,
    /// The length of the ready list; read without its lock.
    ready_count: AtomicUsize,
    /// The number of threads that busy poll for the set.
    pub(super) busy_pollers: AtomicUsize,
    /// The NAPI contexts that members' packets come from.
    contexts: Mutex<Arc<Vec<Arc<Context>>>>,
    /// The watchers of the set itself: the sets that it is a member of.
    outer: Mutex<WaitQueue>,
    has_outer: AtomicBool,
    /// How often [`end_waits`](EventPoll::end_waits) was called.
    epoch: AtomicU32,
    closed: AtomicBool,
    pub(super) usecs: AtomicU32,
    pub(super) budget: AtomicU32,
    pub(super) prefer: AtomicBool,
}

#[derive(Debug, Default)]
struct Ready {
    items: VecDeque<Arc<Item>>,
    sleepers: VecDeque<Arc<Waiter>>,
}

/// One member (Linux: `struct epitem`).
#[derive(Debug)]
pub(super) struct Item {
    me: Weak<Item>,
    set: Weak<EventPoll>,
    pub(super) source: Weak<dyn Source>,
    tag: u64,
    data: AtomicU64,
    /// The events waited for; empty after a one-shot member was reported.
    interest: AtomicU32,
    /// Whether it is on the ready list.
    queued: AtomicBool,
    napi: AtomicU32,
}

impl Item {
    pub(super) fn new(
        set: &Arc<EventPoll>,
        source: &Arc<dyn Source>,
        tag: u64,
        events: Events,
        data: u64,
    ) -> Arc<Item> {
        let item = Arc::new_cyclic(|me| Item {
            me: me.clone(),
            set: Arc::downgrade(set),
            source: Arc::downgrade(source),
            tag,
            data: AtomicU64::new(data),
            interest: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            napi: AtomicU32::new(0),
        });
        item.set_interest(events);
        item
    }

    pub(super) fn set_interest(&self, events: Events) {
        let always = Events::ERROR | Events::HANGUP;
        self.interest.store((events | always).0, Ordering::Release);
    }

    pub(super) fn set_data(&self, data: u64) {
        self.data.store(data, Ordering::Release);
    }

    /// Returns what it was.
    pub(super) fn clear_interest(&self) -> Events {
        Events(self.interest.swap(0, Ordering::AcqRel))
    }

    pub(super) fn interest(&self) -> Events {
        Events(self.interest.load(Ordering::Acquire))
    }

    /// Disarms a one-shot member. False if another wait was faster, or if the member was modified since and is queued
    /// again.
    fn disarm(&self, interest: Events) -> bool {
        let (old, none) = (interest.0, Events::default().0);
        self.interest.compare_exchange(old, none, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Records that the member's packets come from `napi`.
    pub(super) fn mark_napi(&self, set: &EventPoll, napi: NapiId) {
        if self.napi.swap(napi.get(), Ordering::Relaxed) != napi.get() {
            set.add_context(napi);
        }
    }
}

impl Watch for Item {
    fn notify(&self, events: Events, napi: Option<NapiId>, wake: &mut WakeList) -> bool {
        let Some(set) = self.set.upgrade() else { return false };
        if let Some(napi) = napi {
            self.mark_napi(&set, napi);
        }
        let interest = self.interest();
        if interest.is_empty() || events.reported(interest).is_empty() {
            return false;
        }
        self.me.upgrade().is_some_and(|item| set.enqueue(item, napi, wake))
    }

    fn closed(&self) {
        // A one-shot member that was reported is not on the ready list, where a wait would find it closed.
        if let Some(set) = self.set.upgrade() {
            lock(&set.items).remove(&key(&self.source, self.tag));
        }
    }

    fn polls_companions(&self) -> bool {
        true
    }

    fn is_exclusive(&self) -> bool {
        self.interest().has(Events::EXCLUSIVE)
    }
}

impl EventPoll {
    /// A member that counts waits, from the next one on.
    pub(super) fn add_counting(&self, item: Arc<Item>) {
        lock(&self.counting).push(item);
        self.has_counting.store(true, Ordering::Release);
        if self.has_outer.load(Ordering::Acquire) {
            self.notify_of_companions();
        }
    }

    /// Not only threads that wait in this set wait for its members.
    fn notify_of_companions(&self) {
        if self.has_counting.load(Ordering::Acquire) {
            self.for_each_counting(|source| source.notify_of_companion());
        }
    }

    /// Before events are taken: looks at the companions that waits poll.
    #[inline]
    pub(super) fn look_at_companions(&self) {
        if self.polls_companions.load(Ordering::Relaxed) {
            self.for_each_counting(|source| source.look_at_companion());
        }
    }

    #[cold]
    fn for_each_counting(&self, each: impl Fn(&dyn Source)) {
        let Ok(mut sources) = COUNTED.lend(&LAST_COUNTED, || Ok::<_, Infallible>(Vec::new()));
        sources.extend(lock(&self.counting).iter().filter_map(|item| item.source.upgrade()));
        sources.drain(..).for_each(|source| each(&*source));
    }

    /// A member that is removed counts no wait any more.
    pub(super) fn remove_counting(&self, item: &Arc<Item>) {
        if self.has_counting.load(Ordering::Acquire) {
            lock(&self.counting).retain(|known| !Arc::ptr_eq(known, item));
        }
    }

    /// A wait begins, for the members that count it; until the returned value is dropped.
    #[inline]
    pub(super) fn count_wait(&self) -> Option<CountedWait> {
        self.has_counting.load(Ordering::Acquire).then(|| self.begin_counted_wait())
    }

    fn begin_counted_wait(&self) -> CountedWait {
        let Ok(mut sources) = COUNTED.lend(&LAST_COUNTED, || Ok::<_, Infallible>(Vec::new()));
        lock(&self.counting).retain(|item| {
            let source = item.source.upgrade().filter(|source| !source.is_closed());
            let is_there = source.is_some();
            if let Some(source) = source.filter(|_| item.interest().has(Events::READABLE)) {
                source.waits(true);
                sources.push(source);
            }
            is_there
        });
        CountedWait(sources)
    }

    /// Puts an item on the ready list and a sleeper, removed from its queue, on `wake`. True if a thread waits here
    /// that will find the item.
    fn enqueue(&self, item: Arc<Item>, napi: Option<NapiId>, wake: &mut WakeList) -> bool {
        let mut waited = false;
        if !item.queued.swap(true, Ordering::AcqRel) {
            let mut ready = lock(&self.ready);
            ready.items.push_back(item);
            self.ready_count.store(ready.items.len(), Ordering::Release);
            let sleeper = ready.sleepers.pop_front();
            drop(ready);
            waited = sleeper.is_some();
            sleeper.into_iter().for_each(|sleeper| wake.push(sleeper));
        }
        // The outer sets are notified of every event, as in Linux.
        if self.has_outer.load(Ordering::Acquire) {
            let watchers = lock(&self.outer).watchers();
            notify_watchers(watchers.as_ref(), Events::READABLE, napi, wake);
        }
        waited || self.busy_pollers.load(Ordering::Relaxed) > 0
    }

    /// Queues a member if it is ready now.
    pub(super) fn queue_if_ready(&self, item: &Arc<Item>, source: &dyn Source) {
        if !source.readiness().reported(item.interest()).is_empty() {
            let mut wake = WakeList::default();
            self.enqueue(item.clone(), None, &mut wake);
            wake.wake_all();
        }
    }

    pub(super) fn add_context(&self, napi: NapiId) {
        let Some(context) = by_id(napi) else { return };
        let mut contexts = lock(&self.contexts);
        if !contexts.iter().any(|known| known.id() == napi) {
            let live = contexts.iter().filter(|known| !known.is_gone()).cloned();
            *contexts = Arc::new(live.chain([context]).collect());
        }
    }

    pub(super) fn forget_gone_contexts(&self) {
        let mut contexts = lock(&self.contexts);
        let live = contexts.iter().filter(|known| !known.is_gone()).cloned();
        *contexts = Arc::new(live.collect());
    }

    pub(super) fn contexts(&self) -> Arc<Vec<Arc<Context>>> {
        lock(&self.contexts).clone()
    }

    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) > 0
    }

    /// Queues `waiter` as a sleeper, unless a member is ready.
    pub(super) fn prepare_to_wait(&self, waiter: &Arc<Waiter>) -> bool {
        let mut ready = lock(&self.ready);
        let empty = ready.items.is_empty();
        if empty {
            ready.sleepers.push_back(waiter.clone());
        }
        empty
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Ends the waits of all threads.
    pub(super) fn end_waits(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let mut wake = WakeList::default();
        // A thread that is not in the list yet sees the epoch, by this lock.
        lock(&self.ready).sleepers.drain(..).for_each(|sleeper| wake.push(sleeper));
        wake.wake_all();
    }

    pub(super) fn finish_wait(&self, waiter: &Arc<Waiter>) {
        lock(&self.ready).sleepers.retain(|sleeper| !Arc::ptr_eq(sleeper, waiter));
    }

    fn pop(&self) -> Option<Arc<Item>> {
        let mut ready = lock(&self.ready);
        let item = ready.items.pop_front();
        self.ready_count.store(ready.items.len(), Ordering::Release);
        item
    }

    /// Moves the events of the ready list to `events`, up to `most` in all.
    pub(super) fn collect(&self, events: &mut Vec<EpollEvent>, most: usize) {
        self.look_at_companions();
        if !self.is_ready() {
            return;
        }
        let count = lock(&self.ready).items.len();
        let mut wake = WakeList::default();
        for _ in 0..count {
            if events.len() >= most {
                // This thread was woken for the rest, too: it wakes the next sleeper for them.
                lock(&self.ready).sleepers.pop_front().into_iter().for_each(|next| wake.push(next));
                break;
            }
            let Some(item) = self.pop() else { break };
            // Cleared before the readiness is read: an event from now on queues the item again.
            item.queued.store(false, Ordering::SeqCst);
            let Some(source) = item.source.upgrade().filter(|source| !source.is_closed()) else {
                lock(&self.items).remove(&key(&item.source, item.tag));
                continue;
            };
            let interest = item.interest();
            let found = reported(&*source, interest);
            if interest.is_empty() || found.is_empty() {
                continue;
            }
            let event = EpollEvent { events: found, data: item.data.load(Ordering::Acquire) };
            if interest.has(Events::ONE_SHOT) {
                if !item.disarm(interest) {
                    continue;
                }
            } else if !interest.has(Events::EDGE) {
                // Level-triggered members stay on the list while they are ready.
                self.requeue(item, &mut wake);
            }
            events.push(event);
        }
        wake.wake_all();
    }

    /// Puts a member back on the ready list without notifying the outer sets.
    fn requeue(&self, item: Arc<Item>, wake: &mut WakeList) {
        if !item.queued.swap(true, Ordering::AcqRel) {
            let mut ready = lock(&self.ready);
            ready.items.push_back(item);
            self.ready_count.store(ready.items.len(), Ordering::Release);
            ready.sleepers.pop_front().into_iter().for_each(|sleeper| wake.push(sleeper));
        }
    }

    /// Whether a wait would find an event. Removes members from the front of the list that are no longer ready.
    fn has_ready_item(&self) -> bool {
        loop {
            let front = lock(&self.ready).items.front().cloned();
            let Some(item) = front else { return false };
            let ready = item.source.upgrade().is_some_and(|source| {
                !source.is_closed() && !reported(&*source, item.interest()).is_empty()
            });
            if ready {
                return true;
            }
            let mut list = lock(&self.ready);
            if list.items.front().is_some_and(|front| Arc::ptr_eq(front, &item)) {
                list.items.pop_front();
                self.ready_count.store(list.items.len(), Ordering::Release);
                item.queued.store(false, Ordering::SeqCst);
                drop(list);
                // It may have become ready since the check, and was not queued because it was still on the list.
                if let Some(source) = item.source.upgrade().filter(|source| !source.is_closed()) {
                    self.queue_if_ready(&item, &*source);
                }
            }
        }
    }

    /// Ends the watches of all members, and tells the outer sets that this one is closed.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for item in std::mem::take(&mut *lock(&self.items)).into_values() {
            if let Some(source) = item.source.upgrade() {
                let watch: Arc<dyn Watch> = item;
                source.unwatch(&watch);
            }
        }
        let watchers = lock(&self.outer).take_watchers();
        for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
            watch.closed();
        }
    }
}

/// What a set reports of a member. One that has another owner seems to hang up: its next owner's events come instead.
fn reported(source: &dyn Source, interest: Events) -> Events {
    let found = source.readiness().reported(interest);
    match found.has(Events::HANGUP) && source.is_elsewhere() {
        true => Events::default(),
        false => found,
    }
}

/// The memory of one wait serves the next.
static COUNTED: Pool<Vec<Arc<dyn Source>>> = Pool::new();

thread_local!(static LAST_COUNTED: Last<Vec<Arc<dyn Source>>> = const { Cell::new(ptr::null()) });

/// The members that have counted a wait.
pub(super) struct CountedWait(Lent<Vec<Arc<dyn Source>>>);

impl CountedWait {
    /// Adds their companions that this wait is to poll.
    pub(super) fn add_companions(&self, set: &EventPoll, kernel_fds: &mut KernelFds) {
        let companions = self.0.iter().filter_map(|source| source.companion_to_poll());
        let mut any = false;
        for companion in companions {
            kernel_fds.push(companion, libc::POLLIN);
            any = true;
        }
        if any || set.polls_companions.load(Ordering::Relaxed) {
            set.polls_companions.store(any, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedWait {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|source| source.waits(false));
    }
}

/// The set as a member of another: readable while a wait would find an event.
impl Source for EventPoll {
    fn readiness(&self) -> Events {
        self.look_at_companions();
        if self.is_ready() && self.has_ready_item() { Events::READABLE } else { Events::default() }
    }

    fn is_ready_for(&self, interest: Events) -> bool {
        self.is_ready() && !self.readiness().reported(interest).is_empty()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn napi(&self) -> Option<NapiId> {
        self.contexts().first().map(|context| context.id())
    }

    fn context(&self) -> Option<Arc<Context>> {
        self.contexts().first().cloned()
    }

    fn for_each_context(&self, each: &mut dyn FnMut(&Context)) {
        self.contexts().iter().for_each(|context| each(context));
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        let mut outer = lock(&self.outer);
        outer.add_watcher(watch);
        self.has_outer.store(true, Ordering::Release);
        drop(outer);
        self.notify_of_companions();
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        let mut outer = lock(&self.outer);
        outer.remove_watcher(watch);
        self.has_outer.store(outer.len() > 0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always readable.
    struct Readable;

    impl Source for Readable {
        fn readiness(&self) -> Events {
            Events::READABLE
        }

        fn is_closed(&self) -> bool {
            false
        }

        fn napi(&self) -> Option<NapiId> {
            None
        }

        fn context(&self) -> Option<Arc<Context>> {
            None
        }

        fn watch(&self, _: Arc<dyn Watch>) {}

        fn unwatch(&self, _: &Arc<dyn Watch>) {}
    }

    /// An exclusive event stops at a set in which a thread waits, asleep or polling.
    #[test]
    fn a_set_handles_an_event_if_a_thread_waits_in_it() {
        let set = Arc::new(EventPoll::default());
        let source: Arc<dyn Source> = Arc::new(Readable);
        let notify = |tag| {
            let item = Item::new(&set, &source, tag, Events::READABLE, tag);
            item.notify(Events::READABLE, None, &mut WakeList::default())
        };
        assert!(!notify(1));
        let sleeper = Arc::new(Waiter::new().unwrap());
        sleeper.start();
        lock(&set.ready).sleepers.push_back(sleeper);
        assert!(notify(2));
        assert!(!notify(3));
        set.busy_pollers.fetch_add(1, Ordering::Relaxed);
        assert!(notify(4));
    }

    /// The rest of the events may have been queued while only one sleeper was to be woken for them.
    #[test]
    fn only_a_wait_with_no_room_for_all_events_wakes_the_next_sleeper() {
        let set = Arc::new(EventPoll::default());
        let source: Arc<dyn Source> = Arc::new(Readable);
        let events = Events::READABLE | Events::EDGE;
        let items = [1, 2].map(|tag| Item::new(&set, &source, tag, events, tag));
        items.iter().for_each(|item| set.queue_if_ready(item, &*source));
        let sleepers = [(); 2].map(|()| Arc::new(Waiter::new().unwrap()));
        for sleeper in &sleepers {
            sleeper.start();
            lock(&set.ready).sleepers.push_back(sleeper.clone());
        }
        let woken = || sleepers.each_ref().map(|sleeper| sleeper.is_woken());
        for (tag, after) in [(1, [true, false]), (2, [true, false])] {
            let mut events = Vec::new();
            set.collect(&mut events, 1);
            assert_eq!(events.iter().map(|event| event.data).collect::<Vec<_>>(), [tag]);
            assert_eq!(woken(), after);
        }
    }
}
