//! `busypoll attach --follow`: sockets that are opened later, also by children.

#[path = "support/attached.rs"]
mod attached;
#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use attached::*;
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::EpollParams;
use busypoll_linux::process::{Process, Wait};
use echo::*;
use support::*;

/// A `busypoll attach --follow`; killed when it is dropped.
struct Follower {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Follower {
    fn start(lab: &Lab, state: &Path, arguments: &[&str]) -> Self {
        let mut command = busypoll(lab, state, &["attach", "--follow"]);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Follower { child, output }
    }

    /// The next line that contains all of `wanted`.
    fn wait_for(&mut self, wanted: &[&str]) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if wanted.iter().all(|wanted| line.contains(wanted)) {
                return line;
            }
            line.clear();
        }
        panic!("it ended without {wanted:?}");
    }

    /// The CPU time it has taken, in clock ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        // utime and stime, fields 14 and 15 of proc(5); here field 3 comes first.
        fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python program on the server that prints "ready".
fn script(lab: &Lab, text: &str, arguments: &[&str]) -> Running {
    Running::start(lab.server.command("python3").args(["-c", text]).args(arguments))
}

#[test]
fn sockets_that_a_followed_process_or_its_child_opens_later_are_changed() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut server = python(&lab.server);
    let state = temp_dir("state");
    let pid = server.pid().to_string();
    // The policy allows more spinners than there are CPUs.
    let policy = state.join("policy.toml");
    fs::write(&policy, "busy_poll = '20ms'\nmax_spinning_threads = 8\n").unwrap();
    let policy = policy.to_str().unwrap();
    let mut follower = Follower::start(&lab, &state, &[&pid, "--policy", policy]);
    follower.wait_for(&["changed"]);
    server.send_line("thread 7100");
    server.wait_for("opened");
    follower.wait_for(&["udp", "0.0.0.0:7100", "off -> 20ms"]);
    busy_polling_finds_packets(&lab, || exchange_udp(&lab, 7100, 200));
    server.send_line("fork 7200");
    server.wait_for("opened");
    follower.wait_for(&["udp", "0.0.0.0:7200", "off -> 20ms"]);
    // The first command still uses the journal; the error names its PID.
    let second = busypoll(&lab, &state, &["detach", &pid]).output().unwrap();
    let complaint = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(complaint.contains(&follower.child.id().to_string()), "{complaint}");
    assert_eq!(second.status.code(), Some(2));
    // However the command ends, its changes can be rolled back.
    drop(follower);
    assert!(busy_polls(server.pid()).contains(&20_000));
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(!busy_polls(server.pid()).contains(&20_000));
    assert_eq!(epolls(server.pid()), [EpollParams::default()]);
    let again = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(again.contains("no changes to it are recorded"), "{again}");
    let child = Process::open(server.pid()).unwrap().children();
    assert_eq!(child.len(), 1);
    succeeds(&mut busypoll(&lab, &state, &["detach", &child[0].to_string()]));
}

#[test]
fn threads_that_spin_already_count_when_a_second_command_follows() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    // "thread PORT": a thread that receives once on a socket of its own. "idle PORT": a socket alone.
    let mut server = script(
        &lab,
        "import socket, sys, threading, time\n\
         def udp(port):\n\
         \ts = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         \ts.bind(('0.0.0.0', port))\n\
         \treturn s\n\
         def once(s):\n\
         \ts.recv(1)\n\
         \ttime.sleep(600)\n\
         held = []\n\
         print('ready', flush=True)\n\
         for line in sys.stdin:\n\
         \twhat, port = line.split()\n\
         \theld.append(udp(int(port)))\n\
         \tif what == 'thread':\n\
         \t\tthreading.Thread(target=once, args=(held[-1],), daemon=True).start()",
        &[],
    );
    let process = Process::open(server.pid()).unwrap();
    let receivers = || {
        let threads = process.threads().unwrap();
        // Another thread reads standard input.
        threads.iter().filter(|t| matches!(t.wait, Wait::Receive { fd: 1.., .. })).count()
    };
    let state = temp_dir("state");
    let policy = state.join("policy.toml");
    fs::write(&policy, "max_spinning_threads = 1\n").unwrap();
    let pid = server.pid().to_string();
    let arguments = [&pid, "--policy", policy.to_str().unwrap()];
    server.send_line("thread 7100");
    wait_until("one receives", || receivers() == 1);
    succeeds(busypoll(&lab, &state, &["attach"]).args(arguments));
    assert_eq!(busy_polls(server.pid()), [50]);
    server.send_line("thread 7101");
    wait_until("two receive", || receivers() == 2);
    let mut follower = Follower::start(&lab, &state, &arguments);
    let line = follower.wait_for(&["0.0.0.0:7101"]);
    assert!(line.contains("one spinner too many: 1 of 1"), "{line}");
    // A thread that leaves its receive still counts: it will come back.
    let client = lab.client.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for port in [7100, 7101] {
        client.send_to(b"x", (lab.server.ipv4(), port)).unwrap();
    }
    wait_until("none receives", || receivers() == 0);
    server.send_line("idle 7102");
    follower.wait_for(&["0.0.0.0:7102", "off -> 50us"]);
    assert_eq!(busy_polls(server.pid()), [50, 0, 50]);
}

