//! AF_XDP: the receive queues of any Linux Ethernet interface, shared with the kernel. Owns the order in
//! which an interface is taken: device, program, owner's name, sockets. Each has its own file.
//!
//! A small XDP program redirects the packets of our own ports, between the driver and the kernel's stack,
//! into memory shared with the kernel (`bpf/program.rs`). All other packets pass to the kernel unchanged: ARP,
//! ICMP, other programs' traffic, forwarding. Program and sockets are released with their last
//! descriptor, so also after `kill -9`; then only the kernel uses the interface again.
//!
//! | mode | when | copied by |
//! |---|---|---|
//! | `xdp (zero copy)` | the driver passes the probe | not copied |
//! | `xdp (copy)` | the driver runs XDP programs | the kernel, driver's page to frame |
//! | `xdp (generic)` | any other | the kernel, skb to frame |
//!
//! On **veth**, attaching an XDP program changes more than one end: the program's end gets NAPI (as GRO does), and the
//! *peer* loses its segmentation offloads (GSO, TSO) until the program is detached (drivers/net/veth.c,
//! `veth_xdp_set`); before Linux 6.6 its largest MTU shrinks to about 3500. The peer needs no XDP program and no GRO to
//! receive our frames. A kernel peer leaves UDP and TCP checksums to hardware that does not exist; such frames arrive
//! as [`Checksum::MaybePartial`].
//!
//! A hardware NIC that strips VLAN tags (`rxvlan`) does so before the program sees the packet.

mod attachment;
mod bpf;
mod device;
mod error;
mod frames;
mod grant;
mod members;
pub(crate) mod netlink;
mod outside;
mod owner;
mod packing;
mod queue;
mod ring;
mod shared_queue;
mod slots;
mod socket;
mod steering;
mod udp_ports;
mod umem;

#[doc(hidden)]
pub use attachment::Attachment;
#[doc(hidden)]
pub use bpf::program::{names_slot, own_priority};
pub use error::Error;
#[doc(hidden)]
pub use grant::Grant;
#[doc(hidden)]
pub use owner::name_this_process;

use self::{
    bpf::sys::{self, Hook},
    device::Device,
    grant::SharedGrant,
    packing::Packing,
    slots::SharedControl,
    socket::{Rings, Sizes, Xsk},
    steering::PortMap,
};
use super::{Checksum, Info, Nic, Queue, Steering};
use crate::stderr;
use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
    time::Duration,
};

/// The names of the BPF programs that run for a control group at this hook (`enum bpf_attach_type`).
pub(crate) fn group_programs(group: BorrowedFd<'_>, hook: u32) -> io::Result<Vec<String>> {
    let name_of = |id| match sys::program_name(id) {
        name if name.is_empty() => id.to_string(),
        name => name,
    };
    Ok(sys::programs_of_group(group, hook)?.into_iter().map(name_of).collect())
}

/// Says so if the driver of the interface `name` has zero copy, but not for packets of its MTU.
#[doc(hidden)]
pub fn report_zero_copy_limit(name: &str) {
    let limit =
        |device: &Device| Packing::of(device).ok()?.zero_copy_limit(|| device.zero_copy_segments());
    if let Ok(device) = Device::find(name)
        && let Some(limit) = limit(&device)
    {
        stderr::print(format_args!(
            "{name}: packets are copied, as its driver has zero copy up to an MTU of {limit}, and its MTU is {}",
            device.mtu
        ));
    }
}

const MIN_FRAMES: usize = 64;
const MAX_FRAMES: usize = 8192;

/// State shared by all queues of the interface. While it lives, the interface is attached and packets come.
struct Shared {
    /// The steering program's map from slot and queue to socket.
    sockets: OwnedFd,
    /// This process's place among those that share the interface.
    place: Option<Place>,
    _held: Ownership,
}

/// The place of a process among those that share an interface.
struct Place {
    slot: u8,
    zero_copy: bool,
    memory: OwnedFd,
    /// Of the first queue.
    control: Arc<SharedControl>,
}

impl Shared {
    /// The slots of other processes on the interface, a bit for each, and one for programs that have none.
    fn others(&self) -> u32 {
        self.place.as_ref().map_or(0, |place| place.control.attached() & !(1 << place.slot))
    }

    /// The same, one by one.
    fn other_slots(&self) -> impl Iterator<Item = u8> {
        let others = self.others();
        (0..u32::BITS as u8).filter(move |slot| others >> slot & 1 == 1)
    }

