//! `TCP_INFO`: what a connection reports about itself. The fields are those of Linux's `struct tcp_info`, without the
//! prefix; times are [`Duration`]s, sizes bytes unless they say segments.

use super::connection::{Connection, State};
use crate::time::Instant;
use std::time::Duration;

/// `TCP_INFINITE_SSTHRESH`.
const INFINITE_THRESHOLD: u32 = 0x7fff_ffff;

/// The values of `TCP_INFO`.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpInfo {
    /// The state.
    pub state: State,
    /// Congestion: open 0, disorder 1, CWR 2, recovery 3, loss 4.
    pub ca_state: u8,
    /// Retransmission timeouts in a row.
    pub retransmits: u32,
    /// Keep-alive or zero-window probes unanswered.
    pub probes: u32,
    /// How often the timeout was doubled.
    pub backoff: u32,
    /// Negotiated: timestamps.
    pub timestamps: bool,
    /// Negotiated: SACK.
    pub sack: bool,
    /// Negotiated: ECN.
    pub ecn: bool,
    /// Negotiated: the shift of the peer's windows, of ours.
    pub window_scale: Option<(u8, u8)>,
    /// The retransmission timeout.
    pub rto: Duration,
    /// The largest segment sent, bytes of data.
    pub snd_mss: u32,
    /// The largest segment the peer has sent.
    pub rcv_mss: u32,
    /// The MSS we announced.
    pub advmss: u32,
    /// The largest segment the path is known to take.
    pub pmtu_mss: u32,
    /// Segments in flight. Here and in the next three, several small segments may count as one.
    pub unacked: u32,
    /// Of these: selectively acknowledged.
    pub sacked: u32,
    /// Of these: found lost, and perhaps retransmitted.
    pub lost: u32,
    /// Of these: retransmitted.
    pub retrans: u32,
    /// Since data was sent last.
    pub last_data_sent: Duration,
    /// Since data came last.
    pub last_data_recv: Duration,
    /// Since an acknowledgment came last.
    pub last_ack_recv: Duration,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// The smallest round-trip time measured.
    pub min_rtt: Duration,
    /// The round-trip time as the receiving half sees it.
    pub rcv_rtt: Duration,
    /// Slow start threshold, segments; 0x7fffffff: none yet.
    pub snd_ssthresh: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// The window the peer offers, bytes.
    pub snd_wnd: u32,
    /// The most the application has read in one round trip, bytes.
    pub rcv_space: u32,
    /// Segments retransmitted, over the connection's life.
    pub total_retrans: u32,
    /// Segments delivered, as far as the peer has reported.
    pub delivered: u32,
    /// Without SACK: how many duplicate ACKs mean a loss.
    pub reordering: u32,
    /// Segments sent.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Segments with data sent.
    pub data_segs_out: u32,
    /// Segments with data received.
    pub data_segs_in: u32,
    /// Bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes retransmitted.
    pub bytes_retrans: u64,
    /// Bytes not sent yet.
    pub notsent_bytes: u32,
    /// Duplicates the peer has reported (DSACK).
    pub dsack_dups: u32,
    /// How often reordering was seen.
    pub reord_seen: u32,
}

impl Connection {
    /// `TCP_INFO`.
    pub fn info(&mut self, now: Instant) -> TcpInfo {
        let figures = self.recovery.figures();
        let mss = self.snd_mss.max(1);
        TcpInfo {
            state: self.state,
            ca_state: figures.ca_state,
            retransmits: figures.retransmits,
            probes: self.probes_out.into(),
            backoff: figures.backoff.max(self.probe_backoff.into()),
            timestamps: self.timestamps,
            sack: self.sack,
            ecn: self.ecn,
            window_scale: self.scaled.then_some((self.snd_shift, self.rcv_shift)),
            rto: figures.rto,
            snd_mss: self.snd_mss,
            rcv_mss: self.receiver.peer_mss(),
            advmss: self.adv_mss.into(),
            pmtu_mss: self.path_mss.into(),
            unacked: figures.unacked,
            sacked: figures.sacked,
            lost: figures.lost,
            retrans: figures.retrans,
            last_data_sent: now.since(self.last_data_out),
            last_data_recv: now.since(self.last_data_in),
            last_ack_recv: now.since(self.last_ack_at),
            rtt: figures.srtt,
            rttvar: figures.rttvar,
            min_rtt: figures.min_rtt,
            rcv_rtt: self.receiver.rtt(),
            snd_ssthresh: match figures.ssthresh {
                u32::MAX => INFINITE_THRESHOLD,
                bytes => bytes / mss,
            },
            snd_cwnd: figures.cwnd / mss,
            snd_wnd: self.snd_wnd,
            rcv_space: self.receiver.space(),
            total_retrans: figures.total_retrans,
            delivered: figures.delivered,
            reordering: figures.reordering,
            segs_out: self.counts.segs_out,
            segs_in: self.counts.segs_in,
            data_segs_out: self.counts.data_segs_out,
            data_segs_in: self.counts.data_segs_in,
            bytes_acked: self.counts.bytes_acked,
            bytes_received: self.counts.bytes_received,
            bytes_sent: self.counts.bytes_sent,
            bytes_retrans: figures.bytes_retrans,
            notsent_bytes: self.unsent() as u32,
            dsack_dups: figures.dsack_dups,
            reord_seen: figures.reord_seen,
        }
    }
}
