//! A packet socket with a mapped receive ring (packet(7); Documentation/networking/packet_mmap.rst): copies of the
//! datagrams to some multicast groups that the kernel receives on an interface. The kernel gives them to its own
//! sockets and to other packet sockets as well, so any number of processes receive the same datagrams, each on a ring
//! of its own.
//!
//! Owns the ring; [`filter`] says which packets come. Receive only. The first slots of the ring that the kernel has not
//! filled yet end it: a slot's status says whose it is.

mod filter;

use super::{Checksum, Frame, Interrupt, RxQueue};
use crate::{
    sync::{Mutex, lock},
    sys::{self, get_bytes, set_option},
    wire::ethernet,
};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

pub(crate) use filter::drop_copies;

/// The memory of a ring, and of each of its blocks.
const RING: usize = 2 << 20;
const BLOCK: usize = 1 << 16;
/// What the kernel writes in a slot before the frame: `struct tpacket2_hdr`, `struct sockaddr_ll`, and alignment.
const BEFORE: usize = 96;

/// Makes the socket, which receives nothing yet. Takes CAP_NET_RAW in the calling thread's network namespace.
///
/// # Errors
/// EPERM; EAFNOSUPPORT on a kernel without packet sockets; no descriptor left.
pub fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call.
    sys::owned(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })
}

/// The socket and its ring.
pub(crate) struct PacketRing {
    socket: OwnedFd,
    base: NonNull<u8>,
    slot: usize,
    ifindex: u32,
    /// The groups, with their ports, whose datagrams come.
    selected: Mutex<Vec<(IpAddr, u16)>>,
    /// The slot to be filled next, for the check whether the ring is empty.
    next: AtomicU32,
    lost: AtomicU64,
}

// SAFETY: the pointer leads into a mapping that this value owns; a slot's status is an atomic, and the rest of a slot
// is read by the one receive half.
unsafe impl Send for PacketRing {}
// SAFETY: as above.
unsafe impl Sync for PacketRing {}

impl PacketRing {
    /// Gives `socket` a ring for the packets of an interface of its network namespace.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(socket: OwnedFd, ifindex: u32, mtu: usize) -> io::Result<Arc<PacketRing>> {
        let slot = (BEFORE + ethernet::HEADER_LEN + mtu).next_power_of_two().min(BLOCK);
        let set = |name, value: libc::c_int| set_option(&socket, libc::SOL_PACKET, name, value);
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
        set(libc::PACKET_IGNORE_OUTGOING, 1)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (RING / BLOCK) as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: (RING / slot) as u32,
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            libc::mmap(std::ptr::null_mut(), RING, protection, flags, socket.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // A forked child must not use it. If this fails, the child merely keeps the mapping.
        // SAFETY: advice on our own mapping.
        unsafe { libc::madvise(base.as_ptr().cast(), RING, libc::MADV_DONTFORK) };
        Ok(Arc::new(PacketRing {
            socket,
            base,
            slot,
            ifindex,
            selected: Mutex::default(),
            next: AtomicU32::new(0),
            lost: AtomicU64::new(0),
        }))
    }

    /// From now on the datagrams to these groups come, each with the port it is for, and no others. What has come
    /// before stays on the ring.
    ///
    /// # Errors
    /// More than the kernel takes; the interface is gone. Then nothing changes.
    pub(crate) fn select(&self, groups: &[(IpAddr, u16)]) -> io::Result<()> {
        let mut selected = lock(&self.selected);
        if *selected == groups {
            return Ok(());
        }
        filter::attach(&self.socket, &filter::to_groups(groups))?;
        if selected.is_empty() != groups.is_empty() {
            self.bind(if groups.is_empty() { 0 } else { libc::ETH_P_ALL })?;
        }
        selected.clear();
        selected.extend_from_slice(groups);
        Ok(())
    }

