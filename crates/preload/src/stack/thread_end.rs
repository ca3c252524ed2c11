//! The end of a thread: what the library holds for it is released.

use crate::inside::{Inside, cancel};
use libc::c_void;
use std::{
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

local! {
    static WATCHED: Cell<bool> = Cell::new(false);
}

/// One more than the key whose destructor runs when a thread ends; 0: there is none.
static KEY: AtomicU32 = AtomicU32::new(0);

static RELEASE: OnceLock<fn()> = OnceLock::new();

/// The values of this many keys are in the thread's own memory (`PTHREAD_KEY_2NDLEVEL_SIZE`); for more the C library
/// calls the program's allocator.
const KEYS_IN_THREAD: u32 = 32;

/// Called when the library is loaded, so that its key is among the first.
/// `release` frees what the modules above hold for a thread; it runs inside.
pub fn prepare(release: fn()) {
    let _ = RELEASE.set(release);
    let mut key = 0;
    // SAFETY: a function that lives as long as the library, which is never unloaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
    if made == 0 && key < KEYS_IN_THREAD {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// The calling thread holds something that must be released when it ends.
#[inline]
pub fn watch_thread_end() {
    if !WATCHED.get() {
        watch();
    }
}

#[cold]
fn watch() {
    let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) else { return };
    WATCHED.set(true);
    // SAFETY: a key of ours, one of the first; any value but null will do.
    unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
}

/// Releases what the library holds for a thread. If the thread makes further calls, this runs once more.
extern "C" fn thread_ends(_: *mut c_void) {
    WATCHED.set(false);
    let inside = Inside::enter();
    cancel::unregister_sleeper();
    if inside.is_some() {
        RELEASE.get().into_iter().for_each(|release| release());
    }
}

/// The calling thread is about to sleep in the stack for the first time.
pub fn first_sleep() {
    watch_thread_end();
    // A thread is in the list until it ends, so its end must be noticed.
    if WATCHED.get() {
        cancel::register_sleeper();
    }
}
