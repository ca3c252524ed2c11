//! The timers: SYN retransmission, data retransmission (whose deadline recovery knows), zero-window probes,
//! keep-alive, delayed ACKs, the end of FIN_WAIT_2 and TIME_WAIT; and giving up.

use super::{
    connection::{Connection, NEVER, State},
    handshake::SynState,
    receive::AckNeed,
    recovery::Fired,
};
use crate::{inet::Count, time::Instant};
use std::time::Duration;

/// The shortest probe interval. The retransmission timeout may be shorter, but a closed window or a cork is no loss
/// (Linux's `tcp_probe0_base`).
const LEAST_PROBE_INTERVAL: Duration = Duration::from_millis(200);

impl Connection {
    /// When [`Connection::timer`] is due next.
    #[inline(always)]
    pub fn deadline(&self) -> Option<Instant> {
        if self.state == State::Closed {
            return None;
        }
        let mut first = self.probe_at.min(self.slow_at);
        if self.snd_una != self.snd_nxt
            && let Some(again) = self.recovery.deadline()
        {
            first = first.min(again);
            if self.stuck_since != NEVER {
                first = self.within_user_timeout(first, self.stuck_since);
            }
        }
        if let AckNeed::By(at) = self.receiver.ack_need() {
            first = first.min(at);
        }
        (first != NEVER).then_some(first)
    }

    /// Does what is due by `now`.
    pub fn timer(&mut self, now: Instant) {
        if self.state == State::Closed {
            return;
        }
        if let AckNeed::By(at) = self.receiver.ack_need()
            && at <= now
        {
            self.receiver.ack_timer(now);
        }
        if self.snd_una != self.snd_nxt && self.syn_state.is_none() {
            self.retransmission_timer(now);
        }
        if self.probe_at <= now {
            self.probe_at = NEVER;
            match self.syn_state.take() {
                Some(syn_state) => self.syn_timer(syn_state, now),
                None => self.probe_timer(now),
            }
        }
        if self.slow_at <= now {
            self.slow_at = NEVER;
            match self.state {
                State::TimeWait => self.end(),
                State::FinWait2 if self.orphan => self.end(),
                State::Closed => {}
                _ => self.keepalive_timer(now),
            }
        }
    }

    //= RFC 9293 3.8.3
    //# The following procedure MUST be used to handle excessive retransmissions of data segments (MUST-20):
    /// Recovery's timers, and when to give up.
    fn retransmission_timer(&mut self, now: Instant) {
        if self.user_timeout_over(self.stuck_since, now) {
            return self.give_up();
        }
        if self.recovery.deadline().is_none_or(|at| at > now) {
            return;
        }
        match self.recovery.timer(now) {
            Fired::Nothing | Fired::Retransmit => {}
            Fired::Probe(range) => self.tail_probe = Some(range),
            Fired::TimedOut { .. } => {
                self.tail_probe = None;
                if self.stuck_since == NEVER {
                    self.stuck_since = now;
                } else if self.retransmits_timed_out(now) {
                    self.give_up();
                }
            }
        }
    }

    /// Whether retransmissions will never succeed (`tcp_write_timeout`).
    fn retransmits_timed_out(&self, now: Instant) -> bool {
        let config = &self.shared.config;
        if self.snd_wnd == 0 && !self.orphan {
            //= RFC 9293 3.8.6
            //# but SHOULD NOT time out the connection if data beyond the right window edge is not acknowledged
            //# (SHLD-17).
            // As long as the peer answers.
            let patience = self.options.user_timeout.max(config.tcp_rto_max.saturating_mul(2));
            return now.since(self.last_ack_at) > patience;
        }
        if !self.options.user_timeout.is_zero() {
            return false; // has its own time
        }
        let mut retries = config.tcp_retries2;
        if self.orphan {
            retries = self.orphan_retries(self.recovery.rto() < config.tcp_rto_max);
        }
        //= RFC 9293 3.8.3
        //# The value of R2 SHOULD correspond to at least 100 seconds (SHLD-11).
        now.since(self.stuck_since)
            >= model_timeout(retries, config.tcp_rto_min, config.tcp_rto_max)
    }

    /// `tcp_orphan_retries`.
    fn orphan_retries(&self, alive: bool) -> u8 {
        match self.shared.config.tcp_orphan_retries {
            _ if self.soft_error.is_some() && !alive => 0,
            0 if alive => 8,
            retries => retries,
        }
    }

    fn give_up(&mut self) {
        self.count(Count::TCPAbortOnTimeout);
        self.fail(self.soft_error.unwrap_or(libc::ETIMEDOUT));
    }

