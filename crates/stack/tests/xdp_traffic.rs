//! AF_XDP on a veth: packets for our ports come to us, all others go to the kernel.

mod xdp_support;

use busypoll_lab::{Lab, Namespace, needs, needs_root};
use busypoll_stack::{
    nic::{Checksum, Nic, Queue, RingFull, xdp::Xdp},
    wire::{MacAddr, ethernet, ipv4, udp},
};
use std::{
    io::{Error, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use xdp_support::*;

fn must(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn must_ip(namespace: &Namespace, arguments: &str) {
    must(namespace.command("ip").args(arguments.split_whitespace()));
}

/// Sends `count` datagrams, each after the answer to the one before, and checks the answers.
fn ping_pong(client: &UdpSocket, server: SocketAddr, count: u32) {
    let mut answer = [0; 2048];
    for i in 0..count {
        let request = vec![i as u8; 1 + i as usize % 1400];
        client.send_to(&request, server).unwrap();
        let (length, from) = client.recv_from(&mut answer).unwrap();
        assert_eq!(from, server);
        assert_eq!(&answer[..length], &request[..]);
    }
}

/// Runs `work` while an echo serves the queue; returns how many frames it echoed.
fn while_echoing(mut queue: Queue, work: impl FnOnce()) -> usize {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let echo = thread::spawn(move || echo(&mut queue, &stopped));
    work();
    stop.store(true, Ordering::Relaxed);
    echo.join().unwrap()
}

fn is_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as i32) == 1 }
}

#[test]
fn a_kernel_client_is_answered() {
    needs_root!();
    let lab = lab();
    let station = station(&lab.server);
    assert_eq!(station.nic.info().mode, "xdp (copy)");
    assert_eq!(station.nic.info().mac, MacAddr(lab.server.mac()));
    assert_eq!(station.nic.info().ifindex, Some(lab.server.ifindex()));
    let client = kernel_socket(&lab.client, 0);
    // More datagrams than there are frames: each frame is used again.
    let echoed = while_echoing(station.queue, || ping_pong(&client, station.address, 5000));
    assert_eq!(echoed, 5000);
}

#[test]
fn a_client_is_answered_in_generic_mode() {
    needs_root!();
    let lab = lab();
    let host = &lab.server;
    let builder = busypoll_stack::nic::xdp::Xdp::builder(host.interface()).generic();
    let mut nic = host.enter(|| builder.open()).unwrap().unwrap();
    assert_eq!(nic.info().mode, "xdp (generic)");
    let queue = nic.open(0).unwrap();
    let address = SocketAddr::from((host.ipv4(), PORT));
    nic.steering().unwrap().add(UDP, address).unwrap();
    let client = kernel_socket(&lab.client, 0);
    assert_eq!(while_echoing(queue, || ping_pong(&client, address, 200)), 200);
}

#[test]
fn two_stations_talk_without_the_kernel() {
    needs_root!();
    let lab = lab();
    let server = station(&lab.server);
    let mut client = station(&lab.client);
    let macs = (MacAddr(lab.client.mac()), MacAddr(lab.server.mac()));
    let (from, to) = (client.address, server.address);
    let echoed = while_echoing(server.queue, || {
        for i in 0..500u32 {
            let length = 60 + i as usize;
            client
                .queue
                .tx
                .push(length, false, &mut |frame| write_udp(frame, macs, from, to, i as u8))
                .unwrap();
            client.queue.tx.flush();
            poll_until(&mut client.queue, "the echo", |bytes| {
                bytes.len() == length && bytes[42..].iter().all(|b| *b == i as u8)
            });
        }
    });
    assert_eq!(echoed, 500);
}

#[test]
fn other_ports_and_ping_stay_with_the_kernel() {
    needs_root!();
    needs!(program "ping");
    let lab = lab();
    let station = station(&lab.server);
    let neighbour = kernel_socket(&lab.server, PORT + 1);
    let kernel_echo = thread::spawn(move || {
        let mut buffer = [0; 2048];
        for _ in 0..300 {
            let (length, from) = neighbour.recv_from(&mut buffer).unwrap();
            neighbour.send_to(&buffer[..length], from).unwrap();
        }
    });
    let client = kernel_socket(&lab.client, 0);
    let elsewhere = SocketAddr::from((lab.server.ipv4(), PORT + 1));
    let echoed = while_echoing(station.queue, || {
        ping_pong(&client, elsewhere, 300);
        let address = lab.server.ipv4().to_string();
        must(lab.client.command("ping").args(["-c3", "-i0.1", "-W5", &address]));
        ping_pong(&client, station.address, 10);
    });
    kernel_echo.join().unwrap();
    assert_eq!(echoed, 10);
}

