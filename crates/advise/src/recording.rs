//! The waits of a program as rounds.

use std::collections::BTreeMap;

use busypoll_linux::bpf::waits::{OneWait, WaitCall};

/// A wait that brought something, and the work before it, since the wait before. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// From the beginning of the wait to its end.
    pub(crate) wait: u64,
    /// From the beginning of the wait to the wake-up: when the packet was there.
    pub(crate) arrival: u64,
    /// From the wake-up to the return.
    pub(crate) delay: u64,
    /// The work before, and how much of it was on a CPU.
    pub(crate) work: u64,
    pub(crate) work_cpu: u64,
    /// On a CPU in the wait.
    pub(crate) wait_cpu: u64,
    /// System calls in the round.
    pub(crate) calls: u32,
}

/// The rounds of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadRounds {
    pub(crate) tid: u32,
    pub(crate) rounds: Vec<Round>,
    /// Waits that ended with nothing: timeouts.
    pub(crate) timeouts: u64,
    /// Waits in which it busy polled already.
    pub(crate) polled: u64,
    /// How it waited, by how often.
    pub(crate) calls: BTreeMap<WaitCall, u64>,
    /// When its first round began and its last one ended.
    pub(crate) span: u64,
}

/// What was seen of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recording {
    /// How long it was watched.
    pub(crate) time: u64,
    /// Threads with rounds, the busiest first.
    pub(crate) threads: Vec<ThreadRounds>,
    /// Waits that could not be recorded.
    pub(crate) lost: u64,
}

/// A wait longer than this is a pause of the program's traffic and no part of its rounds.
const PAUSE: u64 = 2_000_000_000;

impl Recording {
    /// Of these waits, in the order in which each thread made them, seen over `time`.
    pub(crate) fn of(waits: &[OneWait], time: u64, lost: u64) -> Self {
        let mut by_thread: BTreeMap<u32, (ThreadRounds, Option<u64>, u64)> = BTreeMap::new();
        for wait in waits {
            let (thread, left, begun) = by_thread.entry(wait.tid).or_insert_with(|| {
                let thread = ThreadRounds { tid: wait.tid, ..ThreadRounds::default() };
                (thread, None, wait.enter)
            });
            thread.polled += u64::from(wait.polled);
            let length = wait.leave.saturating_sub(wait.enter);
            let before = left.replace(wait.leave);
            if !wait.got {
                thread.timeouts += 1;
                continue;
            }
            // What came before the first wait was not seen.
            let Some(before) = before.filter(|_| length < PAUSE) else { continue };
            if wait.woken < wait.enter || wait.woken > wait.leave {
                continue;
            }
            let work = wait.enter.saturating_sub(before);
            *thread.calls.entry(wait.call).or_default() += 1;
            thread.span = wait.leave - *begun;
            thread.rounds.push(Round {
                wait: length,
                arrival: wait.woken - wait.enter,
                delay: wait.leave - wait.woken,
                work,
                work_cpu: work.saturating_sub(wait.off_before),
                wait_cpu: length.saturating_sub(wait.off),
                calls: wait.calls,
            });
        }
        let threads = by_thread.into_values().map(|(thread, ..)| thread);
        let mut threads: Vec<_> = threads.filter(|thread| !thread.rounds.is_empty()).collect();
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.rounds.len()));
        Recording { time, threads, lost }
    }

    /// All rounds.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = &Round> + Clone {
        self.threads.iter().flat_map(|thread| &thread.rounds)
    }

    /// The median of something of the rounds; 0 of none.
    pub(crate) fn median(&self, of: impl Fn(&Round) -> u64) -> u64 {
        quantile(&mut self.rounds().map(of).collect::<Vec<_>>(), 0.5)
    }

    /// How most waits were made.
    pub(crate) fn main_call(&self) -> Option<WaitCall> {
        let mut sums: BTreeMap<WaitCall, u64> = BTreeMap::new();
        for (call, count) in self.threads.iter().flat_map(|thread| &thread.calls) {
            *sums.entry(*call).or_default() += count;
        }
        sums.into_iter().max_by_key(|(_, count)| *count).map(|(call, _)| call)
    }

    /// Threads that wait often: a tenth of the busiest one's waits or more. Each would poll.
    pub(crate) fn pollers(&self) -> usize {
        let most = self.threads.first().map_or(0, |thread| thread.rounds.len());
        self.threads.iter().filter(|thread| thread.rounds.len() * 10 >= most.max(1)).count()
    }
}

/// The value below which this share of the values are; 0 of none. Sorts them.
pub(crate) fn quantile(values: &mut [u64], share: f64) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let rank = (share * values.len() as f64).ceil() as usize;
    let at = rank.clamp(1, values.len()) - 1;
    *values.select_nth_unstable(at).1
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn wait(tid: u32, enter: u64, woken: u64, leave: u64) -> OneWait {
        OneWait {
            pid: 1,
            tid,
            call: WaitCall::Epoll,
            slept: true,
            polled: false,
            got: true,
            enter,
            leave,
            woken,
            off: (woken - enter) / 2,
            off_before: 10,
            calls: 3,
        }
    }

    #[test]
    fn a_round_is_a_wait_and_the_work_before_it() {
        let mut timeout = wait(7, 2000, 2400, 2500);
        timeout.got = false;
        let waits = [
            wait(7, 100, 300, 320),
            wait(8, 100, 200, 300),
            wait(7, 420, 900, 1000),
            timeout,
            wait(7, 2600, 2650, 2700),
        ];
        let recording = Recording::of(&waits, 5000, 0);
        // The thread of one wait has no round.
        assert_eq!(recording.threads.len(), 1);
        let thread = &recording.threads[0];
        assert_eq!((thread.timeouts, thread.span, thread.rounds.len()), (1, 2600, 2));
        let first = thread.rounds[0];
        assert_eq!((first.wait, first.arrival, first.delay), (580, 480, 100));
        assert_eq!((first.work, first.work_cpu, first.wait_cpu), (100, 90, 340));
        // After a timeout the work begins where that wait ended.
        assert_eq!(thread.rounds[1].work, 100);
        assert_eq!(recording.main_call(), Some(WaitCall::Epoll));
        assert_eq!(recording.pollers(), 1);
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        assert_eq!(quantile(&mut [], 0.5), 0);
        assert_eq!(quantile(&mut [5], 0.99), 5);
        let mut values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(quantile(&mut values, 0.5), 50);
        assert_eq!(quantile(&mut values, 0.99), 99);
    }
}
