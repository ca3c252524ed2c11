//! The physical limit: a cache line passed back and forth between two CPUs. No packet can be faster.
//!
//! Each round trip is timed and recorded separately, exactly like an arm's transactions, so that a
//! ratio to the limit is meaningful. Measured on a two-CPU Sapphire Rapids guest, p50 in ns
//! per round trip, the range over 100 ms rounds with varying other load:
//!
//! | | one line for both directions (this file) | a line for each direction |
//! |---|---|---|
//! | each timed and recorded | 200-270 | 240-330 |
//! | 32 in a row, timed as a whole | 105-145 | 225-315 |
//! | the same, a clock reading after each | 105-165, without PAUSE 215-255 | 265-320 |
//! | the same, a clock reading and a recording after each | 200-275 | 260-320 |
//!
//! So without pauses the hardware is twice as fast, but only while almost nothing happens between an
//! answer and the next request: some 20 ns of work there cost 90. Probably the other side's polling
//! has by then taken the line back to shared, and the write must fetch it again. Every transaction of
//! an arm has such work, so this limit has it too: it is the limit of transactions, not of links.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use busypoll_linux::topology;

use crate::clock::Clock;
use crate::stats::{self, Rtts};

/// The name of the limit in lists of arms.
pub const NAME: &str = "shared-memory";

const MIN_SAMPLES: u64 = 200;
const STOP: u64 = u64::MAX;

// 128: x86 fetches cache lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// Runs a ping-pong between `client` and `server` for `time`; each sample is one round trip.
///
/// # Errors
/// A message of one line if a CPU cannot be used.
pub fn ping_pong(clock: &Clock, client: u32, server: u32, time: Duration) -> Result<Rtts, String> {
    let line = Line(AtomicU64::new(0));
    let word = &line.0;
    thread::scope(|scope| {
        let pong = scope.spawn(move || -> Result<(), String> {
            let _pinned = topology::pin(server).map_err(|e| e.to_string())?;
            // Odd numbers are the client's.
            let mut expected = 1;
            loop {
                match word.load(Ordering::Acquire) {
                    STOP => return Ok(()),
                    n if n == expected => {
                        word.store(n + 1, Ordering::Release);
                        expected += 2;
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        });
        let ping = scope.spawn(move || {
            let rtts = ping(clock, word, client, time, || pong.is_finished());
            word.store(STOP, Ordering::Release);
            pong.join().map_err(|_| "the limit's server thread panicked".to_owned())??;
            rtts
        });
        ping.join().map_err(|_| "the limit's client thread panicked".to_owned())?
    })
}

fn ping(
    clock: &Clock,
    word: &AtomicU64,
    cpu: u32,
    time: Duration,
    gone: impl Fn() -> bool,
) -> Result<Rtts, String> {
    let _pinned = topology::pin(cpu).map_err(|e| e.to_string())?;
    let mut rtts = stats::histogram();
    let mut n = 1;
    let mut round_trip = || {
        word.store(n, Ordering::Release);
        let mut spins = 0u32;
        while word.load(Ordering::Acquire) != n + 1 {
            std::hint::spin_loop();
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 16) && gone() {
                return false;
            }
        }
        n += 2;
        true
    };
    // The first answer shows that the server runs; the time starts after it.
    if !round_trip() {
        return Ok(rtts);
    }
    let mut from = clock.now();
    let end = from + clock.ticks(time);
    // Enough samples for a median, even if the other thread must wait for its CPU.
    while from < end || rtts.len() < MIN_SAMPLES {
        if !round_trip() {
            return Ok(rtts);
        }
        let to = clock.now();
        rtts.saturating_record(clock.nanos(from, to));
        from = to;
    }
    Ok(rtts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_time_and_the_ping_pong_ends() {
        let Ok(pair) = topology::default_pair() else {
            return busypoll_lab::needs::skipped(module_path!(), "two CPUs");
        };
        let clock = Clock::default();
        let rtts = ping_pong(&clock, pair.first, pair.second, Duration::from_millis(20));
        let rtts = rtts.expect("both CPUs are allowed");
        assert!(rtts.len() >= MIN_SAMPLES);
        assert!(rtts.value_at_quantile(0.5) > 5, "faster than light");
    }

    #[test]
    fn a_missing_cpu_is_an_error_of_one_line() {
        let allowed = topology::allowed().expect("affinity");
        let here = allowed.iter().next().expect("a CPU");
        for (client, server) in [(here, 8191), (8191, here)] {
            let error = ping_pong(&Clock::default(), client, server, Duration::from_millis(1))
                .expect_err("no such CPU");
            assert!(error.contains("CPU 8191") && error.lines().count() == 1, "{error}");
        }
    }
}
