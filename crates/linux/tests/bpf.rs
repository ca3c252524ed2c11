//! The BPF programs on the running kernel: their reports about objects made here.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::bpf::deliveries::Found;
use busypoll_linux::bpf::files::{Files, Kind, OpenFile, Socket};
use busypoll_linux::bpf::follow::{Event, EventKind, Follow, Opener};
use busypoll_linux::bpf::napi::{Counter, Passes};
use busypoll_linux::bpf::threads::Threads;
use busypoll_linux::epoll::{self, EpollParams};
use busypoll_linux::{sockopt, stat};
use rustix::event::epoll as ep;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");

#[test]
fn the_committed_objects_are_what_clang_makes_of_the_sources() {
    needs!(program "clang", program "llvm-strip");
    let version = Command::new("clang").arg("--version").output().unwrap().stdout;
    let made = tempfile("objects");
    fs::create_dir_all(&made).unwrap();
    let built = Command::new(format!("{FOLDER}/build")).arg(&made).status().unwrap();
    assert!(built.success(), "bpf/build failed");
    for entry in fs::read_dir(&made).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let committed = fs::read(format!("{FOLDER}/{name}")).unwrap();
        // Another clang generates other code for the same program: it must only accept the source.
        if String::from_utf8_lossy(&version).contains("clang version 14.") {
            let same = fs::read(format!("{made}/{name}")).unwrap() == committed;
            assert!(same, "{name} is not what its source says: run crates/linux/bpf/build");
        }
    }
    fs::remove_dir_all(&made).unwrap();
}

fn tempfile(name: &str) -> String {
    format!("{}/busypoll-{}-{name}", std::env::temp_dir().display(), std::process::id())
}

fn mine(files: &[OpenFile], fd: i32) -> &OpenFile {
    let me = std::process::id();
    let found = files.iter().find(|f| f.pid == me && f.fd == fd);
    found.unwrap_or_else(|| panic!("fd {fd} is not listed"))
}

fn socket_of(files: &[OpenFile], fd: i32) -> &Socket {
    match &mine(files, fd).kind {
        Kind::Socket(socket) => socket,
        other => panic!("fd {fd} is {other:?}"),
    }
}

#[test]
fn sockets_and_epolls_are_listed_with_their_settings() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let (udp, tcp, accepted) = lab
        .server
        .enter(|| {
            let udp = UdpSocket::bind("10.77.0.2:700").unwrap();
            sockopt::set_busy_poll(&udp, 77).unwrap();
            sockopt::set_prefer_busy_poll(&udp, true).unwrap();
            sockopt::set_busy_poll_budget(&udp, 33).unwrap();
            let listener = TcpListener::bind("[::1]:701").unwrap();
            let tcp = TcpStream::connect("[::1]:701").unwrap();
            let mut accepted = listener.accept().unwrap().0;
            // For local packets the kernel stores the sender's CPU in the field of the NAPI id.
            accepted.write_all(b"x").unwrap();
            (&tcp).read_exact(&mut [0]).unwrap();
            (udp, tcp, accepted)
        })
        .unwrap();
    let epoll: OwnedFd = ep::create(ep::CreateFlags::CLOEXEC).unwrap();
    let params = EpollParams { busy_poll_usecs: 123, busy_poll_budget: 17, prefer_busy_poll: true };
    epoll::set_params(&epoll, params).unwrap();

    let files = Files::load().unwrap().of(Some(std::process::id())).unwrap();
    let told = socket_of(&files, udp.as_raw_fd());
    assert_eq!((told.busy_poll_usecs, told.busy_poll_budget), (77, 33));
    assert!(told.prefer_busy_poll);
    assert_eq!((told.napi, told.peer), (None, None));
    assert_eq!(told.local, Some(SocketAddr::from((Ipv4Addr::new(10, 77, 0, 2), 700))));
    assert_eq!(told.protocol_name, "UDP");
    let netns = fs::metadata(lab.server.path()).unwrap().ino();
    assert_eq!(u64::from(told.netns), netns);
    let inode = fs::read_link(format!("/proc/self/fd/{}", udp.as_raw_fd())).unwrap();
    assert_eq!(inode.to_str().unwrap(), format!("socket:[{}]", told.inode));

    let told = socket_of(&files, tcp.as_raw_fd());
    assert_eq!(told.local, tcp.local_addr().ok());
    assert_eq!(told.peer, tcp.peer_addr().ok());
    assert_eq!((told.state, told.protocol_name.as_str()), (1, "TCPv6"));
    assert_eq!(told.napi, None);
    let told = socket_of(&files, accepted.as_raw_fd());
    assert_eq!(told.local.unwrap().port(), 701);

    let copy = epoll.try_clone().unwrap();
    assert_eq!(mine(&files, epoll.as_raw_fd()).kind, Kind::Epoll { params, napi: None });
    let files = Files::load().unwrap().of(None).unwrap();
    assert!(files.iter().any(|f| f.pid != std::process::id()) || files.len() > 1);
    let (one, other) = (mine(&files, epoll.as_raw_fd()), mine(&files, copy.as_raw_fd()));
    assert_eq!(one.identity, other.identity);
}

