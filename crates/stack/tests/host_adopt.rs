//! Our sockets made of kernel sockets: packets that had reached the kernel socket are not lost, packets over our queues
//! are ours, and packets that come another way are delivered or accepted too.

mod xdp_support;

use busypoll_lab::{Lab, LabHost, needs_root};
use busypoll_stack::{
    Accepted, Epoll, Events, Host, PollFd, ReceiveFlags, TcpListener, TcpStream, UdpSocket,
    nic::xdp::Xdp, poll,
};
use std::{
    fs,
    io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write},
    net::{
        Ipv4Addr, SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream,
        UdpSocket as KernelSocket,
    },
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    ptr,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};
use xdp_support::add_options;

fn host(on: &LabHost) -> Host {
    on.enter(|| Host::builder().shared_interface(Xdp::open(on.interface()).unwrap()).build())
        .unwrap()
        .unwrap()
}

fn any(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

fn kernel_socket(on: &LabHost, address: SocketAddr) -> KernelSocket {
    let socket = on.enter(|| KernelSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

fn adopt(on: &LabHost, host: &Host, kernel: &KernelSocket) -> UdpSocket {
    let socket = on.enter(|| UdpSocket::adopt(host, kernel)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[test]
fn an_adopted_datagram_socket_continues_the_kernel_socket() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let kernel = kernel_socket(&lab.server, any(7));
    let client = kernel_socket(&lab.client, any(0));
    let to = SocketAddr::from((lab.server.ipv4(), 7));
    client.send_to(b"early", to).unwrap();
    let ours = host(&lab.server);
    let server = adopt(&lab.server, &ours, &kernel);
    let (mut a, mut b) = ([0; 3], [0; 8]);
    let mut pieces = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    let early = server.recv_message(&mut pieces, ReceiveFlags::default()).unwrap();
    assert_eq!((early.copied, early.len, early.to), (5, 5, to));
    assert_eq!((&a, &b[..2]), (b"ear", &b"ly"[..]));
    // From now on the datagrams come over our queue.
    client.send_to(b"later", to).unwrap();
    let peek = ReceiveFlags { peek: true, dont_wait: false };
    let mut short = [0; 2];
    let seen = server.recv_message(&mut [IoSliceMut::new(&mut short)], peek).unwrap();
    assert_eq!((seen.copied, seen.len), (2, 5));
    let dont_wait = ReceiveFlags { peek: false, dont_wait: true };
    let seen = server.recv_message(&mut [IoSliceMut::new(&mut b)], dont_wait).unwrap();
    assert!(seen.napi.is_some());
    let empty = server.recv_message(&mut [IoSliceMut::new(&mut b)], dont_wait).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    let answer = [IoSlice::new(b"an"), IoSlice::new(b"swer")];
    assert_eq!(server.send_message(&answer, Some(seen.from), false).unwrap(), 6);
    let (len, from) = client.recv_from(&mut b).unwrap();
    assert_eq!((&b[..len], from), (&b"answer"[..], to));
    // Too long for our queue: it is sent through the kernel.
    let long = vec![7; 5_000];
    let pieces = [IoSlice::new(&long[..10]), IoSlice::new(&long[10..])];
    server.send_message(&pieces, Some(seen.from), true).unwrap();
    let mut room = vec![0; 6_000];
    assert_eq!(client.recv(&mut room).unwrap(), 5_000);
    assert!(room[..5_000] == long);
    // After our socket is closed, the kernel's works as before.
    drop((server, ours));
    client.send_to(b"last", to).unwrap();
    assert_eq!(kernel.recv(&mut room).unwrap(), 4);
}

#[test]
fn an_adopted_datagram_socket_stays_connected() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server = kernel_socket(&lab.server, any(7));
    let kernel = kernel_socket(&lab.client, any(0));
    kernel.connect((lab.server.ipv4(), 7)).unwrap();
    let ours = host(&lab.client);
    let client = adopt(&lab.client, &ours, &kernel);
    assert_eq!(client.local_addr().unwrap(), kernel.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), kernel.peer_addr().unwrap());
    client.send(b"hello").unwrap();
    let mut buffer = [0; 8];
    let (len, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((len, from), (5, client.local_addr().unwrap()));
    server.send_to(b"you", from).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 3);
    assert_eq!(client.stats().kernel, 0);
}

#[test]
fn a_listener_accepts_its_own_and_its_companions_connections() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let kernel = lab.server.enter(|| KernelListener::bind(any(7))).unwrap().unwrap();
    let early = lab.server.enter(|| KernelStream::connect("127.0.0.1:7")).unwrap().unwrap();
    let ours = host(&lab.server);
    let listener = lab
        .server
        .enter(|| TcpListener::with_companion(&ours, &kernel, 16, false))
        .unwrap()
        .unwrap();
    let peer_of = |accepted: Accepted| match accepted {
        Accepted::Ours(stream, remote) => (Some(stream), remote),
        Accepted::Kernel(stream, _) => (None, stream.peer_addr().unwrap()),
    };
    assert_eq!(peer_of(listener.accept_any(false).unwrap()).1, early.local_addr().unwrap());
    let empty = listener.accept_any(true).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    for round in 0..20 {
        let to = SocketAddr::from((lab.server.ipv4(), 7));
        let far = lab.client.enter(|| KernelStream::connect(to)).unwrap().unwrap();
        let near = lab.server.enter(|| KernelStream::connect("127.0.0.1:7")).unwrap().unwrap();
        let (first, second) = (
            peer_of(listener.accept_any(false).unwrap()),
            peer_of(listener.accept_any(false).unwrap()),
        );
        let (far_end, near_end) = if first.0.is_some() { (first, second) } else { (second, first) };
        assert_eq!(near_end.1, near.local_addr().unwrap(), "round {round}");
        assert_eq!(far_end.1, far.local_addr().unwrap(), "round {round}");
        let mut stream = far_end.0.unwrap();
        stream.write_all(b"welcome").unwrap();
        let mut buffer = [0; 7];
        (&far).read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"welcome");
    }
}

