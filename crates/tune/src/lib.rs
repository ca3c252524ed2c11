//! Settings for busy polling: planned, applied, rolled back.
//!
//! A [`Profile`] names settings with reason, cost and source. [`Plan`] compares it with the running system
//! and changes nothing. [`apply()`] writes each old value to the journal before it changes it, and reads
//! the result back. [`undo`] restores everything, also after a crash. Only named devices
//! are touched.
//!
//! ```no_run
//! use busypoll_tune::{Device, Machine, Options, Plan, Profile};
//! let mut machine = Machine::open()?;
//! let options = Options { devices: vec!["eth1".into()], ..Options::default() };
//! let devices = [Device::open("eth1")?];
//! let plan = Plan::make(&mut machine, &devices, &Profile::find("busy-poll")?, &options)?;
//! for line in plan.changes() {
//!     println!("{}: {:?} -> {:?}, because {}", line.setting, line.now, line.then, line.reason);
//! }
//! # Ok::<(), busypoll_tune::Error>(())
//! ```

mod apply;
pub mod cli;
mod device;
mod error;
mod export;
mod guard;
mod key;
mod machine;
mod plan;
mod profile;
mod record;
mod status;
mod text;
mod undo;
mod value;

pub use apply::{Applied, LeftOut, Outcome, Request, Written, apply};
pub use device::{Device, Identity};
pub use error::{Error, Result};
pub use export::{Export, ExportedFile, Format};
pub use key::{Key, KeyFacts, Unit};
pub use machine::{At, Knob, Machine};
pub use plan::{Line, Options, Plan, State};
pub use profile::{Profile, ProfileError, Setting, Want, built_in};
pub use record::{Begin, JournalState, Process, Record, TuneJournal};
pub use status::{Status, journal};
pub use undo::{How, PutBack, undo};
pub use value::Value;

/// A step of [`apply()`] or [`undo`], for an observer.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Old values are about to be written to the journal.
    Journalling,
    /// The old values are on the disk.
    Journalled,
    /// A setting is about to be changed.
    Writing(&'a Knob),
    /// It has been changed and read back.
    Written(&'a Knob),
    /// All changes are made.
    Complete,
    /// A setting is about to be restored.
    Restoring(&'a Knob),
    /// The restored settings have been removed from the journal.
    Struck,
}

/// The observer of the steps.
pub type Steps<'a> = &'a mut dyn FnMut(Step<'_>);
