//! Datagrams to multicast groups that other sockets of the machine receive as well, over a packet socket's ring: it has
//! a NAPI context like a queue. It begins when the first group needs it.

use crate::{
    inet::{Inet, Interface},
    napi::{Pass, Serving, Upper},
    nic::{
        Frame,
        packet::{self, PacketRing, Rx},
    },
    sync::{AtomicU64, Mutex, Ordering, lock},
    time::Instant,
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
        let (inet, on) = (inet.clone(), interface.clone());
        let input = Input { inet, interface: on, ring: ring.clone(), counted: AtomicU64::new(0) };
        let rx = Box::new(Rx(ring.clone()));
        // The number after that of the last queue.
        let (name, number) = (info.name.clone(), info.queues);
        let serving =
            Serving::start(name, number, rx, ring.clone(), Arc::new(input), self.watchdog)?;
        Ok(State::Open(ring, serving))
    }

    /// Ends it for good.
    pub(super) fn close(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Closed);
        // Not under the lock: this waits for a thread.
        drop(state);
    }
}

/// The input of the ring's frames to inet.
struct Input {
    inet: Arc<Inet>,
    interface: Arc<Interface>,
    ring: Arc<PacketRing>,
    /// How many lost packets are counted.
    counted: AtomicU64,
}

impl Upper for Input {
    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_>) {
        self.inet.receive_copy(&self.interface, frame, pass);
    }

    fn end_of_pass(&self, pass: &mut Pass<'_>) {
        self.inet.end_of_pass(pass);
        if std::mem::take(&mut pass.doorbell_pending) {
            self.interface.ring(0);
        }
        // Only the owner of the queue comes here.
        let lost = self.ring.lost();
        let counted = self.counted.load(Ordering::Relaxed);
        if lost != counted {
            self.counted.store(lost, Ordering::Relaxed);
            self.inet.udp_lost(lost - counted);
        }
    }

    fn tick(&self, pass: &mut Pass<'_>) -> Option<Instant> {
        self.inet.tick(pass)
    }
}
