//! Memory pressure, for a program whose allocator can report it before it fails. Under pressure, everything that can
//! wait or be refused is: a packet is dropped and will be retransmitted, a connection buffers only what keeps it
//! moving, and a peer can start nothing new. Without such an allocator there is never pressure.

use std::sync::{
    OnceLock,
    atomic::{AtomicU8, Ordering},
};

/// The level of memory pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// No pressure.
    Plenty,
    /// A reserve is in use.
    Short,
    /// The rest of the reserve is for allocations that cannot be refused.
    Out,
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
static RECHECK: OnceLock<fn() -> Level> = OnceLock::new();

/// Sets the level. An allocator may call it.
pub fn set(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// `recheck` is called to check whether pressure continues. The first function given stays.
pub fn set_recheck(recheck: fn() -> Level) {
    let _ = RECHECK.set(recheck);
}

/// Whether memory pressure is at `level` or above.
#[inline]
pub fn is(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) != 0 && now() >= level
}

#[cold]
fn now() -> Level {
    RECHECK.get().map_or(Level::Plenty, |recheck| recheck())
}
