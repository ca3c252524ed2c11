//! Whether the machine is tuned for busy polling: what makes it slower or more costly than it could be.

pub(crate) mod coalesce;
pub(crate) mod machine;
mod memory;
pub(crate) mod nic;
pub(crate) mod placement;
mod power;
