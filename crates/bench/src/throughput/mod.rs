//! netperf's TCP_STREAM and TCP_CRR: the throughput of a connection, and the rate of connections.
//! One CPU per side; arms in interleaved rounds as for round trips.
//!
//! [`LINES`] is the table of what can be measured; `pump` has the loops, the other files have the ends.

mod bare;
mod kernel;
mod loss;
mod pump;
mod relay;
mod report;
mod smoltcp;
mod stack;

use std::collections::{BTreeMap, btree_map::Entry};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, Namespace};
use busypoll_linux::stat::CpuTimes;
use busypoll_stack::{Host, napi::Context};

use crate::arm::{self, Arm, Mode, Nic, Placement, Plane, Protocol};
use crate::clock::Clock;
use crate::demand::{self, Usage};
use crate::evidence;
use crate::interrupt;
use crate::run::{Cpus, Skipped, no_xdp, progress, stopped_after};
use crate::schedule::{self, Budget};
use crate::siblings::{self, OneCore, Rounds};
use crate::slot::{Announce, inside};
use crate::stats::Rtts;

pub use loss::Losses;
pub use report::{Report, build};

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
}

impl Workload {
    /// The word used in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Stream => "stream",
            Self::Crr => "crr",
            Self::Loss => "loss",
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
    let arm = Arm { name, plane, nic, protocol, mode, placement, about };
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
        "kernel TCP, one packet per 1500 bytes",
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
/// One line with the nearest known name.
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

/// The most connections of one round, as each leaves a TIME_WAIT socket.
const CONNECTIONS: u64 = 10_000;

/// The measurement starts after this time even if the first byte has not come.
const FIRST_BYTE: Duration = Duration::from_secs(2);

/// The environment and the duration of one run of a line.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    line: &'a Line,
    lab: Option<&'a Lab>,
    client_cpu: u32,
    server_cpu: u32,
    busy_poll: Duration,
    warm_up: Duration,
    measure: Duration,
}

impl Place<'_> {
    /// `SO_BUSY_POLL` in microseconds; 0: the end sleeps.
    fn busy_poll_micros(&self) -> u32 {
        match self.line.arm.mode {
            BusyPoll => self.busy_poll.as_micros().try_into().unwrap_or(i32::MAX as u32),
            Blocking | Spin | Interrupt => 0,
        }
    }
}

/// The result of one run.
#[derive(Debug, Clone)]
pub(crate) struct RunResult {
    /// Bytes, or connections.
    count: u64,
    elapsed: Duration,
    usage: Usage,
    /// Packets that busy polling took from the devices of both ends.
    busy_polled: u64,
    /// The duration of each connection, in nanoseconds.
    times: Option<Rtts>,
}

/// State shared by the ends of a run and its observer.
#[derive(Default)]
pub(crate) struct Gauge {
    count: AtomicU64,
    stop: AtomicBool,
    /// The contexts of the stack's ends.
    contexts: Mutex<Vec<Arc<Context>>>,
}

