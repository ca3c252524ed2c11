//! The cable: two NICs joined by rings in memory. It needs no privilege and runs anywhere; tests and the
//! demonstration use it by default. It has interrupts and interrupt moderation, so that every way of waiting can
//! be shown on a laptop.
//!
//! A small frame shares the cache lines of its descriptor, so that it crosses to the other CPU in one or two lines,
//! like an inline send of a NIC. Descriptors lie side by side, apart from the buffers of larger frames, so that a ring
//! of small frames stays in a few pages.
//!
//! [`pair`] makes a cable within a process. [`listen`] and [`connect`] make one between two processes of a user.

use super::{Checksum, Coalesce, Frame, Info, Interrupt, Nic, Queue, RingFull, RxQueue, TxQueue};
use crate::{
    sync::{Arc, AtomicU32, Ordering},
    wire::MacAddr,
};
use line::Line;
use slots::{HEADER, LINE, PARTIAL, SMALL, Slots, fetch_second_line};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    io,
    ops::RangeInclusive,
    os::fd::BorrowedFd,
    ptr::NonNull,
};

mod between;
mod line;
mod memory;
mod ports;
mod rendezvous;
mod slots;

pub use between::ProcessCable;
pub(crate) use ports::{Found, Ports, Receives};
pub use rendezvous::{Rendezvous, connect, listen};
pub(crate) use rendezvous::{dial, dial_first, join, join_by, listen_nonblocking, offer_by};

/// The configuration of a pair of cable NICs.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Largest IP packet, bytes: 68 to 65,535.
    pub mtu: usize,
    /// Queue pairs of each NIC.
    pub queues: u32,
    /// Frames that a ring holds, a power of two.
    pub ring: u32,
    /// Interrupt moderation. A cable made without it cannot get it later.
    pub coalesce: Coalesce,
}

impl Default for Config {
    fn default() -> Config {
        Config { mtu: 1500, queues: 1, ring: 256, coalesce: Coalesce::default() }
    }
}

/// One end of a cable.
pub struct Cable {
    info: Info,
    rx: Vec<Option<Arc<Ring>>>,
    tx: Vec<Option<Arc<Ring>>>,
}

/// Two NICs, each the peer of the other; queue n of one is joined to queue n of the other.
///
/// # Errors
/// A ring size that is no power of two, an MTU out of range, or no descriptors left.
///
/// ```
/// use busypoll_stack::nic::{Nic, cable};
/// let (a, b) = cable::pair(cable::Config::default())?;
/// assert_ne!(a.info().mac, b.info().mac);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn pair(config: Config) -> io::Result<(Cable, Cable)> {
    let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if !config.ring.is_power_of_two() || config.ring > MAX_RING {
        return invalid(WRONG_RING);
    }
    if !MTUS.contains(&config.mtu) {
        return invalid(WRONG_MTU);
    }
    if !(1..=256).contains(&config.queues) {
        return invalid("cable: a NIC has 1 to 256 queues");
    }
    static MADE: AtomicU32 = AtomicU32::new(0);
    let first = MADE.fetch_add(2, Ordering::Relaxed);
    let rings = || -> io::Result<Vec<Option<Arc<Ring>>>> {
        (0..config.queues).map(|_| Ok(Some(Arc::new(Ring::new(&config)?)))).collect()
    };
    let (one, two) = (rings()?, rings()?);
    let end = |number: u32, rx: &[Option<Arc<Ring>>], tx: &[Option<Arc<Ring>>]| Cable {
        info: Info {
            name: format!("cable{number}"),
            mode: "cable".into(),
            mac: mac(number),
            mtu: config.mtu,
            queues: config.queues,
            tx_checksum: true,
            ifindex: None,
        },
        rx: rx.to_vec(),
        tx: tx.to_vec(),
    };
    Ok((end(first, &one, &two), end(first + 1, &two, &one)))
}

const MAX_RING: u32 = 1 << 16;
const WRONG_RING: &str = "cable: the ring size must be a power of two up to 65536";
const MTUS: RangeInclusive<usize> = 68..=65_535;
const WRONG_MTU: &str = "cable: the MTU must be 68 to 65535 bytes";

/// A locally administered address, different for every cable end in the process.
fn mac(number: u32) -> MacAddr {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddr([0x02, 0xbb, a, b, c, d])
}

impl Nic for Cable {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let name = &self.info.name;
        let at = index as usize;
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("{name}: no queue {index}"));
        let busy = || {
            io::Error::new(io::ErrorKind::ResourceBusy, format!("{name}: queue {index} is open"))
        };
        let rx = self.rx.get_mut(at).ok_or_else(gone)?.take().ok_or_else(busy)?;
        let tx = self.tx.get_mut(at).and_then(Option::take).ok_or_else(busy)?;
        Ok(Queue {
            interrupt: rx.clone(),
            rx: Box::new(Receiver { position: 0, ring: rx }),
            tx: Box::new(Sender {
                position: 0,
                limit: tx.slots.count,
                ring: tx,
                small: [0; SMALL],
            }),
        })
    }
}

