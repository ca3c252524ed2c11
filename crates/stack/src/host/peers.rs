//! Other processes of this machine with which connections between the machine's own addresses go over links: how a
//! process finds the one that listens at an address, and how both ends of a connection are handed over to the kernel
//! when a child process, or a program that is executed, is to have one of them.
//!
//! A process that waits for a listener publishes its address: it listens at a name made of it ([`cable::listen`]), and
//! accepts over links. If a second process waits at the address, the two make a group ([`workers`](super::workers)),
//! and so do further ones: the one that has the name gives them, and clients, the group's memory. When it goes, another
//! one takes the name. Each process has one more name, by its process id, for requests.
//!
//! A process may wait for a listener and leave accepting to a child, or to a program that is executed. So before a fork
//! and an exec the connections that wait in its accept queue are given back: each client connects by the kernel, and
//! sends again what the listener had received.

mod containers;
mod directory;
mod hand_over;
mod local_streams;
mod requests;
pub(super) mod shares;

pub use containers::{Containers, is_in_directory};
pub use local_streams::{
    Asked, Leave, LeaveStream, MoveStream, StreamOffer, is_stream_offered, offers, peer_inode,
    serve_local_streams, stream_ends, stream_names,
};
pub(crate) use requests::{OtherEnd, Received, Rest};

