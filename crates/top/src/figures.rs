//! What happened between two readings: rows of queues, of processes and of threads. A figure that was not seen is
//! `None`, never 0.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use busypoll_doctor::{Finding, Subject};
use busypoll_linux::bpf::deliveries::{Delivery, Found};
use busypoll_linux::bpf::napi::Passes;
use busypoll_linux::bpf::waits::{ThreadWaits, Times};
use busypoll_linux::netns;
use busypoll_stack::ledger::{LedgerQueue, Way};
use busypoll_stack::napi::Stats;
use serde::Serialize;

use crate::sample::{NotSeen, Sample, name};

/// The plane that a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Plane {
    Kernel,
    Stack,
}

/// Packets by what found them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Packets {
    pub(crate) all: u64,
    pub(crate) busy_poll: u64,
    /// By softirqs; on the stack plane by the interrupt thread and leaders.
    pub(crate) interrupt: u64,
    pub(crate) kernel_thread: u64,
    /// Over links to other processes of the machine.
    pub(crate) link: u64,
}

/// A time that half of the waits, and 99 in 100, were below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

/// What doctor has found, and the command that says more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Next {
    pub(crate) code: &'static str,
    pub(crate) subject: String,
    pub(crate) what: String,
    pub(crate) command: String,
}

/// The whole machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct MachineRow {
    pub(crate) cpus: usize,
    pub(crate) busy_share: f64,
    pub(crate) softirq_share: f64,
    /// CPUs that have a polling thread of a run now.
    pub(crate) spinning: usize,
    pub(crate) refused: u64,
    pub(crate) harm: u64,
    /// BusyPollRxPackets of this network namespace.
    pub(crate) busy_poll_packets: u64,
    pub(crate) net_rx_softirqs: Option<u64>,
    pub(crate) next: Option<Next>,
}

/// One receive queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NapiRow {
    /// The network namespace, if it is another one.
    pub(crate) netns: Option<u32>,
    pub(crate) device: String,
    pub(crate) napi_id: u32,
    pub(crate) plane: Plane,
    /// Of a link: the process at its other end, 0 if that is not visible.
    pub(crate) link_pid: Option<u32>,
    pub(crate) packets: Option<Packets>,
    pub(crate) empty_polls: Option<u64>,
    pub(crate) interrupts: Option<u64>,
    /// Interrupts that busy polls made unnecessary, at most.
    pub(crate) avoided: Option<u64>,
    pub(crate) wakeups: Option<u64>,
    pub(crate) next: Option<Next>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProcessRow {
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) plane: Plane,
    pub(crate) packets: Option<Packets>,
    pub(crate) empty_polls: Option<u64>,
    pub(crate) avoided: Option<u64>,
    /// Of one CPU, so that 2 are two CPUs.
    pub(crate) cpu_share: Option<f64>,
    pub(crate) polling_share: Option<f64>,
    pub(crate) vain_share: Option<f64>,
    pub(crate) waits: Option<u64>,
    pub(crate) wait_us: Percentiles,
    pub(crate) delay_us: Percentiles,
    pub(crate) next: Option<Next>,
}

/// One thread of a process on the kernel plane.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ThreadRow {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
    pub(crate) call: Option<&'static str>,
    pub(crate) waits: u64,
    pub(crate) slept: u64,
    pub(crate) wait_us: Percentiles,
    pub(crate) delay_us: Percentiles,
    pub(crate) polling_share: f64,
    pub(crate) vain_share: f64,
    pub(crate) polled_packets: Option<u64>,
    pub(crate) empty_polls: Option<u64>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    #[serde(skip)]
    pub(crate) time: SystemTime,
    pub(crate) seconds: f64,
    pub(crate) machine: MachineRow,
    pub(crate) napis: Vec<NapiRow>,
    pub(crate) processes: Vec<ProcessRow>,
    pub(crate) threads: Vec<ThreadRow>,
    pub(crate) not_seen: Vec<NotSeen>,
}

impl Packets {
    fn of_passes(passes: &Passes) -> Self {
        Packets {
            all: passes.packets(),
            busy_poll: passes.spin_packets + passes.rearm_packets,
            interrupt: passes.softirq_packets,
            kernel_thread: passes.threaded_packets,
            link: 0,
        }
    }

