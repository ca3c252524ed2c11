//! Applies a plan: journal, write, read back.

use std::time::{SystemTime, UNIX_EPOCH};

use busypoll_linux::Error as Linux;
use busypoll_linux::caps::{Capability, Caps};
use busypoll_linux::stat::busy_poll_rx_packets;
use serde::Serialize;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::machine::{Knob, Machine};
use crate::plan::{Line, Options, Plan, State};
use crate::profile::Profile;
use crate::record::{Begin, JournalState, Process, Record, TuneJournal};
use crate::undo::undo;
use crate::value::Value;
use crate::{Step, Steps};

/// What to apply, and for which processes.
#[derive(Debug)]
pub struct Request<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// The user's options.
    pub options: &'a Options,
    /// The process that rolls back automatically.
    pub guard: Option<Process>,
    /// Roll back after this many seconds unless the user confirms.
    pub confirm_within: Option<u64>,
    /// The processes that poll.
    pub pollers: Vec<Process>,
}

/// The result of an apply.
#[derive(Debug, Serialize)]
pub struct Applied {
    /// The number of the apply; none if there was nothing to do.
    pub number: Option<u32>,
    /// The plan, made before the changes.
    pub plan: Plan,
    /// The result of each change, in the order of writing.
    pub outcomes: Vec<Outcome>,
    /// The settings that cannot be made here.
    pub left_out: Vec<LeftOut>,
}

/// A setting that was not made.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// The setting.
    pub line: Line,
    /// Why it cannot be made.
    pub why: String,
    /// It was possible until another setting of the profile was made.
    pub lost: bool,
}

/// The result of one change.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The change.
    pub line: Line,
    /// The result.
    pub result: Written,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Written {
    /// It reads back as written.
    AsPlanned,
    /// The kernel or the driver made it another value.
    Became(Value),
    /// It read back as written, until another setting of the profile changed it.
    Overtaken(Value),
    /// The kernel or the driver refused it.
    Refused(String),
}

impl Applied {
    /// The changes that were refused.
    pub fn refused(&self) -> usize {
        self.outcomes.iter().filter(|o| matches!(o.result, Written::Refused(_))).count()
    }

    /// The settings that others of the profile have undone.
    pub fn lost(&self) -> usize {
        let overtaken = |o: &&Outcome| matches!(o.result, Written::Overtaken(_));
        self.left_out.iter().filter(|left| left.lost).count()
            + self.outcomes.iter().filter(overtaken).count()
    }
}

/// Applies a profile. The old value is on the disk before each write. If a device refuses one setting, the others
/// are kept; any other failure rolls everything back.
///
/// # Errors
/// As [`Plan::make`]; [`Error::NeedsPoller`], [`Error::Impossible`], a missing privilege, a journal error:
/// nothing was changed. [`Error::Undone`], [`Error::HalfDone`].
pub fn apply(
    machine: &mut Machine,
    mut journal: TuneJournal,
    request: &Request<'_>,
    steps: Steps<'_>,
) -> Result<Applied> {
    let devices = open(&request.options.devices)?;
    let plan = check(machine, &devices, request)?;
    let number = JournalState::next_number(journal.entries());
    let mut work = Work { machine, journal: &mut journal, devices: &devices, number, steps };
    match work.all(request, &plan) {
        Ok((outcomes, left_out)) => Ok(Applied { number: Some(number), plan, outcomes, left_out }),
        Err(cause) => {
            let steps = work.steps;
            let left = undo(machine, journal, |n| n == number, false, steps)?
                .iter()
                .filter(|p| !p.how.is_settled())
                .count();
            let cause = cause.to_string();
            Err(match left {
                0 => Error::Undone { cause },
                left => Error::HalfDone { cause, left },
            })
        }
    }
}

/// Opens the named devices.
///
/// # Errors
/// No such device; a device named twice; loopback.
pub fn open(names: &[String]) -> Result<Vec<Device>> {
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            return Err(Error::Option(format!("--dev {name}: named twice")));
        }
    }
    names.iter().map(|name| Device::open(name)).collect()
}

/// Makes the plan and checks everything that can be known before the first change.
///
/// # Errors
/// As [`apply`], without having changed anything.
pub fn check(machine: &mut Machine, devices: &[Device], request: &Request<'_>) -> Result<Plan> {
    let plan = Plan::make(machine, devices, request.profile, request.options)?;
    if let Some(why) = &plan.impossible {
        return Err(Error::Impossible { profile: plan.profile, why: why.clone() });
    }
    if plan.needs_poller && request.pollers.is_empty() {
        return Err(Error::NeedsPoller);
    }
    if let Some(missing) = Caps::current()?.missing(&[Capability::NetAdmin]) {
        return Err(Error::Option(format!("tune apply: {missing}")));
    }
    Ok(plan)
}

