//! The kernel's addresses, routes and neighbours of one interface, for a NIC that shares it. Owns our copy
//! of them and two netlink sockets: one hears every change, the other asks. Changes nothing in the
//! kernel but what a sender there would: it starts resolutions and confirms neighbours that answer.
//!
//! Addresses and neighbours are copied whole and followed by rtnetlink's announcements (`tables.rs`);
//! routes are asked for one destination and source at a time (`route.rs`), so that policy routing, metrics and
//! next hop groups count as they do for the kernel's own packets. Whoever keeps an answer takes
//! [`generation`](KernelView::generation) first and drops the answer when it has moved.

mod receive;
mod route;
mod tables;

pub(crate) use receive::{Received, recv_with_destination};

use self::tables::{Change, Neighbour, Tables};
use super::iface::{Hop, KernelTables, mac_word};
use crate::{
    nic::xdp::netlink::{Announcements, Request, Socket},
    sync::{self, Arc, AtomicU64, Mutex, Ordering},
    sys, time,
    wire::MacAddr,
};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddrV6, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::AtomicBool,
    time::Duration,
};

// linux/rtnetlink.h, linux/neighbour.h, linux/netlink.h
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_NEIGH: u32 = 3;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV4_RULE: u32 = 8;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;
const RTNLGRP_IPV6_RULE: u32 = 19;
const RTNLGRP_NEXTHOP: u32 = 32;
const RTM_NEWNEIGH: u16 = 28;
const NDA_DST: u16 = 1;
const NTF_USE: u8 = 1;
/// RFC 863: what comes there is thrown away.
const DISCARD: u16 = 9;
const NLM_F_CREATE: u16 = 0x400;

/// How often one neighbour is confirmed at most. The kernel believes a confirmation for 15 to 45 seconds
/// (`base_reachable_time`).
const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// A dump that changes under the reader is read again so often. Changes go on being announced, so the
/// copy is right in the end in any case.
const DUMP_ATTEMPTS: u32 = 8;

/// Our view of one interface's kernel tables. All methods may be called from any thread.
///
/// ```no_run
/// use busypoll_stack::inet::kernel::KernelView;
/// let view = KernelView::open(2)?;
/// let generation = view.generation();
/// if let Some(hop) = view.route([10, 0, 0, 9].into(), None) {
///     match view.neighbour(hop.next_hop) {
///         Some(mac) => println!("send to {mac} from {} while generation is {generation}", hop.source),
///         None => view.resolve(hop.next_hop)?, // and look again when `fd` was readable
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct KernelView {
    ifindex: u32,
    announcements: Announcements,
    requests: Mutex<Socket>,
    /// For packets that the kernel is given to ask for a neighbour; `None` where it has no IPv6. Of the namespace of
    /// the interface, whoever sends later.
    packets: Option<UdpSocket>,
    tables: Mutex<Tables>,
    routes: Mutex<route::Cache>,
    generation: AtomicU64,
    /// The interface's address on the link; 0 if it has none.
    mac: Arc<AtomicU64>,
    /// Announcements were lost, and not everything has been copied since.
    stale: AtomicBool,
}

impl KernelView {
    /// Copies the tables of the interface `ifindex` of the calling thread's network namespace. Needs no
    /// privilege; [`resolve`](KernelView::resolve) and [`confirm`](KernelView::confirm) do.
    ///
    /// # Errors
    /// No such interface, or no netlink.
    pub fn open(ifindex: u32) -> io::Result<Arc<KernelView>> {
        // Listen first, then dump: nothing falls between.
        let groups = [
            RTNLGRP_LINK,
            RTNLGRP_NEIGH,
            RTNLGRP_IPV4_IFADDR,
            RTNLGRP_IPV4_ROUTE,
            RTNLGRP_IPV4_RULE,
            RTNLGRP_IPV6_IFADDR,
            RTNLGRP_IPV6_ROUTE,
            RTNLGRP_IPV6_RULE,
            RTNLGRP_NEXTHOP,
        ];
        let view = KernelView {
            ifindex,
            announcements: Announcements::open(&groups)?,
            requests: Mutex::new(Socket::open()?),
            packets: unbound_udp6().ok(),
            tables: Mutex::new(Tables::default()),
            routes: Mutex::new(route::Cache::default()),
            generation: AtomicU64::new(1),
            mac: Arc::default(),
            stale: AtomicBool::new(false),
        };
        view.dump()?;
        Ok(Arc::new(view))
    }