    /// Whether the process of another slot seems to have ended. In another PID namespace it always seems so.
    fn seems_gone(&self, slot: u8) -> bool {
        let pid = self.place.as_ref().map_or(0, |place| place.control.pid(slot.into()));
        // SAFETY: a plain system call, which sends no signal.
        let exists = unsafe { libc::kill(pid.cast_signed(), 0) } == 0;
        pid != 0 && !exists && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }
}

/// Which process holds the interface.
enum Ownership {
    /// This process.
    Here(#[allow(dead_code)] Box<Attachment>),
    /// Another process, which has granted it to this one. The owner's name and the link of the steering program stay
    /// open here if that process ends.
    Granted(#[allow(dead_code)] [Option<OwnedFd>; 2]),
}

/// Settings of an [`Xdp`] before it is opened.
///
/// ```no_run
/// use busypoll_stack::nic::{Nic, xdp::Xdp};
/// let mut nic = Xdp::builder("eth1").rx_frames(4096).open()?;
/// let queue = nic.open(0)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    rx: usize,
    tx: usize,
    zero_copy: bool,
    native: bool,
}

impl Builder {
    /// Receive frames of each queue, a power of two from 64 to 8192; 1024 by default. More frames take longer bursts,
    /// fewer stay in the CPU's cache.
    #[must_use]
    pub fn rx_frames(mut self, frames: usize) -> Builder {
        self.rx = frames;
        self
    }

    /// Transmit frames of each queue, a power of two from 64 to 8192; 1024 by default.
    #[must_use]
    pub fn tx_frames(mut self, frames: usize) -> Builder {
        self.tx = frames;
        self
    }

    /// Does not use zero copy even if the driver has it.
    #[must_use]
    pub fn copy(mut self) -> Builder {
        self.zero_copy = false;
        self
    }

    /// Runs the program after the driver instead of in it, for drivers whose native mode misbehaves.
    #[must_use]
    pub fn generic(mut self) -> Builder {
        self.native = false;
        self
    }

    /// Takes the interface, in the calling thread's network namespace.
    ///
    /// # Errors
    /// See [`Error`]; each is one line with its remedy.
    pub fn open(self) -> Result<Xdp, Error> {
        for frames in [self.rx, self.tx] {
            if !frames.is_power_of_two() || !(MIN_FRAMES..=MAX_FRAMES).contains(&frames) {
                return Err(Error::RingSize { frames, min: MIN_FRAMES, max: MAX_FRAMES });
            }
        }
        let holding = Attachment::take(&self.name, self.native, Duration::ZERO, None)?;
        let grant = holding.grant()?;
        self.open_as(grant, Ownership::Here(Box::new(holding)))
    }

