//! On the stack plane one line reports sockets that the program has not made itself, when it first uses one; and they
//! work. So does MPTCP, and so do rings that the library cannot see being made.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::*;
use support::*;

/// The words that put a program on the stack plane.
const STACK: [&str; 4] = ["run", "--plane", "stack", "--"];
const STRICT: [&str; 5] = ["run", "--plane", "stack", "--strict", "--"];

/// A process that runs `foreign.py` with `arguments` under busypoll, with a socket of this kind that it has not made.
fn with_socket(host: &LabHost, how: &str, run: &[&str]) -> Command {
    let mut command = host.command("python3");
    command.arg(source("foreign.py")).args([how, "7000", BUSYPOLL]).args(run);
    command.arg("python3").arg(source("foreign.py"));
    command
}

/// Its standard error goes to a file, for [`lines`].
fn to_file(command: &mut Command) -> PathBuf {
    let path = temp_dir("foreign").join("stderr");
    command.stderr(fs::File::create(&path).unwrap());
    path
}

fn lines(path: &PathBuf) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

/// The only line contains `why`.
fn is_reported(stderr: &PathBuf, why: &str) {
    let lines = lines(stderr);
    assert!(lines.len() == 1 && lines[0].contains(why), "{why}: {lines:?}");
}

#[test]
fn sockets_that_another_process_has_made_work_and_are_reported() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for (how, why) in [
        ("inherited-listener", "inherited over exec"),
        ("inherited-udp", "inherited over exec"),
        ("received-listener", "received from another process"),
        ("received-udp", "received from another process"),
        ("inherited-connection", "inherited over exec"),
        ("received-connection", "received from another process"),
    ] {
        let mut command = with_socket(&lab.server, how, &STACK);
        let stderr = to_file(&mut command);
        let server = Running::start(&mut command);
        match how {
            _ if how.ends_with("udp") => exchange_udp(&lab, 7000, 3),
            _ if how.ends_with("connection") => Client::connect(&lab, 7000).exchange(3),
            _ => (0..3).for_each(|_| Client::connect(&lab, 7000).exchange(3)),
        }
        server.end();
        is_reported(&stderr, why);
    }
}

#[test]
fn with_strict_a_program_ends_when_it_uses_a_socket_of_another_process() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for how in ["inherited-listener", "inherited-udp", "received-listener", "received-udp"] {
        let mut command = with_socket(&lab.server, how, &STRICT);
        let stderr = to_file(&mut command);
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(2), "{how}");
        is_reported(&stderr, "--strict");
    }
    let output = with_socket(&lab.server, "unused", &STRICT).output().unwrap();
    assert_eq!((&*text(&output), &*output.stderr), ("over\n", &b""[..]), "{output:?}");
}

#[test]
fn a_service_of_systemd_works_and_reports_its_socket() {
    needs_root!();
    needs!(program "python3", program "systemd-socket-activate");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command("systemd-socket-activate");
    command.args(["-l", "7000", BUSYPOLL]).args(STACK).arg("python3").arg(source("foreign.py"));
    let stderr = to_file(command.arg("socket-activate"));
    let server = Running::spawn(&mut command);
    wait_until("it listens", || lines(&stderr).iter().any(|line| line.contains("Listening on")));
    (0..3).for_each(|_| Client::connect(&lab, 7000).exchange(3));
    server.end();
    let said = lines(&stderr).into_iter().filter(|line| line.contains("inherited over exec"));
    assert_eq!(said.count(), 1, "{:?}", lines(&stderr));
}

#[test]
fn a_connection_that_is_standard_error_too_carries_no_line() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = Running::start(&mut with_socket(&lab.server, "inetd", &STACK));
    // Each byte must be the one that was sent.
    Client::connect(&lab, 7000).exchange(20);
}

fn has_mptcp() -> bool {
    let enabled = fs::read_to_string("/proc/sys/net/mptcp/enabled");
    enabled.is_ok_and(|enabled| enabled.trim() == "1")
}

#[test]
fn a_listener_of_mptcp_works_and_is_reported() {
    needs_root!();
    needs!(program "python3");
    if !has_mptcp() {
        return busypoll_lab::needs::skipped(module_path!(), "MPTCP in the kernel");
    }
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for run in [&STACK[..], &STRICT] {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(run).arg("python3").arg(source("foreign.py")).args(["mptcp", "7000"]);
        let stderr = to_file(&mut command);
        let mut server = Running::start(&mut command);
        if run == STRICT {
            assert_eq!(server.child.wait().unwrap().code(), Some(2));
        } else {
            (0..3).for_each(|_| Client::connect(&lab, 7000).exchange(3));
            server.end();
        }
        is_reported(&stderr, "MPTCP");
    }
}

#[test]
fn a_connection_by_mptcp_works_and_is_reported() {
    needs_root!();
    needs!(program "python3");
    if !has_mptcp() {
        return busypoll_lab::needs::skipped(module_path!(), "MPTCP in the kernel");
    }
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let peer = lab.client.enter(|| TcpListener::bind((lab.client.ipv4(), 7000))).unwrap().unwrap();
    thread::spawn(move || {
        for mut stream in peer.incoming().flatten() {
            let mut bytes = [0; 5];
            let _ = stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes));
        }
    });
    let connects = |run: &[&str]| {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(run).arg("python3").arg(source("foreign.py"));
        command.args(["mptcp-connect", &lab.client.ipv4().to_string(), "7000"]).output().unwrap()
    };
    let output = connects(&STACK);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text(&output), "b'hello'\n", "{output:?}");
    assert!(said.lines().count() == 1 && said.contains("MPTCP"), "{said}");
    fails_with(&connects(&STRICT), &["MPTCP", "--strict"]);
}

#[test]
fn with_strict_nothing_starts_without_the_right_to_open_queues() {
    needs_root!();
    needs!(program "setpriv");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command("setpriv");
    command.args(["--bounding-set=-net_raw", BUSYPOLL]).args(STRICT).args(["echo", "started"]);
    fails_with(&command.output().unwrap(), &["CAP_NET_RAW"]);
}

#[test]
fn a_ring_made_past_the_library_is_noticed_when_a_socket_is_activated() {
    needs_root!();
    needs!(program "cc");
    let library = "/usr/lib/x86_64-linux-gnu/liburing.a";
    if !std::path::Path::new(library).exists() {
        return busypoll_lab::needs::skipped(module_path!(), "liburing-dev");
    }
    let _one = one_test_at_a_time();
    let program = temp_dir("rings").join("rings");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-o"]).arg(&program).arg(source("rings.c"));
    build(compiler.arg(library));
    let lab = Lab::builder().build().unwrap();
    let _server = Running::start(lab.server.command(&program).args(["7000", "accepts"]));
    let mut command = lab.client.command(BUSYPOLL);
    command.args(STACK).arg(&program).args(["7000", "connects", &lab.server.ipv4().to_string()]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("io_uring"), "{output:?}");
}

#[test]
fn an_ifunc_resolver_of_the_program_may_make_a_socket() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let program = temp_dir("resolver").join("resolver");
    build(Command::new("cc").args(["-O1", "-w", "-o"]).arg(&program).arg(source("resolver.c")));
    let lab = Lab::builder().build().unwrap();
    for run in [&STACK[..], &["run", "--"]] {
        let output = lab.server.command(BUSYPOLL).args(run).arg(&program).output().unwrap();
        assert_eq!((&*text(&output), &*output.stderr), ("42\n", &b""[..]), "{run:?}: {output:?}");
    }
}
