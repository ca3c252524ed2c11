//! Several processes on one interface, each with a stack of its own: of one run and of several, side by side and
//! killed.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::link::Links;
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use support::*;

four_tests_at_a_time!();

/// `run --plane stack` on the server of the lab.
fn run(lab: &Lab, words: &[&str]) -> Command {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--"]).args(words);
    command
}

/// The echo server, in a run of its own.
fn server(lab: &Lab, port: u16) -> Running {
    let source = source("echo.py");
    let mut command = run(lab, &["python3", source.to_str().unwrap(), &port.to_string()]);
    let stderr = fs::File::create(temp_dir("log").join("stderr")).unwrap();
    let running = Running::start(command.stderr(stderr));
    exchange_udp(lab, port, 1);
    running
}

/// The processes that `busypoll ss` lists with a socket at each of these ports.
fn listed(lab: &Lab, ports: &[u16]) -> bool {
    let text = text(&run_on_host(&lab.server, &["ss"]));
    ports.iter().all(|port| text.contains(&format!(":{port} ")))
}

fn is_the_kernels(lab: &Lab) -> bool {
    let link = || Links::open().unwrap().get(lab.server.interface()).unwrap();
    lab.server.enter(link).unwrap().xdp.is_none()
}

/// Exchanges with a server over the queues.
fn is_served(lab: &Lab, port: u16) {
    let mut client = Client::connect(lab, port);
    bypasses_the_kernel(&lab.server, || {
        client.exchange(30);
        exchange_udp(lab, port, 30);
    });
}

#[test]
fn processes_of_different_runs_share_an_interface() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (first, second) = (server(&lab, 7000), server(&lab, 7001));
    wait_until("both are listed", || listed(&lab, &[7000, 7001]));
    thread::scope(|scope| {
        for port in [7000, 7001] {
            scope.spawn({
                let lab = &lab;
                move || Client::connect(lab, port).exchange(300)
            });
        }
    });
    for port in [7000, 7001] {
        is_served(&lab, port);
    }
    // Clients beside them: connections to the peer, each over the queues.
    let far = lab.client.enter(|| TcpListener::bind("0.0.0.0:0")).unwrap().unwrap();
    let far_address = SocketAddr::from((lab.client.ipv4(), far.local_addr().unwrap().port()));
    thread::spawn(move || {
        for stream in far.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut data = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut data) {
                    stream.write_all(&data[..len]).unwrap();
                }
            });
        }
    });
    let client = "import socket, sys\n\
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)\n\
        for n in range(300):\n    \
            data = b'%d' % n * 50\n    s.sendall(data)\n    got = b''\n    \
            while len(got) < len(data): got += s.recv(4096)\n    assert got == data\n\
        print('done')";
    let (ip, port) = (far_address.ip().to_string(), far_address.port().to_string());
    bypasses_the_kernel(&lab.server, || {
        let start = || {
            let mut command = run(&lab, &["python3", "-c", client, &ip, &port]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        for client in [start(), start()] {
            let output = client.wait_with_output().unwrap();
            assert_eq!((text(&output).as_str(), output.stderr.as_slice()), ("done\n", &b""[..]));
        }
    });
    // The guard of the first stays as long as the second needs it.
    first.end();
    is_served(&lab, 7001);
    let third = server(&lab, 7000);
    is_served(&lab, 7000);
    drop((second, third));
    wait_until("the interface is the kernel's", || is_the_kernels(&lab));
}

#[test]
fn a_child_has_the_interface_for_the_sockets_it_makes() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut parent = server(&lab, 7000);
    parent.send_line("fork 7005");
    parent.wait_for("opened");
    exchange_udp(&lab, 7005, 3);
    wait_until("the child is listed", || listed(&lab, &[7000, 7005]));
    bypasses_the_kernel(&lab.server, || exchange_udp(&lab, 7005, 40));
    is_served(&lab, 7000);
}

fn output_of(lab: &Lab, program: &str) -> Output {
    run(lab, &["python3", "-c", program]).stdin(Stdio::null()).output().unwrap()
}

/// As on the kernel: also between processes that both have the interface.
#[test]
fn a_port_of_another_process_is_in_use() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = server(&lab, 7000);
    let binds = "import errno, socket\n\
        for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:\n    \
            one = socket.socket(socket.AF_INET, kind)\n    \
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, kind == socket.SOCK_STREAM)\n    \
            try: one.bind(('', 7000)); one.listen()\n    \
            except OSError as error: print(errno.errorcode[error.errno])";
    let output = output_of(&lab, binds);
    assert_eq!(text(&output), "EADDRINUSE\nEADDRINUSE\n", "{output:?}");
    is_served(&lab, 7000);
}

