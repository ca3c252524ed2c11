//! The findings of all checks: the summary, the order, the exit code.

mod json;
mod text;

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;

use crate::process::Process;
use crate::rules;
use crate::{Finding, Subject, Verdict};

pub use text::Style;

/// All findings and facts.
#[derive(Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
    facts: Vec<Facts>,
    /// The devices that were asked for by name.
    pub(crate) devices_asked: Vec<String>,
    /// The question could not be answered: too few packets, or they could not be counted.
    pub(crate) undecided: bool,
}

/// A part of the report that states facts without a verdict.
#[derive(Debug)]
struct Facts {
    /// Its key in the JSON report.
    key: &'static str,
    value: Value,
    /// Its lines in the text report.
    lines: Vec<String>,
}

impl Report {
    /// Adds a finding, unless it is there already: the checks of both ends of a veth pair may make the same
    /// one.
    pub fn add(&mut self, finding: Finding) {
        let same = |f: &Finding| {
            (f.rule.code, &f.subject, &f.what)
                == (finding.rule.code, &finding.subject, &finding.what)
        };
        if !self.findings.iter().any(same) {
            self.findings.push(finding);
        }
    }

    /// Adds facts: `value` under `key` in the JSON report, `lines` in the text report.
    pub fn facts(&mut self, key: &'static str, value: impl Serialize, lines: Vec<String>) {
        // Fails only for a map whose keys are not strings; the text report has the facts all the same.
        let value = serde_json::to_value(value).unwrap_or_default();
        self.facts.push(Facts { key, value, lines });
    }

    /// Adds that something could not be read, where, and why.
    pub fn not_seen(
        &mut self,
        subject: Subject,
        what: impl Into<String>,
        read: impl Into<String>,
        why: impl std::fmt::Display,
    ) {
        self.add(rules::NOT_SEEN.finding(subject, what).evidence(read, why));
    }

    /// The findings, in the order they were added.
    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    /// Adds the findings made in another network namespace, with remedies that work from here.
    pub(crate) fn take_over(&mut self, other: Report, netns: &Path) {
        let enter = format!("nsenter --net={}", netns.display());
        for mut finding in other.findings {
            finding.remedy = finding.remedy.map(|command| {
                let simple = !command.contains(['&', ';', '|', '>', '*']);
                match simple || command.starts_with("unshare -m sh -c '") {
                    true => format!("{enter} {command}"),
                    false => format!("{enter} sh -c '{}'", command.replace('\'', r"'\''")),
                }
            });
            self.add(finding);
        }
    }

    /// Whether a process was found to be stopped.
    pub(crate) fn is_stopped(&self, process: &Process) -> bool {
        let subject = process.subject();
        self.findings.iter().any(|f| f.rule == &rules::STOPPED && f.subject == subject)
    }

    /// Keeps the findings for which `keep` is true.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Finding) -> bool) {
        self.findings.retain(keep);
    }

    /// All findings, the worst first; within one verdict by subject, then in the order they were added.
    pub fn findings(&self) -> Vec<&Finding> {
        let mut sorted: Vec<&Finding> = self.findings.iter().collect();
        sorted.sort_by(|a, b| (a.verdict(), &a.subject).cmp(&(b.verdict(), &b.subject)));
        sorted
    }

    /// How many findings are faults.
    pub fn faults(&self) -> usize {
        self.findings.iter().filter(|f| f.verdict().is_fault()).count()
    }

    /// The worst verdict on what can be set, [`Verdict::Fine`] if there is none.
    pub fn verdict(&self) -> Verdict {
        let others = [Verdict::Limited, Verdict::NotSeen];
        let all = self.findings.iter().map(Finding::verdict).filter(|v| !others.contains(v));
        all.min().unwrap_or(Verdict::Fine)
    }

    /// One sentence: the overall result, and the first thing to look at.
    pub fn summary(&self) -> String {
        let sorted = self.findings();
        let faults = self.faults();
        let unseen = sorted.iter().filter(|f| f.verdict() == Verdict::NotSeen).count();
        let unseen = match unseen {
            0 => String::new(),
            1 => "; one thing could not be read".to_owned(),
            n => format!("; {n} things could not be read"),
        };
        let limit = sorted.iter().find(|f| f.verdict() == Verdict::Limited);
        let limit = limit.map_or(String::new(), |f| format!("; the machine limits it: {}", f.what));
        match sorted.first() {
            Some(worst) if faults > 0 => {
                let count =
                    if faults == 1 { "One finding".into() } else { format!("{faults} findings") };
                format!("{count}, first {}: {}{unseen}.", worst.subject, worst.what)
            }
            _ => match self.findings.iter().find(|f| f.verdict() == Verdict::Working) {
                Some(working) if !self.undecided => {
                    let Finding { subject, what, .. } = working;
                    format!("Busy polling works: {subject}: {what}{limit}{unseen}.")
                }
                _ if self.undecided => {
                    let quiet = |f: &&&Finding| {
                        f.verdict() == Verdict::NotSeen && f.subject != Subject::Machine
                    };
                    let (subject, what) = sorted.iter().find(quiet).map_or_else(
                        || ("it".to_owned(), "too little was seen".to_owned()),
                        |f| (f.subject.to_string(), f.what.clone()),
                    );
                    format!("Whether busy polling works was not seen: {subject}: {what}{limit}.")
                }
                _ => format!("Nothing stands in the way of busy polling{limit}{unseen}."),
            },
        }
    }

    /// 0: working or fine; 1: there are findings; 2: `--prove` was asked for and had too little to count. (If nothing
    /// could be checked at all there is an [`crate::Error`] instead.)
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.verdict() {
            verdict if verdict.is_fault() => 1,
            _ if self.undecided => 2,
            _ => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{KERNEL_NO_BUSY_POLL, KERNEL_OK, MEMORY_SLOW};

    /// Scripts use the exit code: a limit that no setting changes must not stop them.
    #[test]
    fn a_limit_is_in_the_summary_and_is_no_fault() {
        let mut report = Report::default();
        report.add(KERNEL_OK.finding(Subject::Machine, "all there"));
        report.add(MEMORY_SLOW.finding(Subject::Machine, "node 0 copies at 6 GB/s"));
        assert_eq!((report.faults(), report.verdict()), (0, Verdict::Fine));
        assert_eq!(report.exit_code(), ExitCode::SUCCESS);
        let summary = "Nothing stands in the way of busy polling; the machine limits it: node 0 copies at 6 GB/s.";
        assert_eq!(report.summary(), summary);
        assert_eq!(report.findings()[0].verdict().word(), "limited");
    }

    #[test]
    fn the_worst_finding_comes_first_and_sets_the_exit_code() {
        let mut report = Report::default();
        assert_eq!(report.summary(), "Nothing stands in the way of busy polling.");
        report.not_seen(Subject::Machine, "the coffee", "/dev/coffee", "cold");
        report.add(KERNEL_OK.finding(Subject::Machine, "all there"));
        assert_eq!(report.verdict(), Verdict::Fine);
        assert_eq!(report.exit_code(), ExitCode::SUCCESS);
        let device = Subject::Device { name: "eth9".into() };
        report.add(KERNEL_NO_BUSY_POLL.finding(device, "no").remedy("true"));
        assert_eq!(report.exit_code(), ExitCode::from(1));
        assert_eq!(report.summary(), "One finding, first eth9: no; one thing could not be read.");
        let words: Vec<_> = report.findings().iter().map(|f| f.verdict().word()).collect();
        assert_eq!(words, ["impossible", "not seen", "fine"]);
    }
}
