//! Processes that share a listener on one interface: inherited by workers, or by `SO_REUSEPORT`. Each connection has one
//! process, whichever come and go, and goes over the queues once it is accepted.

#[path = "support/echo.rs"]
mod echo;
#[path = "support/seccomp.rs"]
mod seccomp;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use support::*;

const PORT: u16 = 7000;

/// `run --plane stack` on the server of the lab.
fn run(lab: &Lab, words: &[&str]) -> Command {
    run_with(lab, &[], words)
}

fn run_with(lab: &Lab, options: &[&str], words: &[&str]) -> Command {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface()]).args(options);
    command.arg("--").args(words);
    command
}

fn workers(lab: &Lab, how: &str) -> Group {
    let (source, port) = (source("workers.py"), PORT.to_string());
    Group::start(&mut run(lab, &["python3", source.to_str().unwrap(), &port, how]))
}

fn connect(lab: &Lab) -> io::Result<TcpStream> {
    let address = SocketAddr::from((lab.server.ipv4(), PORT));
    let stream = lab.client.enter(|| TcpStream::connect(address)).unwrap()?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

/// A request to workers.py; returns the process that has answered.
fn ask(stream: &mut TcpStream) -> io::Result<u32> {
    stream.write_all(b"and back")?;
    let mut answer = [0; 16];
    stream.read_exact(&mut answer)?;
    let (pid, rest) = answer.split_at(7);
    assert_eq!(rest, b" and back");
    Ok(str::from_utf8(pid).unwrap().parse().unwrap())
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

/// Connections until `count` processes have answered, each with the process that has it.
fn connections_to_all(lab: &Lab, count: usize) -> Vec<(TcpStream, u32)> {
    let mut all = Vec::new();
    wait_until("every process has a connection", || {
        let mut stream = connect(lab).unwrap();
        let pid = ask(&mut stream).unwrap();
        all.push((stream, pid));
        all.iter().map(|(_, pid)| *pid).collect::<BTreeSet<_>>().len() == count
    });
    all
}

/// The stack plane has the port.
fn is_on_the_stack(lab: &Lab) {
    wait_until("it is listed", || {
        text(&run_on_host(&lab.server, &["ss"])).contains(&format!(":{PORT} "))
    });
}

/// Their requests and answers go over the queues.
fn use_the_queues(lab: &Lab, connections: &mut [(TcpStream, u32)]) {
    bypasses_the_kernel(&lab.server, || {
        for (stream, pid) in connections {
            (0..10).for_each(|_| assert_eq!(ask(stream).unwrap(), *pid));
        }
    });
}

/// One of the processes is killed: only its connections end.
fn one_is_killed(lab: &Lab, mut connections: Vec<(TcpStream, u32)>) {
    let victim = connections[0].1;
    kill(victim);
    for (stream, pid) in &mut connections {
        match ask(stream) {
            Ok(by) => assert_eq!(by, *pid),
            Err(error) => assert_eq!(*pid, victim, "{error}"),
        }
    }
    for _ in 0..20 {
        assert_ne!(ask(&mut connect(lab).unwrap()).unwrap(), victim);
    }
}

#[test]
fn workers_that_inherit_a_listener_serve_side_by_side() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _workers = workers(&lab, "4");
    is_on_the_stack(&lab);
    let mut connections = connections_to_all(&lab, 4);
    use_the_queues(&lab, &mut connections);
    one_is_killed(&lab, connections);
}

/// Each connection is the kernel's first. What is sent first on the stack has no earlier timestamp than what the kernel
/// has sent: the peer would drop it (PAWS).
#[test]
fn the_timestamps_of_a_connection_that_is_taken_over_do_not_go_back() {
    needs_root!();
    needs!(program "python3", program "tcpdump");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _workers = workers(&lab, "2");
    is_on_the_stack(&lab);
    drop(connections_to_all(&lab, 2));
    let file = temp_dir("timestamps").join("packets");
    let mut capture = lab.client.command("tcpdump");
    // Short packets, so that the buffer has room for all of them.
    capture.args(["-n", "-l", "--immediate-mode", "-s", "128", "-B", "8192"]);
    capture.args(["-i", lab.client.interface(), "tcp", "src"]);
    capture.args(["port", &PORT.to_string()]);
    capture.stdout(fs::File::create(&file).unwrap()).stderr(Stdio::piped());
    let mut capture = capture.spawn().unwrap();
    let mut said = BufReader::new(capture.stderr.take().unwrap()).lines();
    said.find(|line| line.as_ref().unwrap().contains("listening")).unwrap().unwrap();
    const CONNECTIONS: usize = 300;
    let mut ports = BTreeSet::new();
    for _ in 0..CONNECTIONS {
        let mut stream = connect(&lab).unwrap();
        ports.insert(stream.local_addr().unwrap().port().to_string());
        ask(&mut stream).unwrap();
    }
    let port_of = |line: &str| {
        let to = line.split(": Flags").next().unwrap();
        to.rsplit('.').next().unwrap().to_owned()
    };
    wait_until("the capture has them all", || {
        let text = fs::read_to_string(&file).unwrap();
        let seen: BTreeSet<_> = text.lines().map(port_of).collect();
        ports.is_subset(&seen)
    });
    kill_process(Pid::from_child(&capture), Signal::INT).unwrap();
    capture.wait().unwrap();
    // By the client's port.
    let mut last = BTreeMap::<String, u32>::new();
    let mut back = Vec::new();
    for line in fs::read_to_string(&file).unwrap().lines() {
        let Some((_, value)) = line.split_once("TS val ") else { continue };
        let value: u32 = value.split(' ').next().unwrap().parse().unwrap();
        let before = last.insert(port_of(line), value);
        if before.is_some_and(|before| (value.wrapping_sub(before) as i32) < 0) {
            back.push(line.to_owned());
        }
    }
    assert!(back.is_empty(), "{} of {CONNECTIONS}: {}", back.len(), back.join("\n"));
}

#[test]
fn processes_that_share_a_port_serve_side_by_side() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _workers = [(); 3].map(|()| workers(&lab, "reuseport"));
    is_on_the_stack(&lab);
    let mut connections = connections_to_all(&lab, 3);
    use_the_queues(&lab, &mut connections);
    one_is_killed(&lab, connections);
}

