//! The table of what can be measured, by workload.

use crate::arm::{self, Arm, Between, Mode, Nic, Placement, Plane, Protocol};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Workload {
    /// Request and response on a standing socket: latency
    #[default]
    Rr,
    /// One TCP connection, flat out: throughput
    Stream,
    /// Connect, one request, one response, close: connections per second
    Crr,
    /// One TCP connection over a long path with losses: throughput
    Loss,
    /// Orders and reports of a FIX session: latency one way and both ways
    Fix,
}

impl Workload {
    /// The word used in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Stream => "stream",
            Self::Crr => "crr",
            Self::Loss => "loss",
            Self::Fix => "fix",
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// The arm.
    pub arm: Arm,
    /// The load.
    pub workload: Workload,
    /// Whether the interface splits and merges segments for the kernel (TSO, GSO, GRO).
    pub offloads: bool,
    /// Whether it is smoltcp, for comparison.
    pub smoltcp: bool,
}

const fn line(
    name: &'static str,
    workload: Workload,
    (plane, nic, mode, placement): (Plane, Nic, Mode, Placement),
    about: &'static str,
) -> Line {
    let protocol = Protocol::Tcp;
    let arm = Arm { name, between: Between::Hosts, plane, nic, protocol, mode, placement, about };
    Line { arm, workload, offloads: false, smoltcp: false }
}

use {
    Mode::{Blocking, BusyPoll, Interrupt, Spin},
    Nic::{Cable, Veth, Xdp},
    Placement::{SameCpu, SeparateCpus},
    Plane::{Bare, Kernel, Stack},
    Workload::{Crr, Loss, Stream},
};

/// Everything that can be measured. There are no streams with both ends on one CPU: they would measure the scheduler.
pub const LINES: &[Line] = &[
    Line {
        offloads: true,
        ..line(
            "kernel-tcp-stream",
            Stream,
            (Kernel, Veth, Blocking, SeparateCpus),
            "kernel TCP, TSO, GSO and GRO on: segments of 64 KiB cross the veth unsplit",
        )
    },
    line(
        "kernel-tcp-stream-no-offload",
        Stream,
        (Kernel, Veth, Blocking, SeparateCpus),
        "kernel TCP, one packet for each segment",
    ),
    line(
        "bare-xdp-stream",
        Stream,
        (Bare, Xdp, Spin, SeparateCpus),
        "AF_XDP rings alone, full frames in one direction: the limit on this NIC",
    ),
    line(
        "stack-xdp-tcp-stream",
        Stream,
        (Stack, Xdp, BusyPoll, SeparateCpus),
        "our TCP over AF_XDP, busy polling",
    ),
    line(
        "stack-cable-tcp-stream",
        Stream,
        (Stack, Cable, BusyPoll, SeparateCpus),
        "our TCP over the cable, busy polling",
    ),
    Line {
        smoltcp: true,
        ..line(
            "smoltcp-cable-tcp-stream",
            Stream,
            (Bare, Cable, Spin, SeparateCpus),
            "smoltcp over the same cable, polled in a loop",
        )
    },
    line(
        "kernel-tcp-crr",
        Crr,
        (Kernel, Veth, Blocking, SeparateCpus),
        "kernel TCP asleep, one CPU each",
    ),
    line(
        "kernel-tcp-crr-same-cpu",
        Crr,
        (Kernel, Veth, Blocking, SameCpu),
        "kernel TCP asleep, both on one CPU",
    ),
    line(
        "kernel-tcp-crr-busy-poll",
        Crr,
        (Kernel, Veth, BusyPoll, SeparateCpus),
        "kernel TCP with SO_BUSY_POLL",
    ),
    line(
        "stack-xdp-tcp-crr-interrupt",
        Crr,
        (Stack, Xdp, Interrupt, SeparateCpus),
        "our TCP over AF_XDP, interrupt-driven, one CPU each",
    ),
    line(
        "stack-xdp-tcp-crr",
        Crr,
        (Stack, Xdp, BusyPoll, SeparateCpus),
        "our TCP over AF_XDP, busy polling",
    ),
    line(
        "kernel-tcp-loss",
        Loss,
        (Kernel, Nic::Tap, Blocking, SeparateCpus),
        "kernel TCP at both ends, CUBIC",
    ),
    line(
        "stack-tcp-loss",
        Loss,
        (Stack, Cable, Interrupt, SeparateCpus),
        "our TCP sends to the kernel's, CUBIC",
    ),
];

/// Selects lines of a workload by names and globs; all without patterns.
///
/// # Errors
/// A message of one line with the nearest known name.
pub fn select(workload: Workload, patterns: Option<&str>) -> Result<Vec<Line>, String> {
    let lines: Vec<Line> = LINES.iter().filter(|l| l.workload == workload).copied().collect();
    let Some(patterns) = patterns else { return Ok(lines) };
    let arms: Vec<Arm> = lines.iter().map(|line| line.arm).collect();
    let picked = arm::select(patterns, &arms)?;
    Ok(lines.into_iter().filter(|line| picked.contains(&line.arm)).collect())
}

/// The lines as text, one each, for `--list`.
pub fn list() -> String {
    let width = LINES.iter().map(|line| line.arm.name.len()).max().unwrap_or(0);
    LINES.iter().map(|line| format!("  {:width$}  {}\n", line.arm.name, line.arm.about)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_the_workload() {
        for (i, line) in LINES.iter().enumerate() {
            let name = line.arm.name;
            assert!(name.contains(line.workload.word()), "{name}");
            assert!(LINES[..i].iter().all(|other| other.arm.name != name), "{name}");
        }
    }

    #[test]
    fn lines_are_chosen_among_their_workload() {
        assert!(select(Workload::Crr, None).is_ok_and(|lines| lines.len() == 5));
        assert!(select(Workload::Crr, Some("*-stream")).is_err());
        let kernel = select(Workload::Stream, Some("kernel-*")).unwrap_or_default();
        assert_eq!(kernel.len(), 2);
    }
}
