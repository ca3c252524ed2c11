//! A connection follows its user: the parent accepts it, and the child that alone has it takes it over from the kernel.
//! Every byte comes, in order; no connection has two owners, and none is silent when a process is killed.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::*;

four_tests_at_a_time!();

const PORT: u16 = 7000;

fn server(lab: &Lab, how: &str) -> Group {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--", "python3"]);
    Group::start(command.arg(source("child_serves.py")).args([&PORT.to_string(), how]))
}

/// A connection of a plain client.
struct Asker(TcpStream);

impl Asker {
    fn connect(lab: &Lab) -> Asker {
        let address = SocketAddr::from((lab.server.ipv4(), PORT));
        let stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Asker(stream)
    }

    /// The process that has answered with the same data.
    fn ask(&mut self, data: &[u8]) -> io::Result<u32> {
        let request = [format!("{:06}", data.len()).as_bytes(), data].concat();
        // The data may come in parts.
        let (first, rest) = request.split_at(request.len() / 2);
        self.0.write_all(first)?;
        self.0.write_all(rest)?;
        let mut answer = vec![0; 7 + data.len()];
        self.0.read_exact(&mut answer)?;
        let (pid, echo) = answer.split_at(7);
        assert!(echo == data, "other data came back");
        Ok(str::from_utf8(pid).unwrap().parse().unwrap())
    }

    /// Exchanges of all sizes, all answered by one process.
    fn converse(&mut self, times: usize) -> u32 {
        let pids: Vec<u32> = (0..times)
            .map(|at| {
                let len = [1, 100, 3_000, 40_000][at % 4] + at;
                let data: Vec<u8> = (0..len).map(|n| (n * 31 + at) as u8).collect();
                self.ask(&data).unwrap()
            })
            .collect();
        assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
        pids[0]
    }

    /// The process on whose stack it is.
    fn owner(&self, lab: &Lab) -> Option<u32> {
        let remote = self.0.local_addr().unwrap().to_string();
        let listed = text(&run_on_host(&lab.server, &["ss", "--json"]));
        let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut its = rows.filter(|row| row["peer"] == *remote && row["state"] == "ESTAB");
        let owner = its.next()?["pid"].as_u64().map(|pid| pid as u32);
        assert!(its.next().is_none(), "two processes have it");
        owner
    }

    fn is_reset(&mut self) {
        let ended = self.0.read(&mut [0; 16]);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_child_takes_over_a_connection_that_it_alone_has() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for how in ["closes", "epoll", "waits"] {
        let lab = Lab::builder().build().unwrap();
        let server = server(&lab, how);
        // The kernel makes the connections that wait when the parent first accepts.
        Asker::connect(&lab).ask(b"first").unwrap();
        let mut askers = [(); 3].map(|()| Asker::connect(&lab));
        for asker in &mut askers {
            let child = asker.converse(600);
            assert_ne!(child, server.0.pid());
            assert_eq!(asker.owner(&lab), Some(child), "{how}");
            // Over the queues: the kernel's counters do not move.
            bypasses_the_kernel(&lab.server, || {
                asker.converse(200);
            });
        }
        // The port and the others are as before.
        askers.iter_mut().for_each(|asker| assert_ne!(asker.converse(20), 0));
        Asker::connect(&lab).converse(20);
    }
}

#[test]
fn a_connection_that_others_may_have_stays_the_kernels() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for how in ["keeps", "two"] {
        let lab = Lab::builder().build().unwrap();
        let _server = server(&lab, how);
        let mut askers = [(); 3].map(|()| Asker::connect(&lab));
        for asker in &mut askers {
            asker.converse(400);
            assert_eq!(asker.owner(&lab), None, "{how}");
        }
    }
    // Another process gets it in the middle, or before it is taken over.
    for letters in ["pair", "fork"] {
        let lab = Lab::builder().build().unwrap();
        let _server = server(&lab, "waits");
        let mut asker = Asker::connect(&lab);
        asker.converse(20);
        asker.ask(letters.as_bytes()).unwrap();
        asker.ask(b"of either").unwrap();
        asker.converse(400);
        assert_eq!(asker.owner(&lab), None, "{letters}");
    }
}

/// Where the parent keeps its copy, the kernel has the next connection before the child asks.
#[test]
fn what_the_next_child_is_expected_to_use_is_handed_over_before_it_asks() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = server(&lab, "keeps");
    assert_ne!(Asker::connect(&lab).converse(4), server.0.pid());
    let mut askers = [(); 3].map(|()| Asker::connect(&lab));
    for asker in &askers {
        let established = format!(":{:04X} 01", asker.0.local_addr().unwrap().port());
        let kernel_has_it = || {
            let listed = lab.server.command("cat").arg("/proc/net/tcp").output().unwrap();
            text(&listed).contains(&established)
        };
        wait_until("the kernel has the connection", kernel_has_it);
    }
    for asker in &mut askers {
        assert_ne!(asker.converse(40), server.0.pid());
        assert_eq!(asker.owner(&lab), None);
    }
}

