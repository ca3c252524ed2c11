//! Multicast over AF_XDP on a veth: the kernel joins groups, and their datagrams come over our queues while no other
//! process on the machine receives them; else they come over the ring of a packet socket.

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
fn other_process_of(address: &str, on: &LabHost) -> KernelSocket {
    let bound = || {
        let one: libc::c_int = 1;
        let six = ip(address).is_ipv6();
        // SAFETY: all zeros is a valid address, the wildcard; a socket made here, options and names valid for their sizes.
        unsafe {
            let mut name: libc::sockaddr_in6 = std::mem::zeroed();
            let family = if six { libc::AF_INET6 } else { libc::AF_INET };
            name.sin6_family = family as libc::sa_family_t;
            // In the same place in both families.
            name.sin6_port = PORT.to_be();
            let size = if six { size_of_val(&name) } else { size_of::<libc::sockaddr_in>() };
            let fd = libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            let value = (&raw const one).cast();
            assert_eq!(libc::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, value, 4), 0);
            assert_eq!(libc::bind(fd, (&raw const name).cast(), size as libc::socklen_t), 0);
            KernelSocket::from_raw_fd(fd)
        }
    };
    on.enter(bound).unwrap()
}

fn other_process(on: &LabHost) -> KernelSocket {
    let socket = other_process_of("0.0.0.0", on);
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

/// What a socket has received from queues and from the ring.
fn polled(socket: &UdpSocket) -> u64 {
    let stats = socket.stats();
    stats.own_polls + stats.other_polls + stats.interrupts
}

/// The packets of all queues.
fn of_queues(host: &Host) -> u64 {
    host.contexts().map(|context| context.stats().packets).sum()
}

/// A socket in a group that another process receives as well.
fn beside_another(lab: &Lab, host: &Host) -> (UdpSocket, KernelSocket, Publisher) {
    let socket = bind(&lab.server, host, "0.0.0.0");
    socket.join_multicast(ip(GROUP), lab.server.ifindex()).unwrap();
    let publisher = Publisher::to(lab, GROUP);
    publisher.publish(b"ours");
    assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 4);
    let other = other_process(&lab.server);
    other.set_nonblocking(true).unwrap();
    publisher.publish_until("the other receives", || other.recv(&mut [0; 64]).is_ok());
    // Nothing is under way any more.
    publisher.publish(b"last");
    let mut last = [0; 64];
    while socket.recv(&mut last).unwrap() != 4 {}
    other.set_nonblocking(false).unwrap();
    while other.recv(&mut last).unwrap() != 4 {}
    other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (socket, other, publisher)
}

/// Both have each datagram, ours over a ring of its own, and none from the kernel's socket in addition.
#[test]
fn a_group_that_another_process_receives_comes_over_a_ring() {
    needs_root!();
    let (lab, host) = lab();
    let (socket, other, publisher) = beside_another(&lab, &host);
    // It is in no group, and has the datagrams nevertheless, as on the kernel.
    let third = lab.server.enter(|| bind(&lab.server, &host, "0.0.0.0")).unwrap();
    let (over_queues, before) = (of_queues(&host), polled(&socket));
    for n in 0..1000_u16 {
        publisher.publish(&n.to_ne_bytes());
        if n % 50 == 49 {
            for expected in n - 49..=n {
                let mut came = [[0; 2]; 3];
                socket.recv(&mut came[0]).unwrap();
                third.recv(&mut came[1]).unwrap();
                other.recv(&mut came[2]).unwrap();
                assert_eq!(came.map(u16::from_ne_bytes), [expected; 3]);
            }
        }
    }
    assert_eq!((socket.stats().kernel, polled(&socket) - before), (0, 1000));
    assert_eq!((third.stats().kernel, third.waiting().0), (0, 0));
    drop(third);
    assert_eq!(of_queues(&host), over_queues);

    // Larger than the link's packets.
    let large = vec![7; 4000];
    publisher.publish(&large);
    let mut came = [0; 5000];
    assert_eq!((socket.recv(&mut came).unwrap(), socket.stats().kernel), (4000, 0));
    assert_eq!(came[..4000], large);
    assert_eq!(other.recv(&mut came).unwrap(), 4000);

    // What the host sends itself comes from the kernel's socket, once.
    let near = lab.server.enter(|| KernelSocket::bind((lab.server.ipv4(), 0))).unwrap().unwrap();
    near.send_to(b"near", (GROUP, PORT)).unwrap();
    publisher.publish(b"far");
    let mut lens = [0; 2].map(|_| socket.recv(&mut came).unwrap());
    lens.sort_unstable();
    assert_eq!((lens, socket.stats().kernel, socket.waiting().0), ([3, 4], 1, 0));

    // Alone again.
    drop(other);
    publisher.publish_until("it comes over our queues", || {
        drain(&socket);
        of_queues(&host) > over_queues
    });
    publisher.publish(b"once");
    assert_eq!(socket.recv(&mut came).unwrap(), 4);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((socket.stats().kernel, socket.waiting().0), (1, 0));
}

