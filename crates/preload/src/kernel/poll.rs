//! Waiting in poll and select: first a spin on a private epoll instance ([`private_epoll`]), then the real call with
//! the remaining time. The real call alone says what is ready, so its results are exact. Where the spin has found an
//! event, the real call comes with a zero timeout first: it then need not add the thread to the sockets' wait queues
//! and remove it again.
//!
//! The spin begins only where the program is ready to wait. It ends early for a signal, with `EINTR` as the real call
//! would, and applies the signal mask. Unlike the real call it also ends when the process was stopped and continued:
//! then the wait goes on, if no handler has run. Signals are blocked between spin and sleep, so that one that comes
//! there ends the sleep.

use std::ptr;

use busypoll_linux::ticks::monotonic;
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::active;
use super::private_epoll::{self, Member};
use super::timeout::{SECOND, exact, millis, nanos};
use crate::errno::{self, Saved};
use crate::signals::{self, BlockedSignals};
use crate::spin_policy::{self, Wait};
use crate::{inside, real};

/// What precedes the real call.
pub(super) enum Spin {
    /// Nothing, as no socket of the set polls.
    None,
    /// A wait, to be ended after the real call.
    Wait {
        wait: Wait,
        /// Nanoseconds of the wait that are over.
        spent: u64,
        /// Whether some descriptor seems to be ready.
        found: bool,
        /// How many signals the thread had handled before the spin; `None` if it has not spun.
        handled: Option<u32>,
    },
    /// A signal ended the spin, and ends the call.
    Interrupted,
}

impl Spin {
    /// The rest of a timeout.
    fn left(&self, limit: u64) -> timespec {
        let spent = if let Spin::Wait { spent, .. } = self { *spent } else { 0 };
        let left = limit.saturating_sub(spent);
        timespec { tv_sec: (left / SECOND).cast_signed(), tv_nsec: (left % SECOND).cast_signed() }
    }

    /// The result of the real call with a zero timeout, unless that is 0.
    pub(super) fn check_now(&self, real: impl FnOnce() -> c_int) -> Option<c_int> {
        let Spin::Wait { found: true, .. } = self else { return None };
        Some(real()).filter(|result| *result != 0)
    }

    /// The real call, with the rest of the timeout and a mask: the caller's, or the program's while signals are
    /// blocked.
    pub(super) fn sleep(
        self,
        limit: Option<u64>,
        mask: *const sigset_t,
        real: impl FnOnce(*const timespec, *const sigset_t) -> c_int,
    ) -> c_int {
        let left = limit.map(|limit| self.left(limit));
        let left = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        let put_off = match self {
            Spin::Interrupted => Err(()),
            Spin::Wait { handled: Some(handled), .. } => BlockedSignals::since(handled),
            _ => Ok(None),
        };
        let result = match &put_off {
            Ok(Some(put_off)) if mask.is_null() => real(left, put_off.mask()),
            Ok(_) => real(left, mask),
            Err(()) => {
                errno::set(libc::EINTR);
                -1
            }
        };
        let _errno = Saved::new();
        drop(put_off);
        self.end(result)
    }

    /// After the real call.
    pub(super) fn end(self, result: c_int) -> c_int {
        if let Spin::Wait { wait, .. } = self {
            wait.end();
        }
        result
    }
}

/// Spins on a set of descriptors for at most `limit` nanoseconds, with `mask` in force if it is not null.
pub(super) fn spin(
    members: impl Iterator<Item = Member> + Clone,
    limit: Option<u64>,
    mask: *const sigset_t,
) -> Spin {
    let Some(config) = active() else { return Spin::None };
    if limit == Some(0) || spin_policy::backs_off() || inside::is_inside() {
        return Spin::None;
    }
    let handled = signals::handled();
    let kept = Saved::new();
    let Some(set) = private_epoll::find(config, members, limit) else { return Spin::None };
    let wait = Wait::begin(set.micros);
    if !wait.spins() {
        return Spin::Wait { wait, spent: 0, found: false, handled: None };
    }
    // The program's timeout is measured by its own clock.
    let began = monotonic();
    let time = Spin::None.left(u64::from(set.micros) * 1024);
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: one event, a time and a mask that outlive the call.
    let result = unsafe { real::epoll_pwait2(set.epoll, &raw mut event, 1, &raw const time, mask) };
    let interrupted = result < 0 && errno::get() == libc::EINTR;
    if interrupted && (signals::handled() != handled || signals::any_bypasses_us()) {
        wait.end();
        drop(kept);
        return Spin::Interrupted;
    }
    let spent = monotonic().saturating_sub(began);
    Spin::Wait { wait, spent, found: result > 0, handled: Some(handled) }
}

