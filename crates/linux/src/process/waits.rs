//! How the threads of a process wait, by the system call each is in.

use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its wait at this moment.
    pub wait: Wait,
}

/// What a thread does: how it waits, or that it runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// It runs, or is about to.
    Running,
    /// epoll_wait, epoll_pwait, epoll_pwait2.
    Epoll {
        /// The instance.
        fd: RawFd,
        /// The call does not block: its timeout is 0.
        nonblock: bool,
    },
    /// poll, ppoll, select or pselect.
    Poll {
        /// The descriptors; empty if they cannot be read.
        fds: Vec<RawFd>,
    },
    /// read, recv and their variants, on a socket or another file.
    Receive {
        /// The descriptor.
        fd: RawFd,
        /// The call does not block: by a flag of its own, or the descriptor's O_NONBLOCK.
        nonblock: bool,
    },
    /// accept, accept4.
    Accept {
        /// The listener.
        fd: RawFd,
    },
    /// io_uring_enter.
    Uring {
        /// The ring.
        fd: RawFd,
    },
    /// Another system call, by its number.
    Other(i64),
    /// No permission, or the thread has just ended.
    Unknown,
}

/// At most this many descriptors of a poll are read.
const MOST_POLLED: usize = 65_536;

pub(super) fn of(process: &Path) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(process.join("task"))? {
        let entry = entry?;
        let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let wait = fs::read_to_string(entry.path().join("syscall"))
            .map_or(Wait::Unknown, |line| wait(&line, process));
        threads.push(Thread { tid, name: name.trim_end().to_owned(), wait });
    }
    threads.sort_unstable_by_key(|thread| thread.tid);
    Ok(threads)
}

/// `NUMBER 0xARG0 … 0xARG5 0xSP 0xPC`, `-1 0xSP 0xPC`, or `running`.
fn wait(line: &str, process: &Path) -> Wait {
    // A kernel thread was never in user mode: its stack pointer and program counter are zero.
    if line.trim_end().ends_with(" 0x0 0x0") {
        return Wait::Other(-1);
    }
    let mut words = line.split_whitespace();
    let number = match words.next() {
        Some("running") => return Wait::Running,
        Some(word) => word.parse::<i64>().unwrap_or(-1),
        None => return Wait::Unknown,
    };
    let mut args = [0_u64; 6];
    for (arg, word) in args.iter_mut().zip(words) {
        *arg =
            word.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    }
    of_call(process, number, &args)
}

/// The wait of a thread of a process (`/proc/PID`) that is in this system call.
pub(super) fn of_call(process: &Path, number: i64, args: &[u64; 6]) -> Wait {
    let [first, second, third, fourth, _, sixth] = *args;
    // The kernel uses only the lower half.
    let fd = first as u32 as RawFd;
    match number {
        libc::SYS_epoll_pwait => Wait::Epoll { fd, nonblock: fourth as u32 == 0 },
        libc::SYS_epoll_pwait2 => Wait::Epoll { fd, nonblock: is_zero_time(process, fourth) },
        libc::SYS_ppoll => Wait::Poll { fds: polled(process, first, second) },
        libc::SYS_pselect6 => Wait::Poll { fds: selected(process, first, second, third) },
        libc::SYS_read | libc::SYS_readv => receive(process, fd, false),
        libc::SYS_preadv2 => receive(process, fd, has(sixth, libc::RWF_NOWAIT)),
        libc::SYS_recvfrom | libc::SYS_recvmmsg => {
            receive(process, fd, has(fourth, libc::MSG_DONTWAIT))
        }
        libc::SYS_recvmsg => receive(process, fd, has(third, libc::MSG_DONTWAIT)),
        libc::SYS_accept | libc::SYS_accept4 => Wait::Accept { fd },
        libc::SYS_io_uring_enter => Wait::Uring { fd },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => Wait::Epoll { fd, nonblock: fourth as u32 == 0 },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => Wait::Poll { fds: polled(process, first, second) },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => Wait::Poll { fds: selected(process, first, second, third) },
        number => Wait::Other(number),
    }
}

