//! Turns measurements into a report: figures, ratios, the verdict on each arm.

use crate::arm::{ARMS, Arm, Mode, Nic, Plane, Protocol};
use crate::data::{
    ArmReport, Comparison, FIX, Header, Kind, Limit, Machine, RoundTripReport, SkippedReport,
    best_blocking,
};
use crate::demand::{self, Usage};
use crate::evidence::{self, Evidence, Packets};
use crate::limit;
use crate::run::{ArmRun, Outcome, Settings};
use crate::slot::Slot;
use crate::stack;
use crate::stats::{self, RttUs};
use crate::{answer, fix, notes};

/// Summarises a run. The caller fills in `machine` except for what the run itself found out.
pub fn build(mut machine: Machine, settings: &Settings, outcome: &Outcome) -> RoundTripReport {
    let idle = outcome.idle;
    machine.idle_cpu_share = idle.idle_share();
    machine.rounds = outcome.stopped_after.unwrap_or(machine.rounds);
    let mut arms: Vec<ArmReport> =
        outcome.arms.iter().map(|run| arm_report(run, settings, idle)).collect();
    arms.sort_by(|a, b| a.rtt_us.p50.total_cmp(&b.rtt_us.p50));
    let comparisons = comparisons(outcome, &arms);
    let skipped = outcome.skipped.iter();
    let skipped =
        skipped.map(|s| SkippedReport { name: s.name.to_owned(), reason: s.reason.clone() });
    machine.one_core = outcome.one_core;
    let limit: Vec<f64> = limit_medians(outcome).into_iter().flatten().collect();
    let limit = (!limit.is_empty()).then(|| stats::median(&limit));
    let mut report = RoundTripReport {
        header: Header::now(Kind::RoundTrips),
        workload: settings.fix.then(|| FIX.to_owned()),
        notes: notes::of(&machine),
        answer: String::new(),
        machine,
        limit: Limit { shared_memory_rtt_us: limit },
        arms,
        skipped: skipped.collect(),
        comparisons,
    };
    report.answer = answer::round_trips(&report);
    report
}

/// Summarises one arm over all its rounds.
pub fn arm_report(run: &ArmRun, settings: &Settings, idle: Usage) -> ArmReport {
    let arm = &run.arm;
    let slots = || run.slots.iter().flatten();
    // A round in which no request was answered has no percentile.
    let answered = || slots().filter(|slot| !slot.rtts.is_empty());
    let mut evidence = Evidence::default();
    let mut usage = Usage::default();
    let mut transactions = 0;
    for slot in slots() {
        evidence.add(arm, &slot.window, slot.tally, slot.polling);
        usage.add(slot.window.cpu);
        transactions += slot.tally.transactions;
    }
    let mut size = settings.size.carried_by(arm.protocol);
    if settings.fix {
        (size.request, size.response) = fix::sizes();
    }
    let mtu = match arm.nic {
        Nic::Cable => stack::cable_mtu(size, settings.mtu),
        _ => settings.mtu,
    };
    let packets = match (arm.plane, arm.protocol) {
        // A socket of the stack counts datagrams, not their fragments.
        (Plane::Stack, Protocol::Udp) => Packets { request: 1, response: 1 },
        _ => Packets::of(size, arm.protocol, mtu),
    };
    evidence.finish(settings.load, transactions, packets);
    let rates: Vec<f64> = slots()
        .map(|s| s.tally.transactions as f64 / s.window.elapsed.as_secs_f64().max(1e-9))
        .collect();
    let reason = evidence::objection(arm, settings.load, transactions, &evidence);
    ArmReport {
        name: arm.name.to_owned(),
        between: arm.between,
        plane: arm.plane,
        nic: arm.nic,
        protocol: arm.protocol,
        mode: arm.mode,
        placement: arm.placement,
        request_bytes: size.request,
        response_bytes: size.response,
        transactions,
        rtt_us: RttUs::over_rounds(answered().map(|s| &s.rtts)),
        one_way_us: one_way(run),
        p50_ci95: stats::ci95_of_median(&answered().map(p50).collect::<Vec<_>>()),
        transactions_per_second: stats::median(&rates),
        service_demand_us: demand::service_demand_us(usage, idle, transactions),
        evidence,
        valid: reason.is_none(),
        reason,
    }
}

