//! Programs to diagnose: Python scripts in a lab host, which end with the test.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use busypoll_doctor::Finding;

/// Functions for every script.
const PRELUDE: &str = r"
import ctypes, fcntl, mmap, os, select, socket, struct, sys, threading, time
LIBC = ctypes.CDLL(None)
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
class Ring:
    def __init__(self, usecs=0, prefer=0):
        p = (ctypes.c_uint32 * 30)()
        self.fd = LIBC.syscall(425, 4, p)
        # struct io_sqring_offsets begins at word 10, struct io_cqring_offsets at word 20.
        self.sq, self.cq, self.entries = p[10:20], p[20:30], p[0]
        size = max(self.sq[6] + 4 * p[0], self.cq[5] + 16 * p[1])
        self.ring = mmap.mmap(self.fd, size)
        self.sqes = mmap.mmap(self.fd, 64 * p[0], offset=0x10000000)
        self.buffer = ctypes.create_string_buffer(99)
        if usecs:
            # IORING_REGISTER_NAPI, which follows the sockets by itself
            napi = struct.pack('=IBBHII', usecs, prefer, 0, 0, 0, 0)
            if LIBC.syscall(427, self.fd, 27, napi, 1): raise OSError('IORING_REGISTER_NAPI')
    def word(self, at): return struct.unpack_from('=I', self.ring, at)[0]
    def recv(self, s):
        tail, head = self.word(self.sq[1]), self.word(self.cq[0])
        at = tail % self.entries
        # IORING_OP_RECV
        struct.pack_into('=BBHiQQIIQ', self.sqes, 64 * at, 27, 0, 0, s.fileno(), 0,
                         ctypes.addressof(self.buffer), 99, 0, 0)
        struct.pack_into('=I', self.ring, self.sq[6] + 4 * at, at)
        struct.pack_into('=I', self.ring, self.sq[1], tail + 1)
        submit = 1
        while self.word(self.cq[1]) == head:
            LIBC.syscall(426, self.fd, submit, 1, 1, None, 0)
            submit = 0
        result = struct.unpack_from('=i', self.ring, self.cq[5] + 16 * (head & self.word(self.cq[2])) + 8)[0]
        struct.pack_into('=I', self.ring, self.cq[0], head + 1)
        return self.buffer.raw[:max(result, 0)]
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
