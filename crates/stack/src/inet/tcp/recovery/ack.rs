//! Processes an ACK: what arrived, how long it took, how large the window may be then. The order of the steps is
//! Linux's (tcp_ack in net/ipv4/tcp_input.c).

use super::{
    super::seq::Seq, AckEvent, Acked, Phase, Recovery, SegmentState, congestion::Growth,
    rack::Losses, scoreboard::Sent, tlp::Verdict,
};
use crate::time::Instant;
use std::{ops::Range, time::Duration};

/// What one ACK reported.
#[derive(Debug)]
pub(super) struct Arrival {
    /// SND.UNA advanced.
    pub advanced: bool,
    /// It could be a duplicate ACK of RFC 5681: nothing new, data in flight.
    pub duplicate: bool,
    /// It had a DSACK block for a retransmission.
    pub dsack: bool,
    /// Bytes delivered, and how many of these by SACK.
    pub delivered: u32,
    pub sacked: u32,
    /// When the first and the last segment that it acknowledged, and that it SACKed, had been sent; retransmitted
    /// segments do not count (Karn).
    pub acked: Option<(Instant, Instant)>,
    pub sacks: Option<(Instant, Instant)>,
    /// It acknowledged a retransmission.
    pub retransmitted: bool,
    /// A segment that was sent once, before the phase began, arrived.
    pub original: bool,
    pub highest: Option<Seq>,
}

impl Recovery {
    /// Processes an acceptable ACK; also an old one, for its SACK blocks.
    pub fn acked(&mut self, event: &AckEvent<'_>, now: Instant) -> Acked {
        let plain = match event.sacks.is_empty() && !event.ece {
            true => self.acked_fast(event.ack, now),
            false => None,
        };
        plain.unwrap_or_else(|| self.acked_slow(event, now))
    }

    fn acked_slow(&mut self, event: &AckEvent<'_>, now: Instant) -> Acked {
        self.process_deferred_ack();
        self.validate_window(self.in_flight());
        self.new_first = false;
        let before = self.una;
        let dup_acks_before = self.dup_acks;
        // The echoed timestamp was made before this.
        let tick = self.tick.map(|tick| Duration::from_nanos(tick.get().into()));
        let echoed_before = event.echoed.zip(tick).map(|(echoed, tick)| echoed + tick);
        let mut arrival = self.arrivals(event, echoed_before, now);
        if arrival.advanced {
            self.timeouts = 0;
        }
        if !self.sack {
            arrival.delivered = self.delivered_without_sack(&arrival, dup_acks_before);
        }
        let rtt = self.measure(event, &arrival, now);

        let found = self.alert(event, &arrival, echoed_before, now);
        self.update_window(&arrival, found, rtt, now);
        self.rearm(arrival.advanced, now);
        Acked { newly_acked: self.una - before, delivered: arrival.delivered, rtt }
    }

    /// Records whether the window was full when the last round of sending ended (tcp_cwnd_validate in
    /// net/ipv4/tcp_output.c).
    #[inline(always)]
    pub(super) fn validate_window(&mut self, in_flight: u32) {
        let out = self.nxt - self.una;
        let full = !self.has_room_beside(in_flight);
        if full || !self.una.before(self.round) || out > self.max_in_flight {
            (self.window_limited, self.max_in_flight, self.round) = (full, out, self.nxt);
        }
    }

