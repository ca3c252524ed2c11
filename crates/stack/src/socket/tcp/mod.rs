//! The TCP sockets of an application. [`stream`] creates, connects and closes them, [`transfer`] moves data,
//! [`listener`] listens, [`options`] has the socket options. The protocol layer notifies [`endpoint`] of events.
//! [`direct_delivery`] copies the data that a receiver's own poll finds straight into its buffers. [`hand_over`] hands
//! a connection to the kernel, [`orphans`] those that are closed when the process ends; [`import`] takes one from it,
//! and [`follow`] one that the parent process had.

mod adopt;
mod direct_delivery;
mod endpoint;
mod follow;
mod hand_over;
mod import;
mod listener;
mod listener_companion;
mod local_stream;
mod message;
mod options;
mod orphans;
mod owner;
mod reconnect;
mod stream;
mod transfer;

pub use adopt::Accepted;
pub use hand_over::{end_frozen, repair, set_repair};
pub use listener::{Incoming as IncomingStreams, TcpListener};
pub use message::SendFlags;
pub use owner::Owner;
pub use stream::TcpStream;

use crate::inet::tcp::{Flow, connection::State};

/// Whether the flow has a peer, as getpeername(2) sees it (`inet_getname`).
fn is_connected(flow: &Flow) -> bool {
    !matches!(flow.state(), State::SynSent | State::Closed)
}