use self::{
    hand_over::Handing,
    requests::{
        DONE, GROUP, HAND_OVER, JOIN, LEAVE_STREAM, LINK, LINK_REQUEST, MOVE_STREAM, NOT_NOW, PING,
        Peer, Process, REQUEST, TAKE_BACK, control_name, ends_of,
    },
    shares::{Shares, is_group, share},
};
use super::{
    Host, Inner, Link, idle_links::IdleLinks, kernel_sockets::KernelSockets, workers::Group,
};
use crate::{
    inet::{Pass, tcp::TakesLinks},
    napi::PolledBy,
    nic::cable::{self, ProcessCable, Rendezvous},
    sync::lock,
    sys,
    thread::{Thread, serve},
    time,
    unix::{self, message},
    wire::MacAddr,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How many addresses are known to be reached.
const MOST_REACHED: usize = 64;

/// The most links of a process. Connections to further processes are the kernel's.
const MOST_LINKS: usize = 256;

/// How often links are looked at: one is closed when it has been idle for two or three times as long.
const LOOK: Duration = Duration::from_secs(10);

/// Frames of a link hold a segment of a few pages.
const MTU: usize = 16 * 1024;

/// A process that does not answer for so long is left to the kernel.
const PATIENCE: Duration = Duration::from_millis(20);

/// So long after that new connections to it are the kernel's at once: it may be stopped, or short of CPU time. The same
/// holds for one that refuses a cable, as it is another user's.
const KERNEL_TIME: Duration = Duration::from_secs(1);

/// How long the other end of a connection may take until it can be handed over: it may not have accepted it yet.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(1);

/// How long one of several processes that wait for a listener may take to accept: it says that it waits.
const ACCEPT_PATIENCE: Duration = Duration::from_millis(3);

/// How soon a process that has lost the owner of its group looks for the next one again.
const SOON: Duration = Duration::from_millis(20);

/// This process has forked. A child may have its listeners, and would not see a connection to itself over a link.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// Hands the connection with these ends, local and remote, over to the kernel. Returns whether the kernel has it.
pub type HandOver = fn(SocketAddr, SocketAddr) -> bool;

/// The service of one process.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

struct Shared {
    host: Weak<Inner>,
    control: OwnedFd,
    /// The thread looks at the lists again.
    changed: OwnedFd,
    stop: AtomicBool,
    hand_over: HandOver,
    published: Mutex<Vec<Published>>,
    /// The names of sockets that take datagrams.
    names: Mutex<Vec<Arc<Rendezvous>>>,
    links: Mutex<Vec<Linked>>,
    /// Held while a link is made.
    joining: Mutex<()>,
    /// The links over which the last connections were made: these are not looked up again.
    reached: Mutex<Vec<(Destination, Reached)>>,
    kernel_sockets: Mutex<KernelSockets>,
    /// The name by which clients of a group find this process.
    own_name: Mutex<Option<Arc<Rendezvous>>>,
    /// The processes that have not answered, and until when new connections to them are the kernel's.
    slow: Mutex<Vec<(Process, Instant)>>,
    /// The connections that this process is handing over: the kernel's sockets have their ends already.
    handing_over: Mutex<Vec<Handing>>,
    /// What this process has had of AF_UNIX streams that it leaves to the kernel.
    leaving: Mutex<Vec<local_streams::Leaving>>,
    /// The directory by which processes of other network namespaces find this one.
    containers: Option<containers::Served>,
}

/// A link, and the process at its other end.
struct Linked {
    peer: Peer,
    link: Link,
    /// The link-layer addresses of this end and of the other one. Two processes may have several links, as each may
    /// make one, and one may be about to end.
    macs: [MacAddr; 2],
}

struct Published {
    address: SocketAddr,
    /// `None`: another process has the name.
    rendezvous: Option<Arc<Rendezvous>>,
    /// The listeners of this process at the address.
    listeners: Vec<TakesLinks>,
    /// Other processes wait there as well.
    shared: Option<Shares>,
    /// Processes of other network namespaces are to find it.
    named: Option<containers::Named>,
}

/// The remote address of a connection, and the address of the listener that gets it, if the kernel says.
type Destination = (SocketAddr, Option<IpAddr>);

/// How connections to an address are made.
#[derive(Clone)]
enum Reached {
    Over(Link),
    OneOf(Arc<Group>),
}

/// A way for one connection to a process of this machine.
#[derive(Debug)]
#[doc(hidden)]
pub struct ProcessWay {
    /// The link to the process.
    pub link: Link,
    /// How long the process may take to answer.
    pub patience: Duration,
    /// It is one of several.
    is_shared: bool,
}

/// The kinds of sockets that are published.
const TCP: &str = "tcp";
pub(super) const UDP: &str = "udp";

pub(super) fn name_of(kind: &str, address: SocketAddr) -> String {
    format!("{kind}-{address}")
}

impl Peers {
    /// # Errors
    /// No descriptor or thread left.
    fn start(
        host: &Arc<Inner>,
        hand_over: HandOver,
        containers: Option<Containers>,
    ) -> io::Result<Peers> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK;
        let shared = Arc::new(Shared {
            host: Arc::downgrade(host),
            control: unix::listen(&control_name(std::process::id()), kind)?,
            changed: sys::eventfd()?,
            stop: AtomicBool::new(false),
            hand_over,
            published: Mutex::default(),
            names: Mutex::default(),
            links: Mutex::default(),
            joining: Mutex::default(),
            reached: Mutex::default(),
            kernel_sockets: Mutex::default(),
            slow: Mutex::default(),
            own_name: Mutex::default(),
            handing_over: Mutex::default(),
            leaving: Mutex::default(),
            // Without it their connections are the kernel's.
            containers: containers.and_then(|it| containers::Served::open(it).ok()),
        });
        let served = shared.clone();
        let thread = serve("busypoll/peers", move || served.serve())?;
        Ok(Peers { shared, thread: Some(thread) })
    }

    /// A listener at `address` waits for connections: also over links from now on. Processes that are not known here
    /// may wait for it, too, if `is_shared`.
    pub(crate) fn publish(&self, address: SocketAddr, listener: TakesLinks, is_shared: bool) {
        let shared = &*self.shared;
        let mut published = lock(&shared.published);
        if let Some(known) = published.iter_mut().find(|known| known.address == address) {
            match &known.shared {
                Some(shares) => share(&shares.group, &listener),
                None => listener.waits(),
            }
            return known.listeners.push(listener);
        }
        let (listeners, new) = (vec![listener.clone()], |rendezvous, shared| {
            move |listeners| Published { address, rendezvous, listeners, shared, named: None }
        });
        let made = match cable::listen_nonblocking(&name_of(TCP, address)) {
            Ok(rendezvous) => {
                let shares = is_shared.then(|| Shares::new(address).ok()).flatten();
                match &shares {
                    Some(shares) => share(&shares.group, &listener),
                    None if is_shared => listener.never(),
                    None => listener.waits(),
                }
                // Clients find it by the address until they know of the group.
                is_shared.then(|| shared.be_found());
                new(Some(Arc::new(rendezvous)), shares)(listeners)
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                // The owner may be this process's peer in something else: no lock while it is asked.
                drop(published);
                let Ok(shares) = Shares::join(address) else { return };
                shared.be_found();
                share(&shares.group, &listener);
                published = lock(&shared.published);
                new(None, Some(shares))(listeners)
            }
            // The kernel makes its connections.
            Err(_) => return,
        };
        published.push(made);
        drop(published);
        sys::signal(shared.changed.as_raw_fd());
    }

    /// A listener at `address` is closed.
    pub(crate) fn withdraw(&self, address: SocketAddr, listener: &TakesLinks) {
        let shared = &*self.shared;
        listener.never();
        let mut unnamed = Vec::new();
        lock(&shared.published).retain_mut(|known| {
            if known.address == address {
                known.listeners.retain(|it| !it.is_same(listener));
            }
            if known.listeners.is_empty() {
                unnamed.extend(known.named.take());
            }
            !known.listeners.is_empty()
        });
        unnamed.into_iter().for_each(|named| shared.unname(named));
        sys::signal(shared.changed.as_raw_fd());
    }

    /// The way to a process that accepts connections to `remote` over links. The link is made if there is none yet.
    fn way_to(&self, host: &Host, remote: SocketAddr) -> Option<ProcessWay> {
        // Several programs may listen at the port, with `SO_REUSEPORT` at different addresses: the kernel knows which of
        // them gets the connection.
        let listener = lock(&self.shared.kernel_sockets).listener(canonical(remote));
        let to = (remote, listener);
        let known = lock(&self.shared.reached).iter().find(|(known, _)| *known == to).cloned();
        let reached = match known {
            Some((_, reached)) => reached,
            None => {
                let link = match listener {
                    Some(ip) => {
                        let name = name_of(TCP, SocketAddr::new(ip, remote.port()));
                        self.look_up(host, std::iter::once(name))?
                    }
                    // No sock_diag in this kernel; or no listener, and then there is no name either.
                    None => self.look_up(host, names_for(TCP, remote))?,
                };
                let reached =
                    self.group_of(link, remote).map_or(Reached::Over(link), Reached::OneOf);
                let mut known = lock(&self.shared.reached);
                if known.len() >= MOST_REACHED {
                    known.remove(0);
                }
                known.push((to, reached.clone()));
                reached
            }
        };
        let group = match reached {
            Reached::Over(link) => {
                return Some(ProcessWay { link, patience: PATIENCE, is_shared: false });
            }
            Reached::OneOf(group) => group,
        };
        let to = |pid: u32| {
            let link = self.link_to_process(host, pid, &group)?;
            Some(ProcessWay { link, patience: ACCEPT_PATIENCE, is_shared: true })
        };
        let way = group.waiting(std::process::id()).find_map(to);
        if way.is_none() {
            group.remove_ended();
            if group.is_empty() {
                lock(&self.shared.reached).retain(|((to, _), _)| *to != remote);
            }
        }
        way
    }

    /// The link to the first process found by one of these names, made if there is none yet.
    pub(super) fn look_up(&self, host: &Host, names: impl Iterator<Item = String>) -> Option<Link> {
        let (socket, pid) = cable::dial_first(names).ok()?;
        let process = Process::here(pid.cast_unsigned());
        // Not visible from here: the kernel makes the connection.
        if pid == 0
            || self.is_slow(process)
            || is_own(process) && HAS_FORKED.load(Ordering::Relaxed)
        {
            return None;
        }
        self.joined(host, process, || {
            let cable = cable::join(socket, pid)?;
            let macs = cable.macs();
            let link = host.add_link(cable)?;
            Ok(Linked { peer: Peer { process, channel: None }, link, macs })
        })
    }

    /// The link to `process`, made by `join` if there is none yet.
    fn joined(
        &self,
        host: &Host,
        process: Process,
        join: impl FnOnce() -> io::Result<Linked>,
    ) -> Option<Link> {
        let _one_at_a_time = lock(&self.shared.joining);
        let mut links = lock(&self.shared.links);
        links.retain(|known| host.inet().has_link(known.link.0));
        // The last one: an earlier one may be about to end.
        if let Some(known) = links.iter().rfind(|known| known.peer.process == process) {
            return Some(known.link);
        }
        if links.len() >= MOST_LINKS {
            return None;
        }
        // The thread needs them: the other process may be this one.
        drop(links);
        let known = join().inspect_err(|_| self.set_slow(process)).ok()?;
        let link = known.link;
        lock(&self.shared.links).push(known);
        // The thread looks at it from now on.
        sys::signal(self.shared.changed.as_raw_fd());
        Some(link)
    }

    fn is_slow(&self, process: Process) -> bool {
        let mut slow = lock(&self.shared.slow);
        slow.retain(|(_, until)| Instant::now() < *until);
        slow.iter().any(|(known, _)| *known == process)
    }

    fn set_slow(&self, process: Process) {
        lock(&self.shared.slow).push((process, Instant::now() + KERNEL_TIME));
    }

    /// Other processes find this one by `name`, until [`withdraw_name`](Peers::withdraw_name).
    ///
    /// # Errors
    /// The name is taken; no descriptor left.
    pub(super) fn publish_name(&self, name: &str) -> io::Result<Arc<Rendezvous>> {
        let rendezvous = Arc::new(cable::listen_nonblocking(name)?);
        lock(&self.shared.names).push(rendezvous.clone());
        sys::signal(self.shared.changed.as_raw_fd());
        Ok(rendezvous)
    }

    pub(super) fn withdraw_name(&self, name: &Arc<Rendezvous>) {
        lock(&self.shared.names).retain(|known| !Arc::ptr_eq(known, name));
        sys::signal(self.shared.changed.as_raw_fd());
    }

    /// No connection could be made this way: the process does not accept there any more; or, if `is_refused` is false,
    /// it does not answer. Returns whether another process may take it.
    fn is_no_way(&self, way: &ProcessWay, remote: SocketAddr, is_refused: bool) -> bool {
        let peer = self.shared.peer_of(way.link.0).filter(|_| !is_refused);
        peer.into_iter().for_each(|peer| self.set_slow(peer.process));
        if way.is_shared {
            return true;
        }
        self.forget_group(remote);
        let is_it = |known: &Reached| matches!(known, Reached::Over(link) if *link == way.link);
        lock(&self.shared.reached).retain(|(_, known)| !is_it(known));
        is_refused && is_group(remote)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        sys::signal(self.shared.changed.as_raw_fd());
        // The thread itself may drop the host last.
        // SAFETY: a plain call.
        let is_own = |thread: &Thread| thread.id() == unsafe { libc::pthread_self() };
        if let Some(thread) = self.thread.take().filter(|thread| !is_own(thread)) {
            thread.join();
        }
    }
}

