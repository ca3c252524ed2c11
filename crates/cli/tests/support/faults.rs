//! A table of faults: each is made on purpose, found by its code, and cured by the command that the
//! doctor prints, run as printed.
#![allow(dead_code)] // each test file uses its own part

use std::fmt::Write;

use busypoll_lab::vm::Ran;
use serde_json::Value;

/// One fault of configuration.
pub struct Fault {
    /// What somebody has done wrong.
    pub name: &'static str,
    /// The doctor's code for it.
    pub code: &'static str,
    /// How the program waits that is looked at, as `support::waiter` words it; empty: none runs.
    pub waiter: &'static str,
    /// Shell commands that make it; `$DEV` is the device, `$PID` the program.
    pub make: &'static str,
    /// What the doctor is asked, in the same words.
    pub ask: &'static str,
    /// Words that must be in the evidence or the sentence.
    pub says: &'static [&'static str],
    /// What the remedy leaves to tidy up for the next fault: a cure need not be the state before.
    pub tidy: &'static str,
}

/// Every fault has the same shape but for what it needs.
pub const FAULT: Fault =
    Fault { name: "", code: "", waiter: "", make: "", ask: "$DEV", says: &[], tidy: "" };

/// Where faults are made: a host of a lab, or the test machine.
pub trait Place {
    /// Runs a shell script there, with `busypoll` in its path.
    fn sh(&self, script: &str) -> Ran;
    /// Whether the command changes nothing but what the test has made.
    fn may_run(&self, remedy: &str) -> bool;
    /// Starts a waiter with these words there and returns its PID.
    fn start(&self, words: &str) -> u32;
    /// Sends the waiter datagrams and hears its answers, so that its socket learns its napi id.
    fn talk(&self);
    /// Has the device take an interrupt: one that was moved goes to its new CPU with the next.
    fn disturb(&self) {}
    /// Stops the waiter.
    fn stop(&self, pid: u32);
    /// The device's name.
    fn device(&self) -> &str;
}

/// Findings that are faults: `(code, finding)`.
type Findings = Vec<(String, Value)>;

/// Goes through the table; panics with all that failed.
pub fn find_and_cure_all(place: &dyn Place, faults: &[Fault]) {
    let mut failures = String::new();
    for fault in faults {
        match find_and_cure(place, fault) {
            Ok(()) => println!("cured: {} ({})", fault.name, fault.code),
            Err(cause) => writeln!(failures, "- {} ({}): {cause}", fault.name, fault.code).unwrap(),
        }
    }
    assert!(failures.is_empty(), "of {} faults, not found or not cured:\n{failures}", faults.len());
}

fn find_and_cure(place: &dyn Place, fault: &Fault) -> Result<(), String> {
    let pid = (!fault.waiter.is_empty()).then(|| place.start(fault.waiter));
    let result = with_waiter(place, fault, pid);
    let variables = variables(place, pid);
    if let Some(pid) = pid {
        place.stop(pid);
    }
    let tidied = place.sh(&format!("{variables}{}", fault.tidy));
    if tidied.status != 0 {
        return Err(format!("{result:?}, and cannot be tidied up: {tidied:?}"));
    }
    result
}

fn variables(place: &dyn Place, pid: Option<u32>) -> String {
    format!("DEV={}; PID={}; export DEV PID; ", place.device(), pid.unwrap_or_default())
}

fn with_waiter(place: &dyn Place, fault: &Fault, pid: Option<u32>) -> Result<(), String> {
    let variables = variables(place, pid);
    let look = || {
        if fault.waiter.is_empty() {
            place.disturb();
        } else {
            place.talk();
        }
        faults_found(&place.sh(&format!("{variables}busypoll doctor --json {}", fault.ask)))
    };
    // A fault that the waiter is born with has nothing to compare with before.
    if !fault.make.is_empty() {
        if let Some((_, there)) = find(&look()?, fault.code) {
            return Err(format!("there before it was made: {there}"));
        }
        let made = place.sh(&format!("set -e; {variables}{}", fault.make));
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
    if let Some(missing) = fault.says.iter().find(|word| !text.contains(**word)) {
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
        if !place.may_run(remedy) {
            return Err(format!("`{remedy}` would change more than the test has made"));
        }
        let cure = place.sh(remedy);
        if cure.status != 0 {
            return Err(format!("`{remedy}` fails: {cure:?}"));
        }
        ran.push(remedy.to_owned());
        next = find(&look()?, fault.code).map(|(_, still)| still.clone());
    }
    Ok(())
}

/// The doctor says so, calls for no action where there is none, and prints no remedy.
pub fn has_no_cure(place: &dyn Place, code: &str, make: &str, ask: &str) {
    let made = place.sh(&format!("set -e; {make}"));
    assert_eq!(made.status, 0, "{code}: {made:?}");
    let ran = place.sh(&format!("busypoll doctor --json {ask}"));
    assert_eq!(ran.status, 1, "{code}: {ran:?}");
    let found = faults_found(&ran).unwrap();
    let Some((_, finding)) = find(&found, code) else { panic!("no {code}: {ran:?}") };
    assert_eq!(finding["verdict"], "impossible", "{finding}");
    assert!(finding["remedy"].is_null(), "{finding}");
}

fn find<'a>(findings: &'a Findings, code: &str) -> Option<&'a (String, Value)> {
    findings.iter().find(|(found, _)| found == code)
}

/// The findings of a report that call for action.
pub fn faults_found(doctor: &Ran) -> Result<Findings, String> {
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
