//! The means of a trial's stretches of one kind.

use std::cell::Cell;

use super::spin_trial::{CLEAR, NOISE, TRIAL};

/// How many of the 49 pairs of a mean of one kind and one of the other may contradict the rest: one stretch in which
/// another program had the CPU makes 7. By chance alone the kinds differ that clearly in one of 50 trials.
const CONTRADICTIONS: usize = 8;

pub(super) struct Means {
    count: Cell<usize>,
    nanos: [Cell<u64>; TRIAL],
}

impl Means {
    pub(super) const fn new() -> Self {
        Self { count: Cell::new(0), nanos: [const { Cell::new(0) }; TRIAL] }
    }

    pub(super) fn clear(&self) {
        self.count.set(0);
    }

    pub(super) fn full(&self) -> bool {
        self.count.get() == TRIAL
    }

    pub(super) fn add(&self, mean: u64) {
        if let Some(slot) = self.nanos.get(self.count.get()) {
            slot.set(mean);
            self.count.set(self.count.get() + 1);
        }
    }

    fn sorted(&self) -> ([u64; TRIAL], usize) {
        let mut sorted = [u64::MAX; TRIAL];
        let count = self.count.get();
        for (to, from) in sorted.iter_mut().zip(&self.nanos).take(count) {
            *to = from.get();
        }
        sorted.sort_unstable();
        (sorted, count)
    }

    /// The median of means, not of waits: where two programs share a CPU most waits are over before they begin, and the
    /// few others take all the time. Not the mean of means: another thread had the CPU in some stretches.
    pub(super) fn median(&self) -> u64 {
        let (sorted, count) = self.sorted();
        sorted[count / 2]
    }

    pub(super) fn far_above(&self, other: &Means) -> bool {
        let ((mine, count), (others, other_count)) = (self.sorted(), other.sorted());
        let enough = count >= CLEAR && other_count >= CLEAR;
        enough && mine[0] > others[other_count - 1].saturating_mul(2) + NOISE
    }

    /// Whether nearly all of them are above nearly all of `other` (the rank-sum test of Mann and Whitney); only if
    /// both kinds are full.
    pub(super) fn ranks_above(&self, other: &Means) -> bool {
        let others =
            |mine: u64| other.nanos.iter().filter(move |other| other.get() >= mine).count();
        let contradictions: usize = self.nanos.iter().map(|mine| others(mine.get())).sum();
        self.full() && other.full() && contradictions <= CONTRADICTIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(of: [u64; TRIAL]) -> Means {
        let means = Means::new();
        of.into_iter().for_each(|mean| means.add(mean));
        means
    }

    #[test]
    fn ranks_tell_a_small_difference_from_noise() {
        let slept = means([100, 101, 102, 103, 104, 105, 150]);
        assert!(means([107, 108, 109, 110, 111, 112, 113]).ranks_above(&slept));
        assert!(means([106, 107, 108, 109, 151, 152, 153]).ranks_above(&slept));
        let two_disturbed = means([100, 101, 102, 103, 104, 149, 150]);
        assert!(!means([107, 108, 109, 110, 111, 112, 113]).ranks_above(&two_disturbed));
        assert!(!means([100, 101, 102, 103, 151, 152, 153]).ranks_above(&slept));
        assert!(!slept.ranks_above(&slept) && !slept.ranks_above(&Means::new()));
    }
}