#[test]
fn nothing_is_expected_of_children_once_one_has_not_used_its_connection() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = server(&lab, "turns");
    let mut first = Asker::connect(&lab);
    assert_ne!(first.converse(4), server.0.pid());
    // The parent serves all others. It may learn only during the first of them that the child has not used that.
    let stays = (0..10).filter(|_| {
        let mut asker = Asker::connect(&lab);
        assert_eq!(asker.converse(40), server.0.pid());
        asker.owner(&lab) == Some(server.0.pid())
    });
    assert!(stays.count() >= 7);
    first.converse(4);
}

/// The move takes twenty milliseconds, during which the parent closes the connection.
#[test]
fn a_parent_that_ends_during_a_move_ends_after_it() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for _ in 0..5 {
        let lab = Lab::builder().build().unwrap();
        let mut server = server(&lab, "leaves");
        let mut asker = Asker::connect(&lab);
        assert_ne!(asker.converse(4), server.0.pid());
        server.0.child.wait().unwrap();
        asker.converse(40);
    }
}

#[test]
fn a_child_whose_parent_is_killed_during_a_move_finds_the_connection_closed() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    // On a busy machine the move may be over before.
    for _ in 0..20 {
        let lab = Lab::builder().build().unwrap();
        let mut server = server(&lab, "closes");
        let mut asker = Asker::connect(&lab);
        asker.ask(b"first").unwrap();
        // What has just been taken over cannot move on for a moment.
        asker.ask(b"die").unwrap();
        if asker.ask(b"of the grandchild").is_err() {
            let has = server.0.wait_for("the child has");
            let is_closed =
                ["ConnectionAborted", "not connected"].iter().any(|it| has.contains(it));
            return assert!(is_closed, "{has}");
        }
    }
    panic!("no parent was killed during a move");
}

#[test]
fn what_a_child_has_taken_over_goes_on_to_the_processes_that_it_starts() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = server(&lab, "closes");
    for letters in ["cat", "sub", "fork", "pair"] {
        let mut asker = Asker::connect(&lab);
        let child = asker.converse(400);
        assert_eq!(asker.owner(&lab), Some(child), "{letters}");
        asker.ask(letters.as_bytes()).unwrap();
        if matches!(letters, "cat" | "sub") {
            asker.0.write_all(b"abc").unwrap();
            let mut answer = [0; 3];
            asker.0.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"abc", "{letters}");
        }
        asker.ask(b"of either").unwrap();
        asker.converse(100);
        // The entry that steers it outlives the process that had it.
        Asker::connect(&lab).converse(100);
        asker.converse(100);
    }
}

#[test]
fn a_connection_ends_with_the_child_that_has_taken_it_over_and_not_with_its_parent() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut server = server(&lab, "closes");
    let mut askers = [(); 3].map(|()| Asker::connect(&lab));
    let children = [0, 1, 2].map(|at| askers[at].converse(400));
    for (asker, child) in askers.iter().zip(children) {
        assert_eq!(asker.owner(&lab), Some(child));
    }
    let [first, second, third] = &mut askers;
    kill(children[0]);
    first.is_reset();
    second.converse(100);
    Asker::connect(&lab).converse(20);
    server.0.child.kill().unwrap();
    server.0.child.wait().unwrap();
    second.converse(200);
    third.converse(200);
    assert_eq!(second.owner(&lab), Some(children[1]));
    // It closes it in the ordinary way, too.
    third.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(third.0.read(&mut [0; 16]).unwrap(), 0);
    kill(children[1]);
    second.is_reset();
}

/// The peer ends its half before the connection is handed over, between that and the take-over, and after both.
#[test]
fn the_end_of_what_a_peer_sends_comes_to_the_child() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for how in ["closes", "epoll"] {
        let lab = Lab::builder().build().unwrap();
        let _server = server(&lab, how);
        Asker::connect(&lab).ask(b"first").unwrap();
        for exchanges in [0, 1, 2, 3, 0, 1, 2, 3] {
            let mut asker = Asker::connect(&lab);
            (0..exchanges).for_each(|_| assert_ne!(asker.ask(b"data").unwrap(), 0));
            let last = b"000001x".repeat(40);
            asker.0.write_all(&last).unwrap();
            asker.0.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answers = Vec::new();
            asker.0.read_to_end(&mut answers).unwrap();
            assert_eq!(answers.len(), 40 * 8, "{how}, {exchanges}");
        }
    }
}

/// Nothing of the connections stays behind in the parent, or in the map that steers.
#[test]
fn many_connections_are_taken_over_one_after_the_other() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = server(&lab, "closes");
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", server.0.pid())).unwrap().count();
    let mut before = 0;
    for round in 0..30 {
        let mut asker = Asker::connect(&lab);
        let child = asker.converse(60);
        if round > 0 {
            assert_eq!(asker.owner(&lab), Some(child), "{round}");
        }
        asker.0.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(asker.0.read(&mut [0; 16]).unwrap(), 0);
        drop(asker);
        let gone = || !std::path::Path::new(&format!("/proc/{child}/fd/0")).exists();
        wait_until("the child ends", gone);
        if round == 4 {
            before = descriptors();
        }
    }
    wait_until("the parent has as many descriptors as before", || descriptors() <= before + 2);
}

