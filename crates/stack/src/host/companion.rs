//! The kernel's part of a host that shares an interface with it. Each UDP socket of ours has a kernel socket
//! beside it, its *companion*: it reserves the port, receives packets that do not come over our queues (fragments
//! out of order, loopback, other interfaces), and sends packets that our queues cannot carry (broadcast, routes over other
//! interfaces). One thread waits for all companions, for changes of the kernel's tables and for its ICMP errors.

use super::{
    companion_listener::CompanionEndpoint,
    give_back,
    group_ring::GroupRing,
    groups::RECHECK,
    kernel_sockets::KernelSockets,
    kernel_udp::{bind, disconnect, enable_pktinfo, receive},
    later::Later,
    port_reservation::{PortReservation, ReservationOptions, ReservedPorts, TCP},
    reuse::{self, Priority},
    take_over::TakeOvers,
};
use crate::{
    icmp_sockets::IcmpSockets,
    inet::{
        BindOptions, Datagram, Inet, Interface, Pass, PathOptions, UdpEndpoint,
        kernel::{KernelView, Received, recv_with_destination},
    },
    napi::PolledBy,
    nic::{Nic, Steering},
    sync::lock,
    sys::{self, set_option},
    thread::{Thread, serve},
    time,
};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as KernelSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

pub(super) const UDP: u8 = 17;

/// One interface shared with the kernel.
pub(super) struct Shared {
    pub(super) view: Arc<KernelView>,
    pub(super) interface: Arc<Interface>,
    pub(super) steering: Option<Arc<dyn Steering>>,
    pub(super) group_ring: GroupRing,
    /// The steering program stays attached as long as the NIC lives.
    pub(super) _nic: Mutex<Box<dyn Nic>>,
}

/// After this many connections are handed over to the kernel, the steering entries of those that have ended are pruned.
const PRUNE_EVERY: u32 = 256;

pub(super) struct State {
    pub(super) inet: Arc<Inet>,
    /// Empty until the host has one.
    shared: OnceLock<Vec<Shared>>,
    pub(super) epoll: OwnedFd,
    /// Wakes the thread, to end or to compute its timeout anew.
    wake: OwnedFd,
    stop: AtomicBool,
    /// Some socket is a member of a multicast group.
    pub(super) has_groups: AtomicBool,
    pub(super) icmp: OwnedFd,
    /// None where the kernel has no IPv6.
    pub(super) icmpv6: Option<OwnedFd>,
    pub(super) companions: Mutex<HashMap<u64, Entry>>,
    /// Held while datagrams are taken from a companion and delivered, so that they stay in order.
    pub(super) delivering: Mutex<()>,
    /// Kernel listeners that are companions of ours.
    pub(super) listeners: Mutex<HashMap<u64, Arc<dyn CompanionEndpoint>>>,
    /// The steered TCP ports.
    pub(super) ports: Mutex<HashMap<u64, Steered>>,
    /// Reads the kernel's connections.
    kernel_sockets: Mutex<KernelSockets>,
    pub(super) take_overs: TakeOvers,
    pub(super) later: Later,
    pub(super) reserved: ReservedPorts,
    /// How many connections were handed over to the kernel.
    pub(super) handed_over: AtomicU32,
    /// Other processes use connections of this one.
    pub(super) are_used: AtomicBool,
    pub(super) next: AtomicU64,
}

pub(super) struct Entry {
    pub(super) socket: Arc<KernelSocket>,
    endpoint: Arc<dyn UdpEndpoint>,
    /// Its port.
    pub(super) port: u16,
    /// The groups it is in, each with the number of the shared interface.
    pub(super) groups: Vec<(usize, IpAddr)>,
    /// Those of them that come over the ring of the interface.
    pub(super) on_ring: Vec<(usize, IpAddr)>,
    /// The groups of which the kernel socket drops the ring's copies; `None`: unknown.
    pub(super) dropped: Option<Vec<(usize, IpAddr)>>,
    /// A child process may have the socket.
    pub(super) is_inherited: bool,
    /// Set once our own socket is bound, too.
    pub(super) steered: Option<Steered>,
}

