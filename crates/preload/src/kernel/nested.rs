//! Nested epoll instances. The kernel polls for an instance by the sockets that it watches directly. So a wait on an
//! instance that watches other instances is preceded by a spin, as for poll ([`super::poll`]): on a private instance
//! that watches the outer one, whose events end the spin, and the sockets below it, by which the kernel knows the
//! queues.
//!
//! Which sockets are below is read from `/proc`, and again after a change. A list may be stale, or mixed with another
//! thread's. A wrong descriptor only costs a vain spin or a sleep: the real wait says what is ready.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use busypoll_linux::ticks::monotonic;
use libc::c_int;

use super::fd_state::{self, FdState, Kind};
use super::private_epoll::Member;
use super::sockets;
use super::watched::watched;
use crate::config::Config;
use crate::errno::Saved;

/// Outer instances whose lists are kept. Two that share a slot replace each other.
const LISTS: usize = 8;
/// Sockets below an instance; further ones are not polled for.
const MOST: usize = 255;
/// How deep instances may be nested (`EP_MAX_NESTS`).
const MAX_NESTS: u32 = 4;
/// The shortest time between two readings of a list, in nanoseconds: a reading takes some microseconds.
const MIN_REFRESH: u64 = 1_000_000;

/// Whether the program has put an instance into another.
static ANY: AtomicBool = AtomicBool::new(false);
/// Counts changes of what is watched, once any instance is nested.
static CHANGES: AtomicU32 = AtomicU32::new(0);

struct List {
    /// The instance by number and generation; 0: none.
    of: AtomicU64,
    changes: AtomicU32,
    read_at: AtomicU64,
    len: AtomicU32,
    sockets: [AtomicI32; MOST],
}

static KEPT: [List; LISTS] = [const {
    List {
        of: AtomicU64::new(0),
        changes: AtomicU32::new(0),
        read_at: AtomicU64::new(0),
        len: AtomicU32::new(0),
        sockets: [const { AtomicI32::new(-1) }; MOST],
    }
}; LISTS];

/// The set that an instance watches has changed; `added` is the new member, if there is one.
pub fn changed(epoll: c_int, added: Option<c_int>) {
    let is_epoll = |fd| fd_state::get(fd).kind() == Kind::Epoll;
    if added.is_some_and(is_epoll) && is_epoll(epoll) {
        fd_state::mark(epoll, FdState::NESTED, true);
        ANY.store(true, Ordering::Relaxed);
    }
    if ANY.load(Ordering::Relaxed) {
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
}

/// The descriptors that a wait on a nested instance spins on.
pub fn members(config: &Config, outer: c_int) -> Option<impl Iterator<Item = Member> + Clone> {
    let state = fd_state::get(outer);
    if state.kind() != Kind::Epoll
        || !state.has(FdState::NESTED)
        || state.has(FdState::SET_BY_PROGRAM)
    {
        return None;
    }
    let of = (u64::from(state.generation()) << 32) + u64::from(outer.cast_unsigned()) + 1;
    let list = KEPT.get(usize::try_from(outer).ok()? % LISTS)?;
    let changes = CHANGES.load(Ordering::Relaxed);
    let same = list.of.load(Ordering::Relaxed) == of;
    if !same || list.changes.load(Ordering::Relaxed) != changes {
        let now = monotonic();
        if now.saturating_sub(list.read_at.load(Ordering::Relaxed)) >= MIN_REFRESH {
            list.read_at.store(now, Ordering::Relaxed);
            list.changes.store(changes, Ordering::Relaxed);
            list.len.store(0, Ordering::Relaxed);
            let _errno = Saved::new();
            list.collect(config, outer, MAX_NESTS);
            list.of.store(of, Ordering::Relaxed);
        } else if !same {
            return None;
        }
    }
    let len = list.len.load(Ordering::Relaxed) as usize;
    let sockets = list.sockets.iter().take(len);
    // For a socket no event is requested: to be in the instance is enough.
    let sockets = sockets.map(|socket| (socket.load(Ordering::Relaxed), 0));
    Some([(outer, libc::POLLIN as u16)].into_iter().chain(sockets))
}

impl List {
    /// Adds the sockets that an instance watches, directly or through instances in it.
    fn collect(&self, config: &Config, epoll: c_int, nests: u32) {
        watched(epoll, |fd| {
            if fd_state::get(fd).kind() == Kind::Epoll {
                if nests > 0 {
                    self.collect(config, fd, nests - 1);
                }
            } else if sockets::lookup(config, fd).kind() == Kind::Socket {
                let at = self.len.load(Ordering::Relaxed);
                if let Some(slot) = self.sockets.get(at as usize) {
                    slot.store(fd, Ordering::Relaxed);
                    self.len.store(at + 1, Ordering::Relaxed);
                }
            }
        });
    }
}
