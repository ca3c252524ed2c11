//! Packets for the programs of a lab's server, and the doctor's report on a process compared with the kernel's counter.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use busypoll_doctor::{Finding, Report, Scope, diagnose};
use busypoll_lab::Lab;
use busypoll_linux::stat;
use busypoll_linux::sysfs::Sysfs;

/// One test at a time: the machine may have only two CPUs.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends datagrams to a port of the server until dropped, answered or not.
pub struct Stream {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn start(lab: &Lab, to: &'static str, gap: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            while !stopped.load(Relaxed) {
                // While the test reconfigures the device there may be no route.
                let _ = socket.send_to(b"x", to);
                let _ = socket.recv(&mut [0; 9]);
                std::thread::sleep(gap);
            }
        };
        let thread = lab.client.spawn_thread(lab.client.cpu(), send).unwrap();
        Stream { stop, thread: Some(thread) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub const MS: Duration = Duration::from_millis(1);
pub const ECHO: &str = "while True: d, a = s.recvfrom(99); s.sendto(d, a)";

/// The report on a process, and the packets that busy polls found in the server's namespace meanwhile. On a busy machine
/// few packets come: then it counts longer.
pub fn prove(lab: &Lab, pid: u32) -> (Report, u64) {
    let polled = || stat::busy_poll_rx_packets().unwrap();
    let look = |millis: u64| {
        let prove = Some(Duration::from_millis(millis));
        let before = polled();
        let report = diagnose(&Scope { pids: vec![pid], prove, ..Scope::default() }).unwrap();
        (report, polled() - before)
    };
    for millis in [400, 800, 1600] {
        let (report, polled) = lab.server.enter(|| look(millis)).unwrap();
        if find(&report, "BP-PROVE-QUIET").is_none() {
            return (report, polled);
        }
    }
    lab.server.enter(|| look(3200)).unwrap()
}

pub fn codes(report: &Report) -> Vec<&'static str> {
    report.findings().iter().map(|f| f.rule.code).collect()
}

pub fn find(report: &Report, code: &str) -> Option<Finding> {
    report.findings().into_iter().find(|f| f.rule.code == code).cloned()
}

pub fn get(report: &Report, code: &str) -> Finding {
    find(report, code).unwrap_or_else(|| panic!("no {code}: {:#?}", report.findings()))
}

/// Runs a command in the network namespace of one side.
pub fn run(host: &busypoll_lab::LabHost, command: &str) {
    let done = host.command("sh").args(["-c", command]).status().unwrap();
    assert!(done.success(), "{command}");
}

pub fn in_sysfs(lab: &Lab, name: &str, value: &str) {
    let set = || Sysfs::open().unwrap().set_attribute(lab.server.interface(), name, value).unwrap();
    lab.server.enter(set).unwrap();
}

/// The packets that the process's own busy polls found, by the doctor's count; fails if the kernel's counter says less.
pub fn own_packets(proof: &Finding) -> u64 {
    let number = |read: &str| -> Option<u64> {
        let evidence = proof.evidence.iter().find(|e| e.read.starts_with(read))?;
        let digits = evidence.said.trim_start_matches('+').split(' ').next()?;
        digits.parse().ok()
    };
    let own = number("packets handed").unwrap();
    // The counter is read a little later than the count begins.
    let counter = number("BusyPollRxPackets").unwrap_or(0);
    assert!(own <= counter + 20, "{own} of {counter}: {proof:#?}");
    own
}