/// A local address whose packets are steered to our queues, on all shared interfaces that have it.
pub(super) struct Steered {
    protocol: u8,
    only_v6: bool,
    port: u16,
    local: IpAddr,
    /// Of a UDP socket whose port others may have, too: its priority. See [`reuse`](super::reuse).
    reuse: Option<u32>,
    /// Only TCP connections from these addresses are steered; `None`: the whole port is.
    from: Option<Vec<SocketAddr>>,
    /// These connections were another process's.
    taken: bool,
    /// Multicast groups that are steered, too.
    pub(super) groups: Vec<(usize, IpAddr)>,
    /// The addresses in the steering map now, by interface.
    at: Vec<(usize, IpAddr)>,
}

impl Steered {
    pub(super) fn new(protocol: u8, local: SocketAddr, only_v6: bool) -> Steered {
        let (port, local) = (local.port(), local.ip().to_canonical());
        let (groups, at) = (Vec::new(), Vec::new());
        Steered {
            protocol,
            only_v6,
            port,
            local,
            reuse: None,
            from: None,
            taken: false,
            groups,
            at,
        }
    }

    /// For TCP connections from `remotes` only.
    pub(super) fn from(local: SocketAddr, only_v6: bool, remotes: Vec<SocketAddr>) -> Steered {
        let remotes = remotes.into_iter().map(|it| (it.ip().to_canonical(), it.port()).into());
        let from = Some(remotes.collect());
        Steered { from, ..Steered::new(TCP, local, only_v6) }
    }

    /// For a TCP connection that another process has given up.
    pub(super) fn taken(local: SocketAddr, remote: SocketAddr) -> Steered {
        Steered { taken: true, ..Steered::from(local, false, vec![remote]) }
    }

    /// Whether packets to `address` are for it.
    pub(super) fn covers(&self, address: IpAddr) -> bool {
        match self.local {
            IpAddr::V4(local) if local.is_unspecified() => address.is_ipv4(),
            IpAddr::V6(local) if local.is_unspecified() => address.is_ipv6() || !self.only_v6,
            local => local == address,
        }
    }
}

/// The thread and the descriptors it waits for. Dropping it ends the thread.
pub(crate) struct CompanionService {
    state: Arc<State>,
    thread: Option<Thread>,
}

/// The kernel socket beside one of ours. Dropping it frees the port.
#[derive(Debug)]
pub(crate) struct Companion {
    pub(super) id: u64,
    pub(super) socket: Arc<KernelSocket>,
    only_v6: bool,
    pub(super) priority: Priority,
    pub(super) state: Arc<State>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} shared interfaces", self.shared().len())
    }
}

const WAKE: u64 = 0;
const ICMP: u64 = 1;
const ICMPV6: u64 = 2;
const FIRST_VIEW: u64 = 3;
const FIRST_COMPANION: u64 = 1 << 32;

/// The most packets taken from one socket at a time, so that a flood to it does not starve the others. Epoll reports
/// the rest again.
const BATCH: u32 = 64;
/// No datagram is longer.
const LONGEST: usize = 1 << 16;

