//! The causes why packets of a socket or an epoll instance were not found by busy polling.

use std::collections::BTreeSet;

use busypoll_linux::netdev::Threaded;

use super::count::Counts;
use super::passes::Driven;
use super::units::{Spins, Sum, Unit};
use super::{ENOUGH, Target};
use crate::process::{NapiLocation, NapiState, Process};
use crate::rules::{
    DRIVER_SKIPS_NAPI_ID, NO_NAPI, RFS, RPS, TUN, VETH_GRO_OFF, VETH_TSO_ON, WIREGUARD,
};
use crate::{Report, Rule, Subject, count};

/// Faults of devices that keep a packet's NAPI id from the socket.
const NO_ID: &[&Rule] =
    &[&VETH_GRO_OFF, &VETH_TSO_ON, &TUN, &WIREGUARD, &NO_NAPI, &DRIVER_SKIPS_NAPI_ID];
/// Faults of devices by which polled packets go to another CPU.
const HANDED_ON: &[&Rule] = &[&RPS, &RFS];

/// What else is known about a process.
pub(super) struct Context<'a> {
    process: &'a Process,
    target: &'a Target,
    /// The findings about its devices: the rule's code, the words and the remedy.
    of_devices: Vec<(&'static str, String, Option<String>)>,
}

/// A cause and its remedy.
pub(super) struct Cause {
    pub(super) words: String,
    pub(super) remedy: Option<String>,
}

impl From<String> for Cause {
    fn from(words: String) -> Self {
        Cause { words, remedy: None }
    }
}

impl<'a> Context<'a> {
    pub(super) fn of(process: &'a Process, target: &'a Target, report: &Report) -> Self {
        let of_device = |subject: &Subject| {
            matches!(subject, Subject::Device { .. } | Subject::PeerDevice { .. })
        };
        let found = report.findings().into_iter().filter(|f| of_device(&f.subject));
        let of_devices = found.map(|f| (f.rule.code, f.what.clone(), f.remedy.clone())).collect();
        Context { process, target, of_devices }
    }

    fn fault(&self, rules: &[&Rule]) -> Option<&(&'static str, String, Option<String>)> {
        self.of_devices.iter().find(|(code, ..)| rules.iter().any(|rule| rule.code == *code))
    }

    /// The NAPI instances that are known to deliver a unit's packets.
    fn locations(&self, unit: &Unit) -> Vec<&NapiLocation> {
        let ids: BTreeSet<_> = unit.queues.keys().flatten().chain(&unit.learnt).collect();
        let location = |id: &&busypoll_linux::NapiId| match self.target.napis.state(**id) {
            NapiState::Alive(location) => Some(location),
            _ => None,
        };
        ids.iter().filter_map(location).collect()
    }

    /// The delay by deferred interrupts of the packets that no poll found.
    pub(super) fn deferral(&self, unit: &Unit) -> Option<String> {
        let sum = unit.sum();
        if sum.by_softirq() == 0 {
            return None;
        }
        let waits = |location: &&NapiLocation| {
            let napi = &location.napi;
            busypoll_linux::deferral::wait(napi.defer_hard_irqs, napi.gro_flush_timeout_ns)
        };
        let longest = self.locations(unit).iter().filter_map(waits).max()?;
        Some(format!(
            "{} packets waited up to {} us for a timer, as interrupts are deferred",
            sum.by_softirq(),
            longest.as_micros()
        ))
    }

    fn describe(&self, id: busypoll_linux::NapiId) -> String {
        match self.target.napis.state(id) {
            NapiState::Alive(location) => format!("napi {id} ({location})"),
            NapiState::Dead => format!("napi {id} (dead)"),
            NapiState::Unknown => format!("napi {id}"),
        }
    }
}

