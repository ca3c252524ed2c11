//! Removes findings that were made from settings alone and that the counted packets refute.

use super::WORKS;
use super::percent;
use super::units::Unit;
use crate::process::Process;
use crate::rules::{
    CPU_QUOTA, EPOLL_READY, FIFO_POLLER, SOCK_READY, SPINNERS_ONE_CPU, SPINNERS_TOO_MANY,
};
use crate::{Report, Rule, Subject};

/// Findings about CPU time that pollers take from each other: shares of packets cannot refute these.
const KEPT: &[&Rule] = &[&CPU_QUOTA, &FIFO_POLLER, &SPINNERS_ONE_CPU, &SPINNERS_TOO_MANY];

/// Removes the findings that the packets refute.
pub(super) fn remove(process: &Process, judged: &[Unit], working: bool, report: &mut Report) {
    let pid = process.pid;
    let of_process = |subject: &Subject| match subject {
        Subject::Process { pid: of, .. } | Subject::Descriptor { pid: of, .. } => *of == pid,
        _ => false,
    };
    let behind = |subject: &Subject| {
        use Subject::{Device, Napi, PeerDevice, Queue};
        matches!(subject, Device { .. } | PeerDevice { .. } | Queue { .. } | Napi { .. })
    };
    let asked = report.devices_asked.clone();
    report.retain(|finding| {
        let named = matches!(&finding.subject, Subject::Device { name } if asked.contains(name));
        let proven = finding.rule.code.starts_with("BP-PROVE");
        if proven || KEPT.iter().any(|rule| rule.code == finding.rule.code) {
            return true;
        }
        let works = |unit: &Unit| {
            let sum = unit.sum();
            percent(sum.polled(), sum.all()) >= WORKS
        };
        if judged.iter().any(|unit| unit.subject == finding.subject && works(unit)) {
            return !finding.verdict().is_fault();
        }
        if working {
            let of = of_process(&finding.subject) || behind(&finding.subject) && !named;
            return !(of && finding.verdict().is_fault());
        }
        // Settings that look right are no finding if the packets were not polled.
        let ready = [SOCK_READY.code, EPOLL_READY.code].contains(&finding.rule.code);
        let failed = judged.iter().any(|unit| {
            !works(unit)
                && (unit.subject == finding.subject
                    || matches!(unit.subject, Subject::Process { .. }))
        });
        !(ready && of_process(&finding.subject) && failed)
    });
}
