//! A cable between two processes. Its rings are those of a cable within a process, but each end trusts only its own
//! memory: a frame is copied to private memory before it is parsed, and no number that the other process can write is
//! used before it is checked. So a peer that writes anything anywhere can do no more than send wrong frames, as on a
//! network.

use super::{
    line::{Bell, Line},
    mac,
    memory::Memory,
    ports::{ENTRIES, Entry, Ports},
    slots::{HEADER, LINE, PARTIAL, SLOT, SMALL, Slots, fetch_second_line},
};
use crate::{
    nic::{Checksum, Frame, Info, Interrupt, Nic, Queue, RingFull, RxQueue, TxQueue},
    sync::{Arc, AtomicU32, Ordering},
    sys,
    wire::MacAddr,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// One end of a cable to another process: a NIC with one queue. Made by [`connect`](super::connect) and
/// [`Rendezvous::accept`](super::Rendezvous::accept).
pub struct ProcessCable {
    info: Info,
    end: Option<Arc<End>>,
    pid: i32,
    peer: MacAddr,
}

/// How many doorbells may lie unread in the socket. A full socket would take no more, and the next one would be lost, so
/// the peer's send buffer must have this room, in bytes: a doorbell takes less than a kilobyte. The two ends are made
/// alike, so this end's buffer shows the size of the peer's.
const MOST_LEFT: u32 = 16;
const ROOM: i32 = 64 << 10;

/// Which end this is: the end that made the memory sends in direction 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Listener,
    Connector,
}

/// What the two halves of an end share.
pub(super) struct End {
    memory: Memory,
    /// To the other process. A byte is a doorbell; it hangs up when that process has ended or dropped its end.
    socket: OwnedFd,
    /// What takes the socket's number once that has hung up. Made in time, as there may be no descriptor left then.
    quiet: OwnedFd,
    side: Side,
    hung_up: AtomicU32,
}

impl ProcessCable {
    /// `number` names the cable in the process that made it; `pid` is the other process.
    pub(super) fn new(
        memory: Memory,
        socket: OwnedFd,
        side: Side,
        number: u32,
        pid: i32,
    ) -> io::Result<ProcessCable> {
        let ours = number.wrapping_mul(2).wrapping_add((side == Side::Connector).into());
        let info = Info {
            name: format!("cable-{pid}"),
            mode: "cable between processes".into(),
            mac: mac(ours),
            mtu: memory.shape().mtu as usize,
            queues: 1,
            tx_checksum: true,
            ifindex: None,
        };
        let quiet = sys::eventfd()?;
        let end = End { memory, socket, quiet, side, hung_up: AtomicU32::new(0) };
        Ok(ProcessCable { info, end: Some(Arc::new(end)), pid, peer: mac(ours ^ 1) })
    }

    /// The addresses at which both processes receive datagrams over it. `None` once its queue is open.
    pub(crate) fn ports(&self) -> Option<Ports> {
        self.end.clone().map(Ports::new)
    }

    /// The link-layer addresses of this end and of the other one.
    pub(crate) fn macs(&self) -> [MacAddr; 2] {
        [self.info.mac, self.peer]
    }

    /// The link-layer address of the other end.
    pub(crate) fn peer_mac(&self) -> MacAddr {
        self.peer
    }

    /// The process at the other end, as the kernel reports it; 0 if it is not visible from here.
    pub fn peer_pid(&self) -> i32 {
        self.pid
    }
}

impl std::fmt::Debug for ProcessCable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessCable").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Nic for ProcessCable {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let name = &self.info.name;
        if index != 0 {
            let why = format!("{name}: no queue {index}");
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let Some(end) = self.end.take() else {
            let why = format!("{name}: queue {index} is open");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        };
        let (sends, receives) = end.directions();
        let longest = end.memory.shape().frame().max(SLOT);
        let buffer = || vec![0; longest].into_boxed_slice();
        let rx = Arc::new(Ring::new(end.clone(), receives));
        let limit = end.memory.shape().ring;
        Ok(Queue {
            rx: Box::new(Receiver { ring: rx.clone(), frame: buffer() }),
            tx: Box::new(Sender {
                ring: Ring::new(end, sends),
                position: 0,
                limit,
                frame: buffer(),
            }),
            interrupt: rx,
        })
    }
}

