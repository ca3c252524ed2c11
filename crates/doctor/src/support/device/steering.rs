//! RPS and RFS: they redirect packets that a busy poll found to another CPU.

use busypoll_linux::link::Link;
use busypoll_linux::sysctl::rps_sock_flow_entries;

use super::Sources;
use crate::rules::{RFS, RPS};
use crate::{Report, Subject, count};

/// Kinds of device that take over a packet from the device below without steering it again: their rx_handler returns
/// `RX_HANDLER_ANOTHER`, `__netif_receive_skb_core` untags a VLAN's. A bridge and tunnels do steer.
const NOT_STEERED: &[&str] = &["bond", "ipvlan", "macvlan", "macvtap", "team", "vlan"];

pub(super) fn check(link: &Link, sources: &Sources, report: &mut Report) {
    if link.kind.as_deref().is_some_and(|kind| NOT_STEERED.contains(&kind)) {
        return;
    }
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
    if rfs.is_empty() {
        return;
    }
    // RFS does nothing without the machine's global flow table.
    let table = "net.core.rps_sock_flow_entries";
    match rps_sock_flow_entries() {
        Some(0) => {}
        Some(flows) => {
            let what = format!("RFS steers packets of {} by flow", count(rfs.len(), "queue"));
            report.add(tell(&RFS, "rps_flow_cnt", rfs, what).evidence(table, flows));
        }
        None => {
            let why = "only the initial network namespace shows it";
            report.not_seen(Subject::device(&link.name), "whether RFS steers packets", table, why);
        }
    }
}

/// A mask like `00000000,00000003`, or a number, that is not zero.
fn is_set(value: &str) -> bool {
    value.chars().any(|c| c.is_ascii_hexdigit() && c != '0')
}
