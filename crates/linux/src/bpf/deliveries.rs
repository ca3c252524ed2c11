//! Which socket each packet reached over a time, from which queue, and how it was found. Returned by
//! [`super::napi::Counter`]; program: `bpf/napi.bpf.c`.
//!
//! A packet is examined when it is handed to a socket: it still carries the id of its queue, and the
//! context is still the one that took it from there. TCP segments without data are not counted, UDP
//! datagrams all are; segments joined by GRO count as one.

use aya::maps::{HashMap, MapError};

use super::{Programs, failed};
use crate::error::Result;
use crate::sockopt::NapiId;
use crate::topology;

/// How packets were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Found {
    /// By a busy poll of this thread.
    BusyPoll {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// By a softirq: an interrupt's, a timer's or, behind RPS and without NAPI, the backlog's.
    Softirq,
    /// By the kernel thread of its NAPI instance.
    NapiThread,
    /// The packet passed no queue: a thread handed it up itself, such as a writer to a TUN device.
    Direct,
}

/// Packets of one socket that came from one queue and were found in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The socket, by its `SO_COOKIE`.
    pub cookie: u64,
    /// The NAPI id that the packets carry; `None`: the per-CPU backlog, or no queue.
    pub napi: Option<NapiId>,
    /// How they were found.
    pub found: Found,
    /// The CPU on which the socket received them.
    pub cpu: u32,
    /// How many.
    pub packets: u64,
    /// The network namespace of the socket.
    pub netns: u32,
    /// Its port: connections that have ended are recognised by their listener's.
    pub local_port: u16,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// One row for each socket, queue, CPU and way of finding.
    pub rows: Vec<Delivery>,
    /// Packets of further sockets, which did not fit.
    pub lost: u64,
}

const BY_THREAD: u32 = 1;
const BY_NAPI_THREAD: u32 = 2;

impl Deliveries {
    pub(super) fn read(programs: &mut Programs) -> Result<Self> {
        let cpus = topology::max_cpus();
        let lost = programs.lost()?;
        let map: HashMap<_, [u32; 8], [u32; 4]> = programs.map("deliveries")?;
        let mut rows = Vec::new();
        for entry in map.iter() {
            match entry {
                Ok((key, value)) => rows.push(row(key, value, cpus)),
                // No entry is ever removed, but the kernel returns this for a map that grows meanwhile.
                Err(MapError::KeyNotFound) => {}
                Err(e) => return Err(failed("napi", "reading deliveries", &e)),
            }
        }
        Ok(Deliveries { rows, lost })
    }
}

fn row(key: [u32; 8], value: [u32; 4], cpus: u32) -> Delivery {
    let wide = |halves: [u32; 2]| {
        let [a, b] = halves.map(u32::to_ne_bytes);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&a);
        bytes[4..].copy_from_slice(&b);
        u64::from_ne_bytes(bytes)
    };
    let [cookie_low, cookie_high, napi, cpu, how, pid, tid, _] = key;
    let [packets_low, packets_high, netns, port] = value;
    let napi = NapiId::new(napi).filter(|napi| napi.get() > cpus);
    Delivery {
        cookie: wide([cookie_low, cookie_high]),
        napi,
        found: match (how, napi) {
            (BY_THREAD, Some(_)) => Found::BusyPoll { pid, tid },
            (BY_THREAD, None) => Found::Direct,
            (BY_NAPI_THREAD, _) => Found::NapiThread,
            _ => Found::Softirq,
        },
        cpu,
        packets: wide([packets_low, packets_high]),
        netns,
        local_port: port as u16,
    }
}
