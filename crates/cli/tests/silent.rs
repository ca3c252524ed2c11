//! On the stack plane one line reports what is not accelerated, and it works; options that are never used end no
//! program.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::*;
use support::*;

four_tests_at_a_time!();

/// A program on a host of the lab, on the stack plane.
fn run(host: &LabHost, how: &[&str]) -> Command {
    let mut command = host.command(BUSYPOLL);
    command.args(["run", "--plane", "stack"]).args(how).arg("--").stdin(Stdio::null());
    command
}

fn python(host: &LabHost, how: &[&str], script: &str) -> Output {
    run(host, how).args(["python3", "-c", script]).output().unwrap()
}

fn stderr_of(output: &Output) -> String {
    without_load_reports(&String::from_utf8_lossy(&output.stderr))
}

fn compiled(name: &str, options: &[&str]) -> PathBuf {
    let program = temp_dir(name).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source(&format!("{name}.c")));
    build(compiler.args(options));
    program
}

/// The standard error of a server goes to a file, which is read when the server has ended.
struct StderrFile(PathBuf);

impl StderrFile {
    fn by(command: &mut Command) -> StderrFile {
        let path = temp_dir("stderr").join("stderr");
        command.stderr(fs::File::create(&path).unwrap());
        StderrFile(path)
    }

    fn text(&self) -> String {
        without_load_reports(&fs::read_to_string(&self.0).unwrap())
    }
}

#[test]
#[ignore = "long: some seconds"]
fn an_option_on_a_socket_that_is_never_used_ends_no_program() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let prelude = "
import fcntl, os, socket
def udp(): return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
SEGMENT = socket.IPPROTO_UDP, 103
def ours(s):
    s.bind(('', 0)); s.setblocking(False)
    try: s.recv(1)
    except OSError: pass
    # SO_BUSY_POLL_BUDGET cannot be asked of the kernel.
    assert s.getsockopt(socket.SOL_SOCKET, 70) >= 0
";
    let tries = "
with udp() as s: s.setsockopt(*SEGMENT, 1200)
with socket.socket() as s: s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 7)
with udp() as s:
    s.setsockopt(*SEGMENT, 1200); s.setsockopt(*SEGMENT, 0)
    fcntl.fcntl(s, fcntl.F_SETFL, os.O_ASYNC); fcntl.fcntl(s, fcntl.F_SETFL, 0)
    ours(s)
print('over')
";
    let output = python(&lab.server, &["--strict"], &format!("{prelude}{tries}"));
    assert_eq!((&*text(&output), &*stderr_of(&output)), ("over\n", ""), "{output:?}");
    let uses = format!("{prelude}s = udp(); s.setsockopt(*SEGMENT, 1200); ours(s)");
    fails_with(&python(&lab.server, &["--strict"], &uses), &["UDP_SEGMENT", "--strict"]);
    let output = python(&lab.server, &[], &format!("{uses}\n"));
    assert!(stderr_of(&output).contains("UDP_SEGMENT"), "{output:?}");
}

#[test]
fn a_listener_added_while_a_thread_waits_is_served_from_the_first_connection() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let program = compiled("added", &[]);
    let bys = [&[][..], &["poll"], &["select"]];
    for (how, by) in ["listened", "added"].into_iter().flat_map(|how| bys.map(|by| (how, by))) {
        let lab = Lab::builder().build().unwrap();
        let mut command = run(&lab.server, &["--strict"]);
        let _server = Running::start(command.arg(&program).args(["7000", how]).args(by));
        let mut first = Client::connect(&lab, 7000);
        bypasses_the_kernel(&lab.server, || first.exchange(50));
    }
}

#[test]
fn sockets_of_a_process_with_an_io_uring_work_and_are_reported() {
    needs_root!();
    needs!(program "cc");
    if !std::path::Path::new("/usr/include/liburing.h").exists() {
        return busypoll_lab::needs::skipped(module_path!(), "liburing-dev");
    }
    let _one = one_test_at_a_time();
    let program = compiled("rings", &["-luring"]);
    let lab = Lab::builder().build().unwrap();
    // A port each: a ring holds its listener for a moment after the process has ended.
    for (port, how) in [(7000, "accepts"), (7001, "epoll_ctl")] {
        let mut command = run(&lab.server, &[]);
        let stderr = StderrFile::by(&mut command);
        let server = Running::start(command.arg(&program).args([port.to_string().as_str(), how]));
        (0..3).for_each(|_| Client::connect(&lab, port).exchange(3));
        server.end();
        let said = stderr.text();
        assert!(said.lines().count() == 1 && said.contains("io_uring"), "{how}: {said}");
    }
    let _server = Running::start(lab.server.command(&program).args(["7002", "accepts"]));
    let peer = lab.server.ipv4().to_string();
    let connects = |how: &[&str]| {
        let mut command = run(&lab.client, how);
        command.arg(&program).args(["7002", "connects", &peer]).output().unwrap()
    };
    let output = connects(&[]);
    assert!(output.status.success() && stderr_of(&output).contains("io_uring"), "{output:?}");
    fails_with(&connects(&["--strict"]), &["io_uring", "--strict"]);
}

