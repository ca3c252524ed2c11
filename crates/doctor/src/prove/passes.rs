//! The passes over queues: as evidence, and to find spinners that are in the way of another thread.

use std::collections::{BTreeMap, BTreeSet};

use busypoll_linux::NapiId;
use busypoll_linux::bpf::napi::Passes;

use super::count::{Counts, DeviceCounts};
use crate::Finding;

/// At this many empty passes per packet, on a CPU with this load in percent, a spinner is in the way.
const EMPTY: u64 = 50;
const BUSY: u64 = 80;

/// The passes of one device or process.
pub(super) struct Driven<'a> {
    /// The sum over its queues.
    pub(super) sum: Passes,
    /// Whether any of its queues is known: passes of softirqs over unknown queues are not in the sum.
    queues: bool,
    /// The passes of its own spinners.
    rows: Vec<&'a Passes>,
}

impl Counts {
    /// The threads that spun on each CPU, each for at least a quarter of its passes.
    fn spinners(&self) -> BTreeMap<u32, BTreeSet<u32>> {
        let mut by_cpu: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for row in self.rows.iter().flatten() {
            let all: u64 = row.cpus.iter().map(|(_, passes)| passes).sum();
            for (cpu, passes) in &row.cpus {
                // A pass made while the thread polled another queue does not count.
                if let Some(tid) = row.tid
                    && passes * 4 > all
                    && *passes > 100
                {
                    by_cpu.entry(*cpu).or_default().insert(tid);
                }
            }
        }
        by_cpu
    }
}

impl<'a> Driven<'a> {
    pub(super) fn of_device(device: &'a DeviceCounts) -> Self {
        let mut sum = Passes::default();
        device.rows.iter().for_each(|row| sum.add(row));
        let rows = device.rows.iter().filter(|row| row.tid.is_some()).collect();
        Driven { sum, queues: true, rows }
    }

    /// Its own busy polls, and the passes of softirqs and kernel threads over the queues that deliver its packets.
    pub(super) fn of_process(pid: u32, mut queues: BTreeSet<NapiId>, all: &'a [Passes]) -> Self {
        let rows: Vec<&Passes> = all.iter().filter(|row| row.pid == Some(pid)).collect();
        queues.extend(rows.iter().filter_map(|row| row.napi));
        let mut sum = Passes::default();
        rows.iter().for_each(|row| sum.add(row));
        for row in all.iter().filter(|row| row.napi.is_some_and(|id| queues.contains(&id))) {
            if row.pid.is_none() {
                sum.add(row);
            }
        }
        Driven { sum, queues: !queues.is_empty(), rows }
    }

    /// Passes of busy polls.
    pub(super) fn spins(&self) -> u64 {
        self.sum.spin_hits + self.sum.spin_empty
    }

    /// Spinners in each other's way, or in the way of the sender: a description, and a thread to move.
    pub(super) fn contending_spinners(&self, counts: &Counts) -> Option<(String, u32)> {
        if self.sum.spin_empty < EMPTY * self.sum.packets().max(1) {
            return None;
        }
        let ours: BTreeSet<u32> = self.rows.iter().filter_map(|row| row.tid).collect();
        let busy = |cpu: &u32| counts.busy.get(cpu).is_none_or(|busy| *busy >= BUSY);
        for (cpu, spinners) in counts.spinners().into_iter().filter(|(cpu, _)| busy(cpu)) {
            let Some(thread) = spinners.intersection(&ours).last().copied() else { continue };
            let list: Vec<String> = spinners.iter().take(4).map(u32::to_string).collect();
            if spinners.len() > 1 {
                let why = format!("threads {} spin in turns on CPU {cpu}", list.join(", "));
                return Some((why, thread));
            }
            if self.softirq_cpu() == Some(cpu) {
                let why = format!(
                    "thread {thread} spins on CPU {cpu}, where its packets are sent or their interrupts \
                     are handled"
                );
                return Some((why, thread));
            }
        }
        None
    }

    /// The CPU on which softirqs processed most passes over these queues.
    pub(super) fn softirq_cpu(&self) -> Option<u32> {
        self.sum.softirq_cpus.iter().max_by_key(|(_, passes)| *passes).map(|(cpu, _)| *cpu)
    }

    pub(super) fn evidence(&self, finding: Finding) -> Finding {
        let sum = &self.sum;
        let passes = |passes: u64, packets: u64| format!("{passes} passes, {packets} packets");
        let spins = format!(
            "{} passes, {} hits with {} packets, {} empty; {} gave the queue back",
            sum.spin_hits + sum.spin_empty,
            sum.spin_hits,
            sum.spin_packets,
            sum.spin_empty,
            sum.rearm,
        );
        let finding = finding.evidence("napi:napi_poll, busy polls", spins);
        if !self.queues {
            return finding;
        }
        let softirqs = passes(sum.softirq, sum.softirq_packets);
        let mut finding = finding.evidence("napi:napi_poll, softirqs", softirqs);
        if sum.threaded > 0 {
            let read = "napi:napi_poll, NAPI threads";
            finding = finding.evidence(read, passes(sum.threaded, sum.threaded_packets));
        }
        let per_packet = sum.wakeups as f64 / sum.packets().max(1) as f64;
        let wakeups = format!("{} ({per_packet:.2} per packet)", sum.wakeups);
        finding.evidence("sched:sched_waking by softirqs and NAPI threads", wakeups)
    }
}

impl Counts {
    /// A CPU without a spinner.
    pub(super) fn free_cpu(&self) -> Option<u32> {
        let taken = self.spinners();
        self.busy.keys().find(|cpu| !taken.contains_key(cpu)).copied()
    }
}
