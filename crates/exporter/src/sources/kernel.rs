//! The kernel's counters in /proc, of the machine and of this network namespace.

use busypoll_observe::machine;

use crate::metrics::{CPU_SECONDS, DEVICE_PACKETS, KERNEL_PACKETS, NET_RX, SOFTIRQ_SECONDS};
use crate::page::Page;

/// The most devices listed.
const DEVICES: usize = 1024;

/// Adds them. Returns how many devices were left out.
pub(crate) fn collect(page: &mut Page) -> busypoll_linux::Result<u64> {
    let machine = machine::read()?;
    page.count(&KERNEL_PACKETS, &[], machine.busy_poll_packets);
    if let Some(count) = machine.net_rx {
        page.count(&NET_RX, &[], count);
    }
    let spent = machine.cpus.total();
    page.add(&SOFTIRQ_SECONDS, &[], spent.softirq_ns as f64 / 1e9);
    page.add(&CPU_SECONDS, &[], spent.busy_ns() as f64 / 1e9);
    for (device, packets) in machine.devices.iter().take(DEVICES) {
        page.count(&DEVICE_PACKETS, &[device], *packets);
    }
    Ok(machine.devices.len().saturating_sub(DEVICES) as u64)
}