    fn of_run(queue: &LedgerQueue) -> Self {
        let stats = &queue.stats;
        Packets {
            all: stats.packets,
            busy_poll: stats.bp_cleaned,
            interrupt: stats.packets.saturating_sub(stats.bp_cleaned),
            kernel_thread: 0,
            link: if matches!(queue.way, Way::Link(_)) { stats.packets } else { 0 },
        }
    }

    fn add(&mut self, found: Found, count: u64) {
        self.all += count;
        match found {
            Found::BusyPoll { .. } => self.busy_poll += count,
            Found::Softirq => self.interrupt += count,
            Found::NapiThread => self.kernel_thread += count,
            Found::Direct => {}
        }
    }
}

impl Percentiles {
    fn of(times: &Times) -> Self {
        let us = |share| times.quantile(share).map(|ns| ns as f64 / 1000.0);
        Percentiles { p50: us(0.5), p99: us(0.99) }
    }
}

/// The waits of a thread since the reading before.
fn new_waits<'a>(before: &Sample, now: &'a Sample) -> Vec<(&'a ThreadWaits, ThreadWaits)> {
    let earlier = before.waits.iter().flatten().map(|row| (row.tid, row));
    let earlier: HashMap<u32, &ThreadWaits> = earlier.collect();
    let new = |row: &'a ThreadWaits| {
        let was = earlier.get(&row.tid).filter(|was| was.pid == row.pid && was.waits <= row.waits);
        let mut new = row.clone();
        if let Some(was) = was {
            for (count, before) in [
                (&mut new.waits, was.waits),
                (&mut new.slept, was.slept),
                (&mut new.cpu_ns, was.cpu_ns),
                (&mut new.spun_ns, was.spun_ns),
                (&mut new.vain_ns, was.vain_ns),
            ] {
                *count = count.saturating_sub(before);
            }
            new.lengths = row.lengths.since(&was.lengths);
            new.delays = row.delays.since(&was.delays);
        }
        (row, new)
    };
    now.waits.iter().flatten().map(new).collect()
}

/// The passes since the reading before, by row.
fn new_passes(before: &Sample, now: &Sample) -> Option<Vec<Passes>> {
    let earlier = before.passes.as_ref()?;
    let key = |row: &Passes| (row.napi, row.pid, row.tid);
    let earlier: HashMap<_, &Passes> = earlier.iter().map(|row| (key(row), row)).collect();
    let nothing = Passes::default();
    let new = |row: &Passes| {
        let was = earlier.get(&key(row)).copied().unwrap_or(&nothing);
        let less = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Passes {
            spin_hits: less(row.spin_hits, was.spin_hits),
            spin_packets: less(row.spin_packets, was.spin_packets),
            spin_empty: less(row.spin_empty, was.spin_empty),
            rearm: less(row.rearm, was.rearm),
            rearm_packets: less(row.rearm_packets, was.rearm_packets),
            softirq: less(row.softirq, was.softirq),
            softirq_packets: less(row.softirq_packets, was.softirq_packets),
            threaded: less(row.threaded, was.threaded),
            threaded_packets: less(row.threaded_packets, was.threaded_packets),
            wakeups: less(row.wakeups, was.wakeups),
            ..row.clone()
        }
    };
    Some(now.passes.as_ref()?.iter().map(new).collect())
}

/// Packets by process since the reading before.
fn new_packets(before: &Sample, now: &Sample) -> Option<BTreeMap<u32, Packets>> {
    let key = |row: &Delivery| (row.cookie, row.napi, row.found, row.cpu);
    let earlier = before.deliveries.as_ref()?.iter().map(|row| (key(row), row.packets));
    let earlier: HashMap<_, u64> = earlier.collect();
    let mut by_process: BTreeMap<u32, Packets> = BTreeMap::new();
    for row in now.deliveries.as_ref()? {
        let was = earlier.get(&key(row)).copied().unwrap_or(0);
        let new = row.packets.checked_sub(was).unwrap_or(row.packets);
        if let (1.., Some(pid)) = (new, now.owners.of(row).or_else(|| before.owners.of(row))) {
            by_process.entry(pid).or_default().add(row.found, new);
        }
    }
    Some(by_process)
}

