//! `busypoll run`: children that the preload library does not reach.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

fn probe(options: &[&str]) -> PathBuf {
    let program = temp_dir("probe").join("probe");
    let mut compiler = Command::new("cc");
    build(compiler.args(options).arg("-o").arg(&program).arg(source("probe.c")));
    program
}

/// A copy of `/bin/true` that is setuid and belongs to another user.
fn privileged() -> PathBuf {
    let program = temp_dir("privileged").join("true");
    // Copied by another process: this process's forks would hold the file open for writing, and busy (ETXTBSY).
    build(Command::new("cp").arg("/bin/true").arg(&program));
    chown(&program, Some(65534), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    program
}

/// The output of a shell under `run` that executes `script`, in which `$0` is `program`.
fn shell(options: &[&str], script: &str, program: &Path) -> Output {
    let mut command = Command::new(BUSYPOLL);
    command.arg("run").args(options).args(["--", "sh", "-c", script]).arg(program);
    command.env("PATH", format!("{}:/usr/bin:/bin", program.parent().unwrap().display()));
    command.stdin(Stdio::null()).output().unwrap()
}

fn stderr_of(output: &Output) -> String {
    without_load_reports(&String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_static_child_is_supervised() {
    needs_root!();
    needs!(program "cc", program "timeout", program "python3");
    let program = probe(&["-static"]);
    for script in [
        "$0",
        "exec $0",
        "probe",
        "timeout 20 $0",
        "env -i $0",
        "timeout 20 env probe",
        "python3 -c 'import os, sys; os.posix_spawnp(\"probe\", [\"probe\"], {}); os.wait()'",
        "python3 -c 'import subprocess, sys; subprocess.run([sys.argv[1]])' $0",
        // The supervised program's own children are supervised too.
        "timeout 20 sh -c \"$0; $0 | cat\" | sort -u",
    ] {
        let output = shell(&["--busy-poll", "77us", "--strict"], script, &program);
        assert_eq!((&*text(&output), &*stderr_of(&output)), ("77\n", ""), "{script}");
    }
}

#[test]
fn options_that_a_supervised_program_sets_itself_are_kept() {
    needs_root!();
    needs!(program "cc");
    let program = probe(&["-static"]);
    // Also a value that could be the default: sockets start with 0.
    for value in ["0", "5"] {
        let script = format!("$0 sets {value}");
        let output = shell(&["--busy-poll", "77us", "--strict"], &script, &program);
        assert_eq!(text(&output).trim(), value, "{output:?}");
    }
}

/// A script with this first line, in the folder of a program.
fn script(line: &str, program: &Path) -> PathBuf {
    let script = program.with_file_name("script");
    // Written by another process, for the reason given in `privileged`.
    let write = "echo \"$0\" >\"$1\" && chmod +x \"$1\"";
    build(Command::new("sh").args(["-c", write, line]).arg(&script));
    script
}

#[test]
fn for_a_script_its_interpreter_counts() {
    needs_root!();
    needs!(program "cc");
    let program = probe(&["-static"]);
    for line in [format!("#! {}", program.display()), "#!/usr/bin/env probe".to_owned()] {
        let script = script(&line, &program);
        let output = shell(&["--busy-poll", "77us", "--strict"], "$0; exec script", &script);
        assert_eq!((&*text(&output), &*stderr_of(&output)), ("77\n77\n", ""), "{line}");
    }
    let program = privileged();
    let script = script(&format!("#!{}", program.display()), &program);
    let output = shell(&["--strict"], "$0; echo $?", &script);
    assert_eq!(text(&output), "2\n", "{output:?}");
    assert!(stderr_of(&output).contains("setuid"), "{output:?}");
}

#[test]
fn a_setuid_child_is_named_and_refused_under_strict() {
    needs_root!();
    let program = privileged();
    let output = shell(&[], "$0; echo $?", &program);
    assert_eq!(text(&output), "0\n", "{output:?}");
    let line = stderr_of(&output);
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains(program.to_str().unwrap()) && line.contains("setuid"), "{line}");
    // With --strict it is not started, as if it were the first program.
    let output = shell(&["--strict"], "$0; echo $?", &program);
    assert_eq!(text(&output), "2\n", "{output:?}");
    assert!(stderr_of(&output).contains("without --strict"), "{output:?}");
    let mut itself = Command::new(BUSYPOLL);
    itself.args(["run", "--strict", "--"]).arg(&program).stdin(Stdio::null());
    fails_with(&itself.output().unwrap(), &["setuid", "without --strict"]);
}

#[test]
fn one_line_says_that_an_ordinary_user_s_supervised_program_has_no_new_privs() {
    needs_root!();
    needs!(program "cc", program "setpriv");
    let program = probe(&["-static"]);
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-all",
        "--inh-caps=-all",
        BUSYPOLL,
        "run",
        "--busy-poll",
        "77us",
    ]);
    let output = command.arg("--").arg(&program).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output), "77\n", "{output:?}");
    assert!(stderr_of(&output).contains("no_new_privs"), "{output:?}");
}

