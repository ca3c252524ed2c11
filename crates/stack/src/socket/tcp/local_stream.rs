//! AF_UNIX streams over links: a socket of the kernel's becomes one of ours, and the kernel's again, with all that is
//! under way. See `inet/tcp/local_stream.rs`.

use super::{
    hand_over::{shut_down, write_queue},
    options::Values,
    stream::{TcpStream, pass},
};
use crate::{
    Host, Link,
    host::{Asked, Leave},
    inet::tcp::{Failed, Left, RepairState},
    socket::{options::errno, waiting::WaitOptions},
    sys::{get_option, set_option},
};
use std::{
    io,
    net::{Shutdown, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

impl TcpStream {
    /// The stream with these ends, local and remote, over `link`. `received` was received by the kernel's socket and
    /// not read.
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

    /// Gives the stream back to the kernel's socket `kernel`, at both ends; the other process is ready, and `peer` is
    /// its kernel's socket. Of the steps the first is called when all is sent, and the second when the kernel has it.
    /// Waiting and later calls on this socket fail with `error`.
    ///
    /// # Errors
    /// EINVAL: it has ended. `WouldBlock`: not now. Then it goes on here.
    #[doc(hidden)]
    pub fn leave_local_stream(
        &self,
        asked: &Asked,
        (kernel, peer): (BorrowedFd<'_>, BorrowedFd<'_>),
        error: i32,
        steps: (impl FnOnce(), impl FnOnce()),
    ) -> io::Result<()> {
        let peers = self.0.host.peers().ok_or_else(|| errno(libc::EOPNOTSUPP))?;
        let exchange = |state: &RepairState| {
            let ends = (state.local, state.remote);
            let exchanged = peers.leave_both(asked, ends, state.rcv_nxt, kernel)?;
            Ok((exchanged.next, move || exchanged.finish(asked)))
        };
        self.leave((kernel, peer), error, exchange, steps)
    }

    /// The same at the request of the other process, which has left `theirs`.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn leave_local_stream_too(
        &self,
        request: &Leave<'_>,
        theirs: &Left,
        kernel: BorrowedFd<'_>,
        error: i32,
        steps: (impl FnOnce(), impl FnOnce()),
    ) -> io::Result<()> {
        let exchange = |state: &RepairState| {
            request.answer(state.rcv_nxt)?;
            Ok((theirs.next, || request.finish()))
        };
        self.leave((kernel, theirs.kernel.as_fd()), error, exchange, steps)
    }

    /// `exchange` tells the other process for which byte this one waits, and returns for which that one does, and what
    /// waits until that one has sent the rest.
    fn leave<F: FnOnce()>(
        &self,
        (kernel, peer): (BorrowedFd<'_>, BorrowedFd<'_>),
        error: i32,
        exchange: impl FnOnce(&RepairState) -> io::Result<(u32, F)>,
        (on_sent, on_left): (impl FnOnce(), impl FnOnce()),
    ) -> io::Result<()> {
        let flow = self.0.connection().ok_or_else(|| errno(libc::EINVAL))?;
        let mut pass = pass();
        let handed = flow.hand_over(error, &mut pass, |state| {
            if state.peer_done {
                return Err(Failed::Stays(errno(libc::EINVAL)));
            }
            let placed = write_all(peer, &[&state.unread]);
            let exchanged = placed.and_then(|()| exchange(state));
            let (next, finish) = exchanged.map_err(|why| {
                take_back(kernel);
                Failed::Stays(why)
            })?;
            let on = next.wrapping_sub(state.snd_una) as usize;
            let sent = state.sent.get(on..).unwrap_or_default();
            match write_all(kernel, &[sent, &state.unsent]) {
                // The peer has closed its socket already: it reads nothing any more.
                Err(closed) if closed.raw_os_error() == Some(libc::EPIPE) => {}
                written => written.map_err(Failed::Lost)?,
            }
            on_sent();
            finish();
            shut_down(kernel, state.read_shut, state.write_shut);
            self.0.set_elsewhere();
            on_left();
            Ok(())
        });
        pass.wake.wake_all();
        handed.map(drop)
    }

    /// From now on nothing can be sent: the stream is being left, and what is sent is the kernel's. A caller that waits
    /// for room waits until it has been left.
    #[doc(hidden)]
    pub fn hold_sends(&self) {
        if let Some(flow) = self.0.connection() {
            flow.hold_sends();
        }
    }

    /// The program has shut the stream down, and it is not left yet: this end shows it from now on, and the kernel's
    /// socket is shut down when it is left.
    #[doc(hidden)]
    pub fn shut_before_leaving(&self, how: Shutdown) {
        if let Some(flow) = self.0.connection() {
            let mut pass = pass();
            flow.shut_before_leaving(how, &mut pass);
            pass.wake.wake_all();
        }
    }
}

/// Sends all by the kernel's socket, for which there is room.
fn write_all(by: BorrowedFd<'_>, parts: &[&[u8]]) -> io::Result<()> {
    let len = parts.iter().map(|part| part.len()).sum();
    if len == 0 {
        return Ok(());
    }
    let size = get_option(&by, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
    make_room(by, size, len)?;
    let written = parts.iter().try_for_each(|part| write_queue(by, part));
    // The kernel doubles it.
    let _ = set_option(&by, libc::SOL_SOCKET, libc::SO_SNDBUF, size / 2);
    written
}

/// Makes the send buffer, of this size, large enough for `len` bytes, a third more for the kernel's bookkeeping, and
/// what is in it already. Any user may have a buffer that holds what both ends of a stream of ours hold.
fn make_room(by: BorrowedFd<'_>, size: i32, len: usize) -> io::Result<()> {
    const OTHER: usize = 16 * 1024;
    let mut there: i32 = 0;
    // SAFETY: a valid place for the answer.
    unsafe { libc::syscall(libc::SYS_ioctl, by.as_raw_fd(), libc::TIOCOUTQ, &raw mut there) };
    let wanted = len + len / 3 + OTHER + there.max(0) as usize;
    let wanted = i32::try_from(wanted).map_err(|_| errno(libc::ENOBUFS))?;
    if size >= wanted {
        return Ok(());
    }
    let set = |name| set_option(&by, libc::SOL_SOCKET, name, wanted);
    set(libc::SO_SNDBUFFORCE).or_else(|_| set(libc::SO_SNDBUF))?;
    match get_option(&by, libc::SOL_SOCKET, libc::SO_SNDBUF)? >= wanted {
        true => Ok(()),
        false => Err(errno(libc::ENOBUFS)),
    }
}

/// The stream goes on here: takes back what this process has sent itself.
fn take_back(kernel: BorrowedFd<'_>) {
    let mut nowhere = [0_u8; 4096];
    let (to, len) = (nowhere.as_mut_ptr(), nowhere.len());
    let receive = || {
        // SAFETY: writable bytes; no address.
        unsafe {
            let (fd, flags) = (kernel.as_raw_fd(), libc::MSG_DONTWAIT);
            libc::syscall(libc::SYS_recvfrom, fd, to, len, flags, 0usize, 0usize)
        }
    };
    while receive() > 0 {}
}
