//! The names by which the policy knows a process.

use std::path::PathBuf;

use busypoll_linux::process::Process;
use busypoll_policy::{Names, Policy};

/// The names of a process, also after an update has replaced the file of its executable.
pub(crate) fn of(process: &Process) -> Names {
    let executable = process.program();
    let before = executable.to_str().and_then(|path| path.strip_suffix(" (deleted)"));
    let executable = before.map(PathBuf::from).unwrap_or(executable);
    Names { executable, called: process.exec_path().unwrap_or_default() }
}

/// As [`of`], for a process that waits in a call: the names are read only if a rule needs them.
pub(crate) fn if_needed(policy: &Policy, process: &Process) -> Names {
    if policy.names_programs() { of(process) } else { Names::default() }
}
