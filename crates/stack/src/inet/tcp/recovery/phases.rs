//! The transitions between phases by an ACK or a timeout: loss, congestion, their end, and the undo if there was
//! neither. The order of the steps is Linux's (tcp_fastretrans_alert, tcp_process_loss and tcp_enter_loss in
//! net/ipv4/tcp_input.c).

use super::{
    AckEvent, Fired, Phase, Recovery, SegmentState, ack::Arrival, congestion::Saved, prr::Prr,
    rack::Losses,
};
use crate::time::Instant;
use std::time::Duration;

impl Recovery {
    /// Begins, continues or ends the response to loss or congestion.
    pub(super) fn alert(
        &mut self,
        event: &AckEvent<'_>,
        arrival: &Arrival,
        echoed_before: Option<Instant>,
        now: Instant,
    ) -> Losses {
        if event.ece && self.ecn {
            self.undo.forbid();
        }
        self.check_reneging(now);
        if self.phase == Phase::Open {
            self.undo.first = None;
        } else if !self.una.before(self.high_seq) && self.stays_in_phase(echoed_before) {
            return Losses::default();
        }
        let found = match self.phase {
            Phase::Recovery => {
                if !arrival.advanced {
                    self.dup_acks += u32::from(arrival.duplicate && !self.sack);
                } else if self.undo_partial(echoed_before) {
                    // A delayed original filled the hole: retransmit no more of it.
                    return Losses::default();
                } else if !self.sack {
                    // One segment of the ACK is for the hole, the others were reported by duplicate ACKs before.
                    let segments = arrival.delivered.div_ceil(self.congestion.mss);
                    self.dup_acks = self.dup_acks.saturating_sub(segments.saturating_sub(1));
                }
                if self.undo.all_duplicates() {
                    self.undo_reduction(false);
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
                if self.phase != Phase::Open && !found.retransmitted {
                    return found;
                }
                found
            }
            Phase::Open | Phase::Cwr => {
                if !self.sack {
                    self.dup_acks = if arrival.advanced { 0 } else { self.dup_acks }
                        + u32::from(arrival.duplicate);
                }
                if self.phase == Phase::Open && self.undo.all_duplicates() {
                    self.undo_reduction(false);
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

    /// The phase's last byte is acknowledged; returns whether the phase continues nevertheless.
    fn stays_in_phase(&mut self, echoed_before: Option<Instant>) -> bool {
        match self.phase {
            // Held "until something above high_seq is ACKed" (Linux), so that the CWR bit arrives.
            Phase::Cwr if self.una != self.high_seq => self.end_reduction(),
            //= RFC 6675 5
            //# (A) An incoming cumulative ACK for a sequence number greater than RecoveryPoint signals the end of
            //# loss recovery, and the loss recovery phase MUST be terminated.
            Phase::Recovery => {
                if self.undo.delayed(echoed_before) || self.undo.all_duplicates() {
                    self.undo_reduction(false);
                }
                if !self.sack && self.una == self.high_seq {
                    // RFC 6582 section 3.2: without SACK, duplicates of `high_seq` would look like a new loss.
                    self.dup_acks = 0;
                    return true;
                }
                self.end_reduction();
            }
            _ => {}
        }
        false
    }

    //= RFC 5681 4.3
    //# Finally, after all loss in the given window of segments has been successfully retransmitted, cwnd MUST be set
    //# to no more than ssthresh and congestion avoidance MUST be used to further increase cwnd.
    fn end_reduction(&mut self) {
        if self.undo.open() || self.phase == Phase::Cwr {
            self.congestion.cwnd = self.congestion.ssthresh.max(self.congestion.mss);
        }
        if self.phase == Phase::Recovery {
            self.rack.recovered();
        }
        // A DSACK may still show that there was no loss.
        self.dup_acks = 0;
        self.phase = Phase::Open;
    }

    /// An ACK in the phase that follows a timeout: F-RTO (RFC 5682 section 3.1, the version with SACK).
    fn after_timeout(
        &mut self,
        event: &AckEvent<'_>,
        arrival: &Arrival,
        echoed_before: Option<Instant>,
    ) {
        let recovered = !self.una.before(self.high_seq);
        if arrival.advanced && (self.undo.delayed(echoed_before) || self.undo.all_duplicates()) {
            return self.undo_timeout();
        }
        if self.frto {
            // Step 3b: "the acknowledgment [...] covers data that was not retransmitted": the timeout was
            // spurious.
            if arrival.original {
                return self.undo_timeout();
            }
            if self.nxt.after(self.high_seq) {
                // Step 3a: a duplicate ACK after new data: the loss was real.
                self.frto &= !(arrival.sacked > 0 || arrival.duplicate);
            } else if arrival.advanced && !recovered {
                // Step 2b: "transmit up to two new (previously unsent) segments".
                self.high_seq = self.nxt;
                (self.frto, self.new_first) = (event.unsent, event.unsent);
                return;
            }
        }
        if recovered {
            if self.sack || self.una != self.high_seq {
                self.phase = Phase::Open;
                self.rack.recovered();
            }
            self.dup_acks = 0;
        } else if !self.sack {
            if arrival.advanced {
                self.dup_acks = 0;
            } else if arrival.duplicate && self.nxt.after(self.high_seq) {
                self.dup_acks += 1;
            }
        }
    }

    /// The ACK filled part of the hole. If a delayed original filled it, returns whether that is all to do.
    fn undo_partial(&mut self, echoed_before: Option<Instant>) -> bool {
        if !self.undo.delayed(echoed_before) {
            return false;
        }
        if self.board.retransmitted_bytes() > 0 {
            return true;
        }
        self.undo_reduction(true);
        self.phase = Phase::Open;
        false
    }

    fn undo_timeout(&mut self) {
        self.undo_reduction(true);
        self.timeouts = 0;
        self.phase = Phase::Open;
    }

    /// Undoes the reduction, and with `losses` also the marks of lost segments.
    fn undo_reduction(&mut self, losses: bool) {
        if losses {
            self.board.clear_lost();
        }
        if self.phase != Phase::Loss {
            // The segments were late, not lost: where duplicate ACKs are counted, wait for more of them.
            self.rack.reorderings += 1;
            self.dup_threshold = self.dup_threshold.saturating_mul(2).min(127);
        }
        if let Some(saved) = self.undo.take() {
            self.congestion.undo(&saved);
            self.cwr = false;
        }
        self.undo.close();
        self.rack.advanced = true;
    }

    /// Detects losses by RACK.
    fn rack_detect(&mut self, now: Instant) -> Losses {
        let certain = matches!(self.phase, Phase::Recovery | Phase::Loss)
            || self.board.segments(SegmentState::Sacked) >= u32::from(self.settings.reordering);
        self.rack.detect(&mut self.board, certain, self.rtt.min(), self.rtt.srtt(), now)
    }

    /// Detects losses: by time with SACK, else by counting duplicate ACKs.
    fn find_losses(&mut self, advanced: bool, now: Instant) -> Losses {
        if self.sack {
            if !self.rack.advanced {
                return Losses::default();
            }
            return self.rack_detect(now);
        }
        let lost = match self.phase {
            //= RFC 5681 3.2
            //# The TCP sender SHOULD use the "fast retransmit" algorithm to detect and repair loss, based on incoming
            //# duplicate ACKs.
            Phase::Open | Phase::Cwr => self.dup_acks >= u32::from(self.dup_threshold),
            // RFC 6582 section 3.2 step 3: a partial ACK.
            Phase::Recovery => advanced,
            Phase::Loss => false,
        };
        let before = self.board.bytes(SegmentState::Flight);
        //= RFC 5681 3.2
        //# The lost segment starting at SND.UNA MUST be retransmitted
        if lost {
            self.board.mark_front_lost();
        }
        Losses { bytes: before - self.board.bytes(SegmentState::Flight), retransmitted: false }
    }

    /// Reduces the threshold.
    pub(super) fn reduce(&mut self) -> Saved {
        self.cwr = self.ecn;
        self.tlp.clear();
        self.congestion.reduce()
    }

    /// `delivered`: the bytes that the ACK delivered.
    fn begin_reduction(&mut self, delivered: u32) -> Saved {
        // RFC 9937 section 6: RecoverFS leaves out what was SACKed before this ACK.
        let sacked = self.board.bytes(SegmentState::Sacked);
        self.prr =
            Prr::begin((self.nxt - self.una).saturating_sub(sacked).saturating_add(delivered));
        self.reduce()
    }

    //= RFC 5681 3.2
    //# When the third duplicate ACK is received, a TCP MUST set ssthresh to no more than the value given in equation
    //# (4).
    fn enter_recovery(&mut self, ece: bool, delivered: u32) {
        let out = self.board.retransmitted_bytes();
        let saved = match self.phase {
            Phase::Open | Phase::Loss => {
                Some(self.begin_reduction(delivered)).filter(|_| !(ece && self.ecn))
            }
            Phase::Cwr | Phase::Recovery => None,
        };
        self.tlp.clear();
        self.undo.begin(self.una, out, saved);
        (self.phase, self.high_seq) = (Phase::Recovery, self.nxt);
    }

    /// RFC 3168 section 6.1.2: as for a loss, "at most once [per] window of data".
    fn enter_cwr(&mut self, delivered: u32) {
        self.begin_reduction(delivered);
        self.undo.close();
        (self.phase, self.high_seq) = (Phase::Cwr, self.nxt);
    }

    /// RFC 2018 section 8 allows a receiver to drop what it SACKed. Only then can the first segment not acknowledged
    /// be SACKed.
    fn check_reneging(&mut self, now: Instant) {
        if self.board.front().is_none_or(|s| s.state != SegmentState::Sacked) {
            self.reneged = None;
        } else if self.reneged.is_none() {
            let wait = (self.rtt.srtt().unwrap_or_default() / 2).max(Duration::from_millis(10));
            self.reneged = Some(now + wait);
        }
    }

    /// The reordering window is over; returns whether anything is lost now.
    pub(super) fn reordering_timer(&mut self, now: Instant) -> bool {
        let found = self.rack_detect(now);
        if found.bytes == 0 {
            return false;
        }
        if self.phase != Phase::Recovery {
            self.enter_recovery(false, 0);
            // Nothing was delivered; the fast retransmission is sent nevertheless.
            self.congestion.cwnd = self.in_flight() + self.congestion.mss;
        }
        true
    }

    //= RFC 6298 5
    //# (5.4) Retransmit the earliest segment that has not been acknowledged by the TCP receiver.
    //= RFC 6298 5
    //# (5.6) Start the retransmission timer, such that it expires after RTO seconds (for the value of RTO after the
    //# doubling operation outlined in 5.5).
    /// The retransmission timeout.
    pub(super) fn timed_out(&mut self, now: Instant) -> Fired {
        let fresh = matches!(self.phase, Phase::Open | Phase::Cwr);
        self.timeouts += 1;
        self.rtt.backoff += 1;
        self.dup_acks = 0;
        self.reneged = None;
        //= RFC 6675 5.1
        //# Further, a SACK TCP sender SHOULD utilize all SACK information made available during the loss recovery
        //# following an RTO.
        if self.sack {
            self.rack.timed_out(&mut self.board, self.rtt.min(), self.rtt.srtt(), now);
        } else {
            // It is not known what arrived: everything from SND.UNA on is retransmitted.
            self.board.mark_lost_where(|_| true);
        }
        //= RFC 5681 3.1
        //# When a TCP sender detects segment loss using the retransmission timer and the given segment has not yet
        //# been resent by way of the retransmission timer, the value of ssthresh MUST be set to no more than the
        //# value given in equation (4):
        // With CUBIC it is that of RFC 9438. Once per window, not with each timeout of the same segment.
        let first = self.phase == Phase::Loss && self.timeouts == 1;
        if self.phase == Phase::Open || !self.una.before(self.high_seq) || first {
            let saved = self.reduce();
            self.undo.begin(self.una, self.board.retransmitted_bytes(), Some(saved));
        }
        self.tlp.clear();
        self.congestion.timed_out();
        //= RFC 5681 3.1
        //# Furthermore, upon a timeout (as specified in [RFC2988]) cwnd MUST be set to no more than the loss window,
        //# LW, which equals 1 full-sized segment (regardless of the value of IW).
        self.congestion.cwnd = self.in_flight() + self.congestion.mss;
        //= RFC 6675 5.1
        //# If an RTO occurs during loss recovery as specified in this document, RecoveryPoint MUST be set to
        //# HighData. Further, the new value of RecoveryPoint MUST be preserved and the loss recovery algorithm
        //# outlined in this document MUST be terminated.
        (self.phase, self.high_seq) = (Phase::Loss, self.nxt);
        self.frto = self.settings.frto && (fresh || self.timeouts > 1);
        self.new_first = false;
        self.timeout_from = now;
        Fired::TimedOut { times: self.timeouts }
    }
}
