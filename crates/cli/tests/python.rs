//! Socket calls of Python programs on the stack plane, against a peer on another host: `programs/calls.py` is as it
//! is without us, and `programs/fork.py` says what children have.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::process::Stdio;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

/// Runs the program in front of the stack.
const STACK: [&str; 5] = [BUSYPOLL, "run", "--plane", "stack", "--dev"];
/// A call that hangs ends the program; a run takes a few seconds.
const LIMIT: &str = "60";

/// What a program of `programs` says on the server of a lab, its peer being on the other host.
fn output_of(program: &str, in_front: &[&str], what: &[&str]) -> String {
    let lab = Lab::builder().build().unwrap();
    let mut peer = lab.client.command("python3");
    let _peer = Running::start(peer.arg(source("peer.py")));
    let mut command = lab.server.command("timeout");
    command.arg(LIMIT).args(in_front).args(["python3".as_ref(), source(program).as_os_str()]);
    command.args([lab.server.ipv4().to_string(), lab.client.ipv4().to_string()]).args(what);
    succeeds(command.stdin(Stdio::null()))
}

fn in_stack() -> Vec<&'static str> {
    [&STACK[..], &["lab-server", "--"]].concat()
}

#[test]
fn calls_are_as_without_us() {
    needs_root!();
    needs!(program "python3", program "timeout");
    let _one = one_test_at_a_time();
    let plain = output_of("calls.py", &[], &[]);
    assert!(plain.lines().count() >= 14, "{plain}");
    assert_eq!(output_of("calls.py", &in_stack(), &[]), plain);
}

#[test]
fn children_have_what_is_said_of_them() {
    needs_root!();
    needs!(program "python3", program "timeout");
    let _one = one_test_at_a_time();
    for case in [
        "a_listener_moves_to_the_child_that_accepts",
        "what_a_child_does_is_nothing_to_its_parent",
        "a_daemon_is_the_program_it_was",
        "what_is_inherited_over_exec_is_the_kernels",
        "a_spawned_child_is_nothing_to_its_parent",
    ] {
        assert_eq!(output_of("fork.py", &in_stack(), &[case]).trim_end(), case);
    }
}
