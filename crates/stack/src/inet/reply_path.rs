//! Stateless replies are sent over the transmit queue beside the packet's receive queue, to its source MAC address.
//! They need no route and no neighbour lookup, so a flood from a million source addresses causes no lookups and
//! evicts no cache entries.

use super::{
    Inet, PathOptions,
    iface::{Interface, push},
    input::Arrival,
    template::{Template, TransportBuf},
};
use crate::{inet::Pass, nic::RingFull, wire::Protocol};
use std::net::SocketAddr;

/// The reply path of one packet.
pub(super) struct ReplyPath<'a> {
    iface: &'a Interface,
    queue: u32,
    mtu: usize,
    template: Template,
}

impl Inet {
    /// The reply path from `local` to `remote`, the sender of the packet. `None` for a packet from this host or on an
    /// interface with addresses of our own: there a route lookup is cheap.
    pub(super) fn reply_path<'a>(
        &self,
        arrival: &Arrival<'a>,
        protocol: Protocol,
        (local, remote): (SocketAddr, SocketAddr),
        options: PathOptions,
    ) -> Option<ReplyPath<'a>> {
        let iface = arrival.iface.filter(|on| on.kernel().is_some() || on.link() != 0)?;
        if !arrival.src_mac().is_unicast() || remote.port() == 0 {
            return None;
        }
        let mut template = Template::new(protocol, (local, remote), true, options, 0);
        template.set_link_header(arrival.src_mac(), iface.mac());
        let path_mtu =
            self.pmtu.get(remote.ip()).map_or(usize::MAX, |path_mtu| path_mtu.mtu as usize);
        let mtu = iface.info().mtu.min(path_mtu);
        Some(ReplyPath { iface, queue: arrival.queue, mtu, template })
    }
}

impl ReplyPath<'_> {
    /// The most bytes of transport header and data in one packet.
    pub(super) fn max_transport_len(&self) -> usize {
        self.mtu.saturating_sub(self.template.ip_len())
    }

    /// Sends one segment of `len` bytes, header included, which `fill` writes. In a batched pass the doorbell rings at
    /// the end of the pass, once for all its replies.
    ///
    /// # Errors
    /// The ring is full.
    pub(super) fn send_segment(
        &self,
        len: usize,
        mut fill: impl FnMut(TransportBuf<'_>),
        pass: &mut Pass<'_>,
    ) -> Result<(), RingFull> {
        let partial = self.iface.info().tx_checksum;
        let mut tx = self.iface.transmit(self.queue);
        let frame = self.template.before_transport() + len;
        push(tx.ring(), frame, partial, &mut |frame| {
            self.template.write_segment(frame, 0, partial, &mut fill);
        })?;
        tx.count_segment();
        if pass.batched {
            tx.ring_later();
            pass.doorbell_pending = true;
        }
        Ok(())
    }
}
