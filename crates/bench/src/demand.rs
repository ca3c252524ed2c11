//! Service demand: what a transaction costs the whole machine, in microseconds of CPU (netperf's term).

use std::thread;
use std::time::{Duration, Instant};

use busypoll_linux::stat::CpuTimes;
use serde::{Deserialize, Serialize};

/// CPU time used, and how much there was, summed over rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPUs x elapsed - idle - iowait.
    pub used: Duration,
    /// CPUs x elapsed.
    pub capacity: Duration,
}

impl Usage {
    /// Adds a measurement, or another machine's.
    pub fn add(&mut self, other: Self) {
        self.used += other.used;
        self.capacity += other.capacity;
    }

    /// The part that was idle, 0 to 1; none where nothing was measured.
    pub fn idle_share(&self) -> Option<f64> {
        (!self.capacity.is_zero()).then(|| 1.0 - self.share())
    }

    /// The part used, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.capacity.is_zero() {
            return 0.0;
        }
        (self.used.as_secs_f64() / self.capacity.as_secs_f64()).min(1.0)
    }
}

/// The idle control: what the machine uses while the benchmark does nothing for `time`.
///
/// # Errors
/// One line when `/proc/stat` does not answer.
pub fn idle(time: Duration) -> Result<Usage, String> {
    let before = CpuTimes::now().map_err(|e| e.to_string())?;
    let start = Instant::now();
    thread::sleep(time);
    let elapsed = start.elapsed();
    let after = CpuTimes::now().map_err(|e| e.to_string())?;
    let times = after.since(&before);
    let capacity = elapsed * times.cpus.len() as u32;
    Ok(Usage { used: times.used(elapsed), capacity })
}

/// Of an idle machine, more than this used by others disturbs the figures.
pub const DISTURBED: f64 = 0.1;
/// No idle time worth the name was left.
const SATURATED: f64 = 0.97;

/// Microseconds of CPU per transaction, less what the idle machine would have used anyway; none where
/// that cannot be told: other programs want so much that the load did not add to them but displaced
/// them.
///
/// The kernel reports idle time in ticks of 10 ms, so only sums over rounds mean anything.
pub fn service_demand_us(load: Usage, idle: Usage, transactions: u64) -> Option<f64> {
    let background = idle.share() * load.capacity.as_secs_f64();
    let own = load.used.as_secs_f64() - background;
    // Of a small difference between two large figures, most is the others' ups and downs.
    let hidden = idle.share() > DISTURBED && (load.share() > SATURATED || own < background);
    (transactions > 0 && own > 0.0 && !hidden).then(|| own * 1e6 / transactions as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used_ms: u64, capacity_ms: u64) -> Usage {
        Usage { used: Duration::from_millis(used_ms), capacity: Duration::from_millis(capacity_ms) }
    }

    #[test]
    fn known_answers() {
        let is = |got: Option<f64>, want: f64| (got.expect("a figure") - want).abs() < 1e-9;
        // Two CPUs fully busy for one second, 100,000 transactions: 20 us each.
        let none = Usage::default();
        assert!(is(service_demand_us(usage(2000, 2000), none, 100_000), 20.0));
        // A background of one CPU in twenty is not theirs.
        assert!(is(service_demand_us(usage(1600, 2000), usage(10, 200), 100_000), 15.0));
        // Two busy CPUs among eight, a quarter of which others use.
        assert!(is(service_demand_us(usage(4000, 8000), usage(50, 200), 100_000), 20.0));
        assert_eq!(service_demand_us(usage(10, 1000), none, 0), None);
    }

    #[test]
    fn a_load_that_displaced_others_has_no_figure() {
        assert_eq!(service_demand_us(usage(2000, 2000), usage(198, 200), 100_000), None);
        assert_eq!(service_demand_us(usage(2000, 2000), usage(50, 200), 100_000), None);
        assert_eq!(service_demand_us(usage(10, 1000), usage(50, 200), 100), None);
        // Room was left, but more is the others' than the load's.
        assert_eq!(service_demand_us(usage(1800, 2000), usage(110, 200), 100_000), None);
    }

    #[test]
    fn what_is_not_used_is_idle() {
        assert_eq!(usage(50, 200).idle_share(), Some(0.75));
        assert_eq!(usage(0, 200).idle_share(), Some(1.0));
        assert_eq!(Usage::default().idle_share(), None);
    }

    #[test]
    fn an_idle_control_takes_its_time() {
        let idle = idle(Duration::from_millis(20)).expect("/proc/stat");
        assert!(idle.capacity >= Duration::from_millis(20) && idle.share() <= 1.0);
    }
}
