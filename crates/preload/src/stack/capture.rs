//! `--pcap`: the capture of what goes over the NICs and links of this process. The process that the run began with has the
//! file itself, every other one a file with its number behind the name.

use super::internal_fds;
use crate::{config::Config, report::Once};
use busypoll_stack::nic::pcap::Capture;
use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{FromRawFd, IntoRawFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    process,
    time::Duration,
};

/// How long a process that ends waits for the disk.
pub const FLUSH_LIMIT: Duration = Duration::from_secs(1);

static FAILED: Once = Once::new();

/// The capture of this process, if the run has one.
pub fn start(config: &Config) -> Option<Capture> {
    let (first, file) = config.launch.pcap.as_ref()?;
    let path: PathBuf = match process::id() {
        own if own == *first => file.into(),
        own => format!("{file}.{own}").into(),
    };
    let name = path.display().to_string();
    let capture = open(&path).and_then(|(file, is_new)| match is_new {
        true => Capture::to(file, &name),
        false => Capture::go_on(file, &name),
    });
    let failed = |error: &io::Error| {
        FAILED.report(format_args!("--pcap: {name}: {error}; this process is not captured"));
    };
    capture.inspect_err(failed).ok()
}

/// The file, and whether it is empty: what a program executes in its place goes on with it.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    // Another user may have put a link there.
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    // SAFETY: `make_internal` returns the same descriptor under its new number.
    let file = unsafe { File::from_raw_fd(internal_fds::make_internal(file.into_raw_fd())) };
    let is_new = file.metadata()?.len() == 0;
    Ok((file, is_new))
}
