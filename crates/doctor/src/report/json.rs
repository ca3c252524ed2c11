//! The report for programs, as of docs/json/doctor.schema.json. Keys are stable; new ones may be added.

use std::io::{self, Write};
use std::time::SystemTime;

use busypoll_policy::{BUILD, utc};
use serde_json::{Map, Value, json};

use super::Report;

impl Report {
    /// As one JSON object: `schema`, `time`, `summary`, `verdict`, `findings`, `facts`.
    pub fn to_json(&self) -> Value {
        let facts: Map<String, Value> =
            self.facts.iter().map(|f| (f.key.to_owned(), f.value.clone())).collect();
        json!({
            "schema": "doctor",
            "schema_version": 1,
            "time": utc(SystemTime::now()),
            "commit": BUILD,
            "busypoll": env!("CARGO_PKG_VERSION"),
            "summary": self.summary(),
            "verdict": self.verdict(),
            "findings": self.findings(),
            "facts": facts,
        })
    }

    /// Writes [`Report::to_json`], indented.
    ///
    /// # Errors
    /// Of the writer.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut out, &self.to_json())?;
        writeln!(out)
    }
}
