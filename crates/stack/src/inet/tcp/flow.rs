//! A flow: a connection behind its lock, with its path, its endpoint, and its places in the table and on the
//! timer wheel. Whoever has the lock does three things in turn: changes the connection (a segment, a timer, a
//! call), sends what may go, settles what has become of it.
//!
//! Locks, in the order in which they may be taken: a handshake's; a flow's; a listener's or an endpoint's; those
//! of neighbours and of the transmit ring; claims, table and wheel, which are leaves. What we send to ourselves
//! waits until all are released.

use super::{
    Hold, Ready, TcpEndpoint,
    claims::Share,
    connection::{Connection, State as Phase},
    emit,
    segment::Segment,
    seq::Seq,
    state::Timer,
    table::Entry,
    time_wait::Resting,
    tuple::Tuple,
    wheel::{Handle, coarse},
};
use crate::{
    inet::{Count, Inet, Path, PathOptions, SendError, input::Arrival},
    ledger::{Place, Standing},
    napi::{NapiId, Pass},
    sync::{Mutex, MutexGuard, lock},
    time::Instant,
    wire::Protocol,
};
use std::{any::Any, hint::cold_path, net::SocketAddr, sync::Arc, time::Duration};

/// How long after its last timer a connection with nothing under way gives back what it can do without.
const REST: Duration = Duration::from_millis(200);

/// How soon to try again after a full transmit ring, which empties by itself.
const RETRY: Duration = Duration::from_millis(1);

/// How often a neighbour is confirmed that acknowledges what we send (RFC 4861 section 7.3.1).
const CONFIRM: Duration = Duration::from_secs(5);

/// A connection and all that belongs to it. The table, the wheel, the application and a pass that has put off
/// its answers each may hold it.
pub(super) struct Core {
    pub(super) tuple: Tuple,
    state: Mutex<State>,
}

/// What the application has let go of without saying how; done by the wheel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dropped {
    #[default]
    No,
    Close,
    Abort,
}

pub(super) struct State {
    pub(super) connection: Connection,
    /// The latest time it was told.
    latest: Instant,
    /// `None` while idle, or if there is no way: then what is sent is lost, and sent again.
    path: Option<Box<Path>>,
    pub(super) path_options: PathOptions,
    /// The transmit queue, beside the receive queue the last packet came from.
    queue: u32,
    pub(super) endpoint: Option<Arc<dyn TcpEndpoint>>,
    pub(super) napi: Option<NapiId>,
    pub(super) dropped: Dropped,
    share: Share,
    pub(super) hold: Option<Hold>,
    /// In the table.
    listed: bool,
    /// The transmit ring was full.
    full: bool,
    /// On the list of a pass, which will send what is due.
    put_off: bool,
    /// The next on that list.
    later: Option<Arc<Core>>,
    /// Our timer on the wheel, and when it fires.
    timer: Option<(Handle, Instant)>,
    /// When progress next confirms the neighbour.
    confirm_at: Instant,
    /// Its line in the host's ledger.
    place: Option<Place>,
}

/// What a flow is made of.
pub(super) struct Parts {
    pub(super) tuple: Tuple,
    pub(super) connection: Connection,
    pub(super) path: Path,
    pub(super) endpoint: Option<Arc<dyn TcpEndpoint>>,
    pub(super) napi: Option<NapiId>,
    pub(super) share: Share,
    pub(super) hold: Option<Hold>,
}

