//! The tracer's records, as its programs write them (`bpf/trace_receive.h`, `bpf/trace_send.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::super::Record as Words;
use crate::sockopt::NapiId;

/// A record. Times are of the monotonic clock, in nanoseconds; 0 was not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A call has taken a packet.
    Received(Box<Received>),
    /// The call of this thread that took packets has returned.
    Returned {
        /// The thread.
        tid: u32,
        /// When.
        at: u64,
    },
    /// A driver has a packet.
    Sent(Box<Sent>),
    /// A thread that [`super::Tracer::watch`] names got a CPU.
    Scheduled(Box<Scheduled>),
}

/// How a thread got its CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// The thread.
    pub tid: u32,
    /// The CPU.
    pub cpu: u32,
    /// Since when it waited for a CPU.
    pub runnable: u64,
    /// It was on a CPU's run queue: of a thread that something else had displaced, at once.
    pub woken: u64,
    /// It got the CPU.
    pub switched: u64,
    /// The system call in which it was, or the last one. It took until now, if it has not ended before.
    pub call: Call,
    /// What ran longest on that CPU while it waited, or last before it; and for how long in ns.
    pub before: (Thread, u64),
}

impl Scheduled {
    /// Whether it slept before, and was woken.
    pub fn was_woken(&self) -> bool {
        self.runnable > 0 && self.runnable != self.woken
    }
}

/// How a packet was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// By a softirq.
    Softirq,
    /// In the context of this thread: a busy poll, if the packet has a NAPI id.
    Thread {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// By the kernel's thread of a NAPI instance.
    NapiThread {
        /// That thread.
        tid: u32,
    },
}

/// A process or thread, and its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its number; 0 is the idle loop.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// A system call that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// How long it took, in ns.
    pub took: u64,
    /// When it ended.
    pub end: u64,
}

/// The two ends of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// Whether it is TCP, or UDP.
    pub tcp: bool,
    /// The thread's own.
    pub local: SocketAddr,
    /// The peer's; `None` if it is not connected.
    pub peer: Option<SocketAddr>,
}

/// A packet that a call has taken from its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The process that took it.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its CPU.
    pub cpu: u32,
    /// A sender on this machine handed it to a veth or loopback device.
    pub sent: u64,
    /// The interrupt, the softirq's request, or the waking of the NAPI thread.
    pub signal: u64,
    /// The pass over the NAPI instance began.
    pub pass: u64,
    /// The driver handed it up.
    pub handed: u64,
    /// It reached its socket.
    pub reached: u64,
    /// The thread waited for a CPU, the last time: since when.
    pub runnable: u64,
    /// It was on a CPU's run queue.
    pub woken: u64,
    /// It got the CPU.
    pub switched: u64,
    /// The call took the packet.
    pub taken: u64,
    /// The thread's longest system call since its last packet.
    pub longest: Call,
    /// What ran longest on the thread's CPU while it waited for that, or last before it; and for how long in ns.
    pub before: (Thread, u64),
    /// The CPU on which it was found.
    pub found_cpu: u32,
    /// How.
    pub found: Found,
    /// What ran on that CPU meanwhile, or was interrupted.
    pub ran: Thread,
    /// The instance that it came by.
    pub napi: Option<NapiId>,
    /// The device's index.
    pub ifindex: u32,
    /// The interrupt's number, if one announced it.
    pub line: u32,
    /// Bytes, from the IP header on.
    pub len: u32,
    /// The socket.
    pub ends: Ends,
}

/// A packet that a driver has taken to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The thread that sent it; 0 where an acknowledgement or a timer did.
    pub thread: Thread,
    /// The thread's process.
    pub pid: u32,
    /// The CPU.
    pub cpu: u32,
    /// The system call began.
    pub enter: u64,
    /// The packet reached the device's queue.
    pub queue: u64,
    /// The driver was called.
    pub start: u64,
    /// The driver returned.
    pub done: u64,
    /// The CPU that called the driver.
    pub start_cpu: u32,
    /// The process that ran there.
    pub ran: Thread,
    /// The device's index.
    pub ifindex: u32,
    /// Bytes.
    pub len: u32,
    /// The socket.
    pub ends: Ends,
}

const RECEIVED: u32 = 1;
const RETURNED: u32 = 2;
const SENT: u32 = 3;
const SCHEDULED: u32 = 4;
const AF_INET: u16 = 2;
const TCP: u16 = 6;

/// `None` for an unknown kind.
pub(super) fn read(item: &[u8]) -> Option<Record> {
    let mut r = Words(item);
    match r.u32() {
        RECEIVED => Some(Record::Received(Box::new(received(&mut r)))),
        RETURNED => {
            let tid = r.u32();
            Some(Record::Returned { tid, at: r.u64() })
        }
        SENT => Some(Record::Sent(Box::new(sent(&mut r)))),
        SCHEDULED => Some(Record::Scheduled(Box::new(scheduled(&mut r)))),
        _ => None,
    }
}

fn scheduled(r: &mut Words<'_>) -> Scheduled {
    let [tid, cpu, before] = [r.u32(), r.u32(), r.u32()];
    let [runnable, woken, switched] = [r.u64(), r.u64(), r.u64()];
    let [before_ran, enter] = [r.u64(), r.u64()];
    let [number, _] = [r.u32(), r.u32()];
    let took = if enter == 0 { 0 } else { switched.saturating_sub(enter) };
    Scheduled {
        tid,
        cpu,
        runnable,
        woken,
        switched,
        call: Call { number, took, end: switched },
        before: (Thread { id: before, name: r.string::<16>() }, before_ran),
    }
}