/// Before the port is steered, and after the last user is gone, the port is the kernel's.
#[test]
fn steering_counts_its_users() {
    needs_root!();
    let lab = lab();
    let mut station = station(&lab.server);
    let kernel = kernel_socket(&lab.server, PORT);
    let client = kernel_socket(&lab.client, 0);
    let steering = station.steering.clone();
    steering.add(UDP, station.address).unwrap();
    steering.remove(UDP, station.address);
    client.send_to(b"ours", station.address).unwrap();
    poll_until(&mut station.queue, "a steered packet", |bytes| bytes.ends_with(b"ours"));
    steering.remove(UDP, station.address);
    client.send_to(b"theirs", station.address).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(kernel.recv(&mut buffer).unwrap(), 6);
    assert_eq!(&buffer[..6], b"theirs");
    steering.remove(UDP, station.address); // once too often: no effect
    assert_eq!(station.queue.rx.poll(64, &mut |_| ()), 0);
}

/// Whether the first packet of a connection from the client's `port` comes to us; if not, the kernel answers it.
fn comes_to_us(lab: &Lab, station: &mut Station, port: u16) -> bool {
    let socket = lab.client.enter(|| syn(lab.client.ipv4(), port, station.address)).unwrap();
    let mut ours = false;
    loop {
        station.queue.rx.poll(64, &mut |frame| {
            // Source port, and the flags.
            ours |= frame.bytes[34..36] == port.to_be_bytes() && frame.bytes[47] == 0x02;
        });
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live pollfd.
        if ours || unsafe { libc::poll(&raw mut poll, 1, 1) } == 1 {
            return ours;
        }
    }
}

/// Begins to connect; dropping the descriptor leaves no connection.
fn syn(own: Ipv4Addr, port: u16, to: SocketAddr) -> OwnedFd {
    let SocketAddr::V4(to) = to else { panic!("IPv4 only") };
    let address = |at: SocketAddrV4| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: at.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(at.ip().octets()) },
        sin_zero: [0; 8],
    };
    let (near, far) = (address(SocketAddrV4::new(own, port)), address(to));
    let len = size_of_val(&near) as libc::socklen_t;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: valid addresses and a valid option, each of its length; the descriptor is fresh.
    unsafe {
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0));
        let (fd, option) = (socket.as_raw_fd(), (&raw const linger).cast());
        let size = size_of_val(&linger) as libc::socklen_t;
        assert_eq!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, option, size), 0);
        // Another test's child may hold the previous socket until it executes its program.
        while libc::bind(fd, (&raw const near).cast(), len) != 0 {
            let error = Error::last_os_error();
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
            thread::sleep(Duration::from_millis(1));
        }
        libc::connect(fd, (&raw const far).cast(), len);
        socket
    }
}

/// A single connection of a port can be steered or not, independent of the rest of the port.
#[test]
fn connections_are_steered_on_their_own() {
    needs_root!();
    let lab = lab();
    let mut station = station(&lab.server);
    let local = station.address;
    let _kernel = lab.server.enter(|| TcpListener::bind(local)).unwrap().unwrap();
    let steering = station.steering.clone();
    let [a, b, c] = [5001, 5002, 5003].map(|port| SocketAddr::from((lab.client.ipv4(), port)));
    let mut ours = |wanted: [bool; 3]| {
        let found = [a, b, c].map(|from| comes_to_us(&lab, &mut station, from.port()));
        assert_eq!(found, wanted);
    };
    ours([false, false, false]);
    steering.add_connection(local, a).unwrap();
    ours([true, false, false]);
    steering.add_connection(local, a).unwrap();
    steering.remove_connection(local, a);
    ours([true, false, false]);
    steering.exclude(local, a).unwrap();
    steering.exclude(local, b).unwrap();
    ours([true, false, false]);
    steering.add(6, local).unwrap();
    ours([true, false, true]);
    steering.remove_connection(local, a);
    ours([false, false, true]);
    steering.add_connection(local, b).unwrap();
    steering.remove(6, local);
    ours([false, true, false]);
    steering.remove_connection(local, b);
    // The remaining entries were forgotten.
    steering.add(6, local).unwrap();
    ours([true, true, true]);
}

