//! The kernel's counters: packets found by busy polling, interrupts, softirqs, context switches,
//! CPU time. Reads `/proc`; changes nothing; needs no permission.
//!
//! All count since boot (context switches: since the thread began): read them twice and
//! subtract.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::error::{Error, Result};

/// `BusyPollRxPackets` of the calling thread's network namespace: packets that busy polling took
/// from the queues of **the devices of this namespace**, UDP as well as TCP, in any process and
/// for any socket. Zero growth means that nothing busy polled.
///
/// Kernel source: `LINUX_MIB_BUSYPOLLRXPACKETS` in `net/core/dev.c`; `/proc/net/netstat`.
pub fn busy_poll_rx_packets() -> Result<u64> {
    let path = "/proc/thread-self/net/netstat";
    netstat_counter(&read(path)?, "TcpExt:", "BusyPollRxPackets").ok_or_else(|| Error::Malformed {
        path: path.into(),
        why: "no TcpExt counter BusyPollRxPackets".into(),
    })
}

/// Packets that each device of the calling thread's network namespace has received, by name
/// (`/proc/net/dev`).
pub fn received_packets() -> Result<BTreeMap<String, u64>> {
    let text = read("/proc/thread-self/net/dev")?;
    Ok(text.lines().filter_map(received).collect())
}

/// `Ip: InReceives` of the calling thread's network namespace: packets that its IPv4 has seen
/// (`/proc/net/snmp`). Packets that a device has received beyond these never reached the kernel's stack.
pub fn ip_received() -> Result<u64> {
    let path = "/proc/thread-self/net/snmp";
    netstat_counter(&read(path)?, "Ip:", "InReceives").ok_or_else(|| Error::Malformed {
        path: path.into(),
        why: "no Ip counter InReceives".into(),
    })
}

/// `  eth0: BYTES PACKETS …`
fn received(line: &str) -> Option<(String, u64)> {
    let (name, counters) = line.split_once(':')?;
    let packets = counters.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some((name.trim().to_owned(), packets))
}

/// A counter of `/proc/net/netstat`: a line of names, then a line of values, with the same prefix.
fn netstat_counter(text: &str, prefix: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|l| l.starts_with(prefix));
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        if let Some(at) = names.split_ascii_whitespace().position(|n| n == name) {
            return values.split_ascii_whitespace().nth(at)?.parse().ok();
        }
    }
    None
}

/// Counts per CPU and cause: `/proc/interrupts` or `/proc/softirqs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrqCounts {
    /// The CPU of each column of [`IrqCount::counts`].
    pub cpus: Vec<u32>,
    /// One row per interrupt line or softirq.
    pub rows: Vec<IrqCount>,
}

/// The counts of one interrupt line or softirq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrqCount {
    /// `24`, `LOC`, `NET_RX`: the label without its colon.
    pub name: String,
    /// One count per CPU; a row the kernel keeps for the whole machine (`ERR`) has fewer.
    pub counts: Vec<u64>,
    /// The rest of the line: chip and device, `PCI-MSIX-0000:00:03.0 1-edge virtio1-input.0`.
    pub what: String,
}

impl IrqCount {
    /// The sum over all CPUs.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl IrqCounts {
    /// The row of that name, such as `NET_RX`, `LOC`.
    pub fn row(&self, name: &str) -> Option<&IrqCount> {
        self.rows.iter().find(|r| r.name == name)
    }

    /// The row of an interrupt number, such as a NAPI instance's `irq`.
    pub fn irq(&self, number: u32) -> Option<&IrqCount> {
        self.row(&number.to_string())
    }

    /// All interrupts or softirqs that one CPU took; 0 for a CPU that is not listed.
    pub fn cpu_total(&self, cpu: u32) -> u64 {
        let Some(column) = self.cpus.iter().position(|c| *c == cpu) else { return 0 };
        self.rows.iter().filter_map(|r| r.counts.get(column)).sum()
    }

    /// The sum over all causes and CPUs.
    pub fn total(&self) -> u64 {
        self.rows.iter().map(IrqCount::total).sum()
    }

    fn parse(path: &str, text: &str) -> Result<Self> {
        let malformed = |why: String| Error::Malformed { path: path.into(), why };
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default();
        let cpus = header
            .split_ascii_whitespace()
            .map(|c| c.strip_prefix("CPU").and_then(|n| n.parse().ok()))
            .collect::<Option<Vec<u32>>>()
            .filter(|cpus| !cpus.is_empty())
            .ok_or_else(|| malformed(format!("first line {header:?} names no CPUs")))?;
        let mut rows = Vec::new();
        for line in lines {
            let Some((name, rest)) = line.split_once(':') else { continue };
            let mut words = rest.split_ascii_whitespace().peekable();
            let mut counts = Vec::with_capacity(cpus.len());
            while counts.len() < cpus.len()
                && let Some(count) = words.peek().and_then(|w| w.parse().ok())
            {
                counts.push(count);
                words.next();
            }
            let what = words.collect::<Vec<_>>().join(" ");
            rows.push(IrqCount { name: name.trim().into(), counts, what });
        }
        Ok(IrqCounts { cpus, rows })
    }
}

