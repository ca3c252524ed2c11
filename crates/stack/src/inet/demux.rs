//! Which UDP socket a datagram is for. One hash table per family holds the 4-tuples of connected sockets, the
//! (address, port) of bound sockets and the (any, port) of wildcards, so a lookup costs at most three probes, however
//! many sockets are open. Readers take no lock; writers hold the lock of the ports.

use super::{
    UdpEndpoint,
    dad::needs_scope,
    hash::{Change, Changed, Layout, Reader, Table},
    last_packet::{LastDatagram, Received, number},
    random::{Keyed, Random},
};
use crate::sync::{Arc, AtomicU64, Ordering};
use std::{
    hash::{BuildHasher, Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
};

/// An address of one family. Each family has its own table, so that neither pays for the other.
pub(super) trait Address: Copy + Eq + Into<IpAddr> {
    /// Both addresses and ports of a conversation.
    type Key: Copy + Eq + Hash;
    const UNSPECIFIED: Self;

    fn key(local: (Self, u16), remote: (Self, u16)) -> Self::Key;

    /// The same in words, for [`LastDatagram`].
    fn words(local: (Self, u16), remote: (Self, u16)) -> impl IntoIterator<Item = u64>;

    /// The last datagram of this family.
    fn last(received: &Received) -> &LastDatagram;

    /// The socket address with `port`; a link-local address gets the scope id `scope`.
    fn socket(self, port: u16, scope: u32) -> SocketAddr;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key4 {
    addresses: u64,
    ports: u32,
}

impl Address for Ipv4Addr {
    type Key = Key4;
    const UNSPECIFIED: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

    #[inline]
    fn key(local: (Ipv4Addr, u16), remote: (Ipv4Addr, u16)) -> Key4 {
        Key4 {
            addresses: u64::from(local.0.to_bits()) << 32 | u64::from(remote.0.to_bits()),
            ports: u32::from(local.1) << 16 | u32::from(remote.1),
        }
    }

    #[inline]
    fn words(local: (Ipv4Addr, u16), remote: (Ipv4Addr, u16)) -> impl IntoIterator<Item = u64> {
        let Key4 { addresses, ports } = Ipv4Addr::key(local, remote);
        [addresses, ports.into()]
    }

    #[inline]
    fn last(received: &Received) -> &LastDatagram {
        &received.datagram4
    }

    #[inline]
    fn socket(self, port: u16, _scope: u32) -> SocketAddr {
        SocketAddr::new(self.into(), port)
    }
}

/// The scope id of link-local addresses is not part of the key: two peers on two links with the same address and port
/// are unlikely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key6 {
    local: u128,
    remote: u128,
    ports: u32,
}

impl Hash for Key6 {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        for address in [self.local, self.remote] {
            state.write_u64((address >> 64) as u64);
            state.write_u64(address as u64);
        }
        state.write_u32(self.ports);
    }
}

impl Address for Ipv6Addr {
    type Key = Key6;
    const UNSPECIFIED: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

    #[inline]
    fn key(local: (Ipv6Addr, u16), remote: (Ipv6Addr, u16)) -> Key6 {
        Key6 {
            local: local.0.to_bits(),
            remote: remote.0.to_bits(),
            ports: u32::from(local.1) << 16 | u32::from(remote.1),
        }
    }

    #[inline]
    fn words(local: (Ipv6Addr, u16), remote: (Ipv6Addr, u16)) -> impl IntoIterator<Item = u64> {
        let Key6 { local, remote, ports } = Ipv6Addr::key(local, remote);
        let halves = |address: u128| [(address >> 64) as u64, address as u64];
        let ([a, b], [c, d]) = (halves(local), halves(remote));
        [a, b, c, d, ports.into()]
    }

    #[inline]
    fn last(received: &Received) -> &LastDatagram {
        &received.datagram6
    }

    #[inline]
    fn socket(self, port: u16, scope: u32) -> SocketAddr {
        let scope = if needs_scope(self) { scope } else { 0 };
        SocketAddrV6::new(self, port, 0, scope).into()
    }
}

/// The addresses of a socket in the table: `local`, and `remote` if it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressPair<A> {
    pub(super) local: (A, u16),
    pub(super) remote: Option<(A, u16)>,
}

