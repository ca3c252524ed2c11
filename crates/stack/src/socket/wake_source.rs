//! A source of one event: something has changed, and all waits for it begin anew.

use super::{
    readiness::{Events, WaitQueue, Watch, notify_watchers},
    source::Source,
};
use crate::{
    inet::Context,
    napi::{NapiId, WakeList},
    sync::lock,
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

/// Readable once it was fired.
#[derive(Debug, Default)]
pub struct WakeSource {
    fired: AtomicBool,
    waits: Mutex<WaitQueue>,
}

impl WakeSource {
    /// Ends all waits for it, present and future.
    pub fn fire(&self) {
        self.fired.store(true, Ordering::SeqCst);
        let watchers = lock(&self.waits).watchers();
        let mut wake = WakeList::default();
        notify_watchers(watchers.as_ref(), Events::READABLE, None, &mut wake);
        wake.wake_all();
    }
}

impl Source for WakeSource {
    fn readiness(&self) -> Events {
        match self.fired.load(Ordering::SeqCst) {
            true => Events::READABLE,
            false => Events::default(),
        }
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn napi(&self) -> Option<NapiId> {
        None
    }

    fn context(&self) -> Option<Arc<Context>> {
        None
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        lock(&self.waits).add_watcher(watch);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        lock(&self.waits).remove_watcher(watch);
    }
}
