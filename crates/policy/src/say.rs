//! What a command says beside its output.

use std::fmt::Display;
use std::io::{self, Write};

/// One line on standard error. Whoever reads there may be gone, which is no reason to end: `eprintln!` would panic.
pub fn say(what: impl Display) {
    // In one piece, as others write there, too.
    let _ = io::stderr().write_all(format!("busypoll: {what}\n").as_bytes());
}
