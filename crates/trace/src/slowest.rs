//! The slowest packets of a trace.

use busypoll_bench::data::SlowPacket;

/// How many are kept.
pub const MOST: usize = 10;

/// The slowest, the slowest first.
#[derive(Debug, Default)]
pub struct Slowest(Vec<SlowPacket>);

impl Slowest {
    /// Adds one that is slow enough; its story is made only then.
    pub fn add(&mut self, total_us: f64, story: impl FnOnce() -> SlowPacket) {
        if self.0.len() == MOST && self.0[MOST - 1].total_us >= total_us {
            return;
        }
        let place = self.0.partition_point(|other| other.total_us >= total_us);
        self.0.insert(place, story());
        self.0.truncate(MOST);
    }

    /// Them.
    pub fn into_inner(self) -> Vec<SlowPacket> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slowest_are_kept_in_order() {
        let mut all = Slowest::default();
        for n in (0..50).chain(25..75).rev() {
            let total_us = f64::from(n);
            all.add(total_us, || SlowPacket {
                direction: "received".into(),
                total_us,
                stage: "ring".into(),
                stage_us: total_us,
                cpu: 0,
                socket: String::new(),
                story: String::new(),
            });
        }
        let kept: Vec<f64> = all.into_inner().iter().map(|slow| slow.total_us).collect();
        assert_eq!(kept, [74.0, 73.0, 72.0, 71.0, 70.0, 69.0, 68.0, 67.0, 66.0, 65.0]);
    }
}
