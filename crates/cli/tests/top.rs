//! `busypoll top`: what it counts of known traffic on both planes, what it says without rights, and the terminal, which
//! is as before however the view ends.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::{Running, exchange_udp};
use serde_json::Value;
use support::*;

four_tests_at_a_time!();

/// A server that answers each datagram.
const PROGRAM: &str = "
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('10.77.0.2', 7340))
print('ready', flush=True)
while True: udp.sendto(*udp.recvfrom(2000))
";

const EXCHANGES: u64 = 200;

fn traffic(lab: &Lab) {
    exchange_udp(lab, 7340, EXCHANGES as u32);
}

/// A log in JSON; ended by SIGTERM.
struct Log {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Log {
    fn start(host: &LabHost, options: &[&str]) -> Self {
        let mut command = host.command(BUSYPOLL);
        command.args(["top", "--batch", "--json", "--interval", "300ms"]).args(options);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut log = Log { child, lines };
        log.next();
        log
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        json_schema::is_as_documented("top", &value);
        value
    }

    /// The rows of this process, interval by interval, until `enough`.
    fn rows_of(&mut self, pid: u32, enough: impl Fn(&[Value]) -> bool) -> (Vec<Value>, Vec<Value>) {
        let (mut rows, mut all) = (Vec::new(), Vec::new());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !enough(&rows) {
            assert!(Instant::now() < deadline, "{rows:#?}\n{:#?}", all.last());
            let line = self.next();
            let mine = line["processes"].as_array().unwrap().iter().filter(|row| row["pid"] == pid);
            rows.extend(mine.cloned());
            all.push(line);
        }
        (rows, all)
    }

