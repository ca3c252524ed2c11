//! What is known of a TCP companion's address, so that a connection need not ask the kernel for it.
//!
//! Only this process's own calls change the address of a socket that no other process has. A socket may be shared once
//! the process forks, starts a program or passes descriptors: after that the kernel is asked again.

use super::common::lock;
use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

/// How often sockets may have become shared.
static SHARED: AtomicU32 = AtomicU32::new(0);

/// Other processes may get this process's sockets. Called before and after, for sockets that are made in between.
pub fn may_be_shared() {
    SHARED.fetch_add(1, Ordering::Relaxed);
}

/// A moment, against which [`may_be_shared`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u32);

/// To be taken before the system call whose result is noted.
pub fn moment() -> Moment {
    Moment(SHARED.load(Ordering::Relaxed))
}

/// The address, if it is known.
#[derive(Debug, Default)]
pub struct CompanionAddress(Mutex<Option<(Moment, SocketAddr)>>);

impl CompanionAddress {
    /// The companion is bound to `address` since `moment`; port 0: it is not bound.
    pub fn note(&self, moment: Moment, address: SocketAddr) {
        *lock(&self.0) = Some((moment, address));
    }

    /// A call is about to change it.
    pub fn forget(&self) {
        *lock(&self.0) = None;
    }

    pub fn get(&self) -> Option<SocketAddr> {
        let noted = *lock(&self.0);
        noted.filter(|(since, _)| *since == moment()).map(|(_, address)| address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_until_it_changes_or_the_socket_may_be_shared() {
        let (known, address) = (CompanionAddress::default(), "10.0.0.1:7".parse().unwrap());
        assert_eq!(known.get(), None);
        let early = moment();
        known.note(moment(), address);
        assert_eq!(known.get(), Some(address));
        known.forget();
        assert_eq!(known.get(), None);
        known.note(moment(), address);
        may_be_shared();
        assert_eq!(known.get(), None);
        // The socket was made before it may have become shared.
        known.note(early, address);
        assert_eq!(known.get(), None);
    }
}
