//! NICs: the interface of a driver. A [`Nic`] opens queues; a [`Queue`] is a receive half, a transmit half and an
//! interrupt. Drivers know bytes and nothing above: received frames go up through the sink that the caller
//! hands down.
//!
//! Three drivers: [`cable`] (two NICs joined in memory), [`xdp`] (AF_XDP on any Linux interface),
//! [`tap`] (a kernel at the other end). Two wrappers around any of them: [`fault`], [`pcap`]. Beside them, a receive half
//! alone: `packet` (copies of what the kernel receives).

use crate::wire::{Data, MacAddr, Rest};
use std::{io, net::SocketAddr, os::fd::BorrowedFd, sync::Arc};

pub mod cable;
pub mod fault;
pub(crate) mod packet;
pub mod pcap;
pub mod tap;
pub mod xdp;

/// A NIC's properties, as its driver reports them.
#[derive(Clone, Debug)]
pub struct Info {
    /// The interface's name, for people: `cable0`, `eth1`.
    pub name: String,
    /// The driver and the mode it works in: `cable`, `xdp (zero copy)`, `xdp (copy)`, `xdp (generic)`, `tap`. In copy mode
    /// because of the MTU, also the largest MTU that zero copy carries.
    pub mode: String,
    /// Our link-layer address on it.
    pub mac: MacAddr,
    /// The largest IP packet in bytes, Ethernet header not counted.
    pub mtu: usize,
    /// How many queue pairs can be opened, numbered from 0.
    pub queues: u32,
    /// The link carries partial checksums: transmit need not complete them.
    pub tx_checksum: bool,
    /// The kernel's interface index if the kernel shares this interface and owns its addresses.
    pub ifindex: Option<u32>,
}

/// A network interface card.
pub trait Nic: Send {
    /// The NIC's properties.
    fn info(&self) -> &Info;

    /// Opens queue pair `index`. Each can be open once at a time.
    ///
    /// # Errors
    /// The driver's errors: no such queue, owned by another process (its PID), missing capability.
    fn open(&mut self, index: u32) -> io::Result<Queue>;

    /// The steering of a NIC that shares its interface with the kernel; `None` if every packet is ours.
    fn steering(&self) -> Option<Arc<dyn Steering>> {
        None
    }
}

/// One open queue pair. The halves are used by different threads.
pub struct Queue {
    /// The receive half, touched only by the owner of its NAPI context.
    pub rx: Box<dyn RxQueue>,
    /// The transmit half, under its own lock.
    pub tx: Box<dyn TxQueue>,
    /// The receive interrupt.
    pub interrupt: Arc<dyn Interrupt>,
}

/// The state of a received frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Not verified yet: verify it.
    Unverified,
    /// The frame did not leave this machine, and its sender may have left the completion to hardware that does not
    /// exist (a kernel peer on veth): the field may hold only the pseudo-header sum.
    MaybePartial,
    /// The link says that the field holds only the pseudo-header sum. The data never left memory.
    Partial,
}

/// A received frame, from the first byte of the Ethernet header, without the frame check sequence.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The bytes, in the ring: valid only during the call.
    pub bytes: &'a [u8],
    /// What follows them, if the NIC has the frame in several buffers.
    pub rest: Rest<'a>,
    /// The state of its transport checksum.
    pub checksum: Checksum,
}

impl<'a> Frame<'a> {
    /// A frame in one buffer.
    #[inline]
    pub fn whole(bytes: &'a [u8], checksum: Checksum) -> Frame<'a> {
        Frame { bytes, rest: Rest::NONE, checksum }
    }

    /// All its bytes.
    #[inline]
    pub fn data(&self) -> Data<'a> {
        Data { first: self.bytes, rest: self.rest }
    }
}

/// The receive half of a queue.
pub trait RxQueue: Send {
    /// Takes at most `budget` frames off the ring, in order, and gives each to `sink`. Returns how many; a frame that the
    /// NIC has in several buffers counts once. Never blocks.
    /// While the ring is empty it makes no system call, except over TAP, where every look is one, and over AF_XDP in
    /// zero copy, where the driver may need a wake-up.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize;
}

/// The transmit ring has no room; the frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFull;

/// The transmit half of a queue.
pub trait TxQueue: Send {
    /// Puts one frame of `len` bytes on the ring: `fill` gets exactly `len` bytes of the frame's buffer,
    /// holding old data, and must write every one. With `partial` the transport checksum field holds only the
    /// pseudo-header sum (allowed if [`Info::tx_checksum`]). The frame may stay on the ring until
    /// [`flush`](TxQueue::flush).
    ///
    /// `len` is at least 14 and at most the MTU + 14 (+ 4 for each VLAN tag).
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull>;

    /// Rings the doorbell: all pushed frames are sent.
    fn flush(&mut self);

    /// Whether the ring has room for that many frames, of which it may be unable to say: then yes. Also if it could
    /// never have room for so many.
    fn has_room(&mut self, _frames: usize) -> bool {
        true
    }
}

/// Interrupt moderation, as `ethtool -C` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalesce {
    /// Microseconds from the first frame to the interrupt; 0 = at once.
    pub rx_usecs: u32,
    /// After this many frames the interrupt fires early; 0 = only the time decides.
    pub rx_frames: u32,
    /// The NIC chooses `rx_usecs` by the packet rate (`adaptive-rx`).
    pub adaptive: bool,
}

