//! One open queue: the receive half, the transmit half, the interrupt. Owns the movement of frames
//! between the rings. This is the hot path: it does not allocate and, in copy mode, its only system
//! call is the one that sends.
//!
//! A receive frame is always in one of three places: on the fill ring, with the kernel, or on the RX ring;
//! [`Rx::poll`] moves it from the last back to the first. A transmit frame is on our free list, on the TX
//! ring, with the kernel, or on the completion ring. No ring can overflow: each has room for every
//! frame of its half.
//!
//! How a frame returns to the fill ring, and comes off the completion ring, differs where several processes share
//! these two ([`shared_queue`](super::shared_queue)).

use super::{
    Shared,
    packing::{Chain, Gather, HandUp, Places},
    ring::{Consumer, Producer, Ring},
    socket::{Rings, Xsk},
};
use crate::{
    nic::{Checksum, Frame, Interrupt, Queue, RingFull, RxQueue, TxQueue},
    wire::Rest,
};
use libc::xdp_desc;
use std::{
    hint::cold_path,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// State kept by both halves and the interrupt. The socket is dropped first.
pub(super) struct Open {
    pub(super) socket: Xsk,
    /// Lives as long as the queue is in use.
    pub(super) _token: Arc<()>,
    pub(super) _shared: Arc<Shared>,
}

/// How receive frames return to the fill ring.
pub(super) trait Refill: Send {
    /// How many frames may be taken now, up to `budget`.
    fn room(&mut self, socket: &Xsk, budget: usize) -> usize;
    /// How many more may be taken in the same pass.
    fn left(&self) -> u32;
    /// A frame, by its address, was taken off the RX ring.
    fn put(&mut self, frame: u64);
    /// All frames of the pass are put; their entries of the RX ring are about to be released.
    fn before_release(&mut self);
    /// These entries are released.
    fn after_release(&mut self);
    /// A pass has found nothing.
    fn idle(&mut self, socket: &Xsk);
    /// See [`Ring::needs_wakeup`].
    fn needs_wakeup(&self) -> bool;
}

/// How transmit frames come off the completion ring.
pub(super) trait Clean: Send {
    /// Adds to `free` the frames that the kernel is done with. It does not grow beyond the number of frames.
    fn clean(&mut self, free: &mut Vec<u64>);
}

/// The fill ring of this process alone.
impl Refill for Producer<u64> {
    #[inline]
    fn room(&mut self, _: &Xsk, budget: usize) -> usize {
        budget
    }

    #[inline]
    fn left(&self) -> u32 {
        u32::MAX
    }

    #[inline]
    fn put(&mut self, frame: u64) {
        self.write(frame);
    }

    #[inline]
    fn before_release(&mut self) {}

    #[inline]
    fn after_release(&mut self) {
        self.submit();
    }

    #[inline]
    fn idle(&mut self, _: &Xsk) {}

    #[inline]
    fn needs_wakeup(&self) -> bool {
        Producer::needs_wakeup(self)
    }
}

/// The completion ring of this process alone.
impl Clean for Consumer<u64> {
    #[inline]
    fn clean(&mut self, free: &mut Vec<u64>) {
        let count = self.available(u32::MAX);
        for _ in 0..count {
            // Does not allocate: there are no more frames than `free` was made with.
            free.push(self.read());
        }
        if count > 0 {
            self.release();
        }
    }
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
    let frame = sizes.packing.frame;
    let frames = |range: std::ops::Range<usize>| range.map(move |i| (i * frame) as u64);
    let mut fill = Producer::new(rings.fill);
    frames(0..sizes.rx).for_each(|frame| fill.write(frame));
    fill.submit();
    if fill.needs_wakeup() {
        socket.kick_rx();
    }
    let open = Open { socket, _token: token, _shared: shared };
    let free = frames(sizes.rx..sizes.rx + sizes.tx);
    queue(open, (rings.rx, rings.tx), fill, Consumer::new(rings.completion), free, checksum)
}

/// The queue of a socket whose receive frames are with the kernel, and whose transmit frames are free.
pub(super) fn queue(
    open: Open,
    (rx, tx): (Arc<Ring<xdp_desc>>, Arc<Ring<xdp_desc>>),
    fill: impl Refill + 'static,
    completion: impl Clean + 'static,
    free: impl Iterator<Item = u64>,
    checksum: Checksum,
) -> Queue {
    let packing = open.socket.sizes.packing;
    let mut free: Vec<u64> = free.collect();
    let places = Places::new(packing, &free);
    if let Some(places) = &places {
        free.clear();
        free.extend(places.addresses());
    }
    // Used as a stack: few frames in use means few cache lines in use.
    free.reverse();
    let most = free.len();
    let open = Arc::new(open);
    Queue {
        interrupt: Arc::new(RxInterrupt { open: open.clone(), ring: rx.clone() }),
        rx: Box::new(Rx {
            open: open.clone(),
            ring: Consumer::new(rx),
            fill,
            checksum,
            gather: Gather::new(packing),
        }),
        tx: Box::new(Tx {
            open,
            ring: Producer::new(tx),
            gathered: 0,
            completion,
            free,
            most,
            places,
        }),
    }
}

struct Rx<F> {
    open: Arc<Open>,
    ring: Consumer<xdp_desc>,
    fill: F,
    checksum: Checksum,
    gather: Gather,
}

impl<F: Refill> RxQueue for Rx<F> {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let Rx { open, ring, fill, checksum, gather } = self;
        let socket = &open.socket;
        let budget = fill.room(socket, budget);
        let budget = u32::try_from(budget).unwrap_or(u32::MAX);
        let mut count = ring.available(budget);
        if count == 0 {
            fill.idle(socket);
            // Only in zero copy: in copy mode the kernel never needs a wake-up for receive.
            if socket.kernel_polls || socket.zero_copy && fill.needs_wakeup() {
                socket.kick_rx();
            }
            return 0;
        }
        // Frames of the ring, and how many of them are no more than the rest of a packet.
        let (mut taken, mut more) = (0, 0);
        while taken < count {
            let descriptor = ring.read();
            if descriptor.options != 0 || gather.begun {
                cold_path();
                let mut hand_up = |bytes: &[u8], rest: &[&[u8]]| {
                    sink(Frame { bytes, rest: Rest::of(&rest), checksum: *checksum });
                };
                let (parts, left) = ((&mut *ring, &mut *fill, &mut *gather), count - taken);
                let frames = take_chain(socket, parts, descriptor, left, &mut hand_up);
                (taken, more) = (taken + frames, more + frames - 1);
                let next = budget.saturating_add(more).saturating_sub(taken);
                count = taken + ring.available(next.min(fill.left()));
                continue;
            }
            // SAFETY: the kernel put this frame on the RX ring, so it is ours until it is put on the
            // fill ring, after the call.
            let bytes = unsafe { socket.umem.bytes_at(descriptor.addr, descriptor.len as usize) };
            if let Some(bytes) = bytes {
                sink(Frame::whole(bytes, *checksum));
            }
            fill.put(socket.umem.frame_of(descriptor.addr));
            taken += 1;
        }
        fill.before_release();
        ring.release();
        fill.after_release();
        if socket.zero_copy && fill.needs_wakeup() {
            socket.kick_rx();
        }
        (taken - more) as usize
    }
}

