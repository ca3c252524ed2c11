//! What the journal of tune says, and what of it still counts. Pure but for naming the journal.
//!
//! One journal per network namespace, named after the namespace's own number: a device is looked for only
//! where it was changed.

use busypoll_journal::{Journal, Kind};
use busypoll_linux::netns;
use serde::{Deserialize, Serialize};

use crate::device::Identity;
use crate::error::Result;
use crate::machine::Knob;
use crate::value::Value;

/// The version of the records below.
const VERSION: u32 = 1;

/// The name of this network namespace's journal.
pub(crate) fn journal_name() -> Result<String> {
    netns::cookie().map(name_of).map_err(Into::into)
}

/// That of the network namespace with this number.
pub(crate) fn name_of(cookie: u64) -> String {
    format!("tune-{cookie}")
}

pub(crate) fn kind(name: &str) -> Kind<'_> {
    Kind { name, version: VERSION }
}

/// The journal of tune, held.
pub type TuneJournal = Journal<Record>;

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// An apply begins.
    Begin(Begin),
    /// A value that stands and is about to be changed, or may be lost by such a change.
    Old {
        /// The apply that changes it.
        apply: u32,
        /// The device; none for a setting of the machine.
        device: Option<Identity>,
        /// The setting.
        knob: Knob,
        /// Its value.
        old: Value,
        /// What it is to become; none if it is not itself changed.
        wanted: Option<Value>,
    },
    /// The kernel or the driver made something else of what was wanted.
    Became {
        /// The apply that wanted it.
        apply: u32,
        /// The device; none for a setting of the machine.
        device: Option<Identity>,
        /// The setting.
        knob: Knob,
        /// Its value.
        value: Value,
        /// It was refused: the value is the old one.
        #[serde(default)]
        refused: bool,
    },
    /// An apply has made all its changes.
    Applied {
        /// Which.
        apply: u32,
    },
    /// A person has confirmed it.
    Confirmed {
        /// Which.
        apply: u32,
    },
    /// A value of an apply is as it was before it, and others are not yet.
    Settled {
        /// The apply that changed it.
        apply: u32,
        /// The device; none for a setting of the machine.
        device: Option<Identity>,
        /// The setting.
        knob: Knob,
    },
    /// Everything of an apply is as it was before it.
    Undone {
        /// Which.
        apply: u32,
    },
}

/// How an apply began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Its number, counted from 1 in this journal.
    pub apply: u32,
    /// The profile.
    pub profile: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Who rolls it back by itself, if anybody.
    pub guard: Option<Process>,
    /// In how many seconds it is rolled back unless it is confirmed.
    pub confirm_within: Option<u64>,
    /// Whose polling it is for: rolled back when all of them have ended.
    pub pollers: Vec<Process>,
    /// `BusyPollRxPackets` of this network namespace when it began.
    #[serde(default)]
    pub busy_polled: u64,
    /// Packets its devices had received by then.
    #[serde(default)]
    pub received: u64,
}

/// A process, told from another one that has its PID later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its PID.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

impl Process {
    /// The process of that PID, if there is one that has not ended.
    pub fn find(pid: u32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in parentheses may hold anything; state is the first field after it, starttime the
        // twentieth (proc(5)).
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let started = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Process { pid, started })
    }

    /// Whether it still lives.
    pub fn lives(&self) -> bool {
        Process::find(self.pid).as_ref() == Some(self)
    }
}

/// A value to put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Old {
    /// The apply that changed it.
    pub apply: u32,
    /// The device; none for a setting of the machine.
    pub device: Option<Identity>,
    /// The setting.
    pub knob: Knob,
    /// Its value before.
    pub old: Value,
    /// What it was changed to; none if it was not itself changed.
    pub wanted: Option<Value>,
    /// The change was refused.
    pub refused: bool,
}

impl Old {
    /// Whether both speak of the same setting of the same device.
    pub fn same(&self, other: &Old) -> bool {
        let name = |old: &Old| old.device.as_ref().map(|d| (d.name.clone(), d.mac.clone()));
        self.knob.same(&other.knob) && name(self) == name(other)
    }
}

/// An apply that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apply {
    /// How it began.
    pub begin: Begin,
    /// It has made all its changes.
    pub complete: bool,
    /// A person has confirmed it.
    pub confirmed: bool,
}

/// What of a journal counts: the applies that are not undone, and the values to put back, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Oldest first.
    pub applies: Vec<Apply>,
    /// Oldest first.
    pub olds: Vec<Old>,
}

