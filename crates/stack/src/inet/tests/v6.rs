//! Shared by the IPv6 tests: two hosts, and packets between them.

use super::*;
use crate::wire::{extension, icmpv6, ipv6, ndp};
use std::net::{Ipv6Addr, SocketAddrV6};

mod discovery;
mod dual_stack;
mod extensions;
mod icmp;
mod pieces;
mod ways;

pub(super) const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub(super) const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// The link-local address derived from MAC_A.
pub(super) const LINK_A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xa);

/// A host with both families whose addresses have passed duplicate address detection.
pub(super) fn a() -> Station {
    let mut a = fresh("10.0.0.1/24", "fd00::1/64", MAC_A);
    a.wait(Duration::ZERO);
    a.wait(Duration::from_secs(1));
    a.sent();
    a
}

/// A host whose addresses are still tentative.
fn fresh(v4: &str, v6: &str, mac: MacAddr) -> Station {
    let own = [v4, v6].map(|text| text.parse().unwrap());
    Station::with(info(mac), Addressing::Own(own.to_vec()))
}

/// An IPv6 packet.
fn packet6(src: Ipv6Addr, dst: Ipv6Addr, next: Protocol, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40 + payload.len()];
    let mut ip = ipv6::Packet::init(&mut bytes[..], src, dst, next, payload.len()).unwrap();
    ip.payload_mut().copy_from_slice(payload);
    bytes
}

/// A UDP datagram.
fn udp6(from: &str, to: &str, payload: &[u8]) -> (SocketAddrV6, SocketAddrV6, Vec<u8>) {
    let (from, to): (SocketAddrV6, SocketAddrV6) = (from.parse().unwrap(), to.parse().unwrap());
    let mut bytes = vec![0; 8 + payload.len()];
    let mut udp = udp::Packet::init(&mut bytes[..], from.port(), to.port(), payload.len()).unwrap();
    udp.payload_mut().copy_from_slice(payload);
    udp.fill_checksum(ipv6::address_sum(*from.ip(), *to.ip()));
    (from, to, bytes)
}

pub(super) fn udp6_packet(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let (from, to, bytes) = udp6(from, to, payload);
    packet6(*from.ip(), *to.ip(), Protocol::UDP, &bytes)
}

/// A frame from B to A.
pub(super) fn to_a6(packet: &[u8]) -> Vec<u8> {
    frame_of(MAC_A, MAC_B, EtherType::IPV6, packet)
}

/// An ICMPv6 message in its packet, its checksum filled in.
fn icmp6(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut bytes = packet6(src, dst, Protocol::ICMPV6, message);
    let mut view = icmpv6::Packet::new_checked(&mut bytes[40..]).unwrap();
    view.fill_checksum(ipv6::address_sum(src, dst));
    bytes
}

fn with_hop_limit(mut packet: Vec<u8>, limit: u8) -> Vec<u8> {
    packet[7] = limit;
    packet
}

/// A neighbour solicitation for `target` from B, from `src` to `dst`.
fn solicitation(src: Ipv6Addr, dst: Ipv6Addr, target: Ipv6Addr, mac: Option<MacAddr>) -> Vec<u8> {
    let mut message = [0; 32];
    let addresses = ipv6::address_sum(src, dst);
    let len = ndp::put_neighbor_solicitation(&mut message, addresses, target, mac).unwrap();
    let packet = with_hop_limit(packet6(src, dst, Protocol::ICMPV6, &message[..len]), 255);
    let to = if dst.is_multicast() { MacAddr::of_group6(dst) } else { MAC_A };
    frame_of(to, MAC_B, EtherType::IPV6, &packet)
}

/// A neighbour advertisement to `dst`: `target` has `mac`.
fn advertisement(
    dst: Ipv6Addr,
    (target, mac): (Ipv6Addr, MacAddr),
    solicited: bool,
    overrides: bool,
) -> Vec<u8> {
    let mut message = [0; 32];
    let sum = ipv6::address_sum(target, dst);
    ndp::put_neighbor_advertisement(&mut message, sum, target, mac, solicited, overrides).unwrap();
    let packet = with_hop_limit(packet6(target, dst, Protocol::ICMPV6, &message), 255);
    let to = if dst.is_multicast() { MacAddr::of_group6(dst) } else { MAC_A };
    frame_of(to, mac, EtherType::IPV6, &packet)
}

/// Makes B a known neighbour.
fn meet(a: &Station) {
    a.receive(&solicitation(B6, A6, A6, Some(MAC_B)));
    a.sent();
}

/// The IPv6 packet in a frame.
fn ip6_of(frame: &[u8]) -> Vec<u8> {
    let inner = ethernet::Frame::new_checked(frame).unwrap().untag().unwrap();
    assert_eq!(inner.ethertype, EtherType::IPV6, "{frame:02x?}");
    ipv6::Packet::new_checked(inner.payload).unwrap().bytes().to_vec()
}

/// The only packet sent.
fn sent6(a: &Station) -> Vec<u8> {
    let sent = a.sent();
    assert_eq!(sent.len(), 1, "{sent:02x?}");
    ip6_of(&sent[0])
}

/// The neighbour discovery message in a sent frame, with its checksum and hop limit checked.
fn discovery_of(frame: &[u8]) -> (Ipv6Addr, Ipv6Addr, String) {
    let packet = ip6_of(frame);
    let ip = ipv6::Packet::new_checked(&packet[..]).unwrap();
    let message = icmpv6::Packet::new_checked(ip.payload()).unwrap();
    message.verify_checksum(ip.address_sum()).unwrap();
    let found = ndp::parse(&ip, &message).unwrap().unwrap();
    (ip.src(), ip.dst(), format!("{found:?}"))
}