/// While a port is taken over, the kernel keeps the connections that it has, and new ones come to us.
#[test]
fn a_port_that_is_taken_over_leaves_the_kernel_its_connections() {
    needs_root!();
    let lab = lab();
    let mut station = station(&lab.server);
    let steering = station.steering.clone();
    let v6 = lab.server.ipv6().map(|address| SocketAddr::from((address, PORT)));
    for local in [Some(station.address), v6].into_iter().flatten() {
        let listener = lab.server.enter(|| TcpListener::bind(local)).unwrap().unwrap();
        let mut far = lab.client.enter(|| TcpStream::connect(local)).unwrap().unwrap();
        let (mut near, _) = listener.accept().unwrap();
        steering.begin_take_over(local, 1).unwrap();
        steering.begin_take_over(local, 2).unwrap();
        steering.add(6, local).unwrap();
        let mut talk = || {
            let mut byte = [0];
            far.write_all(b"x").unwrap();
            near.read_exact(&mut byte).unwrap();
            near.write_all(b"y").unwrap();
            far.read_exact(&mut byte).unwrap();
        };
        talk();
        if local.is_ipv4() {
            assert!(comes_to_us(&lab, &mut station, 5004));
        }
        steering.end_take_over(local, 1);
        talk();
        assert_eq!(station.queue.rx.poll(64, &mut |_| ()), 0);
        steering.end_take_over(local, 2);
        far.write_all(b"x").unwrap();
        poll_until(&mut station.queue, "a segment of the connection", |bytes| {
            bytes.ends_with(b"x")
        });
        steering.remove(6, local);
    }
}

#[test]
fn a_full_ports_map_is_an_error() {
    needs_root!();
    let lab = lab();
    let station = station(&lab.server);
    let error = [6, UDP]
        .into_iter()
        .flat_map(|protocol| (1..=u16::MAX).map(move |port| (protocol, port)))
        .find_map(|(protocol, port)| {
            station.steering.add(protocol, (lab.server.ipv4(), port).into()).err()
        })
        .expect("the map has a limit");
    assert!(error.to_string().contains("entries are taken"), "{error}");
}

/// A router with a steered port still forwards packets to that port on other hosts, in fragments as well.
#[test]
fn forwarded_packets_are_not_taken() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let far = Namespace::new().unwrap();
    must_ip(&lab.server, &format!("link add far type veth peer name near netns {}", far.path()));
    must_ip(&lab.server, "addr add 10.88.0.1/24 dev far");
    must_ip(&lab.server, "link set far up");
    must_ip(&far, "addr add 10.88.0.2/24 dev near");
    must_ip(&far, "link set near up");
    must_ip(&far, "route add default via 10.88.0.1");
    must_ip(&lab.client, &format!("route add 10.88.0.0/24 via {}", lab.server.ipv4()));
    let forwarding = "/proc/sys/net/ipv4/ip_forward";
    lab.server.enter(|| std::fs::write(forwarding, "1")).unwrap().unwrap();

    let mut station = station(&lab.server);
    let beyond = far.enter(|| UdpSocket::bind(("0.0.0.0", PORT))).unwrap().unwrap();
    beyond.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let client = kernel_socket(&lab.client, 0);
    let mut buffer = [0; 4096];
    for _ in 0..100 {
        client.send_to(b"forward me", ("10.88.0.2", PORT)).unwrap();
        assert_eq!(beyond.recv(&mut buffer).unwrap(), 10);
        client.send_to(&[7; 3000], ("10.88.0.2", PORT)).unwrap();
        assert_eq!(beyond.recv(&mut buffer).unwrap(), 3000);
    }
    client.send_to(b"ours", station.address).unwrap();
    let mut taken = 0;
    poll_until(&mut station.queue, "our packet", |bytes| {
        taken += 1;
        bytes.ends_with(b"ours")
    });
    assert_eq!(taken, 1);
}

