//! The receive queues of a process in its ledger: their counters, and where each leads.

use super::{CONTEXTS, Ledger};
use crate::{
    napi::{NapiId, PlacedCounters, Stats},
    sync::lock,
};
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// Set in [`Words::way`] if the queue is a link's; the bits below are the process at its other end.
const LINK: u32 = 1 << 31;

/// What is known of a queue besides its counters.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Words {
    /// Its NAPI id; 0: the queue is gone, and its counters are those of all that had the place.
    napi: AtomicU32,
    way: AtomicU32,
}

/// Where a queue leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// An interface, or any other NIC.
    Interface,
    /// A link to this process of the machine; 0 if that process is not visible from the one with the ledger.
    Link(i32),
}

/// A receive queue, as another process reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerQueue {
    /// Its NAPI id; 0 if there is no such queue any more.
    pub napi: u32,
    /// Where it leads.
    pub way: Way,
    /// Its counters. What the rings dropped is not among them.
    pub stats: Stats,
}

/// A queue's place in the ledger. Dropping that of a link leaves the place, with its counters, to the next link: so the
/// sum over the links only grows.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    ledger: Arc<Ledger>,
    at: u32,
    is_link: bool,
}

impl Ledger {
    /// A place for a queue. `None`: there is none left.
    pub(crate) fn place_queue(self: &Arc<Ledger>, way: Way) -> Option<QueuePlace> {
        let is_link = matches!(way, Way::Link(_));
        let again = if is_link { lock(&self.free_queues).pop() } else { None };
        let at = again.or_else(|| {
            let step = |used| ((used as usize) < CONTEXTS).then_some(used + 1);
            self.head().contexts.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step).ok()
        })?;
        let words = self.front().queues.get(at as usize)?;
        let way = match way {
            Way::Interface => 0,
            Way::Link(pid) => LINK | (pid.cast_unsigned() & !LINK),
        };
        words.way.store(way, Ordering::Relaxed);
        Some(QueuePlace { ledger: self.clone(), at, is_link })
    }

    /// Its queues.
    pub fn queues(&self) -> Vec<LedgerQueue> {
        let used = self.head().contexts.load(Ordering::Acquire) as usize;
        let all = self.front().queues.iter().zip(&self.front().contexts).take(used);
        let read = |(words, counters): (&Words, &crate::napi::Counters)| {
            let napi = words.napi.load(Ordering::Acquire);
            let way = match words.way.load(Ordering::Relaxed) {
                way if way & LINK == 0 => Way::Interface,
                way => Way::Link((way & !LINK).cast_signed()),
            };
            LedgerQueue { napi, way, stats: counters.snapshot(0) }
        };
        all.map(read).collect()
    }
}

impl QueuePlace {
    /// Where the queue counts.
    pub(crate) fn counters(&self) -> PlacedCounters {
        let Some(counters) = self.ledger.front().contexts.get(self.at as usize) else {
            return PlacedCounters::default();
        };
        // SAFETY: within the mapping, which lives as long as the ledger.
        unsafe { PlacedCounters::within(NonNull::from(counters), self.ledger.clone()) }
    }

    /// The queue is in service under this id.
    pub(crate) fn set_napi(&self, id: NapiId) {
        self.store(id.get());
    }

    fn store(&self, napi: u32) {
        if let Some(words) = self.ledger.front().queues.get(self.at as usize) {
            words.napi.store(napi, Ordering::Release);
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        // An interface's queues end with the process.
        if self.is_link {
            self.store(0);
            lock(&self.ledger.free_queues).push(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn id(number: u32) -> NapiId {
        NapiId::new(number).unwrap()
    }

    #[test]
    fn another_process_reads_where_each_queue_leads_and_links_count_on() {
        let ours = Arc::new(Ledger::create(1).unwrap());
        let memory = ours.memory().as_fd().try_clone_to_owned().unwrap();
        let theirs = Ledger::open(memory).unwrap();
        ours.place_queue(Way::Interface).unwrap().set_napi(id(9001));
        let link = ours.place_queue(Way::Link(1234)).unwrap();
        link.set_napi(id(9002));
        link.counters().packets.add(5);
        let read = || -> Vec<(u32, Way, u64)> {
            theirs.queues().iter().map(|q| (q.napi, q.way, q.stats.packets)).collect()
        };
        assert_eq!(read(), [(9001, Way::Interface, 0), (9002, Way::Link(1234), 5)]);
        drop(link);
        assert_eq!(read()[1].0, 0, "the link is gone");
        let next = ours.place_queue(Way::Link(77)).unwrap();
        next.set_napi(id(9003));
        let counters = next.counters();
        drop(ours);
        counters.packets.add(2);
        assert_eq!(read()[1..], [(9003, Way::Link(77), 7)], "the place keeps the ledger");
    }

    #[test]
    fn more_queues_than_the_ledger_holds_have_no_place() {
        let ledger = Arc::new(Ledger::create(1).unwrap());
        let places: Vec<_> =
            (0..CONTEXTS).map(|_| ledger.place_queue(Way::Link(1)).unwrap()).collect();
        assert!(ledger.place_queue(Way::Interface).is_none());
        drop(places);
        assert!(ledger.place_queue(Way::Link(1)).is_some());
    }
}
