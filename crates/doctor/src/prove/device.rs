//! The verdict on a device: the share of its packets that busy polls found.

use std::collections::BTreeSet;

use busypoll_linux::NapiId;
use busypoll_linux::bpf::deliveries::Found;
use busypoll_linux::bpf::napi::Passes;

use super::count::{Counts, DeviceCounts};
use super::passes::Driven;
use super::{ENOUGH, Target, WORKS, percent};
use crate::rules::{
    NOT_SEEN, PROVE_HARMFUL, PROVE_NO_EFFECT, PROVE_OFF, PROVE_QUIET, PROVE_WORKING, RFS, RPS,
};
use crate::{Finding, Report, Subject};

pub(super) fn judge(target: &Target, counts: &Counts, report: &mut Report) {
    for (key, device) in &counts.devices {
        let finding = match &counts.rows {
            Some(_) => {
                let on = target.on_devices.contains(key);
                let passes = Driven::of_device(device);
                let finding = by_passes(&key.1, device, &passes, on, counts);
                device.evidence(finding, &passes.sum)
            }
            None => {
                let subject = Subject::Device { name: key.1.clone() };
                let moves = |f: &&Finding| [&RPS, &RFS].contains(&f.rule) && f.subject == subject;
                let moved = report.findings().iter().any(moves);
                by_counters(&key.1, device, moved)
            }
        };
        if finding.rule != &PROVE_QUIET || !target.any {
            report.undecided |= [&PROVE_QUIET, &NOT_SEEN].contains(&finding.rule);
            report.add(finding);
        }
    }
}

/// The packets found by busy polling, and all packets. Counted at the sockets, as RPS may redirect what a poll found;
/// for a device whose packets reach no socket, counted at its queues.
fn share(device: &DeviceCounts, passes: &Driven<'_>, counts: &Counts) -> (u64, u64) {
    let queues: BTreeSet<NapiId> = device.rows.iter().filter_map(|row| row.napi).collect();
    let (mut found, mut all) = (0, 0);
    for row in counts.deliveries.iter().flat_map(|deliveries| &deliveries.rows) {
        if row.napi.is_some_and(|id| queues.contains(&id)) {
            all += row.packets;
            found += if matches!(row.found, Found::BusyPoll { .. }) { row.packets } else { 0 };
        }
    }
    let sum = &passes.sum;
    match all {
        0..ENOUGH => (sum.spin_packets + sum.rearm_packets, sum.packets()),
        _ => (found, all),
    }
}

fn by_passes(
    name: &str,
    device: &DeviceCounts,
    passes: &Driven<'_>,
    on: bool,
    counts: &Counts,
) -> Finding {
    let subject = Subject::Device { name: name.into() };
    let (found, all) = share(device, passes, counts);
    let part = percent(found, all);
    let spins = passes.spins();
    let words = format!("{part}% of {all} packets were found by busy polling");
    let finding = if all < ENOUGH {
        PROVE_QUIET.finding(subject, format!("{all} packets, {spins} busy-poll passes"))
    } else if part >= WORKS {
        PROVE_WORKING.finding(subject, words)
    } else if spins == 0 && on {
        let what = format!("{all} packets, and nothing busy polled although it is switched on");
        PROVE_NO_EFFECT.finding(subject, what)
    } else if spins == 0 {
        PROVE_OFF.finding(subject, format!("{all} packets, and nothing busy polled"))
    } else if let Some((why, thread)) = passes.contending_spinners(counts) {
        let finding = PROVE_HARMFUL.finding(subject, format!("{words}: {why}"));
        match counts.free_cpu() {
            Some(cpu) => finding.remedy(format!("taskset -pc {cpu} {thread}")),
            None => finding,
        }
    } else {
        let sum = &passes.sum;
        let per_packet = sum.spin_empty / sum.packets().max(1);
        let why = if found < (sum.spin_packets + sum.rearm_packets) / 2 {
            "the packets that busy polls found were moved to another CPU's backlog".into()
        } else if sum.threaded_packets * 2 > sum.packets() {
            "NAPI threads took the others".into()
        } else if per_packet == 0 {
            "packets were there before any thread polled".into()
        } else {
            format!("{per_packet} passes for each packet: it came after the poll had ended")
        };
        PROVE_NO_EFFECT.finding(subject, format!("{words}: {why}"))
    };
    passes.evidence(finding)
}

impl DeviceCounts {
    fn evidence(&self, mut finding: Finding, sum: &Passes) -> Finding {
        if let Some(counter) = self.busy_poll_rx {
            let read = "BusyPollRxPackets of the device's network namespace";
            finding = finding.evidence(read, format!("+{counter}"));
        }
        let avoided = format!("about {} avoided: busy polls that found packets", sum.spin_hits);
        match self.interrupts {
            Some(taken) => finding.evidence("/proc/interrupts", format!("+{taken}; {avoided}")),
            None => finding.evidence("interrupts", avoided),
        }
    }
}

/// Without BPF: by the kernel's own counters. BusyPollRxPackets counts the packets of all devices of the namespace, also
/// those that RPS then moves to another CPU: if these could make the difference, the share is not known.
fn by_counters(name: &str, device: &DeviceCounts, moved: bool) -> Finding {
    let subject = Subject::Device { name: name.into() };
    let (found, all) = (device.busy_poll_rx.unwrap_or(0), device.received.unwrap_or(0));
    let surely = if moved { 0 } else { found.saturating_sub(device.others) };
    let [least, most] = [surely, found].map(|found| percent(found, all).min(100));
    let words = |share: u64| format!("{share}% of {all} packets were found by busy polling");
    let finding = if all < ENOUGH {
        PROVE_QUIET.finding(subject, format!("{all} packets came"))
    } else if least >= WORKS {
        PROVE_WORKING.finding(subject, words(least))
    } else if found == 0 {
        PROVE_OFF.finding(subject, words(0))
    } else if most < WORKS {
        PROVE_NO_EFFECT.finding(subject, words(most))
    } else {
        let what = format!("which of its {all} packets were found by busy polling");
        NOT_SEEN.finding(subject, what)
    };
    finding
        .evidence("BusyPollRxPackets of the device's network namespace", format!("+{found}"))
        .evidence("packets received, /proc/net/dev", format!("+{all}"))
        .evidence("packets that other devices there received", format!("+{}", device.others))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counter is one for all devices of a namespace: it proves nothing about one of several.
    #[test]
    fn counters_of_a_whole_namespace_are_not_taken_for_those_of_one_device() {
        for (found, received, others, moved, rule) in [
            (0, 10, 0, false, &PROVE_QUIET),
            (0, 1000, 9000, false, &PROVE_OFF),
            (100, 1000, 9000, false, &PROVE_NO_EFFECT),
            (900, 1000, 9000, false, &NOT_SEEN),
            (9000, 1000, 9000, false, &NOT_SEEN),
            (9000, 1000, 8100, false, &PROVE_WORKING),
            (900, 1000, 0, false, &PROVE_WORKING),
            (900, 1000, 0, true, &NOT_SEEN),
            (100, 1000, 0, true, &PROVE_NO_EFFECT),
        ] {
            let device = DeviceCounts {
                busy_poll_rx: Some(found),
                received: Some(received),
                others,
                ..DeviceCounts::default()
            };
            let told = by_counters("eth9", &device, moved);
            assert_eq!(told.rule, rule, "{found} {received} {others} {moved}: {}", told.what);
        }
    }
}
