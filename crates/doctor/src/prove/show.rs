//! The counts as facts of the report: one line for each NAPI instance and driving thread.

use busypoll_linux::bpf::napi::Passes;
use serde::Serialize;

use super::Target;
use super::count::Counts;
use super::units::{self, Sum, Unit};
use crate::{Report, Subject, count};

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

/// The packets of a socket or an epoll instance that came from one queue.
#[derive(Serialize)]
struct Packets<'a> {
    of: &'a Subject,
    /// None: the per-CPU backlog, or no queue.
    napi_id: Option<u32>,
    packets: u64,
    #[serde(flatten)]
    found: &'a Sum,
}

/// The text report shows at most this many rows of packets.
const SHOWN: usize = 20;

pub(super) fn add(target: &Target, counts: &Counts, report: &mut Report) {
    add_packets(target, counts, report);
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

fn add_packets(target: &Target, counts: &Counts, report: &mut Report) {
    let Ok(deliveries) = &counts.deliveries else { return };
    let processes = target.pids.iter().filter_map(|pid| target.census.processes.get(pid));
    let units: Vec<Unit> =
        processes.flat_map(|process| units::of(process, false, deliveries)).collect();
    let mut rows = Vec::new();
    for unit in &units {
        for (napi, found) in &unit.queues {
            let napi_id = napi.map(|id| id.get());
            rows.push(Packets { of: &unit.subject, napi_id, packets: found.all(), found });
        }
    }
    let line = |row: &Packets<'_>| {
        let queue = row.napi_id.map_or_else(|| "no napi".into(), |id| format!("napi {id}"));
        format!(
            "{}  {queue}: {}, {} by its own busy polls, {} by others', {} by softirqs, {} by NAPI threads",
            row.of,
            count(row.packets as usize, "packet"),
            row.found.own,
            row.found.others,
            row.found.by_softirq(),
            row.found.napi_threads
        )
    };
    let mut lines: Vec<String> = rows.iter().take(SHOWN).map(line).collect();
    if rows.len() > SHOWN {
        lines.push(format!("and {} more (--json has all)", rows.len() - SHOWN));
    }
    report.facts("packets", rows, lines);
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
