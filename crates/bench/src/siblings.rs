//! Whether client and server had a core each. A virtual machine does not know: if its CPUs are not pinned, the host
//! moves them among its cores and SMT siblings, and each placement lasts for seconds. On one core, spinners
//! slow each other down by half, a cache line is passed on in a sixth of the time, and figures of the two placements
//! cannot be compared.
//!
//! So it is measured, before and after each measurement: two CPUs of one core share its arithmetic units, and
//! each computes slower while the other does, too. On an EPYC 9004 guest: 1.5 to 1.6 times as long, else 1.00.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use busypoll_linux::topology;
use serde::{Deserialize, Serialize};

use crate::arm::Placement;
use crate::clock::Clock;
use crate::cpus::Cpus;
use crate::stats;

/// If two CPUs share a core, computing at the same time takes longer by at least this factor.
const SLOWER: f64 = 1.25;

/// This many rounds in which no arm shared a core are enough for comparisons.
const ENOUGH: usize = 3;

/// The number of measurements in which the two CPUs shared a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneCore {
    /// Measurements in which this was tested: those with a CPU for each end, unless these are known siblings.
    pub measured: usize,
    /// Measurements whose CPUs shared a core at the beginning or at the end.
    pub shared: usize,
    /// How many of `shared` are left out: all, if enough rounds remain without them.
    pub left_out: usize,
}

/// Whether the two CPUs shared a core in a measurement; none if there was no measurement or no test.
pub type Shared = Option<bool>;

/// The rounds of one arm; none for a failed round.
pub type Rounds<T> = Vec<Option<(T, Shared)>>;

/// The results of the test in each round.
pub fn shared<T>(rounds: &Rounds<T>) -> Vec<Shared> {
    rounds.iter().map(|round| round.as_ref()?.1).collect()
}

impl OneCore {
    /// Evaluates the rounds of all arms. Uses only the results of the test, never the figures.
    pub fn judge(arms: &[Vec<Shared>]) -> Self {
        let count = |seen| arms.iter().flatten().filter(|shared| **shared == Some(seen)).count();
        let shared = count(true);
        let rounds = arms.iter().map(Vec::len).max().unwrap_or(0);
        let is_apart = |round: &usize| arms.iter().all(|arm| arm.get(*round) != Some(&Some(true)));
        let enough = (0..rounds).filter(is_apart).count() >= ENOUGH;
        Self { measured: shared + count(false), shared, left_out: if enough { shared } else { 0 } }
    }

    /// The measurements that count.
    pub fn keep<T>(&self, rounds: Rounds<T>) -> Vec<Option<T>> {
        let counts = |(what, shared)| (self.left_out == 0 || shared != Some(true)).then_some(what);
        rounds.into_iter().map(|round| round.and_then(counts)).collect()
    }

    /// Adds another run.
    pub fn add(&mut self, other: Self) {
        self.measured += other.measured;
        self.shared += other.shared;
        self.left_out += other.left_out;
    }

    /// The note for the report; none if there is nothing to report.
    pub fn note(&self) -> Option<String> {
        let Self { measured, shared, left_out } = *self;
        let count = match left_out {
            0 => "these count",
            n if n == shared => "these are left out",
            _ => "some of these count",
        };
        let advice = match left_out {
            n if n == shared => "",
            _ => {
                ", as too few are left without them, and spinners slow each other down there; repeat it with more \
                 rounds, or with the virtual CPUs pinned to cores"
            }
        };
        (shared > 0).then(|| {
            format!("in {shared} of {measured} measurements the host ran both CPUs on one core: {count}{advice}")
        })
    }
}

/// Runs a measurement, with a test of the CPUs before and after, unless the answer is known.
pub fn watch<T>(
    clock: &Clock,
    cpus: Cpus,
    placement: Placement,
    measure: impl FnOnce() -> Result<T, String>,
) -> Result<(T, Shared), String> {
    let looks = placement == Placement::SeparateCpus && !cpus.share_core;
    let Some(server) = cpus.server.filter(|_| looks) else {
        return Ok((measure()?, None));
    };
    let before = share_core(clock, cpus.client, server)?;
    let measured = measure()?;
    let shared = before || share_core(clock, cpus.client, server)?;
    Ok((measured, Some(shared)))
}

