//! What the connections of one host share: settings, and the few counts that must be host-wide.

use super::{Config, challenge::Challenges, memory::Memory};
use crate::{
    inet::{Count, counters::Counters, random::Key},
    sync::AtomicU32,
};
use std::sync::Arc;

/// Linux's `TCP_MIN_SND_MSS`: room for the options of every segment, and some data.
const LEAST_SND_MSS: u16 = 48;

/// What the connections of one host share.
#[derive(Debug)]
pub struct Shared {
    pub(super) config: Config,
    pub(super) challenges: Challenges,
    /// Connections without a socket.
    pub(super) orphans: AtomicU32,
    pub(super) counters: Arc<Counters>,
    /// The memory of their buffers.
    pub(super) memory: Arc<Memory>,
}

impl Shared {
    /// For connections that belong to no [`Inet`](crate::inet::Inet): simulations and tests drive them by hand.
    /// `seed`: a secret.
    ///
    /// ```
    /// use busypoll_stack::{inet::tcp::{Config, TcpOptions, connection::{Connection, Start, State}, seq::Seq,
    ///     shared::Shared}, time::Instant};
    /// let shared = Shared::alone(Config::default(), 7);
    /// let start = Start { iss: Seq(1), ts_offset: 0, mss: 1460 };
    /// let now = Instant::from_millis(1);
    /// let mut connection = Connection::connect(&shared, &TcpOptions::default(), start, now);
    /// connection.transmit(now, &mut |syn| {
    ///     assert_eq!(syn.segment.options.mss, Some(1460));
    ///     true
    /// });
    /// assert_eq!(connection.state(), State::SynSent);
    /// ```
    pub fn alone(config: Config, seed: u128) -> Arc<Shared> {
        Shared::new(config, Arc::new(Counters::new()), seed.into())
    }

    /// The memory of their buffers.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How many of them are in ESTABLISHED or CLOSE_WAIT (`tcpCurrEstab`).
    pub fn established(&self) -> u64 {
        self.counters.get(Count::TcpCurrEstab)
    }

    /// `key`: a secret.
    pub(in crate::inet) fn new(
        mut config: Config,
        counters: Arc<Counters>,
        key: Key,
    ) -> Arc<Shared> {
        config.tcp_min_snd_mss = config.tcp_min_snd_mss.max(LEAST_SND_MSS);
        let challenges = Challenges::new(config.tcp_challenge_ack_limit, key);
        let memory = Arc::new(Memory::new(config.tcp_mem));
        Arc::new(Shared { config, challenges, orphans: AtomicU32::new(0), counters, memory })
    }
}
