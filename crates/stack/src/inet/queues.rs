//! The way of frames from the receive queues into inet: inet as the floor above NAPI, and NAPI's types over it.

use super::{Inet, Interface, Meta, UdpEndpoint, tcp};
use crate::{
    napi::{self, Contexts, NapiId, Upper},
    nic::{Frame, packet::PacketRing},
    sync::{AtomicU64, Ordering},
    time::Instant,
};
use std::sync::Arc;

/// The NAPI context of a queue whose frames go to inet.
pub type Context = napi::Context<Input>;
/// A context in service.
pub type Serving = napi::Serving<Input>;
/// One pass over its queue.
pub type Pass<'a> = napi::Pass<'a, Input>;
/// What a busy poll is for.
pub type Poller<'a> = napi::Poller<'a, Input>;

/// The contexts of this process.
pub(crate) static CONTEXTS: Contexts<Input> = Contexts::new();

/// The context named `id`, unless it is closed. Lock-free; what Linux calls `napi_by_id`.
#[inline]
pub fn by_id(id: NapiId) -> Option<Arc<Context>> {
    CONTEXTS.by_id(id)
}

/// The input of one queue's frames to inet.
pub struct Input {
    pub(crate) inet: Arc<Inet>,
    pub(crate) interface: Arc<Interface>,
    pub(crate) source: Source,
}

/// What the frames come from.
pub(crate) enum Source {
    /// The receive queue of this number.
    Queue(u32),
    /// The ring of a packet socket, which gets copies of what the kernel receives; and how many lost frames of it are
    /// counted.
    Copies(Arc<PacketRing>, AtomicU64),
}

impl Source {
    /// The transmit queue beside it.
    #[inline]
    fn tx_queue(&self) -> u32 {
        match self {
            Source::Queue(queue) => *queue,
            Source::Copies(..) => 0,
        }
    }
}

impl Upper for Input {
    type Flow = tcp::Flow;
    type Socket = Arc<dyn UdpEndpoint>;
    type Deferred = tcp::DeferredFlow;
    type Meta = Meta;

    #[inline]
    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_>) {
        match self.source {
            Source::Queue(queue) => self.inet.receive(&self.interface, queue, frame, pass),
            Source::Copies(..) => self.inet.receive_copy(&self.interface, frame, pass),
        }
    }

    #[inline]
    fn end_of_pass(&self, pass: &mut Pass<'_>) {
        self.inet.end_of_pass(pass);
        if std::mem::take(&mut pass.doorbell_pending) {
            self.interface.ring(self.source.tx_queue());
        }
        if let Source::Copies(ring, counted) = &self.source {
            self.inet.count_lost(ring, counted);
        }
    }

    fn tick(&self, pass: &mut Pass<'_>) -> Option<Instant> {
        self.inet.tick(pass)
    }
}

impl Inet {
    /// Counts the frames that a ring has lost, beyond those that are `counted`. Only the owner of the ring calls this.
    #[inline(never)]
    fn count_lost(&self, ring: &PacketRing, counted: &AtomicU64) {
        let lost = ring.lost();
        let before = counted.load(Ordering::Relaxed);
        if lost != before {
            counted.store(lost, Ordering::Relaxed);
            self.udp_lost(lost - before);
        }
    }
}
