//! The host's limit on challenge ACKs (RFC 5961 section 7). The budget of each second is random, between half and one
//! and a half of the limit, so that an attacker that counts what is left of it cannot tell whether a segment was
//! answered (CVE-2016-5696).

use crate::{
    inet::random::Key,
    sync::{AtomicU64, Ordering},
    time::Instant,
};
use std::hash::Hasher;

/// The budget of one host.
#[derive(Debug)]
pub(super) struct Challenges {
    limit: u32,
    key: Key,
    /// The second (upper half) and how many were sent in it.
    spent: AtomicU64,
}

impl Challenges {
    pub(super) fn new(limit: u32, key: Key) -> Challenges {
        Challenges { limit, key, spent: AtomicU64::new(0) }
    }

    /// Whether one more may be sent. `u32::MAX`: always.
    pub(super) fn allow(&self, now: Instant) -> bool {
        if self.limit == u32::MAX {
            return true;
        }
        let second = now.nanos() / 1_000_000_000;
        let budget = self.budget(second);
        let spend = |spent: u64| {
            let fresh = second << 32;
            let spent = if spent >> 32 == fresh >> 32 { spent } else { fresh };
            ((spent as u32) < budget).then(|| spent + 1)
        };
        self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
    }

    fn budget(&self, second: u64) -> u32 {
        let mut hash = self.key.hasher();
        hash.write_u64(second);
        let part = ((hash.finish() >> 32) * u64::from(self.limit)) >> 32;
        (self.limit / 2).saturating_add(part as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend_all(challenges: &Challenges, second: u64) -> u32 {
        let now = Instant::from_millis(second * 1_000);
        (0..10_000).filter(|_| challenges.allow(now)).count() as u32
    }

    //= RFC 5961 7 test
    //# An implementation SHOULD include an ACK throttling mechanism to be conservative.
    #[test]
    fn each_second_has_another_budget_around_the_limit() {
        let challenges = Challenges::new(1_000, 7.into());
        let budgets: Vec<u32> = (1..20).map(|second| spend_all(&challenges, second)).collect();
        assert!(budgets.iter().all(|budget| (500..1_500).contains(budget)), "{budgets:?}");
        assert!(budgets.windows(2).all(|pair| pair[0] != pair[1]), "{budgets:?}");
        assert_eq!(spend_all(&challenges, 19), 0, "spent within the second");
    }

    #[test]
    fn another_key_gives_other_budgets() {
        let of = |key: u128| spend_all(&Challenges::new(1_000, key.into()), 5);
        let all = [of(1), of(2), of(1 << 64)];
        assert!((1..3).all(|i| !all[..i].contains(&all[i])), "{all:?}");
    }
}
