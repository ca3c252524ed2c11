//! TIME_WAIT (RFC 9293 section 3.6): what remains of a connection that we closed first, to answer its late segments
//! and to repeat its last ACK. A small entry in the table, not a connection; Linux's `tcp_timewait_state_process`.

use super::{
    PortRef,
    claims::FlowClaim,
    connection::TimeWait,
    input::{TIME_WAIT, millis},
    isn,
    segment::{Flags, Options, Segment},
    seq::Seq,
    state::Timer,
    table::Entry,
    tuple::Tuple,
    wheel::{Handle, with_slack},
};
use crate::{
    inet::{Count, Inet, PathOptions, input::Arrival},
    sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock},
    time::Instant,
};
use std::{sync::Arc, time::Duration};

/// RFC 6191 section 2: timestamps distinguish the connections once their clock has advanced; a second, as Linux.
const REUSE_AFTER: Duration = Duration::from_secs(1);

/// One TIME_WAIT entry.
pub(super) struct TimeWaitEntry {
    tuple: Tuple,
    flow_claim: FlowClaim,
    state: Mutex<State>,
}

struct State {
    wait: TimeWait,
    port_ref: Option<PortRef>,
    /// No other entry or listener shares the port reference.
    own_port: bool,
    timer: Option<Handle>,
    /// When a segment out of place was last answered.
    answered_at: Option<Instant>,
    over: bool,
}

/// What to do about a segment for a TIME_WAIT entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Nothing,
    Answer(Segment<'static>),
    /// A SYN that is certainly new: goes to a listener, with this first sequence number of ours.
    NewSyn(Seq),
    /// The entry is gone.
    Gone,
}

impl TimeWaitEntry {
    /// Replaces a flow by an entry. Fails if there are too many entries, and returns the port reference; or if the flow
    /// has left the table.
    pub(super) fn begin(
        inet: &Inet,
        flow: &Entry,
        tuple: Tuple,
        wait: TimeWait,
        flow_claim: FlowClaim,
        port_ref: Option<PortRef>,
        now: Instant,
    ) -> Result<(), Option<PortRef>> {
        let tcp = &inet.tcp;
        // The port reference of a listener is shared, and kept in any case.
        let own_port = port_ref.as_ref().is_some_and(|port_ref| Arc::strong_count(port_ref) == 1);
        let enter = |entries: &AtomicU32, most| {
            let room = entries.fetch_add(1, Ordering::Relaxed) < most;
            if !room {
                entries.fetch_sub(1, Ordering::Relaxed);
            }
            room
        };
        let config = tcp.config();
        let mut room = enter(&tcp.time_wait_entries, config.tcp_max_tw_buckets);
        if room && own_port && !enter(&tcp.time_wait_ports, config.tcp_max_tw_ports) {
            tcp.time_wait_entries.fetch_sub(1, Ordering::Relaxed);
            room = false;
        }
        if !room {
            inet.tcp_count(Count::TcpExtTCPTimeWaitOverflow);
            return Err(port_ref);
        }
        let state = State { wait, port_ref, own_port, timer: None, answered_at: None, over: false };
        let time_wait = Arc::new(TimeWaitEntry { tuple, flow_claim, state: Mutex::new(state) });
        let until = with_slack(now, wait.until);
        let handle = inet.tcp_timer(until, None, || Timer::TimeWait(time_wait.clone()));
        lock(&time_wait.state).timer = Some(handle);
        if tcp.table.replace(tuple, flow, Entry::TimeWait(time_wait)) { Ok(()) } else { Err(None) }
    }

