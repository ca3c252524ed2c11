//! The kernel's counters in /proc, of the machine and of this network namespace.

use std::collections::BTreeMap;

use busypoll_linux::Result;
use busypoll_linux::stat::{self, CpuTimes};

/// The counters, since boot.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Packets that the kernel's busy polling found, all devices of this network namespace.
    pub busy_poll_packets: u64,
    /// NET_RX softirqs of the machine.
    pub net_rx: Option<u64>,
    /// Where the time of each CPU went.
    pub cpus: CpuTimes,
    /// Packets that each device of this network namespace received.
    pub devices: BTreeMap<String, u64>,
}

/// Reads them.
///
/// # Errors
/// /proc cannot be read.
pub fn read() -> Result<Machine> {
    Ok(Machine {
        busy_poll_packets: stat::busy_poll_rx_packets()?,
        net_rx: stat::softirqs()?.row("NET_RX").map(stat::IrqCount::total),
        cpus: CpuTimes::now()?,
        devices: stat::received_packets()?,
    })
}
