//! The SYN queue: handshakes of a listener that are not complete. Each is an entry of the table, counted by its
//! listener.

use super::{
    connection::{Connection, Start},
    flow::{Core, NewFlow, mss},
    handshake::{Answer, Request},
    listener::{Listener, Refused},
    segment::{Flags, Segment},
    seq::Seq,
    state::Timer,
    table::Entry,
    time_wait::TimeWaitEntry,
    tuple::Tuple,
    wheel::Handle,
};
use crate::{
    inet::{Count, Inet, Interface, Pass, Path, input::Arrival},
    memory_pressure::{self, Level},
    sync::{Mutex, lock},
    time::Instant,
};
use std::sync::Arc;

/// One handshake.
pub(super) struct SynQueueEntry {
    tuple: Tuple,
    listener: Arc<Listener>,
    state: Mutex<State>,
}

struct State {
    request: Request,
    /// `None` once a flow has replaced the entry, or the handshake has failed.
    path: Option<Path>,
    timer: Option<Handle>,
    /// It is offered to the listener's process, and not answered before that accepts it.
    is_offer: bool,
}

/// What became of a segment for a handshake.
pub(super) enum Outcome {
    Done,
    /// The entry has just become a flow, or has failed: look up again.
    Gone,
}

impl Inet {
    /// A SYN for a listener. `after`: the TIME_WAIT entry of an earlier connection that it replaces, and our first
    /// sequence number then.
    #[cold]
    pub(super) fn tcp_syn(
        &self,
        listener: &Arc<Listener>,
        tuple: Tuple,
        syn: &Segment<'_>,
        after: Option<(&Arc<TimeWaitEntry>, Seq)>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) {
        let config = self.tcp.config();
        let full = listener.syn_queue_is_full(config) && after.is_none();
        if full && !config.tcp_syncookies {
            self.tcp_count(Count::TcpExtTCPReqQFullDrop);
            return self.tcp_count(Count::TcpExtListenDrops);
        }
        if listener.accept_queue_is_full() || memory_pressure::is(Level::Short) {
            self.tcp_count(Count::TcpExtListenOverflows);
            return self.tcp_count(Count::TcpExtListenDrops);
        }
        if full {
            return self.tcp_cookie(listener, tuple, syn, arrival, pass);
        }
        let ends = (tuple.local(), tuple.remote());
        let (options, path_options) = listener.options_for(arrival);
        let Ok(path) = self.tcp_path(ends, arrival.queue, path_options, pass.now) else {
            return self.tcp_count(Count::TcpExtListenDrops);
        };
        let start = Start {
            iss: after.map_or_else(|| self.tcp.secrets.isn(&tuple, pass.now), |(_, iss)| iss),
            ts_offset: self.tcp.secrets.timestamp_offset(&tuple),
            mss: mss(path.max_transport_len()),
        };
        let mut request = Request::new(&self.tcp.shared, &options, syn, start, pass.now);
        if !listener.syn_queue_add() {
            return self.tcp_count(Count::TcpExtListenDrops);
        }
        let is_offer = arrival.link() != 0 && listener.is_shared();
        let syn_ack = (!is_offer).then(|| request.syn_ack(pass.now));
        let deadline = request.deadline();
        let state = State { request, path: Some(path), timer: None, is_offer };
        let listener = listener.clone();
        let handshake = Arc::new(SynQueueEntry { tuple, listener, state: Mutex::new(state) });
        let mut state = lock(&handshake.state);
        if let Some((time_wait, _)) = after {
            time_wait.deschedule(self);
        }
        if !self.tcp.table.insert(tuple, Entry::SynQueue(handshake.clone())) {
            // The same SYN came first on another queue.
            state.path = None;
            return handshake.listener.syn_queue_remove();
        }
        let Some((path, syn_ack)) = state.path.as_ref().zip(syn_ack) else {
            drop(state);
            if !handshake.listener.offer(&handshake, pass) {
                handshake.refuse(self, pass.now);
            }
            return;
        };
        self.tcp_send_bare(path, &tuple, syn_ack, pass.now);
        let timer = || Timer::SynQueue(handshake.clone());
        state.timer = Some(self.tcp_timer(deadline, None, timer));
    }