/// Whether the two share a core at this moment. Takes about a millisecond.
///
/// # Errors
/// A message of one line if a CPU cannot be used.
pub fn share_core(clock: &Clock, one: u32, other: u32) -> Result<bool, String> {
    const NOT_YET: u32 = 0;
    const RUNS: u32 = 1;
    const CANNOT: u32 = 2;
    let (state, stop) = (AtomicU32::new(NOT_YET), AtomicBool::new(false));
    thread::scope(|scope| {
        let (state, stop) = (&state, &stop);
        let timed = scope.spawn(move || {
            let _pinned = topology::pin(one).map_err(|e| e.to_string())?;
            let alone = burst_ns(clock);
            let competitor = scope.spawn(move || {
                let pinned = topology::pin(other).map_err(|e| e.to_string());
                state.store(if pinned.is_ok() { RUNS } else { CANNOT }, Ordering::Release);
                while pinned.is_ok() && !stop.load(Ordering::Relaxed) {
                    burst();
                }
                pinned.map(drop)
            });
            while state.load(Ordering::Acquire) == NOT_YET {
                thread::yield_now();
            }
            let beside = burst_ns(clock);
            stop.store(true, Ordering::Relaxed);
            competitor.join().map_err(|_| "a computing thread panicked".to_owned())??;
            Ok(beside > SLOWER * alone)
        });
        timed.join().map_err(|_| "a computing thread panicked".to_owned())?
    })
}

/// The duration of a burst: the median of several, as either CPU may be interrupted for a moment.
fn burst_ns(clock: &Clock) -> f64 {
    let bursts: Vec<f64> = (0..25)
        .map(|_| {
            let start = clock.now();
            burst();
            clock.nanos(start, clock.now()) as f64
        })
        .collect();
    stats::median(&bursts)
}

/// Some ten microseconds of work for all arithmetic units: eight chains that do not depend on each other.
fn burst() {
    let mut chains: [u64; 8] = black_box([1, 2, 3, 4, 5, 6, 7, 8]);
    for _ in 0..4_000 {
        for chain in &mut chains {
            *chain = chain.rotate_left(7) ^ 0x9e37_79b9;
        }
    }
    black_box(chains);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_on_a_shared_core_are_left_out_if_enough_remain() {
        let (no, yes) = (Some(false), Some(true));
        let on_one_cpu = vec![None; 5];
        let one_core = OneCore::judge(&[vec![no, yes, no, yes, no], on_one_cpu.clone()]);
        assert_eq!(one_core, OneCore { measured: 5, shared: 2, left_out: 2 });
        let rounds = || vec![Some(('a', no)), Some(('b', yes)), Some(('c', None)), None];
        assert_eq!(shared(&rounds()), [no, yes, None, None]);
        assert_eq!(one_core.keep(rounds()), [Some('a'), None, Some('c'), None]);
        let note = one_core.note().unwrap_or_default();
        assert!(note.contains("in 2 of 5") && note.ends_with("left out"), "{note}");

        // Each arm has three unshared rounds, but only two are common to both.
        let few = OneCore::judge(&[vec![no, yes, no, no, no], vec![no, no, yes, yes, no]]);
        assert_eq!(few, OneCore { measured: 10, shared: 3, left_out: 0 });
        assert_eq!(few.keep(rounds())[1], Some('b'));
        assert!(few.note().is_some_and(|note| note.contains("these count, as too few")));

        let mut both = few;
        both.add(one_core);
        assert_eq!(both, OneCore { measured: 15, shared: 5, left_out: 2 });
        assert!(both.note().is_some_and(|note| note.contains("some of these count")));

        let none = OneCore::judge(&[vec![no; 2], on_one_cpu]);
        assert_eq!((none.left_out, none.note()), (0, None));
    }

    #[test]
    fn a_missing_cpu_is_an_error_of_one_line() {
        let here = topology::allowed().expect("affinity").iter().next().expect("a CPU");
        for (one, other) in [(here, 8191), (8191, here)] {
            let error = share_core(&Clock::default(), one, other).expect_err("no such CPU");
            assert!(error.contains("CPU 8191") && error.lines().count() == 1, "{error}");
        }
    }
}
