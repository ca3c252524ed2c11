//! A soak of some seconds; `busypoll soak` is one of half an hour.

mod support;

use std::process::{Command, Stdio};

use busypoll_lab::{needs, needs_root};
use support::BUSYPOLL;

fn soak(plane: &str) {
    needs_root!();
    needs!(program "ip");
    let mut soak = Command::new(BUSYPOLL);
    soak.args(["soak", "--plane", plane, "--duration", "2s", "--clients", "4"]);
    let output = soak.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("every byte was right"), "{output:?}");
    // The client's totals prove that data was exchanged.
    assert!(said.contains(" connections, ") && !said.starts_with("0 "), "{said}");
}

#[test]
fn every_byte_is_right_despite_faults_on_the_kernel_plane() {
    soak("kernel");
}

#[test]
fn every_byte_is_right_despite_faults_on_the_stack_plane() {
    soak("stack");
}
