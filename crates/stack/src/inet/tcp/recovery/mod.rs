//! What is in flight, what was lost, how much may be sent: [`Recovery`] is the one face. It is told what
//! was sent and what came back, and never sees a byte of data. Touches nothing outside its folder but
//! sequence numbers and time.

pub mod congestion;

use super::{Algorithm, Config, TcpOptions, segment::Sacks, seq::Seq};
use crate::time::Instant;
use std::{ops::Range, time::Duration};

/// What the host and the socket decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `TCP_CONGESTION`.
    pub algorithm: Algorithm,
    /// The retransmission timeout is at least the round trip and this; 1 ms at least.
    pub min_rto: Duration,
    /// No retransmission timeout is longer.
    pub max_rto: Duration,
    /// The window shrinks while nothing is sent.
    pub slow_start_after_idle: bool,
    /// Duplicates that mean a loss while no reordering has been seen.
    pub reordering: u8,
    /// Tail loss probes.
    pub probes: bool,
    /// Timeouts are checked for having been needless (RFC 5682).
    pub frto: bool,
}

impl Settings {
    /// Those of a socket on a host.
    pub fn new(config: &Config, options: &TcpOptions) -> Settings {
        let min_rto = if options.rto_min.is_zero() { config.tcp_rto_min } else { options.rto_min };
        Settings {
            algorithm: options.congestion.unwrap_or(config.tcp_congestion_control),
            min_rto: min_rto.max(Duration::from_millis(1)),
            max_rto: config.tcp_rto_max.max(min_rto),
            slow_start_after_idle: config.tcp_slow_start_after_idle,
            reordering: config.tcp_reordering,
            probes: config.tcp_early_retrans,
            frto: config.tcp_frto,
        }
    }
}

/// What the handshake settled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    /// Both ends permit SACK.
    pub sack: bool,
    /// How long one step of our TSval lasts, if time stamps go with each segment.
    pub timestamps: Option<Duration>,
    /// Both ends speak ECN.
    pub ecn: bool,
    /// How long our SYN, or SYN and ACK, took to be answered; `None` if it went out more than once.
    pub rtt: Option<Duration>,
    /// How often it was sent again.
    pub retransmissions: u32,
}

/// What an acceptable ACK says.
#[derive(Clone, Copy, Debug)]
pub struct AckEvent<'a> {
    /// SEG.ACK; nothing above it was ever sent.
    pub ack: Seq,
    /// The SACK blocks as they came, a DSACK among them.
    pub sacks: &'a Sacks,
    /// When our clock began to show the TSval it echoes.
    pub echoed: Option<Instant>,
    /// It carries ECE.
    pub ece: bool,
    /// It carries no data, no SYN or FIN, and the window it shows is that of the one before
    /// (RFC 5681 section 2, "duplicate acknowledgment" (b), (c), (e)).
    pub pure: bool,
    /// There is data never sent that the peer's window has room for.
    pub unsent: bool,
}

/// What an ACK changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Bytes of sequence space it acknowledged, cumulatively.
    pub newly_acked: u32,
    /// Bytes it reported delivered for the first time, cumulatively or by SACK.
    pub delivered: u32,
    /// The round trip it measured.
    pub rtt: Option<Duration>,
}

/// What a timer that has fired asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// Nothing: it was early.
    Nothing,
    /// Something is found lost: ask [`Recovery::next_retransmission`].
    Retransmit,
    /// A tail loss probe (RFC 8985 section 7.3): send one segment of new data if there is any and the peer's
    /// window has room, whatever [`Recovery::room`] says, else this range again.
    Probe(Range<Seq>),
    /// The retransmission timeout, for the n-th time in a row: ask [`Recovery::next_retransmission`].
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
    /// Sent and not acknowledged, bytes.
    pub unacked: u32,
    /// Of these: reported by SACK.
    pub sacked: u32,
    /// Of these: lost and not sent again.
    pub lost: u32,
    /// Of these: sent again.
    pub retrans: u32,
    /// Segments ever sent again.
    pub total_retrans: u32,
    /// Bytes ever sent again.
    pub bytes_retrans: u64,
    /// Bytes ever delivered.
    pub delivered: u64,
    /// DSACK blocks received.
    pub dsack_dups: u32,
    /// Times that reordering was seen.
    pub reord_seen: u32,
}

/// The sender's memory of one connection. SYN and FIN, if told of, count as bytes.
#[derive(Debug)]
pub struct Recovery {
    una: Seq,
    nxt: Seq,
    settings: Settings,
    mss: u32,
}

#[expect(unused_variables)]
impl Recovery {
    /// The state of a connection just established, which has sent everything before `una`. `mss` is what a
    /// segment carries at most, options taken off.
    pub fn new(settings: Settings, agreed: Agreed, mss: u32, una: Seq, now: Instant) -> Recovery {
        Recovery { una, nxt: una, settings, mss }
    }

    /// Data went out for the first time: one segment, or several at once.
    pub fn sent(&mut self, range: Range<Seq>, now: Instant) {
        self.nxt = range.end;
    }

    /// Data went out again: what [`next_retransmission`](Self::next_retransmission) or a probe asked for.
    pub fn resent(&mut self, range: Range<Seq>, now: Instant) {}

    /// An acceptable ACK has come, old ones (for their SACK blocks) included.
    pub fn acked(&mut self, event: &AckEvent<'_>, now: Instant) -> Acked {
        let newly_acked = event.ack.min(self.nxt) - self.una;
        self.una += newly_acked;
        Acked { newly_acked, delivered: newly_acked, rtt: None }
    }

    /// What to send again now, at most one segment: the most urgent of what is lost. `None`: nothing is, or
    /// the window has no room. Changes nothing until it is [`resent`](Self::resent).
    pub fn next_retransmission(&self) -> Option<Range<Seq>> {
        None
    }

    /// How many bytes of new data the congestion window allows now: whole segments. With nothing in flight
    /// at least one.
    pub fn room(&self) -> u32 {
        10 * self.mss - (self.nxt - self.una)
    }

    /// When [`timer`](Self::timer) is due: retransmission timeout, probe, or the end of the reordering window.
    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The deadline has come.
    pub fn timer(&mut self, now: Instant) -> Fired {
        Fired::Nothing
    }

    /// Before new data is queued for sending: a window not used for a while has shrunk (RFC 5681 section 4.1).
    pub fn idle_restart(&mut self, now: Instant) {}

    /// The next segment of new data must carry CWR (RFC 3168 section 6.1.2): true once per reduction.
    pub fn take_cwr(&mut self) -> bool {
        false
    }

    /// Segments carry another number of bytes from now on (path MTU). What is in flight in larger ones is lost.
    pub fn set_mss(&mut self, mss: u32, now: Instant) {
        self.mss = mss;
    }

    /// `TCP_CONGESTION` is set.
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        self.settings.algorithm = algorithm;
    }

    /// The smoothed round trip, once known.
    pub fn srtt(&self) -> Option<Duration> {
        None
    }

    /// The timeout as it stands, backed off: what a zero-window probe starts from.
    pub fn rto(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Bytes thought to be in the network.
    pub fn in_flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// For `TCP_INFO`.
    pub fn figures(&self) -> Figures {
        Figures::default()
    }
}