/// The kernel counts packets without room; here the last of ten more than there are frames.
#[test]
fn packets_that_the_ring_has_no_room_for_are_counted() {
    needs_root!();
    let lab = lab();
    let open = || Xdp::builder(lab.server.interface()).rx_frames(64).open();
    let mut nic = lab.server.enter(open).unwrap().unwrap();
    let queue = nic.open(0).unwrap();
    let to = SocketAddr::from((lab.server.ipv4(), PORT));
    nic.steering().unwrap().add(UDP, to).unwrap();
    let client = kernel_socket(&lab.client, 0);
    for _ in 0..74 {
        client.send_to(b"x", to).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while queue.interrupt.dropped() < 10 {
        assert!(Instant::now() < deadline, "{} dropped", queue.interrupt.dropped());
        thread::yield_now();
    }
    assert_eq!(queue.interrupt.dropped(), 10);
}

/// Frames with VLAN tags, however many, are not for us.
#[test]
fn tagged_frames_are_left_to_the_kernels_vlan_interfaces() {
    needs_root!();
    let lab = lab();
    let mut server = station(&lab.server);
    let mut client = station(&lab.client);
    let macs = (MacAddr(lab.client.mac()), MacAddr(lab.server.mac()));
    let (from, to) = (client.address, server.address);
    let tags: [&[u8]; 4] =
        [&[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 6, 0x81, 0, 0, 5], &[0x81, 0, 0, 5].repeat(3), &[]];
    for tag in tags {
        let length = 100 + tag.len();
        client
            .queue
            .tx
            .push(length, false, &mut |frame| {
                write_udp(&mut frame[tag.len()..], macs, from, to, tag.len() as u8);
                frame.copy_within(tag.len()..tag.len() + 12, 0);
                frame[12..12 + tag.len()].copy_from_slice(tag);
            })
            .unwrap();
    }
    client.queue.tx.flush();
    let mut seen = Vec::new();
    poll_until(&mut server.queue, "the untagged frame", |bytes| {
        seen.push(bytes[bytes.len() - 1]);
        seen.last() == Some(&0)
    });
    // veth has no VLAN offload for XDP: the tags are in the frame.
    assert_eq!(seen, [0]);
}

/// Packets with options are taken; a packet with an impossible length is left to the kernel.
#[test]
fn headers_of_every_length_are_read() {
    needs_root!();
    let lab = lab();
    let mut server = station(&lab.server);
    let mut client = station(&lab.client);
    let macs = (MacAddr(lab.client.mac()), MacAddr(lab.server.mac()));
    // The header's first byte, its words of options, and its fragment field.
    let headers = [
        (0x46, 1, [0, 0]),
        (0x4f, 10, [0x40, 0]),
        (0x44, 0, [0, 0]),    // too short
        (0x4f, 0, [0, 0]),    // beyond the frame
        (0x4c, 0, [0, 0]),    // as long as the frame, but for two bytes of the ports
        (0x56, 1, [0, 0]),    // another version
        (0x46, 1, [0x20, 0]), // the first fragment
        (0x46, 1, [0, 9]),    // the last one
        (0x56, 1, [0, 9]),    // another version
        (0x45, 0, [0, 0]),
    ];
    for (number, (first, words, fragment)) in headers.into_iter().enumerate() {
        let mut frame = vec![0; 64];
        write_udp(&mut frame, macs, client.address, server.address, number as u8);
        frame[14] = first;
        frame[20..22].copy_from_slice(&fragment);
        frame.splice(34..34, vec![1; words * 4]);
        client.send(&frame);
    }
    let mut seen = Vec::new();
    poll_until(&mut server.queue, "the last frame", |bytes| {
        seen.push(bytes[bytes.len() - 1]);
        seen.last() == Some(&9)
    });
    assert_eq!(seen, [0, 1, 6, 7, 9]);
}

/// A kernel peer on veth leaves the checksum to hardware that does not exist; the driver flags it.
#[test]
fn partial_checksums_are_flagged() {
    needs_root!();
    let lab = lab();
    let mut station = station(&lab.server);
    let client = kernel_socket(&lab.client, 0);
    client.send_to(b"unfinished", station.address).unwrap();
    let mut flagged = None;
    while flagged.is_none() {
        station.queue.rx.poll(1, &mut |frame| {
            let ethernet = ethernet::Frame::new_checked(frame.bytes).unwrap();
            let packet = ipv4::Packet::new_checked(ethernet.payload()).unwrap();
            let datagram = udp::Packet::new_checked(packet.payload()).unwrap();
            assert!(datagram.has_partial_checksum(packet.address_sum()));
            assert!(datagram.verify_checksum(packet.address_sum()).is_err());
            flagged = Some(frame.checksum);
        });
    }
    assert_eq!(flagged, Some(Checksum::MaybePartial));
}

/// The descriptor is readable while frames wait, even if they came before the first poll.
#[test]
fn the_interrupt_is_level_triggered() {
    needs_root!();
    let lab = lab();
    let Queue { mut rx, interrupt, .. } = {
        let station = station(&lab.server);
        let client = kernel_socket(&lab.client, 0);
        assert!(station.queue.interrupt.unmask());
        assert!(!is_readable(station.queue.interrupt.fd(), Duration::ZERO));
        for i in 0..5u8 {
            client.send_to(&[i], station.address).unwrap();
        }
        station.queue
        // The NIC and the steering are dropped here: the queue alone keeps the program and the socket alive.
    };
    assert!(is_readable(interrupt.fd(), Duration::from_secs(10)));
    let mut order = Vec::new();
    while order.len() < 5 {
        // Never more frames than the budget.
        let n = rx.poll(2, &mut |frame| order.push(frame.bytes[42]));
        assert!(n <= 2);
        if order.len() < 5 {
            assert!(is_readable(interrupt.fd(), Duration::from_secs(10)));
            assert!(!interrupt.unmask() || order.is_empty());
        }
    }
    assert_eq!(order, [0, 1, 2, 3, 4]);
    interrupt.mask();
    assert!(interrupt.unmask());
    assert!(!is_readable(interrupt.fd(), Duration::ZERO));
}

/// All pushed frames are sent, more than one system call sends.
#[test]
fn a_burst_is_sent_whole() {
    needs_root!();
    let lab = lab();
    let mut server = station(&lab.server);
    let mut client = station(&lab.client);
    let macs = (MacAddr(lab.client.mac()), MacAddr(lab.server.mac()));
    let (from, to) = (client.address, server.address);
    let mut write = |frame: &mut [u8]| write_udp(frame, macs, from, to, 1);
    let (mut pushed, mut received) = (0, 0);
    for burst in [1, 31, 32, 33, 64, 100, 500, 1000, 1000, 1000] {
        for _ in 0..burst {
            while client.queue.tx.push(60, false, &mut write).is_err() {
                client.queue.tx.flush();
            }
            pushed += 1;
        }
        client.queue.tx.flush();
        received += server.queue.rx.poll(2048, &mut |_| ());
    }
    client.queue.tx.flush();
    thread::sleep(Duration::from_millis(50));
    received += server.queue.rx.poll(4096, &mut |_| ());
    // If its softirq is late, veth drops frames that its ring has no room for.
    assert!(received > pushed / 2, "{received} of {pushed}");
}

#[test]
fn a_full_transmit_ring_is_reported() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let mut client = station(&lab.client);
    // From here on no frame is sent.
    let mut down = lab.client.command("ip");
    let down = down.args(["link", "set", lab.client.interface(), "down"]).status();
    assert!(down.unwrap().success());
    let mut pushed = 0;
    while client.queue.tx.push(60, false, &mut |frame| frame.fill(0)).is_ok() {
        pushed += 1;
        assert!(pushed <= 1024);
    }
    assert_eq!(pushed, 1024);
    assert_eq!(client.queue.tx.push(60, false, &mut |_| ()), Err(RingFull));
}

