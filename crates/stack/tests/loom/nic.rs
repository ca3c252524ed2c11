//! A cable's ring with slots that loom can check: the real ring keeps them in raw memory. The sequence numbers, the
//! order of writes and the interrupt line are those of the cable (`src/nic/cable.rs`); the line is the product's own
//! file.

use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};
use std::os::fd::BorrowedFd;

pub(crate) use busypoll_stack::nic::{Checksum, Coalesce, Frame, Interrupt, RxQueue};

#[path = "../../src/nic/cable/line.rs"]
mod line;

struct Slot {
    sequence: AtomicU32,
    frame: UnsafeCell<u8>,
}

/// A ring of one-byte frames.
pub(crate) struct Ring {
    slots: Vec<Slot>,
    consumed: AtomicU32,
    pub(crate) line: line::Line,
}

// SAFETY: as for the cable's ring; here loom checks it.
unsafe impl Sync for Ring {}
// SAFETY: not bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    pub(crate) fn new(count: usize) -> Arc<Ring> {
        let slot = |_| Slot { sequence: AtomicU32::new(0), frame: UnsafeCell::new(0) };
        let line = line::Line::new(Coalesce::default()).unwrap();
        let slots = (0..count).map(slot).collect();
        Arc::new(Ring { slots, consumed: AtomicU32::new(0), line })
    }

    fn slot(&self, position: u32) -> &Slot {
        &self.slots[position as usize % self.slots.len()]
    }

    fn is_full(&self, position: u32) -> bool {
        self.slot(position).sequence.load(Ordering::Acquire) == position.wrapping_add(1)
    }

    pub(crate) fn unmask(&self) -> bool {
        self.line.unmask(|| self.is_full(self.consumed.load(Ordering::Acquire)))
    }
}

pub(crate) struct RingReceiver {
    ring: Arc<Ring>,
    position: u32,
}

impl RingReceiver {
    pub(crate) fn new(ring: Arc<Ring>) -> RingReceiver {
        RingReceiver { ring, position: 0 }
    }
}

impl RxQueue for RingReceiver {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let mut found = 0;
        while found < budget && self.ring.is_full(self.position) {
            // SAFETY: the slot is full: owned by the receiver until consumed. Loom checks it.
            let frame = self.ring.slot(self.position).frame.with(|frame| unsafe { *frame });
            sink(Frame::whole(&[frame], Checksum::Unverified));
            self.position = self.position.wrapping_add(1);
            found += 1;
        }
        if found > 0 {
            self.ring.consumed.store(self.position, Ordering::Release);
        }
        found
    }
}

pub(crate) struct RingSender {
    ring: Arc<Ring>,
    position: u32,
}

impl RingSender {
    pub(crate) fn new(ring: Arc<Ring>) -> RingSender {
        RingSender { ring, position: 0 }
    }

    /// False if the ring is full.
    pub(crate) fn push(&mut self, frame: u8) -> bool {
        let consumed = self.ring.consumed.load(Ordering::Acquire);
        if self.position == consumed.wrapping_add(self.ring.slots.len() as u32) {
            return false;
        }
        let slot = self.ring.slot(self.position);
        // SAFETY: the slot is free: owned by the sender until its sequence number is written. Loom checks it.
        slot.frame.with_mut(|to| unsafe { *to = frame });
        slot.sequence.store(self.position.wrapping_add(1), Ordering::Release);
        self.position = self.position.wrapping_add(1);
        true
    }

    pub(crate) fn flush(&self) {
        self.ring.line.doorbell(|| 1);
    }

    pub(crate) fn send(&mut self, frame: u8) {
        assert!(self.push(frame));
        self.flush();
    }
}

/// The ring's interrupt, as a context holds it.
pub(crate) struct RingInterrupt(pub(crate) Arc<Ring>);

impl Interrupt for RingInterrupt {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.line.fd()
    }

    fn unmask(&self) -> bool {
        self.0.unmask()
    }

    fn mask(&self) {
        self.0.line.mask();
    }

    // As a cable between processes does.
    fn mask_for_edges(&self) {
        self.0.line.mask_alone();
    }

    fn clear_edges(&self) {
        self.0.line.silence();
    }
}
