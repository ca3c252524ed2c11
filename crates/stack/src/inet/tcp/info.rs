//! `TCP_INFO`: what a connection tells about itself. The fields are those of Linux's `struct tcp_info`, without
//! the prefix; times are [`Duration`]s, sizes bytes unless they say segments.

use super::connection::State;
use std::time::Duration;

/// What a connection tells about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpInfo {
    /// The state.
    pub state: State,
    /// Retransmission timeouts in a row.
    pub retransmits: u32,
    /// Keep-alive or zero-window probes unanswered.
    pub probes: u32,
    /// How often the timeout was doubled.
    pub backoff: u32,
    /// Agreed: timestamps.
    pub timestamps: bool,
    /// Agreed: SACK.
    pub sack: bool,
    /// Agreed: ECN.
    pub ecn: bool,
    /// Agreed: the shift of the peer's windows, of ours.
    pub window_scale: Option<(u8, u8)>,
    /// The retransmission timeout.
    pub rto: Duration,
    /// How long an acknowledgement may be put off.
    pub ato: Duration,
    /// The largest segment sent, bytes of data.
    pub snd_mss: u32,
    /// The largest segment the peer has sent.
    pub rcv_mss: u32,
    /// The MSS we announced.
    pub advmss: u32,
    /// Segments in flight.
    pub unacked: u32,
    /// Of these: selectively acknowledged.
    pub sacked: u32,
    /// Of these: taken for lost.
    pub lost: u32,
    /// Of these: sent again.
    pub retrans: u32,
    /// Since data was sent last.
    pub last_data_sent: Duration,
    /// Since data came last.
    pub last_data_recv: Duration,
    /// Since an acknowledgement came last.
    pub last_ack_recv: Duration,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// The least measured.
    pub min_rtt: Duration,
    /// The round-trip time as the receiving half sees it.
    pub rcv_rtt: Duration,
    /// Slow start threshold, segments.
    pub snd_ssthresh: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// The window the peer offers, bytes.
    pub snd_wnd: u32,
    /// The window we offer, bytes.
    pub rcv_wnd: u32,
    /// Room of the receive buffer, bytes.
    pub rcv_space: u32,
    /// Segments sent again, over the connection's life.
    pub total_retrans: u32,
    /// Segments sent and received.
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
    /// Bytes sent, those sent again included.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_retrans: u64,
    /// Bytes not sent yet.
    pub notsent_bytes: u32,
    /// Duplicates the peer has reported (DSACK).
    pub dsack_dups: u32,
    /// Segments of ours that overtook others.
    pub reord_seen: u32,
}
