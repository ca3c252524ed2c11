//! TCP sockets, as an application holds them. [`stream`] makes, connects and closes them, [`transfer`] moves
//! data, [`listener`] listens, [`options`] says what can be set; [`endpoint`] is where a connection tells them
//! what has happened, [`hand_over`] gives a connection to the kernel, [`find`] the short way of what a receiver's own poll has found.

mod adopt;
mod endpoint;
mod find;
mod hand_over;
mod listener;
mod message;
mod options;
mod owner;
mod stream;
mod transfer;

pub use adopt::{Accepted, PortTaken};
pub use hand_over::repair;
pub use listener::{Incoming as IncomingStreams, TcpListener};
pub use message::SendFlags;
pub use owner::Owner;
pub use stream::TcpStream;

use crate::inet::tcp::{Flow, connection::State};

/// Whether the flow has a peer, as getpeername(2) sees it (`inet_getname`).
fn is_connected(flow: &Flow) -> bool {
    !matches!(flow.state(), State::SynSent | State::Closed)
}
