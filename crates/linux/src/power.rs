//! How fast CPUs run and how deep they idle: cpufreq, cpuidle, and latency limits. Reads only.
//!
//! Kernel source: `Documentation/admin-guide/pm/cpufreq.rst`, `cpuidle.rst`, `drivers/cpuidle/sysfs.c`,
//! `kernel/power/qos.c`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;

use crate::topology::CpuList;

const SYSFS: &str = "/sys/devices/system/cpu";

/// One idle state of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// Its number, as in `cpuidle/stateN`.
    pub index: u32,
    /// Its name: `POLL`, `C1`, `C6`.
    pub name: String,
    /// Its exit latency, in microseconds.
    pub latency_us: u32,
    /// Whether it is switched off.
    pub disabled: bool,
}

/// The frequency governors, each with the CPUs that have it.
pub fn governors(cpus: &CpuList) -> BTreeMap<String, CpuList> {
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for cpu in cpus.iter() {
        if let Some(governor) = read(&format!("{SYSFS}/cpu{cpu}/cpufreq/scaling_governor")) {
            found.entry(governor).or_default().push(cpu);
        }
    }
    found.into_iter().map(|(name, cpus)| (name, cpus.into_iter().collect())).collect()
}

/// The governors a CPU may have.
pub fn available_governors(cpu: u32) -> Vec<String> {
    let list = read(&format!("{SYSFS}/cpu{cpu}/cpufreq/scaling_available_governors"));
    list.unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

/// The idle states of a CPU, the lightest first; none if a hypervisor manages idling.
pub fn idle_states(cpu: u32) -> Vec<IdleState> {
    let folder = format!("{SYSFS}/cpu{cpu}/cpuidle");
    let indexes = (0..).take_while(|i| fs::exists(format!("{folder}/state{i}")).unwrap_or(false));
    indexes
        .filter_map(|index| {
            let state = |name: &str| read(&format!("{folder}/state{index}/{name}"));
            Some(IdleState {
                index,
                name: state("name")?,
                latency_us: state("latency")?.parse().ok()?,
                disabled: state("disable")? != "0",
            })
        })
        .collect()
}

/// The driver of cpuidle, such as `intel_idle` or `haltpoll`; `none` if there is none.
pub fn idle_driver() -> Option<String> {
    read(&format!("{SYSFS}/cpuidle/current_driver"))
}

/// The longest wake-up latency that all programs together allow, in microseconds (`/dev/cpu_dma_latency`);
/// none if no program has set a limit or this user may not read it. Reading it needs root.
pub fn allowed_latency_us() -> Option<u32> {
    // PM_QOS_CPU_LATENCY_DEFAULT_VALUE: no limit is set.
    const DEFAULT: i32 = 2_000_000_000;
    let mut bytes = [0; 4];
    // While open, the descriptor is a request itself, but for the default, which sets no limit.
    File::open("/dev/cpu_dma_latency").ok()?.read_exact(&mut bytes).ok()?;
    let value = i32::from_ne_bytes(bytes);
    (value != DEFAULT).then(|| u32::try_from(value).ok()).flatten()
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
