//! What is written down before something in a process is changed.

use busypoll_journal::{Error as JournalError, Journal, Kind};
use busypoll_linux::EpollParams;
use busypoll_linux::process::Watch;
use serde::{Deserialize, Serialize};

/// The version of [`Entry`].
const VERSION: u32 = 1;

/// One change. Written before it is made, so it may not have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The descriptor by which it was changed.
    pub fd: i32,
    /// What was changed.
    pub change: Change,
}

impl Entry {
    /// Whether it is of the same setting of the same thing.
    pub fn is_about(&self, other: &Entry) -> bool {
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

    /// Writes down what is not the last word on its setting already: one that is refused is tried again and again.
    pub fn append(
        mut entries: Vec<Entry>,
        journal: &mut Journal<Entry>,
    ) -> Result<(), JournalError> {
        let written = journal.entries();
        entries.retain(|entry| written.iter().rev().find(|old| old.is_about(entry)) != Some(entry));
        if entries.is_empty() { Ok(()) } else { journal.append(&entries) }
    }
}

/// What was changed, with what stood before and what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    /// An option of a socket.
    Socket {
        /// `SO_COOKIE`: it is this socket and no other.
        cookie: u64,
        /// By which it is found under other numbers and in other processes.
        inode: u64,
        /// Which option.
        option: SocketOption,
        /// What stood there; `None` if it could not be read, and is then never put back.
        before: Option<u32>,
        /// What was written.
        after: u32,
    },
    /// The parameters of an epoll instance.
    Epoll {
        /// The descriptor and inode of each thing it watched: an instance has no other mark.
        watches: Vec<(i32, u64)>,
        /// What stood there.
        before: Params,
        /// What was written.
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

/// [`EpollParams`] on paper.
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

/// How a list of watches is written down.
pub(super) fn marks(watches: &[Watch]) -> Vec<(i32, u64)> {
    watches.iter().map(|watch| (watch.fd, watch.inode)).collect()
}

/// The name of the journal of one process: its number and the time it started.
pub(super) fn name(pid: u32, start_time: u64) -> String {
    format!("attach-{pid}-{start_time}")
}

pub(super) fn kind(name: &str) -> Kind<'_> {
    Kind { name, version: VERSION }
}