impl CompanionService {
    pub(super) fn start(inet: Arc<Inet>, icmp: IcmpSockets) -> io::Result<CompanionService> {
        let epoll = sys::epoll()?;
        let wake = sys::eventfd()?;
        let IcmpSockets { v4: icmp, v6: icmpv6 } = icmp;
        listen(&epoll, wake.as_fd(), WAKE)?;
        listen(&epoll, icmp.as_fd(), ICMP)?;
        if let Some(icmpv6) = &icmpv6 {
            listen(&epoll, icmpv6.as_fd(), ICMPV6)?;
        }
        let (companions, listeners) = (Mutex::default(), Mutex::default());
        let next = AtomicU64::new(FIRST_COMPANION);
        let (ports, kernel_sockets, reserved, take_overs) = Default::default();
        let later = Later::default();
        let state = Arc::new(State {
            inet,
            shared: OnceLock::new(),
            epoll,
            wake,
            stop: AtomicBool::new(false),
            has_groups: AtomicBool::new(false),
            handed_over: AtomicU32::new(0),
            are_used: AtomicBool::new(false),
            icmp,
            icmpv6,
            companions,
            delivering: Mutex::default(),
            listeners,
            ports,
            kernel_sockets,
            take_overs,
            later,
            reserved,
            next,
        });
        give_back::take_segments(&state);
        let for_thread = state.clone();
        let thread = serve("busypoll/kernel", move || for_thread.serve())?;
        Ok(CompanionService { state, thread: Some(thread) })
    }

    /// The host has these interfaces from now on.
    pub(super) fn add_interfaces(&self, shared: Vec<Shared>) -> io::Result<()> {
        for (token, shared) in (FIRST_VIEW..).zip(&shared) {
            listen(&self.state.epoll, shared.view.fd(), token)?;
        }
        let _ = self.state.shared.set(shared);
        Ok(())
    }

    /// Makes the bound kernel socket `kernel` the companion of a socket of ours. Datagrams it has already received are
    /// delivered once it [receives](Companion::receive). It may be the application's, so its flags stay as they are. None
    /// if it is bound to no address of a shared interface; loopback addresses count if `is_same_host`.
    pub(crate) fn adopt(
        &self,
        kernel: KernelSocket,
        (only_v6, is_same_host): (bool, bool),
        endpoint: Arc<dyn UdpEndpoint>,
    ) -> io::Result<Option<Companion>> {
        let local = kernel.local_addr()?;
        let is_loopback = is_same_host && local.ip().to_canonical().is_loopback();
        if !is_loopback && !self.state.is_kernel_address(local) {
            return Ok(None);
        }
        enable_pktinfo(&kernel)?;
        self.enter(Arc::new(kernel), only_v6, endpoint).map(Some)
    }

    fn enter(
        &self,
        socket: Arc<KernelSocket>,
        only_v6: bool,
        endpoint: Arc<dyn UdpEndpoint>,
    ) -> io::Result<Companion> {
        let state = &self.state;
        let id = state.next.fetch_add(1, Ordering::Relaxed);
        let port = socket.local_addr()?.port();
        let entry = Entry {
            socket: socket.clone(),
            endpoint,
            port,
            groups: Vec::new(),
            on_ring: Vec::new(),
            dropped: None,
            is_inherited: false,
            steered: None,
        };
        lock(&state.companions).insert(id, entry);
        let priority = Priority::default();
        Ok(Companion { id, socket, only_v6, priority, state: state.clone() })
    }

    /// A kernel socket bound to `local` as companion of a socket of ours, and the address it got. The kernel checks the
    /// address. None if the address is our own.
    pub(crate) fn reserve(
        &self,
        local: SocketAddr,
        options: BindOptions,
        endpoint: Arc<dyn UdpEndpoint>,
    ) -> io::Result<Option<(SocketAddr, Companion)>> {
        if self.state.inet.is_own(local.ip()) {
            return Ok(None);
        }
        let socket = Arc::new(bind(local, options)?);
        let local = socket.local_addr()?;
        let companion = self.enter(socket, options.only_v6, endpoint)?;
        companion.receive()?;
        Ok(Some((local, companion)))
    }

    pub(super) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Reserves a TCP port in the kernel, see [`PortReservation::named`].
    pub(crate) fn reserve_port(
        &self,
        local: SocketAddr,
        options: ReservationOptions,
    ) -> io::Result<Option<Arc<PortReservation>>> {
        PortReservation::named(&self.state, local, options)
    }