/// How long requests were on their way, where the server has told in every round.
fn one_way(run: &ArmRun) -> Option<RttUs> {
    let told = || run.slots.iter().flatten().map(|slot| slot.one_way.as_ref());
    let all: Vec<_> = told().collect::<Option<_>>()?;
    let some = all.iter().any(|times| !times.is_empty());
    some.then(|| RttUs::over_rounds(all.iter().copied()))
}

fn p50(slot: &Slot) -> f64 {
    stats::quantile_us(&slot.rtts, 0.5)
}

/// The medians of an arm's rounds; none for a missing round.
pub(crate) fn medians(run: &ArmRun) -> Vec<Option<f64>> {
    run.slots.iter().map(|slot| slot.as_ref().filter(|s| !s.rtts.is_empty()).map(p50)).collect()
}

fn limit_medians(outcome: &Outcome) -> Vec<Option<f64>> {
    outcome.limit.iter().map(|r| Some(stats::quantile_us(r.as_ref()?, 0.5))).collect()
}

/// The arms that an arm is compared with besides the best blocking one: its own limit, and its
/// counterpart in the kernel with the same placement.
fn yardsticks(arm: &Arm) -> Vec<&'static str> {
    let counterpart = |a: &Arm| match (arm.mode, a.plane) {
        (Mode::BusyPoll, Plane::Bare | Plane::Kernel) if arm.is_local() => {
            matches!(a.nic, Nic::Memory | Nic::Unix)
        }
        (Mode::BusyPoll, Plane::Bare) => a.nic == arm.nic,
        (Mode::BusyPoll, Plane::Kernel) => a.mode == Mode::BusyPoll,
        (Mode::Interrupt, Plane::Kernel) => a.is_baseline() && a.placement == arm.placement,
        _ => false,
    };
    if arm.plane != Plane::Stack {
        return Vec::new();
    }
    // The bare echo is the limit of any protocol on its NIC.
    let comparable = |a: &Arm| {
        a.between == arm.between && (a.plane == Plane::Bare || a.protocol == arm.protocol)
    };
    let same = ARMS.iter().filter(|a| comparable(a) && counterpart(a)).map(|a| a.name);
    let memory = (arm.mode == Mode::BusyPoll && !arm.is_local()).then_some(limit::NAME);
    same.chain(memory).collect()
}

