//! The format of a journal: pure, no I/O.
//!
//! One line of text for the header and for every append: `CRC JSON`, where the JSON is a list of
//! entries, so that an append is complete or absent. Only the last line can be torn by a
//! crash, and its changes had not been made yet.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::file::Kind;

const MAGIC: &str = "busypoll-journal";
/// The version of the line format; entries have their own ([`Kind::version`]).
const FORMAT: u32 = 1;

/// The contents of a journal.
pub(crate) struct Contents<T> {
    pub(crate) entries: Vec<T>,
    /// The length of the valid part; a torn write may follow.
    pub(crate) whole: u64,
}

/// The first line: `busypoll-journal FORMAT NAME VERSION PROGRAM BOOT CRC`. The first two words stay in
/// every later format.
pub(crate) fn header(kind: Kind, boot: &str) -> String {
    let program = env!("CARGO_PKG_VERSION");
    let line = format!("{MAGIC} {FORMAT} {} {} {program} {boot}", kind.name, kind.version);
    format!("{line} {:08x}\n", crc32(line.as_bytes()))
}

/// The line of one append.
pub(crate) fn line<T: Serialize>(entries: &[T]) -> Result<String, serde_json::Error> {
    let json = serde_json::to_string(entries)?;
    Ok(format!("{:08x} {json}\n", crc32(json.as_bytes())))
}

/// Parses a journal. One of an earlier boot reads as empty: its changes ended with that boot.
///
/// # Errors
/// [`Error::Newer`], [`Error::Damaged`].
pub(crate) fn parse<T: DeserializeOwned>(
    path: &Path,
    kind: Kind,
    boot: &str,
    bytes: &[u8],
) -> Result<Contents<T>> {
    let damaged = |line, why: String| Error::Damaged { path: path.into(), line, why };
    let mut contents = Contents { entries: Vec::new(), whole: 0 };
    let mut lines = bytes.split_inclusive(|b| *b == b'\n').enumerate().peekable();
    let Some((_, first)) = lines.next() else { return Ok(contents) };
    match read_header(path, kind, boot, first)? {
        Header::Good => {}
        Header::EarlierBoot => return Ok(contents),
        Header::Torn if lines.peek().is_none() => return Ok(contents),
        Header::Torn => return Err(damaged(1, "not the first line of a journal".into())),
    }
    contents.whole = first.len() as u64;
    while let Some((i, line)) = lines.next() {
        match read_line(line) {
            Ok(entries) => contents.entries.extend::<Vec<T>>(entries),
            Err(_) if lines.peek().is_none() => break,
            Err(why) => return Err(damaged(i + 1, why)),
        }
        contents.whole += line.len() as u64;
    }
    Ok(contents)
}

enum Header {
    Good,
    EarlierBoot,
    Torn,
}

fn read_header(path: &Path, kind: Kind, boot: &str, line: &[u8]) -> Result<Header> {
    let foreign = || Error::Damaged {
        path: path.into(),
        line: 1,
        why: format!("not the first line of a journal of {}", kind.name),
    };
    let magic = format!("{MAGIC} ");
    let known = line.len().min(magic.len());
    if line[..known] != magic.as_bytes()[..known] {
        return Err(foreign());
    }
    let Some(text) = line.strip_suffix(b"\n").and_then(|l| std::str::from_utf8(l).ok()) else {
        return Ok(Header::Torn);
    };
    let mut words = text.split(' ').skip(1);
    let format = words.next().and_then(|w| w.parse().ok());
    let name = words.next();
    let version = words.next().and_then(|w| w.parse().ok());
    let by = words.next().unwrap_or("unknown").to_owned();
    let newer = |found, known| Error::Newer { path: path.into(), by: by.clone(), found, known };
    if let Some(format) = format.filter(|f| *f > FORMAT) {
        return Err(newer(format, FORMAT));
    }
    let sealed = text.rsplit_once(' ').is_some_and(|(line, crc)| {
        u32::from_str_radix(crc, 16).is_ok_and(|crc| crc == crc32(line.as_bytes()))
    });
    let (Some(version), true) = (version, sealed) else { return Ok(Header::Torn) };
    if name != Some(kind.name) {
        return Err(foreign());
    }
    if version > kind.version {
        return Err(newer(version, kind.version));
    }
    Ok(if words.next() == Some(boot) { Header::Good } else { Header::EarlierBoot })
}

