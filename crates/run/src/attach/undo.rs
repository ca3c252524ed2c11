//! Undoing changes: only where the value that attach wrote is still in place, and only values that could be read
//! before.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use busypoll_journal::Journal;
use busypoll_linux::process::{self, Kind, Process};
use busypoll_linux::{EpollParams, Error, epoll, sockopt};

use super::change::{budget, same, set, take_socket};
use super::entry::{self, Change, Entry, Params, SocketOption, watch_ids};
use super::error::AttachError;
use super::inspect;

/// The result of undoing one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// The value from before is restored.
    Back(String),
    /// It was left unchanged, for this reason.
    Left(String),
    /// Restoring it failed.
    Failed(String),
}

/// Restores what was changed in a process, which may have ended; calls `each` for every setting. False if nothing was
/// recorded.
///
/// # Errors
/// Also if some values could not be restored; the journal then stays.
pub(super) fn undo(
    pid: u32,
    dir: &Path,
    mut each: impl FnMut(i32, Undone),
) -> Result<bool, AttachError> {
    let process = match Process::open(pid) {
        Ok(process) => Some(process),
        Err(Error::NoProcess { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    // Also the journals of earlier processes with this PID: their children may hold what was changed.
    let mut names = names_of(pid, dir);
    let own = process.as_ref().map(|process| entry::name(pid, process.start_time()));
    if let Some(own) = &own
        && !names.contains(own)
    {
        names.push(own.clone());
    }
    if process.is_none() && names.is_empty() {
        return Err(AttachError::NothingKnown { pid, dir: dir.to_owned() });
    }
    let mut known = false;
    let mut holders = Holders::default();
    for name in names {
        let journal = Journal::<Entry>::open(dir, entry::kind(&name))?;
        known |= !journal.entries().is_empty();
        let mut settings: Vec<(&Entry, Undone)> = Vec::new();
        for entry in journal.entries().iter().rev() {
            let process = process.as_ref().filter(|_| own.as_ref() == Some(&name));
            let undone = undo_entry(process, &mut holders, entry)
                .unwrap_or_else(|error| Undone::Failed(error.to_string()));
            // A setting that was changed several times is restored step by step; only the last step is reported.
            match settings.iter_mut().find(|(newer, _)| newer.is_same_setting(entry)) {
                Some(_) if matches!(undone, Undone::Left(_)) => {}
                Some((_, reported)) => *reported = undone,
                None => settings.push((entry, undone)),
            }
        }
        let mut failed = 0;
        for (entry, undone) in settings {
            failed += usize::from(matches!(undone, Undone::Failed(_)));
            each(entry.fd, undone);
        }
        if failed > 0 {
            return Err(AttachError::NotPutBack { pid, count: failed });
        }
        journal.finish()?;
    }
    Ok(known)
}

/// The journals of all processes that have had this PID.
fn names_of(pid: u32, dir: &Path) -> Vec<String> {
    let prefix = format!("attach-{pid}-");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".journal")?.to_owned())
    };
    entries.filter_map(name).filter(|name| name.starts_with(&prefix)).collect()
}

fn undo_entry(
    process: Option<&Process>,
    holders: &mut Holders,
    entry: &Entry,
) -> Result<Undone, Error> {
    match &entry.change {
        Change::Socket { cookie, inode, option, before, after } => {
            let name = option.name();
            let Some(before) = *before else {
                return Ok(Undone::Left(format!("{name}: the value before could not be read")));
            };
            let Some((holder, fd, taken)) = holders.find(process, entry.fd, *inode, *cookie)?
            else {
                return Ok(Undone::Left(format!("{name}: the socket is closed")));
            };
            let now = match option {
                SocketOption::BusyPoll => Some(sockopt::busy_poll(&taken)?),
                SocketOption::PreferBusyPoll => Some(sockopt::prefer_busy_poll(&taken)?.into()),
                SocketOption::BusyPollBudget => budget_of(process, holder, fd),
            };
            if now != Some(*after) {
                let now = now.map_or("cannot be read".to_owned(), |now| format!("is {now}"));
                return Ok(Undone::Left(format!(
                    "{name} {now}, not the {after} that attach wrote"
                )));
            }
            set(&taken, *option, before)?;
            Ok(Undone::Back(format!("{name} is {before} again")))
        }
        Change::Epoll { watches, before, after } => {
            let gone = || Ok(Undone::Left("the epoll instance is closed".to_owned()));
            let Some(process) = process else { return gone() };
            let found = match inspect::take_epoll(process, entry.fd) {
                Err(Error::NoProcess { .. }) => None,
                found => found?,
            };
            let Some((taken, now)) = found else { return gone() };
            if !same(watches, &watch_ids(&now)) {
                return Ok(Undone::Left(
                    "the epoll instance watches nothing that it watched before: it may be another"
                        .to_owned(),
                ));
            }
            put_back_epoll(&taken, *before, *after)
        }
    }
}

fn put_back_epoll(taken: &OwnedFd, before: Params, after: Params) -> Result<Undone, Error> {
    let now = epoll::params(taken)?;
    if now != EpollParams::from(after) {
        return Ok(Undone::Left(format!(
            "the epoll instance polls for {} us, which is not what attach wrote",
            now.busy_poll_usecs
        )));
    }
    let before = EpollParams::from(before);
    epoll::set_params(taken, before)?;
    Ok(Undone::Back(format!("the epoll instance polls for {} us again", before.busy_poll_usecs)))
}

fn budget_of(process: Option<&Process>, holder: Option<Process>, fd: i32) -> Option<u32> {
    let process = holder.as_ref().or(process)?;
    budget(process, fd).map(u32::from)
}

/// Which processes hold which socket, looked up once and only if needed.
#[derive(Default)]
struct Holders(Option<HashMap<u64, Vec<(u32, i32)>>>);

/// The process that holds a socket, if it is not the attached one, the descriptor there, and the socket.
type Found = (Option<Process>, i32, OwnedFd);

impl Holders {
    /// Finds a socket by its old descriptor, at another one in the same process, or in another process that has
    /// inherited or received it.
    fn find(
        &mut self,
        process: Option<&Process>,
        fd: i32,
        inode: u64,
        cookie: u64,
    ) -> Result<Option<Found>, Error> {
        if let Some(process) = process {
            match take_socket(process, fd, inode, cookie) {
                Ok(Some(taken)) => return Ok(Some((None, fd, taken))),
                Ok(None) | Err(Error::NoProcess { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let holders = self.0.get_or_insert_with(holders).get(&inode);
        for (pid, fd) in holders.into_iter().flatten() {
            let Ok(holder) = Process::open(*pid) else { continue };
            if let Ok(Some(taken)) = take_socket(&holder, *fd, inode, cookie) {
                return Ok(Some((Some(holder), *fd, taken)));
            }
        }
        Ok(None)
    }
}

/// Every socket of every process that this user may inspect, by inode.
fn holders() -> HashMap<u64, Vec<(u32, i32)>> {
    let mut holders: HashMap<u64, Vec<(u32, i32)>> = HashMap::new();
    for pid in process::all() {
        let descriptors = Process::open(pid).and_then(|process| process.descriptors());
        for found in descriptors.unwrap_or_default() {
            if let Kind::Socket { inode } = found.kind {
                holders.entry(inode).or_default().push((pid, found.fd));
            }
        }
    }
    holders
}
