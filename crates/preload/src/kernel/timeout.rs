//! Timeouts, and how much of one the kernel may spend polling: it checks the timeout only after polling.

use libc::{c_int, timespec};

pub const SECOND: u64 = 1_000_000_000;

/// The microseconds of polling, at most `micros`, that fit in a timeout in nanoseconds. The kernel's microsecond has
/// 1024 ns.
#[inline]
pub fn within(micros: u32, limit: Option<u64>) -> u32 {
    limit
        .map_or(micros, |limit| u32::try_from(limit / 1024).map_or(micros, |most| micros.min(most)))
}

/// The timeout of poll(2) and epoll_wait(2) in nanoseconds.
#[inline]
pub fn millis(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1_000_000)
}

/// A timeout in nanoseconds as that of epoll_wait(2), which is not shorter.
pub fn at_least(limit: Option<u64>) -> c_int {
    limit.map_or(-1, |nanos| c_int::try_from(nanos.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

/// A timespec in nanoseconds; 0 if its nanoseconds are not below a second.
pub fn exact(time: &timespec) -> u64 {
    if time.tv_nsec < SECOND.cast_signed() { nanos(time.tv_sec, time.tv_nsec) } else { 0 }
}

/// A time in nanoseconds; 0 for one that the real call will refuse, so that no spin precedes it.
pub fn nanos(seconds: i64, nanos: i64) -> u64 {
    match (u64::try_from(seconds), u64::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) => seconds.saturating_mul(SECOND).saturating_add(nanos),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_does_not_exceed_the_timeout() {
        assert_eq!(within(50, None), 50);
        assert_eq!(within(50, millis(1)), 50);
        assert_eq!(within(20_000, millis(1)), 976);
        assert_eq!(within(20_000, Some(1023)), 0);
        assert_eq!(within(u32::MAX, Some(u64::MAX)), u32::MAX);
    }

    #[test]
    fn a_timeout_in_milliseconds_is_not_shorter() {
        let all = [None, Some(0), Some(1), Some(1_000_001), Some(u64::MAX)].map(at_least);
        assert_eq!(all, [-1, 0, 1, 2, c_int::MAX]);
    }

    #[test]
    fn a_time_that_the_kernel_refuses_counts_as_zero() {
        assert_eq!(millis(-1), None);
        assert_eq!(exact(&timespec { tv_sec: 1, tv_nsec: 5 }), SECOND + 5);
        for (tv_sec, tv_nsec) in [(-1, 0), (0, -1), (0, SECOND.cast_signed())] {
            assert_eq!(exact(&timespec { tv_sec, tv_nsec }), 0);
        }
    }
}