impl Core {
    /// A flow that is about to be entered into the table.
    pub(super) fn new(parts: Parts) -> Arc<Core> {
        let state = State {
            connection: parts.connection,
            latest: Instant::ZERO,
            path_options: parts.path.options,
            queue: parts.path.queue,
            path: Some(Box::new(parts.path)),
            endpoint: parts.endpoint,
            napi: parts.napi,
            dropped: Dropped::No,
            share: parts.share,
            hold: parts.hold,
            listed: true,
            full: false,
            put_off: false,
            later: None,
            timer: None,
            confirm_at: Instant::ZERO,
            place: None,
        };
        Arc::new(Core { tuple: parts.tuple, state: Mutex::new(state) })
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks it for a pass, whose time may be from before that of one that was here first: a connection's time, which
    /// its timestamps tell the peer, never goes back.
    #[inline]
    pub(super) fn enter(&self, pass: &mut Pass<'_>) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        pass.now = pass.now.max(state.latest);
        state.latest = pass.now;
        state
    }

    /// A segment has come. False if the flow has left the table.
    #[inline]
    pub(super) fn segment(
        self: &Arc<Core>,
        inet: &Inet,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let mut state = self.enter(pass);
        if !state.listed {
            cold_path();
            return false;
        }
        let taken = state.take_in(inet, segment, arrival, pass);
        // A full segment is seldom the last.
        let more = segment.payload.len() >= state.connection.full_segment();
        let sends = state.connection.has_to_send();
        if taken && !more && !sends && state.untimed(pass.now).is_none() {
            // The reader has it and is about to answer.
            state.note(&self.tuple, inet);
            return true;
        }
        if pass.batched && (more || sends) {
            // What is sent at the end of the pass answers all its segments.
            if !std::mem::replace(&mut state.put_off, true) {
                // Nobody else puts anything there.
                state.later =
                    pass.later.replace(self.clone()).and_then(|next| next.downcast().ok());
            }
            return true;
        }
        self.finish(state, inet, pass);
        true
    }

    /// A segment has come for a flow that is on the list of this pass. False if it has left the table since.
    #[inline]
    pub(super) fn segment_again(
        &self,
        inet: &Inet,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let mut state = self.enter(pass);
        if state.listed {
            state.take_in(inet, segment, arrival, pass);
        }
        state.listed
    }

    /// The pass that has put us off is over: `rest` gets those put off before us.
    pub(super) fn catch_up(self: &Arc<Core>, inet: &Inet, pass: &mut Pass<'_>) {
        let mut state = self.enter(pass);
        state.put_off = false;
        pass.later = state.later.take().map(|next| next as Arc<dyn Any + Send + Sync>);
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
        match std::mem::take(&mut state.dropped) {
            Dropped::No => {}
            Dropped::Close => state.connection.close(now),
            Dropped::Abort => state.connection.abort(now),
        }
        match state.connection.deadline() {
            Some(at) if at <= now => {
                state.connection.timer(now);
                // Perhaps an acknowledgment that was put off, and the last thing to do: comes back to rest.
                if state.timer.is_none() {
                    let at = coarse(now, now + REST);
                    let handle = inet.tcp_timer(at, None, || Timer::Flow(self.clone()));
                    state.timer = Some((handle, at));
                }
            }
            Some(_) => {}
            // Nothing has been under way for a while: what an idle connection can do without goes.
            None => {
                state.path = None;
                state.connection.rest();
            }
        }
        self.finish(state, inet, pass);
    }

    /// Sends what may go and settles the rest.
    #[inline]
    pub(super) fn finish(
        self: &Arc<Core>,
        mut state: MutexGuard<'_, State>,
        inet: &Inet,
        pass: &mut Pass<'_>,
    ) {
        state.transmit(&self.tuple, inet, pass.now);
        state.tell(pass);
        if !state.listed {
            cold_path();
            return;
        }
        state.note(&self.tuple, inet);
        let over = matches!(state.connection.state(), Phase::TimeWait | Phase::Closed);
        let hold = if over { state.retire(self, inet, pass.now) } else { None };
        state.set_timer(self, inet, pass.now);
        // Letting go of the kernel's socket takes system calls: not under our lock.
        drop(state);
        drop(hold);
    }

    /// The application has let go, and has no pass to say goodbye in: the wheel will.
    pub(super) fn drop_later(self: &Arc<Core>, how: Dropped, inet: &Inet) {
        let mut state = self.lock();
        state.endpoint = None;
        // What was closed already needs no goodbye.
        if state.listed && (how == Dropped::Abort || !state.connection.orphan) {
            state.dropped = how;
            let old = state.timer.map(|(handle, _)| handle);
            let handle = inet.tcp_timer(Instant::ZERO, old, || Timer::Flow(self.clone()));
            state.timer = Some((handle, Instant::ZERO));
        }
    }

    /// See [`Connection::give_way`].
    pub(super) fn make_room(self: &Arc<Core>, inet: &Inet, now: Instant) -> Option<Seq> {
        let mut state = self.lock();
        let next = state.connection.give_way()?;
        let hold = state.retire(self, inet, now);
        drop(state);
        drop(hold);
        Some(next)
    }

    /// The host goes: lets go of everything that may hold the host.
    pub(super) fn forget(&self, inet: &Inet) {
        let mut state = self.lock();
        state.listed = false;
        state.place = None;
        state.endpoint = None;
        let (hold, timer) = (state.hold.take(), state.timer.take());
        inet.tcp_release(&state.share.of(&self.tuple));
        drop(state);
        if let Some((handle, _)) = timer {
            inet.tcp_cancel(handle);
        }
        drop(hold);
    }
}

impl State {
    /// The connection is given a segment. Whether a reader who was waiting has taken what it brought, which is all the
    /// news there is.
    #[inline(always)]
    fn take_in(
        &mut self,
        inet: &Inet,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let before = self.connection.snd_una;
        self.learn(arrival, pass.napi);
        let (endpoint, napi, now) = (self.endpoint.as_deref(), self.napi, pass.now);
        // Data is the only news: who polls for it may take it at once.
        let taken = self.connection.segment_for(segment, now, &mut |data| {
            endpoint.is_some_and(|endpoint| endpoint.take(napi, data, pass))
        });
        self.leave_ack(|_| taken);
        if before != self.connection.snd_una && self.confirm_at <= pass.now {
            cold_path();
            self.confirm_at = pass.now + CONFIRM;
            if let Some(path) = &self.path {
                inet.confirm(path, pass.now);
            }
        }
        taken
    }