    /// Checks that the kernel has a route to `remote`; the error is the kernel's.
    #[cold]
    pub(crate) fn check_route(&self, remote: SocketAddr) -> io::Result<()> {
        let any: SocketAddr = match remote {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        KernelSocket::bind(any)?.connect(remote)
    }

    /// Hands a connection of ours over to the kernel.
    pub(crate) fn hand_over(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.state.exclude(local, remote)
    }

    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.state.addresses().any(|(_, ip)| ip == address)
    }

    /// Releases the idle ports; false: there are none.
    pub(super) fn release_idle_ports(&self) -> bool {
        self.state.reserved.release_idle(&self.state)
    }

    /// Reserves any TCP port in the kernel, for a connection, see [`PortReservation::ephemeral`].
    pub(crate) fn reserve_ephemeral(&self, like: SocketAddr) -> io::Result<PortReservation> {
        PortReservation::ephemeral(&self.state, like)
    }
}

impl Drop for CompanionService {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        self.state.wake();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Companion {
    /// From now on datagrams that the kernel socket has are delivered.
    pub(crate) fn receive(&self) -> io::Result<()> {
        listen(&self.state.epoll, self.socket.as_fd(), self.id)
    }

    /// From now on packets for `local` come over our queues.
    pub(crate) fn steer(&self, local: SocketAddr) -> io::Result<()> {
        let mut companions = lock(&self.state.companions);
        let Some(entry) = companions.get_mut(&self.id) else { return Ok(()) };
        let reuse = reuse::priority_if_reused(&self.socket);
        let steered = Steered { reuse, ..Steered::new(UDP, local, self.only_v6) };
        self.state.steer(entry.steered.insert(steered))?;
        if reuse.is_some() {
            self.name_process();
        }
        // Until now this socket may have kept a group at its port from being steered.
        let port = entry.port;
        let shares = self.state.has_groups.load(Ordering::Acquire)
            && companions.values().any(|other| other.port == port && !other.groups.is_empty());
        drop(companions);
        if shares {
            self.state.update_group_steering();
        }
        Ok(())
    }

    /// Delivers the datagrams that have reached the companion. The thread does it as well, but later: a socket that has
    /// just become ours must have at once what the kernel's had.
    pub(crate) fn deliver_queued(&self) {
        let mut buffer = vec![0; LONGEST];
        let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
        // The thread takes the rest, if the peer sends faster than this.
        let _ = (0..8).any(|_| self.state.companion_readable(self.id, &mut buffer, &mut pass));
        pass.wake.wake_all();
    }

    /// The companion's local address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Applies the socket's options to datagrams sent through the kernel.
    pub(crate) fn set_options(&self, options: &PathOptions) -> io::Result<()> {
        let socket = &*self.socket;
        set_option(socket, libc::SOL_SOCKET, libc::SO_BROADCAST, i32::from(options.broadcast))?;
        set_option(socket, libc::IPPROTO_IP, libc::IP_TTL, i32::from(options.ttl))?;
        set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, i32::from(options.tos))?;
        let discover = i32::from(options.discover.number());
        set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover)?;
        if socket.local_addr()?.is_ipv6() {
            let set = |name, value| set_option(socket, libc::IPPROTO_IPV6, name, value);
            set(libc::IPV6_UNICAST_HOPS, options.ttl.into())?;
            set(libc::IPV6_TCLASS, options.tos.into())?;
            // The same numbers as IPv4's.
            set(libc::IPV6_MTU_DISCOVER, discover)?;
        }
        // IP_TOS has changed it.
        self.name_process_again();
        Ok(())
    }

    /// Sends a datagram through the kernel.
    pub(crate) fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<()> {
        let send = || sys::send_to(self.socket.as_raw_fd(), payload, to);
        // The first call may return the error of an earlier datagram. The raw sockets report that one.
        send().or_else(|_| send())
    }

    /// Receives only datagrams from `remote` from now on; with `None`, from any address.
    pub(crate) fn connect(&self, remote: Option<SocketAddr>) -> io::Result<()> {
        match remote {
            Some(remote) => self.socket.connect(remote),
            None => disconnect(&self.socket),
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let entry = lock(&self.state.companions).remove(&self.id);
        // Other descriptors may keep the socket open, and epoll would report it for ever. If it does not receive, this
        // fails.
        let _ = sys::epoll_control(
            self.state.epoll.as_raw_fd(),
            libc::EPOLL_CTL_DEL,
            self.socket.as_raw_fd(),
            0,
            self.id,
        );
        if let Some(mut entry) = entry {
            entry.drop_nothing();
            if let Some(steered) = entry.steered {
                self.state.unsteer(steered);
            }
        }
        self.restore_priority();
    }
}

