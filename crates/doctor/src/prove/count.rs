//! Counting over a time: passes by BPF, the kernel's own counters in each device's network namespace,
//! interrupts, the load of the CPUs, and throttling by control groups.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use busypoll_linux::bpf::deliveries::Deliveries;
use busypoll_linux::bpf::napi::{Counter, Passes};
use busypoll_linux::cgroup::{self, Quota};
use busypoll_linux::link::Links;
use busypoll_linux::netdev::Netdev;
use busypoll_linux::netns;
use busypoll_linux::stat::{self, CpuTimes};

use super::{Device, Target};
use crate::{Error, Report, Subject};

/// What was counted.
pub(super) struct Counts {
    pub(super) devices: BTreeMap<Device, DeviceCounts>,
    /// Every row of passes, also of devices outside the target; `None` without BPF.
    pub(super) rows: Option<Vec<Passes>>,
    /// The load of each CPU, in percent.
    pub(super) busy: BTreeMap<u32, u64>,
    /// Which sockets the packets reached; or why that is not known.
    pub(super) deliveries: Result<Deliveries, String>,
    /// The length of the count.
    pub(super) time: Duration,
    /// Throttling of each process asked for by its control groups.
    pub(super) stopped: BTreeMap<u32, Stopped>,
}

/// What was counted of one device.
#[derive(Default)]
pub(super) struct DeviceCounts {
    /// One row for each NAPI instance and spinning thread, one for softirqs and kernel threads.
    pub(super) rows: Vec<Passes>,
    /// The growth of `BusyPollRxPackets` in its network namespace, for all devices there.
    pub(super) busy_poll_rx: Option<u64>,
    /// Packets it received, by its own counter.
    pub(super) received: Option<u64>,
    /// Packets that the other devices of its network namespace received, loopback aside.
    pub(super) others: u64,
    /// Interrupts of its NAPI instances; none if the driver does not report their numbers.
    pub(super) interrupts: Option<u64>,
}

/// Throttling by a control group's quota of CPU time.
pub(super) struct Stopped {
    pub(super) group: String,
    /// The quota, in CPUs.
    pub(super) cpus: f64,
    /// The command that removes the quota.
    pub(super) remedy: String,
    pub(super) periods: u64,
    pub(super) throttled: u64,
    /// The time stopped, in microseconds.
    pub(super) us: u64,
}

/// What is read before and after in one network namespace.
#[derive(Default)]
struct Namespace {
    busy_poll_rx: Option<u64>,
    received: BTreeMap<String, u64>,
    interrupts: BTreeMap<String, u64>,
}

pub(super) fn over(time: Duration, target: &Target, report: &mut Report) -> Result<Counts, Error> {
    let inodes: BTreeSet<u32> = target.devices.iter().map(|(inode, _)| *inode).collect();
    let read_all =
        || inodes.iter().filter_map(|i| Some((*i, read(*i)?))).collect::<BTreeMap<_, _>>();
    let quotas = || -> BTreeMap<u32, Vec<Quota>> {
        target.pids.iter().map(|pid| (*pid, cgroup::quotas_of(*pid))).collect()
    };
    let counter = Counter::start();
    let (before, limits, cpus) = (read_all(), quotas(), CpuTimes::now()?);
    thread::sleep(time);
    let rows = counter.and_then(|mut counter| Ok((counter.deliveries(), counter.read()?)));
    let (after, spent) = (read_all(), CpuTimes::now()?.since(&cpus));
    let mut counts = Counts {
        devices: BTreeMap::new(),
        rows: None,
        busy: BTreeMap::new(),
        deliveries: Err(String::new()),
        time,
        stopped: BTreeMap::new(),
    };
    for (pid, now) in quotas() {
        let before = limits.get(&pid).map_or(&[][..], Vec::as_slice);
        if let Some(worst) = Stopped::worst(before, &now) {
            counts.stopped.insert(pid, worst);
        }
    }
    for (cpu, spent) in spent.cpus {
        let all = spent.busy_ns() + spent.idle_total_ns();
        counts.busy.insert(cpu, 100 * spent.busy_ns() / all.max(1));
    }
    for device in &target.devices {
        let (Some(before), Some(after)) = (before.get(&device.0), after.get(&device.0)) else {
            continue;
        };
        let of = |map: &BTreeMap<String, u64>| map.get(&device.1).copied();
        let grown = DeviceCounts {
            rows: Vec::new(),
            busy_poll_rx: growth(before.busy_poll_rx, after.busy_poll_rx),
            received: growth(of(&before.received), of(&after.received)),
            others: received_by_others(&device.1, before, after),
            interrupts: growth(of(&before.interrupts), of(&after.interrupts)),
        };
        counts.devices.insert(device.clone(), grown);
    }
    match rows {
        Ok((deliveries, rows)) => {
            counts.deliveries = deliveries.map_err(|e| e.to_string());
            for row in &rows {
                let device = row.device.as_ref().map(|d| (d.netns, d.name.clone()));
                if let Some(of) = device.and_then(|device| counts.devices.get_mut(&device)) {
                    of.rows.push(row.clone());
                }
            }
            counts.rows = Some(rows);
        }
        Err(e) => {
            counts.deliveries = Err(e.to_string());
            let what = "which threads polled each queue, and how many packets they found";
            report.not_seen(Subject::Machine, what, "tracepoint napi:napi_poll", e);
        }
    }
    Ok(counts)
}

fn growth(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

fn received_by_others(device: &str, before: &Namespace, after: &Namespace) -> u64 {
    let others = after.received.iter().filter(|(name, _)| *name != device && *name != "lo");
    let since = |(name, now): (&String, &u64)| {
        now.saturating_sub(before.received.get(name).copied().unwrap_or(0))
    };
    others.map(since).sum()
}

impl Stopped {
    /// The control group that stopped a process most.
    fn worst(before: &[Quota], after: &[Quota]) -> Option<Self> {
        let grown = |now: &Quota| {
            let then = before.iter().find(|then| then.group == now.group)?;
            Some(Stopped {
                group: now.group.clone(),
                cpus: now.cpus,
                remedy: now.remedy.clone(),
                periods: now.periods.saturating_sub(then.periods),
                throttled: now.throttled.saturating_sub(then.throttled),
                us: now.stopped_us.saturating_sub(then.stopped_us),
            })
        };
        after.iter().filter_map(grown).max_by_key(|stopped| stopped.throttled)
    }
}

fn read(inode: u32) -> Option<Namespace> {
    let inside = || {
        let links = Links::open().and_then(|mut links| links.all()).unwrap_or_default();
        let name = |ifindex| links.iter().find(|l| l.ifindex == ifindex).map(|l| l.name.clone());
        let mut found = Namespace {
            busy_poll_rx: stat::busy_poll_rx_packets().ok(),
            received: stat::received_packets().unwrap_or_default(),
            interrupts: BTreeMap::new(),
        };
        let Ok(table) = stat::interrupts() else { return found };
        let napis = Netdev::open().and_then(|mut netdev| netdev.all_napis()).unwrap_or_default();
        for napi in napis {
            if let Some(row) = napi.irq.and_then(|irq| table.irq(irq))
                && let Some(name) = name(napi.ifindex)
            {
                *found.interrupts.entry(name).or_default() += row.total();
            }
        }
        found
    };
    netns::enter(&netns::with_inode(inode)?, inside).ok()
}
