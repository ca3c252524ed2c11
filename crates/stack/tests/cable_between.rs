//! A cable between two processes: streams over it, what is left of it when one of them is killed, and a peer that writes
//! anything into its memory.

use busypoll_stack::{
    Host, TcpListener, TcpStream, UdpSocket,
    nic::{Nic, cable},
};
use std::{
    env, fs,
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::{self, Child, Command},
    sync::{
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Nothing here takes so long, unless it hangs.
const LONG: Duration = Duration::from_secs(60);

const ROLE: &str = "BUSYPOLL_TEST_CABLE_ROLE";
const NAME: &str = "BUSYPOLL_TEST_CABLE_NAME";
const POLL: &str = "BUSYPOLL_TEST_CABLE_POLL";

/// A name that no other test has.
fn name() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}

/// Another process, which is killed in the end.
struct Peer(Child);

impl Peer {
    /// A process that runs [`peer`] in this role.
    fn start(role: &str, name: &str, poll: u32) -> Peer {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "peer", "--nocapture"]);
        command.env(ROLE, role).env(NAME, name).env(POLL, poll.to_string());
        Peer(command.stdout(process::Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the other process does; nothing, if this is not that process.
#[test]
fn peer() {
    let Ok(role) = env::var(ROLE) else { return };
    let (name, poll) = (env::var(NAME).unwrap(), env::var(POLL).unwrap().parse().unwrap());
    let host = host(cable::connect(&name).unwrap(), "10.0.0.2/24, fd00::2/64", poll);
    let listener = TcpListener::bind(&host, "[::]:7").unwrap();
    match &role[..] {
        "echo" => loop {
            let (stream, _) = listener.accept().unwrap();
            thread::spawn(move || echo(&stream));
        },
        "datagrams" => {
            let socket = UdpSocket::bind(&host, "10.0.0.2:7").unwrap();
            let mut buffer = [0; 2000];
            loop {
                let (len, from) = socket.recv_from(&mut buffer).unwrap();
                socket.send_to(&buffer[..len], from).unwrap();
            }
        }
        // Never reads.
        "speaks" => {
            let mut streams = Vec::new();
            loop {
                let (stream, _) = listener.accept().unwrap();
                (&stream).write_all(b"last words").unwrap();
                streams.push(stream);
            }
        }
        role => panic!("{role}?"),
    }
}

fn echo(stream: &TcpStream) {
    let mut buffer = [0; 5000];
    let mut stream = stream;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(len) if stream.write_all(&buffer[..len]).is_err() => return,
            Ok(_) => {}
        }
    }
}

fn host(nic: impl Nic + 'static, addresses: &str, poll: u32) -> Host {
    Host::builder().interface(nic, addresses).busy_read(poll).build().unwrap()
}

/// This end of a cable to a new process.
fn join(role: &str, poll: u32, config: cable::Config) -> (Host, Peer) {
    let name = name();
    let rendezvous = cable::listen(&name).unwrap();
    let peer = Peer::start(role, &name, poll);
    let nic = rendezvous.accept(config).unwrap();
    assert_eq!(nic.peer_pid(), peer.0.id().cast_signed());
    (host(nic, "10.0.0.1/24, fd00::1/64", poll), peer)
}

/// Connects once the other process listens.
fn connect(host: &Host, to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().unwrap();
    let until = Instant::now() + LONG;
    loop {
        match TcpStream::connect(host, to) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends `bytes` and compares what comes back.
fn exchange(stream: &TcpStream, seed: u32, bytes: usize) {
    let data: Vec<u8> = (0..bytes).map(|at| (at as u32).wrapping_mul(seed | 1) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(&data).unwrap();
        });
        let mut back = vec![0; bytes];
        let mut stream = stream;
        stream.read_exact(&mut back).unwrap();
        assert!(back == data, "connection {seed}: other bytes came back");
    });
}

#[test]
fn many_connections_share_a_cable_and_every_byte_arrives() {
    let large = cable::Config { mtu: 65_535, ring: 16, ..cable::Config::default() };
    for (poll, config) in
        [(0, cable::Config::default()), (50, cable::Config::default()), (50, large)]
    {
        let (host, _peer) = join("echo", poll, config);
        thread::scope(|scope| {
            for seed in 0..6 {
                let host = &host;
                scope.spawn(move || {
                    let to = if seed % 2 == 0 { "10.0.0.2:7" } else { "[fd00::2]:7" };
                    for round in 0..3 {
                        exchange(&connect(host, to), seed * 3 + round, 60_000);
                    }
                });
            }
        });
    }
}