impl Gauge {
    /// Counts bytes or connections.
    fn add(&self, count: u64) {
        // One writer: the end that receives.
        self.count.store(self.count.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Includes the busy polling of `host` in the counts.
    fn watch(&self, host: &Host) {
        self.contexts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(host.contexts().cloned());
    }

    /// Packets that busy polling has found so far: the kernel's at the ends of `lab`, or the stack's.
    fn busy_polled(&self, lab: Option<&Lab>) -> Result<u64, String> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let stack = contexts.iter().map(|context| context.stats().bp_cleaned).sum();
        let kernel = lab.map_or(Ok(0), evidence::busy_poll_rx_packets)?;
        Ok(if contexts.is_empty() { kernel } else { stack })
    }
}

/// One connection between the hosts of the lab, if there is one.
fn stream(
    place: &Place<'_>,
    receive: impl FnOnce(&Announce, &Gauge) -> Result<(), String> + Send,
    send: impl FnOnce(SocketAddr, &Gauge) -> Result<(), String> + Send,
) -> Result<RunResult, String> {
    let hosts = (place.lab.map(|lab| &*lab.client), place.lab.map(|lab| &*lab.server));
    stream_between(place, hosts, receive, send)
}

/// Runs the two ends on their CPUs and in their hosts while this thread reads the gauge.
fn stream_between(
    place: &Place<'_>,
    (client, server): (Option<&Namespace>, Option<&Namespace>),
    receive: impl FnOnce(&Announce, &Gauge) -> Result<(), String> + Send,
    send: impl FnOnce(SocketAddr, &Gauge) -> Result<(), String> + Send,
) -> Result<RunResult, String> {
    let gauge = Gauge::default();
    let (announce, address) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let gauge = &gauge;
        let receiver = scope.spawn(move || {
            inside(server, place.server_cpu, || receive(&Announce::new(announce), gauge))
        });
        let sender = scope.spawn(move || {
            inside(client, place.client_cpu, move || {
                // A closed channel means that the receiver failed; its result has the reason.
                address.recv().map_err(|_| String::new()).and_then(|to| send(to, gauge))
            })
        });
        let result = observe(place, gauge, || receiver.is_finished() || sender.is_finished());
        gauge.stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap_or_else(|_| Err("the sender panicked".to_owned()));
        let received = receiver.join().unwrap_or_else(|_| Err("the receiver panicked".to_owned()));
        received?;
        sent?;
        result
    })
}

/// One connection after another between the hosts of the lab. `serve` announces its listener and answers,
/// `dial` connects to it and measures.
fn connections(
    place: &Place<'_>,
    serve: impl FnOnce(&Announce, &Gauge) -> Result<(), String> + Send,
    dial: impl FnOnce(SocketAddr, &Gauge) -> Result<RunResult, String> + Send,
) -> Result<RunResult, String> {
    let lab = place.lab.ok_or("needs the lab")?;
    let gauge = Gauge::default();
    let (announce, address) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let gauge = &gauge;
        let server = scope.spawn(move || {
            inside(Some(&*lab.server), place.server_cpu, || serve(&Announce::new(announce), gauge))
        });
        let client = inside(Some(&*lab.client), place.client_cpu, move || {
            // A closed channel means that the server failed; its result has the reason.
            address.recv().map_err(|_| String::new()).and_then(|to| dial(to, gauge))
        });
        // Also if the client failed before it connected.
        gauge.stop.store(true, Ordering::Relaxed);
        let server = server.join().unwrap_or_else(|_| Err("the server panicked".to_owned()));
        server.and(client)
    })
}

/// Reads the gauge at the start and at the end of the measurement.
fn observe(
    place: &Place<'_>,
    gauge: &Gauge,
    ended: impl Fn() -> bool,
) -> Result<RunResult, String> {
    let read = || {
        let cpu = CpuTimes::now().map_err(|e| e.to_string())?;
        let now = (Instant::now(), gauge.count.load(Ordering::Relaxed));
        Ok::<_, String>((now, cpu, gauge.busy_polled(place.lab)?))
    };
    let begin = Instant::now();
    while gauge.count.load(Ordering::Relaxed) == 0 && begin.elapsed() < FIRST_BYTE {
        if ended() {
            return Err("it ended before it had begun".to_owned());
        }
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(place.warm_up);
    let ((start, first), before, polled_before) = read()?;
    thread::sleep(place.measure);
    let ((end, last), after, polled) = read()?;
    let elapsed = end - start;
    let times = after.since(&before);
    let usage = Usage { used: times.used(elapsed), capacity: elapsed * times.cpus.len() as u32 };
    match last - first {
        0 => Err("nothing came through".to_owned()),
        count => {
            let busy_polled = polled.saturating_sub(polled_before);
            Ok(RunResult { count, elapsed, usage, busy_polled, times: None })
        }
    }
}

/// The rounds of a line; none for a failed round.
pub(crate) struct LineRun {
    pub(crate) line: Line,
    pub(crate) results: Vec<Option<RunResult>>,
}

/// The result of a measurement.
#[derive(Default)]
pub struct Outcome {
    pub(crate) lines: Vec<LineRun>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) idle: Usage,
    pub(crate) one_core: OneCore,
    pub(crate) stopped_after: Option<usize>,
}

