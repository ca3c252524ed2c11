//! Memory shortage, and panics, in the preload library: from the n-th allocation on for some allocations, or in the
//! n-th call. The program (`programs/conformance`) must continue: the socket stays with the kernel or the call returns
//! an error, and one line says so. Uses switches that only test builds have.
#![cfg(debug_assertions)]

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

const PORT: &str = "7000";
/// How many allocations and calls find memory short.
const MANY: u32 = 200;

const STACK: &[&str] = &["--plane", "stack", "--dev", "lab-server"];
const KERNEL: &[&str] = &[];

/// Runs the program on a plane, once for each value of a variable, in one lab. It must end by itself. Passes its output
/// to `each`.
fn runs(
    plane: &[&str],
    variable: &str,
    values: impl Iterator<Item = String>,
    each: impl Fn(&Output),
) {
    let _one = one_test_at_a_time();
    let program = conformance("short");
    let lab = Lab::builder().build().unwrap();
    let _peer = Running::start(lab.client.command(&program).args(["peer", PORT]));
    for value in values {
        let mut command = lab.server.command("timeout");
        command.args(["-s", "KILL", "60", BUSYPOLL, "run"]).args(plane).arg("--").arg(&program);
        command.args([lab.server.ipv4().to_string(), lab.client.ipv4().to_string(), PORT.into()]);
        let output = command.env(variable, &value).stdin(Stdio::null()).output().unwrap();
        let code = output.status.code();
        let ended = output.status.signal().is_none() && code.is_some_and(|code| code < 124);
        assert!(ended, "{plane:?} {variable}={value}: {output:?}");
        each(&output);
    }
}

/// How often standard error has a text: at most once for each process.
fn said(output: &Output, what: &str) -> usize {
    String::from_utf8_lossy(&output.stderr).matches(what).count()
}

#[test]
#[ignore = "long: ten seconds"]
fn a_temporary_memory_shortage_gives_errors_or_leaves_sockets_to_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    runs(STACK, "BUSYPOLL_TEST_SHORT", [format!("400:{MANY}")].into_iter(), |_| ());
}

#[test]
#[ignore = "long: half a minute"]
fn a_permanent_memory_shortage_gives_errors_or_leaves_sockets_to_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    runs(STACK, "BUSYPOLL_TEST_SHORT", ["700:1000000000".to_owned()].into_iter(), |output| {
        assert_eq!(said(output, "memory is short"), 1, "{output:?}");
    });
}

#[test]
#[ignore = "hours"]
fn a_memory_shortage_may_begin_at_any_allocation() {
    needs_root!();
    needs!(program "cc", program "timeout");
    for plane in [STACK, KERNEL] {
        let values = (1..7000).map(|from: u32| format!("{from}:{MANY}"));
        runs(plane, "BUSYPOLL_TEST_SHORT", values, |_| ());
    }
}

#[test]
#[ignore = "long: half a minute"]
fn a_call_that_panics_returns_an_error() {
    needs_root!();
    needs!(program "cc", program "timeout");
    panics_in(STACK, [70].into_iter());
}

#[test]
#[ignore = "a quarter of an hour"]
fn any_call_that_panics_returns_an_error() {
    needs_root!();
    needs!(program "cc", program "timeout");
    for plane in [STACK, KERNEL] {
        // Not the first calls, one of which installs the handler of SIGPIPE: without it that signal ends the program.
        panics_in(plane, (9..3500).step_by(49));
    }
}

fn panics_in(plane: &[&str], calls: impl Iterator<Item = u32>) {
    runs(plane, "BUSYPOLL_TEST_PANIC", calls.map(|call| call.to_string()), |output| {
        assert!(said(output, "a bug in the preload library") > 0, "{output:?}");
    });
}
