//! `--stages`: where a receive in the stack spends its time.

use std::sync::PoisonError;

use crate::arm::{Arm, Mode, Plane, Protocol};
use crate::data::{ArmStages, Header, Kind, SkippedReport, Stage, StagesReport};
use crate::run::{Bench, Settings};
use crate::stamps::{Recorder, STAGES};
use crate::{answer, machine, stack, stats};

/// Whether an arm has stages: a datagram is one packet, a TCP message may be several. Another process's stamps are not
/// to be had.
pub fn is_staged(arm: &Arm) -> bool {
    arm.plane == Plane::Stack && arm.protocol == Protocol::Udp && !arm.is_local()
}

/// Measures the stages of the stack's arms.
///
/// # Errors
/// A message of one line if no arm is the stack's or the duration is too short.
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
    Ok(StagesReport {
        header: Header::now(Kind::Stages),
        answer: answer::stages(&reports),
        machine: machine::describe(bench, settings),
        clock_overhead_ns,
        arms: reports,
        skipped,
    })
}

fn summarize(arm: &Arm, recorder: &Recorder) -> ArmStages {
    let times = recorder.times.lock().unwrap_or_else(PoisonError::into_inner);
    let stages = STAGES.iter().zip(&times.stages).map(|(stage, rtts)| Stage {
        stage: (*stage).to_owned(),
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
