//! Spin trials. A thread whose waits end in sleep or preemption although it spins tries both ways, and all threads that
//! spin on its CPU, of all processes, go the same way with it: the spinning that does harm may be another thread's. If
//! a wait, or a round of work and wait, is shorter without spinning, no thread of the process spins on this CPU any
//! more: for a second at first, and longer each time a trial finds the same ([`Verdicts`]); nor does any other process,
//! as long as this one waits there. So two programs on one CPU, or the threads of one that take turns, soon stop
//! keeping each other from running. (A peer that was kept waiting may take the CPU back during the work: then the
//! rounds get longer and not the waits.) If spinning does not shorten its waits and other threads want the CPU, the
//! thread itself stops: it spins at their expense, which its own waits do not show.

use std::cell::Cell;

use busypoll_linux::{spinners::Spinners, ticks::is_ahead};

use super::{
    means::Means,
    now,
    stretch::{STRETCH, Stretch},
    verdicts::{Says, Verdicts},
};
use crate::{errno::Saved, report::Once};

/// Waits between two checks of how the waits ended, at first and at most.
const CHECK_FIRST: u32 = 32;
const CHECK_MAX: u32 = 8192;
/// The fewest waits in a stretch, if they take longer than it.
const WAITS: u32 = 2;
/// Stretches of each kind that decide a trial.
pub(super) const TRIAL: usize = 7;
const STRETCHES: u32 = 2 * TRIAL as u32;
/// Stretches of each kind that decide a trial early, if all of one kind are far above all of the other. The kinds must
/// have changed this often by then: otherwise a load that comes or goes would look the same.
pub(super) const CLEAR: usize = 3;
const CHANGES: u32 = 2;
/// A difference that does not count, in nanoseconds.
pub(super) const NOISE: u64 = 2_000;
/// What the scheduler may add to a wait besides the spinning itself, in nanoseconds: a few ticks. A wait that is longer
/// by more than both comes from a load that has gone.
const SCHEDULED: u64 = 20_000_000;
/// How long a thread that does not share its CPU spins before its first trial, in nanoseconds. The time doubles after
/// each trial that found no harm. At least half of a trial's 70 ms goes by without spinning, and the cause of a trial
/// may be harmless: where threads of one program take turns on a CPU, the spinning thread is switched out at every
/// wait.
pub(super) const TRIAL_INTERVAL_FIRST: u64 = 100_000_000;
const TRIAL_INTERVAL_MAX: u64 = 1_000_000_000;
/// How long no thread spins where spinning was found harmful, in nanoseconds, at first and at most.
pub(super) const BACKOFF_FIRST: u64 = 1_000_000_000;
pub(super) const BACKOFF_MAX: u64 = 60_000_000_000;
/// How long a trial, and its way, hold for the other threads of the CPU after the beginning and the end of each wait, in
/// nanoseconds: if the thread is gone, this is all that is left of it.
pub(super) const HOLD: u64 = 4 * STRETCH;
/// The same for the threads of a process that found spinning harmful there.
const HOLD_QUIET: u64 = 250_000_000;

static HARMFUL: Once = Once::new();

/// The CPU that the calling thread runs on, in the table of all processes.
#[derive(Clone, Copy)]
pub(super) struct Cpu {
    pub spinners: Spinners,
    pub number: usize,
}