/// A lost datagram is not sent again: if a wake-up is lost, the exchange stops.
#[test]
fn no_wake_up_is_lost_between_processes() {
    wake_each_other(3_000);
}

#[test]
#[ignore = "long: many sleeps"]
fn no_wake_up_is_lost_between_processes_in_many_rounds() {
    wake_each_other(60_000);
}

fn wake_each_other(rounds: u32) {
    for poll in [0, 5] {
        let (host, _peer) = join("datagrams", poll, cable::Config::default());
        // The other process listens before it answers datagrams.
        drop(connect(&host, "10.0.0.2:7"));
        let socket = UdpSocket::bind(&host, "10.0.0.1:0").unwrap();
        socket.connect("10.0.0.2:7").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut buffer = [0; 8];
        // Its socket may not be there yet.
        let until = Instant::now() + LONG;
        while socket.send(&[0]).and_then(|_| socket.recv(&mut buffer)).is_err() {
            assert!(Instant::now() < until);
        }
        socket.set_read_timeout(Some(LONG)).unwrap();
        for round in 1..=rounds {
            socket.send(&round.to_ne_bytes()).unwrap();
            // Answers to what was sent before the other socket was there may come late.
            while buffer[..4] != round.to_ne_bytes() {
                socket.recv(&mut buffer).unwrap();
            }
        }
    }
}

/// The result of `call` in a thread, which must end.
fn ends<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(call()));
    receive
}

#[test]
fn when_a_process_is_killed_its_peers_read_what_it_has_sent_and_then_the_end() {
    for poll in [0, 50] {
        let (host, mut peer) = join("speaks", poll, cable::Config::default());
        let unread = connect(&host, "10.0.0.2:7");
        let waits = connect(&host, "10.0.0.2:7");
        let mut words = [0; 10];
        (&waits).read_exact(&mut words).unwrap();
        let waiting = ends(move || {
            let result = (&waits).read(&mut words);
            (result, waits)
        });
        let blocked = connect(&host, "[fd00::2]:7");
        // The peer does not read: this stops in the middle.
        let writing = ends(move || (&blocked).write_all(&vec![1; 20 << 20]));
        // So that both sleep, or poll, most of the times.
        thread::sleep(Duration::from_millis(20));
        peer.kill();

        let (result, waits) = waiting.recv_timeout(LONG).expect("the reader hangs");
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        assert_eq!((&waits).write(b"x").unwrap_err().raw_os_error(), Some(libc::EPIPE));
        let written = writing.recv_timeout(LONG).expect("the writer hangs");
        assert!(matches!(
            written.unwrap_err().raw_os_error(),
            Some(libc::ECONNRESET | libc::EPIPE)
        ));
        let mut last = Vec::new();
        let end = (&unread).read_to_end(&mut last).unwrap_err();
        assert_eq!((&last[..], end.raw_os_error()), (&b"last words"[..], Some(libc::ECONNRESET)));
        for to in ["10.0.0.2:7", "[fd00::2]:7"] {
            let refused = TcpStream::connect(&host, to).map(|_| ()).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENETUNREACH), "{to}");
        }
        // The queue is at rest: its interrupt does not fire for ever.
        let polls = || host.contexts().map(|context| context.stats().polls).sum::<u64>();
        let before = polls();
        thread::sleep(Duration::from_millis(50));
        assert!(polls() - before < 200, "{} polls", polls() - before);
    }
}

/// A connection that is being made when the process ends does not wait for its timeout.
#[test]
fn a_connect_to_a_process_that_is_killed_ends() {
    let (host, mut peer) = join("speaks", 0, cable::Config::default());
    drop(connect(&host, "10.0.0.2:7"));
    let pid = peer.0.id().cast_signed();
    // SAFETY: plain system calls on a process of ours, which is not waited for to end here.
    let stopped = unsafe {
        libc::kill(pid, libc::SIGSTOP);
        libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED)
    };
    assert_eq!(stopped, pid);
    let connecting = ends(move || {
        let result = TcpStream::connect(&host, "10.0.0.2:7").map(|_| ());
        (result, host)
    });
    // It stands still, as with any peer that does not answer.
    assert!(connecting.recv_timeout(Duration::from_millis(50)).is_err());
    peer.kill();
    let (result, _host) = connecting.recv_timeout(LONG).expect("connect hangs");
    let errno = result.unwrap_err().raw_os_error();
    assert!(matches!(errno, Some(libc::ECONNREFUSED | libc::ENETUNREACH)), "{errno:?}");
}

