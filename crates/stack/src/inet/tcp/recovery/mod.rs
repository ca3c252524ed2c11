//! Loss recovery and congestion control: what is in flight, what was lost, how much may be sent. [`Recovery`] is the
//! only interface: it records what was sent and processes ACKs, and never sees a byte of data. It uses nothing
//! outside its folder but sequence numbers and time.

mod ack;
mod congestion;
mod fast_path;
mod lone;
mod phases;
mod prr;
mod rack;
mod rtt;
mod scoreboard;
mod tlp;
mod undo;

#[cfg(test)]
mod tests;

use super::{Algorithm, Config, TcpOptions, segment::Sacks, seq::Seq};
use crate::time::Instant;
use congestion::{Congestion, NO_THRESHOLD};
use lone::Lone;
use prr::Prr;
use rack::Rack;
use rtt::Rtt;
use scoreboard::{Scoreboard, SegmentState};
use std::{num::NonZeroU32, ops::Range, time::Duration};
use tlp::Tlp;
use undo::Undo;

/// The settings of the host and the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `TCP_CONGESTION`.
    pub algorithm: Algorithm,
    /// The retransmission timeout is at least the round trip plus this; 1 ms at least.
    pub min_rto: Duration,
    /// The largest retransmission timeout.
    pub max_rto: Duration,
    /// The window shrinks while the connection is idle.
    pub slow_start_after_idle: bool,
    /// Duplicate ACKs that mean a loss while no reordering has been seen.
    pub reordering: u8,
    /// Tail loss probes.
    pub probes: bool,
    /// Check whether timeouts were spurious (F-RTO, RFC 5682).
    pub frto: bool,
}

impl Settings {
    /// The settings of a socket on a host.
    pub fn new(config: &Config, options: &TcpOptions) -> Settings {
        let min_rto = if options.rto_min.is_zero() { config.tcp_rto_min } else { options.rto_min };
        let min_rto = min_rto.max(Duration::from_millis(1));
        Settings {
            algorithm: options.congestion.unwrap_or(config.tcp_congestion_control),
            min_rto,
            max_rto: config.tcp_rto_max.max(min_rto),
            slow_start_after_idle: config.tcp_slow_start_after_idle,
            reordering: config.tcp_reordering,
            probes: config.tcp_early_retrans,
            frto: config.tcp_frto,
        }
    }
}

/// The results of the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    /// Both ends support SACK.
    pub sack: bool,
    /// How long one step of our TSval lasts, if each segment has timestamps.
    pub timestamps: Option<Duration>,
    /// Both ends support ECN.
    pub ecn: bool,
    /// The time until our SYN or SYN-ACK was answered; `None` if it was sent more than once.
    pub rtt: Option<Duration>,
    /// How often it was retransmitted.
    pub retransmissions: u32,
}

/// The content of an acceptable ACK.
#[derive(Clone, Copy, Debug)]
pub struct AckEvent<'a> {
    /// SEG.ACK; nothing above it was ever sent.
    pub ack: Seq,
    /// The SACK blocks as received, a DSACK among them.
    pub sacks: &'a Sacks,
    /// When our clock first showed the TSval that it echoes.
    pub echoed: Option<Instant>,
    /// It carries ECE.
    pub ece: bool,
    /// It carries no data, SYN or FIN, and its window is that of the ACK before: it may be a duplicate acknowledgment
    /// as RFC 5681 defines it.
    pub pure: bool,
    /// There is unsent data that the peer's window has room for.
    pub unsent: bool,
}

/// The effects of an ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Bytes of sequence space it acknowledged, cumulatively.
    pub newly_acked: u32,
    /// Bytes it reported delivered for the first time, cumulatively or by SACK.
    pub delivered: u32,
    /// The round trip it measured.
    pub rtt: Option<Duration>,
}

