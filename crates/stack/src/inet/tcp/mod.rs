//! TCP (RFC 9293), on three floors, each of which can be read and tested alone:
//!
//! - the *connection* takes segments and the time, and returns the segments to send. It has no lock, no clock and no
//!   I/O (`connection`, `input`, `output`, `handshake`, `timers`, `challenge`, `info`, and what they drive:
//!   `recovery`, `receive`, `send_buffer`);
//! - the *flow* is a connection with its lock, its path, and its places in the table and on the timer wheel;
//! - the sockets above, in `socket`, add waiting.
//!
//! The functions on the path of every segment, in and out, are `inline(always)`: the compiler does not inline a
//! function by itself that also has a cold caller. This takes 50 ns of 550 off a round trip over the cable.
//!
//! This file holds the settings of the host and of a socket.

use std::time::Duration;

mod application;
mod bound;
mod calls;
mod challenge;
mod chunks;
mod claims;
mod connect;
pub mod connection;
mod cookie;
#[cfg(test)]
mod cost;
pub(super) mod deliver;
mod emit;
mod endpoint;
mod errors;
mod flow;
mod hand_over;
pub mod handshake;
mod import;
pub mod info;
mod input;
mod isn;
mod listener;
mod local_stream;
mod marks;
pub mod memory;
mod options;
mod output;
mod ownership;
mod parse;
pub(super) mod plain;
mod predicted;
mod predicted_frame;
mod receive;
pub mod recovery;
mod request;
pub mod segment;
mod send_buffer;
pub mod seq;
pub mod shared;
#[cfg(test)]
mod simulation;
mod state;
mod steady;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod time_wait;
mod timers;
pub(super) mod tuple;
mod urgent;
mod waited;
mod wheel;

pub use application::Flow;
pub use bound::TcpBound;
pub use connect::ConnectOptions;
pub(crate) use connect::LocalPort;
pub use endpoint::{PortHolder, PortRef, Ready, TcpEndpoint};
pub use flow::DeferredFlow;
pub(crate) use hand_over::RepairState;
pub(crate) use handshake::timeouts_for;
pub(crate) use import::{Imported, KernelConnection, Remainder};
pub(crate) use listener::TakesLinks;
pub use listener::{ListenOptions, Listening};
pub use local_stream::Left;
pub(crate) use local_stream::{ends_of_local_stream, local_stream_of};
pub use marks::Mark;
pub use options::CompactOptions;
pub(crate) use ownership::{Failed, FromKernel, ToKernel, hand_over, take_over};
pub(super) use state::Tcp;
pub(crate) use waited::WaitWord;

/// Which congestion control a connection uses (`TCP_CONGESTION`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and RFC 6582, `reno` in Linux.
    NewReno,
}

impl Algorithm {
    /// Linux's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::NewReno => "reno",
        }
    }

    /// The algorithm that Linux calls `name`.
    pub fn named(name: &str) -> Option<Algorithm> {
        [Algorithm::Cubic, Algorithm::NewReno].into_iter().find(|a| a.name() == name)
    }
}

/// The use of explicit congestion notification (RFC 3168), with the numbers of Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// 0: never.
    Off,
    /// 1: connections request it and accept it.
    On,
    /// 2: connections accept it when the peer requests it.
    #[default]
    Passive,
}

/// Initial and greatest size of a buffer, bytes of payload. Linux also has a minimum. Here a connection always keeps
/// a chunk of 8 KiB each way, or what a segment takes, however short memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// The size at the start.
    pub initial: u32,
    /// What it may grow to by itself.
    pub max: u32,
}

