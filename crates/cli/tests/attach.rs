//! `busypoll attach` and `detach` on real programs: what they change takes effect on packets from another
//! host, and is put back.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::process::{Kind, Process, Wait};
use busypoll_linux::{EpollParams, socket, sockopt};
use echo::*;
use rustix::event::epoll;
use support::*;

const PORT: u16 = 7000;
const TIMES: u32 = 200;

/// Attached, the program's busy polling finds packets; before and after, it finds none.
fn takes_effect(lab: &Lab, pid: u32, client: &mut Client) -> String {
    let state = place("state");
    let (server, number) = (&lab.server, pid.to_string());
    let exchange = |client: &mut Client| busy_polled(server, || client.exchange(TIMES));
    assert_eq!(exchange(client), 0, "before");
    let report = succeeds(&mut busypoll(lab, &state, &["attach", &number, "--busy-poll", LONG]));
    finds_packets(lab, || client.exchange(TIMES));
    let detached = succeeds(&mut busypoll(lab, &state, &["detach", &number]));
    assert!(detached.contains(", 0 left alone"), "{detached}");
    // What was sent while it went from polling to sleeping may still be found by polling.
    client.exchange(10);
    assert_eq!(exchange(client), 0, "after; {detached}");
    assert_eq!(epolls(pid).iter().filter(|p| **p != EpollParams::default()).count(), 0);
    report
}

fn sockets(pid: u32) -> Vec<(i32, OwnedFd)> {
    let process = Process::open(pid).unwrap();
    let found = process.descriptors().unwrap();
    found
        .into_iter()
        .filter(|found| matches!(found.kind, Kind::Socket { .. }))
        .filter_map(|found| Some((found.fd, process.take(found.fd).unwrap()?)))
        .collect()
}

/// `SO_BUSY_POLL` of each TCP and UDP socket that is not loopback's.
fn busy_polls(pid: u32) -> Vec<u32> {
    let ip = |taken: &OwnedFd| i32::from(socket::info(taken).unwrap().family) == libc::AF_INET;
    sockets(pid)
        .into_iter()
        .filter(|(_, taken)| ip(taken))
        .map(|(_, taken)| sockopt::busy_poll(taken).unwrap())
        .collect()
}

fn port() -> String {
    PORT.to_string()
}

fn python(host: &LabHost) -> Running {
    Running::start(host.command("python3").arg(source("echo.py")).arg(port()))
}

#[test]
fn a_python_server_that_waits_in_epoll() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let mut client = Client::connect(&lab, PORT);
    let report = takes_effect(&lab, server.pid(), &mut client);
    for wanted in [
        "1 in epoll_wait",
        "epoll",
        "off  20ms",
        "tcp listener  0.0.0.0:7000",
        lab.server.interface(),
        "is waited for in epoll",
        "has no receive queue",
        &format!("busypoll detach {}", server.pid()),
    ] {
        assert!(report.contains(wanted), "no {wanted:?} in:\n{report}");
    }
}

#[test]
fn a_static_server_that_waits_in_recv_also_for_connections_to_come() {
    needs_root!();
    needs!(program "cc");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(static_c()).arg(port()));
    let mut client = Client::connect(&lab, PORT);
    takes_effect(&lab, server.pid(), &mut client);
    assert_eq!(busy_polls(server.pid()), [0, 0]);
    // One spinner for one CPU: the listener costs none and hands the setting down.
    let state = place("state");
    let pid = server.pid().to_string();
    drop(client);
    wait_until("the connection is closed", || busy_polls(server.pid()) == [0]);
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", LONG]));
    let mut later = Client::connect(&lab, PORT);
    assert_eq!(busy_polls(server.pid()), [20_000, 20_000]);
    finds_packets(&lab, || later.exchange(TIMES));
    // The one that inherited it is not ours to put back.
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(busy_polls(server.pid()), [0, 20_000]);
}