impl Shared {
    fn serve(self: &Arc<Shared>) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let (mut idle_links, mut next_look) = (IdleLinks::default(), Instant::now() + LOOK);
        while !self.stop.load(Ordering::Relaxed) {
            let published = lock(&self.published);
            let mut names: Vec<_> =
                published.iter().filter_map(|known| known.rendezvous.clone()).collect();
            names.extend(lock(&self.names).iter().cloned());
            let mut fds = vec![entry(self.changed.as_raw_fd()), entry(self.control.as_raw_fd())];
            fds.extend(names.iter().map(|name| entry(name.as_fd().as_raw_fd())));
            let ways = self.ways_of_containers();
            fds.extend(ways.iter().map(|fd| entry(fd.as_raw_fd())));
            // Only their ends count.
            let shares = || published.iter().filter_map(|known| known.shared.as_ref());
            let others = shares().flat_map(Shares::others).map(|fd| entry(fd.as_raw_fd()));
            fds.extend(others);
            let seeks_owner = published.iter().any(Published::seeks_owner);
            drop(published);
            let has_links = !lock(&self.links).is_empty();
            let limit = has_links.then(|| next_look.saturating_duration_since(Instant::now()));
            let limit = limit.into_iter().chain(seeks_owner.then_some(SOON)).min();
            let polled = sys::poll_all(&mut fds, limit);
            if has_links && Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                self.close_idle(&mut idle_links);
            }
            let others = fds.get(2 + names.len() + ways.len()..).unwrap_or_default();
            if seeks_owner || others.iter().any(|fd| fd.revents != 0) {
                self.renew_groups();
            }
            if polled <= 0 {
                continue;
            }
            if fds[0].revents != 0 {
                sys::drain(self.changed.as_raw_fd());
            }
            if fds[1].revents != 0 {
                // A process that sends nothing, or something else, gets no answer.
                let _ = self.accept_request(&self.control);
            }
            let (of_names, of_containers) = fds[2..].split_at(names.len());
            for (fd, _) in ways.iter().zip(of_containers).filter(|(_, fd)| fd.revents != 0) {
                self.serve_containers(fd);
            }
            for (name, _) in names.iter().zip(of_names).filter(|(_, fd)| fd.revents != 0) {
                let Some(inner) = self.host.upgrade() else { return };
                let config = cable::Config { mtu: MTU, ..cable::Config::default() };
                // It may have gone again.
                if let Ok(cable) = name.accept(config) {
                    self.accepted(&Host { inner }, cable);
                }
            }
        }
    }

    /// Closes the links that no connection uses.
    fn close_idle(&self, idle: &mut IdleLinks) {
        let Some(inner) = self.host.upgrade() else { return };
        let host = Host { inner };
        let mut links = lock(&self.links);
        links.retain(|known| host.inet().has_link(known.link.0));
        let numbers: Vec<_> = links.iter().map(|known| known.link.0).collect();
        drop(links);
        for number in idle.look(host.inet(), &numbers) {
            let is_it = |known: &Reached| matches!(known, Reached::Over(link) if link.0 == number);
            lock(&self.reached).retain(|(_, known)| !is_it(known));
            host.close_link(Link(number));
        }
    }

    fn accepted(&self, host: &Host, cable: ProcessCable) {
        let peer = Peer::here(cable.peer_pid().cast_unsigned());
        if lock(&self.links).len() >= MOST_LINKS {
            return;
        }
        // Without it the other process finds no way, and connects by the kernel.
        let macs = cable.macs();
        if let Ok(link) = host.add_link(cable) {
            self.add(host, Linked { peer, link, macs });
        }
    }

    fn add(&self, host: &Host, linked: Linked) {
        let mut links = lock(&self.links);
        links.retain(|known| host.inet().has_link(known.link.0));
        links.push(linked);
    }

    /// Answers one request, on a connection to `listening`.
    fn accept_request(self: &Arc<Shared>, listening: &OwnedFd) -> io::Result<()> {
        // SAFETY: no address is wanted.
        let socket = sys::owned(unsafe {
            libc::accept4(
                listening.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            )
        })?;
        let trusts = match self.containers.as_ref().filter(|it| it.is_listening(listening)) {
            Some(containers) => containers.trusts(&socket)?,
            None => unix::trusts(unix::peer(socket.as_fd())?.1),
        };
        if trusts { self.answer(socket) } else { Ok(()) }
    }

    /// Answers the request that comes on this connection.
    fn answer(self: &Arc<Shared>, socket: OwnedFd) -> io::Result<()> {
        unix::set_timeouts(&socket, PATIENCE)?;
        let mut request = [0; LINK_REQUEST];
        match message::receive(socket.as_fd(), &mut request)?.0 {
            REQUEST => {}
            LINK_REQUEST if request[0] == LINK => return self.give_link(socket, &request),
            _ => return Ok(()),
        }
        if matches!(request[0], MOVE_STREAM | LEAVE_STREAM) {
            return self.answer_about_stream(request[0], &request, &socket);
        }
        let (local, remote) = ends_of(&request);
        let done = match request[0] {
            HAND_OVER => return self.answer_hand_over((local, remote), socket),
            PING => true,
            TAKE_BACK => (self.hand_over)(local, remote),
            JOIN => return self.give_group(socket, local, true),
            GROUP => return self.give_group(socket, local, false),
            _ => false,
        };
        let answer = if done { DONE } else { NOT_NOW };
        message::send(socket.as_fd(), &[answer], &[], 0).map(drop)
    }

    fn peer_of(&self, link: u32) -> Option<Peer> {
        let links = lock(&self.links);
        links.iter().find(|known| known.link.0 == link).map(|known| known.peer.clone())
    }

    fn link_to(&self, process: Process) -> Option<Link> {
        let links = lock(&self.links);
        // The last one: an earlier one may be about to end.
        links.iter().rfind(|known| known.peer.process == process).map(|known| known.link)
    }
}

