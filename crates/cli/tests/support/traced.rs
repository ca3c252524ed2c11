//! A program in a lab whose packets are traced, and what the report says of them.
#![allow(dead_code)] // each test file uses its own part

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use busypoll_lab::{Lab, LabHost};
use busypoll_linux::sysfs::Sysfs;
use serde_json::Value;

use super::support::json_schema::is_as_documented;
use super::support::run_on_host;

/// One test at a time: the machine may have only two CPUs.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program in Python, which ends with the test.
pub struct Program(pub Child);

impl Program {
    /// Starts it, and waits until it has printed a line.
    pub fn start(host: &LabHost, script: &str) -> Self {
        Program::under(host, &["python3"], script)
    }

    /// By this command, which ends with the name of Python.
    pub fn under(host: &LabHost, words: &[&str], script: &str) -> Self {
        Program::bare(host, words, &format!("{PRELUDE}{script}"))
    }

    /// Without a socket of its own.
    pub fn bare(host: &LabHost, words: &[&str], script: &str) -> Self {
        let mut command = host.command(words[0]);
        command.args(&words[1..]).args(["-c", script]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the program has ended");
        Program(child)
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub const PRELUDE: &str = r"
import os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.77.0.2', 700))
def ready(): print('ready', flush=True)
";
pub const ECHO: &str = "ready()\nwhile True: d, a = s.recvfrom(2000); s.sendto(d, a)";

/// Sends datagrams of `bytes` to the server's port, one after each `gap`, until dropped.
pub struct Stream {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn start(lab: &Lab, gap: Duration, bytes: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            while !stopped.load(Relaxed) {
                let _ = socket.send_to(&vec![1; bytes], "10.77.0.2:700");
                std::thread::sleep(gap);
            }
        };
        Stream { stop, thread: Some(lab.client.spawn_thread(lab.client.cpu(), send).unwrap()) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Requests over a connection to a port of the server, one after each answer and a pause, until dropped.
pub struct Requests {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Requests {
    pub fn start(lab: &Lab, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || {
            let mut stream = std::net::TcpStream::connect(("10.77.0.2", port)).unwrap();
            stream.set_nodelay(true).unwrap();
            while !stopped.load(Relaxed) {
                stream.write_all(b"request").unwrap();
                let _ = stream.read(&mut [0; 99]).unwrap();
                std::thread::sleep(MS);
            }
        };
        Requests { stop, thread: Some(lab.client.spawn_thread(lab.client.cpu(), send).unwrap()) }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub const MS: Duration = Duration::from_millis(1);

/// The report of a trace with these arguments on the server's host, longer if few packets come.
pub fn trace(lab: &Lab, arguments: &[&str]) -> Value {
    let mut report = Value::Null;
    for time in ["700ms", "1500ms", "3s"] {
        let all = [&["trace", "--for", time, "--json", "-"], arguments].concat();
        let output = run_on_host(&lab.server, &all);
        report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        is_as_documented("trace", &report);
        if report["receives"][0]["packets"].as_u64() >= Some(20) {
            break;
        }
    }
    report
}

/// The mean of a stage of the first flow, in us.
pub fn mean(report: &Value, direction: &str, stage: &str) -> f64 {
    let stages = report[direction][0]["stages_us"].as_array();
    let stages = stages.unwrap_or_else(|| panic!("nothing {direction}: {report:#}"));
    let stage = stages.iter().find(|one| one["stage"] == stage).unwrap();
    stage["mean"].as_f64().unwrap()
}

/// The stage with the largest mean.
pub fn longest(report: &Value, direction: &str) -> String {
    let stages = report[direction][0]["stages_us"].as_array();
    let stages = stages.unwrap_or_else(|| panic!("nothing {direction}: {report:#}"));
    let mean = |stage: &&Value| stage["mean"].as_f64().unwrap();
    let longest = stages.iter().max_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap();
    longest["stage"].as_str().unwrap().to_owned()
}

/// The story of a packet that was longest in this stage, if the slowest have one: what else runs on the machine may have
/// made others slower.
pub fn story(report: &Value, stage: &str) -> Option<String> {
    let all = report["slowest"].as_array().unwrap();
    let one = all.iter().find(|slow| slow["stage"] == stage && slow["direction"] == "received");
    one.map(|slow| slow["story"].as_str().unwrap().to_owned())
}

pub fn slowest(report: &Value, stage: &str) -> String {
    let all = report["slowest"].as_array().unwrap();
    let one = all.iter().find(|slow| slow["stage"] == stage && slow["direction"] == "received");
    one.unwrap_or_else(|| panic!("{all:#?}"))["story"].as_str().unwrap().to_owned()
}

pub fn sh(host: &LabHost, command: &str) {
    let done = host.command("sh").args(["-c", command]).status().unwrap();
    assert!(done.success(), "{command}");
}

/// The interrupts of the host's device come late: many packets wait for one pass.
pub fn defer(host: &LabHost) {
    for (name, value) in [("gro_flush_timeout", "60000000"), ("napi_defer_hard_irqs", "1000")] {
        let set = || Sysfs::open().unwrap().set_attribute(host.interface(), name, value).unwrap();
        host.enter(set).unwrap();
    }
}