    //= RFC 6675 5
    //# Upon the receipt of any ACK containing SACK information, the scoreboard MUST be updated via the Update ()
    //# routine.
    /// Updates the scoreboard: DSACK, SACK blocks, the cumulative ACK.
    fn arrivals(
        &mut self,
        event: &AckEvent<'_>,
        echoed_before: Option<Instant>,
        now: Instant,
    ) -> Arrival {
        let ack = event.ack.min(self.nxt);
        let advanced = ack.after(self.una);
        let mut arrival = Arrival {
            advanced,
            duplicate: !advanced && ack == self.una && event.pure && self.board.len() > 0,
            dsack: false,
            delivered: 0,
            sacked: 0,
            acked: None,
            sacks: None,
            retransmitted: false,
            original: false,
            highest: None,
        };
        let Recovery { board, rack, rtt, high_seq, .. } = self;
        let min = rtt.min();
        let mut arrived = |arrival: &mut Arrival, sent: &Sent| {
            rack.arrived(sent, echoed_before, min, now);
            rack.out_of_order(sent, echoed_before);
            arrival.delivered += sent.len();
            arrival.original |= !sent.retransmitted && sent.end.at_most(*high_seq);
            arrival.highest = Some(arrival.highest.map_or(sent.end, |h| h.max(sent.end)));
        };
        let mut tlp_duplicate = false;
        if self.sack {
            let mut duplicate = duplicate_block(event, ack);
            for block in event.sacks.iter() {
                let sane = block.start.before(block.end) && block.end.at_most(self.nxt);
                if let Some(block) = duplicate.take() {
                    // Only retransmitted data can arrive twice because of us.
                    self.dsack_dups = self.dsack_dups.wrapping_add(1);
                    if sane && self.dsack_dups <= self.total_retrans {
                        arrival.dsack = true;
                        self.undo.duplicate(&block);
                        tlp_duplicate = self.tlp.is_duplicate(&block);
                    }
                } else if sane && block.start.after(self.una) {
                    board.sack(block, |sent| {
                        arrived(&mut arrival, sent);
                        arrival.sacked += sent.len();
                        if !sent.retransmitted {
                            widen(&mut arrival.sacks, sent.at);
                        }
                    });
                }
            }
        }
        board.ack(ack, |sent| {
            arrival.retransmitted |= sent.retransmitted;
            if sent.state != SegmentState::Sacked {
                arrived(&mut arrival, sent);
                if !sent.retransmitted {
                    widen(&mut arrival.acked, sent.at);
                }
            }
        });
        if let Some(highest) = arrival.highest {
            rack.highest(highest);
        }
        // Without SACK, a segment sent once may have been waiting for a retransmission.
        arrival.original &= self.sack || !arrival.retransmitted;
        self.una = self.una.max(ack);
        if arrival.dsack && !tlp_duplicate {
            rack.duplicate(self.una, self.nxt);
        }
        let bare = !advanced && event.pure && event.sacks.is_empty();
        if self.tlp.acked(ack, tlp_duplicate, bare) == Verdict::Repaired {
            //= RFC 8985 7.4.2
            //# The sender then SHOULD invoke a congestion control response equivalent to a fast recovery.
            self.reduce();
            self.congestion.cwnd = self.congestion.cwnd.min(self.congestion.ssthresh);
        }
        arrival
    }

    /// DeliveredData of RFC 9937 without SACK: one segment for each duplicate ACK, and what the ACK of the hole adds
    /// to them. (A peer that makes up duplicates gains no more than its window.)
    fn delivered_without_sack(&mut self, arrival: &Arrival, dup_acks: u32) -> u32 {
        let mss = self.congestion.mss;
        if arrival.duplicate {
            return if self.dup_acks < self.board.len() as u32 { mss } else { 0 };
        }
        if !arrival.advanced {
            return 0;
        }
        arrival
            .delivered
            .saturating_sub(dup_acks.saturating_mul(mss))
            .max(mss.min(arrival.delivered))
    }

    //= RFC 6298 3
    //# TCP MUST use Karn's algorithm [KP87] for taking RTT samples. That is, RTT samples MUST NOT be made using
    //# segments that were retransmitted
    //= RFC 6298 3
    //# A TCP implementation MUST take at least one RTT measurement per RTT (unless that is not possible per Karn's
    //# algorithm).
    //= RFC 7323 4.1
    //# A TSecr value received in a segment MAY be used to update the averaged RTT measurement only if the segment
    //# advances the left edge of the send window, i.e., SND.UNA is increased.
    /// Takes the round-trip sample of the ACK.
    fn measure(
        &mut self,
        event: &AckEvent<'_>,
        arrival: &Arrival,
        now: Instant,
    ) -> Option<Duration> {
        let plain = arrival.acked.filter(|_| !arrival.retransmitted).or(arrival.sacks);
        let stamped = || event.echoed.filter(|_| arrival.advanced).map(|at| (at, at));
        let (first, last) = plain.or_else(stamped)?;
        let (long, short) = (now.nanos_since(first), now.nanos_since(last));
        self.measured(long, short, now);
        Some(Duration::from_nanos(short))
    }

