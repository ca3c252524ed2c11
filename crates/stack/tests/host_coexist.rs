//! Our host on both interfaces of a router: traffic that is not for its sockets passes through the router's kernel, its
//! firewall and its forwarding as if our host did not exist.

use busypoll_lab::{Lab, LabHost, Namespace, needs, needs_root};
use busypoll_stack::{Host, UdpSocket, nic::xdp::Xdp};
use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket as KernelSocket},
    process::Command,
    sync::{
        RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// The port of our socket on the router, and of a kernel socket on the host behind it.
const OURS: u16 = 7;
const BEYOND: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const TIMEOUT: Duration = Duration::from_secs(20);

/// client 10.77.0.1 -- 10.77.0.2 router 10.88.0.1 -- 10.88.0.2 far. The router's kernel forwards.
struct Network {
    client: LabHost,
    router: LabHost,
    far: Namespace,
}

fn must(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ip(on: &Namespace, arguments: &str) {
    must(on.command("ip").args(arguments.split_whitespace()));
}

impl Network {
    fn new() -> Network {
        let Lab { client, server: router } = Lab::builder().build().unwrap();
        let far = Namespace::new().unwrap();
        ip(&router, &format!("link add far type veth peer name near netns {}", far.path()));
        ip(&router, "addr add 10.88.0.1/24 dev far");
        ip(&router, "link set far up");
        ip(&far, "addr add 10.88.0.2/24 dev near");
        ip(&far, "link set near up");
        ip(&far, "route add default via 10.88.0.1");
        ip(&client, &format!("route add 10.88.0.0/24 via {}", router.ipv4()));
        let forwarding = "/proc/sys/net/ipv4/ip_forward";
        router.enter(|| fs::write(forwarding, "1")).unwrap().unwrap();
        // A veth holds 256 packets and drops the rest. Where no packet may be lost, a window must be smaller than that.
        for end in [&*client, &*router, &far] {
            let window = || fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 32768 32768");
            end.enter(window).unwrap().unwrap();
        }
        Network { client, router, far }
    }

    /// Our host on both interfaces of the router, and its socket.
    fn our_socket(&self) -> (Host, UdpSocket) {
        let make = || {
            let (one, two) = (Xdp::open(self.router.interface())?, Xdp::open("far")?);
            let host = Host::builder().shared_interface(one).shared_interface(two).build()?;
            let socket = UdpSocket::bind(&host, ("0.0.0.0", OURS))?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            socket.set_busy_poll(50)?;
            Ok::<_, std::io::Error>((host, socket))
        };
        self.router.enter(make).unwrap().unwrap()
    }
}

fn kernel_socket(on: &Namespace, port: u16) -> KernelSocket {
    let bind = || KernelSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    let socket = on.enter(bind).unwrap().unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// A client of our socket until `stop`: numbered requests, each answer checked. Returns their number. No request is in
/// flight while another thread holds the write lock of `pause`.
fn our_traffic(from: &Namespace, to: SocketAddr, pause: &RwLock<()>, stop: &AtomicBool) -> u64 {
    let client = kernel_socket(from, 0);
    let mut done = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let _going = pause.read().unwrap();
        client.send_to(&done.to_be_bytes(), to).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(client.recv_from(&mut buffer).unwrap(), (8, to));
        assert_eq!(buffer[..8], done.to_be_bytes());
        done += 1;
    }
    done
}

/// Echoes until `stop`; returns the number.
fn our_echo(socket: &UdpSocket, stop: &AtomicBool) -> u64 {
    let (mut buffer, mut echoed) = ([0; 16], 0);
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((len, from)) => {
                socket.send_to(&buffer[..len], from).unwrap();
                echoed += 1;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    echoed
}

/// Sends random bytes and returns their hash.
fn send_noise(mut stream: TcpStream, bytes: usize, seed: u64) -> u64 {
    let (mut hash, mut state) = (DefaultHasher::new(), seed | 1);
    let mut chunk = vec![0; 1 << 14];
    for _ in 0..bytes / chunk.len() {
        for word in chunk.chunks_exact_mut(8) {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        hash.write(&chunk);
        stream.write_all(&chunk).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    hash.finish()
}

fn hash_of(mut stream: TcpStream) -> u64 {
    let (mut hash, mut chunk) = (DefaultHasher::new(), vec![0; 1 << 14]);
    loop {
        // Whole chunks, as they were hashed when sent.
        let mut have = 0;
        while have < chunk.len() {
            match stream.read(&mut chunk[have..]).unwrap() {
                0 if have == 0 => return hash.finish(),
                0 => panic!("the stream was cut short"),
                n => have += n,
            }
        }
        hash.write(&chunk);
    }
}

/// A TCP connection between two kernels, with random bytes in both directions at once.
fn tcp(from: &Namespace, to: &Namespace, address: Ipv4Addr, port: u16, bytes: usize) {
    let listener = to.enter(|| TcpListener::bind((address, port))).unwrap().unwrap();
    let near = from.enter(|| TcpStream::connect((address, port))).unwrap().unwrap();
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    thread::scope(|scope| {
        for (seed, one, two) in [(1, &near, &far), (2, &far, &near)] {
            let (one, two) = (one.try_clone().unwrap(), two.try_clone().unwrap());
            let sent = scope.spawn(move || send_noise(one, bytes, seed));
            let received = scope.spawn(move || hash_of(two));
            scope.spawn(move || assert_eq!(sent.join().unwrap(), received.join().unwrap()));
        }
    });
}

/// Requests and responses between two kernels, every request answered.
fn udp(from: &Namespace, to: &Namespace, address: Ipv4Addr, port: u16) {
    let (client, server) = (kernel_socket(from, 0), kernel_socket(to, port));
    let mut buffer = [0; 4096];
    for n in 0..500usize {
        // Up to three fragments.
        let request = vec![n as u8; n * 7];
        client.send_to(&request, (address, port)).unwrap();
        let (len, peer) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&buffer[..len], peer).unwrap();
        let len = client.recv(&mut buffer).unwrap();
        assert!(buffer[..len] == request);
    }
}

fn ping(from: &Namespace, address: Ipv4Addr) {
    for size in ["56", "4000"] {
        let arguments = ["-c5", "-i0.05", "-W10", "-q", "-s", size, &address.to_string()];
        let said = must(from.command("ping").args(arguments));
        assert!(said.contains(" 0% packet loss"), "{said}");
    }
}

#[test]
fn traffic_of_other_hosts_passes_undisturbed() {
    needs_root!();
    needs!(program "ip", program "ping");
    let network = Network::new();
    let Network { client, router, far } = &network;
    let (host, socket) = network.our_socket();
    let (stop_clients, stop_echo) = (AtomicBool::new(false), AtomicBool::new(false));
    let pause = RwLock::new(());
    thread::scope(|scope| {
        let ours =
            [(&**client, router.ipv4()), (far, Ipv4Addr::new(10, 88, 0, 1))].map(|(from, to)| {
                let (pause, stop) = (&pause, &stop_clients);
                scope.spawn(move || our_traffic(from, (to, OURS).into(), pause, stop))
            });
        let echo = scope.spawn(|| our_echo(&socket, &stop_echo));
        // To the router's own kernel, and through it; the second also to our port number.
        let datagrams = [
            scope.spawn(|| udp(client, router, router.ipv4(), 8)),
            scope.spawn(|| udp(client, far, BEYOND, OURS)),
            scope.spawn(|| udp(far, client, client.ipv4(), OURS)),
        ];
        let others = [
            scope.spawn(|| tcp(client, router, router.ipv4(), 80, 32 << 20)),
            scope.spawn(|| tcp(client, far, BEYOND, OURS, 32 << 20)),
            scope.spawn(|| {
                ping(client, router.ipv4());
                ping(client, BEYOND);
                datagrams.into_iter().for_each(|udp| udp.join().unwrap());
                // All neighbour entries are deleted: ARP resolves them again. A kernel whose new entry is deleted while
                // it waits for the answer drops the datagram that waits, too. So the clients that send requests pause
                // meanwhile. Our host only answers, and loses nothing.
                ip(router, "neigh flush all");
                let resting = pause.write().unwrap();
                for namespace in [&**client, far] {
                    ip(namespace, "neigh flush all");
                }
                drop(resting);
                ping(far, Ipv4Addr::new(10, 88, 0, 1));
                ping(far, client.ipv4());
                let known = must(client.command("ip").args(["neigh", "show", "10.77.0.2"]));
                assert!(known.contains("lladdr"), "{known}");
            }),
        ];
        // A failure ends the other threads, too.
        let others = others.map(thread::ScopedJoinHandle::join);
        stop_clients.store(true, Ordering::Relaxed);
        let ours = ours.map(thread::ScopedJoinHandle::join);
        stop_echo.store(true, Ordering::Relaxed);
        let echoed = echo.join().unwrap();
        others.into_iter().for_each(Result::unwrap);
        let asked: u64 = ours.into_iter().map(Result::unwrap).sum();
        assert_eq!(asked, echoed);
        let stats = socket.stats();
        assert_eq!((stats.kernel, stats.drops), (0, 0), "{stats:?}");
        // Only datagrams for our socket came to us.
        let counted = host.counters();
        let of = |name| counted.iter().find(|(known, _)| *known == name).unwrap().1;
        assert_eq!(of("UdpInDatagrams"), echoed, "{counted:?}");
        assert_eq!((of("UdpNoPorts"), of("IpInAddrErrors")), (0, 0), "{counted:?}");
    });
}

fn packets(on: &Namespace, counter: &str) -> u64 {
    let said = must(on.command("nft").args(["list", "counter", "ip", "guard", counter]));
    let count = said.split_whitespace().skip_while(|word| *word != "packets").nth(1);
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

/// The router's rules count and drop as before, for its own ports and for forwarded packets. Only packets for our
/// socket skip them: the steering program redirects them before nftables sees them.
#[test]
fn firewall_rules_apply_to_all_but_our_packets() {
    needs_root!();
    needs!(program "ip", program "nft");
    let network = Network::new();
    let Network { client, router, far } = &network;
    let rules = "table ip guard {
        counter in_passed {}
        counter in_dropped {}
        counter on_passed {}
        counter on_dropped {}
        counter ours {}
        chain input {
            type filter hook input priority 0;
            udp dport 8 counter name in_passed accept
            udp dport 9 counter name in_dropped drop
            udp dport 7 counter name ours
        }
        chain forward {
            type filter hook forward priority 0;
            udp dport 7 counter name on_passed accept
            udp dport 9 counter name on_dropped drop
        }
    }";
    must(router.command("nft").arg(rules));
    let (host, socket) = network.our_socket();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let own = [8, 9].map(|port| kernel_socket(router, port));
    let beyond = [OURS, 9].map(|port| kernel_socket(far, port));
    let sender = kernel_socket(client, 0);
    let mut buffer = [0; 16];
    for n in 0..100u64 {
        let message = n.to_be_bytes();
        for (address, port) in [
            (router.ipv4(), 9),
            (router.ipv4(), 8),
            (BEYOND, 9),
            (BEYOND, OURS),
            (router.ipv4(), OURS),
        ] {
            sender.send_to(&message, (address, port)).unwrap();
        }
        assert_eq!(own[0].recv(&mut buffer).unwrap(), 8);
        assert_eq!(buffer[..8], message);
        assert_eq!(beyond[0].recv(&mut buffer).unwrap(), 8);
        assert_eq!(buffer[..8], message);
        assert_eq!(socket.recv(&mut buffer).unwrap(), 8);
        assert_eq!(buffer[..8], message);
    }
    let all = ["in_passed", "in_dropped", "on_passed", "on_dropped", "ours"];
    assert_eq!(all.map(|counter| packets(router, counter)), [100, 100, 100, 100, 0]);
    for blocked in [&own[1], &beyond[1]] {
        blocked.set_nonblocking(true).unwrap();
        assert_eq!(blocked.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    // Without our host all packets meet the rules.
    drop((socket, host));
    let kernel = kernel_socket(router, OURS);
    sender.send_to(b"kernel", (router.ipv4(), OURS)).unwrap();
    assert_eq!(kernel.recv(&mut buffer).unwrap(), 6);
    assert_eq!(packets(router, "ours"), 1);
}
