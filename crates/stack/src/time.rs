//! Time as a value. Protocol code takes an [`Instant`] as an argument and never reads a clock; only the
//! socket layer, the NAPI contexts, the drivers, and the code that talks to the kernel (`host/companion.rs`,
//! `inet/kernel`) call [`now`].

use std::{
    ops::{Add, Sub},
    sync::OnceLock,
    time::Duration,
};

/// A point in time: nanoseconds since an arbitrary start, never going back.
///
/// ```
/// use busypoll_stack::time::Instant;
/// use std::time::Duration;
/// let start = Instant::from_nanos(1_000);
/// assert_eq!(start + Duration::from_micros(2) - start, Duration::from_nanos(2_000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The start of time.
    pub const ZERO: Instant = Instant(0);

    /// The instant `nanos` nanoseconds after the start.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// The instant `micros` microseconds after the start.
    pub const fn from_micros(micros: u64) -> Instant {
        Instant(micros * 1_000)
    }

    /// The instant `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    /// Nanoseconds since the start.
    #[inline]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds from `earlier` to this; zero if it is not after it.
    #[inline]
    pub const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// A clock, and how many nanoseconds 2^[`SHIFT`] of its ticks take: reading it is one multiplication.
struct Clock {
    ticks: quanta::Clock,
    nanos: u64,
}

/// Large, so that years of ticks are off by nanoseconds at most.
const SHIFT: u32 = 56;

/// The present, from the time stamp counter where it is invariant: about 10 ns a call.
#[inline]
pub fn now() -> Instant {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    let clock = CLOCK.get_or_init(|| {
        let ticks = quanta::Clock::new();
        let nanos = ticks.delta_as_nanos(0, 1 << SHIFT);
        Clock { ticks, nanos }
    });
    Instant(((u128::from(clock.ticks.raw()) * u128::from(clock.nanos)) >> SHIFT) as u64)
}
