//! Files that a user writes by hand.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The largest: far above any written by hand, and read before it is looked at.
const MAX_BYTES: u64 = 1 << 20;

/// Reads such a file, whatever `what` it is to be. The size that the system tells says nothing of a pipe, which is
/// welcome (`<(...)`), and nothing of a device that never ends.
///
/// # Errors
/// The system's, larger than 1 MiB, not UTF-8.
pub fn read(path: &Path, what: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if read as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("larger than 1 MiB: is it a {what}?")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8"))
}
