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
    /// What it was found at instead of what had been set or left, for a person: somebody or the driver has
    /// changed it since. It is put back all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
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
    /// Its device is down; it is still to be put back.
    Down(String),
    /// It is not as before.
    Failed(String),
}

impl How {
    /// Whether nothing is left to do.
    pub fn is_settled(&self) -> bool {
        matches!(self, How::Already | How::PutBack | How::Gone(_))
    }

    /// Whether its device is not here.
    pub(crate) fn is_far(&self) -> bool {
        matches!(self, How::NoDevice(_))
    }
}

/// Puts back what the given applies changed, newest first, and strikes them from the journal; the journal
/// goes when none is left. Tells what became of each setting, in the order of the first change. `forget`: what cannot be
/// put back because its device is not here counts as done.
///
/// # Errors
/// The journal's. What could not be put back is no error but in the report, and stays in the journal.
pub fn undo(
    machine: &mut Machine,
    mut journal: TuneJournal,
    which: impl Fn(u32) -> bool,
    forget: bool,
    steps: Steps<'_>,
) -> Result<Vec<PutBack>> {
    let standing = Standing::of(journal.entries());
    let mut done = put_back(machine, &standing, &which, steps);
    let told = told(&done);
    let is_settled = |how: &How| how.is_settled() || forget && how.is_far();
    if told.iter().all(|first| is_settled(&first.how)) {
        if standing.applies.iter().all(|a| which(a.begin.apply)) {
            journal.finish()?;
        } else {
            let undone = standing.applies.iter().map(|a| a.begin.apply).filter(|n| which(*n));
            let undone: Vec<Record> = undone.map(|apply| Record::Undone { apply }).collect();
            journal.append(&undone)?;
        }
    } else {
        // What somebody makes of these from now on is not undone when the rest is.
        done.retain(|next| told.iter().any(|it| it.how.is_settled() && it.old.same(next.old)));
        let settled: Vec<Record> = done.iter().map(Done::settled).collect();
        journal.append(&settled)?;
    }
    steps(Step::Struck);
    Ok(told.into_iter().map(Done::told).collect())
}

/// Puts back what can be, newest first.
fn put_back<'a>(
    machine: &mut Machine,
    standing: &'a Standing,
    which: &impl Fn(u32) -> bool,
    steps: Steps<'_>,
) -> Vec<Done<'a>> {
    let mut devices = Devices::default();
    let mut done: Vec<Done<'_>> = Vec::new();
    for (at, old) in standing.olds.iter().enumerate().rev() {
        if !which(old.apply) {
            continue;
        }
        // A later apply that stands has the setting now.
        let later = standing.olds.iter().skip(at + 1);
        if later.filter(|o| !which(o.apply)).any(|o| o.same(old)) {
            continue;
        }
        let (how, found) = one(machine, &mut devices, old, steps);
        done.push(Done { old, how, found });
    }
    done
}

/// Of every setting once, in the order of the first change: of one changed twice its oldest value, put back last, is
/// the one that counts.
fn told<'a>(done: &[Done<'a>]) -> Vec<Done<'a>> {
    let mut told: Vec<Done<'_>> = Vec::new();
    for next in done.iter().rev().cloned() {
        match told.iter_mut().find(|first| first.old.same(next.old)) {
            Some(first) => {
                if first.how == How::Already && next.how == How::PutBack {
                    first.how = next.how;
                }
                first.found = next.found.or(first.found.take());
            }
            None => told.push(next),
        }
    }
    told
}

/// An old value and what became of it.
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

    fn told(self) -> PutBack {
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

/// What became of a setting, and the value it was found at, if neither the old one nor the one set.
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
        // Drivers with lasting NAPI settings bring them back when the device is up again.
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
