//! Connections of the stack plane that are used by functions of the C library which make their own system calls: stdio
//! on a descriptor, dprintf, aio, programs that a program executes. They work as without busypoll, and one line says
//! that the kernel has the connection.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::*;
use support::*;

/// Sends back each line of a connection, until its end.
fn echo_lines(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|read| read > 0)
        && stream.write_all(line.as_bytes()).is_ok()
    {
        line.clear();
    }
}

/// Serves both protocols at `port`.
fn serve(host: &LabHost, port: u16) {
    let here = (host.ipv4(), port);
    host.enter(|| {
        let listener = TcpListener::bind(here).unwrap();
        let datagrams = UdpSocket::bind(here).unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(echo_lines));
        thread::spawn(move || {
            let mut datagram = [0; 256];
            while let Ok((len, from)) = datagrams.recv_from(&mut datagram) {
                let _ = datagrams.send_to(&datagram[..len], from);
            }
        });
    })
    .unwrap();
}

/// The two ways to run a program: as it is, and on the stack plane.
const PLAIN: Option<&[&str]> = None;
const STACK: Option<&[&str]> = Some(&[]);
const STRICT: Option<&[&str]> = Some(&["--strict"]);

fn command(host: &LabHost, program: &Path, run: Option<&[&str]>) -> Command {
    let mut command = host.command("timeout");
    command.args(["-s", "KILL", "60"]);
    if let Some(options) = run {
        command.args([BUSYPOLL, "run", "--plane", "stack"]).args(options).arg("--");
    }
    command.arg(program).stdin(Stdio::null());
    command
}

/// The lines on standard error.
fn said(output: &Output) -> Vec<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    without_load_reports(&stderr).lines().map(str::to_owned).collect()
}

/// Runs a server, and connects to it when it is ready.
fn as_server(lab: &Lab, mut command: Command, port: u16) -> Output {
    let stderr = temp_dir("stderr").join("stderr");
    let mut server =
        command.stdout(Stdio::null()).stderr(fs::File::create(&stderr).unwrap()).spawn().unwrap();
    wait_until("a listener", || fs::read_to_string(&stderr).unwrap().contains("ready"));
    let peer = (lab.server.ipv4(), port);
    echo_lines(lab.client.enter(|| TcpStream::connect(peer)).unwrap().unwrap());
    let status = server.wait().unwrap();
    let text = fs::read_to_string(&stderr).unwrap().replacen("ready\n", "", 1);
    Output { status, stdout: Vec::new(), stderr: text.into_bytes() }
}

/// What a use of the connection is called in the line.
const USES: [(&str, &str); 10] = [
    ("fdopen", "fdopen"),
    ("two", "fdopen"),
    ("dprintf", "dprintf"),
    ("aio", "aio"),
    ("dup2", "standard input"),
    ("dup", "standard input"),
    ("closed", "standard input"),
    ("spawn", "executes"),
    ("exec", "standard input"),
    ("inherit", "executes"),
];

#[test]
fn connections_used_by_the_c_library_s_own_system_calls_work_and_are_reported() {
    needs_root!();
    needs!(program "cc", program "timeout");
    let _one = one_test_at_a_time();
    let program = temp_dir("stdio").join("stdio");
    build(
        Command::new("cc")
            .args(["-O2", "-w", "-o"])
            .arg(&program)
            .arg(source("stdio.c"))
            .arg("-lrt"),
    );
    let lab = Lab::builder().build().unwrap();
    serve(&lab.server, 7000);
    let peer = lab.server.ipv4().to_string();
    let client = |role: &str, how: &str, run| {
        let mut command = command(&lab.client, &program, run);
        command.args([role, &peer, "7000", how]).output().unwrap()
    };
    let mut port = 7001;
    let mut server = |how: &str, run| {
        port += 1;
        let mut command = command(&lab.server, &program, run);
        command.args(["server", &peer, &port.to_string(), how]);
        as_server(&lab, command, port)
    };
    let check = |how: &str, plain: Output, stack: Output, reason: &str| {
        assert_eq!((plain.status.code(), said(&plain)), (Some(0), Vec::new()), "{how}");
        assert_eq!(stack.status.code(), Some(0), "{how}: {stack:?}");
        let lines = said(&stack);
        assert!(lines.len() == 1 && lines[0].contains(reason), "{how}: {lines:?}");
    };
    for (how, reason) in USES {
        check(how, client("client", how, PLAIN), client("client", how, STACK), reason);
        check(how, server(how, PLAIN), server(how, STACK), reason);
    }
    for how in ["fdopen", "dup2"] {
        let plain = client("datagrams", how, PLAIN);
        check(how, plain, client("datagrams", how, STACK), "it stays with the kernel");
    }
    for how in ["fdopen", "spawn", "closed"] {
        fails_with(&client("client", how, STRICT), &["--strict"]);
    }
    // No host has this address.
    let [a, b, c, _] = lab.server.ipv4().octets();
    let nobody = format!("{a}.{b}.{c}.99");
    let connects = |run| {
        let mut command = command(&lab.client, &program, run);
        command.args(["nobody", &nobody, "7000", "fdopen"]).output().unwrap()
    };
    check("nobody", connects(PLAIN), connects(STACK), "fdopen");
}

#[test]
fn a_shell_uses_a_connection_by_redirection() {
    needs_root!();
    needs!(program "bash", program "timeout");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    serve(&lab.server, 7000);
    for script in [
        "echo hello >&3; read line <&3; echo $line",
        "read -t 0.1 line <&3; echo hello >&3; head -n 1 <&3",
        "printf 'hello\\n' >&3; exec <&3; read line; echo $line",
        "(echo hello >&3); (head -n 1 <&3)",
    ] {
        let script = format!("exec 3<>/dev/tcp/{}/7000; {script}", lab.server.ipv4());
        let by = |run| command(&lab.client, Path::new("bash"), run).args(["-c", &script]).output();
        let (plain, stack) = (by(PLAIN).unwrap(), by(STACK).unwrap());
        assert_eq!((&*text(&plain), said(&plain).len()), ("hello\n", 0), "{script}");
        assert_eq!((&*text(&stack), said(&stack).len()), ("hello\n", 1), "{script}: {stack:?}");
    }
}
