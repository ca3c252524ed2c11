//! `--stages`: where a receive in the stack spends its time. Time stamps are taken at interfaces that the stack
//! has anyway: the NIC's doorbell, the pass over the ring, the frame handed up (a stamped NIC wraps the
//! real one), the host's delivery hook, recv's return.

use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use busypoll_policy::fit::Width;
use busypoll_stack::nic::{Frame, Info, Nic, Queue, RingFull, RxQueue, Steering, TxQueue};
use serde::Serialize;

use crate::arm::{Arm, Mode, Plane, Protocol};
use crate::clock::Clock;
use crate::json::SkippedReport;
use crate::run::{Bench, Settings};
use crate::stack;
use crate::stats::{self, Rtts};
use crate::table::{self, us_text};

/// The last packet's time stamps, in ticks. One transaction is in flight at a time, so one set is enough.
#[derive(Debug, Default)]
pub struct Stamps {
    /// The sender rings its doorbell.
    doorbell: AtomicU64,
    /// The pass that finds the frame begins.
    pass: AtomicU64,
    /// The frame is handed up.
    frame: AtomicU64,
    /// `inet` hands the datagram to its socket.
    socket: AtomicU64,
    /// The delivery hook has returned: the datagram is in the socket's queue.
    queued: AtomicU64,
}

/// The stages of a receive, in order.
pub const STAGES: [&str; 6] = ["ring", "wake-up", "napi", "inet", "socket", "return"];

/// How long each stage took, by packet.
#[derive(Debug, Clone)]
pub struct Times {
    stages: [Rtts; STAGES.len()],
    total: Rtts,
}

impl Default for Times {
    fn default() -> Self {
        Self { stages: std::array::from_fn(|_| stats::histogram()), total: stats::histogram() }
    }
}

/// Records the stages of every packet for which recv has returned.
#[derive(Debug, Clone)]
pub struct Recorder {
    /// Shared with the NICs.
    pub stamps: Arc<Stamps>,
    /// Shared with the code that reports.
    pub times: Arc<Mutex<Times>>,
    /// Whether the receiver sleeps: then the time until the pass begins is its wake-up.
    pub sleeps: bool,
}

impl Recorder {
    fn new(sleeps: bool) -> Self {
        Self { stamps: Arc::default(), times: Arc::default(), sleeps }
    }

    /// The hook to call when `inet` hands a datagram to its socket.
    pub fn at_the_socket(&self, clock: &Clock) -> impl Fn() + Send + Sync + 'static {
        let (stamps, clock) = (self.stamps.clone(), clock.clone());
        move || stamps.socket.store(clock.now(), Ordering::Relaxed)
    }

    /// Must be called as soon as recv has returned.
    pub fn returned(&self, clock: &Clock) {
        let now = clock.now();
        let at = |stamp: &AtomicU64| stamp.load(Ordering::Relaxed);
        let s = &self.stamps;
        let (doorbell, frame) = (at(&s.doorbell), at(&s.frame));
        let (socket, queued) = (at(&s.socket), at(&s.queued));
        // For a pass that had begun before the doorbell, only the time after the doorbell counts.
        let pass = at(&s.pass).max(doorbell);
        let waited = (doorbell, pass);
        let nothing = (0, 0);
        let spans = [
            if self.sleeps { nothing } else { waited },
            if self.sleeps { waited } else { nothing },
            (pass, frame),
            (frame, socket),
            (socket, queued),
            (queued, now),
        ];
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        for (stage, (from, to)) in times.stages.iter_mut().zip(spans) {
            stage.saturating_record(clock.nanos(from, to));
        }
        times.total.saturating_record(clock.nanos(doorbell, now));
    }
}

/// A NIC whose packets are time stamped.
pub struct Stamped<N> {
    nic: N,
    clock: Clock,
    stamps: Arc<Stamps>,
    end: End,
}

/// Which end of the link this NIC is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its doorbell is stamped.
    Sender,
    /// Its passes are stamped.
    Receiver,
}

impl<N> Stamped<N> {
    /// Wraps a NIC.
    pub fn new(nic: N, clock: &Clock, stamps: &Arc<Stamps>, end: End) -> Self {
        Self { nic, clock: clock.clone(), stamps: stamps.clone(), end }
    }
}

