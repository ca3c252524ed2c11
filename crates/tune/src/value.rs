//! A setting's value and its forms: in the journal, in a profile, for the user.

use std::time::Duration;

use busypoll_linux::topology::CpuList;
use busypoll_policy::units;
use serde::{Deserialize, Serialize};

use crate::key::{KeyFacts, Unit};

/// A value of a setting, in the unit of its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// On or off.
    Switch(bool),
    /// A number: microseconds, nanoseconds, or a count.
    Number(u64),
    /// CPUs or interrupts, in Linux's list format; empty for none.
    Cpus(String),
}

impl Value {
    /// A list of CPUs.
    pub fn cpus(list: &CpuList) -> Self {
        Value::Cpus(list.to_string())
    }

    /// The number, if the value is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Number(n) => Some(*n),
            _ => None,
        }
    }

    /// Reads a value of a profile, in the unit of its key.
    ///
    /// # Errors
    /// A message of one line that says what is allowed.
    pub fn read(text: &str, about: &KeyFacts) -> Result<Self, String> {
        let text = text.trim();
        let value = match about.unit {
            Unit::Switch => {
                return match text {
                    "true" | "on" => Ok(Value::Switch(true)),
                    "false" | "off" => Ok(Value::Switch(false)),
                    _ => Err(format!("'{text}' is neither true nor false")),
                };
            }
            Unit::Cpus | Unit::Interrupts if text.is_empty() || text == "none" => {
                return Ok(Value::Cpus(String::new()));
            }
            Unit::Cpus | Unit::Interrupts => {
                let list: CpuList = text.parse().map_err(|e| format!("{e}"))?;
                return Ok(Value::cpus(&list));
            }
            Unit::Micros => u64::from(units::micros(text)?),
            Unit::Nanos => u64::try_from(units::time(text)?.as_nanos()).unwrap_or(u64::MAX),
            Unit::Count => text
                .parse()
                .map_err(|_| format!("'{text}' is not a number; write for example 4"))?,
        };
        if value > about.max {
            let max = Value::Number(about.max).show(about.unit);
            return Err(format!("'{text}' is above {max}, the largest the kernel takes"));
        }
        Ok(Value::Number(value))
    }

    /// The text for the user.
    pub fn show(&self, unit: Unit) -> String {
        match self {
            Value::Switch(true) => "on".into(),
            Value::Switch(false) => "off".into(),
            Value::Cpus(list) if list.is_empty() => "none".into(),
            Value::Cpus(list) if unit == Unit::Interrupts => format!("interrupts {list}"),
            Value::Cpus(list) => format!("CPU {list}"),
            Value::Number(n) => match unit {
                Unit::Micros => format!("{n}us"),
                Unit::Nanos => units::show(Duration::from_nanos(*n)),
                _ => n.to_string(),
            },
        }
    }
}

/// The mask format of sysfs: words of 32 bits in hexadecimal, the highest first.
pub(crate) fn to_mask(list: &CpuList) -> String {
    let words = list.iter().max().map_or(1, |max| max as usize / 32 + 1);
    let mut mask = vec![0u32; words];
    for cpu in list.iter() {
        if let Some(word) = mask.get_mut(cpu as usize / 32) {
            *word |= 1 << (cpu % 32);
        }
    }
    let words: Vec<String> = mask.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// Reads the format of [`to_mask`], of any length.
pub(crate) fn from_mask(mask: &str) -> Option<CpuList> {
    let words = mask.trim().split(',').rev().map(|word| u32::from_str_radix(word, 16));
    let mut cpus = Vec::new();
    for (i, word) in words.enumerate() {
        let word = word.ok()?;
        cpus.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| i as u32 * 32 + bit));
    }
    Some(cpus.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    #[test]
    fn a_list_survives_conversion_to_a_mask_and_back() {
        for list in ["0", "1,3", "0-31", "31-32,95", "64"] {
            let list: CpuList = list.parse().unwrap();
            assert_eq!(from_mask(&to_mask(&list)), Some(list));
        }
        assert_eq!(from_mask("00000001,00000003").unwrap().to_string(), "0-1,32");
        assert_eq!(from_mask("0").unwrap().to_string(), "");
        assert_eq!(to_mask(&[].into_iter().collect()), "00000000");
        assert!(from_mask("xyz").is_none());
    }

    #[test]
    fn values_are_read_and_shown_in_their_unit() {
        let read = |key: Key, text: &str| {
            let about = key.about();
            Value::read(text, &about).map(|v| v.show(about.unit))
        };
        assert_eq!(read(Key::BusyRead, "50").as_deref(), Ok("50us"));
        assert_eq!(read(Key::GroFlushTimeout, "200us").as_deref(), Ok("200us"));
        assert_eq!(read(Key::GroFlushTimeout, "20").as_deref(), Ok("20us"));
        assert_eq!(read(Key::AdaptiveRx, "false").as_deref(), Ok("off"));
        assert_eq!(read(Key::RpsCpus, "none").as_deref(), Ok("none"));
        assert_eq!(read(Key::RpsCpus, "0-2").as_deref(), Ok("CPU 0-2"));
        for (key, text) in [
            (Key::GroFlushTimeout, "5s"),
            (Key::BusyRead, "soon"),
            (Key::AdaptiveRx, "7"),
            (Key::RxRing, "-1"),
            (Key::DeferHardIrqs, "2147483648"),
            (Key::RpsCpus, "a"),
        ] {
            let error = read(key, text).unwrap_err();
            assert!(error.contains(text) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn values_read_back_from_json() {
        for value in [Value::Switch(true), Value::Number(u64::MAX), Value::Cpus("0-3".into())] {
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
    }
}
