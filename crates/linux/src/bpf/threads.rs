//! The system call each thread is in or was in last. Unlike `/proc/PID/task/TID/syscall`, which says `running`,
//! this includes running threads: a spinner never sleeps. Program: `bpf/threads.bpf.c`.

use aya::include_bytes_aligned;

use super::{Programs, Record};
use crate::error::Result;
use crate::stat::ContextSwitches;

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// Its own number.
    pub tid: u32,
    /// Not asleep.
    pub running: bool,
    /// The CPU it runs on, ran on last, or will wake on.
    pub cpu: u32,
    /// Its current system call; for a running thread possibly its last.
    pub syscall: Option<Syscall>,
    /// Its context switches.
    pub switches: ContextSwitches,
    /// Its name.
    pub name: String,
}

/// A system call and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syscall {
    /// `libc::SYS_…`.
    pub number: i64,
    /// As in the registers.
    pub args: [u64; 6],
}

/// `sizeof(struct record)` in the program.
const RECORD: usize = 104;
static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/threads.bpf.o");

/// The program in the kernel, ready to run as often as wanted.
pub struct Threads(Programs);

impl Threads {
    /// Loads the program, for one process or for all; kernel threads are left out.
    ///
    /// # Errors
    /// As [`super::available`].
    pub fn load(pid: Option<u32>) -> Result<Self> {
        let only_pid = pid.unwrap_or(0).to_ne_bytes();
        let mut programs = Programs::load("threads", OBJECT, &[("only_pid", &only_pid)])?;
        programs.load_iterator("threads", "task")?;
        Ok(Threads(programs))
    }

    /// All threads now.
    pub fn now(&mut self) -> Result<Vec<Thread>> {
        Ok(self.0.run_iterator("threads")?.chunks_exact(RECORD).map(read).collect())
    }
}

fn read(record: &[u8]) -> Thread {
    let mut r = Record(record);
    let [pid, tid, running, cpu] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let number = i64::from_ne_bytes(r.bytes());
    let args = [r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64()];
    let [voluntary, involuntary] = [r.u64(), r.u64()];
    Thread {
        pid,
        tid,
        running: running != 0,
        cpu,
        // orig_ax is negative in a program that was interrupted.
        syscall: (number >= 0).then_some(Syscall { number, args }),
        switches: ContextSwitches { voluntary, involuntary },
        name: r.string::<16>(),
    }
}
