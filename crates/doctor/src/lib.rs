//! Checks whether busy polling can work here, whether it does, and how to fix what is wrong.
//!
//! Reads only; never changes a setting that another program uses. One run: a [`Scope`] (the question), and the
//! [`CHECKS`] one after another, each adding [`Finding`]s and facts to one [`Report`].
//!
//! | module | answers |
//! |---|---|
//! | `support` | is busy polling supported: kernel, privileges, the devices, the route to a peer |
//! | `tuning` | is the machine tuned for it: coalescing, interrupts, CPUs, power, memory, clock |
//! | `process` | is it used: every process's sockets, epoll instances and threads |
//! | `prove` | does it work: what was counted while packets arrived |
//!
//! **To add a check**: write its rules into the table in `rules` (stable code, verdict, meaning, why,
//! source), write a function of type [`Check`], and add it to [`CHECKS`]. Such a function
//! - skips what [`Scope`] does not ask for,
//! - reports with [`Report::add`] of `RULE.finding(subject, "the case at hand")`, with evidence and remedy,
//!   also where nothing is wrong (verdicts `fine` and `working`),
//! - reports with [`Report::not_seen`] what it could not read, and continues,
//! - returns an [`Error`] only where the user's question cannot be answered at all: no such device,
//!   no such process. That ends the run with one line and exit code 2.

pub mod cli;
mod error;
mod finding;
mod process;
mod prove;
mod report;
pub mod rules;
mod support;
mod tuning;

use std::net::IpAddr;
use std::time::Duration;

pub use error::Error;
pub use finding::{Evidence, Finding, Subject, Verdict};
pub use report::{Report, Style};
pub use rules::Rule;

/// What the user asked about.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Devices by name; empty: all that are up, except loopback.
    pub devices: Vec<String>,
    /// A peer: the route to it and the device it uses.
    pub peer: Option<IpAddr>,
    /// Processes; empty: all that are visible.
    pub pids: Vec<u32>,
    /// Count for this long whether packets really are busy polled.
    pub prove: Option<Duration>,
}

/// Checks one thing and adds to the report.
pub type Check = fn(&Scope, &mut Report) -> Result<(), Error>;

/// Every check, in the order in which they run and their facts are shown.
pub const CHECKS: &[Check] = &[
    support::kernel::check,
    support::device::check,
    tuning::machine::check,
    tuning::placement::check,
    process::check,
    prove::check,
];

/// Runs every check.
///
/// # Errors
/// If the question cannot be answered at all, such as for a device that does not exist.
///
/// ```
/// use busypoll_doctor::{Scope, diagnose};
/// let report = diagnose(&Scope::default())?;
/// println!("{}", report.summary());
/// for finding in report.findings() {
///     println!("{} {}: {}", finding.rule.code, finding.subject, finding.what);
/// }
/// # Ok::<(), busypoll_doctor::Error>(())
/// ```
pub fn diagnose(scope: &Scope) -> Result<Report, Error> {
    let mut report = Report::default();
    report.devices_asked.clone_from(&scope.devices);
    for check in CHECKS {
        check(scope, &mut report)?;
    }
    Ok(report)
}

/// `one queue`, `2 queues`.
fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("one {what}") } else { format!("{n} {what}s") }
}
