//! A flow: a connection with its lock, its path, its endpoint, and its places in the table and on the timer wheel. A
//! thread that holds the lock does three things in turn: it changes the connection (a segment, a timer, a call),
//! sends what may be sent, and updates endpoint, table and timer.
//!
//! Lock order: a handshake's; a flow's; a listener's or an endpoint's; those of neighbours and of the transmit ring;
//! claims, table and wheel, which are leaves. Packets to ourselves are delivered after all locks are released.

mod in_ledger;
mod path;

use super::{
    PortRef, Ready, TcpEndpoint,
    claims::FlowClaim,
    connection::{Connection, NEVER, Outgoing, State as Phase},
    emit,
    plain::{PLAIN_LEN, Plain},
    predicted_frame::FrameKey,
    segment::{Flags, Segment},
    seq::Seq,
    state::Timer,
    table::Entry,
    time_wait::TimeWaitEntry,
    tuple::Tuple,
    wheel::{Handle, with_slack},
};
use crate::{
    inet::{Count, Inet, Interface, Pass, Path, PathOptions, SendError, input::Arrival},
    ledger::LedgerSlot,
    lock::{Lock, Locked},
    napi::{NapiId, PolledBy},
    time::Instant,
    wire::{Data, Rest},
};
use std::{hint::cold_path, sync::Arc, time::Duration};

pub(super) use path::mss;

/// How long after its last timer an idle connection frees the memory it does not need.
const IDLE_DELAY: Duration = Duration::from_millis(200);

/// How soon to try again after a full transmit ring, which empties by itself.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// How often the ACKs of what we send confirm the neighbour (RFC 4861 section 7.3.1).
const CONFIRM_INTERVAL: Duration = Duration::from_secs(5);

/// A flow whose answers a pass has deferred to its end; the head of a list.
pub type DeferredFlow = Arc<Core>;

/// A connection and all that belongs to it. The table, the wheel, the application and a pass that has deferred its
/// answers may each hold a reference.
pub struct Core {
    pub(super) tuple: Tuple,
    pub(super) frame_key: FrameKey,
    state: Lock<State>,
}

/// How the application has dropped its handle without a pass; the wheel carries it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeferredClose {
    #[default]
    No,
    Close,
    Abort,
}

pub(super) struct State {
    pub(super) connection: Connection,
    /// The latest time the connection was given.
    latest: Instant,
    /// `None` while idle or without a route: what is sent then is lost, and retransmitted.
    path: Option<Box<Path>>,
    pub(super) path_options: PathOptions,
    /// The transmit queue that is paired with the receive queue of the last packet.
    queue: u32,
    pub(super) endpoint: Option<Arc<dyn TcpEndpoint>>,
    pub(super) napi: Option<NapiId>,
    pub(super) deferred_close: DeferredClose,
    flow_claim: FlowClaim,
    pub(super) port_ref: Option<PortRef>,
    /// The kernel has made it. It has no TIME_WAIT: a connection with the same ends begins with the kernel, too.
    pub(super) imported: bool,
    /// It is in the table.
    in_table: bool,
    /// The transmit ring was full.
    ring_full: bool,
    /// On the deferred list of a pass, which will send what is due.
    deferred: bool,
    /// The next on that list.
    next_deferred: Option<DeferredFlow>,
    /// Our timer on the wheel, and when it fires.
    timer: Option<(Handle, Instant)>,
    /// When an ACK next confirms the neighbour.
    confirm_at: Instant,
    /// The entry in the host's ledger.
    ledger_entry: Option<LedgerSlot>,
}

/// The parts of a new flow.
pub(super) struct NewFlow {
    pub(super) tuple: Tuple,
    pub(super) connection: Connection,
    pub(super) path: Path,
    pub(super) endpoint: Option<Arc<dyn TcpEndpoint>>,
    pub(super) napi: Option<NapiId>,
    pub(super) flow_claim: FlowClaim,
    pub(super) port_ref: Option<PortRef>,
}

