//! What `busypoll doctor` finds, by code.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use busypoll_doctor::rules;
use busypoll_observe::findings::Findings;

use crate::metrics::{DOCTOR_TIME, FINDINGS};
use crate::page::Page;

/// Adds the last ones.
pub(crate) fn collect(findings: &Findings, page: &mut Page) -> Result<u64, String> {
    let last = findings.last()?;
    let mut by_code: BTreeMap<_, u64> = BTreeMap::new();
    for finding in &last.findings {
        *by_code.entry(finding.rule.code).or_default() += 1;
    }
    for rule in rules::all() {
        let count = by_code.get(rule.code).copied().unwrap_or(0);
        page.count(&FINDINGS, &[rule.code, rule.verdict.word()], count);
    }
    let at = last.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    page.add(&DOCTOR_TIME, &[], at.as_secs_f64());
    Ok(0)
}
