//! Frames that lie in several buffers. The data of a datagram or a segment for a socket is copied once, from these buffers
//! to the reader or to where the socket keeps it. Every other frame is made whole first and takes the path of all: it is
//! rare (ARP, ICMP, fragments, tags, options and extension headers, a wrong checksum, a closed port), and so each rule has
//! one place.

use super::{
    Inet,
    iface::Interface,
    input::{Arrival, Cast, Inbound, Inbound4},
    input6::Inbound6,
    last_packet::Received,
};
use crate::{
    inet::Pass,
    nic::{Checksum, Frame},
    wire::{Data, EtherType, Protocol, Rest, checksum::Sum, ethernet, ipv4, ipv6, tcp, udp},
};

/// Whether the checksum `field` of these bytes is partial; `None` if it is wrong. That a peer on this machine has left it
/// to hardware that does not exist shows without a look at the data.
fn is_partial(state: Checksum, field: u16, pseudo: Sum, bytes: &Data<'_>) -> Option<bool> {
    match state {
        Checksum::Partial => Some(true),
        Checksum::MaybePartial if field == pseudo.fold() => Some(true),
        _ => pseudo.plus(Sum::of_pieces(bytes.pieces())).is_intact().then_some(false),
    }
}

impl Inet {
    /// Processes a frame that lies in several buffers.
    #[inline(never)]
    pub(super) fn receive_pieces(
        &self,
        iface: &Interface,
        received: &Received,
        queue: u32,
        frame: &Frame<'_>,
        pass: &mut Pass<'_>,
    ) {
        let arrival = Arrival {
            iface: Some(iface),
            queue,
            received: Some(received),
            frame: frame.bytes,
            to_us: true,
            checksum: frame.checksum,
        };
        if !self.receive_data(iface, received, &arrival, frame.rest, pass) {
            let whole = frame.data().to_vec();
            let frame = Frame::whole(&whole, frame.checksum);
            self.receive_any(iface, received, queue, frame, pass);
        }
    }

    /// Delivers the data of a frame to a socket. False: it must be made whole, and nothing has changed.
    fn receive_data(
        &self,
        iface: &Interface,
        received: &Received,
        arrival: &Arrival<'_>,
        rest: Rest<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let Ok(ethernet) = ethernet::Frame::new_checked(arrival.frame) else { return false };
        if ethernet.dst() != iface.mac() {
            return false;
        }
        let head = ethernet.payload();
        let len = head.len() + rest.len();
        match ethernet.ethertype() {
            EtherType::IPV4 => {
                let Ok(view) = ipv4::Packet::new_quoted(head) else { return false };
                let is_plain = view.header_len() == ipv4::HEADER_LEN && !view.is_fragment();
                if !is_plain || view.total_len() != len || view.verify_checksum().is_err() {
                    return false;
                }
                let (src, dst) = (view.src(), view.dst());
                let accepted = received.has_accepted(src, dst)
                    || self.accept(arrival, src, dst) == Some(Cast::Unicast);
                // What is not accepted has been counted.
                let packet = Inbound4::quoted(view, head);
                !accepted || self.deliver_data(arrival, packet, view.protocol(), rest, pass)
            }
            EtherType::IPV6 if iface.kernel().is_some() || !iface.addresses6().is_empty() => {
                let Ok(view) = ipv6::Packet::new_quoted(head) else { return false };
                if view.total_len() != len {
                    return false;
                }
                let accepted = self.accept6(arrival, view.src(), view.dst()) == Some(Cast::Unicast);
                let packet = Inbound6 { view, payload: view.payload() };
                !accepted || self.deliver_data(arrival, packet, view.next_header(), rest, pass)
            }
            _ => false,
        }
    }

    /// The same for a packet that is for us, whose payload begins in the first buffer and ends with the last.
    fn deliver_data<'a, P: Inbound<'a>>(
        &self,
        arrival: &Arrival<'_>,
        packet: P,
        protocol: Protocol,
        rest: Rest<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let first = packet.payload();
        let bytes = Data { first, rest };
        let pseudo = packet.address_sum();
        let pseudo = pseudo.plus_word(protocol.0.into()).plus_word(bytes.len() as u16);
        match protocol {
            Protocol::TCP => {
                let Ok(segment) = tcp::Packet::new_checked(first) else { return false };
                let field = segment.checksum();
                let Some(partial) = is_partial(arrival.checksum, field, pseudo, &bytes) else {
                    return false;
                };
                self.tcp_checked_input(arrival, packet, (&segment, rest), partial, pass);
                true
            }
            Protocol::UDP => {
                let Ok(header) = udp::Header::read(first) else { return false };
                let partial = match header.checksum {
                    0 if P::CHECKSUM_OPTIONAL => Some(false),
                    0 => None,
                    field => is_partial(arrival.checksum, field, pseudo, &bytes),
                };
                let (Some(partial), true) = (partial, usize::from(header.len) == bytes.len())
                else {
                    return false;
                };
                let ports = (header.src_port, header.dst_port);
                let data = Data { first: &first[udp::HEADER_LEN..], rest };
                self.udp_deliver(arrival, packet, (Cast::Unicast, partial), ports, data, pass)
            }
            _ => false,
        }
    }
}