#[test]
fn redis_as_it_is() {
    needs_root!();
    needs!(program "redis-server", program "redis-cli");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let mut redis = lab.server.command("redis-server");
    redis.args(["--port", "6379", "--save", "", "--protected-mode", "no"]);
    redis.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut redis = redis.spawn().unwrap();
    let mut output = BufReader::new(redis.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("Ready to accept connections") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0);
    }
    let state = place("state");
    let pid = redis.id().to_string();
    let ping = |times: &str| {
        let host = lab.server.ipv4().to_string();
        let mut cli = lab.client.command("redis-cli");
        cli.args(["-h", &host, "-r", times, "PING"]);
        assert_eq!(succeeds(&mut cli).matches("PONG").count().to_string(), times);
    };
    assert_eq!(busy_polled(&lab.server, || ping("200")), 0);
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", LONG]));
    finds_packets(&lab, || ping("200"));
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(busy_polled(&lab.server, || ping("200")), 0);
    redis.kill().unwrap();
    redis.wait().unwrap();
}

#[test]
fn a_go_server() {
    needs_root!();
    needs!(program "go");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(go()).arg(port()));
    let mut client = Client::connect(&lab, PORT);
    takes_effect(&lab, server.pid(), &mut client);
}

#[test]
fn a_java_server() {
    needs_root!();
    needs!(program "java", program "javac");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let folder = place("java");
    build(Command::new("javac").arg("-d").arg(&folder).arg(source("Echo.java")));
    let server = Running::start(
        lab.server
            .command("java")
            .args(["-Xshare:auto", "-XX:+UseSerialGC", "-cp"])
            .arg(&folder)
            .args(["Echo", &port()]),
    );
    let mut client = Client::connect(&lab, PORT);
    takes_effect(&lab, server.pid(), &mut client);
}

#[test]
fn a_process_in_another_network_namespace_from_outside() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let mut client = Client::connect(&lab, PORT);
    let state = place("state");
    let pid = server.pid().to_string();
    let outside = |arguments: &[&str]| {
        let mut command = Command::new(BUSYPOLL);
        succeeds(command.env("BUSYPOLL_STATE", &state).args(arguments))
    };
    let report = outside(&["attach", &pid, "--busy-poll", LONG]);
    assert!(report.contains(lab.server.interface()), "the device's name: {report}");
    finds_packets(&lab, || client.exchange(TIMES));
    outside(&["detach", &pid]);
    assert_eq!(epolls(server.pid()), [EpollParams::default()]);
}

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

    /// The next line with all of this.
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
        // Fields 14 and 15 of proc(5), the third being the first here.
        fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python program on the server that says "ready".
fn script(lab: &Lab, text: &str, arguments: &[&str]) -> Running {
    Running::start(lab.server.command("python3").args(["-c", text]).args(arguments))
}

#[test]
fn what_a_followed_process_opens_is_caught_and_its_children_too() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let mut server = python(&lab.server);
    let state = place("state");
    let pid = server.pid().to_string();
    // Two more that spin are wanted than there are CPUs.
    let policy = state.join("policy.toml");
    fs::write(&policy, "busy_poll = '20ms'\nmax_spinning_threads = 8\n").unwrap();
    let policy = policy.to_str().unwrap();
    let mut follower = Follower::start(&lab, &state, &[&pid, "--policy", policy]);
    follower.wait_for(&["changed"]);
    server.say("thread 7100");
    server.wait_for("opened");
    follower.wait_for(&["udp", "0.0.0.0:7100", "off -> 20ms"]);
    finds_packets(&lab, || exchange_udp(&lab, 7100, TIMES));
    server.say("fork 7200");
    server.wait_for("opened");
    follower.wait_for(&["udp", "0.0.0.0:7200", "off -> 20ms"]);
    // The first is in use, and says by whom.
    let second = busypoll(&lab, &state, &["detach", &pid]).output().unwrap();
    let complaint = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(complaint.contains(&follower.child.id().to_string()), "{complaint}");
    assert_eq!(second.status.code(), Some(2));
    // However it ends, what it wrote down can be put back.
    drop(follower);
    assert!(busy_polls(server.pid()).contains(&20_000));
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(!busy_polls(server.pid()).contains(&20_000));
    assert_eq!(epolls(server.pid()), [EpollParams::default()]);
    let again = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(again.contains("no changes to it are written down"), "{again}");
    let child = Process::open(server.pid()).unwrap().children();
    assert_eq!(child.len(), 1);
    succeeds(&mut busypoll(&lab, &state, &["detach", &child[0].to_string()]));
}

