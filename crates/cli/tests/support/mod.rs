//! What tests of the command share: running it, checking its one line of error, a server that has started.
#![allow(dead_code)] // each test file uses its own part

pub mod faults;
pub mod json_schema;
pub mod lab_machine;
pub mod shown;
pub mod vm_machine;
pub mod waiter;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::LabHost;
use serde_json::Value;

/// For a file whose tests mostly wait for other processes: four of them run at a time, whatever the number of CPUs,
/// unless RUST_TEST_THREADS says otherwise.
#[macro_export]
macro_rules! four_tests_at_a_time {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static FOUR_TESTS_AT_A_TIME: extern "C" fn() = $crate::support::four_tests_at_a_time;
    };
}

/// Called before main, by the C library.
pub extern "C" fn four_tests_at_a_time() {
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // SAFETY: there is no other thread yet.
        unsafe { std::env::set_var("RUST_TEST_THREADS", "4") };
    }
}

pub const BUSYPOLL: &str = env!("CARGO_BIN_EXE_busypoll");

/// Runs the command with these arguments in the test's own network namespace.
pub fn run_locally(arguments: &[&str]) -> Output {
    Command::new(BUSYPOLL).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs the command with these arguments on a host of a lab.
pub fn run_on_host(host: &LabHost, arguments: &[&str]) -> Output {
    host.command(BUSYPOLL).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The one line of error; exit code 2 and nothing else on either output.
pub fn error_line(output: &Output) -> String {
    error_line_with(output, 2)
}

/// The same with another exit code.
pub fn error_line_with(output: &Output, code: i32) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((err.lines().count(), out.as_str()), (1, ""), "{output:?}");
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let line = err.trim_end().to_owned();
    assert!(line.starts_with("busypoll: "), "{line}");
    line
}

/// The command fails, and its error line contains everything in `wanted`.
pub fn fails_with(output: &Output, wanted: &[&str]) {
    fails_with_code(output, 2, wanted);
}

/// The same with another exit code.
pub fn fails_with_code(output: &Output, code: i32, wanted: &[&str]) {
    let line = error_line_with(output, code);
    for wanted in wanted {
        assert!(line.contains(wanted), "no {wanted:?} in: {line}");
    }
}

/// What a program wrote to standard error, without the reports that depend on the load of the machine: that two threads
/// polled on one CPU, and that polling found nothing.
pub fn without_load_reports(stderr: &str) -> String {
    const REPORTS: [&str; 3] = [
        "two threads busy poll on CPU",
        "are there enough CPUs for it and its peer?",
        "and other threads want its CPU, so the thread does not poll for a while",
    ];
    let lines = stderr.split_inclusive('\n');
    lines.filter(|line| !REPORTS.iter().any(|report| line.contains(report))).collect()
}

/// A `busypoll serve` that listens; killed if the test ends before it does.
pub struct Serving {
    pub child: Child,
    /// The rest of its output. Held, so that it can write.
    _output: BufReader<ChildStdout>,
}

impl Serving {
    /// `serve` with these arguments more, started by `command`.
    pub fn start(mut command: Command, arguments: &[&str]) -> Self {
        command.arg("serve").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("serving on CPU "), "{line}");
        Self { child, _output: output }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It has ended already, or this ends it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_until(what: &str, done: impl FnMut() -> bool) {
    wait_at_most(Duration::from_secs(20), what, done);
}

pub fn wait_at_most(time: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + time;
    while !done() {
        assert!(Instant::now() < deadline, "still waiting: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a program until `is` holds of it, and ends each before it. So a test gets a connection over memory: a process
/// that does not get a CPU in time has its first one by the kernel.
pub fn start_until<T>(
    what: &str,
    mut start: impl FnMut() -> T,
    mut is: impl FnMut(&T) -> bool,
) -> T {
    let mut found = None;
    wait_until(what, || {
        found = Some(start()).filter(&mut is);
        found.is_some()
    });
    found.unwrap()
}

/// The process at the other end of each connection over memory that process `pid` has, as `busypoll ss` lists them.
pub fn links_of(host: &LabHost, pid: u32) -> Vec<u32> {
    let output = run_on_host(host, &["ss", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    let rows = shown.lines().map(|line| serde_json::from_str(line).unwrap());
    let own = rows.filter(|row: &Value| row["pid"] == pid && row["state"] == "ESTAB");
    own.filter_map(|row| row["link_pid"].as_u64()?.try_into().ok()).collect()
}

/// The ids of the BPF programs that process `pid` holds.
pub fn programs_of(pid: u32) -> Vec<u32> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return Vec::new() };
    let texts = descriptors.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let id = |text: String| {
        text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())
    };
    texts.filter_map(id).collect()
}

/// Whether the BPF program `id` is loaded (BPF_PROG_GET_FD_BY_ID of bpf(2)).
pub fn is_loaded(id: u32) -> bool {
    const PROG_GET_FD_BY_ID: libc::c_int = 13;
    let attributes = [id, 0, 0];
    let size = size_of_val(&attributes);
    // SAFETY: the attributes are valid for that size; the command only reads them.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_GET_FD_BY_ID, attributes.as_ptr(), size) };
    if fd >= 0 {
        // SAFETY: the descriptor was made by the call above and is closed once.
        unsafe { libc::close(fd as libc::c_int) };
    }
    fd >= 0
}
