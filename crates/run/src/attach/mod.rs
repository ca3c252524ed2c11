//! Busy polling for processes that already run: attach, follow, detach.
//!
//! Owns the journals `attach-PID-START` in the state directory. Touches the sockets and epoll instances of
//! the processes named, through descriptors taken by pidfd_getfd(2), and nothing else of them: no memory
//! is written, nothing is stopped, no system-wide setting changes.
//!
//! ```text
//! look ──► decide ──► change ──► row           undo ◄── journal
//! facts    pure       journal, set, read back
//! ```
//!
//! What is changed lives in the socket or the epoll instance, so it stays when busypoll has gone, is
//! inherited by the connections a listener accepts, and is seen by every process that shares it.

mod change;
pub mod cli;
mod decide;
mod device;
mod entry;
mod error;
mod follow;
mod look;
mod row;
mod show;
mod target;
mod undo;

pub use error::AttachError;