/// The queues with what they counted since.
fn queues_since(now: &[LedgerQueue], before: &[LedgerQueue]) -> Vec<LedgerQueue> {
    let new = |(at, queue): (usize, &LedgerQueue)| {
        let was = before.get(at).map_or(Stats::default(), |was| was.stats);
        let row = queue.stats;
        let stats = Stats {
            bp_misses: row.bp_misses.saturating_sub(was.bp_misses),
            bp_cleaned: row.bp_cleaned.saturating_sub(was.bp_cleaned),
            interrupts: row.interrupts.saturating_sub(was.interrupts),
            packets: row.packets.saturating_sub(was.packets),
            ..row
        };
        LedgerQueue { stats, ..*queue }
    };
    now.iter().enumerate().map(new).collect()
}

impl Figures {
    /// The processes, those with most packets first.
    pub(crate) fn busiest(&self) -> Vec<u32> {
        let packets = |row: &ProcessRow| (row.packets.map_or(0, |packets| packets.all), row.waits);
        let mut rows: Vec<&ProcessRow> = self.processes.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(packets(row)));
        rows.iter().map(|row| row.pid).collect()
    }

    /// What happened from the one reading to the other.
    pub(crate) fn between(before: &Sample, now: &Sample) -> Figures {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let passes = new_passes(before, now);
        let waits = new_waits(before, now);
        Figures {
            time: now.time,
            seconds,
            machine: machine(before, now),
            napis: napis(before, now, passes.as_deref()),
            processes: processes(before, now, passes.as_deref(), &waits, seconds),
            threads: threads(now, passes.as_deref(), &waits, seconds),
            not_seen: now.not_seen.clone(),
        }
    }
}

fn machine(before: &Sample, now: &Sample) -> MachineRow {
    let spent = now.machine.cpus.since(&before.machine.cpus).total();
    let all = (spent.busy_ns() + spent.idle_total_ns()).max(1) as f64;
    let sum = |sample: &Sample, of: fn(&busypoll_linux::spinners::SpinnerCounts) -> u64| {
        sample.spinners.iter().map(|table| of(&table.counts)).sum::<u64>()
    };
    let grown = |of| sum(now, of).saturating_sub(sum(before, of));
    let is_machines = |finding: &&Finding| finding.subject == Subject::Machine;
    MachineRow {
        cpus: now.online,
        busy_share: spent.busy_ns() as f64 / all,
        softirq_share: spent.softirq_ns as f64 / all,
        spinning: now.spinners.iter().map(|table| table.counts.spinning).sum(),
        refused: grown(|counts| counts.refused),
        harm: grown(|counts| counts.harm),
        busy_poll_packets: now
            .machine
            .busy_poll_packets
            .saturating_sub(before.machine.busy_poll_packets),
        net_rx_softirqs: (now.machine.net_rx.zip(before.machine.net_rx))
            .map(|(now, before)| now.saturating_sub(before)),
        next: next(now.findings.iter().filter(is_machines), "busypoll doctor".into()),
    }
}

/// The worst of these findings that is a fault. They come sorted.
fn next<'a>(findings: impl Iterator<Item = &'a Finding>, command: String) -> Option<Next> {
    let worst = findings.into_iter().find(|finding| finding.verdict().is_fault())?;
    let (subject, what) = (worst.subject.to_string(), worst.what.clone());
    Some(Next { code: worst.rule.code, subject, what, command })
}

fn next_of_device(now: &Sample, device: &str) -> Option<Next> {
    let is_its = |finding: &&Finding| match &finding.subject {
        Subject::Device { name } => name == device,
        Subject::Napi { device: name, .. } | Subject::Queue { device: name, .. } => name == device,
        _ => false,
    };
    next(now.findings.iter().filter(is_its), format!("busypoll doctor {device}"))
}