impl Core {
    /// A flow that is about to be inserted into the table.
    pub(super) fn new(parts: NewFlow) -> Arc<Core> {
        let state = State {
            connection: parts.connection,
            latest: Instant::ZERO,
            path_options: parts.path.options,
            queue: parts.path.queue,
            path: Some(Box::new(parts.path)),
            endpoint: parts.endpoint,
            napi: parts.napi,
            deferred_close: DeferredClose::No,
            flow_claim: parts.flow_claim,
            port_ref: parts.port_ref,
            imported: false,
            in_table: true,
            ring_full: false,
            deferred: false,
            next_deferred: None,
            timer: None,
            confirm_at: Instant::ZERO,
            ledger_entry: None,
        };
        let (tuple, frame_key) = (parts.tuple, FrameKey::new(&parts.tuple));
        Arc::new(Core { tuple, frame_key, state: Lock::new(state) })
    }

    /// Locks the flow, and ends a [steady exchange](super::steady).
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_, State> {
        let mut state = self.state.lock();
        state.connection.settle();
        state
    }

    /// As [`enter_at`](Core::enter_at), for the predicted path, which continues such an exchange.
    #[inline(always)]
    pub(super) fn enter_predicted(&self, now: &mut Instant) -> Locked<'_, State> {
        let mut state = self.state.lock();
        *now = (*now).max(state.latest);
        state.latest = *now;
        state
    }

    /// Locks the flow for a pass. The pass may be older than another pass that held the lock before; its time is then
    /// advanced, because a connection's time, which its timestamps show to the peer, never goes back.
    #[inline]
    pub(super) fn enter(&self, pass: &mut Pass<'_>) -> Locked<'_, State> {
        self.enter_at(&mut pass.now)
    }

    /// The same for a call without a pass, made at `now`.
    #[inline]
    pub(super) fn enter_at(&self, now: &mut Instant) -> Locked<'_, State> {
        let mut state = self.lock();
        *now = (*now).max(state.latest);
        state.latest = *now;
        state
    }

    /// The listener's process has accepted it when only the SYN had come. `ack` stands for the client's answer to
    /// `syn_ack`: over a link both arrive.
    pub(super) fn answer_offer(
        self: &Arc<Core>,
        inet: &Inet,
        ack: &Segment<'_>,
        syn_ack: Outgoing<'static>,
        pass: &mut Pass<'_>,
    ) {
        let mut state = self.enter(pass);
        state.connection.established(ack, pass.now);
        if let Some(path) = &state.path {
            inet.tcp_send_bare(path, &self.tuple, syn_ack, pass.now);
        }
        self.finish(state, inet, pass);
    }

    /// Gives up connecting: unlike after a timeout the peer learns of it, and its process does not accept the connection.
    pub(super) fn give_up(self: &Arc<Core>, inet: &Inet, pass: &mut Pass<'_>) {
        let mut state = self.enter(pass);
        if let Some(path) =
            state.path.as_ref().filter(|_| state.connection.state() == Phase::SynSent)
        {
            let seq = state.connection.syn_end();
            let reset = Segment { seq, flags: Flags::RST, ..Segment::default() };
            inet.tcp_send_bare(path, &self.tuple, reset, pass.now);
        }
        state.connection.abort(pass.now);
        self.finish(state, inet, pass);
    }

    /// Processes a segment. False if the flow has left the table.
    #[inline]
    pub(super) fn segment(
        self: &Arc<Core>,
        inet: &Inet,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let mut state = self.enter(pass);
        if !state.in_table {
            cold_path();
            return false;
        }
        let taken = state.process_segment(inet, segment, arrival, pass);
        // After a full segment more usually follow.
        let more = segment.data_len() >= state.connection.full_segment();
        self.end_segment(state, inet, (taken, more), pass);
        true
    }

    /// A segment was processed, and a reader has `taken` its data, or not; `more` are likely to follow. Answers now, or
    /// leaves the answer to the reader or to the end of the pass.
    #[inline(always)]
    pub(super) fn end_segment(
        self: &Arc<Core>,
        mut state: Locked<'_, State>,
        inet: &Inet,
        (taken, more): (bool, bool),
        pass: &mut Pass<'_>,
    ) {
        let sends = state.connection.has_to_send();
        if taken && !more && !sends && state.deadline_before_timer(pass.now).is_none() {
            // The reader has the data and is about to answer.
            return state.update_ledger(&self.tuple, inet, pass);
        }
        if pass.batched && (more || sends) {
            // What is sent at the end of the pass answers all its segments.
            if !std::mem::replace(&mut state.deferred, true) {
                state.next_deferred = pass.deferred.replace(self.clone());
            }
            return;
        }
        self.finish(state, inet, pass);
    }

    /// Processes another segment for a flow on the deferred list of this pass. False if the flow has left the table
    /// since.
    #[inline]
    pub(super) fn segment_again(
        &self,
        inet: &Inet,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let mut state = self.enter(pass);
        if state.in_table {
            state.process_segment(inet, segment, arrival, pass);
        }
        state.in_table
    }

    /// The pass that deferred this flow is over. `pass.deferred` gets the flows deferred before it.
    pub(super) fn run_deferred(self: &Arc<Core>, inet: &Inet, pass: &mut Pass<'_>) {
        let mut state = self.enter(pass);
        state.deferred = false;
        pass.deferred = state.next_deferred.take();
        state.leave_ack(|endpoint| endpoint.receives(pass));
        self.finish(state, inet, pass);
    }

    /// Our timer has fired.
    #[cold]
    pub(super) fn timer(self: &Arc<Core>, handle: Handle, inet: &Inet, pass: &mut Pass<'_>) {
        let mut state = self.enter(pass);
        if state.timer.is_some_and(|(ours, _)| ours == handle) {
            state.timer = None;
        }
        let now = pass.now;
        match std::mem::take(&mut state.deferred_close) {
            DeferredClose::No => {}
            DeferredClose::Close => state.connection.close(now),
            DeferredClose::Abort => state.connection.abort(now),
        }
        match state.connection.deadline() {
            Some(at) if at <= now => {
                state.connection.timer(now);
                // Perhaps this was a delayed ACK, and the connection is idle now: a later timer frees its memory.
                if state.timer.is_none() {
                    let at = with_slack(now, now + IDLE_DELAY);
                    let handle = inet.tcp_timer(at, None, || Timer::Flow(self.clone()));
                    state.timer = Some((handle, at));
                }
            }
            Some(_) => {}
            // Idle for a while: frees what an idle connection does not need.
            None => {
                state.path = None;
                state.connection.free_idle_memory();
            }
        }
        self.finish(state, inet, pass);
    }

    /// Sends what may be sent, and updates endpoint, table and timer.
    #[inline]
    pub(super) fn finish(
        self: &Arc<Core>,
        mut state: Locked<'_, State>,
        inet: &Inet,
        pass: &mut Pass<'_>,
    ) {
        state.transmit(&self.tuple, inet, pass);
        state.notify(pass);
        if !state.in_table {
            cold_path();
            return;
        }
        state.update_ledger(&self.tuple, inet, pass);
        let over = matches!(state.connection.state(), Phase::TimeWait | Phase::Closed);
        let port_ref = if over { state.retire(self, inet, pass.now) } else { None };
        state.set_timer(self, inet, pass.now);
        // Dropping the kernel's socket takes system calls: not under our lock.
        drop(state);
        drop(port_ref);
    }

    /// Updates ledger and timer after data was sent.
    #[inline(always)]
    pub(super) fn update_after(
        self: &Arc<Core>,
        mut state: Locked<'_, State>,
        inet: &Inet,
        now: Instant,
    ) {
        if inet.ledger().is_some() {
            let pass = Pass::new(None, now, PolledBy::Kernel);
            state.update_ledger(&self.tuple, inet, &pass);
        }
        if !state.has_timer_by(state.connection.busy_until(now)) {
            cold_path();
            state.connection.settle();
            state.set_timer(self, inet, now);
        }
    }

    /// The application has dropped its handle without a pass: the wheel closes the connection.
    pub(super) fn close_later(self: &Arc<Core>, how: DeferredClose, inet: &Inet) {
        let mut state = self.lock();
        state.endpoint = None;
        // A closed connection needs nothing more.
        if state.in_table && (how == DeferredClose::Abort || !state.connection.orphan) {
            state.deferred_close = how;
            let old = state.timer.map(|(handle, _)| handle);
            let handle = inet.tcp_timer(Instant::ZERO, old, || Timer::Flow(self.clone()));
            state.timer = Some((handle, Instant::ZERO));
        }
    }

    /// The peer has ended with its link, if it was reached over `iface`.
    fn end_link(self: &Arc<Core>, iface: &Interface, inet: &Inet, pass: &mut Pass<'_>) {
        let mut state = self.enter(pass);
        // One that the peer has ended learns it as in Linux, when it sends.
        if state.in_table
            && state.napi.is_some_and(|napi| iface.has_napi(napi))
            && !state.connection.only_sends()
        {
            state.connection.peer_ended();
            self.finish(state, inet, pass);
        }
    }

    /// See [`Connection::reuse_fin_wait2`].
    pub(super) fn reuse_fin_wait2(self: &Arc<Core>, inet: &Inet, now: Instant) -> Option<Seq> {
        let mut state = self.lock();
        let next = state.connection.reuse_fin_wait2()?;
        let port_ref = state.retire(self, inet, now);
        drop(state);
        drop(port_ref);
        Some(next)
    }

    /// The host is being dropped: drops everything that may refer to the host.
    pub(super) fn forget(&self, inet: &Inet) {
        let mut state = self.lock();
        state.in_table = false;
        state.ledger_entry = None;
        state.endpoint = None;
        let (port_ref, timer) = (state.port_ref.take(), state.timer.take());
        inet.tcp_release(&state.flow_claim.of(&self.tuple));
        drop(state);
        if let Some((handle, _)) = timer {
            inet.tcp_cancel(handle);
        }
        drop(port_ref);
    }
}

