//! How the threads of chosen processes wait for packets: how long, asleep or polling, and how soon they go on once a
//! packet is there. Program: `bpf/waits.bpf.c`.
//!
//! A wait is a system call in which the thread slept or busy polled. While this value lives every system call, switch
//! and wake-up on the machine costs some tens of nanoseconds more, a wait of a chosen process some hundred.

use aya::include_bytes_aligned;
use aya::maps::{HashMap, MapData, MapError, RingBuf};

use super::{Programs, Record, btf, failed};
use crate::error::Result;

/// How a thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitCall {
    /// recv, recvmsg, recvmmsg, and read on a socket.
    Receive,
    /// poll, select and their variants.
    Poll,
    /// epoll_wait and its variants.
    Epoll,
    /// io_uring_enter.
    Uring,
    /// accept.
    Accept,
}

impl WaitCall {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            WaitCall::Receive => "recv",
            WaitCall::Poll => "poll",
            WaitCall::Epoll => "epoll",
            WaitCall::Uring => "io_uring",
            WaitCall::Accept => "accept",
        }
    }
}

const ANY_FILE: u32 = 1;
const IF_SOCKET: u32 = 2;

const CALLS: &[(i64, u32, WaitCall)] = &[
    (libc::SYS_recvfrom, ANY_FILE, WaitCall::Receive),
    (libc::SYS_recvmsg, ANY_FILE, WaitCall::Receive),
    (libc::SYS_recvmmsg, ANY_FILE, WaitCall::Receive),
    (libc::SYS_read, IF_SOCKET, WaitCall::Receive),
    (libc::SYS_readv, IF_SOCKET, WaitCall::Receive),
    (libc::SYS_ppoll, ANY_FILE, WaitCall::Poll),
    (libc::SYS_pselect6, ANY_FILE, WaitCall::Poll),
    (libc::SYS_epoll_pwait, ANY_FILE, WaitCall::Epoll),
    (libc::SYS_epoll_pwait2, ANY_FILE, WaitCall::Epoll),
    (libc::SYS_io_uring_enter, ANY_FILE, WaitCall::Uring),
    (libc::SYS_accept4, ANY_FILE, WaitCall::Accept),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_accept, ANY_FILE, WaitCall::Accept),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, ANY_FILE, WaitCall::Poll),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, ANY_FILE, WaitCall::Poll),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, ANY_FILE, WaitCall::Epoll),
];

/// Counts of times, four steps for each power of two: a time is known to within a quarter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times([u32; STEPS]);

/// As in the program.
const STEPS: usize = 144;

impl Default for Times {
    fn default() -> Self {
        Times([0; STEPS])
    }
}

impl Times {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().copied().map(u64::from).sum()
    }

    /// The time in nanoseconds below which this share of the times are; `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let all = self.count();
        let rank = ((share * all as f64).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        for (step, count) in self.0.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return Some(middle(step));
            }
        }
        None
    }

    /// The counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Times) -> Times {
        let mut new = self.clone();
        for (now, before) in new.0.iter_mut().zip(earlier.0) {
            *now = now.wrapping_sub(before);
        }
        new
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Times) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }
}

/// The middle of a step.
fn middle(step: usize) -> u64 {
    if step < 4 {
        return step as u64;
    }
    let (log, part) = ((step + 4) / 4, (step % 4) as u64);
    let width = 1u64 << (log - 2);
    (4 + part) * width + width / 2
}

/// The waits of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadWaits {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// How it waited last.
    pub call: Option<WaitCall>,
    /// Waits.
    pub waits: u64,
    /// Waits in which the thread slept.
    pub slept: u64,
    /// Waits in which the thread busy polled.
    pub polled: u64,
    /// Waits that returned an event or data.
    pub got: u64,
    /// Calls that could have waited and returned at once.
    pub at_once: u64,
    /// CPU time in all these calls, in nanoseconds.
    pub cpu_ns: u64,
    /// Of that: polling, before it slept.
    pub spun_ns: u64,
    /// Of that: in waits that polling brought nothing for.
    pub vain_ns: u64,
    /// How long the waits took that brought something.
    pub lengths: Times,
    /// How long the thread took to return: from its wake-up, or from the poll that found a packet.
    pub delays: Times,
}

/// One wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneWait {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The call.
    pub call: WaitCall,
    /// The thread slept.
    pub slept: bool,
    /// It busy polled.
    pub polled: bool,
    /// The call brought something.
    pub got: bool,
    /// When it began and ended, in nanoseconds of the monotonic clock.
    pub enter: u64,
    /// See [`OneWait::enter`].
    pub leave: u64,
    /// When the thread was woken, or its poll found a packet; 0: neither.
    pub woken: u64,
    /// The time in the wait in which it had no CPU.
    pub off: u64,
    /// The same between the wait before and this one.
    pub off_before: u64,
    /// The system calls it made since the wait before, this one among them.
    pub calls: u32,
}

/// What to watch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watched {
    /// Also the processes that the chosen ones start from now on.
    pub children: bool,
    /// Report each wait, beside the totals.
    pub each: bool,
}

/// `sizeof(struct totals)` in words of 64 bits.
const WORDS: usize = 9 + STEPS;
static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/waits.bpf.o");

/// The waits of the chosen processes, from the start of this value.
pub struct Waits {
    programs: Programs,
    records: RingBuf<MapData>,
}