/// Datagrams of all sizes come back unchanged, whether a packet takes a small frame, a large one or several, and more of
/// them than there are frames.
#[test]
fn every_mtu_is_served() {
    needs_root!();
    // 3600 fits in a frame and not in a page of the driver.
    for mtu in [3000, 3600, 4000, 9000, 65_535] {
        let lab = Lab::builder().mtu(mtu).build().unwrap();
        let station = station(&lab.server);
        assert_eq!(station.nic.info().mtu, mtu as usize);
        assert_eq!(station.nic.info().mode, "xdp (copy)");
        let client = kernel_socket(&lab.client, 0);
        let largest = (mtu as usize - 28).min(65_507);
        let mut answer = vec![0; 65_536];
        while_echoing(station.queue, || {
            for i in 0..600usize {
                let length = if i % 4 == 0 { largest - i / 4 } else { i * 7919 % (largest + 1) };
                let request: Vec<u8> = (0..length).map(|at| (at * 31 + i) as u8).collect();
                client.send_to(&request, station.address).unwrap();
                let got = client.recv(&mut answer).unwrap();
                assert_eq!(got, length, "MTU {mtu}");
                assert_eq!(&answer[..got], &request[..], "MTU {mtu}, {length} bytes");
            }
        });
    }
}

/// While the interface is used.
#[test]
fn a_raised_mtu_loses_nothing() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let station = station(&lab.server);
    let client = kernel_socket(&lab.client, 0);
    for host in [&lab.server, &lab.client] {
        must_ip(host, &format!("link set {} mtu 9000", host.interface()));
    }
    let Station { mut queue, address, .. } = station;
    for length in [1472, 1800, 4000, 8972] {
        client.send_to(&vec![3; length], address).unwrap();
        poll_until(&mut queue, "the datagram", |bytes| {
            bytes.len() == 42 + length && bytes[42..].iter().all(|byte| *byte == 3)
        });
    }
}

