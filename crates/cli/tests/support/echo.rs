//! Echo programs in a lab, and a client that counts the packets that their busy polling finds.
#![allow(dead_code)] // each test file uses its own part

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use busypoll_lab::{Lab, LabHost};
use busypoll_linux::process::{Kind, Process};
use busypoll_linux::{EpollParams, epoll, stat};
use rustix::process::{Pid, Signal, kill_process_group};

use super::BUSYPOLL;

/// How long each wait polls: far longer than a round trip.
pub const LONG_POLL: &str = "20ms";

/// The source of a program of `tests/programs`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// An empty directory of its own for this test.
pub fn temp_dir(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let unique = format!("{name}-{}-{number}", std::process::id());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Lets other users enter a folder and its parents.
pub fn readable(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for parent in folder.ancestors() {
        if let Ok(metadata) = fs::metadata(parent)
            && metadata.permissions().mode() & 0o001 == 0
        {
            fs::set_permissions(
                parent,
                fs::Permissions::from_mode(metadata.permissions().mode() | 0o011),
            )
            .unwrap();
        }
    }
}

/// Runs a compiler; its messages go to the test's output.
pub fn build(compiler: &mut Command) {
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
}

/// `echo.c`, linked statically.
pub fn static_c() -> PathBuf {
    let program = temp_dir("echo-c").join("echo");
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-O1", "-pthread", "-o"]).arg(&program).arg(source("echo.c"));
    build(&mut compiler);
    program
}

/// `echo.go`, built without network access.
pub fn go() -> PathBuf {
    let (program, cache) = (temp_dir("echo-go").join("echo"), temp_dir("go-cache"));
    let mut compiler = Command::new("go");
    compiler.env("GOCACHE", &cache).env("GOPATH", &cache).env("GO111MODULE", "off");
    build(compiler.args(["build", "-o"]).arg(&program).arg(source("echo.go")));
    program
}

/// A program that has printed that it is ready; killed at the end of the test.
pub struct Running {
    pub child: Child,
    pub input: ChildStdin,
    pub output: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut running = Running::spawn(command);
        running.wait_for("ready");
        running
    }

    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Running { child, input, output: BufReader::new(output) }
    }

    /// The number of the process that has printed that it is ready.
    pub fn pid_of_ready(&mut self) -> u32 {
        let line = self.wait_for("ready ");
        line.trim_end().rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn send_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn wait_for(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if line.contains(wanted) {
                return line;
            }
            line.clear();
        }
        panic!("it ended without {wanted:?}");
    }

    pub fn end(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program and its children, all killed at the end of the test.
pub struct Group(pub Running);

impl Group {
    pub fn start(command: &mut Command) -> Self {
        Group(Running::start(command.process_group(0)))
    }

    pub fn spawn(command: &mut Command) -> Self {
        Group(Running::spawn(command.process_group(0)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.pid().cast_signed()).unwrap();
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A connection that sends a byte and waits for it to come back.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    pub fn connect(lab: &Lab, port: u16) -> Self {
        let address = SocketAddr::from((lab.server.ipv4(), port));
        let stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { stream };
        client.exchange(1);
        client
    }

    pub fn exchange(&mut self, times: u32) {
        for n in 0..times {
            let sent = [n as u8; 1];
            self.stream.write_all(&sent).unwrap();
            let mut came = [0; 1];
            self.stream.read_exact(&mut came).unwrap();
            assert_eq!(sent, came);
        }
    }
}

/// Sends that many datagrams and waits for each to come back.
pub fn exchange_udp(lab: &Lab, port: u16, times: u32) {
    exchange_udp_from(lab, 0, port, times);
}

/// The same from the local port `own`.
pub fn exchange_udp_from(lab: &Lab, own: u16, port: u16, times: u32) {
    let socket = lab.client.enter(|| UdpSocket::bind(("0.0.0.0", own))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.connect((lab.server.ipv4(), port)).unwrap();
    for n in 0..times {
        socket.send(&n.to_ne_bytes()).unwrap();
        let mut came = [0; 8];
        let len = socket.recv(&mut came).unwrap();
        assert_eq!(came[..len], n.to_ne_bytes());
    }
}

/// The packets that busy polling takes from the host's device during `work`.
pub fn busy_polled(host: &LabHost, work: impl FnOnce()) -> u64 {
    let count = || host.enter(stat::busy_poll_rx_packets).unwrap().unwrap();
    let before = count();
    work();
    count() - before
}

/// Repeats `work` until busy polling on the server has found packets. One run may find none: a program that needs the
/// CPU ends a poll.
pub fn busy_polling_finds_packets(lab: &Lab, mut work: impl FnMut()) {
    let mut found = 0;
    super::wait_until("packets found by busy polling", || {
        found += busy_polled(&lab.server, &mut work);
        found >= 10
    });
}

/// Does `work`, in which `host` receives packets, and checks that its kernel's stack receives hardly any of them.
pub fn bypasses_the_kernel(host: &LabHost, work: impl FnOnce()) {
    let before = packet_counts(host);
    work();
    let after = packet_counts(host);
    let (came, seen) = (after.0 - before.0, after.1 - before.1);
    assert!(came >= 20 && seen * 10 <= came, "the kernel received {seen} of {came} packets");
}

/// The packets that a host's interface has received, and those that its kernel's stack has received.
pub fn packet_counts(host: &LabHost) -> (u64, u64) {
    let count = || {
        let came = stat::received_packets().unwrap()[host.interface()];
        (came, stat::ip_received().unwrap())
    };
    host.enter(count).unwrap()
}

/// Runs one test at a time: two spinners on a CPU would find no packets.
pub fn one_test_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The busypoll command on the server, with a state directory of the test's own.
pub fn busypoll(lab: &Lab, state: &Path, arguments: &[&str]) -> Command {
    let mut command = lab.server.command(BUSYPOLL);
    command.env("BUSYPOLL_STATE", state).args(arguments).stdin(Stdio::null());
    command
}

/// The output of a command, which must succeed.
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output)
}

pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The parameters of each epoll instance of a process.
pub fn epolls(pid: u32) -> Vec<EpollParams> {
    let process = Process::open(pid).unwrap();
    let found = process.descriptors().unwrap();
    found
        .into_iter()
        .filter(|found| found.kind == Kind::Epoll)
        .filter_map(|found| process.duplicate_fd(found.fd).unwrap())
        .map(|taken| epoll::params(taken).unwrap())
        .collect()
}

/// The conformance program, built in a directory of this name.
pub fn conformance(name: &str) -> PathBuf {
    let program = temp_dir(name).join("conformance");
    let folder = std::fs::read_dir(source("conformance")).unwrap();
    let sources = folder.map(|entry| entry.unwrap().path());
    let sources = sources.filter(|path| path.extension().is_some_and(|ending| ending == "c"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).args(sources);
    build(&mut compiler);
    program
}