impl<N: Nic> Nic for Stamped<N> {
    fn info(&self) -> &Info {
        self.nic.info()
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let queue = self.nic.open(index)?;
        let (clock, stamps) = (self.clock.clone(), self.stamps.clone());
        Ok(match self.end {
            End::Sender => Queue { tx: Box::new(Sender { tx: queue.tx, clock, stamps }), ..queue },
            End::Receiver => {
                Queue { rx: Box::new(Receiver { rx: queue.rx, clock, stamps }), ..queue }
            }
        })
    }

    fn steering(&self) -> Option<Arc<dyn Steering>> {
        self.nic.steering()
    }
}

struct Sender {
    tx: Box<dyn TxQueue>,
    clock: Clock,
    stamps: Arc<Stamps>,
}

impl TxQueue for Sender {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        // Some rings show a frame to the peer as soon as it is pushed, so the stamp comes first.
        self.stamps.doorbell.store(self.clock.now(), Ordering::Relaxed);
        self.tx.push(len, partial, fill)
    }

    fn flush(&mut self) {
        self.tx.flush();
    }
}

struct Receiver {
    rx: Box<dyn RxQueue>,
    clock: Clock,
    stamps: Arc<Stamps>,
}

impl RxQueue for Receiver {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let pass = self.clock.now();
        let (clock, stamps) = (&self.clock, &self.stamps);
        self.rx.poll(budget, &mut |frame| {
            stamps.frame.store(clock.now(), Ordering::Relaxed);
            stamps.pass.store(pass, Ordering::Relaxed);
            sink(frame);
            stamps.queued.store(clock.now(), Ordering::Relaxed);
        })
    }
}

/// The stages of receives, by arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StagesReport {
    /// The sentence above the table.
    pub answer: String,
    /// The cost of one time stamp; each stage except the first includes about one.
    pub clock_overhead_ns: f64,
    /// By arm.
    pub arms: Vec<ArmStages>,
    /// Arms that could not be measured.
    pub skipped: Vec<SkippedReport>,
}

/// One arm's stages; medians in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmStages {
    /// The arm.
    pub arm: String,
    /// How it waits.
    pub mode: Mode,
    /// The stages, as in [`STAGES`].
    pub stages_us: Vec<Stage>,
    /// From the doorbell to recv's return.
    pub total_us: f64,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stage {
    /// Its name.
    pub stage: &'static str,
    /// Median, microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
}

/// Whether an arm has stages: a datagram is one packet, a TCP message may be several.
pub fn is_staged(arm: &Arm) -> bool {
    arm.plane == Plane::Stack && arm.protocol == Protocol::Udp
}

/// Measures the stages of the stack's arms.
///
/// # Errors
/// One line if no arm is the stack's or the duration is too short.
pub fn run(bench: &Bench, arms: &[Arm], settings: &Settings) -> Result<StagesReport, String> {
    let (stack, others): (Vec<Arm>, Vec<Arm>) = arms.iter().partition(|a| is_staged(a));
    if stack.is_empty() {
        return Err("--stages looks into the stack's UDP: name at least one such arm".to_owned());
    }
    let skip =
        |arm: &Arm, reason: &str| SkippedReport { name: arm.name.into(), reason: reason.into() };
    let mut skipped: Vec<SkippedReport> =
        others.iter().map(|a| skip(a, "only the stack's UDP has stages")).collect();
    let mut reports = Vec::new();
    for arm in &stack {
        let recorder = Recorder::new(arm.mode != Mode::BusyPoll);
        let outcome = bench
            .once(arm, settings, stack.len(), |plan| stack::run_recorded(arm, plan, &recorder))?;
        match outcome {
            Ok(_) => reports.push(summarize(arm, &recorder)),
            Err(reason) => skipped.push(skip(arm, &reason)),
        }
    }
    let clock_overhead_ns = bench.clock.overhead_ns();
    Ok(StagesReport { answer: answer(&reports), clock_overhead_ns, arms: reports, skipped })
}

fn summarize(arm: &Arm, recorder: &Recorder) -> ArmStages {
    let times = recorder.times.lock().unwrap_or_else(PoisonError::into_inner);
    let stages = STAGES.iter().zip(&times.stages).map(|(stage, rtts)| Stage {
        stage,
        p50: stats::quantile_us(rtts, 0.5),
        p99: stats::quantile_us(rtts, 0.99),
    });
    ArmStages {
        arm: arm.name.to_owned(),
        mode: arm.mode,
        stages_us: stages.collect(),
        total_us: stats::quantile_us(&times.total, 0.5),
    }
}

