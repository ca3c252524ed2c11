//! Answers for which nothing is kept go back the way their packet came: over the queue beside its queue, to the link
//! address that sent it. Nothing is found out for them: who sends from a million addresses costs no question, and takes
//! no place from the ways of others.

use super::{
    Inet, PathOptions,
    iface::{Interface, push},
    input::Arrival,
    template::{Room, Template},
};
use crate::{napi::Pass, nic::RingFull, wire::Protocol};
use std::net::SocketAddr;

/// The way back of one packet.
pub(super) struct Back<'a> {
    iface: &'a Interface,
    queue: u32,
    mtu: usize,
    template: Template,
}

impl Inet {
    /// The way back from `local` to `remote`, whose packet this is. `None` if there is no saying: it is from ourselves,
    /// or the interface is our own, where to find a way takes no question.
    pub(super) fn way_back<'a>(
        &self,
        arrival: &Arrival<'a>,
        protocol: Protocol,
        (local, remote): (SocketAddr, SocketAddr),
        options: PathOptions,
    ) -> Option<Back<'a>> {
        let iface = arrival.iface.filter(|iface| iface.kernel().is_some())?;
        if !arrival.src_mac.is_unicast() || remote.port() == 0 {
            return None;
        }
        let mut template = Template::new(protocol, (local, remote), true, options, 0);
        template.address(arrival.src_mac, iface.mac());
        let path_mtu =
            self.pmtu.get(remote.ip()).map_or(usize::MAX, |path_mtu| path_mtu.mtu as usize);
        let mtu = iface.info().mtu.min(path_mtu);
        Some(Back { iface, queue: arrival.queue, mtu, template })
    }
}

impl Back<'_> {
    /// The most bytes of transport header and data that go in one packet.
    pub(super) fn most(&self) -> usize {
        self.mtu.saturating_sub(self.template.ip_len())
    }

    /// Sends one segment of `len` bytes, header included, which `fill` lays. The doorbell rings when the pass is over,
    /// once for all its answers.
    ///
    /// # Errors
    /// The ring is full.
    pub(super) fn send_segment(
        &self,
        len: usize,
        mut fill: impl FnMut(Room<'_>),
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
            pass.unrung = true;
        }
        Ok(())
    }
}
