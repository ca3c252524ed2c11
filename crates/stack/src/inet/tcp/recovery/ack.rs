//! An ACK, a timeout: what they say about what was sent, and from which phase into which they lead. The order
//! of things is Linux's (tcp_ack, tcp_fastretrans_alert and tcp_enter_loss in net/ipv4/tcp_input.c).

use super::super::seq::Seq;
use super::{
    AckEvent, Acked, Fired, Phase, Place, Recovery,
    congestion::{Growth, Saved},
    prr::Prr,
    rack::Found,
    scoreboard::Sent,
    tlp::Verdict,
};
use crate::time::Instant;
use std::{ops::Range, time::Duration};

/// What one ACK reported.
#[derive(Debug)]
struct Arrival {
    /// SND.UNA advanced.
    advanced: bool,
    /// It could be one of RFC 5681's duplicates: nothing new, data outstanding.
    duplicate: bool,
    /// A DSACK block came for what was sent again.
    dsack: bool,
    /// Bytes delivered, and of these by SACK.
    delivered: u32,
    sacked: u32,
    /// When the first and the last of what it acknowledged and what it SACKed had been sent; what was sent more
    /// than once does not count (Karn).
    acked: Option<(Instant, Instant)>,
    sacks: Option<(Instant, Instant)>,
    /// It acknowledged something sent again.
    again: bool,
    /// Something sent once, before the phase began, arrived.
    original: bool,
    /// Something arrived out of order.
    reordered: bool,
    highest: Option<Seq>,
}

impl Recovery {
    /// An acceptable ACK has come, old ones (for their SACK blocks) included.
    pub fn acked(&mut self, event: &AckEvent<'_>, now: Instant) -> Acked {
        self.note_usage();
        self.new_first = false;
        let before = self.una;
        let dups_before = self.dups;
        // The echoed time stamp was made before this.
        let echoed_before = event.echoed.zip(self.tick).map(|(echoed, tick)| echoed + tick);
        let mut arrival = self.arrivals(event, echoed_before, now);
        if arrival.advanced {
            self.timeouts = 0;
        }
        if !self.sack {
            arrival.delivered = self.delivered_without_sack(&arrival, dups_before);
        }
        self.delivered += u64::from(arrival.delivered);
        let rtt = self.measure(event, &arrival, now);

        let found = self.alert(event, &arrival, echoed_before, now);
        self.control(&arrival, found, rtt, now);
        self.rearm(arrival.advanced, now);
        Acked { newly_acked: self.una - before, delivered: arrival.delivered, rtt }
    }

    /// Was the window full when the last round of sending ended (tcp_cwnd_validate in net/ipv4/tcp_output.c)?
    fn note_usage(&mut self) {
        let out = self.nxt - self.una;
        let full = self.room() == 0;
        if full || !self.una.before(self.round) || out > self.most_out {
            (self.limited, self.most_out, self.round) = (full, out, self.nxt);
        }
    }

