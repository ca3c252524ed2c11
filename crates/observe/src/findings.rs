//! What `busypoll doctor` finds, made by a thread of its own now and then: it may take a second.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use busypoll_doctor::{Finding, Scope, Subject, diagnose};
use busypoll_linux::link::Links;

/// The most devices checked.
const DEVICES: usize = 64;

/// The most processes checked by name.
const NAMED: usize = 32;

/// The least time between two checks, also if new processes are named meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// The findings of one check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// When they were made.
    pub at: SystemTime,
}

/// The last findings; or why there are none.
type Last = Result<Checked, String>;

/// The findings, remade in the background.
#[derive(Clone)]
pub struct Findings {
    last: Arc<Mutex<Last>>,
    processes: bool,
    /// Processes to check by name: what could busy poll and does not is found only so.
    named: Arc<Named>,
}

#[derive(Default)]
struct Named {
    pids: Mutex<Pids>,
    changed: Condvar,
}

#[derive(Clone, Default)]
struct Pids {
    all: Vec<u32>,
    /// Some of them were not checked yet.
    some_are_new: bool,
}

impl Findings {
    fn none_yet(processes: bool) -> Self {
        let why = "the first check is not done yet".to_owned();
        Findings { last: Arc::new(Mutex::new(Err(why))), processes, named: Arc::default() }
    }

    /// Makes them now. Of processes only if `processes`.
    pub fn once(processes: bool) -> Self {
        let findings = Self::none_yet(processes);
        findings.make();
        findings
    }

    /// Makes them in a thread, again and again.
    pub fn every(interval: Duration, processes: bool) -> Self {
        let findings = Self::none_yet(processes);
        let background = findings.clone();
        let work = move || {
            loop {
                background.make();
                thread::sleep(PAUSE.min(interval));
                let rest = interval.saturating_sub(PAUSE);
                let pids = lock(&background.named.pids);
                let wait = background
                    .named
                    .changed
                    .wait_timeout_while(pids, rest, |pids| !pids.some_are_new);
                drop(wait);
            }
        };
        if let Err(error) = thread::Builder::new().name("doctor".into()).spawn(work) {
            *lock(&findings.last) = Err(error.to_string());
        }
        findings
    }

    fn make(&self) {
        let made = self.check();
        *lock(&self.last) = made;
    }

    fn check(&self) -> Last {
        // Named devices are checked with the machine and without the processes.
        let mut devices = Vec::new();
        if !self.processes {
            let links = Links::open().and_then(|mut links| links.all());
            let links = links.map_err(|error| error.to_string())?;
            let checked = links.iter().filter(|link| link.up && !link.loopback);
            devices.extend(checked.take(DEVICES).map(|link| link.name.clone()));
        }
        let scope = Scope { devices, ..Scope::default() };
        let report = diagnose(&scope).map_err(|error| error.to_string())?;
        let mut findings: Vec<Finding> = report.findings().into_iter().cloned().collect();
        findings.extend(self.of_named());
        findings.sort_by(|a, b| (a.verdict(), &a.subject).cmp(&(b.verdict(), &b.subject)));
        Ok(Checked { findings, at: SystemTime::now() })
    }

    /// The findings about the named processes. None if one of them ends meanwhile: the next check has them.
    fn of_named(&self) -> Vec<Finding> {
        let named = |named: &mut Pids| {
            named.some_are_new = false;
            named.all.clone()
        };
        let mut pids = named(&mut lock(&self.named.pids));
        pids.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
        if pids.is_empty() {
            return Vec::new();
        }
        let report = diagnose(&Scope { pids, ..Scope::default() });
        let about_processes = |finding: &&Finding| {
            matches!(finding.subject, Subject::Process { .. } | Subject::Descriptor { .. })
        };
        let found = report
            .map(|report| report.findings().into_iter().filter(about_processes).cloned().collect());
        found.unwrap_or_default()
    }

    /// Checks these processes by name from the next check on, which comes sooner if some of them are new.
    pub fn name(&self, mut pids: Vec<u32>) {
        pids.truncate(NAMED);
        let mut named = lock(&self.named.pids);
        if pids.iter().any(|pid| !named.all.contains(pid)) {
            named.some_are_new = true;
            self.named.changed.notify_all();
        }
        named.all = pids;
    }

    /// The last ones.
    ///
    /// # Errors
    /// Why there are none.
    pub fn last(&self) -> Result<Checked, String> {
        lock(&self.last).clone()
    }
}

fn lock<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_that_is_named_later_is_checked_before_the_interval_is_over() {
        let findings = Findings::every(Duration::from_secs(3600), false);
        let deadline = Instant::now() + Duration::from_secs(60);
        let next = |before: Option<SystemTime>| loop {
            match findings.last() {
                Ok(last) if Some(last.at) != before => return last.at,
                _ => assert!(Instant::now() < deadline, "no check since {before:?}"),
            }
            thread::sleep(Duration::from_millis(20));
        };
        let first = next(None);
        findings.name(vec![std::process::id()]);
        next(Some(first));
    }
}
