//! Hands a connection to a kernel socket, which continues it: for processes that have the same socket as a kernel
//! descriptor, as children have after fork(2). Uses the kernel's checkpoint interface: a socket in repair mode is set
//! to the connection's state (not in tcp(7); see `TCP_REPAIR` in Linux's net/ipv4/tcp.c).

use super::{
    reconnect::reconnect,
    stream::{TcpStream, pass},
};
use crate::{
    Host,
    host::{CompanionService, OtherEnd, Received, Rest},
    inet::tcp::{Failed, Flow, RepairState, ToKernel, hand_over},
    socket::options::{SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, errno},
    sys::{self, get_option, set_option},
    time,
};
use std::{
    io,
    mem::ManuallyDrop,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The time after a hand-over until no packet of the connection is left in our rings.
const DRAIN_TIME: Duration = Duration::from_millis(200);

/// Values of `TCP_REPAIR` and `TCP_REPAIR_QUEUE` (include/uapi/linux/tcp.h).
const OFF: i32 = 0;
pub(super) const ON: i32 = 1;
pub(super) const OFF_SILENTLY: i32 = -1;
pub(super) const RECEIVE_QUEUE: i32 = 1;
pub(super) const SEND_QUEUE: i32 = 2;

/// TCP option kinds.
const MAXIMUM_SEGMENT: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

/// include/uapi/asm-generic/socket.h.
const SO_BUF_LOCK: i32 = 72;

/// The room that a kernel socket's buffer needs in addition to the data, for its bookkeeping.
const OVERHEAD: usize = 64 * 1024;

/// How much is written at once: small enough for one buffer of the kernel.
const PART: usize = 16 * 1024;

impl TcpStream {
    /// Hands the connection to the kernel socket `kernel`, which is not connected yet. `is_used`: another process uses
    /// it, see [`Host::connections_are_used`]. `on_handed_over` is called when the kernel has the connection, before
    /// any waiter of this socket is notified. Waiting and later calls on this socket fail with `error`. `repair`
    /// switches repair mode, which needs `CAP_NET_ADMIN`. If the process at the other end of a link is stopped, waits
    /// for it until then.
    ///
    /// # Errors
    /// EINVAL unless it is connected; the kernel's errors; `TimedOut` if the process at the other end of a link does
    /// not hand its end over. After an error the connection continues here, or, if repair mode cannot be left, is
    /// reset.
    #[doc(hidden)]
    pub fn hand_over(
        &self,
        kernel: BorrowedFd<'_>,
        is_used: bool,
        error: i32,
        repair: impl Fn(RawFd, i32) -> io::Result<()>,
        until: Option<Instant>,
        on_handed_over: impl FnOnce(),
    ) -> io::Result<()> {
        let flow = self.0.connection().ok_or_else(|| errno(libc::EINVAL))?;
        let is_on = |name| self.getsockopt(SOL_SOCKET, name).is_ok_and(|on| on != 0);
        let target = Target {
            kernel,
            reuse_address: is_on(SO_REUSEADDR),
            reuse_port: is_on(SO_REUSEPORT),
            is_used,
            repair,
            until,
        };
        hand_flow_over(&flow, &self.0.host, &target, error, || {
            self.0.set_elsewhere();
            on_handed_over();
        })
    }
}

/// Where a connection goes.
pub(super) struct Target<'a, R> {
    pub(super) kernel: BorrowedFd<'a>,
    /// `SO_REUSEADDR` and `SO_REUSEPORT`. Without them no listener could be bound to its port again while it lives.
    pub(super) reuse_address: bool,
    pub(super) reuse_port: bool,
    pub(super) is_used: bool,
    /// Switches repair mode.
    pub(super) repair: R,
    /// How long to wait for a process at the other end that is stopped.
    pub(super) until: Option<Instant>,
}

