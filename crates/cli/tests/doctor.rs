//! `busypoll doctor` as a user sees it: exit codes, one line if it cannot look, a report for people and one for
//! programs, for root and for ordinary users.

#[path = "support/seccomp.rs"]
mod seccomp;
mod support;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use busypoll_lab::{Lab, needs, needs_root};
use serde_json::Value;
use support::{BUSYPOLL, fails_with, run_locally, run_on_host};

waiter_test!();

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The JSON report; the exit code says whether there are faults.
fn report(output: &Output) -> Value {
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let faults = support::faults::faults_found(&busypoll_lab::vm::CommandOutput {
        status: 0,
        stdout: text(output),
        stderr: String::new(),
    });
    let expected = i32::from(!faults.unwrap().is_empty());
    assert_eq!(output.status.code(), Some(expected), "{output:?}");
    report
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|f| f["code"].as_str().unwrap()).collect()
}

#[test]
fn a_missing_device_peer_or_process_gets_one_line() {
    fails_with(&run_locally(&["doctor", "nosuch0"]), &["nosuch0", "ip link"]);
    fails_with(&run_locally(&["doctor", "lo", "nosuch0", "--json"]), &["nosuch0"]);
    fails_with(
        &run_locally(&["doctor", "--peer", "300.0.0.1"]),
        &["--peer", "no address of '300.0.0.1'"],
    );
    fails_with(
        &run_locally(&["doctor", "--pid", "4294967295"]),
        &["4294967295", "no such process"],
    );
    fails_with(&run_locally(&["doctor", "--pid", "x"]), &["'x'"]);
}

#[test]
fn every_rule_is_listed_with_its_source() {
    let listed = text(&run_locally(&["doctor", "--list"]));
    for code in ["BP-VETH-GRO-OFF", "BP-RPS", "BP-GOVERNOR", "BP-SOCK-IN-EPOLL"] {
        assert!(listed.contains(code), "{code}");
    }
    let sources = listed.lines().filter(|l| l.starts_with("    source  ")).count();
    assert_eq!(sources, listed.lines().filter(|l| l.starts_with("BP-")).count());
}

#[test]
fn the_two_reports_say_the_same() {
    needs_root!();
    let lab = Lab::builder().gro(false).build().unwrap();
    let device = lab.client.interface();
    let output = run_on_host(&lab.client, &["doctor", device]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output);
    assert!(!told.contains('\x1b'), "colour into a pipe: {told}");
    let remedy = format!("remedy  ethtool -K {device} gro on");
    assert!(told.contains(&remedy) && told.contains("[BP-VETH-GRO-OFF]"), "{told}");

    let report = report(&run_on_host(&lab.client, &["doctor", device, "--json"]));
    assert_eq!(report["verdict"], "impossible");
    let finding = &report["findings"][0];
    assert_eq!(finding["code"], "BP-VETH-GRO-OFF");
    assert_eq!(finding["subject"], serde_json::json!({ "kind": "device", "name": device }));
    assert_eq!(finding["remedy"], format!("ethtool -K {device} gro on"));
    assert!(finding["evidence"][0]["said"].as_str().unwrap().contains("rx-gro off"));
    assert_eq!(report["facts"]["devices"][0]["name"], device);
    // The summary is the first line; how many other findings there are may change from one run to the next.
    let first = |line: &str| line.split_once(", ").unwrap_or_else(|| panic!("{line}")).1.to_owned();
    assert_eq!(first(report["summary"].as_str().unwrap()), first(told.lines().next().unwrap()));
}

/// A copy of the command that any user may run, whatever the permissions of the build folder.
struct PublicCopy(PathBuf);

impl PublicCopy {
    fn new() -> Self {
        let path = env::temp_dir().join(format!("busypoll-doctor-{}", std::process::id()));
        fs::copy(BUSYPOLL, &path).unwrap();
        PublicCopy(path)
    }
}

