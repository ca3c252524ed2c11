//! Which packets are ours: the map the steering program looks into. Owns the map's contents and the
//! count of users of each entry; the program itself is [`bpf::program`](super::bpf::program)'s.

use super::{
    Shared,
    bpf::{
        program::{Key, OURS, SOME_LEFT},
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

/// The most entries of the map: local (protocol, address, port) triples, some 100 bytes of the kernel's each.
pub(super) const CAPACITY: u32 = 1 << 16;

/// The map and its users.
pub(super) struct PortMap {
    map: OwnedFd,
    users: Mutex<HashMap<Key, Users>>,
    _shared: Arc<Shared>,
}

/// What there is to an entry.
#[derive(Default)]
struct Users {
    /// How many have it steered.
    count: u32,
    /// Entries of connections that are left to the kernel.
    left: Vec<Key>,
}

impl Users {
    fn value(&self) -> u8 {
        if self.left.is_empty() { OURS } else { OURS | SOME_LEFT }
    }
}

impl PortMap {
    pub(super) fn new(map: OwnedFd, shared: Arc<Shared>) -> PortMap {
        PortMap { map, users: Mutex::new(HashMap::new()), _shared: shared }
    }

    /// Nobody has the port steered: what was left of it needs no saying.
    fn forget(&self, users: &mut HashMap<Key, Users>, port: &Key) {
        for left in users.remove(port).into_iter().flat_map(|users| users.left) {
            let _ = sys::delete(&self.map, &left);
        }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<Key, Users>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steering for PortMap {
    fn add(&self, protocol: u8, local: SocketAddr) -> io::Result<()> {
        let key = Key::new(protocol, local);
        let mut users = self.users();
        let entry = users.entry(key).or_default();
        if entry.count == 0
            && let Err(error) = sys::update(&self.map, &key, &entry.value())
        {
            self.forget(&mut users, &key);
            return Err(match error.raw_os_error() {
                Some(libc::E2BIG) => io::Error::new(
                    io::ErrorKind::StorageFull,
                    format!(
                        "cannot steer packets for {local}: all {CAPACITY} entries are taken; close a socket"
                    ),
                ),
                _ => error,
            });
        }
        entry.count += 1;
        Ok(())
    }

    fn leave(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        let (port, key) = (Key::new(libc::IPPROTO_TCP as u8, local), Key::left(local, remote));
        let mut users = self.users();
        let entry = users.entry(port).or_default();
        if !entry.left.contains(&key) {
            sys::update(&self.map, &key, &OURS)?;
            entry.left.push(key);
            if entry.count > 0 {
                sys::update(&self.map, &port, &entry.value())?;
            }
        }
        Ok(())
    }

    fn forget_left(&self, local: SocketAddr, live: &[(SocketAddr, SocketAddr)]) {
        let port = Key::new(libc::IPPROTO_TCP as u8, local);
        let live: HashSet<Key> =
            live.iter().map(|(local, remote)| Key::left(*local, *remote)).collect();
        let mut users = self.users();
        let Some(entry) = users.get_mut(&port) else { return };
        entry.left.retain(|key| {
            let stays = live.contains(key);
            if !stays {
                // It is there, or need not be.
                let _ = sys::delete(&self.map, key);
            }
            stays
        });
    }

    fn remove(&self, protocol: u8, local: SocketAddr) {
        let key = Key::new(protocol, local);
        let mut users = self.users();
        let Some(entry) = users.get_mut(&key) else { return };
        entry.count = entry.count.saturating_sub(1);
        if entry.count == 0 {
            // The entry is there; and if it were not, the packets would go to the kernel, as they shall.
            let _ = sys::delete(&self.map, &key);
            self.forget(&mut users, &key);
        }
    }
}