/// Host-wide settings. The fields have the names of Linux's `net.ipv4` sysctls and the defaults of 6.18, except
/// `tcp_rmem` (6 MiB at most, not 32), `tcp_tw_reuse` (on, not for loopback alone), `tcp_challenge_ack_limit`
/// (limited, not unlimited), and what Linux derives from the machine's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How often a SYN is retransmitted, after the linear retransmissions.
    pub tcp_syn_retries: u8,
    /// How many SYN retransmissions come at a constant interval before the interval begins to double.
    pub tcp_syn_linear_timeouts: u8,
    /// How often a SYN-ACK is retransmitted.
    pub tcp_synack_retries: u8,
    /// Not a count, but the time that this many retransmissions take, beginning with an RTO of `tcp_rto_min`: 924.6 s
    /// by default (`tcp_model_timeout` in net/ipv4/tcp_timer.c).
    pub tcp_retries2: u8,
    /// As `tcp_retries2`, for orphans (connections without a socket); 0 means 8.
    pub tcp_orphan_retries: u8,
    /// The most orphans; one more is reset.
    pub tcp_max_orphans: u32,
    /// How long an orphan waits in FIN_WAIT_2.
    pub tcp_fin_timeout: Duration,
    //= RFC 9293 3.8.4
    //# This interval MUST be configurable (MUST-27) and MUST default to no less than two hours (MUST-28).
    /// The idle time before the first keep-alive probe.
    pub tcp_keepalive_time: Duration,
    /// The time between keep-alive probes.
    pub tcp_keepalive_intvl: Duration,
    /// How many keep-alive probes stay unanswered before the connection is dropped.
    pub tcp_keepalive_probes: u8,
    /// Explicit congestion notification.
    pub tcp_ecn: Ecn,
    /// Offer and accept selective acknowledgements (RFC 2018).
    pub tcp_sack: bool,
    /// Report duplicates by SACK (RFC 2883).
    pub tcp_dsack: bool,
    /// Offer and accept timestamps (RFC 7323).
    pub tcp_timestamps: bool,
    /// Offer and accept window scaling (RFC 7323).
    pub tcp_window_scaling: bool,
    /// Receive buffers.
    pub tcp_rmem: BufferSizes,
    /// Send buffers.
    pub tcp_wmem: BufferSizes,
    /// Host-wide limit on the memory of all TCP buffers, bytes.
    pub tcp_mem: u64,
    /// Receive buffers grow as the path needs (autotuning).
    pub tcp_moderate_rcvbuf: bool,
    /// The algorithm of new sockets.
    pub tcp_congestion_control: Algorithm,
    /// The smallest retransmission timeout (`tcp_rto_min_us`); at least 1 ms.
    pub tcp_rto_min: Duration,
    /// The largest retransmission timeout (`tcp_rto_max_ms`).
    pub tcp_rto_max: Duration,
    /// The congestion window restarts after the connection was idle for an RTO (RFC 5681).
    pub tcp_slow_start_after_idle: bool,
    /// The initial number of duplicate ACKs that mean a loss.
    pub tcp_reordering: u8,
    /// Tail loss probes (RFC 8985).
    pub tcp_early_retrans: bool,
    /// Check whether timeouts were spurious (F-RTO, RFC 5682).
    pub tcp_frto: bool,
    //= RFC 5961 7
    //# The values for both the time and number of ACKs SHOULD be tunable by the system administrator to accommodate
    //# different perceived levels of threat and/or system resources.
    /// Challenge ACKs of the whole host, per second, on average.
    pub tcp_challenge_ack_limit: u32,
    /// The least time between a connection's answers to segments outside its window.
    pub tcp_invalid_ratelimit: Duration,
    /// A RST does not end TIME_WAIT (RFC 1337).
    pub tcp_rfc1337: bool,
    /// A socket with this many unsent bytes is not writable.
    pub tcp_notsent_lowat: u32,
    /// The smallest MSS accepted from a peer; at least 48.
    pub tcp_min_snd_mss: u16,
    /// When the accept queue is full, the last ACK of a handshake is answered by a reset (true) or ignored (false).
    pub tcp_abort_on_overflow: bool,
    /// Answer with cookies when the SYN queue is full (RFC 4987).
    pub tcp_syncookies: bool,
    /// The most half-open connections of a listener.
    pub tcp_max_syn_backlog: u32,
    /// The largest backlog of a listener (`net.core.somaxconn`).
    pub somaxconn: u32,
    /// The most TIME_WAIT entries; beyond it connections close without one.
    pub tcp_max_tw_buckets: u32,
    /// The most TIME_WAIT entries that each keep a kernel port, and so a descriptor. Beyond it connections made by
    /// this host close without an entry. A host lowers it to an eighth of `RLIMIT_NOFILE`.
    pub tcp_max_tw_ports: u32,
    /// connect(2) may reuse the port of a TIME_WAIT entry whose timestamps lie behind.
    pub tcp_tw_reuse: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tcp_syn_retries: 6,
            tcp_syn_linear_timeouts: 4,
            tcp_synack_retries: 5,
            tcp_retries2: 15,
            tcp_orphan_retries: 0,
            tcp_max_orphans: 65_536,
            tcp_fin_timeout: Duration::from_secs(60),
            tcp_keepalive_time: Duration::from_secs(7_200),
            tcp_keepalive_intvl: Duration::from_secs(75),
            tcp_keepalive_probes: 9,
            tcp_ecn: Ecn::default(),
            tcp_sack: true,
            tcp_dsack: true,
            tcp_timestamps: true,
            tcp_window_scaling: true,
            tcp_rmem: BufferSizes { initial: 131_072, max: 6_291_456 },
            tcp_wmem: BufferSizes { initial: 16_384, max: 4_194_304 },
            tcp_mem: 256 << 20,
            tcp_moderate_rcvbuf: true,
            tcp_congestion_control: Algorithm::default(),
            tcp_rto_min: Duration::from_millis(200),
            tcp_rto_max: Duration::from_secs(120),
            tcp_slow_start_after_idle: true,
            tcp_reordering: 3,
            tcp_early_retrans: true,
            tcp_frto: true,
            tcp_challenge_ack_limit: 1_000,
            tcp_invalid_ratelimit: Duration::from_millis(500),
            tcp_rfc1337: false,
            tcp_notsent_lowat: u32::MAX,
            tcp_min_snd_mss: 48,
            tcp_abort_on_overflow: false,
            tcp_syncookies: true,
            tcp_max_syn_backlog: 4_096,
            somaxconn: 4_096,
            tcp_max_tw_buckets: 262_144,
            tcp_max_tw_ports: 16_384,
            tcp_tw_reuse: true,
        }
    }
}

