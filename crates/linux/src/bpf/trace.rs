//! The times of each packet's stages: from the interrupt or the poll that finds it to the return of the call that takes
//! it, and from the call that sends it to the driver. Programs: `bpf/trace.bpf.c`.
//!
//! While this value lives, each packet, system call, interrupt and switch of threads on the machine costs some hundred
//! nanoseconds more; [`Tracer::cost`] is what it really was.

mod record;

use std::os::fd::OwnedFd;

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::programs::ProgramInfo;
use aya::{include_bytes_aligned, sys};

pub use record::{Call, Ends, Found, Received, Record, Scheduled, Sent, Thread};

use super::{Programs, btf, failed};
use crate::error::Result;

static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/trace.bpf.o");

/// The tracepoints, in the order in which they are attached: what reads a CPU's state comes before what sets it.
const TRACEPOINTS: [&str; 24] = [
    "sched_process_exit",
    "sched_process_fork",
    "sys_exit",
    "sys_enter",
    "sched_switch",
    "sched_wakeup",
    "sched_waking",
    "irq_handler_exit",
    "irq_handler_entry",
    "softirq_exit",
    "softirq_entry",
    "softirq_raise",
    "napi_poll",
    "udp_fail_queue_rcv_skb",
    "sock_recv_length",
    "netif_receive_skb",
    "netif_receive_skb_list_entry",
    "netif_receive_skb_entry",
    "napi_gro_frags_entry",
    "napi_gro_receive_entry",
    "net_dev_xmit",
    "net_dev_start_xmit",
    "net_dev_queue",
    // Of the control group, not a tracepoint, but attached here: all times before it are known by then.
    REACHED,
];
const REACHED: &str = "reached";

/// A tracepoint that some kernels lack, the first version that has it, and what is not told apart without it.
const LACKED: [(&str, &str, &str); 1] =
    [("sock_recv_length", "6.3", "'return' is part of 'queue', and io_uring is not seen")];

/// The size of what is known of a thread (`struct thread`), and the place of its flag.
const THREAD: usize = 96;
const TOLD: usize = 88;

const SEND_CALLS: [i64; 8] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_pwritev2,
];

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Processes, added by [`Tracer::add`], with the children that they start.
    Processes,
    /// All packets of a device, in the network namespace with that inode.
    Device {
        /// Its index.
        ifindex: u32,
        /// The inode of `/proc/PID/ns/net`.
        netns: u32,
    },
}

/// What the tracer has met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were dropped because the ring was full.
    pub lost: u64,
    /// Packets that were not traced because eight of their socket were on their way.
    pub passed_by: u64,
    /// Packets that reached sockets.
    pub seen_in: u64,
    /// Packets that were sent.
    pub seen_out: u64,
    /// How many of `seen_out` were traced; the kernel loses sight of some.
    pub chosen_out: u64,
}

/// What the programs have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// How often one ran.
    pub runs: u64,
    /// For how long in all.
    pub ns: u64,
}

/// The programs in the kernel.
pub struct Tracer {
    programs: Programs,
    records: RingBuf<MapData>,
    lacks: Vec<String>,
    /// While it is open the kernel measures what programs cost.
    stats: Option<OwnedFd>,
}

impl Tracer {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// As [`super::available`]; without `CAP_NET_ADMIN`, and where no control group of version 2 can be had.
    pub fn start(target: Target) -> Result<Self> {
        let (device, netns) = match target {
            Target::Processes => (0, 0),
            Target::Device { ifindex, netns } => (ifindex, netns),
        };
        super::available()?;
        let mut lacking = Vec::new();
        for lacked in LACKED {
            if !btf::is_named(&format!("btf_trace_{}", lacked.0))? {
                lacking.push(lacked);
            }
        }
        let lacks = |tracepoint: &str| lacking.iter().any(|(name, ..)| *name == tracepoint);
        let sees_receives = u32::from(!lacks("sock_recv_length")).to_ne_bytes();
        let constants: [(&str, &[u8]); 3] = [
            ("only_device", &device.to_ne_bytes()),
            ("only_netns", &netns.to_ne_bytes()),
            ("sees_receives", &sees_receives),
        ];
        let mut programs = Programs::load("trace", OBJECT, &constants)?;
        let mut calls: HashMap<_, u32, u32> = programs.map("send_calls")?;
        for call in SEND_CALLS {
            calls
                .insert(call as u32, 1, 0)
                .map_err(|e| failed("trace", "filling send_calls", &e))?;
        }
        let records = programs.take_ring("records")?;
        for tracepoint in TRACEPOINTS.into_iter().filter(|name| !lacks(name)) {
            match tracepoint {
                REACHED => programs.attach_to_all_sockets(REACHED)?,
                _ => programs.attach_tracepoint(tracepoint)?,
            }
        }
        let lacks = lacking.iter().map(|(tracepoint, since, merged)| {
            format!("this kernel has no tracepoint {tracepoint} (Linux {since}): {merged}")
        });
        let lacks = lacks.collect();
        let stats = sys::enable_stats(sys::Stats::RunTime).ok();
        Ok(Tracer { programs, records, lacks, stats })
    }

    /// Traces this process, too, and the children that it starts from now on.
    ///
    /// # Errors
    /// [`crate::Error::Os`] with more than 16,384 of them.
    pub fn add(&mut self, pid: u32) -> Result<()> {
        self.programs.add_process(pid)
    }

    /// Does not trace this process any more; its children still are.
    ///
    /// # Errors
    /// If the map cannot be used.
    pub fn remove(&mut self, pid: u32) -> Result<()> {
        self.programs.remove_process(pid)
    }

    /// Records each time that this thread gets a CPU from now on, whether or not its process is traced.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn watch(&mut self, tid: u32) -> Result<()> {
        let mut threads: HashMap<_, u32, [u8; THREAD]> = self.programs.map("threads")?;
        let mut thread = threads.get(&tid, 0).unwrap_or([0; THREAD]);
        thread[TOLD] = 1;
        threads.insert(tid, thread, 0).map_err(|e| failed("trace", "watching a thread", &e))
    }

    /// Traces one of so many packets of each socket from now on.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn sample(&mut self, one_in: u64) -> Result<()> {
        let mut every: Array<_, u64> = self.programs.map("every")?;
        every.set(0, one_in, 0).map_err(|e| failed("trace", "setting the sampling", &e))
    }

    /// The next record, if there is one; does not wait.
    pub fn next_record(&mut self) -> Option<Record> {
        loop {
            // A record of a kind that is not known is skipped.
            if let Some(record) = record::read(&self.records.next()?) {
                return Some(record);
            }
        }
    }

    /// What it has met so far.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn counts(&mut self) -> Result<Counts> {
        let map: Array<_, u64> = self.programs.map("counts")?;
        let get = |n| map.get(&n, 0).map_err(|e| failed("trace", "reading counts", &e));
        Ok(Counts {
            lost: get(0)?,
            passed_by: get(1)?,
            seen_in: get(2)?,
            seen_out: get(3)?,
            chosen_out: get(4)?,
        })
    }

    /// What the programs have cost since the start; `None` where the kernel does not measure it.
    pub fn cost(&self) -> Option<Cost> {
        self.stats.as_ref()?;
        let mut cost = Cost::default();
        for (_, program) in self.programs.ebpf.programs() {
            let Ok(info) = program.info() else { continue };
            let info: ProgramInfo = info;
            cost.runs += info.run_count();
            cost.ns += u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX);
        }
        Some(cost)
    }

    /// What this kernel cannot show, a line each.
    pub fn lacks(&self) -> &[String] {
        &self.lacks
    }
}