/// # Safety
/// That of poll(2): `fds` points to `count` entries.
unsafe fn members(fds: *const pollfd, count: nfds_t) -> impl Iterator<Item = Member> + Clone {
    let fds = if fds.is_null() { ptr::NonNull::dangling().as_ptr() } else { fds.cast_mut() };
    // SAFETY: the caller's contract; with no entries nothing is read.
    let fds = unsafe { std::slice::from_raw_parts(fds, usize::try_from(count).unwrap_or(0)) };
    fds.iter().filter(|f| f.fd >= 0).map(|f| (f.fd, f.events.cast_unsigned()))
}

/// # Safety
/// That of poll(2).
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let limit = millis(timeout);
    // SAFETY: the caller's contract.
    unsafe {
        let spin = spin_poll(fds, count, limit, ptr::null());
        if let Some(result) = spin.check_now(|| real::poll(fds, count, 0)) {
            return spin.end(result);
        }
        if let Spin::None = spin {
            return real::poll(fds, count, timeout);
        }
        spin.sleep(limit, ptr::null(), |left, mask| real::ppoll(fds, count, left, mask))
    }
}

/// # Safety
/// That of ppoll(2).
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let limit = timeout.as_ref().map(exact);
        let spin = spin_poll(fds, count, limit, mask);
        if let Some(result) = spin.check_now(|| real::poll(fds, count, 0)) {
            return spin.end(result);
        }
        if let Spin::None = spin {
            return real::ppoll(fds, count, timeout, mask);
        }
        spin.sleep(limit, mask, |left, mask| real::ppoll(fds, count, left, mask))
    }
}

/// # Safety
/// That of ppoll(2), but for a bad pointer where entries should be.
unsafe fn spin_poll(
    fds: *const pollfd,
    count: nfds_t,
    limit: Option<u64>,
    mask: *const sigset_t,
) -> Spin {
    // The kernel refuses these.
    if fds.is_null() || count > 65_536 {
        return Spin::None;
    }
    // SAFETY: the caller's contract.
    spin(unsafe { members(fds, count) }, limit, mask)
}

/// # Safety
/// That of poll(2), in an array of `room` bytes.
pub unsafe fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    // SAFETY: the caller's contract; the real one aborts the program where `count` exceeds `room`.
    unsafe {
        if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
            return real::__poll_chk(fds, count, timeout, room);
        }
        poll(fds, count, timeout)
    }
}

/// # Safety
/// That of ppoll(2), in an array of `room` bytes.
pub unsafe fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: as in `__poll_chk`.
    unsafe {
        if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
            return real::__ppoll_chk(fds, count, timeout, mask, room);
        }
        ppoll(fds, count, timeout, mask)
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
    // SAFETY: the caller's contract.
    unsafe {
        let limit = timeout.as_ref().map(|t| nanos(t.tv_sec, t.tv_usec.saturating_mul(1000)));
        let sets = [read, write, except];
        // select(2) writes back the remaining time only for a finite timeout above zero.
        let began = limit.filter(|limit| *limit > 0).map(|_| monotonic());
        let spin = spin(selected(count, sets), limit, ptr::null());
        if let Spin::None = spin {
            return real::select(count, read, write, except, timeout);
        }
        let result = match spin.check_now(|| select_now(count, sets)) {
            Some(result) => spin.end(result),
            None => spin.sleep(limit, ptr::null(), |left, mask| {
                real::pselect(count, read, write, except, left, mask)
            }),
        };
        // As Linux does: writes back the remaining time.
        if let (Some(began), Some(limit), Some(timeout)) = (began, limit, timeout.as_mut()) {
            let left = limit.saturating_sub(monotonic().saturating_sub(began));
            let micros = (left % SECOND / 1000).cast_signed();
            *timeout = timeval { tv_sec: (left / SECOND).cast_signed(), tv_usec: micros };
        }
        result
    }
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
    // SAFETY: the caller's contract.
    unsafe {
        let limit = timeout.as_ref().map(exact);
        let sets = [read, write, except];
        let spin = spin(selected(count, sets), limit, mask);
        if let Some(result) = spin.check_now(|| select_now(count, sets)) {
            return spin.end(result);
        }
        if let Spin::None = spin {
            return real::pselect(count, read, write, except, timeout, mask);
        }
        spin.sleep(limit, mask, |left, mask| real::pselect(count, read, write, except, left, mask))
    }
}

