//! A NIC with this machine's kernel at the other end: a TAP device
//! (Documentation/networking/tuntap.rst). The kernel receives the frames that we transmit, and the other way round.
//!
//! Owns the device's descriptors, one per queue, and the frames not written yet; `device` sets up
//! the kernel's side.
//!
//! Offloads stay off (no `IFF_VNET_HDR`): the kernel completes checksums before we read a frame, and we complete them
//! before we write one. The kernel steers a flow to the queue that last sent a frame of it.

mod device;

use super::{Checksum, Frame, Info, Interrupt, Nic, Queue, RingFull, RxQueue, TxQueue};
use crate::{
    stderr, sys,
    wire::{MacAddr, ethernet},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Frames that can be pushed between two flushes.
const TX_RING: usize = 256;

/// A TAP device.
///
/// ```no_run
/// use busypoll_stack::nic::{Nic, tap::Tap};
///
/// // A link to the kernel. The kernel's end has the address 10.0.0.1 and is up; ours has no address yet.
/// let tap = Tap::builder("tap0").kernel_address("10.0.0.1/24").open()?;
/// println!("we are {:?}", tap.info().mac);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Tap {
    info: Info,
    queues: Vec<(Arc<OwnedFd>, Weak<Port>)>,
    counters: Arc<Counters>,
}

/// Frames that a [`Tap`] could not deliver.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Received frames larger than the MTU this NIC was opened with.
    pub rx_oversized: AtomicU64,
    /// Frames the kernel did not take: its end is down (EIO), out of memory (ENOBUFS), gone (EBADFD).
    pub tx_dropped: AtomicU64,
    /// The device was deleted.
    deleted: AtomicBool,
}

/// Settings of a [`Tap`] before it is opened.
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    queues: u32,
    mac: Option<MacAddr>,
    mtu: Option<usize>,
    address: Option<String>,
    up: bool,
}

impl Tap {
    /// Opens the TAP device `name` as it is, or creates it: [`Tap::builder`] with the defaults.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open(name: &str) -> io::Result<Tap> {
        Tap::builder(name).open()
    }

    /// Prepares to open the TAP device `name`: an existing one, or a new one that is deleted when this NIC and
    /// its queues are dropped. In `tap%d` the kernel fills in a free number.
    pub fn builder(name: &str) -> Builder {
        let name = name.to_owned();
        Builder { name, queues: 1, mac: None, mtu: None, address: None, up: false }
    }

    /// The counters of undelivered frames. They go on counting after the NIC is handed to a host.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

impl Builder {
    /// Queue pairs, 1 to 256. An existing device must have been made with `multi_queue` if, and only if,
    /// this is more than one.
    pub fn queues(mut self, queues: u32) -> Builder {
        self.queues = queues;
        self
    }

    /// Our link-layer address. The default is derived from the kernel's, so that with a persistent device the
    /// kernel's neighbour entries stay right.
    pub fn mac(mut self, mac: MacAddr) -> Builder {
        self.mac = Some(mac);
        self
    }

    /// The largest IP packet in bytes, 68 to 65521, set on the kernel's end too (CAP_NET_ADMIN). The default
    /// is the device's: 1500 for a new one.
    pub fn mtu(mut self, mtu: usize) -> Builder {
        self.mtu = Some(mtu);
        self
    }

    /// Gives the kernel's end an IPv4 address, `10.0.0.1/24`, and brings it up (CAP_NET_ADMIN).
    pub fn kernel_address(mut self, address: &str) -> Builder {
        self.address = Some(address.to_owned());
        self.up()
    }

    /// Brings the kernel's end up (CAP_NET_ADMIN). While it is down, what we transmit is dropped.
    pub fn up(mut self) -> Builder {
        self.up = true;
        self
    }

    /// Opens the device in the calling thread's network namespace.
    ///
    /// # Errors
    /// No `/dev/net/tun`; CAP_NET_ADMIN missing and no device made for this user; the name in use, taken
    /// by another kind of interface or too long; an MTU or address out of range. Each error names a remedy.
    pub fn open(self) -> io::Result<Tap> {
        let address = self.address.as_deref().map(device::parse_address).transpose()?;
        let (name, fds) = device::attach(&self.name, self.queues)?;
        let kernel = device::mac(&name)?;
        let mac = self.mac.unwrap_or_else(|| peer_of(kernel));
        if !mac.is_unicast() || mac == kernel {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "TAP device `{name}`: {mac} cannot be our address: choose a unicast one that is \
                     not the kernel's"
                ),
            ));
        }
        if let Some(mtu) = self.mtu {
            device::set_mtu(&name, mtu)?;
        }
        let mtu = device::mtu(&name)?;
        // A queue that no thread polls must get no frames: queues stay detached until they are opened.
        if self.queues > 1 {
            for fd in &fds {
                device::set_queue(fd.as_fd(), &name, false)?;
            }
        }
        if let Some((address, prefix)) = address {
            device::set_address(&name, address, prefix)?;
        }
        if self.up {
            device::set_up(&name)?;
        }
        Ok(Tap {
            info: Info {
                name,
                mode: "tap".to_owned(),
                mac,
                mtu,
                queues: self.queues,
                tx_checksum: false,
                ifindex: None,
            },
            queues: fds.into_iter().map(|fd| (Arc::new(fd), Weak::new())).collect(),
            counters: Arc::default(),
        })
    }
}