/// The parent makes a connection and closes it, or keeps it, and a child uses it.
const MADE: &str = "
import os, socket, sys
peer, how = sys.argv[1:]
def echoed(stream, data):
    stream.sendall(data)
    assert stream.recv(10) == data
if how == 'early':
    # A process has the socket before it is connected.
    stream = socket.socket()
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    stream.connect((peer, 7001))
else:
    stream = socket.create_connection((peer, 7001))
echoed(stream, b'parent')
if os.fork() == 0:
    for n in range(600):
        echoed(stream, b'%d' % n)
    print('used', os.getpid(), stream.getsockname()[1], flush=True)
    sys.stdin.read()
if how != 'keeps':
    stream.close()
sys.stdin.read()
";

#[test]
fn a_child_takes_over_a_connection_that_its_parent_made_and_closed() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut echo = lab.client.command("python3");
    let _echo = Running::start(echo.arg(source("echo.py")).arg("7001"));
    for (how, is_alone) in [("closes", true), ("keeps", false), ("early", false)] {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--"]);
        command.args(["python3", "-c", MADE, &lab.client.ipv4().to_string(), how]);
        let mut program = Group::spawn(&mut command);
        let line = program.0.wait_for("used");
        let [pid, port] = [1, 2].map(|at| line.split(' ').nth(at).unwrap().trim().to_owned());
        let listed = text(&run_on_host(&lab.server, &["ss", "--json"]));
        let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_its = |row: &Value| {
            let local = row["local"].as_str().unwrap_or_default();
            row["state"] == "ESTAB" && local.ends_with(&format!(":{port}"))
        };
        let owners: Vec<String> = rows.filter(is_its).map(|row| row["pid"].to_string()).collect();
        assert_eq!(owners, if is_alone { vec![pid] } else { vec![] }, "{how}");
    }
}

/// The parent closes a connection that a child has, which uses it or does not. Of two connections that the kernel has
/// made before it first accepts it takes the second one later.
const CLOSES: &str = "
import os, signal, socket, sys
first, second = socket.create_server(('', 7000)), socket.create_server(('', 7001))
print('ready', flush=True)
sys.stdin.readline()
one, _ = first.accept()
if os.fork() == 0:
    if sys.argv[1] == 'uses':
        one.recv(1)
        one.sendall(b'x')
    signal.pause()
one.close()
print('closed', flush=True)
sys.stdin.readline()
two, _ = second.accept()
two.recv(1)
print('accepted', flush=True)
sys.stdin.read()
";

#[test]
fn a_connection_that_no_child_uses_does_not_keep_others_with_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for (how, is_used) in [("closes", false), ("uses", true)] {
        let lab = Lab::builder().build().unwrap();
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--"]);
        command.args(["python3", "-c", CLOSES, how]);
        let log = temp_dir("log").join("stderr");
        let mut server = Group::start(command.stderr(std::fs::File::create(&log).unwrap()));
        let connect = |port| {
            let address = SocketAddr::from((lab.server.ipv4(), port));
            Asker(lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap())
        };
        let (mut one, mut two) = (connect(PORT), connect(PORT + 1));
        two.0.write_all(b"x").unwrap();
        server.0.send_line("");
        server.0.wait_for("closed");
        wait_until("it is the kernel's", || one.owner(&lab).is_none());
        let says = || std::fs::read_to_string(&log).unwrap().contains("a child process uses");
        if is_used {
            one.0.write_all(b"x").unwrap();
            one.0.read_exact(&mut [0]).unwrap();
            wait_until("it says so", says);
        }
        server.0.send_line("");
        server.0.wait_for("accepted");
        assert_eq!(two.owner(&lab), (!is_used).then(|| server.0.pid()), "{how}");
        assert_eq!(says(), is_used, "{how}");
    }
}

/// A program that relays between two connections: it has a Host by the second one.
#[test]
fn a_child_of_socat_takes_its_connection_over() {
    needs_root!();
    needs!(program "python3");
    needs!(program "socat");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut echo = lab.client.command("python3");
    let _echo = Running::start(echo.arg(source("echo.py")).arg("7001"));
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--", "socat"]);
    command.arg(format!("TCP-LISTEN:{PORT},fork,reuseaddr"));
    let _socat = Group::spawn(command.arg(format!("TCP:{}:7001", lab.client.ipv4())));
    let address = SocketAddr::from((lab.server.ipv4(), PORT));
    let connect = || lab.client.enter(|| TcpStream::connect(address)).unwrap();
    let mut first = None;
    wait_until("socat listens", || {
        first = connect().ok();
        first.is_some()
    });
    let mut asker = Asker(first.unwrap());
    asker.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for at in 0..600_u32 {
        let data = at.to_ne_bytes();
        asker.0.write_all(&data).unwrap();
        let mut echo = [0; 4];
        asker.0.read_exact(&mut echo).unwrap();
        assert_eq!(echo, data);
    }
    assert!(asker.owner(&lab).is_some());
}
