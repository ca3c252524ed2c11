//! The verdict on a process: for each of its sockets and epoll instances the share of packets that busy polls found.

use std::collections::BTreeSet;

use busypoll_linux::NapiId;
use busypoll_linux::sysctl::Sysctl;

use super::cause::{self, Context};
use super::count::Counts;
use super::passes::Driven;
use super::units::{self, Unit};
use super::{ENOUGH, Target, WORKS, percent, refuted};
use crate::process::Process;
use crate::rules::{
    CPU_QUOTA, PROVE_HARMFUL, PROVE_NO_EFFECT, PROVE_OFF, PROVE_QUIET, PROVE_WORKING,
};
use crate::{Finding, Report, count};

pub(super) fn judge(target: &Target, counts: &Counts, report: &mut Report) {
    for pid in &target.pids {
        let Some(process) = target.census.processes.get(pid) else { continue };
        // Earlier checks have reported a process without sockets and a stopped one: no packets are needed.
        if !units::has_sockets(process) || report.is_stopped(process) {
            continue;
        }
        match (&counts.rows, &counts.deliveries) {
            (Some(_), Ok(_)) => one(process, target, counts, report),
            (_, Err(why)) => unseen(process, why, counts, report),
            (None, Ok(_)) => {}
        }
    }
}

/// Without BPF there is no verdict on a process: the kernel's counters include packets of other programs.
fn unseen(process: &Process, why: &str, counts: &Counts, report: &mut Report) {
    let what = "how the packets of its sockets were found";
    report.not_seen(process.subject(), what, "cgroup_skb/ingress", why);
    for ((_, name), device) in &counts.devices {
        let said = |count: Option<u64>| count.map_or("?".into(), |count| format!("+{count}"));
        let read = format!("BusyPollRxPackets where {name} is, packets {name} received");
        let both = format!("{}, {}", said(device.busy_poll_rx), said(device.received));
        report.not_seen(process.subject(), format!("{what} on {name}"), read, both);
    }
    report.undecided = true;
}

fn one(process: &Process, target: &Target, counts: &Counts, report: &mut Report) {
    let (Some(rows), Ok(deliveries)) = (&counts.rows, &counts.deliveries) else { return };
    let host_polls = Sysctl::BusyPoll.of_machine().is_some_and(|usecs| usecs > 0);
    let all = units::of(process, host_polls, deliveries);
    let queues = all.iter().flat_map(|unit| unit.learnt.iter().chain(unit.queues.keys().flatten()));
    let queues: BTreeSet<NapiId> = queues.copied().collect();
    let driven = Driven::of_process(process.pid, queues, rows);
    let total: u64 = all.iter().map(Unit::packets).sum();
    let judged = units::judged(all.clone(), process.subject(), ENOUGH);
    if judged.is_empty() {
        let what = format!("{total} packets reached its sockets");
        let finding = PROVE_QUIET.finding(process.subject(), what);
        let spins = format!("{} passes of its busy polls", driven.spins());
        report.add(finding.evidence("tracepoint napi:napi_poll", spins));
        report.undecided = true;
        return;
    }
    let context = Context::of(process, target, report);
    let mut working = true;
    for unit in &judged {
        let finding = verdict(unit, &driven, &context, counts);
        working &= finding.rule == &PROVE_WORKING;
        report.add(driven.evidence(finding));
    }
    refuted::remove(process, &judged, working, report);
    stopped(process, &judged, counts, report);
}

