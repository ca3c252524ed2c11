//! What is not accelerated is reported, in one line.

use crate::{
    config,
    report::{self, Once},
};
use std::fmt;

/// The interface of the run.
pub fn device() -> &'static str {
    config::get().and_then(|config| config.launch.dev.as_deref()).unwrap_or("?")
}

/// Reports why something is not accelerated, and the consequence. With `--strict` the program ends instead.
pub fn report(once: &Once, why: fmt::Arguments<'_>, then: &str) {
    let strict = config::get().is_some_and(|config| config.launch.strict);
    if strict {
        // Each process that ends says why.
        report::line(format_args!("{why}; the program ends, as --strict requires"));
        // SAFETY: ends the process, as `--strict` requires.
        unsafe { libc::_exit(2) };
    }
    once.report(format_args!("{why}; {then}"));
}
