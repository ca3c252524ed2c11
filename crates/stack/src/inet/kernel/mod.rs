//! The kernel's addresses, routes and neighbours of one shared interface. Owns our copy of them and two netlink
//! sockets: one receives notifications, the other sends requests. It changes nothing in the kernel that a sender
//! there would not change: it starts neighbour resolution and confirms neighbours that answer.
//!
//! Addresses and neighbours are dumped once and kept up to date by rtnetlink notifications (`tables.rs`). Routes are
//! looked up for one destination and source at a time (`route.rs`), so that policy routing, metrics and next hop
//! groups apply as for the kernel's own packets. A caller that caches an answer reads
//! [`generation`](KernelView::generation) first and drops the answer when that has changed.

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
/// RFC 863: the discard port.
const DISCARD: u16 = 9;
const NLM_F_CREATE: u16 = 0x400;

/// The shortest interval between confirmations of one neighbour. In the kernel a confirmation lasts 15 to 45 seconds
/// (`base_reachable_time`).
const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// How often a dump that was interrupted by a change is tried. The copy is corrected by later notifications in any
/// case.
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
    /// Sends packets that make the kernel solicit a neighbour; `None` if it has no IPv6. The socket belongs to the
    /// network namespace of the interface, whichever thread sends later.
    packets: Option<UdpSocket>,
    tables: Mutex<Tables>,
    routes: Mutex<route::Cache>,
    generation: AtomicU64,
    /// The interface's MAC address; 0 if it has none.
    mac: Arc<AtomicU64>,
    /// Notifications were lost, and no complete dump has succeeded since.
    stale: AtomicBool,
}

impl KernelView {
    /// Copies the tables of the interface `ifindex` in the calling thread's network namespace. This needs no
    /// privilege; [`resolve`](KernelView::resolve) and [`confirm`](KernelView::confirm) do.
    ///
    /// # Errors
    /// No such interface, or no netlink.
    pub fn open(ifindex: u32) -> io::Result<Arc<KernelView>> {
        // Subscribe first, then dump, so that no change is missed.
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

    /// Processes the kernel's notifications. Does not block. If notifications were lost, dumps everything again; if
    /// that fails, keeps the old copy and tries again with the next notification.
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
        // A lost notification may have been about a route; routes are not in the copy.
        if changed || drained.is_err() {
            self.bump();
        }
    }

    /// Incremented whenever addresses, routes or neighbours change so that an earlier answer may be wrong. Read
    /// it before the lookup.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn bump(&self) {
        // Stored before the generation, so that a new path is built with the new MAC address.
        let mac = sync::lock(&self.tables).mac;
        self.mac.store(mac.map_or(0, mac_word), Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The interface's addresses with their prefix lengths; only usable ones of IPv6.
    pub fn addresses(&self) -> Vec<(IpAddr, u8)> {
        let tables = sync::lock(&self.tables);
        tables.addresses.iter().map(|a| (a.local, a.prefix)).collect()
    }

    /// The route to `dst`, if the kernel would send there through this interface now, from `src` or from its
    /// preferred source. A system call unless the answer is cached.
    pub fn route(&self, dst: IpAddr, src: Option<IpAddr>) -> Option<Hop> {
        let generation = self.generation();
        let key = (dst, src);
        if let Some(known) = sync::lock(&self.routes).get(key, generation) {
            return known;
        }
        let mtu = sync::lock(&self.tables).mtu;
        let answer = route::query(&mut sync::lock(&self.requests), key, self.ifindex, mtu);
        // An error other than "no route" means that the request failed: it is not cached.
        let Ok(hop) = answer else { return None };
        sync::lock(&self.routes).insert(key, generation, hop);
        hop
    }

    /// The link-layer address of a next hop on this link: that of the kernel's neighbour, if usable
    /// (reachable, stale, delay, probe, permanent, noarp), or the one a broadcast or multicast address
    /// maps to (RFC 1112 section 6.4, RFC 2464 section 7). If `None`, [`resolve`](KernelView::resolve) it.
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

    /// Whether the kernel's entry of `next_hop` is stale. It must be verified "the first time a node sends a packet" to
    /// it (RFC 4861 section 7.3.3), which [`resolve`](KernelView::resolve) starts.
    pub fn is_stale(&self, next_hop: IpAddr) -> bool {
        sync::lock(&self.tables).neighbours.get(&next_hop).is_some_and(Neighbour::is_stale)
    }

    /// Whether the kernel's resolution of `next_hop` has failed. [`resolve`](KernelView::resolve) starts it again.
    pub fn is_unreachable(&self, next_hop: IpAddr) -> bool {
        sync::lock(&self.tables).neighbours.get(&next_hop).is_some_and(Neighbour::has_failed)
    }

    /// Makes the kernel resolve `next_hop` as if it had a packet for it: it solicits an unknown neighbour and
    /// verifies a stale one. A notification tells the result: see [`fd`](KernelView::fd). Entries made by an
    /// administrator are not changed.
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
            // For NTF_USE the kernel solicits from its link-local address only, and not at all without one
            // (`ndisc_solicit`). A packet to the neighbour makes it solicit from another address.
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

    /// Tells the kernel that `next_hop` is reachable: it has answered what we sent. Costs a lookup, and a system
    /// call at most once a second per neighbour.
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
        // A neighbour deleted meanwhile needs no confirmation.
        let _ = self.send_newneigh(next_hop, tables::NUD_REACHABLE, kept_flags, 0);
    }

    /// Sends one RTM_NEWNEIGH request.
    fn send_newneigh(&self, next_hop: IpAddr, state: u16, ntf: u8, flags: u16) -> io::Result<()> {
        let request = Request::new(
            RTM_NEWNEIGH,
            &tables::ndmsg(tables::family(next_hop), self.ifindex, state, ntf),
        )
        .flags(flags)
        .attribute(NDA_DST, &tables::octets(next_hop));
        sync::lock(&self.requests).request(request, &mut |_| ())
    }

    /// Dumps all tables.
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
        // If the request fails, the neighbour stays unresolved and the caller's timeout applies.
        let _ = KernelView::resolve(self, address);
    }

    fn confirm(&self, address: IpAddr) {
        KernelView::confirm(self, address);
    }

    fn link_address(&self) -> Option<Arc<AtomicU64>> {
        (self.mac.load(Ordering::Relaxed) != 0).then(|| self.mac.clone())
    }
}

/// A UDP socket over IPv6 that takes a port only when it first sends.
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

    /// Notifications are lost while requests fail. The dump is repeated until a request succeeds.
    #[test]
    fn a_dump_after_lost_notifications_is_retried_until_it_succeeds() {
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
        // No kernel code answers on this netlink protocol.
        let unanswered = Socket::of(libc::NETLINK_USERSOCK).unwrap();
        let socket = std::mem::replace(&mut *sync::lock(&view.requests), unanswered);
        let before = view.generation();
        ip((1..=200).map(add).collect());
        view.process();
        assert_ne!(view.generation(), before, "a route's notification may be lost, too");
        view.process();
        assert!(view.addresses().len() < 200, "no notification was lost");
        *sync::lock(&view.requests) = socket;
        ip(add(201));
        view.process();
        assert_eq!(view.addresses().iter().filter(|(ip, _)| !ip.is_loopback()).count(), 201);
    }
}
