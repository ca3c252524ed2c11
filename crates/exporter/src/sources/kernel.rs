//! The kernel's counters in /proc, of the machine and of this network namespace.

use busypoll_linux::stat::{self, CpuTimes};

use crate::metrics::{CPU_SECONDS, DEVICE_PACKETS, KERNEL_PACKETS, NET_RX, SOFTIRQ_SECONDS};
use crate::page::Page;

/// The most devices listed.
const DEVICES: usize = 1024;

/// Adds them. Returns how many devices were left out.
pub(crate) fn collect(page: &mut Page) -> busypoll_linux::Result<u64> {
    page.count(&KERNEL_PACKETS, &[], stat::busy_poll_rx_packets()?);
    if let Some(row) = stat::softirqs()?.row("NET_RX") {
        page.count(&NET_RX, &[], row.total());
    }
    let spent = CpuTimes::now()?.total();
    page.add(&SOFTIRQ_SECONDS, &[], spent.softirq_ns as f64 / 1e9);
    page.add(&CPU_SECONDS, &[], spent.busy_ns() as f64 / 1e9);
    let devices = stat::received_packets()?;
    for (device, packets) in devices.iter().take(DEVICES) {
        page.count(&DEVICE_PACKETS, &[device], *packets);
    }
    Ok(devices.len().saturating_sub(DEVICES) as u64)
}
