//! What the machine itself counted while an arm ran, and the rule that calls an arm invalid:
//! a busy-poll arm that did not busy poll measured something else.

use std::time::{Duration, Instant};

use busypoll_lab::Lab;
use busypoll_linux::stat::{self, ContextSwitches, CpuTimes};
use serde::{Deserialize, Serialize};

use crate::arm::{Arm, Mode, Plane, Protocol};
use crate::demand::Usage;
use crate::units::Size;
use crate::workload::{Load, Polling, Tally};

/// The counters at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    busy_poll_rx: u64,
    interrupts: u64,
    net_rx: u64,
    switches: ContextSwitches,
    cpu: CpuTimes,
    at: Instant,
}

/// The counters to read.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// The hosts whose `BusyPollRxPackets` count; without a lab, the thread's own.
    pub lab: Option<&'a Lab>,
    /// The CPUs whose interrupts count.
    pub cpus: [u32; 2],
    /// The threads whose switches count.
    pub threads: &'a [u32],
}

impl Watch<'_> {
    /// Reads the counters, the CPU times last, directly before the load; [`Watch::after`] reads them first.
    ///
    /// # Errors
    /// A message of one line if `/proc` cannot be read.
    pub fn before(&self) -> Result<Snapshot, String> {
        let mut snapshot = self.counters()?;
        snapshot.cpu = CpuTimes::now().map_err(text)?;
        snapshot.at = Instant::now();
        Ok(snapshot)
    }

    /// Reads the counters after the load.
    ///
    /// # Errors
    /// As [`Watch::before`].
    pub fn after(&self) -> Result<Snapshot, String> {
        let at = Instant::now();
        let cpu = CpuTimes::now().map_err(text)?;
        Ok(Snapshot { cpu, at, ..self.counters()? })
    }

    fn counters(&self) -> Result<Snapshot, String> {
        let busy_poll_rx = match self.lab {
            Some(lab) => busy_poll_rx_packets(lab)?,
            None => stat::busy_poll_rx_packets().map_err(text)?,
        };
        let mut cpus = self.cpus.to_vec();
        cpus.dedup();
        let softirqs = stat::softirqs().map_err(text)?;
        let interrupts = stat::interrupts().map_err(text)?;
        let net_rx = softirqs.row("NET_RX").map_or(0, |row| {
            let columns = softirqs.cpus.iter().zip(&row.counts);
            columns.filter(|(cpu, _)| cpus.contains(cpu)).map(|(_, n)| n).sum()
        });
        let mut switches = ContextSwitches::default();
        for thread in self.threads {
            let one = stat::context_switches_of(*thread).map_err(text)?;
            switches.voluntary += one.voluntary;
            switches.involuntary += one.involuntary;
        }
        Ok(Snapshot {
            busy_poll_rx,
            interrupts: cpus.iter().map(|cpu| interrupts.cpu_total(*cpu)).sum(),
            net_rx,
            switches,
            cpu: CpuTimes::default(),
            at: Instant::now(),
        })
    }
}

/// `BusyPollRxPackets` of both hosts.
pub(crate) fn busy_poll_rx_packets(lab: &Lab) -> Result<u64, String> {
    let mut sum = 0;
    for host in [&lab.client, &lab.server] {
        sum += host.enter(stat::busy_poll_rx_packets).map_err(text)?.map_err(text)?;
    }
    Ok(sum)
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Snapshot {
    /// What happened since `earlier`.
    pub fn since(&self, earlier: &Self, server_cpu: u32) -> Window {
        let elapsed = self.at - earlier.at;
        let cpu = self.cpu.since(&earlier.cpu);
        let server_idle = cpu.cpus.iter().find(|(id, _)| *id == server_cpu);
        let server_idle = server_idle.map_or(0, |(_, time)| time.idle_total_ns());
        Window {
            elapsed,
            cpu: Usage { used: cpu.used(elapsed), capacity: elapsed * cpu.cpus.len() as u32 },
            server_cpu: Usage {
                used: elapsed.saturating_sub(Duration::from_nanos(server_idle)),
                capacity: elapsed,
            },
            busy_poll_rx: self.busy_poll_rx.saturating_sub(earlier.busy_poll_rx),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            net_rx: self.net_rx.saturating_sub(earlier.net_rx),
            voluntary: self.switches.voluntary.saturating_sub(earlier.switches.voluntary),
            involuntary: self.switches.involuntary.saturating_sub(earlier.switches.involuntary),
        }
    }
}

/// Differences over one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Wall clock.
    pub elapsed: Duration,
    /// CPU time of the whole machine.
    pub cpu: Usage,
    /// CPU time on the server's CPU, by any program.
    pub server_cpu: Usage,
    /// `BusyPollRxPackets` of both hosts.
    pub busy_poll_rx: u64,
    /// Interrupts of all kinds on the CPUs used.
    pub interrupts: u64,
    /// `NET_RX` softirqs on the CPUs used.
    pub net_rx: u64,
    /// How often both threads went to sleep.
    pub voluntary: u64,
    /// How often both threads were preempted.
    pub involuntary: u64,
}