    /// Readable when there is something to [`process`](KernelView::process).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.announcements.as_fd()
    }

    /// Takes in what the kernel announced. Does not block. If announcements were lost, copies all again; if that
    /// fails, the old copy stands until the next announcement, with which it is tried again.
    pub fn process(&self) {
        let mut changed = false;
        let drained = self.announcements.drain(&mut |message| {
            let change = sync::lock(&self.tables).apply(self.ifindex, message);
            changed |= change == Change::Paths;
        });
        if drained.is_err() {
            self.stale.store(true, Ordering::Relaxed);
        }
        if self.stale.swap(false, Ordering::Relaxed) && self.dump().is_err() {
            self.stale.store(true, Ordering::Relaxed);
        }
        // What was lost may have been a route, which is in no copy.
        if changed || drained.is_err() {
            self.bump();
        }
    }

    /// Moves whenever addresses, routes or neighbours change so that an earlier answer may be wrong. Take
    /// it before asking.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn bump(&self) {
        // Before the generation: who finds a way anew finds it from the new address.
        let mac = sync::lock(&self.tables).mac;
        self.mac.store(mac.map_or(0, mac_word), Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The interface's addresses with their prefix lengths; of IPv6 those that may be used.
    pub fn addresses(&self) -> Vec<(IpAddr, u8)> {
        let tables = sync::lock(&self.tables);
        tables.addresses.iter().map(|a| (a.local, a.prefix)).collect()
    }

    /// The way to `dst`, if the kernel would send there through this interface now: from the address `src`, or
    /// from whichever it prefers. A system call unless the answer is known.
    pub fn route(&self, dst: IpAddr, src: Option<IpAddr>) -> Option<Hop> {
        let generation = self.generation();
        let key = (dst, src);
        if let Some(known) = sync::lock(&self.routes).get(key, generation) {
            return known;
        }
        let mtu = sync::lock(&self.tables).mtu;
        let answer = route::query(&mut sync::lock(&self.requests), key, self.ifindex, mtu);
        // Anything but "no route" is the asking that failed: not worth keeping.
        let Ok(hop) = answer else { return None };
        sync::lock(&self.routes).insert(key, generation, hop);
        hop
    }

    /// The link-layer address of a next hop on this link: that of the kernel's neighbour, if usable
    /// (reachable, stale, delay, probe, permanent, noarp), or the one a broadcast or multicast address
    /// maps to (RFC 1112 section 6.4, RFC 2464 section 7). `None`: [`resolve`](KernelView::resolve) it.
    pub fn neighbour(&self, next_hop: IpAddr) -> Option<MacAddr> {
        match next_hop {
            IpAddr::V4(group) if group.is_multicast() => return Some(MacAddr::of_group(group)),
            IpAddr::V6(group) if group.is_multicast() => return Some(MacAddr::of_group6(group)),
            _ => {}
        }
        let tables = sync::lock(&self.tables);
        if let IpAddr::V4(address) = next_hop
            && (address.is_broadcast() || tables.is_broadcast(address))
        {
            return Some(MacAddr::BROADCAST);
        }
        tables.neighbours.get(&next_hop).and_then(Neighbour::usable)
    }

    /// What the kernel knows of `next_hop` may be out of date: "the first time a node sends a packet" there, that is
    /// to be verified (RFC 4861 section 7.3.3), as [`resolve`](KernelView::resolve) has it done.
    pub fn is_stale(&self, next_hop: IpAddr) -> bool {
        sync::lock(&self.tables).neighbours.get(&next_hop).is_some_and(Neighbour::is_stale)
    }

    /// The kernel has asked for `next_hop` and got no answer. [`resolve`](KernelView::resolve) asks again.
    pub fn is_unreachable(&self, next_hop: IpAddr) -> bool {
        sync::lock(&self.tables).neighbours.get(&next_hop).is_some_and(Neighbour::has_failed)
    }

    /// Makes the kernel resolve `next_hop` as if it had a packet for it: an unknown one is asked for, a
    /// stale one is verified. The outcome is announced: see [`fd`](KernelView::fd). Entries that an administrator
    /// has made stay as they are.
    ///
    /// # Errors
    /// Missing CAP_NET_ADMIN; the interface is gone or down.
    pub fn resolve(&self, next_hop: IpAddr) -> io::Result<()> {
        let known = sync::lock(&self.tables).neighbours.get_mut(&next_hop).map(|known| {
            known.mark_used();
            *known
        });
        if known.as_ref().is_some_and(Neighbour::is_managed_elsewhere) {
            return Ok(());
        }
        let is_link_local =
            &mut |own, _| matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
        match next_hop {
            // For its own sake the kernel asks from its link-local address, and without one not at all
            // (`ndisc_solicit`): it is given a packet.
            IpAddr::V6(next_hop) if !self.has_address(is_link_local) => {
                let to = SocketAddrV6::new(next_hop, DISCARD, 0, self.ifindex);
                let packets = self.packets.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                packets.send_to(&[], to).map(drop)
            }
            _ => {
                let kept_flags = known.as_ref().map_or(0, Neighbour::kept_flags);
                self.send_newneigh(next_hop, 0, NTF_USE | kept_flags, NLM_F_CREATE)
            }
        }
    }

    /// Tells the kernel that `next_hop` answers: what came from it was an answer to what we sent. Costs a
    /// lookup; a system call at most once a second per neighbour.
    pub fn confirm(&self, next_hop: IpAddr) {
        let now = time::now();
        let kept_flags = {
            let mut tables = sync::lock(&self.tables);
            let Some(neighbour) = tables.neighbours.get_mut(&next_hop) else { return };
            if !neighbour.wants_confirmation(now, CONFIRM_EVERY) {
                return;
            }
            neighbour.kept_flags()
        };
        // A neighbour that vanished meanwhile needs none.
        let _ = self.send_newneigh(next_hop, tables::NUD_REACHABLE, kept_flags, 0);
    }

    /// One RTM_NEWNEIGH.
    fn send_newneigh(&self, next_hop: IpAddr, state: u16, ntf: u8, flags: u16) -> io::Result<()> {
        let request = Request::new(
            RTM_NEWNEIGH,
            &tables::ndmsg(tables::family(next_hop), self.ifindex, state, ntf),
        )
        .flags(flags)
        .attribute(NDA_DST, &tables::octets(next_hop));
        sync::lock(&self.requests).request(request, &mut |_| ())
    }

    /// Copies everything.
    fn dump(&self) -> io::Result<()> {
        let mut fresh = Tables::default();
        for request in tables::dumps(self.ifindex) {
            let mut left = DUMP_ATTEMPTS;
            loop {
                let mut requests = sync::lock(&self.requests);
                let result = requests.request(request.clone(), &mut |message| {
                    fresh.apply(self.ifindex, message);
                });
                left -= 1;
                match result {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                        if left == 0 {
                            break;
                        }
                    }
                    other => break other?,
                }
            }
        }
        *sync::lock(&self.tables) = fresh;
        self.bump();
        Ok(())
    }
}