#[test]
fn threads_are_listed_with_their_system_call_even_while_they_spin() {
    needs_root!();
    let (tell, told) = mpsc::channel();
    let asleep = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd = asleep.as_raw_fd();
    asleep.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let waker = asleep.try_clone().unwrap();
    let sleeper = thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        asleep.recv(&mut [0; 8]).unwrap();
    });
    let tid = told.recv().unwrap();
    let mut threads = Threads::load(Some(std::process::id())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let found = loop {
        let found = threads.now().unwrap().into_iter().find(|t| t.tid == tid).unwrap();
        if found.syscall.is_some_and(|s| s.number == libc::SYS_recvfrom) && !found.running {
            break found;
        }
        assert!(Instant::now() < deadline, "{found:?}");
    };
    assert_eq!(found.syscall.unwrap().args[0], fd as u64);
    assert_eq!(found.pid, std::process::id());
    assert_eq!(found.switches, stat::context_switches_of(tid).unwrap());
    waker.send_to(b"x", waker.local_addr().unwrap()).unwrap();
    sleeper.join().unwrap();
    let all = Threads::load(None).unwrap().now().unwrap();
    assert!(all.iter().any(|t| t.pid == 1 || t.pid != std::process::id()));
}

/// An echo on the server, `n` round trips from the client; both busy poll for `usecs`.
fn ping_pong(lab: &Lab, usecs: u32, n: u32) {
    let bind = |host: &LabHost, ip| {
        host.enter(|| {
            let socket = UdpSocket::bind((ip, 702)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            sockopt::set_busy_poll(&socket, usecs).unwrap();
            socket
        })
        .unwrap()
    };
    let server = bind(&lab.server, lab.server.ipv4());
    let client = bind(&lab.client, lab.client.ipv4());
    server.connect((lab.client.ipv4(), 702)).unwrap();
    client.connect((lab.server.ipv4(), 702)).unwrap();
    let echo = lab.server.spawn_thread(lab.server.cpu(), move || {
        for _ in 0..n {
            let mut buffer = [0; 64];
            let len = server.recv(&mut buffer).unwrap();
            server.send(&buffer[..len]).unwrap();
        }
    });
    let ping = lab.client.spawn_thread(lab.client.cpu(), move || {
        for _ in 0..n {
            client.send(b"ping").unwrap();
            client.recv(&mut [0; 64]).unwrap();
        }
    });
    ping.unwrap().join().unwrap();
    echo.unwrap().join().unwrap();
}

fn counted(lab: &Lab, usecs: u32, n: u32) -> (Passes, Vec<Passes>) {
    let mut counter = Counter::start().unwrap();
    ping_pong(lab, usecs, n);
    let netns = fs::metadata(lab.server.path()).unwrap().ino() as u32;
    let rows: Vec<Passes> = counter.read().unwrap();
    let mut sum = Passes::default();
    let of_server = |p: &&Passes| p.device.as_ref().is_some_and(|d| d.netns == netns);
    for row in rows.iter().filter(of_server) {
        assert_eq!(row.device.as_ref().unwrap().name, lab.server.interface());
        assert_eq!(row.device.as_ref().unwrap().ifindex, lab.server.ifindex());
        sum.add(row);
    }
    (sum, rows)
}

#[test]
fn passes_are_counted_by_kind_with_and_without_busy_polling() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let (off, rows) = counted(&lab, 0, 2000);
    assert_eq!((off.spin_hits, off.spin_empty, off.rearm), (0, 0, 0), "{rows:#?}");
    assert!(off.softirq_packets >= 2000, "{rows:#?}");
    assert!(off.wakeups >= 1000, "{rows:#?}");
    // 20 ms: even with other work on the machine most packets come while the receiver polls.
    let (on, rows) = counted(&lab, 20_000, 2000);
    assert!(on.spin_packets > on.packets() / 2, "{rows:#?}");
    assert!(on.spin_empty > 0 && on.wakeups < on.packets() / 2, "{rows:#?}");
    let me = Some(std::process::id());
    let spun = |p: &Passes| p.pid == me && p.tid.is_some() && p.spin_hits > 0 && !p.cpus.is_empty();
    assert!(rows.iter().any(spun), "{rows:#?}");
}

