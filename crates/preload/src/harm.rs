//! Do no harm: whether this wait may spin.
//!
//! - One spinner per CPU, over all runs of the user ([`Spinners`]), and no more than the policy and
//!   the CPU quota allow.
//! - Evidence. A thread whose waits end in sleep or preemption all the same tries both ways, in
//!   turn; where waiting is clearly shorter without spinning, it stops, for a second at first and
//!   longer each time it finds the same. So two programs on one CPU, or one and its peer, come to an
//!   end of keeping each other from running.

use std::cell::Cell;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use busypoll_linux::spinners::{Spinners, Turn};
use busypoll_stack::spin::Rule;
use rustix::time::{ClockId, clock_gettime};

use crate::config::Config;
use crate::say::Once;

/// Waits between two looks at how they ended, at first and at most.
const LOOK_FIRST: u32 = 32;
const LOOK_AT_MOST: u32 = 8192;
/// Waits of each kind in a trial, which is over after four times as many whatever they were.
const TRIAL: usize = 32;
/// What makes no difference, in nanoseconds.
const NOISE: u64 = 2_000;
/// How long a thread that found spinning harmful leaves it, in nanoseconds, at first and at most.
const REST_FIRST: u64 = 1_000_000_000;
const REST_AT_MOST: u64 = 60_000_000_000;

/// What the processes share, and how many may spin.
struct Limits {
    spinners: Spinners,
    cpus: usize,
    /// Fewer than there are CPUs; `None`: the CPUs are the limit.
    at_most: Option<usize>,
}

static LIMITS: OnceLock<Option<Limits>> = OnceLock::new();

/// Opens the table of spinners and reads how many there may be. Called at load time.
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
            NO_QUOTA.say(format_args!(
                "the CPU quota of this cgroup is below one CPU: no thread busy polls"
            ));
        }
        Some(Limits { spinners, cpus: busypoll_linux::spinners::CPUS, at_most })
    });
}

static NO_QUOTA: Once = Once::new();
static HARMFUL: Once = Once::new();

/// The thread's own record.
struct Record {
    waits: Cell<u32>,
    look_after: Cell<u32>,
    switches: Cell<u64>,
    /// Waits left of a trial.
    trial: Cell<u32>,
    /// Lengths in the trial, nanoseconds: those that did not spin, those that did.
    lengths: [Lengths; 2],
    /// For throwing the dice.
    random: Cell<u64>,
    /// Found harmful by this many trials in a row.
    strikes: Cell<u32>,
    off_until: Cell<u64>,
    /// Waits until the clock is asked whether the rest is over.
    unasked: Cell<u32>,
    rest: Cell<u64>,
}

struct Lengths {
    count: Cell<usize>,
    nanos: [Cell<u64>; TRIAL],
}

thread_local! {
    static RECORD: Record = const {
        Record {
            waits: Cell::new(0),
            look_after: Cell::new(LOOK_FIRST),
            switches: Cell::new(0),
            trial: Cell::new(0),
            lengths: [const { Lengths::new() }; 2],
            random: Cell::new(0),
            strikes: Cell::new(0),
            off_until: Cell::new(0),
            unasked: Cell::new(0),
            rest: Cell::new(0),
        }
    };
}

/// Whether the calling thread has found spinning harmful, and leaves it for now: all there is to pay
/// for it then.
#[inline]
pub fn rests() -> bool {
    RECORD.try_with(Record::rests).unwrap_or(true)
}

/// A wait, from before its system call to after it.
#[must_use]
pub struct Wait {
    turn: Option<Turn>,
    began: u64,
}

impl Wait {
    /// Begins a wait that would spin for so many microseconds.
    pub fn begin(micros: u32) -> Self {
        let began = now();
        let willing = RECORD.try_with(|record| record.willing(began)).unwrap_or(false);
        // The kernel's microsecond has 1024 ns.
        let until = began.saturating_add(u64::from(micros) * 1024);
        let turn = if willing { enter(began, until) } else { None };
        Self { turn, began }
    }

    /// Whether it may spin.
    pub fn spins(&self) -> bool {
        self.turn.is_some()
    }

    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Ends it.
    pub fn end(self) {
        let spun = self.turn.is_some();
        if let (Some(turn), Some(Some(limits))) = (self.turn, LIMITS.get()) {
            limits.spinners.leave(turn);
        }
        let _ = RECORD.try_with(|record| record.ended(spun, self.began));
    }
}

/// The same for waits in the stack, which has no place for what belongs to one.
pub const RULE: Rule = Rule { begin: begin_in_stack, end: end_in_stack };

thread_local! {
    static IN_STACK: Cell<Option<Wait>> = const { Cell::new(None) };
}