struct Work<'a, 's> {
    machine: &'a mut Machine,
    journal: &'a mut TuneJournal,
    devices: &'a [Device],
    number: u32,
    steps: Steps<'s>,
}

impl Work<'_, '_> {
    fn all(
        &mut self,
        request: &Request<'_>,
        before: &Plan,
    ) -> Result<(Vec<Outcome>, Vec<LeftOut>)> {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let begin = Begin {
            apply: self.number,
            profile: request.profile.name.clone(),
            at,
            guard: request.guard,
            confirm_within: request.confirm_within,
            pollers: request.pollers.clone(),
            busy_polled: busy_poll_rx_packets().unwrap_or(0),
            received: self.machine.received(self.devices),
        };
        // Settings that reset the device go first; those of its queues are planned again afterwards.
        let is_first = |line: &&Line| line.knob.key.resets_queues();
        let first: Vec<&Line> = before.changes().filter(is_first).collect();
        let mut records = vec![Record::Begin(begin)];
        records.extend(self.at_risk(&first)?);
        let mut outcomes = self.write(records, &first)?;
        let again;
        let plan = match first.is_empty() {
            true => before,
            false => {
                again = Plan::make(self.machine, self.devices, request.profile, request.options)?;
                if let Some(why) = &again.impossible {
                    let (profile, why) = (again.profile.clone(), why.clone());
                    return Err(Error::Impossible { profile, why });
                }
                &again
            }
        };
        let second: Vec<&Line> = plan.changes().filter(|line| !is_first(line)).collect();
        outcomes.extend(self.write(Vec::new(), &second)?);
        let undone = self.recheck(&mut outcomes, before);
        let mut records = self.final_values(&outcomes);
        records.push(Record::Applied { apply: self.number });
        self.journal.append(&records)?;
        (self.steps)(Step::Complete);
        Ok((outcomes, left_out(before, plan).into_iter().chain(undone).collect()))
    }

    /// A setting may undo an earlier one: scatter-gather off switches TSO off.
    /// If the undone one was set already before, nothing was written for it: it is reported as left out.
    fn recheck(&mut self, outcomes: &mut [Outcome], before: &Plan) -> Vec<LeftOut> {
        for outcome in outcomes.iter_mut().filter(|o| o.result == Written::AsPlanned) {
            let Some(then) = &outcome.line.then else { continue };
            // A value that cannot be read any more was removed by another program; status reports it.
            if let Ok(Written::Became(now)) = self.still_set(&outcome.line, then) {
                outcome.result = Written::Overtaken(now);
            }
        }
        let so_already = before.lines.iter().filter(|l| l.state == State::Same);
        let undone =
            so_already.filter_map(|line| match self.still_set(line, line.then.as_ref()?) {
                Ok(Written::Became(now)) => {
                    let why = format!("is {} now", now.show(line.knob.key.about().unit));
                    Some(LeftOut { line: line.clone(), why, lost: true })
                }
                _ => None,
            });
        undone.collect()
    }

    /// Values that were rounded, or changed along with another setting: a rollback must not take them for
    /// changes by another program.
    fn final_values(&mut self, outcomes: &[Outcome]) -> Vec<Record> {
        let apply = self.number;
        let of = |outcome: &Outcome| {
            let line = &outcome.line;
            let device = self.devices.iter().find(|d| Some(d.name()) == line.device.as_deref());
            let value = self.machine.read(device, &line.knob).ok()?;
            let device = device.map(|d| d.identity.clone());
            let knob = line.knob.clone();
            (line.then.as_ref() != Some(&value)).then_some(Record::Became {
                apply,
                device,
                knob,
                value,
                refused: matches!(outcome.result, Written::Refused(_)),
            })
        };
        outcomes.iter().filter_map(of).collect()
    }

    fn device(&self, line: &Line) -> Option<&Device> {
        self.devices.iter().find(|d| Some(d.name()) == line.device.as_deref())
    }

