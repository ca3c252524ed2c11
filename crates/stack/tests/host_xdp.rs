//! A whole host over AF_XDP on an interface shared with the kernel: packets for our sockets come over our queue,
//! packets through the kernel reach the application as well, and all other traffic is left alone.

mod xdp_support;

use busypoll_lab::{Lab, LabHost, Namespace, needs, needs_root};
use busypoll_stack::{Host, UdpSocket, nic::xdp::Xdp};
use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as KernelSocket},
    thread,
    time::{Duration, Instant},
};
use xdp_support::{add_header, add_options, once_free};

/// All kernel state of a host is in the namespace of the thread that builds it.
fn host(on: &LabHost) -> Host {
    on.enter(|| Host::builder().shared_interface(Xdp::open(on.interface()).unwrap()).build())
        .unwrap()
        .unwrap()
}

fn bind(on: &LabHost, host: &Host, address: &str) -> std::io::Result<UdpSocket> {
    let socket = on.enter(|| UdpSocket::bind(host, address)).unwrap()?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(socket)
}

fn kernel_socket(on: &LabHost, address: SocketAddr) -> KernelSocket {
    let socket = on.enter(|| KernelSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

fn any(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

/// One request from `client`, and its answer by `server`; the same bytes must come back.
fn exchange(client: &KernelSocket, to: SocketAddr, server: &UdpSocket, payload: &[u8]) {
    client.send_to(payload, to).unwrap();
    let mut buffer = vec![0; 65_536];
    let (len, from) = server.recv_from(&mut buffer).unwrap();
    assert!(buffer[..len] == *payload);
    server.send_to(&buffer[..len], from).unwrap();
    let (len, from) = client.recv_from(&mut buffer).unwrap();
    assert!(buffer[..len] == *payload);
    assert_eq!(from, to);
}

#[test]
fn a_kernel_client_is_answered_in_every_way_of_waiting() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let server = bind(&lab.server, &server_host, "0.0.0.0:7").unwrap();
    let client = kernel_socket(&lab.client, any(0));
    let to = SocketAddr::from((lab.server.ipv4(), 7));
    for busy_poll in [0, 100_000] {
        server.set_busy_poll(busy_poll).unwrap();
        for size in [0, 1, 17, 1000, 1472] {
            exchange(&client, to, &server, &vec![size as u8; size]);
        }
    }
    let stats = server.stats();
    assert_eq!((stats.own_polls + stats.interrupts + stats.other_polls, stats.kernel), (10, 0));
    assert!(server.incoming_napi_id().is_some());
}

#[test]
fn datagrams_in_packets_with_options_come_over_the_queue() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let mut ways = vec![(any(0), SocketAddr::from((lab.server.ipv4(), 7)))];
    ways.extend(lab.server.ipv6().map(|ip| ((Ipv6Addr::UNSPECIFIED, 0).into(), (ip, 7).into())));
    for (from, to) in ways {
        let server = bind(&lab.server, &server_host, &to.to_string()).unwrap();
        let client = kernel_socket(&lab.client, from);
        add_options(&client, to.ip());
        for size in [0, 1, 1000, 1400] {
            exchange(&client, to, &server, &vec![size as u8; size]);
        }
        assert_eq!((server.stats().kernel, server.incoming_napi_id().is_some()), (0, true), "{to}");
    }
}

/// RFC 8200 section 4.2. Our host sends the error: the kernel has not seen the packet.
#[test]
fn an_unknown_ipv6_option_is_answered_by_parameter_problem() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let Some(address) = lab.server.ipv6() else {
        return needs::skipped(module_path!(), "IPv6");
    };
    let server_host = host(&lab.server);
    let _server = bind(&lab.server, &server_host, "[::]:7").unwrap();
    let client = kernel_socket(&lab.client, (Ipv6Addr::UNSPECIFIED, 0).into());
    client.connect((address, 7)).unwrap();
    let option = [0, 0, 0x80, 4, 0, 0, 0, 0];
    add_header(&client, (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS), &option);
    client.send(b"x").unwrap();
    let error = client.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPROTO));
    // It is counted after it is sent.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !server_host.counters().contains(&("Icmp6OutParmProblems", 1)) {
        assert!(Instant::now() < deadline, "{:?}", server_host.counters());
        thread::yield_now();
    }
}