/// The thread's own record.
pub(super) struct Record {
    /// Where the calling thread runs; `None` without a table.
    here: fn() -> Option<Cpu>,
    /// The steps of work on a CPU so far.
    steps: fn(usize) -> u64,
    /// Of the process.
    verdicts: &'static Verdicts,
    waits: Cell<u32>,
    check_after: Cell<u32>,
    switches: Cell<u64>,
    /// Another thread wanted the CPU during a wait since the last check.
    contended: Cell<bool>,
    /// No trial before this time, unless the CPU is contended; 0 before the first check.
    no_trial_until: Cell<u64>,
    trial_interval: Cell<u64>,
    /// Stretches left of a trial.
    trial: Cell<u32>,
    /// How often the kind has changed.
    changes: Cell<u32>,
    /// Waits of the trial that spun, and how often the thread had lost its CPU to another when the trial began.
    spun: Cell<u32>,
    preemptions: Cell<u64>,
    /// Waits of its spinning stretches. In some of them another thread may have spun on the CPU.
    may_have_spun: Cell<u32>,
    /// The longest that a wait of the trial could spin, in nanoseconds.
    span: Cell<u64>,
    stretch: Stretch,
    /// Means of the trial's stretches: without spinning, with it.
    mean_waits: [Means; 2],
    mean_rounds: [Means; 2],
    /// State of the random generator.
    random: Cell<u64>,
    /// Trials in a row that found spinning harmful.
    strikes: Cell<u32>,
    /// Until when this thread alone does not spin; 0: it may.
    backoff_until: Cell<u64>,
    /// Waits left until the clock is read to see whether the time without spinning is over.
    clock_skips: Cell<u32>,
    backoff: Cell<u64>,
    /// The CPU of the trial. A thread that was moved to another one has no effect there, and decides for itself alone.
    cpu: Cell<usize>,
    moved: Cell<bool>,
    /// Until when its trial has made that CPU quiet; 0: it has not.
    quiet_until: Cell<u64>,
}

impl Record {
    pub(super) const fn new(
        here: fn() -> Option<Cpu>,
        steps: fn(usize) -> u64,
        verdicts: &'static Verdicts,
    ) -> Self {
        Self {
            here,
            steps,
            verdicts,
            waits: Cell::new(0),
            check_after: Cell::new(CHECK_FIRST),
            switches: Cell::new(0),
            contended: Cell::new(false),
            no_trial_until: Cell::new(0),
            trial_interval: Cell::new(TRIAL_INTERVAL_FIRST),
            trial: Cell::new(0),
            changes: Cell::new(0),
            spun: Cell::new(0),
            preemptions: Cell::new(0),
            may_have_spun: Cell::new(0),
            span: Cell::new(0),
            stretch: Stretch::new(),
            mean_waits: [const { Means::new() }; 2],
            mean_rounds: [const { Means::new() }; 2],
            random: Cell::new(0),
            strikes: Cell::new(0),
            backoff_until: Cell::new(0),
            clock_skips: Cell::new(0),
            backoff: Cell::new(0),
            cpu: Cell::new(0),
            moved: Cell::new(false),
            quiet_until: Cell::new(0),
        }
    }

    /// In a child of fork(2), which shares neither the trial nor what was found.
    pub(super) fn in_child(&self) {
        self.verdicts.forget_all();
        self.trial.set(0);
        self.quiet_until.set(0);
        self.backoff_until.set(0);
        self.backoff.set(0);
        self.strikes.set(0);
        self.waits.set(0);
        self.check_after.set(CHECK_FIRST);
        self.no_trial_until.set(0);
        self.trial_interval.set(TRIAL_INTERVAL_FIRST);
    }

    #[inline]
    pub(super) fn backs_off(&self, now: impl Fn() -> u64) -> bool {
        if self.backoff_until.get() != 0 {
            return self.goes_on_backing_off(now);
        }
        self.verdicts.any() && self.trial.get() == 0 && self.cpu_is_to_be_quiet(now())
    }

    fn goes_on_backing_off(&self, now: impl Fn() -> u64) -> bool {
        if let Some(left) = self.clock_skips.get().checked_sub(1) {
            self.clock_skips.set(left);
            return true;
        }
        self.clock_skips.set(CHECK_FIRST);
        let now = now();
        if is_ahead(self.backoff_until.get(), now, BACKOFF_MAX) {
            return true;
        }
        // The time is over: try again, unless another thread of the CPU does, or knows that spinning is harmful there.
        let tries = self.start_trial(now);
        self.backoff_until.set(if tries { 0 } else { now + TRIAL_INTERVAL_FIRST });
        !tries
    }

