//! Nested sets.

use super::EpollSet;
use crate::{real, stack::common::lock};
use busypoll_stack::{Events, Source, Watch, inet::Context, napi::NapiId};
use std::{
    ptr,
    sync::{Arc, Weak, atomic::Ordering},
};

/// How deep sets may be nested (EP_MAX_NESTS).
const MAX_NESTS: usize = 4;

impl EpollSet {
    /// The set as a source of events, for outer sets and for poll.
    pub fn source(self: &Arc<EpollSet>) -> Arc<dyn Source> {
        let make = || -> Arc<dyn Source> {
            Arc::new(SetSource { set: Arc::downgrade(self), ours: self.ours.as_source() })
        };
        self.source.get_or_init(make).clone()
    }

    /// Whether a wait would find an event in the kernel's half.
    fn kernel_is_ready(&self) -> bool {
        let Some(kernel) =
            self.kernel().filter(|_| self.has_kernel_members.load(Ordering::Acquire))
        else {
            return false;
        };
        let mut fd = libc::pollfd { fd: kernel, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { real::poll(&raw mut fd, 1, 0) > 0 }
    }

    /// Whether `inner` may be a member: it does not contain this set, and the nesting does not get too deep.
    pub fn may_contain(&self, inner: &EpollSet) -> bool {
        inner.depth_without(self).is_some_and(|deep| deep + 1 + self.height() <= MAX_NESTS)
    }

    /// How deep sets are nested in it; `None` if `other` is among them, or it is `other`.
    fn depth_without(&self, other: &EpollSet) -> Option<usize> {
        if ptr::eq(self, other) {
            return None;
        }
        let inner: Vec<Arc<EpollSet>> = lock(&self.members)
            .values()
            .filter_map(|member| member.inner.as_ref()?.upgrade())
            .collect();
        inner
            .iter()
            .try_fold(0, |deepest, inner| Some(deepest.max(1 + inner.depth_without(other)?)))
    }

    /// How many levels of sets are around it.
    fn height(&self) -> usize {
        self.memberships.sets().iter().map(|outer| 1 + outer.height()).max().unwrap_or(0)
    }
}

/// A set as a source of events. Readable while a wait would find an event in either half.
struct SetSource {
    set: Weak<EpollSet>,
    ours: Arc<dyn Source>,
}

impl Source for SetSource {
    fn readiness(&self) -> Events {
        let Some(set) = self.set.upgrade() else { return Events::default() };
        set.nested_notify.deliver();
        let ready = self.ours.readiness();
        if ready.is_empty() && set.kernel_is_ready() { Events::READABLE } else { ready }
    }

    fn is_ready_for(&self, interest: Events) -> bool {
        // Callers that wait watch the kernel's half separately.
        self.ours.is_ready_for(interest)
    }

    fn is_closed(&self) -> bool {
        self.ours.is_closed()
    }

    fn napi(&self) -> Option<NapiId> {
        self.ours.napi()
    }

    fn context(&self) -> Option<Arc<Context>> {
        self.ours.context()
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        self.ours.watch(watch);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.ours.unwatch(watch);
    }
}