#[test]
fn a_ninth_process_uses_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let children = "import os, socket, sys\n\
        for n in range(9):\n    \
            told, tell = os.pipe()\n    \
            if os.fork() == 0:\n        \
                s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n        \
                s.bind(('', 7100 + n))\n        \
                s.settimeout(0.01)\n        \
                try: s.recv(1)\n        \
                except TimeoutError: s.settimeout(None)\n        \
                os.write(tell, b'x')\n        \
                while True:\n            \
                    data, peer = s.recvfrom(4096)\n            \
                    s.sendto(data, peer)\n    \
            os.read(told, 1)\n\
        print('ready', flush=True)\n\
        os.wait()";
    let log = temp_dir("log").join("stderr");
    let mut command = run(&lab, &["python3", "-c", children]);
    let _parent = Group::start(command.stderr(fs::File::create(&log).unwrap()));
    for port in 7100..7109 {
        exchange_udp(&lab, port, 20);
    }
    let said = without_load_reports(&fs::read_to_string(&log).unwrap());
    assert!(said.contains("is shared by 8 processes already"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(listed(&lab, &[7100, 7107]) && !listed(&lab, &[7108]));
}

/// A receiver of a feed, under `run` or plain, which prints each datagram.
fn receiver(lab: &Lab, is_ours: bool, user: &str) -> Running {
    let program = "import os, socket, sys\n\
        if sys.argv[2]: os.setuid(int(sys.argv[2]))\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
        s.bind(('', 7400))\n\
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,\n    \
            socket.inet_aton('239.7.0.1') + socket.inet_aton(sys.argv[1]))\n\
        print('ready', flush=True)\n\
        while True: print(s.recv(100).decode(), flush=True)";
    let address = lab.server.ipv4().to_string();
    let words = ["python3", "-c", program, &address, user];
    if is_ours {
        return Running::start(&mut run(lab, &words));
    }
    Running::start(lab.server.command(words[0]).args(&words[1..]))
}

/// Sends a feed from the client of the lab.
struct Feed(UdpSocket);

impl Feed {
    fn new(lab: &Lab) -> Feed {
        let bound = lab.client.enter(|| UdpSocket::bind((lab.client.ipv4(), 0)));
        Feed(bound.unwrap().unwrap())
    }

    fn publish(&self, what: &str) {
        self.0.send_to(what.as_bytes(), "239.7.0.1:7400").unwrap();
    }

    /// Until the processes have found each other, and the kernel's sockets drop this many copies of each datagram.
    fn settle(&self, lab: &Lab, copies: u64) {
        let (mut published, mut settled, mut before) = (0, 0, dropped_copies(lab));
        wait_until("each datagram has as many copies as it should", || {
            self.publish(&format!("before {published}"));
            thread::sleep(Duration::from_millis(100));
            let now = dropped_copies(lab);
            settled = if now == before + copies { settled + 1 } else { 0 };
            (published, before) = (published + 1, now);
            // For longer than the interval at which a process looks for others.
            published >= 15 && settled >= 5
        });
    }

    /// Publishes these numbers. Each of the receivers has each of them, in order, and nothing else.
    fn reaches(&self, numbers: std::ops::Range<u32>, receivers: &mut [&mut Running]) {
        let first = numbers.start;
        for n in numbers {
            self.publish(&format!("number {n}."));
            for receiver in &mut *receivers {
                let line = match n == first {
                    true => receiver.wait_for("number "),
                    false => receiver.wait_for(""),
                };
                assert_eq!(line.trim_end(), format!("number {n}."));
            }
        }
    }
}

/// How many datagrams the kernel's sockets at the feed's port have dropped: those that another way brought.
fn dropped_copies(lab: &Lab) -> u64 {
    let table = succeeds(lab.server.command("cat").arg("/proc/net/udp"));
    let of_port = table.lines().filter(|line| line.contains(&format!(":{:04X} 0000", 7400)));
    of_port.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
}

fn signal(running: &Running, signal: Signal) {
    kill_process(Pid::from_child(&running.child), signal).unwrap();
}