/// A receive interrupt: one-shot, masked after it fired and at the start.
///
/// A thread waits for it by [`unmask`](Interrupt::unmask), then until [`fd`](Interrupt::fd) is readable.
pub trait Interrupt: Send + Sync {
    /// Becomes readable when the interrupt fires.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Lets the next frame fire the interrupt. False if frames wait on the ring already: then the interrupt may never
    /// fire; poll again.
    fn unmask(&self) -> bool;

    /// Masks the interrupt and clears an event that has fired. Afterwards the descriptor is readable only
    /// for frames after the next [`unmask`](Interrupt::unmask), or because frames wait on the ring.
    fn mask(&self);

    /// As [`mask`](Interrupt::mask), for a thread that waits for edges (`EPOLLET`): the descriptor may stay readable by
    /// an event that has fired, which saves a system call.
    fn mask_for_edges(&self) {
        self.mask();
    }

    /// Clears events that [`mask_for_edges`](Interrupt::mask_for_edges) has left. It may take the event of a frame that
    /// has just come, so the caller unmasks the interrupt after this, which finds that frame.
    fn clear_edges(&self) {}

    /// A descriptor that hangs up (`POLLHUP`) once the process at the other end of the link has ended, or has dropped its
    /// NIC; none if the link has no such end.
    fn hang_up(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The other end has hung up. From now on [`fd`](Interrupt::fd) is not readable, and frames for which the ring has no
    /// room are dropped, as by a link without a carrier.
    fn hung_up(&self) {}

    /// How many frames of this queue were dropped because its ring was full, as far as the driver knows. May make
    /// a system call.
    fn dropped(&self) -> u64 {
        0
    }

    /// Changes the moderation.
    ///
    /// # Errors
    /// `Unsupported` if the driver has none (then use `ethtool -C` on the interface).
    fn set_coalesce(&self, _coalesce: Coalesce) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Which packets of a shared interface are steered to our queues: (protocol, local address, local port). All other
/// packets stay with the kernel.
pub trait Steering: Send + Sync {
    /// From now on packets to `local` come to the queues. `protocol` is the IP protocol number. The caller expands
    /// wildcard addresses. Adds are counted: as many removes undo them.
    ///
    /// # Errors
    /// The map is full.
    fn add(&self, protocol: u8, local: SocketAddr) -> io::Result<()>;

    /// As [`add`](Steering::add), for a UDP port of which other processes may have sockets, too. `priority` is the
    /// socket's now: it may be a socket that another process uses.
    ///
    /// # Errors
    /// EADDRINUSE: another process uses this socket, or has the port for itself. The map is full.
    fn join(&self, local: SocketAddr, priority: u32) -> io::Result<()>;

    /// The priority by which a UDP socket of a port that processes share names this process, instead of `before`.
    /// `None`: it needs none, or cannot have one.
    fn priority(&self, before: u32) -> Option<u32>;

    /// This process waits for connections to `local`, which it does not steer: from now on the kernel takes the new
    /// ones, also if another process steers the port. Counted.
    ///
    /// # Errors
    /// The map is full.
    fn share(&self, local: SocketAddr) -> io::Result<()>;

    /// Undoes one [`share`](Steering::share).
    fn unshare(&self, local: SocketAddr);

    /// Excludes a connection from `remote` to `local` from steering, for as long as `local` is steered. For a
    /// connection that the kernel already has.
    ///
    /// # Errors
    /// The map is full.
    fn exclude(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;

    /// From now on packets of connections to `local` that the kernel has are not steered, even if they are not
    /// [excluded](Steering::exclude): the steering program looks each packet up among the kernel's connections. Lasts
    /// until [`end_take_over`](Steering::end_take_over) with the same number, or as long as `local` is steered. For TCP.
    ///
    /// # Errors
    /// The map is full.
    fn begin_take_over(&self, local: SocketAddr, number: u64) -> io::Result<()>;

    /// Undoes [`begin_take_over`](Steering::begin_take_over): the kernel's connections are excluded now.
    fn end_take_over(&self, local: SocketAddr, number: u64);

    /// Hands a steered connection over to the kernel: from now on it is excluded from steering.
    ///
    /// # Errors
    /// The map is full.
    fn hand_over(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;

    /// Removes the [excluded](Steering::exclude) connections of `local` that are not in `live`: they have ended.
    fn prune_excluded(&self, local: SocketAddr, live: &[(SocketAddr, SocketAddr)]);

    /// Undoes one [`add`](Steering::add) or [`join`](Steering::join).
    fn remove(&self, protocol: u8, local: SocketAddr);

    /// From now on packets of the TCP connection from `remote` to `local` come to the queues, whether or not the rest
    /// of the port does, and even if the connection was [excluded](Steering::exclude). Counted.
    ///
    /// # Errors
    /// The map is full.
    fn add_connection(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;

    /// As [`add_connection`](Steering::add_connection), for a connection that another process has
    /// [given up](Steering::give_up), also where that process has the rest of the port.
    ///
    /// # Errors
    /// EEXIST: the process that has the port would get the packets. The map is full.
    fn take_connection(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;

    /// Another process may take a connection that was [handed over](Steering::hand_over): this one leaves its entry alone
    /// from now on. Until then the connection stays the kernel's.
    fn give_up(&self, local: SocketAddr, remote: SocketAddr);

    /// Undoes a [`give_up`](Steering::give_up), unless another process has the connection.
    fn take_back(&self, local: SocketAddr, remote: SocketAddr);

    /// Undoes one [`add_connection`](Steering::add_connection) or [`take_connection`](Steering::take_connection).
    fn remove_connection(&self, local: SocketAddr, remote: SocketAddr);
}
