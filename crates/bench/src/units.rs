//! What a user types: times, sizes, CPU pairs. Total parsers, one line per mistake.

use std::time::Duration;

/// The largest UDP payload IPv4 can carry (65535 less 20 and 8 bytes of headers).
pub const UDP_MAX: usize = 65_507;

/// The largest request or response of a TCP arm.
pub const TCP_MAX: usize = 1 << 20;

/// Reads a time: a number with `ns`, `us`, `ms`, `s` or `m`; a bare number is microseconds.
///
/// ```
/// use busypoll_bench::units::time;
/// use std::time::Duration;
/// assert_eq!(time("50"), Ok(Duration::from_micros(50)));
/// assert_eq!(time("10ms"), Ok(Duration::from_millis(10)));
/// ```
pub fn time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let nanos_per = match unit.trim() {
        "" | "us" | "µs" => 1e3,
        "ns" => 1.0,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        other => return Err(format!("unknown unit '{other}' in '{text}'; use ns, us, ms, s or m")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a time; write for example 50us, 10ms or 40s"))?;
    let nanos = number * nanos_per;
    // A day is longer than any run; the bound keeps every later conversion exact.
    if nanos > 86_400e9 {
        return Err(format!("'{text}' is longer than a day"));
    }
    Ok(Duration::from_nanos(nanos.round() as u64))
}

/// Reads a share in per cent, 0 to 100, with or without the sign.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse();
    match number {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("'{text}' is no share; write 0 to 100, for example 1%")),
    }
}

/// Request and response sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Bytes the client sends.
    pub request: usize,
    /// Bytes the server answers with.
    pub response: usize,
}

/// Reads `REQ,RESP` (or one number for both); a trailing `k` means 1024 bytes.
pub fn size(text: &str) -> Result<Size, String> {
    let mut parts = text.split(',');
    let request = bytes(parts.next().unwrap_or_default(), text)?;
    let response = match parts.next() {
        Some(part) => bytes(part, text)?,
        None => request,
    };
    if parts.next().is_some() {
        return Err(format!("'{text}' has more than two sizes; write REQ,RESP, for example 1,1"));
    }
    Ok(Size { request, response })
}

fn bytes(part: &str, whole: &str) -> Result<usize, String> {
    let part = part.trim();
    let (digits, factor) = match part.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (part, 1),
    };
    let bytes =
        digits.parse::<usize>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(|| {
            format!("'{whole}' is not REQ,RESP in bytes, for example 1,1 or 64,1k")
        })?;
    match bytes {
        0 => Err(format!("size 0 in '{whole}': a message carries at least 1 byte")),
        n if n > TCP_MAX => Err(format!("size {n} in '{whole}' is above {TCP_MAX} bytes")),
        n => Ok(n),
    }
}

/// Reads `A,B`: the client's and the server's CPU.
pub fn cpu_pair(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("'{text}' is not two CPU numbers; write CLIENT,SERVER, for example 0,1");
    let (a, b) = text.split_once(',').ok_or_else(wrong)?;
    let number = |s: &str| s.trim().parse::<u32>().map_err(|_| wrong());
    let (a, b) = (number(a)?, number(b)?);
    if a == b {
        return Err(format!(
            "'{text}' names CPU {a} twice; same-cpu arms use the first, the others need a second"
        ));
    }
    Ok((a, b))
}

/// A duration as a person writes it: `50us`, `10ms`, `1.5s`.
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
    fn times_with_and_without_unit() {
        assert_eq!(time("50"), Ok(Duration::from_micros(50)));
        assert_eq!(time("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(time("40s"), Ok(Duration::from_secs(40)));
        assert_eq!(time(" 700 ns"), Ok(Duration::from_nanos(700)));
        for wrong in ["", "ms", "-5", "5h", "1.2.3s", "1e9", "inf", "NaN", "99999999s"] {
            let error = time(wrong).expect_err(wrong);
            assert_eq!(error.lines().count(), 1, "{wrong}: {error}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(size("1,1"), Ok(Size { request: 1, response: 1 }));
        assert_eq!(size("64"), Ok(Size { request: 64, response: 64 }));
        assert_eq!(size("1,64k"), Ok(Size { request: 1, response: 65_536 }));
        for wrong in
            ["0,1", "1,0", "", ",", "1,2,3", "-1,1", "1,2m", "99999999999999999999k", "2000k"]
        {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cpu_pairs_are_two_different_numbers() {
        assert_eq!(cpu_pair("0,1"), Ok((0, 1)));
        for wrong in ["", "0", "0,", "a,b", "0,1,2", "1,1", "-1,0", "0-1"] {
            assert!(cpu_pair(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_read_back() {
        assert_eq!(show(Duration::from_micros(50)), "50us");
        assert_eq!(show(Duration::from_micros(1500)), "1.5ms");
        assert_eq!(show(Duration::from_secs(40)), "40s");
    }
}