fn begin_in_stack(span: Duration) -> bool {
    if rests() {
        return false;
    }
    let wait = Wait::begin(u32::try_from(span.as_micros()).unwrap_or(u32::MAX));
    let spins = wait.spins();
    let _ = IN_STACK.try_with(|current| current.set(Some(wait)));
    spins
}

fn end_in_stack() {
    if let Ok(Some(wait)) = IN_STACK.try_with(Cell::take) {
        wait.end();
    }
}

fn enter(now: u64, until: u64) -> Option<Turn> {
    let limits = LIMITS.get()?.as_ref()?;
    if limits.at_most.is_some_and(|n| limits.spinners.count(limits.cpus, now) >= n) {
        return None;
    }
    // SAFETY: no precondition.
    let cpu = unsafe { libc::sched_getcpu() };
    limits.spinners.enter(usize::try_from(cpu).ok()?, now, until)
}

impl Record {
    fn rests(&self) -> bool {
        if self.off_until.get() == 0 {
            return false;
        }
        if let Some(left) = self.unasked.get().checked_sub(1) {
            self.unasked.set(left);
            return true;
        }
        self.unasked.set(LOOK_FIRST);
        if now() < self.off_until.get() {
            return true;
        }
        // Is it still so?
        self.off_until.set(0);
        self.start_trial();
        false
    }

    fn willing(&self, now: u64) -> bool {
        // Half of a trial does not spin. The dice, not turns: a program may wait in turns itself, for
        // the head of a message and for its body, say.
        self.trial.get() == 0 || self.toss(now)
    }

    fn toss(&self, now: u64) -> bool {
        // xorshift (Marsaglia 2003), which nothing depends on.
        let mut x = self.random.get() ^ now | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x >> 32 & 1 == 0
    }

    fn start_trial(&self) {
        self.trial.set(TRIAL as u32 * 8);
        self.lengths.iter().for_each(|lengths| lengths.count.set(0));
    }

    fn ended(&self, spun: bool, began: u64) {
        let left = self.trial.get();
        if left > 0 {
            let [slept, spent] = &self.lengths;
            (if spun { spent } else { slept }).add(now().saturating_sub(began));
            self.trial.set(left - 1);
            if slept.full() && spent.full() {
                self.trial.set(0);
                self.judge();
            }
            return;
        }
        let waits = self.waits.get() + 1;
        if waits < self.look_after.get() {
            self.waits.set(waits);
        } else {
            self.look(waits);
        }
    }

    /// Did waits end in sleep, or was the CPU taken away from them?
    #[cold]
    fn look(&self, waits: u32) {
        let switches = switches();
        let since = switches.saturating_sub(self.switches.replace(switches));
        self.waits.set(0);
        if since * 2 >= u64::from(waits) {
            self.start_trial();
        } else {
            self.look_after.set((self.look_after.get() * 2).min(LOOK_AT_MOST));
        }
    }

    #[cold]
    fn judge(&self) {
        let [slept, spun] = self.lengths.each_ref().map(Lengths::mean);
        if spun > slept + slept / 4 + NOISE {
            let strikes = self.strikes.get() + 1;
            self.strikes.set(strikes);
            if strikes < 2 && self.rest.get() == 0 {
                self.start_trial();
                return;
            }
            HARMFUL.say(format_args!(
                "busy polling made the waits of this program longer ({} us instead of {} us), so it \
                 stops: are there enough CPUs for it and its peer?",
                spun / 1000,
                slept / 1000
            ));
            let rest = (self.rest.get() * 2).clamp(REST_FIRST, REST_AT_MOST);
            self.rest.set(rest);
            self.off_until.set(now() + rest);
        } else {
            self.rest.set(0);
            self.look_after.set((self.look_after.get() * 2).min(LOOK_AT_MOST));
        }
        self.strikes.set(0);
    }
}

impl Lengths {
    const fn new() -> Self {
        Self { count: Cell::new(0), nanos: [const { Cell::new(0) }; TRIAL] }
    }

    fn full(&self) -> bool {
        self.count.get() == TRIAL
    }

    fn add(&self, length: u64) {
        if let Some(place) = self.nanos.get(self.count.get()) {
            place.set(length);
            self.count.set(self.count.get() + 1);
        }
    }

    /// The mean, without the two longest: something else had the CPU then. Not the median: where two
    /// programs share a CPU most waits are over before they begin, and the few others take all the
    /// time.
    fn mean(&self) -> u64 {
        let mut sorted = self.nanos.each_ref().map(Cell::get);
        sorted.sort_unstable();
        let counted = TRIAL - 2;
        sorted.iter().take(counted).sum::<u64>() / counted as u64
    }
}

/// Context switches of the calling thread, wanted or not.
fn switches() -> u64 {
    // SAFETY: zeroes are a valid value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: valid for writes.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_nvcsw + usage.ru_nivcsw).unsigned_abs()
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}
