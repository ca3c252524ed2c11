//! A clock of nanoseconds for processes that share a [`Pace`]: the time stamp counter if it is invariant, read
//! in 10 ns where clock_gettime(2) takes 25, else `CLOCK_MONOTONIC`.
//!
//! Its zero is that of the counter or of `CLOCK_MONOTONIC`, and its rate is off by some parts in a thousand: times are
//! comparable only with others of the same pace.

/// Nanoseconds per tick, times 2^32; 1 if the counter must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace(u64);

const MONOTONIC: u64 = 1;
/// How long the counter is measured, in nanoseconds.
const WATCHED: u64 = 50_000;
/// How often a simultaneous reading of both clocks is tried.
const TRIES: usize = 5;
/// The most that two readings of the kernel's clock are apart if it uses the counter too, in nanoseconds.
const MAX_GAP: u64 = 1_000;

impl Pace {
    /// `CLOCK_MONOTONIC`.
    const MONOTONIC: Self = Self(MONOTONIC);

    /// Measures the counter, for 50 microseconds.
    #[must_use]
    pub fn measure() -> Self {
        if !is_invariant() {
            return Self::MONOTONIC;
        }
        let Some((began, first)) = both() else { return Self::MONOTONIC };
        while monotonic() - began < WATCHED {}
        let Some((ended, last)) = both() else { return Self::MONOTONIC };
        let pace = (u128::from(ended - began) << 32).checked_div(last.saturating_sub(first).into());
        // In range for counters between one tick in 4 seconds and 4 THz.
        match pace.map(u64::try_from) {
            Some(Ok(pace)) if pace > MONOTONIC => Self(pace),
            _ => Self::MONOTONIC,
        }
    }

    /// The bits to share with other processes; never 0.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From the bits of another process; `None` if there are none yet.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// The time, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn now(self) -> u64 {
        if self == Self::MONOTONIC {
            return monotonic();
        }
        ((u128::from(ticks()) * u128::from(self.0)) >> 32) as u64
    }
}

/// Whether `time`, which was set at most `most` nanoseconds ahead, is still to come. A time further ahead was set
/// before the counter restarted, as it may when the machine suspends.
#[inline]
#[must_use]
pub fn is_ahead(time: u64, now: u64, most: u64) -> bool {
    now < time && time - now <= most
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Through the C library, which knows if the vDSO is unavailable, as under valgrind.
    // SAFETY: valid for writes. It does not fail: every kernel has the clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has it; a kernel that forbids it to processes (PR_SET_TSC) forbids the vDSO, too.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Both clocks at one moment: nanoseconds and ticks. `None` if that fails: the kernel uses another clock source,
/// possibly because it found the counter unstable.
fn both() -> Option<(u64, u64)> {
    let reads = std::array::from_fn::<_, TRIES, _>(|_| {
        let (before, ticks, after) = (monotonic(), ticks(), monotonic());
        (after - before, before + (after - before) / 2, ticks)
    });
    // In a try whose readings are far apart, another thread had the CPU.
    let best = reads.into_iter().min_by_key(|&(apart, ..)| apart);
    best.filter(|&(apart, ..)| apart < MAX_GAP).map(|(_, nanos, ticks)| (nanos, ticks))
}

/// Whether the counter has a constant rate at all times and on all CPUs.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    // "Advanced Power Management Information": EDX bit 8 (Intel SDM vol. 2, CPUID; AMD APM vol. 3, appendix E).
    const POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_invariant() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_clock_keeps_time_with_the_kernels() {
        let measured = Pace::measure();
        assert_eq!(Pace::from_bits(measured.to_bits()), Some(measured));
        assert_eq!(Pace::from_bits(0), None);
        for pace in [measured, Pace::MONOTONIC] {
            // Another thread may have the CPU between any two of these.
            let read = || (monotonic(), pace.now(), monotonic());
            let (before, start, after) = read();
            std::thread::sleep(Duration::from_millis(50));
            let (ended, end, left) = read();
            let (least, most) = (ended - after, left - before);
            let took = end - start;
            assert!(took > least - least / 10 && took < most + most / 10, "{took} {pace:?}");
        }
    }
}
