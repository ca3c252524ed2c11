//! Which thread drove each receive queue over a time, and what it found: passes over NAPI instances, by kind; and
//! which sockets the packets reached.
//! Program: `bpf/napi.bpf.c`.
//!
//! While this value lives every pass costs its CPU some hundred nanoseconds more.

use std::collections::BTreeMap;
use std::io;

use aya::include_bytes_aligned;
use aya::maps::{MapError, PerCpuHashMap};

use super::deliveries::Deliveries;
use super::{Programs, btf, failed, text};
use crate::error::{Error, Result};
use crate::sockopt::NapiId;

/// The passes over one NAPI instance by one thread, or by softirqs and kernel threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// The process that busy polled; `None`: softirqs and kernel threads.
    pub pid: Option<u32>,
    /// Its thread.
    pub tid: Option<u32>,
    /// `None`: the per-CPU backlog (loopback, RPS, veth without GRO), tunnels and transmit queues, all
    /// of which cannot be busy polled.
    pub napi: Option<NapiId>,
    /// The device's name, ifindex and network namespace (the inode of `/proc/PID/ns/net`).
    pub device: Option<Device>,
    /// Passes of busy polls that found packets, and how many packets.
    pub spin_hits: u64,
    /// See [`Passes::spin_hits`].
    pub spin_packets: u64,
    /// Passes of busy polls that found nothing.
    pub spin_empty: u64,
    /// Last passes of busy polls that gave up: each gives the queue back to its interrupt.
    pub rearm: u64,
    /// Packets they found.
    pub rearm_packets: u64,
    /// Passes by softirqs: the interrupt-driven path.
    pub softirq: u64,
    /// Packets they found.
    pub softirq_packets: u64,
    /// Passes by the instance's kernel thread.
    pub threaded: u64,
    /// Packets they found.
    pub threaded_packets: u64,
    /// The CPUs the thread spun on, with the number of passes there.
    pub cpus: Vec<(u32, u64)>,
    /// The CPUs on which softirqs polled it, with the number of passes there.
    pub softirq_cpus: Vec<(u32, u64)>,
    /// Threads woken while softirqs or the kernel thread processed this queue.
    pub wakeups: u64,
}

/// The device of a NAPI instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name in its network namespace.
    pub name: String,
    /// Its index there.
    pub ifindex: u32,
    /// The network namespace: the inode of `/proc/PID/ns/net`.
    pub netns: u32,
}

impl Passes {
    /// All packets of this queue.
    pub fn packets(&self) -> u64 {
        self.spin_packets + self.rearm_packets + self.softirq_packets + self.threaded_packets
    }

    /// Adds another row's counts and CPUs, but not its process, queue and device.
    pub fn add(&mut self, other: &Passes) {
        self.cpus.extend(&other.cpus);
        self.softirq_cpus.extend(&other.softirq_cpus);
        self.spin_hits += other.spin_hits;
        self.spin_packets += other.spin_packets;
        self.spin_empty += other.spin_empty;
        self.rearm += other.rearm;
        self.rearm_packets += other.rearm_packets;
        self.softirq += other.softirq;
        self.softirq_packets += other.softirq_packets;
        self.threaded += other.threaded;
        self.threaded_packets += other.threaded_packets;
        self.wakeups += other.wakeups;
    }
}

/// `sizeof(struct counts)` in words.
const WORDS: usize = 13;
static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/napi.bpf.o");

/// Counts from its creation on.
pub struct Counter {
    programs: Programs,
    /// The error if packets cannot be counted by socket.
    sockets: Result<()>,
}

/// Rows that a counter by queue holds; passes of further instances are not counted.
pub const MAX_QUEUES: usize = 2048;

impl Counter {
    /// Loads and attaches the programs.
    ///
    /// ```no_run
    /// let mut counter = busypoll_linux::bpf::napi::Counter::start()?;
    /// std::thread::sleep(std::time::Duration::from_secs(2));
    /// for row in counter.read()? {
    ///     println!("{:?} {:?}: {} hits, {} empty", row.napi, row.pid, row.spin_hits, row.spin_empty);
    /// }
    /// # Ok::<(), busypoll_linux::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`super::available`]; [`Error::Unsupported`] on a kernel without busy polling.
    pub fn start() -> Result<Self> {
        let mut programs = Self::load(true)?;
        // The program that reads the CPU's flags is attached last. Softirq exit comes before entry: an entry without
        // an exit would make all later busy polls of that CPU count as softirqs.
        for tracepoint in ["softirq_exit", "softirq_entry", "sched_waking", "napi_poll"] {
            programs.attach_tracepoint(tracepoint)?;
        }
        let sockets = programs.attach_to_all_sockets("delivered_to");
        Ok(Counter { programs, sockets })
    }

