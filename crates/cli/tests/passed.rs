//! Listeners and connections of the stack plane that are passed to other programs.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

/// Whatever the answer, the connection is over after it.
fn answer(lab: &Lab, ask: impl FnOnce()) -> String {
    let address = SocketAddr::from((lab.server.ipv4(), 7000));
    let mut stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    ask();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
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
        let address = SocketAddr::from((lab.server.ipv4(), 7000));
        let _first = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
        server.0.wait_for("accepts");
        for _ in 0..5 {
            assert_eq!(answer(&lab, || {}), "program", "{how}");
        }
        let said = fs::read_to_string(&log).unwrap();
        assert!(!said.contains("accepts none"), "{how}: {said}");
        // Without the program the connections are its own again.
        server.0.send_line("end");
        server.0.wait_for("ended");
        for _ in 0..3 {
            assert_eq!(answer(&lab, || server.0.send_line("accept")), "parent", "{how}");
        }
    }
}
