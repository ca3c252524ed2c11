//! The memberships of a file in epoll sets, for the events that concern them: it is activated, the policy has another
//! rule for it, it is closed.

use super::set::Set;
use crate::stack::file::lock;
use busypoll_policy::Settings;
use busypoll_stack::Source;
use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, Ordering},
};

/// The sets that one file is a member of. Its address in memory is the file's id in the sets.
#[derive(Debug, Default)]
pub struct Joined {
    sets: Mutex<Vec<Weak<Set>>>,
    any: AtomicBool,
    /// The policy's settings for it, once it is active.
    settings: Mutex<Option<Settings>>,
}

impl Joined {
    /// The file's id in the sets.
    pub fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Adds `set` to the memberships.
    pub fn join(&self, set: &Arc<Set>) {
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
    pub fn has(&self, settings: Settings) {
        *lock(&self.settings) = Some(settings);
        self.sets().iter().for_each(|set| set.watches(settings));
    }

    /// The sets that it is a member of.
    pub fn sets(&self) -> Vec<Arc<Set>> {
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
    pub fn hand_on(&self, heir: &Joined) {
        for set in self.sets() {
            set.rename(self.id(), heir.id());
            heir.join(&set);
        }
    }

    /// The file was activated, and its events come from `source` from now on: it moves to our half of each set.
    pub fn came_to_life(&self, source: &Arc<dyn Source>) {
        for set in self.sets() {
            set.adopt(self.id(), source);
        }
    }
}

impl Drop for Joined {
    /// The file is closed: removes it from all sets.
    fn drop(&mut self) {
        for set in self.sets() {
            set.forget(self.id());
        }
    }
}
