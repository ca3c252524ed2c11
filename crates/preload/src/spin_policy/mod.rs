//! The spin policy: whether a wait may spin, so that spinning never makes a program slower.
//!
//! - At most one spinner per CPU, over all runs of the user ([`Spinners`]), and no more than the policy and the CPU
//!   quota allow.
//! - Where waits take longer with spinning than without, no thread of the CPU spins for a while ([`spin_trial`],
//!   [`verdicts`]).

mod means;
mod spin_trial;
mod stretch;
mod verdicts;

use std::cell::Cell;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use busypoll_linux::{
    spinners::{CpuClaim, Spinners},
    ticks,
};
use busypoll_stack::spin::Rule;

use crate::config::Config;
use crate::report::Once;
use spin_trial::{Cpu, Record};
use verdicts::Verdicts;

/// The table that the processes share, and how many threads may spin.
struct Limits {
    spinners: Spinners,
    cpus: usize,
    /// A limit below the number of CPUs; `None`: the CPUs are the limit.
    at_most: Option<usize>,
}

static LIMITS: OnceLock<Option<Limits>> = OnceLock::new();
static NO_QUOTA: Once = Once::new();

/// Opens the table of spinners and reads how many threads may spin. Called at load time.
pub fn prepare(config: &Config) {
    LIMITS.get_or_init(|| {
        let shared = config.launch.shared.as_deref().map(Path::new);
        let spinners = shared.and_then(|path| Spinners::open(path).ok());
        let spinners = spinners.or_else(|| Spinners::private().ok())?;
        let allowed = busypoll_linux::topology::allowed().map_or(usize::MAX, |cpus| cpus.len());
        let quota = busypoll_linux::cgroup::cpu_quota().map(|cpus| cpus as usize);
        let policy = config.launch.policy.max_spinning_threads.map(|n| n as usize);
        let at_most = [quota, policy].into_iter().flatten().min().filter(|&n| n < allowed);
        if quota == Some(0) {
            NO_QUOTA.report(format_args!(
                "the CPU quota of this cgroup is below one CPU: no thread busy polls"
            ));
        }
        Some(Limits { spinners, cpus: busypoll_linux::spinners::CPUS, at_most })
    });
}

/// The threads of this process that are in a trial.
static TRIALS: AtomicU32 = AtomicU32::new(0);

/// When one of them was last seen, in nanoseconds.
static LAST_TRIAL: AtomicU64 = AtomicU64::new(0);

/// After so long without a sign the threads have ended in their trials.
const LOST_TRIAL: u64 = 1_000_000_000;

local! {
    static RECORD: Record = Record::new(here, steps, &VERDICTS);
}

static VERDICTS: Verdicts = Verdicts::new();

/// The steps of work of this process by CPU, counted while a thread is in a trial: by them it measures how fast the
/// process goes. CPUs further on share a number.
static STEPS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A call of the program has moved data or returned events. Nearly free while no thread is in a trial.
#[inline]
pub fn count_step() {
    if TRIALS.load(Ordering::Relaxed) > 0 {
        count_step_of_trial();
    }
}

#[cold]
fn count_step_of_trial() {
    if now().saturating_sub(LAST_TRIAL.load(Ordering::Relaxed)) > LOST_TRIAL {
        TRIALS.store(0, Ordering::Relaxed);
    }
    if let Some(cpu) = here() {
        STEPS[cpu.number % STEPS.len()].fetch_add(1, Ordering::Relaxed);
    }
}

fn steps(cpu: usize) -> u64 {
    STEPS[cpu % STEPS.len()].load(Ordering::Relaxed)
}

fn trial_begins(now: u64) {
    trial_goes_on(now);
    TRIALS.fetch_add(1, Ordering::Relaxed);
}

fn trial_goes_on(now: u64) {
    LAST_TRIAL.store(now, Ordering::Relaxed);
}

fn trial_ends() {
    let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
    let _ = TRIALS.fetch_update(done, failed, |trials| trials.checked_sub(1));
}