#[test]
fn the_memory_is_given_back_when_both_ends_are_dropped() {
    let name = name();
    let rendezvous = cable::listen(&name).unwrap();
    // A size that no other test has.
    let config = cable::Config { ring: 32, mtu: 7_000, ..cable::Config::default() };
    let other = thread::spawn(move || cable::connect(&name).unwrap());
    let ours = rendezvous.accept(config).unwrap();
    let theirs = other.join().unwrap();
    let mapped = || mappings().into_iter().filter(|(from, to)| to - from == SIZE).count();
    // Two directions of 32 frames of 128 + 7,040 bytes, in whole pages.
    const SIZE: usize = 2 * (WORDS + 32 * (128 + 7_040) as usize).next_multiple_of(4096);
    assert_eq!(mapped(), 2);
    drop(host(theirs, "10.0.0.2/24", 0));
    assert_eq!(mapped(), 1);
    drop(ours);
    assert_eq!(mapped(), 0);
}

/// What each direction has before its frames: two words of 128 bytes, and the addresses at which it takes datagrams.
const WORDS: usize = 2 * 128 + 512 * 64;

/// The cables' memory in this process.
fn mappings() -> Vec<(usize, usize)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let cables = maps.lines().filter(|line| line.contains("memfd:busypoll-cable"));
    let number = |digits| usize::from_str_radix(digits, 16).unwrap();
    cables
        .map(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            (number(from), number(to))
        })
        .collect()
}

#[test]
fn a_name_is_free_again_when_its_listener_has_ended() {
    let name = name();
    assert_eq!(cable::connect(&name).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let rendezvous = cable::listen(&name).unwrap();
    assert_eq!(cable::listen(&name).unwrap_err().kind(), ErrorKind::AddrInUse);
    // A process that waits to be accepted.
    let waiting = ends({
        let name = name.clone();
        move || cable::connect(&name).map(|_| ())
    });
    thread::sleep(Duration::from_millis(20));
    drop(rendezvous);
    assert!(waiting.recv_timeout(LONG).expect("it hangs").is_err());
    // A child that another test is just making has the socket until it executes its program.
    let until = Instant::now() + LONG;
    while cable::listen(&name).is_err() {
        assert!(Instant::now() < until);
    }
}

/// Runs `call` in a thread with the credentials of another user; `None` if this process may not.
fn as_nobody<T: Send>(call: impl FnOnce() -> T + Send) -> Option<T> {
    const NOBODY: libc::uid_t = 65_534;
    thread::scope(|scope| {
        let run = || {
            // The system call changes this thread only.
            // SAFETY: a plain system call.
            let set = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            (set == 0).then(call)
        };
        scope.spawn(run).join().unwrap()
    })
}

#[test]
fn another_user_can_neither_join_nor_pose_as_a_listener() {
    let theirs = name();
    let Some(_posed) = as_nobody(|| cable::listen(&theirs).unwrap()) else {
        println!("skipped: it needs root");
        return;
    };
    assert_eq!(cable::connect(&theirs).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let name = name();
    let rendezvous = cable::listen(&name).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let refused = as_nobody(|| cable::connect(&name).map(|_| ())).unwrap();
            assert!(refused.is_err());
            cable::connect(&name).unwrap();
        });
        // The one that was let in, which came second.
        let nic = rendezvous.accept(cable::Config::default()).unwrap();
        assert_eq!(nic.peer_pid(), process::id().cast_signed());
    });
}

