//! The clock behind `clock_gettime`: whether reading it takes a few instructions or an access to a device or
//! hypervisor. Reads only.
//!
//! Kernel source: `kernel/time/clocksource.c`, `Documentation/timers/timekeeping.rst`.

use std::fs;

use crate::error::{Error, Result};

/// The machine's clock sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockSource {
    /// The one in use: `tsc`, `kvm-clock`, `hpet`.
    pub current: String,
    /// All that could be used, the best first.
    pub available: Vec<String>,
}

impl ClockSource {
    /// The clock source in use now, and the available ones.
    pub fn now() -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/sys/devices/system/clocksource/clocksource0/{name}");
            fs::read_to_string(&path).map_err(|e| Error::os(format!("reading {path}"), e))
        };
        let available = read("available_clocksource")?;
        Ok(ClockSource {
            current: read("current_clocksource")?.trim().to_owned(),
            available: available.split_ascii_whitespace().map(str::to_owned).collect(),
        })
    }

    /// Whether reading it needs an access to a device or hypervisor: about a microsecond instead of tens
    /// of nanoseconds.
    pub fn is_slow(&self) -> bool {
        ["hpet", "acpi_pm", "pit", "jiffies", "xen", "refined-jiffies"]
            .contains(&self.current.as_str())
    }
}
