//! Which packets are ours: the ports map of the steering program. Owns the map's contents and the
//! number of users of each entry; the program itself is in [`bpf::program`](super::bpf::program).
//!
//! Several processes may share the map. An entry belongs to the process whose slot it names, and no other process
//! changes it. A port belongs to one process, while single connections of it may be another's: those of a listener that
//! this one has closed, for example. The program looks a connection up only if the port's value says so. So a process
//! that adds a port must know whether another process has connections there: a *mark* tells, which that process adds
//! after the first of them. While a process is alone it adds none; one that joins later reads the whole map once.
//!
//! A TCP port that several processes wait for is *shared*: the kernel takes its new connections, and each process accepts
//! from it. The process that had the port alone keeps its connections, and its entry gets a flag; each other adds a mark
//! of its own, so that no process takes the port for itself later. UDP ports are in [`udp_ports`], listeners of programs
//! without a slot in [`outside`](super::outside).

use super::{
    Shared,
    bpf::{
        program::{
            BY_CONNECTION, KERNEL_FIRST, Key, OURS, SHARED, of_slot, priority_of, slot_of,
            slot_of_priority,
        },
        sys,
    },
    udp_ports,
};
use crate::nic::Steering;
use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The most entries of the map: local (protocol, address, port) triples and connections, about 100 bytes of kernel
/// memory each.
pub(super) const CAPACITY: u32 = 1 << 16;

/// How long the entries of a killed process may be there.
pub(super) const CLEARED: Duration = Duration::from_secs(1);

/// The map and its users.
pub(super) struct PortMap {
    map: OwnedFd,
    /// This process's slot.
    slot: u8,
    /// Ports at which other processes had single connections when this one began.
    found: HashSet<u16>,
    users: Mutex<Users>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Users {
    ports: HashMap<Key, Port>,
    connections: HashMap<Key, Connection>,
    /// How many users each UDP port has that other processes may have, too.
    members: HashMap<Key, u32>,
    /// How many users wait for connections to each TCP port that the kernel takes.
    sharers: HashMap<Key, u32>,
    /// The ports that have a mark.
    marked: HashSet<u16>,
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
    /// Another process may have connections of it.
    has_foreign: bool,
}

/// The users of a connection's entry. Steering wins over an exclusion.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Connection {
    steered: u32,
    excluded: u32,
    /// Handed over to the kernel: not steered in spite of `steered`.
    handed_over: bool,
    /// Taken from a process that may have the rest of the port.
    taken: bool,
}