/// Connects over loopback at each message, and waits until the connection is closed.
struct Clients {
    connect: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Clients {
    fn start(on: &LabHost) -> Clients {
        let (connect, wanted) = mpsc::channel();
        let thread = on.enter(|| {
            thread::spawn(move || {
                while wanted.recv().is_ok() {
                    let mut stream = KernelStream::connect("127.0.0.1:7").unwrap();
                    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                }
            })
        });
        Clients { connect, thread: thread.unwrap() }
    }

    /// One connection, accepted and closed after a wait of this thread in `epoll`.
    fn one(&self, epoll: &Epoll, listener: &TcpListener) {
        self.connect.send(()).unwrap();
        accept_one(epoll, listener);
    }

    fn end(self) {
        drop(self.connect);
        self.thread.join().unwrap();
    }
}

/// Waits in `epoll` and accepts, until there was a connection.
fn accept_one(epoll: &Epoll, listener: &TcpListener) {
    let mut events = Vec::new();
    loop {
        assert_eq!(epoll.wait(&mut events, 8, None).unwrap(), 1);
        let accepted = listener.accept_of_kernel(|companion| {
            // SAFETY: a plain system call.
            let fd = unsafe {
                libc::accept4(companion.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), 0)
            };
            match fd {
                // SAFETY: just made.
                0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
                _ => Err(io::Error::last_os_error()),
            }
        });
        match accepted.unwrap() {
            Ok(_) => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// How many times the threads in this network namespace that wait for companions have slept. Other tests' are in others.
fn sleeps_of_kernel_threads(namespace: &Path) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_it = |task: &PathBuf| {
        fs::read_link(task.join("ns/net")).is_ok_and(|its| its == namespace)
            && fs::read_to_string(task.join("comm"))
                .is_ok_and(|name| name.trim() == "busypoll/kernel")
    };
    let sleeps = |task: PathBuf| -> u64 {
        let status = fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    };
    tasks.filter(is_it).map(sleeps).sum()
}

/// While clients come by the kernel, a thread in an epoll wait sees them without another thread; and all other ways to
/// wait see them, too.
#[test]
fn waits_poll_a_companion_that_clients_come_to() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let kernel = lab.server.enter(|| KernelListener::bind(any(7))).unwrap().unwrap();
    kernel.set_nonblocking(true).unwrap();
    let ours = host(&lab.server);
    let adopt = || TcpListener::with_companion(&ours, &kernel, 16, false).unwrap();
    let clients = Clients::start(&lab.server);
    let namespace =
        lab.server.enter(|| fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
    let has_slept = |_| {
        thread::sleep(Duration::from_millis(10));
        sleeps_of_kernel_threads(&namespace) > 0
    };
    assert!((0..1000).any(has_slept), "the thread is there");
    for way in ["epoll", "second epoll", "poll", "outer epoll", "accept", "outer first"] {
        let listener = lab.server.enter(adopt).unwrap();
        listener.set_nonblocking(way != "accept").unwrap();
        let epoll = Epoll::new(&ours);
        epoll.add(&listener, Events::READABLE, 1).unwrap();
        let outer = Epoll::new(&ours);
        if way == "outer first" {
            outer.add_source(&epoll.as_source(), 0, Events::READABLE, 2).unwrap();
        }
        (0..40).for_each(|_| clients.one(&epoll, &listener));
        let before = sleeps_of_kernel_threads(&namespace);
        (0..200).for_each(|_| clients.one(&epoll, &listener));
        let slept = sleeps_of_kernel_threads(&namespace) - before;
        assert_eq!(slept < 50, way != "outer first", "{way}: {slept}");
        for _ in 0..3 {
            let mut events = Vec::new();
            thread::scope(|scope| {
                // Is asleep by then, or finds it at once.
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(20));
                    clients.connect.send(()).unwrap();
                });
                match way {
                    "second epoll" => {
                        let second = Epoll::new(&ours);
                        second.add(&listener, Events::READABLE, 1).unwrap();
                        assert_eq!(second.wait(&mut events, 8, None).unwrap(), 1);
                    }
                    "poll" => {
                        let (events, revents) = (Events::READABLE, Events::default());
                        let mut fds = [PollFd { socket: &listener, events, revents }];
                        assert_eq!(poll(&mut fds, None).unwrap(), 1);
                    }
                    "outer epoll" | "outer first" => {
                        // A member already, or from now on.
                        let _ = outer.add_source(&epoll.as_source(), 0, Events::READABLE, 2);
                        assert_eq!(outer.wait(&mut events, 8, None).unwrap(), 1);
                    }
                    "accept" => {
                        drop(listener.accept_any(false).unwrap());
                        return;
                    }
                    _ => {}
                }
                accept_one(&epoll, &listener);
            });
        }
    }
    clients.end();
}