impl Window {
    /// Adds the counts of the server's machine over the same time.
    pub fn add_remote(&mut self, server: &Self) {
        self.cpu.add(server.cpu);
        self.server_cpu = server.server_cpu;
        self.busy_poll_rx += server.busy_poll_rx;
        self.interrupts += server.interrupts;
        self.net_rx += server.net_rx;
        self.voluntary += server.voluntary;
        self.involuntary += server.involuntary;
    }
}

/// The evidence of one arm, summed over its rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Packets that busy polling took from both hosts' devices.
    pub busy_poll_rx_packets: u64,
    /// Of the packets both ends received, the share found by busy polling.
    pub busy_polled_share: f64,
    /// Interrupts of all kinds (timer and inter-processor ones too) on the CPUs used.
    pub interrupts: u64,
    /// `NET_RX` softirqs on the CPUs used.
    pub net_rx_softirqs: u64,
    /// How often the client or the server went to sleep.
    pub voluntary_switches: u64,
    /// How often they were preempted.
    pub involuntary_switches: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// `SO_INCOMING_NAPI_ID` of the client's last socket; 0 if it had none.
    pub napi_id: u32,
    /// The stack's own counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackEvidence>,
}

/// What the stack's sockets counted, both ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackEvidence {
    /// Packets found by a socket's own busy poll.
    pub hits: u64,
    /// Passes over an empty queue.
    pub misses: u64,
    /// Refused attempts to become the queue's owner.
    pub yields: u64,
    /// Interrupts taken.
    pub interrupts: u64,
}

impl Evidence {
    /// Adds one round.
    pub fn add(&mut self, arm: &Arm, window: &Window, tally: Tally, polling: Polling) {
        self.busy_poll_rx_packets += window.busy_poll_rx;
        self.interrupts += window.interrupts;
        self.net_rx_softirqs += window.net_rx;
        self.voluntary_switches += window.voluntary;
        self.involuntary_switches += window.involuntary;
        self.lost += tally.lost;
        self.napi_id = polling.napi_id;
        if arm.plane == Plane::Stack {
            let sum = self.stack.get_or_insert_default();
            sum.hits += polling.hits;
            sum.misses += polling.misses;
            sum.yields += polling.yields;
            sum.interrupts += polling.interrupts;
        }
    }

    /// Turns the sums into shares, once all rounds are in.
    pub fn finish(&mut self, load: Load, transactions: u64, packets: Packets) {
        let polled = self.stack.map_or(self.busy_poll_rx_packets, |s| s.hits);
        // In the open loop only the server waits in the arm's mode.
        let each = match load {
            Load::Closed { .. } => packets.request + packets.response,
            Load::Open { .. } => packets.request,
        };
        let received = transactions * each;
        // TCP's acknowledgements are packets too, so the share is limited to 1.
        self.busy_polled_share = (polled as f64 / received.max(1) as f64).min(1.0);
    }

    /// A short form for the table.
    pub fn summary(&self, mode: Mode, transactions: u64) -> String {
        let mut words = Vec::new();
        if mode == Mode::BusyPoll || self.busy_polled_share > 0.01 {
            words.push(format!("busy-polled {:.0}%", self.busy_polled_share * 100.0));
        }
        let switches = self.voluntary_switches + self.involuntary_switches;
        words.push(format!("{} switches", per(switches, transactions)));
        words.push(format!("{} irqs", per(self.interrupts, transactions)));
        if self.lost > 0 {
            words.push(format!("{} lost", self.lost));
        }
        words.join(", ")
    }
}

