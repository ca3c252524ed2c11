//! An AF_XDP socket in copy mode with its packet memory: created, bound to queue 0 of an interface, kicked.
//! Owns the descriptor and the rings; knows no protocol.
//!
//! include/uapi/linux/if_xdp.h, net/xdp/xsk.c.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with, sockopt,
};

use super::rings::{FromKernel, Mapping, ToKernel};

/// Bytes of a frame.
const FRAME: u32 = 2048;
/// The kernel releases a socket's queue some time after its last descriptor is closed.
const REBIND: Duration = Duration::from_secs(1);

/// One socket, its four rings and its frames.
pub(super) struct XdpSocket {
    fd: OwnedFd,
    rx: FromKernel<XdpDesc>,
    tx: ToKernel<XdpDesc>,
    fill: ToKernel<u64>,
    completion: FromKernel<u64>,
    memory: Mapping,
    free: Vec<u64>,
}

impl XdpSocket {
    /// A socket on queue 0 of `ifindex` that is ready to receive into `ring` frames, with as many for
    /// sending.
    ///
    /// # Errors
    /// The failed step, and the system's error.
    pub(super) fn open(ifindex: u32, ring: u32) -> Result<Self, (&'static str, io::Error)> {
        let failed = |doing| move |e: io::Error| (doing, e);
        let errno = |doing| move |e: Errno| (doing, e.into());
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(errno("open an AF_XDP socket"))?;
        let bytes = 2 * ring * FRAME;
        let memory =
            Mapping::anonymous(bytes as usize).map_err(failed("get memory for packets"))?;
        let umem = XdpUmemReg {
            addr: memory.address(),
            len: bytes.into(),
            chunk_size: FRAME,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, umem).map_err(errno("register memory"))?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, ring)
            .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&fd, ring))
            .and_then(|()| sockopt::set_xdp_rx_ring_size(&fd, ring))
            .and_then(|()| sockopt::set_xdp_tx_ring_size(&fd, ring))
            .map_err(errno("make the rings"))?;
        let at = sockopt::xdp_mmap_offsets(&fd).map_err(errno("find the rings"))?;
        let (shared, map) = (fd.as_fd(), failed("map the rings"));
        let rx = FromKernel::map(shared, XDP_PGOFF_RX_RING, ring, &at.rx).map_err(map)?;
        let tx = ToKernel::map(shared, XDP_PGOFF_TX_RING, ring, &at.tx).map_err(map)?;
        let mut fill =
            ToKernel::map(shared, XDP_UMEM_PGOFF_FILL_RING, ring, &at.fr).map_err(map)?;
        let completion =
            FromKernel::map(shared, XDP_UMEM_PGOFF_COMPLETION_RING, ring, &at.cr).map_err(map)?;
        for frame in 0..ring {
            fill.push(u64::from(frame * FRAME));
        }
        let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, ifindex, 0);
        let give_up = Instant::now() + REBIND;
        while let Err(e) = bind(&fd, &address) {
            if e != Errno::BUSY || Instant::now() > give_up {
                return Err(("bind to the queue", e.into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let free = (ring..2 * ring).map(|frame| u64::from(frame * FRAME)).collect();
        Ok(Self { fd, rx, tx, fill, completion, memory, free })
    }

    /// The descriptor, for the map of the XDP program.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Takes one frame off the receive ring and passes it to `read`; none if there is no frame.
    #[inline]
    pub(super) fn receive<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let descriptor = self.rx.pop()?;
        let result = read(self.memory.piece(descriptor.addr, descriptor.len as usize)?);
        // Returns the frame by its start, as the kernel leaves room for headers before the data. The fill ring has
        // room: it has as many entries as there are frames.
        self.fill.push(descriptor.addr - descriptor.addr % u64::from(FRAME));
        Some(result)
    }

    /// Puts a frame of `len` bytes, which `write` fills in, on the ring.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while all frames are in flight.
    #[inline]
    pub(super) fn push(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        if len > FRAME as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Only when needed, and then all at once: the kernel's index is on a cache line of its own.
        if self.free.is_empty() {
            self.free.extend(std::iter::from_fn(|| self.completion.pop()));
        }
        let addr = self.free.pop().ok_or(io::ErrorKind::WouldBlock)?;
        write(self.memory.piece(addr, len).ok_or(io::ErrorKind::InvalidInput)?);
        self.tx.push(XdpDesc { addr, len: len as u32, options: XdpDescOptions::empty() });
        Ok(())
    }

    /// Sends the frames on the ring.
    ///
    /// # Errors
    /// The device's error.
    #[inline]
    pub(super) fn kick(&mut self) -> io::Result<()> {
        // In copy mode this call transmits. Frames that it leaves are sent by the next call.
        match send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}
