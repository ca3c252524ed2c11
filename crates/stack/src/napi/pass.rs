//! One pass over a receive queue, seen from above: who makes it, when, and whom to wake after it.

use super::{NapiId, WakeList};
use crate::{nic::Frame, time::Instant};

/// Who drives the queue in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The interrupt, or a sleeper that took its place.
    Interrupt,
    /// A busy poll on behalf of a socket, epoll or poll set; the number tells them apart.
    BusyPoll(usize),
    /// Not a queue of ours: the kernel handed it over.
    Kernel,
}

/// What goes up with every packet of a pass.
pub struct Pass {
    /// The context whose queue the packets come from; none for packets the kernel handed over.
    pub napi: Option<NapiId>,
    /// When the pass began: the arrival time of its packets.
    pub now: Instant,
    /// Who makes it.
    pub driver: Driver,
    /// Threads to wake once the queue is released.
    pub wake: WakeList,
}

impl Pass {
    /// A pass that begins at `now`.
    #[inline]
    pub fn new(napi: Option<NapiId>, now: Instant, driver: Driver) -> Pass {
        Pass { napi, now, driver, wake: WakeList::default() }
    }
}

/// The floor above: what a context hands its packets to.
pub trait Upper: Send + Sync {
    /// A frame has come. Called by the owner of the queue, one frame at a time.
    fn receive(&self, frame: Frame<'_>, pass: &mut Pass);

    /// Does what is due at `pass.now` and tells when it wants to be called next. Called by the interrupt
    /// thread, not under the ownership word.
    fn tick(&self, pass: &mut Pass) -> Option<Instant>;
}