/// The number of packets of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packets {
    pub request: u64,
    pub response: u64,
}

impl Packets {
    /// For messages of `size` in packets of up to `mtu` bytes (IPv4; TCP with timestamps).
    pub fn of(size: Size, protocol: Protocol, mtu: usize) -> Self {
        let of = |bytes: usize| {
            let (bytes, room) = match protocol {
                // Fragments: RFC 791 section 3.2, in units of 8 bytes.
                Protocol::Udp => (bytes + 8, mtu.saturating_sub(20) & !7),
                Protocol::Tcp => (bytes, mtu.saturating_sub(52)),
            };
            bytes.div_ceil(room.max(8)).max(1) as u64
        };
        Self { request: of(size.request), response: of(size.response) }
    }
}

fn per(count: u64, transactions: u64) -> String {
    let each = count as f64 / transactions.max(1) as f64;
    if each < 0.005 { "0".to_owned() } else { format!("{each:.2}") }
}

/// Half of the packets: below, most waits ended in sleep, and the figures describe sleeping.
const POLLED_ENOUGH: f64 = 0.5;
/// A baseline in which this share was busy polled is no baseline.
const POLLED_TOO_MUCH: f64 = 0.05;

/// Why an arm's figures do not describe what its name says; none if they do.
///
/// In the open loop a loss is a result, and a server that never waits cannot poll: only a server that slept is
/// invalid.
pub fn objection(arm: &Arm, load: Load, transactions: u64, evidence: &Evidence) -> Option<String> {
    if transactions == 0 {
        return Some("no transaction finished".to_owned());
    }
    let slept = evidence.voluntary_switches > transactions / 2;
    let open = matches!(load, Load::Open { .. });
    if open && !(arm.mode == Mode::BusyPoll && slept) {
        return None;
    }
    if !open && evidence.lost * 100 > transactions {
        return Some(format!(
            "{} of {} requests lost",
            evidence.lost,
            transactions + evidence.lost
        ));
    }
    let share = evidence.busy_polled_share;
    match arm.mode {
        Mode::BusyPoll if share < POLLED_ENOUGH => {
            let counter = match arm.plane {
                Plane::Kernel => "BusyPollRxPackets",
                Plane::Stack | Plane::Bare => "the stack's hits",
            };
            let cause = if evidence.napi_id == 0 && arm.plane == Plane::Stack {
                "its packets came through the kernel"
            } else if evidence.napi_id == 0 {
                "its socket has no napi id: the device runs without NAPI"
            } else if slept {
                "it slept instead: the wait is longer than SO_BUSY_POLL (--busy-poll raises it)"
            } else {
                "another poller or the softirq delivered its packets first"
            };
            Some(format!(
                "did not busy poll: {counter} show {:.0}% of packets; {cause}",
                share * 100.0
            ))
        }
        Mode::Blocking if share > POLLED_TOO_MUCH => Some(format!(
            "not asleep: {:.0}% of its packets were busy polled; is another program polling?",
            share * 100.0
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::ARMS;

    const CLOSED: Load = Load::Closed { gap: Duration::ZERO };

    fn arm(name: &str) -> Arm {
        *ARMS.iter().find(|a| a.name == name).expect("in the table")
    }

    const BYTE: Size = Size { request: 1, response: 1 };

    fn evidence(polled: u64, transactions: u64) -> Evidence {
        evidence_of(BYTE, polled, transactions)
    }

    fn evidence_of(size: Size, polled: u64, transactions: u64) -> Evidence {
        let mut e = Evidence { busy_poll_rx_packets: polled, napi_id: 9000, ..Evidence::default() };
        e.finish(CLOSED, transactions, Packets::of(size, Protocol::Udp, 1500));
        e
    }

    #[test]
    fn shares_count_packets_and_not_messages() {
        let busy = arm("kernel-udp-busy-poll");
        let large = Size { request: 60_000, response: 60_000 };
        assert!(objection(&busy, CLOSED, 1000, &evidence_of(large, 2000, 1000)).is_some());
        assert_eq!(objection(&busy, CLOSED, 1000, &evidence_of(large, 80_000, 1000)), None);
        let packets = |bytes, protocol| {
            Packets::of(Size { request: bytes, response: 1 }, protocol, 1500).request
        };
        assert_eq!([1472, 1473].map(|bytes| packets(bytes, Protocol::Udp)), [1, 2]);
        assert_eq!([1448, 1449].map(|bytes| packets(bytes, Protocol::Tcp)), [1, 2]);
    }

    #[test]
    fn a_busy_poll_arm_that_did_not_busy_poll_is_invalid() {
        let busy = arm("kernel-udp-busy-poll");
        assert_eq!(objection(&busy, CLOSED, 1000, &evidence(1990, 1000)), None);
        let reason = objection(&busy, CLOSED, 1000, &evidence(0, 1000)).expect("invalid");
        assert!(reason.contains("BusyPollRxPackets") && reason.contains("0%"), "{reason}");
        assert!(objection(&busy, CLOSED, 1000, &evidence(999, 1000)).is_some());
    }

    #[test]
    fn the_objection_names_the_cause() {
        let busy = arm("kernel-udp-busy-poll");
        let no_napi = Evidence { napi_id: 0, ..evidence(0, 1000) };
        assert!(objection(&busy, CLOSED, 1000, &no_napi).expect("invalid").contains("napi id"));
        let by_kernel = Evidence { stack: Some(StackEvidence::default()), ..no_napi };
        let reason = objection(&arm("stack-xdp-udp-busy-poll"), CLOSED, 1000, &by_kernel);
        assert!(reason.expect("invalid").contains("through the kernel"));
        let slept = Evidence { voluntary_switches: 1900, ..evidence(0, 1000) };
        assert!(objection(&busy, CLOSED, 1000, &slept).expect("invalid").contains("SO_BUSY_POLL"));
    }

    #[test]
    fn in_the_open_loop_only_a_server_that_slept_is_invalid() {
        let (busy, open) = (arm("kernel-udp-busy-poll"), Load::Open { rate: 1e5 });
        let overrun = Evidence { lost: 500, ..evidence(0, 1000) };
        assert_eq!(objection(&busy, open, 1000, &overrun), None);
        let slept = Evidence { voluntary_switches: 900, ..overrun };
        assert!(objection(&busy, open, 1000, &slept).expect("invalid").contains("slept"));
        assert_eq!(objection(&arm("kernel-udp-blocking"), open, 1000, &slept), None);
    }

    #[test]
    fn a_baseline_that_did_not_sleep_is_invalid() {
        let blocking = arm("kernel-udp-blocking");
        assert_eq!(objection(&blocking, CLOSED, 1000, &evidence(0, 1000)), None);
        assert!(objection(&blocking, CLOSED, 1000, &evidence(1900, 1000)).is_some());
    }

    #[test]
    fn losses_and_no_transactions_are_invalid() {
        let spin = arm("kernel-udp-spin");
        assert!(objection(&spin, CLOSED, 0, &evidence(0, 0)).is_some());
        let lossy = Evidence { lost: 20, ..evidence(0, 1000) };
        assert!(objection(&spin, CLOSED, 1000, &lossy).is_some());
        assert_eq!(objection(&spin, CLOSED, 1000, &evidence(0, 1000)), None);
    }

    #[test]
    fn a_share_above_all_packets_is_limited_to_1() {
        assert_eq!(evidence(5000, 1000).busy_polled_share, 1.0);
    }

    #[test]
    fn a_sleep_is_counted_as_a_voluntary_switch() {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let cpu = busypoll_linux::topology::allowed().expect("affinity").iter().next().unwrap_or(0);
        let watch = Watch { lab: None, cpus: [cpu, cpu], threads: &[me] };
        let before = watch.before().expect("/proc");
        std::thread::sleep(Duration::from_millis(30));
        let window = watch.after().expect("/proc").since(&before, cpu);
        assert!(window.voluntary >= 1 && window.elapsed >= Duration::from_millis(30), "{window:?}");
    }
}
