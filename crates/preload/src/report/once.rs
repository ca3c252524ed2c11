//! Lines that are written once by a program: by the process and its children of fork together, as a server that forks
//! for each connection would fill its log otherwise. They share a table of the lines that were written.

use std::{
    fmt, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// How many lines the table has room for. Further ones are written once by each process.
const LINES: usize = 256;

/// The keys of the lines that were written; 0: none yet.
type Table = [AtomicUsize; LINES];

static WRITTEN: OnceLock<&Table> = OnceLock::new();

/// Called at load time: children share the table from then on.
pub(super) fn share() {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let made =
        unsafe { mmap_anonymous(ptr::null_mut(), size_of::<Table>(), access, MapFlags::SHARED) };
    if let Ok(table) = made {
        // SAFETY: as large as a table, page-aligned, all zero, and never unmapped.
        let _ = WRITTEN.set(unsafe { &*table.cast::<Table>() });
    }
}

/// Whether this is the first time for `key`, which is not 0.
fn is_first(key: usize) -> bool {
    let Some(table) = WRITTEN.get() else { return true };
    for place in *table {
        match place.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(taken) if taken == key => return false,
            Err(_) => {}
        }
    }
    true
}

/// A line that is written at most once: `static NO_SUCH_DEVICE: Once = Once::new();`
pub struct Once {
    /// This process has come to it.
    done: AtomicBool,
    /// What children know it by; 0: its address.
    key: AtomicUsize,
}

impl Once {
    pub const fn new() -> Self {
        Self { done: AtomicBool::new(false), key: AtomicUsize::new(0) }
    }

    /// Writes it, unless it was written before.
    pub fn report(&self, what: fmt::Arguments<'_>) {
        if self.done.swap(true, Ordering::Relaxed) {
            return;
        }
        let key = match self.key.load(Ordering::Relaxed) {
            0 => ptr::from_ref(self).addr(),
            key => key,
        };
        if super::is_heard() && is_first(key) {
            super::line(what);
        }
    }
}

/// A [`Once`] for each of at most `N` reasons; further reasons share the last one.
pub struct OncePer<const N: usize>([Once; N]);

impl<const N: usize> OncePer<N> {
    pub const fn new() -> Self {
        Self([const { Once::new() }; N])
    }

    /// The one of this reason, known by its text's address.
    pub fn of(&self, reason: &'static str) -> &Once {
        let (last, all) = self.0.split_last().unwrap_or_else(|| unreachable!());
        // Another list may have the same reason.
        let own = reason.as_ptr().addr() ^ ptr::from_ref(self).addr().rotate_left(17);
        let is_it = |once: &&Once| {
            let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let claimed = once.key.compare_exchange(0, own, done, failed);
            claimed.map_or_else(|taken| taken == own, |_| true)
        };
        all.iter().find(is_it).unwrap_or(last)
    }
}
