//! The process, group or thread that gets SIGURG when urgent data is announced (`F_SETOWN` of fcntl(2)).

use super::stream::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

/// The receiver of SIGURG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// `F_OWNER_PID`.
    Process(i32),
    /// `F_OWNER_PGRP`.
    Group(i32),
    /// `F_OWNER_TID`.
    Thread(i32),
}

/// The owner in one atomic: it is read under the flow's lock.
#[derive(Debug, Default)]
pub(super) struct Word(AtomicU64);

impl Word {
    fn set(&self, owner: Option<Owner>) {
        let (kind, id) = match owner {
            None => (0, 0),
            Some(Owner::Process(id)) => (1, id),
            Some(Owner::Group(id)) => (2, id),
            Some(Owner::Thread(id)) => (3, id),
        };
        self.0.store(kind << 32 | u64::from(id.cast_unsigned()), Ordering::Relaxed);
    }

    /// Sends the signal (`send_sigurg`).
    #[cold]
    pub(super) fn signal(&self) {
        let word = self.0.load(Ordering::Relaxed);
        let id = (word as u32).cast_signed();
        if id <= 0 {
            return;
        }
        // SAFETY: plain system calls. They fail without effect if the owner is gone or may not be signalled.
        unsafe {
            match word >> 32 {
                1 => libc::kill(id, libc::SIGURG),
                2 => libc::killpg(id, libc::SIGURG),
                _ => libc::syscall(libc::SYS_tkill, id, libc::SIGURG) as i32,
            };
        }
    }
}

impl TcpStream {
    /// Sets the owner, which gets SIGURG from now on.
    #[doc(hidden)]
    pub fn set_owner(&self, owner: Option<Owner>) {
        self.0.endpoint.owner.set(owner);
    }
}
