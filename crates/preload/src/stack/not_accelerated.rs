//! What is not accelerated is reported, in one line.

use crate::{config, report::Once};
use std::fmt;

/// The interface of the run.
pub fn device() -> &'static str {
    config::get().and_then(|config| config.launch.dev.as_deref()).unwrap_or("?")
}

/// Reports why something is not accelerated, and the consequence. With `--strict` the program ends instead.
pub fn report(once: &Once, why: fmt::Arguments<'_>, then: &str) {
    let strict = config::get().is_some_and(|config| config.launch.strict);
    let then = if strict { "the program ends, as --strict requires" } else { then };
    once.report(format_args!("{why}; {then}"));
    if strict {
        // SAFETY: ends the process, as `--strict` requires.
        unsafe { libc::_exit(2) };
    }
}
