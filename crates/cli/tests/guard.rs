//! Runs on the stack plane whose program, child or guard is killed: the peers get a reset, the interface is the
//! kernel's again, and the next run works.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::link::Links;
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, SockAddr, Socket, Type};
use support::*;

four_tests_at_a_time!();

const PORT: u16 = 7300;

/// `programs/serve.py` on the server of a lab, on the stack plane.
struct Server {
    run: Running,
    /// The process that serves.
    pid: u32,
    stderr: PathBuf,
}

impl Server {
    fn start(lab: &Lab, options: &[&str], words: &[&str]) -> Server {
        let stderr = temp_dir("log").join("stderr");
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", lab.server.interface()]).args(options);
        command.args(["--", "python3"]).arg(source("serve.py")).arg(PORT.to_string()).args(words);
        command.stderr(File::create(&stderr).unwrap());
        let mut run = Running::spawn(&mut command);
        let pid = run.pid_of_ready();
        Server { run, pid, stderr }
    }

    fn stderr(&self) -> String {
        without_load_reports(&fs::read_to_string(&self.stderr).unwrap())
    }

    /// Waits until it listens on the stack plane; the ids of its XDP programs.
    fn listens(&self, lab: &Lab) -> Vec<u32> {
        wait_until("it listens on the stack plane", || sockets(lab).contains("LISTEN"));
        let programs = programs_of(self.pid);
        assert!(!programs.is_empty(), "{}", self.stderr());
        programs
    }
}