#[test]
fn a_thread_that_receives_on_several_sockets_is_one_spinner() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = script(
        &lab,
        "import socket\n\
         held = []\n\
         print('ready', flush=True)\n\
         for port in (7100, 7101, 7102):\n\
         \theld.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))\n\
         \theld[-1].bind(('0.0.0.0', port))\n\
         \theld[-1].recv(1)",
        &[],
    );
    let process = Process::open(server.pid()).unwrap();
    let receives = || {
        let threads = process.threads().unwrap();
        threads.iter().any(|t| matches!(t.wait, Wait::Receive { .. }))
    };
    wait_until("it receives", receives);
    let state = temp_dir("state");
    let policy = state.join("policy.toml");
    fs::write(&policy, "max_spinning_threads = 1\n").unwrap();
    let pid = server.pid().to_string();
    let mut follower = Follower::start(&lab, &state, &[&pid, "--policy", policy.to_str().unwrap()]);
    follower.wait_for(&["changed"]);
    let client = lab.client.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for (port, polls) in [(7100, vec![50; 2]), (7101, vec![50; 3])] {
        client.send_to(b"x", (lab.server.ipv4(), port)).unwrap();
        wait_until("the next one polls", || busy_polls(server.pid()) == polls);
    }
}

#[test]
fn a_followed_child_is_judged_by_the_program_it_becomes() {
    needs_root!();
    needs!(program "cc", program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let program = static_c();
    let mut parent = script(
        &lab,
        "import os, signal, socket, sys\n\
         print('ready', flush=True)\n\
         sys.stdin.readline()\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         sys.stdin.readline()\n\
         if os.fork() == 0:\n\
         \tsignal.alarm(60)\n\
         \tsys.stdin.readline()\n\
         \tos.execv(sys.argv[1], ['echo', '7001'])\n\
         os.wait()",
        &[program.to_str().unwrap()],
    );
    let state = temp_dir("state");
    let policy = state.join("policy.toml");
    fs::write(&policy, "plane='off'\n[[rule]]\nprogram='echo'\nplane='kernel'\nbusy_poll=33\n")
        .unwrap();
    let pid = parent.pid().to_string();
    let mut follower = Follower::start(&lab, &state, &[&pid, "--policy", policy.to_str().unwrap()]);
    follower.wait_for(&["It has no socket"]);
    // Once a socket is reported, children are reported too.
    parent.send_line("open");
    follower.wait_for(&[&format!("{pid}  fd"), "the policy leaves it alone"]);
    parent.send_line("fork");
    let mut child = 0;
    wait_until("the child", || {
        child = Process::open(parent.pid()).unwrap().children().first().copied().unwrap_or(0);
        child != 0
    });
    follower.wait_for(&[&format!("{child}  fd"), "the policy leaves it alone"]);
    parent.send_line("exec");
    wait_until("the child polls", || busy_polls(child) == [33]);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

#[test]
fn a_value_that_the_program_sets_meanwhile_is_restored() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let bind = || TcpListener::bind((lab.client.ipv4(), 7000));
    let listener = lab.client.enter(bind).unwrap().unwrap();
    // When it is woken from poll it sets SO_BUSY_POLL, and from then on waits in recv.
    let server = script(
        &lab,
        "import select, socket, sys\n\
         s = socket.create_connection((sys.argv[1], 7000))\n\
         p = select.poll()\n\
         p.register(s, select.POLLIN)\n\
         print('ready', flush=True)\n\
         p.poll()\n\
         s.setsockopt(socket.SOL_SOCKET, 46, 200)\n\
         s.recv(1)\n\
         s.recv(1)",
        &[&lab.client.ipv4().to_string()],
    );
    let (mut peer, _) = listener.accept().unwrap();
    let process = Process::open(server.pid()).unwrap();
    wait_until("it polls", || matches!(process.threads().unwrap()[0].wait, Wait::Poll { .. }));
    let state = temp_dir("state");
    let pid = server.pid().to_string();
    let mut follower = Follower::start(&lab, &state, &[&pid, "--busy-poll", "40"]);
    follower.wait_for(&["waits in poll or select"]);
    assert_eq!(busy_polls(server.pid()), [0]);
    peer.write_all(b"x").unwrap();
    wait_until("it is changed", || busy_polls(server.pid()) == [40]);
    drop(follower);
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(busy_polls(server.pid()), [200]);
}

#[test]
fn a_followed_process_that_has_ended_costs_no_cpu() {
    needs_root!();
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let state = temp_dir("state");
    let sleepers = [(); 3].map(|()| Running::spawn(Command::new("sleep").arg("600")));
    let pids = sleepers.each_ref().map(|sleeper| sleeper.pid().to_string());
    let pids = pids.each_ref().map(String::as_str);
    let mut follower = Follower::start(&lab, &state, &pids);
    follower.wait_for(&[&format!("process {}", pids[2])]);
    // It has scanned just before it reports the first process, and scans again in a second.
    let mut ticks = Vec::new();
    for (sleeper, pid) in sleepers.into_iter().zip(pids) {
        sleeper.end();
        follower.wait_for(&[pid, "has ended"]);
        ticks.push(follower.ticks());
    }
    assert!(ticks[2] - ticks[0] < 30, "ticks of 10 ms: {ticks:?}");
    assert!(follower.child.wait().unwrap().success());
}
