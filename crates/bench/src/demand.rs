//! Service demand: the CPU time of the whole machine per transaction, in microseconds (netperf's term).

use std::thread;
use std::time::{Duration, Instant};

use busypoll_linux::stat::CpuTimes;
use serde::{Deserialize, Serialize};

/// CPU time used and available, summed over rounds.
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

    /// The share that was idle, 0 to 1; none if nothing was measured.
    pub fn idle_share(&self) -> Option<f64> {
        (!self.capacity.is_zero()).then(|| 1.0 - self.share())
    }

    /// The share used, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.capacity.is_zero() {
            return 0.0;
        }
        (self.used.as_secs_f64() / self.capacity.as_secs_f64()).min(1.0)
    }
}

/// The idle control: the machine's CPU use while the benchmark does nothing for `time`.
///
/// # Errors
/// A message of one line if `/proc/stat` cannot be read.
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

/// If other programs use more than this on the idle machine, they disturb the figures.
pub const DISTURBED: f64 = 0.1;
/// Above this share practically no idle time was left.
const SATURATED: f64 = 0.97;

/// Microseconds of CPU per transaction, less what the idle machine would have used anyway; none if
/// that is not measurable: other programs use so much that the load did not add to their use but displaced
/// them.
///
/// The kernel reports idle time in ticks of 10 ms, so only sums over rounds are meaningful.
pub fn service_demand_us(load: Usage, idle: Usage, transactions: u64) -> Option<f64> {
    let background = idle.share() * load.capacity.as_secs_f64();
    let own = load.used.as_secs_f64() - background;
    // A small difference between two large figures consists mostly of the other programs' fluctuations.
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
    fn known_loads_have_the_expected_demand() {
        let is = |got: Option<f64>, want: f64| (got.expect("a figure") - want).abs() < 1e-9;
        // Two CPUs fully busy for one second, 100,000 transactions: 20 us each.
        let none = Usage::default();
        assert!(is(service_demand_us(usage(2000, 2000), none, 100_000), 20.0));
        // A background load of one CPU in twenty is subtracted.
        assert!(is(service_demand_us(usage(1600, 2000), usage(10, 200), 100_000), 15.0));
        // Two busy CPUs of eight, and other programs use a quarter of the machine.
        assert!(is(service_demand_us(usage(4000, 8000), usage(50, 200), 100_000), 20.0));
        assert_eq!(service_demand_us(usage(10, 1000), none, 0), None);
    }

    #[test]
    fn a_load_that_displaced_other_programs_has_no_figure() {
        assert_eq!(service_demand_us(usage(2000, 2000), usage(198, 200), 100_000), None);
        assert_eq!(service_demand_us(usage(2000, 2000), usage(50, 200), 100_000), None);
        assert_eq!(service_demand_us(usage(10, 1000), usage(50, 200), 100), None);
        // CPU time was left, but other programs used more than the load.
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
