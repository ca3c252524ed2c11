//! The applied profiles, and whether they still are as they should be. Reads only.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_journal::{Error as JournalError, Journal, find_state_dir, state_dir};
use busypoll_linux::netns;
use busypoll_linux::stat::busy_poll_rx_packets;
use serde::Serialize;

use crate::device::{Device, Identity};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::machine::Machine;
use crate::record::{
    Apply, Begin, JournalState, Process, Record, TuneJournal, journal_name, kind, name_of,
};
use crate::value::Value;

/// How long a command waits for another one to finish; a guard that rolls back may hold the journal at any time.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Locks this network namespace's journal against other tune commands. Waits a moment if it is locked.
///
/// # Errors
/// [`busypoll_journal::Error`]: another process has locked it, a newer version wrote it, …
pub fn journal() -> Result<TuneJournal> {
    let (dir, name) = (state_dir()?, journal_name()?);
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match Journal::open(&dir, kind(&name)) {
            Err(JournalError::Locked { .. }) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            journal => return Ok(journal?),
        }
    }
}

/// The journal's records, read without a lock; without a journal of the user's own, root's.
pub(crate) fn records() -> Result<Vec<Record>> {
    let (own, name) = (dir()?, journal_name()?);
    let chosen = std::env::var_os("BUSYPOLL_STATE").is_some_and(|dir| !dir.is_empty());
    let records = busypoll_journal::read(&own, kind(&name))?;
    if records.is_empty() && !chosen && own != Path::new(ROOTS) {
        return Ok(busypoll_journal::read(Path::new(ROOTS), kind(&name))?);
    }
    Ok(records)
}

/// The directory of root's journals.
const ROOTS: &str = "/run/busypoll";

fn dir() -> Result<PathBuf> {
    match find_state_dir() {
        Err(busypoll_journal::Error::NoDirectory) => Ok(ROOTS.into()),
        dir => Ok(dir?),
    }
}

/// The file in which a guard leaves a message about what it has done, as the journal is gone by then.
fn message_path() -> Result<PathBuf> {
    Ok(dir()?.join(format!("{}.last", journal_name()?)))
}

/// What was last rolled back automatically, and why.
pub(crate) fn last() -> Option<String> {
    let text = std::fs::read_to_string(message_path().ok()?).ok()?;
    Some(text.trim().to_owned())
}

/// Leaves a message for the next `status`.
pub(crate) fn leave_message(text: &str) -> Result<()> {
    let path = message_path()?;
    std::fs::write(&path, text).map_err(Error::io(format!("writing {}", path.display())))
}

/// Removes the message: something new is applied.
pub(crate) fn clear_message() {
    // If the file cannot be removed, the message is shown once more.
    let _ = message_path().map(std::fs::remove_file);
}

/// What is applied in this network namespace.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Oldest first.
    pub applies: Vec<AppliedProfile>,
    /// Every setting that was changed, once.
    pub settings: Vec<Setting>,
    /// Everything that is not as it should be.
    pub warnings: Vec<String>,
    /// What was last rolled back automatically, and why.
    pub last: Option<String>,
    /// Other network namespaces with a journal, by the journals' names.
    pub elsewhere: Vec<String>,
    /// The journals of network namespaces that no longer exist.
    pub gone: Vec<PathBuf>,
}

/// An applied profile.
#[derive(Debug, Serialize)]
pub struct AppliedProfile {
    /// Its number.
    pub number: u32,
    /// The profile.
    pub profile: String,
    /// When it was applied, in seconds since 1970.
    pub at: u64,
    /// Whether it was interrupted before its last change.
    pub interrupted: bool,
    /// It is rolled back this many seconds after `at` unless confirmed; none once it is.
    pub confirm_within: Option<u64>,
    /// The process that will roll it back automatically, while there is a reason to and the process lives.
    pub guard: Option<u32>,
    /// The processes that poll.
    pub pollers: Vec<u32>,
}