impl State {
    /// The interfaces shared with the kernel.
    pub(super) fn shared(&self) -> &[Shared] {
        self.shared.get().map_or(&[], Vec::as_slice)
    }

    /// The kernel's addresses on the shared interfaces, each with the interface's number.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (usize, IpAddr)> {
        self.shared().iter().enumerate().flat_map(|(at, shared)| {
            shared.view.addresses().into_iter().map(move |(address, _)| (at, address))
        })
    }

    /// Whether `local` can be bound on a shared interface: an address of it, the wildcard, or a group.
    pub(super) fn is_kernel_address(&self, local: SocketAddr) -> bool {
        let local = local.ip().to_canonical();
        local.is_unspecified()
            || local.is_multicast() && !self.shared().is_empty()
            || self.addresses().any(|(_, ip)| ip == local)
    }

    /// Updates the steering of `port` by its local address and the interfaces' addresses. A wildcard stands for
    /// every address of every shared interface. On an error the remaining entries stay as they are.
    pub(super) fn steer(&self, port: &mut Steered) -> io::Result<()> {
        let wanted: Vec<_> = self
            .addresses()
            .filter(|(_, ip)| port.covers(*ip))
            .chain(port.groups.iter().copied())
            .collect();
        for &(at, ip) in &wanted {
            if !port.at.contains(&(at, ip)) {
                self.steer_at(port, (at, ip))?;
                port.at.push((at, ip));
            }
        }
        let mut at = std::mem::take(&mut port.at);
        at.retain(|place| {
            let stays = wanted.contains(place);
            if !stays {
                self.unsteer_at(port, *place);
            }
            stays
        });
        port.at = at;
        Ok(())
    }

    /// All or nothing.
    fn steer_at(&self, port: &Steered, (at, ip): (usize, IpAddr)) -> io::Result<()> {
        let Some(steering) = &self.shared()[at].steering else { return Ok(()) };
        let local = SocketAddr::new(ip, port.port);
        let Some(from) = &port.from else {
            return match port.reuse {
                Some(priority) if !ip.is_multicast() => steering.join(local, priority),
                _ => steering.add(port.protocol, local),
            };
        };
        let of_family = || from.iter().filter(|remote| remote.is_ipv4() == ip.is_ipv4());
        for (done, remote) in of_family().enumerate() {
            let added = match port.taken {
                true => steering.take_connection(local, *remote),
                false => steering.add_connection(local, *remote),
            };
            if let Err(error) = added {
                of_family().take(done).for_each(|it| steering.remove_connection(local, *it));
                return Err(error);
            }
        }
        Ok(())
    }

    fn unsteer_at(&self, port: &Steered, (at, ip): (usize, IpAddr)) {
        let Some(steering) = &self.shared()[at].steering else { return };
        let local = SocketAddr::new(ip, port.port);
        match &port.from {
            None => steering.remove(port.protocol, local),
            Some(from) => from
                .iter()
                .filter(|remote| remote.is_ipv4() == ip.is_ipv4())
                .for_each(|remote| steering.remove_connection(local, *remote)),
        }
    }

    /// The kernel makes the connections to a TCP port that a listener of ours waits for. Returns the addresses, each with
    /// the number of its interface, at which other processes know that.
    ///
    /// # Errors
    /// A full steering map.
    pub(super) fn share(
        &self,
        local: SocketAddr,
        only_v6: bool,
    ) -> io::Result<Vec<(usize, SocketAddr)>> {
        let covers = Steered::new(TCP, local, only_v6);
        let mut at = Vec::new();
        for (on, ip) in self.addresses().filter(|(_, ip)| covers.covers(*ip)) {
            let Some(steering) = &self.shared()[on].steering else { continue };
            let local = SocketAddr::new(ip, local.port());
            if let Err(error) = steering.share(local) {
                self.unshare(&at);
                return Err(error);
            }
            at.push((on, local));
        }
        Ok(at)
    }

    pub(super) fn unshare(&self, at: &[(usize, SocketAddr)]) {
        for (on, local) in at {
            self.shared()[*on].steering.iter().for_each(|steering| steering.unshare(*local));
        }
    }

    fn unsteer(&self, port: Steered) {
        port.at.iter().for_each(|place| self.unsteer_at(&port, *place));
    }

    /// Hands one connection over to the kernel. Now and then, prunes entries of connections that have ended.
    fn exclude(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        if self.handed_over.fetch_add(1, Ordering::Relaxed) % PRUNE_EVERY == PRUNE_EVERY - 1
            && let Ok(live) = lock(&self.kernel_sockets).connections(local.port())
        {
            self.steering_of(local.ip()).for_each(|steering| steering.prune_excluded(local, &live));
        }
        self.steering_of(local.ip()).try_for_each(|steering| steering.hand_over(local, remote))
    }

    /// The steering maps of the interfaces that have this address.
    pub(super) fn steering_of(&self, ip: IpAddr) -> impl Iterator<Item = &dyn Steering> {
        let has = move |at: &usize| self.addresses().any(|(on, known)| on == *at && known == ip);
        let all = (0..self.shared().len()).filter(has);
        all.filter_map(|at| self.shared().get(at)?.steering.as_deref())
    }

    /// Steers a TCP port from now on. Returns the number by which to [`remove`](State::remove) it.
    pub(super) fn add(&self, mut port: Steered) -> io::Result<u64> {
        let mut ports = lock(&self.ports);
        if let Err(error) = self.steer(&mut port) {
            self.unsteer(port);
            return Err(error);
        }
        // Usually one address. Each connection made from here has its own list, so memory counts.
        port.at.shrink_to_fit();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        ports.insert(id, port);
        Ok(id)
    }

    /// From now on steers only the connections from `remotes` to a steered port. If that fails, nothing changes.
    pub(super) fn narrow(&self, id: u64, remotes: Vec<SocketAddr>) -> io::Result<()> {
        let mut ports = lock(&self.ports);
        let Some(port) = ports.get_mut(&id) else { return Ok(()) };
        let local = SocketAddr::new(port.local, port.port);
        let mut some = Steered::from(local, port.only_v6, remotes);
        // The connections first, so that none of their packets reaches the kernel.
        if let Err(error) = self.steer(&mut some) {
            self.unsteer(some);
            return Err(error);
        }
        self.unsteer(std::mem::replace(port, some));
        Ok(())
    }

    /// Whether the kernel has a connection, not in TIME_WAIT, between `remote` and an address that `local` stands for.
    pub(super) fn has_connection(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let near = Steered::new(TCP, local, false);
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let mut kernel_sockets = lock(&self.kernel_sockets);
        let ours = self.addresses().map(|(_, ip)| ip);
        ours.filter(|ip| ip.is_ipv4() == remote.is_ipv4() && near.covers(*ip))
            .any(|ip| kernel_sockets.has((ip, local.port()).into(), remote))
    }

    pub(super) fn remove(&self, id: u64) {
        let port = lock(&self.ports).remove(&id);
        if let Some(port) = port {
            self.unsteer(port);
        }
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        sys::signal(self.wake.as_raw_fd());
    }

    fn serve(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let mut buffer = vec![0; LONGEST];
        let mut looked = time::now();
        while !self.stop.load(Ordering::Acquire) {
            let recheck = self.has_groups.load(Ordering::Acquire).then_some(RECHECK);
            let limit = recheck.into_iter().chain(self.later.limit()).min();
            let ready = sys::epoll_wait(self.epoll.as_raw_fd(), &mut events, limit);
            self.later.run();
            if recheck.is_some() && time::now() - looked >= RECHECK {
                looked = time::now();
                self.update_group_steering();
            }
            for event in &events[..usize::try_from(ready).unwrap_or(0)] {
                let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
                let token = event.u64;
                match token {
                    WAKE => {
                        sys::drain(self.wake.as_raw_fd());
                        self.finish_take_overs();
                    }
                    ICMP => self.icmp(&mut buffer, &mut pass),
                    ICMPV6 => self.icmpv6(&mut buffer, &mut pass),
                    id if id >= FIRST_COMPANION => {
                        self.companion_readable(id, &mut buffer, &mut pass);
                    }
                    view => self.tables_changed((view - FIRST_VIEW) as usize, &mut pass),
                }
                pass.wake.wake_all();
            }
        }
    }

    fn tables_changed(&self, at: usize, pass: &mut Pass) {
        let Some(shared) = self.shared().get(at) else { return };
        shared.view.process();
        // If the steering map is full, the address stays with the kernel, and the companion delivers.
        for entry in lock(&self.companions).values_mut() {
            let _ = entry.steered.as_mut().map(|port| self.steer(port));
        }
        for port in lock(&self.ports).values_mut() {
            let _ = self.steer(port);
        }
        self.inet.neighbours_changed(&shared.interface, pass);
    }

    fn icmp(&self, buffer: &mut [u8], pass: &mut Pass) {
        for _ in 0..BATCH {
            let Some(len) = receive(&self.icmp, buffer) else { return };
            self.inet.icmp_error_input(&buffer[..len], pass);
        }
    }

    fn icmpv6(&self, buffer: &mut [u8], pass: &mut Pass) {
        let Some(socket) = &self.icmpv6 else { return };
        for _ in 0..BATCH {
            let Ok(received) = recv_with_destination(socket.as_fd(), buffer) else { return };
            if let IpAddr::V6(local) = received.to {
                let message = &buffer[..received.len];
                self.inet.icmpv6_error_input(message, local, received.interface, pass);
            }
        }
    }

    fn listener_readable(&self, id: u64, pass: &mut Pass) {
        let endpoint = lock(&self.listeners).get(&id).cloned();
        if let Some(endpoint) = endpoint {
            endpoint.readable(pass);
        }
    }

    /// Whether there is nothing left to take.
    fn companion_readable(&self, id: u64, buffer: &mut [u8], pass: &mut Pass) -> bool {
        let (socket, endpoint, port) = {
            let companions = lock(&self.companions);
            let Some(entry) = companions.get(&id) else {
                drop(companions);
                self.listener_readable(id, pass);
                return true;
            };
            (entry.socket.clone(), entry.endpoint.clone(), entry.port)
        };
        let _delivering = lock(&self.delivering);
        for _ in 0..BATCH {
            match recv_with_destination(socket.as_fd(), buffer) {
                Ok(Received { len, from, to, ttl, tos, .. }) => {
                    let (to, payload) = (SocketAddr::new(to, port), &buffer[..len]);
                    let datagram = Datagram { from, to, ttl, tos, payload };
                    self.inet.udp_from_kernel(&*endpoint, &datagram, pass);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // The raw sockets report ICMP errors, too, including those of datagrams that our queues sent.
                Err(_) => {}
            }
        }
        false
    }
}

fn listen(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    let (epoll, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
    sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, token)
}
