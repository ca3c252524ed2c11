//! What a receiver's own busy poll finds for it: a little data, with none left unread before it, goes from the
//! connection to the receiver's stack under the lock that the segment has taken anyway. The way over the socket
//! takes that lock again, tells all who watch and reads the clock once more, all of it between a request and its
//! response.

use crate::napi::{Direct, Driver, Pass};
use std::{any::Any, io::IoSliceMut};

/// The most that goes this way, bytes.
const MOST: usize = 256;

/// Room for it.
pub(super) struct Find {
    bytes: [u8; MOST],
    /// How much of that the receiver has asked for, and how much is filled.
    room: usize,
    filled: usize,
}

impl Direct for Find {
    #[inline]
    fn is_filled(&self) -> bool {
        self.filled > 0
    }
}

impl Find {
    /// For a receiver with room for as much as `into` takes.
    #[inline]
    pub(super) fn new(into: &[IoSliceMut<'_>]) -> Find {
        let room = into.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        Find { bytes: [0; MOST], room: room.min(MOST), filled: 0 }
    }

    /// That of the thread that makes this pass, if it polls under `name` and has nothing yet.
    #[inline]
    pub(super) fn of<'p>(pass: &'p mut Pass<'_>, name: usize) -> Option<&'p mut Find> {
        if pass.driver != Driver::BusyPoll(name) {
            return None;
        }
        let direct: &mut dyn Any = &mut **pass.direct.as_mut()?;
        direct.downcast_mut().filter(|find: &&mut Find| find.filled == 0)
    }

    /// Puts `data` in, if there is room for all of it.
    #[inline]
    pub(super) fn fill(&mut self, data: &[u8]) -> bool {
        let fits = data.len() <= self.room;
        if fits && let Some(room) = self.bytes.get_mut(..data.len()) {
            room.copy_from_slice(data);
            self.filled = data.len();
        }
        fits
    }

    /// Moves what was found into `into`, which has room for it.
    #[inline]
    pub(super) fn take(&mut self, into: &mut [IoSliceMut<'_>]) -> Option<usize> {
        let len = std::mem::take(&mut self.filled);
        let mut rest = self.bytes.get(..len).filter(|found| !found.is_empty())?;
        for piece in into {
            let (here, more) = rest.split_at(rest.len().min(piece.len()));
            piece[..here.len()].copy_from_slice(here);
            rest = more;
        }
        Some(len)
    }
}