    /// The SYN, or SYN-ACK, was not answered.
    #[cold]
    fn syn_timer(&mut self, mut syn_state: Box<SynState>, now: Instant) {
        let config = &self.shared.config;
        let retries = match self.options.syn_count {
            0 => config.tcp_syn_retries,
            count => count,
        };
        let linear = match self.state {
            State::SynSent => config.tcp_syn_linear_timeouts,
            _ => 0,
        };
        let most = u32::from(retries) + u32::from(linear);
        let too_long = if self.options.user_timeout.is_zero() {
            let limit = model_timeout(retries, Duration::from_secs(1), config.tcp_rto_max);
            syn_state.timeouts > 0 && now.since(syn_state.first) >= limit
        } else {
            self.user_timeout_over(syn_state.first, now)
        };
        if u32::from(syn_state.timeouts) >= most || too_long {
            return self.give_up();
        }
        syn_state.timed_out(linear, config);
        self.syn_state = Some(syn_state);
    }

    //= RFC 9293 3.8.6.1
    //# Probing of zero (offered) windows MUST be supported (MUST-36).
    //= RFC 9293 3.8.6.2.1
    //# To avoid a resulting deadlock, it is necessary to have a timeout to force transmission of data, overriding the
    //# SWS avoidance algorithm.
    /// Called after everything allowed was sent. If data is left and nothing in flight will bring an ACK, sets the
    /// probe timer. The same timer ends the wait of corked data.
    #[inline]
    pub(super) fn update_probe_timer(&mut self, now: Instant) {
        let waits = self.snd_una == self.snd_nxt && self.has_unsent();
        if waits && self.probe_at == NEVER {
            self.probe_at = now + self.probe_interval();
        } else if !waits && self.probe_at != NEVER {
            self.stop_probing();
        }
    }

    fn stop_probing(&mut self) {
        (self.probe_at, self.closed_since) = (NEVER, NEVER);
        (self.probes_out, self.probe_backoff) = (0, 0);
    }

    //= RFC 9293 3.8.6.1
    //# The transmitting host SHOULD send the first zero-window probe when a zero window has existed for the
    //# retransmission timeout period (SHLD-29) (Section 3.8.1), and SHOULD increase exponentially the interval
    //# between successive probes (SHLD-30).
    /// `tcp_probe0_when`.
    fn probe_interval(&mut self) -> Duration {
        self.recovery.process_deferred_ack();
        let config = &self.shared.config;
        let base = self.recovery.rto().max(LEAST_PROBE_INTERVAL);
        (base * (1 << self.probe_backoff.min(16))).min(config.tcp_rto_max)
    }

    /// An ACK has come while the window is being probed (`tcp_ack_probe`).
    #[cold]
    pub(super) fn ack_while_probing(&mut self, now: Instant) {
        let first = self.buffer.end().min(self.snd_una + self.snd_mss);
        let sendable = !first.after(self.snd_edge()) && self.snd_wnd > 0;
        if sendable {
            (self.probe_backoff, self.closed_since) = (0, NEVER);
        }
        self.probe_at = now + self.probe_interval();
    }

    /// The probe timer: asks whether the window has opened (`tcp_probe_timer`).
    #[cold]
    fn probe_timer(&mut self, now: Instant) {
        if self.snd_una != self.snd_nxt || !self.has_unsent() {
            return self.stop_probing();
        }
        if self.snd_nxt.before(self.snd_edge()) {
            // Corked, or less than a segment's room for too long: what fits is sent.
            self.forced = true;
            return;
        }
        let (retries, longest) = (self.shared.config.tcp_retries2, self.shared.config.tcp_rto_max);
        let mut most = retries;
        let mut too_long = self.user_timeout_over(self.closed_since, now);
        if self.orphan {
            let alive = self.probe_interval() < longest;
            most = self.orphan_retries(alive);
            too_long |= !alive && self.probe_backoff >= most;
        }
        //= RFC 9293 3.8.6.1
        //# As long as the receiving TCP peer continues to send acknowledgments in response to the probe segments, the
        //# sending TCP peer MUST allow the connection to stay open (MUST-37).
        // Except with TCP_USER_TIMEOUT, or without a socket: `tcp_probe_timer`, against "sockstress".
        if self.probes_out >= most || too_long {
            return self.give_up();
        }
        self.closed_since = self.closed_since.min(now);
        self.probe_due = true;
        self.probes_out = self.probes_out.saturating_add(1);
        self.probe_backoff = self.probe_backoff.saturating_add(1).min(retries);
        let next = now + self.probe_interval();
        self.probe_at = self.within_user_timeout(next, self.closed_since);
    }