impl Server {
    /// Kills the guard of its run: no other process can share the interface any more.
    fn loses_its_guard(&self) {
        kill(guard_of(self.pid));
        wait_until("the program reports the loss of its guard", || self.stderr().contains("guard"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may not be our child, and may have ended.
        let _ = kill_process(Pid::from_raw(self.pid.cast_signed()).unwrap(), Signal::KILL);
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

/// A zombie has no command line any more.
fn is_alive(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// The output of `busypoll ss` on the server.
fn sockets(lab: &Lab) -> String {
    text(&run_on_host(&lab.server, &["ss"]))
}

/// A connection to the server, which has echoed `first` on the stack plane.
fn connect(lab: &Lab, address: IpAddr, first: &[u8]) -> TcpStream {
    let address = match address {
        IpAddr::V6(ip) => SocketAddrV6::new(ip, PORT, 0, lab.client.ifindex()).into(),
        IpAddr::V4(_) => SocketAddr::new(address, PORT),
    };
    let mut stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(first).unwrap();
    stream.read_exact(&mut vec![0; first.len()]).unwrap();
    let own = stream.local_addr().unwrap();
    // Without the scope id.
    let own = SocketAddr::new(own.ip(), own.port()).to_string();
    wait_until("the connection is listed", || {
        sockets(lab).lines().any(|line| line.contains("ESTAB") && line.contains(&own))
    });
    stream
}

/// Connections of both families, idle ones and one in the middle of a transfer.
fn connections(lab: &Lab) -> Vec<TcpStream> {
    let v4 = IpAddr::from(lab.server.ipv4());
    let mut all = vec![connect(lab, v4, b"hello"), connect(lab, v4, b"t")];
    all.extend(lab.server.ipv6().map(|v6| connect(lab, v6.into(), b"hello")));
    all
}

/// Every connection is reset, also those of a peer that only reads, which would wait for ever.
fn are_reset(streams: Vec<TcpStream>) {
    for mut stream in streams {
        let error = loop {
            match stream.read(&mut [0; 4096]) {
                Ok(0) => panic!("an orderly end instead of a reset"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

/// The interface works for the kernel, and no XDP program of ours is on it.
fn is_returned_to_the_kernel(lab: &Lab, programs: &[u32]) {
    wait_until("the XDP program is unloaded", || !programs.iter().any(|id| is_loaded(*id)));
    let ping = |host: &LabHost, to: String| {
        let output = host.command("ping").args(["-c", "1", "-W", "20", &to]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    ping(&lab.client, lab.server.ipv4().to_string());
    let at = SocketAddr::new(lab.server.ipv4().into(), PORT);
    let listener = lab.server.enter(|| TcpListener::bind(at)).unwrap().unwrap();
    let mut one = lab.client.enter(|| TcpStream::connect(at)).unwrap().unwrap();
    let (mut other, _) = listener.accept().unwrap();
    one.write_all(b"kernel").unwrap();
    other.read_exact(&mut [0; 6]).unwrap();
}

fn the_next_run_is_clean(lab: &Lab) {
    let server = Server::start(lab, &["--strict"], &[]);
    server.listens(lab);
    connect(lab, lab.server.ipv4().into(), b"again");
    assert_eq!(server.stderr(), "");
}

/// The other process that holds the XDP program of `pid`.
fn guard_of(pid: u32) -> u32 {
    let programs = programs_of(pid);
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut others =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|other| {
            *other != pid && programs_of(*other).iter().any(|id| programs.contains(id))
        });
    others.next().expect("no guard")
}

#[test]
fn a_killed_program_s_connections_are_reset_and_the_next_run_works() {
    needs_root!();
    needs!(program "python3", program "ping");
    let lab = Lab::builder().build().unwrap();
    let server = Server::start(&lab, &[], &[]);
    let programs = server.listens(&lab);
    let (connections, guard) = (connections(&lab), guard_of(server.pid));
    assert_eq!(server.pid, server.run.pid(), "the program is the process that was started");
    kill(server.pid);
    are_reset(connections);
    is_returned_to_the_kernel(&lab, &programs);
    drop(server);
    wait_until("the guard has ended too", || !is_alive(guard));
    the_next_run_is_clean(&lab);
}

/// For these addresses the kernel needs the link.
#[test]
fn connections_of_link_local_addresses_are_reset_too() {
    needs_root!();
    needs!(program "python3", program "ip");
    let lab = Lab::builder().build().unwrap();
    if lab.server.ipv6().is_none() {
        return;
    }
    for (host, address) in [(&lab.client, "fe80::1/64"), (&lab.server, "fe80::2/64")] {
        let add = ["addr", "add", address, "dev", host.interface(), "nodad"];
        assert!(host.command("ip").args(add).status().unwrap().success());
    }
    let server = Server::start(&lab, &[], &[]);
    server.listens(&lab);
    let connection = connect(&lab, "fe80::2".parse().unwrap(), b"hello");
    kill(server.pid);
    are_reset(vec![connection]);
}

#[test]
fn a_killed_child_s_connections_are_reset_and_the_next_child_serves() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let mut server = Server::start(&lab, &[], &["worker"]);
    for _ in 0..2 {
        assert_ne!(server.pid, server.run.pid());
        server.listens(&lab);
        let connections = connections(&lab);
        kill(server.pid);
        are_reset(connections);
        server.pid = server.run.pid_of_ready();
    }
    server.listens(&lab);
}

/// The guard has the rights: nginx's workers have none.
#[test]
fn a_server_that_gives_up_its_rights_is_guarded_too() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let server = Server::start(&lab, &[], &["nobody"]);
    server.listens(&lab);
    let connections = connections(&lab);
    kill(server.pid);
    are_reset(connections);
    assert_eq!(server.stderr(), "");
}

#[test]
fn a_daemon_is_guarded_after_its_parent_has_ended() {
    needs_root!();
    needs!(program "python3", program "ping");
    let lab = Lab::builder().build().unwrap();
    let mut server = Server::start(&lab, &[], &["daemon"]);
    assert!(server.run.child.wait().unwrap().success());
    let programs = server.listens(&lab);
    let (connections, guard) = (connections(&lab), guard_of(server.pid));
    kill(server.pid);
    are_reset(connections);
    is_returned_to_the_kernel(&lab, &programs);
    wait_until("the guard has ended too", || !is_alive(guard));
}

#[test]
fn a_program_whose_guard_is_killed_continues_and_says_so() {
    needs_root!();
    needs!(program "python3", program "ping");
    let lab = Lab::builder().build().unwrap();
    let server = Server::start(&lab, &[], &[]);
    let programs = server.listens(&lab);
    let mut connection = connect(&lab, lab.server.ipv4().into(), b"hello");
    server.loses_its_guard();
    assert_eq!(server.stderr().lines().count(), 1, "{}", server.stderr());
    connection.write_all(b"and on").unwrap();
    connection.read_exact(&mut [0; 6]).unwrap();
    // The program still owns the interface.
    is_refused_because_of(&lab, server.pid);
    drop(server);
    is_returned_to_the_kernel(&lab, &programs);
    the_next_run_is_clean(&lab);
}

#[test]
fn an_interface_that_is_deleted_is_reported_once() {
    needs_root!();
    needs!(program "python3", program "ip");
    let lab = Lab::builder().build().unwrap();
    let server = Server::start(&lab, &[], &[]);
    server.listens(&lab);
    let _connection = connect(&lab, lab.server.ipv4().into(), b"hello");
    let device = lab.server.interface();
    succeeds(lab.server.command("ip").args(["link", "set", device, "down"]));
    succeeds(lab.server.command("ip").args(["link", "set", device, "up"]));
    // A new interface of the same name does not count.
    succeeds(lab.server.command("ip").args(["link", "del", device]));
    let other = ["link", "add", device, "type", "veth", "peer", "name", "other0"];
    succeeds(lab.server.command("ip").args(other));
    wait_until("the program reports the loss of its interface", || {
        server.stderr().contains("is gone")
    });
    succeeds(lab.server.command("ip").args(["link", "del", device]));
    let said = server.stderr();
    assert!(
        said.contains(&format!("{device}: the interface")) && said.lines().count() == 1,
        "{said}"
    );
    assert!(is_alive(server.pid));
    let guard = guard_of(server.pid);
    drop(server);
    wait_until("the guard has ended too", || !is_alive(guard));
}

/// With `--strict` a run does not start on an interface of another process, and names that process.
fn is_refused_because_of(lab: &Lab, owner: u32) {
    let device = lab.server.interface();
    let run = ["run", "--plane", "stack", "--dev", device, "--strict", "--", "true"];
    fails_with(&run_on_host(&lab.server, &run), &[device, &format!("process {owner},")]);
}

#[test]
fn without_its_guard_a_process_shares_the_interface_with_none() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let owner = Server::start(&lab, &[], &[]);
    owner.listens(&lab);
    owner.loses_its_guard();
    is_refused_because_of(&lab, owner.pid);
    // The second process uses the kernel and works.
    let socket = "import socket\ns = socket.create_server(('', 7301))\n\
        c = socket.create_connection(('10.77.0.2', 7301))\ns.accept()[0].send(b'kernel')\n\
        print(c.recv(9))";
    let mut command = lab.server.command(BUSYPOLL);
    command.args([
        "run",
        "--plane",
        "stack",
        "--dev",
        lab.server.interface(),
        "--",
        "python3",
        "-c",
    ]);
    let output = command.arg(socket).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text(&output), "b'kernel'\n", "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for wanted in
        [&format!("process {},", owner.pid), "the sockets of this process stay with the kernel"]
    {
        assert!(said.contains(wanted), "{said}");
    }
}

/// Each query stays in the backlog of the owner's listening socket until the guard closes it.
#[test]
fn any_number_of_queries_for_the_owner_are_answered() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let owner = Server::start(&lab, &[], &[]);
    owner.listens(&lab);
    let prefix = format!("@busypoll/xdp/{}/", lab.server.ifindex());
    let sockets = || fs::read_to_string("/proc/thread-self/net/unix").unwrap();
    let sockets = lab.server.enter(sockets).unwrap();
    let rest = sockets.lines().find_map(|line| line.split_once(&prefix)).unwrap().1;
    let lock = SockAddr::unix(format!("\0{}{rest}", &prefix[1..])).unwrap();
    let ask = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(&lock).is_ok()
    };
    let ask_often = || (0..300).for_each(|_| wait_until("there is room in the backlog", ask));
    lab.server.enter(ask_often).unwrap();
    owner.loses_its_guard();
    is_refused_because_of(&lab, owner.pid);
}

/// Sockets of another user whose names contain interface and program: they neither lock the interface nor name its
/// owner.
#[test]
fn another_user_can_neither_lock_an_interface_nor_claim_to_own_it() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let index = lab.server.ifindex();
    let listen = move |names: Vec<String>| {
        // SAFETY: a plain call, which concerns only this thread. The thread ends with this closure.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let listen = |name: String| {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.bind(&SockAddr::unix(name).unwrap()).unwrap();
            socket.listen(1).unwrap();
            socket
        };
        names.into_iter().map(listen).collect::<Vec<_>>()
    };
    let before = vec![format!("\0busypoll/xdp/{index}"), format!("\0busypoll/xdp/{index}/0")];
    let _before = lab.server.enter(|| listen(before)).unwrap();
    let owner = Server::start(&lab, &["--strict"], &[]);
    owner.listens(&lab);
    let prefix = format!("@busypoll/xdp/{index}/");
    let sockets = || fs::read_to_string("/proc/thread-self/net/unix").unwrap();
    let sockets = lab.server.enter(sockets).unwrap();
    let mut names = sockets.lines().filter_map(|line| line.split_once(&prefix)?.1.split_once('/'));
    let (program, _) = names.next().unwrap();
    // It is asked before the owner's.
    let forged = format!("\0busypoll/xdp/{index}/{program}/0");
    let _forged = lab.server.enter(|| listen(vec![forged])).unwrap();
    owner.loses_its_guard();
    is_refused_because_of(&lab, owner.pid);
}

#[test]
fn firewall_rules_are_bypassed_only_with_the_option() {
    needs_root!();
    needs!(program "python3", program "nft");
    let lab = Lab::builder().build().unwrap();
    let nat = "table inet here { chain only { type nat hook prerouting priority -100; \
        tcp dport 9 redirect to :10; }; }";
    assert!(lab.server.command("nft").arg(nat).status().unwrap().success());
    let device = lab.server.interface();
    let run = ["run", "--plane", "stack", "--dev", device, "--strict", "--", "true"];
    fails_with(&run_on_host(&lab.server, &run), &[device, "1 rule", "--bypass-firewall"]);
    let server = Server::start(&lab, &[], &[]);
    wait_until("the firewall rules are reported", || server.stderr().contains("--bypass-firewall"));
    assert!(programs_of(server.pid).is_empty());
    drop(server);
    let server = Server::start(&lab, &["--bypass-firewall"], &[]);
    server.listens(&lab);
    let said = server.stderr();
    assert!(said.lines().count() == 1 && said.contains("(nftables: 1 rule)"), "{said}");
}

/// A process that has overwritten its environment is recognised by the mark of its run, and does not count for another
/// run.
#[test]
fn a_guard_ends_with_its_own_run_and_not_with_another() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    const HIDES: &str = "import time\n\
        start, end = map(int, open('/proc/self/stat').read().rsplit(')', 1)[1].split()[47:49])\n\
        memory = open('/proc/self/mem', 'r+b', buffering=0)\n\
        memory.seek(start)\n\
        memory.write(bytes(end - start))\n\
        print('ready', flush=True)\n\
        time.sleep(600)";
    let mut other = lab.client.command(BUSYPOLL);
    let _other = Running::start(other.args(["run", "--", "python3", "-c", HIDES]));
    let dev = ["run", "--plane", "stack", "--dev", lab.server.interface(), "--strict", "--"];
    let mut hidden = lab.server.command(BUSYPOLL);
    let hidden = Running::start(hidden.args(dev).args(["python3", "-c", HIDES]));
    let link = || Links::open().unwrap().get(lab.server.interface()).unwrap();
    let is_held = || lab.server.enter(link).unwrap().xdp.is_some();
    // Longer than the guard's interval between scans.
    thread::sleep(Duration::from_millis(1500));
    assert!(is_held());
    drop(hidden);
    wait_until("the interface is free", || !is_held());
}

/// The data and the FIN arrive, as with the kernel.
#[test]
fn a_program_that_ends_by_itself_delivers_its_data() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    for how in ["exit", "_exit", "quick_exit", "exit_group"] {
        let mut server = Server::start(&lab, &[], &["last", how]);
        server.listens(&lab);
        let at = SocketAddr::new(lab.server.ipv4().into(), PORT);
        let mut stream = lab.client.enter(|| TcpStream::connect(at)).unwrap().unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 256 * 2000, "{how}");
        assert_eq!(server.run.child.wait().unwrap().code(), Some(7));
        assert_eq!(server.stderr(), "");
    }
}

#[test]
fn an_unusable_interface_is_reported_in_one_line() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let down = lab.server.interface();
    succeeds(lab.server.command("ip").args(["link", "set", down, "down"]));
    for (device, wanted) in [("lo", "loopback"), ("nosuch0", "ip link"), (down, "is down")] {
        let run = ["run", "--plane", "stack", "--dev", device, "--strict", "--", "true"];
        fails_with(&run_on_host(&lab.server, &run), &["--dev", device, wanted]);
    }
    let run = |device| {
        run_on_host(&lab.server, &["run", "--plane", "stack", "--dev", device, "--", "true"])
    };
    // A program that opens no socket needs no interface.
    let output = run(down);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    // An interface that can never be used is reported once.
    let output = run("lo");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.lines().count() == 1, "{output:?}");
    assert!(said.contains("only what programs of this machine send"), "{said}");
    let run = ["run", "--plane", "stack", "--dev", "lo", "--no-same-host", "--", "true"];
    let said = String::from_utf8(run_on_host(&lab.server, &run).stderr).unwrap();
    assert!(said.contains("nothing on it is accelerated"), "{said}");
}

