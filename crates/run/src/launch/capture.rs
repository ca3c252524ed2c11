//! `--pcap`: the file, made before the program starts, so that a wrong path is no surprise later.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use busypoll_stack::nic::pcap::Capture;

use super::LaunchError;

/// Makes an empty capture, and returns its path from the root, as the program may change its directory.
pub(super) fn begin(file: &Path) -> Result<String, LaunchError> {
    let refused =
        |why: &dyn std::fmt::Display| LaunchError::Capture(format!("{}: {why}", file.display()));
    // A pipe would wait for its reader, and its second writer would write into the first one's frames.
    if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(refused(&"not a file; give the name of a file to write"));
    }
    let make = || -> io::Result<_> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        drop(Capture::to(options.open(file)?, &file.display().to_string())?);
        fs::canonicalize(file)
    };
    let path = make().map_err(|e| refused(&e))?;
    path.into_os_string().into_string().map_err(|_| refused(&"not UTF-8"))
}