/// Interrupts by line and CPU (`/proc/interrupts`; whole machine, all namespaces).
pub fn interrupts() -> Result<IrqCounts> {
    IrqCounts::parse("/proc/interrupts", &read("/proc/interrupts")?)
}

/// Softirqs by kind and CPU (`/proc/softirqs`): `NET_RX` is what busy polling avoids. Columns are
/// possible CPUs, including offline ones.
pub fn softirqs() -> Result<IrqCounts> {
    IrqCounts::parse("/proc/softirqs", &read("/proc/softirqs")?)
}

/// Context switches of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextSwitches {
    /// The thread went to sleep: at least once per receive that blocks.
    pub voluntary: u64,
    /// The thread was preempted: a spinner that shares its CPU shows up here.
    pub involuntary: u64,
}

/// Context switches of the calling thread.
pub fn context_switches() -> Result<ContextSwitches> {
    context_switches_in("/proc/thread-self/status")
}

/// Context switches of thread `tid` of any process.
///
/// # Errors
/// [`Error::Os`] if there is no such thread.
pub fn context_switches_of(tid: u32) -> Result<ContextSwitches> {
    context_switches_in(&format!("/proc/{tid}/status"))
}

fn context_switches_in(path: &str) -> Result<ContextSwitches> {
    let count = |name| {
        let field = status_field(path, name)?;
        field.parse().map_err(|_| Error::Malformed {
            path: path.into(),
            why: format!("{name} is {field:?}"),
        })
    };
    Ok(ContextSwitches {
        voluntary: count("voluntary_ctxt_switches")?,
        involuntary: count("nonvoluntary_ctxt_switches")?,
    })
}

/// A field of a `/proc/…/status` file.
pub(crate) fn status_field(path: &str, name: &str) -> Result<String> {
    read(path)?
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':').map(|v| v.trim().to_string()))
        .ok_or_else(|| Error::Malformed { path: path.into(), why: format!("no field {name}") })
}

/// Where the time of one CPU went since boot (`/proc/stat`).
///
/// The kernel reports ticks of 10 ms; much shorter differences are meaningless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// User mode, including niced programs; a busy poll inside a receive call is `system_ns`.
    pub user_ns: u64,
    /// Kernel mode on behalf of programs.
    pub system_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// Idle while a disk access was pending.
    pub iowait_ns: u64,
    /// Hard interrupts.
    pub irq_ns: u64,
    /// Softirqs: the interrupt-driven receive path.
    pub softirq_ns: u64,
    /// Taken by the hypervisor.
    pub steal_ns: u64,
}

impl CpuTime {
    /// Time in which the CPU was busy: user, system, interrupts, softirqs, steal.
    ///
    /// Tick-based accounting misses work shorter than a tick; for service demand prefer
    /// [`CpuTimes::used`].
    pub fn busy_ns(&self) -> u64 {
        self.user_ns + self.system_ns + self.irq_ns + self.softirq_ns + self.steal_ns
    }

    /// Time in which the CPU was idle: idle and iowait.
    pub fn idle_total_ns(&self) -> u64 {
        self.idle_ns + self.iowait_ns
    }

    fn since(&self, earlier: &Self) -> Self {
        // idle and iowait can step back by a tick.
        CpuTime {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
            iowait_ns: self.iowait_ns.saturating_sub(earlier.iowait_ns),
            irq_ns: self.irq_ns.saturating_sub(earlier.irq_ns),
            softirq_ns: self.softirq_ns.saturating_sub(earlier.softirq_ns),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
        }
    }
}

/// [`CpuTime`] of every online CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// CPU number and its times, in the kernel's order.
    pub cpus: Vec<(u32, CpuTime)>,
}

impl CpuTimes {
    /// The times now.
    pub fn now() -> Result<Self> {
        let path = "/proc/stat";
        let ns_per_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let times = Self::parse(&read(path)?, ns_per_tick);
        if times.cpus.is_empty() {
            return Err(Error::Malformed { path: path.into(), why: "no line of a CPU".into() });
        }
        Ok(times)
    }