/// Compared with other counters of the kernel.
#[test]
fn each_packet_of_a_socket_is_counted_by_how_it_was_found() {
    needs_root!();
    for (gro, usecs) in [(true, 0), (true, 20_000), (false, 20_000)] {
        let lab = Lab::builder().gro(gro).tso(!gro).build().unwrap();
        let bind = |host: &LabHost| {
            host.enter(|| {
                let socket = UdpSocket::bind((host.ipv4(), 704)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                sockopt::set_busy_poll(&socket, usecs).unwrap();
                socket
            })
            .unwrap()
        };
        let (server, client) = (bind(&lab.server), bind(&lab.client));
        server.connect((lab.client.ipv4(), 704)).unwrap();
        client.connect((lab.server.ipv4(), 704)).unwrap();
        let cookie = busypoll_linux::socket::cookie(&server).unwrap();
        let polled = || lab.server.enter(|| stat::busy_poll_rx_packets().unwrap()).unwrap();
        let before = polled();
        let mut counter = Counter::start().unwrap();
        let echo = lab.server.spawn_thread(lab.server.cpu(), move || {
            for _ in 0..2000 {
                let mut buffer = [0; 64];
                let len = server.recv(&mut buffer).unwrap();
                server.send(&buffer[..len]).unwrap();
            }
            rustix::thread::gettid().as_raw_nonzero().get() as u32
        });
        for _ in 0..2000 {
            client.send(b"ping").unwrap();
            client.recv(&mut [0; 64]).unwrap();
        }
        let tid = echo.unwrap().join().unwrap();
        let told = counter.deliveries().unwrap();
        let polled = polled() - before;
        let rows: Vec<_> = told.rows.iter().filter(|row| row.cookie == cookie).collect();
        let sum = |by: &dyn Fn(Found) -> bool| -> u64 {
            rows.iter().filter(|row| by(row.found)).map(|row| row.packets).sum()
        };
        assert_eq!(sum(&|_| true), 2000, "{rows:#?}");
        assert_eq!(told.lost, 0);
        assert!(rows.iter().all(|row| row.local_port == 704 && row.napi.is_some() == gro));
        let spun = sum(&|found| matches!(found, Found::BusyPoll { tid: by, .. } if by == tid));
        assert_eq!(spun + sum(&|found| found == Found::Softirq), 2000, "{rows:#?}");
        // The last pass of a busy poll finds packets, too, which this counter leaves out; ARP is counted as well.
        assert!(spun + 5 >= polled, "{spun} found by the thread, {polled} by all busy polls");
        assert_eq!(spun > 0, gro && usecs > 0, "{rows:#?}");
    }
}

/// The receiver polls the queue again as soon as a softirq on the sender's CPU has released it.
#[test]
fn passes_of_softirqs_are_not_counted_as_busy_polls_of_the_interrupted_thread() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let mut counter = Counter::start().unwrap();
    let bind =
        |host: &LabHost| host.enter(|| UdpSocket::bind((host.ipv4(), 703)).unwrap()).unwrap();
    let (server, client) = (bind(&lab.server), bind(&lab.client));
    sockopt::set_busy_poll(&server, 1).unwrap();
    server.set_nonblocking(true).unwrap();
    client.connect((lab.server.ipv4(), 703)).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let receiver = lab.server.spawn_thread(lab.server.cpu(), move || {
        while !ended.load(Relaxed) {
            let _ = server.recv(&mut [0; 64]);
        }
        rustix::thread::gettid()
    });
    let sender = lab.client.spawn_thread(lab.client.cpu(), move || {
        for _ in 0..100_000 {
            // A full queue does no harm.
            let _ = client.send(b"flood");
        }
        rustix::thread::gettid()
    });
    let sender = sender.unwrap().join().unwrap();
    done.store(true, Relaxed);
    let receiver = receiver.unwrap().join().unwrap();
    let rows = counter.read().unwrap();
    let of = |tid: rustix::thread::Pid| {
        let tid = Some(tid.as_raw_nonzero().get() as u32);
        rows.iter().filter(|row| row.tid == tid).collect::<Vec<_>>()
    };
    assert!(!of(receiver).is_empty(), "{rows:#?}");
    assert!(of(sender).is_empty(), "{:#?}", of(sender));
}

