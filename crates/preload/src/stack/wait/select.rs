//! select(2) and pselect(2) of mixed sets, as waits of poll(2). The events of each of the three sets are the kernel's
//! (fs/select.c).

use super::{
    Deadline,
    poll::{MixedSet, SURELY_ALLOWED, has_ours},
};
use crate::{
    inside::Inside,
    kernel,
    stack::{
        common::{answer, error},
        file::FILES,
        local_udp::KernelWait,
    },
};
use libc::{c_int, c_ulong, fd_set, sigset_t, timespec, timeval};
use std::{io, time::Duration};

const READ: i16 = libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLIN;
const WRITE: i16 = libc::POLLWRBAND | libc::POLLWRNORM | libc::POLLOUT;
const EXCEPT: i16 = libc::POLLPRI;

/// The poll(2) events that count for each set.
const COUNTS: [i16; 3] = [READ | libc::POLLHUP | libc::POLLERR, WRITE | libc::POLLERR, EXCEPT];
const ASKS: [i16; 3] = [READ, WRITE, EXCEPT];

/// The poll(2) events that count for a descriptor with these requested events.
fn counting(asked: i16) -> i16 {
    let sets = ASKS.iter().zip(COUNTS).filter(|(asks, _)| asked & **asks != 0);
    sets.fold(libc::POLLNVAL, |events, (_, counts)| events | counts)
}

const BITS: usize = c_ulong::BITS as usize;

/// The three sets, each null or with room for `count` descriptors: programs may have larger ones than `fd_set`.
struct Sets {
    words: [*mut c_ulong; 3],
    count: usize,
}

impl Sets {
    /// # Safety
    /// Each of `sets` is null or has room for `count` descriptors.
    unsafe fn new(count: usize, sets: [*mut fd_set; 3]) -> Sets {
        Sets { words: sets.map(<*mut fd_set>::cast), count }
    }

    /// The events that are requested for `fd`.
    fn asked(&self, fd: usize) -> i16 {
        let (word, bit) = (fd / BITS, fd % BITS);
        let is_in = |set: &*mut c_ulong| {
            // SAFETY: below `count`.
            !set.is_null() && unsafe { set.add(word).read() } >> bit & 1 != 0
        };
        let asked = self.words.iter().zip(ASKS).filter(|(set, _)| is_in(set));
        asked.fold(0, |events, (_, asks)| events | asks)
    }

    /// The descriptors in the sets, and the requested events.
    fn entries(&self) -> impl Iterator<Item = (c_int, i16)> + '_ {
        // Skips words without a bit: a program's descriptors are mostly adjacent.
        let words = (0..self.count.div_ceil(BITS)).filter(|word| {
            // SAFETY: below `count`, rounded up to a word as in the kernel.
            self.words.iter().any(|set| !set.is_null() && unsafe { set.add(*word).read() } != 0)
        });
        words
            .flat_map(|word| word * BITS..(word + 1) * BITS)
            .filter(|fd| *fd < self.count)
            .map(|fd| (fd as c_int, self.asked(fd)))
            .filter(|(_, asked)| *asked != 0)
    }

    /// Empties all three.
    fn clear(&self) {
        for set in self.words.iter().filter(|set| !set.is_null()) {
            for word in 0..self.count.div_ceil(BITS) {
                // SAFETY: below `count`, rounded up.
                unsafe { set.add(word).write(0) };
            }
        }
    }

    /// Sets the bit of `fd` in the sets where it was requested and `events` count; returns in how many.
    fn put(&self, fd: c_int, asked: i16, events: i16) -> usize {
        let fd = fd as usize;
        let mut put = 0;
        for ((set, asks), counts) in self.words.iter().zip(ASKS).zip(COUNTS) {
            if asked & asks != 0 && events & counts != 0 {
                // SAFETY: requested, so not null and below `count`.
                unsafe { *set.add(fd / BITS) |= 1 << (fd % BITS) };
                put += 1;
            }
        }
        put
    }
}

