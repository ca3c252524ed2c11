//! Listeners and connections of the stack plane that are passed to other programs.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Duration;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::*;
use support::*;

fn connect_to(from: &LabHost, to: IpAddr) -> TcpStream {
    from.enter(|| TcpStream::connect((to, 7000))).unwrap().unwrap()
}

/// Whatever the answer, the connection is over after it.
fn answer(stream: TcpStream, ask: impl FnOnce()) -> String {
    ask();
    answer_within(Duration::from_secs(20), stream).unwrap()
}

fn answer_within(time: Duration, mut stream: TcpStream) -> Option<String> {
    stream.set_read_timeout(Some(time)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The process that has accepted before lives on, and its stack has the port.
#[test]
fn a_program_accepts_from_a_listener_whose_process_has_accepted_before() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for how in ["duplicated", "inherited", "spawned", "received"] {
        let lab = Lab::builder().build().unwrap();
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--", "python3"]);
        command.arg(source("passes_listener.py")).args(["7000", how]);
        let log = temp_dir("log").join("stderr");
        command.stderr(fs::File::create(&log).unwrap());
        let mut server = Group::start(&mut command);
        let connect = || connect_to(&lab.client, lab.server.ipv4().into());
        let _first = connect();
        server.0.wait_for("accepts");
        for _ in 0..5 {
            assert_eq!(answer(connect(), || {}), "program", "{how}");
        }
        let said = fs::read_to_string(&log).unwrap();
        assert!(!said.contains("accepts none"), "{how}: {said}");
        // Without the program the connections are its own again.
        server.0.send_line("end");
        server.0.wait_for("ended");
        for _ in 0..3 {
            assert_eq!(answer(connect(), || server.0.send_line("accept")), "parent", "{how}");
        }
    }
}

/// The kernel makes all connections to a loopback address, and no guard holds the interface.
#[test]
fn a_listener_at_a_loopback_address_is_passed_on_without_a_word() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for how in ["duplicated", "inherited", "spawned", "received"] {
        let lab = Lab::builder().build().unwrap();
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--", "python3"]);
        command.arg(source("passes_listener.py")).args(["7000", how, "127.0.0.1"]);
        let log = temp_dir("log").join("stderr");
        command.stderr(fs::File::create(&log).unwrap());
        let mut server = Group::start(&mut command);
        let connect = || connect_to(&lab.server, Ipv4Addr::LOCALHOST.into());
        let _first = connect();
        server.0.wait_for("accepts");
        for _ in 0..5 {
            assert_eq!(answer(connect(), || {}), "program", "{how}");
        }
        let said = fs::read_to_string(&log).unwrap();
        assert!(!said.contains("accepts none"), "{how}: {said}");
    }
}

/// An address with a label, and one that comes later.
#[test]
fn a_program_accepts_at_every_address_of_the_interface() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let dev = lab.server.interface();
    let add = |ip: &str, label: &[&str]| {
        let mut command = lab.server.command("ip");
        command.args(["address", "add", &format!("{ip}/24"), "dev", dev]).args(label);
        assert!(command.status().unwrap().success());
    };
    add("10.77.0.50", &["label", &format!("{dev}:1")]);
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", dev, "--", "python3"]);
    command.arg(source("passes_listener.py")).args(["7000", "inherited"]);
    let mut server = Group::start(&mut command);
    let connect = |ip: &str| connect_to(&lab.client, ip.parse().unwrap());
    let _first = connect("10.77.0.2");
    server.0.wait_for("accepts");
    assert_eq!(answer(connect("10.77.0.50"), || {}), "program");
    add("10.77.0.51", &[]);
    wait_until("the program accepts at the new address", || {
        answer_within(Duration::from_secs(1), connect("10.77.0.51")).as_deref() == Some("program")
    });
}