    fn end(mut self) {
        signal(&self.child, libc::SIGTERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a plain call for a child that has not been waited for.
    unsafe { libc::kill(child.id() as i32, signal) };
}

fn sum(rows: &[Value], pointer: &str) -> u64 {
    rows.iter().filter_map(|row| row.pointer(pointer)?.as_u64()).sum()
}

/// The counts are the program's own, and it is gone from the list when it has ended.
#[test]
fn a_program_on_the_kernel_plane_is_counted_packet_by_packet() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let mut log = Log::start(&lab.server, &[]);
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--busy-poll", echo::LONG_POLL, "--", "python3", "-c", PROGRAM]);
    let program = Running::start(&mut command);
    let pid = program.pid();
    // Lines of before may still be in the pipe.
    let begun = Instant::now();
    let mut first = log.next();
    while begun.elapsed() < Duration::from_millis(900) {
        first = log.next();
    }
    if !first["not_seen"].as_array().unwrap().is_empty() {
        return busypoll_lab::needs::skipped(module_path!(), &first["not_seen"].to_string());
    }
    traffic(&lab);
    let (rows, all) = log.rows_of(pid, |rows| sum(rows, "/packets/all") >= EXCHANGES);
    assert_eq!(sum(&rows, "/packets/all"), EXCHANGES, "{rows:#?}");
    let found = ["/packets/busy_poll", "/packets/interrupt", "/packets/kernel_thread"];
    assert_eq!(found.iter().map(|how| sum(&rows, how)).sum::<u64>(), EXCHANGES, "{rows:#?}");
    assert!(rows.iter().all(|row| row["plane"] == "kernel" && row["program"] == "python3"));
    // A datagram that came while the thread was at work needed no wait; a wait may have ended with another.
    let waits = sum(&rows, "/waits");
    assert!(waits > 0 && waits <= EXCHANGES + 1, "{waits} {rows:#?}");
    let device = lab.server.interface();
    let queues = all.iter().flat_map(|line| line["napis"].as_array().unwrap());
    let queues: Vec<Value> =
        queues.filter(|row| row["device"] == device && row["netns"].is_null()).cloned().collect();
    assert!(sum(&queues, "/packets/all") >= EXCHANGES, "{queues:#?}");
    let threads = all.iter().flat_map(|line| line["threads"].as_array().unwrap());
    let threads: Vec<Value> = threads.filter(|row| row["pid"] == pid).cloned().collect();
    assert_eq!(sum(&threads, "/waits"), waits, "{threads:#?}");
    assert!(threads.iter().all(|row| row["tid"] == pid && row["call"] == "recv"), "{threads:#?}");
    drop(program);
    wait_until("it is gone", || {
        let line = log.next();
        line["processes"].as_array().unwrap().iter().all(|row| row["pid"] != pid)
    });
    log.end();
}

#[test]
fn a_run_of_the_stack_plane_stands_beside_the_kernel_s() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--strict", "--"]);
    let program = Running::start(command.args(["python3", "-c", PROGRAM]));
    let pid = program.pid();
    // Without BPF, too: the run says it itself.
    let mut log = Log::start(&lab.server, &["--no-bpf"]);
    traffic(&lab);
    let (rows, all) = log.rows_of(pid, |rows| sum(rows, "/packets/all") >= EXCHANGES);
    // ARP is counted as well, and what came before the first reading is not.
    assert!(sum(&rows, "/packets/all") < EXCHANGES * 2, "{rows:#?}");
    assert!(rows.iter().all(|row| row["plane"] == "stack" && row["waits"].is_null()), "{rows:#?}");
    let said = all[0]["not_seen"].to_string();
    assert!(said.contains("--no-bpf") && said.contains("how threads wait"), "{said}");
    log.end();
    // Its guard is in the server's network namespace.
    for host in [&lab.server, &lab.client] {
        let output = run_on_host(host, &["top", "--batch", "1", "--interval", "200ms"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let row = text.lines().find(|line| line.contains(&format!("{pid} python3"))).expect(&text);
        assert_eq!(row.split_whitespace().nth(2), Some("S"), "{text}");
    }
}

#[test]
fn without_rights_what_is_missing_is_named_and_no_zero() {
    needs_root!();
    needs!(program "setpriv");
    // Other users may not enter the folder of the command, so root opens the command for them.
    let script = "exec 9<$0; exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
                  /proc/self/fd/9 top --batch 1 --interval 200ms --json";
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command("sh");
    let output = command.args(["-c", script, BUSYPOLL]).stdin(Stdio::null()).output().unwrap();
    let line: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    json_schema::is_as_documented("top", &line);
    let said = line["not_seen"].to_string();
    assert!(said.contains("how the kernel finds packets") && said.contains("CAP_BPF"), "{said}");
    let device = lab.server.interface();
    let queues = line["napis"].as_array().unwrap();
    let queue =
        queues.iter().find(|row| row["device"] == device).unwrap_or_else(|| panic!("{line}"));
    assert!(queue["packets"].is_null() && queue["empty_polls"].is_null(), "{queue}");
}

#[test]
fn mistakes_are_told_in_one_line() {
    fails_with(&run_locally(&["top"]), &["no terminal", "--batch"]);
    fails_with(&run_locally(&["top", "--batch", "--sort", "colour"]), &["colour", "PKT/s"]);
    fails_with(&run_locally(&["top", "--interval", "1ms"]), &["100ms"]);
    fails_with(&run_locally(&["top", "--json"]), &["--batch"]);
}

/// A view on a terminal of its own.
struct Pty {
    child: Child,
    terminal: std::fs::File,
    /// Held open: its settings are those that the view changes.
    inner: OwnedFd,
    /// All that was sent to it, and where the last key was typed.
    sent: String,
    mark: usize,
}

/// The alternate screen, and back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

impl Pty {
    fn start(options: &[&str]) -> Self {
        let (mut outer, mut inner) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both descriptors are written, and owned by nothing else.
        let (outer, inner) = unsafe {
            let null = std::ptr::null_mut();
            assert_eq!(
                libc::openpty(&raw mut outer, &raw mut inner, null, null.cast(), &raw const size),
                0
            );
            (OwnedFd::from_raw_fd(outer), OwnedFd::from_raw_fd(inner))
        };
        let copy = || Stdio::from(inner.try_clone().unwrap());
        let mut command = Command::new(BUSYPOLL);
        command.arg("top").args(options).stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: two system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        Pty { child, terminal: outer.into(), inner, sent: String::new(), mark: 0 }
    }

    /// Reads until this is shown, or sent since the last key.
    fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.sent[self.mark..].contains(text) && !screen(&self.sent).contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} in {}", screen(&self.sent));
            let mut poll =
                libc::pollfd { fd: self.terminal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry.
            if unsafe { libc::poll(&raw mut poll, 1, 200) } == 1 {
                let mut bytes = [0; 4096];
                let read = self.terminal.read(&mut bytes).unwrap_or(0);
                self.sent.push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        }
    }

    fn type_in(&mut self, keys: &[u8]) {
        self.mark = self.sent.len();
        self.terminal.write_all(keys).unwrap();
    }

    /// Whether the terminal echoes and reads lines, as before.
    fn is_as_before(&self) -> bool {
        // SAFETY: the descriptor is open and the structure is written.
        let flags = unsafe {
            let mut termios: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.inner.as_raw_fd(), &raw mut termios), 0);
            termios.c_lflag
        };
        flags & (libc::ECHO | libc::ICANON) == libc::ECHO | libc::ICANON
    }