impl<A: Address> AddressPair<A> {
    #[inline]
    fn key(self) -> A::Key {
        A::key(self.local, self.remote.unwrap_or((A::UNSPECIFIED, 0)))
    }

    fn kind(self) -> usize {
        match self.remote {
            Some(_) => CONNECTED,
            None if self.local.0 == A::UNSPECIFIED => WILDCARD,
            None => BOUND,
        }
    }
}

const CONNECTED: usize = 0;
const BOUND: usize = 1;
const WILDCARD: usize = 2;

#[derive(Clone)]
pub(super) struct Member {
    pub(super) id: u64,
    /// `SO_REUSEPORT`.
    pub(super) reuseport: bool,
    pub(super) endpoint: Arc<dyn UdpEndpoint>,
}

/// Sockets with the same key (`SO_REUSEADDR`, `SO_REUSEPORT`). The newest gets the unicast datagrams
/// (`sk_add_node_rcu` at the head in `udp_lib_get_port`), or shares them with all others that have `SO_REUSEPORT` set
/// (`inet_lookup_reuseport`).
#[derive(Clone)]
struct Group {
    newest: Member,
    older: Vec<Member>,
    /// The sockets that share the unicast datagrams; empty if the newest gets them all.
    reuseport_group: Box<[Arc<dyn UdpEndpoint>]>,
}

impl Group {
    fn new(newest: Member, older: Vec<Member>) -> Group {
        let in_group = |member: &&Member| newest.reuseport && member.reuseport;
        let all = older.iter().chain([&newest]).filter(in_group);
        let reuseport_group: Vec<_> = all.map(|member| member.endpoint.clone()).collect();
        let reuseport_group =
            if reuseport_group.len() > 1 { reuseport_group.into() } else { Box::default() };
        Group { newest, older, reuseport_group }
    }

    /// The socket that gets a unicast datagram; `hash` is that of the datagram's 4-tuple.
    #[inline]
    fn select(&self, hash: impl FnOnce() -> u64) -> &dyn UdpEndpoint {
        if self.reuseport_group.is_empty() {
            return &*self.newest.endpoint;
        }
        // Each socket gets an equal share of the hashes (`reciprocal_scale`).
        let at = ((u128::from(hash()) * self.reuseport_group.len() as u128) >> 64) as usize;
        &*self.reuseport_group[at]
    }
}

pub(super) struct Demux<A: Address> {
    sockets: Table<A::Key, Group, Keyed>,
    /// The number of keys of each kind: a kind with none needs no probe.
    kinds: [AtomicU64; 3],
    /// The hash that selects a socket of a reuseport group.
    reuseport_hash: Keyed,
    /// Incremented after each change of the table.
    changes: AtomicU64,
}

impl<A: Address> Demux<A> {
    pub(super) fn new(random: &Random) -> Demux<A> {
        // Batches of one: a closed socket's memory is freed at once.
        let layout = Layout { shards: 4, readers: 16, batch: 1 };
        let sockets = Table::new(random.hasher(), layout);
        let reuseport_hash = random.hasher();
        Demux { sockets, kinds: Default::default(), reuseport_hash, changes: AtomicU64::new(0) }
    }

    #[inline]
    fn has(&self, kind: usize) -> bool {
        self.kinds[kind].load(Ordering::Acquire) > 0
    }

    #[cfg(test)]
    pub(super) fn kinds(&self) -> [u64; 3] {
        [CONNECTED, BOUND, WILDCARD].map(|kind| self.kinds[kind].load(Ordering::Acquire))
    }

