//! By which names the policy knows a process.

use std::path::PathBuf;

use busypoll_linux::process::Process;
use busypoll_policy::{Names, Policy};

/// Its names, also after an update has put another file in its executable's place.
pub(crate) fn of(process: &Process) -> Names {
    let executable = process.program();
    let before = executable.to_str().and_then(|path| path.strip_suffix(" (deleted)"));
    let executable = before.map(PathBuf::from).unwrap_or(executable);
    Names { executable, called: process.called().unwrap_or_default() }
}

/// The same where a call of the process waits for it: nothing where no rule asks.
pub(crate) fn asked_for(policy: &Policy, process: &Process) -> Names {
    if policy.names_programs() { of(process) } else { Names::default() }
}