impl State {
    /// Passes a segment to the connection. Returns whether a waiting reader took the data, which is then all there
    /// was to notify.
    #[inline(always)]
    fn process_segment(
        &mut self,
        inet: &Inet,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let before = self.connection.snd_una;
        self.note_queue(arrival, pass.napi);
        let (endpoint, napi, now) = (self.endpoint.as_deref(), self.napi, pass.now);
        // If data is the only event, a polling reader may take it at once.
        let taken = self.connection.segment_for(segment, now, &mut |data, rest| {
            endpoint.is_some_and(|endpoint| match rest {
                [] => endpoint.take(napi, data, pass),
                _ => {
                    let data = Data { first: data, rest: Rest::of(&rest) };
                    endpoint.take_pieces(napi, &data, pass)
                }
            })
        });
        self.after_segment(inet, taken, before != self.connection.snd_una, now);
        taken
    }

    /// See [`Connection::take_predicted`].
    #[inline(always)]
    pub(super) fn take_predicted(
        &mut self,
        inet: &Inet,
        segment: &Plain,
        data: &[u8],
        pass: &mut Pass<'_>,
    ) -> bool {
        let (endpoint, napi, now) = (self.endpoint.as_deref(), self.napi, pass.now);
        let before = self.connection.snd_una;
        let taken = self.connection.take_predicted(segment, data, now, || {
            endpoint.is_some_and(|endpoint| endpoint.take(napi, data, pass))
        });
        if taken {
            // In a steady exchange the ACK may always wait for the answer.
            let waits = !self.connection.is_steady();
            self.after_segment(inet, waits, before != self.connection.snd_una, now);
        }
        taken
    }

