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

/// Runs the program once for each value of a variable, in one lab. It must end by itself. Passes its output to `each`,
/// and stops when that returns false.
fn runs(variable: &str, values: impl Iterator<Item = String>, each: impl Fn(&Output) -> bool) {
    let _one = one_test_at_a_time();
    let program = conformance("short");
    let lab = Lab::builder().build().unwrap();
    let _peer = Running::start(lab.client.command(&program).args(["peer", PORT]));
    for value in values {
        let mut command = lab.server.command("timeout");
        command.args(["-s", "KILL", "60", BUSYPOLL, "run", "--plane", "stack"]);
        command.args(["--dev", "lab-server", "--"]).arg(&program);
        command.args([lab.server.ipv4().to_string(), lab.client.ipv4().to_string(), PORT.into()]);
        let output = command.env(variable, &value).stdin(Stdio::null()).output().unwrap();
        let code = output.status.code();
        let ended = output.status.signal().is_none() && code.is_some_and(|code| code < 124);
        assert!(ended, "{variable}={value}: {output:?}");
        if !each(&output) {
            return;
        }
    }
}

fn says(output: &Output, what: &str) -> bool {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.matches(what).count() <= 1, "{err}");
    err.contains(what)
}

#[test]
fn a_temporary_memory_shortage_gives_errors_or_leaves_sockets_to_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    runs("BUSYPOLL_TEST_SHORT", [format!("400:{MANY}")].into_iter(), |_| true);
}

#[test]
#[ignore = "long: half a minute"]
fn a_permanent_memory_shortage_gives_errors_or_leaves_sockets_to_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    runs("BUSYPOLL_TEST_SHORT", ["700:1000000000".to_owned()].into_iter(), |output| {
        assert!(says(output, "memory is short"), "{output:?}");
        true
    });
}

#[test]
#[ignore = "hours"]
fn a_memory_shortage_may_begin_at_any_allocation() {
    needs_root!();
    needs!(program "cc", program "timeout");
    let values = (1..2000).map(|from: u32| format!("{from}:{MANY}"));
    runs("BUSYPOLL_TEST_SHORT", values, |_| true);
}

#[test]
#[ignore = "long: half a minute"]
fn a_call_that_panics_returns_an_error() {
    needs_root!();
    needs!(program "cc", program "timeout");
    panics_in([70].into_iter());
}

#[test]
#[ignore = "minutes"]
fn any_call_that_panics_returns_an_error() {
    needs_root!();
    needs!(program "cc", program "timeout");
    // Not the first calls: these install signal handlers, and without them a signal that should be ignored ends the
    // program.
    panics_in((9..900).step_by(11));
}

fn panics_in(calls: impl Iterator<Item = u32>) {
    runs("BUSYPOLL_TEST_PANIC", calls.map(|call| call.to_string()), |output| {
        assert!(says(output, "a bug in the preload library"), "{output:?}");
        true
    });
}