/// How many connections the kernel of the server has accepted.
fn accepted_by_kernel(lab: &Lab) -> u64 {
    let text = || fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let text = lab.server.enter(text).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut fields = names.zip(values);
    fields.find(|(name, _)| *name == "PassiveOpens").unwrap().1.parse().unwrap()
}

#[test]
fn a_process_has_the_port_alone_once_the_others_have_ended() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut workers = [(); 2].map(|()| Some(workers(&lab, "reuseport")));
    is_on_the_stack(&lab);
    connections_to_all(&lab, 2);
    let before = accepted_by_kernel(&lab);
    ask(&mut connect(&lab).unwrap()).unwrap();
    assert_eq!(accepted_by_kernel(&lab), before + 1);
    workers[0].take();
    is_had_alone(&lab);
}

/// At last the kernel makes none of the connections.
fn is_had_alone(lab: &Lab) {
    wait_until("connections come over the queues alone", || {
        let before = accepted_by_kernel(lab);
        ask(&mut connect(lab).unwrap()).unwrap();
        accepted_by_kernel(lab) == before
    });
}

/// Waits for connections, and gives the port up without having accepted one.
const WAITS_AND_CLOSES: &str = "import select, socket, sys
listener = socket.create_server(('', 7000), reuse_port=True)
select.select([listener], [], [], 0.1)
listener.close()
print('ready', flush=True)
sys.stdin.read()
";

#[test]
fn a_closed_listener_does_not_share_the_port_any_more() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _other = Running::start(&mut run(&lab, &["python3", "-c", WAITS_AND_CLOSES]));
    let _workers = workers(&lab, "reuseport");
    is_on_the_stack(&lab);
    is_had_alone(&lab);
}

/// A server whose kernel has made four connections when it first accepts.
const LATE: &str = "import socket, sys
listener = socket.create_server(('', 7000))
print('ready', flush=True)
sys.stdin.readline()
streams = [listener.accept()[0] for _ in range(4)]
print('accepted', flush=True)
for stream in streams:
    data = b''
    while part := stream.recv(65536):
        data += part
    try: stream.sendall(b'%d' % len(data))
    except OSError: pass
    stream.close()
print('done', flush=True)
";

/// Much data, closed with data, closed without, and a small request.
const SENT: [usize; 4] = [60_000, 5, 0, 5];

/// The server with four connections before it first accepts, and what its command prints.
fn late_server(mut command: Command) -> (Running, PathBuf) {
    let log = temp_dir("log").join("stderr");
    (Running::start(command.stderr(fs::File::create(&log).unwrap())), log)
}

fn late_clients(lab: &Lab) -> Vec<TcpStream> {
    let mut streams: Vec<_> = SENT.iter().map(|_| connect(lab).unwrap()).collect();
    for (stream, len) in streams.iter_mut().zip(SENT) {
        stream.write_all(&vec![7; len]).unwrap();
    }
    streams[1..3].iter().for_each(|stream| stream.shutdown(Shutdown::Write).unwrap());
    // The kernel of the server has it all.
    wait_until("all is acknowledged", || {
        let left = |stream: &TcpStream| {
            let mut bytes: libc::c_int = -1;
            // SAFETY: the kernel writes a number.
            unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
            bytes
        };
        streams.iter().all(|stream| left(stream) == 0)
    });
    streams
}

