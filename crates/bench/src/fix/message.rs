//! FIX messages: built into a buffer that is kept, and found in what a connection has brought.

use std::time::{SystemTime, UNIX_EPOCH};

/// Between fields.
const SOH: u8 = 1;
/// The version of the session, which engines of all ages speak.
const BEGIN: &[u8] = b"8=FIX.4.2\x019=";
/// `10=ddd` and a separator.
const TRAILER: usize = 7;
/// Longer bodies are refused.
const LONGEST: usize = 8192;

/// A message under construction.
#[derive(Debug, Default)]
pub struct Builder {
    body: Vec<u8>,
    whole: Vec<u8>,
}

impl Builder {
    /// Begins a message of this type.
    pub fn begin(&mut self, kind: u8) -> &mut Self {
        self.body.clear();
        self.field(35, &[kind])
    }

    /// Adds a field.
    pub fn field(&mut self, tag: u32, value: &[u8]) -> &mut Self {
        self.number(tag);
        self.body.push(b'=');
        self.body.extend_from_slice(value);
        self.body.push(SOH);
        self
    }

    /// Adds a field with a number.
    pub fn count(&mut self, tag: u32, value: u64) -> &mut Self {
        let mut digits = [0; 20];
        let from = decimal(value, &mut digits);
        self.field(tag, &digits[from..])
    }

    fn number(&mut self, value: u32) {
        let mut digits = [0; 20];
        let from = decimal(value.into(), &mut digits);
        self.body.extend_from_slice(&digits[from..]);
    }

    /// The message with its length and its checksum.
    pub fn finish(&mut self) -> &[u8] {
        let mut digits = [0; 20];
        let from = decimal(self.body.len() as u64, &mut digits);
        self.whole.clear();
        self.whole.extend_from_slice(BEGIN);
        self.whole.extend_from_slice(&digits[from..]);
        self.whole.push(SOH);
        self.whole.extend_from_slice(&self.body);
        let sum = checksum(&self.whole);
        let digit = |n: u8| b'0' + n % 10;
        self.whole.extend_from_slice(b"10=");
        self.whole.extend_from_slice(&[digit(sum / 100), digit(sum / 10), digit(sum), SOH]);
        &self.whole
    }
}

/// Writes `value` at the end of `digits`; returns where it begins.
fn decimal(mut value: u64, digits: &mut [u8; 20]) -> usize {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 || at == 0 {
            return at;
        }
    }
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// A whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The first message in `bytes` and its length; none if it has not come whole.
    ///
    /// # Errors
    /// What makes it no FIX message, in a few words.
    pub fn find(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, &'static str> {
        // FIX.4.0 to FIX.4.4 and FIXT.1.1 differ behind the first three letters.
        let start = b"8=FIX";
        if !bytes.iter().zip(start).all(|(a, b)| a == b) {
            return Err("it does not begin with 8=FIX");
        }
        let Some(end_of_begin) = bytes.iter().take(16).position(|byte| *byte == SOH) else {
            return if bytes.len() < 16 {
                Ok(None)
            } else {
                Err("no field ends where BeginString should")
            };
        };
        let rest = &bytes[end_of_begin + 1..];
        if !rest.iter().zip(b"9=").all(|(a, b)| a == b) {
            return Err("the second field is not BodyLength");
        }
        let digits = rest.get(2..).unwrap_or_default();
        let Some(count) = digits.iter().take(7).position(|byte| *byte == SOH) else {
            return if digits.len() < 7 { Ok(None) } else { Err("BodyLength is too long") };
        };
        let length = number(&digits[..count]).ok_or("BodyLength is no number")? as usize;
        if length > LONGEST {
            return Err("the body is longer than any that is sent here");
        }
        let begin = end_of_begin + 1 + 2 + count + 1;
        let end = begin + length;
        let Some(whole) = bytes.get(..end + TRAILER) else { return Ok(None) };
        let (counted, trailer) = whole.split_at(end);
        let [b'1', b'0', b'=', a, b, c, SOH] = *trailer else {
            return Err("no CheckSum behind the body");
        };
        if number(&[a, b, c]) != Some(checksum(counted).into()) {
            return Err("the CheckSum is wrong");
        }
        Ok(Some((Self { body: &counted[begin..] }, whole.len())))
    }

    /// The value of the first field with this tag.
    pub fn get(&self, tag: u32) -> Option<&'a [u8]> {
        let mut fields = self.body.split(|byte| *byte == SOH);
        fields.find_map(|field| {
            let equals = field.iter().position(|byte| *byte == b'=')?;
            (number(&field[..equals]) == Some(tag.into())).then(|| &field[equals + 1..])
        })
    }

    /// The value of a field as a number.
    pub fn count(&self, tag: u32) -> Option<u64> {
        number(self.get(tag)?)
    }

    /// The message's type; 0 if it has none.
    pub fn kind(&self) -> u8 {
        self.get(35).and_then(|kind| kind.first()).copied().unwrap_or(0)
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits
        .iter()
        .try_fold(0u64, |n, digit| digit.is_ascii_digit().then(|| n * 10 + u64::from(digit - b'0')))
}

