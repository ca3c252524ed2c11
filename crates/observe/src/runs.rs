//! The runs of the stack plane: their ledgers, from the guards of this network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use busypoll_linux::process::{Kind, Process};
use busypoll_run::{guard, ss};
use busypoll_stack::inet::list_id;
use busypoll_stack::ledger::{Ledger, LedgerQueue};
use busypoll_stack::wire::Protocol;
use busypoll_stack::{lease, unix};

use crate::Seen;

/// The most guards asked in one reading, how long one may take, and all together. Any user may listen at a guard's name.
const GUARDS: usize = 128;
const EACH: Duration = Duration::from_millis(200);
const ALL: Duration = Duration::from_secs(2);

/// The process of a run that has the interface.
#[derive(Clone, Debug)]
pub struct Run {
    /// The user of its guard.
    pub user: u32,
    /// The process.
    pub pid: i32,
    /// Its name.
    pub program: String,
    /// Its sockets by protocol and state.
    pub sockets: BTreeMap<(&'static str, &'static str), u64>,
    /// Sockets that its list had no room for.
    pub unlisted: u64,
    /// Its queues, with their counters.
    pub queues: Vec<LedgerQueue>,
    /// Its inet's counters; `None` of a program of another version, which may count something else.
    pub counts: Option<Vec<u64>>,
}

/// Guards, with those that were slow to answer.
#[derive(Debug, Default)]
pub struct Guards {
    slow: BTreeSet<String>,
}

impl Guards {
    /// The runs that this user may see; unseen are guards that did not answer, or not to this user.
    pub fn read(&mut self) -> Seen<Run> {
        let mut names = unix::names(guard::NAME);
        self.slow.retain(|name| names.contains(name));
        // A silent listener must not keep the others from being asked.
        names.sort_by_key(|name| self.slow.contains(name));
        let end = Instant::now() + ALL;
        let mut unseen = names.len().saturating_sub(GUARDS) as u64;
        let mut rows = Vec::new();
        for name in names.into_iter().take(GUARDS) {
            if Instant::now() >= end {
                unseen += 1;
                continue;
            }
            match lease::list_of_any_user(&name, EACH) {
                // With none, its program has no socket yet, or this user may not see it: both look the same.
                Ok((user, listed)) if listed.iter().all(|(pid, _)| owns(user, *pid)) => {
                    rows.extend(listed.iter().map(|(pid, ledger)| run(user, *pid, ledger)));
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.slow.insert(name);
                    unseen += 1;
                }
                _ => unseen += 1,
            }
        }
        // Its own guard lists it, and the guard whose interface it has joined.
        let mut seen = BTreeSet::new();
        rows.retain(|run: &Run| run.pid == 0 || seen.insert(run.pid));
        Seen { rows, unseen }
    }
}

/// What a process on the stack plane says of itself, without its guard, which may be in another network namespace.
/// `None` if it is on the kernel plane, or this user may not look at it.
pub fn of_process(pid: u32) -> Option<Run> {
    let process = Process::open(pid).ok()?;
    let found = process.descriptors().ok()?.into_iter().find(|fd| fd.kind == Kind::StackPlane)?;
    let ledger = Ledger::open(process.duplicate_fd(found.fd).ok()??).ok()?;
    let user = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    Some(run(user, i32::try_from(pid).ok()?, &ledger))
}

/// Whether a guard of `user` may speak for this process.
fn owns(user: u32, pid: i32) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    owner.is_ok_and(|owner| user == 0 || owner == user)
}

fn run(user: u32, pid: i32, ledger: &Ledger) -> Run {
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut sockets: BTreeMap<_, u64> = BTreeMap::new();
    for entry in ledger.list() {
        let protocol = if entry.protocol == Protocol::UDP { "udp" } else { "tcp" };
        *sockets.entry((protocol, ss::state(entry.state))).or_default() += 1;
    }
    Run {
        user,
        pid,
        program: program.trim_end().to_owned(),
        sockets,
        unlisted: ledger.left_out().into(),
        queues: ledger.queues(),
        counts: ledger.inet_counts(list_id()),
    }
}
