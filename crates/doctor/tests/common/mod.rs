//! Runs the doctor inside a lab host, and applies its remedies.

use busypoll_doctor::{Finding, Report, Scope, diagnose};
use busypoll_lab::LabHost;

/// The report on a device, from inside a host.
pub fn ask(host: &LabHost, device: &str) -> Report {
    let scope = Scope { devices: vec![device.into()], ..Scope::default() };
    host.enter(|| diagnose(&scope)).unwrap().unwrap()
}

/// The findings about anything but the machine itself.
pub fn about_devices(report: &Report) -> Vec<&Finding> {
    let machine = |f: &&Finding| f.subject != busypoll_doctor::Subject::Machine;
    report.findings().into_iter().filter(machine).collect()
}

/// The codes of the faults among them, sorted.
pub fn codes(report: &Report) -> Vec<&'static str> {
    let faults = about_devices(report).into_iter().filter(|f| f.verdict().is_fault());
    let mut codes: Vec<_> = faults.map(|f| f.rule.code).collect();
    codes.sort_unstable();
    codes
}

/// Runs every remedy as it is printed, in a shell on the host.
pub fn cure(host: &LabHost, report: &Report) {
    for finding in about_devices(report) {
        let Some(remedy) = &finding.remedy else { continue };
        let done = host.command("sh").args(["-c", remedy]).output().unwrap();
        assert!(done.status.success(), "{remedy}: {done:?}");
    }
}