impl KernelTables for KernelView {
    fn generation(&self) -> u64 {
        KernelView::generation(self)
    }

    fn has_address(&self, is: &mut dyn FnMut(IpAddr, u8) -> bool) -> bool {
        sync::lock(&self.tables).addresses.iter().any(|a| is(a.local, a.prefix))
    }

    fn route(&self, destination: IpAddr, source: Option<IpAddr>) -> Option<Hop> {
        KernelView::route(self, destination, source)
    }

    fn neighbour(&self, address: IpAddr) -> Option<MacAddr> {
        KernelView::neighbour(self, address)
    }

    fn is_stale(&self, address: IpAddr) -> bool {
        KernelView::is_stale(self, address)
    }

    fn resolve(&self, address: IpAddr) {
        // A neighbour nobody asks for is one that does not answer: the caller's patience decides.
        let _ = KernelView::resolve(self, address);
    }

    fn confirm(&self, address: IpAddr) {
        KernelView::confirm(self, address);
    }

    fn link_address(&self) -> Option<Arc<AtomicU64>> {
        (self.mac.load(Ordering::Relaxed) != 0).then(|| self.mac.clone())
    }
}

/// A socket of UDP over IPv6 that takes a port only when it first sends.
fn unbound_udp6() -> io::Result<UdpSocket> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call.
    sys::owned(unsafe { libc::socket(libc::AF_INET6, kind, 0) }).map(UdpSocket::from)
}

/// Neighbours by address.
type Neighbours = HashMap<IpAddr, Neighbour>;

#[cfg(test)]
mod tests {
    use super::*;
    use busypoll_lab::{Lab, needs, needs_root};
    use std::{net::Ipv4Addr, os::fd::AsRawFd};

    /// Announcements were lost when nothing could be asked: they are made up for as soon as something can.
    #[test]
    fn what_was_lost_is_asked_for_until_there_is_an_answer() {
        needs_root!();
        needs!(program "ip");
        let host = Lab::single().unwrap();
        let ip = |script: String| {
            use std::io::Write;
            let mut ip = host.command("ip");
            let mut ip =
                ip.args(["-batch", "-"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            ip.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            assert!(ip.wait().unwrap().success());
        };
        let add = |n: u8| format!("addr add {}/32 dev lo\n", Ipv4Addr::new(10, 9, 0, n));
        let view = host.enter(|| KernelView::open(1)).unwrap().unwrap();
        let few: libc::c_int = 1;
        let len = size_of_val(&few) as libc::socklen_t;
        let (fd, value) = (view.fd().as_raw_fd(), (&raw const few).cast());
        // SAFETY: the option takes an int.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, value, len) };
        assert_eq!(set, 0);
        // Nobody in the kernel hears this one.
        let deaf = Socket::of(libc::NETLINK_USERSOCK).unwrap();
        let asks = std::mem::replace(&mut *sync::lock(&view.requests), deaf);
        let before = view.generation();
        ip((1..=200).map(add).collect());
        view.process();
        assert_ne!(view.generation(), before, "a route may have been lost, too");
        view.process();
        assert!(view.addresses().len() < 200, "nothing was lost");
        *sync::lock(&view.requests) = asks;
        ip(add(201));
        view.process();
        assert_eq!(view.addresses().iter().filter(|(ip, _)| !ip.is_loopback()).count(), 201);
    }
}
