//! One queue of an interface that several processes share, as one of them sees it. RX and TX ring are this process's;
//! fill and completion ring are used in turn, under the protocol of [`frames`](super::frames). Frames return to the fill
//! ring many at a time, when no packet is there to be delivered.

use super::{
    Shared,
    queue::{Clean, Open, Refill, queue},
    ring::Ring,
    slots::{self, ByNumber, FrameSize, HELD, SharedControl, owner_of},
    socket::{Rings, Xsk},
};
use crate::nic::{Checksum, Queue};
use std::{io, process, sync::Arc, thread, time::Duration};

/// From how many held frames on a pass that finds nothing returns them. Fewer would take the lock more often for the
/// same number of frames.
const BATCH: usize = 16;

/// How often a process that begins tries to take a lock, which another holds for less than a microsecond unless it was
/// stopped meanwhile.
const TRIES: u32 = 1000;

/// Starts a bound socket of `slot`: gives the kernel the receive frames that come with this process, and takes what an
/// earlier process of the slot has left on the completion ring.
///
/// # Errors
/// `TimedOut`: another process was stopped while it held a lock.
pub(super) fn start(
    socket: Xsk,
    rings: Rings,
    control: Arc<SharedControl>,
    slot: usize,
    checksum: Checksum,
    token: Arc<()>,
    shared: Arc<Shared>,
) -> io::Result<Queue> {
    let size = FrameSize::new(socket.umem.frame_size());
    control.set_pid(slot, process::id());
    let fill = SharedFill { ring: rings.fill, control: control.clone(), slot, size, held: 0 };
    while control.take_given(slot) {
        patiently(|| control.refill(slot, &fill.by_number()))?;
    }
    fill.kick(&socket);
    let completion = SharedCompletion { ring: rings.completion, control, slot, size };
    // All its transmit frames are free, whatever is reported of them.
    patiently(|| completion.take(|_| {}))?;
    let first = slots::first_tx(slot);
    let free = (first..first + socket.sizes.tx as u32).map(move |at| size.address(at));
    let open = Open { socket, _token: token, _shared: shared };
    Ok(queue(open, (rings.rx, rings.tx), fill, completion, free, checksum))
}

fn patiently(mut attempt: impl FnMut() -> bool) -> io::Result<()> {
    for _ in 0..TRIES {
        if attempt() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(io::ErrorKind::TimedOut.into())
}

struct SharedFill {
    ring: Arc<Ring<u64>>,
    control: Arc<SharedControl>,
    slot: usize,
    size: FrameSize,
    held: usize,
}

impl SharedFill {
    fn by_number(&self) -> ByNumber<'_> {
        ByNumber::new(&self.ring, self.size)
    }

    #[cold]
    fn refill(&mut self, socket: &Xsk) {
        if self.control.refill(self.slot, &self.by_number()) {
            self.held = 0;
            self.kick(socket);
        }
    }

    fn kick(&self, socket: &Xsk) {
        if socket.zero_copy && self.ring.needs_wakeup() {
            socket.kick_rx();
        }
    }
}

impl Refill for SharedFill {
    #[inline]
    fn room(&mut self, socket: &Xsk, budget: usize) -> usize {
        // Packets come without a pause, so no pass finds nothing.
        if self.held > HELD / 2 {
            self.refill(socket);
        }
        budget.min(HELD - self.held)
    }

    #[inline]
    fn left(&self) -> u32 {
        (HELD - self.held) as u32
    }

    #[inline]
    fn put(&mut self, frame: u64) {
        self.control.hold(self.slot, self.held, self.size.number(frame));
        self.held += 1;
    }

    #[inline]
    fn before_release(&mut self) {
        self.control.set_held(self.slot, self.held);
    }

    #[inline]
    fn after_release(&mut self) {}

    #[inline]
    fn idle(&mut self, socket: &Xsk) {
        if self.held >= BATCH {
            self.refill(socket);
        }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

struct SharedCompletion {
    ring: Arc<Ring<u64>>,
    control: Arc<SharedControl>,
    slot: usize,
    size: FrameSize,
}

impl SharedCompletion {
    #[inline]
    fn take(&self, own: impl FnMut(usize)) -> bool {
        let ring = ByNumber::new(&self.ring, self.size);
        self.control.clean(self.slot, &ring, owner_of, own)
    }
}

impl Clean for SharedCompletion {
    fn clean(&mut self, free: &mut Vec<u64>) {
        let first = slots::first_tx(self.slot);
        // If another process has the lock, the next call takes them.
        self.take(|place| {
            // A process that wrote nonsense to the shared memory must not make this one allocate.
            if free.len() < free.capacity() {
                free.push(self.size.address(first + place as u32));
            }
        });
    }
}