    /// Whether a trial of this process found spinning harmful on this CPU, not long ago.
    fn cpu_is_to_be_quiet(&self, now: u64) -> bool {
        let Some(cpu) = (self.here)() else { return false };
        match self.verdicts.says(cpu.number, now) {
            Says::Nothing => false,
            Says::Quiet(until) => {
                cpu.spinners.keep_quiet(cpu.number, now, until.min(now + HOLD_QUIET));
                true
            }
            // Nothing is known to harm other processes: if each kept the CPU quiet for the other, neither could try.
            Says::PutOff => true,
            Says::TryAgain => {
                let tries = self.start_trial(now);
                if !tries {
                    self.verdicts.put_off(cpu.number, now);
                }
                !tries
            }
        }
    }

    /// Whether a wait that begins now, and would spin for `span` nanoseconds, should spin.
    pub(super) fn may_spin(&self, now: u64, span: u64) -> bool {
        if self.trial.get() == 0 {
            return true;
        }
        self.span.set(self.span.get().max(span));
        let stretch = &self.stretch;
        if now < stretch.began.get() {
            stretch.begin(now);
        }
        if now.saturating_sub(stretch.began.get()) >= STRETCH && stretch.waits.get() >= WAITS {
            self.next_stretch(now);
        }
        if self.trial.get() == 0 {
            return true;
        }
        self.announce(now);
        stretch.spins.get()
    }

    /// Makes the other threads of the CPU go the stretch's way.
    fn announce(&self, now: u64) {
        super::trial_goes_on(now);
        let Some(cpu) = (self.here)() else { return };
        if self.moved.get() || cpu.number != self.cpu.get() {
            // Once elsewhere for good: another thread may have its trial there now.
            return self.moved.set(true);
        }
        cpu.spinners.hold_trial(cpu.number, now + HOLD);
        self.verdicts.trial_goes_on(cpu.number, now);
        match self.stretch.spins.get() {
            true => self.end_quiet(),
            false => {
                cpu.spinners.quieten(cpu.number, now + HOLD);
                self.quiet_until.set(now + HOLD);
            }
        }
    }

    fn end_quiet(&self) {
        let until = self.quiet_until.replace(0);
        if until != 0
            && let Some(cpu) = (self.here)()
        {
            cpu.spinners.end_quiet(self.cpu.get(), until);
        }
    }

    #[cold]
    fn next_stretch(&self, now: u64) {
        let stretch = &self.stretch;
        let way = usize::from(stretch.spins.get());
        if let Some((wait, round)) = stretch.means() {
            self.mean_waits[way].add(wait);
            self.mean_rounds[way].add(round);
        }
        self.trial.set(self.trial.get() - 1);
        let [slept, spun] = &self.mean_waits;
        let clear =
            self.changes.get() >= CHANGES && (spun.far_above(slept) || slept.far_above(spun));
        if clear || slept.full() && spun.full() {
            self.trial.set(0);
            self.judge(clear, self.is_wanted(Switches::of_this_thread()), now);
        }
        if self.trial.get() == 0 {
            self.end_trial(now);
            // The sleeps of the trial say nothing about the waits to come.
            self.switches.set(Switches::of_this_thread().all());
            return;
        }
        // Random, not alternating: the peer may be in a trial as well.
        let spins = slept.full() || !spun.full() && self.random_bit(now);
        let turn = stretch.spins.replace(spins) != spins;
        self.changes.set(self.changes.get() + u32::from(turn));
        stretch.begin(now);
    }

    fn random_bit(&self, now: u64) -> bool {
        // xorshift (Marsaglia 2003); nothing depends on its quality.
        let mut x = self.random.get() ^ now | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x >> 32 & 1 == 0
    }

    /// Starts a trial, unless another thread has one on this CPU, or keeps it quiet. Returns whether it has.
    #[cold]
    fn start_trial(&self, now: u64) -> bool {
        if let Some(Cpu { spinners, number }) = (self.here)() {
            if spinners.is_quiet(number, now) || !spinners.begin_trial(number, now, now + HOLD) {
                return false;
            }
            self.cpu.set(number);
            self.verdicts.trial_goes_on(number, now);
        }
        super::trial_begins(now);
        self.start_stretches(now);
        true
    }

