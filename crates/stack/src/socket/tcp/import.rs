//! Takes over a connection that the kernel has, if its packets come over our queues: it was accepted for a listener of
//! ours, because several processes share the port, or the kernel had it before the listener was active; or the parent
//! process has handed it over, and only this process uses it ([`follow`](super::follow)). Uses the kernel's checkpoint
//! interface, as the [hand-over](super::hand_over) does.
//!
//! The kernel's socket stays, in repair mode, until no packet can be on its way to it any more. What it has
//! acknowledged until then is passed on. Then it is disconnected, of which in repair mode the peer learns nothing.

use super::{
    hand_over::{OFF_SILENTLY, ON, RECEIVE_QUEUE, Repair, SEND_QUEUE, disconnect, repair_in_use},
    listener::Inner,
    stream::pass,
};
use crate::{
    Host,
    host::{CompanionService, PortReservation},
    inet::{
        Pass,
        tcp::{
            Flow, FromKernel, Imported, KernelConnection, Listening, Remainder, connection::State,
            take_over,
        },
    },
    ledger::{ESTABLISHED, LedgerSlot, SocketState},
    sys::{get_bytes, get_option, set_option},
    wire::Protocol,
};
use std::{
    io,
    net::{SocketAddr, TcpStream as KernelStream},
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
    time::Duration,
};

/// The time until no packet is on its way to the kernel's socket.
const DRAIN_TIME: Duration = Duration::from_millis(20);

/// Why a connection that comes over our queues stays with the kernel.
const NOT_ALLOWED: &str = "the kernel refuses TCP_REPAIR";
const TOO_MANY: &str = "too many others are being taken over";
const SENT_ON: &str = "something was sent on it before it is accepted";
const NO_STATE: &str = "the kernel does not tell its state";
const NO_MEMORY: &str = "there is no memory for what its peer has sent";
const NO_PLACE: &str = "it cannot be steered to the stack";

/// A connection that stays with the kernel, and why if that is to be said.
pub(super) type Stays = (KernelStream, Option<&'static str>);

/// Of `tcpi_options` (include/uapi/linux/tcp.h).
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;
const ECN: u8 = 8;

impl Inner {
    /// Takes the connection over, if its packets come over our queues and the kernel allows it. Not where child
    /// processes use connections: it would be handed back to the kernel.
    ///
    /// # Errors
    /// Gives it back: it stays the kernel's.
    pub(super) fn import(&self, kernel: KernelStream) -> Result<Flow, Stays> {
        match self.may_import(&kernel) {
            true => self.import_checked(kernel),
            false => Err((kernel, None)),
        }
    }

    /// The same for one that it [may](Inner::may_import) take over.
    ///
    /// # Errors
    /// As above.
    pub(super) fn import_checked(&self, kernel: KernelStream) -> Result<Flow, Stays> {
        let imported = self.try_import(kernel);
        if let Err((_, Some(_))) = imported {
            self.listening.left_to_kernel();
        }
        imported
    }

    /// Whether packets of this connection come over our queues. Not where connections are handed over: one line says so
    /// already.
    pub(super) fn may_import(&self, kernel: &KernelStream) -> bool {
        self.imports().is_some_and(|(service, _)| {
            !service.are_used_elsewhere() && service.comes_over_queues(kernel)
        })
    }

    fn imports(&self) -> Option<(&CompanionService, &Arc<PortReservation>)> {
        self.host.kernel().zip(self.reservation.as_ref())
    }

    fn try_import(&self, kernel: KernelStream) -> Result<Flow, Stays> {
        let Some((service, reservation)) = self.imports() else { return Err((kernel, None)) };
        let import = Import {
            host: &self.host,
            listening: &self.listening,
            steer: &|local, remote| reservation.imported(local, remote),
            // A child of fork(2) may have its descriptor.
            end: |kernel, _| disconnect(kernel.as_fd()),
        };
        import.run(service, kernel)
    }
}

/// Where a connection of the kernel's is to go.
pub(super) struct Import<'a> {
    pub(super) host: &'a Host,
    /// It becomes one of this listener's.
    pub(super) listening: &'a Listening,
    /// From its ends, the reservation that steers it.
    pub(super) steer: &'a dyn Fn(SocketAddr, SocketAddr) -> io::Result<Arc<PortReservation>>,
    /// Ends the kernel's socket, which is frozen, without a word; the number is its `SO_REUSEADDR`.
    pub(super) end: fn(&KernelStream, i32),
}

