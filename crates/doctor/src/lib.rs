//! Can busy polling work here, does it, and what to do about it.
//!
//! Reads; never changes a setting that anybody else uses. One run is: a [`Scope`] (what was asked), the
//! [`CHECKS`] one after another, each adding [`Finding`]s and facts to one [`Report`].
//!
//! | module | answers |
//! |---|---|
//! | `can` | can it: kernel, privileges, the devices, the way to a peer |
//! | `fit` | is the machine fit: coalescing, interrupts, CPUs, power, memory, clock |
//! | `process` | does it: every process's sockets, epoll instances and threads |
//! | `prove` | is it true: what was counted while packets came |
//!
//! **To add a check**: write its rules into the table in `rules` (stable code, verdict, meaning, why,
//! source), write a function of type [`Check`], and name it in [`CHECKS`]. Such a function
//! - skips what [`Scope`] does not ask for,
//! - says what it found with [`Report::add`] of `RULE.finding(subject, "what is the case")`, evidence
//!   and remedy included, also where all is well (verdicts `fine` and `working`),
//! - says with [`Report::not_seen`] what it could not look at, and goes on,
//! - returns an [`Error`] only where the user's question cannot be answered at all: no such device,
//!   no such process. That ends the run with one line and exit code 2.

mod can;
pub mod cli;
mod error;
mod finding;
mod fit;
mod process;
mod prove;
mod report;
pub mod rules;

use std::net::IpAddr;
use std::time::Duration;

pub use error::Error;
pub use finding::{Evidence, Finding, Subject, Verdict};
pub use report::{Report, Style};
pub use rules::Rule;

/// What the user asked about.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Devices by name; empty: all that are up, but loopback.
    pub devices: Vec<String>,
    /// A peer: the way there and the device behind it.
    pub peer: Option<IpAddr>,
    /// Processes; empty: all that can be seen.
    pub pids: Vec<u32>,
    /// Watch for so long whether packets really are busy polled.
    pub prove: Option<Duration>,
}

/// Looks at one thing and reports on it.
pub type Check = fn(&Scope, &mut Report) -> Result<(), Error>;

/// Every check, in the order in which they run and their facts are shown.
pub const CHECKS: &[Check] = &[
    can::kernel::check,
    can::device::check,
    fit::machine::check,
    fit::placement::check,
    process::check,
    prove::check,
];

/// Runs every check.
///
/// # Errors
/// Where the question cannot be answered at all, such as for a device that does not exist.
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