/// The supervisor of a static program writes to standard error while the program waits for it: to a pipe that is
/// closed, or that is not read in time.
#[test]
fn a_supervised_program_does_not_wait_for_readers_of_standard_error() {
    needs_root!();
    needs!(program "cc", program "setpriv", program "timeout");
    let program = probe(&["-static"]);
    for is_read in [false, true] {
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while is_read && (&writer).write(&[b'x'; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let _reader = Some(reader).filter(|_| is_read);
        let mut command = Command::new("timeout");
        command.args(["20", "setpriv", "--bounding-set=-sys_ptrace", BUSYPOLL, "run", "--"]);
        command.arg(&program).arg("hides").stdin(Stdio::null()).stderr(writer);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), &*text(&output)), (Some(0), "0\n"), "read: {is_read}");
    }
}

/// Also for lines that are written before the program starts.
#[test]
fn a_run_starts_although_standard_error_is_closed() {
    let (_, writer) = std::io::pipe().unwrap();
    let mut command = Command::new(BUSYPOLL);
    command.args(["run", "--profile", "latency", "--", "echo", "started"]).stderr(writer);
    assert_eq!(text(&command.stdin(Stdio::null()).output().unwrap()), "started\n");
}

/// A client on the other host of the lab: what it sends comes back.
fn is_echoed(lab: &Lab, port: u16) {
    let address = SocketAddr::from((lab.server.ipv4(), port));
    let mut stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&[7; 5000]).unwrap();
    let mut came = [0; 5000];
    stream.read_exact(&mut came).unwrap();
    assert_eq!(came, [7; 5000]);
}

/// On the stack plane the kernel makes the connections until this process accepts one.
#[test]
fn programs_accept_from_a_listener_that_their_parent_waits_for() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--", "python3"]);
    let _server = Group::start(command.arg(source("wait_server.py")).arg("7000"));
    for _ in 0..3 {
        is_echoed(&lab, 7000);
    }
}

/// The process waits for the first connection and becomes the server.
#[test]
fn systemd_socket_activate_starts_a_server() {
    needs_root!();
    needs!(program "python3", program "systemd-socket-activate");
    let server = "import socket\n\
        listener = socket.socket(fileno=3)\n\
        while True:\n    \
            client, _ = listener.accept()\n    \
            while data := client.recv(4096): client.sendall(data)";
    let lab = Lab::builder().build().unwrap();
    let log = temp_dir("log").join("stderr");
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--"]);
    command.args(["systemd-socket-activate", "-l", "7000", "python3", "-c", server]);
    let _server = Group::spawn(command.stderr(fs::File::create(&log).unwrap()));
    wait_until("it listens", || fs::read_to_string(&log).unwrap().contains("Listening"));
    for _ in 0..3 {
        is_echoed(&lab, 7000);
    }
}
