//! Files that a user writes by hand.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The largest size: far above any file written by hand; checked before the content is parsed.
const MAX_BYTES: u64 = 1 << 20;

/// Reads such a file; `what` is its kind. The size that the system reports is useless for a pipe, which is
/// allowed (`<(...)`), and for a device that never ends.
///
/// # Errors
/// The system call's, larger than 1 MiB, not UTF-8.
pub fn read(path: &Path, what: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if read as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("larger than 1 MiB: is it a {what}?")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8"))
}