#[test]
fn without_gro_packets_come_from_the_backlog() {
    needs_root!();
    let lab = Lab::builder().gro(false).tso(true).build().unwrap();
    let (on, rows) = counted(&lab, 100, 500);
    assert_eq!(on.packets(), 0, "{rows:#?}");
    let backlog = rows.iter().find(|p| p.napi.is_none()).unwrap();
    assert!(backlog.softirq_packets >= 1000, "{rows:#?}");
}

#[test]
fn files_that_a_followed_process_opens_are_reported_at_once() {
    needs_root!();
    needs!(program "python3");
    let script = "import socket, select, os, sys, time\n\
        sys.stdin.readline()\n\
        s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
        e = select.epoll()\n\
        c = socket.create_connection(s.getsockname()); a, _ = s.accept()\n\
        print(s.fileno(), e.fileno(), c.fileno(), a.fileno(), flush=True)\n\
        pid = os.fork()\n\
        if pid == 0:\n\
        \x20   u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); os._exit(0)\n\
        print(pid, flush=True); os.wait()\n";
    let child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut follow = Follow::start(&[pid], true).unwrap();
    // A process that is not followed must not be reported.
    let _other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut child = child;
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
    let out = child.wait_with_output().unwrap().stdout;
    let numbers: Vec<i32> =
        String::from_utf8(out).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect();
    let [listener, epoll, client, accepted, grandchild] = numbers[..] else {
        panic!("{numbers:?}")
    };
    let events: Vec<Event> = std::iter::from_fn(|| follow.next_event()).collect();
    let has = |pid: u32, kind| events.iter().any(|e| e.pid == pid && e.kind == kind);
    assert!(has(pid, EventKind::Opened { fd: listener, by: Opener::Socket }), "{events:?}");
    assert!(has(pid, EventKind::Opened { fd: epoll, by: Opener::Epoll }), "{events:?}");
    assert!(has(pid, EventKind::Opened { fd: client, by: Opener::Socket }), "{events:?}");
    assert!(has(pid, EventKind::Opened { fd: accepted, by: Opener::Accept }), "{events:?}");
    let grandchild = grandchild as u32;
    assert!(has(pid, EventKind::Forked { child: grandchild }), "{events:?}");
    let by_child = |e: &Event| {
        e.pid == grandchild && matches!(e.kind, EventKind::Opened { by: Opener::Socket, .. })
    };
    assert!(events.iter().any(by_child), "{events:?}");
    assert!(has(grandchild, EventKind::Exited) && has(pid, EventKind::Exited), "{events:?}");
    assert!(events.iter().all(|e| e.pid != std::process::id()), "{events:?}");
    assert_eq!(follow.lost().unwrap(), 0);
}