    /// Starts the keep-alive timer, counting from `since`.
    pub(super) fn arm_keepalive(&mut self, since: Instant, now: Instant) {
        let ends = matches!(self.state, State::TimeWait | State::Closed | State::SynSent);
        if !(ends || self.state == State::FinWait2 && self.orphan) {
            self.slow_at = (since + self.keep_idle()).max(now);
        }
    }

    //= RFC 9293 3.8.4
    //# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or acknowledgment packets
    //# have been received for the connection within an interval (MUST-26).
    //= RFC 9293 3.8.4
    //# Consequently, if a keep-alive mechanism is implemented it MUST NOT interpret failure to respond to any
    //# specific probe as a dead connection (MUST-29).
    /// As `tcp_keepalive_timer`. Segments do not move the timer: it checks the idle time when it fires.
    #[cold]
    fn keepalive_timer(&mut self, now: Instant) {
        if !self.options.keepalive || matches!(self.state, State::SynSent | State::SynReceived) {
            return;
        }
        let idle = self.keep_idle();
        if self.snd_una != self.snd_nxt || self.has_unsent() {
            // Data in flight already shows whether the peer is alive.
            self.slow_at = now + idle;
            return;
        }
        let silent = now.since(self.last_heard());
        if silent < idle {
            self.slow_at = self.last_heard() + idle;
            return;
        }
        let config = &self.shared.config;
        let count = match self.options.keep_count {
            0 => config.tcp_keepalive_probes,
            count => count,
        };
        let interval = match self.options.keep_interval {
            Duration::ZERO => config.tcp_keepalive_intvl,
            interval => interval,
        };
        let user = self.options.user_timeout;
        let dead = if user.is_zero() {
            self.probes_out >= count
        } else {
            silent >= user && self.probes_out > 0
        };
        if dead {
            let error = self.soft_error.unwrap_or(libc::ETIMEDOUT);
            self.count(Count::TCPAbortOnTimeout);
            self.end_with_reset();
            self.error = Some(error);
            return;
        }
        self.count(Count::TCPKeepAlive);
        self.probes_out = self.probes_out.saturating_add(1);
        self.probe_due = true;
        self.slow_at = now + interval;
    }

    fn keep_idle(&self) -> Duration {
        match self.options.keep_idle {
            Duration::ZERO => self.shared.config.tcp_keepalive_time,
            idle => idle,
        }
    }

    /// When the peer was last heard from.
    pub(super) fn last_heard(&self) -> Instant {
        self.last_ack_at.max(self.last_data_in)
    }

    //= RFC 9293 3.8.3
    //# An application MUST (MUST-21) be able to set the value for R2 for a particular connection.
    /// `TCP_USER_TIMEOUT` (RFC 5482): whether it has passed since `since`.
    fn user_timeout_over(&self, since: Instant, now: Instant) -> bool {
        let limit = self.options.user_timeout;
        since != NEVER && !limit.is_zero() && now.since(since) >= limit
    }

    /// `at`, but not after the end of the user timeout that began at `since`.
    pub(super) fn within_user_timeout(&self, at: Instant, since: Instant) -> Instant {
        match self.options.user_timeout {
            Duration::ZERO => at,
            limit => at.min(since + limit),
        }
    }
}

/// How long `retries` retransmissions take if the first comes after `base` (`tcp_model_timeout`).
fn model_timeout(retries: u8, base: Duration, max: Duration) -> Duration {
    let retries = u32::from(retries);
    let ratio = max.as_nanos() / base.as_nanos().max(1);
    let doublings = ratio.max(1).ilog2().min(30);
    if retries <= doublings {
        base.saturating_mul((2 << retries) - 1)
    } else {
        let doubled = base.saturating_mul((2 << doublings) - 1);
        doubled.saturating_add(max.saturating_mul(retries - doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_retries_take_linuxs_924_seconds_and_six_of_a_syn_127() {
        let max = Duration::from_secs(120);
        let of = |retries, base| model_timeout(retries, Duration::from_millis(base), max);
        assert_eq!(of(15, 200), Duration::from_millis(924_600));
        assert_eq!(of(6, 1_000), Duration::from_secs(127));
        assert_eq!(of(0, 200), Duration::from_millis(200));
        let unbounded = model_timeout(200, Duration::from_millis(200), Duration::MAX);
        assert_eq!(unbounded, Duration::MAX);
    }
}