/// The CPU time that a process uses in a second, in clock ticks of a hundredth.
fn cpu_ticks(pid: u32) -> u64 {
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    thread::sleep(Duration::from_secs(1));
    ticks() - before
}

/// Connections of user 65534 to the guard on the server, which send nothing.
fn silent_clients(lab: &Lab, count: usize) -> Vec<Socket> {
    let connect = || {
        let sockets = fs::read_to_string("/proc/thread-self/net/unix").unwrap();
        let name = sockets.lines().find_map(|line| line.split_once("@busypoll/guard/")).unwrap().1;
        let guard = SockAddr::unix(format!("\0busypoll/guard/{name}")).unwrap();
        // SAFETY: a plain call, which concerns only this thread. The thread ends with this closure.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let connected = || {
            let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            wait_until("there is room in the backlog", || {
                socket.set_nonblocking(true).unwrap();
                socket.connect(&guard).is_ok()
            });
            socket
        };
        (0..count).map(|_| connected()).collect()
    };
    lab.server.enter(connect).unwrap()
}

#[test]
fn clients_that_connect_to_a_guard_and_send_nothing_do_no_harm() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let server = Server::start(&lab, &[], &["nobody"]);
    server.listens(&lab);
    let guard = guard_of(server.pid);
    let descriptors = || fs::read_dir(format!("/proc/{guard}/fd")).unwrap().count();
    let before = descriptors();
    let clients = silent_clients(&lab, 500);
    wait_until("few connections are kept", || descriptors() <= before + 16);
    assert!(sockets(&lab).contains("LISTEN"));
    wait_until("all of them are closed", || descriptors() <= before);
    assert!(cpu_ticks(guard) < 20, "the guard spins");
    drop(clients);
}

/// Clients may use up the guard's descriptors if its limit is small.
#[test]
fn a_guard_without_free_descriptors_waits_for_some() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let server = Server::start(&lab, &[], &[]);
    server.listens(&lab);
    let guard = guard_of(server.pid);
    let limit = |most: libc::rlim_t| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: 1024 };
        let pid = guard.cast_signed();
        // SAFETY: the kernel reads the limit and writes nothing back.
        unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) }
    };
    assert_eq!(limit(3), 0);
    let clients = silent_clients(&lab, 3);
    assert!(cpu_ticks(guard) < 20, "the guard spins");
    assert_eq!(limit(1024), 0);
    assert!(sockets(&lab).contains("LISTEN"));
    drop(clients);
}