fn has(flags: u64, flag: libc::c_int) -> bool {
    flags & u64::from(flag.unsigned_abs()) != 0
}

/// Whether a `struct timespec` in the process's memory is 0. A null pointer is not: it means no limit.
fn is_zero_time(process: &Path, at: u64) -> bool {
    let bytes = if at == 0 { Vec::new() } else { memory(process, at, 16) };
    !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0)
}

fn receive(process: &Path, fd: RawFd, by_call: bool) -> Wait {
    Wait::Receive { fd, nonblock: by_call || is_nonblocking(process, fd) }
}

/// Whether a descriptor of the process has O_NONBLOCK; false if that may not be read.
fn is_nonblocking(process: &Path, fd: RawFd) -> bool {
    let info = fs::read_to_string(process.join("fdinfo").join(fd.to_string())).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| has(flags, libc::O_NONBLOCK))
}

/// The descriptors of an array of `struct pollfd` in the process's memory; negative ones are ignored.
fn polled(process: &Path, array: u64, count: u64) -> Vec<RawFd> {
    let count = usize::try_from(count).unwrap_or(MOST_POLLED).min(MOST_POLLED);
    let bytes = memory(process, array, count * size_of::<libc::pollfd>());
    let fd = |entry: &[u8]| Some(RawFd::from_ne_bytes(*entry.first_chunk()?));
    bytes.chunks_exact(size_of::<libc::pollfd>()).filter_map(fd).filter(|fd| *fd >= 0).collect()
}

/// The descriptors in the read and write sets of select.
fn selected(process: &Path, count: u64, read: u64, write: u64) -> Vec<RawFd> {
    let count = usize::try_from(count).unwrap_or(MOST_POLLED).min(MOST_POLLED);
    let bytes = count.div_ceil(64) * 8;
    let mut both = vec![0_u8; bytes];
    for set in [read, write].into_iter().filter(|set| *set != 0) {
        for (byte, more) in both.iter_mut().zip(memory(process, set, bytes)) {
            *byte |= more;
        }
    }
    let is_in = |fd: &usize| both.get(fd / 8).is_some_and(|byte| byte & (1 << (fd % 8)) != 0);
    (0..count).filter(is_in).map(|fd| fd as RawFd).collect()
}

/// Reads the process's memory; empty if that is not permitted.
fn memory(process: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = File::open(process.join("mem")).and_then(|f| f.read_exact_at(&mut bytes, at));
    if read.is_ok() { bytes } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let nowhere = Path::new("/nonexistent");
        let [read, peek] = [(libc::SYS_recvfrom, 0), (libc::SYS_recvmsg, libc::MSG_DONTWAIT)]
            .map(|(call, flags)| format!("{call} 0x5 0x7f {flags:#x} 0x0 0x0 0x0 0x7f 0x7f"));
        let epoll = format!("{} 0x5 0x7f 0x80 0xffffffff 0x0 0x8 0x7f 0x7f", libc::SYS_epoll_pwait);
        let spin = epoll.replace("0xffffffff", "0x0");
        for (line, want) in [
            (epoll.as_str(), Wait::Epoll { fd: 5, nonblock: false }),
            (spin.as_str(), Wait::Epoll { fd: 5, nonblock: true }),
            (read.as_str(), Wait::Receive { fd: 5, nonblock: false }),
            (peek.as_str(), Wait::Receive { fd: 5, nonblock: true }),
            ("running", Wait::Running),
            ("-1 0x7ffe 0x7f", Wait::Other(-1)),
            ("0 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0\n", Wait::Other(-1)),
            ("9999 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8", Wait::Other(9999)),
            ("", Wait::Unknown),
        ] {
            assert_eq!(wait(line, nowhere), want, "{line}");
        }
    }
}
