//! The journal entry that is written before a change in a process.

use busypoll_journal::{Error as JournalError, Journal, Kind};
use busypoll_linux::EpollParams;
use busypoll_linux::process::Watch;
use serde::{Deserialize, Serialize};

/// The version of [`Entry`].
const VERSION: u32 = 1;

/// One change. It is written before the change is made, so the change may not have been made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The descriptor by which it was changed.
    pub fd: i32,
    /// What was changed.
    pub change: Change,
}

impl Entry {
    /// Whether both are about the same setting of the same object.
    pub fn is_same_setting(&self, other: &Entry) -> bool {
        use Change::{Epoll, Socket};
        let what = match (&self.change, &other.change) {
            (Socket { cookie: a, option: x, .. }, Socket { cookie: b, option: y, .. }) => {
                (a, x) == (b, y)
            }
            (Epoll { .. }, Epoll { .. }) => true,
            _ => false,
        };
        what && self.fd == other.fd
    }

    /// Records the entries that differ from the last entry of their setting: a refused change is tried again and again.
    pub fn append(
        mut entries: Vec<Entry>,
        journal: &mut Journal<Entry>,
    ) -> Result<(), JournalError> {
        let written = journal.entries();
        entries.retain(|entry| {
            written.iter().rev().find(|old| old.is_same_setting(entry)) != Some(entry)
        });
        if entries.is_empty() { Ok(()) } else { journal.append(&entries) }
    }
}

/// What was changed, with the value before and the value written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    /// An option of a socket.
    Socket {
        /// `SO_COOKIE`, which identifies the socket.
        cookie: u64,
        /// The inode, to find it at other descriptors and in other processes.
        inode: u64,
        /// Which option.
        option: SocketOption,
        /// The value before; `None` if it could not be read, and then it is never restored.
        before: Option<u32>,
        /// The value written.
        after: u32,
    },
    /// The parameters of an epoll instance.
    Epoll {
        /// The descriptor and inode of each file it watched: nothing else identifies an instance.
        watches: Vec<(i32, u64)>,
        /// The parameters before.
        before: Params,
        /// The parameters written.
        after: Params,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SocketOption {
    BusyPoll,
    PreferBusyPoll,
    BusyPollBudget,
}

impl SocketOption {
    pub fn name(self) -> &'static str {
        match self {
            SocketOption::BusyPoll => "SO_BUSY_POLL",
            SocketOption::PreferBusyPoll => "SO_PREFER_BUSY_POLL",
            SocketOption::BusyPollBudget => "SO_BUSY_POLL_BUDGET",
        }
    }
}

/// [`EpollParams`] in the journal's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Params {
    usecs: u32,
    budget: u16,
    prefer: bool,
}

impl From<EpollParams> for Params {
    fn from(p: EpollParams) -> Self {
        Params { usecs: p.busy_poll_usecs, budget: p.busy_poll_budget, prefer: p.prefer_busy_poll }
    }
}

impl From<Params> for EpollParams {
    fn from(p: Params) -> Self {
        EpollParams {
            busy_poll_usecs: p.usecs,
            busy_poll_budget: p.budget,
            prefer_busy_poll: p.prefer,
        }
    }
}

/// A list of watches in the journal's format.
pub(super) fn watch_ids(watches: &[Watch]) -> Vec<(i32, u64)> {
    watches.iter().map(|watch| (watch.fd, watch.inode)).collect()
}

/// The name of the journal of one process: its PID and start time.
pub(super) fn name(pid: u32, start_time: u64) -> String {
    format!("attach-{pid}-{start_time}")
}

pub(super) fn kind(name: &str) -> Kind<'_> {
    Kind { name, version: VERSION }
}
