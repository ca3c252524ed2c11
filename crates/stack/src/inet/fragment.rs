//! Fragmentation of packets above the path's MTU (RFC 791 section 3.2, RFC 8200 section 4.5). Only UDP datagrams and
//! pings are fragmented, TCP segments never.

use super::{Inet, SendError, counters::Count, iface::Interface, output::ethertype};
use crate::{
    sync::Ordering,
    wire::{MacAddr, Protocol, extension, ipv4, ipv6},
};

/// Bytes before the data of an IPv6 fragment.
const HEADERS6: usize = ipv6::HEADER_LEN + extension::FRAGMENT_LEN;

/// A packet to be fragmented. This stack has built it, so it has no options and no extension headers.
enum Whole<'a> {
    V4(ipv4::Packet<&'a [u8]>),
    V6(ipv6::Packet<&'a [u8]>),
}

/// What differs between the fragments of one packet.
struct Frag<'a> {
    data: &'a [u8],
    offset: usize,
    more: bool,
}

impl<'a> Whole<'a> {
    fn new(packet: &'a [u8]) -> Option<Whole<'a>> {
        match ipv4::Packet::new_checked(packet) {
            Ok(packet) => Some(Whole::V4(packet)),
            Err(_) => ipv6::Packet::new_checked(packet).ok().map(Whole::V6),
        }
    }

    fn payload(&self) -> &'a [u8] {
        match self {
            Whole::V4(packet) => packet.payload(),
            Whole::V6(packet) => packet.payload(),
        }
    }

    fn headers(&self) -> usize {
        match self {
            Whole::V4(_) => ipv4::HEADER_LEN,
            Whole::V6(_) => HEADERS6,
        }
    }

    /// The counters: packets fragmented, fragments created, packets that failed.
    fn counts(&self) -> [Count; 3] {
        match self {
            Whole::V4(_) => [Count::IpFragOKs, Count::IpFragCreates, Count::IpFragFails],
            Whole::V6(_) => [Count::Ip6FragOKs, Count::Ip6FragCreates, Count::Ip6FragFails],
        }
    }

    /// Writes one fragment. Lengths and offsets come from a checked packet, so nothing here can fail.
    fn write(&self, room: &mut [u8], frag: &Frag<'_>, ident: u32) {
        match self {
            Whole::V4(whole) => {
                let (src, dst, protocol) = (whole.src(), whole.dst(), whole.protocol());
                let Ok(mut ip) = ipv4::Packet::init(room, src, dst, protocol, frag.data.len())
                else {
                    return;
                };
                ip.set_ttl(whole.ttl());
                ip.set_tos(whole.dscp() << 2 | whole.ecn());
                ip.set_ident(ident as u16);
                let _ = ip.set_fragment(frag.offset, frag.more);
                ip.payload_mut().copy_from_slice(frag.data);
            }
            Whole::V6(whole) => {
                let (src, dst, next) = (whole.src(), whole.dst(), whole.next_header());
                let len = extension::FRAGMENT_LEN + frag.data.len();
                let Ok(mut ip) = ipv6::Packet::init(room, src, dst, Protocol::FRAGMENT, len) else {
                    return;
                };
                ip.set_hop_limit(whole.hop_limit());
                ip.set_traffic_class(whole.traffic_class());
                ip.set_flow_label(whole.flow_label());
                let (head, data) = ip.payload_mut().split_at_mut(extension::FRAGMENT_LEN);
                let _ = extension::put_fragment(head, next, frag.offset, frag.more, ident);
                data.copy_from_slice(frag.data);
            }
        }
    }
}

impl Inet {
    /// Sends a whole IP packet to a resolved neighbour in fragments of at most `mtu` bytes.
    pub(super) fn send_fragments(
        &self,
        iface: &Interface,
        queue: u32,
        mac: MacAddr,
        packet: &[u8],
        mtu: usize,
    ) -> Result<(), SendError> {
        let Some(whole) = Whole::new(packet) else {
            self.counters.add(Count::IpFragFails);
            return Err(SendError::TooBig);
        };
        let [done, made, failed] = whole.counts();
        // All fragments but the last carry a multiple of 8 bytes.
        let most = mtu.saturating_sub(whole.headers()) & !7;
        if most == 0 {
            self.counters.add(failed);
            return Err(SendError::TooBig);
        }
        let ident = match whole {
            // 16 bits: a counter reuses the ident used longest ago (RFC 6864 section 4.3).
            Whole::V4(_) => self.idents.fetch_add(1, Ordering::Relaxed) as u32,
            // 32 bits: a random ident is unpredictable (RFC 7739 section 5).
            Whole::V6(_) => self.random.next() as u32,
        };
        let fragments = whole.payload().chunks(most);
        let last = fragments.len() - 1;
        let to = (mac, ethertype(packet));
        let mut tx = iface.transmit(queue);
        // A receiver keeps the fragments of a datagram of which the rest never comes, and has room for few such. The
        // doorbell may make room.
        if !tx.ring().has_room(fragments.len()) {
            tx.ring().flush();
            if !tx.ring().has_room(fragments.len()) {
                self.counters.add(failed);
                return Err(SendError::RingFull);
            }
        }
        for (n, data) in fragments.enumerate() {
            let frag = Frag { data, offset: n * most, more: n < last };
            let len = whole.headers() + data.len();
            let mut fill = |room: &mut [u8]| whole.write(room, &frag, ident);
            if iface.push_frame(tx.ring(), to, len, &mut fill).is_err() {
                self.counters.add(failed);
                return Err(SendError::RingFull);
            }
        }
        self.counters.add(done);
        self.counters.add_n(made, last as u64 + 1);
        Ok(())
    }
}
