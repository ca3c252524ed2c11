//! Does it: every process's sockets, epoll instances and threads, and what keeps them from busy polling.

mod census;
mod descriptors;
mod epolls;
mod facts;
mod judge;
mod napis;
mod own;
mod sockets;
mod spinners;

use std::fs;

use busypoll_linux::netns;
use busypoll_linux::sysctl::Sysctl;

use crate::{Error, Report, Scope};

pub(crate) use census::{Census, Process};
pub(crate) use napis::{Life, Napis};

/// Looks at processes: those asked for, else all where no device or peer was asked for.
pub(crate) fn check(scope: &Scope, report: &mut Report) -> Result<(), Error> {
    if scope.pids.is_empty() && (!scope.devices.is_empty() || scope.peer.is_some()) {
        return Ok(());
    }
    let census = Census::take(scope, report)?;
    let napis = Napis::find(census.sockets());
    let mut judge = judge::Judge::new(scope, &napis, host_busy_poll());
    for process in census.processes.values() {
        judge.process(process);
    }
    spinners::judge(&mut judge, &census);
    judge.report(report);
    facts::tell(scope, &census, &napis, report);
    Ok(())
}

/// `net.core.busy_poll`, which only the initial network namespace shows; `None` where it cannot be seen.
pub(crate) fn host_busy_poll() -> Option<u32> {
    let here = Sysctl::BusyPoll.get().ok();
    here.or_else(|| netns::enter("/proc/1/ns/net".as_ref(), || Sysctl::BusyPoll.get().ok()).ok()?)
}

/// The name of a process; `?` once it has gone.
pub(crate) fn name(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm"));
    comm.map_or_else(|_| "?".into(), |c| String::from_utf8_lossy(&c).trim_end().to_owned())
}