/// The addresses at which a socket that receives at `remote` may be bound, the most specific first.
fn addresses_for(remote: SocketAddr) -> impl Iterator<Item = IpAddr> {
    let remote = canonical(remote);
    let any4 = remote.is_ipv4().then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    [Some(remote.ip()), any4, Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED))].into_iter().flatten()
}

/// The names under which a socket of this kind that receives at `remote` may be published, the most specific first.
pub(super) fn names_for(kind: &'static str, remote: SocketAddr) -> impl Iterator<Item = String> {
    addresses_for(remote).map(move |ip| name_of(kind, SocketAddr::new(ip, remote.port())))
}

fn in_pass<T>(then: impl FnOnce(&mut Pass<'_>) -> T) -> T {
    let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
    let result = then(&mut pass);
    pass.wake.wake_all();
    result
}

fn is_own(process: Process) -> bool {
    process == Process::here(std::process::id())
}

fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

impl Host {
    /// From now on connections between this process and others of the machine that do the same go over links.
    /// `hand_over` hands one of this process's over to the kernel. With `containers`, also those with processes of
    /// other network namespaces.
    ///
    /// # Errors
    /// No descriptor or thread left.
    #[doc(hidden)]
    pub fn reach_processes(
        &self,
        hand_over: HandOver,
        containers: Option<Containers>,
    ) -> io::Result<()> {
        let peers = Peers::start(&self.inner, hand_over, containers)?;
        let _ = self.inner.peers.set(peers);
        Ok(())
    }

    /// The way to a process that accepts connections to `remote`, an address of this machine; `None`: the kernel makes
    /// the connection.
    #[doc(hidden)]
    pub fn way_to(&self, remote: SocketAddr) -> Option<ProcessWay> {
        self.peers()?.way_to(self, remote)
    }

    /// A connection this way was refused, or, if `is_refused` is false, not answered. Returns whether another process
    /// may take it.
    #[doc(hidden)]
    pub fn is_no_way(&self, way: &ProcessWay, remote: SocketAddr, is_refused: bool) -> bool {
        self.peers().is_some_and(|peers| peers.is_no_way(way, remote, is_refused))
    }

    /// Other processes wait at this address of this process's, too: it takes connections over links only while it
    /// waits.
    #[doc(hidden)]
    pub fn share_own_address(&self, address: SocketAddr) {
        self.peers().into_iter().for_each(|peers| peers.shared.share(address));
    }

    /// Before this process forks, or executes a program: connections over links that it has not accepted become the
    /// kernel's.
    #[doc(hidden)]
    pub fn give_back(&self, executed: bool) {
        self.peers().into_iter().for_each(|peers| peers.give_back(executed));
    }

    pub(crate) fn peers(&self) -> Option<&Peers> {
        self.inner.peers.get()
    }
}

/// Whether a process accepts connections to `remote`, an address of this machine, over links.
#[doc(hidden)]
pub fn is_published(remote: SocketAddr) -> bool {
    is_found(names_for(TCP, remote))
}

/// This process is about to fork.
#[doc(hidden)]
pub fn before_fork() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

/// Whether a process that is visible from here is found by one of these names.
pub(super) fn is_found(names: impl Iterator<Item = String>) -> bool {
    cable::dial_first(names).is_ok_and(|(_, pid)| pid != 0)
}