fn read_line<T: DeserializeOwned>(line: &[u8]) -> Result<Vec<T>, String> {
    let text = line.strip_suffix(b"\n").and_then(|l| std::str::from_utf8(l).ok());
    let (crc, json) = text.and_then(|t| t.split_once(' ')).ok_or("not an entry")?;
    if u32::from_str_radix(crc, 16) != Ok(crc32(json.as_bytes())) {
        return Err("the checksum does not fit".into());
    }
    serde_json::from_str(json).map_err(|e| format!("not an entry this version knows ({e})"))
}

/// CRC-32 of IEEE 802.3, reflected. Bit by bit, as a journal is only a few hundred short lines.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { name: "test", version: 3 };

    fn whole() -> String {
        let entries = line(&["first", "second"]).unwrap() + &line(&["third\n\"ü\""]).unwrap();
        header(KIND, "boot") + &entries
    }

    fn parsed(bytes: &[u8]) -> Result<Vec<String>> {
        parse(Path::new("/j"), KIND, "boot", bytes).map(|c| c.entries)
    }

    #[test]
    fn the_checksum_is_crc_32() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_journal_cut_at_any_byte_reads_as_its_complete_appends() {
        let text = whole();
        let ends: Vec<usize> = text.match_indices('\n').map(|(i, _)| i + 1).collect();
        for cut in 0..=text.len() {
            let contents =
                parse::<String>(Path::new("/j"), KIND, "boot", &text.as_bytes()[..cut]).unwrap();
            let expected = match ends.iter().filter(|end| cut >= **end).count() {
                0 | 1 => 0,
                2 => 2,
                _ => 3,
            };
            assert_eq!(contents.entries.len(), expected, "cut at {cut}");
            let whole = ends.iter().rev().find(|end| cut >= **end).copied().unwrap_or(0);
            assert_eq!(contents.whole, whole as u64, "cut at {cut}");
        }
    }

    #[test]
    fn a_changed_byte_is_never_accepted_as_an_entry() {
        let text = whole();
        let good = ["first", "second", "third\n\"ü\""];
        for at in 0..text.len() {
            for flip in [1u8, 0x20, 0x80] {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= flip;
                if let Ok(entries) = parsed(&bytes) {
                    assert!(
                        good.starts_with(&entries.iter().map(String::as_str).collect::<Vec<_>>())
                    );
                }
            }
        }
    }

    #[test]
    fn damage_before_the_last_line_is_reported_with_its_line() {
        let text = whole().replace("first", "fjrst");
        let error = parsed(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("/j, line 2: the checksum does not fit"), "{error}");
        for foreign in ["root:x:0:0\n", "x", "busypoll-journals\n"] {
            let error = parsed(foreign.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("line 1") && error.contains("journal of test"), "{error}");
        }
        let other = header(Kind { name: "other", version: 1 }, "boot");
        assert!(parsed(other.as_bytes()).unwrap_err().to_string().contains("journal of test"));
    }

    #[test]
    fn a_newer_journal_is_refused_with_the_version_that_wrote_it() {
        let newer = header(Kind { version: 4, ..KIND }, "boot");
        let error = parsed(newer.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("(0.1.0, journal version 4; this one reads up to 3)"), "{error}");
        // A later format need not keep more than the first two words.
        let error = parsed(b"busypoll-journal 2 anything\nelse\n").unwrap_err().to_string();
        assert!(error.contains("journal version 2; this one reads up to 1"), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn a_journal_of_an_earlier_boot_is_empty() {
        let contents = parse::<String>(Path::new("/j"), KIND, "later", whole().as_bytes()).unwrap();
        assert!(contents.entries.is_empty() && contents.whole == 0);
    }
}
