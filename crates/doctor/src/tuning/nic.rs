//! A device's interrupts: their delay, their CPUs, and the IOMMU mode.

use busypoll_linux::ethtool::Ethtool;
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::topology::{self, CpuList};
use busypoll_linux::{irq, machine, numa};
use serde::Serialize;

use crate::rules::{IOMMU_STRICT, IRQ_FAR_NODE, IRQ_ISOLATED, LRO_ON};
use crate::{Report, Subject};

/// The facts about a device's interrupts.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Nic {
    pub(super) node: Option<u32>,
    pub(super) rx_usecs: Option<u32>,
    pub(super) rx_frames: Option<u32>,
    pub(super) adaptive_rx: Option<bool>,
    pub(super) gro: Option<bool>,
    pub(super) lro: Option<bool>,
    pub(super) iommu: Option<String>,
    pub(crate) interrupts: Vec<Interrupt>,
}

/// One interrupt of a device.
#[derive(Debug, Serialize)]
pub(crate) struct Interrupt {
    pub(crate) irq: u32,
    name: String,
    /// The CPUs it may go to.
    affinity: String,
    /// The CPU it goes to.
    pub(crate) effective: String,
}

impl Nic {
    /// Reads the facts of a device and reports its faults.
    pub(crate) fn check(name: &str, sysfs: Option<&Sysfs>, report: &mut Report) -> Self {
        let mut nic = Nic::default();
        if let Ok(ethtool) = Ethtool::open(name) {
            nic.coalescing(&ethtool);
            nic.offloads(name, &ethtool, report);
        }
        let Some(sysfs) = sysfs else { return nic };
        nic.node = numa::of_device(sysfs, name);
        nic.interrupts = irq::of_device(sysfs, name).into_iter().map(Interrupt::read).collect();
        nic.placement(name, report);
        nic.iommu(name, sysfs, report);
        nic
    }

    fn coalescing(&mut self, ethtool: &Ethtool) {
        // Software devices have no coalescing.
        let Ok(found) = ethtool.coalesce() else { return };
        self.rx_usecs = Some(found.rx_usecs);
        self.rx_frames = Some(found.rx_frames);
        self.adaptive_rx = Some(found.adaptive_rx);
    }

    fn offloads(&mut self, name: &str, ethtool: &Ethtool, report: &mut Report) {
        self.gro = ethtool.all_on(busypoll_linux::ethtool::GRO).ok();
        self.lro = ethtool.all_on(&["rx-lro"]).ok();
        if self.lro == Some(true) {
            let found = LRO_ON.finding(Subject::device(name), "large-receive-offload is on");
            let found = found.evidence(format!("ethtool -k {name}"), "large-receive-offload: on");
            report.add(found.remedy(format!("ethtool -K {name} lro off")));
        }
    }

    /// Interrupts should go to the device's own node, and not to an isolated CPU.
    fn placement(&self, name: &str, report: &mut Report) {
        let isolated = machine::isolated();
        let nodes = numa::nodes().unwrap_or_default();
        let near: Option<CpuList> =
            nodes.into_iter().find(|n| Some(n.id) == self.node).map(|n| n.cpus);
        let housekeeping = |cpus: &CpuList| -> CpuList {
            cpus.iter().filter(|cpu| !isolated.contains(*cpu)).collect()
        };
        for interrupt in &self.interrupts {
            let Ok(effective) = interrupt.effective.parse::<CpuList>() else { continue };
            let subject = || Subject::device(name);
            let read = format!("/proc/irq/{}/effective_affinity_list", interrupt.irq);
            let to = |cpus: &CpuList| {
                format!("echo {cpus} > /proc/irq/{}/smp_affinity_list", interrupt.irq)
            };
            if let Some(near) = &near
                && !effective.iter().any(|cpu| near.contains(cpu))
            {
                let what = format!(
                    "interrupt {} goes to CPU {effective}, the device is on node {}",
                    interrupt.irq,
                    self.node.unwrap_or_default()
                );
                let found = IRQ_FAR_NODE.finding(subject(), what).evidence(&read, &effective);
                let found = found.evidence(format!("CPUs of node {:?}", self.node), near);
                let choice = housekeeping(near);
                report.add(found.remedy(to(if choice.is_empty() { near } else { &choice })));
            } else if effective.iter().any(|cpu| isolated.contains(cpu)) {
                let what = format!("interrupt {} goes to isolated CPU {effective}", interrupt.irq);
                let found = IRQ_ISOLATED.finding(subject(), what).evidence(&read, &effective);
                let found = found.evidence("/sys/devices/system/cpu/isolated", &isolated);
                let all = topology::online().unwrap_or_default();
                let near = housekeeping(near.as_ref().unwrap_or(&all));
                let choice = if near.is_empty() { housekeeping(&all) } else { near };
                report.add(match choice.is_empty() {
                    true => found,
                    false => found.remedy(to(&choice)),
                });
            }
        }
    }

    fn iommu(&mut self, name: &str, sysfs: &Sysfs, report: &mut Report) {
        let Some(group) = machine::iommu_group(sysfs, name) else { return };
        self.iommu = Some(group.mode.clone());
        if group.mode == "DMA" {
            let path = format!("/sys/kernel/iommu_groups/{}/type", group.id);
            let found = IOMMU_STRICT.finding(Subject::device(name), "the IOMMU is strict");
            let found = found.evidence(&path, "DMA");
            // The only change of type that is allowed while a driver uses the device.
            report.add(found.remedy(format!("echo DMA-FQ > {path}")));
        }
    }

    /// The lines of the text report.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if let (Some(usecs), Some(frames), Some(adaptive)) =
            (self.rx_usecs, self.rx_frames, self.adaptive_rx)
        {
            let adaptive = if adaptive { "on" } else { "off" };
            parts.push(format!("rx-usecs {usecs}, rx-frames {frames}, adaptive {adaptive}"));
        }
        parts.extend(self.node.map(|node| format!("node {node}")));
        parts.extend(self.iommu.as_ref().map(|mode| format!("iommu {mode}")));
        let mut lines = Vec::new();
        if !parts.is_empty() {
            lines.push(format!("    {}", parts.join(", ")));
        }
        lines.extend(self.interrupts.iter().map(|i| {
            format!("    irq {}  {}  CPU {} of {}", i.irq, i.name, i.effective, i.affinity)
        }));
        lines
    }
}

impl Interrupt {
    fn read(irq: u32) -> Self {
        let list = |found: busypoll_linux::Result<CpuList>| {
            found.map(|cpus| cpus.to_string()).unwrap_or_default()
        };
        let affinity = list(irq::affinity(irq));
        let effective = list(irq::effective_affinity(irq));
        Interrupt {
            irq,
            name: irq::names(irq).join(", "),
            // Some interrupt controllers do not report an effective CPU.
            effective: if effective.is_empty() { affinity.clone() } else { effective },
            affinity,
        }
    }
}