    /// The acknowledgment is left to the reader, if he is there and it can be.
    #[inline]
    fn leave_ack(&mut self, reads: impl FnOnce(&dyn TcpEndpoint) -> bool) {
        if let Some(endpoint) = self.endpoint.as_deref()
            && reads(endpoint)
            && self.connection.leave_ack_to_reader()
        {
            endpoint.ack_is_left();
        }
    }

    /// The queue a packet came from is the one to poll, and the one beside it the one to send on.
    #[inline]
    fn learn(&mut self, arrival: &Arrival<'_>, napi: Option<NapiId>) {
        if napi.is_some() && self.napi != napi {
            cold_path();
            self.napi = napi;
            self.queue = arrival.queue;
            if let Some(path) = &mut self.path {
                path.use_queue(arrival);
            }
        }
    }

    /// Tells the endpoint, if there is something to tell.
    #[inline]
    fn tell(&mut self, pass: &mut Pass<'_>) {
        if self.connection.take_news()
            && let Some(endpoint) = &self.endpoint
        {
            let room = if self.connection.take_room() { Ready::ROOM } else { Ready::default() };
            endpoint.changed(self.connection.ready() | room, self.napi, pass);
            if self.connection.take_urgent_news() {
                cold_path();
                endpoint.urgent();
            }
        }
    }

    /// Sends all that may go now, under one lock of the ring and with one doorbell.
    #[inline]
    fn transmit(&mut self, tuple: &Tuple, inet: &Inet, now: Instant) {
        if !self.connection.has_to_send() {
            self.full = false;
            return;
        }
        if !self.path.as_ref().is_some_and(|path| path.is_current(inet)) {
            self.renew_path(tuple, inet, now);
        }
        let Some(path) = &self.path else {
            cold_path();
            return self.connection.transmit(now, &mut |_| true);
        };
        let (mut full, mut too_big) = (false, false);
        let mut run = inet.run(path, now);
        self.connection.transmit(now, &mut |out| match emit::push(&mut run, tuple, out) {
            Ok(()) => true,
            Err(SendError::RingFull) => {
                full = true;
                false
            }
            Err(error) => {
                cold_path();
                // It counts as sent, and as lost; what does not fit will be cut smaller.
                too_big |= error == SendError::TooBig;
                true
            }
        });
        drop(run);
        self.full = full;
        if too_big {
            self.fit_path(now);
        }
    }

    /// The way has changed, or what is known of it.
    #[cold]
    pub(super) fn renew_path(&mut self, tuple: &Tuple, inet: &Inet, now: Instant) {
        let ends = (tuple.local(), tuple.remote());
        // Without a new way the old one, if there is one, is tried.
        if let Ok(path) = inet.tcp_path(ends, self.queue, self.path_options, now) {
            match &mut self.path {
                Some(old) => **old = path,
                none => *none = Some(Box::new(path)),
            }
            self.fit_path(now);
        }
    }

    /// Segments become as large as the path takes: smaller, or larger once what ICMP told is forgotten (Linux's
    /// `tcp_current_mss`).
    pub(super) fn fit_path(&mut self, now: Instant) {
        if let Some(path) = &self.path {
            self.connection.path_mss(mss(path.most()), now);
        }
    }

    /// `IP_TTL` and `IP_TOS` have changed.
    pub(super) fn set_path_options(
        &mut self,
        options: PathOptions,
        tuple: &Tuple,
        inet: &Inet,
        now: Instant,
    ) {
        self.path_options = options;
        self.renew_path(tuple, inet, now);
    }