fn comparisons(outcome: &Outcome, arms: &[ArmReport]) -> Vec<Comparison> {
    // Only valid arms: a ratio with an arm that did something else is meaningless.
    let medians_of = |name: &str| -> Option<Vec<Option<f64>>> {
        if name == limit::NAME {
            return Some(limit_medians(outcome));
        }
        arms.iter().find(|a| a.name == name && a.valid)?;
        let run = outcome.arms.iter().find(|run| run.arm.name == name)?;
        Some(medians(run))
    };
    let compare = |arm: &str, baseline: &str| -> Option<Comparison> {
        let r = stats::ratio_of_rounds(&medians_of(arm)?, &medians_of(baseline)?)?;
        let (arm, baseline) = (arm.to_owned(), baseline.to_owned());
        Some(Comparison { arm, baseline, p50_ratio: r.ratio, ci95: r.ci95 })
    };
    let mut all = Vec::new();
    for report in arms {
        if let Some(best) = best_blocking(arms, report)
            && best.name != report.name
        {
            all.extend(compare(&report.name, &best.name));
        }
    }
    for run in &outcome.arms {
        for yardstick in yardsticks(&run.arm) {
            if !all.iter().any(|c| c.arm == run.arm.name && c.baseline == yardstick) {
                all.extend(compare(run.arm.name, yardstick));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample::machine;
    use crate::workload::{Polling, Tally};
    use std::time::Duration;

    fn run(name: &str, p50s_us: &[u64], polled: bool) -> ArmRun {
        let arm = *ARMS.iter().find(|a| a.name == name).expect("in the table");
        let slots = p50s_us.iter().map(|us| {
            let mut rtts = stats::histogram();
            rtts.saturating_record_n(us * 1000, 1000);
            Some(Slot {
                rtts,
                tally: Tally { transactions: 1000, lost: 0 },
                window: evidence::Window {
                    elapsed: Duration::from_micros(us * 1000),
                    cpu: Usage {
                        used: Duration::from_micros(us * 2000),
                        capacity: Duration::from_micros(us * 2000),
                    },
                    busy_poll_rx: if polled { 2000 } else { 0 },
                    ..evidence::Window::default()
                },
                polling: Polling { napi_id: 8200, ..Polling::default() },
                one_way: None,
                weight: None,
            })
        });
        ArmRun { arm, slots: slots.collect() }
    }

    fn settings() -> Settings {
        Settings { rounds: 3, duration: Duration::from_secs(1), ..Settings::default() }
    }

    #[test]
    fn arms_are_sorted_and_compared_with_the_best_blocking_one() {
        let outcome = Outcome {
            arms: vec![
                run("kernel-udp-blocking", &[40, 41, 39], false),
                run("kernel-udp-blocking-same-cpu", &[12, 20, 10], false),
                run("kernel-udp-busy-poll", &[6, 10, 5], true),
                run("kernel-tcp-busy-poll", &[8, 8, 8], true),
            ],
            ..Outcome::default()
        };
        let report = build(machine(), &settings(), &outcome);
        let names: Vec<&str> = report.arms.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "kernel-udp-busy-poll",
                "kernel-tcp-busy-poll",
                "kernel-udp-blocking-same-cpu",
                "kernel-udp-blocking"
            ]
        );
        // No TCP baseline ran, so the TCP arm has no ratio.
        assert_eq!(report.comparisons.len(), 2);
        let first = &report.comparisons[0];
        assert_eq!(first.baseline, "kernel-udp-blocking-same-cpu");
        assert!((first.p50_ratio - 0.5).abs() < 0.002, "{first:?}");
        let busy = &report.arms[0];
        assert_eq!(busy.transactions, 3000);
        let [low, high] = busy.p50_ci95.expect("of three rounds");
        assert!((4.9..busy.rtt_us.p50).contains(&low) && high > busy.rtt_us.p50, "{busy:?}");
        assert!((busy.service_demand_us.unwrap_or(0.0) - 14.0).abs() < 0.1, "{busy:?}");
    }

    #[test]
    fn an_invalid_arm_is_neither_baseline_nor_compared() {
        let outcome = Outcome {
            arms: vec![
                run("kernel-udp-blocking", &[40, 41, 39], false),
                // Polled although it should sleep.
                run("kernel-udp-blocking-same-cpu", &[5, 5, 5], true),
                // Slept although it should poll.
                run("kernel-udp-busy-poll", &[38, 38, 38], false),
            ],
            ..Outcome::default()
        };
        let report = build(machine(), &settings(), &outcome);
        assert_eq!(report.arms.iter().filter(|a| !a.valid).count(), 2);
        assert_eq!(report.comparisons, []);
    }

    #[test]
    fn a_round_without_an_answer_has_no_percentile() {
        let mut quiet = run("kernel-udp-spin", &[10, 1, 10], false);
        quiet.slots[1].iter_mut().for_each(|slot| slot.rtts.reset());
        let outcome = Outcome {
            arms: vec![run("kernel-udp-blocking", &[20, 20, 20], false), quiet],
            ..Outcome::default()
        };
        let report = build(machine(), &settings(), &outcome);
        let arm = report.arms.iter().find(|arm| arm.name == "kernel-udp-spin").expect("measured");
        assert!((arm.rtt_us.p50 - 10.0).abs() < 0.1 && arm.rtt_us.min > 9.0, "{arm:?}");
        assert!(arm.p50_ci95.is_none_or(|ends| ends[0] > 9.0), "{arm:?}");
        assert!((report.comparisons[0].p50_ratio - 0.5).abs() < 0.002, "{report:?}");
    }

    #[test]
    fn a_failed_round_is_left_out_of_the_pairs() {
        let mut broken = run("kernel-udp-spin", &[10, 20, 10], false);
        broken.slots[1] = None;
        let outcome = Outcome {
            arms: vec![run("kernel-udp-blocking", &[20, 20, 20], false), broken],
            ..Outcome::default()
        };
        let report = build(machine(), &settings(), &outcome);
        assert!((report.comparisons[0].p50_ratio - 0.5).abs() < 0.002);
    }
}
