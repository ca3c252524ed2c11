//! Tail loss probes (RFC 8985 section 7): if no ACK arrives for two round trips, one segment is sent to provoke one.
//! Owns the probe timer and the outstanding probe.

use super::super::seq::Seq;
use crate::time::Instant;
use std::ops::Range;

/// Added if more than one segment is in flight: timers, the peer's too, are no more exact than this (Linux:
/// TCP_TIMEOUT_MIN, two jiffies). Nanoseconds.
const SLACK: u64 = 2_000_000;
//= RFC 8985 7.2
//# Second, when there is no SRTT estimate available, the PTO SHOULD be 1 second.
pub(super) const UNKNOWN: u64 = 1_000_000_000;

/// The probe.
#[derive(Debug, Default)]
pub(super) struct Tlp {
    /// When to probe.
    pub deadline: Option<Instant>,
    /// The timer has fired: the next segment sent is the probe.
    armed: bool,
    /// TLP.end_seq: SND.NXT when the outstanding probe was sent.
    end: Option<Seq>,
    /// TLP.is_retrans.
    retransmitted: bool,
}

/// What an ACK says about the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Nothing,
    /// The probe repaired a loss that nothing else has reported.
    Repaired,
}

impl Tlp {
    //= RFC 8985 7.2
    //# First, the default PTO interval is 2*SRTT.
    //= RFC 8985 7.2
    //# Third, when the FlightSize is one segment, the sender MAY inflate the PTO by TLP.max_ack_delay to accommodate
    //# a potentially delayed acknowledgment and reduce the risk of spurious retransmissions.
    //= RFC 8985 7.2
    //# Finally, if the time at which an RTO would fire (here denoted as "TCP_RTO_expiration()") is sooner than the
    //# computed time for the PTO, then the sender schedules a TLP to be sent at that RTO time.
    /// In nanoseconds, as this is done for every segment. `single`: one segment is in flight, whose ACK the peer may delay for `delay`.
    pub fn schedule(
        &mut self,
        srtt: Option<u64>,
        single: bool,
        delay: u64,
        timeout: Instant,
        now: Instant,
    ) {
        let wait = match srtt {
            Some(srtt) => srtt * 2 + if single { delay } else { SLACK },
            None => UNKNOWN,
        };
        self.deadline = Some(Instant::from_nanos(now.nanos().saturating_add(wait)).min(timeout));
    }

    /// Whether no probe is due or outstanding.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.end.is_none() && !self.armed
    }

    //= RFC 8985 7.3
    //# First, there is no other previous loss probe still in flight.
    /// The timer has fired; false if a probe is outstanding already.
    pub fn fire(&mut self) -> bool {
        self.deadline = None;
        self.armed = self.end.is_none();
        self.armed
    }

    /// A segment was sent. If it is the probe, records `nxt` and returns true.
    pub fn sent(&mut self, nxt: Seq, retransmitted: bool) -> bool {
        let probe = std::mem::take(&mut self.armed);
        if probe {
            (self.end, self.retransmitted) = (Some(nxt), retransmitted);
        }
        probe
    }

    /// Whether the outstanding probe is a retransmission.
    pub fn is_retransmission(&self) -> bool {
        self.retransmitted && self.end.is_some()
    }

    //= RFC 8985 7.1
    //# Reset TLP.is_retrans and TLP.end_seq when initiating a connection, fast recovery, or RTO recovery.
    pub fn clear(&mut self) {
        *self = Tlp::default();
    }

    /// Whether a DSACK shows that both the probe and its original arrived.
    pub fn is_duplicate(&self, block: &Range<Seq>) -> bool {
        self.retransmitted && self.end == Some(block.end)
    }

    //= RFC 8985 7.4.2
    //# If the TLP sender does not receive such an indication, then it MUST assume that the original data segment, the
    //# TLP retransmission, or a corresponding ACK was lost for congestion control purposes.
    //= RFC 8985 7.4.2
    //# The sender considers the TLP episode to be done and records that fact by setting TLP.end_seq to None.
    /// TLP_process_ack. `duplicate`: a DSACK for the probe; `bare`: nothing new in the ACK.
    pub fn acked(&mut self, ack: Seq, duplicate: bool, bare: bool) -> Verdict {
        self.armed = false;
        let Some(end) = self.end.filter(|&end| ack == end || ack.after(end)) else {
            return Verdict::Nothing;
        };
        if !self.retransmitted || duplicate {
            self.end = None;
        } else if ack.after(end) {
            self.end = None;
            return Verdict::Repaired;
        } else if bare {
            // "If the ACK is a duplicate ACK without any SACK option", both copies arrived.
            self.end = None;
        }
        Verdict::Nothing
    }
}
