//! One open queue: the receive half, the transmit half, the interrupt. Owns the movement of frames
//! between the rings. This is the hot path: it does not allocate and, in copy mode, its only system
//! call is the one that sends.
//!
//! A receive frame is always in one of three places: on the fill ring, with the kernel, or on the RX ring;
//! [`Rx::poll`] moves it from the last back to the first. A transmit frame is on our free list, on the TX
//! ring, with the kernel, or on the completion ring. No ring can overflow: each has room for every
//! frame of its half.

use super::{
    Shared,
    ring::{Consumer, Producer, Ring},
    socket::{Rings, Xsk},
};
use crate::nic::{Checksum, Frame, Interrupt, Queue, RingFull, RxQueue, TxQueue};
use libc::xdp_desc;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// State kept by both halves and the interrupt. The socket is dropped first.
struct Open {
    socket: Xsk,
    /// Lives as long as the queue is in use.
    _token: Arc<()>,
    _shared: Arc<Shared>,
}

/// Starts a bound socket: gives all receive frames to the kernel, and puts all transmit frames on the free list.
pub(super) fn start(
    socket: Xsk,
    rings: Rings,
    checksum: Checksum,
    token: Arc<()>,
    shared: Arc<Shared>,
) -> Queue {
    let sizes = socket.sizes;
    let frames = |range: std::ops::Range<usize>| range.map(move |i| (i * sizes.frame) as u64);
    let mut fill = Producer::new(rings.fill);
    frames(0..sizes.rx).for_each(|frame| fill.write(frame));
    fill.submit();
    if fill.needs_wakeup() {
        socket.kick_rx();
    }
    let open = Arc::new(Open { socket, _token: token, _shared: shared });
    Queue {
        interrupt: Arc::new(RxInterrupt { open: open.clone(), ring: rings.rx.clone() }),
        rx: Box::new(Rx { open: open.clone(), ring: Consumer::new(rings.rx), fill, checksum }),
        tx: Box::new(Tx {
            open,
            ring: Producer::new(rings.tx),
            gathered: 0,
            completion: Consumer::new(rings.completion),
            // Used as a stack: few frames in use means few cache lines in use.
            free: frames(sizes.rx..sizes.rx + sizes.tx).rev().collect(),
        }),
    }
}

struct Rx {
    open: Arc<Open>,
    ring: Consumer<xdp_desc>,
    fill: Producer<u64>,
    checksum: Checksum,
}

impl RxQueue for Rx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let socket = &self.open.socket;
        let count = self.ring.available(u32::try_from(budget).unwrap_or(u32::MAX));
        if count == 0 {
            // Only in zero copy: in copy mode the kernel never needs a wake-up for receive.
            if socket.kernel_polls || socket.zero_copy && self.fill.needs_wakeup() {
                socket.kick_rx();
            }
            return 0;
        }
        for _ in 0..count {
            let descriptor = self.ring.read();
            // SAFETY: the kernel put this frame on the RX ring, so it is ours until it is put on the
            // fill ring, after the call.
            let bytes = unsafe { socket.umem.bytes_at(descriptor.addr, descriptor.len as usize) };
            if let Some(bytes) = bytes {
                sink(Frame { bytes, checksum: self.checksum });
            }
            self.fill.write(socket.umem.frame_of(descriptor.addr));
        }
        self.ring.release();
        self.fill.submit();
        if socket.zero_copy && self.fill.needs_wakeup() {
            socket.kick_rx();
        }
        count as usize
    }
}

/// The most frames that one system call sends in copy mode (Linux's `TX_BATCH_SIZE`). Gathering more would only delay
/// the first.
const BATCH: u32 = 32;

struct Tx {
    open: Arc<Open>,
    ring: Producer<xdp_desc>,
    /// Written since the last flush.
    gathered: u32,
    completion: Consumer<u64>,
    free: Vec<u64>,
}

impl Tx {
    /// Takes back the frames the kernel is done with.
    fn clean(&mut self) {
        let count = self.completion.available(u32::MAX);
        for _ in 0..count {
            // Does not allocate: there are no more frames than `free` was made with.
            self.free.push(self.completion.read());
        }
        if count > 0 {
            self.completion.release();
        }
    }
}

impl TxQueue for Tx {
    fn push(
        &mut self,
        len: usize,
        _partial: bool, // never: Info::tx_checksum is false
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        if self.free.is_empty() {
            self.clean();
        }
        let umem = &self.open.socket.umem;
        if len > umem.frame_size() {
            debug_assert!(false, "a frame of {len} bytes was never promised to fit");
            return Err(RingFull);
        }
        let Some(&frame) = self.free.last() else { return Err(RingFull) };
        // SAFETY: the frame is on our free list, so neither the kernel nor another thread uses it.
        let Some(bytes) = (unsafe { umem.bytes_at_mut(frame, len) }) else { return Err(RingFull) };
        fill(bytes);
        self.free.pop();
        self.ring.write(xdp_desc { addr: frame, len: len as u32, options: 0 });
        self.gathered += 1;
        if self.gathered >= BATCH {
            self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.ring.submit();
        self.gathered = 0;
        // Includes frames that an earlier call did not send.
        let mut waiting = self.ring.outstanding();
        let socket = &self.open.socket;
        while waiting > 0 && (self.ring.needs_wakeup() || socket.kernel_polls) {
            let again = match socket.kick_tx() {
                // One call sends a limited number of frames and then returns EAGAIN; EBUSY means that the driver
                // dropped one. Both are worth another call as long as each makes progress.
                Err(e) => {
                    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS))
                }
                Ok(()) => false,
            };
            let left = self.ring.outstanding();
            if !again || left >= waiting {
                break;
            }
            waiting = left;
        }
        // Most frames are done by now: the next ones reuse their cache lines.
        self.clean();
    }
}

struct RxInterrupt {
    open: Arc<Open>,
    ring: Arc<Ring<xdp_desc>>,
}

impl Interrupt for RxInterrupt {
    fn fd(&self) -> BorrowedFd<'_> {
        self.open.socket.as_fd()
    }

    /// The descriptor is readable while the RX ring is not empty, so there is nothing to unmask. In zero
    /// copy the driver may need a wake-up.
    fn unmask(&self) -> bool {
        if self.open.socket.kernel_polls {
            self.open.socket.kick_rx();
        }
        self.ring.is_empty()
    }

    fn mask(&self) {}

    fn dropped(&self) -> u64 {
        self.open.socket.dropped()
    }

    fn set_coalesce(&self, _: crate::nic::Coalesce) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "an AF_XDP queue has its interface's interrupt moderation; change it with `ethtool -C`",
        ))
    }
}