#[test]
fn a_configuration_that_cannot_be_is_refused() {
    let rendezvous = cable::listen(&name()).unwrap();
    let default = cable::Config::default;
    for wrong in [
        cable::Config { queues: 2, ..default() },
        cable::Config { ring: 48, ..default() },
        cable::Config { mtu: 65_536, ..default() },
        cable::Config {
            coalesce: busypoll_stack::nic::Coalesce { rx_usecs: 10, ..Default::default() },
            ..default()
        },
    ] {
        assert_eq!(rendezvous.accept(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

/// The end of a cable whose other end writes anything anywhere in the memory keeps its calls: they end, and the other
/// cables of the process work.
#[test]
fn a_peer_that_scribbles_over_the_rings_harms_only_its_own_cable() {
    scribble(2_000);
}

#[test]
#[ignore = "long: a fuzzer's run"]
fn a_peer_that_scribbles_over_the_rings_for_long() {
    scribble(20_000);
}

fn scribble(steps: u32) {
    const RING: usize = 8;
    const MTU: usize = 1_300;
    let name = name();
    let rendezvous = cable::listen(&name).unwrap();
    let before = mappings();
    let other = thread::spawn(move || cable::connect(&name).unwrap());
    let config = cable::Config { ring: RING as u32, mtu: MTU, ..cable::Config::default() };
    let ours = rendezvous.accept(config).unwrap();
    let theirs = other.join().unwrap();
    let stride = (MTU + 22).next_multiple_of(64);
    let direction = (WORDS + RING * (128 + stride)).next_multiple_of(4096);
    let size = 2 * direction;
    let mut new = mappings();
    new.retain(|it| it.1 - it.0 == size && !before.contains(it));
    let memory = new[0].0;
    let victim = host(ours, "10.0.0.1/24, fd00::1/64", 20);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (victim, over) = (&victim, &over);
        scope.spawn(move || {
            // Neither end of this is in the scribbler's hands, but they use its queue.
            let socket = UdpSocket::bind(victim, "10.0.0.1:7").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            while !over.load(Ordering::Relaxed) {
                let _ = socket.recv_from(&mut [0; 100]);
                let _ = socket.send_to(&[1; 1000], "10.0.0.2:7");
                let stream = TcpStream::connect_timeout(
                    victim,
                    &"10.0.0.2:7".parse().unwrap(),
                    Duration::from_millis(1),
                );
                drop(stream);
            }
        });
        let (near, _peer) = join("echo", 0, cable::Config::default());
        let stream = connect(&near, "10.0.0.2:7");
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize
        };
        // The next position that the victim takes a frame from, or less.
        let mut next = 0_u32;
        // SAFETY: inside the memory, which is mapped until `theirs` is dropped; it is there to be written.
        let write = |at: usize, value: u32| unsafe {
            ((memory + at) as *mut u32).write_volatile(value);
        };
        for step in 0..steps {
            match random() % 4 {
                // Any word.
                0 => write(random() % (size / 4) * 4, random() as u32),
                // Any of the words that the rings turn on.
                1 => {
                    write((random() % 2) * direction + (random() % 2) * 128, (random() % 16) as u32)
                }
                // Frames that will be taken, of any length.
                _ => {
                    for at in (0..RING as u32).map(|at| next.wrapping_add(at)) {
                        let slot = direction + WORDS + at as usize % RING * 128;
                        (2..32).for_each(|word| write(slot + word * 4, random() as u32));
                        let len = if random() % 2 == 0 { random() % 140 } else { random() };
                        write(slot + 4, len as u32);
                        write(slot, at.wrapping_add(1));
                    }
                    let all = next.wrapping_add(RING as u32);
                    // SAFETY: as above.
                    let taken = || unsafe { ((memory + direction) as *const u32).read_volatile() };
                    let until = Instant::now() + Duration::from_millis(2);
                    while taken() != all && Instant::now() < until {
                        thread::yield_now();
                    }
                    if taken() == all {
                        next = all;
                    }
                }
            }
            if step % (steps / 20) == 0 {
                exchange(&stream, step, 1_000);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let received: u64 = victim.contexts().map(|context| context.stats().packets).sum();
    assert!(received > u64::from(steps) / 2, "the victim took only {received} frames");
    drop(theirs);
}

/// Processes come and are killed in the middle of their work; their connections are opened and closed all the time.
#[test]
fn processes_come_and_are_killed_and_every_byte_is_compared() {
    lives(3, 3);
}

#[test]
#[ignore = "long: many processes"]
fn many_processes_come_and_are_killed_and_every_byte_is_compared() {
    lives(6, 40);
}

/// As many threads, each with so many processes in turn.
fn lives(threads: u32, processes: u32) {
    // A size that no other test has.
    let config = cable::Config { ring: 64, mtu: 3_000, ..cable::Config::default() };
    const SIZE: usize = 2 * (WORDS + 64 * (128 + 3_072) as usize).next_multiple_of(4096);
    let opened = AtomicU32::new(0);
    thread::scope(|scope| {
        for number in 0..threads {
            let opened = &opened;
            scope.spawn(move || {
                for process in 0..processes {
                    let (host, mut peer) = join("echo", process % 2 * 20, config);
                    drop(connect(&host, "10.0.0.2:7"));
                    let killed = AtomicBool::new(false);
                    let finished = AtomicU32::new(0);
                    thread::scope(|scope| {
                        for worker in 0..3 {
                            let (host, killed, finished) = (&host, &killed, &finished);
                            let seed = number * 31 + process * 7 + worker;
                            scope.spawn(move || {
                                while exchange_until_killed(host, seed, killed) {
                                    finished.fetch_add(1, Ordering::Relaxed);
                                }
                            });
                        }
                        let until = Instant::now() + LONG;
                        while finished.load(Ordering::Relaxed) < 20 {
                            assert!(Instant::now() < until, "connections hang");
                            thread::sleep(Duration::from_millis(1));
                        }
                        killed.store(true, Ordering::SeqCst);
                        peer.kill();
                    });
                    opened.fetch_add(finished.into_inner(), Ordering::Relaxed);
                }
            });
        }
    });
    assert!(opened.into_inner() >= threads * processes * 20);
    let left = mappings().into_iter().filter(|(from, to)| to - from == SIZE).count();
    assert_eq!(left, 0, "memory of cables that ended");
}

/// One connection, with a random number of bytes. False: the other process was killed. What came back until then was what
/// had been sent.
fn exchange_until_killed(host: &Host, seed: u32, killed: &AtomicBool) -> bool {
    let bytes = 1 + seed as usize * 7_919 % 30_000;
    let data: Vec<u8> = (0..bytes).map(|at| (at as u32).wrapping_mul(seed | 1) as u8).collect();
    let result = TcpStream::connect(host, "10.0.0.2:7").and_then(|stream| {
        stream.set_read_timeout(Some(LONG))?;
        thread::scope(|scope| {
            scope.spawn(|| (&stream).write_all(&data));
            let mut back = vec![0; 4_000];
            let mut at = 0;
            while at < bytes {
                match (&stream).read(&mut back)? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    len => {
                        assert!(data[at..].starts_with(&back[..len]), "other bytes came back");
                        at += len;
                    }
                }
            }
            Ok(())
        })
    });
    if let Err(error) = &result {
        assert!(killed.load(Ordering::SeqCst), "before the process was killed: {error}");
        // Not of the timeout.
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "it hangs");
    }
    result.is_ok()
}

/// What listens at a cable's name may be any program.
#[test]
fn a_listener_that_has_no_cable_is_refused() {
    use std::os::{linux::net::SocketAddrExt, unix::net};
    for answer in [&b""[..], b"220 ESMTP Postfix, and more of it", &[0; 16]] {
        let name = name();
        let address =
            net::SocketAddr::from_abstract_name(format!("busypoll-cable-{name}")).unwrap();
        let listener = net::UnixListener::bind_addr(&address).unwrap();
        let answers = thread::spawn(move || -> io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.write_all(answer)
        });
        assert!(cable::connect(&name).is_err());
        answers.join().unwrap().unwrap();
    }
}

/// A sleeping leader waits for the doorbell's edge and leaves the byte in the socket. A full socket would take no more,
/// and the next doorbell would be lost.
#[test]
fn doorbells_left_in_the_socket_never_fill_it() {
    let name = name();
    let listener = cable::listen(&name).unwrap();
    let connecting = thread::spawn(move || cable::connect(&name).unwrap());
    let mut receives = listener.accept(cable::Config::default()).unwrap().open(0).unwrap();
    let mut sends = connecting.join().unwrap().open(0).unwrap();
    let fd = receives.interrupt.fd().as_raw_fd();
    // SAFETY: plain system calls on descriptors that stay open; `event` is valid.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    let number = epoll.as_raw_fd();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::epoll_ctl(number, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    let mut wait = |millis| {
        // SAFETY: as above, with room for one event.
        unsafe { libc::epoll_wait(number, &raw mut event, 1, millis) }
    };
    for round in 0..2000 {
        assert!(receives.interrupt.unmask());
        sends.tx.push(60, false, &mut |frame| frame.fill(1)).unwrap();
        sends.tx.flush();
        assert_eq!(wait(LONG.as_millis() as i32), 1, "doorbell {round} is lost");
        receives.interrupt.mask_for_edges();
        assert_eq!(receives.rx.poll(8, &mut |_| {}), 1);
    }
    let is_readable = || {
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    };
    // What waits for the level begins with a clear one.
    receives.interrupt.clear_edges();
    assert!(!is_readable() && receives.interrupt.unmask() && wait(0) == 0);
}
