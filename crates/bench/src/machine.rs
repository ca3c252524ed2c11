//! The facts about the machine that are needed to judge the figures.

use std::fs;

use busypoll_linux::topology;

use crate::data::{Host, Machine};
use crate::run::{Bench, Settings};
use crate::siblings::OneCore;
use crate::units::LAB_MTU;
use crate::workload::Load;

/// Describes this machine.
pub fn host() -> Host {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Host {
        busypoll: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu_model: cpu_model(&cpuinfo),
        cpus_online: topology::online().map_or(0, |cpus| cpus.len()),
        virtual_machine: is_virtual(&cpuinfo),
    }
}

/// Describes this machine and the run's settings.
pub fn describe(bench: &Bench, settings: &Settings) -> Machine {
    let host = host();
    let gap = match settings.load {
        Load::Closed { gap } => gap.as_secs_f64() * 1e6,
        Load::Open { .. } => 0.0,
    };
    Machine {
        busypoll: host.busypoll,
        kernel: host.kernel,
        cpu_model: host.cpu_model,
        cpus_online: host.cpus_online,
        virtual_machine: host.virtual_machine,
        client_cpu: bench.cpus.client,
        server: bench.server().map(str::to_owned),
        server_cpu: bench.cpus.server,
        share_core: bench.cpus.share_core,
        one_core: OneCore::default(),
        clock_overhead_ns: bench.clock.overhead_ns(),
        idle_cpu_share: None,
        rounds: settings.rounds,
        duration_s: settings.duration.as_secs_f64(),
        gap_us: gap,
        busy_poll_us: settings.busy_poll.as_secs_f64() * 1e6,
        mtu: Some(settings.mtu).filter(|mtu| *mtu != LAB_MTU && bench.server().is_none()),
    }
}

fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn cpu_model(cpuinfo: &str) -> String {
    // Arm has no model name there: use the architecture instead.
    field(cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned()
}

fn is_virtual(cpuinfo: &str) -> bool {
    field(cpuinfo, "flags").is_some_and(|flags| flags.split_whitespace().any(|f| f == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_hypervisor_are_read_from_a_guests_cpuinfo() {
        let text =
            "processor\t: 0\nmodel name\t: A CPU @ 3 GHz: fast\nflags\t\t: fpu hypervisor lm\n";
        assert_eq!(cpu_model(text), "A CPU @ 3 GHz: fast");
        assert!(is_virtual(text));
        assert!(!is_virtual("flags : fpu lm\n"));
        assert_eq!(cpu_model(""), std::env::consts::ARCH);
    }
}