impl End {
    /// The directions in which it sends and receives.
    #[inline]
    fn directions(&self) -> (usize, usize) {
        match self.side {
            Side::Listener => (0, 1),
            Side::Connector => (1, 0),
        }
    }

    /// The addresses at which this process receives datagrams.
    pub(super) fn ours(&self) -> &[Entry; ENTRIES] {
        &self.memory.words(self.directions().1).ports
    }

    /// The addresses at which the other process does.
    #[inline]
    pub(super) fn theirs(&self) -> &[Entry; ENTRIES] {
        &self.memory.words(self.directions().0).ports
    }
}

/// The line of one direction.
struct ProcessBell {
    end: Arc<End>,
    direction: usize,
}

impl Bell for ProcessBell {
    #[inline]
    fn armed(&self) -> &AtomicU32 {
        &self.end.memory.words(self.direction).armed.0
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.end.socket.as_fd()
    }

    // Not an eventfd: the peer could make it blocking, as both ends would share its flags.
    fn ring(&self) {
        sys::send_byte(self.end.socket.as_raw_fd());
    }

    fn silence(&self) {
        sys::discard(self.end.socket.as_raw_fd());
    }
}

/// One direction, as one of its ends has it.
struct Ring {
    line: Line<ProcessBell>,
    end: Arc<End>,
    direction: usize,
    slots: Slots,
    longest: usize,
    /// The next position to receive. Not read from the memory, where the peer can write.
    received: AtomicU32,
    /// Doorbells that may lie in the socket, and the most that may.
    left: AtomicU32,
    most_left: u32,
}

// SAFETY: `slots` points into the memory that `end` keeps mapped. A slot belongs to the sender until it writes the
// slot's sequence (Release), then to the receiver, which saw that sequence (Acquire), until it writes `consumed`
// (Release), which the sender reads (Acquire). A peer that breaks this changes bytes that are only copied.
unsafe impl Sync for Ring {}
// SAFETY: the memory belongs to no particular thread.
unsafe impl Send for Ring {}

impl Ring {
    fn new(end: Arc<End>, direction: usize) -> Ring {
        let shape = end.memory.shape();
        let memory = end.memory.slots(direction);
        // SAFETY: the memory has this shape, which was checked, and `end` keeps it mapped.
        let slots = unsafe { Slots::new(memory, shape.ring, end.memory.stride()) };
        let room = sys::get_option(&end.socket, libc::SOL_SOCKET, libc::SO_SNDBUF);
        let most_left = if room.is_ok_and(|bytes| bytes >= ROOM) { MOST_LEFT } else { 0 };
        Ring {
            line: Line::of(ProcessBell { end: end.clone(), direction }),
            direction,
            slots,
            longest: shape.frame(),
            received: AtomicU32::new(0),
            left: AtomicU32::new(0),
            most_left,
            end,
        }
    }

    #[inline]
    fn consumed(&self) -> &AtomicU32 {
        &self.end.memory.words(self.direction).consumed.0
    }
}

struct Receiver {
    ring: Arc<Ring>,
    /// The frame at hand.
    frame: Box<[u8]>,
}

impl RxQueue for Receiver {
    #[inline]
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let ring = &*self.ring;
        let first = ring.received.load(Ordering::Relaxed);
        let mut position = first;
        let mut found = 0;
        while found < budget
            && let Some(slot) = ring.slots.full_slot(position)
        {
            fetch_second_line(slot);
            // SAFETY: inside the memory. Read once, as the peer may change it.
            let word = unsafe { (&raw const (*slot.as_ptr()).len).read_volatile() };
            let len = (word & !PARTIAL) as usize;
            if len <= ring.longest {
                let data = ring.slots.frame(position, slot, len);
                let frame = &mut self.frame[..len];
                // SAFETY: `len` bytes lie inside the memory at `data`, and `frame` has as many; the two do not overlap.
                unsafe { frame.as_mut_ptr().copy_from_nonoverlapping(data.as_ptr(), len) };
                let partial = word & PARTIAL != 0;
                let checksum = if partial { Checksum::Partial } else { Checksum::Unverified };
                sink(Frame::whole(frame, checksum));
            }
            position = position.wrapping_add(1);
            found += 1;
        }
        if found > 0 {
            ring.received.store(position, Ordering::Release);
            ring.consumed().store(position, Ordering::Release);
        }
        found
    }
}

