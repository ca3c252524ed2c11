//! Making a change: it is recorded, made on the very socket or epoll instance that was inspected, and read back.

use std::os::fd::{AsFd, RawFd};

use busypoll_journal::Journal;
use busypoll_linux::bpf::files::{Files, Kind as FileKind};
use busypoll_linux::caps::Caps;
use busypoll_linux::process::{Kind, Process};
use busypoll_linux::{Capability, EpollParams, Error, epoll, socket, sockopt};

use super::decide::SocketOptions;
use super::entry::{Change, Entry, SocketOption, watch_ids};
use super::error::AttachError;
use super::inspect::{self, Epoll, Socket};
use super::row::State;

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub now: State,
    /// The parts that failed, and why.
    pub why: Vec<String>,
}

/// Changes a socket; `None` if it is gone.
pub(super) fn socket(
    process: &Process,
    journal: &mut Journal<Entry>,
    found: &Socket,
    wanted: SocketOptions,
) -> Result<Option<Outcome>, AttachError> {
    let mut why = Vec::new();
    let changes = changes_for(process, found, wanted, &mut why);
    let entries: Vec<Entry> = changes
        .iter()
        .map(|(option, before, after)| Entry {
            fd: found.fd,
            change: Change::Socket {
                cookie: found.info.cookie,
                inode: found.inode,
                option: *option,
                before: *before,
                after: *after,
            },
        })
        .collect();
    Entry::append(entries, journal)?;
    let Some(taken) = take_socket(process, found.fd, found.inode, found.info.cookie)? else {
        return Ok(None);
    };
    let mut budget = None;
    for (option, before, after) in changes {
        match set(&taken, option, after) {
            Ok(()) if option == SocketOption::BusyPollBudget => {
                budget = u16::try_from(after).ok();
                if before.is_none() {
                    why.push(
                        "the budget before cannot be read, so detach will not restore it".into(),
                    );
                }
            }
            Ok(()) => {}
            Err(error) => why.push(error.to_string()),
        }
    }
    let now = State {
        busy_poll: Some(sockopt::busy_poll(&taken)?),
        prefer_busy_poll: sockopt::prefer_busy_poll(&taken).unwrap_or(false),
        busy_poll_budget: budget,
    };
    Ok(Some(Outcome { now, why }))
}

/// Option, current value, wanted value.
type OptionChange = (SocketOption, Option<u32>, u32);

fn changes_for(
    process: &Process,
    found: &Socket,
    wanted: SocketOptions,
    why: &mut Vec<String>,
) -> Vec<OptionChange> {
    let mut changes = Vec::new();
    if found.busy_poll != wanted.busy_poll {
        changes.push((SocketOption::BusyPoll, Some(found.busy_poll), wanted.busy_poll));
    }
    let able = Caps::current().is_ok_and(|caps| caps.has_globally(Capability::NetAdmin));
    let lacks = |what: &str| format!("{what} needs CAP_NET_ADMIN; run as root");
    if found.prefer != wanted.prefer {
        // Switching it off needs no capability.
        if able || !wanted.prefer {
            let (before, after) = (u32::from(found.prefer), u32::from(wanted.prefer));
            changes.push((SocketOption::PreferBusyPoll, Some(before), after));
        } else {
            why.push(lacks("SO_PREFER_BUSY_POLL"));
        }
    }
    if wanted.budget > 0 {
        let before = able.then(|| budget(process, found.fd)).flatten();
        if !able {
            why.push(lacks("SO_BUSY_POLL_BUDGET"));
        } else if before != Some(wanted.budget) {
            changes.push((
                SocketOption::BusyPollBudget,
                before.map(u32::from),
                wanted.budget.into(),
            ));
        }
    }
    changes
}

/// `SO_BUSY_POLL_BUDGET`, which only a BPF program can read.
pub(super) fn budget(process: &Process, fd: RawFd) -> Option<u16> {
    let files = Files::load().and_then(|mut files| files.of(Some(process.pid()))).ok()?;
    let file = files.into_iter().find(|file| i64::from(file.fd) == i64::from(fd))?;
    match file.kind {
        FileKind::Socket(socket) => Some(socket.busy_poll_budget),
        _ => None,
    }
}

/// Takes a socket if it is the one with this cookie.
pub(super) fn take_socket(
    process: &Process,
    fd: RawFd,
    inode: u64,
    cookie: u64,
) -> Result<Option<std::os::fd::OwnedFd>, Error> {
    let taken = inspect::take(process, fd, Kind::Socket { inode })?;
    Ok(taken.filter(|taken| socket::cookie(taken).is_ok_and(|found| found == cookie)))
}

/// Sets an option; switches are 0 and 1.
pub(super) fn set(socket: impl AsFd, option: SocketOption, value: u32) -> Result<(), Error> {
    match option {
        SocketOption::BusyPoll => sockopt::set_busy_poll(socket, value),
        SocketOption::PreferBusyPoll => sockopt::set_prefer_busy_poll(socket, value != 0),
        SocketOption::BusyPollBudget => {
            sockopt::set_busy_poll_budget(socket, u16::try_from(value).unwrap_or(u16::MAX))
        }
    }
}

/// Changes the parameters of an epoll instance. `None` if it is gone, or if it watches other files than when it was
/// inspected, so that it may be another instance.
pub(super) fn epoll(
    process: &Process,
    journal: &mut Journal<Entry>,
    found: &Epoll,
    before: EpollParams,
    wanted: EpollParams,
) -> Result<Option<Outcome>, AttachError> {
    let change = Change::Epoll {
        watches: watch_ids(&found.watches),
        before: before.into(),
        after: wanted.into(),
    };
    Entry::append(vec![Entry { fd: found.fd, change }], journal)?;
    let Some((taken, watches)) = inspect::take_epoll(process, found.fd)? else { return Ok(None) };
    if epoll::params(&taken)? != before || !same(&watch_ids(&found.watches), &watch_ids(&watches)) {
        return Ok(None);
    }
    let mut why = Vec::new();
    if let Err(error) = epoll::set_params(&taken, wanted) {
        why.push(error.to_string());
    }
    Ok(Some(Outcome { now: epoll::params(&taken)?.into(), why }))
}

/// Whether two lists can be of the same epoll instance: a program adds and removes sockets, but its listeners and
/// wakeup descriptors stay.
pub(super) fn same(one: &[(i32, u64)], other: &[(i32, u64)]) -> bool {
    one.is_empty() || one.iter().any(|mark| other.contains(mark))
}