impl Port {
    /// The value in the map; `None`: no entry.
    fn value(&self) -> Option<u8> {
        match self.all {
            0 => None,
            _ => {
                let some = self.has_foreign || !self.excluded.is_empty();
                let by_connection = if some { BY_CONNECTION } else { 0 };
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
    pub(super) fn new(map: OwnedFd, slot: u8, shared: Arc<Shared>) -> PortMap {
        let mut found = HashSet::new();
        if shared.others() != 0 {
            each_key(&map, |key| {
                found.extend(key.connection_port());
                false
            });
        }
        PortMap { map, slot, found, users: Mutex::default(), shared }
    }

    /// Whether another process has single connections of a port.
    fn has_foreign(&self, port: u16) -> bool {
        let is_marked = |slot| sys::lookup(&self.map, &Key::mark(port, slot)).is_some();
        self.found.contains(&port) || self.shared.other_slots().any(is_marked)
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the map's value of `key` from `old` to `new`. A deletion does not fail: if the entry is missing, the
    /// packets go to the kernel, as intended.
    fn write(&self, key: &Key, old: Option<u8>, new: Option<u8>) -> io::Result<()> {
        match new {
            _ if new == old => Ok(()),
            Some(value) => {
                let value = value | of_slot(self.slot);
                match old {
                    None => {
                        self.insert(key, value)?;
                        // A sharer that came meanwhile may have found no entry.
                        if self.has_sharers(key) { self.replace(key, value) } else { Ok(()) }
                    }
                    Some(_) => self.replace(key, value),
                }
            }
            None => {
                let _ = sys::delete(&self.map, key);
                Ok(())
            }
        }
    }

    /// Changes an entry of this process.
    fn replace(&self, key: &Key, value: u8) -> io::Result<()> {
        let flag = || if self.has_sharers(key) { SHARED } else { 0 };
        let mut shared = flag();
        loop {
            sys::update(&self.map, key, &(value | shared))?;
            // A sharer that came meanwhile has marked the port before it changed the entry.
            match flag() {
                now if now == shared => return Ok(()),
                now => shared = now,
            }
        }
    }

    /// Whether other processes wait for a TCP port that they do not steer.
    fn has_sharers(&self, key: &Key) -> bool {
        let waits = |slot| {
            sys::lookup(&self.map, &key.sharer(slot)).is_some() && !self.shared.seems_gone(slot)
        };
        key.tcp_port().is_some() && self.shared.other_slots().any(waits)
    }

    /// Marks a TCP port as shared, whose entry another process may have.
    fn mark_shared(&self, key: &Key) -> io::Result<()> {
        sys::update(&self.map, &key.sharer(self.slot), &of_slot(self.slot))?;
        let Some(value) = sys::lookup(&self.map, key) else { return Ok(()) };
        if slot_of(value) == self.slot || value & SHARED != 0 {
            return Ok(());
        }
        // Flags that its process changes meanwhile are implied by this one.
        match sys::replace(&self.map, key, &(value | SHARED)) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        }
    }

    /// Adds an entry; EEXIST if another process has it. One that has just been killed has it until its guard notices.
    fn insert(&self, key: &Key, value: u8) -> io::Result<()> {
        let give_up = Instant::now() + CLEARED;
        loop {
            match sys::insert(&self.map, key, &value) {
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) && Instant::now() < give_up => {
                    let owner = sys::lookup(&self.map, key).map(slot_of);
                    if owner.is_some_and(|owner| !self.shared.seems_gone(owner)) {
                        return Err(e);
                    }
                }
                result => return result,
            }
            thread::sleep(Duration::from_millis(5));
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
        let tcp_port = key.tcp_port().filter(|_| old.is_none() && port.all > 0);
        // Until it is known whether there are any.
        port.has_foreign |= tcp_port.is_some() && self.shared.others() != 0;
        let written = self.write(&key, old, port.value());
        if written.is_err() {
            (port.all, port.some) = before;
        } else if let Some(number) = tcp_port.filter(|_| port.has_foreign) {
            let old = port.value();
            port.has_foreign = self.has_foreign(number);
            // If this fails, the program goes on looking connections up.
            let _ = self.write(&key, old, port.value());
        }
        if (port.all, port.some) == (0, 0) {
            // The port is not steered any more, so its exclusions are not needed.
            for left in users.ports.remove(&key).into_iter().flat_map(|port| port.excluded) {
                let _ = self.change_connection(users, left, Connection::forget);
            }
        }
        written
    }

    /// A connection of the port was added: marks the port, if other processes must know. EEXIST: the port is another
    /// process's, so it would get the packets.
    fn mark_connections(&self, users: &mut Users, local: SocketAddr) -> io::Result<()> {
        if self.shared.others() == 0 {
            return Ok(());
        }
        self.mark(users, local.port())?;
        match sys::lookup(&self.map, &port(local)) {
            Some(value) if slot_of(value) != self.slot && value & SHARED == 0 => {
                Err(io::Error::from_raw_os_error(libc::EEXIST))
            }
            _ => Ok(()),
        }
    }

    fn mark(&self, users: &mut Users, port: u16) -> io::Result<()> {
        if !users.marked.contains(&port) {
            sys::update(&self.map, &Key::mark(port, self.slot), &of_slot(self.slot))?;
            users.marked.insert(port);
        }
        Ok(())
    }

    /// If the connection was taken from the process that has its port, it becomes the kernel's, by an entry of that process:
    /// it may outlive this one. False: it was not.
    fn return_taken(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
        let (mut users, connection) = (self.users(), Key::connection(local.port(), remote));
        if !users.connections.get(&connection).is_some_and(|it| it.taken) {
            return Ok(false);
        }
        let owner = sys::lookup(&self.map, &port(local)).map(slot_of);
        let Some(owner) = owner.filter(|owner| *owner != self.slot) else { return Ok(false) };
        sys::update(&self.map, &connection, &of_slot(owner))?;
        users.connections.remove(&connection);
        Ok(true)
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

/// Passes each key of the map to `is_over`, and removes it if that says so.
fn each_key(map: &OwnedFd, mut is_over: impl FnMut(Key) -> bool) {
    // Of a key that another process removes meanwhile, the map begins anew: the number of steps is limited.
    let mut key = sys::next_key::<Key>(map, None);
    for _ in 0..2 * CAPACITY {
        let Some(at) = key else { return };
        key = sys::next_key(map, Some(&at));
        if is_over(at) {
            let _ = sys::delete(map, &at);
        }
    }
}

/// Removes all entries of a slot, whose process has ended: the packets are the kernel's.
pub(super) fn clear(map: &OwnedFd, slot: u8) {
    let mut ports = Vec::new();
    each_key(map, |key| {
        let of = sys::lookup(map, &key).map(slot_of);
        let is_its = of == Some(slot);
        if is_its && key.is_udp_port() {
            ports.push(key);
        }
        is_its && !key.is_udp_port() && !key.is_of_outside()
    });
    // Now that it is no member any more.
    ports.into_iter().for_each(|key| udp_ports::leave(map, key, slot));
}

/// The error of a steering request, with an explanation if the map is full, or the entry is another process's.
fn explain(local: SocketAddr, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EEXIST) => io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("another process has the packets for {local}"),
        ),
        Some(libc::E2BIG) => io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "cannot steer packets for {local}: all {CAPACITY} entries are taken; close a socket"
            ),
        ),
        _ => error,
    }
}