    /// As [`Counter::start`], but counts neither wake-ups nor packets by socket, and busy polls for each NAPI instance
    /// only: `pid`, `tid` and `wakeups` of the rows stay empty. For a count that goes on for days; needs `CAP_BPF` and
    /// `CAP_PERFMON`.
    ///
    /// # Errors
    /// As [`Counter::start`].
    pub fn start_by_queue() -> Result<Self> {
        let mut programs = Self::load(false)?;
        for tracepoint in ["softirq_exit", "softirq_entry", "napi_poll"] {
            programs.attach_tracepoint(tracepoint)?;
        }
        let sockets = Err(Error::Malformed {
            path: "napi.bpf.o".into(),
            why: "this counter does not count packets by socket".into(),
        });
        Ok(Counter { programs, sockets })
    }

    fn load(by_thread: bool) -> Result<Programs> {
        let mask = btf::in_busy_poll()?.to_ne_bytes();
        let by_thread = u64::from(by_thread).to_ne_bytes();
        Programs::load("napi", OBJECT, &[("in_busy_poll", &mask), ("by_thread", &by_thread)])
    }

    /// The packets handed to each socket so far, and how they were found.
    ///
    /// # Errors
    /// Without `CAP_NET_ADMIN`, on a kernel without `CONFIG_CGROUP_BPF` or before Linux 5.7, and if the cgroup2
    /// file system can be neither found nor mounted.
    pub fn deliveries(&mut self) -> Result<Deliveries> {
        match &self.sockets {
            Ok(()) => Deliveries::read(&mut self.programs),
            Err(e) => {
                Err(Error::os("counting packets socket by socket", io::Error::other(e.to_string())))
            }
        }
    }

    /// The counts so far, one row for each NAPI instance and spinning thread.
    pub fn read(&mut self) -> Result<Vec<Passes>> {
        let map: PerCpuHashMap<_, [u32; 3], [u64; WORDS]> = self.programs.map("passes")?;
        let mut rows = BTreeMap::new();
        for entry in map.iter() {
            let (key, values) = match entry {
                Ok(found) => found,
                // No entry is ever removed, but the kernel returns this for a map that grows meanwhile.
                Err(MapError::KeyNotFound) => continue,
                Err(e) => return Err(failed("napi", "reading passes", &e)),
            };
            // One value for each possible CPU, in the order of their numbers.
            for (cpu, counts) in (0u32..).zip(values.iter()) {
                let row = of_cpu(key, counts);
                let sum: &mut Passes = rows.entry(key).or_insert_with(|| Passes {
                    pid: row.pid,
                    tid: row.tid,
                    napi: row.napi,
                    ..Passes::default()
                });
                // Only the CPU that made the entry has the device.
                sum.device = sum.device.take().or(row.device.clone());
                let spins = row.spin_hits + row.spin_empty;
                if spins > 0 {
                    sum.cpus.push((cpu, spins));
                }
                if row.softirq > 0 {
                    sum.softirq_cpus.push((cpu, row.softirq));
                }
                sum.add(&row);
            }
        }
        Ok(rows.into_values().collect())
    }
}

fn of_cpu([napi, pid, tid]: [u32; 3], counts: &[u64; WORDS]) -> Passes {
    let [
        spin_hits,
        spin_packets,
        spin_empty,
        rearm,
        rearm_packets,
        softirq,
        softirq_packets,
        threaded,
        threaded_packets,
        wakeups,
        device,
        name @ ..,
    ] = *counts;
    let name: Vec<u8> = name.iter().flat_map(|w| w.to_ne_bytes()).collect();
    Passes {
        pid: (pid != 0).then_some(pid),
        tid: (tid != 0).then_some(tid),
        cpus: Vec::new(),
        softirq_cpus: Vec::new(),
        napi: NapiId::new(napi),
        device: (device != 0).then(|| Device {
            name: text(&name),
            ifindex: (device & 0xffff_ffff) as u32,
            netns: (device >> 32) as u32,
        }),
        spin_hits,
        spin_packets,
        spin_empty,
        rearm,
        rearm_packets,
        softirq,
        softirq_packets,
        threaded,
        threaded_packets,
        wakeups,
    }
}