#[test]
fn a_policy_chooses_the_sockets() {
    needs_root!();
    needs!(program "cc");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let program = static_c();
    let one = Running::start(lab.server.command(&program).arg("7001"));
    let two = Running::start(lab.server.command(&program).arg("7002"));
    let state = place("state");
    let policy = state.join("policy.toml");
    fs::write(
        &policy,
        "plane = 'off'\n[[rule]]\nprogram='echo'\nlocal_port=7002\nplane='kernel'\nbusy_poll=33\n",
    )
    .unwrap();
    // As an update of it leaves it: the program that runs has no file any more.
    fs::remove_file(&program).unwrap();
    let pids = [one.pid().to_string(), two.pid().to_string()];
    let arguments = ["attach", &pids[0], &pids[1], "--policy", policy.to_str().unwrap()];
    let report = succeeds(&mut busypoll(&lab, &state, &arguments));
    assert!(report.contains("the policy leaves it alone"), "{report}");
    assert_eq!((busy_polls(one.pid()), busy_polls(two.pid())), (vec![0], vec![33]));
    fs::write(&policy, "[[rule]]\nlocal_prot=7002\nbusy_poll=33\n").unwrap();
    let refused = busypoll(&lab, &state, &arguments).output().unwrap();
    complains(&refused, &["policy.toml:2", "did you mean 'local_port'?"]);
}

#[test]
fn what_somebody_else_has_changed_since_is_left_alone() {
    needs_root!();
    needs!(program "cc");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(static_c()).arg(port()));
    let state = place("state");
    let pid = server.pid().to_string();
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", "40"]));
    assert_eq!(busy_polls(server.pid()), [40]);
    for (_, socket) in sockets(server.pid()) {
        sockopt::set_busy_poll(&socket, 77).unwrap();
    }
    let report = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(report.contains("left: SO_BUSY_POLL is 77, not the 40 we wrote"), "{report}");
    assert_eq!(busy_polls(server.pid()), [77]);
}

#[test]
fn twice_attached_what_stood_first_comes_back() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let state = place("state");
    let pid = server.pid().to_string();
    for us in ["40", "60"] {
        succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", us]));
    }
    assert_eq!(epolls(server.pid())[0].busy_poll_usecs, 60);
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(epolls(server.pid()), [EpollParams::default()]);
}

#[test]
fn a_socket_that_has_passed_to_a_child_is_put_back_there() {
    needs_root!();
    needs!(program "cc");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let mut parent = Running::start(lab.server.command(static_c()).arg(port()).arg("fork"));
    let state = place("state");
    let pid = parent.pid().to_string();
    let mut child = 0;
    wait_until("the child", || {
        let children = Process::open(parent.pid()).unwrap().children();
        child = children.first().copied().unwrap_or(0);
        child != 0
    });
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", "40"]));
    assert_eq!(busy_polls(child), [40], "it is one socket");
    parent.say("");
    parent.child.wait().unwrap();
    let report = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(report.contains("1 put back"), "{report}");
    assert_eq!(busy_polls(child), [0]);
    let gone = busypoll(&lab, &state, &["detach", &pid]).output().unwrap();
    complains(&gone, &["no process", "no changes to one are written down"]);
}

/// The command as another user, on the server.
fn as_nobody(lab: &Lab, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = lab.server.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program.as_ref());
    command
}

/// Nobody's own copy of a file, where nobody can reach it.
fn within_reach(name: &str, files: &[&Path]) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("busypoll-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    for file in files {
        fs::copy(file, folder.join(file.file_name().unwrap())).unwrap();
    }
    chown(&folder, Some(65_534), Some(65_534)).unwrap();
    folder
}

