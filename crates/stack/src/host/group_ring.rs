//! Datagrams to multicast groups that other sockets of the machine receive as well, over a packet socket's ring: it has
//! a NAPI context like a queue. It begins when the first group needs it.

use crate::{
    inet::{CONTEXTS, Inet, Input, Interface, Serving, Source},
    napi::{self, PlacedCounters},
    nic::packet::{self, PacketRing, Rx},
    sync::{AtomicU64, Mutex, lock},
};
use std::{io, net::IpAddr, sync::Arc, time::Duration};

/// The ring of one interface.
pub(super) struct GroupRing {
    watchdog: Duration,
    state: Mutex<State>,
}

enum State {
    /// No group has needed it.
    Idle,
    Open(Arc<PacketRing>, #[allow(dead_code)] Serving),
    /// It cannot be made, or the host has ended.
    Closed,
}

impl GroupRing {
    pub(super) fn new(watchdog: Duration) -> GroupRing {
        GroupRing { watchdog, state: Mutex::new(State::Idle) }
    }

    /// Whether it can receive; makes it now if it has not been needed before. The process needs CAP_NET_RAW for it. The
    /// guard makes it for no process: it could receive, and send, anything on any interface.
    pub(super) fn is_ready(&self, inet: &Arc<Inet>, interface: &Arc<Interface>) -> bool {
        let mut state = lock(&self.state);
        if let State::Idle = *state {
            *state = self.open(inet, interface).unwrap_or(State::Closed);
        }
        matches!(*state, State::Open(..))
    }

    /// From now on the datagrams to these groups and ports come, and no others.
    ///
    /// # Errors
    /// Those of the ring. Then nothing changes.
    pub(super) fn select(&self, groups: &[(IpAddr, u16)]) -> io::Result<()> {
        match &*lock(&self.state) {
            State::Open(ring, _) => ring.select(groups),
            _ if groups.is_empty() => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn open(&self, inet: &Arc<Inet>, interface: &Arc<Interface>) -> io::Result<State> {
        let info = interface.info();
        let ring = PacketRing::new(packet::socket()?, info.ifindex.unwrap_or(0), info.mtu)?;
        let source = Source::Copies(ring.clone(), AtomicU64::new(0));
        let input = Input { inet: inet.clone(), interface: interface.clone(), source };
        let serving = CONTEXTS.start(napi::Parts {
            device: info.name.clone(),
            // The number after that of the last queue.
            queue: info.queues,
            rx: Box::new(Rx(ring.clone())),
            interrupt: ring.clone(),
            upper: Arc::new(input),
            watchdog: self.watchdog,
            counters: PlacedCounters::default(),
        })?;
        Ok(State::Open(ring, serving))
    }

    /// Ends it for good.
    pub(super) fn close(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Closed);
        // Not under the lock: this waits for a thread.
        drop(state);
    }
}