    fn parse(text: &str, ns_per_tick: u64) -> Self {
        let cpus = text.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let cpu: u32 = words.next()?.strip_prefix("cpu")?.parse().ok()?;
            let mut ns = || words.next().and_then(|w| w.parse().ok()).unwrap_or(0u64) * ns_per_tick;
            let (user, nice) = (ns(), ns());
            let (system_ns, idle_ns, iowait_ns, irq_ns) = (ns(), ns(), ns(), ns());
            let (softirq_ns, steal_ns) = (ns(), ns());
            let user_ns = user + nice;
            Some((
                cpu,
                CpuTime { user_ns, system_ns, idle_ns, iowait_ns, irq_ns, softirq_ns, steal_ns },
            ))
        });
        CpuTimes { cpus: cpus.collect() }
    }

    /// The time spent between `earlier` and this reading, CPU by CPU.
    pub fn since(&self, earlier: &Self) -> Self {
        let cpus = self.cpus.iter().filter_map(|(cpu, time)| {
            let before = earlier.cpus.iter().find(|(c, _)| c == cpu)?;
            Some((*cpu, time.since(&before.1)))
        });
        CpuTimes { cpus: cpus.collect() }
    }

    /// The sum over all CPUs.
    pub fn total(&self) -> CpuTime {
        self.cpus.iter().fold(CpuTime::default(), |a, (_, b)| CpuTime {
            user_ns: a.user_ns + b.user_ns,
            system_ns: a.system_ns + b.system_ns,
            idle_ns: a.idle_ns + b.idle_ns,
            iowait_ns: a.iowait_ns + b.iowait_ns,
            irq_ns: a.irq_ns + b.irq_ns,
            softirq_ns: a.softirq_ns + b.softirq_ns,
            steal_ns: a.steal_ns + b.steal_ns,
        })
    }

    /// CPU time used by the whole machine over `elapsed`, when `self` is a difference made by
    /// [`CpuTimes::since`]: CPUs x elapsed - idle - iowait.
    ///
    /// This is the numerator of netperf's service demand. It includes short interrupts, which tick accounting
    /// charges to whatever a tick happens to hit, and it includes steal.
    ///
    /// ```
    /// use busypoll_linux::stat::CpuTimes;
    /// use std::time::Instant;
    /// let (before, start) = (CpuTimes::now()?, Instant::now());
    /// // … transactions …
    /// let used = CpuTimes::now()?.since(&before).used(start.elapsed());
    /// println!("{} us per transaction", used.as_micros() / 1000);
    /// # Ok::<(), busypoll_linux::Error>(())
    /// ```
    pub fn used(&self, elapsed: Duration) -> Duration {
        let all = elapsed * self.cpus.len() as u32;
        all.saturating_sub(Duration::from_nanos(self.total().idle_total_ns()))
    }
}

fn read(path: &str) -> Result<String> {
    // The kernel cuts program names by bytes, possibly inside a character.
    let text = fs::read(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netstat_counters_are_found_by_name_and_prefix() {
        let text = "TcpExt: A BusyPollRxPackets C\nTcpExt: 1 22 3\nIpExt: A B\nIpExt: 8 9\n";
        assert_eq!(netstat_counter(text, "TcpExt:", "BusyPollRxPackets"), Some(22));
        assert_eq!(netstat_counter(text, "IpExt:", "B"), Some(9));
        assert_eq!(netstat_counter(text, "IpExt:", "C"), None);
        assert_eq!(netstat_counter("TcpExt: A B\nTcpExt: 1\n", "TcpExt:", "B"), None);
    }

    #[test]
    fn received_packets_are_the_second_counter_of_a_line() {
        assert_eq!(received("  eth0: 1500 7 0 0"), Some(("eth0".into(), 7)));
        assert_eq!(received(" face |bytes    packets errs"), None);
    }

    #[test]
    fn interrupt_rows_separate_counts_and_description() {
        // CPU 1 is offline; the chip's name begins with a digit only in the last row.
        let text = "            CPU0       CPU2\n  24:   1   20  IO-APIC   5-edge  ACPI:Ged\n \
                    LOC:  7 8  Local timer interrupts\n ERR:   3\n";
        let table = IrqCounts::parse("test", text).unwrap();
        assert_eq!(table.cpus, [0, 2]);
        let row = table.irq(24).unwrap();
        assert_eq!((row.counts.as_slice(), row.total()), ([1, 20].as_slice(), 21));
        assert_eq!(row.what, "IO-APIC 5-edge ACPI:Ged");
        assert_eq!(table.row("ERR").unwrap().counts, [3]);
        assert_eq!((table.cpu_total(0), table.cpu_total(2), table.cpu_total(1)), (11, 28, 0));
        assert_eq!(table.total(), 39);
        assert!(IrqCounts::parse("test", "").is_err());
    }

    #[test]
    fn used_time_is_elapsed_less_idle() {
        let before =
            CpuTimes::parse("cpu  9 9\ncpu0 1 1 1 100 10 0 0 0\ncpu1 0 0 0 50\n", 10_000_000);
        let after = CpuTimes::parse("cpu0 2 1 2 130 9 0 5 1\ncpu1 0 0 0 140\nintr 5\n", 10_000_000);
        let spent = after.since(&before);
        assert_eq!(spent.cpus.len(), 2);
        assert_eq!(spent.cpus[0].1.iowait_ns, 0, "a counter that steps back counts as no time");
        assert_eq!(spent.total().busy_ns(), 80_000_000);
        assert_eq!(spent.used(Duration::from_secs(1)), Duration::from_millis(800));
    }
}
