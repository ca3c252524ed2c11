//! NUMA nodes: their CPUs, the node of a device, and how fast memory is copied. Changes nothing.
//!
//! Kernel source: `drivers/base/node.c`, `Documentation/admin-guide/mm/numaperf.rst`.

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sysfs::Sysfs;
use crate::topology::{self, CpuList};

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its CPUs that are online; a node may have memory only.
    pub cpus: CpuList,
}

/// The nodes with CPUs, ascending; a machine that reports none is one node.
pub fn nodes() -> Result<Vec<Node>> {
    let folder = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let mut nodes: Vec<Node> = folder
        .filter_map(|e| e.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .filter_map(|id: u32| {
            let list = format!("/sys/devices/system/node/node{id}/cpulist");
            Some(Node { id, cpus: fs::read_to_string(list).ok()?.trim().parse().ok()? })
        })
        .collect();
    if nodes.is_empty() {
        nodes.push(Node { id: 0, cpus: topology::online()? });
    }
    nodes.sort_by_key(|n| n.id);
    Ok(nodes)
}

/// The node of a device's bus; none for software devices and if the firmware does not report it.
pub fn of_device(sysfs: &Sysfs, device: &str) -> Option<u32> {
    ["device/numa_node", "device/../numa_node"]
        .iter()
        .find_map(|name| sysfs.attribute(device, name)?.parse().ok())
}

/// Bytes copied in a row: more than a core's private caches hold.
const COPIED: usize = 32 << 20;
/// Bytes timed together: few enough that most pieces are copied without an interruption.
const TIMED: usize = 1 << 20;
/// No further round of copying begins after this time.
const LONGEST: Duration = Duration::from_millis(100);

/// How fast a thread on `cpu` copies memory that a thread on `memory_cpu` touched first, in bytes
/// per second: the rate of the fastest quarter of 96 pieces of 1 MiB, because other load only makes
/// them slower; fewer pieces if 96 take longer than 100 ms. Takes some 30 ms on a real machine.
///
/// # Errors
/// [`Error::NoCpu`] for a CPU this process may not use.
pub fn copy_bandwidth(cpu: u32, memory_cpu: u32) -> Result<u64> {
    let (from, mut to) = on_cpu(memory_cpu, || (vec![1u8; COPIED], vec![2u8; COPIED]))?;
    on_cpu(cpu, || {
        let mut times = Vec::new();
        let begun = Instant::now();
        for _ in 0..3 {
            if begun.elapsed() > LONGEST {
                break;
            }
            for (to, from) in to.chunks_exact_mut(TIMED).zip(from.chunks_exact(TIMED)) {
                let start = Instant::now();
                black_box(to).copy_from_slice(black_box(from));
                times.push(start.elapsed());
            }
        }
        times.sort_unstable();
        let quarter = times.get(times.len() / 4).map_or(0.0, |time| time.as_secs_f64());
        (TIMED as f64 / quarter.max(1e-9)) as u64
    })
}

/// Runs `work` on a thread of its own, pinned to `cpu`.
fn on_cpu<R: Send>(cpu: u32, work: impl FnOnce() -> R + Send) -> Result<R> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .spawn_scoped(scope, || {
                let _pinned = topology::pin(cpu)?;
                Ok(work())
            })
            .map_err(|e| Error::os("starting a thread", e))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_the_cpus_and_memory_is_copied() {
        let nodes = nodes().unwrap();
        let online = topology::online().unwrap();
        assert_eq!(nodes.iter().map(|n| n.cpus.len()).sum::<usize>(), online.len());
        let cpu = topology::allowed().unwrap().iter().next().unwrap();
        assert!(copy_bandwidth(cpu, cpu).unwrap() > 50_000_000);
        assert!(matches!(copy_bandwidth(8191, cpu), Err(Error::NoCpu { .. })));
    }
}