    /// It is over: out of the table, or a TIME_WAIT entry takes its place there. Waits if the ring was full.
    /// What holds the port, if nobody needs it any more.
    #[cold]
    fn retire(&mut self, core: &Arc<Core>, inet: &Inet, now: Instant) -> Option<Hold> {
        let ours = Entry::Flow(core.clone());
        let hold = match self.connection.take_time_wait() {
            Some(wait) => {
                let hold = self.hold.take();
                let begun = Resting::begin(inet, &ours, core.tuple, wait, self.share, hold, now);
                begun.err().and_then(|hold| {
                    inet.tcp.table.remove(&core.tuple, &ours);
                    inet.tcp_release(&self.share.of(&core.tuple));
                    hold
                })
            }
            None if self.connection.is_done() => {
                inet.tcp.table.remove(&core.tuple, &ours);
                inet.tcp_release(&self.share.of(&core.tuple));
                self.hold.take()
            }
            None => return None,
        };
        self.listed = false;
        self.place = None;
        if let Some((handle, _)) = self.timer.take() {
            inet.tcp_cancel(handle);
        }
        hold
    }

    /// Keeps the ledger, if there is one.
    #[inline]
    fn note(&mut self, tuple: &Tuple, inet: &Inet) {
        let Some(ledger) = inet.ledger() else { return };
        if self.place.is_none() {
            cold_path();
            self.place = ledger.enter(Protocol::TCP, tuple.local(), Some(tuple.remote()));
        }
        if let Some(place) = &self.place {
            let connection = &self.connection;
            place.note(&Standing {
                state: connection.state().number(),
                snd_nxt: connection.snd_nxt.0,
                rcv_nxt: connection.rcv_nxt().0,
                unread: connection.unread(),
                unacknowledged: connection.unacknowledged(),
                napi: self.napi,
            });
        }
    }

    /// When the wheel has to call, if it would not by then.
    #[inline]
    fn untimed(&self, now: Instant) -> Option<Instant> {
        let deadline = self.connection.deadline();
        let retry = self.full.then(|| now + RETRY);
        let due = match (deadline, retry) {
            (Some(a), Some(b)) => a.min(b),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return None,
        };
        self.timer.is_none_or(|(_, fires)| fires > due).then_some(due)
    }

    /// Sees to it that the wheel calls in time. A timer that is there already and earlier stays.
    #[inline]
    fn set_timer(&mut self, core: &Arc<Core>, inet: &Inet, now: Instant) {
        if self.listed
            && let Some(due) = self.untimed(now)
        {
            let old = self.timer.map(|(handle, _)| handle);
            let handle = inet.tcp_timer(due, old, || Timer::Flow(core.clone()));
            self.timer = Some((handle, due));
        }
    }
}

/// The largest segment a path takes, bytes of data without options.
pub(super) fn mss(most: usize) -> u16 {
    const HEADER: usize = crate::wire::tcp::HEADER_LEN;
    u16::try_from(most.saturating_sub(HEADER)).unwrap_or(u16::MAX)
}

impl Inet {
    /// The way of a connection's segments.
    pub(super) fn tcp_path(
        &self,
        ends: (SocketAddr, SocketAddr),
        queue: u32,
        options: PathOptions,
        now: Instant,
    ) -> Result<Path, SendError> {
        self.path_of(Protocol::TCP, ends, queue, options, now)
    }

    /// A pass over a queue is over: sends what was put off to its end.
    #[inline]
    pub(in crate::inet) fn tcp_end_of_pass(&self, pass: &mut Pass<'_>) {
        while let Some(next) = pass.later.take() {
            // Nobody else puts anything there.
            if let Ok(core) = next.downcast::<Core>() {
                core.catch_up(self, pass);
            }
        }
    }

    /// How many connections there are, from SYN to the end of TIME_WAIT.
    pub fn tcp_connections(&self) -> usize {
        self.tcp.table.len()
    }

    /// Forgets every connection and all that keeps ports for them, without a word to their peers: the host is
    /// about to go.
    pub fn tcp_forget_all(&self) {
        for (tuple, entry) in self.tcp.table.all() {
            self.tcp.table.remove(&tuple, &entry);
            match &entry {
                Entry::Flow(core) => core.forget(self),
                Entry::Pending(pending) => pending.forget(self),
                Entry::Resting(resting) => resting.forget(self),
            }
        }
    }

    #[cold]
    pub(super) fn tcp_count(&self, count: Count) {
        self.counters.add(count);
    }
}
