//! Runs a closure without privileges.

use std::thread;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Runs `work` on a thread without effective capabilities; the process keeps its own.
pub fn without_capabilities<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|s| {
        s.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            work()
        })
        .join()
        .unwrap()
    })
}