fn verdict(unit: &Unit, driven: &Driven<'_>, context: &Context<'_>, counts: &Counts) -> Finding {
    let sum = unit.sum();
    let (found, all) = (sum.polled(), sum.all());
    let share = percent(found, all);
    let subject = unit.subject.clone();
    let of = match unit.sockets {
        2.. => format!(" of {}", count(unit.sockets, "socket")),
        _ => String::new(),
    };
    let words = format!("{share}% of {all} packets{of} were found by busy polling");
    let late = context.deferral(unit).map_or(String::new(), |late| format!("; {late}"));
    // The deferral timer runs on the CPU that polled last, where no spinner is in its way.
    let contending_spinners = || {
        let found = driven.contending_spinners(counts);
        found.filter(|_| late.is_empty() && polls_much(unit, driven, counts))
    };
    let finding = if share >= WORKS {
        let other = match percent(sum.others, found) {
            0..=9 => String::new(),
            other => format!(" ({other}% of these by other threads')"),
        };
        PROVE_WORKING.finding(subject, format!("{words}{other}{late}"))
    } else if !unit.on && found == 0 && driven.spins() == 0 {
        PROVE_OFF.finding(subject, format!("{all} packets{of}, and nothing busy polled{late}"))
    } else {
        let certain = cause::certain(unit, context);
        if let (None, Some((why, thread))) = (&certain, contending_spinners()) {
            let finding = PROVE_HARMFUL.finding(subject, format!("{words}: {why}"));
            match counts.free_cpu() {
                Some(cpu) => finding.remedy(format!("taskset -pc {cpu} {thread}")),
                None => finding,
            }
        } else {
            let why = certain.unwrap_or_else(|| cause::likely(unit, driven, context, counts));
            let rule = if unit.on || found > 0 { &PROVE_NO_EFFECT } else { &PROVE_OFF };
            let mut finding = rule.finding(subject, format!("{words}: {}{late}", why.words));
            finding.remedy = why.remedy;
            finding
        }
    };
    let by_softirq: Vec<String> =
        sum.softirq.iter().map(|(cpu, packets)| format!("{packets} on CPU {cpu}")).collect();
    let said = format!(
        "{} by its own busy polls, {} by other threads', by softirqs {}, {} by NAPI threads",
        sum.own,
        sum.others,
        if by_softirq.is_empty() { "0".into() } else { by_softirq.join(", ") },
        sum.napi_threads,
    );
    let finding = finding.evidence("packets handed to it, cgroup_skb/ingress", said);
    // One counter for all sockets and devices of the namespace.
    match counts.devices.values().filter_map(|device| device.busy_poll_rx).max() {
        Some(counter) => finding
            .evidence("BusyPollRxPackets of the device's network namespace", format!("+{counter}")),
        None => finding,
    }
}

/// Whether its waits poll for a tenth of the time or more: shorter polls are in nobody's way.
fn polls_much(unit: &Unit, driven: &Driven<'_>, counts: &Counts) -> bool {
    let most = u128::from(driven.sum.rearm) * u128::from(unit.usecs);
    unit.usecs == 0 || unit.spins.is_some() || most * 10 >= counts.time.as_micros()
}

/// A quota that stops a poller is a fault even if most packets are found: the others wait for the next period.
fn stopped(process: &Process, judged: &[Unit], counts: &Counts, report: &mut Report) {
    let Some(stopped) = counts.stopped.get(&process.pid) else { return };
    report.retain(|finding| {
        finding.rule != &CPU_QUOTA || finding.subject != process.subject() || stopped.throttled > 0
    });
    // A program that does not poll may be stopped because of its own work.
    if !judged.iter().any(|unit| unit.on) || stopped.throttled * 10 < stopped.periods.max(1) {
        return;
    }
    report.retain(|finding| finding.rule != &CPU_QUOTA || finding.subject != process.subject());
    let each = stopped.us / stopped.throttled.max(1) / 1000;
    let what = format!(
        "its control group may use {:.2} CPUs and was stopped in {} of {} periods, for {each} ms each",
        stopped.cpus, stopped.throttled, stopped.periods
    );
    let finding = CPU_QUOTA
        .finding(process.subject(), what)
        .evidence(
            format!("cpu.stat of control group {}", stopped.group),
            format!("nr_throttled +{}", stopped.throttled),
        )
        .remedy(stopped.remedy.clone());
    report.add(finding);
}