/// The calling thread ends.
pub fn on_thread_exit() {
    let _ = RECORD.try_with(|record| record.thread_ends(now()));
}

/// In a child of fork(2).
pub fn in_child() {
    TRIALS.store(0, Ordering::Relaxed);
    let _ = RECORD.try_with(Record::in_child);
}

/// Whether spinning was found harmful for the calling thread, or on its CPU, so that it does not spin for now: a wait
/// needs no other check then. May begin the trial that is due.
#[inline]
pub fn backs_off() -> bool {
    RECORD.try_with(|record| record.backs_off(now)).unwrap_or(true)
}

/// Whether a wait of the calling thread would not spin, as it backs off or its CPU is to be quiet.
pub fn is_quiet() -> bool {
    backs_off() || here().is_some_and(|cpu| cpu.spinners.is_quiet(cpu.number, now()))
}

/// A wait, from before its system call to after it.
#[must_use]
pub struct Wait {
    claim: Option<CpuClaim>,
    began: u64,
}

impl Wait {
    /// Begins a call of the kernel's that would spin for `micros` microseconds. Each counts as a step of work: the calls
    /// that find their data at once come here too.
    pub fn begin(micros: u32) -> Self {
        count_step();
        Self::begin_uncounted(micros)
    }

    fn begin_uncounted(micros: u32) -> Self {
        let began = now();
        // The kernel's microsecond has 1024 ns.
        let span = u64::from(micros) * 1024;
        let may_spin = RECORD.try_with(|record| record.may_spin(began, span)).unwrap_or(false);
        let claim = if may_spin { enter(began, began.saturating_add(span)) } else { None };
        Self { claim, began }
    }

    /// Whether this wait may spin.
    pub fn spins(&self) -> bool {
        self.claim.is_some()
    }

    /// Ends the wait. Leaves errno alone.
    pub fn end(self) {
        let spun = self.claim.is_some();
        let contended = match (self.claim, LIMITS.get()) {
            (Some(claim), Some(Some(limits))) => limits.spinners.leave(claim),
            _ => false,
        };
        let _ = RECORD.try_with(|record| record.ended(spun, contended, self.began, now));
    }
}

/// The same for waits in the stack. The stack has no place to keep a [`Wait`], so a thread-local holds it.
pub const RULE: Rule = Rule { begin: begin_in_stack, end: end_in_stack };

local! {
    static IN_STACK: Cell<Option<Wait>> = Cell::new(None);
}

fn begin_in_stack(span: Duration) -> bool {
    if backs_off() {
        return false;
    }
    let wait = Wait::begin_uncounted(u32::try_from(span.as_micros()).unwrap_or(u32::MAX));
    let spins = wait.spins();
    let _ = IN_STACK.try_with(|current| current.set(Some(wait)));
    spins
}

fn end_in_stack() {
    if let Ok(Some(wait)) = IN_STACK.try_with(Cell::take) {
        wait.end();
    }
}

fn enter(now: u64, until: u64) -> Option<CpuClaim> {
    let limits = LIMITS.get()?.as_ref()?;
    if limits.at_most.is_some_and(|n| limits.spinners.count(limits.cpus, now) >= n) {
        return None;
    }
    limits.spinners.enter(current_cpu()?, now, until)
}

/// The CPU that the calling thread runs on, and the table.
fn here() -> Option<Cpu> {
    let spinners = LIMITS.get()?.as_ref()?.spinners;
    Some(Cpu { spinners, number: current_cpu()? })
}

fn current_cpu() -> Option<usize> {
    // SAFETY: no precondition.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// For those who watch the machine.
#[cold]
fn count_harm() {
    if let Some(Some(limits)) = LIMITS.get() {
        limits.spinners.count_harm();
    }
}

/// Nanoseconds of the spinners' clock, which may go back after a suspend.
#[inline]
fn now() -> u64 {
    match LIMITS.get() {
        Some(Some(limits)) => limits.spinners.now(),
        _ => ticks::monotonic(),
    }
}
