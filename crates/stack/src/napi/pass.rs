//! One pass over a receive queue, seen from above: who makes it, when, and whom to wake after it.

use super::{NapiId, WakeList};
use crate::{nic::Frame, time::Instant};
use std::{any::Any, sync::Arc};

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

/// On whose behalf, and how, a thread busy polls.
pub struct Poller<'a> {
    /// Tells pollers apart, so that a socket knows its own finds.
    pub name: usize,
    /// The queue is left to its pollers for longer after this one has left.
    pub prefer: bool,
    /// Where the poller's own find may go.
    pub direct: Option<&'a mut dyn Direct>,
    /// Whom the packets are likely for: the business of the floor above.
    pub likely: Option<&'a (dyn Any + Send + Sync)>,
}

impl Poller<'_> {
    /// One that leaves everything on the sockets' queues.
    pub fn new(name: usize) -> Poller<'static> {
        Poller { name, prefer: false, direct: None, likely: None }
    }
}

/// Where the polling thread's own find may go, past the socket's queue and its locks: the buffer that it waits to have
/// filled.
pub trait Direct {
    /// Whether something is in it.
    fn is_filled(&self) -> bool;

    /// Puts a find in, of which `label` tells what only the floor above knows. False: it does not go in.
    fn put(&mut self, find: &[u8], label: &dyn Any) -> bool;
}

/// What goes up with every packet of a pass.
pub struct Pass<'a> {
    /// The context whose queue the packets come from; none for packets the kernel handed over.
    pub napi: Option<NapiId>,
    /// When the pass began: the arrival time of its packets.
    pub now: Instant,
    /// Who makes it.
    pub driver: Driver,
    /// Where the driver's own find may go.
    pub direct: Option<&'a mut dyn Direct>,
    /// Whom the driver waits for.
    pub likely: Option<&'a (dyn Any + Send + Sync)>,
    /// Threads to wake once the queue is released.
    pub wake: WakeList,
    /// [`Upper::end_of_pass`] will be called: what may wait until then can be put off.
    pub batched: bool,
    /// What the floor above has put off; its own business.
    pub later: Option<Arc<dyn Any + Send + Sync>>,
    /// Frames lie on the transmit ring beside the queue, whose doorbell has not rung; so [`batched`](Pass::batched).
    pub unrung: bool,
}

impl Pass<'_> {
    /// A pass that begins at `now`.
    #[inline]
    pub fn new(napi: Option<NapiId>, now: Instant, driver: Driver) -> Pass<'static> {
        Pass {
            napi,
            now,
            driver,
            direct: None,
            likely: None,
            wake: WakeList::default(),
            batched: false,
            later: None,
            unrung: false,
        }
    }
}

impl Pass<'_> {
    /// Puts a find of the poller `name` where he waits for it, if it is he who makes this pass.
    #[inline]
    pub fn put(&mut self, name: usize, find: &[u8], label: &dyn Any) -> bool {
        self.driver == Driver::BusyPoll(name)
            && self.direct.as_mut().is_some_and(|direct| direct.put(find, label))
    }
}

/// The floor above: what a context hands its packets to.
pub trait Upper: Send + Sync {
    /// A frame has come. Called by the owner of the queue, one frame at a time.
    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_>);

    /// The frames the ring had have all been handed up. Called by the owner of the queue, if there were any.
    fn end_of_pass(&self, _pass: &mut Pass<'_>) {}

    /// Does what is due at `pass.now` and tells when it wants to be called next. Called by the interrupt
    /// thread, not under the ownership word.
    fn tick(&self, pass: &mut Pass<'_>) -> Option<Instant>;
}