    /// Answers a SYN with a cookie, as the SYN queue is full: no state is kept.
    fn tcp_cookie(
        &self,
        listener: &Listener,
        tuple: Tuple,
        syn: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) {
        let (options, path_options) = listener.options_for(arrival);
        let Ok(route) = self.tcp_reply_route(&tuple, arrival, path_options, pass.now) else {
            return self.tcp_count(Count::TcpExtListenDrops);
        };
        let ts_offset = self.tcp.secrets.timestamp_offset(&tuple);
        let iss = self.tcp.secrets.isn(&tuple, pass.now);
        let start = Start { iss, ts_offset, mss: mss(route.max_transport_len()) };
        let mut request = Request::new(&self.tcp.shared, &options, syn, start, pass.now);
        self.tcp_count(Count::TcpExtTCPReqQFullDoCookies);
        self.tcp_count(Count::TcpExtSyncookiesSent);
        listener.note_cookie(pass.now);
        let answer = self.tcp.cookies.syn_ack(&tuple, &mut request, ts_offset, pass.now);
        self.tcp_answer(&route, &tuple, answer, pass);
    }

    /// A segment that is neither a SYN nor of a connection has come to a listener: is it the answer to a cookie?
    /// False if it is not.
    #[cold]
    pub(super) fn tcp_cookie_input(
        &self,
        listener: &Arc<Listener>,
        tuple: Tuple,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let flags = segment.flags;
        if !flags.has(Flags::ACK) || flags.has(Flags::RST) || flags.has(Flags::SYN) {
            return false;
        }
        if !listener.sent_cookies(pass.now) {
            return false;
        }
        let ts_offset = self.tcp.secrets.timestamp_offset(&tuple);
        let Some(agreed) = self.tcp.cookies.agreed(&tuple, segment, ts_offset, pass.now) else {
            self.tcp_count(Count::TcpExtSyncookiesFailed);
            return false;
        };
        self.tcp_count(Count::TcpExtSyncookiesRecv);
        let (options, path_options) = listener.options_for(arrival);
        let ends = (tuple.local(), tuple.remote());
        let Ok(path) = self.tcp_path(ends, arrival.queue, path_options, pass.now) else {
            return true;
        };
        let start = Start { iss: segment.ack - 1, ts_offset, mss: mss(path.max_transport_len()) };
        let shared = &self.tcp.shared;
        let request = Request::from_cookie(shared, &options, segment, agreed, start, pass.now);
        match listener.reserve() {
            Ok(()) => {}
            Err(Refused::Full) => {
                self.tcp_count(Count::TcpExtListenOverflows);
                self.tcp_count(Count::TcpExtListenDrops);
                return true;
            }
            Err(Refused::Closed) => return false,
        }
        let core = self.tcp_accepted(listener, tuple, &request, path, pass);
        if !self.tcp.table.insert(tuple, Entry::Flow(core.clone())) {
            listener.unreserve();
            self.tcp_release(&listener.flow_claim().of(&tuple));
            return true;
        }
        core.segment(self, segment, arrival, pass);
        listener.push(core, self, pass);
        true
    }

