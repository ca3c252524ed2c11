//! The order and the duration of arms: interleaved rounds, each second one backwards
//! (A B C, C B A, …), so that a drift of the machine affects all arms alike.

use std::time::Duration;

/// The order of arms in each round.
///
/// Each pair of rounds is mirrored, and starts one arm after the pair before, so that over an
/// even number of rounds every arm has the same mean position and varying neighbours.
pub fn rounds(arms: usize, rounds: usize) -> Vec<Vec<usize>> {
    (0..rounds)
        .map(|round| {
            let shift = round / 2;
            let mut order: Vec<usize> = (0..arms).map(|i| (i + shift) % arms).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            order
        })
        .collect()
}

/// The division of a run's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The warm-up before each measurement: caches, neighbour entries, clocks.
    pub warm_up: Duration,
    /// The measurement of one arm in one round.
    pub measure: Duration,
    /// The idle control of one round.
    pub idle: Duration,
    /// The shared-memory limit of one round.
    pub limit: Duration,
}

/// The shortest slot, enough for a few hundred blocking round trips.
pub const MIN_SLOT: Duration = Duration::from_millis(10);

impl Budget {
    /// Divides `total` over `rounds` rounds of `arms` arms.
    ///
    /// # Errors
    /// A message of one line if a slot would be shorter than [`MIN_SLOT`].
    pub fn divide(total: Duration, arms: usize, rounds: usize) -> Result<Self, String> {
        Self::of_each(total, 1, arms, rounds)
    }

    /// Divides `total` over the points of a sweep, each with `rounds` rounds of `arms` arms.
    ///
    /// # Errors
    /// As [`Budget::divide`].
    pub fn of_each(
        total: Duration,
        points: usize,
        arms: usize,
        rounds: usize,
    ) -> Result<Self, String> {
        // An idle control counts as half a slot, the limit as a tenth.
        let slots = (arms as f64 + 0.6) * rounds as f64 * points as f64;
        let slot = total.div_f64(slots.max(1.0));
        if slot < MIN_SLOT {
            let least = MIN_SLOT.mul_f64(slots);
            // Rounded up to the precision that is shown, so that the shown time is enough.
            let least = Duration::from_millis((least.as_millis() as u64 / 10 + 1) * 10);
            let of_points = if points > 1 { format!(" x {points} points") } else { String::new() };
            return Err(format!(
                "--duration {} is too short for {arms} arms x {rounds} rounds{of_points}; give at \
                 least {}",
                crate::units::show(total),
                crate::units::show(least),
            ));
        }
        let warm_up = (slot / 8).min(Duration::from_millis(50));
        Ok(Self { warm_up, measure: slot - warm_up, idle: slot / 2, limit: slot / 10 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_runs_every_arm_once() {
        for order in rounds(7, 9) {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..7).collect::<Vec<_>>());
        }
    }

    #[test]
    fn linear_drift_cancels_over_an_even_number_of_rounds() {
        for (arms, n) in [(2, 2), (5, 4), (12, 8)] {
            let mut moments = vec![0usize; arms];
            for (r, order) in rounds(arms, n).iter().enumerate() {
                for (position, &arm) in order.iter().enumerate() {
                    moments[arm] += r * arms + position;
                }
            }
            assert!(
                moments.iter().all(|&m| m == moments[0]),
                "{arms} arms, {n} rounds: {moments:?}"
            );
        }
    }

    #[test]
    fn neighbours_change() {
        let orders = rounds(4, 8);
        let firsts: std::collections::BTreeSet<_> = orders.iter().map(|o| o[0]).collect();
        assert_eq!(firsts.len(), 4);
        assert_eq!(orders[0], [0, 1, 2, 3]);
        assert_eq!(orders[1], [3, 2, 1, 0]);
    }

    #[test]
    fn the_budget_fits_the_duration() {
        let total = Duration::from_secs(40);
        let b = Budget::divide(total, 14, 8).expect("fits");
        let used = (b.warm_up + b.measure) * 14 * 8 + (b.idle + b.limit) * 8;
        assert!(used <= total && used > total.mul_f64(0.98), "{used:?}");
        let error = Budget::divide(Duration::from_micros(40), 14, 8).expect_err("40us");
        assert!(error.contains("40us") && error.lines().count() == 1, "{error}");
    }

    /// Also for each point of a sweep.
    #[test]
    fn the_minimum_duration_in_the_error_is_enough() {
        for (points, arms, rounds) in [(1, 14, 8), (1, 31, 1000), (7, 5, 8), (8, 3, 7)] {
            let error = Budget::of_each(Duration::ZERO, points, arms, rounds).expect_err("nothing");
            let least = error.rsplit(' ').next().map(crate::units::time);
            let least = least.expect("the last word").expect("a time");
            let each = least / points as u32;
            assert!(Budget::divide(each, arms, rounds).is_ok(), "{error}");
            let shorter = least.mul_f64(0.98);
            assert!(Budget::of_each(shorter, points, arms, rounds).is_err(), "{error}");
        }
    }
}