/// Hands up the packet of several frames that begins with `first`, or goes on with it. Takes up to `count` frames, and more
/// if the packet would be cut otherwise. Returns how many.
#[inline(never)]
fn take_chain<F: Refill>(
    socket: &Xsk,
    (ring, fill, gather): (&mut Consumer<xdp_desc>, &mut F, &mut Gather),
    first: xdp_desc,
    count: u32,
    sink: &mut HandUp<'_>,
) -> u32 {
    let mut chain = Chain::new();
    let (mut descriptor, mut taken) = (first, 1);
    loop {
        // SAFETY: as in `poll`: a frame that is put back is the kernel's only when the pass has released it.
        let piece = unsafe { socket.umem.bytes_at(descriptor.addr, descriptor.len as usize) };
        fill.put(socket.umem.frame_of(descriptor.addr));
        let more = descriptor.options & libc::XDP_PKT_CONTD != 0;
        chain.add(gather, piece, more, sink);
        if !more {
            return taken;
        }
        if taken >= count && (fill.left() == 0 || ring.available(1) == 0) {
            chain.keep(gather);
            return taken;
        }
        descriptor = ring.read();
        taken += 1;
    }
}

/// The most frames that one system call sends in copy mode (Linux's `TX_BATCH_SIZE`). Gathering more would only delay
/// the first.
const BATCH: u32 = 32;

struct Tx<C> {
    open: Arc<Open>,
    ring: Producer<xdp_desc>,
    /// Written since the last flush.
    gathered: u32,
    completion: C,
    /// Where a packet can be written.
    free: Vec<u64>,
    /// How many of these there are if nothing is being sent.
    most: usize,
    /// If a packet can take several frames.
    places: Option<Places>,
}

impl<C: Clean> Tx<C> {
    #[inline]
    fn clean(&mut self) {
        match &mut self.places {
            None => self.completion.clean(&mut self.free),
            Some(places) => {
                self.completion.clean(&mut places.done);
                places.settle(&mut self.free);
            }
        }
    }

    /// Puts a packet on the ring, a piece in each frame. Returns how many.
    fn write(&mut self, place: u64, len: usize) -> u32 {
        let Some(places) = &mut self.places else {
            self.ring.write(xdp_desc { addr: place, len: len as u32, options: 0 });
            return 1;
        };
        let (mut written, mut rest) = (0, len as u32);
        for (addr, len) in places.pieces(place, len) {
            rest -= len;
            let options = if rest > 0 { libc::XDP_PKT_CONTD } else { 0 };
            self.ring.write(xdp_desc { addr, len, options });
            written += 1;
        }
        places.sent(place, written);
        written
    }
}

impl<C: Clean> TxQueue for Tx<C> {
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
        if len > self.open.socket.sizes.packing.packet {
            debug_assert!(false, "a frame of {len} bytes was never promised to fit");
            return Err(RingFull);
        }
        let Some(&place) = self.free.last() else { return Err(RingFull) };
        // SAFETY: the frame is on our free list, so neither the kernel nor another thread uses it.
        let Some(bytes) = (unsafe { umem.bytes_at_mut(place, len) }) else { return Err(RingFull) };
        fill(bytes);
        self.free.pop();
        self.gathered += self.write(place, len);
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

    fn has_room(&mut self, frames: usize) -> bool {
        let frames = frames.min(self.most);
        if self.free.len() < frames {
            self.clean();
        }
        self.free.len() >= frames
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
