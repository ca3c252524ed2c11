//! Busy Poll Sockets in user space.

pub mod napi;
pub mod nic;
mod sync;
mod sys;
pub mod time;
pub mod wire;