fn shared(local: SocketAddr) -> io::Error {
    io::Error::new(
        io::ErrorKind::AddrInUse,
        format!("several processes share {local}, so the kernel takes its connections"),
    )
}

fn port(local: SocketAddr) -> Key {
    Key::new(libc::IPPROTO_TCP as u8, local)
}

impl Steering for PortMap {
    fn add(&self, protocol: u8, local: SocketAddr) -> io::Result<()> {
        let (key, mut users) = (Key::new(protocol, local), self.users());
        if let Some(count) = users.members.get_mut(&key) {
            *count += 1;
            return Ok(());
        }
        let is_fresh = users.ports.get(&key).is_none_or(|port| port.all == 0);
        let added = match is_fresh && self.has_sharers(&key) {
            true => Err(io::Error::from_raw_os_error(libc::EEXIST)),
            false => self.change_port(&mut users, key, |port| port.all += 1),
        };
        match added {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) && key.tcp_port().is_some() => {
                Err(shared(local))
            }
            added => added.map_err(|error| explain(local, error)),
        }
    }

    fn share(&self, local: SocketAddr) -> io::Result<()> {
        let (key, mut users) = (port(local), self.users());
        if !users.sharers.contains_key(&key) {
            self.mark_shared(&key).map_err(|error| explain(local, error))?;
        }
        *users.sharers.entry(key).or_default() += 1;
        Ok(())
    }

    fn unshare(&self, local: SocketAddr) {
        let (key, mut users) = (port(local), self.users());
        let Some(count) = users.sharers.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            users.sharers.remove(&key);
            let _ = sys::delete(&self.map, &key.sharer(self.slot));
        }
    }

    fn join(&self, local: SocketAddr, priority: u32) -> io::Result<()> {
        let (key, mut users) = (Key::new(libc::IPPROTO_UDP as u8, local), self.users());
        let is_fresh = users.ports.get(&key).is_none_or(|port| port.all == 0);
        if !is_fresh {
            return self.change_port(&mut users, key, |port| port.all += 1);
        }
        let has = |slot: &u8| sys::lookup(&self.map, &key.member(*slot)).is_some();
        let by = slot_of_priority(priority).filter(|slot| *slot != self.slot);
        if by.is_some_and(|slot| has(&slot) && !self.shared.seems_gone(slot)) {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("another process has this very socket, and the packets for {local}"),
            ));
        }
        if !users.members.contains_key(&key) {
            udp_ports::join(&self.map, key, self.slot, &self.shared)
                .map_err(|error| explain(local, error))?;
        }
        *users.members.entry(key).or_default() += 1;
        Ok(())
    }

    fn priority(&self, before: u32) -> Option<u32> {
        self.shared.place.as_ref().and_then(|place| priority_of(place.slot, before))
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
        if self.return_taken(local, remote)? {
            return Ok(());
        }
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
        let (key, mut users) = (Key::new(protocol, local), self.users());
        if let Some(count) = users.members.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                users.members.remove(&key);
                udp_ports::leave(&self.map, key, self.slot);
            }
            return;
        }
        let _ = self.change_port(&mut users, key, |port| port.all = port.all.saturating_sub(1));
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
            let added = added.and_then(|()| {
                self.mark_connections(&mut users, local).inspect_err(|_| {
                    let less = |port: &mut Port| port.some = port.some.saturating_sub(1);
                    let _ = self.change_port(&mut users, port(local), less);
                })
            });
            if added.is_err() {
                let _ = self.change_connection(&mut users, connection, |it| {
                    it.steered = it.steered.saturating_sub(1)
                });
            }
            added
        })
        .map_err(|error| explain(local, error))
    }

    fn take_connection(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        let (mut users, at) = (self.users(), port(local));
        let connection = Key::connection(local.port(), remote);
        let owner = sys::lookup(&self.map, &at).filter(|value| slot_of(*value) != self.slot);
        if users.connections.contains_key(&connection)
            || owner.is_some_and(|value| value & (BY_CONNECTION | SHARED) == 0)
        {
            return Err(explain(local, io::Error::from_raw_os_error(libc::EEXIST)));
        }
        self.mark(&mut users, local.port())?;
        // No other process writes an entry that was given up.
        sys::update(&self.map, &connection, &(OURS | of_slot(self.slot)))
            .map_err(|error| explain(local, error))?;
        let taken = Connection { steered: 1, taken: true, ..Connection::default() };
        users.connections.insert(connection, taken);
        users.ports.entry(at).or_default().some += 1;
        Ok(())
    }

    fn give_up(&self, local: SocketAddr, remote: SocketAddr) {
        let (mut users, connection) = (self.users(), Key::connection(local.port(), remote));
        users.connections.remove(&connection);
        if let Some(port) = users.ports.get_mut(&port(local)) {
            // In the map the port's value stays as it is.
            port.excluded.retain(|key| *key != connection);
            port.has_foreign = true;
        }
    }

    fn take_back(&self, local: SocketAddr, remote: SocketAddr) {
        let (mut users, connection) = (self.users(), Key::connection(local.port(), remote));
        let is_given_up = sys::lookup(&self.map, &connection) == Some(of_slot(self.slot));
        if is_given_up && !users.connections.contains_key(&connection) {
            let excluded = Connection { excluded: 1, ..Connection::default() };
            users.connections.insert(connection, excluded);
            users.ports.entry(port(local)).or_default().excluded.push(connection);
        }
    }

    fn remove_connection(&self, local: SocketAddr, remote: SocketAddr) {
        let mut users = self.users();
        let connection = Key::connection(local.port(), remote);
        let _ = self
            .change_port(&mut users, port(local), |port| port.some = port.some.saturating_sub(1));
        let _ = self.change_connection(&mut users, connection, |it| {
            it.steered = it.steered.saturating_sub(1);
            it.taken &= it.steered > 0;
        });
        let number = local.port();
        let is_some = |(key, port): (&Key, &Port)| key.tcp_port() == Some(number) && port.some > 0;
        if users.marked.contains(&number) && !users.ports.iter().any(is_some) {
            users.marked.remove(&number);
            let _ = sys::delete(&self.map, &Key::mark(number, self.slot));
        }
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