    /// Makes the flow of a complete handshake. The accept queue has room for it.
    pub(super) fn tcp_accepted(
        &self,
        listener: &Arc<Listener>,
        tuple: Tuple,
        request: &Request,
        path: Path,
        pass: &mut Pass<'_>,
    ) -> Arc<Core> {
        let (options, _) = listener.options();
        let shared = &self.tcp.shared;
        let mss = mss(path.max_transport_len());
        let connection = Connection::accepted(shared, &options, request, mss, pass.now);
        let flow_claim = listener.flow_claim();
        lock(&self.tcp.claims).add(&flow_claim.of(&tuple));
        self.tcp_count(Count::TcpPassiveOpens);
        if path.interface().is_some_and(|interface| interface.link() != 0) {
            self.tcp_count(Count::TcpLinkPassiveOpens);
        }
        let port_ref = listener.port_ref();
        let napi = pass.napi;
        Core::new(NewFlow { tuple, connection, path, endpoint: None, napi, flow_claim, port_ref })
    }
}

impl SynQueueEntry {
    /// A segment has come.
    #[cold]
    pub(super) fn segment(
        self: &Arc<SynQueueEntry>,
        inet: &Inet,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> Outcome {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let Some(path) = &mut state.path else { return Outcome::Gone };
        self.renew_path(path, inet, pass);
        path.use_queue(arrival);
        match state.request.segment(&inet.tcp.shared, segment, pass.now) {
            Answer::Ignore => {}
            Answer::SynAck | Answer::Accept if state.is_offer => {}
            Answer::Send(answer) => inet.tcp_send_bare(path, &self.tuple, answer, pass.now),
            Answer::SynAck => {
                let syn_ack = state.request.syn_ack(pass.now);
                inet.tcp_send_bare(path, &self.tuple, syn_ack, pass.now);
            }
            Answer::Forget => {
                inet.tcp_count(Count::TcpAttemptFails);
                self.fail(state, inet);
            }
            Answer::Accept => match self.listener.reserve() {
                Ok(()) => {
                    let Some(path) = state.path.take() else { return Outcome::Gone };
                    let core =
                        inet.tcp_accepted(&self.listener, self.tuple, &state.request, path, pass);
                    let ours = Entry::SynQueue(self.clone());
                    let table = &inet.tcp.table;
                    if !table.replace(self.tuple, &ours, Entry::Flow(core.clone())) {
                        // The host is about to be dropped.
                        self.listener.unreserve();
                        inet.tcp_release(&self.listener.flow_claim().of(&self.tuple));
                        return Outcome::Done;
                    }
                    self.finish(state, inet);
                    drop(guard);
                    core.segment(inet, segment, arrival, pass);
                    self.listener.push(core, inet, pass);
                }
                Err(Refused::Full) => {
                    inet.tcp_count(Count::TcpExtListenOverflows);
                    inet.tcp_count(Count::TcpExtListenDrops);
                    // As Linux: the handshake stays as it is, and its next SYN-ACK makes the peer send this segment
                    // again.
                    if inet.tcp.config().tcp_abort_on_overflow {
                        inet.tcp_send_bare(path, &self.tuple, segment.refusal(), pass.now);
                        self.fail(state, inet);
                    }
                }
                Err(Refused::Closed) => {
                    inet.tcp_send_bare(path, &self.tuple, segment.refusal(), pass.now);
                    self.fail(state, inet);
                }
            },
        }
        Outcome::Done
    }

    /// The SYN-ACK was not answered in time.
    #[cold]
    pub(super) fn timer(self: &Arc<SynQueueEntry>, inet: &Inet, pass: &mut Pass<'_>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.timer = None;
        if state.path.is_none() {
            return;
        }
        if self.listener.is_closed() {
            return self.fail(state, inet);
        }
        let deadline = state.request.deadline();
        if deadline <= pass.now {
            match state.request.timer(&inet.tcp.shared, pass.now) {
                Answer::Forget => {
                    inet.tcp_count(Count::TcpAttemptFails);
                    return self.fail(state, inet);
                }
                Answer::SynAck => self.resend_syn_ack(state, inet, pass),
                _ => {}
            }
        }
        let timer = || Timer::SynQueue(self.clone());
        state.timer = Some(inet.tcp_timer(state.request.deadline(), None, timer));
    }

    /// Sends the SYN-ACK again, over a new path if need be.
    fn resend_syn_ack(&self, state: &mut State, inet: &Inet, pass: &mut Pass<'_>) {
        let Some(path) = &mut state.path else { return };
        self.renew_path(path, inet, pass);
        inet.tcp_count(Count::TcpRetransSegs);
        let syn_ack = state.request.syn_ack(pass.now);
        inet.tcp_send_bare(path, &self.tuple, syn_ack, pass.now);
    }

    /// Looks the path up again if anything has changed, so that the next answer goes to a gateway that took over.
    fn renew_path(&self, path: &mut Path, inet: &Inet, pass: &Pass<'_>) {
        if !path.is_current(inet) {
            let ends = (self.tuple.local(), self.tuple.remote());
            if let Ok(new) = inet.tcp_path(ends, path.queue, path.options, pass.now) {
                *path = new;
            }
        }
    }

    /// Whether our SYN-ACK has this number.
    pub(super) fn has_sent(&self, seq: Seq) -> bool {
        lock(&self.state).request.iss == seq
    }

    /// An ICMP error about our SYN-ACK: it cannot be delivered.
    pub(super) fn unreachable(self: &Arc<SynQueueEntry>, inet: &Inet) {
        let mut state = lock(&self.state);
        if state.path.is_some() {
            inet.tcp_count(Count::TcpAttemptFails);
            self.fail(&mut state, inet);
        }
    }

    /// The listener's process accepts what it was offered. `None`: the client has gone elsewhere.
    pub(super) fn accept(
        self: &Arc<SynQueueEntry>,
        inet: &Inet,
        pass: &mut Pass<'_>,
    ) -> Option<Arc<Core>> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let path = state.path.take()?;
        let syn_ack = state.request.syn_ack(pass.now);
        let core = inet.tcp_accepted(&self.listener, self.tuple, &state.request, path, pass);
        let replaced = inet.tcp.table.replace(
            self.tuple,
            &Entry::SynQueue(self.clone()),
            Entry::Flow(core.clone()),
        );
        self.finish(state, inet);
        if !replaced {
            // The host is about to be dropped.
            inet.tcp_release(&self.listener.flow_claim().of(&self.tuple));
            return None;
        }
        let ack = state.request.ack_over_link();
        drop(guard);
        core.answer_offer(inet, &ack, syn_ack, pass);
        Some(core)
    }