/// What a timer that has fired requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// Nothing: it was early.
    Nothing,
    /// A loss was found: call [`Recovery::next_retransmission`].
    Retransmit,
    /// A tail loss probe: send one segment of new data if there is any and the peer's window
    /// has room, whatever [`Recovery::room`] says, else this range again.
    Probe(Range<Seq>),
    /// The retransmission timeout, for the n-th time in a row: call [`Recovery::next_retransmission`].
    TimedOut {
        /// In a row, this one counted.
        times: u32,
    },
}

/// The figures of `TCP_INFO` that are kept here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// `tcpi_ca_state`: open 0, disorder 1, CWR 2, recovery 3, loss 4.
    pub ca_state: u8,
    /// Timeouts in a row.
    pub retransmits: u32,
    /// Doublings of the timeout.
    pub backoff: u32,
    /// The timeout as it stands.
    pub rto: Duration,
    /// The smoothed round trip; zero: not known.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// The shortest of the last minutes; zero: not known.
    pub min_rtt: Duration,
    /// The congestion window, bytes.
    pub cwnd: u32,
    /// The slow-start threshold, bytes; `u32::MAX`: none yet.
    pub ssthresh: u32,
    /// Segments sent and not acknowledged. (Here and below several small ones may count as one: as they are stored.)
    pub unacked: u32,
    /// Of these: reported by SACK.
    pub sacked: u32,
    /// Of these: lost and not retransmitted.
    pub lost: u32,
    /// Of these: retransmitted.
    pub retrans: u32,
    /// Segments retransmitted, over the connection's life.
    pub total_retrans: u32,
    /// Bytes retransmitted, over the connection's life.
    pub bytes_retrans: u64,
    /// Segments ever delivered, wrapping.
    pub delivered: u32,
    /// How many duplicate ACKs mean a loss.
    pub reordering: u32,
    /// DSACK blocks received.
    pub dsack_dups: u32,
    /// Times that reordering was seen.
    pub reord_seen: u32,
}

/// The state of the sender, with Linux's names except Disorder, which is `Open` with SACKed segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The window is reduced without a loss: ECN.
    Cwr,
    /// Fast recovery.
    Recovery,
    /// After a timeout.
    Loss,
}

/// The sender's state of one connection. SYN and FIN, if recorded, count as bytes.
#[derive(Debug)]
pub struct Recovery {
    settings: Settings,
    sack: bool,
    ecn: bool,
    /// One step of our TSval, ns; `None` without timestamps.
    tick: Option<NonZeroU32>,
    /// SND.UNA and SND.NXT.
    una: Seq,
    nxt: Seq,
    /// Everything in flight was acknowledged, at `timeout_from`, and that ACK was not processed yet: see
    /// [`process_deferred_ack`](Recovery::process_deferred_ack).
    ack_deferred: bool,
    lone: Lone,
    board: Scoreboard,
    rtt: Rtt,
    rack: Rack,
    tlp: Tlp,
    prr: Prr,
    congestion: Congestion,
    undo: Undo,
    phase: Phase,
    /// The phase ends when this is acknowledged (RecoveryPoint of RFC 6675).
    high_seq: Seq,
    /// Duplicate ACKs from a peer without SACK: each means a segment that has left the network.
    dup_acks: u32,
    /// So many duplicate ACKs mean a loss (RFC 5681: three); more, after reordering.
    dup_threshold: u8,
    /// A partial ACK has restarted the timeout once already.
    timeout_restarted: bool,
    /// F-RTO: the last timeout may have been spurious (RFC 5682).
    frto: bool,
    /// F-RTO step 2b: new data goes first.
    new_first: bool,
    /// The next new segment carries CWR.
    cwr: bool,
    /// The window was the limit in this round, which ends at `round`; else `max_in_flight` bytes were in flight.
    window_limited: bool,
    round: Seq,
    max_in_flight: u32,
    /// When the retransmission timer was started.
    timeout_from: Instant,
    /// Timeouts in a row.
    timeouts: u32,
    /// The receiver seems to have dropped what it had SACKed; the timeout comes at this time, unless it did not.
    reneged: Option<Instant>,
    last_sent: Instant,
    total_retrans: u32,
    bytes_retrans: u64,
    dsack_dups: u32,
}