/// A cause that the packets themselves prove, if there is one.
pub(super) fn certain(unit: &Unit, context: &Context<'_>) -> Option<Cause> {
    let sum = unit.sum();
    let all = sum.all();
    let most = |part: u64| part * 2 > all;
    let without_id = unit.queues.get(&None).map_or(0, Sum::all);
    if most(without_id) {
        let words = format!(
            "{without_id} packets came by the per-CPU backlog, which cannot be polled: they carry no NAPI id"
        );
        return Some(match context.fault(NO_ID) {
            Some((_, what, remedy)) => {
                Cause { words: format!("{words}; {what}"), remedy: remedy.clone() }
            }
            None => words.into(),
        });
    }
    // An ordinary NAPI thread leaves the queue to a thread that polls; one that busy polls itself never does.
    let taken = |location: &&&NapiLocation| location.napi.threaded == Some(Threaded::BusyPoll);
    if most(sum.napi_threads)
        && let Some(location) = context.locations(unit).iter().find(taken)
    {
        let remedy = context.process.write_in_its_namespace(location, "threaded", "0");
        let words = format!("the NAPI thread of {location} busy polls and takes them");
        return Some(Cause { words, remedy: Some(remedy) });
    }
    if let Some((_, what, remedy)) = context.fault(HANDED_ON) {
        let words = format!("{what}, also those that a busy poll has found");
        return Some(Cause { words, remedy: remedy.clone() });
    }
    let main = unit.queues.iter().max_by_key(|(_, sum)| sum.all()).and_then(|(id, _)| *id);
    if let Some(main) = main
        && !unit.learnt.is_empty()
        && !unit.learnt.contains(&main)
    {
        let polled: Vec<String> =
            unit.learnt.iter().take(4).map(|id| context.describe(*id)).collect();
        let words = format!(
            "its packets come by {}, and it polls {}, which it learnt first: a new socket or connect(2) fixes it",
            context.describe(main),
            polled.join(", "),
        );
        return Some(words.into());
    }
    None
}

/// The likeliest cause, if none is certain.
pub(super) fn likely(
    unit: &Unit,
    driven: &Driven<'_>,
    context: &Context<'_>,
    counts: &Counts,
) -> Cause {
    let all = unit.sum().all();
    let queues = unit.queues.values().filter(|sum| sum.all() >= ENOUGH).count();
    if let Some(stopped) = counts.stopped.get(&context.process.pid)
        && stopped.throttled * 2 > stopped.periods
    {
        let words = format!(
            "its control group was stopped in {} of {} periods",
            stopped.throttled, stopped.periods
        );
        return Cause { words, remedy: Some(stopped.remedy.clone()) };
    }
    if driven.spins() == 0 {
        return match unit.spins {
            Some(Spins::Epoll) => {
                "none of its waits polled: epoll_wait with a timeout of 0 never does".to_owned()
            }
            _ if unit.nested => {
                "nothing busy polled: it is waited for through another epoll instance".to_owned()
            }
            _ if unit.on => "nothing busy polled, although it is switched on".to_owned(),
            _ => "nothing busy polled".to_owned(),
        }
        .into();
    }
    if queues > 1 && unit.sockets > 1 {
        let words = format!("they come by {}, and it polls one at a time", count(queues, "queue"));
        return words.into();
    }
    if unit.spins == Some(Spins::Receive) {
        let words = match driven.softirq_cpu() {
            Some(cpu) => {
                format!("its receive calls poll once each, and softirqs on CPU {cpu} come first")
            }
            None => "its receive calls poll once each, and softirqs come first".into(),
        };
        return words.into();
    }
    let per_packet = driven.sum.spin_empty / driven.sum.packets().max(1);
    if per_packet == 0 {
        return "packets were there before any thread polled".to_owned().into();
    }
    let gap = counts.time.as_micros() as u64 / all.max(1);
    if u64::from(unit.usecs) > gap {
        let words = format!(
            "they came while its thread did not poll, at work or without a CPU: a poll of {} us is longer than the \
             {gap} us between packets",
            unit.usecs
        );
        return words.into();
    }
    let for_long = if unit.usecs > 0 { format!(" of {} us", unit.usecs) } else { String::new() };
    let words = format!(
        "{per_packet} passes for each packet: it came after the poll{for_long} had ended, one every {gap} us"
    );
    words.into()
}
