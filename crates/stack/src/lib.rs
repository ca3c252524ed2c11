//! Busy Poll Sockets in user space.

pub mod nic;
mod sync;
pub mod time;
pub mod wire;