impl Recovery {
    /// For a connection just established that has sent everything before `una`. `mss` is the most a segment carries,
    /// without options.
    pub fn new(settings: Settings, agreed: Agreed, mss: u32, una: Seq, now: Instant) -> Recovery {
        let mss = mss.max(1);
        let mut recovery = Recovery {
            settings,
            sack: agreed.sack,
            ecn: agreed.ecn,
            tick: agreed.timestamps.and_then(|tick| NonZeroU32::new(tick.as_nanos() as u32)),
            una,
            nxt: una,
            ack_deferred: false,
            lone: Lone::default(),
            board: Scoreboard::default(),
            rtt: Rtt::new(now, agreed.retransmissions > 0, settings.min_rto, settings.max_rto),
            rack: Rack::new(una),
            tlp: Tlp::default(),
            prr: Prr::default(),
            // RFC 6928 section 2: the window is one segment only if the SYN was lost more than once.
            congestion: Congestion::new(settings.algorithm, mss, agreed.retransmissions > 1),
            undo: Undo::default(),
            phase: Phase::Open,
            high_seq: una,
            dup_acks: 0,
            dup_threshold: settings.reordering.max(1),
            timeout_restarted: false,
            frto: false,
            new_first: false,
            cwr: false,
            window_limited: false,
            round: una,
            max_in_flight: 0,
            timeout_from: now,
            timeouts: 0,
            reneged: None,
            last_sent: now,
            total_retrans: 0,
            bytes_retrans: 0,
            dsack_dups: 0,
        };
        if let Some(rtt) = agreed.rtt {
            let rtt = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
            recovery.measured(rtt, rtt, now);
        }
        recovery
    }

    /// Nothing is in flight, and nothing will be soon: frees memory.
    pub fn free_idle_memory(&mut self) {
        self.process_deferred_ack();
        self.board.free_idle_memory();
    }

    /// Data was sent for the first time: one segment, or several at once.
    #[inline(always)]
    pub fn sent(&mut self, range: Range<Seq>, now: Instant) {
        self.process_deferred_ack();
        let before = self.board.len();
        //= RFC 6298 5
        //# (5.1) Every time a packet containing data is sent (including a retransmission), if the timer is not
        //# running, start it running so that it will expire after RTO seconds (for the current value of RTO).
        if before == 0 {
            self.timeout_from = now;
            self.congestion.idle(now.since(self.last_sent));
        }
        // In a burst the third and later segments leave the probe where it is.
        let scheduled = before > 1 && self.last_sent == now && self.tlp.deadline.is_some();
        self.board.push(range.start..range.end, self.congestion.mss, now);
        self.prr.sent(range.end - range.start);
        self.nxt = self.nxt.max(range.end);
        self.last_sent = now;
        if self.tlp.sent(self.nxt, false) {
            self.timeout_from = now;
        } else if !scheduled {
            self.schedule_probe(now);
        }
    }

    /// Data was retransmitted: what [`next_retransmission`](Self::next_retransmission) or a probe asked for.
    pub fn resent(&mut self, range: Range<Seq>, now: Instant) {
        self.process_deferred_ack();
        let bytes = self.board.resent(range.start..range.end, now);
        self.prr.sent(bytes);
        self.undo.resent(bytes, now);
        self.total_retrans = self.total_retrans.wrapping_add(1);
        self.bytes_retrans += u64::from(bytes);
        self.last_sent = now;
        let first = range.start.at_most(self.una) && !self.timeout_restarted;
        if self.tlp.sent(self.nxt, true) || first {
            self.timeout_from = now;
        }
    }

