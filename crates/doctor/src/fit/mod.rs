//! Is the machine fit: what makes busy polling slower than it could be, or more costly.

pub(crate) mod coalesce;
pub(crate) mod machine;
mod memory;
pub(crate) mod nic;
pub(crate) mod placement;
mod power;
