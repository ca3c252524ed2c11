//! Connections that move from one process to another by way of the kernel: this process hands one over and gives it up;
//! the other one takes it over from the kernel.

use super::{Host, companion::CompanionService, port_reservation::PortReservation};
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

impl CompanionService {
    /// Whether a connection of the kernel's may come over a shared interface, by its ends. One to an address of this
    /// machine does not.
    pub(crate) fn may_come_over_queues(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        !self.has_address(remote.ip().to_canonical())
            && self.state().steering_of(local.ip().to_canonical()).next().is_some()
    }

    /// See [`PortReservation::taken`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn take_connection(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Arc<PortReservation>> {
        PortReservation::taken(self.state(), local, remote)
    }
}

impl Host {
    /// Another process uses a connection that this one has handed over to the kernel, and will use more: from now on those
    /// that the kernel has stay there.
    #[doc(hidden)]
    pub fn connections_are_used(&self) {
        self.kernel().into_iter().for_each(|service| {
            service.state().are_used.store(true, Ordering::Relaxed);
        });
    }

    /// A connection that this host has handed over to the kernel may be taken over by another process.
    #[doc(hidden)]
    pub fn give_up(&self, local: SocketAddr, remote: SocketAddr) {
        self.each_steering(local, |steering, local| steering.give_up(local, remote));
    }

    /// Undoes a [`give_up`](Host::give_up), unless the other process has the connection.
    #[doc(hidden)]
    pub fn take_back(&self, local: SocketAddr, remote: SocketAddr) {
        self.each_steering(local, |steering, local| steering.take_back(local, remote));
    }

    fn each_steering(
        &self,
        local: SocketAddr,
        what: impl Fn(&dyn crate::nic::Steering, SocketAddr),
    ) {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        if let Some(service) = self.kernel() {
            service.state().steering_of(local.ip()).for_each(|steering| what(steering, local));
        }
    }
}