    //= RFC 6675 5
    //# (C) If cwnd - pipe >= 1 SMSS, the sender SHOULD transmit one or more segments as follows:
    //= RFC 6675 5
    //# (C.1) The scoreboard MUST be queried via NextSeg () for the sequence number range of the next segment to
    //# transmit (if any), and the given segment sent.
    //= RFC 8985 9.3
    //# A segment marked as lost by RACK-TLP MUST NOT be retransmitted until congestion control deems this
    //# appropriate.
    /// What to retransmit now, at most one segment: the most urgent of what is lost. `None`: nothing is lost, or the
    /// window has no room. Changes nothing until [`resent`](Self::resent).
    pub fn next_retransmission(&self) -> Option<Range<Seq>> {
        let lost = self.board.next_lost()?;
        let in_flight = self.in_flight();
        let fits = in_flight == 0 || in_flight.saturating_add(lost.len()) <= self.congestion.cwnd;
        (fits && !self.new_first).then_some(lost.start..lost.end)
    }

    /// F-RTO asks for new data, and none was sent yet. If none can be sent, the caller calls
    /// [`has_nothing_new`](Self::has_nothing_new).
    #[inline]
    pub fn wants_new(&self) -> bool {
        self.new_first && self.nxt == self.high_seq
    }

    /// RFC 5682 section 3.1 step 2: if no new data can be sent, recovery goes on as after any timeout.
    pub fn has_nothing_new(&mut self) {
        (self.frto, self.new_first) = (false, false);
    }

    /// How many bytes of new data the congestion window allows now: whole segments, and at least one if nothing is in
    /// flight.
    pub fn room(&self) -> u32 {
        debug_assert!(!self.ack_deferred);
        let (mss, in_flight) = (self.congestion.mss, self.in_flight());
        let room = self.congestion.cwnd.saturating_sub(in_flight);
        if in_flight == 0 { room.max(mss) / mss * mss } else { room / mss * mss }
    }

