//! The records of tune's journal, and the applies that are in force by them. Pure except for the journal's name.
//!
//! One journal per network namespace, named after the namespace's cookie: a device is looked for only
//! in the namespace it was changed in.

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

/// The name of the journal of the network namespace with this cookie.
pub(crate) fn name_of(cookie: u64) -> String {
    format!("tune-{cookie}")
}

pub(crate) fn kind(name: &str) -> Kind<'_> {
    Kind { name, version: VERSION }
}

/// The journal of tune, locked.
pub type TuneJournal = Journal<Record>;

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// An apply begins.
    Begin(Begin),
    /// A current value that is about to be changed, or may be lost by another change.
    Old {
        /// The apply that changes it.
        apply: u32,
        /// The device; none for a setting of the machine.
        device: Option<Identity>,
        /// The setting.
        knob: Knob,
        /// Its value.
        old: Value,
        /// The value it will be changed to; none if it is not changed itself.
        wanted: Option<Value>,
    },
    /// The kernel or the driver made the wanted value another one.
    Became {
        /// The apply that wrote it.
        apply: u32,
        /// The device; none for a setting of the machine.
        device: Option<Identity>,
        /// The setting.
        knob: Knob,
        /// Its value.
        value: Value,
        /// It was refused, so the value is the old one.
        #[serde(default)]
        refused: bool,
    },
    /// An apply has made all its changes.
    Applied {
        /// The apply.
        apply: u32,
    },
    /// The user has confirmed it.
    Confirmed {
        /// The apply.
        apply: u32,
    },
    /// One value of an apply has been restored, and others not yet.
    Settled {
        /// The apply that changed it.
        apply: u32,
        /// The device; none for a setting of the machine.
        device: Option<Identity>,
        /// The setting.
        knob: Knob,
    },
    /// Everything of an apply has been restored.
    Undone {
        /// The apply.
        apply: u32,
    },
}

/// The beginning of an apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Its number, counted from 1 in this journal.
    pub apply: u32,
    /// The profile.
    pub profile: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// The process that rolls it back automatically, if any.
    pub guard: Option<Process>,
    /// It is rolled back after this many seconds unless confirmed.
    pub confirm_within: Option<u64>,
    /// The processes that poll: it is rolled back when all of them have ended.
    pub pollers: Vec<Process>,
    /// `BusyPollRxPackets` of this network namespace when it began.
    #[serde(default)]
    pub busy_polled: u64,
    /// Packets its devices had received when it began.
    #[serde(default)]
    pub received: u64,
}

/// A process, distinguished from a later one with the same PID.
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
        // The name in parentheses may contain any bytes; state is the first field after it, starttime the
        // twentieth (proc(5)).
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let started = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Process { pid, started })
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        Process::find(self.pid).as_ref() == Some(self)
    }
}

/// A value to restore.
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
    /// The value it was changed to; none if it was not changed itself.
    pub wanted: Option<Value>,
    /// Whether the change was refused.
    pub refused: bool,
}

impl Old {
    /// Whether both are about the same setting of the same device.
    pub fn same(&self, other: &Old) -> bool {
        let name = |old: &Old| old.device.as_ref().map(|d| (d.name.clone(), d.mac.clone()));
        self.knob.same(&other.knob) && name(self) == name(other)
    }
}

/// An apply in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apply {
    /// How it began.
    pub begin: Begin,
    /// Whether it has made all its changes.
    pub complete: bool,
    /// Whether the user has confirmed it.
    pub confirmed: bool,
}

/// The applies in force, which are not undone, and the values to restore, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalState {
    /// Oldest first.
    pub applies: Vec<Apply>,
    /// Oldest first.
    pub olds: Vec<Old>,
}

impl JournalState {
    /// Evaluates the records of a journal.
    pub fn of(records: &[Record]) -> Self {
        let mut journal_state = JournalState::default();
        for record in records {
            match record {
                Record::Begin(begin) => journal_state.applies.push(Apply {
                    begin: begin.clone(),
                    complete: false,
                    confirmed: false,
                }),
                Record::Old { apply, device, knob, old, wanted } => journal_state.olds.push(Old {
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
                    if let Some(old) = journal_state.olds.iter_mut().find(is) {
                        old.wanted = Some(value.clone());
                        old.refused = *refused;
                    }
                }
                Record::Applied { apply } => {
                    journal_state.each(*apply, |a| a.complete = true);
                }
                Record::Confirmed { apply } => {
                    journal_state.each(*apply, |a| a.confirmed = true);
                }
                Record::Settled { apply, device, knob } => journal_state
                    .take_out(|o| o.apply == *apply && o.device == *device && o.knob == *knob),
                Record::Undone { apply } => {
                    journal_state.take_out(|o| o.apply == *apply);
                    journal_state.applies.retain(|a| a.begin.apply != *apply);
                }
            }
        }
        journal_state
    }

    fn each(&mut self, apply: u32, change: impl FnMut(&mut Apply)) {
        self.applies.iter_mut().filter(|a| a.begin.apply == apply).for_each(change);
    }

    /// Removes values. If a later apply changed the same setting, its old value is the one this apply set; it gets
    /// this apply's old value instead.
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
    fn an_undone_apply_passes_its_old_values_to_the_later_one() {
        let mut records = vec![
            begin(1),
            old(1, Key::BusyRead, 0, 50),
            old(1, Key::BusyPoll, 1, 50),
            begin(2),
            old(2, Key::BusyRead, 50, 100),
        ];
        assert_eq!(JournalState::next_number(&records), 3);
        records.push(Record::Undone { apply: 1 });
        let journal_state = JournalState::of(&records);
        assert_eq!(journal_state.applies.len(), 1);
        let [left] = &journal_state.olds[..] else { panic!("{:?}", journal_state.olds) };
        assert_eq!((left.apply, &left.old), (2, &Value::Number(0)));
    }

    #[test]
    fn a_settled_value_is_not_restored_again() {
        let knob = Knob { key: Key::BusyRead, at: At::Whole };
        let records = [
            begin(1),
            old(1, Key::BusyRead, 0, 50),
            old(1, Key::BusyPoll, 1, 50),
            Record::Settled { apply: 1, device: None, knob },
        ];
        let journal_state = JournalState::of(&records);
        let [left] = &journal_state.olds[..] else { panic!("{:?}", journal_state.olds) };
        assert_eq!((journal_state.applies.len(), &left.knob.key), (1, &Key::BusyPoll));
    }

    #[test]
    fn a_new_napi_instance_at_the_same_position_is_the_same_setting() {
        let at = |index, id| Knob { key: Key::GroFlushTimeout, at: At::Napi { index, id } };
        assert!(at(1, 300).same(&at(1, 412)) && !at(1, 300).same(&at(0, 300)));
    }

    #[test]
    fn records_read_back_from_json() {
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
    fn a_process_is_distinguished_from_a_later_one_with_its_pid() {
        let me = Process::find(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!Process { started: me.started + 1, ..me }.is_alive());
        assert_eq!(Process::find(0), None);
    }
}
