//! The memberships of a file in epoll sets, for the events that concern them: it is activated, the policy has another
//! rule for it, it is closed.

use super::{EpollSet, FindFd};
use crate::stack::common::lock;
use busypoll_policy::Settings;
use busypoll_stack::Source;
use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, Ordering},
};

/// The sets that one file is a member of. Its address in memory is the file's id in the sets.
#[derive(Debug, Default)]
pub struct Memberships {
    sets: Mutex<Vec<Weak<EpollSet>>>,
    any: AtomicBool,
    /// The policy's settings for it, once it is active.
    settings: Mutex<Option<Settings>>,
}

impl Memberships {
    /// The file's id in the sets.
    pub fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Adds `set` to the memberships.
    pub fn add(&self, set: &Arc<EpollSet>) {
        let mut sets = lock(&self.sets);
        sets.retain(|known| {
            known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), &raw const **set)
        });
        sets.push(Arc::downgrade(set));
        self.any.store(true, Ordering::Release);
        drop(sets);
        let settings = *lock(&self.settings);
        settings.into_iter().for_each(|settings| set.watches(settings));
    }

    /// The policy's settings for it have changed: its sets poll accordingly.
    pub fn set_settings(&self, settings: Settings) {
        *lock(&self.settings) = Some(settings);
        self.sets().iter().for_each(|set| set.watches(settings));
    }

    /// The sets that it is a member of.
    pub fn sets(&self) -> Vec<Arc<EpollSet>> {
        match self.any.load(Ordering::Acquire) {
            true => lock(&self.sets).iter().filter_map(Weak::upgrade).collect(),
            false => Vec::new(),
        }
    }

    /// Whether a thread waits in one of those sets.
    pub fn is_waited_for(&self) -> bool {
        self.sets().iter().any(|set| set.is_waited_for())
    }

    /// Another file replaces this one (deactivated): it takes over the memberships, with its companion.
    pub fn transfer_to(&self, successor: &Memberships) {
        for set in self.sets() {
            set.replace_file(self.id(), successor.id());
            successor.add(&set);
        }
    }

    /// The file was activated, and its events come from `source` from now on: it moves to our half of each set.
    pub fn activated(&self, source: &Arc<dyn Source>, find: FindFd) {
        for set in self.sets() {
            set.activate_member(self.id(), source, find);
        }
    }
}

impl Drop for Memberships {
    /// The file is closed: removes it from all sets.
    fn drop(&mut self) {
        for set in self.sets() {
            set.forget(self.id());
        }
    }
}
