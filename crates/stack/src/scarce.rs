//! Whether memory is scarce: for a program whose allocator can tell before it fails. What can wait or be refused is then: a
//! packet is dropped and comes again, a connection buffers no more than keeps it moving, and nothing of a peer's making
//! begins. Without such an allocator it never is.

use std::sync::{
    OnceLock,
    atomic::{AtomicU8, Ordering},
};

/// How scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Not at all.
    Plenty,
    /// A reserve is in use.
    Short,
    /// What is left of it is for what cannot be refused.
    Out,
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
static AGAIN: OnceLock<fn() -> Level> = OnceLock::new();

/// From now on it is so. May be called by an allocator.
pub fn set(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Has `again` asked, where memory was scarce, whether it still is. The first one given stays.
pub fn ask(again: fn() -> Level) {
    let _ = AGAIN.set(again);
}

/// Whether it is, at this level or beyond it.
#[inline]
pub fn is(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) != 0 && now() >= level
}

#[cold]
fn now() -> Level {
    AGAIN.get().map_or(Level::Plenty, |again| again())
}