    /// A segment has come.
    #[cold]
    pub(super) fn segment(
        self: &Arc<TimeWaitEntry>,
        inet: &Inet,
        segment: &Segment<'_>,
        now: Instant,
    ) -> Outcome {
        let mut state = lock(&self.state);
        if state.over {
            return Outcome::Gone;
        }
        let config = inet.tcp.config();
        let flags = segment.flags;
        let wait = state.wait;
        let stamp =
            segment.options.timestamps.zip(wait.timestamps).map(|(new, old)| (new.0, old.0));
        //= RFC 7323 5.3
        //# R1) If there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is valid
        //# (see later discussion), and if the RST bit is not set, then treat the arriving segment as not acceptable:
        let old = stamp.is_some_and(|(new, recent)| recent.wrapping_sub(new) as i32 > 0);
        if !old && segment.seq == wait.rcv_nxt && (segment.is_empty() || flags.has(Flags::RST)) {
            if flags.has(Flags::RST) {
                // RFC 1337 section 3: "Ignore RST segments in TIME-WAIT state" is an option here, as in Linux.
                if !config.tcp_rfc1337 {
                    self.end(state, inet);
                }
                return Outcome::Nothing;
            }
            if let (Some((new, _)), Some(times)) = (stamp, &mut state.wait.timestamps) {
                times.0 = new;
            }
            self.restart(&mut state, inet, now);
            return Outcome::Nothing;
        }
        let control = Flags::SYN | Flags::ACK | Flags::RST;
        let syn = flags.0 & control.0 == Flags::SYN.0;
        //= RFC 9293 3.6.1
        //# However, it MAY accept a new SYN from the remote TCP endpoint to reopen the connection directly from
        //# TIME-WAIT state (MAY-2), if it: (1) assigns its initial sequence number for the new connection to be
        //# larger than the largest sequence number it used on the previous connection incarnation
        //= RFC 9293 3.6.1
        //# This algorithm for reducing TIME-WAIT is a Best Current Practice that SHOULD be implemented since
        //# Timestamp Options are commonly used
        // Newer by number or by timestamp (RFC 6191).
        let newer = segment.seq.after(wait.rcv_nxt)
            || stamp.is_some_and(|(new, recent)| (new.wrapping_sub(recent) as i32) > 0);
        if syn && !old && newer {
            return Outcome::NewSyn(isn::after(wait.snd_nxt));
        }
        if old {
            inet.tcp_count(Count::PAWSEstab);
        }
        if flags.has(Flags::RST) {
            return Outcome::Nothing;
        }
        // A SYN may also be an old duplicate: it does not prolong TIME_WAIT.
        if old || flags.has(Flags::ACK) {
            self.restart(&mut state, inet, now);
        }
        //= RFC 9293 3.10.7.4
        //# The only thing that can arrive in this state is a retransmission of the remote FIN. Acknowledge it, and
        //# restart the 2 MSL timeout.
        // Or an old segment has come, which gets our present ACK.
        let interval = config.tcp_invalid_ratelimit;
        let fin = flags.has(Flags::FIN) && !old;
        if !fin && state.answered_at.is_some_and(|at| now.since(at) < interval) {
            return Outcome::Nothing;
        }
        state.answered_at = Some(now);
        let timestamps =
            wait.timestamps.map(|(recent, offset)| (millis(now).wrapping_add(offset), recent));
        Outcome::Answer(Segment {
            seq: wait.snd_nxt,
            ack: wait.rcv_nxt,
            flags: Flags::ACK,
            window: wait.window,
            options: Options { timestamps, ..Options::default() },
            ..Segment::default()
        })
    }

    /// Ends the entry, so that a new connection of ours can use its 4-tuple, if the segments of the two cannot be
    /// confused (RFC 6191; `tcp_twsk_unique`). Returns the first sequence number of the new one. A `named` port has
    /// no alternative, so the connection need not have rested for [`REUSE_AFTER`].
    pub(super) fn try_reuse(
        self: &Arc<TimeWaitEntry>,
        inet: &Inet,
        named: bool,
        now: Instant,
    ) -> Option<Seq> {
        let state = lock(&self.state);
        let left = state.wait.until - now;
        let rested = inet.tcp.config().tcp_tw_reuse && left + REUSE_AFTER <= TIME_WAIT;
        if state.over || state.wait.timestamps.is_none() || !(named || rested) {
            return None;
        }
        inet.tcp_count(Count::TcpExtTWRecycled);
        let next = isn::after(state.wait.snd_nxt);
        self.end(state, inet);
        Some(next)
    }

    /// A new connection takes the place of this entry.
    pub(super) fn deschedule(self: &Arc<TimeWaitEntry>, inet: &Inet) {
        self.end(lock(&self.state), inet);
    }

    /// The time of the entry is over.
    #[cold]
    pub(super) fn timer(self: &Arc<TimeWaitEntry>, inet: &Inet) {
        inet.tcp_count(Count::TcpExtTW);
        let mut state = lock(&self.state);
        state.timer = None;
        self.end(state, inet);
    }

    pub(super) fn forget(self: &Arc<TimeWaitEntry>, inet: &Inet) {
        self.end(lock(&self.state), inet);
    }

    /// Sends an answer, with default path options.
    pub(super) fn answer(
        &self,
        inet: &Inet,
        segment: Segment<'static>,
        arrival: &Arrival<'_>,
        now: Instant,
    ) {
        let ends = (self.tuple.local(), self.tuple.remote());
        let options = PathOptions { link: arrival.link(), ..PathOptions::default() };
        if let Ok(path) = inet.tcp_path(ends, arrival.queue, options, now) {
            inet.tcp_send_bare(&path, &self.tuple, segment, now);
        }
    }

    fn restart(self: &Arc<TimeWaitEntry>, state: &mut State, inet: &Inet, now: Instant) {
        state.wait.until = now + TIME_WAIT;
        let timer = || Timer::TimeWait(self.clone());
        let until = with_slack(now, state.wait.until);
        state.timer = Some(inet.tcp_timer(until, state.timer, timer));
    }

    fn end(self: &Arc<TimeWaitEntry>, mut state: MutexGuard<'_, State>, inet: &Inet) {
        if std::mem::replace(&mut state.over, true) {
            return;
        }
        if let Some(handle) = state.timer.take() {
            inet.tcp_cancel(handle);
        }
        // Dropping the kernel's socket takes system calls: not under our lock.
        let (port_ref, own_port) = (state.port_ref.take(), state.own_port);
        drop(state);
        drop(port_ref);
        inet.tcp.time_wait_ports.fetch_sub(own_port.into(), Ordering::Relaxed);
        inet.tcp.table.remove(&self.tuple, &Entry::TimeWait(self.clone()));
        inet.tcp.time_wait_entries.fetch_sub(1, Ordering::Relaxed);
        inet.tcp_release(&self.flow_claim.of(&self.tuple));
    }
}