impl Drop for PublicCopy {
    fn drop(&mut self) {
        // The file is scratch.
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn an_ordinary_user_gets_a_report_that_names_unusable_facilities() {
    needs_root!();
    needs!(program "setpriv", program "unshare");
    let copy = PublicCopy::new();
    let nobody = |words: &[&str]| {
        let drop_root = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = Command::new("setpriv");
        command.args(drop_root).args(words).arg(&copy.0).args(["doctor", "lo", "--json"]);
        command.output().unwrap()
    };
    let plain = report(&nobody(&[]));
    let facilities = plain["facts"]["kernel"]["facilities"].as_array().unwrap();
    let usable = |name: &str| {
        let found = facilities.iter().find(|f| f["name"] == name).unwrap();
        found["usable"].as_bool().unwrap()
    };
    assert!(!usable("SO_PREFER_BUSY_POLL") && !usable("napi-set"), "{facilities:?}");
    assert!(!codes(&plain).contains(&"BP-USER-NAMESPACE"), "{plain}");
    assert!(codes(&plain).contains(&"BP-LOOPBACK"), "{plain}");

    // Root in that namespace, but an ordinary user outside.
    let inside = report(&nobody(&["unshare", "--user", "--map-root-user"]));
    assert!(codes(&inside).contains(&"BP-USER-NAMESPACE"), "{inside}");
}

#[test]
fn a_read_only_proc_and_sys_are_enough() {
    needs_root!();
    needs!(program "unshare");
    let lab = Lab::builder().gro(false).build().unwrap();
    let script = format!(
        "mount -o remount,ro,bind /proc; mount -t sysfs -o ro sysfs /sys;
         exec {BUSYPOLL} doctor {} --json",
        lab.client.interface()
    );
    let output = lab.client.command("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    assert_eq!(codes(&report(&output)).iter().filter(|c| **c == "BP-VETH-GRO-OFF").count(), 2);
}

#[test]
fn without_proc_it_says_so_in_one_line() {
    needs_root!();
    needs!(program "unshare");
    let script = format!("mount -t tmpfs tmpfs /proc && exec {BUSYPOLL} doctor");
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    fails_with(&output, &["/proc"]);
}

#[test]
fn without_sys_the_rest_is_reported() {
    needs_root!();
    needs!(program "unshare");
    let lab = Lab::builder().gro(false).build().unwrap();
    let device = lab.client.interface();
    // It has no right to mount one either.
    let script = format!(
        "mount -t tmpfs tmpfs /sys && exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \
         {BUSYPOLL} doctor {device} --json"
    );
    let output = lab.client.command("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let report = report(&output);
    assert!(codes(&report).contains(&"BP-VETH-GRO-OFF"), "{report}");
    assert!(codes(&report).contains(&"BP-NOT-SEEN"), "{report}");
}

#[test]
fn a_container_without_netlink_gets_one_line() {
    let mut command = Command::new(BUSYPOLL);
    command.args(["doctor", "lo"]);
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(|| seccomp::refuse(libc::SYS_socket, &[(0, libc::AF_NETLINK as u32)]));
    }
    fails_with(&command.output().unwrap(), &["netlink"]);
}

#[test]
fn a_peer_may_be_given_by_name() {
    // Of either family, as /etc/hosts has it.
    let output = run_locally(&["doctor", "--peer", "localhost", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|found| found["code"] == "BP-PEER-LOCAL"), "{report}");
}

/// Two threads, each with a socket in an epoll instance of its own.
const TWO: &str = "
import select, socket, threading, time
def wait(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('10.77.0.2', port))
    e = select.epoll()
    e.register(s.fileno(), select.EPOLLIN)
    print('ready', flush=True)
    while True:
        if e.poll(): s.recvfrom(99)
for port in (7001, 7002): threading.Thread(target=wait, args=(port,), daemon=True).start()
time.sleep(99)
";

/// `run` turns polling off for the thread that would be one too many: nothing to mend, and `attach` would be wrong.
#[test]
fn a_wait_that_run_does_not_let_poll_is_no_fault() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let policy = env::temp_dir().join(format!("busypoll-doctor-{}.toml", std::process::id()));
    fs::write(&policy, "max_spinning_threads = 1\nbusy_poll = '1s'\n").unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--policy"]).arg(&policy).args(["--", "python3", "-c", TWO]);
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(program.stdout.take().unwrap()));
    assert!(lines.next().is_some() && lines.next().is_some());
    let socket = lab.client.enter(|| std::net::UdpSocket::bind("10.77.0.1:0")).unwrap().unwrap();
    let asleep = || fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
    assert!(asleep().contains("Threads:\t3"), "{}", asleep());
    // Each learns the queue by a packet.
    for _ in 0..20 {
        for port in [7001, 7002] {
            socket.send_to(b"x", ("10.77.0.2", port)).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output =
        run_on_host(&lab.server, &["doctor", "--pid", &program.id().to_string(), "--json"]);
    program.kill().unwrap();
    program.wait().unwrap();
    let _ = fs::remove_file(&policy);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for code in ["BP-EPOLL-OFF", "BP-SOCK-IN-EPOLL", "BP-SOCK-OFF"] {
        assert!(!codes(&report).contains(&code), "{code}: {report:#}");
    }
}