fn answer(arms: &[ArmStages]) -> String {
    let clauses: Vec<String> = arms
        .iter()
        .filter_map(|arm| {
            let longest = arm.stages_us.iter().max_by(|a, b| a.p50.total_cmp(&b.p50))?;
            Some(format!(
                "{} spends {} of {} us in {}",
                arm.arm,
                us_text(longest.p50),
                us_text(arm.total_us),
                longest.stage
            ))
        })
        .collect();
    match clauses.is_empty() {
        true => "No answer: no stack arm could be measured.".to_owned(),
        false => {
            format!("From the sender's doorbell to the return of recv: {}.", clauses.join("; "))
        }
    }
}

impl StagesReport {
    /// The answer and the table.
    pub fn render(&self, width: Width) -> String {
        let mut out = format!("{}\n\n", self.answer);
        let mut header = vec!["arm"];
        header.extend(STAGES);
        header.extend(["total", ""]);
        let mut table = table::plain(&header);
        for arm in &self.arms {
            let mut row = vec![arm.arm.clone()];
            row.extend(arm.stages_us.iter().map(|s| us_text(s.p50)));
            row.push(us_text(arm.total_us));
            table.add_row(row);
        }
        let _ = writeln!(out, "{}\n", width.fit(table, &["total", "napi"]));
        let _ = writeln!(
            out,
            "Medians in us. ring: on the ring until a spinning pass begins; wake-up: the same with the \
             receiver asleep, interrupt included; napi: pass to frame handed up; inet: until its socket is \
             found; socket: until it is there; return: until recv has returned. A time stamp costs {:.0} ns.",
            self.clock_overhead_ns
        );
        for s in &self.skipped {
            let _ = writeln!(out, "skipped: {}: {}", s.name, s.reason);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(recorder: &Recorder, ticks: [u64; 5]) {
        let s = &recorder.stamps;
        let stamps = [&s.doorbell, &s.pass, &s.frame, &s.socket, &s.queued];
        for (stamp, ticks) in stamps.into_iter().zip(ticks) {
            stamp.store(ticks, Ordering::Relaxed);
        }
    }

    fn p50(recorder: &Recorder) -> Vec<u64> {
        let times = recorder.times.lock().expect("not poisoned");
        times.stages.iter().map(|s| s.value_at_quantile(0.5) / 1000).collect()
    }

    #[test]
    fn stages_add_up_and_the_wait_is_named_by_the_mode() {
        let clock = Clock::default();
        let us = clock.ticks(std::time::Duration::from_micros(1));
        for (sleeps, first_two) in [(false, [40, 0]), (true, [0, 40])] {
            let recorder = Recorder::new(sleeps);
            let start = clock.now() - 100 * us;
            let after = |micros| start + micros * us;
            stamp(&recorder, [start, after(40), after(43), after(48), after(50)]);
            recorder.returned(&clock);
            let stages = p50(&recorder);
            // Conversion between ticks and microseconds rounds.
            let near = |a: u64, b: u64| a.abs_diff(b) <= 1;
            assert!(near(stages[0], first_two[0]) && near(stages[1], first_two[1]), "{stages:?}");
            assert!((2..=3).contains(&stages[2]) && (4..=5).contains(&stages[3]), "{stages:?}");
            assert!((1..=2).contains(&stages[4]) && stages[5] >= 48, "{stages:?}");
        }
    }

    #[test]
    fn a_pass_under_way_counts_from_the_doorbell() {
        let clock = Clock::default();
        let us = clock.ticks(std::time::Duration::from_micros(1));
        let recorder = Recorder::new(false);
        let start = clock.now() - 100 * us;
        let (before, frame) = (start - 30 * us, start + 2 * us);
        stamp(&recorder, [start, before, frame, start + 3 * us, start + 4 * us]);
        recorder.returned(&clock);
        let stages = p50(&recorder);
        assert_eq!(stages[0], 0);
        assert!((1..=2).contains(&stages[2]), "{stages:?}");
    }

    #[test]
    fn the_answer_names_the_longest_stage() {
        let stage = |stage, p50| Stage { stage, p50, p99: p50 };
        let arm = ArmStages {
            arm: "stack-cable-udp-interrupt".into(),
            mode: Mode::Interrupt,
            stages_us: vec![stage("ring", 0.0), stage("wake-up", 30.0), stage("napi", 0.1)],
            total_us: 31.0,
        };
        assert!(answer(&[arm]).contains("30.0 of 31.0 us in wake-up"));
        assert!(answer(&[]).contains("No answer"));
    }
}