/// Measures `lines` in interleaved rounds.
///
/// # Errors
/// One line if the duration is too short, or the machine's counters cannot be read.
pub fn measure(
    lines: &[Line],
    cpus: Cpus,
    (busy_poll, losses): (Duration, Losses),
    (duration, rounds): (Duration, usize),
) -> Result<Outcome, String> {
    if lines.iter().any(|line| line.workload == Loss) {
        return loss::measure(lines, cpus, losses, (duration, rounds));
    }
    let mut skipped: BTreeMap<usize, String> = BTreeMap::new();
    let mut results: Vec<Rounds<RunResult>> = lines.iter().map(|_| vec![None; rounds]).collect();
    let clock = Clock::default();
    let mut idle = Usage::default();
    let budget = Budget::divide(duration, lines.len(), rounds)?;
    let word = lines.first().map_or("", |line| line.workload.word());
    let progress = progress(lines.len() * rounds, word);
    let mut finished = 0;
    'rounds: for (round, order) in schedule::rounds(lines.len(), rounds).into_iter().enumerate() {
        idle.add(demand::idle(budget.idle)?);
        for i in order {
            if interrupt::is_asked() {
                break 'rounds;
            }
            let line = &lines[i];
            progress.set_message(line.arm.name);
            // As with round trips, a line that failed once is left out.
            if let Entry::Vacant(free) = skipped.entry(i) {
                let once = || once(line, cpus, busy_poll, &budget);
                match siblings::watch(&clock, cpus, line.arm.placement, once) {
                    Ok(result) => results[i][round] = Some(result),
                    Err(reason) => drop(free.insert(reason)),
                }
            }
            progress.inc(1);
        }
        finished = round + 1;
        interrupt::round_is_finished(budget.warm_up + budget.measure);
    }
    progress.finish_and_clear();
    let stopped_after = stopped_after(finished, rounds)?;
    results.iter_mut().for_each(|rounds| rounds.truncate(finished));
    let measured = results.iter().enumerate().filter(|(i, _)| !skipped.contains_key(i));
    let looks: Vec<_> = measured.map(|(_, rounds)| siblings::shared(rounds)).collect();
    let one_core = OneCore::judge(&looks);
    let mut outcome = Outcome { idle, one_core, stopped_after, ..Outcome::default() };
    for (i, results) in results.into_iter().enumerate() {
        let line = lines[i];
        match skipped.remove(&i) {
            Some(reason) => outcome.skipped.push(Skipped { name: line.arm.name, reason }),
            None => outcome.lines.push(LineRun { line, results: one_core.keep(results) }),
        }
    }
    Ok(outcome)
}

/// Runs a line once, on a lab of its own, so that the connections of one round do not affect the next.
fn once(
    line: &Line,
    cpus: Cpus,
    busy_poll: Duration,
    budget: &Budget,
) -> Result<RunResult, String> {
    if let (Xdp, Some(why)) = (line.arm.nic, no_xdp()) {
        return Err(why.to_owned());
    }
    let server = cpus.server.ok_or("needs two CPUs: widen its affinity (taskset, cpuset)")?;
    let server_cpu = if line.arm.placement == SameCpu { cpus.client } else { server };
    let needs_lab = line.arm.nic != Cable;
    let lab = needs_lab
        .then(|| {
            let gro = line.offloads || line.workload == Crr || line.arm.nic == Xdp;
            let lab = Lab::builder().cpus(cpus.client, server).gro(gro).tso(line.offloads);
            lab.build().map_err(|e| e.to_string())
        })
        .transpose()?;
    let place = Place {
        line,
        lab: lab.as_ref(),
        client_cpu: cpus.client,
        server_cpu,
        busy_poll,
        warm_up: budget.warm_up,
        measure: budget.measure,
    };
    match (line.arm.plane, line.workload) {
        _ if line.smoltcp => smoltcp::stream(&place),
        (Kernel, Crr) => kernel::crr(&place),
        (Kernel, _) => kernel::stream(&place),
        (Bare, _) => bare::stream(&place),
        (Stack, Crr) => stack::crr(&place),
        (Stack, _) => stack::stream(&place),
    }
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
