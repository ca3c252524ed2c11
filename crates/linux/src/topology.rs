//! The machine's CPUs, those this thread may use, shared cores, and pinning. Includes the
//! guard that restores a thread's affinity.
//!
//! Kernel source: `Documentation/admin-guide/cputopology.rst`, sched_setaffinity(2). A thread needs no permission
//! to change its own affinity within its cpuset.

use std::collections::BTreeSet;
use std::ffi::c_ulong;
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::sys::{self, MASK_WORDS};

const WORD: usize = c_ulong::BITS as usize;
const MAX_CPUS: u32 = (MASK_WORDS * WORD) as u32;
const SYSFS: &str = "/sys/devices/system/cpu";

/// A set of CPUs, written and parsed as Linux does: `0-3,5`.
///
/// ```
/// use busypoll_linux::topology::CpuList;
/// let list: CpuList = "0-2,5".parse()?;
/// assert_eq!(list.iter().collect::<Vec<_>>(), [0, 1, 2, 5]);
/// let error = "0-x".parse::<CpuList>().unwrap_err();
/// assert_eq!(error.to_string(), "CPU list \"0-x\": \"x\" is not a CPU number; write numbers and ranges such as 0,2-3");
/// # Ok::<(), busypoll_linux::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<u32>);

impl CpuList {
    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// How many CPUs the set has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        CpuList(cpus.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = Error;

    /// # Errors
    /// [`Error::CpuList`]: empty, not a number, a reversed range, a number above Linux's limit.
    fn from_str(list: &str) -> Result<Self> {
        let error = |why: String| Error::CpuList { list: list.into(), why };
        let number = |text: &str| {
            let cpu: u32 = text
                .trim()
                .parse()
                .map_err(|_| error(format!("{:?} is not a CPU number", text.trim())))?;
            if cpu >= MAX_CPUS {
                return Err(error(format!("{cpu} is above {}, the highest CPU", MAX_CPUS - 1)));
            }
            Ok(cpu)
        };
        let mut cpus = BTreeSet::new();
        for part in list.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(error(format!("the range {first}-{last} runs backwards")));
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|c| *c == last + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// One CPU and what it shares. If the system reports nothing (some containers and virtual machines),
/// a CPU is a core of its own on package 0, node 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The CPU's number.
    pub id: u32,
    /// The CPUs of the same core, this one included: more than one with SMT on.
    pub siblings: CpuList,
    /// The package (socket) it sits in.
    pub package: u32,
    /// The NUMA node it belongs to.
    pub node: u32,
}

/// The CPUs that are online.
pub fn online() -> Result<CpuList> {
    let path = format!("{SYSFS}/online");
    fs::read_to_string(&path).map_err(|e| Error::os(format!("reading {path}"), e))?.parse()
}

/// The number of CPUs the kernel is built for (`NR_CPUS`); 0 if it does not report it.
pub fn max_cpus() -> u32 {
    let highest = fs::read_to_string(format!("{SYSFS}/kernel_max")).ok();
    highest.and_then(|n| n.trim().parse::<u32>().ok()).map_or(0, |n| n.saturating_add(1))
}

/// The CPUs the calling thread may run on.
pub fn allowed() -> Result<CpuList> {
    let mask = sys::get_affinity().map_err(|e| Error::os("reading this thread's affinity", e))?;
    Ok((0..MAX_CPUS)
        .filter(|c| mask[*c as usize / WORD] >> (*c as usize % WORD) & 1 == 1)
        .collect())
}

/// The position of one CPU in the machine.
pub fn cpu(id: u32) -> Cpu {
    let dir = format!("{SYSFS}/cpu{id}");
    let read = |name: &str| fs::read_to_string(format!("{dir}/topology/{name}")).ok();
    let number = |text: String| text.trim().parse::<u32>().ok();
    // `core_cpus_list` replaced `thread_siblings_list` in Linux 5.3; both mean the SMT siblings.
    let siblings = read("core_cpus_list")
        .or_else(|| read("thread_siblings_list"))
        .and_then(|list| list.parse::<CpuList>().ok())
        .filter(|list| list.contains(id))
        .unwrap_or_else(|| [id].into_iter().collect());
    // The package is -1 if the firmware does not report it.
    let package = read("physical_package_id").and_then(number).unwrap_or(0);
    let node = fs::read_dir(&dir)
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|e| e.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .unwrap_or(0);
    Cpu { id, siblings, package, node }
}

/// Two CPUs for two threads that communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// For the side that is measured.
    pub first: u32,
    /// For the other side.
    pub second: u32,
    /// The two share a core, as the machine has no better pair: two spinners slow each other down.
    pub share_core: bool,
}

/// The pair to use when the user names none, among the CPUs this thread may run on: not SMT siblings;
/// then the same NUMA node and package; then not CPU 0, which takes most interrupts.
///
/// # Errors
/// [`Error::OneCpu`] if the thread may run on fewer than two CPUs.
pub fn default_pair() -> Result<Pair> {
    let allowed = allowed()?;
    let cpus: Vec<Cpu> = allowed.iter().map(cpu).collect();
    choose_pair(&cpus).ok_or_else(|| Error::OneCpu { allowed: allowed.to_string() })
}

