//! One pass over a receive queue, as the floors above see it: what makes it, when, and which threads to wake after it.

use super::{NapiId, WakeList};
use crate::{nic::Frame, time::Instant, wire::Data};
use std::{any::Any, sync::Arc};

/// What makes a pass over the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolledBy {
    /// The interrupt thread, or a leader in its place.
    Interrupt,
    /// A busy poll on behalf of the socket, epoll set or poll set with this number.
    BusyPoll(usize),
    /// No queue: the packets came from a kernel socket.
    Kernel,
}

/// What a busy poll is for, and its parameters.
pub struct Poller<'a> {
    /// The number of the socket, epoll set or poll set, by which a socket recognises its own polls.
    pub name: usize,
    /// Preferred busy polling: the queue stays with its pollers for longer after this one has left.
    pub prefer: bool,
    /// The buffer for a packet of the polling socket itself.
    pub direct: Option<&'a mut dyn DirectBuffer>,
    /// The endpoint that the packets are likely for; used by the floor above only.
    pub expected_flow: Option<&'a (dyn Any + Send + Sync)>,
}

impl Poller<'_> {
    /// A poller that delivers every packet to its socket's queue.
    pub fn new(name: usize) -> Poller<'static> {
        Poller { name, prefer: false, direct: None, expected_flow: None }
    }
}

/// The buffer of the receive call that the polling thread is in. A packet for its socket may be copied there directly,
/// past the socket's queue and its locks.
pub trait DirectBuffer {
    /// Whether it holds data.
    fn is_filled(&self) -> bool;

    /// Copies a packet's data in; `label` is its metadata, whose type only the floor above knows. False: it has no
    /// room.
    fn deliver(&mut self, payload: &[u8], label: &dyn Any) -> bool;

    /// As [`deliver`](DirectBuffer::deliver), for data in several pieces.
    fn deliver_pieces(&mut self, payload: &Data<'_>, label: &dyn Any) -> bool;
}

/// One pass. It goes up with each of its packets.
pub struct Pass<'a> {
    /// The context whose queue the packets come from; none for packets from a kernel socket.
    pub napi: Option<NapiId>,
    /// When the pass began: the arrival time of its packets.
    pub now: Instant,
    /// What makes it.
    pub polled_by: PolledBy,
    /// The buffer for a packet of the polling socket itself.
    pub direct: Option<&'a mut dyn DirectBuffer>,
    /// The endpoint that the poller waits for.
    pub expected_flow: Option<&'a (dyn Any + Send + Sync)>,
    /// Threads to wake once the queue is released.
    pub wake: WakeList,
    /// [`Upper::end_of_pass`] will be called: work may be deferred until then.
    pub batched: bool,
    /// Work that the floor above has deferred; used by it only.
    pub deferred: Option<Arc<dyn Any + Send + Sync>>,
    /// Frames are on the queue's transmit ring without a doorbell yet. Only if [`batched`](Pass::batched).
    pub doorbell_pending: bool,
}

impl Pass<'_> {
    /// A pass that begins at `now`.
    #[inline]
    pub fn new(napi: Option<NapiId>, now: Instant, polled_by: PolledBy) -> Pass<'static> {
        Pass {
            napi,
            now,
            polled_by,
            direct: None,
            expected_flow: None,
            wake: WakeList::default(),
            batched: false,
            deferred: None,
            doorbell_pending: false,
        }
    }
}

impl Pass<'_> {
    /// If the poller `name` makes this pass, copies a packet of its socket into its receive buffer.
    #[inline]
    pub fn deliver_direct(&mut self, name: usize, payload: &[u8], label: &dyn Any) -> bool {
        self.polled_by == PolledBy::BusyPoll(name)
            && self.direct.as_mut().is_some_and(|direct| direct.deliver(payload, label))
    }

    /// As [`deliver_direct`](Pass::deliver_direct), for data in several pieces.
    pub fn deliver_direct_pieces(
        &mut self,
        name: usize,
        payload: &Data<'_>,
        label: &dyn Any,
    ) -> bool {
        self.polled_by == PolledBy::BusyPoll(name)
            && self.direct.as_mut().is_some_and(|direct| direct.deliver_pieces(payload, label))
    }
}

/// The floor above: a context hands its packets to it.
pub trait Upper: Send + Sync {
    /// Takes a received frame. Called by the owner of the queue, one frame at a time.
    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_>);

    /// All frames of the pass have been handed up. Called by the owner of the queue, if there were any.
    fn end_of_pass(&self, _pass: &mut Pass<'_>) {}

    /// Runs the timers due at `pass.now`. Returns when it wants the next call. Called by the interrupt thread, without
    /// owning the queue.
    fn tick(&self, pass: &mut Pass<'_>) -> Option<Instant>;
}