struct Sender {
    ring: Ring,
    position: u32,
    /// The first position not known to be free.
    limit: u32,
    /// The frame at hand. At least as long as a slot, so that small frames are copied in whole lines.
    frame: Box<[u8]>,
}

impl TxQueue for Sender {
    #[inline]
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        let ring = &self.ring;
        if self.position == self.limit {
            self.limit = ring.consumed().load(Ordering::Acquire).wrapping_add(ring.slots.count);
        }
        if len > ring.longest {
            return Err(RingFull);
        }
        if self.position == self.limit {
            let is_cut = ring.end.hung_up.load(Ordering::Relaxed) != 0;
            return if is_cut { Ok(()) } else { Err(RingFull) };
        }
        let slot = ring.slots.slot(self.position);
        let data = ring.slots.frame(self.position, slot, len);
        // What is written may be read back, for a checksum or a length: not from memory that the peer can change.
        fill(&mut self.frame[..len]);
        let from = self.frame.as_ptr();
        // SAFETY: a small frame's slot has two lines, and any other frame's buffer `longest` bytes; `frame` has at least
        // as many. The slot and its buffer are the sender's until the sequence is written.
        unsafe {
            if len <= SMALL {
                // The receiver polls the slot's first cache line, so that line is written last, in one copy.
                if len > LINE - HEADER {
                    let rest = from.add(LINE - HEADER);
                    data.as_ptr().add(LINE - HEADER).copy_from_nonoverlapping(rest, LINE);
                }
                data.as_ptr().copy_from_nonoverlapping(from, LINE - HEADER);
            } else {
                data.as_ptr().copy_from_nonoverlapping(from, len);
            }
            let word = len as u32 | if partial { PARTIAL } else { 0 };
            (&raw mut (*slot.as_ptr()).len).write_volatile(word);
            (*slot.as_ptr()).sequence.store(self.position.wrapping_add(1), Ordering::Release);
        }
        self.position = self.position.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) {
        self.ring.line.doorbell(|| 1);
    }

    fn has_room(&mut self, frames: usize) -> bool {
        let ring = &self.ring;
        self.limit = ring.consumed().load(Ordering::Acquire).wrapping_add(ring.slots.count);
        let free = self.limit.wrapping_sub(self.position) as usize;
        free >= frames.min(ring.slots.count as usize)
            || ring.end.hung_up.load(Ordering::Relaxed) != 0
    }
}

impl Interrupt for Ring {
    fn fd(&self) -> BorrowedFd<'_> {
        self.line.fd()
    }

    fn unmask(&self) -> bool {
        self.line.unmask(|| self.slots.full_slot(self.received.load(Ordering::Acquire)).is_some())
    }

    fn mask(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.line.mask();
    }

    fn mask_for_edges(&self) {
        let left = self.left.load(Ordering::Relaxed) + 1;
        if left > self.most_left {
            return self.mask();
        }
        self.left.store(left, Ordering::Relaxed);
        self.line.mask_alone();
    }

    fn clear_edges(&self) {
        if self.left.load(Ordering::Relaxed) > 0 {
            self.left.store(0, Ordering::Relaxed);
            self.line.silence();
        }
    }

    fn hang_up(&self) -> Option<BorrowedFd<'_>> {
        Some(self.end.socket.as_fd())
    }

    fn hung_up(&self) {
        self.end.hung_up.store(1, Ordering::Relaxed);
        // A socket that has hung up is readable for ever, which would keep the interrupt thread awake. Another file takes
        // its number, under which epoll instances and sleeping threads know it.
        sys::replace(self.end.quiet.as_raw_fd(), self.end.socket.as_raw_fd());
    }
}
