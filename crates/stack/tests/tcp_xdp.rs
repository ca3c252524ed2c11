//! TCP over AF_XDP on a shared interface, against the kernel at the other end.

mod tcp_kernel;
mod xdp_support;

use busypoll_lab::{Lab, LabHost, Namespace, needs, needs_root};
use busypoll_stack::{Host, TcpListener, TcpStream, nic::xdp::Xdp};
use std::{
    collections::HashSet,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream},
    thread,
    time::{Duration, Instant},
};
use tcp_kernel::{converse, echo};
use xdp_support::{add_options, once_free};

fn host(on: &LabHost) -> Host {
    on.enter(|| Host::builder().shared_interface(Xdp::open(on.interface()).unwrap()).build())
        .unwrap()
        .unwrap()
}

fn listen(on: &LabHost, host: &Host, address: &str) -> io::Result<TcpListener> {
    on.enter(|| TcpListener::bind(host, address)).unwrap()
}

fn connect(on: &LabHost, host: &Host, to: SocketAddr) -> io::Result<TcpStream> {
    on.enter(|| TcpStream::connect(host, to)).unwrap()
}

fn kernel_listen(on: &LabHost, port: u16) -> io::Result<KernelListener> {
    on.enter(|| KernelListener::bind((Ipv4Addr::UNSPECIFIED, port))).unwrap()
}

fn kernel_connect(on: &LabHost, to: SocketAddr) -> io::Result<KernelStream> {
    on.enter(|| KernelStream::connect(to)).unwrap()
}

fn at(on: &LabHost, port: u16) -> SocketAddr {
    (on.ipv4(), port).into()
}

fn ip(on: &Namespace, arguments: &str) {
    let status = on.command("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

#[test]
fn a_kernel_client_is_served_in_every_way_of_waiting() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let listener = listen(&lab.server, &server_host, "0.0.0.0:7").unwrap();
    for busy_poll in [0, 100_000] {
        listener.set_busy_poll(busy_poll).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| echo(listener.accept().unwrap().0));
            let client = kernel_connect(&lab.client, at(&lab.server, 7)).unwrap();
            client.set_nodelay(true).unwrap();
            converse(client);
        });
    }
    assert!(listener.incoming_napi_id().is_some());
}

/// The server has two links. By a rule, packets from its second address go back over the link they came from, and not
/// over the link that the main table has for that client.
#[test]
fn answers_follow_a_source_routing_rule() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let (server, client) = (&lab.server, &lab.client);
    let other = format!("link add other type veth peer name there netns {}", client.path());
    ip(server, &other);
    for (on, name, address) in [(server, "other", "10.3.0.2/24"), (client, "there", "10.3.0.1/24")]
    {
        ip(on, &format!("addr add {address} dev {name}"));
        ip(on, &format!("link set {name} up"));
    }
    let name = server.interface();
    ip(server, &format!("addr add 10.2.0.2/24 dev {name}"));
    ip(server, "route add default via 10.3.0.1 dev other");
    ip(server, &format!("route add default via 10.2.0.1 dev {name} table 101"));
    ip(server, "rule add from 10.2.0.2 lookup 101");
    let near = client.interface();
    ip(client, &format!("addr add 10.2.0.1/24 dev {near}"));
    ip(client, "addr add 192.0.2.7/32 dev lo");
    ip(client, &format!("route add 10.2.0.2/32 dev {near} src 192.0.2.7"));
    let server_host = host(server);
    let listener = listen(server, &server_host, "10.2.0.2:7").unwrap();
    thread::scope(|scope| {
        let to = "10.2.0.2:7".parse().unwrap();
        let connect = move || KernelStream::connect_timeout(&to, Duration::from_secs(10));
        let served = scope.spawn(move || client.enter(connect).unwrap());
        let deadline = Instant::now() + Duration::from_secs(10);
        listener.set_nonblocking(true).unwrap();
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, from)) => {
                    assert_eq!(from.ip(), Ipv4Addr::new(192, 0, 2, 7));
                    break stream;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(Instant::now() < deadline, "{:?}", server_host.counters());
            thread::sleep(Duration::from_millis(1));
        };
        stream.write_all(b"hello").unwrap();
        let mut client = served.join().unwrap().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    });
}

