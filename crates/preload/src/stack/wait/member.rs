//! One file in one set: what epoll_ctl(2) has said of it, and in which half it is.

use super::set::Set;
use busypoll_stack::{
    Events, Source, Watch,
    napi::{Context, NapiId},
};
use std::{
    io,
    sync::{Arc, Weak},
};

/// What a member is found by, as in the kernel: the file, and the descriptor it was added by.
pub type Key = (usize, libc::c_int);

/// A member of a set.
pub struct Member {
    pub events: u32,
    pub data: u64,
    pub half: Half,
    /// The kernel's instance is another process's, too, and keeps its companion for that.
    pub shared: bool,
    /// Where the companion is kept, what [`Half::Ours`] names.
    pub apart: Option<Arc<dyn Source>>,
    /// It is a set itself.
    pub inner: Option<Weak<Set>>,
}

impl Member {
    /// What the kernel said of its companion; that it is not there is nothing where another process, in which it has
    /// come to life, may have taken it out.
    pub fn unless_gone(&self, said: io::Result<()>) -> io::Result<()> {
        said.or_else(|wrong| match wrong.raw_os_error() {
            Some(libc::ENOENT) if self.shared => Ok(()),
            _ => Err(wrong),
        })
    }
}

/// Where its events come from.
pub enum Half {
    /// The kernel's instance, by its companion: it has not come to life.
    Kernel,
    /// Nowhere yet: inherited over fork, it is to come to life in this process.
    Nowhere,
    /// Ours.
    Ours(Weak<dyn Source>),
}

/// A source without what its companion in the kernel's instance tells.
pub struct Apart(pub Weak<dyn Source>);

impl Source for Apart {
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
    pub fn is_dormant(&self) -> bool {
        !matches!(self, Half::Ours(_))
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} for {:#x}, dormant: {}", self.events, self.data, self.half.is_dormant())
    }
}
