//! RPS and RFS: they redirect packets that a busy poll found to another CPU.

use std::fs;

use busypoll_linux::link::Link;

use super::Sources;
use crate::rules::{RFS, RPS};
use crate::{Report, Subject, count};

pub(super) fn check(link: &Link, sources: &Sources, report: &mut Report) {
    let Some(sysfs) = &sources.sysfs else { return };
    let queues = sysfs.rx_queues(&link.name);
    let each = |name: &str| -> Vec<(u32, String)> {
        let value = |q: &u32| sysfs.attribute(&link.name, &format!("queues/rx-{q}/{name}"));
        queues.iter().filter_map(|q| Some((*q, value(q)?))).filter(|(_, v)| is_set(v)).collect()
    };
    let tell = |rule: &'static crate::Rule, name: &str, set: Vec<(u32, String)>, what: String| {
        let mut found = rule.finding(Subject::device(&link.name), what);
        for (queue, value) in set {
            let path = format!("/sys/class/net/{}/queues/rx-{queue}/{name}", link.name);
            found = found.evidence(path, value);
        }
        found.remedy(sources.sysfs_command(&link.name, &format!("queues/rx-*/{name}"), "0"))
    };
    let rps = each("rps_cpus");
    if !rps.is_empty() {
        let what = format!("RPS sends packets of {} to other CPUs", count(rps.len(), "queue"));
        report.add(tell(&RPS, "rps_cpus", rps, what));
    }
    let rfs = each("rps_flow_cnt");
    // RFS does nothing without the machine's global flow table.
    let table = "/proc/sys/net/core/rps_sock_flow_entries";
    let flows = fs::read_to_string(table).unwrap_or_default();
    if !rfs.is_empty() && is_set(flows.trim()) {
        let what = format!("RFS steers packets of {} by flow", count(rfs.len(), "queue"));
        let found = tell(&RFS, "rps_flow_cnt", rfs, what);
        report.add(found.evidence(table, flows.trim()));
    }
}

/// A mask like `00000000,00000003`, or a number, that is not zero.
fn is_set(value: &str) -> bool {
    value.chars().any(|c| c.is_ascii_hexdigit() && c != '0')
}