fn next_of_process(now: &Sample, of: u32) -> Option<Next> {
    let is_its = |finding: &&Finding| match &finding.subject {
        Subject::Process { pid, .. } | Subject::Descriptor { pid, .. } => *pid == of,
        _ => false,
    };
    next(now.findings.iter().filter(is_its), format!("busypoll doctor --pid {of}"))
}

fn napis(before: &Sample, now: &Sample, passes: Option<&[Passes]>) -> Vec<NapiRow> {
    let own = netns::inode().ok();
    let mut rows: BTreeMap<(u32, String, u32), NapiRow> = BTreeMap::new();
    for instance in &now.instances {
        let id = instance.napi.id.get();
        let was = before.instances.iter().find(|was| was.napi.id == instance.napi.id);
        let interrupts = instance.interrupts.zip(was.and_then(|was| was.interrupts));
        let row = NapiRow {
            netns: None,
            device: instance.device.clone(),
            napi_id: id,
            plane: Plane::Kernel,
            link_pid: None,
            packets: passes.map(|_| Packets::default()),
            empty_polls: passes.map(|_| 0),
            interrupts: interrupts.map(|(now, before)| now.saturating_sub(before)),
            avoided: passes.map(|_| 0),
            wakeups: passes.map(|_| 0),
            next: next_of_device(now, &instance.device),
        };
        rows.insert((0, instance.device.clone(), id), row);
    }
    for new in passes.into_iter().flatten() {
        let (Some(id), Some(device)) = (new.napi, &new.device) else { continue };
        let netns = Some(device.netns).filter(|netns| own != Some(*netns));
        let key = (netns.unwrap_or(0), device.name.clone(), id.get());
        if !rows.contains_key(&key) && new.packets() + new.spin_empty + new.rearm == 0 {
            continue;
        }
        let row = rows.entry(key).or_insert_with(|| NapiRow {
            netns,
            device: device.name.clone(),
            napi_id: id.get(),
            plane: Plane::Kernel,
            link_pid: None,
            packets: Some(Packets::default()),
            empty_polls: Some(0),
            interrupts: None,
            avoided: Some(0),
            wakeups: Some(0),
            next: None,
        });
        let more = Packets::of_passes(new);
        let packets = row.packets.get_or_insert_default();
        packets.all += more.all;
        packets.busy_poll += more.busy_poll;
        packets.interrupt += more.interrupt;
        packets.kernel_thread += more.kernel_thread;
        *row.empty_polls.get_or_insert(0) += new.spin_empty;
        *row.avoided.get_or_insert(0) += new.spin_hits;
        *row.wakeups.get_or_insert(0) += new.wakeups;
    }
    let mut rows: Vec<NapiRow> = rows.into_values().collect();
    for run in &now.runs {
        let was = before.runs.iter().find(|was| was.pid == run.pid);
        let new = queues_since(&run.queues, was.map_or(&[], |was| &was.queues));
        for (at, new) in (0u32..).zip(&new) {
            let link_pid = match new.way {
                Way::Interface => None,
                // The place of a link that is gone.
                Way::Link(_) if new.napi == 0 && new.stats.packets == 0 => continue,
                Way::Link(pid) => Some(pid.cast_unsigned()),
            };
            rows.push(NapiRow {
                netns: None,
                device: format!("{}[{}]", run.program, run.pid),
                napi_id: at,
                plane: Plane::Stack,
                link_pid,
                packets: Some(Packets::of_run(new)),
                empty_polls: Some(new.stats.bp_misses),
                interrupts: Some(new.stats.interrupts),
                avoided: Some(new.stats.bp_cleaned),
                wakeups: None,
                next: None,
            });
        }
    }
    rows
}

