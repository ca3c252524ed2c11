//! Proportional rate reduction (RFC 9937): how much may be sent per ACK while the window shrinks to its new size.
//! Owns the counters of one reduction.

/// One reduction.
#[derive(Debug, Default)]
pub(super) struct Prr {
    /// prr_delivered: bytes delivered since it began.
    delivered: u32,
    /// prr_out: bytes sent since it began.
    out: u32,
    /// RecoverFS: bytes in flight when it began, those newly acknowledged included.
    flight: u32,
}

impl Prr {
    /// A reduction begins with an ACK that was counted already.
    pub fn begin(flight: u32) -> Prr {
        Prr { delivered: 0, out: 0, flight: flight.max(1) }
    }

    /// Bytes were sent, new or retransmitted.
    #[inline]
    pub fn sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// The window after an ACK that `delivered` bytes. `safe`: it advanced SND.UNA and found nothing lost.
    pub fn window(
        &mut self,
        delivered: u32,
        in_flight: u32,
        ssthresh: u32,
        mss: u32,
        safe: bool,
    ) -> Option<u32> {
        if delivered == 0 {
            return None;
        }
        self.delivered = self.delivered.saturating_add(delivered);
        let mut send = if in_flight > ssthresh {
            // "SndCnt = CEIL(prr_delivered * ssthresh / RecoverFS) - prr_out", rounded up to whole segments: a part
            // of a segment cannot be sent.
            let share = u64::from(self.delivered) * u64::from(ssthresh) / u64::from(self.flight);
            let share = u32::try_from(share).unwrap_or(u32::MAX / 2);
            share.div_ceil(mss).saturating_mul(mss).saturating_sub(self.out)
        } else {
            // "PRR-CRB by default", "PRR-SSRB when recovery is in good progress"
            let bound = self.delivered.saturating_sub(self.out).max(delivered);
            let bound = bound.saturating_add(if safe { mss } else { 0 });
            bound.min(ssthresh - in_flight)
        };
        if self.out == 0 {
            // "Force a fast retransmit upon entering recovery": a whole segment, where the RFC would allow a byte.
            send = send.max(mss);
        }
        Some(in_flight.saturating_add(send))
    }
}
