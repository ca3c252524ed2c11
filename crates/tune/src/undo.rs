//! Rollback. Idempotent: after a crash in the middle it can be run again.

use std::collections::HashMap;

use busypoll_linux::Error as Linux;
use serde::Serialize;

use crate::device::{Device, Identity};
use crate::error::Result;
use crate::machine::Machine;
use crate::record::{JournalState, Old, Record, TuneJournal};
use crate::value::Value;
use crate::{Step, Steps};

/// The result for one setting.
#[derive(Clone, Debug, Serialize)]
pub struct PutBack {
    /// The device; none for a setting of the machine.
    pub device: Option<String>,
    /// The setting, for the user.
    pub setting: String,
    /// The value before.
    pub value: Value,
    /// The same, for the user.
    pub shown: String,
    /// The current value, for the user, if it is neither the old one nor the one that was set: another program or
    /// the driver has changed it since. It is restored all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// The result.
    pub how: How,
}

/// The result for a setting to restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It had the old value already.
    Already,
    /// It has been restored.
    PutBack,
    /// It no longer exists: its NAPI instance or interrupt is gone, or this kernel lacks the feature.
    Gone(String),
    /// Its device is not here; it is kept for a later rollback.
    NoDevice(String),
    /// Its device is down; it is kept for a later rollback.
    Down(String),
    /// It could not be restored.
    Failed(String),
}

impl How {
    /// Whether nothing is left to do for it.
    pub fn is_settled(&self) -> bool {
        matches!(self, How::Already | How::PutBack | How::Gone(_))
    }

    /// Whether its device is not here.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, How::NoDevice(_))
    }
}

/// Restores what the given applies changed, newest first, and removes them from the journal, which is deleted when
/// it is empty. Returns the result for each setting, in the order of the first change. With `forget`, a setting whose
/// device is not here counts as done.
///
/// # Errors
/// Errors of the journal. A setting that could not be restored is in the report, and stays in the journal.
pub fn undo(
    machine: &mut Machine,
    mut journal: TuneJournal,
    which: impl Fn(u32) -> bool,
    forget: bool,
    steps: Steps<'_>,
) -> Result<Vec<PutBack>> {
    let journal_state = JournalState::of(journal.entries());
    let mut done = put_back(machine, &journal_state, &which, steps);
    let results = by_setting(&done);
    let is_settled = |how: &How| how.is_settled() || forget && how.is_absent();
    if results.iter().all(|first| is_settled(&first.how)) {
        if journal_state.applies.iter().all(|a| which(a.begin.apply)) {
            journal.finish()?;
        } else {
            let undone = journal_state.applies.iter().map(|a| a.begin.apply).filter(|n| which(*n));
            let undone: Vec<Record> = undone.map(|apply| Record::Undone { apply }).collect();
            journal.append(&undone)?;
        }
    } else {
        // A change made from now on to these settings is not undone when the rest is restored.
        done.retain(|next| results.iter().any(|it| it.how.is_settled() && it.old.same(next.old)));
        let settled: Vec<Record> = done.iter().map(Done::settled).collect();
        journal.append(&settled)?;
    }
    steps(Step::Struck);
    Ok(results.into_iter().map(Done::into_put_back).collect())
}

/// Restores what can be restored, newest first.
fn put_back<'a>(
    machine: &mut Machine,
    journal_state: &'a JournalState,
    which: &impl Fn(u32) -> bool,
    steps: Steps<'_>,
) -> Vec<Done<'a>> {
    let mut devices = Devices::default();
    let mut done: Vec<Done<'_>> = Vec::new();
    for (at, old) in journal_state.olds.iter().enumerate().rev() {
        if !which(old.apply) {
            continue;
        }
        // A later apply in force has the setting.
        let later = journal_state.olds.iter().skip(at + 1);
        if later.filter(|o| !which(o.apply)).any(|o| o.same(old)) {
            continue;
        }
        let (how, found) = one(machine, &mut devices, old, steps);
        done.push(Done { old, how, found });
    }
    done
}

/// One result for each setting, in the order of the first change: if it was changed twice, that of its oldest value,
/// which is restored last.
fn by_setting<'a>(done: &[Done<'a>]) -> Vec<Done<'a>> {
    let mut results: Vec<Done<'_>> = Vec::new();
    for next in done.iter().rev().cloned() {
        match results.iter_mut().find(|first| first.old.same(next.old)) {
            Some(first) => {
                if first.how == How::Already && next.how == How::PutBack {
                    first.how = next.how;
                }
                first.found = next.found.or(first.found.take());
            }
            None => results.push(next),
        }
    }
    results
}

/// An old value and the result for it.
#[derive(Clone)]
struct Done<'a> {
    old: &'a Old,
    how: How,
    found: Option<Value>,
}

impl Done<'_> {
    fn settled(&self) -> Record {
        let Old { apply, device, knob, .. } = self.old;
        Record::Settled { apply: *apply, device: device.clone(), knob: knob.clone() }
    }

    fn into_put_back(self) -> PutBack {
        let unit = self.old.knob.key.about().unit;
        PutBack {
            device: self.old.device.as_ref().map(|d| d.name.clone()),
            setting: self.old.knob.show(),
            value: self.old.old.clone(),
            shown: self.old.old.show(unit),
            found: self.found.map(|value| value.show(unit)),
            how: self.how,
        }
    }
}

/// The result for a setting, and its value before, if that was neither the old one nor the one set.
fn one(
    machine: &mut Machine,
    devices: &mut Devices,
    old: &Old,
    steps: Steps<'_>,
) -> (How, Option<Value>) {
    let device = match old.device.as_ref().map(|identity| devices.find(identity)) {
        None => None,
        Some(Ok(device)) => Some(device),
        Some(Err(why)) => return (How::NoDevice(why), None),
    };
    let found = match machine.read(device, &old.knob) {
        Ok(now) if now == old.old => return (How::Already, None),
        Ok(now) => old.wanted.as_ref().is_none_or(|wanted| now != *wanted).then_some(now),
        // Drivers with persistent NAPI settings restore them when the device is up again.
        Err(Linux::NoNapi { .. }) if device.is_some_and(|d| !d.up) => {
            return (How::Down("down: it has no NAPI instance until it is up".into()), None);
        }
        Err(e) => return (lost(e), None),
    };
    steps(Step::Restoring(&old.knob));
    (write(machine, device, old).unwrap_or_else(lost), found)
}

/// Writes the old value and reads it back.
fn write(machine: &mut Machine, device: Option<&Device>, old: &Old) -> busypoll_linux::Result<How> {
    machine.write(device, &old.knob, &old.old)?;
    let now = machine.read(device, &old.knob)?;
    let unit = old.knob.key.about().unit;
    Ok(match now == old.old {
        true => How::PutBack,
        false => How::Failed(format!("it became {} instead", now.show(unit))),
    })
}

fn lost(e: Linux) -> How {
    match e {
        Linux::NoNapi { .. } | Linux::DeviceLacks { .. } => {
            How::Gone("it ended with the object it belonged to".into())
        }
        e => How::Failed(e.to_string()),
    }
}

/// The devices found so far; each search reads all devices of the namespace.
#[derive(Default)]
struct Devices(HashMap<String, Result<Device, String>>);

impl Devices {
    fn find(&mut self, identity: &Identity) -> Result<&Device, String> {
        let key = format!("{} {:?} {:?}", identity.name, identity.permanent, identity.mac);
        let found = self.0.entry(key).or_insert_with(|| Device::find(identity));
        found.as_ref().map_err(Clone::clone)
    }
}
