//! The CPUs on which trials of this process have found spinning harmful, and for how long none of its threads spins
//! there. They belong to the process and not to the thread that tried: gRPC's server threads live for less than a
//! second, and each would have to find out anew.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use busypoll_linux::ticks::is_ahead;

use super::spin_trial::{BACKOFF_FIRST, BACKOFF_MAX};

/// CPUs further on have no verdict: there a thread decides for itself alone.
const CPUS: usize = busypoll_linux::spinners::CPUS;

pub(super) struct Verdicts {
    cpus: [Verdict; CPUS],
    /// CPUs that have one.
    count: AtomicU32,
}

struct Verdict {
    /// Until when no thread spins, in nanoseconds; 0: there is no verdict; odd: the next trial is put off.
    until: AtomicU64,
    /// How long the last one held, in nanoseconds; 0 once a trial has found no harm.
    backoff: AtomicU64,
}

/// What a verdict says now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// Nothing is known: a thread may spin.
    Nothing,
    /// No thread spins until then.
    Quiet(u64),
    /// The next trial is put off, and no thread of the process spins meanwhile. Other processes may.
    PutOff,
    /// It is over, and the caller alone is to try again: [`Verdicts::hold`] puts that off.
    TryAgain,
}

impl Verdicts {
    pub(super) const fn new() -> Self {
        let cpus =
            [const { Verdict { until: AtomicU64::new(0), backoff: AtomicU64::new(0) } }; CPUS];
        Self { cpus, count: AtomicU32::new(0) }
    }

    /// Whether any CPU has a verdict. Nearly free.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    pub(super) fn says(&self, cpu: usize, now: u64) -> Says {
        let Some(verdict) = self.cpus.get(cpu) else { return Says::Nothing };
        let until = verdict.until.load(Relaxed);
        if until == 0 {
            Says::Nothing
        } else if is_ahead(until, now, BACKOFF_MAX) {
            if until & 1 == 0 { Says::Quiet(until) } else { Says::PutOff }
        } else if verdict.until.compare_exchange(until, 0, Relaxed, Relaxed).is_ok() {
            self.count.fetch_sub(1, Relaxed);
            Says::TryAgain
        } else {
            // Another thread tries again.
            Says::Nothing
        }
    }

    /// Spinning is harmful on `cpu`: at first for a second, and twice as long each time in a row. Returns until when;
    /// `None` if the CPU can have no verdict.
    pub(super) fn found_harm(&self, cpu: usize, now: u64) -> Option<u64> {
        let verdict = self.cpus.get(cpu)?;
        let backoff = (verdict.backoff.load(Relaxed) * 2).clamp(BACKOFF_FIRST, BACKOFF_MAX);
        verdict.backoff.store(backoff, Relaxed);
        let until = (now + backoff) & !1;
        self.set(cpu, until);
        Some(until)
    }

    pub(super) fn found_no_harm(&self, cpu: usize) {
        if let Some(verdict) = self.cpus.get(cpu) {
            verdict.backoff.store(0, Relaxed);
        }
    }

    /// Whether the last trial found harm.
    pub(super) fn was_harmful(&self, cpu: usize) -> bool {
        self.cpus.get(cpu).is_some_and(|verdict| verdict.backoff.load(Relaxed) != 0)
    }

    /// No thread of the process spins, or tries again, before `until`.
    pub(super) fn hold(&self, cpu: usize, until: u64) {
        self.set(cpu, until.saturating_sub(1) | 1);
    }

    fn set(&self, cpu: usize, until: u64) {
        if let Some(verdict) = self.cpus.get(cpu)
            && verdict.until.swap(until, Relaxed) == 0
        {
            self.count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn forget_all(&self) {
        for verdict in &self.cpus {
            // Only what is set: a child of fork would copy pages for nothing.
            if verdict.until.load(Relaxed) != 0 {
                verdict.until.store(0, Relaxed);
            }
            if verdict.backoff.load(Relaxed) != 0 {
                verdict.backoff.store(0, Relaxed);
            }
        }
        self.count.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_twice_as_long_each_time_in_a_row() {
        let verdicts = Verdicts::new();
        assert_eq!(verdicts.says(3, 5), Says::Nothing);
        let mut now = 10;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let until = verdicts.found_harm(3, now).unwrap();
            assert_eq!(until, now + seconds * BACKOFF_FIRST);
            assert!(verdicts.any() && verdicts.was_harmful(3));
            assert_eq!(verdicts.says(3, until - 1), Says::Quiet(until));
            assert_eq!(verdicts.says(2, until - 1), Says::Nothing, "another CPU");
            // One thread tries again; the others spin or not as it does.
            assert_eq!(verdicts.says(3, until), Says::TryAgain);
            assert_eq!(verdicts.says(3, until), Says::Nothing);
            assert!(!verdicts.any());
            now = until;
        }
        verdicts.found_no_harm(3);
        assert!(!verdicts.was_harmful(3));
        assert_eq!(verdicts.found_harm(3, now), Some(now + BACKOFF_FIRST));
        verdicts.hold(3, now + 5);
        assert_eq!(verdicts.says(3, now + 4), Says::PutOff);
        assert_eq!(verdicts.says(3, now + 5), Says::TryAgain);
        assert_eq!(verdicts.found_harm(CPUS, now), None);
    }

    #[test]
    fn a_clock_that_goes_back_does_not_prolong_a_verdict() {
        let verdicts = Verdicts::new();
        verdicts.found_harm(0, 1000 * BACKOFF_FIRST);
        assert_eq!(verdicts.says(0, 1), Says::TryAgain);
    }

    #[test]
    fn a_child_forgets_them() {
        let verdicts = Verdicts::new();
        verdicts.found_harm(1, 1);
        verdicts.found_harm(7, 1);
        verdicts.forget_all();
        assert!(!verdicts.any() && !verdicts.was_harmful(1));
        assert_eq!(verdicts.says(7, 1), Says::Nothing);
    }
}