fn received(r: &mut Words<'_>) -> Received {
    let [pid, tid, cpu] = [r.u32(), r.u32(), r.u32()];
    let [sent, signal, pass, handed, reached] = [r.u64(), r.u64(), r.u64(), r.u64(), r.u64()];
    let [runnable, woken, switched, taken] = [r.u64(), r.u64(), r.u64(), r.u64()];
    let [took, end, before_ran] = [r.u64(), r.u64(), r.u64()];
    let [found_cpu, how, found_pid, found_tid] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [napi, ifindex, line, len] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [longest_call, before, ran, _] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [before_name, ran_name, name] = [r.string::<16>(), r.string::<16>(), r.string::<16>()];
    Received {
        pid,
        tid,
        name,
        cpu,
        sent,
        signal,
        pass,
        handed,
        reached,
        runnable,
        woken,
        switched,
        taken,
        longest: Call { number: longest_call, took, end },
        before: (Thread { id: before, name: before_name }, before_ran),
        found_cpu,
        found: match how {
            1 => Found::Thread { pid: found_pid, tid: found_tid },
            2 => Found::NapiThread { tid: found_tid },
            _ => Found::Softirq,
        },
        ran: Thread { id: ran, name: ran_name },
        napi: NapiId::new(napi),
        ifindex,
        line,
        len,
        ends: ends(r),
    }
}

fn sent(r: &mut Words<'_>) -> Sent {
    let [pid, tid, cpu] = [r.u32(), r.u32(), r.u32()];
    let [enter, queue, start, done] = [r.u64(), r.u64(), r.u64(), r.u64()];
    let [start_cpu, ifindex, len, ran] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [name, ran_name] = [r.string::<16>(), r.string::<16>()];
    Sent {
        thread: Thread { id: tid, name },
        pid,
        cpu,
        enter,
        queue,
        start,
        done,
        start_cpu,
        ran: Thread { id: ran, name: ran_name },
        ifindex,
        len,
        ends: ends(r),
    }
}

fn ends(r: &mut Words<'_>) -> Ends {
    let mut word = || u16::from_ne_bytes(r.bytes());
    let [family, protocol, local_port, peer_port] = [word(), word(), word(), word()];
    let peer_port = u16::from_be(peer_port);
    let mut address = || -> IpAddr {
        let all: [u8; 16] = r.bytes();
        match family {
            AF_INET => Ipv4Addr::new(all[0], all[1], all[2], all[3]).into(),
            // A socket of both families may have an address of the older one.
            _ => Ipv6Addr::from(all).to_canonical(),
        }
    };
    let (local, peer) = (address(), address());
    Ends {
        tcp: protocol == TCP,
        local: (local, local_port).into(),
        peer: (peer_port != 0).then(|| (peer, peer_port).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of these words, then addresses of the newer family.
    #[test]
    fn records_are_read_as_they_are_written_and_short_ones_are_no_fault() {
        let mut bytes = Vec::new();
        for word in [RETURNED, 7] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(99u64.to_ne_bytes());
        assert_eq!(read(&bytes), Some(Record::Returned { tid: 7, at: 99 }));
        assert_eq!(read(&9u32.to_ne_bytes()), None);

        let mut bytes: Vec<u8> =
            [SCHEDULED, 7, 1, 5].iter().flat_map(|n| n.to_ne_bytes()).collect();
        bytes.extend([10u64, 12, 20, 90, 4].iter().flat_map(|n| n.to_ne_bytes()));
        bytes.extend([230u32, 0].iter().flat_map(|n| n.to_ne_bytes()));
        bytes.extend(*b"hog\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let Some(Record::Scheduled(scheduled)) = read(&bytes) else { panic!("another kind") };
        let expected = Scheduled {
            tid: 7,
            cpu: 1,
            runnable: 10,
            woken: 12,
            switched: 20,
            call: Call { number: 230, took: 16, end: 20 },
            before: (Thread { id: 5, name: "hog".into() }, 90),
        };
        assert_eq!(*scheduled, expected);
        assert!(scheduled.was_woken());
        assert_eq!(read(&[]), None);

        let mut bytes = Vec::new();
        for word in [SENT, 1, 2, 3] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [10u64, 20, 30, 40] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [4u32, 5, 6, 7] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(*b"sender\0\0\0\0\0\0\0\0\0\0ksoftirqd/1\0\0\0\0\0");
        for word in [10u16, 6, 7000, 80u16.to_be()] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
        bytes.extend("fd00::2".parse::<Ipv6Addr>().expect("an address").octets());
        bytes.extend(0u64.to_ne_bytes());
        let Some(Record::Sent(sent)) = read(&bytes) else { panic!("another kind") };
        assert_eq!((sent.pid, sent.thread.id, sent.cpu, sent.len), (1, 2, 3, 6));
        assert_eq!([sent.enter, sent.queue, sent.start, sent.done], [10, 20, 30, 40]);
        assert_eq!((sent.thread.name.as_str(), sent.ran.name.as_str()), ("sender", "ksoftirqd/1"));
        let ends = Ends {
            tcp: true,
            local: "10.0.0.1:7000".parse().expect("an address"),
            peer: Some("[fd00::2]:80".parse().expect("an address")),
        };
        assert_eq!(sent.ends, ends);
        for short in 0..bytes.len() {
            // What is missing is 0.
            let _ = read(&bytes[..short]);
        }
    }
}
