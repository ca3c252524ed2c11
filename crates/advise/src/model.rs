//! The model: the rounds of a program and the costs of this machine to what a setting would give. Pure arithmetic.
//!
//! A wait whose packet comes while the thread would poll ends earlier, by what polling saved in the lab and by what
//! this program's own wake-ups take longer than the lab's; the thread keeps its CPU for the whole wait. A wait whose
//! packet comes later is as now, after having polled in vain. The peer is taken to answer as soon as now.

use std::time::Duration;

use busypoll_policy::Plane;

use crate::recording::{Recording, Round, quantile};

/// What was measured in the lab. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Costs {
    /// A round trip with the server asleep, and the same while it is watched as the program was.
    pub(crate) asleep_ns: f64,
    pub(crate) asleep_watched_ns: f64,
    /// With the server polling on the kernel plane, and on the stack plane if that is possible here.
    pub(crate) kernel_ns: f64,
    pub(crate) stack_ns: Option<f64>,
    /// From the wake-up to the return, and from the poll that found the packet to the return, while watched.
    pub(crate) wake_up_ns: f64,
    pub(crate) found_ns: f64,
}

/// How a program would be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) plane: Plane,
    /// How long a wait polls; `None`: until the packet comes.
    pub(crate) poll: Option<Duration>,
}

/// What a setting would give.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Prediction {
    /// The share of waits that polling would end.
    pub(crate) found: f64,
    /// From the packet's arrival to the program, in microseconds.
    pub(crate) delay_p50: f64,
    pub(crate) delay_p99: f64,
    /// A wait and the work before it: to a peer that awaits each answer, its round trip.
    pub(crate) round_p50: f64,
    pub(crate) round_p99: f64,
    /// The rounds of which 40 and 60 in 100 are shorter: how much a small error would move the median.
    pub(crate) round_p40: f64,
    pub(crate) round_p60: f64,
    /// CPU time of the program's threads; 1 is one CPU.
    pub(crate) cpu: f64,
}

/// The longest that is called "until the packet comes" in a policy file.
pub(crate) const ALWAYS: Duration = Duration::from_secs(1);

impl Setting {
    /// As without busypoll.
    pub(crate) const OFF: Setting = Setting { plane: Plane::Off, poll: Some(Duration::ZERO) };

    /// All that are predicted.
    pub(crate) fn all() -> [Setting; 7] {
        let times = [Some(Duration::from_micros(50)), Some(Duration::from_micros(200)), None];
        let of = |plane, at: usize| Setting { plane, poll: times[at] };
        let (kernel, stack) = (Plane::Kernel, Plane::Stack);
        [
            Setting::OFF,
            of(kernel, 0),
            of(kernel, 1),
            of(kernel, 2),
            of(stack, 0),
            of(stack, 1),
            of(stack, 2),
        ]
    }
}

/// One round under a setting: found by polling, its length, delay and CPU time.
struct Outcome {
    found: bool,
    round: f64,
    delay: f64,
    cpu: f64,
}

fn outcome(round: &Round, costs: &Costs, setting: Setting) -> Option<Outcome> {
    let watching = (costs.asleep_watched_ns - costs.asleep_ns).max(0.0);
    let now = (round.wait + round.work) as f64;
    // What was watched is shorter without.
    let unwatched = (now - watching).max(now / 10.0);
    let delay = round.delay as f64;
    let polled = match setting.plane {
        Plane::Off => None,
        Plane::Kernel => Some(costs.kernel_ns),
        Plane::Stack => Some(costs.stack_ns?),
    };
    let cpu = ((round.work_cpu + round.wait_cpu) as f64 - watching).max(0.0);
    let Some(polled) = polled else {
        return Some(Outcome { found: false, round: unwatched, delay, cpu });
    };
    let limit = setting.poll.map_or(f64::INFINITY, |time| time.as_nanos() as f64);
    if round.arrival as f64 > limit {
        return Some(Outcome { found: false, round: unwatched, delay, cpu: cpu + limit });
    }
    let own = delay - costs.wake_up_ns;
    let shorter =
        (unwatched - (costs.asleep_ns - polled) - own.max(-costs.wake_up_ns)).max(now / 10.0);
    // The program keeps the CPU for the whole wait.
    let idle = (round.work - round.work_cpu) as f64;
    Some(Outcome {
        found: true,
        round: shorter,
        delay: costs.found_ns,
        cpu: (shorter - idle).max(0.0),
    })
}

/// What a setting would give; `None` if its plane could not be measured here, or there are no rounds.
pub(crate) fn predict(
    recording: &Recording,
    costs: &Costs,
    setting: Setting,
) -> Option<Prediction> {
    let (mut rounds, mut delays) = (Vec::new(), Vec::new());
    let (mut found, mut cpu) = (0_u64, 0.0);
    for thread in &recording.threads {
        let (mut length, mut busy, mut was) = (0.0, 0.0, 0.0);
        for round in &thread.rounds {
            let outcome = outcome(round, costs, setting)?;
            found += u64::from(outcome.found);
            rounds.push(outcome.round as u64);
            delays.push(outcome.delay as u64);
            length += outcome.round;
            busy += outcome.cpu;
            was += (round.wait + round.work) as f64;
        }
        // The share of the time that its rounds filled.
        let filled = (was / recording.time.max(1) as f64).min(1.0);
        if length > 0.0 {
            cpu += (busy / length).min(1.0) * filled;
        }
    }
    if rounds.is_empty() {
        return None;
    }
    let all = rounds.len() as f64;
    let us = |values: &mut [u64], share| quantile(values, share) as f64 / 1000.0;
    Some(Prediction {
        found: found as f64 / all,
        delay_p50: us(&mut delays, 0.5),
        delay_p99: us(&mut delays, 0.99),
        round_p50: us(&mut rounds, 0.5),
        round_p99: us(&mut rounds, 0.99),
        round_p40: us(&mut rounds, 0.4),
        round_p60: us(&mut rounds, 0.6),
        cpu,
    })
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
