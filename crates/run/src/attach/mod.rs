//! Busy polling for processes that already run: attach, follow, detach.
//!
//! Owns the journals `attach-PID-START` in the state directory. Changes the sockets and epoll instances of the given
//! processes, through descriptors taken by pidfd_getfd(2), and nothing else: no memory is written, nothing is stopped,
//! no system-wide setting changes.
//!
//! ```text
//! inspect ──► decide ──► change ──► row           undo ◄── journal
//! facts       pure       journal, set, read back
//! ```
//!
//! The changes are in the socket or the epoll instance. So they stay when busypoll has gone, connections that a
//! listener accepts inherit them, and every process that shares the descriptor sees them.

mod change;
pub mod cli;
mod decide;
mod device;
mod entry;
mod error;
mod follow;
mod inspect;
mod row;
mod show;
mod target;
mod undo;

pub use error::AttachError;
