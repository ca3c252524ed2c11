//! UDP ports of which several processes have sockets (`SO_REUSEPORT`, `SO_REUSEADDR`). Each process adds a mark, its
//! *membership*; the port has one entry, which any of them may change. It names the process that came first until a
//! second one comes. From then on the steering program asks the kernel for the socket that would get the packet; the
//! priority of that one names its process, which must be a member. So the kernel chooses among the sockets as it does
//! without us, also among those of other programs, and of a member that has been killed nothing is left to choose.
//!
//! No lock is needed: a member comes first and looks at the entry then, and one that leaves changes the entry first and
//! looks for members then.

use super::{
    Shared,
    bpf::{
        program::{Key, OURS, SHARED, of_slot, slot_of},
        sys,
    },
    slots::SLOTS,
    steering::CLEARED,
};
use std::{io, os::fd::OwnedFd, thread, time::Duration, time::Instant};

/// How often others may change the entry while this process does.
const TRIES: u32 = 100;

fn is_member(map: &OwnedFd, key: Key, slot: u8) -> bool {
    sys::lookup(map, &key.member(slot)).is_some()
}

/// Makes the process of `slot` a member.
///
/// # Errors
/// EEXIST: another process has the port for itself. A full map.
pub(super) fn join(map: &OwnedFd, key: Key, slot: u8, shared: &Shared) -> io::Result<()> {
    sys::update(map, &key.member(slot), &of_slot(slot))?;
    let joined = enter(map, key, slot, shared);
    if joined.is_err() {
        let _ = sys::delete(map, &key.member(slot));
    }
    joined
}

fn enter(map: &OwnedFd, key: Key, slot: u8, shared: &Shared) -> io::Result<()> {
    let give_up = Instant::now() + CLEARED;
    loop {
        match sys::insert(map, &key, &(OURS | of_slot(slot))) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
            done => return done,
        }
        let Some(value) = sys::lookup(map, &key) else { continue };
        let of = slot_of(value);
        if value & SHARED != 0 || of == slot {
            return Ok(());
        }
        if is_member(map, key, of) {
            match sys::replace(map, &key, &(value | SHARED)) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                done => return done,
            }
        } else if shared.seems_gone(of) && Instant::now() < give_up {
            // Its guard is about to notice.
            thread::sleep(Duration::from_millis(5));
        } else if sys::lookup(map, &key) == Some(value) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
    }
}

/// The process of `slot` is no member any more. By itself, or by its guard when it has ended.
pub(super) fn leave(map: &OwnedFd, key: Key, slot: u8) {
    let _ = sys::delete(map, &key.member(slot));
    let other = || (0..SLOTS as u8).find(|other| *other != slot && is_member(map, key, *other));
    for _ in 0..TRIES {
        let done = match (sys::lookup(map, &key), other()) {
            (None, None) => return,
            (Some(value), None) if value & SHARED == 0 && slot_of(value) != slot => return,
            (Some(value), Some(_)) if is_member(map, key, slot_of(value)) => return,
            (Some(_), None) => sys::delete(map, &key),
            (_, Some(other)) => sys::update(map, &key, &(OURS | SHARED | of_slot(other))),
        };
        // Without an entry the packets are the kernel's, which is right, only slower.
        if done.is_err_and(|e| e.raw_os_error() != Some(libc::ENOENT)) {
            return;
        }
    }
}
