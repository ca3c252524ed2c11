//! The machine as a whole: CPUs, power, steal, clock, memory.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use busypoll_linux::clocksource::ClockSource;
use busypoll_linux::irqbalance::Irqbalance;
use busypoll_linux::link::Links;
use busypoll_linux::stat::CpuTimes;
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::{irq, machine, topology};

use super::{memory, power};
use crate::rules::{CLOCKSOURCE, FIT_OK, IRQBALANCE, ONE_CPU, STEAL, VIRTUAL};
use crate::{Error, Report, Scope, Subject};

/// How long steal is watched: with two CPUs 3% of it are one tick of 10 ms.
const WATCHED: Duration = Duration::from_millis(200);
/// A smaller share may be one tick that came at the wrong time.
const STOLEN: f64 = 0.05;

pub(crate) fn check(scope: &Scope, report: &mut Report) -> Result<(), Error> {
    let before = report.faults();
    let online = match topology::online() {
        Ok(online) => online,
        Err(e) => {
            report.not_seen(Subject::Machine, "CPUs, power and memory", "sysfs", e);
            return Ok(());
        }
    };
    let allowed = topology::allowed()?;
    // Before the memory copies, which make the machine busy.
    let steal = steal(report);
    let [governors, idle] = power::check(&online, report);
    irqbalance(report);
    let clock = clock(report);
    if online.len() == 1 {
        let found = ONE_CPU.finding(Subject::Machine, "a spinner would have the only CPU");
        report.add(found.evidence("/sys/devices/system/cpu/online", &online));
    }
    let hypervisor = machine::hypervisor();
    if let Some(name) = &hypervisor {
        let what = format!("a virtual machine ({name}): the host's power and CPUs are not seen");
        report.add(VIRTUAL.finding(Subject::Machine, what));
    }
    if report.faults() == before {
        report.add(FIT_OK.finding(Subject::Machine, "CPUs, power and clock are in order"));
    }
    // Memory speed is a finding about the machine, not about a process that was asked for.
    let mut of_machine = Report::default();
    let to = if scope.pids.is_empty() { &mut *report } else { &mut of_machine };
    let (copies, memory) = memory::check(&allowed, to);
    let (isolated, smt) = (machine::isolated(), machine::smt_active());
    let nohz_full = machine::nohz_full();
    let none = |list: &topology::CpuList| match list.is_empty() {
        true => "none".to_owned(),
        false => list.to_string(),
    };
    let lines = vec![
        format!(
            "machine  CPU {online}, isolated {}, nohz_full {}, SMT {}, {}",
            none(&isolated),
            none(&nohz_full),
            if smt { "on" } else { "off" },
            hypervisor.as_deref().map_or("bare metal".into(), |h| format!("virtual ({h})")),
        ),
        format!("    governor {governors}; idle {idle}; clock {}", clock.as_deref().unwrap_or("?")),
        format!("    memory, node of CPU - node of memory: {memory}"),
    ];
    let value = serde_json::json!({
        "online": online.to_string(), "allowed": allowed.to_string(),
        "isolated": isolated.to_string(), "nohz_full": nohz_full.to_string(), "smt": smt,
        "hypervisor": hypervisor, "steal": steal, "governors": governors, "idle": idle,
        "clocksource": clock, "memory_copies": copies,
    });
    report.facts("machine", value, lines);
    Ok(())
}

/// The share of CPU time that the hypervisor takes over [`WATCHED`].
fn steal(report: &mut Report) -> Option<f64> {
    let before = CpuTimes::now().ok()?;
    std::thread::sleep(WATCHED);
    let spent = CpuTimes::now().ok()?.since(&before).total();
    let whole = (spent.busy_ns() + spent.idle_total_ns()).max(1) as f64;
    let share = spent.steal_ns as f64 / whole;
    if share > STOLEN {
        let what = format!("{:.0}% of CPU time is stolen", share * 100.0);
        let found = STEAL.finding(Subject::Machine, what);
        report.add(found.evidence("/proc/stat, steal over 200 ms", format!("{share:.2}")));
    }
    Some(share)
}

fn irqbalance(report: &mut Report) {
    let Some(irqbalance) = Irqbalance::find() else { return };
    let pid = irqbalance.pid;
    let banned = irqbalance.banned().unwrap_or_default();
    let devices = interrupts_of_devices();
    if !banned.is_empty() && devices.is_subset(&banned) {
        return;
    }
    let found = IRQBALANCE.finding(Subject::Machine, "irqbalance moves interrupts");
    let found = found.evidence(format!("/proc/{pid}/comm"), "irqbalance");
    let systemd = fs::exists("/run/systemd/system").unwrap_or(false);
    report.add(found.remedy(match systemd {
        true => "systemctl stop irqbalance".to_owned(),
        false => format!("kill {pid}"),
    }));
}

/// The interrupts of network devices.
fn interrupts_of_devices() -> BTreeSet<u32> {
    let (Ok(sysfs), Ok(mut links)) = (Sysfs::open(), Links::open()) else { return BTreeSet::new() };
    let links = links.all().unwrap_or_default();
    links.iter().flat_map(|link| irq::of_device(&sysfs, &link.name)).collect()
}

fn clock(report: &mut Report) -> Option<String> {
    let clock = ClockSource::now()
        .map_err(|e| report.not_seen(Subject::Machine, "the clock source", "sysfs", e))
        .ok()?;
    if clock.is_slow() {
        let what = format!("the clock source is {}", clock.current);
        let found = CLOCKSOURCE.finding(Subject::Machine, what);
        let folder = "/sys/devices/system/clocksource/clocksource0";
        let found = found.evidence(format!("{folder}/current_clocksource"), &clock.current);
        let found =
            found.evidence(format!("{folder}/available_clocksource"), clock.available.join(" "));
        // Only clock sources that are read without a system call or a VM exit.
        let better = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"]
            .into_iter()
            .find(|name| clock.available.iter().any(|a| a == name));
        report.add(match better {
            Some(name) => found.remedy(format!("echo {name} > {folder}/current_clocksource")),
            None => found,
        });
    }
    Some(clock.current)
}
