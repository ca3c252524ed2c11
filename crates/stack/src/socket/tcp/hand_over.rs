//! A connection handed to the kernel, which goes on with it where we stopped: for processes that have the same socket
//! by a kernel's descriptor, as children have after fork(2). Done by what the kernel has for checkpoints: a socket in
//! repair mode is told where a connection stands (tcp(7) has nothing of it; Linux's net/ipv4/tcp.c, `TCP_REPAIR`).

use super::stream::{TcpStream, pass};
use crate::{
    host::{Hold, get_option, set_option},
    inet::tcp::Standing,
    socket::options::errno,
    sys, time,
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

/// So long after a connection has gone, what was on its way to us has been taken from our rings.
const LEAVES: Duration = Duration::from_millis(200);

/// Values of `TCP_REPAIR` and `TCP_REPAIR_QUEUE` (include/uapi/linux/tcp.h).
const OFF: i32 = 0;
const ON: i32 = 1;
const OFF_SILENTLY: i32 = -1;
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;

/// Options of a SYN.
const MAXIMUM_SEGMENT: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

/// include/uapi/asm-generic/socket.h.
const SO_BUF_LOCK: i32 = 72;

/// What a buffer of a kernel's socket is to have beside the data: it counts what it keeps them in.
const OVERHEAD: usize = 64 * 1024;

impl TcpStream {
    /// Hands the connection to the kernel's socket `kernel`, which is not connected, and has the connection from then
    /// on: `taken` is called before anybody hears of it here. Calls on this one that wait, and later ones, fail with
    /// `gone`. `repair` switches repair mode, for those who may: it takes `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// EINVAL unless it is connected; the kernel's. Then it goes on here.
    pub fn hand_over(
        &self,
        kernel: BorrowedFd<'_>,
        gone: i32,
        repair: impl Fn(RawFd, i32) -> io::Result<()>,
        taken: impl FnOnce(),
    ) -> io::Result<()> {
        let (flow, host) = (self.0.connection().ok_or_else(|| errno(libc::EINVAL))?, &self.0.host);
        let service = host.kernel().ok_or_else(|| errno(libc::EOPNOTSUPP))?;
        let mut pass = pass();
        let handed = flow.hand_over(gone, &mut pass, |standing| {
            repair(kernel.as_raw_fd(), ON)?;
            let given = give(kernel, standing).and_then(|()| {
                host.inet().tcp_take_over_until(time::now() + LEAVES);
                service.leave(standing.local, standing.remote)
            });
            if let Err(error) = given {
                disconnect(kernel);
                let _ = repair(kernel.as_raw_fd(), OFF_SILENTLY);
                return Err(error);
            }
            // It asks the peer for an acknowledgment, from which the kernel learns the rest.
            repair(kernel.as_raw_fd(), OFF)?;
            finish(kernel, standing);
            taken();
            Ok(())
        });
        pass.wake.wake_all();
        let hold = handed?;
        if let Some(hold) = hold.as_ref().and_then(|hold| hold.downcast_ref::<Hold>()) {
            hold.leave_to_kernel();
        }
        Ok(())
    }
}

/// `TCP_REPAIR` by this process's own rights.
///
/// # Errors
/// EPERM.
pub fn repair(socket: RawFd, how: i32) -> io::Result<()> {
    // SAFETY: open for the call, by the caller's word.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, how)
}

/// Brings a socket in repair mode to where the connection stands.
fn give(kernel: BorrowedFd<'_>, standing: &Standing) -> io::Result<()> {
    let set = |name, value: u32| set_option(&kernel, libc::IPPROTO_TCP, name, value.cast_signed());
    let sends = standing.sent.len() + standing.unsent.len();
    make_room(kernel, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, sends)?;
    make_room(kernel, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, standing.unread.len())?;
    set(libc::TCP_REPAIR_QUEUE, SEND_QUEUE as u32)?;
    set(libc::TCP_QUEUE_SEQ, standing.snd_una)?;
    set(libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE as u32)?;
    set(libc::TCP_QUEUE_SEQ, standing.rcv_nxt.wrapping_sub(standing.unread.len() as u32))?;
    let six = get_option(&kernel, libc::SOL_SOCKET, libc::SO_DOMAIN)? == libc::AF_INET6;
    if !is_bound(kernel)? {
        sys::bind(kernel.as_raw_fd(), as_family(standing.local, six))?;
    }
    sys::connect(kernel.as_raw_fd(), as_family(standing.remote, six))?;
    let mut agreed = vec![(MAXIMUM_SEGMENT, u32::from(standing.mss))];
    if let Some((theirs, ours)) = standing.scale {
        agreed.push((WINDOW_SCALE, u32::from(theirs) | u32::from(ours) << 16));
    }
    if standing.sack {
        agreed.push((SACK_PERMITTED, 0));
    }
    if standing.timestamp.is_some() {
        agreed.push((TIMESTAMPS, 0));
    }
    let agreed: Vec<u8> = agreed
        .iter()
        .flat_map(|(option, value)| [option.to_ne_bytes(), value.to_ne_bytes()].concat())
        .collect();
    sys::set_bytes(&kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &agreed)?;
    if let Some(now) = standing.timestamp {
        // Its lowest bit says that the clock is one of microseconds: it may be a millisecond fast instead.
        set(libc::TCP_TIMESTAMP, now.wrapping_add(1) & !1)?;
    }
    put(kernel, &standing.unread)?;
    set(libc::TCP_REPAIR_QUEUE, SEND_QUEUE as u32)?;
    put(kernel, &standing.sent)?;
    // `struct tcp_repair_window`.
    let window: Vec<u8> = [
        standing.snd_wl1,
        standing.snd_wnd,
        standing.snd_wnd_max,
        standing.rcv_wnd,
        standing.rcv_nxt,
    ]
    .iter()
    .flat_map(|word| word.to_ne_bytes())
    .collect();
    sys::set_bytes(&kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window)
}

/// What comes when the connection is the kernel's, and cannot fail any more.
fn finish(kernel: BorrowedFd<'_>, standing: &Standing) {
    // There is room.
    let _ = put(kernel, &standing.unsent);
    // From now on the buffers grow as ever.
    let _ = set_option(&kernel, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
    for (shut, how) in [(standing.read_shut, libc::SHUT_RD), (standing.write_shut, libc::SHUT_WR)] {
        if shut {
            // SAFETY: a plain system call.
            unsafe { libc::syscall(libc::SYS_shutdown, kernel.as_raw_fd(), how) };
        }
    }
}

/// Makes a buffer large enough for `len` bytes more.
fn make_room(kernel: BorrowedFd<'_>, name: i32, force: i32, len: usize) -> io::Result<()> {
    let wanted = i32::try_from(2 * len + OVERHEAD).map_err(|_| errno(libc::ENOBUFS))?;
    let is_large = || get_option(&kernel, libc::SOL_SOCKET, name).is_ok_and(|has| has >= wanted);
    if len == 0 || is_large() {
        return Ok(());
    }
    if set_option(&kernel, libc::SOL_SOCKET, force, wanted).is_err() {
        set_option(&kernel, libc::SOL_SOCKET, name, wanted)?;
    }
    if is_large() { Ok(()) } else { Err(errno(libc::ENOBUFS)) }
}

/// Puts bytes into the queue that is chosen, or sends them.
fn put(kernel: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    // As large as one buffer of the kernel's may well be.
    const MOST: usize = 16 * 1024;
    while !bytes.is_empty() {
        let part = bytes.get(..MOST).unwrap_or(bytes);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: readable bytes; no address.
        let sent = unsafe {
            let (fd, at) = (kernel.as_raw_fd(), part.as_ptr());
            libc::syscall(libc::SYS_sendto, fd, at, part.len(), flags, 0usize, 0usize)
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

fn is_bound(kernel: BorrowedFd<'_>) -> io::Result<bool> {
    let socket = std::net::TcpStream::from(kernel.try_clone_to_owned()?);
    Ok(socket.local_addr()?.port() != 0)
}

fn as_family(address: SocketAddr, six: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if six => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        _ => address,
    }
}

/// As if it had never been connected; in repair mode the peer does not hear of it.
fn disconnect(kernel: BorrowedFd<'_>) {
    let nothing = libc::sockaddr { sa_family: libc::AF_UNSPEC as _, sa_data: [0; 14] };
    let (fd, len) = (kernel.as_raw_fd(), size_of_val(&nothing));
    // SAFETY: an address of that length.
    unsafe { libc::syscall(libc::SYS_connect, fd, &raw const nothing, len) };
}