    /// The connection has processed a segment: a reader has `taken` its data, or not; it `acknowledges` something, or
    /// not.
    #[inline(always)]
    pub(super) fn after_segment(
        &mut self,
        inet: &Inet,
        taken: bool,
        acknowledges: bool,
        now: Instant,
    ) {
        if taken {
            self.leave_ack(|_| true);
        }
        if acknowledges && self.confirm_at <= now {
            cold_path();
            self.confirm_at = now + CONFIRM_INTERVAL;
            if let Some(path) = &self.path {
                inet.confirm(path, now);
            }
        }
    }

    /// The neighbour is known to be reachable.
    pub(super) fn confirm_later(&mut self, now: Instant) {
        self.confirm_at = now + CONFIRM_INTERVAL;
    }

    /// Whether nothing is to be sent after a predicted segment, and the timer on the wheel is early enough.
    #[inline(always)]
    pub(super) fn rests(&self) -> bool {
        let until = self.connection.rests_until();
        !self.ring_full && until.is_some_and(|until| self.has_timer_by(until))
    }

    /// Whether our timer fires by `due`; also if there is nothing to wait for.
    #[inline(always)]
    fn has_timer_by(&self, due: Instant) -> bool {
        due == NEVER || self.timer.is_some_and(|(_, fires)| fires <= due)
    }