#[test]
fn two_of_our_hosts_talk_over_one_wire() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let (one, two) = (host(&lab.client), host(&lab.server));
    let server = bind(&lab.server, &two, "10.77.0.2:7").unwrap();
    let client = bind(&lab.client, &one, "0.0.0.0:0").unwrap();
    client.connect("10.77.0.2:7").unwrap();
    for busy_poll in [0, 100_000] {
        client.set_busy_poll(busy_poll).unwrap();
        for n in 0..100u32 {
            client.send(&n.to_be_bytes()).unwrap();
            let mut buffer = [0; 8];
            let (len, from) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..len], from).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 4);
            assert_eq!(buffer[..4], n.to_be_bytes());
        }
    }
    assert_eq!(client.stats().kernel + server.stats().kernel, 0);
}

#[test]
fn datagrams_that_the_kernel_receives_reach_the_application() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let server = bind(&lab.server, &server_host, "0.0.0.0:7").unwrap();
    let to = SocketAddr::from((lab.server.ipv4(), 7));
    let client = kernel_socket(&lab.client, any(0));
    exchange(&client, to, &server, &[1; 8_000]);
    assert_eq!(server.stats().kernel, 0);
    // Loopback.
    let neighbour = kernel_socket(&lab.server, any(0));
    exchange(&neighbour, (Ipv4Addr::LOCALHOST, 7).into(), &server, b"from next door");
    assert_eq!(server.stats().kernel, 1);
    // To the interface's own address, from the same host.
    exchange(&neighbour, to, &server, b"from next door by name");
    assert_eq!(server.stats().kernel, 2);
    // The counter covers at least the datagrams before the last one.
    let counted = server_host.counters();
    assert!(counted.iter().any(|(name, count)| *name == "UdpInDatagrams" && *count >= 2));
    // And in the other direction, connected.
    let client = bind(&lab.server, &server_host, "0.0.0.0:0").unwrap();
    let next_door = kernel_socket(&lab.server, (Ipv4Addr::LOCALHOST, 9).into());
    lab.server.enter(|| client.connect("127.0.0.1:9")).unwrap().unwrap();
    client.send(b"hello").unwrap();
    let mut buffer = [0; 16];
    let (len, from) = next_door.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from), (&b"hello"[..], client.local_addr().unwrap()));
    next_door.send_to(b"you", from).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 3);
}

#[test]
fn the_kernel_decides_who_gets_a_port() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let taken = kernel_socket(&lab.server, any(7));
    let error = bind(&lab.server, &server_host, "0.0.0.0:7").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(taken);
    let ours = once_free(|| bind(&lab.server, &server_host, "0.0.0.0:7"));
    let error = lab.server.enter(|| KernelSocket::bind(any(7))).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(ours);
    drop(once_free(|| lab.server.enter(|| KernelSocket::bind(any(7))).unwrap()));
}

#[test]
fn a_port_the_kernel_chose_stays_held_when_disconnected() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let server = bind(&lab.server, &server_host, "0.0.0.0:0").unwrap();
    let port = server.local_addr().unwrap().port();
    server.connect((lab.client.ipv4(), 9)).unwrap();
    server.disconnect();
    let error = lab.server.enter(|| KernelSocket::bind(any(port))).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let client = kernel_socket(&lab.client, any(0));
    exchange(&client, (lab.server.ipv4(), port).into(), &server, b"over the queue");
    let neighbour = kernel_socket(&lab.server, any(0));
    exchange(&neighbour, (Ipv4Addr::LOCALHOST, port).into(), &server, b"from next door");
}

