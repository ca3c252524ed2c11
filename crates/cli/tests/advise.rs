//! `busypoll advise`: what it sees of a program with known waits, the order of what it predicts, and where it says that
//! it cannot know.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use busypoll_lab::{Lab, needs, needs_root};
use echo::Running;
use serde_json::Value;
use support::*;

const PROGRAM: &str = "
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('10.77.0.2', 7341))
print('ready', flush=True)
while True: udp.sendto(*udp.recvfrom(2000))
";

/// The advice about a program that a client asks again and again, with `pause` between.
fn advice(pause: Duration, options: &[&str]) -> Value {
    let lab = Lab::builder().build().unwrap();
    let program = Running::start(lab.server.command("python3").args(["-c", PROGRAM]));
    let client = lab.client.enter(|| UdpSocket::bind("10.77.0.1:0")).unwrap().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let done = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                client.send_to(b"question", "10.77.0.2:7341").unwrap();
                client.recv(&mut [0; 100]).unwrap();
                std::thread::sleep(pause);
            }
        });
        let pid = program.pid().to_string();
        let output =
            run_locally(&[&["advise", "--json", "--time", "1s"], options, &[&*pid]].concat());
        done.store(true, Ordering::Relaxed);
        output
    });
    let advice: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    json_schema::is_as_documented("advise", &advice);
    assert!(advice["program"].as_str().unwrap().starts_with("python3"), "{advice:#}");
    assert_eq!(advice["call"], "recv", "{advice:#}");
    advice
}

/// A packet comes each millisecond: a poll of 200 us misses it, one without a limit does not.
#[test]
#[ignore = "long: watches and measures for ten seconds"]
fn longer_polling_finds_more_and_costs_more() {
    needs_root!();
    needs!(program "python3");
    let advice = advice(Duration::from_millis(1), &["--cpu", "1%"]);
    let row = |name: &str| {
        let rows = advice["settings"].as_array().unwrap();
        rows.iter()
            .find(|row| row["setting"] == name)
            .unwrap_or_else(|| panic!("{advice:#}"))
            .clone()
    };
    let of = |name: &str, field: &str| row(name)[field].as_f64().unwrap();
    assert!(advice["waits"].as_u64().unwrap() > 100, "{advice:#}");
    assert!(of("kernel 200us", "found_share") < 0.1, "{advice:#}");
    assert!(of("kernel always", "found_share") == 1.0 && of("off", "found_share") == 0.0);
    let cpu = ["off", "kernel 50us", "kernel 200us", "kernel always"].map(|it| of(it, "cpu_share"));
    assert!(cpu.is_sorted() && cpu[3] > 2.0 * cpu[0], "{advice:#}");
    // No setting that is known takes so little, unless the program itself did.
    let best = advice["best"].as_str();
    assert!(best.is_none_or(|best| best == "off" && cpu[0] <= 0.01), "{advice:#}");
}

#[test]
fn a_program_that_does_not_wait_for_packets_gets_no_advice() {
    needs_root!();
    let output = run_locally(&["advise", "--json", "--time", "500ms", "--", "sleep", "9"]);
    let advice: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    json_schema::is_as_documented("advise", &advice);
    assert!(advice["not_known"].to_string().contains("too few"), "{advice:#}");
    assert!(advice["best"].is_null() && advice["policy"].is_null(), "{advice:#}");
    let output = run_locally(&["advise", "--time", "500ms", "--", "sleep", "9"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("not known: ") && text.contains("there is no advice"), "{text}");
}

#[test]
fn mistakes_are_told_in_one_line() {
    fails_with(&run_locally(&["advise"]), &["PID"]);
    fails_with(&run_locally(&["advise", "--cpu", "much", "1"]), &["'much'", "20%"]);
    fails_with(&run_locally(&["advise", "--time", "1ms", "1"]), &["500ms"]);
    needs_root!();
    fails_with(&run_locally(&["advise", "999999999"]), &["999999999"]);
    fails_with(&run_locally(&["advise", "--", "/no/such/program"]), &["/no/such/program"]);
}

/// Real programs, predicted and really run; prints a table for docs/advise.md.
#[test]
#[ignore = "by hand: six minutes for each program, on a machine that does nothing else"]
fn what_was_predicted_comes_true() {
    needs_root!();
    needs!(program "python3", program "redis-server", program "memcached", program "nginx", program "sockperf");
    let script = echo::source("advise_check.py");
    let status = std::process::Command::new(BUSYPOLL)
        .args(["lab", "--", "python3"])
        .args([script.as_os_str(), BUSYPOLL.as_ref()])
        .status();
    assert!(status.unwrap().success());
}
