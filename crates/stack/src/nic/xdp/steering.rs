//! Which packets are ours: the ports map of the steering program. Owns the map's contents and the
//! number of users of each entry; the program itself is in [`bpf::program`](super::bpf::program).

use super::{
    Shared,
    bpf::{
        program::{BY_CONNECTION, KERNEL_FIRST, Key, OURS},
        sys,
    },
};
use crate::nic::Steering;
use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The most entries of the map: local (protocol, address, port) triples and connections, about 100 bytes of kernel
/// memory each.
pub(super) const CAPACITY: u32 = 1 << 16;

/// The map and its users.
pub(super) struct PortMap {
    map: OwnedFd,
    users: Mutex<Users>,
    _shared: Arc<Shared>,
}

#[derive(Default)]
struct Users {
    ports: HashMap<Key, Port>,
    connections: HashMap<Key, Connection>,
}

/// The users of a port's entry.
#[derive(Default)]
struct Port {
    /// How many users steer the whole port.
    all: u32,
    /// How many users steer one connection of it.
    some: u32,
    /// The keys of connections that are excluded from steering.
    excluded: Vec<Key>,
    /// The take-overs of the port that go on.
    take_overs: Vec<u64>,
}

/// The users of a connection's entry. Steering wins over an exclusion.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Connection {
    steered: u32,
    excluded: u32,
    /// Handed over to the kernel: not steered in spite of `steered`.
    handed_over: bool,
}

impl Port {
    /// The value in the map; `None`: no entry.
    fn value(&self) -> Option<u8> {
        match self.all {
            0 => None,
            _ => {
                let by_connection = if self.excluded.is_empty() { 0 } else { BY_CONNECTION };
                let kernel_first = if self.take_overs.is_empty() { 0 } else { KERNEL_FIRST };
                Some(OURS | by_connection | kernel_first)
            }
        }
    }
}

impl Connection {
    fn value(self) -> Option<u8> {
        match (self.steered, self.excluded) {
            (0, 0) => None,
            (0, _) => Some(0),
            _ if self.handed_over => Some(0),
            _ => Some(OURS),
        }
    }

    fn forget(&mut self) {
        self.excluded = self.excluded.saturating_sub(1);
        self.handed_over = false;
    }
}

impl PortMap {
    pub(super) fn new(map: OwnedFd, shared: Arc<Shared>) -> PortMap {
        PortMap { map, users: Mutex::default(), _shared: shared }
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the map's value of `key` from `old` to `new`. A deletion does not fail: if the entry is missing, the
    /// packets go to the kernel, as intended.
    fn write(&self, key: &Key, old: Option<u8>, new: Option<u8>) -> io::Result<()> {
        match new {
            _ if new == old => Ok(()),
            Some(value) => sys::update(&self.map, key, &value),
            None => {
                let _ = sys::delete(&self.map, key);
                Ok(())
            }
        }
    }

    /// Changes a port's entry and the map, or neither.
    fn change_port(
        &self,
        users: &mut Users,
        key: Key,
        change: impl FnOnce(&mut Port),
    ) -> io::Result<()> {
        let port = users.ports.entry(key).or_default();
        let (old, before) = (port.value(), (port.all, port.some));
        change(port);
        let written = self.write(&key, old, port.value());
        if written.is_err() {
            (port.all, port.some) = before;
        }
        if (port.all, port.some) == (0, 0) {
            // The port is not steered any more, so its exclusions are not needed.
            for left in users.ports.remove(&key).into_iter().flat_map(|port| port.excluded) {
                let _ = self.change_connection(users, left, Connection::forget);
            }
        }
        written
    }

    /// As [`change_port`](PortMap::change_port), for a connection.
    fn change_connection(
        &self,
        users: &mut Users,
        key: Key,
        change: impl FnOnce(&mut Connection),
    ) -> io::Result<()> {
        let old = users.connections.get(&key).copied().unwrap_or_default();
        let mut new = old;
        change(&mut new);
        self.write(&key, old.value(), new.value())?;
        match new == Connection::default() {
            true => users.connections.remove(&key),
            false => users.connections.insert(key, new),
        };
        Ok(())
    }
}

/// The error of a steering request, with an explanation if the map is full.
fn explain(local: SocketAddr, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::E2BIG) => io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "cannot steer packets for {local}: all {CAPACITY} entries are taken; close a socket"
            ),
        ),
        _ => error,
    }
}