/// A setting that was changed.
#[derive(Debug, Serialize)]
pub struct Setting {
    /// The device; none for a setting of the machine.
    pub device: Option<String>,
    /// The setting, for the user.
    pub setting: String,
    /// The setting's name.
    pub key: Key,
    /// Its value before the first apply.
    pub before: Value,
    /// The value it was last set to, or that the driver made of it.
    pub set: Value,
    /// Whether the change was refused.
    pub refused: bool,
    /// Its current value; none if it cannot be read.
    pub now: Option<Value>,
    /// Why its device is not found, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

impl Setting {
    /// Whether another program or the driver has changed it since.
    fn has_drifted(&self) -> bool {
        self.now.as_ref().is_some_and(|now| *now != self.set)
    }
}

impl Status {
    /// Reads the journal and the settings.
    ///
    /// # Errors
    /// Errors of the journal, and of reading settings.
    pub fn read(machine: &mut Machine) -> Result<Self> {
        let journal_state = JournalState::of(&records()?);
        let mut status = Status {
            applies: Vec::new(),
            settings: Vec::new(),
            warnings: Vec::new(),
            last: last(),
            elsewhere: Vec::new(),
            gone: Vec::new(),
        };
        (status.elsewhere, status.gone) = other_namespaces()?;
        for apply in &journal_state.applies {
            let begin = &apply.begin;
            let confirm_within = begin.confirm_within.filter(|_| !apply.confirmed);
            let on_guard = confirm_within.is_some() || !begin.pollers.is_empty();
            let shown = AppliedProfile {
                number: begin.apply,
                profile: begin.profile.clone(),
                at: begin.at,
                interrupted: !apply.complete,
                confirm_within,
                guard: begin.guard.filter(|g| on_guard && g.is_alive()).map(|g| g.pid),
                pollers: begin.pollers.iter().map(|p| p.pid).collect(),
            };
            status.warn(machine, &journal_state, apply, &shown);
            status.applies.push(shown);
        }
        for old in &journal_state.olds {
            let Some(wanted) = &old.wanted else { continue };
            let device = old.device.as_ref().map(Device::find);
            let lost = device.as_ref().and_then(|found| found.as_ref().err().cloned());
            let now = match &device {
                Some(Err(_)) => None,
                Some(Ok(device)) => machine.read(Some(device), &old.knob).ok(),
                None => machine.read(None, &old.knob).ok(),
            };
            let name = old.device.as_ref().map(|d| d.name.clone());
            let known = status.settings.iter_mut().find(|s| {
                s.device == name && s.setting == old.knob.show() && s.key == old.knob.key
            });
            match known {
                Some(known) => (known.set, known.refused) = (wanted.clone(), old.refused),
                None => status.settings.push(Setting {
                    device: name,
                    setting: old.knob.show(),
                    key: old.knob.key.clone(),
                    before: old.old.clone(),
                    set: wanted.clone(),
                    refused: old.refused,
                    now,
                    lost,
                }),
            }
        }
        // While an apply is under way not all its settings are made yet.
        if journal_state.applies.iter().all(|apply| apply.complete) {
            status.warn_of_settings();
        }
        Ok(status)
    }

    fn warn_of_settings(&mut self) {
        let count = |which: fn(&&Setting) -> bool| match self.settings.iter().filter(which).count()
        {
            0 => None,
            1 => Some("1 setting was".to_owned()),
            n => Some(format!("{n} settings were")),
        };
        let refused = count(|s| s.refused).map(|were| format!("{were} refused"));
        let drifted = count(|s| s.has_drifted()).map(|were| {
            format!("{were} changed by others since: apply the profile again, or `busypoll tune rollback`")
        });
        self.warnings.extend(refused.into_iter().chain(drifted));
        let mut lost: Vec<(&String, &String)> = Vec::new();
        for s in &self.settings {
            lost.extend(s.device.as_ref().zip(s.lost.as_ref()).filter(|it| !lost.contains(it)));
        }
        let lost = lost.into_iter().map(|(device, why)| {
            format!(
                "{device} is {why}: `busypoll tune rollback` puts back the rest, and with --forget does \
                 not wait for it to come back"
            )
        });
        let lost: Vec<String> = lost.collect();
        self.warnings.extend(lost);
    }

