//! A table of faults: each is made on purpose, found by its code, and cured by the command that the doctor prints,
//! run as printed.
#![allow(dead_code)] // each test file uses its own part

use std::fmt::Write;

use busypoll_lab::vm::CommandOutput;
use serde_json::Value;

/// One fault of configuration.
pub struct Fault {
    /// The mistake in the configuration.
    pub name: &'static str,
    /// The doctor's code for it.
    pub code: &'static str,
    /// How the inspected program waits, in the words of `support::waiter`; empty: no program runs.
    pub waiter: &'static str,
    /// Shell commands that make the fault; `$DEV` is the device, `$PID` the program.
    pub make: &'static str,
    /// The arguments of the doctor, with the same variables.
    pub arguments: &'static str,
    /// Words that must be in the evidence or the sentence.
    pub contains_all: &'static [&'static str],
    /// Shell commands that restore the state for the next fault: a cure need not lead back to the state before.
    pub tidy: &'static str,
}

/// The default of each field.
pub const FAULT: Fault = Fault {
    name: "",
    code: "",
    waiter: "",
    make: "",
    arguments: "$DEV",
    contains_all: &[],
    tidy: "",
};

/// The machine that faults are made on: a host of a lab, or the virtual machine.
pub trait TestMachine {
    /// Runs a shell script there, with `busypoll` in its path.
    fn sh(&self, script: &str) -> CommandOutput;
    /// Whether the command changes nothing but what the test has made.
    fn may_run(&self, remedy: &str) -> bool;
    /// Starts a waiter with these words there and returns its PID.
    fn start(&self, words: &str) -> u32;
    /// Exchanges datagrams with the waiter, so that its socket learns its napi id.
    fn exchange_with_waiter(&self);
    /// Makes the device raise an interrupt: an interrupt that was moved goes to its new CPU only with the next one.
    fn raise_interrupt(&self) {}
    /// Stops the waiter.
    fn stop(&self, pid: u32);
    /// The device's name.
    fn device(&self) -> &str;
}

/// Findings that are faults: `(code, finding)`.
type Findings = Vec<(String, Value)>;

/// Makes, finds and cures every fault of the table; panics with all that failed.
pub fn find_and_cure_all<'f>(
    machine: &dyn TestMachine,
    faults: impl IntoIterator<Item = &'f Fault>,
) {
    let (mut failures, mut count) = (String::new(), 0);
    for fault in faults {
        count += 1;
        match find_and_cure(machine, fault) {
            Ok(()) => println!("cured: {} ({})", fault.name, fault.code),
            Err(cause) => writeln!(failures, "- {} ({}): {cause}", fault.name, fault.code).unwrap(),
        }
    }
    assert!(failures.is_empty(), "of {count} faults, not found or not cured:\n{failures}");
}

fn find_and_cure(machine: &dyn TestMachine, fault: &Fault) -> Result<(), String> {
    let pid = (!fault.waiter.is_empty()).then(|| machine.start(fault.waiter));
    let result = with_waiter(machine, fault, pid);
    let variables = variables(machine, pid);
    if let Some(pid) = pid {
        machine.stop(pid);
    }
    let tidied = machine.sh(&format!("{variables}{}", fault.tidy));
    if tidied.status != 0 {
        return Err(format!("{result:?}, and cannot be tidied up: {tidied:?}"));
    }
    result
}

fn variables(machine: &dyn TestMachine, pid: Option<u32>) -> String {
    format!("DEV={}; PID={}; export DEV PID; ", machine.device(), pid.unwrap_or_default())
}

fn with_waiter(machine: &dyn TestMachine, fault: &Fault, pid: Option<u32>) -> Result<(), String> {
    let variables = variables(machine, pid);
    let look = || {
        if fault.waiter.is_empty() {
            machine.raise_interrupt();
        } else {
            machine.exchange_with_waiter();
        }
        faults_found(&machine.sh(&format!("{variables}busypoll doctor --json {}", fault.arguments)))
    };
    // A fault that the waiter has from its start cannot be looked for before it is made.
    if !fault.make.is_empty() {
        if let Some((_, there)) = find(&look()?, fault.code) {
            return Err(format!("there before it was made: {there}"));
        }
        let made = machine.sh(&format!("set -e; {variables}{}", fault.make));
        if made.status != 0 {
            return Err(format!("cannot be made: {made:?}"));
        }
    }
    let found = look()?;
    let Some((_, finding)) = find(&found, fault.code) else {
        let codes: Vec<&str> = found.iter().map(|(code, _)| code.as_str()).collect();
        return Err(format!("not found; what was: {codes:?}"));
    };
    let text = finding.to_string();
    if let Some(missing) = fault.contains_all.iter().find(|word| !text.contains(**word)) {
        return Err(format!("does not say {missing:?}: {text}"));
    }
    // A device with several interrupts has as many findings, each with a remedy of its own.
    let (mut next, mut ran) = (Some(finding.clone()), Vec::new());
    while let Some(finding) = next {
        let Some(remedy) = finding["remedy"].as_str() else {
            return Err(format!("no remedy: {finding}"));
        };
        if ran.iter().any(|before| before == remedy) {
            return Err(format!("still there after `{remedy}`: {finding}"));
        }
        if !machine.may_run(remedy) {
            return Err(format!("`{remedy}` would change more than the test has made"));
        }
        let cure = machine.sh(remedy);
        if cure.status != 0 {
            return Err(format!("`{remedy}` fails: {cure:?}"));
        }
        ran.push(remedy.to_owned());
        next = find(&look()?, fault.code).map(|(_, still)| still.clone());
    }
    Ok(())
}

/// The doctor finds the fault, but requires no action and prints no remedy.
pub fn has_no_cure(machine: &dyn TestMachine, code: &str, make: &str, arguments: &str) {
    let made = machine.sh(&format!("set -e; {make}"));
    assert_eq!(made.status, 0, "{code}: {made:?}");
    let ran = machine.sh(&format!("busypoll doctor --json {arguments}"));
    assert_eq!(ran.status, 1, "{code}: {ran:?}");
    let found = faults_found(&ran).unwrap();
    let Some((_, finding)) = find(&found, code) else { panic!("no {code}: {ran:?}") };
    assert_eq!(finding["verdict"], "impossible", "{finding}");
    assert!(finding["remedy"].is_null(), "{finding}");
}

fn find<'a>(findings: &'a Findings, code: &str) -> Option<&'a (String, Value)> {
    findings.iter().find(|(found, _)| found == code)
}

/// The findings of a report that require action.
pub fn faults_found(doctor: &CommandOutput) -> Result<Findings, String> {
    let report: Value = serde_json::from_str(&doctor.stdout)
        .map_err(|error| format!("the doctor's report is no JSON ({error}): {doctor:?}"))?;
    let all = report["findings"].as_array().ok_or_else(|| format!("no findings: {report}"))?;
    let calls = ["impossible", "harmful", "on but no effect", "off"];
    Ok(all
        .iter()
        .filter(|finding| calls.contains(&finding["verdict"].as_str().unwrap_or_default()))
        .map(|finding| (finding["code"].as_str().unwrap_or_default().to_owned(), finding.clone()))
        .collect())
}
