//! Reports in files.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::header::{Kind, Report, SCHEMA_VERSION};
use super::rounded::Rounded;

/// Checks whether a report can be written to `path`. Creates no file permanently.
///
/// # Errors
/// A message of one line naming the file.
pub fn check(path: &Path) -> Result<(), String> {
    let is_there = path.metadata();
    // Opening and closing a pipe would make its reader see the end.
    if is_there.as_ref().is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        return Ok(());
    }
    OpenOptions::new().append(true).create(true).open(path).map_err(|e| {
        let path = path.display();
        format!("cannot write {path}: {e}; name a file in a folder where you may write")
    })?;
    if is_there.is_err() {
        // If it cannot be removed, it stays empty until it is written.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Any report as text.
///
/// # Errors
/// A message of one line.
pub fn text(report: &impl Serialize) -> Result<String, String> {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Rounded::default());
    report.serialize(&mut serializer).map_err(|e| format!("cannot write JSON: {e}"))?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|e| format!("cannot write JSON: {e}"))
}

/// Writes any report to a file.
///
/// # Errors
/// A message of one line naming the file.
pub fn write(path: &Path, report: &impl Serialize) -> Result<(), String> {
    write_text(path, &text(report)?)
}

/// Writes a file.
///
/// # Errors
/// A message of one line naming it.
pub fn write_text(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// More than any report has.
const LARGEST: u64 = 16 << 20;

/// Reads a report of any kind.
///
/// # Errors
/// A message of one line naming the file, and what it lacks.
pub fn read(path: &Path) -> Result<Report, String> {
    read_as(path, parse)
}

/// Reads a file of at most the size of a report, and what `parse` makes of it.
///
/// # Errors
/// A message of one line naming the file.
pub fn read_as<R>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<R, String>,
) -> Result<R, String> {
    let wrong = |why: String| format!("{}: {}", path.display(), why.replace('\n', " "));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(wrong("larger than any report of `busypoll bench --json`".to_owned()));
    }
    parse(&bytes).map_err(wrong)
}

/// A report of any kind from its text.
///
/// # Errors
/// A message of one line.
pub fn parse(bytes: &[u8]) -> Result<Report, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|e| format!("not JSON as `busypoll bench --json FILE` writes it: {e}"))?;
    let schema = value.get("schema").and_then(Value::as_str).ok_or(
        "not a report of `busypoll bench --json FILE`: it has no field \"schema\"".to_owned(),
    )?;
    let kind = Kind::deserialize(value["schema"].clone()).map_err(|_| {
        format!("a report of schema '{}', which has no page: give files of `busypoll bench --json FILE`", short(schema))
    })?;
    match value.get("schema_version").and_then(Value::as_u64) {
        Some(version) if version == u64::from(SCHEMA_VERSION) => {}
        Some(version) => {
            return Err(format!(
                "version {version} of its schema, this program reads version {SCHEMA_VERSION}: use the release that \
                 wrote it"
            ));
        }
        None => return Err("it has no field \"schema_version\"".to_owned()),
    }
    match kind {
        Kind::RoundTrips => Deserialize::deserialize(value).map(Report::RoundTrips),
        Kind::Sweep => Deserialize::deserialize(value).map(Report::Sweep),
        Kind::Throughput => Deserialize::deserialize(value).map(Report::Throughput),
        Kind::Stages => Deserialize::deserialize(value).map(Report::Stages),
        Kind::Trace => Deserialize::deserialize(value).map(Report::Trace),
    }
    .map_err(|e| format!("not a whole report: {e}"))
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample::sample;

    #[test]
    fn what_is_written_is_read_back() {
        let mut report = sample();
        report.arms[0].rtt_us.p50 = 7.234_567;
        let text = text(&report).expect("written");
        let Report::RoundTrips(read) = parse(text.as_bytes()).expect("read") else {
            panic!("another kind: {text}");
        };
        assert_eq!(read.arms[0].rtt_us.p50, 7.2346);
        assert_eq!(read.answer, report.answer);
        assert_eq!(read.header, report.header);
    }

    #[test]
    fn a_broken_or_foreign_file_is_one_line() {
        let whole = text(&sample()).expect("written");
        let without = |field: &str| {
            let mut value: Value = serde_json::from_str(&whole).expect("JSON");
            value.as_object_mut().expect("an object").remove(field);
            value.to_string()
        };
        for (text, named) in [
            (String::new(), "not JSON"),
            ("{".to_owned(), "not JSON"),
            ("[".repeat(100_000), "not JSON"),
            ("[1, 2]".to_owned(), "no field \"schema\""),
            ("{\"machine\": {}}".to_owned(), "no field \"schema\""),
            ("{\"schema\": \"doctor\"}".to_owned(), "'doctor'"),
            ("{\"schema\": \"bench-rr\"}".to_owned(), "schema_version"),
            ("{\"schema\": \"bench-rr\", \"schema_version\": 2}".to_owned(), "version 2"),
            ("{\"schema\": \"bench-rr\", \"schema_version\": 1}".to_owned(), "not a whole report"),
            (without("arms"), "arms"),
            (without("schema"), "schema"),
            (whole.replace("\"plane\": \"kernel\"", "\"plane\": \"moon\""), "moon"),
            (whole.replace("7.2,", "1e999,"), "not JSON"),
        ] {
            let error = parse(text.as_bytes()).expect_err(named);
            assert!(error.contains(named) && error.lines().count() == 1, "{error}");
        }
        for end in 0..whole.len() - 1 {
            assert!(parse(&whole.as_bytes()[..end]).is_err());
        }
    }

    #[test]
    fn an_unwritable_file_is_named_in_the_error() {
        let error = write(Path::new("/nowhere/at/all.json"), &sample()).expect_err("no folder");
        assert!(error.contains("/nowhere/at/all.json") && error.lines().count() == 1, "{error}");
    }
}
