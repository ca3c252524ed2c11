//! From counts to verdicts: working (how much), off, on but no effect (why), harmful (why).

use std::collections::{BTreeMap, BTreeSet};

use busypoll_linux::bpf::napi::Passes;

use super::Target;
use super::count::{Counts, DeviceCounts};
use crate::rules::{PROVE_HARMFUL, PROVE_NO_EFFECT, PROVE_OFF, PROVE_QUIET, PROVE_WORKING};
use crate::{Finding, Report, Subject};

/// Fewer packets prove nothing.
const ENOUGH: u64 = 20;
/// Below this share of packets, in percent, busy polling has no effect.
const NO_EFFECT: u64 = 5;
/// Below this share of packets, in percent, spinners that are in each other's way do harm.
const HARMED: u64 = 50;
/// So many empty passes per packet, on a CPU so busy, in percent, are in somebody's way.
const EMPTY: u64 = 50;
const BUSY: u64 = 80;

/// The counts of one subject.
struct Case<'a> {
    subject: Subject,
    /// Of all passes over its queues.
    sum: Passes,
    /// Whether any of its queues is known: of others the passes by softirqs are not in the sum.
    queues: bool,
    /// Of its own spinners.
    rows: Vec<&'a Passes>,
    /// Found by busy polling, and all there were: packets of a device, waits of a process.
    found: u64,
    all: u64,
    /// What they are.
    unit: &'static str,
    /// Somebody has switched it on.
    on: bool,
}

pub(super) fn judge(target: &Target, counts: &Counts, report: &mut Report) {
    let Some(rows) = &counts.rows else {
        for ((_, name), device) in &counts.devices {
            let finding = by_counters(name, device);
            if finding.rule != &PROVE_QUIET || !target.any {
                report.add(finding);
            }
        }
        return;
    };
    for pid in &target.pids {
        let case = Case::of_process(*pid, target, counts, rows);
        report.add(case.finding(counts).evidence("times its threads slept", counts.slept(*pid)));
    }
    if !target.pids.is_empty() {
        return;
    }
    for (key, device) in &counts.devices {
        let case = Case::of_device(&key.1, device, target.on_devices.contains(key));
        if case.sum.packets() >= ENOUGH || !target.any {
            report.add(device.evidence(case.finding(counts), &case.sum));
        }
    }
}

impl Counts {
    fn slept(&self, pid: u32) -> u64 {
        self.sleeps.get(&pid).copied().unwrap_or_default()
    }

