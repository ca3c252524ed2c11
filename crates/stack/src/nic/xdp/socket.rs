//! An AF_XDP socket on one queue: making it, giving it frames, binding it. Owns the socket's descriptor and
//! its options; [`queue`](super::queue) moves the packets.
//!
//! Documentation/networking/af_xdp.rst; net/xdp/xsk.c.

use super::{Error, device::Device, packing::Packing, ring::Ring, slots, umem::Umem};
use crate::sys;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long the kernel may take to clean up after a queue's previous owner: it frees a socket's pool on a
/// work queue, which takes more than a second on a busy machine.
pub(super) const CLEANUP: Duration = Duration::from_secs(4);

/// How many microseconds per call, and for how many frames, the kernel polls a zero-copy queue for us
/// (`SO_BUSY_POLL`, `SO_BUSY_POLL_BUDGET`). The call returns after one pass, whatever the time.
const BUSY_POLL_USECS: libc::c_int = 20;
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// Sizes of one socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Frames to receive into; a power of two.
    pub(super) rx: usize,
    /// Frames to send from; a power of two.
    pub(super) tx: usize,
    pub(super) packing: Packing,
}

/// A bound socket. Unless its umem is shared with other processes, frames `0..rx` are the receive half's, the rest the
/// transmit half's.
pub(super) struct Xsk {
    fd: OwnedFd,
    pub(super) umem: Umem,
    pub(super) sizes: Sizes,
    pub(super) zero_copy: bool,
    /// The kernel polls this queue's NAPI context in our system calls, because the socket has a napi id.
    pub(super) kernel_polls: bool,
}

/// The rings of a socket, each for exactly one producer and one consumer.
pub(super) struct Rings {
    pub(super) rx: Arc<Ring<libc::xdp_desc>>,
    pub(super) tx: Arc<Ring<libc::xdp_desc>>,
    pub(super) fill: Arc<Ring<u64>>,
    pub(super) completion: Arc<Ring<u64>>,
}

/// A socket in the calling thread's network namespace. It stays there, whichever thread uses it.
pub(super) fn make(device: &str) -> Result<OwnedFd, Error> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    sys::owned(fd).map_err(|e| match e.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => Error::NoAfXdp,
        _ => Error::os(device, "open an AF_XDP socket", e),
    })
}