fn processes(
    before: &Sample,
    now: &Sample,
    passes: Option<&[Passes]>,
    waits: &[(&ThreadWaits, ThreadWaits)],
    seconds: f64,
) -> Vec<ProcessRow> {
    let packets = new_packets(before, now);
    let cpu_share = |pid: u32| {
        let (now, before) = (now.cpu.get(&pid)?, before.cpu.get(&pid)?);
        Some(now.saturating_sub(*before) as f64 / 1e9 / seconds)
    };
    let mut rows = Vec::new();
    for run in &now.runs {
        let was = before.runs.iter().find(|was| was.pid == run.pid);
        let pid = run.pid as u32;
        let (mut sum, mut empty) = (Packets::default(), 0);
        for new in queues_since(&run.queues, was.map_or(&[], |was| &was.queues)) {
            let more = Packets::of_run(&new);
            sum.all += more.all;
            sum.busy_poll += more.busy_poll;
            sum.interrupt += more.interrupt;
            sum.link += more.link;
            empty += new.stats.bp_misses;
        }
        rows.push(ProcessRow {
            pid,
            program: run.program.clone(),
            plane: Plane::Stack,
            packets: Some(sum),
            empty_polls: Some(empty),
            avoided: Some(sum.busy_poll),
            cpu_share: cpu_share(pid),
            // Its threads poll outside the kernel, where no tracepoint is.
            polling_share: None,
            vain_share: None,
            waits: None,
            wait_us: Percentiles::default(),
            delay_us: Percentiles::default(),
            next: next_of_process(now, pid),
        });
    }
    for (pid, program) in &now.owners.names {
        if now.runs.iter().any(|run| run.pid as u32 == *pid) {
            continue;
        }
        let packets = packets.as_ref().map(|all| all.get(pid).copied().unwrap_or_default());
        let (mut empty, mut hits) = (0, 0);
        for row in passes.into_iter().flatten().filter(|row| row.pid == Some(*pid)) {
            empty += row.spin_empty;
            hits += row.spin_hits;
        }
        let (mut lengths, mut delays) = (Times::default(), Times::default());
        let (mut count, mut spun, mut vain) = (0, 0, 0);
        for (_, new) in waits.iter().filter(|(row, _)| row.pid == *pid) {
            lengths.add(&new.lengths);
            delays.add(&new.delays);
            count += new.waits;
            spun += new.spun_ns;
            vain += new.vain_ns;
        }
        if packets.is_none_or(|packets| packets.all == 0) && count + empty + hits == 0 {
            continue;
        }
        let seen = now.waits.is_some();
        let share = |ns: u64| seen.then_some(ns as f64 / 1e9 / seconds);
        rows.push(ProcessRow {
            pid: *pid,
            program: program.clone(),
            plane: Plane::Kernel,
            packets,
            empty_polls: passes.map(|_| empty),
            avoided: passes.map(|_| hits),
            cpu_share: cpu_share(*pid),
            polling_share: share(spun),
            vain_share: share(vain),
            waits: seen.then_some(count),
            wait_us: Percentiles::of(&lengths),
            delay_us: Percentiles::of(&delays),
            next: next_of_process(now, *pid),
        });
    }
    rows
}

fn threads(
    now: &Sample,
    passes: Option<&[Passes]>,
    waits: &[(&ThreadWaits, ThreadWaits)],
    seconds: f64,
) -> Vec<ThreadRow> {
    let mut rows = Vec::new();
    // On the stack plane a wait is a system call only where the thread sleeps.
    let on_kernel = |pid: u32| now.runs.iter().all(|run| run.pid as u32 != pid);
    for (row, new) in waits.iter().filter(|(row, _)| on_kernel(row.pid)) {
        let mine = || passes.into_iter().flatten().filter(|pass| pass.tid == Some(row.tid));
        let empty: u64 = mine().map(|pass| pass.spin_empty).sum();
        if new.waits + empty == 0 {
            continue;
        }
        let share = |ns: u64| ns as f64 / 1e9 / seconds;
        rows.push(ThreadRow {
            pid: row.pid,
            tid: row.tid,
            name: name(row.tid),
            call: row.call.map(|call| call.word()),
            waits: new.waits,
            slept: new.slept,
            wait_us: Percentiles::of(&new.lengths),
            delay_us: Percentiles::of(&new.delays),
            polling_share: share(new.spun_ns),
            vain_share: share(new.vain_ns),
            polled_packets: passes
                .map(|_| mine().map(|pass| pass.spin_packets + pass.rearm_packets).sum()),
            empty_polls: passes.map(|_| empty),
        });
    }
    rows
}