    fn warn(
        &mut self,
        machine: &Machine,
        journal_state: &JournalState,
        apply: &Apply,
        shown: &AppliedProfile,
    ) {
        let begin = &apply.begin;
        let name = format!("{} (apply {})", begin.profile, begin.apply);
        if shown.interrupted {
            self.warnings.push(format!(
                "{name} is under way or was interrupted: if no process works on it, `busypoll tune rollback`"
            ));
        }
        let guarded = shown.guard.is_some();
        if !guarded && shown.confirm_within.is_some() {
            self.warnings.push(format!(
                "{name} waits to be confirmed and no guard is left to roll it back: `busypoll tune confirm` or \
                 `busypoll tune rollback`"
            ));
        }
        let delays = journal_state.olds.iter().any(|o| {
            o.apply == begin.apply
                && o.knob.key == Key::GroFlushTimeout
                && o.wanted.as_ref().and_then(Value::number).is_some_and(|ns| ns > 0)
        });
        if !delays {
            return;
        }
        if !begin.pollers.iter().any(Process::is_alive) {
            self.warnings.push(format!(
                "{name} has left gro-flush-timeout set and no process polls any more: every packet waits for the \
                 timer: `busypoll tune rollback`"
            ));
            return;
        }
        if !guarded {
            self.warnings.push(format!(
                "{name}: no guard is left to roll it back when the poller ends: roll it back by then"
            ));
        }
        let received = received(machine, journal_state, begin).saturating_sub(begin.received);
        if received >= ENOUGH && busy_poll_rx_packets().is_ok_and(|n| n == begin.busy_polled) {
            self.warnings.push(format!(
                "{name}: none of {received} packets since was busy polled, so each waits for the timer: \
                 `busypoll doctor --pid {}` shows why",
                begin.pollers.first().map_or(0, |p| p.pid)
            ));
        }
    }
}

/// With this many packets it is no accident that none was busy polled.
const ENOUGH: u64 = 100;

/// The packets that the devices of an apply have received.
fn received(machine: &Machine, journal_state: &JournalState, begin: &Begin) -> u64 {
    let mut known: Vec<&Identity> = Vec::new();
    for old in journal_state.olds.iter().filter(|o| o.apply == begin.apply) {
        known.extend(old.device.as_ref().filter(|d| !known.contains(d)));
    }
    let devices: Vec<Device> = known.into_iter().filter_map(|d| Device::find(d).ok()).collect();
    machine.received(&devices)
}

/// Other network namespaces with a journal, and the journals of namespaces that are gone.
fn other_namespaces() -> Result<(Vec<String>, Vec<PathBuf>)> {
    let (dir, own) = (dir()?, journal_name()?);
    let files = std::fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = files
        .filter_map(|f| f.file_name().to_str()?.strip_suffix(".journal").map(str::to_owned))
        .filter(|name| name.starts_with("tune-") && *name != own)
        // Skip journals of processes that were killed before they wrote a record, and of an earlier boot.
        .filter(|name| {
            let records = busypoll_journal::read::<Record>(&dir, kind(name));
            !records.is_ok_and(|records| records.is_empty())
        })
        .collect();
    names.sort_unstable();
    // Finding the namespaces takes a while, and usually there is no such journal.
    let there = if names.is_empty() { None } else { netns::cookies() };
    let is_there = |name: &String| {
        there.as_ref().is_none_or(|there| there.iter().any(|it| *name == name_of(*it)))
    };
    let (elsewhere, gone): (Vec<String>, Vec<String>) = names.into_iter().partition(is_there);
    Ok((elsewhere, gone.iter().map(|name| dir.join(format!("{name}.journal"))).collect()))
}
