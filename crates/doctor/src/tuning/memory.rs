//! How fast memory is copied on each NUMA node, measured.

use busypoll_linux::numa::{self, Node};
use busypoll_linux::topology::CpuList;
use serde::Serialize;

use crate::rules::{MEMORY_OK, MEMORY_SLOW};
use crate::{Report, Subject};

/// The bandwidth a node should reach.
const ENOUGH: f64 = 8.0;
/// At most this many nodes are measured: each node and each pair costs time.
const MEASURED: usize = 8;

/// The bandwidth of copying between two nodes.
#[derive(Debug, Serialize)]
pub(super) struct Copy {
    cpu_node: u32,
    memory_node: u32,
    gigabytes_per_second: f64,
}

/// Measures copies within each node, and from the first node to each other one.
pub(super) fn check(allowed: &CpuList, report: &mut Report) -> (Vec<Copy>, String) {
    let nodes: Vec<Node> = numa::nodes().unwrap_or_default();
    let cpu_of = |node: &Node| node.cpus.iter().find(|cpu| allowed.contains(*cpu));
    let usable: Vec<(u32, u32)> =
        nodes.iter().filter_map(|n| Some((n.id, cpu_of(n)?))).take(MEASURED).collect();
    let own = usable.iter().map(|n| (*n, *n));
    let others = usable.iter().skip(1).filter_map(|n| Some((*usable.first()?, *n)));
    let mut copies = Vec::new();
    for ((cpu_node, cpu), (memory_node, memory_cpu)) in own.chain(others) {
        match numa::copy_bandwidth(cpu, memory_cpu) {
            Ok(rate) => {
                let gigabytes_per_second = (rate as f64 / 1e8).round() / 10.0;
                copies.push(Copy { cpu_node, memory_node, gigabytes_per_second });
            }
            Err(e) => report.not_seen(Subject::Machine, "memory bandwidth", "a copy", e),
        }
    }
    let own = copies.iter().filter(|c| c.cpu_node == c.memory_node);
    let mut slow = false;
    for copy in own.filter(|c| c.gigabytes_per_second < ENOUGH) {
        slow = true;
        let rate = copy.gigabytes_per_second;
        let what = format!("node {} copies its memory at {rate} GB/s", copy.cpu_node);
        let found = MEMORY_SLOW.finding(Subject::Machine, what);
        report.add(
            found.evidence("fastest quarter of up to 96 copies of 1 MiB", format!("{rate} GB/s")),
        );
    }
    let each: Vec<String> = copies
        .iter()
        .map(|c| format!("{}-{} {} GB/s", c.cpu_node, c.memory_node, c.gigabytes_per_second))
        .collect();
    let said = each.join(", ");
    if !slow && !copies.is_empty() {
        let what = format!("memory copies, CPU's node to memory's: {said}");
        report.add(MEMORY_OK.finding(Subject::Machine, what));
    }
    (copies, said)
}
