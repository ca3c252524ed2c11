//! Steering of IPv6: packets for our ports come to us, all others go to the kernel.

mod xdp_support;

use busypoll_lab::{LabHost, needs, needs_root};
use busypoll_stack::wire::{EtherType, MacAddr, Protocol as P, ethernet, ipv6};
use std::{
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};
use xdp_support::*;

fn socket6(host: &LabHost, port: u16) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// A frame with a packet of these extension headers, each without its next-header byte, then `rest`.
fn frame(ends: [(MacAddr, Ipv6Addr); 2], headers: &[(P, &[u8])], last: P, rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (at, (_, header)) in headers.iter().enumerate() {
        body.push(headers.get(at + 1).map_or(last, |next| next.0).0);
        body.extend_from_slice(header);
    }
    body.extend_from_slice(rest);
    let mut bytes = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN + body.len()];
    let [(from_mac, from), (to_mac, to)] = ends;
    let mut frame =
        ethernet::Frame::init(&mut bytes[..], to_mac, from_mac, EtherType::IPV6).unwrap();
    let first = headers.first().map_or(last, |next| next.0);
    let packet = ipv6::Packet::init(frame.payload_mut(), from, to, first, body.len());
    packet.unwrap().payload_mut().copy_from_slice(&body);
    bytes
}

/// The headers that RFC 8200 section 4.1 puts before UDP are skipped; a packet with any other goes to the kernel.
#[test]
fn packets_with_extension_headers_are_taken() {
    needs_root!();
    let lab = lab();
    let (Some(address), Some(from)) = (lab.server.ipv6(), lab.client.ipv6()) else {
        return needs::skipped(module_path!(), "IPv6");
    };
    let mut server = station(&lab.server);
    let mut client = station(&lab.client);
    server.steering.add(UDP, (address, PORT).into()).unwrap();
    let ends = [(MacAddr(lab.client.mac()), from), (MacAddr(lab.server.mac()), address)];

    let hop_by_hop = (P::HOP_BY_HOP, &PADDING[..]);
    let options = (P::DESTINATION_OPTIONS, &PADDING[..]);
    let long = [&[31, 1, 253], &[0; 252][..]].concat();
    let long = (P::DESTINATION_OPTIONS, &long[..]);
    let beyond = (P::DESTINATION_OPTIONS, &[9, 1, 4, 0, 0, 0, 0][..]);
    let routed = (P::ROUTING, &[0, 4, 0, 0, 0, 0, 0][..]);
    let on_its_way = (P::ROUTING, &[0, 4, 1, 0, 0, 0, 0][..]);
    let whole = (P::FRAGMENT, &[77, 0, 0, 0, 0, 0, 9][..]);
    let first = (P::FRAGMENT, &[0, 0, 1, 0, 0, 0, 9][..]);
    let later = (P::FRAGMENT, &[0, 0, 8, 0, 0, 0, 10][..]);
    let taken = (P::FRAGMENT, &[0, 0, 1, 0, 0, 0, 11][..]);
    let after = (P::FRAGMENT, &[0, 0, 8, 0, 0, 0, 11][..]);
    let authentication = (P(51), &[4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0][..]);
    let ours: &[&[(P, &[u8])]] = &[
        &[hop_by_hop],
        &[options],
        &[routed],
        &[whole],
        &[hop_by_hop, long, routed, whole, options],
        &[options, taken],
        &[options, after],
    ];
    let kernels: &[&[(P, &[u8])]] = &[
        &[options, hop_by_hop],
        &[options; 6],
        &[beyond],
        &[options, beyond],
        &[on_its_way],
        // What a later fragment begins with is data.
        &[options, first, options],
        &[later],
        &[authentication],
        &[options, authentication],
    ];
    let ports = |number: usize| [0, 9, (PORT >> 8) as u8, PORT as u8, 0, 9, 0, 0, number as u8];
    for headers in kernels {
        client.send(&frame(ends, headers, P::UDP, &ports(99)));
    }
    client.send(&frame(ends, &[options], P::ICMPV6, &ports(99)));
    client.send(&frame(ends, &[options], P::TCP, &ports(99)));
    client.send(&frame(ends, &[options], P::UDP, &ports(99)[..3]));
    for (number, headers) in ours.iter().enumerate() {
        client.send(&frame(ends, headers, P::UDP, &ports(number)));
    }
    let mut seen = Vec::new();
    poll_until(&mut server.queue, "the last packet", |bytes| {
        seen.push(bytes[bytes.len() - 1]);
        seen.last() == Some(&(ours.len() as u8 - 1))
    });
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn only_packets_for_our_ports_are_taken() {
    needs_root!();
    needs!(program "ping");
    let lab = lab();
    let (Some(address), Some(_)) = (lab.server.ipv6(), lab.client.ipv6()) else {
        return needs::skipped(module_path!(), "IPv6");
    };
    let mut station = station(&lab.server);
    let ours = SocketAddr::from((address, PORT));
    station.steering.add(UDP, ours).unwrap();
    let kernel = socket6(&lab.server, PORT);
    let client = socket6(&lab.client, 0);
    let mut buffer = [0; 4096];

    // Other ports and pings go to the kernel, in fragments as well.
    let other = socket6(&lab.server, PORT + 1);
    client.send_to(&[7; 3000], (address, PORT + 1)).unwrap();
    assert_eq!(other.recv(&mut buffer).unwrap(), 3000);
    client.send_to(b"other", (address, PORT + 1)).unwrap();
    assert_eq!(other.recv(&mut buffer).unwrap(), 5);
    let ping = lab.client.command("ping").args(["-6", "-c1", "-W5", &address.to_string()]).output();
    assert!(ping.unwrap().status.success());

    // A packet comes to us, and is the only one.
    client.send_to(b"ours", ours).unwrap();
    let mut taken = 0;
    poll_until(&mut station.queue, "our packet", |bytes| {
        taken += 1;
        bytes.ends_with(b"ours")
    });
    assert_eq!(taken, 1);

    // IPv4 as well; and after the last user is gone, packets go to the kernel.
    let v4 = kernel_socket(&lab.client, 0);
    v4.send_to(b"four", station.address).unwrap();
    poll_until(&mut station.queue, "the IPv4 packet", |bytes| bytes.ends_with(b"four"));
    station.steering.remove(UDP, ours);
    client.send_to(b"theirs", ours).unwrap();
    assert_eq!(kernel.recv(&mut buffer).unwrap(), 6);
}