impl Import<'_> {
    /// # Errors
    /// Gives it back: it stays the kernel's.
    pub(super) fn run(
        self,
        service: &CompanionService,
        kernel: KernelStream,
    ) -> Result<Flow, Stays> {
        if !service.has_room_for_later() {
            return Err((kernel, Some(TOO_MANY)));
        }
        let end = self.end;
        let mut pass = pass();
        let mut steps = TakeOver {
            import: self,
            kernel: &kernel,
            repair: repair_in_use(),
            reuse: 0,
            pass: &mut pass,
            _entry: None,
            imported: None,
        };
        let taken = take_over(&mut steps);
        let reuse = steps.reuse;
        drop(steps);
        let taken = match taken {
            Ok((flow, mut remainder)) => {
                // Most of what came before the packets were steered is there now.
                pass_on(kernel.as_raw_fd(), &mut remainder, &mut pass);
                service.later(DRAIN_TIME, move || {
                    let mut pass = super::stream::pass();
                    pass_on(kernel.as_raw_fd(), &mut remainder, &mut pass);
                    pass.wake.wake_all();
                    end(&kernel, reuse);
                });
                Ok(flow)
            }
            Err(why) => Err((kernel, why)),
        };
        pass.wake.wake_all();
        taken
    }

    /// An entry in the ledger until the flow has its own, without numbers: the guard learns them from the peer.
    fn ledger_entry(&self, kernel: &KernelStream) -> Option<LedgerSlot> {
        let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let (local, remote) = kernel.local_addr().ok().zip(kernel.peer_addr().ok())?;
        let ledger = self.host.inet().ledger()?;
        let entry = ledger.enter(Protocol::TCP, canonical(local), Some(canonical(remote)))?;
        entry.note(&SocketState { state: ESTABLISHED, ..SocketState::default() });
        Some(entry)
    }
}

/// A take-over.
struct TakeOver<'a, 'p> {
    import: Import<'a>,
    kernel: &'a KernelStream,
    repair: Repair,
    /// `SO_REUSEADDR` of the kernel's socket.
    reuse: i32,
    pass: &'a mut Pass<'p>,
    /// Until the flow has its own.
    _entry: Option<LedgerSlot>,
    imported: Option<(Imported, Ends)>,
}

/// Our address and the peer's.
type Ends = (SocketAddr, SocketAddr);

impl FromKernel for TakeOver<'_, '_> {
    type Ours = (Flow, Remainder);
    type Why = Option<&'static str>;

    fn note(&mut self) {
        self._entry = self.import.ledger_entry(self.kernel);
    }

    fn freeze(&mut self) -> Result<(), Self::Why> {
        self.reuse = get_option(self.kernel, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap_or(0);
        let fd = self.kernel.as_raw_fd();
        (self.repair)(fd, ON).map_err(|_| {
            // A connection that the peer has reset cannot have it either.
            let is_over = Info::of(fd).is_ok_and(|info| info.is(State::Closed));
            (!is_over).then_some(NOT_ALLOWED)
        })
    }

    fn copy(&mut self) -> Result<(), Self::Why> {
        let state = read(self.kernel)?;
        let imported = self.import.listening.import(&state, self.pass);
        let imported = imported.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS) => Some(NO_MEMORY),
            _ => Some(NO_PLACE),
        })?;
        self.imported = Some((imported, (state.local, state.remote)));
        Ok(())
    }

    fn steer(&mut self) -> Result<Self::Ours, Self::Why> {
        let (_, (local, remote)) = self.imported.as_ref().ok_or(NO_PLACE)?;
        let port = (self.import.steer)(*local, *remote).map_err(|_| Some(NO_PLACE))?;
        let (imported, _) = self.imported.take().ok_or(NO_PLACE)?;
        Ok(imported.steered(port))
    }

    fn forget(&mut self) {
        if let Some((imported, _)) = self.imported.take() {
            imported.forget(self.pass);
        }
    }

    fn thaw(&mut self) -> bool {
        let is_thawed = (self.repair)(self.kernel.as_raw_fd(), OFF_SILENTLY).is_ok();
        // The end of repair mode has cleared it.
        let _ = set_option(self.kernel, libc::SOL_SOCKET, libc::SO_REUSEADDR, self.reuse);
        is_thawed
    }

    fn end(&mut self) {
        disconnect(self.kernel.as_fd());
    }
}

/// The state of a connection in repair mode.
///
/// # Errors
/// It stays with the kernel, and why.
fn read(kernel: &KernelStream) -> Result<KernelConnection, Option<&'static str>> {
    let fd = kernel.as_raw_fd();
    set_option(kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)
        .map_err(|_| Some(NO_STATE))?;
    // More may come between the calls.
    for _ in 0..1000 {
        let info = Info::of(fd).map_err(|_| Some(NO_STATE))?;
        let fin = info.is(State::CloseWait);
        if !fin && !info.is(State::Established) {
            // The peer has reset it.
            return Err(None);
        }
        if unacknowledged(fd).map_err(|_| Some(NO_STATE))? != 0 {
            return Err(Some(SENT_ON));
        }
        let len = unread(fd).map_err(|_| Some(NO_STATE))?;
        let next = get_option(kernel, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)
            .map_err(|_| Some(NO_STATE))?
            .cast_unsigned();
        let is_same = unread(fd).is_ok_and(|now| now == len)
            && Info::of(fd).is_ok_and(|now| now.is(State::CloseWait) == fin);
        if is_same {
            let first = next.wrapping_sub(len as u32 + u32::from(fin));
            return state(kernel, &info, first, fin).map_err(|_| Some(NO_STATE));
        }
    }
    Err(Some(NO_STATE))
}