fn choose_pair(cpus: &[Cpu]) -> Option<Pair> {
    let mut best: Option<((bool, bool, bool, bool), Pair)> = None;
    for (i, a) in cpus.iter().enumerate() {
        for b in &cpus[i + 1..] {
            let share_core = a.siblings.contains(b.id);
            // Smaller is better; the first criterion weighs most.
            let cost =
                (share_core, a.node != b.node, a.package != b.package, a.id == 0 || b.id == 0);
            if best.as_ref().is_none_or(|(c, _)| cost < *c) {
                best = Some((cost, Pair { first: a.id, second: b.id, share_core }));
            }
        }
    }
    best.map(|(_, pair)| pair)
}

/// Binds the calling thread to one CPU until the guard is dropped.
///
/// Threads started meanwhile inherit the binding and keep it.
///
/// # Errors
/// [`Error::NoCpu`] if the CPU is offline or outside the cpuset. An affinity set earlier, by `pin` or by
/// taskset(1), does not limit it: [`default_pair`] respects it, an explicit choice may differ.
///
/// ```
/// use busypoll_linux::topology;
/// let cpu = topology::allowed()?.iter().next().unwrap();
/// let pinned = topology::pin(cpu)?;
/// assert_eq!(topology::allowed()?.to_string(), cpu.to_string());
/// drop(pinned);
/// # Ok::<(), busypoll_linux::Error>(())
/// ```
pub fn pin(cpu: u32) -> Result<PinGuard> {
    let before = sys::get_affinity().map_err(|e| Error::os("reading this thread's affinity", e))?;
    let mut mask = [0; MASK_WORDS];
    let refused = match mask.get_mut(cpu as usize / WORD) {
        Some(word) => {
            *word = 1 << (cpu as usize % WORD);
            sys::set_affinity(&mask).err()
        }
        None => Some(std::io::Error::from_raw_os_error(libc::EINVAL)),
    };
    if let Some(e) = refused {
        return Err(match e.raw_os_error() {
            Some(libc::EINVAL) => Error::NoCpu { cpu, online: online()?.to_string() },
            _ => Error::os(format!("pinning this thread to CPU {cpu}"), e),
        });
    }
    Ok(PinGuard { before, _this_thread: PhantomData })
}

/// Restores the thread's affinity when dropped. It cannot leave its thread.
#[derive(Debug)]
#[must_use = "the thread is unpinned when the guard is dropped"]
pub struct PinGuard {
    before: [c_ulong; MASK_WORDS],
    _this_thread: PhantomData<*const ()>,
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        // Fails only if the cpuset shrank meanwhile; then the kernel has moved the thread already.
        let _ = sys::set_affinity(&self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpus: &[(u32, &str, u32)]) -> Vec<Cpu> {
        cpus.iter()
            .map(|(id, siblings, node)| Cpu {
                id: *id,
                siblings: siblings.parse().unwrap(),
                package: *node,
                node: *node,
            })
            .collect()
    }

    #[test]
    fn lists_are_parsed_and_written_as_linux_does() {
        for list in ["0", "0-3", "0-3,5", "1,3,5-6", "8191"] {
            assert_eq!(list.parse::<CpuList>().unwrap().to_string(), list);
        }
        assert_eq!(" 3,1-2,2 \n".parse::<CpuList>().unwrap().to_string(), "1-3");
        for bad in ["", ",", "1,", "a", "1-", "-1", "3-1", "0-4294967295", "8192", "1-2-3", "0x1"] {
            let error = bad.parse::<CpuList>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_default_pair_avoids_smt_siblings_then_other_nodes_then_cpu_0() {
        let pair = |cpus: &[(u32, &str, u32)]| choose_pair(&machine(cpus));
        let is = |first, second, share_core| Some(Pair { first, second, share_core });
        assert_eq!(pair(&[(0, "0", 0), (1, "1", 0)]), is(0, 1, false));
        assert_eq!(pair(&[(0, "0-1", 0), (1, "0-1", 0)]), is(0, 1, true));
        assert_eq!(pair(&[(0, "0", 0), (1, "1", 0), (2, "2", 0)]), is(1, 2, false));
        let smt = [(0, "0,2", 0), (1, "1,3", 0), (2, "0,2", 0), (3, "1,3", 0)];
        assert_eq!(pair(&smt), is(1, 2, false));
        // CPU 0 on the same node is better than a CPU of another node.
        assert_eq!(pair(&[(0, "0", 0), (1, "1", 0), (2, "2", 1)]), is(0, 1, false));
        assert_eq!(pair(&[(3, "3", 0)]), None);
        assert_eq!(pair(&[]), None);
    }

    #[test]
    fn unpinning_restores_the_affinity_and_a_missing_cpu_is_refused() {
        let before = allowed().unwrap();
        let last = before.iter().last().unwrap();
        let guard = pin(last).unwrap();
        assert_eq!(allowed().unwrap().to_string(), last.to_string());
        drop(guard);
        assert_eq!(allowed().unwrap(), before);
        let error = pin(8191).unwrap_err().to_string();
        assert!(
            error.contains("CPU 8191") && error.contains(&online().unwrap().to_string()),
            "{error}"
        );
        assert!(before.iter().all(|c| online().unwrap().contains(c)));
        assert!(before.iter().all(|c| cpu(c).siblings.contains(c)));
    }
}