    #[inline(always)] // called three times per packet
    fn probe<'g>(
        &self,
        kind: usize,
        local: (A, u16),
        remote: (A, u16),
        reader: &'g Reader<'_, A::Key, Group, Keyed>,
    ) -> Option<&'g Group> {
        if self.has(kind) { reader.get(&A::key(local, remote)) } else { None }
    }

    /// Calls `found` with the socket that receives datagrams from `remote` to `local`: a connected one first, then
    /// one bound to the address, then one bound to any address.
    pub(super) fn find<R>(
        &self,
        local: (A, u16),
        remote: (A, u16),
        found: impl FnOnce(&dyn UdpEndpoint) -> R,
    ) -> Option<R> {
        self.look_up(local, remote, |endpoint, _| found(endpoint))
    }

    /// As [`find`](Demux::find), for a datagram of a queue whose `last` one is known, polled for `expected`.
    #[inline]
    pub(super) fn find_expected<R>(
        &self,
        local: (A, u16),
        remote: (A, u16),
        (last, expected): (&LastDatagram, &Arc<dyn UdpEndpoint>),
        found: impl FnOnce(&dyn UdpEndpoint) -> R,
    ) -> Option<R> {
        if last.was_for(expected, local, remote, self.changes.load(Ordering::Acquire)) {
            return Some(found(&**expected));
        }
        self.look_up(local, remote, |endpoint, changes| {
            if number(endpoint) == number(&**expected) {
                last.note(endpoint, local, remote, changes);
            }
            found(endpoint)
        })
    }

    /// `found` also gets the number of changes before the lookup.
    fn look_up<R>(
        &self,
        local: (A, u16),
        remote: (A, u16),
        found: impl FnOnce(&dyn UdpEndpoint, u64) -> R,
    ) -> Option<R> {
        let reader = self.sockets.read();
        let (unconnected, any) = ((A::UNSPECIFIED, 0), (A::UNSPECIFIED, local.1));
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let group = self
                .probe(CONNECTED, local, remote, &reader)
                .or_else(|| self.probe(BOUND, local, unconnected, &reader))
                .or_else(|| self.probe(WILDCARD, any, unconnected, &reader));
            if let Some(group) = group {
                let hash = || self.reuseport_hash.hash_one(A::key(local, remote));
                return Some(found(group.select(hash), changes));
            }
            // A socket may have moved from a key not probed yet to one already probed: try again.
            if changes == self.changes.load(Ordering::Acquire) {
                return None;
            }
        }
    }

    /// Moves a socket from one key to another; `None` adds or removes it. A concurrent lookup finds it under one of
    /// them. The caller holds the lock of the ports.
    pub(super) fn rebind(
        &self,
        from: Option<AddressPair<A>>,
        to: Option<AddressPair<A>>,
        member: &Member,
    ) {
        if from == to {
            return;
        }
        if let Some(to) = to {
            self.insert(to, member.clone());
        }
        if let Some(from) = from {
            self.remove(from, member.id);
        }
    }

    /// Calls `found` with every socket that receives datagrams from `remote` to the multicast or broadcast address
    /// `local` (`__udp4_lib_mcast_deliver`).
    pub(super) fn for_each(
        &self,
        local: (A, u16),
        remote: (A, u16),
        mut found: impl FnMut(&dyn UdpEndpoint),
    ) {
        let reader = self.sockets.read();
        let (unconnected, any) = ((A::UNSPECIFIED, 0), (A::UNSPECIFIED, local.1));
        let keys = [A::key(local, remote), A::key(local, unconnected), A::key(any, unconnected)];
        let groups = keys.iter().filter_map(|key| reader.get(key));
        for member in groups.flat_map(|group| group.older.iter().chain([&group.newest])) {
            found(&*member.endpoint);
        }
    }

    /// Adds a socket. The caller holds the lock of the ports.
    pub(super) fn insert(&self, pair: AddressPair<A>, member: Member) {
        self.sockets.change(pair.key(), |group| {
            let older = match group {
                None => {
                    self.kinds[pair.kind()].fetch_add(1, Ordering::Release);
                    Vec::new()
                }
                Some(group) => group.older.iter().chain([&group.newest]).cloned().collect(),
            };
            Change::Put(Group::new(member, older))
        });
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes a socket. A packet in flight may still reach it shortly after. The caller holds the lock of the
    /// ports.
    fn remove(&self, pair: AddressPair<A>, id: u64) {
        let changed = self.sockets.change(pair.key(), |group| {
            let Some(group) = group else { return Change::Keep };
            let mut left: Vec<Member> =
                group.older.iter().chain([&group.newest]).cloned().collect();
            left.retain(|member| member.id != id);
            match left.pop() {
                Some(newest) => Change::Put(Group::new(newest, left)),
                None => Change::Remove,
            }
        });
        if changed == Some(Changed::Removed) {
            self.kinds[pair.kind()].fetch_sub(1, Ordering::Release);
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}
