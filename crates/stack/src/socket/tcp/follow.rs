//! A connection follows its user: the parent has handed it over to the kernel, and the child that alone has it takes it
//! over. It may be in the middle of its life; only what it has sent must be acknowledged.

use super::{
    endpoint::Endpoint,
    hand_over::{OFF_SILENTLY, disconnect, repair_in_use},
    import::{Import, unacknowledged},
    options::Values,
    stream::TcpStream,
};
use crate::{
    Host,
    socket::{options::SO_REUSEADDR, waiting::WaitOptions},
    sys::{get_option, set_option},
};
use std::{
    io,
    net::TcpStream as KernelStream,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

impl TcpStream {
    /// Whether [`follow`](TcpStream::follow) can work now: everything that was sent on `kernel` is acknowledged.
    #[doc(hidden)]
    pub fn may_follow(kernel: &KernelStream) -> bool {
        unacknowledged(kernel.as_raw_fd()).is_ok_and(|count| count == 0)
    }

    /// Takes over the connection of `kernel`, which no other process uses, and which the process that had it has [given
    /// up](Host::give_up). The peer must not have ended it before that process handed it over: the kernel's socket does
    /// not know the number of that end. Soon after, `kernel` is as if it had never been connected.
    ///
    /// # Errors
    /// It stays the kernel's; nothing has changed.
    #[doc(hidden)]
    pub fn follow(host: &Host, kernel: KernelStream) -> io::Result<TcpStream> {
        let stays = || io::Error::from(io::ErrorKind::Unsupported);
        let service = host.kernel().ok_or_else(stays)?;
        let (local, remote) = (kernel.local_addr()?, kernel.peer_addr()?);
        // Where connections are handed over, this one would be handed back.
        if service.are_used_elsewhere() || !service.may_come_over_queues(local, remote) {
            return Err(stays());
        }
        let (waiting, values) = (WaitOptions::new(host.busy_read()), Values::new());
        // For as long as this takes: the connection is made as one of a listener's.
        let listening = host.inet().tcp_bind_kernel_port(local, &values.listen(0))?.listen(
            values.listen(0),
            None,
            Arc::new(Endpoint::of_listener(waiting)),
        )?;
        let import = Import {
            host,
            listening: &listening,
            steer: &|local, remote| service.take_connection(local, remote),
            end: make_unconnected,
        };
        let flow = import.run(service, kernel).map_err(|_| stays())?;
        let waiting = WaitOptions::new(host.busy_read());
        Ok(TcpStream::accepted(host, flow, waiting, values))
    }
}

/// `kernel`, frozen, becomes the companion of a connection of ours.
fn make_unconnected(kernel: &KernelStream, reuse: i32) {
    disconnect(kernel.as_fd());
    let _ = repair_in_use()(kernel.as_raw_fd(), OFF_SILENTLY);
    // The end of repair mode has cleared it.
    let _ = set_option(kernel, libc::SOL_SOCKET, SO_REUSEADDR, reuse);
    // The end of the connection was noted as an error.
    let _ = get_option(kernel, libc::SOL_SOCKET, libc::SO_ERROR);
}
