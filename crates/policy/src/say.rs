//! Messages of a command on standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes one line to standard error. Its reader may be gone, which must not end the process: `eprintln!` would panic.
pub fn say(what: impl Display) {
    // In one write, as other processes write to the same stream.
    let _ = io::stderr().write_all(format!("busypoll: {what}\n").as_bytes());
}