/// The TCP options of one socket. Zero means "as the host" where the field says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// `TCP_NODELAY`: small segments do not wait for acknowledgements (Nagle's algorithm off).
    pub nodelay: bool,
    /// `TCP_CORK`: partial segments wait, at most for an RTO (200 ms or more).
    pub cork: bool,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`; zero: as the host.
    pub keep_idle: Duration,
    /// `TCP_KEEPINTVL`; zero: as the host.
    pub keep_interval: Duration,
    /// `TCP_KEEPCNT`; 0: as the host.
    pub keep_count: u8,
    /// `TCP_USER_TIMEOUT`: how long data may stay unacknowledged; zero: as `tcp_retries2` says.
    pub user_timeout: Duration,
    /// `SO_LINGER`: what close does with unsent data; `Some(0)` resets.
    pub linger: Option<Duration>,
    /// `TCP_LINGER2`: how long to wait in FIN_WAIT_2 once closed; `None`: as the host; zero: not at all.
    pub linger2: Option<Duration>,
    /// `TCP_MAXSEG`: the largest segment, bytes of data; 0: as the path allows. As in Linux only the handshake uses
    /// it.
    pub max_segment: u16,
    /// `TCP_SYNCNT`: how often a SYN is retransmitted; 0: as the host.
    pub syn_count: u8,
    /// `TCP_DEFER_ACCEPT`, of a listener: how long a connection without data is kept out of the accept queue; zero:
    /// not at all. Rounded up to the time that a whole number of SYN-ACK timeouts takes.
    pub defer_accept: Duration,
    /// `TCP_CONGESTION`; `None`: as the host.
    pub congestion: Option<Algorithm>,
    /// `TCP_QUICKACK`: `Some(true)` acknowledges at once for a while, `Some(false)` delays at once.
    pub quick_ack: Option<bool>,
    /// `SO_SNDBUF`, bytes of payload; 0: grows by itself as `tcp_wmem` allows.
    pub send_buffer: u32,
    /// `SO_RCVBUF`, bytes of payload; 0: grows by itself as `tcp_rmem` allows.
    pub receive_buffer: u32,
    /// `TCP_WINDOW_CLAMP`: the largest window announced, bytes; 0: as the buffer allows.
    pub window_clamp: u32,
    /// `SO_RCVLOWAT`: readable from this many bytes on; 0 means 1.
    pub receive_low_water: u32,
    /// `SO_OOBINLINE`: urgent data is read in line with other data.
    pub oob_inline: bool,
    /// `TCP_NOTSENT_LOWAT`, bytes; 0: as the host.
    pub notsent_low_water: u32,
    /// `TCP_RTO_MIN_US`: the smallest retransmission timeout; zero: as the host.
    pub rto_min: Duration,
}
