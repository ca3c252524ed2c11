//! Putting back what was changed. Idempotent: a crash in the middle starts it again.

use std::collections::HashMap;

use busypoll_linux::Error as Linux;
use serde::Serialize;

use crate::device::{Device, Identity};
use crate::error::Result;
use crate::machine::Machine;
use crate::record::{Old, Record, Standing, TuneJournal};
use crate::value::Value;
use crate::{Step, Steps};

/// What became of one setting.
#[derive(Clone, Debug, Serialize)]
pub struct PutBack {
    /// The device; none for a setting of the machine.
    pub device: Option<String>,
    /// The setting, for a person.
    pub setting: String,
    /// The value before.
    pub value: Value,
    /// The same, for a person.
    pub shown: String,
    /// What became of it.
    pub how: How,
}

/// What became of a setting that was to be put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It was as before.
    Already,
    /// It is as before.
    PutBack,
    /// It went with what it belonged to: a NAPI instance, an interrupt, a feature of another kernel.
    Gone(String),
    /// Its device is not here; it is still to be put back.
    NoDevice(String),
    /// It is not as before.
    Failed(String),
}

impl How {
    /// Whether nothing is left to do.
    pub fn is_settled(&self) -> bool {
        matches!(self, How::Already | How::PutBack | How::Gone(_))
    }
}

/// Puts back what the given applies changed, newest first, and strikes them from the journal; the journal
/// goes when none is left. Tells what became of each setting, in the order of the first change.
///
/// # Errors
/// The journal's. What could not be put back is no error but in the report, and stays in the journal.
pub fn undo(
    machine: &mut Machine,
    mut journal: TuneJournal,
    which: impl Fn(u32) -> bool,
    steps: Steps<'_>,
) -> Result<Vec<PutBack>> {
    let standing = Standing::of(journal.entries());
    let report = put_back(machine, &standing, &which, steps);
    if report.iter().all(|p| p.how.is_settled()) {
        if standing.applies.iter().all(|a| which(a.begin.apply)) {
            journal.finish()?;
        } else {
            let undone = standing.applies.iter().map(|a| a.begin.apply).filter(|n| which(*n));
            let undone: Vec<Record> = undone.map(|apply| Record::Undone { apply }).collect();
            journal.append(&undone)?;
        }
    }
    steps(Step::Struck);
    Ok(report)
}

fn put_back(
    machine: &mut Machine,
    standing: &Standing,
    which: &impl Fn(u32) -> bool,
    steps: Steps<'_>,
) -> Vec<PutBack> {
    let mut devices = Devices::default();
    let mut done: Vec<(&Old, How)> = Vec::new();
    for (at, old) in standing.olds.iter().enumerate().rev() {
        if !which(old.apply) {
            continue;
        }
        // A later apply that stands has the setting now.
        let later = standing.olds.iter().skip(at + 1);
        if later.filter(|o| !which(o.apply)).any(|o| o.same(old)) {
            continue;
        }
        let how = one(machine, &mut devices, old, steps);
        done.push((old, how));
    }
    // A setting changed twice is told once: its oldest value, put back last, is the one that counts.
    let mut told: Vec<(&Old, How)> = Vec::new();
    for (old, how) in done.into_iter().rev() {
        match told.iter_mut().find(|(o, _)| o.same(old)) {
            Some((_, first)) if *first == How::Already && how == How::PutBack => *first = how,
            Some(_) => {}
            None => told.push((old, how)),
        }
    }
    let shown = |(old, how): (&Old, How)| PutBack {
        device: old.device.as_ref().map(|d| d.name.clone()),
        setting: old.knob.show(),
        value: old.old.clone(),
        shown: old.old.show(old.knob.key.about().unit),
        how,
    };
    told.into_iter().map(shown).collect()
}

fn one(machine: &mut Machine, devices: &mut Devices, old: &Old, steps: Steps<'_>) -> How {
    let device = match old.device.as_ref().map(|identity| devices.find(identity)) {
        None => None,
        Some(Ok(device)) => Some(device),
        Some(Err(why)) => return How::NoDevice(why),
    };
    let now = |machine: &mut Machine| machine.read(device, &old.knob);
    match now(machine) {
        Ok(now) if now == old.old => return How::Already,
        Ok(_) => {}
        // Drivers with lasting NAPI settings bring them back when the device is up again.
        Err(Linux::NoNapi { .. }) if device.is_some_and(|d| !d.up) => {
            return How::NoDevice("down: it has no NAPI instance until it is up".into());
        }
        Err(e) => return lost(e),
    }
    steps(Step::Restoring(&old.knob));
    if let Err(e) = machine.write(device, &old.knob, &old.old) {
        return lost(e);
    }
    match now(machine) {
        Ok(now) if now == old.old => How::PutBack,
        Ok(now) => {
            let unit = old.knob.key.about().unit;
            How::Failed(format!("it became {} instead", now.show(unit)))
        }
        Err(e) => lost(e),
    }
}

fn lost(e: Linux) -> How {
    match e {
        Linux::NoNapi { .. } | Linux::DeviceLacks { .. } => {
            How::Gone("it went with what it belonged to".into())
        }
        e => How::Failed(e.to_string()),
    }
}

/// The devices looked for so far: the search goes over all of the namespace's.
#[derive(Default)]
struct Devices(HashMap<String, Result<Device, String>>);

impl Devices {
    fn find(&mut self, identity: &Identity) -> Result<&Device, String> {
        let key = format!("{} {:?} {:?}", identity.name, identity.permanent, identity.mac);
        let found = self.0.entry(key).or_insert_with(|| Device::find(identity));
        found.as_ref().map_err(Clone::clone)
    }
}
