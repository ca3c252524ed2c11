//! Measures lines in interleaved rounds, as for round trips.

use std::collections::{BTreeMap, btree_map::Entry};
use std::time::Duration;

use busypoll_lab::Lab;

use super::lines::{Line, Workload};
use super::place::{LineRun, Outcome, Place, RunResult};
use super::relay::Losses;
use super::{bare, kernel, loss, smoltcp, stack};
use crate::arm::{Nic, Placement, Plane};
use crate::clock::Clock;
use crate::cpus::Cpus;
use crate::demand::{self, Usage};
use crate::interrupt;
use crate::run::{Skipped, no_xdp, progress, stopped_after};
use crate::schedule::{self, Budget};
use crate::siblings::{self, OneCore, Rounds};

/// Measures `lines` in interleaved rounds.
///
/// # Errors
/// A message of one line if the duration is too short, or the machine's counters cannot be read.
pub fn measure(
    lines: &[Line],
    cpus: Cpus,
    (busy_poll, losses): (Duration, Losses),
    (duration, rounds): (Duration, usize),
    mtu: usize,
) -> Result<Outcome, String> {
    if lines.iter().any(|line| line.workload == Workload::Loss) {
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
                let once = || once(line, cpus, busy_poll, &budget, mtu);
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
    mtu: usize,
) -> Result<RunResult, String> {
    if let (Nic::Xdp, Some(why)) = (line.arm.nic, no_xdp()) {
        return Err(why.to_owned());
    }
    let server = cpus.server.ok_or("needs two CPUs: widen its affinity (taskset, cpuset)")?;
    let server_cpu = if line.arm.placement == Placement::SameCpu { cpus.client } else { server };
    let needs_lab = line.arm.nic != Nic::Cable;
    let lab = needs_lab
        .then(|| {
            let gro = line.offloads || line.workload == Workload::Crr || line.arm.nic == Nic::Xdp;
            let lab = Lab::builder().mtu(mtu as u32).cpus(cpus.client, server);
            lab.gro(gro).tso(line.offloads).build().map_err(|e| e.to_string())
        })
        .transpose()?;
    let place = Place {
        line,
        lab: lab.as_ref(),
        client_cpu: cpus.client,
        server_cpu,
        busy_poll,
        mtu,
        warm_up: budget.warm_up,
        measure: budget.measure,
    };
    match (line.arm.plane, line.workload) {
        _ if line.smoltcp => smoltcp::stream(&place),
        (Plane::Kernel, Workload::Crr) => kernel::crr(&place),
        (Plane::Kernel, _) => kernel::stream(&place),
        (Plane::Bare, _) => bare::stream(&place),
        (Plane::Stack, Workload::Crr) => stack::crr(&place),
        (Plane::Stack, _) => stack::stream(&place),
    }
}
