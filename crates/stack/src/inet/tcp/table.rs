//! Finds the connection or the listener of a segment. One hash table holds every connection, from the first SYN to
//! the end of TIME_WAIT, by its 4-tuple; another the listeners, by (address, port) and (any, port). Both are read
//! without a lock, whatever their size. Writers of the second hold the lock of the claims.

use super::{
    flow::Core, listener::Listener, request::SynQueueEntry, time_wait::TimeWaitEntry, tuple::Tuple,
};
use crate::inet::{
    hash::{Change, Changed, Layout, Table as Hash},
    random::Keyed,
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

/// A connection in one of its three stages.
#[derive(Clone)]
pub(super) enum Entry {
    /// The handshake of a listener's connection.
    SynQueue(Arc<SynQueueEntry>),
    Flow(Arc<Core>),
    /// TIME_WAIT.
    TimeWait(Arc<TimeWaitEntry>),
}

impl Entry {
    fn is(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::SynQueue(a), Entry::SynQueue(b)) => Arc::ptr_eq(a, b),
            (Entry::Flow(a), Entry::Flow(b)) => Arc::ptr_eq(a, b),
            (Entry::TimeWait(a), Entry::TimeWait(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

type ListenKey = (IpAddr, u16);

/// Listeners at one address and port, which share it by `SO_REUSEPORT`.
#[derive(Clone)]
struct Group(Vec<Arc<Listener>>);

pub(super) struct Table {
    entries: Hash<Tuple, Entry, Keyed>,
    listeners: Hash<ListenKey, Group, Keyed>,
}

impl Table {
    pub(super) fn new(hasher: Keyed) -> Table {
        Table {
            entries: Hash::new(hasher, Layout { shards: 16, readers: 16, batch: 16 }),
            // What a closed listener held is dropped at once, not after more have closed.
            listeners: Hash::new(hasher, Layout { shards: 1, readers: 16, batch: 1 }),
        }
    }

    /// Passes the connection with this 4-tuple to `found`.
    #[inline]
    pub(super) fn find<R>(&self, tuple: &Tuple, found: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.entries.read().get(tuple).map(found)
    }

    /// Inserts a connection; false if the 4-tuple is in use.
    pub(super) fn insert(&self, tuple: Tuple, entry: Entry) -> bool {
        let change = |found: Option<&Entry>| match found {
            None => Change::Put(entry),
            Some(_) => Change::Keep,
        };
        self.entries.change(tuple, change).is_some()
    }

    /// Replaces `old` by `new`; false if `old` was not there any more.
    pub(super) fn replace(&self, tuple: Tuple, old: &Entry, new: Entry) -> bool {
        let change = |found: Option<&Entry>| match found {
            Some(entry) if entry.is(old) => Change::Put(new),
            _ => Change::Keep,
        };
        self.entries.change(tuple, change).is_some()
    }

    /// Removes `old`; false if it was not there any more.
    pub(super) fn remove(&self, tuple: &Tuple, old: &Entry) -> bool {
        let change = |found: Option<&Entry>| match found {
            Some(entry) if entry.is(old) => Change::Remove,
            _ => Change::Keep,
        };
        self.entries.change(*tuple, change) == Some(Changed::Removed)
    }

    /// How many connections there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A copy of all entries.
    pub(super) fn all(&self) -> Vec<(Tuple, Entry)> {
        let mut all = Vec::with_capacity(self.len());
        self.entries.read().for_each(|tuple, entry| all.push((*tuple, entry.clone())));
        all
    }

    /// The peers of connections, beyond their handshake, whose local end is `wanted`.
    pub(super) fn peers(&self, wanted: impl Fn(SocketAddr) -> bool) -> Vec<SocketAddr> {
        let mut peers = Vec::new();
        self.entries.read().for_each(|tuple, entry| {
            if !matches!(entry, Entry::SynQueue(_)) && wanted(tuple.local()) {
                peers.push(tuple.remote());
            }
        });
        peers
    }

    /// The listener that a new connection at `tuple.local` goes to: listeners at the address itself come before those
    /// at any, and `pick` selects one of a group, or another one if that does not take it.
    pub(super) fn listener(
        &self,
        tuple: &Tuple,
        pick: Pick,
        takes: impl Fn(&Listener) -> bool,
    ) -> Option<Arc<Listener>> {
        let local = tuple.local();
        let any: IpAddr = match local.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let reader = self.listeners.read();
        let group =
            reader.get(&(local.ip(), local.port())).or_else(|| reader.get(&(any, local.port())))?;
        let picked = group.pick(pick).filter(|listener| takes(listener));
        picked.or_else(|| group.0.iter().find(|listener| takes(listener))).cloned()
    }

    /// Adds a listener. The caller holds the lock of the claims.
    pub(super) fn listen(&self, listener: &Arc<Listener>) {
        for key in listener.listen_keys() {
            self.listeners.change(key, |group| {
                let mut group = group.map_or(Vec::new(), |group| group.0.clone());
                group.push(listener.clone());
                Change::Put(Group(group))
            });
        }
    }

    /// Removes a listener. The caller holds the lock of the claims.
    pub(super) fn unlisten(&self, listener: &Arc<Listener>) {
        for key in listener.listen_keys() {
            self.listeners.change(key, |group| {
                let Some(group) = group else { return Change::Keep };
                let mut left = group.0.clone();
                left.retain(|other| !Arc::ptr_eq(other, listener));
                if left.is_empty() { Change::Remove } else { Change::Put(Group(left)) }
            });
        }
    }
}

/// How a group's member is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    /// A hash of the 4-tuple.
    pub(super) hash: u32,
    /// The receive queue the SYN came from.
    pub(super) queue: u32,
}

impl Group {
    fn pick(&self, pick: Pick) -> Option<&Arc<Listener>> {
        let members = self.0.len();
        match &self.0[..] {
            [only] => Some(only),
            [first, ..] if first.by_queue => self.0.get(pick.queue as usize % members),
            // As `reciprocal_scale`: the upper bits decide.
            all => all.get(((u64::from(pick.hash) * members as u64) >> 32) as usize),
        }
    }
}