/// Two of ours, each with a ring of its own, one without rights, and a plain one: each has each datagram. One that is
/// stopped, or killed, keeps nothing from the others.
#[test]
fn receivers_of_a_group_do_not_depend_on_each_other() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let feed = Feed::new(&lab);
    let mut first = receiver(&lab, true, "");
    let mut second = receiver(&lab, true, "");
    let mut third = receiver(&lab, true, "65534");
    let mut plain = receiver(&lab, false, "");
    feed.settle(&lab, 2);
    let before = dropped_copies(&lab);
    feed.reaches(0..200, &mut [&mut first, &mut second, &mut third, &mut plain]);
    wait_until("two copies of each are dropped", || dropped_copies(&lab) - before == 400);
    third.end();

    signal(&first, Signal::STOP);
    feed.reaches(200..400, &mut [&mut second, &mut plain]);
    signal(&first, Signal::CONT);
    for n in 200..400 {
        assert_eq!(first.wait_for("").trim_end(), format!("number {n}."));
    }
    // More than its ring has room for.
    signal(&first, Signal::STOP);
    feed.reaches(400..2400, &mut [&mut second, &mut plain]);
    signal(&first, Signal::CONT);
    let mut kept = Vec::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                feed.publish("again");
                thread::sleep(Duration::from_millis(10));
            }
        });
        loop {
            let line = first.wait_for("");
            let Some(number) = line.trim_end().strip_prefix("number ") else { break };
            kept.push(number.trim_end_matches('.').parse::<u32>().unwrap());
        }
    });
    assert!(kept.is_sorted() && kept[0] == 400 && (100..2000).contains(&kept.len()), "{kept:?}");
    feed.settle(&lab, 2);
    feed.reaches(2400..2500, &mut [&mut first, &mut second, &mut plain]);

    first.end();
    feed.reaches(2500..2700, &mut [&mut second, &mut plain]);
    let mut fourth = receiver(&lab, true, "");
    feed.settle(&lab, 2);
    feed.reaches(2700..2900, &mut [&mut fourth, &mut second, &mut plain]);
    plain.end();
    second.end();
    // Alone, it has the queue.
    feed.settle(&lab, 0);
    bypasses_the_kernel(&lab.server, || feed.reaches(2900..3000, &mut [&mut fourth]));
}

/// The processes that answer a client at each of 60 ports, by their places in `workers`, of IPv4 and then of IPv6.
fn answers(lab: &Lab, workers: &[&Running], port: u16) -> Vec<usize> {
    let mut found = Vec::new();
    let six = lab.server.ipv6().map(|ip| ("::", IpAddr::from(ip)));
    for (any, ip) in [("0.0.0.0", lab.server.ipv4().into())].into_iter().chain(six) {
        for own in 20_000..20_060 {
            let socket = lab.client.enter(|| UdpSocket::bind((any, own))).unwrap().unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            socket.connect((ip, port)).unwrap();
            socket.send(b"x").unwrap();
            let mut answer = [0; 16];
            let len = socket.recv(&mut answer).unwrap();
            let pid: u32 = str::from_utf8(&answer[..len]).unwrap().parse().unwrap();
            found.push(workers.iter().position(|worker| worker.pid() == pid).unwrap());
        }
    }
    found
}

/// Processes with one, two and one sockets of a port. Then the first is killed, and then another comes. Returns the
/// answers of each time.
fn socket_group(lab: &Lab, start: impl Fn(&str) -> Running, user: &str) -> [Vec<usize>; 3] {
    let source = source("udp_workers.py");
    let start = |count| start(&format!("{} 7300 {count} {user}", source.display()));
    let (one, two, three) = (start(1), start(2), start(1));
    let first = answers(lab, &[&one, &two, &three], 7300);
    one.end();
    let second = answers(lab, &[&two, &three], 7300);
    let four = start(1);
    [first, second, answers(lab, &[&two, &three, &four], 7300)]
}

/// The kernel's choice depends on the addresses and on the order in which the sockets came, and not on anything else.
fn spreads_as_on_the_kernel(user: &str) {
    let lab = Lab::builder().build().unwrap();
    let plain = socket_group(
        &lab,
        |words| {
            let mut command = lab.server.command("python3");
            Running::start(command.args(words.split_ascii_whitespace()))
        },
        user,
    );
    for (answers, of) in plain.iter().zip([3, 2, 3]) {
        assert!((0..of).all(|at| answers.contains(&at)), "{answers:?}");
    }
    bypasses_the_kernel(&lab.server, || {
        let ours = socket_group(
            &lab,
            |words| {
                let words: Vec<_> =
                    ["python3"].into_iter().chain(words.split_ascii_whitespace()).collect();
                Running::start(&mut run(&lab, &words))
            },
            user,
        );
        assert_eq!(ours, plain);
    });
}

#[test]
fn datagrams_spread_over_processes_as_on_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    spreads_as_on_the_kernel("");
}

/// The guard sets the sockets' priorities.
#[test]
fn datagrams_spread_over_processes_without_rights() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    spreads_as_on_the_kernel("65534");
}