    /// Whether one more segment of new data may be sent: as [`room`](Self::room), without a division.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room_beside(self.in_flight())
    }

    #[inline]
    fn has_room_beside(&self, in_flight: u32) -> bool {
        in_flight == 0 || self.congestion.cwnd.saturating_sub(in_flight) >= self.congestion.mss
    }

    /// The congestion window, bytes.
    #[inline]
    pub fn congestion_window(&self) -> u32 {
        self.congestion.cwnd
    }

    //= RFC 6298 5
    //# (5.2) When all outstanding data has been acknowledged, turn off the retransmission timer.
    /// When [`timer`](Self::timer) is due: retransmission timeout, probe, or the end of the reordering window.
    pub fn deadline(&self) -> Option<Instant> {
        if self.board.len() == 0 || self.ack_deferred {
            return None;
        }
        let sooner = |first: Instant, at: Option<Instant>| at.map_or(first, |at| first.min(at));
        let first = sooner(sooner(self.timeout(), self.tlp.deadline), self.rack.deadline);
        Some(sooner(first, self.reneged))
    }

    /// The deadline has come.
    pub fn timer(&mut self, now: Instant) -> Fired {
        self.process_deferred_ack();
        let due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if self.board.len() == 0 {
            return Fired::Nothing;
        }
        if due(self.reneged) {
            return self.timed_out(now);
        }
        if due(self.rack.deadline) && self.reordering_timer(now) {
            return Fired::Retransmit;
        }
        if due(self.tlp.deadline)
            && let Some(last) = self.board.back().map(|s| s.start..s.end)
            && self.tlp.fire()
        {
            //= RFC 8985 7.3
            //# After attempting to send a loss probe, regardless of whether a loss probe was sent, the sender MUST
            //# re-arm the RTO timer, not the PTO timer, if the FlightSize is not zero.
            // Only a probe restarts the timeout. A sender that goes on sending schedules one probe after the other
            // (as in Linux even while one is in flight), and would never time out.
            self.timeout_from = now;
            return Fired::Probe(last);
        }
        if self.timeout() <= now { self.timed_out(now) } else { Fired::Nothing }
    }

    /// Called before new data is queued: a window that was not used for a while shrinks, by half per timeout that
    /// passed, as in RFC 2861; RFC 5681 would shrink it to the restart window at once.
    #[inline(always)]
    pub fn idle_restart(&mut self, now: Instant) {
        // No timeout is shorter than this, neither the present one nor one measured later.
        if now.nanos_since(self.last_sent) > self.rtt.min_rto().min(self.rtt.rto()) {
            self.restart_if_idle(now);
        }
    }

    #[cold]
    fn restart_if_idle(&mut self, now: Instant) {
        self.process_deferred_ack();
        let idle = now > self.rtt.timeout(self.last_sent);
        if idle && self.settings.slow_start_after_idle && self.board.len() == 0 {
            self.restart_window(now);
        }
    }

    fn restart_window(&mut self, now: Instant) {
        let rto = self.rto();
        let mut idle = now.since(self.last_sent);
        let least = self.congestion.restart_window();
        let cwnd = self.congestion.cwnd;
        // RFC 2861: ssthresh = max(ssthresh, 3*cwnd/4) keeps the memory of the path.
        if self.congestion.ssthresh != NO_THRESHOLD {
            self.congestion.ssthresh = self.congestion.ssthresh.max(cwnd / 4 * 3);
        }
        while idle > rto && self.congestion.cwnd > least {
            self.congestion.cwnd /= 2;
            idle -= rto;
        }
        self.congestion.cwnd = self.congestion.cwnd.max(least);
        // After this `sent` sees no idle time.
        self.congestion.restart();
        (self.window_limited, self.max_in_flight, self.last_sent) = (false, 0, now);
    }

    /// Whether the next segment of new data must carry CWR (RFC 3168 section 6.1.2): true once per reduction.
    pub fn take_cwr(&mut self) -> bool {
        std::mem::take(&mut self.cwr)
    }

    /// The segment size has changed (path MTU). Larger segments in flight are lost, though not by congestion: the
    /// window stays.
    pub fn set_mss(&mut self, mss: u32, now: Instant) {
        self.process_deferred_ack();
        let mss = mss.max(1);
        self.congestion.mss = mss;
        let lost = self.board.bytes(SegmentState::Lost);
        self.board.shrink(mss);
        if self.board.bytes(SegmentState::Lost) > lost && self.phase != Phase::Loss {
            (self.phase, self.high_seq, self.frto) = (Phase::Loss, self.nxt, false);
            self.undo.close();
            self.tlp.clear();
            self.timeout_from = now;
        }
        self.congestion.cwnd = self.congestion.cwnd.max(mss);
    }

    /// `TCP_CONGESTION` is set.
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        self.process_deferred_ack();
        if self.settings.algorithm != algorithm {
            self.settings.algorithm = algorithm;
            self.congestion.set_algorithm(algorithm);
        }
    }

    /// `TCP_RTO_MIN_US` is set: as in Linux the timeout comes down with the next round trips, slowly.
    pub fn set_min_rto(&mut self, least: Duration) {
        self.process_deferred_ack();
        self.rtt.set_min_rto(least);
    }

    /// Whether a single segment is in flight.
    #[inline]
    pub fn is_one_in_flight(&self) -> bool {
        self.board.len() == 1
    }

    /// Not after the next deadline, if a single segment was sent `now` and nothing else is in flight: a probe comes after
    /// two round trips and the shortest timeout, or after a second, and a timeout not before the shortest.
    #[inline]
    pub fn earliest_timeout(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.nanos() + self.rtt.min_rto().min(self.rtt.rto()).min(tlp::UNKNOWN))
    }

    /// The present timeout, with backoff: zero-window probes begin with it.
    pub fn rto(&self) -> Duration {
        debug_assert!(!self.ack_deferred);
        Duration::from_nanos(self.rtt.rto())
    }

    //= RFC 6675 4
    //# This routine traverses the sequence space from HighACK to HighData and MUST set the "pipe" variable to an
    //# estimate of the number of octets that are currently in transit between the TCP sender and the TCP receiver.
    //= RFC 5681 3.2
    //# On the first and second duplicate ACKs received at a sender, a TCP SHOULD send a segment of previously unsent
    //# data per [RFC3042] provided that the receiver's advertised window allows, the total FlightSize would remain
    //# less than or equal to cwnd plus 2*SMSS, and that new data is available for transmission.
    /// Bytes estimated to be in the network.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        if self.ack_deferred {
            return 0;
        }
        self.board
            .bytes(SegmentState::Flight)
            .saturating_sub(self.dup_acks.saturating_mul(self.congestion.mss))
    }

    /// Segments retransmitted so far.
    #[inline]
    pub fn total_retrans(&self) -> u32 {
        self.total_retrans
    }

    /// For `TCP_INFO`.
    pub fn figures(&mut self) -> Figures {
        self.process_deferred_ack();
        // As Linux's `lost_out`: a retransmission counts until it is acknowledged, unless it is a probe.
        let probe = u32::from(self.tlp.is_retransmission());
        let repairs = self.board.retransmitted_segments().saturating_sub(probe);
        let lost = self.board.segments(SegmentState::Lost)
            + self.board.segments(SegmentState::LostRetransmission)
            + repairs;
        let sacked = self.board.segments(SegmentState::Sacked) + self.dup_acks;
        Figures {
            ca_state: match self.phase {
                Phase::Open => u8::from(sacked > 0),
                Phase::Cwr => 2,
                Phase::Recovery => 3,
                Phase::Loss => 4,
            },
            retransmits: self.timeouts,
            backoff: self.rtt.backoff,
            rto: self.rto(),
            srtt: self.rtt.srtt().unwrap_or_default(),
            rttvar: self.rtt.variation(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            cwnd: self.congestion.cwnd,
            ssthresh: self.congestion.ssthresh,
            unacked: self.board.len() as u32,
            sacked,
            lost,
            retrans: self.board.retransmitted_segments(),
            total_retrans: self.total_retrans,
            bytes_retrans: self.bytes_retrans,
            delivered: self.board.acknowledged().wrapping_add(sacked),
            reordering: self.dup_threshold.into(),
            dsack_dups: self.dsack_dups,
            reord_seen: self.rack.reorderings,
        }
    }

    /// When the retransmission timer is due.
    #[inline]
    fn timeout(&self) -> Instant {
        self.rtt.timeout(self.timeout_from)
    }

    //= RFC 8985 4
    //# The connection MUST use selective acknowledgment (SACK) options [RFC2018], and the sender MUST keep SACK
    //# scoreboard information on a per-connection basis
    //= RFC 8985 7.2
    //# The sender SHOULD start or restart a loss probe PTO timer after transmitting new data (that was not itself a
    //# loss probe) or upon receiving an ACK that cumulatively acknowledges new data unless it is already in fast
    //# recovery, RTO recovery, or segments have been SACKed (i.e., RACK.segs_sacked is not zero).
    #[inline(always)]
    fn schedule_probe(&mut self, now: Instant) {
        let quiet = matches!(self.phase, Phase::Open | Phase::Cwr)
            && self.board.segments(SegmentState::Sacked) == 0;
        if self.settings.probes && self.sack && quiet && self.board.len() > 0 {
            let single = self.board.len() == 1;
            let Recovery { tlp, rtt, .. } = self;
            let timeout = rtt.timeout(self.timeout_from);
            tlp.schedule(rtt.smoothed(), single, rtt.min_rto(), timeout, now);
        } else {
            self.tlp.deadline = None;
        }
    }
}
