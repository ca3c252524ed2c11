//! Frames with the fragments of one datagram.
#![allow(dead_code)] // each user has its own part

use busypoll_stack::wire::{
    EtherType, MacAddr, Protocol, ethernet,
    extension::{FRAGMENT_LEN, put_fragment},
    ipv4, ipv6, udp,
};
use std::net::{IpAddr, SocketAddr};

/// Both ends of a datagram: link-layer address, address and port of the sender, then of the receiver.
pub type Ends = [(MacAddr, SocketAddr); 2];

/// The fragments of a datagram, in order: it is cut at each offset of `cuts`, which count from its UDP header.
pub fn fragments(ends: Ends, ident: u32, payload: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let whole = datagram(ends, payload);
    let mut starts = vec![0];
    starts.extend_from_slice(cuts);
    let end_of = |at: usize| starts.get(at + 1).copied().unwrap_or(whole.len());
    (0..starts.len())
        .map(|at| {
            fragment(
                ends,
                ident,
                (starts[at], &whole[starts[at]..end_of(at)]),
                end_of(at) < whole.len(),
            )
        })
        .collect()
}

/// A UDP datagram with its checksum.
pub fn datagram([(_, from), (_, to)]: Ends, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; udp::HEADER_LEN + payload.len()];
    let (from_port, to_port) = (from.port(), to.port());
    let mut packet = udp::Packet::init(&mut bytes[..], from_port, to_port, payload.len()).unwrap();
    packet.payload_mut().copy_from_slice(payload);
    packet.fill_checksum(match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4::address_sum(from, to),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6::address_sum(from, to),
        _ => panic!("one family"),
    });
    bytes
}

/// One fragment: its offset and data.
pub fn fragment(ends: Ends, ident: u32, (offset, data): (usize, &[u8]), more: bool) -> Vec<u8> {
    let [(from_mac, from), (to_mac, to)] = ends;
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut bytes = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + data.len()];
            let frame = ethernet::Frame::init(&mut bytes[..], to_mac, from_mac, EtherType::IPV4);
            let mut frame = frame.unwrap();
            let packet =
                ipv4::Packet::init(frame.payload_mut(), from, to, Protocol::UDP, data.len());
            let mut packet = packet.unwrap();
            packet.payload_mut().copy_from_slice(data);
            packet.set_ident(ident as u16);
            packet.set_fragment(offset, more).unwrap();
            packet.fill_checksum();
            bytes
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = FRAGMENT_LEN + data.len();
            let mut bytes = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN + len];
            let frame = ethernet::Frame::init(&mut bytes[..], to_mac, from_mac, EtherType::IPV6);
            let mut frame = frame.unwrap();
            let packet = ipv6::Packet::init(frame.payload_mut(), from, to, Protocol::FRAGMENT, len);
            let mut packet = packet.unwrap();
            let (header, body) = packet.payload_mut().split_at_mut(FRAGMENT_LEN);
            put_fragment(header, Protocol::UDP, offset, more, ident).unwrap();
            body.copy_from_slice(data);
            bytes
        }
        _ => panic!("one family"),
    }
}