/// As [`TcpStream::hand_over`].
///
/// # Errors
/// As there.
pub(super) fn hand_flow_over<R: Fn(RawFd, i32) -> io::Result<()>>(
    flow: &Flow,
    host: &Host,
    target: &Target<'_, R>,
    error: i32,
    on_handed_over: impl FnOnce(),
) -> io::Result<()> {
    let service = host.kernel().ok_or_else(|| errno(libc::EOPNOTSUPP))?;
    let &Target { kernel, is_used, .. } = target;
    let link = flow.link();
    if flow.is_imported() {
        // Until then the socket that made the connection has its ends.
        service.wait_for_later();
    }
    let mut on_handed_over = Some(on_handed_over);
    let handed = loop {
        let mut pass = pass();
        let handed = flow.hand_over(error, &mut pass, |state| {
            if target.reuse_port {
                let set = set_option(&kernel, SOL_SOCKET, SO_REUSEPORT, 1);
                set.map_err(Failed::Stays)?;
            }
            let mut steps = HandOver {
                kernel,
                host,
                service,
                is_used,
                state,
                link,
                repair: &target.repair,
                not_accepted: None,
                rest: None,
            };
            hand_over(&mut steps)?;
            let is_closed = steps.rest.is_some();
            if target.reuse_address {
                // The end of repair mode has cleared it.
                let _ = set_option(&kernel, SOL_SOCKET, SO_REUSEADDR, 1);
            }
            finish(kernel, state, is_closed);
            on_handed_over.take().into_iter().for_each(|then| then());
            Ok(())
        });
        pass.wake.wake_all();
        match (handed, host.peers()) {
            // Only now, as threads may need the connection meanwhile.
            (Err(late), Some(peers)) if link != 0 && late.kind() == io::ErrorKind::TimedOut => {
                peers.wait_for_answer(link, target.until)?;
            }
            (handed, _) => break handed,
        }
    };
    let reservation = handed?;
    if let Some(reservation) = reservation {
        reservation.mark_handed_over();
    }
    Ok(())
}

/// A hand-over.
struct HandOver<'a, R> {
    kernel: BorrowedFd<'a>,
    host: &'a Host,
    service: &'a CompanionService,
    is_used: bool,
    state: &'a RepairState,
    /// The link to the process at the other end; 0: none.
    link: u32,
    /// Switches repair mode.
    repair: &'a R,
    /// What the listener at the other end had received, if it has not accepted the connection.
    not_accepted: Option<Received>,
    /// What the other end had still to send, if its program has closed it.
    rest: Option<Vec<u8>>,
}

impl<R: Fn(RawFd, i32) -> io::Result<()>> ToKernel for HandOver<'_, R> {
    type Error = io::Error;

    fn freeze(&mut self) -> io::Result<()> {
        (self.repair)(self.kernel.as_raw_fd(), ON)
    }

    fn copy(&mut self) -> io::Result<()> {
        restore(self.kernel, self.state)
    }

    fn steer(&mut self) -> io::Result<()> {
        let ends = (self.state.local, self.state.remote);
        if self.link != 0 {
            // Neither end may send before the kernel has both.
            let peers = self.host.peers().ok_or_else(|| errno(libc::EOPNOTSUPP))?;
            match peers.hand_over_both(self.link, ends) {
                Ok(OtherEnd::Kernels) => {}
                Ok(OtherEnd::NotAccepted(received)) => self.not_accepted = Some(received),
                Ok(OtherEnd::Closed(rest)) => self.rest = Some(rest_for(self.state, rest)?),
                // There is no other end, as if the kernel had had both.
                Err(error)
                    if error.kind() == io::ErrorKind::NotConnected && self.state.peer_done =>
                {
                    self.rest = Some(Vec::new());
                }
                Err(error) => return Err(error),
            }
            if !peers.is_to_container(self.link) {
                return Ok(());
            }
            // The next packets come by an interface.
        }
        // A packet that is left in our rings is the kernel's.
        self.host.inet().tcp_hand_over_until(time::now() + DRAIN_TIME);
        if self.is_used {
            self.host.connections_are_used();
        }
        self.service.hand_over(ends.0, ends.1)
    }

    fn thaw(&mut self) -> io::Result<()> {
        if let Some(received) = self.not_accepted.take() {
            self.forget();
            let is_near = !self.host.peers().is_some_and(|it| it.is_to_container(self.link));
            return reconnect(self.kernel, self.state, &received, is_near);
        }
        if let Some(rest) = self.rest.as_deref().filter(|rest| !rest.is_empty()) {
            let len = self.state.unread.len() + rest.len();
            grow_buffer(self.kernel, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, len)?;
            let (level, name) = (libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE);
            set_option(&self.kernel, level, name, RECEIVE_QUEUE)?;
            write_queue(self.kernel, rest)?;
        }
        // With a window probe the kernel learns from the peer what it has acknowledged meanwhile. If nothing is to be
        // acknowledged, the probe would only cost: it takes a fifth of the hand-over. Where there is no other end, it
        // would bring a reset.
        let is_known = self.state.sent.is_empty() || self.rest.is_some();
        let how = if is_known { OFF_SILENTLY } else { OFF };
        (self.repair)(self.kernel.as_raw_fd(), how)
    }

    fn forget(&mut self) {
        disconnect(self.kernel);
        let _ = (self.repair)(self.kernel.as_raw_fd(), OFF_SILENTLY);
    }
}

