//! NICs: what a driver is. A [`Nic`] opens queues; a [`Queue`] is a receive half, a transmit half and an
//! interrupt. Drivers know bytes and nothing above: received frames go up through the sink the caller
//! hands down.
//!
//! Three drivers: [`cable`] (two NICs joined in memory), [`xdp`] (AF_XDP on any Linux interface),
//! [`tap`] (a kernel at the other end). Two wrappers around any of them: [`fault`], [`pcap`].

use crate::wire::MacAddr;
use std::{io, net::SocketAddr, os::fd::BorrowedFd, sync::Arc};

pub mod cable;
pub mod fault;
pub mod pcap;
pub mod tap;
pub mod xdp;

/// What a driver says of itself.
#[derive(Clone, Debug)]
pub struct Info {
    /// The interface's name, for people: `cable0`, `eth1`.
    pub name: String,
    /// The driver and the mode it works in: `cable`, `xdp (zero copy)`, `xdp (copy)`, `xdp (generic)`, `tap`.
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
    /// What this NIC is.
    fn info(&self) -> &Info;

    /// Opens queue pair `index`. Each can be open once at a time.
    ///
    /// # Errors
    /// The driver's own words: no such queue, owned by another process (its PID), missing capability.
    fn open(&mut self, index: u32) -> io::Result<Queue>;

    /// The steering of a NIC that shares its interface with the kernel; `None` where every packet is ours.
    fn steering(&self) -> Option<Arc<dyn Steering>> {
        None
    }
}

/// One open queue pair. The halves are used by different threads.
pub struct Queue {
    /// The receive half, touched only by the owner of its NAPI context.
    pub rx: Box<dyn RxQueue>,
    /// The transmit half, under a lock of its own.
    pub tx: Box<dyn TxQueue>,
    /// The receive interrupt.
    pub interrupt: Arc<dyn Interrupt>,
}

/// What is known of the transport checksum of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: verify it.
    Unverified,
    /// The frame did not leave this machine and its sender may have left the completion to hardware that
    /// is not there (a kernel peer on veth): the field may hold the pseudo-header sum alone.
    MaybePartial,
    /// The link says the field holds the pseudo-header sum alone; the data never left memory.
    Partial,
}

/// A received frame, from the first byte of the Ethernet header, without the frame check sequence.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The bytes, in the ring: valid during the call only.
    pub bytes: &'a [u8],
    /// What is known of its transport checksum.
    pub checksum: Checksum,
}

/// The receive half of a queue.
pub trait RxQueue: Send {
    /// Takes at most `budget` frames off the ring, in order, and gives each to `sink`. Returns how many.
    /// Never blocks. While the ring is empty it makes no system call, but over TAP, where each look is one, and over
    /// AF_XDP in zero copy, where the driver may have to be told to go on.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize;
}

/// The transmit ring has no room; the frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFull;

/// The transmit half of a queue.
pub trait TxQueue: Send {
    /// Puts one frame of `len` bytes on the ring: `fill` gets exactly `len` bytes of the frame's buffer,
    /// holding old data, and must write every one. With `partial` the transport checksum field holds the
    /// pseudo-header sum alone (only where [`Info::tx_checksum`]). Nothing is promised to move before
    /// [`flush`](TxQueue::flush).
    ///
    /// `len` is at least 14 and at most the MTU + 14 (+ 4 for each VLAN tag).
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull>;

    /// Rings the doorbell: everything pushed goes out.
    fn flush(&mut self);
}

/// Interrupt moderation, as `ethtool -C` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalesce {
    /// Microseconds from the first frame to the interrupt; 0 = at once.
    pub rx_usecs: u32,
    /// Frames that bring the interrupt forward; 0 = time alone decides.
    pub rx_frames: u32,
    /// The NIC chooses `rx_usecs` by the packet rate (`adaptive-rx`).
    pub adaptive: bool,
}

/// A receive interrupt: one-shot, masked after it fired and at the start.
///
/// Whoever waits, waits on [`fd`](Interrupt::fd) being readable, after [`unmask`](Interrupt::unmask).
pub trait Interrupt: Send + Sync {
    /// Becomes readable when the interrupt fires.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Lets the next frame fire the interrupt. False if frames wait on the ring already: then nothing is
    /// promised to fire; poll again.
    fn unmask(&self) -> bool;

    /// No more interrupts; an event that has fired is taken back, so that the descriptor is readable only
    /// for what comes after the next [`unmask`](Interrupt::unmask), or because frames wait on the ring.
    fn mask(&self);

    /// How many frames came for this queue and found no room on its ring, as far as the driver is told. May make
    /// a system call.
    fn dropped(&self) -> u64 {
        0
    }

    /// Changes the moderation.
    ///
    /// # Errors
    /// `Unsupported` where the driver has none (then `ethtool -C` on the interface is the place).
    fn set_coalesce(&self, _coalesce: Coalesce) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Which packets of a shared interface are ours: (protocol, local address, local port). The rest stays
/// with the kernel.
pub trait Steering: Send + Sync {
    /// From now on packets for `local` come to the queues. `protocol` is the IP protocol number. Wildcard
    /// addresses are expanded by the caller. Adding twice is counted, not an error.
    ///
    /// # Errors
    /// The map is full.
    fn add(&self, protocol: u8, local: SocketAddr) -> io::Result<()>;

    /// Leaves a connection from `remote` to `local` with the kernel, whatever is steered, for as long as `local` is:
    /// one that the kernel has made before.
    ///
    /// # Errors
    /// The map is full.
    fn leave(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;

    /// The same of a connection that is steered: it is the kernel's from now on.
    ///
    /// # Errors
    /// The map is full.
    fn hand_over(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;

    /// Those that were [left](Steering::leave) of `local`, and are not among `live`, are over.
    fn prune_excluded(&self, local: SocketAddr, live: &[(SocketAddr, SocketAddr)]);

    /// Takes one [`add`](Steering::add) back.
    fn remove(&self, protocol: u8, local: SocketAddr);

    /// From now on packets of the TCP connection from `remote` to `local` come to the queues, whether or not the rest
    /// of the port does, and though the connection was [left](Steering::leave) to the kernel. Counted.
    ///
    /// # Errors
    /// The map is full.
    fn add_connection(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;

    /// Takes one [`add_connection`](Steering::add_connection) back.
    fn remove_connection(&self, local: SocketAddr, remote: SocketAddr);
}