    /// Receives packets of a protocol on the interface; 0: none.
    fn bind(&self, protocol: libc::c_int) -> io::Result<()> {
        // SAFETY: all zeros is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (protocol as u16).to_be();
        address.sll_ifindex = self.ifindex.cast_signed();
        // SAFETY: a valid address of that size.
        let bound = unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// How many packets the ring had no room for.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    #[cold]
    fn count_lost(&self) {
        // `struct tpacket_stats`: reading it clears it.
        let mut counted = [0; 8];
        if get_bytes(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut counted).is_ok()
        {
            let [_, _, _, _, drops @ ..] = counted;
            self.lost.fetch_add(u32::from_ne_bytes(drops).into(), Ordering::Relaxed);
        }
    }

    fn slots(&self) -> u32 {
        (RING / self.slot) as u32
    }

    fn at(&self, slot: u32) -> NonNull<u8> {
        // SAFETY: inside the mapping: `slot` is below the number of slots.
        unsafe { self.base.add(slot as usize * self.slot) }
    }

    fn status(&self, slot: u32) -> &AtomicU32 {
        // SAFETY: the first word of a slot, aligned, accessed only as an atomic, by us.
        unsafe { self.at(slot).cast().as_ref() }
    }

    fn is_filled(&self, slot: u32) -> bool {
        self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The frame in a filled slot; `None` if it did not fit.
    fn frame(&self, slot: u32) -> Option<Frame<'_>> {
        let at = self.at(slot);
        // SAFETY: a filled slot begins with this header, and the kernel leaves it alone until it is returned.
        let header: libc::tpacket2_hdr = unsafe { at.cast().read() };
        let (len, from) = (header.tp_snaplen as usize, usize::from(header.tp_mac));
        if header.tp_len != header.tp_snaplen || from + len > self.slot {
            return None;
        }
        // SAFETY: inside the slot, by the check; not written until the slot is returned.
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr().add(from), len) };
        let is_partial = header.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0;
        let checksum = if is_partial { Checksum::Partial } else { Checksum::Unverified };
        Some(Frame::whole(bytes, checksum))
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once; no frame is in use.
        unsafe { libc::munmap(self.base.as_ptr().cast(), RING) };
    }
}

/// The receive half; make one only.
pub(crate) struct Rx(pub(crate) Arc<PacketRing>);

impl RxQueue for Rx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let ring = &*self.0;
        let mut next = ring.next.load(Ordering::Relaxed);
        let mut count = 0;
        while count < budget && ring.is_filled(next) {
            let status = ring.status(next);
            if status.load(Ordering::Relaxed) & libc::TP_STATUS_LOSING != 0 {
                ring.count_lost();
            }
            match ring.frame(next) {
                Some(frame) => sink(frame),
                None => {
                    ring.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            next = if next + 1 == ring.slots() { 0 } else { next + 1 };
            count += 1;
        }
        if count > 0 {
            ring.next.store(next, Ordering::Release);
        }
        count
    }
}

impl Interrupt for PacketRing {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The descriptor is readable while the slot filled last is not returned, so there is nothing to unmask.
    fn unmask(&self) -> bool {
        !self.is_filled(self.next.load(Ordering::Acquire))
    }

    fn mask(&self) {}

    fn dropped(&self) -> u64 {
        self.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use busypoll_lab::{Lab, needs_root};
    use std::net::UdpSocket;

    /// The numbers in the datagrams on the ring, `budget` at the most.
    fn take(rx: &mut Rx, budget: usize) -> Vec<u16> {
        let mut came = Vec::new();
        rx.poll(budget, &mut |frame| {
            let data = frame.bytes.split_at(14 + 20 + 8).1;
            came.push(u16::from_ne_bytes([data[0], data[1]]));
        });
        came
    }

    #[test]
    fn a_ring_keeps_the_first_and_counts_what_is_lost() {
        needs_root!();
        let lab = Lab::builder().build().unwrap();
        let on = &lab.server;
        let ring = on.enter(|| PacketRing::new(socket().unwrap(), on.ifindex(), 1500));
        let ring = ring.unwrap().unwrap();
        let mut rx = Rx(ring.clone());
        let slots = ring.slots() as u16;
        let group = IpAddr::from([239, 7, 7, 7]);
        // Its link passes all multicast frames.
        let member = on.enter(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
        member.join_multicast_v4(&[239, 7, 7, 7].into(), &on.ipv4()).unwrap();
        let from = (lab.client.ipv4(), 0);
        let sender = lab.client.enter(|| UdpSocket::bind(from)).unwrap().unwrap();
        let send = |to: (IpAddr, u16), n: u16| sender.send_to(&n.to_ne_bytes(), to).unwrap();
        let soon = |rx: &mut Rx, count: usize| {
            let mut came = Vec::new();
            while came.len() < count {
                came.extend(take(rx, count - came.len()));
            }
            came
        };
        send((group, 7), 1);
        ring.select(&[(group, 7), (IpAddr::from([239, 7, 7, 8]), 8)]).unwrap();
        for n in 2..5 {
            send((group, 8), 0);
            send((IpAddr::from([239, 7, 7, 8]), 7), 0);
            send((group, 7), n);
        }
        assert_eq!((soon(&mut rx, 3), ring.unmask()), (vec![2, 3, 4], true));
        for n in 0..slots + 100 {
            send((group, 7), n);
        }
        let came = soon(&mut rx, slots.into());
        assert_eq!(came, (0..slots).collect::<Vec<_>>());
        send((group, 7), 7);
        assert_eq!((soon(&mut rx, 1), ring.lost()), (vec![7], 100));
        ring.select(&[]).unwrap();
        send((group, 7), 8);
        ring.select(&[(group, 7)]).unwrap();
        send((group, 7), 9);
        assert_eq!(soon(&mut rx, 1), [9]);
    }
}