fn port(local: SocketAddr) -> Key {
    Key::new(libc::IPPROTO_TCP as u8, local)
}

impl Steering for PortMap {
    fn add(&self, protocol: u8, local: SocketAddr) -> io::Result<()> {
        let key = Key::new(protocol, local);
        let added = self.change_port(&mut self.users(), key, |port| port.all += 1);
        added.map_err(|error| explain(local, error))
    }

    fn begin_take_over(&self, local: SocketAddr, number: u64) -> io::Result<()> {
        let (mut users, at) = (self.users(), port(local));
        // Before the port is steered it has no entry in the map.
        let port = users.ports.entry(at).or_default();
        let old = port.value();
        port.take_overs.push(number);
        let new = port.value();
        self.write(&at, old, new)
    }

    fn end_take_over(&self, local: SocketAddr, number: u64) {
        let (mut users, at) = (self.users(), port(local));
        let Some(port) = users.ports.get_mut(&at) else { return };
        let old = port.value();
        port.take_overs.retain(|other| *other != number);
        let new = port.value();
        // If this fails, the program goes on looking the packets up.
        let _ = self.write(&at, old, new);
        if (port.all, port.some, &*port.take_overs, &*port.excluded) == (0, 0, &[], &[]) {
            users.ports.remove(&at);
        }
    }

    fn hand_over(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.exclude(local, remote)?;
        let connection = Key::connection(local.port(), remote);
        self.change_connection(&mut self.users(), connection, |it| it.handed_over = true)
    }

    fn prune_excluded(&self, local: SocketAddr, live: &[(SocketAddr, SocketAddr)]) {
        let live: HashSet<Key> =
            live.iter().map(|(local, remote)| Key::connection(local.port(), *remote)).collect();
        let mut users = self.users();
        let Some(port) = users.ports.get_mut(&port(local)) else { return };
        let over: Vec<Key> = port.excluded.extract_if(.., |key| !live.contains(key)).collect();
        for key in over {
            let _ = self.change_connection(&mut users, key, Connection::forget);
        }
    }

    fn remove(&self, protocol: u8, local: SocketAddr) {
        let key = Key::new(protocol, local);
        let _ =
            self.change_port(&mut self.users(), key, |port| port.all = port.all.saturating_sub(1));
    }

    fn add_connection(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        let mut users = self.users();
        let connection = Key::connection(local.port(), remote);
        self.change_connection(&mut users, connection, |it| {
            it.steered += 1;
            it.handed_over = false;
        })
        .and_then(|()| {
            let added = self.change_port(&mut users, port(local), |port| port.some += 1);
            if added.is_err() {
                let _ = self.change_connection(&mut users, connection, |it| {
                    it.steered = it.steered.saturating_sub(1)
                });
            }
            added
        })
        .map_err(|error| explain(local, error))
    }

    fn remove_connection(&self, local: SocketAddr, remote: SocketAddr) {
        let mut users = self.users();
        let connection = Key::connection(local.port(), remote);
        let _ = self
            .change_port(&mut users, port(local), |port| port.some = port.some.saturating_sub(1));
        let _ = self.change_connection(&mut users, connection, |it| {
            it.steered = it.steered.saturating_sub(1)
        });
    }

    fn exclude(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        let mut users = self.users();
        let (at, connection) = (port(local), Key::connection(local.port(), remote));
        if users.ports.get(&at).is_some_and(|port| port.excluded.contains(&connection)) {
            return Ok(());
        }
        self.change_connection(&mut users, connection, |it| it.excluded += 1)?;
        // Before the port is steered it has no entry in the map.
        let port = users.ports.entry(at).or_default();
        let old = port.value();
        port.excluded.push(connection);
        let new = port.value();
        self.write(&at, old, new)
    }
}