    /// The settings that a reset of the device may lose: all of its queues, NAPI instances and interrupts.
    fn at_risk(&mut self, first: &[&Line]) -> Result<Vec<Record>> {
        const AT_RISK: [Key; 10] = [
            Key::RxUsecs,
            Key::RxFrames,
            Key::AdaptiveRx,
            Key::RpsCpus,
            Key::RpsFlowCnt,
            Key::XpsCpus,
            Key::InterruptCpus,
            Key::Threaded,
            Key::IrqSuspendTimeout,
            Key::DeferHardIrqs,
        ];
        let mut records = Vec::new();
        for device in self.devices {
            if !first.iter().any(|line| line.device.as_deref() == Some(device.name())) {
                continue;
            }
            for key in AT_RISK.into_iter().chain([Key::GroFlushTimeout]) {
                for at in self.machine.places(Some(device), &key)? {
                    let knob = Knob { key: key.clone(), at };
                    // A setting that cannot be read cannot have been set.
                    let Ok(old) = self.machine.read(Some(device), &knob) else { continue };
                    records.push(self.old(Some(device), knob, old, None));
                }
            }
        }
        Ok(records)
    }

    fn old(
        &self,
        device: Option<&Device>,
        knob: Knob,
        old: Value,
        wanted: Option<Value>,
    ) -> Record {
        let device = device.map(|d| d.identity.clone());
        Record::Old { apply: self.number, device, knob, old, wanted }
    }

    /// Journals all old values, then writes.
    fn write(&mut self, mut records: Vec<Record>, lines: &[&Line]) -> Result<Vec<Outcome>> {
        for line in lines {
            if let (Some(now), Some(then)) = (&line.now, &line.then) {
                let (device, knob) = (self.device(line), line.knob.clone());
                records.push(self.old(device, knob, now.clone(), Some(then.clone())));
            }
        }
        if !records.is_empty() {
            (self.steps)(Step::Journalling);
            self.journal.append(&records)?;
            (self.steps)(Step::Journalled);
        }
        lines.iter().map(|line| self.one(line)).collect()
    }

    fn one(&mut self, line: &Line) -> Result<Outcome> {
        let device = self.devices.iter().find(|d| Some(d.name()) == line.device.as_deref());
        let Some(then) = &line.then else {
            let result = Written::Refused("no value for it".into());
            return Ok(Outcome { line: line.clone(), result });
        };
        (self.steps)(Step::Writing(&line.knob));
        let result = match self.machine.write(device, &line.knob, then) {
            Ok(()) => self.still_set(line, then)?,
            // A missing privilege affects all settings: roll everything back.
            Err(e) if is_forbidden(&e) => return Err(e.into()),
            Err(e) => Written::Refused(e.to_string()),
        };
        (self.steps)(Step::Written(&line.knob));
        Ok(Outcome { line: line.clone(), result })
    }

    /// Whether a setting still has the value that was written.
    fn still_set(&mut self, line: &Line, then: &Value) -> Result<Written> {
        let device = self.devices.iter().find(|d| Some(d.name()) == line.device.as_deref());
        match self.machine.read(device, &line.knob)? {
            now if now == *then => self.held_off(device, line, then),
            now => Ok(Written::Became(now)),
        }
    }

    /// A feature may be wanted but off because of another feature.
    fn held_off(&self, device: Option<&Device>, line: &Line, then: &Value) -> Result<Written> {
        let (Some(device), Key::Feature(name)) = (device, &line.knob.key) else {
            return Ok(Written::AsPlanned);
        };
        let features = device.ethtool.features()?;
        let on = features.iter().find(|f| f.name == *name).map(|f| Value::Switch(f.on));
        Ok(match on {
            Some(on) if on != *then => Written::Became(on),
            _ => Written::AsPlanned,
        })
    }
}

/// Whether the refusal comes from the system, not from the device.
fn is_forbidden(e: &Linux) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match e {
        Linux::Denied { .. } => true,
        Linux::Os { source, .. } => matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem),
        _ => false,
    }
}

/// The settings that cannot be made: for those that reset a device by the plan `before`, for the others by `after`.
pub fn left_out(before: &Plan, after: &Plan) -> Vec<LeftOut> {
    let was_there = |line: &Line| {
        let same = |l: &&Line| l.device == line.device && l.knob.key == line.knob.key;
        let mut states = before.lines.iter().filter(same).map(|l| &l.state).peekable();
        states.peek().is_some() && states.all(|state| !matches!(state, State::NotHere(_)))
    };
    let of = |line: &Line| {
        let (why, lost) = match &line.state {
            State::NotHere(why) => (why.clone(), was_there(line)),
            State::Taken(why) => (why.clone(), true),
            // No further plan follows this one.
            State::Later(_) => ("what it belongs to was not made".into(), false),
            State::Change | State::Same => return None,
        };
        Some(LeftOut { line: line.clone(), why, lost })
    };
    let first = before.lines.iter().filter(|line| line.knob.key.resets_queues());
    let rest = after.lines.iter().filter(|line| !line.knob.key.resets_queues());
    first.chain(rest).filter_map(of).collect()
}