/// What a client receives that sends all its data at once and shuts down its sending half.
fn exchange_all(lab: &Lab, port: u16, lines: &str) -> String {
    let address = SocketAddr::from((lab.server.ipv4(), port));
    let mut stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(lines.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn lines_of(count: usize) -> String {
    (0..count).map(|number| format!("line {number} of the request\n")).collect()
}

#[test]
#[ignore = "long: some seconds"]
fn a_server_that_forks_for_each_connection_serves_all_of_them() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut hows = vec!["child", "waits", "read_before", "late", "becomes", "grandchild", "_Fork"];
    if cfg!(target_arch = "x86_64") {
        hows.extend(["clone", "clone3"]);
    }
    for (at, how) in (0_u16..).zip(hows) {
        let port = 7000 + at;
        let mut command = run(&lab.server, &[]);
        let stderr = StderrFile::by(&mut command);
        command.arg("python3").arg(source("forks.py")).args(["serve", &port.to_string(), how]);
        let server = Running::start(&mut command);
        for lines in [1, 3, 2000] {
            let lines = lines_of(lines);
            assert_eq!(exchange_all(&lab, port, &lines), format!("{lines}end\n"), "{how}");
        }
        // Eight connections at the same time.
        thread::scope(|scope| {
            for _ in 0..8 {
                scope
                    .spawn(|| assert_eq!(exchange_all(&lab, port, "one\n"), "one\nend\n", "{how}"));
            }
        });
        server.end();
        let text = stderr.text();
        // The client may have sent all it has before the connection is accepted.
        let said: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("has closed it before it is accepted"))
            .collect();
        assert!(said.len() == 1 && said[0].contains("--plane kernel"), "{how}: {text}");
    }
}

/// A thread of ours that is just being made is in the memory of such a child, but does not run there.
#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "long: some seconds"]
fn a_child_that_the_c_library_did_not_make_changes_its_groups() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    // The threads are made for the first connection of a server.
    for _ in 0..12 {
        let lab = Lab::builder().build().unwrap();
        let mut command = run(&lab.server, &[]);
        command.arg("python3").arg(source("forks.py")).args(["serve", "7000", "clone"]);
        let _server = Running::start(&mut command);
        assert_eq!(exchange_all(&lab, 7000, "one\n"), "one\nend\n");
    }
}

/// A connection that its child takes over is the kernel's for a while; one that it cannot take over stays there.
#[test]
fn with_strict_a_child_ends_only_if_its_connection_stays_the_kernels() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for (how, is_alone) in [("waits", true), ("keeps", false)] {
        let mut command = run(&lab.server, &["--strict"]);
        let stderr = StderrFile::by(&mut command);
        command.arg("python3").arg(source("child_serves.py")).args(["7000", how]);
        let _server = Group::start(&mut command);
        let address = SocketAddr::from((lab.server.ipv4(), 7000));
        let mut stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
        let exchange = |stream: &mut TcpStream| {
            stream.write_all(b"000001x").unwrap();
            stream.read_exact(&mut [0; 8])
        };
        if is_alone {
            (0..100).for_each(|_| exchange(&mut stream).unwrap());
            assert!(!stderr.text().contains("--strict"), "{}", stderr.text());
        } else {
            // The parent has the connection, so the client sees no end of it.
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            wait_until("the child ends", || {
                let _ = exchange(&mut stream);
                stderr.text().contains("--strict")
            });
        }
    }
}

#[test]
fn a_client_that_forks_keeps_its_connection() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command("python3");
    let _server = Running::start(command.arg(source("forks.py")).args(["serve", "7000", "child"]));
    for how in ["both", "parent_ends", "daemon", "unused"] {
        let mut command = run(&lab.client, &[]);
        command.arg("python3").arg(source("forks.py"));
        command.args(["connect", &lab.server.ipv4().to_string(), "7000", how]);
        // The output ends when the last process that has it has ended.
        let output = command.output().unwrap();
        assert_eq!(text(&output), "over\n", "{how}: {output:?}");
        assert_eq!(stderr_of(&output).is_empty(), how == "unused", "{how}: {output:?}");
    }
}