impl Waits {
    /// Begins with these processes.
    ///
    /// ```no_run
    /// use busypoll_linux::bpf::waits::{Waits, Watched};
    /// let mut waits = Waits::start(&[1234], Watched::default())?;
    /// std::thread::sleep(std::time::Duration::from_secs(1));
    /// for thread in waits.totals()? {
    ///     println!("{}: {} waits, half below {:?} ns", thread.tid, thread.waits, thread.lengths.quantile(0.5));
    /// }
    /// # Ok::<(), busypoll_linux::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`super::available`]; [`crate::Error::Unsupported`] on a kernel without busy polling.
    pub fn start(pids: &[u32], watched: Watched) -> Result<Self> {
        let mask = btf::in_busy_poll()?.to_ne_bytes();
        let children = u32::from(watched.children).to_ne_bytes();
        let each = u32::from(watched.each).to_ne_bytes();
        let constants: [(&str, &[u8]); 3] =
            [("in_busy_poll", &mask), ("children", &children), ("each", &each)];
        let mut programs = Programs::load("waits", OBJECT, &constants)?;
        let mut calls: HashMap<_, i64, u32> = programs.map("calls")?;
        for (number, kind, _) in CALLS {
            calls.insert(number, kind, 0).map_err(|e| failed("waits", "filling calls", &e))?;
        }
        let records = programs.take_ring("records")?;
        let mut waits = Waits { programs, records };
        for pid in pids {
            waits.add(*pid)?;
        }
        // Exits before entries: an entry without its exit would stay open.
        for tracepoint in [
            "sched_process_exit",
            "sched_process_fork",
            "softirq_exit",
            "softirq_entry",
            "napi_poll",
            "sched_waking",
            "sched_switch",
            "sys_exit",
            "sys_enter",
        ] {
            waits.programs.attach_tracepoint(tracepoint)?;
        }
        Ok(waits)
    }

    /// Watches one more process.
    ///
    /// # Errors
    /// [`crate::Error::Os`] with more than 16,384 of them.
    pub fn add(&mut self, pid: u32) -> Result<()> {
        self.programs.add_process(pid)
    }

    /// Stops watching a process.
    ///
    /// # Errors
    /// The map is missing.
    pub fn remove(&mut self, pid: u32) -> Result<()> {
        self.programs.remove_process(pid)
    }

    /// The threads' waits so far, of those that have not ended.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn totals(&mut self) -> Result<Vec<ThreadWaits>> {
        let map: HashMap<_, u32, [u64; WORDS]> = self.programs.map("waits")?;
        let mut rows = Vec::new();
        for entry in map.iter() {
            match entry {
                Ok((tid, words)) => rows.push(of_words(tid, &words)),
                // A thread may have ended meanwhile.
                Err(MapError::KeyNotFound) => {}
                Err(e) => return Err(failed("waits", "reading waits", &e)),
            }
        }
        Ok(rows)
    }

    /// The next wait that was reported, if there is one; does not block.
    pub fn next_wait(&mut self) -> Option<OneWait> {
        loop {
            let item = self.records.next()?;
            // An unknown call is skipped.
            if let Some(wait) = of_record(&item) {
                return Some(wait);
            }
        }
    }

    /// Waits that were not counted or reported, for want of room.
    ///
    /// # Errors
    /// The map is missing.
    pub fn lost(&mut self) -> Result<u64> {
        self.programs.lost()
    }
}

fn call(number: u32) -> Option<WaitCall> {
    CALLS.iter().find(|(known, ..)| *known == i64::from(number)).map(|(_, _, call)| *call)
}

fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

fn of_words(tid: u32, words: &[u64; WORDS]) -> ThreadWaits {
    let [who, waits, slept, polled, got, at_once, cpu_ns, spun_ns, vain_ns, times @ ..] = *words;
    let [pid, number] = halves(who);
    let mut counts = times.iter().flat_map(|word| halves(*word));
    let mut times = || Times(std::array::from_fn(|_| counts.next().unwrap_or(0)));
    ThreadWaits {
        pid,
        tid,
        call: call(number),
        waits,
        slept,
        polled,
        got,
        at_once,
        cpu_ns,
        spun_ns,
        vain_ns,
        lengths: times(),
        delays: times(),
    }
}

fn of_record(item: &[u8]) -> Option<OneWait> {
    let mut r = Record(item);
    let [pid, tid, number, flags] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [enter, leave, woken, off, off_before] = [r.u64(), r.u64(), r.u64(), r.u64(), r.u64()];
    Some(OneWait {
        pid,
        tid,
        call: call(number)?,
        slept: flags & 1 != 0,
        polled: flags & 2 != 0,
        got: flags & 4 != 0,
        enter,
        leave,
        woken,
        off,
        off_before,
        calls: r.u32(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the program counts it.
    fn step(ns: u64) -> usize {
        let log = ns.max(1).ilog2() as u64;
        let at = if log < 2 { ns } else { log * 4 + ((ns >> (log - 2)) & 3) - 4 };
        (at as usize).min(STEPS - 1)
    }

    #[test]
    fn a_time_is_known_to_within_a_quarter() {
        for ns in (0..64).chain((6..36).flat_map(|log| [1 << log, (1 << log) * 3 / 2 + 1])) {
            let back = middle(step(ns));
            assert!(back.abs_diff(ns) * 4 <= ns, "{ns} becomes {back}");
        }
    }

    #[test]
    fn quantiles_are_of_the_times_since() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        times.0[step(1000)] = 5;
        let before = times.clone();
        times.0[step(8000)] += 90;
        times.0[step(64_000)] += 10;
        let new = times.since(&before);
        assert_eq!(new.count(), 100);
        assert_eq!(new.quantile(0.5), Some(middle(step(8000))));
        assert_eq!(new.quantile(0.99), Some(middle(step(64_000))));
        assert_eq!(times.quantile(0.01), Some(middle(step(1000))));
    }
}
