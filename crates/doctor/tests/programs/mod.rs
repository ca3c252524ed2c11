//! Programs to diagnose: Python scripts in a lab host, which end with the test.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use busypoll_doctor::Finding;

/// Functions for every script.
const PRELUDE: &str = r"
import ctypes, fcntl, os, select, socket, struct, sys, threading, time
BUSY_POLL, NAPI_ID, PREFER, BUDGET = 46, 56, 69, 70
def say(*words): print(*words, flush=True)
def heard(): return sys.stdin.readline()
def udp(port, usecs=0):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, BUSY_POLL, usecs)
    s.bind(('10.77.0.2', port))
    return s
def epoll(sockets, usecs=0, budget=0, prefer=0):
    e = select.epoll()
    fcntl.ioctl(e.fileno(), 0x40088a01, struct.pack('=IHBB', usecs, budget, prefer, 0))
    for s in sockets: e.register(s, select.EPOLLIN)
    return e
";

/// A running script.
pub struct Program {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Program {
    /// Starts the script with this interpreter command, such as a lab host's `command("python3")`.
    pub fn start(mut python: Command, script: &str) -> Self {
        let mut child = python
            .args(["-c", &format!("{PRELUDE}{script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Program { child, lines }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the program has ended");
        line.trim_end().to_owned()
    }

    /// Writes a line to its standard input.
    pub fn write_line(&mut self, line: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a printed remedy as a user would.
pub fn cure(finding: &Finding) {
    let remedy = finding.remedy.as_deref().unwrap_or_else(|| panic!("no remedy: {finding:?}"));
    let done = Command::new("sh").args(["-c", remedy]).stdout(Stdio::null()).status().unwrap();
    assert!(done.success(), "{remedy}");
}
