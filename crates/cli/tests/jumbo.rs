//! Jumbo frames under unmodified programs: large files of nginx by hash, iperf3 both ways, and the frames of a process
//! that is killed with its rings full.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use support::*;

const PORT: u16 = 7300;

/// The command on a host of the lab, on the stack plane or plain.
fn on(host: &LabHost, stack: bool, words: &[&str]) -> Command {
    let mut command = if stack {
        let mut command = host.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", host.interface(), "--strict", "--"]);
        command.args(words);
        command
    } else {
        let mut command = host.command(words[0]);
        command.args(&words[1..]);
        command
    };
    command.stdin(Stdio::null());
    command
}

fn answers(lab: &Lab, port: u16) -> bool {
    let address = SocketAddr::from((lab.server.ipv4(), port));
    lab.client.enter(|| TcpStream::connect(address)).unwrap().is_ok()
}

/// nginx serves a file of 1 GB to curl; `server` and `client` say which of them is on the stack plane.
fn nginx_sends_a_gigabyte(lab: &Lab, folder: &Path, sum: &str, [server, client]: [bool; 2]) {
    let file = folder.join("nginx.conf");
    let nginx =
        Group::spawn(&mut on(&lab.server, server, &["nginx", "-c", file.to_str().unwrap()]));
    wait_until("nginx serves", || answers(lab, PORT));
    let url = format!("http://{}:{PORT}/file", lab.server.ipv4());
    let mut curl = on(&lab.client, client, &["curl", "-sf", "--max-time", "120", &url]);
    let mut curl = curl.stdout(Stdio::piped()).spawn().unwrap();
    let host = if server { &lab.server } else { &lab.client };
    bypasses_the_kernel(host, || {
        let mut hash = Command::new("sha256sum");
        let got = succeeds(hash.stdin(curl.stdout.take().unwrap()));
        assert_eq!(got, sum, "nginx on the stack plane: {server}, curl: {client}");
    });
    assert!(curl.wait().unwrap().success());
    drop(nginx);
    wait_until("nginx has ended", || !answers(lab, PORT));
}

#[test]
#[ignore = "long: half a minute"]
fn a_gigabyte_arrives_unchanged_at_each_mtu() {
    needs_root!();
    needs!(program "nginx", program "curl", program "sha256sum");
    let _one = one_test_at_a_time();
    let folder = temp_dir("nginx");
    let here = folder.display();
    let file = folder.join("file");
    succeeds(Command::new("sh").args(["-c", &format!("head -c 1G /dev/urandom >{here}/file")]));
    let sum = succeeds(Command::new("sha256sum").stdin(fs::File::open(&file).unwrap()));
    let configuration = format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;\n\
         events {{ }}\n\
         http {{ access_log off; server {{ listen {PORT}; root {here}; }} }}\n"
    );
    fs::write(folder.join("nginx.conf"), configuration).unwrap();
    for mtu in [1500, 9001] {
        for stack in [[true, false], [false, true]] {
            let lab = Lab::builder().mtu(mtu).build().unwrap();
            nginx_sends_a_gigabyte(&lab, &folder, &sum, stack);
        }
    }
    fs::remove_file(file).unwrap();
}

#[test]
#[ignore = "long: some seconds"]
fn iperf3_sends_both_ways_at_mtu_9001() {
    needs_root!();
    needs!(program "iperf3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().mtu(9001).build().unwrap();
    let words = ["iperf3", "-s", "--forceflush"];
    let mut server = Running::spawn(&mut on(&lab.server, true, &words));
    let peer = lab.server.ipv4().to_string();
    for way in [&[][..], &["-R"]] {
        // It listens anew for each test.
        server.wait_for("listening");
        let words = ["iperf3", "-c", &peer, "-n", "500M", "-J"];
        let said = succeeds(on(&lab.client, false, &words).args(way));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        // What is still under way when the client ends does not count.
        let received = &said["end"]["sum_received"]["bytes"];
        let received = received.as_u64().unwrap_or_else(|| panic!("{way:?}: {said}"));
        assert!(received >= 450_000_000, "{way:?}: {said}");
    }
}

fn connect(lab: &Lab, port: u16) -> TcpStream {
    let address = SocketAddr::from((lab.server.ipv4(), port));
    lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap()
}

/// Fills the receive ring of a server that is stopped: a stream that nothing reads, and datagrams as large as the MTU.
fn fill_ring(lab: &Lab, mut stream: &TcpStream, mtu: usize) {
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[2; 65_536]).is_ok() {}
    let socket = lab.client.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for _ in 0..6000 {
        // What finds no room is dropped.
        let _ = socket.send_to(&vec![1; mtu - 28], stream.peer_addr().unwrap());
    }
}

fn echo_server(lab: &Lab, port: u16) -> Running {
    let source = source("echo.py");
    let words = ["python3", source.to_str().unwrap(), &port.to_string()];
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--"]).args(words);
    let stderr = fs::File::create(temp_dir("log").join("stderr")).unwrap();
    Running::start(command.stderr(stderr))
}

/// A process is killed with its receive ring full, more often than there are frames for: each of the next has them all.
/// Another process holds the shared memory meanwhile.
#[test]
#[ignore = "long: a quarter of a minute"]
fn frames_of_killed_processes_come_back_at_each_mtu() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for mtu in [1500, 9001] {
        let lab = Lab::builder().mtu(mtu).build().unwrap();
        let _other = echo_server(&lab, 7000);
        exchange_udp(&lab, 7000, 1);
        for _ in 0..6 {
            let server = echo_server(&lab, 7001);
            let pid = Pid::from_raw(server.pid().cast_signed()).unwrap();
            let stream = connect(&lab, 7001);
            kill_process(pid, Signal::STOP).unwrap();
            fill_ring(&lab, &stream, mtu as usize);
            server.end();
        }
        for port in [7000, 7001] {
            let _server = (port == 7001).then(|| echo_server(&lab, port));
            bypasses_the_kernel(&lab.server, || echoes(&lab, port, 8 << 20));
        }
    }
}

/// So many bytes go to an echo server and come back unchanged.
fn echoes(lab: &Lab, port: u16, len: usize) {
    let mut stream = connect(lab, port);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut sender = stream.try_clone().unwrap();
    let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    let sending = thread::spawn(move || {
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        sender.write_all(&bytes).unwrap();
    });
    let mut came = vec![0; len];
    match stream.read_exact(&mut came) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no more bytes came"),
        result => result.unwrap(),
    }
    sending.join().unwrap();
    assert!(came.iter().enumerate().all(|(at, came)| *came == byte(at)));
}
