//! What `poll` and `Epoll` need of a socket, whatever its kind.

use super::readiness::{Events, Watch};
use crate::{
    Host,
    napi::{Context, NapiId},
};
use std::{fmt, sync::Arc};

/// A socket of this crate: what [`poll`](super::poll) and [`Epoll`](super::Epoll) wait for. Implemented here
/// alone.
pub trait Socket: fmt::Debug + Sealed {
    /// What it can do at this moment.
    fn readiness(&self) -> Events {
        self.source().readiness()
    }

    /// `SO_BUSY_POLL`: microseconds that a call may busy poll before it sleeps; 0 = off.
    fn busy_poll(&self) -> u32;

    /// Where its events come from, for waits that take any source.
    fn events(&self) -> Arc<dyn Source> {
        self.shared_source()
    }

    /// `SO_INCOMING_NAPI_ID`: the context that the last packet came from.
    fn incoming_napi_id(&self) -> Option<NapiId> {
        self.source().napi()
    }
}

/// The part of [`Socket`] that is ours.
pub trait Sealed {
    /// Where its events come from.
    fn source(&self) -> &dyn Source;

    /// The same, to be kept.
    fn shared_source(&self) -> Arc<dyn Source>;

    /// The host it is on.
    fn host(&self) -> &Host;
}

/// Where a socket's events come from: what of it packets reach.
pub trait Source: Send + Sync {
    /// What the socket can do now.
    fn readiness(&self) -> Events;

    /// The same without what a kernel's socket beside it tells, to those who hear of that in another way.
    fn own_readiness(&self) -> Events {
        self.readiness()
    }

    /// Whether it has something to report to someone who asked for `interest`. Asked in a busy loop.
    fn is_ready_for(&self, interest: Events) -> bool {
        !self.readiness().reported(interest).is_empty()
    }

    /// Whether the socket is closed.
    fn is_closed(&self) -> bool;

    /// The id of the context that packets last came from.
    fn napi(&self) -> Option<NapiId>;

    /// That context, unless it has gone.
    fn context(&self) -> Option<Arc<Context>>;

    /// Tells `watch` of every event from now on.
    fn watch(&self, watch: Arc<dyn Watch>);

    /// Tells it no more; it may hear of events that happen meanwhile.
    fn unwatch(&self, watch: &Arc<dyn Watch>);
}

impl fmt::Debug for dyn Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.readiness())
    }
}