/// Addresses on interfaces that are not shared are bound, and so checked, by the kernel.
#[test]
fn addresses_on_other_interfaces_are_bound_by_the_kernel() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let far = Namespace::new().unwrap();
    let run = |on: &Namespace, arguments: &str| {
        let status = on.command("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    };
    run(&lab.server, &format!("link add other type veth peer name there netns {}", far.path()));
    run(&lab.server, "addr add 10.88.0.1/24 dev other");
    run(&lab.server, "link set other up");
    run(&far, "addr add 10.88.0.2/24 dev there");
    run(&far, "link set there up");
    let server_host = host(&lab.server);
    let error = |address| bind(&lab.server, &server_host, address).unwrap_err().kind();
    assert_eq!(error("10.99.0.9:7"), ErrorKind::AddrNotAvailable);
    let _taken = kernel_socket(&lab.server, (Ipv4Addr::LOCALHOST, 7).into());
    assert_eq!(error("127.0.0.1:7"), ErrorKind::AddrInUse);
    // Loopback, and an interface that is not shared.
    let inside = bind(&lab.server, &server_host, "127.0.0.1:8").unwrap();
    let neighbour = kernel_socket(&lab.server, any(0));
    exchange(&neighbour, (Ipv4Addr::LOCALHOST, 8).into(), &inside, b"from next door");
    let refused = inside.send_to(b"never on a wire", (lab.client.ipv4(), 9)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let elsewhere = bind(&lab.server, &server_host, "10.88.0.1:8").unwrap();
    let client = far.enter(|| KernelSocket::bind(any(0))).unwrap().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    exchange(&client, "10.88.0.1:8".parse().unwrap(), &elsewhere, b"over the other interface");
    assert_eq!((inside.stats().kernel, elsewhere.stats().kernel), (1, 1));
}

/// The kernel reports a refusal twice: on the raw ICMP sockets, and on the connected companion.
#[test]
fn a_refusal_is_reported_once() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let one = host(&lab.server);
    let client = bind(&lab.server, &one, "0.0.0.0:0").unwrap();
    client.connect("127.0.0.1:9").unwrap();
    for _ in 0..200 {
        // It would report the error that the socket before has left.
        client.send(b"anyone?").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while client.take_error().unwrap().is_none() {
            assert!(Instant::now() < deadline, "no error");
            thread::yield_now();
        }
    }
}

#[test]
fn a_refusal_by_the_kernel_at_the_other_end_is_reported() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let one = host(&lab.client);
    let client = bind(&lab.client, &one, "0.0.0.0:0").unwrap();
    client.connect((lab.server.ipv4(), 9)).unwrap();
    client.send(b"anyone?").unwrap();
    let error = client.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_wildcard_follows_the_interfaces_addresses() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let server = bind(&lab.server, &server_host, "0.0.0.0:7").unwrap();
    let name = lab.server.interface();
    let run = |on: &LabHost, arguments: &str| {
        let status = on.command("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    };
    run(&lab.server, &format!("addr add 10.77.0.9/24 dev {name}"));
    let client = kernel_socket(&lab.client, any(0));
    // Until our host has read the announcement the companion answers; after that, our queue.
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.stats().interrupts == 0 {
        assert!(Instant::now() < deadline, "{:?}", server.stats());
        client.send_to(b"to the new address", "10.77.0.9:7").unwrap();
        assert_eq!(server.recv(&mut [0; 32]).unwrap(), 18);
    }
    run(&lab.server, &format!("addr del 10.77.0.9/24 dev {name}"));
    exchange(&client, (lab.server.ipv4(), 7).into(), &server, b"to the old one");
}

#[test]
fn the_interface_works_for_all_other_sockets() {
    needs_root!();
    needs!(program "ping");
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let server = bind(&lab.server, &server_host, "0.0.0.0:7").unwrap();
    let other = kernel_socket(&lab.server, any(8));
    let client = kernel_socket(&lab.client, any(0));
    thread::scope(|scope| {
        // Our socket is busy all the time.
        let ours = scope.spawn(|| {
            let client = kernel_socket(&lab.client, any(0));
            for _ in 0..2_000 {
                exchange(&client, (lab.server.ipv4(), 7).into(), &server, b"ours");
            }
        });
        for n in 0..500u32 {
            client.send_to(&n.to_be_bytes(), (lab.server.ipv4(), 8)).unwrap();
            let mut buffer = [0; 8];
            let (len, from) = other.recv_from(&mut buffer).unwrap();
            other.send_to(&buffer[..len], from).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 4);
        }
        let address = lab.server.ipv4().to_string();
        let ping =
            lab.client.command("ping").args(["-c3", "-i0.2", "-q", &address]).output().unwrap();
        assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
        ours.join().unwrap();
    });
    assert_eq!(server.stats().kernel, 0);
    // After our host is gone the interface works as before.
    drop((server, server_host));
    let again = kernel_socket(&lab.server, any(7));
    client.send_to(b"x", (lab.server.ipv4(), 7)).unwrap();
    assert_eq!(again.recv(&mut [0; 8]).unwrap(), 1);
}

/// The raw ICMP socket must receive errors only: pings would fill it.
#[test]
fn the_icmp_socket_receives_errors_and_no_pings() {
    needs_root!();
    needs!(program "ping");
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let address = lab.server.ipv4().to_string();
    let ping = lab.client.command("ping").args(["-c3", "-i0.2", "-q", &address]).output().unwrap();
    assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
    let server = bind(&lab.server, &server_host, "0.0.0.0:0").unwrap();
    server.connect((lab.client.ipv4(), 9)).unwrap();
    server.send(b"anyone?").unwrap();
    assert_eq!(server.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // The refusal came after the pings.
    assert!(server_host.counters().contains(&("IcmpInMsgs", 1)), "{:?}", server_host.counters());
}

#[test]
fn a_permanent_neighbour_entry_stays_permanent() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let mac = lab.client.mac().map(|byte| format!("{byte:02x}")).join(":");
    let ips = [Some(lab.client.ipv4().into()), lab.client.ipv6().map(IpAddr::from)];
    let ips: Vec<IpAddr> = ips.into_iter().flatten().collect();
    let neigh = |rest: &str| {
        let arguments = format!("neigh {rest} dev {}", lab.server.interface());
        let output = lab.server.command("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{arguments}");
        String::from_utf8(output.stdout).unwrap()
    };
    if lab.server.ipv6().is_some() {
        // Without a link-local address the host would make the kernel resolve by a packet, not by a netlink message.
        let add = ["-6", "addr", "add", "fe80::77/64", "dev", lab.server.interface(), "nodad"];
        assert!(lab.server.command("ip").args(add).status().unwrap().success());
    }
    for ip in &ips {
        neigh(&format!("replace {ip} lladdr {mac} nud permanent"));
    }
    let server_host = host(&lab.server);
    for ip in ips {
        let any = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let server = bind(&lab.server, &server_host, any).unwrap();
        let client = lab.client.enter(|| KernelSocket::bind((ip, 0))).unwrap().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        server.send_to(b"hello", client.local_addr().unwrap()).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 5);
        let shown = neigh(&format!("show {ip}"));
        assert!(shown.contains("PERMANENT"), "{shown}");
    }
}

#[test]
fn a_host_with_one_queue_stays_small() {
    needs_root!();
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let lab = Lab::builder().build().unwrap();
    let before = resident();
    let server_host = host(&lab.server);
    let _server = bind(&lab.server, &server_host, "0.0.0.0:7").unwrap();
    let grown = resident().saturating_sub(before);
    assert!(grown <= 64 << 10, "{grown} KiB");
}
