//! Values that a user types and reads: times, processes, counts. A bare number is a time in microseconds everywhere.

use std::str::FromStr;
use std::time::Duration;

/// Reads a time: a number with `ns`, `us`, `ms`, `s`, `m` or `h`; a bare number is microseconds.
///
/// ```
/// use busypoll_policy::units::time;
/// use std::time::Duration;
/// assert_eq!(time("50"), Ok(Duration::from_micros(50)));
/// assert_eq!(time("10ms"), Ok(Duration::from_millis(10)));
/// ```
///
/// # Errors
/// A message of one line that says what is allowed.
pub fn time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let no_time = || format!("'{text}' is not a time; write for example 50us, 10ms or 40s");
    if number.is_empty() {
        return Err(no_time());
    }
    let nanos_per: u128 = match unit.trim() {
        "" | "us" | "µs" => 1_000,
        "ns" => 1,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        other => {
            return Err(format!("unknown unit '{other}' in '{text}'; use ns, us, ms, s, m or h"));
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return Err(no_time());
    }
    // A day is longer than any run; this limit makes every later conversion exact.
    let longer = || format!("'{text}' is longer than a day");
    let whole = if whole.is_empty() { Ok(0) } else { whole.parse() };
    let whole: u64 = whole.map_err(|_| longer())?;
    let part = nanos_of(fraction.trim_end_matches('0'), nanos_per)
        .ok_or_else(|| format!("'{text}' is no whole number of nanoseconds"))?;
    let nanos = u128::from(whole) * nanos_per + part;
    match u64::try_from(nanos) {
        Ok(nanos @ ..=DAY) => Ok(Duration::from_nanos(nanos)),
        _ => Err(longer()),
    }
}

/// A day, in nanoseconds.
const DAY: u64 = 86_400_000_000_000;

/// The digits after the point of a number of units, in nanoseconds; none if that is not a whole number.
fn nanos_of(fraction: &str, nanos_per: u128) -> Option<u128> {
    // With more digits no unit gives a whole number.
    const MOST: u32 = 13;
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok().filter(|n| *n <= MOST)?);
    let digits: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let nanos = digits * nanos_per;
    nanos.is_multiple_of(scale).then_some(nanos / scale)
}

/// Reads a time for the kernel in whole microseconds: 0, or 1 us to `i32::MAX` us.
///
/// # Errors
/// A message of one line; also for a time between 0 and 1 us, which would otherwise become "off", and for one between two
/// microseconds, which would become the shorter.
pub fn micros(text: &str) -> Result<u32, String> {
    let time = time(text)?;
    let micros = time.as_micros();
    if micros == 0 && !time.is_zero() {
        return Err(format!("'{}' is below 1us, the smallest there is (0 = off)", text.trim()));
    }
    if !time.subsec_nanos().is_multiple_of(1000) {
        let longer = micros + 1;
        return Err(format!(
            "'{}' is no whole number of microseconds; give {micros}us or {longer}us",
            text.trim()
        ));
    }
    i32::try_from(micros)
        .map(i32::unsigned_abs)
        .map_err(|_| format!("'{}' is above 2147483647us, the largest there is", text.trim()))
}

/// Reads the number of a process.
///
/// # Errors
/// A message of one line that says how to find a PID.
pub fn pid(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(pid @ 1..) => Ok(pid),
        _ => Err(format!("'{text}' is no process number; `pgrep NAME` finds them")),
    }
}

/// Reads a number that has no unit.
///
/// # Errors
/// A message of one line.
pub fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("'{text}' is not a whole number, or is out of range"))
}

/// A duration as a user would write it: `50us`, `10ms`, `1.5s`.
#[must_use]
pub fn show(d: Duration) -> String {
    let us = d.as_nanos() as f64 / 1e3;
    if us >= 1e6 {
        format!("{}s", short(us / 1e6))
    } else if us >= 1e3 {
        format!("{}ms", short(us / 1e3))
    } else {
        format!("{}us", short(us))
    }
}

fn short(x: f64) -> String {
    let text = format!("{x:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_and_counts() {
        assert_eq!((pid("4711"), number("0")), (Ok(4711), Ok(0u64)));
        for no_pid in ["", "0", "-1", "nginx", "4294967296"] {
            assert!(pid(no_pid).is_err_and(|why| why.contains("pgrep")), "{no_pid}");
        }
        assert!(number::<u32>("-1").is_err() && number::<u8>("256").is_err());
    }

    #[test]
    fn times_with_and_without_unit() {
        assert_eq!(time("50"), Ok(Duration::from_micros(50)));
        assert_eq!(time("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(time("40s"), Ok(Duration::from_secs(40)));
        assert_eq!(time(" 700 ns"), Ok(Duration::from_nanos(700)));
        assert_eq!(time("1.5us"), Ok(Duration::from_nanos(1500)));
        assert_eq!(time(".5m"), Ok(Duration::from_secs(30)));
        assert_eq!(time("1.s"), Ok(Duration::from_secs(1)));
        assert_eq!(time("0.00000000025m"), Ok(Duration::from_nanos(15)));
        assert_eq!(time("1440m"), Ok(Duration::from_secs(86_400)));
        assert_eq!(time("2h"), Ok(Duration::from_secs(7_200)));
        assert_eq!(time(".5 h"), Ok(Duration::from_secs(1_800)));
        // 2 to the power of -13: more digits never make a whole number of nanoseconds.
        assert_eq!(time("0.0001220703125h"), Ok(Duration::from_nanos(439_453_125)));
        assert_eq!(time("24h"), Ok(Duration::from_secs(86_400)));
        for wrong in ["", "ms", "-5", "5d", "25h", "1.2.3s", "1e9", "inf", "NaN", "99999999s"] {
            let error = time(wrong).expect_err(wrong);
            assert_eq!(error.lines().count(), 1, "{wrong}: {error}");
        }
    }

    #[test]
    fn a_time_below_a_microsecond_is_refused_and_not_taken_as_off() {
        assert_eq!(micros("0"), Ok(0));
        assert_eq!(micros("1us"), Ok(1));
        assert_eq!(micros("2147483647us"), Ok(i32::MAX as u32));
        for wrong in ["500ns", "0.4us", "2147483648us", "1h", "soon"] {
            assert!(micros(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_between_two_microseconds_is_refused_and_not_rounded_down() {
        assert_eq!(micros("1.5ms"), Ok(1500));
        assert_eq!(micros("0.000002s"), Ok(2));
        for wrong in ["1.5us", "1.5", "1500ns", "1.0005ms"] {
            let why = micros(wrong).expect_err(wrong);
            assert!(why.contains("no whole number of microseconds; give 1"), "{why}");
        }
        for wrong in ["1.5ns", "0.0000000005s", "1.00000000000000000001s", "0.00000000001m"] {
            let why = time(wrong).expect_err(wrong);
            assert!(why.contains("no whole number of nanoseconds"), "{why}");
        }
        for wrong in ["86400.000000001s", "99999999999999999999s", "."] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_read_back() {
        assert_eq!(show(Duration::from_micros(50)), "50us");
        assert_eq!(show(Duration::from_micros(1500)), "1.5ms");
        assert_eq!(show(Duration::from_secs(40)), "40s");
    }
}
