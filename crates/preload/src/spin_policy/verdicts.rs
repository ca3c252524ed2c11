//! The CPUs on which trials of this process have found spinning harmful, and for how long none of its threads spins
//! there. They belong to the process and not to the thread that tried: gRPC's server threads live for less than a
//! second, and each would have to find out anew.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use busypoll_linux::ticks::is_ahead;

use super::spin_trial::{BACKOFF_FIRST, BACKOFF_MAX, HOLD, TRIAL_INTERVAL_FIRST};

/// CPUs further on have no verdict: there a thread decides for itself alone.
const CPUS: usize = busypoll_linux::spinners::CPUS;

pub(super) struct Verdicts {
    cpus: [Verdict; CPUS],
    /// CPUs that have one, also where no thread has come by since it was over.
    count: AtomicU32,
}

/// Times are in nanoseconds. A verdict stays until a trial that repeats the one that found harm replaces it.
struct Verdict {
    /// How long it holds; 0: there is none.
    backoff: AtomicU64,
    quiet_until: AtomicU64,
    /// A thread of the process has a trial, if it has not ended or stopped since.
    trial_until: AtomicU64,
    put_off_until: AtomicU64,
}

/// What a verdict says now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// No harm is known, or a trial is under way, whose way all threads go.
    Nothing,
    /// No thread spins until then.
    Quiet(u64),
    /// It is over, but the next trial is put off. No thread of the process spins meanwhile; other processes may.
    PutOff,
    /// It is over, and a trial is due.
    TryAgain,
}

impl Verdicts {
    pub(super) const fn new() -> Self {
        Self { cpus: [const { Verdict::new() }; CPUS], count: AtomicU32::new(0) }
    }

    /// Whether any CPU has a verdict. Nearly free.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    pub(super) fn says(&self, cpu: usize, now: u64) -> Says {
        let Some(verdict) = self.cpus.get(cpu) else { return Says::Nothing };
        let until = verdict.quiet_until.load(Relaxed);
        if verdict.backoff.load(Relaxed) == 0 {
            Says::Nothing
        } else if is_ahead(until, now, BACKOFF_MAX) {
            Says::Quiet(until)
        } else if is_ahead(verdict.trial_until.load(Relaxed), now, HOLD) {
            Says::Nothing
        } else if is_ahead(verdict.put_off_until.load(Relaxed), now, TRIAL_INTERVAL_FIRST) {
            Says::PutOff
        } else {
            Says::TryAgain
        }
    }

    /// Spinning is harmful on `cpu`: at first for a second, and twice as long each time in a row. Returns until when;
    /// `None` if the CPU can have no verdict.
    pub(super) fn found_harm(&self, cpu: usize, now: u64) -> Option<u64> {
        let verdict = self.cpus.get(cpu)?;
        let backoff = (verdict.backoff.load(Relaxed) * 2).clamp(BACKOFF_FIRST, BACKOFF_MAX);
        verdict.quiet_until.store(now + backoff, Relaxed);
        if verdict.backoff.swap(backoff, Relaxed) == 0 {
            self.count.fetch_add(1, Relaxed);
        }
        Some(now + backoff)
    }

    /// A trial has found no harm, or cannot tell.
    pub(super) fn forget(&self, cpu: usize) {
        if let Some(verdict) = self.cpus.get(cpu)
            && verdict.backoff.swap(0, Relaxed) != 0
        {
            self.count.fetch_sub(1, Relaxed);
        }
    }

    /// Whether a verdict stands, or is to be repeated.
    pub(super) fn stands(&self, cpu: usize) -> bool {
        self.cpus.get(cpu).is_some_and(|verdict| verdict.backoff.load(Relaxed) != 0)
    }

    /// A thread has its trial on `cpu`, and goes on if it waits again within [`HOLD`].
    pub(super) fn trial_goes_on(&self, cpu: usize, now: u64) {
        if let Some(verdict) = self.cpus.get(cpu) {
            verdict.trial_until.store(now + HOLD, Relaxed);
        }
    }

    /// The thread ends in its trial.
    pub(super) fn trial_is_cut(&self, cpu: usize, now: u64) {
        if let Some(verdict) = self.cpus.get(cpu) {
            verdict.trial_until.store(0, Relaxed);
        }
        self.put_off(cpu, now);
    }

    /// No trial that is due begins for a while.
    pub(super) fn put_off(&self, cpu: usize, now: u64) {
        if let Some(verdict) = self.cpus.get(cpu) {
            verdict.put_off_until.store(now + TRIAL_INTERVAL_FIRST, Relaxed);
        }
    }

    pub(super) fn forget_all(&self) {
        // Only where there are any: a child of fork would copy the pages for nothing.
        (0..CPUS).filter(|&cpu| self.stands(cpu)).for_each(|cpu| self.forget(cpu));
        self.count.store(0, Relaxed);
    }
}

impl Verdict {
    const fn new() -> Self {
        Self {
            backoff: AtomicU64::new(0),
            quiet_until: AtomicU64::new(0),
            trial_until: AtomicU64::new(0),
            put_off_until: AtomicU64::new(0),
        }
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
            assert!(verdicts.any() && verdicts.stands(3));
            assert_eq!(verdicts.says(3, until - 1), Says::Quiet(until));
            assert_eq!(verdicts.says(2, until - 1), Says::Nothing, "another CPU");
            // One thread tries again; the others spin or not as it does.
            assert_eq!(verdicts.says(3, until), Says::TryAgain);
            verdicts.trial_goes_on(3, until);
            assert_eq!(verdicts.says(3, until), Says::Nothing);
            // It has stopped waiting: another one has to.
            assert_eq!(verdicts.says(3, until + HOLD), Says::TryAgain);
            now = until;
        }
        verdicts.forget(3);
        assert!(!verdicts.stands(3) && !verdicts.any());
        assert_eq!(verdicts.says(3, now), Says::Nothing);
        verdicts.forget(3);
        assert_eq!(verdicts.found_harm(3, now), Some(now + BACKOFF_FIRST));
        assert_eq!(verdicts.found_harm(CPUS, now), None);
    }

    #[test]
    fn a_trial_that_cannot_begin_or_is_cut_is_put_off_and_the_verdict_stays() {
        let verdicts = Verdicts::new();
        let now = verdicts.found_harm(3, 10).unwrap();
        verdicts.put_off(3, now);
        assert_eq!(verdicts.says(3, now + TRIAL_INTERVAL_FIRST - 1), Says::PutOff);
        let now = now + TRIAL_INTERVAL_FIRST;
        assert_eq!(verdicts.says(3, now), Says::TryAgain);
        verdicts.trial_goes_on(3, now);
        verdicts.put_off(3, now);
        assert_eq!(verdicts.says(3, now), Says::Nothing, "another thread has begun it");
        verdicts.trial_is_cut(3, now);
        assert_eq!(verdicts.says(3, now), Says::PutOff);
        // What ends late changes nothing about a verdict that another trial has found since.
        let until = verdicts.found_harm(3, now).unwrap();
        verdicts.trial_is_cut(3, now);
        assert_eq!(verdicts.says(3, until - 1), Says::Quiet(until));
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
        assert!(!verdicts.any() && !verdicts.stands(1));
        assert_eq!(verdicts.says(7, 1), Says::Nothing);
    }
}