    fn ended(mut self) -> Option<i32> {
        self.wait_for(LEAVE);
        let status = self.child.wait().unwrap();
        assert!(self.is_as_before());
        status.code()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines that a terminal of 80 x 24 shows after all this.
fn screen(sent: &str) -> String {
    let mut lines = vec![vec![' '; 80]; 24];
    let (mut x, mut y) = (0, 0);
    let mut chars = sent.chars();
    while let Some(char) = chars.next() {
        if char != '\x1b' {
            if let Some(cell) = lines.get_mut(y).and_then(|line| line.get_mut(x)) {
                *cell = char;
            }
            x += 1;
            continue;
        }
        let (mut numbers, mut end) = (String::new(), ' ');
        for char in chars.by_ref().skip(1) {
            end = char;
            if char.is_ascii_alphabetic() {
                break;
            }
            numbers.push(char);
        }
        match end {
            'H' => {
                let mut at = numbers.split(';').map(|number| number.parse().unwrap_or(1) - 1);
                (y, x) = (at.next().unwrap_or(0), at.next().unwrap_or(0));
            }
            'J' => lines = vec![vec![' '; 80]; 24],
            _ => {}
        }
    }
    lines.iter().map(|line| line.iter().collect::<String>() + "\n").collect()
}

const QUICK: &[&str] = &["--interval", "200ms", "--no-bpf"];

#[test]
fn keys_change_the_view() {
    let mut pty = Pty::start(QUICK);
    pty.wait_for("PROGRAM");
    assert!(pty.sent.contains(ENTER) && !pty.is_as_before());
    pty.wait_for("q quit  1-3 view");
    // Without BPF it says so.
    pty.wait_for("not seen: ");
    pty.type_in(b"3");
    pty.wait_for("THREAD");
    pty.type_in(b"/nothing is called so\r");
    pty.wait_for("no row matches");
    pty.type_in(b"\x1b");
    pty.wait_for("no packet, no wait");
    pty.type_in(b"p");
    pty.wait_for("PAUSED");
    pty.type_in(b"?");
    pty.wait_for("the kernel's, S the stack plane");
    pty.type_in(b"q");
    assert_eq!(pty.ended(), Some(0));
}

#[test]
fn the_terminal_is_as_before_on_every_end() {
    for signal_sent in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let mut pty = Pty::start(QUICK);
        pty.wait_for("PROGRAM");
        signal(&pty.child, signal_sent);
        assert_eq!(pty.ended(), Some(0), "{signal_sent}");
    }
    let mut pty = Pty::start(QUICK);
    pty.wait_for("PROGRAM");
    pty.type_in(b"/\x03");
    assert_eq!(pty.ended(), Some(0));
    // While it is still counting.
    let mut pty = Pty::start(&["--interval", "1h"]);
    pty.wait_for("counting");
    pty.type_in(b"\x03");
    assert_eq!(pty.ended(), Some(0));
}

#[test]
fn suspended_it_gives_the_terminal_back_until_it_is_continued() {
    let mut pty = Pty::start(QUICK);
    pty.wait_for("PROGRAM");
    for by_key in [true, false] {
        pty.mark = pty.sent.len();
        match by_key {
            true => pty.type_in(b"\x1a"),
            false => signal(&pty.child, libc::SIGTSTP),
        }
        pty.wait_for(LEAVE);
        wait_until("it is stopped", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pty.child.id())).unwrap();
            stat.contains(") T ")
        });
        assert!(pty.is_as_before());
        pty.mark = pty.sent.len();
        signal(&pty.child, libc::SIGCONT);
        pty.wait_for(ENTER);
        pty.wait_for("PROGRAM");
        assert!(!pty.is_as_before());
    }
    pty.type_in(b"q");
    assert_eq!(pty.ended(), Some(0));
}