/// # Safety
/// That of select(2).
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let count = looked_at(count);
    // SAFETY: null or valid, by the caller's contract.
    let given = unsafe { timeout.as_ref() }.copied();
    let deadline = || match given {
        None => Ok(Deadline::after(None)),
        Some(given) => span(given).map(|span| Deadline::after(Some(span))),
    };
    let left = |deadline: Deadline| {
        // Linux writes back the remaining time.
        // SAFETY: null or valid, by the caller's contract.
        if let (Some(timeout), Some(left)) = (unsafe { timeout.as_mut() }, deadline.left()) {
            timeout.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
            timeout.tv_usec = left.subsec_micros().into();
        }
    };
    let held = &mut Vec::new();
    // SAFETY: the caller's contract.
    unsafe { wait(count, [read, write, except], deadline, left, std::ptr::null(), held) }
        // SAFETY: the caller's contract.
        .unwrap_or_else(|| unsafe { kernel::select(count, read, write, except, timeout) })
}

/// # Safety
/// That of pselect(2).
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let count = looked_at(count);
    // SAFETY: the caller's contract.
    let deadline = || unsafe { Deadline::from_timespec(timeout) };
    let held = &mut Vec::new();
    // SAFETY: the caller's contract.
    unsafe { wait(count, [read, write, except], deadline, |_| {}, mask, held) }
        // SAFETY: the caller's contract.
        .unwrap_or_else(|| unsafe { kernel::pselect(count, read, write, except, timeout, mask) })
}

/// A timeval; its microseconds may exceed a second, as in the kernel.
fn span(given: timeval) -> io::Result<Duration> {
    let seconds = u64::try_from(given.tv_sec).map_err(|_| error(libc::EINVAL))?;
    let micros = u64::try_from(given.tv_usec).map_err(|_| error(libc::EINVAL))?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
}

/// How many of `count` descriptors are checked. The kernel checks no more than its table has room for
/// (`core_sys_select`), so a program may pass any count, with sets only as large as its descriptors need. It must not
/// notice that the library's own descriptors, at high numbers, have enlarged that table.
fn looked_at(count: c_int) -> c_int {
    let surely = SURELY_ALLOWED as c_int;
    if count <= surely || FILES.end() == 0 {
        return count;
    }
    let Some(_inside) = Inside::enter() else { return count };
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let highest = numbers.filter(|fd| !FILES.is_internal(*fd)).max().unwrap_or(0);
    count.min(surely.max(highest + 1))
}

/// `None`: no descriptor in the sets is ours.
///
/// # Safety
/// As select(2): each set is null or has room for `count` descriptors; `mask` is null or valid.
unsafe fn wait(
    count: c_int,
    sets: [*mut fd_set; 3],
    deadline: impl FnOnce() -> io::Result<Deadline>,
    left: impl FnOnce(Deadline),
    mask: *const sigset_t,
    kernel_waits: &mut Vec<KernelWait>,
) -> Option<c_int> {
    let count = usize::try_from(count).ok()?;
    // SAFETY: the caller's contract.
    let sets = unsafe { Sets::new(count, sets) };
    if !has_ours(sets.entries().map(|(fd, _)| fd)) {
        return None;
    }
    let inside = Inside::enter()?;
    let entries: Vec<(c_int, i16)> = sets.entries().collect();
    let deadline = deadline();
    let waits = deadline.as_ref().is_ok_and(Deadline::waits);
    let mut mixed = MixedSet::of(entries.iter().copied(), Some(counting), waits, kernel_waits)?;
    // SAFETY: the caller's contract.
    let mask = unsafe { mask.as_ref() };
    let result = match deadline {
        Ok(deadline) => loop {
            let result = mixed.wait(&inside, deadline, mask);
            if result.is_err() || !mixed.has_moved() {
                left(deadline);
                break result;
            }
            let asked = entries.iter().copied();
            let Some(anew) = MixedSet::of(asked, Some(counting), waits, kernel_waits) else {
                // The caller waits as long as is left.
                left(deadline);
                return None;
            };
            std::mem::replace(&mut mixed, anew).recycle();
        },
        Err(error) => Err(error),
    };
    let result = result.and_then(|()| {
        if mixed.found().any(|(_, events)| events & libc::POLLNVAL != 0) {
            return Err(error(libc::EBADF));
        }
        sets.clear();
        let found = mixed.found().filter_map(|(at, events)| {
            let (fd, asked) = *entries.get(at)?;
            Some(sets.put(fd, asked, events))
        });
        Ok(found.sum())
    });
    mixed.recycle();
    drop(entries);
    Some(answer(result))
}
