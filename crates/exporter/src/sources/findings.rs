//! What `busypoll doctor` finds, made by a thread of its own now and then: it may take a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use busypoll_doctor::{Scope, diagnose, rules};
use busypoll_linux::link::Links;

use crate::metrics::{DOCTOR_TIME, FINDINGS};
use crate::page::Page;

/// The most devices checked.
const DEVICES: usize = 64;

/// The last findings by code, and when they were made; or why there are none.
type Last = Result<(BTreeMap<&'static str, u64>, f64), String>;

/// The findings, remade in the background.
#[derive(Clone)]
pub(crate) struct Findings {
    last: Arc<Mutex<Last>>,
    processes: bool,
}

impl Findings {
    /// None, for this reason.
    pub(crate) fn none(why: &str) -> Self {
        Findings { last: Arc::new(Mutex::new(Err(why.into()))), processes: false }
    }

    /// Makes them now. Of processes only if `processes`.
    pub(crate) fn once(processes: bool) -> Self {
        let findings = Findings { processes, ..Self::none("the first check is not done yet") };
        findings.make();
        findings
    }

    /// Makes them in a thread, again and again.
    pub(crate) fn every(interval: Duration, processes: bool) -> Self {
        let findings = Findings { processes, ..Self::none("the first check is not done yet") };
        let background = findings.clone();
        let work = move || {
            loop {
                background.make();
                thread::sleep(interval);
            }
        };
        if let Err(error) = thread::Builder::new().name("doctor".into()).spawn(work) {
            *lock(&findings.last) = Err(error.to_string());
        }
        findings
    }

    fn make(&self) {
        let made = self.diagnose();
        *lock(&self.last) = made;
    }

    fn diagnose(&self) -> Last {
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
        let mut by_code: BTreeMap<_, u64> = rules::all().map(|rule| (rule.code, 0)).collect();
        for finding in report.findings() {
            *by_code.entry(finding.rule.code).or_default() += 1;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok((by_code, now.as_secs_f64()))
    }

    /// Adds the last ones.
    pub(crate) fn collect(&self, page: &mut Page) -> Result<u64, String> {
        let last = lock(&self.last);
        let (by_code, made) = last.as_ref().map_err(Clone::clone)?;
        for rule in rules::all() {
            let count = by_code.get(rule.code).copied().unwrap_or(0);
            page.count(&FINDINGS, &[rule.code, rule.verdict.word()], count);
        }
        page.add(&DOCTOR_TIME, &[], *made);
        Ok(0)
    }
}

fn lock(last: &Mutex<Last>) -> std::sync::MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}