    /// The trial is over. Other threads of the CPU have theirs at once if it found harm, and otherwise after a pause: in
    /// each one threads sleep that had better spin.
    fn end_trial(&self, now: u64) {
        super::trial_ends();
        self.end_quiet();
        let harmful = self.backoff_until.get() != 0 || self.verdicts.stands(self.cpu.get());
        if let Some(cpu) = (self.here)().filter(|_| !self.moved.get()) {
            let pause = if harmful { 0 } else { TRIAL_INTERVAL_MAX };
            cpu.spinners.hold_trial(self.cpu.get(), now + pause);
        }
    }

    /// The thread ends, perhaps in the middle of a trial. If that was to repeat one that had found harm, another thread
    /// does so, after a pause: where no thread lives long enough, the CPU is quiet most of the time.
    pub(super) fn thread_ends(&self, now: u64) {
        if self.trial.replace(0) > 0 {
            super::trial_ends();
            if !self.moved.get() {
                self.verdicts.trial_is_cut(self.cpu.get(), now);
            }
        }
        self.end_quiet();
    }

    fn start_stretches(&self, now: u64) {
        self.trial.set(STRETCHES);
        self.changes.set(0);
        self.moved.set(false);
        self.spun.set(0);
        self.may_have_spun.set(0);
        self.preemptions.set(Switches::of_this_thread().preemptions);
        self.span.set(0);
        let means = self.mean_waits.iter().chain(&self.mean_rounds);
        means.for_each(Means::clear);
        self.stretch.spins.set(self.random_bit(now));
        self.stretch.begin(now);
    }

    /// A wait that began at `began` is over. `contended`: another thread wanted to spin on its CPU meanwhile. `now` is
    /// called only in a trial.
    pub(super) fn ended(&self, spun: bool, contended: bool, began: u64, now: impl Fn() -> u64) {
        if self.trial.get() > 0 {
            self.spun.set(self.spun.get().saturating_add(spun.into()));
            let may_have_spun = self.may_have_spun.get();
            self.may_have_spun.set(may_have_spun.saturating_add(self.stretch.spins.get().into()));
            let now = now();
            self.announce(now);
            return self.stretch.ended(began, now, (self.steps)(self.cpu.get()));
        }
        if contended {
            self.contended.set(true);
        }
        let waits = self.waits.get() + 1;
        if waits < self.check_after.get() {
            self.waits.set(waits);
        } else {
            self.check(waits, began);
        }
    }

    /// Whether waits ended in sleep or preemption often enough for a trial.
    #[cold]
    fn check(&self, waits: u32, began: u64) {
        let switches = Switches::of_this_thread().all();
        let since = switches.saturating_sub(self.switches.replace(switches));
        self.waits.set(0);
        if self.no_trial_until.get() == 0 {
            self.no_trial_until.set(began + self.trial_interval.get());
        }
        let contended = self.contended.replace(false);
        if is_ahead(self.no_trial_until.get(), began, TRIAL_INTERVAL_MAX) && !contended {
            return;
        }
        if since * 2 >= u64::from(waits) {
            self.check_after.set(CHECK_FIRST);
            self.start_trial(now());
        } else {
            self.check_after.set((self.check_after.get() * 2).min(CHECK_MAX));
        }
    }

    /// Whether the thread lost its CPU in a good part of the waits that spun: a yield of the CPU counts if another
    /// thread was waiting for it.
    fn is_wanted(&self, switches: Switches) -> bool {
        let lost = switches.preemptions.saturating_sub(self.preemptions.get());
        self.spun.get() > 0 && lost * 4 >= u64::from(self.spun.get())
    }

    /// From now on no thread spins on the CPU of the trial. False if the thread is elsewhere, or the CPU has no number.
    fn ends_spinning_here(&self, now: u64) -> bool {
        let cpu = (self.here)().filter(|_| !self.moved.get());
        let harmful =
            cpu.and_then(|cpu| Some((cpu, self.verdicts.found_harm(self.cpu.get(), now)?)));
        if let Some((cpu, until)) = harmful {
            cpu.spinners.keep_quiet(self.cpu.get(), now, until.min(now + HOLD_QUIET));
        }
        harmful.is_some()
    }

