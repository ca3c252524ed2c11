//! The processes that share an interface, as the process that holds it (the guard of a run) sees them: which has
//! which slot, which receive frames are in circulation, and what becomes of a process's frames when it has ended.

use super::{
    Error,
    bpf::{program::OUTSIDE, sys},
    device::Device,
    packing::Packing,
    ring::Ring,
    slots::{self, ByNumber, FrameSize, SHARE, SLOTS, SharedControl, owner_of, ring_size, share},
    socket::{self, Root, Sizes},
    umem::Umem,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// In zero copy nothing tells when the driver has sent an ended process's last frame: by then it has.
const SENDING: Duration = Duration::from_secs(1);

/// Whether this kernel can have several processes on a queue: they map the rings of a socket that is bound, which is
/// possible from Linux 6.4 on. The version decides, because an attempt would leave the queue busy for a while.
pub(super) fn are_possible() -> bool {
    crate::sys::kernel_release() >= (6, 4)
}

/// The processes of an interface.
pub(super) struct Members {
    device: Device,
    packing: Packing,
    memory: OwnedFd,
    queues: Vec<SharedQueue>,
    states: [State; SLOTS],
    /// Programs without a slot have listeners.
    has_outside: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Used,
    /// Its process has ended, then. Its last frames may be on their way.
    Ending(Instant),
}

/// A queue and the sockets on it.
struct SharedQueue {
    root: Root,
    control: Arc<SharedControl>,
    /// Receive frames that are not in circulation.
    spare: Vec<u32>,
    sockets: [Option<MemberSocket>; SLOTS],
    /// The root's, as long as it is registered.
    _umem: Umem,
}

struct MemberSocket {
    fd: OwnedFd,
    rx: Arc<Ring<libc::xdp_desc>>,
}

/// What a process needs besides the steering program.
pub(super) struct Membership {
    pub(super) slot: usize,
    pub(super) zero_copy: bool,
    pub(super) memory: OwnedFd,
    /// A socket for each queue, bound.
    pub(super) sockets: Vec<OwnedFd>,
}

impl Members {
    /// Takes all queues of the interface, for processes to come.
    pub(super) fn take(
        device: &Device,
        packing: Packing,
        may_zero_copy: bool,
    ) -> Result<Members, Error> {
        let at = |e: io::Error| Error::os(&device.name, "map frames", e);
        let memory = slots::make_memory(device.queues, packing.frame).map_err(at)?;
        let mut queues = Vec::new();
        for queue in 0..device.queues {
            let (umem, control) = slots::map(memory.as_fd(), queue, packing.frame).map_err(at)?;
            let root = Root::bind(device, queue, &umem, packing, may_zero_copy)?;
            let spare = slots::rx_frames().collect();
            let sockets = Default::default();
            queues.push(SharedQueue { root, control, spare, sockets, _umem: umem });
        }
        let (device, states) = (device.clone(), [State::Free; SLOTS]);
        Ok(Members { device, packing, memory, queues, states, has_outside: false })
    }

    /// Gives a slot to a process: sockets on all queues, in the map `sockets`, and its share of frames.
    pub(super) fn attach(&mut self, sockets: &OwnedFd) -> Result<Membership, Error> {
        let Some(slot) = self.states.iter().position(|state| *state == State::Free) else {
            return Err(Error::Full { device: self.device.name.clone(), most: SLOTS });
        };
        let at = |e: io::Error| Error::os(&self.device.name, "copy a descriptor", e);
        let memory = self.memory.try_clone().map_err(at)?;
        let sizes = Sizes { rx: ring_size(slot), tx: ring_size(slot), packing: self.packing };
        let mut made = Vec::new();
        for (queue, shared) in (0..).zip(&self.queues) {
            let (fd, rx) = socket::member(&self.device, queue, sizes, &shared.root)?;
            made.push((fd.try_clone().map_err(at)?, MemberSocket { fd, rx }));
        }
        self.states[slot] = State::Used;
        let wanted: usize = self.shares();
        let mut given = Vec::new();
        for (shared, (copy, socket)) in self.queues.iter_mut().zip(made) {
            let circulating = slots::rx_frames().count() - shared.spare.len();
            let missing = wanted.saturating_sub(circulating).min(SHARE);
            let rest = shared.spare.len() - missing;
            shared.control.give(slot, shared.spare.drain(rest..));
            shared.sockets[slot] = Some(socket);
            given.push(copy);
        }
        self.publish_attached();
        for (queue, shared) in (0..).zip(&self.queues) {
            let Some(socket) = &shared.sockets[slot] else { continue };
            let index = self.index(slot, queue);
            if let Err(e) = sys::update(sockets, &index, &socket.fd.as_raw_fd()) {
                self.detach(slot, sockets);
                self.collect(slot);
                return Err(Error::os(&self.device.name, "register the socket", e));
            }
        }
        let zero_copy = self.queues.iter().all(|shared| shared.root.zero_copy);
        Ok(Membership { slot, zero_copy, memory, sockets: given })
    }

    /// The process of a slot has ended: its packets pass to the kernel. False: the slot has none.
    pub(super) fn detach(&mut self, slot: usize, sockets: &OwnedFd) -> bool {
        if self.states.get(slot) != Some(&State::Used) {
            return false;
        }
        for (queue, shared) in (0..).zip(&self.queues) {
            shared.release_locks(slot, self.packing.frame);
            let _ = sys::delete(sockets, &self.index(slot, queue));
        }
        true
    }

    /// The frames of a detached process are spare. The slot is free once its last frames are sent, see
    /// [`settle`](Members::settle).
    pub(super) fn collect(&mut self, slot: usize) {
        wait_for_passes();
        for shared in &mut self.queues {
            shared.collect(slot, self.packing.frame);
        }
        self.states[slot] = State::Ending(Instant::now());
        self.publish_attached();
    }

    /// Frees the slots whose last frames are sent. Returns whether there are others.
    pub(super) fn settle(&mut self) -> bool {
        for slot in 0..SLOTS {
            let State::Ending(since) = self.states[slot] else { continue };
            let mut all = self
                .queues
                .iter()
                .filter_map(|shared| Some((shared.root.zero_copy, shared.sockets[slot].as_ref()?)));
            let has_sent = |(zero_copy, socket): (bool, &MemberSocket)| match zero_copy {
                true => since.elapsed() > SENDING,
                false => socket::has_sent_all(socket.fd.as_fd()),
            };
            if all.all(has_sent) {
                self.queues.iter_mut().for_each(|shared| shared.sockets[slot] = None);
                self.states[slot] = State::Free;
            }
        }
        self.states.iter().any(|state| matches!(state, State::Ending(_)))
    }

    /// How many frames should be in circulation.
    fn shares(&self) -> usize {
        let used = (0..SLOTS).filter(|slot| self.states[*slot] == State::Used);
        used.map(share).sum()
    }

    /// Shows the processes whether programs without a slot have listeners.
    pub(super) fn set_has_outside(&mut self, has: bool) {
        self.has_outside = has;
        self.publish_attached();
    }

    /// Shows the processes which slots have one. An ended process counts until its entries are gone.
    fn publish_attached(&self) {
        let bit = |slot: usize| u32::from(self.states[slot] == State::Used) << slot;
        let all = (0..SLOTS).map(bit).sum::<u32>() | u32::from(self.has_outside) << OUTSIDE;
        self.queues.iter().for_each(|shared| shared.control.set_attached(all));
    }

    /// Of the slot's socket of a queue, in the steering program's map.
    fn index(&self, slot: usize, queue: u32) -> u32 {
        slot as u32 * self.device.queues + queue
    }
}

impl SharedQueue {
    /// Releases the locks of a process that has ended, for which the others wait.
    fn release_locks(&self, slot: usize, frame: usize) {
        let ring = |ring| ByNumber::new(ring, FrameSize::new(frame));
        let (fill, completion) = (ring(&self.root.fill), ring(&self.root.completion));
        self.control.release_locks(slot, &fill, &completion, owner_of);
    }

    /// Collects the receive frames of a process that has ended.
    fn collect(&mut self, slot: usize, frame: usize) {
        let Some(socket) = &self.sockets[slot] else { return };
        let mut had = vec![false; slots::rx_frames().count()];
        let mut note = |number: u32| {
            // The process may have written anything.
            if let Some(had) = had.get_mut(number as usize) {
                *had = true;
            }
        };
        self.control.take_held(slot, &mut note);
        let (from, to) = (socket.rx.consumed(), socket.rx.produced());
        let count = to.wrapping_sub(from).min(ring_size(slot) as u32);
        for at in 0..count {
            note(FrameSize::new(frame).number(socket.rx.read_at(from.wrapping_add(at)).addr));
        }
        // None of them can be spare already, unless the process wrote nonsense.
        self.spare.iter().for_each(|spare| had[*spare as usize] = false);
        self.spare.extend((0..).zip(had).filter_map(|(number, had)| had.then_some(number)));
    }
}

/// Waits until every pass has ended that may have found a socket in the map before it was removed.
fn wait_for_passes() {
    /// include/uapi/linux/membarrier.h: waits for an RCU grace period.
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: a plain system call.
    let waited = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if waited != 0 {
        // With `nohz_full` there is none.
        thread::sleep(Duration::from_millis(100));
    }
}