    fn open_as(self, grant: Grant, held: Ownership) -> Result<Xdp, Error> {
        let Grant { device, hook, ports, sockets, mut xsks, shared, .. } = grant;
        let mut sizes = Sizes { rx: self.rx, tx: self.tx, packing: Packing::of(&device)? };
        let at = |step| {
            let name = device.name.clone();
            move |e: io::Error| Error::os(&name, step, e)
        };
        let place = match shared {
            None => None,
            Some(SharedGrant { slot, zero_copy, memory }) => {
                (sizes.rx, sizes.tx) =
                    (slots::ring_size(slot.into()), slots::ring_size(slot.into()));
                let (_, control) =
                    slots::map(memory.as_fd(), 0, sizes.packing.frame).map_err(at("map frames"))?;
                Some(Place { slot, zero_copy, memory, control })
            }
        };
        let slot = place.as_ref().map_or(0, |place| place.slot);
        let shared = Arc::new(Shared { sockets, place, _held: held });
        let Some(first) = xsks.first() else {
            let queues = device.queues;
            return Err(Error::NoQueue { device: device.name, queue: 0, queues });
        };
        let namespace =
            socket::namespace(first.as_fd()).map_err(at("read the network namespace"))?;
        let may_zero_copy = self.zero_copy && hook == Hook::Native;
        // Queue by queue.
        let first = xsks.remove(0);
        let probe = match &shared.place {
            None => Xsk::bind(first, &device, 0, sizes, may_zero_copy)?,
            Some(place) => place.open(first, 0, sizes).map_err(at("open a shared queue"))?,
        };
        let zero_copy = probe.0.zero_copy;
        let mode = match hook {
            Hook::Generic => "xdp (generic)",
            Hook::Native if zero_copy => "xdp (zero copy)",
            Hook::Native => "xdp (copy)",
        };
        let limit = || sizes.packing.zero_copy_limit(|| device.zero_copy_segments());
        let mode = match may_zero_copy.then(limit).flatten() {
            Some(limit) => format!("{mode}: zero copy up to an MTU of {limit}"),
            None => mode.to_owned(),
        };
        let info = Info {
            name: device.name.clone(),
            mode,
            mac: device.mac,
            mtu: device.mtu,
            queues: device.queues,
            tx_checksum: false,
            ifindex: Some(device.ifindex),
        };
        Ok(Xdp {
            steering: Arc::new(PortMap::new(ports, slot, shared.clone())),
            first: Some(probe),
            xsks: xsks.into(),
            namespace,
            open: HashMap::new(),
            next: 0,
            info,
            device,
            sizes,
            zero_copy,
            shared,
        })
    }
}

/// A Linux Ethernet interface whose packets to our ports are redirected to us. See the [module](self).
///
/// ```no_run
/// use busypoll_stack::nic::{Nic, xdp::Xdp};
///
/// let mut nic = Xdp::open("eth1")?;
/// println!("{}: {}", nic.info().name, nic.info().mode);
/// let mut queue = nic.open(0)?;
/// if let Some(steering) = nic.steering() {
///     steering.add(17, "10.0.0.2:9000".parse().unwrap())?;
/// }
/// loop {
///     queue.rx.poll(64, &mut |frame| println!("{} bytes", frame.data().len()));
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Xdp {
    info: Info,
    device: Device,
    sizes: Sizes,
    zero_copy: bool,
    steering: Arc<PortMap>,
    /// The socket of queue 0: opened with the interface, because only bind(2) shows the mode.
    first: Option<(Xsk, Rings)>,
    /// Sockets for the other queues, in order, made in the interface's network namespace: queues may be opened on
    /// threads of another namespace, where the interface index means another device.
    xsks: VecDeque<OwnedFd>,
    namespace: u64,
    /// Queues in use, by number. The reference is dead once the queue's halves are dropped.
    open: HashMap<u32, Weak<()>>,
    /// The number after that of the queue opened last.
    next: u32,
    shared: Arc<Shared>,
}

impl Place {
    /// The process's socket of a queue, with the frames.
    fn open(&self, fd: OwnedFd, queue: u32, sizes: Sizes) -> io::Result<(Xsk, Rings)> {
        let (umem, _) = slots::map(self.memory.as_fd(), queue, sizes.packing.frame)?;
        Xsk::of_member(fd, umem, sizes, self.zero_copy)
    }
}

impl Xdp {
    /// Takes the interface `name` of the calling thread's network namespace, with default settings.
    /// Its queues and its steering keep it; it is released when the last of them is dropped.
    ///
    /// # Errors
    /// See [`Error`]; each is one line with its remedy.
    pub fn open(name: &str) -> Result<Xdp, Error> {
        Xdp::builder(name).open()
    }

    /// Opens an interface that another process holds and has granted to this one, with default settings. From now on
    /// this process owns it, also by name, and keeps it if the other process ends.
    ///
    /// # Errors
    /// As [`open`](Xdp::open).
    pub fn open_granted(mut grant: Grant) -> Result<Xdp, Error> {
        let keep = [grant.name.take(), grant.link.take()];
        if let [Some(name), _] = &keep {
            owner::name_this_process(name.as_fd())
                .map_err(|e| Error::os(&grant.device.name, "take the owner's name over", e))?;
        }
        Xdp::builder(&grant.device.name).open_as(grant, Ownership::Granted(keep))
    }

    /// A builder with default settings.
    #[must_use]
    pub fn builder(name: &str) -> Builder {
        Builder { name: name.to_owned(), rx: 1024, tx: 1024, zero_copy: true, native: true }
    }

