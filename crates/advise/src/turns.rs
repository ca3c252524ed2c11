//! Turns of a measurement, and which of them nothing disturbed: those in which the threads that are measured did not wait
//! for a CPU. Where other programs hold the CPUs every figure is theirs.

use std::fs;
use std::time::{Duration, Instant};

use busypoll_linux::process::Process;

/// A turn lasts so long, and at least so many exchanges.
const TURN: Duration = Duration::from_millis(20);
const LEAST: usize = 20;

/// Exchanges before each turn that are not counted: caches are filled.
const WARM_UP: usize = 5;

/// Even on a free CPU a thread waits so long after a wake-up, in nanoseconds.
const WAKE_UP: u64 = 3_000;

/// The share of a turn that threads may wait beyond that.
const ALLOWED: f64 = 0.02;

/// How long threads have waited for a CPU, and how often they got one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waited {
    ns: u64,
    times: u64,
}

/// One turn.
pub(crate) struct Turn<R> {
    /// The round trips, in nanoseconds.
    pub(crate) times: Vec<u64>,
    pub(crate) undisturbed: bool,
    /// What was seen of it besides.
    pub(crate) seen: R,
}

/// Some turns with the same server.
pub(crate) struct Turns<R>(Vec<Turn<R>>);

/// How many turns there were, and how many were undisturbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Count {
    pub(crate) undisturbed: usize,
    pub(crate) all: usize,
}

impl Waited {
    /// The calling thread's, and those of a process and its children.
    fn of(server: u32) -> Waited {
        let mut sum = Waited::default();
        sum.add("/proc/thread-self/schedstat");
        let mut pids = vec![server];
        while let Some(pid) = pids.pop() {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for thread in threads {
                sum.add(&thread.path().join("schedstat").to_string_lossy());
            }
            // A server under `busypoll run` may be a child of it.
            pids.extend(Process::open(pid).map(|it| it.children()).unwrap_or_default());
        }
        sum
    }

    fn add(&mut self, path: &str) {
        // A thread that has just ended does not count.
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut words = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
        if let (Some(_ran), Some(ns), Some(times)) = (words.next(), words.next(), words.next()) {
            self.ns += ns;
            self.times += times;
        }
    }

    fn since(self, before: Waited) -> Waited {
        Waited {
            ns: self.ns.saturating_sub(before.ns),
            times: self.times.saturating_sub(before.times),
        }
    }

    /// Whether a turn of this length in which threads waited so was undisturbed.
    fn is_undisturbed(self, time: Duration) -> bool {
        let beyond = self.ns.saturating_sub(self.times * WAKE_UP);
        beyond as f64 <= time.as_nanos() as f64 * ALLOWED
    }
}

/// A turn of exchanges with a server, a pause before each.
pub(crate) fn turn<E>(
    server: u32,
    pause: Duration,
    mut one: impl FnMut() -> Result<(), E>,
) -> Result<Turn<()>, E> {
    for _ in 0..WARM_UP {
        one()?;
    }
    let mut times = Vec::new();
    let (before, begun) = (Waited::of(server), Instant::now());
    while begun.elapsed() < TURN || times.len() < LEAST {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let sent = Instant::now();
        one()?;
        times.push(sent.elapsed().as_nanos() as u64);
    }
    let time = begun.elapsed();
    let undisturbed = Waited::of(server).since(before).is_undisturbed(time);
    Ok(Turn { times, undisturbed, seen: () })
}

impl<R> Turns<R> {
    pub(crate) fn new() -> Self {
        Turns(Vec::new())
    }

    pub(crate) fn push(&mut self, turn: Turn<R>) {
        self.0.push(turn);
    }

    pub(crate) fn count(&self) -> Count {
        let undisturbed = self.0.iter().filter(|turn| turn.undisturbed).count();
        Count { undisturbed, all: self.0.len() }
    }

    /// The undisturbed ones; if there is none, all.
    fn good(&self) -> impl Iterator<Item = &Turn<R>> {
        let any = self.count().undisturbed > 0;
        self.0.iter().filter(move |turn| turn.undisturbed || !any)
    }

    /// The round trips of all turns.
    pub(crate) fn times(&self) -> Vec<u64> {
        self.good().flat_map(|turn| turn.times.iter().copied()).collect()
    }

    /// What was seen of them besides.
    pub(crate) fn seen(&self) -> impl Iterator<Item = &R> {
        self.good().map(|turn| &turn.seen)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use busypoll_linux::topology;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn waits_beyond_those_of_wake_ups_disturb_a_turn() {
        let waited = |ns, times| Waited { ns, times }.is_undisturbed(20 * MS);
        assert!(waited(0, 0));
        // A thousand wake-ups, each a microsecond.
        assert!(waited(1_000_000, 1000));
        assert!(!waited(5_000_000, 1000));
        // Displaced once, for a moment, and for a time slice.
        assert!(waited(200_000, 1));
        assert!(!waited(3_000_000, 1));
    }

    #[test]
    fn of_turns_only_the_undisturbed_count_if_there_are_any() {
        let mut turns = Turns::new();
        let turn = |ns, undisturbed| Turn { times: vec![ns], undisturbed, seen: ns };
        turns.push(turn(90, false));
        assert_eq!(turns.times(), [90]);
        turns.push(turn(10, true));
        turns.push(turn(80, false));
        assert_eq!((turns.times(), turns.seen().count()), (vec![10], 1));
        assert_eq!(turns.count(), Count { undisturbed: 1, all: 3 });
    }

    /// A thread that spins beside another one on its CPU waits for half of the time, however busy the machine is.
    #[test]
    fn a_hog_on_the_same_cpu_disturbs_every_turn() {
        let cpu = topology::online().unwrap().iter().next().unwrap();
        let (runs, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let sleeper = Command::new("sleep").arg("99").spawn();
        let Ok(mut sleeper) = sleeper else { return };
        let disturbed = thread::scope(|scope| {
            let hog = scope.spawn(|| {
                let _pinned = topology::pin(cpu);
                while !stop.load(Ordering::Relaxed) {
                    runs.store(true, Ordering::Relaxed);
                }
            });
            let measure = || {
                let _pinned = topology::pin(cpu);
                while !runs.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                let spin = || -> Result<(), ()> {
                    let begun = Instant::now();
                    while begun.elapsed() < MS {}
                    Ok(())
                };
                let turns: Vec<_> =
                    (0..5).map(|_| turn(sleeper.id(), Duration::ZERO, spin).unwrap()).collect();
                turns.iter().filter(|turn| !turn.undisturbed).count()
            };
            let disturbed = scope.spawn(measure).join();
            stop.store(true, Ordering::Relaxed);
            hog.join().unwrap();
            disturbed
        });
        let _ = sleeper.kill();
        let _ = sleeper.wait();
        assert_eq!(disturbed.unwrap(), 5);
    }
}