    /// Whether the flow is in the table and its last packet came from the queue `napi`.
    #[inline]
    pub(super) fn receives_from(&self, napi: Option<NapiId>) -> bool {
        self.in_table && napi.is_some() && self.napi == napi
    }

    /// Sends `data`, if it can leave at once: see [`Connection::predict_sending`].
    #[inline(always)]
    pub(super) fn send_predicted(
        &mut self,
        tuple: &Tuple,
        data: &[u8],
        inet: &Inet,
        now: Instant,
    ) -> bool {
        let Some(path) = self.path.as_deref() else { return false };
        let Some(iface) = path.fast_path(PLAIN_LEN + data.len()) else { return false };
        if !(self.in_table && path.is_current(inet)) {
            return false;
        }
        let Some(segment) = self.connection.predict_sending(data.len(), now) else { return false };
        if !path.push_plain(iface, tuple.sent_ports(), (&segment, data), now) {
            cold_path();
            return false;
        }
        self.connection.sent_predicted(data, now);
        self.ring_full = false;
        true
    }

    /// Leaves the ACK to the reader, if the reader polls and the ACK may wait.
    #[inline]
    fn leave_ack(&mut self, reads: impl FnOnce(&dyn TcpEndpoint) -> bool) {
        if let Some(endpoint) = self.endpoint.as_deref()
            && reads(endpoint)
            && self.connection.leave_ack_to_reader()
        {
            endpoint.ack_deferred_to_reader();
        }
    }

    /// The queue of the last packet is the one to poll, and the transmit queue paired with it the one to send on.
    #[inline]
    fn note_queue(&mut self, arrival: &Arrival<'_>, napi: Option<NapiId>) {
        if napi.is_some() && self.napi != napi {
            cold_path();
            self.napi = napi;
            self.queue = arrival.queue;
            if let Some(path) = &mut self.path {
                path.use_queue(arrival);
            }
        }
    }

    /// Notifies the endpoint, if there is something to report.
    #[inline]
    fn notify(&mut self, pass: &mut Pass<'_>) {
        if self.connection.take_notify()
            && let Some(endpoint) = &self.endpoint
        {
            let room = if self.connection.take_write_space() {
                Ready::WRITE_SPACE
            } else {
                Ready::default()
            };
            endpoint.changed(self.connection.ready() | room, self.napi, pass);
            if self.connection.take_sigurg() {
                cold_path();
                endpoint.urgent();
            }
        }
    }

    /// Sends everything allowed, under one lock of the ring and with one doorbell, which is left to the end of the pass
    /// if another flow is about to send on the same ring.
    #[inline]
    fn transmit(&mut self, tuple: &Tuple, inet: &Inet, pass: &mut Pass<'_>) {
        let now = pass.now;
        if !self.connection.has_to_send() {
            self.ring_full = false;
            return;
        }
        if !self.path.as_ref().is_some_and(|path| path.is_current(inet)) {
            self.renew_path(tuple, inet, now);
            if self.path_options.link != 0 && !inet.has_link(self.path_options.link) {
                return self.connection.peer_ended();
            }
        }
        let Some(path) = &self.path else {
            cold_path();
            return self.connection.transmit(now, &mut |_| true);
        };
        let later = pass.deferred.is_some() && pass.napi.is_some() && path.napi() == pass.napi;
        let (mut full, mut too_big) = (false, false);
        let mut batch = inet.segment_batch(path, now);
        self.connection.transmit(
            now,
            &mut |out| match emit::push(&mut batch, tuple, out, !later) {
                Ok(()) => true,
                Err(SendError::RingFull) => {
                    full = true;
                    false
                }
                Err(error) => {
                    cold_path();
                    // It counts as sent and lost; what does not fit will be retransmitted in smaller segments.
                    too_big |= error == SendError::TooBig;
                    true
                }
            },
        );
        if later {
            cold_path();
            batch.ring_later();
            pass.doorbell_pending = true;
        } else {
            drop(batch);
        }
        self.ring_full = full;
        if too_big {
            self.fit_path(now);
        }
    }