/// The state of a connection, with what was received from number `first` on, and the peer's FIN if `fin`.
fn state(
    kernel: &KernelStream,
    info: &Info,
    first: u32,
    fin: bool,
) -> io::Result<KernelConnection> {
    let get = |name| get_option(kernel, libc::IPPROTO_TCP, name).map(i32::cast_unsigned);
    let received = received(kernel.as_raw_fd())?;
    set_option(kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, SEND_QUEUE)?;
    let snd_nxt = get(libc::TCP_QUEUE_SEQ)?;
    // `struct tcp_repair_window`: snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup.
    let mut window = [0; 20];
    get_bytes(kernel, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &mut window)?;
    let field = |at: usize| u32::from_ne_bytes(window.as_chunks().0[at]);
    let has = |option| info.options() & option != 0;
    Ok(KernelConnection {
        local: kernel.local_addr()?,
        remote: kernel.peer_addr()?,
        snd_nxt,
        first,
        received,
        fin,
        edge: field(4).wrapping_add(field(3)),
        snd_wnd: field(1),
        mss: u16::try_from(get(libc::TCP_MAXSEG)?).unwrap_or(u16::MAX),
        scale: has(WINDOW_SCALE).then(|| info.scale()),
        sack: has(SACK),
        ecn: has(ECN),
        timestamp: has(TIMESTAMPS).then(|| get(libc::TCP_TIMESTAMP)).transpose()?,
        rtt: info.rtt(),
    })
}

/// Passes on what the kernel has acknowledged in addition.
fn pass_on(fd: RawFd, remainder: &mut Remainder, pass: &mut Pass<'_>) {
    let Ok(info) = Info::of(fd) else { return };
    // If the peer has ended it, all data has come.
    let fin = !info.is(State::Established);
    let is_lost = match received(fd) {
        _ if info.is(State::Closed) => true,
        Ok(data) => remainder.received(&data, fin, pass).is_err(),
        Err(_) => false,
    };
    if is_lost {
        remainder.reset(pass);
    }
}

/// What the kernel has received, of which nothing was read.
fn received(fd: RawFd) -> io::Result<Vec<u8>> {
    set_option(&fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)?;
    let mut data = vec![0; unread(fd)?];
    // SAFETY: writable bytes of that length.
    let read = unsafe {
        libc::recv(fd, data.as_mut_ptr().cast(), data.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT)
    };
    match data.is_empty() || read == data.len() as isize {
        true => Ok(data),
        false => Err(io::Error::last_os_error()),
    }
}

/// SIOCINQ.
fn unread(fd: RawFd) -> io::Result<usize> {
    count(fd, libc::FIONREAD)
}

/// SIOCOUTQ: what was sent, or is to be sent, and is not acknowledged.
pub(super) fn unacknowledged(fd: RawFd) -> io::Result<usize> {
    count(fd, libc::TIOCOUTQ)
}

fn count(fd: RawFd, what: libc::c_ulong) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: a valid place for the answer.
    match unsafe { libc::ioctl(fd, what as _, &raw mut count) } {
        0 => Ok(usize::try_from(count).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The first part of `struct tcp_info` (include/uapi/linux/tcp.h).
struct Info([u8; 72]);

impl Info {
    fn of(fd: RawFd) -> io::Result<Info> {
        let mut bytes = [0; 72];
        match get_bytes(&fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)? {
            72 => Ok(Info(bytes)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn is(&self, state: State) -> bool {
        self.0[0] == state.number()
    }

    fn options(&self) -> u8 {
        self.0[5]
    }

    /// The shifts of the windows, the peer's and ours: two fields of four bits.
    fn scale(&self) -> (u8, u8) {
        match cfg!(target_endian = "little") {
            true => (self.0[6] & 15, self.0[6] >> 4),
            false => (self.0[6] >> 4, self.0[6] & 15),
        }
    }

    /// The smoothed round trip, if one was measured.
    fn rtt(&self) -> Option<Duration> {
        let micros = u32::from_ne_bytes([self.0[68], self.0[69], self.0[70], self.0[71]]);
        (micros != 0).then(|| Duration::from_micros(micros.into()))
    }
}