fn converse(mut near: impl Read + Write, mut far: &KernelStream) {
    let mut room = [0; 5_000];
    near.write_all(&[7; 5_000]).unwrap();
    far.read_exact(&mut room).unwrap();
    assert_eq!(room, [7; 5_000]);
    far.write_all(&[9; 5_000]).unwrap();
    near.read_exact(&mut room).unwrap();
    assert_eq!(room, [9; 5_000]);
}

/// Those that were accepted before stay with the kernel. One that waited is taken over when it is accepted.
#[test]
fn connections_made_before_adoption_go_on() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let kernel = lab.server.enter(|| KernelListener::bind("[::]:7")).unwrap().unwrap();
    let mut addresses = vec![SocketAddr::from((lab.server.ipv4(), 7))];
    addresses.extend(lab.server.ipv6().map(|ip| SocketAddr::from((ip, 7))));
    let connect =
        |to: &SocketAddr| lab.client.enter(|| KernelStream::connect(to)).unwrap().unwrap();
    // One of the connections is accepted before, one is not.
    for to in &addresses {
        let (early, waiting) = (connect(to), connect(to));
        let (accepted, _) = kernel.accept().unwrap();
        let ours = host(&lab.server);
        let listener = lab
            .server
            .enter(|| TcpListener::with_companion(&ours, &kernel, 16, false))
            .unwrap()
            .unwrap();
        let Accepted::Ours(second, from) = listener.accept_any(false).unwrap() else {
            panic!("a connection that waited is taken over")
        };
        assert_eq!(from, waiting.local_addr().unwrap());
        accepted.set_nonblocking(false).unwrap();
        accepted.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        second.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for far in [&early, &waiting] {
            far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        let talk = || {
            converse(&accepted, &early);
            converse(&second, &waiting);
        };
        talk();
        add_options(&early, to.ip());
        add_options(&waiting, to.ip());
        talk();
        // A connection made now is ours.
        let late = connect(to);
        let Accepted::Ours(mut stream, from) = listener.accept_any(false).unwrap() else {
            panic!("the connection is ours")
        };
        assert_eq!(from, late.local_addr().unwrap());
        stream.write_all(b"x").unwrap();
        assert_eq!((&late).read(&mut [0; 8]).unwrap(), 1);
    }
}