/// The cookie of the socket's network namespace (SO_NETNS_COOKIE).
pub(super) fn namespace(fd: BorrowedFd<'_>) -> io::Result<u64> {
    get(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Xsk {
    /// Gives `fd` frames and binds it to `queue`: with zero copy if `may_zero_copy` and the driver can, else with
    /// copy. The kernel looks `device` up in the socket's network namespace.
    pub(super) fn bind(
        fd: OwnedFd,
        device: &Device,
        queue: u32,
        sizes: Sizes,
        may_zero_copy: bool,
    ) -> Result<(Xsk, Rings), Error> {
        let at = |step| move |e: io::Error| Error::os(&device.name, step, e);
        let umem = Umem::new(sizes.rx + sizes.tx, sizes.packing.frame).map_err(at("map frames"))?;
        let shared_rings = (sizes.rx as u32, sizes.tx as u32);
        set_up(&fd, device, &umem, shared_rings, sizes)?;
        let rings = map_rings(fd.as_fd(), shared_rings, sizes).map_err(at("map rings"))?;
        let zero_copy = bind(&fd, device, queue, sizes.packing, may_zero_copy)?;
        allow_all_frames_in_flight(&fd, sizes);
        let kernel_polls = zero_copy && prefer_busy_poll(&fd);
        Ok((Xsk { fd, umem, sizes, zero_copy, kernel_polls }, rings))
    }

    /// The socket `fd`, which another process has made and bound as a [member], with `umem`.
    pub(super) fn of_member(
        fd: OwnedFd,
        umem: Umem,
        sizes: Sizes,
        zero_copy: bool,
    ) -> io::Result<(Xsk, Rings)> {
        let rings = map_rings(fd.as_fd(), (slots::RING, slots::RING), sizes)?;
        let prefers: libc::c_int = get(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL)?;
        let kernel_polls = zero_copy && prefers != 0;
        Ok((Xsk { fd, umem, sizes, zero_copy, kernel_polls }, rings))
    }

    /// Makes the kernel look at the receive side: it takes frames from the fill ring and, if it polls
    /// for us, runs one pass of the driver's NAPI context.
    pub(super) fn kick_rx(&self) {
        // The result is in the rings. After an error (the interface is down) they stay empty.
        // SAFETY: no buffer is passed.
        unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Packets for this socket that were dropped because the fill ring was empty or the RX ring full. One system call.
    pub(super) fn dropped(&self) -> u64 {
        let statistics: io::Result<libc::xdp_statistics> =
            get(self.fd.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS);
        // It cannot fail on a bound socket.
        statistics.map_or(0, |counted| counted.rx_dropped + counted.rx_ring_full)
    }

    /// Makes the kernel send the frames on the transmit ring. In copy mode this call itself sends up to
    /// 32 frames.
    pub(super) fn kick_tx(&self) -> io::Result<()> {
        // Not libc's sendto: it is a cancellation point, which costs two atomic operations.
        // SAFETY: no buffer is passed.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.fd.as_raw_fd(),
                std::ptr::null::<u8>(),
                0usize,
                libc::MSG_DONTWAIT,
                std::ptr::null::<u8>(),
                0usize,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn register(fd: &OwnedFd, umem: &Umem) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: umem.address(),
        len: umem.bytes() as u64,
        chunk_size: umem.frame_size() as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// Registers the frames, and makes the rings.
fn set_up(
    fd: &OwnedFd,
    device: &Device,
    umem: &Umem,
    (fill, completion): (u32, u32),
    sizes: Sizes,
) -> Result<(), Error> {
    register(fd, umem).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOBUFS) => {
            Error::LockedMemory { device: device.name.clone(), bytes: umem.bytes() }
        }
        _ => Error::os(&device.name, "register frames", e),
    })?;
    (|| {
        set(fd, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &fill)?;
        set(fd, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &completion)?;
        make_own_rings(fd, sizes)
    })()
    .map_err(|e| Error::os(&device.name, "make rings", e))
}

fn make_own_rings(fd: &OwnedFd, sizes: Sizes) -> io::Result<()> {
    set(fd, libc::SOL_XDP, libc::XDP_RX_RING, &(sizes.rx as u32))?;
    set(fd, libc::SOL_XDP, libc::XDP_TX_RING, &(sizes.tx as u32))
}

fn map_rings(
    fd: BorrowedFd<'_>,
    (fill, completion): (u32, u32),
    sizes: Sizes,
) -> io::Result<Rings> {
    let tx = sizes.tx as u32;
    let offsets: libc::xdp_mmap_offsets = get(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
    let (fill_at, completion_at) =
        (libc::XDP_UMEM_PGOFF_FILL_RING as i64, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64);
    Ok(Rings {
        rx: map_rx_ring(fd, sizes)?,
        tx: Ring::map(fd, tx, libc::XDP_PGOFF_TX_RING, &offsets.tx)?,
        fill: Ring::map(fd, fill, fill_at, &offsets.fr)?,
        completion: Ring::map(fd, completion, completion_at, &offsets.cr)?,
    })
}

fn map_rx_ring(fd: BorrowedFd<'_>, sizes: Sizes) -> io::Result<Arc<Ring<libc::xdp_desc>>> {
    let offsets: libc::xdp_mmap_offsets = get(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
    Ring::map(fd, sizes.rx as u32, libc::XDP_PGOFF_RX_RING, &offsets.rx)
}

/// The socket that keeps a queue for all processes that share it, and moves no packets itself.
pub(super) struct Root {
    pub(super) fd: OwnedFd,
    pub(super) zero_copy: bool,
    pub(super) fill: Arc<Ring<u64>>,
    pub(super) completion: Arc<Ring<u64>>,
}

impl Root {
    /// Takes the queue. `EBUSY` in [`Error::Os`]: this kernel maps no rings of a bound socket, as Linux before 6.4.
    pub(super) fn bind(
        device: &Device,
        queue: u32,
        umem: &Umem,
        packing: Packing,
        may_zero_copy: bool,
    ) -> Result<Root, Error> {
        // The rings are not used, but drivers size their own by them.
        let sizes = Sizes { rx: 64, tx: slots::ring_size(0), packing };
        let fd = make(&device.name)?;
        set_up(&fd, device, umem, (slots::RING, slots::RING), sizes)?;
        let zero_copy = bind(&fd, device, queue, packing, may_zero_copy)?;
        let rings = map_rings(fd.as_fd(), (slots::RING, slots::RING), sizes);
        let Rings { fill, completion, .. } =
            rings.map_err(|e| Error::os(&device.name, "map the rings of a bound socket", e))?;
        Ok(Root { fd, zero_copy, fill, completion })
    }
}

/// A socket with rings of its own, on the queue and with the frames of `root`, and its RX ring.
pub(super) fn member(
    device: &Device,
    queue: u32,
    sizes: Sizes,
    root: &Root,
) -> Result<(OwnedFd, Arc<Ring<libc::xdp_desc>>), Error> {
    let at = |step| move |e: io::Error| Error::os(&device.name, step, e);
    let fd = make(&device.name)?;
    make_own_rings(&fd, sizes).map_err(at("make rings"))?;
    let rx = map_rx_ring(fd.as_fd(), sizes).map_err(at("map rings"))?;
    let shared = root.fd.as_raw_fd().cast_unsigned();
    bind_once(&fd, device.ifindex, queue, libc::XDP_SHARED_UMEM, shared)
        .map_err(at("bind an AF_XDP socket"))?;
    allow_all_frames_in_flight(&fd, sizes);
    if root.zero_copy {
        prefer_busy_poll(&fd);
    }
    Ok((fd, rx))
}

/// Whether no frame of the socket is on its way out: each is charged to the socket's send buffer until its completion
/// is reported. In zero copy nothing is charged.
pub(super) fn has_sent_all(fd: BorrowedFd<'_>) -> bool {
    /// include/uapi/linux/sock_diag.h.
    const SK_MEMINFO_WMEM_ALLOC: usize = 2;
    const SO_MEMINFO: libc::c_int = 55;
    let memory: io::Result<[u32; 9]> = get(fd, libc::SOL_SOCKET, SO_MEMINFO);
    memory.is_ok_and(|memory| memory[SK_MEMINFO_WMEM_ALLOC] == 0)
}

/// Binds the socket. Returns whether it uses zero copy.
fn bind(
    fd: &OwnedFd,
    device: &Device,
    queue: u32,
    packing: Packing,
    may_zero_copy: bool,
) -> Result<bool, Error> {
    let deadline = Instant::now() + CLEANUP;
    // In zero copy many drivers have no pieces. In copy mode they cost nothing, and the MTU may be raised later.
    let pieces = |used: bool| if used { libc::XDP_USE_SG } else { 0 };
    let bind = |mode, pieces| {
        let flags = mode | pieces | libc::XDP_USE_NEED_WAKEUP;
        bind_once(fd, device.ifindex, queue, flags, 0)
    };
    // A driver without so many frames a packet would drop what needs more.
    let may_zero_copy = may_zero_copy && packing.fits_zero_copy(|| device.zero_copy_segments());
    loop {
        if may_zero_copy && bind(libc::XDP_ZEROCOPY, pieces(packing.needs_pieces())).is_ok() {
            return Ok(true);
        }
        match bind(libc::XDP_COPY, pieces(packing.kernel_has_pieces)) {
            Ok(()) => return Ok(false),
            Err(e) if e.raw_os_error() != Some(libc::EBUSY) => {
                return Err(Error::os(&device.name, "bind an AF_XDP socket", e));
            }
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(_) => return Err(Error::QueueBusy { device: device.name.clone(), queue }),
        }
    }
}

/// Binds the socket to a queue, with the frames of the socket `shared` if the flags say so.
fn bind_once(fd: &OwnedFd, ifindex: u32, queue: u32, flags: u16, shared: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    };
    // SAFETY: a valid address of that size.
    let bound = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
        )
    };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// In copy mode every frame in flight is an skb charged to the socket. The transmit ring bounds their number;
/// with the default send buffer a burst would stop at its limit first.
fn allow_all_frames_in_flight(fd: &OwnedFd, sizes: Sizes) {
    let bytes = (sizes.tx * (sizes.packing.frame + 1024)) as libc::c_int;
    // If it fails, bursts only take more system calls.
    let _ = set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
}

/// Turns preferred busy polling on if the socket has a napi id. Most drivers do not set it
/// (netif_queue_set_napi); there the options would be accepted and do nothing.
fn prefer_busy_poll(fd: &OwnedFd) -> bool {
    let id: io::Result<u32> = get(fd.as_fd(), libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID);
    let on: libc::c_int = 1;
    matches!(id, Ok(id) if id != 0)
        && set(fd, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &on).is_ok()
        && set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &BUSY_POLL_USECS).is_ok()
        && set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &BUSY_POLL_BUDGET).is_ok()
}

fn set<T: Copy>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: a live value of the size given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option; `T` must consist of plain integers, for which all zeros is valid.
fn get<T: Copy>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: at most `length` bytes are written.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain integers (see above), zeroed before the kernel wrote.
    Ok(unsafe { value.assume_init() })
}
