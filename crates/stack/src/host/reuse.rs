//! UDP ports of which several processes have sockets (`SO_REUSEPORT`, `SO_REUSEADDR`): the companion's priority names the
//! process, for the steering program to find. See `nic/xdp/udp_ports.rs`.

use super::companion::Companion;
use crate::{
    nic::xdp::{names_slot, own_priority},
    sys::{get_option, set_option},
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether the companion's priority names this process.
#[derive(Debug, Default)]
pub(super) struct Priority(AtomicBool);

/// Sets the priority of a socket, `SO_PRIORITY`. Above 6 it takes CAP_NET_RAW or CAP_NET_ADMIN.
///
/// # Errors
/// EPERM, and those of setsockopt(2).
pub fn set_priority(socket: RawFd, priority: u32) -> io::Result<()> {
    // SAFETY: the caller keeps the descriptor open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    set_option(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority)
}

/// Sets a priority.
pub type SetPriority = fn(RawFd, u32) -> io::Result<()>;

static SET: OnceLock<SetPriority> = OnceLock::new();

/// From now on `by` sets the priorities of sockets whose ports several processes have, in place of this process itself.
pub fn set_priority_by(by: SetPriority) {
    let _ = SET.set(by);
}

fn priority(socket: &impl AsRawFd) -> io::Result<u32> {
    get_option(socket, libc::SOL_SOCKET, libc::SO_PRIORITY).map(i32::cast_unsigned)
}

/// The priority of a socket whose port other sockets may have, too.
pub(super) fn priority_if_reused(socket: &impl AsRawFd) -> Option<u32> {
    let is_on = |name| get_option(socket, libc::SOL_SOCKET, name).is_ok_and(|on| on != 0);
    let reused = is_on(libc::SO_REUSEPORT) || is_on(libc::SO_REUSEADDR);
    reused.then(|| priority(socket).ok()).flatten()
}

impl Companion {
    /// From now on the priority names this process. If it cannot, the packets that are for this socket, and not for those
    /// of other processes, come through the kernel.
    pub(super) fn name_process(&self) {
        let Ok(before) = priority(&self.socket) else { return };
        let steering = self.state.shared().iter().filter_map(|shared| shared.steering.as_ref());
        let mut named = steering.map(|steering| steering.priority(before));
        let Some(Some(first)) = named.next() else { return };
        // On another interface the process may have another slot.
        if named.all(|other| other == Some(first)) {
            let set = SET.get().copied().unwrap_or(set_priority);
            let is_set = first == before || set(self.socket.as_raw_fd(), first).is_ok();
            self.priority.0.store(is_set, Ordering::Relaxed);
        }
    }

    /// The same after another option may have changed the priority.
    pub(super) fn name_process_again(&self) {
        if self.priority.0.load(Ordering::Relaxed) {
            self.name_process();
        }
    }

    /// Other descriptors may keep the socket open.
    pub(super) fn restore_priority(&mut self) {
        if !std::mem::take(self.priority.0.get_mut()) {
            return;
        }
        if let Ok(named) = priority(&self.socket)
            && names_slot(named)
        {
            // It fails only above 6, without the capability; then the packets come through the kernel.
            let _ = set_priority(self.socket.as_raw_fd(), own_priority(named));
        }
    }

    /// `SO_PRIORITY`, of datagrams sent through the kernel.
    pub(crate) fn set_priority(&self, priority: i32) -> io::Result<()> {
        set_option(&*self.socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority)?;
        self.name_process_again();
        Ok(())
    }

    /// `SO_PRIORITY`.
    pub(crate) fn priority(&self) -> io::Result<i32> {
        Ok(own_priority(priority(&self.socket)?).cast_signed())
    }
}