#[test]
fn without_root_ones_own_processes_and_no_others() {
    needs_root!();
    needs!(program "cc", program "setpriv");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let folder = within_reach("own", &[&static_c(), Path::new(BUSYPOLL)]);
    let state = folder.join("state");
    let mut own = as_nobody(&lab, folder.join("echo"));
    let own = Running::start(own.arg(port()));
    let attach = |pid: u32, more: &[&str]| {
        let mut command = as_nobody(&lab, folder.join("busypoll"));
        command.env("BUSYPOLL_STATE", &state).args(["attach", &pid.to_string()]).args(more);
        command.output().unwrap()
    };
    let mut client = Client::connect(&lab, PORT);
    let output = attach(own.pid(), &["--busy-poll", LONG]);
    assert!(output.status.success(), "{output:?}");
    finds_packets(&lab, || client.exchange(TIMES));
    let policy = folder.join("policy.toml");
    fs::write(&policy, "prefer_busy_poll = true\n").unwrap();
    let output = attach(own.pid(), &["--policy", policy.to_str().unwrap()]);
    assert!(text(&output).contains("SO_PREFER_BUSY_POLL needs CAP_NET_ADMIN"), "{output:?}");
    let mut detach = as_nobody(&lab, folder.join("busypoll"));
    detach.env("BUSYPOLL_STATE", &state).args(["detach", &own.pid().to_string()]);
    succeeds(&mut detach);
    assert_eq!(busy_polls(own.pid()), [0, 0]);
    drop(client);
    let other = Running::start(lab.server.command(folder.join("echo")).arg("7001"));
    complains(&attach(other.pid(), &[]), &["another user", "CAP_SYS_PTRACE"]);
    let mut undumpable = as_nobody(&lab, folder.join("echo"));
    let undumpable = Running::start(undumpable.args(["7002", "nodump"]));
    complains(&attach(undumpable.pid(), &[]), &["not dumpable", "CAP_SYS_PTRACE"]);
    assert_eq!((busy_polls(other.pid()), busy_polls(undumpable.pid())), (vec![0], vec![0]));
    // Root may.
    let pid = undumpable.pid().to_string();
    succeeds(&mut busypoll(&lab, &place("state"), &["attach", &pid, "--busy-poll", "40"]));
    assert_eq!(busy_polls(undumpable.pid()), [40]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn processes_that_are_gone_or_going() {
    needs_root!();
    needs!(program "cc");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let state = place("state");
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let pid = child.id().to_string();
    complains(&busypoll(&lab, &state, &["attach", &pid]).output().unwrap(), &["no process", &pid]);
    complains(
        &busypoll(&lab, &state, &["attach", "0x1"]).output().unwrap(),
        &["'0x1' is no process number"],
    );
    let program = static_c();
    let mut seen = [0, 0];
    for _ in 0..20 {
        let brief = Running::start(lab.server.command(&program).args(["1", "more", "200"]));
        let pid = brief.pid().to_string();
        let output = busypoll(&lab, &state, &["attach", &pid]).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => seen[0] += 1,
            Some(2) => {
                assert!(complaint.contains("no process"), "{complaint}");
                assert_eq!(complaint.lines().count(), 1, "{complaint}");
                seen[1] += 1;
            }
            _ => panic!("{output:?}"),
        }
        drop(brief);
        let _ = busypoll(&lab, &state, &["detach", &pid]).output().unwrap();
    }
    println!("attached to {}, too late for {}", seen[0], seen[1]);
    let left: Vec<_> = fs::read_dir(&state).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn where_nothing_can_be_written_down_nothing_is_changed() {
    needs_root!();
    needs!(program "cc");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(static_c()).arg(port()));
    let file = place("state").join("file");
    fs::write(&file, "").unwrap();
    let output = busypoll(&lab, &file, &["attach", &server.pid().to_string()]).output().unwrap();
    complains(&output, &["BUSYPOLL_STATE"]);
    assert_eq!(busy_polls(server.pid()), [0]);
}

#[test]
fn json_for_programs() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let _client = Client::connect(&lab, PORT);
    let state = place("state");
    let pid = server.pid().to_string();
    let text = succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--json"]));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["pid"], server.pid());
    let rows = report["rows"].as_array().unwrap();
    let row = |what: &str| rows.iter().find(|row| row["what"] == what).unwrap();
    assert_eq!(row("epoll")["was"]["busy_poll_usecs"], 0);
    assert_eq!(row("epoll")["now"]["busy_poll_usecs"], 50);
    assert_eq!(row("epoll")["changed"], true);
    assert_eq!(row("tcp")["device"], lab.server.interface());
    assert!(row("tcp")["napi_id"].as_u64().unwrap() > 0);
    assert!(row("unix")["why"].as_str().unwrap().contains("no receive queue"));
}

