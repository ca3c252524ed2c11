//! How a program may end, and what its peer sees then: all bytes and an orderly end, or a reset. The stack plane must
//! do as the kernel.

#[path = "support/echo.rs"]
mod echo;
mod support;
#[path = "support/two_programs.rs"]
mod two_programs;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

four_tests_at_a_time!();

const WAYS: [&str; 7] = ["exit", "_exit", "term", "abort", "quit", "receiving", "unread"];
const STACK: [&str; 6] = [BUSYPOLL, "run", "--plane", "stack", "--dev", "lab-server"];
const SENT: usize = 150_000;

/// What the slow peer received: how many bytes, and whether the end was orderly.
fn receive_slowly(mut stream: TcpStream) -> (usize, bool) {
    let _ = stream.write_all(b"!");
    thread::sleep(Duration::from_millis(300));
    let (mut got, mut room) = (0, vec![0; 1 << 16]);
    loop {
        match stream.read(&mut room) {
            Ok(0) => return (got, true),
            Ok(more) => got += more,
            Err(_) => return (got, false),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs the program by the command line `how`: what its peer received, and how the program ended.
fn end(
    lab: &Lab,
    program: &Path,
    how: &[&str],
    way: &str,
) -> ((usize, bool), Option<i32>, Option<i32>) {
    let listener = lab.client.enter(|| TcpListener::bind((lab.client.ipv4(), 0))).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    let peer = thread::spawn(move || receive_slowly(listener.accept().unwrap().0));
    let mut command = lab.server.command("timeout");
    command.args(["--foreground", "20"]).args(how).arg(program);
    command.arg(lab.client.ipv4().to_string()).args([&port.to_string(), way]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    // `timeout` passes on a signal that ended the program as a status.
    (peer.join().unwrap(), output.status.code(), output.status.signal())
}

const PORT: &str = "";

/// `last_words.c`, which other users may run.
fn last_words() -> PathBuf {
    let folder = temp_dir("last_words");
    readable(&folder);
    let program = folder.join("last_words");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source("last_words.c"));
    build(&mut compiler);
    program
}

#[test]
fn sent_data_arrives_however_the_program_ends() {
    needs_root!();
    needs!(program "cc", program "timeout");
    let _one = one_test_at_a_time();
    let program = last_words();
    let lab = Lab::builder().build().unwrap();
    for way in WAYS {
        let (plain, here) = (end(&lab, &program, &[], way), end(&lab, &program, &STACK, way));
        let orderly = way != "unread";
        assert_eq!(
            (plain.0.0 == SENT, plain.0.1),
            (orderly || plain.0.0 == SENT, orderly),
            "{way}: {plain:?}"
        );
        assert_eq!(
            (here.0.1, here.1, here.2),
            (plain.0.1, plain.1, plain.2),
            "{way}: {plain:?} {here:?}"
        );
        assert!(!orderly || here.0.0 == SENT, "{way}: {here:?}");
    }
}

/// The program ends in this way while its peer, on the stack plane or plain, reads nothing; then the peer does.
fn end_before_peer_reads(lab: &Lab, program: &Path, how: &[&str], plane: &str, way: &str) {
    let host = if plane == "stack" { &lab.server } else { &lab.client };
    let address = if plane == "stack" { "127.0.0.1".to_owned() } else { host.ipv4().to_string() };
    let mut reads = match plane {
        "stack" => two_programs::program(lab, "late_reader.py", plane, &[&address]),
        _ => host.command("python3"),
    };
    if plane != "stack" {
        reads.arg(source("late_reader.py")).arg(&address);
    }
    let mut peer = Running::spawn(&mut reads);
    let port = peer.pid_of_ready().to_string();
    let mut command = lab.server.command("timeout");
    command.args(["--foreground", "20"]).args(how).arg(program).args([&address, &port, way]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.success(), way != "term", "{plane} {way} {how:?}: {output:?}");
    peer.send_line("");
    let read = peer.wait_for(" ");
    assert_eq!(read.trim(), format!("{SENT} end"), "{plane} {way} {how:?}: {output:?}");
}

#[test]
fn what_a_peer_has_no_room_for_arrives_after_the_end_of_the_program() {
    needs_root!();
    needs!(program "cc", program "python3", program "setpriv", program "timeout");
    let _one = one_test_at_a_time();
    let program = last_words();
    let lab = Lab::builder().build().unwrap();
    let without_rights = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for plane in ["stack", "plain"] {
        for way in ["exit", "_exit", "timer", "term", "close", "exec", "close_exec"] {
            end_before_peer_reads(&lab, &program, &STACK, plane, way);
        }
    }
    for way in ["exit", "close_exec"] {
        let how = [&STACK[..], &without_rights].concat();
        end_before_peer_reads(&lab, &program, &how, "plain", way);
    }
}

#[test]
fn datagrams_to_a_neighbour_that_is_not_known_arrive_after_the_end_of_the_program() {
    needs_root!();
    needs!(program "ip", program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let receiver = lab.client.enter(|| UdpSocket::bind((lab.client.ipv4(), 0))).unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let port = receiver.local_addr().unwrap().port();
    let flush = ["neigh", "flush", "dev", lab.server.interface()];
    for way in ["os._exit(0)", "os.execv('/bin/true', ['true'])"] {
        build(lab.server.command("ip").args(flush));
        let program = format!(
            "import os, socket\nudp = socket.socket(2, 2)\n\
             for at in range(3): udp.sendto(b'%d' % at, ('{}', {port}))\n{way}",
            lab.client.ipv4(),
        );
        let mut command = lab.server.command(STACK[0]);
        let output = command.args(&STACK[1..]).args(["python3", "-c", &program]).output().unwrap();
        for at in 0..3 {
            let mut came = [0; 8];
            let len = receiver.recv(&mut came).unwrap_or_else(|e| panic!("{way}: {e} {output:?}"));
            assert_eq!(came[..len], [b'0' + at], "{way}");
        }
    }
}
