//! Whose a datagram is. One hash table holds the full 4-tuples of connected sockets, the (address, port)
//! of bound ones and the (any, port) of wildcards, so a packet costs at most three probes, however many
//! sockets are open. It is read without a lock; writers hold the lock of the ports.

use super::{UdpEndpoint, random::Keyed};
use crate::sync::{Arc, AtomicU64, Ordering};
use papaya::HashMap;
use seize::{Collector, Guard};
use std::net::{Ipv4Addr, SocketAddrV4};

/// What a socket is found by. Unspecified parts are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    addresses: u64,
    ports: u32,
}

impl Key {
    /// Of a socket at `local` that hears everybody, or only `remote`.
    #[inline]
    pub(super) fn new(local: SocketAddrV4, remote: Option<SocketAddrV4>) -> Key {
        let (address, port) = remote.map_or((0, 0), |r| (r.ip().to_bits(), r.port()));
        Key {
            addresses: u64::from(local.ip().to_bits()) << 32 | u64::from(address),
            ports: u32::from(local.port()) << 16 | u32::from(port),
        }
    }

    fn kind(self) -> usize {
        match (self.addresses, self.ports as u16) {
            (0, 0) => ANY,
            (_, 0) => BOUND,
            _ => CONNECTED,
        }
    }
}

const CONNECTED: usize = 0;
const BOUND: usize = 1;
const ANY: usize = 2;

#[derive(Clone)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) endpoint: Arc<dyn UdpEndpoint>,
}

/// Sockets that share one key (`SO_REUSEADDR`). The newest gets what comes for one
/// (`sk_add_node_rcu` at the head in `udp_lib_get_port`).
#[derive(Clone)]
struct Group {
    newest: Member,
    older: Vec<Member>,
}

pub(super) struct Demux {
    sockets: HashMap<Key, Group, Keyed>,
    /// How many keys of each kind there are: a kind without any needs no probe.
    kinds: [AtomicU64; 3],
    /// How often a socket has gone from one key to another.
    moves: AtomicU64,
}

impl Demux {
    pub(super) fn new(hasher: Keyed) -> Demux {
        // Batches of one: what a closed socket held is let go at once, not after thirty more.
        let collector = Collector::new().batch_size(1);
        let sockets = HashMap::builder().hasher(hasher).collector(collector).build();
        Demux { sockets, kinds: Default::default(), moves: AtomicU64::new(0) }
    }

    #[inline]
    fn has(&self, kind: usize) -> bool {
        self.kinds[kind].load(Ordering::Acquire) > 0
    }

    #[cfg(test)]
    pub(super) fn kinds(&self) -> [u64; 3] {
        [CONNECTED, BOUND, ANY].map(|kind| self.kinds[kind].load(Ordering::Acquire))
    }

    /// Hands the socket that hears `remote` at `local` to `found`: connected ones first, then those bound
    /// to the address, then wildcards.
    #[inline]
    pub(super) fn find<R>(
        &self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        found: impl FnOnce(&dyn UdpEndpoint) -> R,
    ) -> Option<R> {
        let guard = self.sockets.guard();
        let probe = |kind: usize, key: Key| {
            if self.has(kind) { self.sockets.get(&key, &guard) } else { None }
        };
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port());
        loop {
            let moves = self.moves.load(Ordering::Acquire);
            let group = probe(CONNECTED, Key::new(local, Some(remote)))
                .or_else(|| probe(BOUND, Key::new(local, None)))
                .or_else(|| probe(ANY, Key::new(any, None)));
            if let Some(group) = group {
                return Some(found(&*group.newest.endpoint));
            }
            // A socket may have moved from a place not yet looked at to one already passed.
            if moves == self.moves.load(Ordering::Acquire) {
                return None;
            }
        }
    }

    /// Moves a socket; whoever looks for it meanwhile finds it. The caller holds the lock of the ports.
    pub(super) fn rename(&self, from: Key, to: Key, member: &Member) {
        self.insert(to, member.clone());
        self.moves.fetch_add(1, Ordering::AcqRel);
        self.remove(from, member.id);
    }

    /// Hands every socket that hears `remote` at the group or broadcast address `local` to `found`
    /// (`__udp4_lib_mcast_deliver`). How many there were.
    pub(super) fn each(
        &self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        mut found: impl FnMut(&dyn UdpEndpoint),
    ) -> usize {
        let guard = self.sockets.guard();
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port());
        let keys = [Key::new(local, Some(remote)), Key::new(local, None), Key::new(any, None)];
        let groups = keys.iter().filter_map(|key| self.sockets.get(key, &guard));
        let mut count = 0;
        for member in groups.flat_map(|group| group.older.iter().chain([&group.newest])) {
            found(&*member.endpoint);
            count += 1;
        }
        count
    }

    /// Enters a socket. The caller holds the lock of the ports.
    pub(super) fn insert(&self, key: Key, member: Member) {
        let guard = self.sockets.guard();
        let group = match self.sockets.get(&key, &guard) {
            None => {
                self.kinds[key.kind()].fetch_add(1, Ordering::Release);
                Group { newest: member, older: Vec::new() }
            }
            Some(group) => {
                let older = group.older.iter().chain([&group.newest]).cloned().collect();
                Group { newest: member, older }
            }
        };
        self.sockets.insert(key, group, &guard);
    }

    /// Takes a socket out. A packet in flight may still reach it a moment later. The caller holds the
    /// lock of the ports.
    pub(super) fn remove(&self, key: Key, id: u64) {
        let guard = self.sockets.guard();
        let Some(group) = self.sockets.get(&key, &guard) else { return };
        let mut left: Vec<Member> = group.older.iter().chain([&group.newest]).cloned().collect();
        left.retain(|member| member.id != id);
        match left.pop() {
            Some(newest) => {
                self.sockets.insert(key, Group { newest, older: left }, &guard);
            }
            None => {
                if self.sockets.remove(&key, &guard).is_some() {
                    self.kinds[key.kind()].fetch_sub(1, Ordering::Release);
                }
            }
        }
        guard.flush();
    }
}