#[test]
fn a_kernel_server_serves_us() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let client_host = host(&lab.client);
    let listener = kernel_listen(&lab.server, 7).unwrap();
    for busy_poll in [0, 100_000] {
        client_host.set_busy_read(busy_poll);
        thread::scope(|scope| {
            scope.spawn(|| echo(listener.accept().unwrap().0));
            let client = connect(&lab.client, &client_host, at(&lab.server, 7)).unwrap();
            client.set_nodelay(true).unwrap();
            converse(client);
        });
    }
    let refused = connect(&lab.client, &client_host, at(&lab.server, 9)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let itself = connect(&lab.client, &client_host, at(&lab.client, 9)).unwrap_err();
    assert_eq!(itself.kind(), ErrorKind::Unsupported, "{itself}");
}

#[test]
fn two_of_our_hosts_talk_over_one_wire() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let (one, two) = (host(&lab.client), host(&lab.server));
    let listener = listen(&lab.server, &two, "10.77.0.2:7").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| echo(listener.accept().unwrap().0));
        converse(connect(&lab.client, &one, at(&lab.server, 7)).unwrap());
    });
}

/// No TCP adds IP options by itself; a program may ask for them.
#[test]
fn segments_in_packets_with_options_are_taken() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let mut addresses = vec![at(&lab.server, 7)];
    addresses.extend(lab.server.ipv6().map(|ip| SocketAddr::from((ip, 7))));
    for to in addresses {
        let listener = listen(&lab.server, &server_host, &to.to_string()).unwrap();
        let client = kernel_connect(&lab.client, to).unwrap();
        let server = listener.accept().unwrap().0;
        add_options(&client, to.ip());
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| echo(server));
            converse(client);
        });
    }
}

