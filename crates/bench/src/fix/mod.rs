//! `--workload fix`: the arms of TCP with a FIX session in place of bare bytes.

mod message;
mod session;

use crate::arm::{ARMS, Arm, Protocol};

pub use message::{Builder, Message};
pub use session::{Acceptor, Initiator, sizes};

/// The arms that can carry a session.
pub fn arms() -> Vec<Arm> {
    ARMS.iter().filter(|arm| arm.protocol == Protocol::Tcp && !arm.is_local()).copied().collect()
}