    /// Which threads spun on each CPU, each for a good part of its passes.
    fn spinners(&self) -> BTreeMap<u32, BTreeSet<u32>> {
        let mut by_cpu: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for row in self.rows.iter().flatten() {
            let all: u64 = row.cpus.iter().map(|(_, passes)| passes).sum();
            for (cpu, passes) in &row.cpus {
                // A glance while another queue was being polled is none.
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

impl<'a> Case<'a> {
    fn of_device(name: &str, device: &'a DeviceCounts, on: bool) -> Self {
        let mut sum = Passes::default();
        device.rows.iter().for_each(|row| sum.add(row));
        Case {
            subject: Subject::Device { name: name.into() },
            found: sum.spin_packets + sum.rearm_packets,
            all: sum.packets(),
            unit: "packets",
            on,
            sum,
            queues: true,
            rows: device.rows.iter().filter(|row| row.tid.is_some()).collect(),
        }
    }

    /// Each wait for a packet ends with a find of a busy poll, or by sleeping.
    fn of_process(pid: u32, target: &Target, counts: &Counts, rows: &'a [Passes]) -> Self {
        let own: Vec<&Passes> = rows.iter().filter(|row| row.pid == Some(pid)).collect();
        let mut queues = target.queues.get(&pid).cloned().unwrap_or_default();
        queues.extend(own.iter().filter_map(|row| row.napi));
        let mut sum = Passes::default();
        own.iter().for_each(|row| sum.add(row));
        let (found, slept) = (sum.spin_hits, counts.slept(pid));
        for row in rows.iter().filter(|row| row.napi.is_some_and(|id| queues.contains(&id))) {
            if row.pid.is_none() {
                sum.add(row);
            }
        }
        let name = crate::process::name(pid);
        let subject = Subject::Process { pid, name };
        Case {
            subject,
            sum,
            queues: !queues.is_empty(),
            rows: own,
            found,
            all: found + slept,
            unit: "waits",
            on: target.on.contains(&pid),
        }
    }

    fn finding(&self, counts: &Counts) -> Finding {
        let share = percent(self.found, self.all);
        let spins = self.sum.spin_hits + self.sum.spin_empty;
        let all = self.all;
        let unit = self.unit;
        let subject = self.subject.clone();
        let found = match unit {
            "packets" => format!("{share}% of {all} packets were found by busy polling"),
            _ => format!("{share}% of {all} waits ended with a packet found by busy polling"),
        };
        let finding = if all < ENOUGH {
            PROVE_QUIET.finding(subject, format!("{all} {unit}, {spins} busy-poll passes"))
        } else if spins == 0 && self.on {
            let what = format!("{all} {unit}, and nothing busy polled although it is switched on");
            PROVE_NO_EFFECT.finding(subject, what)
        } else if spins == 0 {
            PROVE_OFF.finding(subject, format!("{all} {unit}, and nothing busy polled"))
        } else if share < HARMED
            && let Some((why, thread)) = self.in_the_way(counts)
        {
            let finding = PROVE_HARMFUL.finding(subject, format!("{found}: {why}"));
            match counts.free_cpu() {
                Some(cpu) => finding.remedy(format!("taskset -pc {cpu} {thread}")),
                None => finding,
            }
        } else if share < NO_EFFECT {
            PROVE_NO_EFFECT.finding(subject, format!("{found}: {}", self.why(counts)))
        } else {
            PROVE_WORKING.finding(subject, found)
        };
        self.evidence(finding)
    }

    /// Spinners in each other's way, or in the way of who sends: how, and a thread to move.
    fn in_the_way(&self, counts: &Counts) -> Option<(String, u32)> {
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
    fn softirq_cpu(&self) -> Option<u32> {
        self.sum.softirq_cpus.iter().max_by_key(|(_, passes)| *passes).map(|(cpu, _)| *cpu)
    }

    fn why(&self, counts: &Counts) -> String {
        let per_packet = self.sum.spin_empty / self.sum.packets().max(1);
        let spun: BTreeSet<_> = self.rows.iter().filter_map(|row| row.napi).collect();
        let backlog = counts.rows.iter().flatten().filter(|r| r.napi.is_none());
        let backlog: u64 = backlog.map(|r| r.softirq_packets).sum();
        if self.sum.packets() < ENOUGH && backlog >= ENOUGH {
            return format!(
                "{backlog} packets came by the per-CPU backlog, which cannot be polled"
            );
        }
        if spun.is_empty() || per_packet == 0 {
            return "packets were there before anybody polled".into();
        }
        format!("{per_packet} passes for each packet: it came after the poll had given up")
    }

    fn evidence(&self, finding: Finding) -> Finding {
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
    /// A CPU on which nobody spins.
    fn free_cpu(&self) -> Option<u32> {
        let taken = self.spinners();
        self.busy.keys().find(|cpu| !taken.contains_key(cpu)).copied()
    }
}

impl DeviceCounts {
    fn evidence(&self, mut finding: Finding, sum: &Passes) -> Finding {
        if let Some(counter) = self.busy_poll_rx {
            let read = "BusyPollRxPackets of the device's network namespace";
            finding = finding.evidence(read, format!("+{counter}"));
        }
        let avoided = format!("about {} avoided: busy polls that found packets", sum.spin_hits);
        match self.interrupts {
            Some(taken) => finding.evidence("/proc/interrupts", format!("+{taken}; {avoided}")),
            None => finding.evidence("interrupts", avoided),
        }
    }
}

/// Without BPF: from what the kernel counts anyway.
fn by_counters(name: &str, device: &DeviceCounts) -> Finding {
    let subject = Subject::Device { name: name.into() };
    let (found, all) = (device.busy_poll_rx.unwrap_or(0), device.received.unwrap_or(0));
    // Other devices of the namespace count too.
    let share = percent(found, all).min(100);
    let finding = if all < ENOUGH {
        PROVE_QUIET.finding(subject, format!("{all} packets came"))
    } else if share < NO_EFFECT {
        PROVE_OFF.finding(subject, format!("{share}% of {all} packets were found by busy polling"))
    } else {
        let what = format!("{share}% of {all} packets were found by busy polling");
        PROVE_WORKING.finding(subject, what)
    };
    finding
        .evidence("BusyPollRxPackets of the device's network namespace", format!("+{found}"))
        .evidence("packets received, /proc/net/dev", format!("+{all}"))
}

fn percent(part: u64, all: u64) -> u64 {
    (100 * part).checked_div(all).unwrap_or(0)
}
