//! One file in one set: what epoll_ctl(2) has set for it, and which half it is in.

use super::EpollSet;
use busypoll_stack::{Events, Source, Watch, inet::Context, napi::NapiId};
use std::{
    io,
    sync::{Arc, Weak},
};

/// The key of a member, as in the kernel: the file, and the descriptor by which it was added.
pub type Key = (usize, libc::c_int);

/// A member of a set.
pub struct Member {
    pub events: u32,
    pub data: u64,
    pub half: Half,
    /// Another process shares the kernel's instance, so the companion stays in it.
    pub shared: bool,
    /// Set while the companion stays in the kernel's instance: the source that [`Half::Ours`] names.
    pub own_events: Option<Arc<dyn Source>>,
    /// Set if it is a set itself.
    pub inner: Option<Weak<EpollSet>>,
}

impl Member {
    /// The result of an operation on its companion. ENOENT is ignored if another process, in which it is active, may
    /// have removed it.
    pub fn ignore_removed(&self, result: io::Result<()>) -> io::Result<()> {
        result.or_else(|wrong| match wrong.raw_os_error() {
            Some(libc::ENOENT) if self.shared => Ok(()),
            _ => Err(wrong),
        })
    }
}

/// Where its events come from.
pub enum Half {
    /// The kernel's instance, by its companion: it is not active.
    Kernel,
    /// Nowhere yet: inherited over fork, to be activated in this process.
    Pending,
    /// Ours.
    Ours(Weak<dyn Source>),
}

/// A source without the events that its companion reports in the kernel's instance.
pub struct OwnEvents(pub Weak<dyn Source>);

impl Source for OwnEvents {
    fn readiness(&self) -> Events {
        self.0.upgrade().map_or_else(Events::default, |source| source.own_readiness())
    }

    fn is_ready_for(&self, interest: Events) -> bool {
        let all = self.0.upgrade().is_some_and(|source| source.is_ready_for(interest));
        all && !self.readiness().reported(interest).is_empty()
    }

    fn is_closed(&self) -> bool {
        self.0.upgrade().is_none_or(|source| source.is_closed())
    }

    fn is_elsewhere(&self) -> bool {
        self.0.upgrade().is_some_and(|source| source.is_elsewhere())
    }

    fn napi(&self) -> Option<NapiId> {
        self.0.upgrade()?.napi()
    }

    fn context(&self) -> Option<Arc<Context>> {
        self.0.upgrade()?.context()
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        self.0.upgrade().into_iter().for_each(|source| source.watch(watch.clone()));
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.0.upgrade().into_iter().for_each(|source| source.unwatch(watch));
    }
}

impl Half {
    pub fn is_inactive(&self) -> bool {
        !matches!(self, Half::Ours(_))
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} for {:#x}, dormant: {}", self.events, self.data, self.half.is_inactive())
    }
}