#[test]
fn of_several_threads_as_many_spin_as_there_are_cpus() {
    needs_root!();
    needs!(program "memcached");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let mut memcached = lab.server.command("memcached");
    memcached.args(["-u", "root", "-t", "4", "-p", "11211", "-U", "0"]).stdin(Stdio::null());
    let mut memcached = memcached.spawn().unwrap();
    let pid = memcached.id().to_string();
    let address = (lab.server.ipv4(), 11211);
    // Connections go to the threads in turn.
    let connect = || lab.client.enter(|| TcpStream::connect(address)).unwrap();
    let mut connections = Vec::new();
    wait_until("a connection for each thread", || {
        connections.extend(connect().ok());
        connections.len() == 4
    });
    let polling =
        || epolls(memcached.id()).iter().filter(|params| params.busy_poll_usecs > 0).count();
    let state = place("state");
    wait_until("each thread has its connection", || {
        let report = succeeds(&mut busypoll(&lab, &state, &["attach", &pid]));
        // The listener's instance spins for nobody; of the others one has the CPU of the host.
        report.matches("one spinner too many: 1 of 1").count() == 3
    });
    assert_eq!(polling(), 2);
    let policy = state.join("policy.toml");
    fs::write(&policy, "max_spinning_threads = 4\n").unwrap();
    let arguments = ["attach", &pid, "--policy", policy.to_str().unwrap()];
    succeeds(&mut busypoll(&lab, &state, &arguments));
    assert_eq!(polling(), 5);
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(polling(), 0);
    fs::write(&policy, "max_spinning_threads = 0\n").unwrap();
    succeeds(&mut busypoll(&lab, &state, &arguments));
    assert_eq!(polling(), 0);
    memcached.kill().unwrap();
    memcached.wait().unwrap();
}

/// An epoll instance that watches a socket, and polls as told.
fn epoll_on(socket: &UdpSocket) -> OwnedFd {
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&instance, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    instance
}

#[test]
fn another_epoll_or_socket_of_the_same_number_is_left_alone() {
    needs_root!();
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let bind = || lab.server.enter(|| UdpSocket::bind((lab.server.ipv4(), 0))).unwrap().unwrap();
    let (one, two, three) = (bind(), bind(), bind());
    let (replaced, kept) = (epoll_on(&one), epoll_on(&two));
    let state = place("state");
    let pid = std::process::id().to_string();
    // This very process; its threads that run other tests wait for this one.
    let policy = state.join("policy.toml");
    fs::write(&policy, "busy_poll = 40\nmax_spinning_threads = 100\n").unwrap();
    let arguments = ["attach", &pid, "--policy", policy.to_str().unwrap()];
    succeeds(&mut busypoll(&lab, &state, &arguments));
    let polls = |instance: &OwnedFd| busypoll_linux::epoll::params(instance).unwrap();
    assert_eq!((polls(&replaced).busy_poll_usecs, polls(&kept).busy_poll_usecs), (40, 40));
    assert_eq!(sockopt::busy_poll(&three).unwrap(), 40);
    // Another instance takes the number, and happens to poll as long.
    let another = epoll_on(&three);
    busypoll_linux::epoll::set_params(&another, polls(&kept)).unwrap();
    let mut replaced = replaced;
    rustix::io::dup2(&another, &mut replaced).unwrap();
    drop(another);
    // A socket moves to another number, and another takes its own.
    let moved = three.try_clone().unwrap();
    let fourth = bind();
    sockopt::set_busy_poll(&fourth, 40).unwrap();
    let mut number: OwnedFd = three.into();
    rustix::io::dup2(&fourth, &mut number).unwrap();
    let report = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(report.contains("left: the epoll instance watches nothing it did"), "{report}");
    assert_eq!((polls(&replaced).busy_poll_usecs, polls(&kept).busy_poll_usecs), (40, 0));
    assert_eq!(sockopt::busy_poll(&moved).unwrap(), 0, "the socket is found wherever it is");
    assert_eq!(sockopt::busy_poll(&number).unwrap(), 40, "another's value is not ours");
}