    /// A new socket to open `queue` once more.
    fn another_socket(&self, queue: u32) -> Result<OwnedFd, Error> {
        let fd = socket::make(&self.device.name)?;
        match socket::namespace(fd.as_fd()) {
            Ok(namespace) if namespace == self.namespace => Ok(fd),
            _ => Err(Error::Namespace { device: self.device.name.clone(), queue }),
        }
    }
}

impl Nic for Xdp {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let device = || self.device.name.clone();
        if index >= self.device.queues {
            let queues = self.device.queues;
            return Err(Error::NoQueue { device: device(), queue: index, queues }.into());
        }
        if self.open.get(&index).is_some_and(|token| token.strong_count() > 0) {
            return Err(Error::QueueOpen { device: device(), queue: index }.into());
        }
        let first = if index == 0 { self.first.take() } else { None };
        let (socket, rings) = match (first, &self.shared.place) {
            (Some(opened), _) => opened,
            (None, None) => {
                let fd = self.xsks.pop_front().map_or_else(|| self.another_socket(index), Ok)?;
                Xsk::bind(fd, &self.device, index, self.sizes, self.zero_copy)?
            }
            (None, Some(place)) => {
                // A socket that shares its queue is bound already, and a queue is opened once.
                let fd = self.xsks.pop_front().filter(|_| index == self.next);
                let fd = fd.ok_or_else(|| Error::QueueOpen { device: device(), queue: index })?;
                place.open(fd, index, self.sizes)?
            }
        };
        self.next = index + 1;
        let checksum = if self.device.partial_checksums() {
            Checksum::MaybePartial
        } else {
            Checksum::Unverified
        };
        let fd = socket.as_fd().as_raw_fd();
        let token = Arc::new(());
        self.open.insert(index, Arc::downgrade(&token));
        let shared = self.shared.clone();
        if let Some(place) = &self.shared.place {
            let (_, control) = slots::map(place.memory.as_fd(), index, self.sizes.packing.frame)?;
            let slot = place.slot.into();
            // The process that granted the interface has registered the socket.
            return shared_queue::start(socket, rings, control, slot, checksum, token, shared);
        }
        let queue = queue::start(socket, rings, checksum, token, shared);
        sys::update(&self.shared.sockets, &index, &fd)
            .map_err(|e| Error::os(&self.device.name, "register the socket", e))?;
        Ok(queue)
    }

    fn steering(&self) -> Option<Arc<dyn Steering>> {
        Some(self.steering.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{bpf::program::Key, *};
    use busypoll_lab::{Lab, needs_root};

    /// veth has no zero copy, so the kernel names no number.
    #[test]
    fn the_kernel_is_asked_for_how_many_frames_zero_copy_takes() {
        needs_root!();
        let lab = Lab::builder().mtu(9000).build().unwrap();
        let name = lab.server.interface();
        lab.server
            .enter(|| {
                let device = Device::find(name).unwrap();
                let asked = device::zero_copy_segments(device.ifindex);
                match crate::sys::kernel_release() >= (6, 6) {
                    true => assert_eq!(asked.unwrap(), None),
                    false => assert_eq!(asked.ok().flatten(), None),
                }
                let packing = Packing::of(&device).unwrap();
                assert!(!packing.fits_zero_copy(|| device.zero_copy_segments()));
                let gone = device::zero_copy_segments(u32::MAX >> 1);
                assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ENODEV));
            })
            .unwrap();
    }

    /// A program without an owner's name belongs to another tool. The error names it, and it stays attached.
    #[test]
    fn the_error_names_a_foreign_xdp_program() {
        needs_root!();
        let lab = Lab::builder().build().unwrap();
        let name = lab.server.interface();
        let error = lab.server.enter(|| {
            let device = Device::find(name).unwrap();
            let ports = sys::hash_map::<Key>("ports", 1).unwrap();
            let sockets = sys::socket_map("sockets", 1).unwrap();
            let program = sys::load_steering(ports.as_fd(), sockets.as_fd(), 1, false).unwrap();
            let _link = sys::attach(&program, device.ifindex, Hook::Generic).unwrap();
            Xdp::open(name).err()
        });
        match error.unwrap() {
            Some(present @ Error::ProgramPresent { .. }) => {
                let said = present.to_string();
                // `xdp off` would remove only a program in the driver.
                let remedy = format!("`ip link set {name} xdpgeneric off`");
                assert!(said.contains(sys::PROGRAM_NAME) && said.contains(&remedy), "{said}");
            }
            other => panic!("{other:?}"),
        }
        // Closing the link has removed the program.
        lab.server.enter(|| Xdp::open(name).map(drop)).unwrap().unwrap();
    }

    /// A foreign socket is bound to the queue, and no name shows its owner. Takes as long as the kernel may take to
    /// clean up after a previous owner.
    #[test]
    fn the_error_names_a_queue_in_use() {
        needs_root!();
        let lab = Lab::builder().build().unwrap();
        let name = lab.server.interface();
        let other = lab.server.enter(|| {
            let device = Device::find(name).unwrap();
            let sizes = Sizes { rx: 64, tx: 64, packing: Packing::of(&device).unwrap() };
            Xsk::bind(socket::make(name).unwrap(), &device, 0, sizes, false).unwrap()
        });
        let other = other.unwrap();
        match lab.server.enter(|| Xdp::open(name).err()).unwrap() {
            Some(error @ Error::QueueBusy { queue: 0, .. }) => {
                let said = error.to_string();
                assert!(said.starts_with(&format!("queue 0 of {name} is in use")), "{said}");
            }
            other => panic!("{other:?}"),
        }
        drop(other);
        lab.server.enter(|| Xdp::open(name).map(drop)).unwrap().unwrap();
    }
}