    /// Brings the scoreboard up to date: DSACK, SACK blocks, the cumulative ACK.
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
            again: false,
            original: false,
            reordered: false,
            highest: None,
        };
        let Recovery { board, rack, rtt, high, .. } = self;
        let min = rtt.min();
        let mut arrived = |arrival: &mut Arrival, sent: &Sent| {
            rack.arrived(sent, echoed_before, min, now);
            arrival.reordered |= rack.out_of_order(sent);
            arrival.delivered += sent.len();
            arrival.original |= !sent.again && sent.end.at_most(*high);
            arrival.highest = Some(arrival.highest.map_or(sent.end, |h| h.max(sent.end)));
        };
        let mut tlp_duplicate = false;
        if self.sack {
            let mut duplicate = duplicate_block(event, ack);
            for block in event.sacks.iter() {
                let sane = block.start.before(block.end) && block.end.at_most(self.nxt);
                if let Some(block) = duplicate.take() {
                    // Only what was sent twice can have arrived twice by our doing.
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
                        if !sent.again {
                            widen(&mut arrival.sacks, sent.at);
                        }
                    });
                }
            }
        }
        board.ack(ack, |sent| {
            arrival.again |= sent.again;
            if sent.place != Place::Sacked {
                arrived(&mut arrival, sent);
                if !sent.again {
                    widen(&mut arrival.acked, sent.at);
                }
            }
        });
        if let Some(highest) = arrival.highest {
            rack.highest(highest);
        }
        self.una = self.una.max(ack);
        if arrival.dsack && !tlp_duplicate {
            rack.duplicate(self.una, self.nxt);
        }
        let bare = arrival.duplicate && arrival.sacked == 0;
        if self.tlp.acked(ack, tlp_duplicate, bare) == Verdict::Repaired {
            // RFC 8985 section 7.4.2: "invoke a congestion control response".
            self.reduce();
            self.congestion.cwnd = self.congestion.cwnd.min(self.congestion.ssthresh);
        }
        arrival
    }

    /// What RFC 9937 takes for DeliveredData where there is no SACK: a segment per duplicate, and what the ACK
    /// of the hole adds to them. (A peer that makes up duplicates gains no more than its window.)
    fn delivered_without_sack(&mut self, arrival: &Arrival, dups: u32) -> u32 {
        let mss = self.congestion.mss;
        if arrival.duplicate {
            return if self.dups < self.board.len() as u32 { mss } else { 0 };
        }
        if !arrival.advanced {
            return 0;
        }
        arrival.delivered.saturating_sub(dups.saturating_mul(mss)).max(mss.min(arrival.delivered))
    }

    /// Takes the round trip the ACK shows (RFC 6298 sections 3, 4; RFC 7323 section 4.2).
    fn measure(
        &mut self,
        event: &AckEvent<'_>,
        arrival: &Arrival,
        now: Instant,
    ) -> Option<Duration> {
        let plain = arrival.acked.filter(|_| !arrival.again).or(arrival.sacks);
        let stamped = || event.echoed.filter(|_| arrival.advanced).map(|at| (at, at));
        let (first, last) = plain.or_else(stamped)?;
        let (long, short) = (now.since(first), now.since(last));
        self.measured(long, Some(short), now);
        Some(short)
    }

    /// Takes a measurement; `short` has none of the peer's delay of its ACK in it.
    pub(super) fn measured(&mut self, rtt: Duration, short: Option<Duration>, now: Instant) {
        let (min, max) = (self.settings.min_rto, self.settings.max_rto);
        self.rtt.sample(rtt, self.una, self.nxt, min, max);
        if let Some(short) = short {
            self.rtt.shortest(short, now);
        }
    }

    /// Loss, congestion, or their end.
    fn alert(
        &mut self,
        event: &AckEvent<'_>,
        arrival: &Arrival,
        echoed_before: Option<Instant>,
        now: Instant,
    ) -> Found {
        if event.ece && self.ecn {
            self.undo.forbid();
        }
        self.check_reneging(now);
        if self.phase == Phase::Open {
            self.undo.first = None;
        } else if !self.una.before(self.high) {
            self.finish(echoed_before);
        }
        let found = match self.phase {
            Phase::Recovery => {
                if !arrival.advanced {
                    self.dups += u32::from(arrival.duplicate && !self.sack);
                } else if self.undo_partly(echoed_before) {
                    // The hole was filled by what was delayed: send no more of it again.
                    return Found::default();
                } else if !self.sack {
                    // One ACK is for the hole, the others for what the duplicates told of.
                    let segments = arrival.delivered.div_ceil(self.congestion.mss);
                    self.dups = self.dups.saturating_sub(segments.saturating_sub(1));
                }
                if self.undo.all_duplicates() {
                    self.take_back(false);
                    self.phase = Phase::Open;
                }
                let found = self.find_losses(arrival.advanced, now);
                if self.phase != Phase::Recovery && self.board.any_lost() {
                    self.enter_recovery(event.ece, arrival.delivered);
                }
                return found;
            }
            Phase::Loss => {
                self.after_timeout(event, arrival, echoed_before);
                let found = self.find_losses(arrival.advanced, now);
                if self.phase != Phase::Open && !found.again {
                    return found;
                }
                found
            }
            Phase::Open | Phase::Cwr => {
                if !self.sack {
                    self.dups =
                        if arrival.advanced { 0 } else { self.dups } + u32::from(arrival.duplicate);
                }
                if self.phase == Phase::Open && self.undo.all_duplicates() {
                    self.take_back(false);
                }
                self.find_losses(arrival.advanced, now)
            }
        };
        if self.board.any_lost() {
            self.enter_recovery(event.ece, arrival.delivered);
        } else if event.ece && self.ecn && self.phase == Phase::Open {
            self.enter_cwr(arrival.delivered);
        }
        found
    }

    /// The phase's last byte is acknowledged.
    fn finish(&mut self, echoed_before: Option<Instant>) {
        match self.phase {
            // "CWR is to be held [until] something above high_seq is ACKed" (Linux), so that the bit arrives.
            Phase::Cwr if self.una != self.high => self.end_reduction(),
            Phase::Recovery => {
                if self.undo.delayed(echoed_before) || self.undo.all_duplicates() {
                    self.take_back(false);
                }
                if self.sack || self.una != self.high {
                    self.end_reduction();
                } else {
                    // RFC 6582 section 3.2: without SACK, duplicates of `high` would look like a new loss.
                    self.dups = 0;
                }
            }
            _ => {}
        }
    }

    fn end_reduction(&mut self) {
        if self.undo.open() || self.phase == Phase::Cwr {
            self.congestion.cwnd = self.congestion.ssthresh.max(self.congestion.mss);
        }
        if self.phase == Phase::Recovery {
            self.rack.recovered();
        }
        self.dups = 0;
        self.undo.close();
        self.phase = Phase::Open;
    }

    /// An ACK in the phase that follows a timeout: F-RTO (RFC 5682 section 3.1, the version with SACK).
    fn after_timeout(
        &mut self,
        event: &AckEvent<'_>,
        arrival: &Arrival,
        echoed_before: Option<Instant>,
    ) {
        let recovered = !self.una.before(self.high);
        if arrival.advanced && (self.undo.delayed(echoed_before) || self.undo.all_duplicates()) {
            return self.take_back_timeout();
        }
        if self.frto {
            // Step 3b: "the acknowledgment [...] covers data that was not retransmitted": the timeout was
            // spurious.
            if arrival.original {
                return self.take_back_timeout();
            }
            if self.nxt.after(self.high) {
                // Step 3a: a duplicate after new data: the loss was real.
                self.frto &= !(arrival.sacked > 0 || arrival.duplicate);
            } else if arrival.advanced && !recovered {
                // Step 2b: "transmit up to two new (previously unsent) segments".
                self.high = self.nxt;
                (self.frto, self.new_first) = (event.unsent, event.unsent);
                return;
            }
        }
        if recovered {
            if self.sack || self.una != self.high {
                self.phase = Phase::Open;
                self.undo.close();
            }
            self.dups = 0;
        } else if !self.sack {
            if arrival.advanced {
                self.dups = 0;
            } else if arrival.duplicate && self.nxt.after(self.high) {
                self.dups += 1;
            }
        }
    }

    /// The ACK filled part of the hole: with what was only delayed? Then whether to leave it at that.
    fn undo_partly(&mut self, echoed_before: Option<Instant>) -> bool {
        if !self.undo.delayed(echoed_before) {
            return false;
        }
        if self.board.bytes_again() > 0 {
            return true;
        }
        self.take_back(true);
        self.phase = Phase::Open;
        false
    }

    fn take_back_timeout(&mut self) {
        self.take_back(true);
        self.timeouts = 0;
        self.phase = Phase::Open;
    }

    /// Takes the reduction back, and with `losses` also that anything is lost.
    fn take_back(&mut self, losses: bool) {
        if losses {
            self.board.unlose();
        }
        if let Some(saved) = self.undo.take() {
            self.congestion.undo(&saved);
            self.cwr = false;
        }
        self.undo.close();
        self.rack.advanced = true;
    }

    /// Looks for losses: by time with SACK, else by counting duplicates.
    fn find_losses(&mut self, advanced: bool, now: Instant) -> Found {
        if self.sack {
            if !self.rack.advanced {
                return Found::default();
            }
            let certain = matches!(self.phase, Phase::Recovery | Phase::Loss)
                || self.board.segments(Place::Sacked) >= u32::from(self.settings.reordering);
            return self.rack.detect(
                &mut self.board,
                certain,
                self.rtt.min(),
                self.rtt.srtt(),
                now,
            );
        }
        let lost = match self.phase {
            // RFC 5681 section 3.2: the third duplicate. RFC 6582 section 3.2 step 3: a partial ACK.
            Phase::Open | Phase::Cwr => self.dups >= u32::from(self.settings.reordering).max(1),
            Phase::Recovery => advanced,
            Phase::Loss => false,
        };
        let before = self.board.bytes(Place::Flight);
        if lost {
            self.board.lose_front();
        }
        Found { bytes: before - self.board.bytes(Place::Flight), again: false }
    }

    /// Sets the threshold.
    fn reduce(&mut self) -> Saved {
        self.cwr = self.ecn;
        self.tlp.clear();
        self.congestion.reduce()
    }

    /// `delivered`: by the ACK that led here.
    fn begin_reduction(&mut self, delivered: u32) -> Saved {
        // RFC 9937 section 6: RecoverFS leaves out what was SACKed before this ACK.
        let sacked = self.board.bytes(Place::Sacked);
        self.prr =
            Prr::begin((self.nxt - self.una).saturating_sub(sacked).saturating_add(delivered));
        self.reduce()
    }

    fn enter_recovery(&mut self, ece: bool, delivered: u32) {
        let out = self.board.bytes_again();
        let saved = match self.phase {
            Phase::Open | Phase::Loss => {
                Some(self.begin_reduction(delivered)).filter(|_| !(ece && self.ecn))
            }
            Phase::Cwr | Phase::Recovery => None,
        };
        self.tlp.clear();
        self.undo.begin(self.una, out, saved);
        (self.phase, self.high) = (Phase::Recovery, self.nxt);
    }

    /// RFC 3168 section 6.1.2: as for a loss, "at most once [per] window of data".
    fn enter_cwr(&mut self, delivered: u32) {
        self.begin_reduction(delivered);
        self.undo.close();
        (self.phase, self.high) = (Phase::Cwr, self.nxt);
    }

    /// The window after an ACK.
    fn control(&mut self, arrival: &Arrival, found: Found, rtt: Option<Duration>, now: Instant) {
        let growth = Growth {
            delivered: arrival.delivered,
            srtt: self.rtt.srtt().unwrap_or_default(),
            rtt,
            una: self.una,
            nxt: self.nxt,
            now,
        };
        if matches!(self.phase, Phase::Cwr | Phase::Recovery) {
            let safe = arrival.advanced && found.bytes == 0;
            let (in_flight, ssthresh) = (self.in_flight(), self.congestion.ssthresh);
            let window =
                self.prr.window(arrival.delivered, in_flight, ssthresh, self.congestion.mss, safe);
            self.congestion.cwnd = window.unwrap_or(self.congestion.cwnd);
            return;
        }
        self.congestion.watch(&growth);
        // RFC 7661 in spirit, Linux to the letter (tcp_is_cwnd_limited): a window that was not used up does
        // not grow; in slow start, one that was used by half does.
        let used = self.limited
            || self.congestion.slow_start() && self.congestion.cwnd / 2 < self.most_out;
        // On a path that reorders, whatever arrives counts; else only what arrives in order.
        let forward = arrival.advanced || self.rack.reorderings > 0 && arrival.delivered > 0;
        if used && forward {
            self.congestion.grow(&growth);
        }
    }

    /// RFC 2018 section 8 allows a receiver to throw away what it SACKed. The first segment not acknowledged can
    /// be SACKed only then.
    fn check_reneging(&mut self, now: Instant) {
        if self.board.front().is_none_or(|s| s.place != Place::Sacked) {
            self.reneged = None;
        } else if self.reneged.is_none() {
            let wait = (self.rtt.srtt().unwrap_or_default() / 2).max(Duration::from_millis(10));
            self.reneged = Some(now + wait);
        }
    }

    /// The timers after an ACK.
    fn rearm(&mut self, advanced: bool, now: Instant) {
        if self.board.len() == 0 {
            (self.tlp.deadline, self.rack.deadline, self.reneged) = (None, None, None);
        } else if advanced {
            // RFC 6298 section 5.3: "restart the retransmission timer".
            self.timeout_from = now;
            self.schedule_probe(now);
        }
        if matches!(self.phase, Phase::Recovery | Phase::Loss) {
            self.tlp.deadline = None;
        }
    }

    /// The end of the reordering window; whether anything is lost now.
    pub(super) fn reordering_timer(&mut self, now: Instant) -> bool {
        let certain = matches!(self.phase, Phase::Recovery | Phase::Loss)
            || self.board.segments(Place::Sacked) >= u32::from(self.settings.reordering);
        let found =
            self.rack.detect(&mut self.board, certain, self.rtt.min(), self.rtt.srtt(), now);
        if found.bytes == 0 {
            return false;
        }
        if self.phase != Phase::Recovery {
            self.enter_recovery(false, 0);
            // Nothing was delivered; the fast retransmission goes out all the same.
            self.congestion.cwnd = self.in_flight() + self.congestion.mss;
        }
        true
    }

    /// The retransmission timeout (RFC 6298 section 5.4 on, RFC 5681 section 3.1, RFC 8985 section 6.3).
    pub(super) fn timed_out(&mut self, now: Instant) -> Fired {
        let fresh = matches!(self.phase, Phase::Open | Phase::Cwr);
        self.timeouts += 1;
        self.rtt.backoff += 1;
        self.dups = 0;
        self.reneged = None;
        self.rack.timed_out(&mut self.board, self.rtt.min(), self.rtt.srtt(), now);
        // The threshold falls once per window, not with each timeout of the same segment.
        let first = self.phase == Phase::Loss && self.timeouts == 1;
        if self.phase == Phase::Open || !self.una.before(self.high) || first {
            let saved = self.reduce();
            self.undo.begin(self.una, self.board.bytes_again(), Some(saved));
        }
        self.tlp.clear();
        self.congestion.timed_out();
        self.congestion.cwnd = self.in_flight() + self.congestion.mss;
        (self.phase, self.high) = (Phase::Loss, self.nxt);
        self.frto = self.settings.frto && (fresh || self.timeouts > 1);
        self.new_first = false;
        self.timeout_from = now;
        Fired::TimedOut { times: self.timeouts }
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
