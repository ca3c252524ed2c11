//! The sentence below a run of stream, crr or loss.

use crate::arm::{Nic, Plane};
use crate::data::{LineReport, RateComparison, ThroughputReport};
use crate::text::figures::rate_text;

/// The rate of the stack's best arm, and its ratios; of the kernel's if the stack has none.
pub fn throughput(report: &ThroughputReport) -> String {
    let valid = || report.arms.iter().filter(|arm| arm.valid);
    // The cable crosses no kernel and no NIC: what it carries says nothing about a network.
    let is_compared = |arm: &&LineReport| compared(report, arm).next().is_some();
    let on_a_network =
        |arm: &&LineReport| arm.plane == Plane::Stack && arm.nic != Nic::Cable && is_compared(arm);
    let loss = report.path.is_some();
    let arm = valid()
        .find(|arm| if loss { is_compared(arm) } else { on_a_network(arm) })
        .or_else(|| valid().find(is_compared))
        .or_else(|| valid().next());
    let Some(arm) = arm else {
        return "No answer: no arm could be measured.".to_owned();
    };
    let ratios: Vec<String> = compared(report, arm)
        .map(|c| match c.ci95 {
            Some([low, high]) => {
                format!("{:.2} [{low:.2}-{high:.2}] x {}", c.rate_ratio, c.baseline)
            }
            None => format!("{:.2} x {}", c.rate_ratio, c.baseline),
        })
        .collect();
    let path = report.path.map_or(String::new(), |path| {
        format!(
            " with {}% of packets lost each way and {} ms of round trip",
            path.loss_percent, path.rtt_ms
        )
    });
    let rate = rate_text(arm.per_second, &arm.unit);
    let verb = if arm.unit == "bit/s" { "carries" } else { "makes" };
    match ratios.is_empty() {
        true => format!("{} {verb} {rate}{path}.", arm.name),
        false => format!("{} {verb} {rate}{path}: {}.", arm.name, ratios.join(", ")),
    }
}

/// The ratios of an arm to others.
fn compared<'a>(
    report: &'a ThroughputReport,
    arm: &'a LineReport,
) -> impl Iterator<Item = &'a RateComparison> {
    report.comparisons.iter().filter(|c| c.arm == arm.name)
}