/// The events that select waits for, as poll has them: the kernel's `POLLIN_SET`, `POLLOUT_SET` and `POLLEX_SET`
/// (`fs/select.c`).
///
/// # Safety
/// The sets are null or have a bit for each descriptor below `count`.
unsafe fn selected(count: c_int, sets: [*mut fd_set; 3]) -> impl Iterator<Item = Member> + Clone {
    const EVENTS: [c_int; 3] = [
        (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND) as c_int,
        (libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND) as c_int,
        libc::POLLPRI as c_int,
    ];
    // The kernel looks at no more descriptors than its table has, so a program may pass any count. Descriptors beyond
    // FD_SETSIZE are not spun on; the real call still checks them.
    let count = count.min(libc::FD_SETSIZE as c_int);
    let words = usize::try_from(count).unwrap_or(0).div_ceil(64);
    (0..words).flat_map(move |index| {
        // SAFETY: the sets are arrays of words that hold `count` bits.
        let bits = sets
            .map(|set| unsafe { if set.is_null() { 0 } else { *set.cast::<u64>().add(index) } });
        let within = count - index as c_int * 64;
        let mask = if within >= 64 { u64::MAX } else { (1 << within) - 1 };
        let mut any = (bits[0] | bits[1] | bits[2]) & mask;
        std::iter::from_fn(move || {
            if any == 0 {
                return None;
            }
            let bit = any.trailing_zeros();
            any &= any - 1;
            let mut events = 0;
            for (set, wanted) in bits.iter().zip(EVENTS) {
                if set >> bit & 1 == 1 {
                    events |= wanted;
                }
            }
            Some((index as c_int * 64 + bit.cast_signed(), events as u16))
        })
    })
}

/// Words of an `fd_set`.
const WORDS: usize = libc::FD_SETSIZE / 64;

/// select(2) with a zero timeout, which leaves the sets unchanged if nothing is ready.
///
/// # Safety
/// That of [`selected`].
unsafe fn select_now(count: c_int, sets: [*mut fd_set; 3]) -> c_int {
    let words = usize::try_from(count).unwrap_or(0).div_ceil(64);
    // There may be no memory beyond, as in `selected`.
    if words > WORDS {
        return 0;
    }
    let sets = sets.map(<*mut fd_set>::cast::<u64>);
    // Leaves out the words at the end that are zero in all sets. The kernel would copy and scan them up to the end of
    // its table, which the private instances, at high numbers, have stretched.
    // SAFETY: as in `selected`.
    let any = |word: &usize| unsafe { sets.iter().any(|s| !s.is_null() && *s.add(*word) != 0) };
    let words = (0..words).rev().find(any).map_or(0, |last| last + 1);
    let mut kept = [[0; WORDS]; 3];
    for (set, kept) in sets.into_iter().zip(&mut kept).filter(|(set, _)| !set.is_null()) {
        // SAFETY: both hold `words` words.
        unsafe { set.copy_to_nonoverlapping(kept.as_mut_ptr(), words) };
    }
    let mut no_time = timeval { tv_sec: 0, tv_usec: 0 };
    let [read, write, except] = sets.map(<*mut u64>::cast);
    // SAFETY: the caller's contract; no set bit is left out.
    let result = unsafe {
        real::select(count.min(words as c_int * 64), read, write, except, &raw mut no_time)
    };
    if result == 0 {
        for (set, kept) in sets.into_iter().zip(&kept).filter(|(set, _)| !set.is_null()) {
            // SAFETY: as above.
            unsafe { set.copy_from_nonoverlapping(kept.as_ptr(), words) };
        }
    }
    result
}
