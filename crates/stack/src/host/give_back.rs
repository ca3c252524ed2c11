//! A UDP socket of ours that is the kernel's again: what it has not read yet goes back into the kernel's socket, from
//! which a child process may read it. It is sent there as it came, by the raw sockets, with its sender's address. So are
//! segments that were on their way when their connection became the kernel's.

use super::companion::{Companion, State};
use crate::{
    inet::Meta,
    sync::lock,
    sys::{self, set_option},
    wire::{Protocol, ipv4, ipv6, udp},
};
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd,
    sync::Arc,
};

/// include/uapi/linux/in6.h.
const IPV6_HDRINCL: i32 = 36;

/// Segments that came over our rings for connections that the kernel has by now go to the kernel, too.
pub(super) fn take_segments(state: &Arc<State>) {
    let of = Arc::downgrade(state);
    let give = move |packet: &[u8], to: IpAddr| {
        if let Some(state) = of.upgrade() {
            state.to_kernel(packet, to);
        }
    };
    state.inet.tcp_give_to_kernel_by(Box::new(give));
}

impl State {
    /// Gives the kernel an IP packet for `to`, as if it had come over loopback.
    fn to_kernel(&self, packet: &[u8], to: IpAddr) {
        // These sockets send nothing else. If it fails, the packet is refused.
        let socket = match &self.icmpv6 {
            _ if to.is_ipv4() => {
                let _ = set_option(&self.icmp, libc::IPPROTO_IP, libc::IP_HDRINCL, 1);
                &self.icmp
            }
            Some(socket) => {
                let _ = set_option(socket, libc::IPPROTO_IPV6, IPV6_HDRINCL, 1);
                socket
            }
            None => return,
        };
        // A buffer without room drops it, as any other.
        let _ = sys::send_to(socket.as_raw_fd(), packet, SocketAddr::new(to, 0));
    }
}

impl Companion {
    /// Closes it, and gives the kernel's socket the datagrams that `next` takes, oldest first.
    #[cold]
    pub(crate) fn give_back(self, mut next: impl FnMut(&mut Vec<u8>) -> Option<Meta>) {
        let state = self.state.clone();
        drop(self);
        // The thread may be reading from it just now.
        let _delivering = lock(&state.delivering);
        let mut payload = Vec::new();
        while let Some(meta) = next(&mut payload) {
            let Some(packet) = packet(&meta, &payload) else { continue };
            state.to_kernel(&packet, meta.to.ip().to_canonical());
        }
    }
}

/// The IP packet of a datagram.
fn packet(meta: &Meta, payload: &[u8]) -> Option<Vec<u8>> {
    let len = udp::HEADER_LEN + payload.len();
    let ports = (meta.from.port(), meta.to.port());
    let write = |room: &mut [u8], sum| {
        let mut udp = udp::Packet::init(room, ports.0, ports.1, payload.len()).ok()?;
        udp.payload_mut().copy_from_slice(payload);
        udp.fill_checksum(sum);
        Some(())
    };
    match (meta.from.ip().to_canonical(), meta.to.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut bytes = vec![0; ipv4::HEADER_LEN + len];
            let mut ip = ipv4::Packet::init(&mut bytes[..], from, to, Protocol::UDP, len).ok()?;
            ip.set_ttl(meta.ttl);
            ip.set_tos(meta.tos);
            write(ip.payload_mut(), ipv4::address_sum(from, to))?;
            ip.fill_checksum();
            Some(bytes)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut bytes = vec![0; ipv6::HEADER_LEN + len];
            let mut ip = ipv6::Packet::init(&mut bytes[..], from, to, Protocol::UDP, len).ok()?;
            ip.set_hop_limit(meta.ttl);
            ip.set_traffic_class(meta.tos);
            write(ip.payload_mut(), ipv6::address_sum(from, to))?;
            Some(bytes)
        }
        _ => None,
    }
}