/// One direction of one queue: a ring with one sender and one receiver, and the receiver's interrupt.
struct Ring {
    slots: Slots,
    memory: NonNull<u8>,
    layout: Layout,
    frame: usize,
    consumed: Padded<AtomicU32>,
    line: Line,
}

#[repr(align(128))]
struct Padded<T>(T);

// SAFETY: a slot belongs to the sender until it writes the slot's sequence (Release), then to the receiver,
// which saw that sequence (Acquire), until it writes `consumed` (Release), which the sender reads (Acquire).
// There is one sender and one receiver: `Cable::open` gives each half out once.
unsafe impl Sync for Ring {}
// SAFETY: the memory belongs to no particular thread.
unsafe impl Send for Ring {}

impl Ring {
    fn new(config: &Config) -> io::Result<Ring> {
        // Ethernet header and two VLAN tags.
        let frame = config.mtu + 14 + 8;
        let stride = frame.next_multiple_of(LINE);
        let layout = Layout::from_size_align(Slots::size(config.ring, stride), LINE)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "cable: rings too large"))?;
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: just allocated with that size and alignment; `pair` has checked the count.
        let slots = unsafe { Slots::new(memory, config.ring, stride) };
        let consumed = Padded(AtomicU32::new(0));
        let line = Line::new(config.coalesce)?;
        Ok(Ring { slots, memory, layout, frame, consumed, line })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed here only.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

struct Receiver {
    ring: Arc<Ring>,
    position: u32,
}

impl RxQueue for Receiver {
    #[inline]
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let ring = &*self.ring;
        let mut found = 0;
        while found < budget
            && let Some(slot) = ring.slots.full_slot(self.position)
        {
            fetch_second_line(slot);
            // SAFETY: the slot is full, so it and its buffer are the receiver's until `consumed` passes it; the sender
            // checked that the length fits.
            let (bytes, partial) = unsafe {
                let word = (*slot.as_ptr()).len;
                let len = (word & !PARTIAL) as usize;
                let data = ring.slots.frame(self.position, slot, len);
                (std::slice::from_raw_parts(data.as_ptr(), len), word & PARTIAL != 0)
            };
            let checksum = if partial { Checksum::Partial } else { Checksum::Unverified };
            sink(Frame::whole(bytes, checksum));
            self.position = self.position.wrapping_add(1);
            found += 1;
        }
        if found > 0 {
            ring.consumed.0.store(self.position, Ordering::Release);
        }
        found
    }
}

struct Sender {
    ring: Arc<Ring>,
    position: u32,
    /// The first position not known to be free.
    limit: u32,
    /// Where a small frame is put together.
    small: [u8; SMALL],
}

impl TxQueue for Sender {
    #[inline]
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        let ring = &*self.ring;
        if self.position == self.limit {
            self.limit = ring.consumed.0.load(Ordering::Acquire).wrapping_add(ring.slots.count);
        }
        if self.position == self.limit || len > ring.frame {
            return Err(RingFull);
        }
        let slot = ring.slots.slot(self.position);
        let data = ring.slots.frame(self.position, slot, len);
        // SAFETY: the receiver has released the slot and its buffer (or never had them), so they are the sender's until
        // the sequence is written; `len` fits, and a small frame's slot has two lines.
        unsafe {
            if len <= SMALL {
                // The receiver polls the slot's first cache line, which takes it away from a sender that writes it in
                // small steps. So it is written last, in one copy.
                let small = &mut self.small;
                fill(&mut small[..len]);
                if len > LINE - HEADER {
                    let rest = small.as_ptr().add(LINE - HEADER);
                    data.as_ptr().add(LINE - HEADER).copy_from_nonoverlapping(rest, LINE);
                }
                data.as_ptr().copy_from_nonoverlapping(small.as_ptr(), LINE - HEADER);
            } else {
                fill(std::slice::from_raw_parts_mut(data.as_ptr(), len));
            }
            (*slot.as_ptr()).len = len as u32 | if partial { PARTIAL } else { 0 };
            (*slot.as_ptr()).sequence.store(self.position.wrapping_add(1), Ordering::Release);
        }
        self.position = self.position.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) {
        let ring = &*self.ring;
        ring.line.doorbell(|| self.position.wrapping_sub(ring.consumed.0.load(Ordering::Relaxed)));
    }
}

impl Interrupt for Ring {
    fn fd(&self) -> BorrowedFd<'_> {
        self.line.fd()
    }

    fn unmask(&self) -> bool {
        self.line.unmask(|| self.slots.full_slot(self.consumed.0.load(Ordering::Acquire)).is_some())
    }

    fn mask(&self) {
        self.line.mask();
    }

    fn set_coalesce(&self, coalesce: Coalesce) -> io::Result<()> {
        self.line.set_coalesce(coalesce)
    }
}
