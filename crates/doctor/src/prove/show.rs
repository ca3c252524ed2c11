//! The counts themselves, as facts of the report: one line for each NAPI instance and who drove it.

use busypoll_linux::bpf::napi::Passes;
use serde::Serialize;

use super::count::Counts;
use crate::{Report, count};

/// A row of the JSON report.
#[derive(Serialize)]
struct Row<'a> {
    device: &'a str,
    napi_id: Option<u32>,
    pid: Option<u32>,
    tid: Option<u32>,
    spin_hits: u64,
    spin_packets: u64,
    spin_empty: u64,
    rearm: u64,
    softirq: u64,
    softirq_packets: u64,
    threaded: u64,
    threaded_packets: u64,
    wakeups: u64,
}

pub(super) fn tell(counts: &Counts, report: &mut Report) {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for ((_, name), device) in &counts.devices {
        for passes in &device.rows {
            lines.push(line(name, passes));
            rows.push(Row {
                device: name,
                napi_id: passes.napi.map(|id| id.get()),
                pid: passes.pid,
                tid: passes.tid,
                spin_hits: passes.spin_hits,
                spin_packets: passes.spin_packets,
                spin_empty: passes.spin_empty,
                rearm: passes.rearm,
                softirq: passes.softirq,
                softirq_packets: passes.softirq_packets,
                threaded: passes.threaded,
                threaded_packets: passes.threaded_packets,
                wakeups: passes.wakeups,
            });
        }
    }
    report.facts("passes", rows, lines);
}

fn line(device: &str, p: &Passes) -> String {
    let napi = p.napi.map_or_else(|| "no napi".into(), |id| format!("napi {id}"));
    match (p.pid, p.tid) {
        (Some(pid), Some(tid)) => format!(
            "{device} {napi}  thread {tid} of {}[{pid}]: {}, {} empty, {} re-armed",
            crate::process::name(pid),
            count(p.spin_hits as usize, "hit"),
            p.spin_empty,
            p.rearm
        ),
        _ if p.threaded > 0 => format!(
            "{device} {napi}  softirqs: {} passes; its thread: {} passes; {} woken",
            p.softirq, p.threaded, p.wakeups
        ),
        _ => format!("{device} {napi}  softirqs: {} passes, {} woken", p.softirq, p.wakeups),
    }
}
