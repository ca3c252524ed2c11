//! Whether CPUs run at full speed and wake up at once.

use std::collections::BTreeSet;

use busypoll_linux::power::{self, IdleState};
use busypoll_linux::topology::CpuList;

use crate::rules::{DEEP_IDLE, GOVERNOR};
use crate::{Report, Subject};

/// A wake-up at least this long costs as much as the interrupt that busy polling avoids.
const DEEP_US: u32 = 10;

/// Reports faults and returns the facts: the governors and the idle states.
pub(super) fn check(cpus: &CpuList, report: &mut Report) -> [String; 2] {
    [governors(cpus, report), idle_states(cpus, report)]
}

fn governors(cpus: &CpuList, report: &mut Report) -> String {
    let governors = power::governors(cpus);
    for (governor, cpus) in governors.iter().filter(|(name, _)| *name != "performance") {
        let what = format!("CPU {cpus}: governor {governor}");
        let found = GOVERNOR.finding(Subject::Machine, what);
        let read = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
        let found = found.evidence(read, governor);
        let can = |cpu: u32| power::available_governors(cpu).iter().any(|g| g == "performance");
        report.add(match cpus.iter().all(can) {
            true => found.remedy(format!("for f in {read}; do echo performance > $f; done")),
            false => found,
        });
    }
    let each: Vec<String> = governors.iter().map(|(g, cpus)| format!("{g} (CPU {cpus})")).collect();
    if each.is_empty() { "none seen".into() } else { each.join(", ") }
}

fn idle_states(cpus: &CpuList, report: &mut Report) -> String {
    let states: Vec<IdleState> = cpus.iter().flat_map(power::idle_states).collect();
    let allowed = power::allowed_latency_us().unwrap_or(u32::MAX);
    let deep: Vec<&IdleState> = states
        .iter()
        .filter(|s| !s.disabled && s.latency_us > DEEP_US && s.latency_us <= allowed)
        .collect();
    if let Some(deepest) = deep.iter().max_by_key(|s| s.latency_us) {
        let what = format!("waking up from {} takes up to {} us", deepest.name, deepest.latency_us);
        let found = DEEP_IDLE.finding(Subject::Machine, what);
        let indexes: BTreeSet<u32> = deep.iter().map(|s| s.index).collect();
        let files: Vec<String> = indexes
            .iter()
            .map(|i| format!("/sys/devices/system/cpu/cpu*/cpuidle/state{i}/disable"))
            .collect();
        let found = found.evidence(
            format!("/sys/devices/system/cpu/cpu*/cpuidle/state{}/latency", deepest.index),
            format!("{} us", deepest.latency_us),
        );
        let found = found.evidence(
            "/dev/cpu_dma_latency",
            match allowed {
                u32::MAX => "no limit seen".to_owned(),
                limit => format!("{limit} us"),
            },
        );
        report.add(found.remedy(format!("for f in {}; do echo 1 > $f; done", files.join(" "))));
    }
    let driver = power::idle_driver().unwrap_or_else(|| "none".into());
    let names: BTreeSet<String> =
        states.iter().map(|s| format!("{} {}us", s.name, s.latency_us)).collect();
    let names: Vec<String> = names.into_iter().collect();
    if names.is_empty() { driver } else { format!("{driver}: {}", names.join(", ")) }
}