/// A feed while another socket comes and goes, twice: each datagram comes once, and in order.
#[test]
fn a_group_that_moves_between_queue_and_ring_loses_and_doubles_nothing() {
    needs_root!();
    let (lab, host) = lab();
    let socket = bind(&lab.server, &host, "0.0.0.0");
    socket.join_multicast(ip(GROUP), lab.server.ifindex()).unwrap();
    let publisher = Publisher::to(&lab, GROUP);
    let last = 2500;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..=last {
                publisher.publish(&u32::to_ne_bytes(n));
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let (mut other, mut ways) = (None, Vec::new());
        for expected in 0..=last {
            if expected % 600 == 100 {
                other = match other {
                    None => Some(other_process(&lab.server)),
                    Some(_) => None,
                };
            }
            let before = of_queues(&host);
            let mut came = [0; 4];
            socket.recv(&mut came).unwrap();
            assert_eq!(u32::from_ne_bytes(came), expected);
            if socket.waiting().0 == 0 && before < of_queues(&host) {
                ways.push("queue");
            } else if socket.waiting().0 == 0 {
                ways.push("ring");
            }
            ways.dedup();
        }
        assert!(ways.len() >= 4, "{ways:?}");
        drop(other);
    });
    assert_eq!(socket.stats().kernel, 0);
}

/// Children may use the kernel's socket, so it must have what comes.
#[test]
fn a_group_of_a_process_that_forks_comes_through_the_kernel() {
    needs_root!();
    let (lab, host) = lab();
    let (socket, other, publisher) = beside_another(&lab, &host);
    publisher.publish(b"ring");
    socket.recv(&mut [0; 64]).unwrap();
    assert_eq!(socket.stats().kernel, 0);
    lab.server.enter(|| host.share_kernel_sockets()).unwrap();
    for n in 1..20_u64 {
        publisher.publish(b"shared");
        assert_eq!((socket.recv(&mut [0; 64]).unwrap(), socket.stats().kernel), (6, n));
    }
    drop(other);
    let before = of_queues(&host);
    publisher.publish_until("it comes over our queues", || {
        drain(&socket);
        of_queues(&host) > before
    });
}

#[test]
fn a_group_of_ipv6_comes_over_a_ring() {
    needs_root!();
    let (lab, host) = lab();
    let socket = bind(&lab.server, &host, "::");
    socket.join_multicast(ip(GROUP_6), lab.server.ifindex()).unwrap();
    // It could receive the group: it keeps it from being steered.
    let other = other_process_of("::", &lab.server);
    let publisher = Publisher::to(&lab, GROUP_6);
    let again = || {
        socket.leave_multicast(ip(GROUP_6), lab.server.ifindex()).unwrap();
        socket.join_multicast(ip(GROUP_6), lab.server.ifindex()).unwrap();
    };
    lab.server.enter(again).unwrap();
    let over_queues = of_queues(&host);
    for n in 0..100_u8 {
        publisher.publish(&[n; 9]);
        let mut came = [0; 64];
        assert_eq!((socket.recv(&mut came).unwrap(), came[0]), (9, n));
    }
    publisher.publish(&[8; 4000]);
    assert_eq!(socket.recv(&mut [0; 5000]).unwrap(), 4000);
    assert_eq!((socket.stats().kernel, of_queues(&host)), (0, over_queues));
    drop(other);
}
