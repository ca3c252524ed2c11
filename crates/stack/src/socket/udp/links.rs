//! Datagrams over links to other processes of this machine: where the socket takes them, and the way of those it sends.

use super::{Bound, Inner, UdpSocket};
use crate::{
    PublishedUdp,
    host::{Accepted, DatagramWay},
    inet::{Path, PathOptions},
    sync::lock,
    time,
};
use std::{net::SocketAddr, sync::atomic::Ordering};

impl UdpSocket {
    /// From now on it takes datagrams over links, at the address that `published` names.
    #[doc(hidden)]
    pub fn receive_over_links(&self, published: PublishedUdp) {
        let mut bound = lock(&self.0.binding);
        if let Some(bound) = &mut *bound {
            bound.published = Some(published);
            bound.publish_again();
        }
        drop(bound);
        // What was sent by the kernel so far comes first.
        self.deliver_queued();
    }

    /// From now on other processes send to it by the kernel.
    #[doc(hidden)]
    pub fn receive_by_kernel(&self) {
        if let Some(bound) = &mut *lock(&self.0.binding) {
            bound.published = None;
        }
    }

    /// Whether a datagram to an address of this machine is worth a look for the process that has it. A server answers
    /// those that have asked.
    #[doc(hidden)]
    pub fn set_looks(&self, looks: bool) {
        self.0.endpoint.looks.store(looks, Ordering::Relaxed);
    }
}

impl UdpSocket {
    /// The kernel's socket takes its place, and gets what was not read: from now on it neither receives nor sends, and
    /// every call returns `errno`.
    #[doc(hidden)]
    pub fn leave(&self, errno: i32) {
        let bound = lock(&self.0.binding).take();
        self.0.endpoint.leave(errno);
        let Some(Bound { inet, published, kernel, .. }) = bound else { return };
        drop((published, inet));
        let endpoint = &self.0.endpoint;
        kernel
            .into_iter()
            .for_each(|kernel| kernel.give_back(|payload| endpoint.take_out(payload)));
    }
}

impl Bound {
    /// Its addresses have changed.
    pub(super) fn publish_again(&self) {
        if let Some(published) = &self.published {
            published.set(self.inet.local(), self.remote, true);
        }
    }
}

impl Inner {
    /// The path over a link to `remote`, an address that is not reached over our queues; `None`: the kernel sends.
    #[cold]
    pub(super) fn link_path(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        options: PathOptions,
    ) -> Option<(Path, Accepted)> {
        let looks = self.endpoint.looks.load(Ordering::Relaxed);
        let DatagramWay::Link(link, accepted) = self.host.datagram_way(local, remote, looks) else {
            return None;
        };
        let options = PathOptions { link, ..options };
        // It may have ended just now.
        let path = self.host.inet().path(local, remote, 0, options, time::now()).ok()?;
        Some((path, accepted))
    }
}