/// A locally administered address that differs from `mac` in its last bit.
fn peer_of(mac: MacAddr) -> MacAddr {
    let MacAddr([a, b, c, d, e, f]) = mac;
    MacAddr([(a | 2) & !1, b, c, d, e, f ^ 1])
}

impl Nic for Tap {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let Info { name, queues, .. } = &self.info;
        let Some((fd, open)) = self.queues.get_mut(index as usize) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "TAP device `{name}` has no queue {index}; it has {queues}, numbered from 0"
                ),
            ));
        };
        if open.strong_count() > 0 {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("TAP device `{name}`: queue {index} is open already"),
            ));
        }
        if self.counters.deleted.load(Relaxed) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("TAP device `{name}` was deleted: open the device anew"),
            ));
        }
        let epoll = sys::epoll()?;
        let readable = libc::EPOLLIN as u32;
        let add = libc::EPOLL_CTL_ADD;
        sys::epoll_control(epoll.as_raw_fd(), add, fd.as_raw_fd(), readable, 0)?;
        let one_of_many = *queues > 1;
        if one_of_many {
            device::set_queue(fd.as_fd(), name, true)?;
        }
        let (name, counters) = (name.clone(), self.counters.clone());
        let port = Arc::new(Port { fd: fd.clone(), epoll, name, one_of_many, counters });
        *open = Arc::downgrade(&port);
        let largest = self.info.mtu + ethernet::HEADER_LEN + ethernet::MAX_TAGS * ethernet::TAG_LEN;
        Ok(Queue {
            // One byte more than the link's largest frame, so that a longer frame is recognised.
            rx: Box::new(Rx { port: port.clone(), frame: vec![0; largest + 1] }),
            tx: Box::new(Tx {
                port: port.clone(),
                slot: largest,
                frames: vec![0; largest * TX_RING],
                lengths: Vec::with_capacity(TX_RING),
            }),
            interrupt: port,
        })
    }
}

/// State shared by the parts of an open queue.
#[derive(Debug)]
struct Port {
    fd: Arc<OwnedFd>,
    /// Watches only `fd`, which is removed when the device is deleted.
    epoll: OwnedFd,
    name: String,
    /// The queue is one of several, and is detached when closed.
    one_of_many: bool,
    counters: Arc<Counters>,
}

impl Port {
    /// The device was deleted. Its descriptor is readable from now on (EPOLLERR), so a thread that waits on it would
    /// spin.
    #[cold]
    fn retire(&self) {
        let delete = libc::EPOLL_CTL_DEL;
        // It fails only if `fd` was removed before.
        let _ = sys::epoll_control(self.epoll.as_raw_fd(), delete, self.fd.as_raw_fd(), 0, 0);
        if !self.counters.deleted.swap(true, Relaxed) {
            let name = &self.name;
            stderr::print(format_args!(
                "TAP device `{name}` was deleted: no packets pass it any more"
            ));
        }
    }

    fn read(&self, frame: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `frame.len()` bytes into `frame`.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    fn write(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the kernel reads `frame.len()` bytes of `frame`.
        match unsafe { libc::write(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len()) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.one_of_many {
            // It fails only if the device was deleted.
            let _ = device::set_queue(self.fd.as_fd(), &self.name, false);
        }
    }
}

/// The descriptor is readable exactly while frames wait, so masking does nothing.
impl Interrupt for Port {
    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn unmask(&self) -> bool {
        sys::poll(self.epoll.as_raw_fd(), Some(Duration::ZERO)) == 0
    }

    fn mask(&self) {}
}

struct Rx {
    port: Arc<Port>,
    frame: Vec<u8>,
}

impl RxQueue for Rx {
    /// Unlike other drivers', this poll makes a system call per frame and one (EAGAIN) to find the ring
    /// empty: the frames are in the kernel.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let mut taken = 0;
        for _ in 0..budget {
            match self.port.read(&mut self.frame) {
                Ok(len) if len == self.frame.len() => {
                    self.port.counters.rx_oversized.fetch_add(1, Relaxed);
                }
                Ok(len) => {
                    sink(Frame::whole(&self.frame[..len], Checksum::Unverified));
                    taken += 1;
                }
                Err(error) => {
                    if error.raw_os_error() == Some(libc::EBADFD) {
                        self.port.retire();
                    }
                    break;
                }
            }
        }
        taken
    }
}

struct Tx {
    port: Arc<Port>,
    /// The buffer size of each frame.
    slot: usize,
    frames: Vec<u8>,
    lengths: Vec<usize>,
}

impl TxQueue for Tx {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        debug_assert!(!partial && len <= self.slot, "see TxQueue::push");
        if self.lengths.len() == TX_RING {
            return Err(RingFull);
        }
        let start = self.lengths.len() * self.slot;
        match self.frames[start..start + self.slot].get_mut(..len) {
            Some(frame) => {
                fill(frame);
                self.lengths.push(len);
            }
            None => drop(self.port.counters.tx_dropped.fetch_add(1, Relaxed)),
        }
        Ok(())
    }

    fn flush(&mut self) {
        for (slot, len) in self.frames.chunks_exact(self.slot).zip(self.lengths.drain(..)) {
            if self.port.write(&slot[..len]).is_err() {
                self.port.counters.tx_dropped.fetch_add(1, Relaxed);
            }
        }
    }
}