    /// `wanted`: other threads wanted the CPU.
    #[cold]
    fn judge(&self, clear: bool, wanted: bool, now: u64) {
        let medians = |means: &[Means; 2]| means.each_ref().map(Means::median);
        let can_add = self.span.get().saturating_add(SCHEDULED);
        let longer =
            |[slept, spun]: [u64; 2]| spun > slept + slept / 4 + NOISE && spun - slept <= can_add;
        let useless = |[slept, spun]: [u64; 2]| spun >= slept - slept / 8;
        // A small difference counts if it is the same in nearly all stretches.
        let [slept, spun] = &self.mean_rounds;
        let slower = |[slept_for, spun_for]: [u64; 2]| {
            spun_for > slept_for + slept_for / 16
                && spun_for - slept_for <= can_add
                && (clear || spun.ranks_above(slept))
        };
        let (waits, rounds) = (medians(&self.mean_waits), medians(&self.mean_rounds));
        // If another thread spins for the same events, this one waits longer, and no harm is done.
        let longer_waits = longer(waits) && self.spun.get() >= self.may_have_spun.get() / 4;
        // Steps are counted on the CPU of the trial.
        let longer_rounds = !self.moved.get() && slower(rounds);
        let in_vain = wanted && useless(waits) && useless(rounds);
        if longer_waits || longer_rounds || in_vain {
            let strikes = self.strikes.get() + 1;
            self.strikes.set(strikes);
            let known = self.backoff.get() != 0 || self.verdicts.stands(self.cpu.get());
            if !clear && strikes < 2 && !known {
                return self.start_stretches(now);
            }
            super::count_harm();
            let for_all = (longer_waits || longer_rounds) && self.ends_spinning_here(now);
            if longer_waits {
                report_longer("the waits of this program", waits, for_all);
            } else if longer_rounds {
                report_longer("this program's rounds of work and wait", rounds, for_all);
            } else {
                HARMFUL.report(format_args!(
                    "busy polling does not make the waits of this program shorter, and other \
                     threads want its CPU, so the thread does not poll for a while"
                ));
            }
            if !for_all {
                self.verdicts.forget(self.cpu.get());
                let backoff = (self.backoff.get() * 2).clamp(BACKOFF_FIRST, BACKOFF_MAX);
                self.backoff.set(backoff);
                self.backoff_until.set(now + backoff);
            }
            self.trial_interval.set(TRIAL_INTERVAL_FIRST);
        } else {
            self.backoff.set(0);
            self.verdicts.forget(self.cpu.get());
            let trial_interval = (self.trial_interval.get() * 2).min(TRIAL_INTERVAL_MAX);
            self.trial_interval.set(trial_interval);
            self.no_trial_until.set(now + trial_interval);
            self.check_after.set((self.check_after.get() * 2).min(CHECK_MAX));
        }
        self.strikes.set(0);
    }
}

/// `for_all`: the threads of the CPU are meant; else the thread decides for itself alone.
fn report_longer(what: &str, [slept, spun]: [u64; 2], for_all: bool) {
    let ends = if for_all { "no thread polls on its CPU" } else { "the thread does not poll" };
    HARMFUL.report(format_args!(
        "busy polling made {what} longer ({} us instead of {} us), so {ends} for a while: are there \
         enough CPUs for it and its peer?",
        spun / 1000,
        slept / 1000
    ));
}

/// Context switches of a thread.
struct Switches {
    /// It gave up the CPU to wait.
    waits: u64,
    /// Another thread got the CPU though this one could run on.
    preemptions: u64,
}

impl Switches {
    /// Zeroes if a seccomp filter refuses the call.
    fn of_this_thread() -> Self {
        let _errno = Saved::new();
        // SAFETY: zeroes are a valid value of this plain struct.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: valid for writes.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        Self { waits: usage.ru_nvcsw.unsigned_abs(), preemptions: usage.ru_nivcsw.unsigned_abs() }
    }

    fn all(&self) -> u64 {
        self.waits + self.preemptions
    }
}

#[cfg(test)]
mod tests;