    /// Takes a sample, ns; `short` does not include the peer's delay of its ACK.
    #[inline(always)]
    pub(super) fn measured(&mut self, rtt: u64, short: u64, now: Instant) {
        self.rtt.sample(rtt, self.una, self.nxt);
        self.rtt.shortest(short, now);
    }

    /// Updates the window after an ACK.
    fn update_window(
        &mut self,
        arrival: &Arrival,
        found: Losses,
        rtt: Option<Duration>,
        now: Instant,
    ) {
        let mut growth = Growth {
            delivered: arrival.delivered,
            srtt: self.rtt.srtt().unwrap_or_default(),
            rtt,
            una: self.una,
            nxt: self.nxt,
            now,
        };
        //= RFC 8985 9.3
        //# The Proportional Rate Reduction (PRR) algorithm [RFC6937] is RECOMMENDED for the specific congestion
        //# control actions taken upon the losses detected by RACK-TLP.
        if matches!(self.phase, Phase::Cwr | Phase::Recovery) {
            let safe = arrival.advanced && found.bytes == 0;
            let (in_flight, ssthresh) = (self.in_flight(), self.congestion.ssthresh);
            let window =
                self.prr.window(arrival.delivered, in_flight, ssthresh, self.congestion.mss, safe);
            self.congestion.cwnd = window.unwrap_or(self.congestion.cwnd);
            return;
        }
        if !self.sack && self.phase == Phase::Loss {
            // RFC 3465 section 2.3: after a timeout an ACK may cover data that had arrived long before: "L=1*SMSS".
            growth.delivered = growth.delivered.min(self.congestion.mss);
        }
        self.congestion.watch(&growth);
        // RFC 7661 in spirit, Linux to the letter (tcp_is_cwnd_limited): a window that was not used up does not grow;
        // in slow start it grows if half of it was used.
        let used = self.window_limited
            || self.congestion.slow_start() && self.congestion.cwnd / 2 < self.max_in_flight;
        //= RFC 9438 4.6
        //# Implementations that use _cwnd_ MUST use other measures to prevent _cwnd_ from growing when the volume of
        //# bytes in flight is smaller than _cwnd_.
        // On a path that reorders any delivery counts; else only delivery in order.
        let forward = arrival.advanced || self.rack.reorderings > 0 && arrival.delivered > 0;
        if used && forward {
            self.congestion.grow(&growth);
        }
    }

    /// Updates the timers after an ACK.
    fn rearm(&mut self, advanced: bool, now: Instant) {
        if self.board.len() == 0 {
            (self.tlp.deadline, self.rack.deadline, self.reneged) = (None, None, None);
        } else if advanced {
            //= RFC 6298 5
            //# (5.3) When an ACK is received that acknowledges new data, restart the retransmission timer so that it
            //# will expire after RTO seconds (for the current value of RTO).
            // RFC 6582 section 3.2 step 3, without SACK: in recovery only for "the first partial ACK", as one round
            // trip per hole can be too slow.
            let partial =
                !self.sack && self.phase == Phase::Recovery && self.una.before(self.high_seq);
            if !(self.timeout_restarted && partial) {
                self.timeout_from = now;
            }
            self.timeout_restarted = partial;
            self.schedule_probe(now);
        }
        if matches!(self.phase, Phase::Recovery | Phase::Loss) {
            self.tlp.deadline = None;
        }
    }
}

/// The first block, if it is a DSACK (RFC 2883 section 4): below the ACK, or within the second.
fn duplicate_block(event: &AckEvent<'_>, ack: Seq) -> Option<Range<Seq>> {
    let mut blocks = event.sacks.iter();
    let first = blocks.next()?;
    let within =
        |outer: Range<Seq>| outer.start.at_most(first.start) && first.end.at_most(outer.end);
    (first.start.before(ack) || blocks.next().is_some_and(within)).then_some(first)
}

fn widen(range: &mut Option<(Instant, Instant)>, at: Instant) {
    *range = Some(range.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
}
