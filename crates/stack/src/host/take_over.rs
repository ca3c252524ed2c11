//! Taking a port over from the kernel, which may have connections at it: those stay with the kernel to their end.
//!
//! Finding them takes the kernel a walk over its whole table, milliseconds if the table is large. So the port is steered
//! at once, and the steering program first looks every packet up among the kernel's connections. Meanwhile the host's
//! thread has the connections listed and excludes them one by one; then the program looks no further.

use super::{
    companion::{State, Steered},
    kernel_sockets::KernelSockets,
    port_reservation::TCP,
};
use crate::sync::lock;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, atomic::Ordering},
};

/// The ports that are being taken over.
#[derive(Default)]
pub(super) struct TakeOvers {
    /// Each with the number of its steering entry.
    going_on: Mutex<Vec<(TakeOver, u64)>>,
    /// Lists the kernel's connections; used by the host's thread only.
    kernel_sockets: Mutex<KernelSockets>,
}

/// One of them, on all shared interfaces.
pub(super) struct TakeOver {
    number: u64,
    port: u16,
    /// The addresses whose packets are looked up.
    at: Vec<IpAddr>,
}

impl State {
    /// Begins to take `local` over. The caller then steers the port, and [finishes](State::finish_take_over_later) or
    /// [ends](State::end_take_over) it.
    ///
    /// # Errors
    /// A full steering map.
    pub(super) fn begin_take_over(&self, local: SocketAddr, only_v6: bool) -> io::Result<TakeOver> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let covers = Steered::new(TCP, local, only_v6);
        let mut take_over = TakeOver { number, port: local.port(), at: Vec::new() };
        for (on, ip) in self.addresses().filter(|(_, ip)| covers.covers(*ip)) {
            let Some(steering) = &self.shared()[on].steering else { continue };
            take_over.at.push(ip);
            let at = SocketAddr::new(ip, local.port());
            if let Err(error) = steering.begin_take_over(at, number) {
                self.end_take_over(&take_over);
                return Err(error);
            }
        }
        Ok(take_over)
    }

    /// The port is steered, by the entry `steered`: the host's thread does the rest.
    pub(super) fn finish_take_over_later(&self, take_over: TakeOver, steered: u64) {
        lock(&self.take_overs.going_on).push((take_over, steered));
        self.wake();
    }

    /// Excludes the kernel's connections at the ports that are being taken over.
    pub(super) fn finish_take_overs(&self) {
        let going_on = std::mem::take(&mut *lock(&self.take_overs.going_on));
        for (take_over, steered) in going_on {
            let found = lock(&self.take_overs.kernel_sockets).connections(take_over.port);
            // Without the list, or without room for all of it, the program goes on looking.
            if found.and_then(|found| self.exclude_all(&found, steered)).is_ok() {
                self.end_take_over(&take_over);
            }
        }
    }

    /// Excludes connections for as long as the entry `steered` exists: it may be removed meanwhile.
    fn exclude_all(&self, found: &[(SocketAddr, SocketAddr)], steered: u64) -> io::Result<()> {
        for &(local, remote) in found {
            let ports = lock(&self.ports);
            if !ports.contains_key(&steered) {
                return Ok(());
            }
            self.steering_of(local.ip())
                .try_for_each(|steering| steering.exclude(local, remote))?;
            drop(ports);
        }
        Ok(())
    }

    pub(super) fn end_take_over(&self, take_over: &TakeOver) {
        for ip in &take_over.at {
            let local = SocketAddr::new(*ip, take_over.port);
            self.steering_of(*ip).for_each(|it| it.end_take_over(local, take_over.number));
        }
    }
}
