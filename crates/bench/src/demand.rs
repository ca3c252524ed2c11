//! Service demand: what a transaction costs the whole machine, in microseconds of CPU (netperf's term).

use std::thread;
use std::time::{Duration, Instant};

use busypoll_linux::stat::CpuTimes;
use serde::{Deserialize, Serialize};

/// CPU time used and the time it took, summed over rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPUs x elapsed - idle - iowait.
    pub used: Duration,
    /// Wall clock.
    pub elapsed: Duration,
}

impl Usage {
    /// Adds a measurement.
    pub fn add(&mut self, used: Duration, elapsed: Duration) {
        self.used += used;
        self.elapsed += elapsed;
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
    Ok(Usage { used: after.since(&before).used(elapsed), elapsed })
}

/// Microseconds of CPU per transaction, less what the idle machine would have used anyway; none if
/// that is all there was: on a machine busy with other things the load displaces them, and its own
/// share cannot be told.
///
/// The kernel reports idle time in ticks of 10 ms, so only sums over rounds mean anything.
pub fn service_demand_us(load: Usage, idle: Usage, transactions: u64) -> Option<f64> {
    let background = if idle.elapsed.is_zero() {
        0.0
    } else {
        idle.used.as_secs_f64() / idle.elapsed.as_secs_f64() * load.elapsed.as_secs_f64()
    };
    let own = load.used.as_secs_f64() - background;
    (own > 0.0 && transactions > 0).then(|| own * 1e6 / transactions as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used_ms: u64, elapsed_ms: u64) -> Usage {
        Usage { used: Duration::from_millis(used_ms), elapsed: Duration::from_millis(elapsed_ms) }
    }

    #[test]
    fn known_answers() {
        // Two CPUs fully busy for one second, 100,000 transactions: 20 us each.
        let none = Usage::default();
        let is = |got: Option<f64>, want: f64| (got.expect("a figure") - want).abs() < 1e-9;
        assert!(is(service_demand_us(usage(2000, 1000), none, 100_000), 20.0));
        // A background that uses a quarter of a CPU is not theirs.
        let idle = usage(50, 200);
        assert!(is(service_demand_us(usage(2000, 1000), idle, 100_000), 17.5));
        assert_eq!(service_demand_us(usage(10, 1000), idle, 100), None);
        assert_eq!(service_demand_us(usage(10, 1000), none, 0), None);
    }

    #[test]
    fn an_idle_control_takes_its_time() {
        let idle = idle(Duration::from_millis(20)).expect("/proc/stat");
        assert!(idle.elapsed >= Duration::from_millis(20));
    }
}
