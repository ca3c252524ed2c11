//! Multicast over AF_XDP on a veth: the kernel joins groups, and their datagrams come over our queues while no other
//! process on the machine receives them.

use busypoll_lab::{Lab, LabHost, needs_root};
use busypoll_stack::{
    Groups, Host, UdpSocket,
    nic::xdp::Xdp,
    options::{SO_REUSEADDR, SOL_SOCKET},
};
use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket as KernelSocket},
    os::fd::FromRawFd,
    time::{Duration, Instant},
};

const PORT: u16 = 9100;
const GROUP: &str = "239.77.1.1";
const GROUP_6: &str = "ff15::77";

fn lab() -> (Lab, Host) {
    let lab = Lab::builder().build().unwrap();
    let on = &lab.server;
    let open = || Host::builder().shared_interface(Xdp::open(on.interface()).unwrap()).build();
    let host = on.enter(open).unwrap().unwrap();
    (lab, host)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A socket bound to `address`, which other sockets may share.
fn bind(on: &LabHost, host: &Host, address: &str) -> UdpSocket {
    let socket = UdpSocket::new(host);
    socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1).unwrap();
    let address = SocketAddr::new(ip(address), PORT);
    on.enter(|| socket.bind_to(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// The same as a kernel socket, which our stack cannot distinguish from another process's.
fn other_process(on: &LabHost) -> KernelSocket {
    let bound = || {
        let one: libc::c_int = 1;
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: PORT.to_be(),
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        let (name, size) = (&raw const name, size_of_val(&name) as libc::socklen_t);
        // SAFETY: a socket made here, options and names valid for their sizes.
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            let value = (&raw const one).cast();
            assert_eq!(libc::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, value, 4), 0);
            assert_eq!(libc::bind(fd, name.cast(), size), 0);
            KernelSocket::from_raw_fd(fd)
        }
    };
    let socket = on.enter(bound).unwrap();
    socket.join_multicast_v4(&GROUP.parse().unwrap(), &on.ipv4()).unwrap();
    socket
}

/// Sends to groups from the lab's client.
struct Publisher(KernelSocket, SocketAddr);

impl Publisher {
    fn to(lab: &Lab, group: &str) -> Publisher {
        let host = &lab.client;
        let (from, to) = match ip(group) {
            IpAddr::V4(group) => ((host.ipv4(), 0).into(), (group, PORT).into()),
            IpAddr::V6(group) => {
                let to = SocketAddrV6::new(group, PORT, 0, host.ifindex());
                (SocketAddr::new(ip("::"), 0), to.into())
            }
        };
        Publisher(host.enter(|| KernelSocket::bind(from)).unwrap().unwrap(), to)
    }

    fn publish(&self, what: &[u8]) {
        self.0.send_to(what, self.1).unwrap();
    }

    /// Publishes until `heard`, or panics.
    fn publish_until(&self, what: &str, mut heard: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !heard() {
            assert!(Instant::now() < deadline, "waited until {what}");
            self.publish(b"again");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Receives all queued datagrams.
fn drain(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 64]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
}

#[test]
fn multicast_comes_over_our_queues() {
    needs_root!();
    let (lab, host) = lab();
    for (address, group) in
        [("0.0.0.0", GROUP), (GROUP, GROUP), ("::", GROUP_6), (GROUP_6, GROUP_6)]
    {
        let socket = bind(&lab.server, &host, address);
        let publisher = Publisher::to(&lab, group);
        socket.join_multicast(ip(group), lab.server.ifindex()).unwrap();
        assert_eq!(
            socket.join_multicast(ip(group), lab.server.ifindex()).unwrap_err().raw_os_error(),
            Some(libc::EADDRINUSE)
        );
        for i in 0..100 {
            publisher.publish(&[i; 9]);
            let mut buffer = [0; 64];
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..len], from.port()),
                (&[i; 9][..], publisher.0.local_addr().unwrap().port())
            );
        }
        let stats = socket.stats();
        assert_eq!(stats.kernel, 0, "{address} {group}: {stats:?}");

        socket.leave_multicast(ip(group), lab.server.ifindex()).unwrap();
        publisher.publish(b"unheard");
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let silence = socket.recv(&mut [0; 64]).unwrap_err();
        assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    }
}

#[test]
fn every_member_gets_a_copy_and_other_sockets_none() {
    needs_root!();
    let (lab, host) = lab();
    let members = [0, 1].map(|_| bind(&lab.server, &host, "0.0.0.0"));
    let choosy = bind(&lab.server, &host, "0.0.0.0");
    let mut none = Groups::default();
    none.set_multicast_all(false, false);
    choosy.set_groups(none);
    for member in &members {
        member.join_multicast(ip(GROUP), lab.server.ifindex()).unwrap();
    }
    Publisher::to(&lab, GROUP).publish(b"copied");
    for member in &members {
        let mut buffer = [0; 64];
        assert_eq!(member.recv(&mut buffer).unwrap(), 6);
        assert_eq!(member.stats().kernel, 0);
    }
    assert_eq!(choosy.waiting().0, 0);
}

#[test]
fn a_group_that_another_process_receives_comes_through_the_kernel() {
    needs_root!();
    let (lab, host) = lab();
    let socket = bind(&lab.server, &host, "0.0.0.0");
    socket.join_multicast(ip(GROUP), lab.server.ifindex()).unwrap();
    let publisher = Publisher::to(&lab, GROUP);
    publisher.publish(b"ours");
    assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 4);
    assert_eq!(socket.stats().kernel, 0);

    // Another socket joins: both receive.
    let other = other_process(&lab.server);
    other.set_nonblocking(true).unwrap();
    publisher.publish_until("the other receives", || other.recv(&mut [0; 64]).is_ok());
    drain(&socket);
    let before = socket.stats().kernel;
    publisher.publish_until("we receive through the kernel", || socket.stats().kernel > before);

    // And leaves again.
    drop(other);
    let polled = |socket: &UdpSocket| {
        let stats = socket.stats();
        stats.own_polls + stats.other_polls + stats.interrupts
    };
    let before = polled(&socket);
    publisher.publish_until("it comes over our queues", || {
        drain(&socket);
        polled(&socket) > before
    });
}
