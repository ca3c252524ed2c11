//! Socket calls of Python programs on the stack plane, against a peer on another host: `programs/calls.py` gives the
//! same results as without busypoll, and children have what docs/stack-plane.md says (`programs/fork.py`).

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::process::Stdio;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

/// The command line that runs a program on the stack plane.
const STACK: [&str; 5] = [BUSYPOLL, "run", "--plane", "stack", "--dev"];
/// Seconds until a program with a call that hangs is ended; a run takes a few seconds.
const LIMIT: &str = "60";

/// The output of a program of `programs` on the server of a lab, with its peer on the other host.
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
#[ignore = "long: ten seconds"]
fn calls_return_the_same_as_without_busypoll() {
    needs_root!();
    needs!(program "python3", program "timeout");
    let _one = one_test_at_a_time();
    let plain = output_of("calls.py", &[], &[]);
    assert!(plain.lines().count() >= 14, "{plain}");
    assert_eq!(output_of("calls.py", &in_stack(), &[]), plain);
}

#[test]
#[ignore = "long: ten seconds"]
fn children_have_the_sockets_that_the_documents_promise() {
    needs_root!();
    needs!(program "python3", program "timeout");
    let _one = one_test_at_a_time();
    for case in [
        "a_listener_moves_to_the_child_that_accepts",
        "a_child_s_calls_do_not_affect_its_parent",
        "a_daemon_activates_the_listener_it_inherits",
        "a_listener_inherited_over_exec_is_the_kernel_s",
        "a_spawned_child_does_not_affect_its_parent",
    ] {
        assert_eq!(output_of("fork.py", &in_stack(), &[case]).trim_end(), case);
    }
}