/// Ends the clients of a test, also if it fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A member of a socket group is killed, and another one comes, that many times, while clients exchange with the group.
fn members_are_killed(times: u32) {
    let lab = Lab::builder().build().unwrap();
    let source = source("udp_workers.py");
    let words = ["python3", source.to_str().unwrap(), "7300", "1"];
    let start = || Some(Running::start(&mut run(&lab, &words)));
    let mut members = [start(), start(), start()];
    let stop = AtomicBool::new(false);
    let counts = [(); 3].map(|()| AtomicU64::new(0));
    let lost = AtomicU64::new(0);
    thread::scope(|scope| {
        for count in &counts {
            let (lab, stop, lost) = (&lab, &stop, &lost);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // Another port each time, so another member.
                    let bound = lab.client.enter(|| UdpSocket::bind("0.0.0.0:0"));
                    let socket = bound.unwrap().unwrap();
                    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                    socket.connect((lab.server.ipv4(), 7300)).unwrap();
                    for _ in 0..20 {
                        socket.send(b"x").unwrap();
                        match socket.recv(&mut [0; 16]) {
                            Ok(_) => count.fetch_add(1, Ordering::Relaxed),
                            Err(_) => lost.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                }
            });
        }
        let _ends = Ends(&stop);
        for n in 0..times as usize {
            let before = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            wait_until("every client is served", || {
                (0..3).all(|of| counts[of].load(Ordering::Relaxed) > before[of] + 40)
            });
            members[n % 3].take().unwrap().end();
            members[n % 3] = start();
        }
    });
    // Each client has one datagram under way.
    let lost = lost.load(Ordering::Relaxed);
    assert!(lost <= u64::from(times) * 3, "{lost} lost of {counts:?}");
    let members: Vec<_> = members.iter().flatten().collect();
    bypasses_the_kernel(&lab.server, || {
        let found = answers(&lab, &members, 7300);
        assert!((0..3).all(|at| found.contains(&at)), "{found:?}");
    });
}

#[test]
#[ignore = "long: ten seconds"]
fn a_member_of_a_socket_group_that_is_killed_loses_what_it_held() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    members_are_killed(12);
}

/// Kills a process of four that many times, while clients exchange with all.
fn killed_in_turn(times: u32) {
    let lab = Lab::builder().build().unwrap();
    let ports = [7000, 7001, 7002, 7003];
    let mut servers = ports.map(|port| Some(server(&lab, port)));
    wait_until("all are listed", || listed(&lab, &ports));
    let stop = AtomicBool::new(false);
    // Of each port, when it is being killed, and how many bytes came back.
    let dying = ports.map(|_| AtomicBool::new(false));
    let counts = ports.map(|_| AtomicU64::new(0));
    thread::scope(|scope| {
        for at in 0..ports.len() {
            let (lab, stop, dying, count) = (&lab, &stop, &dying[at], &counts[at]);
            scope.spawn(move || {
                let address = SocketAddr::from((lab.server.ipv4(), ports[at]));
                while !stop.load(Ordering::Relaxed) {
                    let stream = lab.client.enter(|| TcpStream::connect(address)).unwrap();
                    let Ok(mut stream) = stream else {
                        assert!(dying.load(Ordering::Relaxed), "refused at {address}");
                        thread::sleep(Duration::from_millis(5));
                        continue;
                    };
                    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let mut back = [0; 400];
                        let sent = [7; 400];
                        match stream.write_all(&sent).and_then(|()| stream.read_exact(&mut back)) {
                            Ok(()) => assert_eq!(sent, back),
                            Err(error) => {
                                assert!(dying.load(Ordering::Relaxed), "{address}: {error}");
                                break;
                            }
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _ends = Ends(&stop);
        // A fixed sequence that looks random.
        let mut state = 12_345_u32;
        for _ in 0..times {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = (state >> 16) as usize % ports.len();
            thread::sleep(Duration::from_millis((state >> 8 & 63).into()));
            dying[at].store(true, Ordering::Relaxed);
            servers[at].take().unwrap().end();
            let before = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            let since = Instant::now();
            wait_until("the others go on", || {
                let goes_on =
                    |of: usize| of == at || counts[of].load(Ordering::Relaxed) > before[of];
                (0..ports.len()).all(goes_on)
            });
            assert!(since.elapsed() < Duration::from_secs(5));
            servers[at] = Some(server(&lab, ports[at]));
            let before = counts[at].load(Ordering::Relaxed);
            wait_until("its client goes on", || counts[at].load(Ordering::Relaxed) > before);
            dying[at].store(false, Ordering::Relaxed);
        }
    });
    for port in ports {
        is_served(&lab, port);
    }
    drop(servers);
    wait_until("the interface is the kernel's", || is_the_kernels(&lab));
}

#[test]
#[ignore = "long: twenty seconds"]
fn a_process_that_is_killed_leaves_the_others_alone() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    killed_in_turn(6);
}

#[test]
#[ignore = "an hour"]
fn processes_are_killed_1_000_times() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    killed_in_turn(1000);
}