/// UTC as FIX writes it, `20261126-22:15:00.123`; the day is computed once a day.
#[derive(Debug, Default)]
pub struct Timestamp {
    day: u64,
    text: [u8; 21],
}

impl Timestamp {
    /// The time now.
    pub fn now(&mut self) -> &[u8] {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.at(since.as_secs(), since.subsec_millis())
    }

    fn at(&mut self, seconds: u64, millis: u32) -> &[u8] {
        let day = seconds / 86_400;
        if self.text[0] == 0 || self.day != day {
            self.day = day;
            // Days since 1970 to a date, with years that begin in March.
            let shifted = day + 719_468;
            let era_day = shifted % 146_097;
            let of_era = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
            let of_year = era_day - (365 * of_era + of_era / 4 - of_era / 100);
            let month = (5 * of_year + 2) / 153;
            let date = of_year - (153 * month + 2) / 5 + 1;
            let month = if month < 10 { month + 3 } else { month - 9 };
            let year = of_era + shifted / 146_097 * 400 + u64::from(month <= 2);
            digits(&mut self.text[..4], year);
            digits(&mut self.text[4..6], month);
            digits(&mut self.text[6..8], date);
            for (at, byte) in [(8, b'-'), (11, b':'), (14, b':'), (17, b'.')] {
                self.text[at] = byte;
            }
        }
        let second = seconds % 86_400;
        digits(&mut self.text[9..11], second / 3600);
        digits(&mut self.text[12..14], second / 60 % 60);
        digits(&mut self.text[15..17], second % 60);
        digits(&mut self.text[18..21], millis.into());
        &self.text
    }
}

fn digits(into: &mut [u8], mut value: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_found_and_nothing_less() {
        let mut builder = Builder::default();
        let bytes = builder
            .begin(b'D')
            .field(49, b"BUY")
            .count(34, 1234567)
            .field(11, b"")
            .finish()
            .to_vec();
        let (message, length) = Message::find(&bytes).expect("FIX").expect("whole");
        assert_eq!((length, message.kind()), (bytes.len(), b'D'));
        assert_eq!((message.get(49), message.count(34)), (Some(&b"BUY"[..]), Some(1_234_567)));
        assert_eq!(
            (message.get(11), message.get(12), message.count(11)),
            (Some(&b""[..]), None, None)
        );
        for end in 0..bytes.len() {
            assert_eq!(Message::find(&bytes[..end]), Ok(None), "{end}");
        }
        let two = [&bytes[..], &bytes[..]].concat();
        assert_eq!(Message::find(&two).expect("FIX").expect("whole").1, bytes.len());
    }

    /// From the FIX specification's examples: a Heartbeat and its checksum.
    #[test]
    fn a_message_of_another_engine_is_found() {
        let text = "8=FIX.4.2|9=49|35=5|34=1|49=ARCA|52=20150916-04:14:05.306|56=TW|10=157|";
        let text = text.replace('|', "\u{1}");
        let (message, _) = Message::find(text.as_bytes()).expect("FIX").expect("whole");
        assert_eq!((message.kind(), message.get(56)), (b'5', Some(&b"TW"[..])));
    }

    #[test]
    fn any_change_of_a_byte_is_noticed_or_asks_for_more() {
        let mut builder = Builder::default();
        let bytes = builder.begin(b'0').field(49, b"BUY").finish().to_vec();
        for at in 0..bytes.len() {
            for value in [0, 1, b'0', b'9', b'=', 255] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let found = Message::find(&changed);
                assert!(
                    changed == bytes || !matches!(found, Ok(Some((_, n))) if n == bytes.len()),
                    "{at} {value}"
                );
            }
        }
        for text in [
            "",
            "8",
            "9=3",
            "8=FIX.4.2 9=",
            "8=FIX.4.2\u{1}9=99999999\u{1}",
            "8=FIX.4.2\u{1}9=9999\u{1}",
        ] {
            let _ = Message::find(text.as_bytes());
        }
    }

    #[test]
    fn a_timestamp_is_utc() {
        let mut time = Timestamp::default();
        for (seconds, text) in [
            (0, "19700101-00:00:00.007"),
            (951_782_400, "20000229-00:00:00.007"),
            (951_868_799, "20000229-23:59:59.007"),
            (951_868_800, "20000301-00:00:00.007"),
            (1_798_761_599, "20261231-23:59:59.007"),
        ] {
            assert_eq!(time.at(seconds, 7), text.as_bytes());
        }
    }
}
