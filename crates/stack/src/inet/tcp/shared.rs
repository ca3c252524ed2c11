//! What the connections of one host share: settings, and the few counts that must be host-wide.

use super::{Config, challenge::Challenges, memory::Memory};
use crate::{inet::counters::Counters, sync::AtomicU32};
use std::sync::Arc;

/// What the connections of one host share.
#[derive(Debug)]
pub struct Shared {
    pub(super) config: Config,
    pub(super) challenges: Challenges,
    /// Connections no socket holds.
    pub(super) orphans: AtomicU32,
    pub(super) counters: Arc<Counters>,
    /// What their buffers are made of.
    pub(super) memory: Arc<Memory>,
}

impl Shared {
    /// `seed`: what nobody outside can guess.
    pub(in crate::inet) fn new(config: Config, counters: Arc<Counters>, seed: u64) -> Arc<Shared> {
        let challenges = Challenges::new(config.tcp_challenge_ack_limit, seed);
        let memory = Arc::new(Memory::new(config.tcp_mem));
        Arc::new(Shared { config, challenges, orphans: AtomicU32::new(0), counters, memory })
    }
}