/// Sends `more` bytes on the first, and checks that each is answered with how many bytes it has sent.
fn all_are_answered(streams: Vec<TcpStream>, mut more: usize) {
    for (mut stream, len) in streams.into_iter().zip(SENT) {
        let more = std::mem::take(&mut more);
        stream.write_all(&vec![7; more]).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, (len + more).to_string());
    }
}

/// With all that the peer has sent, and its end. `--strict`: otherwise the program ends.
#[test]
fn a_connection_is_taken_over_with_what_came_before_accept() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (mut server, log) = late_server(run_with(&lab, &["--strict"], &["python3", "-c", LATE]));
    let streams = late_clients(&lab);
    server.send_line("");
    server.wait_for("accepted");
    // The kernel gets what was on its way.
    thread::sleep(Duration::from_millis(100));
    let before = packet_counts(&lab.server);
    all_are_answered(streams, 1_000_000);
    server.wait_for("done");
    let after = packet_counts(&lab.server);
    assert!(after.0 - before.0 >= 100, "{before:?} {after:?}");
    assert_eq!(after.1, before.1, "received by the kernel");
    assert_eq!(fs::read_to_string(log).unwrap(), "");
}

/// Over the interface alone: memory is refused at once.
fn without_repair(lab: &Lab, options: &[&str]) -> Command {
    let options = [options, &["--no-same-host"]].concat();
    let mut command = run_with(lab, &options, &["python3", "-c", LATE]);
    let repair = [(1, libc::IPPROTO_TCP as u32), (2, libc::TCP_REPAIR as u32)];
    // SAFETY: makes system calls only.
    unsafe { command.pre_exec(move || seccomp::refuse(libc::SYS_setsockopt, &repair)) };
    command
}

#[test]
fn a_connection_that_stays_the_kernels_at_accept_is_said() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (mut server, log) = late_server(without_repair(&lab, &[]));
    let streams = late_clients(&lab);
    server.send_line("");
    server.wait_for("accepted");
    all_are_answered(streams, 0);
    server.wait_for("done");
    let said = fs::read_to_string(log).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("an accepted connection: the kernel refuses TCP_REPAIR; it stays"),
        "{said}"
    );
}

#[test]
fn a_connection_that_stays_the_kernels_ends_a_strict_program() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (mut server, log) = late_server(without_repair(&lab, &["--strict"]));
    let _streams = late_clients(&lab);
    server.send_line("");
    let status = server.child.wait().unwrap();
    let said = fs::read_to_string(log).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("refuses TCP_REPAIR; the program ends, as --strict"), "{said}");
}

/// As on the kernel, whose accepted connections have the listener's SO_REUSEADDR and SO_REUSEPORT.
#[test]
fn a_port_is_bound_again_while_children_serve_its_connections() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let program = "import os, socket, sys
for port, name in (7001, socket.SO_REUSEADDR), (7002, socket.SO_REUSEPORT):
    def listen():
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, name, 1)
        one.bind(('', port))
        one.listen()
        return one
    listener = listen()
    print('ready', flush=True)
    stream, _ = listener.accept()
    if os.fork() == 0:
        listener.close()
        while data := stream.recv(1): stream.sendall(data)
        os._exit(0)
    stream.close()
    listener.close()
    sys.stdin.readline()
    listen().close()
    print('bound', flush=True)
";
    let mut command = lab.server.command(BUSYPOLL);
    let dev = lab.server.interface();
    command.args(["run", "--plane", "stack", "--dev", dev, "--", "python3", "-c", program]);
    let mut server = Running::spawn(&mut command);
    for port in [7001, 7002] {
        server.wait_for("ready");
        let mut client = Client::connect(&lab, port);
        server.send_line("");
        server.wait_for("bound");
        client.exchange(3);
    }
}

/// An answer of nginx.
struct Answer {
    pid: u32,
    /// The server closes the connection.
    closes: bool,
}

