//! Memory that is short, and panics, in the library before a program: from the n-th allocation on for some, and in the
//! n-th call. The program (`programs/conformance`) goes on: what cannot be served is the kernel's or an error, and one
//! line says so. By switches of builds for tests.
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
/// Of allocations and calls that find memory short.
const MANY: u32 = 200;

/// Runs the program once for each value of a variable, on one lab. It ends by itself, whatever it finds. Gives what it
/// said to `each`; stops where that is false.
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
fn memory_that_is_short_for_a_while_is_an_error_or_leaves_sockets_to_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    runs("BUSYPOLL_TEST_SHORT", [format!("400:{MANY}")].into_iter(), |_| true);
}

#[test]
fn memory_that_is_short_for_good_is_an_error_or_leaves_sockets_to_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    runs("BUSYPOLL_TEST_SHORT", ["700:1000000000".to_owned()].into_iter(), |output| {
        assert!(says(output, "memory is short"), "{output:?}");
        true
    });
}

#[test]
#[ignore = "hours"]
fn memory_that_is_short_from_any_allocation_on() {
    needs_root!();
    needs!(program "cc", program "timeout");
    let values = (1..2000).map(|from: u32| format!("{from}:{MANY}"));
    runs("BUSYPOLL_TEST_SHORT", values, |_| true);
}

#[test]
fn a_panic_in_a_call_is_its_error() {
    needs_root!();
    needs!(program "cc", program "timeout");
    panics_in([70].into_iter());
}

#[test]
#[ignore = "minutes"]
fn a_panic_in_any_call_is_its_error() {
    needs_root!();
    needs!(program "cc", program "timeout");
    // Not the first calls: they install handlers, and the program ends of a signal that it meant to ignore.
    panics_in((9..900).step_by(11));
}

fn panics_in(calls: impl Iterator<Item = u32>) {
    runs("BUSYPOLL_TEST_PANIC", calls.map(|call| call.to_string()), |output| {
        assert!(says(output, "a fault of the library's own"), "{output:?}");
        true
    });
}