#[test]
fn what_spins_already_counts_also_when_it_is_looked_at_again() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
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
        // Its standard input is read, too.
        threads.iter().filter(|t| matches!(t.wait, Wait::Receive { fd: 1.., .. })).count()
    };
    let state = place("state");
    let policy = state.join("policy.toml");
    fs::write(&policy, "max_spinning_threads = 1\n").unwrap();
    let pid = server.pid().to_string();
    let arguments = [&pid, "--policy", policy.to_str().unwrap()];
    server.say("thread 7100");
    wait_until("one receives", || receivers() == 1);
    succeeds(busypoll(&lab, &state, &["attach"]).args(arguments));
    assert_eq!(busy_polls(server.pid()), [50]);
    server.say("thread 7101");
    wait_until("two receive", || receivers() == 2);
    let mut follower = Follower::start(&lab, &state, &arguments);
    let line = follower.wait_for(&["0.0.0.0:7101"]);
    assert!(line.contains("one spinner too many: 1 of 1"), "{line}");
    // Where their threads are meanwhile frees no place: they come back.
    let client = lab.client.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for port in [7100, 7101] {
        client.send_to(b"x", (lab.server.ipv4(), port)).unwrap();
    }
    wait_until("none receives", || receivers() == 0);
    server.say("idle 7102");
    follower.wait_for(&["0.0.0.0:7102", "off -> 50us"]);
    assert_eq!(busy_polls(server.pid()), [50, 0, 50]);
}

#[test]
fn a_thread_that_receives_here_and_there_is_one_spinner() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
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
    let state = place("state");
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
    let _one = alone();
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
    let state = place("state");
    let policy = state.join("policy.toml");
    fs::write(&policy, "plane='off'\n[[rule]]\nprogram='echo'\nplane='kernel'\nbusy_poll=33\n")
        .unwrap();
    let pid = parent.pid().to_string();
    let mut follower = Follower::start(&lab, &state, &[&pid, "--policy", policy.to_str().unwrap()]);
    follower.wait_for(&["It has no socket"]);
    // Once it tells of a socket it is told of children.
    parent.say("open");
    follower.wait_for(&[&format!("{pid}  fd"), "the policy leaves it alone"]);
    parent.say("fork");
    let mut child = 0;
    wait_until("the child", || {
        child = Process::open(parent.pid()).unwrap().children().first().copied().unwrap_or(0);
        child != 0
    });
    follower.wait_for(&[&format!("{child}  fd"), "the policy leaves it alone"]);
    parent.say("exec");
    wait_until("the child polls", || busy_polls(child) == [33]);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

#[test]
fn what_the_program_has_set_meanwhile_is_what_comes_back() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let bind = || TcpListener::bind((lab.client.ipv4(), 7000));
    let listener = lab.client.enter(bind).unwrap().unwrap();
    // Woken from poll it sets SO_BUSY_POLL, and waits in recv from then on.
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
    let state = place("state");
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
fn the_end_of_a_followed_process_costs_no_cpu() {
    needs_root!();
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let state = place("state");
    let sleepers = [(); 3].map(|()| Running::spawn(Command::new("sleep").arg("600")));
    let pids = sleepers.each_ref().map(|sleeper| sleeper.pid().to_string());
    let pids = pids.each_ref().map(String::as_str);
    let mut follower = Follower::start(&lab, &state, &pids);
    follower.wait_for(&[&format!("process {}", pids[2])]);
    // It has just looked when it has told of the first, and looks again in a second.
    let mut ticks = Vec::new();
    for (sleeper, pid) in sleepers.into_iter().zip(pids) {
        sleeper.end();
        follower.wait_for(&[pid, "has ended"]);
        ticks.push(follower.ticks());
    }
    assert!(ticks[2] - ticks[0] < 30, "ticks of 10 ms: {ticks:?}");
    assert!(follower.child.wait().unwrap().success());
}