impl Standing {
    /// Reads the records of a journal.
    pub fn of(records: &[Record]) -> Self {
        let mut standing = Standing::default();
        for record in records {
            match record {
                Record::Begin(begin) => standing.applies.push(Apply {
                    begin: begin.clone(),
                    complete: false,
                    confirmed: false,
                }),
                Record::Old { apply, device, knob, old, wanted } => standing.olds.push(Old {
                    apply: *apply,
                    device: device.clone(),
                    knob: knob.clone(),
                    old: old.clone(),
                    wanted: wanted.clone(),
                    refused: false,
                }),
                Record::Became { apply, device, knob, value, refused } => {
                    let is = |o: &&mut Old| {
                        o.apply == *apply
                            && o.device == *device
                            && o.knob == *knob
                            && o.wanted.is_some()
                    };
                    if let Some(old) = standing.olds.iter_mut().find(is) {
                        old.wanted = Some(value.clone());
                        old.refused = *refused;
                    }
                }
                Record::Applied { apply } => {
                    standing.each(*apply, |a| a.complete = true);
                }
                Record::Confirmed { apply } => {
                    standing.each(*apply, |a| a.confirmed = true);
                }
                Record::Settled { apply, device, knob } => standing
                    .take_out(|o| o.apply == *apply && o.device == *device && o.knob == *knob),
                Record::Undone { apply } => {
                    standing.take_out(|o| o.apply == *apply);
                    standing.applies.retain(|a| a.begin.apply != *apply);
                }
            }
        }
        standing
    }

    fn each(&mut self, apply: u32, change: impl FnMut(&mut Apply)) {
        self.applies.iter_mut().filter(|a| a.begin.apply == apply).for_each(change);
    }

    /// Takes values out. Where a later apply changed the same setting, that one's old value was the value
    /// this one set, which it must not come back to.
    fn take_out(&mut self, which: impl Fn(&Old) -> bool) {
        while let Some(at) = self.olds.iter().position(&which) {
            let gone = self.olds.remove(at);
            if let Some(later) = self.olds.iter_mut().skip(at).find(|o| o.same(&gone)) {
                later.old = gone.old;
            }
        }
    }

    /// The apply of that number.
    pub fn apply(&self, number: u32) -> Option<&Apply> {
        self.applies.iter().find(|a| a.begin.apply == number)
    }

    /// The number of the next apply.
    pub fn next_number(records: &[Record]) -> u32 {
        let begun = records.iter().filter_map(|r| match r {
            Record::Begin(begin) => Some(begin.apply),
            _ => None,
        });
        begun.max().map_or(1, |n| n + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::machine::At;

    fn begin(apply: u32) -> Record {
        Record::Begin(Begin {
            apply,
            profile: "p".into(),
            at: 0,
            guard: None,
            confirm_within: None,
            pollers: Vec::new(),
            busy_polled: 0,
            received: 0,
        })
    }

    fn old(apply: u32, key: Key, old: u64, wanted: u64) -> Record {
        Record::Old {
            apply,
            device: None,
            knob: Knob { key, at: At::Whole },
            old: Value::Number(old),
            wanted: Some(Value::Number(wanted)),
        }
    }

    #[test]
    fn an_apply_taken_out_hands_its_old_values_to_the_later_one() {
        let mut records = vec![
            begin(1),
            old(1, Key::BusyRead, 0, 50),
            old(1, Key::BusyPoll, 1, 50),
            begin(2),
            old(2, Key::BusyRead, 50, 100),
        ];
        assert_eq!(Standing::next_number(&records), 3);
        records.push(Record::Undone { apply: 1 });
        let standing = Standing::of(&records);
        assert_eq!(standing.applies.len(), 1);
        let [left] = &standing.olds[..] else { panic!("{:?}", standing.olds) };
        assert_eq!((left.apply, &left.old), (2, &Value::Number(0)));
    }

    #[test]
    fn what_is_settled_is_not_put_back_again() {
        let knob = Knob { key: Key::BusyRead, at: At::Whole };
        let records = [
            begin(1),
            old(1, Key::BusyRead, 0, 50),
            old(1, Key::BusyPoll, 1, 50),
            Record::Settled { apply: 1, device: None, knob },
        ];
        let standing = Standing::of(&records);
        let [left] = &standing.olds[..] else { panic!("{:?}", standing.olds) };
        assert_eq!((standing.applies.len(), &left.knob.key), (1, &Key::BusyPoll));
    }

    #[test]
    fn napi_instances_made_anew_are_the_same_setting() {
        let at = |index, id| Knob { key: Key::GroFlushTimeout, at: At::Napi { index, id } };
        assert!(at(1, 300).same(&at(1, 412)) && !at(1, 300).same(&at(0, 300)));
    }

    #[test]
    fn records_survive_the_journal() {
        let knob = Knob {
            key: Key::Feature("rx-gro".into()),
            at: At::Irq { number: 3, name: "eth1-rx-0".into() },
        };
        let record =
            Record::Old { apply: 1, device: None, knob, old: Value::Switch(true), wanted: None };
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
    }

    #[test]
    fn a_process_is_told_from_its_successor() {
        let me = Process::find(std::process::id()).unwrap();
        assert!(me.lives());
        assert!(!Process { started: me.started + 1, ..me }.lives());
        assert_eq!(Process::find(0), None);
    }
}
