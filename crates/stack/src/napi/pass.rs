//! One pass over a receive queue, as the floors above see it: what makes it, when, and which threads to wake after it.

use super::{NapiId, WakeList};
use crate::{nic::Frame, time::Instant, wire::Data};

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
pub struct Poller<'a, U: Upper> {
    /// The number of the socket, epoll set or poll set, by which a socket recognises its own polls.
    pub name: usize,
    /// Preferred busy polling: the queue stays with its pollers for longer after this one has left.
    pub prefer: bool,
    /// The buffer for a packet of the polling socket itself.
    pub direct: Option<&'a mut dyn DirectBuffer<U::Meta>>,
    /// The connection that the packets are likely for: it needs no lookup then.
    pub expected_flow: Option<&'a U::Flow>,
    /// The datagram socket that they are likely for.
    pub expected_socket: Option<&'a U::Socket>,
}

impl<U: Upper> Poller<'_, U> {
    /// A poller that delivers every packet to its socket's queue.
    pub fn new(name: usize) -> Self {
        Poller { name, prefer: false, direct: None, expected_flow: None, expected_socket: None }
    }
}

/// The buffer of the receive call that the polling thread is in. A packet for its socket may be copied there directly,
/// past the socket's queue and its locks.
pub trait DirectBuffer<M> {
    /// Whether it holds data.
    fn is_filled(&self) -> bool;

    /// Copies a packet's data in, with what else is known of a datagram. False: it has no room.
    fn deliver(&mut self, payload: &[u8], meta: Option<&M>) -> bool;

    /// As [`deliver`](DirectBuffer::deliver), for data in several pieces.
    fn deliver_pieces(&mut self, payload: &Data<'_>, meta: Option<&M>) -> bool;
}

/// One pass. It goes up with each of its packets.
pub struct Pass<'a, U: Upper> {
    /// The context whose queue the packets come from; none for packets from a kernel socket.
    pub napi: Option<NapiId>,
    /// When the pass began: the arrival time of its packets.
    pub now: Instant,
    /// What makes it.
    pub polled_by: PolledBy,
    /// The buffer for a packet of the polling socket itself.
    pub direct: Option<&'a mut dyn DirectBuffer<U::Meta>>,
    /// The connection that the poller waits for.
    pub expected_flow: Option<&'a U::Flow>,
    /// The datagram socket that it waits for.
    pub expected_socket: Option<&'a U::Socket>,
    /// Threads to wake once the queue is released.
    pub wake: WakeList,
    /// [`Upper::end_of_pass`] will be called: work may be deferred until then.
    pub batched: bool,
    /// Work that the floor above has deferred.
    pub deferred: Option<U::Deferred>,
    /// Frames are on the queue's transmit ring without a doorbell yet. Only if [`batched`](Pass::batched).
    pub doorbell_pending: bool,
}

impl<U: Upper> Pass<'_, U> {
    /// A pass that begins at `now`.
    #[inline]
    pub fn new(napi: Option<NapiId>, now: Instant, polled_by: PolledBy) -> Self {
        Pass {
            napi,
            now,
            polled_by,
            direct: None,
            expected_flow: None,
            expected_socket: None,
            wake: WakeList::default(),
            batched: false,
            deferred: None,
            doorbell_pending: false,
        }
    }

    /// If the poller `name` makes this pass, copies a packet of its socket into its receive buffer.
    #[inline]
    pub fn deliver_direct(&mut self, name: usize, payload: &[u8], meta: Option<&U::Meta>) -> bool {
        self.polled_by == PolledBy::BusyPoll(name)
            && self.direct.as_mut().is_some_and(|direct| direct.deliver(payload, meta))
    }

    /// As [`deliver_direct`](Pass::deliver_direct), for data in several pieces.
    pub fn deliver_direct_pieces(
        &mut self,
        name: usize,
        payload: &Data<'_>,
        meta: Option<&U::Meta>,
    ) -> bool {
        self.polled_by == PolledBy::BusyPoll(name)
            && self.direct.as_mut().is_some_and(|direct| direct.deliver_pieces(payload, meta))
    }
}

/// The floor above: a context hands its packets to it. A pass carries values of the floor's own types.
pub trait Upper: Sized + Send + Sync + 'static {
    /// A connection.
    type Flow;
    /// A datagram socket.
    type Socket;
    /// Work that is deferred to the end of a pass.
    type Deferred;
    /// What is known of a datagram besides its data.
    type Meta;

    /// Takes a received frame. Called by the owner of the queue, one frame at a time.
    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_, Self>);

    /// All frames of the pass have been handed up. Called by the owner of the queue, if there were any.
    fn end_of_pass(&self, _pass: &mut Pass<'_, Self>) {}

    /// Runs the timers due at `pass.now`. Returns when it wants the next call. Called by the interrupt thread, without
    /// owning the queue.
    fn tick(&self, pass: &mut Pass<'_, Self>) -> Option<Instant>;
}