/// Sets `TCP_REPAIR` with this process's own privileges.
///
/// # Errors
/// EPERM.
pub fn repair(socket: RawFd, how: i32) -> io::Result<()> {
    // SAFETY: the caller keeps the descriptor open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, how)
}

/// If a process that was killed has left the connection of `kernel` frozen: ends it without a word, as the guard of
/// that process resets it. Returns whether it was.
pub fn end_frozen(kernel: BorrowedFd<'_>) -> bool {
    let is_frozen =
        get_option(&kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR).is_ok_and(|on| on != 0);
    if is_frozen {
        disconnect(kernel);
        let _ = repair_in_use()(kernel.as_raw_fd(), OFF_SILENTLY);
    }
    is_frozen
}

/// Switches repair mode.
pub type Repair = fn(RawFd, i32) -> io::Result<()>;

static REPAIR: OnceLock<Repair> = OnceLock::new();

/// From now on `by` switches the repair mode of connections that are taken over from the kernel, and of orphans, in
/// place of this process itself.
pub fn set_repair(by: Repair) {
    let _ = REPAIR.set(by);
}

/// What switches it.
pub(super) fn repair_in_use() -> Repair {
    REPAIR.get().copied().unwrap_or(repair)
}

/// Restores the connection's state in a socket in repair mode.
fn restore(kernel: BorrowedFd<'_>, repair_state: &RepairState) -> io::Result<()> {
    let set = |name, value: u32| set_option(&kernel, libc::IPPROTO_TCP, name, value.cast_signed());
    let (sends, receives) = needs_room(repair_state);
    grow_buffer(kernel, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, sends)?;
    grow_buffer(kernel, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, receives)?;
    set(libc::TCP_REPAIR_QUEUE, SEND_QUEUE as u32)?;
    set(libc::TCP_QUEUE_SEQ, repair_state.snd_una)?;
    set(libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE as u32)?;
    set(libc::TCP_QUEUE_SEQ, repair_state.rcv_nxt.wrapping_sub(repair_state.unread.len() as u32))?;
    let six = get_option(&kernel, libc::SOL_SOCKET, libc::SO_DOMAIN)? == libc::AF_INET6;
    if let Err(error) = sys::bind(kernel.as_raw_fd(), as_family(repair_state.local, six)) {
        // The program has bound it.
        is_bound(kernel)?.then_some(()).ok_or(error)?;
    }
    sys::connect(kernel.as_raw_fd(), as_family(repair_state.remote, six))?;
    let mut negotiated = vec![(MAXIMUM_SEGMENT, u32::from(repair_state.mss))];
    if let Some((theirs, ours)) = repair_state.scale {
        negotiated.push((WINDOW_SCALE, u32::from(theirs) | u32::from(ours) << 16));
    }
    if repair_state.sack {
        negotiated.push((SACK_PERMITTED, 0));
    }
    if repair_state.timestamp.is_some() {
        negotiated.push((TIMESTAMPS, 0));
    }
    let negotiated: Vec<u8> = negotiated
        .iter()
        .flat_map(|(option, value)| [option.to_ne_bytes(), value.to_ne_bytes()].concat())
        .collect();
    sys::set_bytes(&kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &negotiated)?;
    if let Some(now) = repair_state.timestamp {
        // The lowest bit would select the microsecond clock: clear it. The clock may then be a millisecond ahead.
        set(libc::TCP_TIMESTAMP, now.wrapping_add(1) & !1)?;
    }
    write_queue(kernel, &repair_state.unread)?;
    if !repair_state.sent.is_empty() {
        set(libc::TCP_REPAIR_QUEUE, SEND_QUEUE as u32)?;
        write_queue(kernel, &repair_state.sent)?;
    }
    // `struct tcp_repair_window`.
    let window: Vec<u8> = [
        repair_state.snd_wl1,
        repair_state.snd_wnd,
        repair_state.snd_wnd_max,
        repair_state.rcv_wnd,
        repair_state.rcv_nxt,
    ]
    .iter()
    .flat_map(|word| word.to_ne_bytes())
    .collect();
    sys::set_bytes(&kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window)
}

