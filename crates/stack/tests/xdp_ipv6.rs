//! The steering of IPv6: our ports' packets come to us, all else stays the kernel's.

mod xdp_support;

use busypoll_lab::{LabHost, needs, needs_root};
use std::{
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::Duration,
};
use xdp_support::*;

fn socket6(host: &LabHost, port: u16) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Has the kernel put destination options before each datagram: padding, which asks for nothing.
fn add_destination_options(socket: &UdpSocket) {
    let header = [0u8, 0, 1, 4, 0, 0, 0, 0];
    let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS);
    let len = header.len() as libc::socklen_t;
    // SAFETY: the header is valid for its length.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, header.as_ptr().cast(), len) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn whole_packets_for_our_ports_are_taken_and_no_others() {
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

    // Fragments, another port, an extension header, ping: the kernel's.
    client.send_to(&[7; 3000], ours).unwrap();
    assert_eq!(kernel.recv(&mut buffer).unwrap(), 3000);
    let other = socket6(&lab.server, PORT + 1);
    client.send_to(b"other", (address, PORT + 1)).unwrap();
    assert_eq!(other.recv(&mut buffer).unwrap(), 5);
    let odd = socket6(&lab.client, 0);
    add_destination_options(&odd);
    odd.send_to(b"with options", ours).unwrap();
    assert_eq!(kernel.recv(&mut buffer).unwrap(), 12);
    let ping = lab.client.command("ping").args(["-6", "-c1", "-W5", &address.to_string()]).output();
    assert!(ping.unwrap().status.success());

    // A whole packet: ours, and the only one.
    client.send_to(b"ours", ours).unwrap();
    let mut taken = 0;
    poll_until(&mut station.queue, "our packet", |bytes| {
        taken += 1;
        bytes.ends_with(b"ours")
    });
    assert_eq!(taken, 1);

    // IPv4 beside it, and after the last user has gone the kernel's.
    let v4 = kernel_socket(&lab.client, 0);
    v4.send_to(b"four", station.address).unwrap();
    poll_until(&mut station.queue, "the IPv4 packet", |bytes| bytes.ends_with(b"four"));
    station.steering.remove(UDP, ours);
    client.send_to(b"theirs", ours).unwrap();
    assert_eq!(kernel.recv(&mut buffer).unwrap(), 6);
}
