//! The spin policy, seen from outside. A wait that ends in sleep is one voluntary context switch, whether it polls or
//! not. If a process has many although its sockets poll, polling is switched off for a moment. If the process is then
//! clearly faster, two spinners share a CPU, or the spinner and its peer do; then polling stays off, for a second at
//! first and longer each time.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use busypoll_linux::process::{Kind, Process};
use busypoll_linux::{EpollParams, epoll, sockopt};
use busypoll_policy::Policy;

use super::serve::{ProgramSet, params, set_params, settings_of, settings_of_epoll};
use crate::names;

const TRIAL: Duration = Duration::from_millis(40);
const PERIOD: Duration = Duration::from_millis(40);
const PERIOD_MAX: Duration = Duration::from_secs(2);
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// With fewer sleeps per second than this a process is idle, not hindered.
const QUIET: f64 = 500.0;

/// Which values are ours: what the program sets itself is not changed.
pub(super) struct OurValues<'a> {
    /// The values of `SO_BUSY_POLL` that we set, and 0.
    pub values: &'a HashSet<u32>,
    /// Sockets that the program itself has set to one of them.
    pub program_set: &'a ProgramSet,
}

enum State {
    Polling,
    /// Polling is off for a moment; holds the sleeps per second from before.
    Trial(f64),
    Off,
}

/// A process with sockets that poll.
pub(super) struct Watched {
    process: Process,
    state: State,
    due: Instant,
    since: Instant,
    sleeps: u64,
    period: Duration,
    backoff: Duration,
    /// Trials in a row that found polling harmful.
    strikes: u32,
}

impl Watched {
    pub fn new(process: Process) -> Self {
        let now = Instant::now();
        let sleeps = sleeps(process.pid());
        Self {
            process,
            state: State::Polling,
            due: now + PERIOD,
            since: now,
            sleeps,
            period: PERIOD,
            backoff: Duration::ZERO,
            strikes: 0,
        }
    }

    /// When it must be checked next.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Checks it; false once it has ended. `ours` are the values that we may have set. Lines to report are added to
    /// `lines`.
    pub fn check(
        &mut self,
        policy: &Policy,
        ours: &OurValues<'_>,
        lines: &mut Vec<String>,
    ) -> bool {
        if !self.process.is_alive() {
            return false;
        }
        let (now, sleeps) = (Instant::now(), sleeps(self.process.pid()));
        let rate = sleeps.saturating_sub(self.sleeps) as f64 / (now - self.since).as_secs_f64();
        (self.sleeps, self.since) = (sleeps, now);
        let wait = match self.state {
            State::Trial(polling) if rate > polling * 1.25 && self.strikes < 2 => {
                self.strikes += 1;
                self.switch(policy, ours, true);
                self.state = State::Polling;
                PERIOD
            }
            State::Polling if rate > QUIET => {
                self.switch(policy, ours, false);
                self.state = State::Trial(rate);
                TRIAL
            }
            State::Polling => self.next_period(),
            State::Trial(polling) if rate > polling * 1.25 => {
                self.strikes = 0;
                lines.push(format!(
                    "busy polling slowed {} down, so it stops for a while; are there enough CPUs for it and \
                     its peer?",
                    self.process.program().display()
                ));
                self.state = State::Off;
                self.backoff = (self.backoff * 2).clamp(BACKOFF, BACKOFF_MAX);
                self.backoff
            }
            State::Trial(_) => {
                self.switch(policy, ours, true);
                self.state = State::Polling;
                self.backoff = Duration::ZERO;
                self.strikes = 0;
                self.next_period()
            }
            State::Off => {
                self.switch(policy, ours, true);
                self.state = State::Polling;
                PERIOD
            }
        };
        self.due = now + wait;
        true
    }

    fn next_period(&mut self) -> Duration {
        self.period = (self.period * 2).min(PERIOD_MAX);
        self.period
    }

    /// Switches polling on or off for all its sockets and epoll instances.
    fn switch(&self, policy: &Policy, ours: &OurValues<'_>, on: bool) {
        let descriptors = self.process.descriptors().unwrap_or_default();
        let mut sockets = HashMap::new();
        for descriptor in &descriptors {
            let Kind::Socket { inode } = descriptor.kind else { continue };
            if let Ok(Some(taken)) = self.process.duplicate_fd(descriptor.fd)
                && let Some(settings) = settings_of(policy, &self.process, &taken)
            {
                ours.program_set.if_not_set(&taken, || {
                    if sockopt::busy_poll(&taken).is_ok_and(|usecs| ours.values.contains(&usecs)) {
                        let micros = if on { settings.kernel_micros() } else { 0 };
                        let _ = sockopt::set_busy_poll(&taken, micros);
                    }
                });
                sockets.insert(inode, settings);
            }
        }
        for descriptor in descriptors.iter().filter(|d| d.kind == Kind::Epoll) {
            let Ok(Some(taken)) = self.process.duplicate_fd(descriptor.fd) else { continue };
            if !epoll::params(&taken).is_ok_and(|now| ours.values.contains(&now.busy_poll_usecs)) {
                continue;
            }
            let wanted = settings_of_epoll(&self.process, descriptor.fd, &sockets)
                .unwrap_or_else(|| policy.for_program(&names::if_needed(policy, &self.process)));
            set_params(&taken, if on { params(wanted) } else { EpollParams::default() });
        }
    }
}

/// Voluntary context switches of all threads of a process.
fn sleeps(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| {
            let status = std::fs::read(thread.path().join("status")).ok()?;
            let status = String::from_utf8_lossy(&status);
            let count = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
            count.trim().parse::<u64>().ok()
        })
        .sum()
}
