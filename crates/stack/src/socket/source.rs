//! What `poll` and `Epoll` need of a socket of any kind.

use super::{
    readiness::{Events, Watch},
    task_wait::TaskChannel,
};
use crate::{Host, inet::Context, napi::NapiId};
use std::{fmt, os::fd::RawFd, sync::Arc};

/// A socket of this crate: [`poll`](super::poll) and [`Epoll`](super::Epoll) wait for these. Other crates cannot
/// implement it.
pub trait Socket: fmt::Debug + Send + Sync + Sealed {
    /// The socket's readiness now.
    fn readiness(&self) -> Events {
        self.source().readiness()
    }

    /// `SO_BUSY_POLL`: microseconds that a call may busy poll before it sleeps; 0 = off.
    fn busy_poll(&self) -> u32;

    /// The source of its events, for waits that take any source.
    #[doc(hidden)]
    fn events(&self) -> Arc<dyn Source> {
        self.shared_source()
    }

    /// `SO_INCOMING_NAPI_ID`: the context that the last packet came from.
    fn incoming_napi_id(&self) -> Option<NapiId> {
        self.source().napi()
    }
}

/// The private part of [`Socket`].
pub trait Sealed {
    /// The source of its events.
    fn source(&self) -> &dyn Source;

    /// The source of its events, shared.
    fn shared_source(&self) -> Arc<dyn Source>;

    /// The socket's host.
    fn host(&self) -> &Host;

    /// Its wait queues, for tasks.
    fn task_channel(&self) -> Arc<dyn TaskChannel>;
}

/// The part of a socket that events come from.
pub trait Source: Send + Sync {
    /// The socket's readiness now.
    fn readiness(&self) -> Events;

    /// As [`readiness`](Source::readiness) but without the companion's part, for callers that poll the companion
    /// themselves.
    fn own_readiness(&self) -> Events {
        self.readiness()
    }

    /// Whether a watcher with this `interest` has an event. Called in the busy loop.
    fn is_ready_for(&self, interest: Events) -> bool {
        !self.readiness().reported(interest).is_empty()
    }

    /// Whether the socket is closed.
    fn is_closed(&self) -> bool;

    /// Whether another owner, the kernel, has the socket: then it reports nothing here.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// The id of the NAPI context that the last packet came from.
    fn napi(&self) -> Option<NapiId>;

    /// That context, unless it is gone.
    fn context(&self) -> Option<Arc<Context>>;

    /// Calls `each` for every context that packets come from.
    fn for_each_context(&self, each: &mut dyn FnMut(&Context)) {
        if let Some(context) = self.context() {
            each(&context);
        }
    }

    /// Whether other processes learn of the threads that wait for it to be readable.
    fn counts_waits(&self) -> bool {
        false
    }

    /// A thread begins, or ends, such a wait.
    fn waits(&self, _begins: bool) {}

    /// For a thread that begins such a wait in an epoll: the companion, if it is to poll that itself, as no other thread
    /// notifies it of the kernel's connections.
    fn companion_to_poll(&self) -> Option<RawFd> {
        None
    }

    /// A thread that polls the companion looks at it, and notifies of what is there.
    fn look_at_companion(&self) {}

    /// Some of its waits do not poll the companion.
    fn notify_of_companion(&self) {}

    /// Notifies `watch` of every event from now on.
    fn watch(&self, watch: Arc<dyn Watch>);

    /// Ends [`watch`](Source::watch). Events during the call may still be notified.
    fn unwatch(&self, watch: &Arc<dyn Watch>);
}

impl fmt::Debug for dyn Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.readiness())
    }
}