/// What is new of the data that the other end had still to send.
///
/// # Errors
/// ENOTCONN if some of it is missing.
fn rest_for(state: &RepairState, Rest { first, mut data }: Rest) -> io::Result<Vec<u8>> {
    if state.peer_done {
        return Ok(Vec::new());
    }
    let known = state.rcv_nxt.wrapping_sub(first) as usize;
    if known > data.len() {
        return Err(errno(libc::ENOTCONN));
    }
    data.drain(..known);
    Ok(data)
}

/// For how much data the buffers, to send and to receive, must have room. An empty receive buffer takes one part,
/// however small it is.
fn needs_room(repair_state: &RepairState) -> (usize, usize) {
    let receives = repair_state.unread.len();
    let sends = repair_state.sent.len() + repair_state.unsent.len();
    (sends, if receives > PART { receives } else { 0 })
}

/// The steps after the kernel has the connection. They cannot fail. `is_closed`: the other end is no more.
fn finish(kernel: BorrowedFd<'_>, repair_state: &RepairState, is_closed: bool) {
    // The buffer has room for it.
    let _ = write_queue(kernel, &repair_state.unsent);
    if is_closed || needs_room(repair_state) != (0, 0) {
        // The buffers grow by themselves again.
        let _ = set_option(&kernel, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
    }
    shut_down(kernel, repair_state.read_shut || is_closed, repair_state.write_shut);
}

/// Shuts the kernel's socket down for reading, for writing.
pub(super) fn shut_down(kernel: BorrowedFd<'_>, read: bool, write: bool) {
    for (shut, how) in [(read, libc::SHUT_RD), (write, libc::SHUT_WR)] {
        if shut {
            // SAFETY: a plain system call.
            unsafe { libc::syscall(libc::SYS_shutdown, kernel.as_raw_fd(), how) };
        }
    }
}

/// Makes a socket buffer large enough for `len` bytes.
pub(super) fn grow_buffer(
    kernel: BorrowedFd<'_>,
    name: i32,
    force: i32,
    len: usize,
) -> io::Result<()> {
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

/// Writes `bytes` to the queue selected by `TCP_REPAIR_QUEUE`, or sends them.
pub(super) fn write_queue(kernel: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let part = bytes.get(..PART).unwrap_or(bytes);
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
    // SAFETY: the descriptor stays open, as it is borrowed, and is not closed here.
    let socket = unsafe { std::net::TcpStream::from_raw_fd(kernel.as_raw_fd()) };
    Ok(ManuallyDrop::new(socket).local_addr()?.port() != 0)
}

pub(super) fn as_family(address: SocketAddr, six: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if six => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        _ => address,
    }
}

/// Disconnects the socket. In repair mode nothing is sent to the peer.
pub(super) fn disconnect(kernel: BorrowedFd<'_>) {
    let nothing = libc::sockaddr { sa_family: libc::AF_UNSPEC as _, sa_data: [0; 14] };
    let (fd, len) = (kernel.as_raw_fd(), size_of_val(&nothing));
    // SAFETY: an address of that length.
    unsafe { libc::syscall(libc::SYS_connect, fd, &raw const nothing, len) };
}
