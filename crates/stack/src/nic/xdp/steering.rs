//! Which packets are ours: the map the steering program looks into. Owns the map's contents and the
//! count of users of each entry; the program itself is [`bpf::program`](super::bpf::program)'s.

use super::{
    Shared,
    bpf::{program::Key, sys},
};
use crate::nic::Steering;
use std::{
    collections::HashMap,
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
    users: Mutex<HashMap<Key, u32>>,
    _shared: Arc<Shared>,
}

impl PortMap {
    pub(super) fn new(map: OwnedFd, shared: Arc<Shared>) -> PortMap {
        PortMap { map, users: Mutex::new(HashMap::new()), _shared: shared }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<Key, u32>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steering for PortMap {
    fn add(&self, protocol: u8, local: SocketAddr) -> io::Result<()> {
        let key = Key::new(protocol, local);
        let mut users = self.users();
        if let Some(count) = users.get_mut(&key) {
            *count += 1;
            return Ok(());
        }
        sys::update(&self.map, &key, &1u8).map_err(|e| match e.raw_os_error() {
            Some(libc::E2BIG) => io::Error::new(
                io::ErrorKind::StorageFull,
                format!("cannot steer packets for {local}: all {CAPACITY} entries are taken; close a socket"),
            ),
            _ => e,
        })?;
        users.insert(key, 1);
        Ok(())
    }

    fn remove(&self, protocol: u8, local: SocketAddr) {
        let key = Key::new(protocol, local);
        let mut users = self.users();
        let Some(count) = users.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            users.remove(&key);
            // The entry is there; and if it were not, the packets would go to the kernel, as they shall.
            let _ = sys::delete(&self.map, &key);
        }
    }
}
