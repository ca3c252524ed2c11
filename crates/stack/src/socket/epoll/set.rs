//! The members of an epoll: who is one, who is ready, who waits for them. A member that becomes ready puts
//! itself on the ready list; nobody ever looks at all of them.

use super::EpollEvent;
use crate::{
    napi::{self, Context, NapiId, Waiter, WakeList},
    socket::{
        readiness::{Events, WaitQueue, Watch, tell},
        source::Source,
    },
    sync::lock,
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

/// What a member is found by: where its source is, and which of that source's memberships it is.
pub(super) type Key = (usize, u64);

pub(super) fn key(source: &Weak<dyn Source>, tag: u64) -> Key {
    (source.as_ptr().addr(), tag)
}

#[derive(Debug, Default)]
pub(super) struct Set {
    pub(super) items: Mutex<HashMap<Key, Arc<Item>>>,
    ready: Mutex<Ready>,
    /// Items on the ready list; read without its lock.
    waiting: AtomicUsize,
    /// Threads that busy poll for it.
    pub(super) spinning: AtomicUsize,
    /// The contexts that members' packets come over.
    contexts: Mutex<Arc<Vec<Arc<Context>>>>,
    /// Who watches the set itself: epolls that it is a member of.
    around: Mutex<WaitQueue>,
    is_watched: AtomicBool,
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

/// One member.
#[derive(Debug)]
pub(super) struct Item {
    me: Weak<Item>,
    set: Weak<Set>,
    pub(super) source: Weak<dyn Source>,
    tag: u64,
    data: AtomicU64,
    /// What is waited for; nothing, once a one-shot member was reported.
    interest: AtomicU32,
    /// On the ready list.
    queued: AtomicBool,
    napi: AtomicU32,
}

impl Item {
    pub(super) fn new(
        set: &Arc<Set>,
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

    /// It is waited for no more.
    pub(super) fn retire(&self) {
        self.interest.store(0, Ordering::Release);
    }

    pub(super) fn interest(&self) -> Events {
        Events(self.interest.load(Ordering::Acquire))
    }

    /// Takes the one shot. False if another wait was faster, or the member has been modified since and queues
    /// itself again.
    fn disarm(&self, interest: Events) -> bool {
        let (old, none) = (interest.0, Events::default().0);
        self.interest.compare_exchange(old, none, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Its packets come over `napi`.
    pub(super) fn follow(&self, set: &Set, napi: NapiId) {
        if self.napi.swap(napi.get(), Ordering::Relaxed) != napi.get() {
            set.learn(napi);
        }
    }
}

impl Watch for Item {
    fn notify(&self, events: Events, napi: Option<NapiId>, wake: &mut WakeList) -> bool {
        let Some(set) = self.set.upgrade() else { return false };
        if let Some(napi) = napi {
            self.follow(&set, napi);
        }
        let interest = self.interest();
        if interest.is_empty() || events.reported(interest).is_empty() {
            return false;
        }
        self.me.upgrade().is_some_and(|item| set.enqueue(item, napi, wake))
    }

    fn closed(&self) {
        // A one-shot member that was reported is on no list where a wait would find it closed.
        if let Some(set) = self.set.upgrade() {
            lock(&set.items).remove(&key(&self.source, self.tag));
        }
    }

    fn is_exclusive(&self) -> bool {
        self.interest().has(Events::EXCLUSIVE)
    }
}

impl Set {
    /// Puts an item on the ready list, and has a sleeper, taken off its queue, woken for it. True if somebody
    /// waits here who will see it.
    fn enqueue(&self, item: Arc<Item>, napi: Option<NapiId>, wake: &mut WakeList) -> bool {
        let mut waited = false;
        if !item.queued.swap(true, Ordering::AcqRel) {
            let mut ready = lock(&self.ready);
            ready.items.push_back(item);
            self.waiting.store(ready.items.len(), Ordering::Release);
            let sleeper = ready.sleepers.pop_front();
            drop(ready);
            waited = sleeper.is_some();
            sleeper.into_iter().for_each(|sleeper| wake.push(sleeper));
        }
        // Every event is news to those around, as it is to Linux's.
        if self.is_watched.load(Ordering::Acquire) {
            let watchers = lock(&self.around).watchers();
            tell(watchers.as_ref(), Events::READABLE, napi, wake);
        }
        waited || self.spinning.load(Ordering::Relaxed) > 0
    }

    /// Queues a member that is ready already.
    pub(super) fn look_at(&self, item: &Arc<Item>, source: &dyn Source) {
        if !source.readiness().reported(item.interest()).is_empty() {
            let mut wake = WakeList::default();
            self.enqueue(item.clone(), None, &mut wake);
            wake.wake_all();
        }
    }

    pub(super) fn learn(&self, napi: NapiId) {
        let Some(context) = napi::by_id(napi) else { return };
        let mut contexts = lock(&self.contexts);
        if !contexts.iter().any(|known| known.id() == napi) {
            let live = contexts.iter().filter(|known| !known.is_gone()).cloned();
            *contexts = Arc::new(live.chain([context]).collect());
        }
    }

    pub(super) fn forget_the_gone(&self) {
        let mut contexts = lock(&self.contexts);
        let live = contexts.iter().filter(|known| !known.is_gone()).cloned();
        *contexts = Arc::new(live.collect());
    }

    pub(super) fn contexts(&self) -> Arc<Vec<Arc<Context>>> {
        lock(&self.contexts).clone()
    }

    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Joins those asleep, unless somebody is ready.
    pub(super) fn join(&self, waiter: &Arc<Waiter>) -> bool {
        let mut ready = lock(&self.ready);
        let empty = ready.items.is_empty();
        if empty {
            ready.sleepers.push_back(waiter.clone());
        }
        empty
    }

    pub(super) fn leave(&self, waiter: &Arc<Waiter>) {
        lock(&self.ready).sleepers.retain(|sleeper| !Arc::ptr_eq(sleeper, waiter));
    }

    fn pop(&self) -> Option<Arc<Item>> {
        let mut ready = lock(&self.ready);
        let item = ready.items.pop_front();
        self.waiting.store(ready.items.len(), Ordering::Release);
        item
    }

    /// Moves up to `most` events from the ready list to `events`.
    pub(super) fn collect(&self, events: &mut Vec<EpollEvent>, most: usize) {
        if !self.is_ready() {
            return;
        }
        let turns = lock(&self.ready).items.len();
        let mut wake = WakeList::default();
        for _ in 0..turns {
            if events.len() >= most {
                // We were woken for these too, and leave them to another.
                lock(&self.ready).sleepers.pop_front().into_iter().for_each(|next| wake.push(next));
                break;
            }
            let Some(item) = self.pop() else { break };
            // Off the list before it is looked at: what comes from now on puts it back.
            item.queued.store(false, Ordering::SeqCst);
            let Some(source) = item.source.upgrade().filter(|source| !source.is_closed()) else {
                lock(&self.items).remove(&key(&item.source, item.tag));
                continue;
            };
            let interest = item.interest();
            let found = source.readiness().reported(interest);
            if interest.is_empty() || found.is_empty() {
                continue;
            }
            let event = EpollEvent { events: found, data: item.data.load(Ordering::Acquire) };
            if interest.has(Events::ONE_SHOT) {
                if !item.disarm(interest) {
                    continue;
                }
            } else if !interest.has(Events::EDGE) {
                // Level-triggered members stay on the list for as long as they are ready.
                self.requeue(item, &mut wake);
            }
            events.push(event);
        }
        wake.wake_all();
    }

    /// Keeps a member on the ready list; that is no news to those around.
    fn requeue(&self, item: Arc<Item>, wake: &mut WakeList) {
        if !item.queued.swap(true, Ordering::AcqRel) {
            let mut ready = lock(&self.ready);
            ready.items.push_back(item);
            self.waiting.store(ready.items.len(), Ordering::Release);
            ready.sleepers.pop_front().into_iter().for_each(|sleeper| wake.push(sleeper));
        }
    }

    /// Whether a wait would find something: members on the list that are ready no more are taken off.
    fn has_something(&self) -> bool {
        loop {
            let front = lock(&self.ready).items.front().cloned();
            let Some(item) = front else { return false };
            let ready = item.source.upgrade().is_some_and(|source| {
                !source.is_closed() && !source.readiness().reported(item.interest()).is_empty()
            });
            if ready {
                return true;
            }
            let mut list = lock(&self.ready);
            if list.items.front().is_some_and(|front| Arc::ptr_eq(front, &item)) {
                list.items.pop_front();
                self.waiting.store(list.items.len(), Ordering::Release);
                item.queued.store(false, Ordering::SeqCst);
                drop(list);
                // It may have become ready between the look and now, and found itself on the list.
                if let Some(source) = item.source.upgrade().filter(|source| !source.is_closed()) {
                    self.look_at(&item, &*source);
                }
            }
        }
    }

    /// The end: who watches it forgets it, and it watches nobody.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for item in std::mem::take(&mut *lock(&self.items)).into_values() {
            if let Some(source) = item.source.upgrade() {
                let watch: Arc<dyn Watch> = item;
                source.unwatch(&watch);
            }
        }
        let watchers = lock(&self.around).forget_watchers();
        for watch in watchers.iter().flat_map(|watchers| watchers.iter()) {
            watch.closed();
        }
    }
}

/// The set as a member of another: readable while a wait would find something.
impl Source for Set {
    fn readiness(&self) -> Events {
        if self.is_ready() && self.has_something() { Events::READABLE } else { Events::default() }
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

    fn watch(&self, watch: Arc<dyn Watch>) {
        let mut around = lock(&self.around);
        around.watch(watch);
        self.is_watched.store(true, Ordering::Release);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        let mut around = lock(&self.around);
        around.unwatch(watch);
        self.is_watched.store(around.len() > 0, Ordering::Release);
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

    /// They may have been queued while one slept who has been woken by now.
    #[test]
    fn who_has_no_room_for_all_events_wakes_the_next_sleeper_and_no_other_does() {
        let set = Arc::new(Set::default());
        let source: Arc<dyn Source> = Arc::new(Readable);
        let events = Events::READABLE | Events::EDGE;
        let items = [1, 2].map(|tag| Item::new(&set, &source, tag, events, tag));
        items.iter().for_each(|item| set.look_at(item, &*source));
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
