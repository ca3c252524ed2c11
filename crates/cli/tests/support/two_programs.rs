//! Two programs of one machine: a Python program of `programs/` that serves, or calls the other.
#![allow(dead_code)] // each test file uses its own part

use std::process::Command;

use busypoll_lab::Lab;
use busypoll_linux::stat;

use super::{
    PORT,
    echo::{Running, source},
    support::BUSYPOLL,
};

/// The program `name` on the server's host: "plain", on the stack plane ("stack"), or there "without" memory.
pub fn program(lab: &Lab, name: &str, plane: &str, words: &[&str]) -> Command {
    let source = source(name);
    let python = ["python3", source.to_str().unwrap()];
    if plane == "plain" {
        let mut command = lab.server.command(python[0]);
        command.arg(python[1]).args(words);
        return command;
    }
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface()]);
    command.args((plane == "without").then_some("--no-same-host"));
    command.arg("--").args(python).args(words);
    command
}

pub fn serve(lab: &Lab, name: &str, plane: &str, how: &str, address: &str) -> Running {
    Running::start(&mut program(lab, name, plane, &["serve", how, address, PORT]))
}

/// Runs a client to its end, and returns how many packets loopback has carried meanwhile. Where the CPUs are busy a process
/// may not answer in time, and the kernel has its connections and datagrams for a while.
pub fn call(lab: &Lab, client: &mut Command) -> u64 {
    let before = packets(lab);
    let output = client.output().unwrap();
    assert!(output.status.success(), "{client:?}: {output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("done"), "{client:?}: {output:?}");
    packets(lab) - before
}

/// How many packets loopback has carried.
pub fn packets(lab: &Lab) -> u64 {
    lab.server.enter(|| stat::received_packets().unwrap()["lo"]).unwrap()
}
