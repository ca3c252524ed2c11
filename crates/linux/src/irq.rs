//! The interrupts of a device and the CPUs they go to. Touches only what
//! [`set_affinity`] changes.
//!
//! Kernel source: `kernel/irq/proc.c`, `Documentation/core-api/irq/irq-affinity.rst`. Reading needs
//! no permission; setting needs root. Interrupts belong to the machine, not to a network namespace.

use std::fs;
use std::io;

use crate::error::{Error, Result};
use crate::sysfs::Sysfs;
use crate::topology::CpuList;

/// The interrupts of a device, ascending: its own in `device/`, or those of the PCI device below a virtio
/// device. None for software devices.
pub fn of_device(sysfs: &Sysfs, device: &str) -> Vec<u32> {
    for parent in ["device", "device/.."] {
        let msi = fs::read_dir(sysfs.path(device, &format!("{parent}/msi_irqs")));
        let mut irqs: Vec<u32> = msi
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse().ok())
            // A vector that no driver has requested has no folder there.
            .filter(|irq| fs::exists(format!("/proc/irq/{irq}")).unwrap_or(false))
            .collect();
        if irqs.is_empty() {
            let line = sysfs.attribute(device, &format!("{parent}/irq"));
            irqs.extend(line.and_then(|l| l.parse::<u32>().ok()).filter(|irq| *irq > 0));
        }
        if !irqs.is_empty() {
            irqs.sort_unstable();
            return irqs;
        }
    }
    Vec::new()
}

/// The drivers' names for an interrupt: `eth1-rx-0`, `virtio1-input.0`; several if it is shared, none
/// without a handler.
pub fn names(irq: u32) -> Vec<String> {
    let folder = fs::read_dir(format!("/proc/irq/{irq}")).into_iter().flatten().flatten();
    let mut names: Vec<String> = folder
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// The CPUs an interrupt may go to.
pub fn affinity(irq: u32) -> Result<CpuList> {
    read(&format!("/proc/irq/{irq}/smp_affinity_list"))
}

/// The CPU it really goes to, on most machines one of [`affinity`].
pub fn effective_affinity(irq: u32) -> Result<CpuList> {
    read(&format!("/proc/irq/{irq}/effective_affinity_list"))
}

fn read(path: &str) -> Result<CpuList> {
    let text = fs::read_to_string(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
    // Empty before the interrupt has been assigned a CPU.
    if text.trim().is_empty() { Ok([].into_iter().collect()) } else { text.parse() }
}

/// Moves an interrupt to these CPUs.
///
/// # Errors
/// [`Error::Os`]: `EIO` where the kernel manages the affinity itself, `EINVAL` for CPUs that are offline,
/// a permission without root.
pub fn set_affinity(irq: u32, cpus: &CpuList) -> Result<()> {
    let path = format!("/proc/irq/{irq}/smp_affinity_list");
    fs::write(&path, cpus.to_string()).map_err(|e| {
        let why = match e.raw_os_error() {
            Some(libc::EIO) => " (the kernel manages the affinity of this interrupt itself)",
            Some(libc::EINVAL) => " (none of these CPUs is online)",
            _ if e.kind() == io::ErrorKind::PermissionDenied => " (needs root)",
            _ => "",
        };
        Error::os(format!("moving interrupt {irq} to CPU {cpus}{why}: writing {path}"), e)
    })
}
