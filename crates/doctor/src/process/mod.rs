//! How each process waits: every socket, epoll instance and thread, and what keeps them from busy polling.

mod census;
mod descriptors;
mod devices;
mod epolls;
mod facts;
mod judge;
mod napis;
mod scheduling;
mod sockets;
mod spinners;
mod unprivileged;

use busypoll_linux::sysctl::Sysctl;

use crate::{Error, Report, Scope};

pub(crate) use census::{Census, Process};
pub(crate) use descriptors::{Class, class, describe};
pub(crate) use napis::{NapiLocation, NapiState, Napis};

/// Checks processes: those asked for, else all, unless a device or a peer was asked for.
pub(crate) fn check(scope: &Scope, report: &mut Report) -> Result<(), Error> {
    if scope.pids.is_empty() && (!scope.devices.is_empty() || scope.peer.is_some()) {
        return Ok(());
    }
    for pid in &scope.pids {
        scheduling::refuse_zombie(*pid)?;
    }
    let census = Census::take(scope, report)?;
    let napis = Napis::find(census.sockets());
    let mut judge = judge::Judge::new(scope, &napis, Sysctl::BusyPoll.of_machine());
    for process in census.processes.values() {
        judge.process(process);
        if judge.asked {
            scheduling::judge(&mut judge, process);
        }
    }
    spinners::judge(&mut judge, &census);
    judge.report(report);
    devices::check(scope, &census, &napis, report);
    facts::add(scope, &census, &napis, report);
    Ok(())
}

/// The name of a process; `?` if it has ended.
pub(crate) fn name(pid: u32) -> String {
    busypoll_linux::process::name(pid).unwrap_or_else(|| "?".into())
}