    /// Refuses a connection that is offered.
    pub(super) fn refuse(self: &Arc<SynQueueEntry>, inet: &Inet, now: Instant) {
        let mut guard = lock(&self.state);
        if let Some(path) = &guard.path {
            inet.tcp_send_bare(path, &self.tuple, guard.request.refusal(), now);
            self.fail(&mut guard, inet);
        }
    }

    /// The link that it came over has ended, and it was not accepted.
    pub(super) fn end_link(self: &Arc<SynQueueEntry>, iface: &Interface, inet: &Inet) {
        let mut state = lock(&self.state);
        if state
            .path
            .as_ref()
            .is_some_and(|path| path.interface().is_some_and(|it| it.link() == iface.link()))
        {
            self.fail(&mut state, inet);
        }
    }

    pub(super) fn forget(self: &Arc<SynQueueEntry>, inet: &Inet) {
        let mut state = lock(&self.state);
        if state.path.is_some() {
            self.fail(&mut state, inet);
        }
    }

    fn fail(self: &Arc<SynQueueEntry>, state: &mut State, inet: &Inet) {
        state.path = None;
        if state.is_offer {
            self.listener.withdraw(self);
        }
        inet.tcp.table.remove(&self.tuple, &Entry::SynQueue(self.clone()));
        self.finish(state, inet);
    }

    fn finish(&self, state: &mut State, inet: &Inet) {
        if let Some(handle) = state.timer.take() {
            inet.tcp_cancel(handle);
        }
        self.listener.syn_queue_remove();
    }
}