/// A kernel socket that is bound to the interface takes what has come over our queues, too.
#[test]
fn a_socket_bound_to_the_interface_gets_back_what_was_not_read() {
    needs_root!();
    for version in [4, 6] {
        let lab = Lab::builder().build().unwrap();
        let at = |host: &LabHost| match version {
            4 => SocketAddr::from((host.ipv4(), 7)),
            _ => SocketAddr::from((host.ipv6().unwrap(), 7)),
        };
        let [kernel, client] = [&lab.server, &lab.client].map(|on| kernel_socket(on, at(on)));
        let name = lab.server.interface();
        // SAFETY: a plain system call.
        let bound = unsafe {
            let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
            let (value, len) = (name.as_ptr().cast(), name.len() as libc::socklen_t);
            libc::setsockopt(kernel.as_raw_fd(), level, option, value, len)
        };
        assert_eq!(bound, 0);
        let ours = host(&lab.server);
        let server = adopt(&lab.server, &ours, &kernel);
        client.send_to(b"unread", at(&lab.server)).unwrap();
        let peek = ReceiveFlags { peek: true, dont_wait: false };
        let mut bytes = [0; 8];
        server.recv_message(&mut [IoSliceMut::new(&mut bytes)], peek).unwrap();
        server.leave(libc::ECONNABORTED);
        assert_eq!(kernel.recv_from(&mut bytes).unwrap(), (6, at(&lab.client)), "IPv{version}");
    }
}

/// As by a server that forks for each connection.
#[test]
fn a_connection_taken_over_is_handed_back_at_once() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let kernel = lab.server.enter(|| KernelListener::bind(any(7))).unwrap().unwrap();
    let to = SocketAddr::from((lab.server.ipv4(), 7));
    let far = lab.client.enter(|| KernelStream::connect(to)).unwrap().unwrap();
    let ours = host(&lab.server);
    let listen = || TcpListener::with_companion(&ours, &kernel, 16, false);
    let listener = lab.server.enter(listen).unwrap().unwrap();
    let Accepted::Ours(stream, _) = listener.accept_any(false).unwrap() else {
        panic!("a connection that waited is taken over")
    };
    let socket = || {
        // SAFETY: a plain system call; the descriptor is nobody else's.
        unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) }
    };
    let near = lab.server.enter(socket).unwrap();
    stream
        .hand_over(near.as_fd(), true, libc::ECONNABORTED, busypoll_stack::repair, None, || ())
        .unwrap();
    let near = KernelStream::from(near);
    for end in [&near, &far] {
        end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    converse(&near, &far);
}

/// The peer's FIN comes while the host is dropped; the next host then has its queues.
#[test]
fn the_next_host_sees_nothing_of_the_last_hosts_connections() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let kernel = lab.server.enter(|| KernelListener::bind(any(7))).unwrap().unwrap();
    let to = SocketAddr::from((lab.server.ipv4(), 7));
    for round in 0..50 {
        let ours = host(&lab.server);
        let listen = || TcpListener::with_companion(&ours, &kernel, 16, false);
        let listener = lab.server.enter(listen).unwrap().unwrap();
        let far = lab.client.enter(|| KernelStream::connect(to)).unwrap().unwrap();
        let Accepted::Ours(stream, from) = listener.accept_any(false).unwrap() else {
            panic!("round {round}: the connection is ours")
        };
        assert_eq!(from, far.local_addr().unwrap());
        drop((stream, far, listener, ours));
    }
}

#[test]
fn a_connection_of_an_adopted_socket_keeps_the_bound_address() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server = lab.server.enter(|| KernelListener::bind(any(7))).unwrap().unwrap();
    let kernel = lab.client.enter(|| bound_stream(any(0))).unwrap();
    let port = kernel.local_addr().unwrap().port();
    let ours = host(&lab.client);
    let stream = lab.client.enter(|| TcpStream::adopt(&ours, &kernel)).unwrap().unwrap();
    let to = SocketAddr::from((lab.server.ipv4(), 7));
    lab.client.enter(|| stream.connect_to(to)).unwrap().unwrap();
    let (peer, from) = server.accept().unwrap();
    assert_eq!(from, SocketAddr::from((lab.client.ipv4(), port)));
    assert_eq!(stream.local_addr().unwrap(), from);
    (&stream).write_all(b"x").unwrap();
    assert_eq!((&peer).read(&mut [0; 8]).unwrap(), 1);
}

/// A kernel TCP socket that is only bound.
fn bound_stream(local: SocketAddr) -> KernelStream {
    let socket = stream_socket();
    let SocketAddr::V4(local) = local else { panic!("IPv4 only") };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: local.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(local.ip().octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: a valid sockaddr_in of that length.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    assert_eq!(bound, 0);
    socket
}

fn stream_socket() -> KernelStream {
    use std::os::fd::FromRawFd;
    // SAFETY: a fresh descriptor with no other owner.
    unsafe {
        KernelStream::from_raw_fd(libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
        ))
    }
}
