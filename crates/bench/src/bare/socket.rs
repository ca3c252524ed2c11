//! An AF_XDP socket in copy mode with its packet memory: made, bound to queue 0 of an interface, kicked.
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
/// The kernel frees a socket's queue some time after its last descriptor is closed.
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
    /// A socket on queue 0 of `ifindex` that is ready to receive into `ring` frames, with as many to send
    /// from.
    ///
    /// # Errors
    /// What was being done, and the system's answer.
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

    /// The descriptor, for the map that frames are steered by.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Takes one frame off the receive ring and shows it to `read`; none if there is no frame.
    #[inline]
    pub(super) fn receive<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let descriptor = self.rx.pop()?;
        let result = read(self.memory.piece(descriptor.addr, descriptor.len as usize)?);
        // The frame's start: the kernel leaves room for headers before the data. In copy mode it takes
        // from the fill ring by itself, and as many frames as the ring holds are out: there is room.
        self.fill.push(descriptor.addr - descriptor.addr % u64::from(FRAME));
        Some(result)
    }

    /// Puts a frame of `len` bytes that `write` fills in on the ring.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while all frames are on their way.
    #[inline]
    pub(super) fn push(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        if len > FRAME as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Rarely, and then all at once: the kernel's index is a cache line of its own.
        if self.free.is_empty() {
            self.free.extend(std::iter::from_fn(|| self.completion.pop()));
        }
        let addr = self.free.pop().ok_or(io::ErrorKind::WouldBlock)?;
        write(self.memory.piece(addr, len).ok_or(io::ErrorKind::InvalidInput)?);
        self.tx.push(XdpDesc { addr, len: len as u32, options: XdpDescOptions::empty() });
        Ok(())
    }

    /// Sends what is on the ring.
    ///
    /// # Errors
    /// The device's refusal.
    #[inline]
    pub(super) fn kick(&mut self) -> io::Result<()> {
        // In copy mode this call is the transmission. What it leaves goes with the next.
        match send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}
