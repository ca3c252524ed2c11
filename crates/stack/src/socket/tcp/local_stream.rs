//! AF_UNIX streams over links: a socket of the kernel's becomes one of ours, and the kernel's again, with all that is under
//! way. See `inet/tcp/local_stream.rs`.

use super::{
    hand_over::{shut_down, write_queue},
    options::Values,
    stream::{TcpStream, pass},
};
use crate::{
    Host, Link,
    host::Asked,
    inet::tcp::{Failed, Left, RepairState},
    socket::{options::errno, waiting::WaitOptions},
    sys::{get_option, set_option},
};
use std::{
    io,
    net::{Shutdown, SocketAddr},
    os::fd::BorrowedFd,
};

impl TcpStream {
    /// The stream with these ends, local and remote, over `link`. `received` was received by the kernel's socket and not
    /// read.
    ///
    /// # Errors
    /// The link has ended; no memory.
    #[doc(hidden)]
    pub fn local_stream(
        host: &Host,
        ends: (SocketAddr, SocketAddr),
        link: Link,
        received: &[u8],
    ) -> io::Result<TcpStream> {
        let mut pass = pass();
        let made = host.inet().tcp_local_stream(ends, link.0, received, &mut pass);
        pass.wake.wake_all();
        let flow = made?;
        let napi = flow.napi();
        let waiting = WaitOptions::new(host.busy_read());
        let stream = TcpStream::accepted(host, flow, waiting, Values::new());
        napi.into_iter().for_each(|napi| stream.0.endpoint.mark_napi(napi));
        Ok(stream)
    }

    /// Ends a stream that was never used, without a word to the other process.
    #[doc(hidden)]
    pub fn forget_local_stream(&self, error: i32) {
        if let Some(flow) = self.0.connection() {
            let mut pass = pass();
            flow.end_silently(error, &mut pass);
            pass.wake.wake_all();
        }
    }

    /// Asks the other process to leave the stream to the kernel together with this one.
    ///
    /// # Errors
    /// EINVAL: it has ended. `WouldBlock`: that process takes no requests now; those of reaching it.
    #[doc(hidden)]
    pub fn ask_to_leave(&self) -> io::Result<Asked> {
        let flow = self.0.connection().ok_or_else(|| errno(libc::EINVAL))?;
        let peers = self.0.host.peers().ok_or_else(|| errno(libc::EOPNOTSUPP))?;
        peers.ask_to_leave(flow.link(), (flow.local(), flow.remote()))
    }

    /// Gives the stream back to the kernel's socket `kernel`, at both ends; the other process is ready. `on_left` is called
    /// when the kernel has it. Waiting and later calls on this socket fail with `error`.
    ///
    /// # Errors
    /// EINVAL: it has ended. `WouldBlock`: not now. Then it goes on here.
    #[doc(hidden)]
    pub fn leave_local_stream(
        &self,
        asked: &Asked,
        kernel: BorrowedFd<'_>,
        error: i32,
        on_left: impl FnOnce(),
    ) -> io::Result<()> {
        self.leave(kernel, error, on_left, |state, ours| {
            let peers = self.0.host.peers();
            let peers = peers.ok_or_else(|| Failed::Stays(errno(libc::EOPNOTSUPP)))?;
            let exchanged = peers.leave_both(asked, (state.local, state.remote), ours)?;
            write_all(kernel, &exchanged.theirs, state).map_err(Failed::Lost)?;
            exchanged.finish(asked);
            Ok(())
        })
    }

    /// The same at the request of the other process, which has left `theirs`. `answer` gets what this end had, once it has
    /// sent what it had to send.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn leave_local_stream_too(
        &self,
        kernel: BorrowedFd<'_>,
        error: i32,
        theirs: &Left,
        answer: &mut dyn FnMut(&Left),
        on_left: impl FnOnce(),
    ) -> io::Result<()> {
        self.leave(kernel, error, on_left, |state, ours| {
            write_all(kernel, theirs, state).map_err(Failed::Lost)?;
            answer(ours);
            Ok(())
        })
    }

    fn leave(
        &self,
        kernel: BorrowedFd<'_>,
        error: i32,
        on_left: impl FnOnce(),
        exchange: impl FnOnce(&RepairState, &Left) -> Result<(), Failed<io::Error>>,
    ) -> io::Result<()> {
        let flow = self.0.connection().ok_or_else(|| errno(libc::EINVAL))?;
        let mut pass = pass();
        let handed = flow.hand_over(error, &mut pass, |state| {
            if state.peer_done {
                return Err(Failed::Stays(errno(libc::EINVAL)));
            }
            let ours = Left { next: state.rcv_nxt, unread: state.unread.clone() };
            exchange(state, &ours)?;
            // Both have sent what they had.
            shut_down(kernel, state.read_shut, state.write_shut);
            self.0.set_elsewhere();
            on_left();
            Ok(())
        });
        pass.wake.wake_all();
        handed.map(drop)
    }

    /// From now on nothing can be sent: the stream is being left, and what is sent is the kernel's. A caller that waits for
    /// room waits until it has been left.
    #[doc(hidden)]
    pub fn hold_sends(&self) {
        if let Some(flow) = self.0.connection() {
            flow.hold_sends();
        }
    }

    /// The program has shut the stream down, and it is not left yet: this end shows it from now on, and the kernel's socket
    /// is shut down when it is left.
    #[doc(hidden)]
    pub fn shut_before_leaving(&self, how: Shutdown) {
        if let Some(flow) = self.0.connection() {
            let mut pass = pass();
            flow.shut_before_leaving(how, &mut pass);
            pass.wake.wake_all();
        }
    }
}

/// Sends by the kernel what the peer has not read: what it had received, and then what is still to be sent.
fn write_all(kernel: BorrowedFd<'_>, theirs: &Left, state: &RepairState) -> io::Result<()> {
    let on = theirs.next.wrapping_sub(state.snd_una) as usize;
    let sent = state.sent.get(on..).unwrap_or_default();
    let len = theirs.unread.len() + sent.len() + state.unsent.len();
    if len == 0 {
        return Ok(());
    }
    let size = get_option(&kernel, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
    make_room(kernel, size, len)?;
    for part in [&*theirs.unread, sent, &*state.unsent] {
        match write_queue(kernel, part) {
            // The peer has closed its socket already: it reads nothing any more.
            Err(closed) if closed.raw_os_error() == Some(libc::EPIPE) => break,
            written => written?,
        }
    }
    // The kernel doubles it.
    let _ = set_option(&kernel, libc::SOL_SOCKET, libc::SO_SNDBUF, size / 2);
    Ok(())
}

/// Makes the send buffer, of this size, large enough for `len` bytes, a third more for the kernel's bookkeeping, and what is
/// in it already. Any user may have a buffer that holds what both ends of a stream of ours hold.
fn make_room(kernel: BorrowedFd<'_>, size: i32, len: usize) -> io::Result<()> {
    const OTHER: usize = 64 * 1024;
    let wanted = i32::try_from(len + len / 3 + OTHER).map_err(|_| errno(libc::ENOBUFS))?;
    if size >= wanted {
        return Ok(());
    }
    let set = |name| set_option(&kernel, libc::SOL_SOCKET, name, wanted);
    set(libc::SO_SNDBUFFORCE).or_else(|_| set(libc::SO_SNDBUF))?;
    match get_option(&kernel, libc::SOL_SOCKET, libc::SO_SNDBUF)? >= wanted {
        true => Ok(()),
        false => Err(errno(libc::ENOBUFS)),
    }
}
