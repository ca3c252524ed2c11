//! Passes over NAPI instances, counted by BPF for as long as the exporter runs, in all network namespaces.

use busypoll_linux::netns;
use busypoll_observe::passes::PassCount;

use crate::metrics::{NAPI_BUSY_POLLS, NAPI_PACKETS, NAPI_PASSES};
use crate::page::Page;

/// The most instances listed.
const INSTANCES: usize = 1024;

/// Adds the counts so far. Returns how many instances were left out.
pub(crate) fn collect(count: &mut PassCount, page: &mut Page) -> Result<u64, String> {
    let rows = count.read()?.passes;
    let own = netns::inode().ok();
    let mut listed = 0;
    for row in &rows {
        let (Some(id), Some(device)) = (row.napi, &row.device) else { continue };
        listed += 1;
        if listed > INSTANCES {
            continue;
        }
        // Empty for the exporter's own network namespace, as most machines have no other with devices.
        let namespace = match own == Some(device.netns) {
            true => String::new(),
            false => device.netns.to_string(),
        };
        let id = id.to_string();
        for (metric, kind, value) in [
            (&NAPI_BUSY_POLLS, "hit", row.spin_hits),
            (&NAPI_BUSY_POLLS, "empty", row.spin_empty),
            (&NAPI_PASSES, "last_busy_poll", row.rearm),
            (&NAPI_PASSES, "softirq", row.softirq),
            (&NAPI_PASSES, "kernel_thread", row.threaded),
            (&NAPI_PACKETS, "busy_poll", row.spin_packets + row.rearm_packets),
            (&NAPI_PACKETS, "softirq", row.softirq_packets),
            (&NAPI_PACKETS, "kernel_thread", row.threaded_packets),
        ] {
            page.count(metric, &[&namespace, &device.name, &id, kind], value);
        }
    }
    Ok(listed.saturating_sub(INSTANCES) as u64)
}