    /// If the connection is over, removes it from the table, or puts a TIME_WAIT entry in its place; later, if the
    /// ring was full. Returns the reference to the port, if it is not needed any more.
    #[cold]
    fn retire(&mut self, core: &Arc<Core>, inet: &Inet, now: Instant) -> Option<PortRef> {
        let ours = Entry::Flow(core.clone());
        let port_ref = match self.connection.take_time_wait().filter(|_| !self.imported) {
            Some(wait) => {
                let port_ref = self.port_ref.take();
                let begun = TimeWaitEntry::begin(
                    inet,
                    &ours,
                    core.tuple,
                    wait,
                    self.flow_claim,
                    port_ref,
                    now,
                );
                begun.err().and_then(|port_ref| {
                    inet.tcp.table.remove(&core.tuple, &ours);
                    inet.tcp_release(&self.flow_claim.of(&core.tuple));
                    port_ref
                })
            }
            None if self.connection.is_done() => {
                inet.tcp.table.remove(&core.tuple, &ours);
                inet.tcp_release(&self.flow_claim.of(&core.tuple));
                self.port_ref.take()
            }
            None => return None,
        };
        self.in_table = false;
        self.ledger_entry = None;
        if let Some((handle, _)) = self.timer.take() {
            inet.tcp_cancel(handle);
        }
        port_ref
    }

    /// The next deadline, if the timer on the wheel would be too late for it.
    #[inline(always)]
    fn deadline_before_timer(&self, now: Instant) -> Option<Instant> {
        let deadline = self.connection.deadline();
        let retry = self.ring_full.then(|| now + RETRY_DELAY);
        let due = match (deadline, retry) {
            (Some(a), Some(b)) => a.min(b),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return None,
        };
        self.timer.is_none_or(|(_, fires)| fires > due).then_some(due)
    }

    /// Sets the timer on the wheel, unless an earlier one is there.
    #[inline]
    fn set_timer(&mut self, core: &Arc<Core>, inet: &Inet, now: Instant) {
        if self.in_table
            && let Some(due) = self.deadline_before_timer(now)
        {
            let old = self.timer.map(|(handle, _)| handle);
            let handle = inet.tcp_timer(due, old, || Timer::Flow(core.clone()));
            self.timer = Some((handle, due));
        }
    }
}

impl Inet {
    /// A pass over a queue is over: sends what was deferred to its end.
    #[inline(never)]
    pub(in crate::inet) fn tcp_end_of_pass(&self, pass: &mut Pass<'_>) {
        while let Some(next) = pass.deferred.take() {
            next.run_deferred(self, pass);
        }
    }

    /// How many connections there are, from SYN to the end of TIME_WAIT.
    pub fn tcp_connections(&self) -> usize {
        self.tcp.table.len()
    }

    /// Resets the connections over `iface`, whose link has ended.
    pub(in crate::inet) fn tcp_end_link(&self, iface: &Interface, pass: &mut Pass<'_>) {
        for (_, entry) in self.tcp.table.all() {
            match entry {
                Entry::Flow(core) => core.end_link(iface, self, pass),
                Entry::SynQueue(handshake) => handshake.end_link(iface, self),
                Entry::TimeWait(_) => {}
            }
        }
    }

    /// Whether a connection goes over the link of that number.
    pub(crate) fn tcp_uses_link(&self, number: u32) -> bool {
        let uses = |entry: &Entry| match entry {
            Entry::Flow(core) => core.lock().path_options.link == number,
            _ => false,
        };
        self.tcp.table.all().iter().any(|(_, entry)| uses(entry))
    }

    /// Drops every connection and all that keeps ports for them, without sending anything: the host is about to be
    /// dropped.
    pub fn tcp_forget_all(&self) {
        for (tuple, entry) in self.tcp.table.all() {
            self.tcp.table.remove(&tuple, &entry);
            match &entry {
                Entry::Flow(core) => core.forget(self),
                Entry::SynQueue(handshake) => handshake.forget(self),
                Entry::TimeWait(time_wait) => time_wait.forget(self),
            }
        }
    }

    #[cold]
    pub(super) fn tcp_count(&self, count: Count) {
        self.counters.add(count);
    }
}