/// As COMPLIANCE.md says: the kernel reassembles the fragments, and knows of no connection.
#[test]
fn a_segment_in_fragments_ends_the_connection() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let far = Namespace::new().unwrap();
    ip(&lab.server, &format!("link add far type veth peer name near netns {}", far.path()));
    ip(&lab.server, "addr add 10.88.0.1/24 dev far");
    ip(&lab.server, "link set far up");
    ip(&far, "addr add 10.88.0.2/24 dev near");
    ip(&far, "link set near up");
    ip(&far, "route add default via 10.88.0.1");
    ip(&lab.client, &format!("route add 10.88.0.0/24 via {}", lab.server.ipv4()));
    // The link to us has a small MTU, and the sender allows fragments.
    ip(&lab.server, &format!("link set {} mtu 600", lab.server.interface()));
    let set = |on: &Namespace, name: &str| {
        on.enter(|| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), "1")).unwrap().unwrap();
    };
    set(&lab.server, "ip_forward");
    set(&far, "ip_no_pmtu_disc");
    let listener = far.enter(|| KernelListener::bind("10.88.0.2:7")).unwrap().unwrap();
    let client_host = host(&lab.client);
    let mut client = connect(&lab.client, &client_host, "10.88.0.2:7".parse().unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    server.write_all(&[1; 400]).unwrap();
    client.read_exact(&mut [0; 400]).unwrap();
    server.write_all(&[2; 1000]).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_kernel_decides_who_gets_a_port() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let taken = kernel_listen(&lab.server, 7).unwrap();
    let error = listen(&lab.server, &server_host, "0.0.0.0:7").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(taken);
    let ours = once_free(|| listen(&lab.server, &server_host, "0.0.0.0:7"));
    // std sets SO_REUSEADDR; the bind must fail even so.
    let error = kernel_listen(&lab.server, 7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let error = listen(&lab.server, &server_host, "0.0.0.0:7").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(ours);
    drop(once_free(|| kernel_listen(&lab.server, 7)));
}

#[test]
fn a_server_restarts_while_old_connections_are_in_time_wait() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    for _ in 0..3 {
        let listener = once_free(|| listen(&lab.server, &server_host, "0.0.0.0:7"));
        let mut client = kernel_connect(&lab.client, at(&lab.server, 7)).unwrap();
        drop(listener.accept().unwrap());
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the server closes first");
    }
    // The connections in TIME_WAIT keep the port from the kernel.
    let error = kernel_listen(&lab.server, 7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[test]
fn many_short_connections_take_few_ports() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    short_connections(&lab, at(&lab.server, 7), 1_000);
    let Some(address) = lab.server.ipv6() else {
        return needs::skipped(module_path!(), "IPv6");
    };
    short_connections(&lab, (address, 7).into(), 300);
}

/// Connects `count` times to a kernel server at `to`, which sends a byte and closes.
fn short_connections(lab: &Lab, to: SocketAddr, count: usize) {
    let client_host = host(&lab.client);
    let listener = lab.server.enter(|| KernelListener::bind(to)).unwrap().unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut ports = HashSet::new();
    let mut last = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming().take(count) {
                stream.unwrap().write_all(b"x").unwrap();
            }
        });
        let before = descriptors();
        for n in 0..count {
            let mut client = connect(&lab.client, &client_host, to).unwrap();
            let port = client.local_addr().unwrap().port();
            assert!(!last.contains(&port), "a port is not used again at once");
            last.push(port);
            if n >= 100 {
                last.remove(0);
            }
            ports.insert(port);
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            assert_eq!(all, b"x");
        }
        assert!(descriptors() < before + 200);
    });
    let counters = client_host.counters();
    let tcp = counters.iter().filter(|(name, count)| name.starts_with("Tcp") && *count > 0);
    assert!(ports.len() < 200, "{} ports, {:?}", ports.len(), tcp.collect::<Vec<_>>());
}

#[test]
fn icmp_errors_of_routers_fail_a_connect() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let client_host = host(&lab.client);
    ip(&lab.client, &format!("route add 10.88.0.0/16 via {}", lab.server.ipv4()));
    let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
    assert!(lab.server.command("sh").args(["-c", forward]).status().unwrap().success());
    ip(&lab.server, "route add unreachable 10.88.1.0/24");
    ip(&lab.server, "route add prohibit 10.88.2.0/24");
    let errno = |to: &str| {
        let error = connect(&lab.client, &client_host, to.parse().unwrap()).unwrap_err();
        error.raw_os_error()
    };
    assert_eq!(errno("10.88.1.1:9"), Some(libc::EHOSTUNREACH));
    assert_eq!(errno("10.88.2.1:9"), Some(libc::EHOSTUNREACH));
    assert_eq!(errno("10.99.0.1:9"), Some(libc::ENETUNREACH));
}

#[test]
fn the_kernels_own_connections_work_beside_ours() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server_host = host(&lab.server);
    let ours = listen(&lab.server, &server_host, "0.0.0.0:7").unwrap();
    let theirs = kernel_listen(&lab.server, 8).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| echo(ours.accept().unwrap().0));
        scope.spawn(|| echo(theirs.accept().unwrap().0));
        let other = kernel_connect(&lab.client, at(&lab.server, 8)).unwrap();
        scope.spawn(move || (0..5).for_each(|_| converse(other.try_clone().unwrap())));
        converse(kernel_connect(&lab.client, at(&lab.server, 7)).unwrap());
    });
    // After our host is gone the interface works as before.
    let sleeper = kernel_connect(&lab.client, at(&lab.server, 7)).unwrap();
    sleeper.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    drop((ours, server_host));
    let again = kernel_listen(&lab.server, 7).unwrap();
    let _client = kernel_connect(&lab.client, at(&lab.server, 7)).unwrap();
    again.accept().unwrap();
}