/// A GET; `None`: the server has closed the connection before it began to answer.
fn get(stream: &mut TcpStream, connection: &str) -> Option<Answer> {
    let request = format!("GET / HTTP/1.1\r\nHost: lab\r\nConnection: {connection}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nfine") {
        let mut part = [0; 1000];
        match stream.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("no answer"),
            Ok(0) | Err(_) if answer.is_empty() => return None,
            Ok(0) => panic!("it ends within an answer: {answer:?}"),
            Ok(len) => answer.extend_from_slice(&part[..len]),
            Err(error) => panic!("{error} within an answer: {answer:?}"),
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    let pid = answer.split("X-Pid: ").nth(1).unwrap().lines().next().unwrap();
    Some(Answer { pid: pid.parse().unwrap(), closes: answer.contains("Connection: close") })
}

/// The processes that answer connections of their own.
fn answering(lab: &Lab, count: usize) -> BTreeSet<u32> {
    (0..count).map(|_| get(&mut connect(lab).unwrap(), "close").unwrap().pid).collect()
}

/// nginx with four workers, which have no rights.
fn nginx(lab: &Lab) -> Group {
    let folder = temp_dir("nginx");
    readable(&folder);
    let at = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {at}/{what};"))
        .concat();
    let configuration = format!(
        "daemon off; worker_processes 4; pid {at}/pid; error_log {at}/log;\n\
         events {{ worker_connections 500; }}\n\
         http {{ access_log off; {temporary} keepalive_requests 100000;\n\
         server {{ listen {PORT}; location / {{ add_header X-Pid $pid; return 200 fine; }} }} }}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, configuration).unwrap();
    let mut command = run(lab, &["nginx", "-c", file.to_str().unwrap()]);
    let nginx = Group::spawn(&mut command);
    wait_until("nginx serves", || connect(lab).is_ok());
    is_on_the_stack(lab);
    nginx
}

/// Requests without a pause, on new connections and on standing ones, while `meanwhile` runs. None may fail but those of
/// `lost`, and a request on a connection that the server has just closed.
fn under_load(lab: &Lab, lost: &AtomicU32, meanwhile: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let answers = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let answer = get(&mut connect(lab).unwrap(), "close");
                    assert!(answer.is_some() || lost.load(Ordering::Relaxed) > 0);
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut stream = connect(lab).unwrap();
                    let mut first = true;
                    while !stop.load(Ordering::Relaxed) {
                        let answer = get(&mut stream, "keep-alive");
                        assert!(!first || answer.is_some() || lost.load(Ordering::Relaxed) > 0);
                        first = false;
                        answers.fetch_add(1, Ordering::Relaxed);
                        if answer.is_none_or(|answer| answer.closes) {
                            break;
                        }
                    }
                }
            });
        }
        meanwhile();
        let before = answers.load(Ordering::Relaxed);
        wait_until("requests go on", || answers.load(Ordering::Relaxed) > before + 200);
        stop.store(true, Ordering::Relaxed);
    });
}

/// Reloads nginx that many times: all its workers are replaced.
fn workers_are_replaced(times: u32) {
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let nginx = nginx(&lab);
    under_load(&lab, &AtomicU32::new(0), || {
        for _ in 0..times {
            let before = answering(&lab, 30);
            let master = Pid::from_raw(nginx.0.pid().cast_signed()).unwrap();
            kill_process(master, Signal::HUP).unwrap();
            wait_until("all workers are new", || answering(&lab, 10).is_disjoint(&before));
        }
    });
}

#[test]
fn nginx_is_reloaded_under_load_without_a_failed_request() {
    needs_root!();
    needs!(program "nginx");
    workers_are_replaced(1);
}

#[test]
#[ignore = "long: ten seconds"]
fn nginx_is_reloaded_often_under_load() {
    needs_root!();
    needs!(program "nginx");
    workers_are_replaced(10);
}

/// Kills one of nginx's workers that many times.
fn workers_are_killed(times: u32) {
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _nginx = nginx(&lab);
    for _ in 0..times {
        let mut standing = Vec::new();
        // A new worker leaves connections to the kernel until it has its queues.
        wait_until("all workers take connections over", || {
            standing = (0..20)
                .map(|_| {
                    let mut stream = connect(&lab).unwrap();
                    let pid = get(&mut stream, "keep-alive").unwrap().pid;
                    (stream, pid)
                })
                .collect();
            let before = packet_counts(&lab.server);
            for (stream, pid) in &mut standing {
                (0..5).for_each(|_| assert_eq!(get(stream, "keep-alive").unwrap().pid, *pid));
            }
            let after = packet_counts(&lab.server);
            let (came, seen) = (after.0 - before.0, after.1 - before.1);
            came >= 100 && seen * 10 <= came
        });
        let victim = standing[0].1;
        under_load(&lab, &AtomicU32::new(1), || kill(victim));
        for (stream, pid) in &mut standing {
            let answer = get(stream, "keep-alive").map(|answer| answer.pid);
            assert_eq!(answer, (*pid != victim).then_some(*pid));
        }
    }
}

#[test]
fn a_killed_worker_of_nginx_loses_only_what_it_held() {
    needs_root!();
    needs!(program "nginx");
    workers_are_killed(2);
}

#[test]
#[ignore = "long: ten seconds"]
fn workers_of_nginx_are_killed_often() {
    needs_root!();
    needs!(program "nginx");
    workers_are_killed(60);
}