#[test]
fn large_packets_are_served_in_generic_mode() {
    needs_root!();
    let lab = Lab::builder().mtu(9000).build().unwrap();
    let host = &lab.server;
    let mut nic = host.enter(|| Xdp::builder(host.interface()).generic().open()).unwrap().unwrap();
    let queue = nic.open(0).unwrap();
    let address = SocketAddr::from((host.ipv4(), PORT));
    nic.steering().unwrap().add(UDP, address).unwrap();
    let client = kernel_socket(&lab.client, 0);
    let mut answer = [0; 9000];
    while_echoing(queue, || {
        for length in [1, 1472, 3000, 4096, 8972] {
            client.send_to(&vec![5; length], address).unwrap();
            assert_eq!(client.recv(&mut answer).unwrap(), length);
            assert!(answer[..length].iter().all(|byte| *byte == 5));
        }
    });
}

/// The link goes down and comes up again, and so does the traffic. The interface vanishes: nothing hangs, and the
/// descriptor does not wake for nothing.
#[test]
fn a_link_that_goes_down_or_vanishes_hangs_nothing() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let mut station = station(&lab.server);
    let client = kernel_socket(&lab.client, 0);
    let name = lab.server.interface();
    let macs = (MacAddr(lab.server.mac()), MacAddr(lab.client.mac()));
    let (from, to) = (station.address, client.local_addr().unwrap());
    let to = SocketAddr::from((lab.client.ipv4(), to.port()));
    let send = |queue: &mut Queue| {
        let pushed = queue.tx.push(60, false, &mut |frame| write_udp(frame, macs, from, to, 3));
        queue.tx.flush();
        pushed
    };
    must_ip(&lab.server, &format!("link set {name} down"));
    for _ in 0..3000 {
        let _ = send(&mut station.queue); // until the ring is full, and beyond
    }
    must_ip(&lab.server, &format!("link set {name} up"));
    let mut sent = false;
    for _ in 0..500 {
        // The kernel takes a moment to resolve the neighbour that it forgot when the link went down.
        let _ = client.send_to(b"back", station.address);
        sent |= station.queue.rx.poll(64, &mut |f| assert!(f.bytes.ends_with(b"back"))) > 0;
        if sent {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(sent, "no packet after the link came back");
    // Frames that waited on the ring are sent with the next flush.
    let _ = send(&mut station.queue);
    assert_eq!(client.recv(&mut [0; 64]).unwrap(), 18);

    must_ip(&lab.server, &format!("link del {name}"));
    for _ in 0..3000 {
        let _ = send(&mut station.queue);
    }
    station.queue.rx.poll(64, &mut |_| ());
    assert!(station.queue.interrupt.unmask());
    assert!(!is_readable(station.queue.interrupt.fd(), Duration::ZERO));
}
