//! The benchmark arms between two processes: each runs and is valid, and the second process never outlives the first.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use busypoll_lab::{needs, needs_root};
use serde_json::Value;
use support::*;

/// Longer than other load keeps the peer off its CPU.
const POLL: &str = "20ms";

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(BUSYPOLL);
    command.arg("bench").args(arguments).stdin(Stdio::null());
    command
}

fn report(mut command: Command) -> Value {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn cpus() -> usize {
    thread::available_parallelism().unwrap().get()
}

/// The names of the arms that were measured, all of which must be valid.
fn valid(report: &Value) -> Vec<&str> {
    let arms = report["arms"].as_array().unwrap();
    for arm in arms {
        assert_eq!((&arm["valid"], &arm["between"]), (&true.into(), &"processes".into()), "{arm}");
        assert!(arm["transactions"].as_u64() > Some(0), "{arm}");
    }
    arms.iter().map(|arm| arm["name"].as_str().unwrap()).collect()
}

#[test]
fn each_arm_between_processes_runs_and_is_compared_with_loopback() {
    if cpus() < 2 {
        return needs::skipped(module_path!(), "two CPUs");
    }
    let options = ["--arms", "local-*", "--duration", "4s", "--rounds", "2", "--busy-poll", POLL];
    for size in ["1,1", "3000,200"] {
        let report = report(bench(&[&options[..], &["--size", size, "--json", "-"]].concat()));
        let names = valid(&report);
        assert_eq!((names.len(), report["skipped"].as_array().unwrap().len()), (11, 0), "{report}");
        let best = |protocol: &str| {
            let starts = format!("local-loopback-{protocol}-blocking");
            *names.iter().find(|name| name.starts_with(&starts)).unwrap()
        };
        for protocol in ["udp", "tcp"] {
            let cable = format!("local-cable-{protocol}-busy-poll");
            let comparisons = report["comparisons"].as_array().unwrap();
            for other in [best(protocol), "local-memory-spin"] {
                let with = |c: &&Value| c["arm"] == cable.as_str() && c["baseline"] == other;
                assert!(comparisons.iter().any(|c| with(&c)), "{cable} {other}: {comparisons:?}");
            }
        }
        let answer = report["answer"].as_str().unwrap();
        assert!(answer.starts_with("Between two processes of this machine, TCP"), "{answer}");
    }
}

#[test]
fn a_user_without_root_or_namespaces_gets_them() {
    needs_root!();
    needs!(program "setpriv");
    let folder = std::env::temp_dir().join(format!("busypoll-local-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let copy = folder.join("busypoll");
    // Copied by another process: this one's forks for other tests would hold the file open for writing.
    assert!(Command::new("cp").arg(BUSYPOLL).arg(&copy).status().unwrap().success());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]).arg(&copy);
    command.args(["bench", "--arms", "local-*", "--rounds", "1", "--duration", "2s"]);
    let output = command.args(["--busy-poll", POLL, "--json", "-"]).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(valid(&report).len(), if cpus() < 2 { 4 } else { 11 }, "{report}");
}

#[test]
fn on_one_cpu_both_ends_take_turns_and_the_report_says_so() {
    needs!(program "taskset");
    let mut command = Command::new("taskset");
    let first = busypoll_linux::topology::allowed().unwrap().iter().next().unwrap();
    command.args(["--cpu-list", &first.to_string(), BUSYPOLL, "bench", "--arms", "local-*"]);
    command.args(["--duration", "1s", "--rounds", "1", "--json", "-"]);
    let report = report(command);
    assert_eq!(valid(&report).len(), 4, "{report}");
    assert!(valid(&report).iter().all(|name| name.ends_with("-same-cpu")), "{report}");
    assert!(report["notes"].to_string().contains("one CPU"), "{report}");
    assert!(report["skipped"].to_string().contains("needs two CPUs"), "{report}");
}

#[test]
fn where_such_an_arm_does_not_apply_one_line_says_why() {
    let only = |options: &[&str]| {
        let all = [options, &["--arms", "local-memory-spin,local-cable-udp-*"]].concat();
        bench(&all).output().unwrap()
    };
    fails_with(&only(&["--sweep", "coalesce"]), &["between processes nothing is coalesced"]);
    fails_with(&only(&["--workload", "fix"]), &["local-memory-spin", "--workload rr"]);
    let open = only(&["--sweep", "open"]);
    fails_with(&open, &["the other process's memory"]);
    fails_with(&bench(&["--other-end"]).output().unwrap(), &["--other-end", "only a bench"]);
}

/// A bench of one arm that takes two seconds, and the process that it has started.
fn in_the_middle(arm: &str) -> (Child, u32) {
    let mut command = bench(&["--arms", arm, "--duration", "2s", "--rounds", "1"]);
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
    let bench = bench.unwrap();
    let mut other = None;
    wait_until("the second process is there", || {
        other = child_of(bench.id());
        other.is_some()
    });
    (bench, other.unwrap())
}

/// A child of any thread of a process.
fn child_of(pid: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let children = fs::read_to_string(thread.path().join("children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

/// Whether a process has ended; one that is not reaped yet has.
fn has_ended(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| {
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    })
}

#[test]
fn the_second_process_ends_with_the_first_whenever_that_is_killed() {
    let mut arms =
        vec!["local-loopback-udp-blocking-same-cpu", "local-unix-stream-blocking-same-cpu"];
    if cpus() > 1 {
        arms.extend([
            "local-memory-spin",
            "local-cable-udp-busy-poll",
            "local-cable-tcp-busy-poll",
        ]);
    }
    for arm in arms {
        // From before it serves to the middle of the measurement.
        for later in [0, 3, 30, 300] {
            let (mut bench, other) = in_the_middle(arm);
            thread::sleep(Duration::from_millis(later));
            bench.kill().unwrap();
            bench.wait().unwrap();
            wait_until(&format!("{arm}: the second process has ended"), || has_ended(other));
        }
    }
}

#[test]
fn a_second_process_that_is_killed_fails_its_arm_in_one_line() {
    for arm in [
        "local-loopback-udp-blocking-same-cpu",
        "local-loopback-tcp-blocking-same-cpu",
        "local-unix-stream-blocking-same-cpu",
    ] {
        let (bench, other) = in_the_middle(arm);
        let pid = rustix::process::Pid::from_raw(other.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let output = bench.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let why = format!("skipped: {arm}: the other process ended: signal: 9 (SIGKILL)");
        assert!(said.lines().any(|line| line == why), "{output:?}");
    }
}
