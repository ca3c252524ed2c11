//! Values that a user types: times, sizes, CPU pairs. Parsers that never panic, one line per mistake.

pub use busypoll_policy::units::{micros, number, show, time};

use crate::arm::Protocol;

/// The largest UDP payload IPv4 can carry (65535 less 20 and 8 bytes of headers).
pub const UDP_MAX: usize = 65_507;

/// The largest request or response of a TCP arm.
pub const TCP_MAX: usize = 1 << 20;

/// Reads a share in per cent, 0 to 100, with or without the % sign.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse();
    match number {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("'{text}' is no share; write 0 to 100, for example 1%")),
    }
}

/// The MTU of the lab and of cables, unless another is asked for.
pub(crate) const LAB_MTU: usize = 1500;

/// Request and response sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Bytes the client sends.
    pub request: usize,
    /// Bytes the server answers with.
    pub response: usize,
}

impl Size {
    /// The message size for a protocol if these sizes are requested.
    #[must_use]
    pub fn carried_by(self, protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => self,
            Protocol::Udp => {
                Self { request: self.request.min(UDP_MAX), response: self.response.min(UDP_MAX) }
            }
        }
    }
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

/// The sizes of a sweep; 0 ends them.
pub type Sizes = [usize; 16];

/// The sizes that show where the gain ends.
pub const SIZES: Sizes = [1, 64, 256, 1024, 1472, 4096, 16_384, 65_536, 0, 0, 0, 0, 0, 0, 0, 0];

/// Sizes in bytes, separated by commas.
///
/// # Errors
/// A message of one line.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    let mut all = Sizes::default();
    let most = all.len();
    for (nth, word) in text.split(',').enumerate() {
        let bytes = word.trim().parse().ok().filter(|n| (1..=65_536).contains(n));
        let slot = all.get_mut(nth).ok_or_else(|| format!("more than {most} sizes"))?;
        *slot = bytes.ok_or_else(|| format!("'{word}' is no size: 1 to 65536 bytes"))?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_bounded() {
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
}
