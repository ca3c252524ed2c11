//! Other processes of this machine with which connections between the machine's own addresses go over links: how a
//! process finds the one that listens at an address, and how both ends of a connection are handed over to the kernel
//! when a child process, or a program that is executed, is to have one of them.
//!
//! A process that waits for a listener publishes its address: it listens at a name made of it ([`cable::listen`]). It accepts
//! over links from its first accept on, unless a second process has waited at the address: only the kernel can share
//! connections among several. Each process has one more name, by its process id, for requests.

use super::{Host, Inner, Link};
use crate::{
    inet::tcp::TakesLinks,
    nic::cable::{self, ProcessCable, Rendezvous},
    sync::lock,
    sys,
    thread::{Thread, serve},
    unix::{self, message},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

/// How many addresses are known to be reached.
const MOST_REACHED: usize = 64;

/// Frames of a link hold a segment of a few pages.
const MTU: usize = 16 * 1024;

/// A process that does not answer for so long is left to the kernel.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long the other end of a connection may take to hand it over: it may not have accepted it yet.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(1);

/// The requests: hand this connection over; the address is shared with another process.
const HAND_OVER: u8 = b'H';
const SHARED: u8 = b'S';

/// The answers.
const DONE: u8 = b'D';
const NOT_NOW: u8 = b'N';

/// A kind and two addresses with ports, IPv4 as mapped IPv6.
const REQUEST: usize = 1 + 2 * 18;

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
    links: Mutex<Vec<(i32, Link)>>,
    /// The links over which the last connections were made, by their remote addresses: these are not looked up again.
    reached: Mutex<Vec<(SocketAddr, Link)>>,
    /// The connections that this process is handing over: the kernel's sockets have their ends already.
    handing_over: Mutex<Vec<(SocketAddr, SocketAddr)>>,
}

struct Published {
    address: SocketAddr,
    rendezvous: Arc<Rendezvous>,
    /// The listeners of this process at the address.
    listeners: Vec<TakesLinks>,
    /// Another process waits there as well. The name stays, so that no third process takes the address for its own.
    is_shared: bool,
}

fn name_of(address: SocketAddr) -> String {
    format!("tcp-{address}")
}

fn control_name(pid: u32) -> String {
    format!("busypoll-process-{pid}")
}

impl Peers {
    /// # Errors
    /// No descriptor or thread left.
    fn start(host: &Arc<Inner>, hand_over: HandOver) -> io::Result<Peers> {
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
            reached: Mutex::default(),
            handing_over: Mutex::default(),
        });
        let served = shared.clone();
        let thread = serve("busypoll/peers", move || served.serve())?;
        Ok(Peers { shared, thread: Some(thread) })
    }

    /// A listener at `address` waits for connections. If another process has published the address, neither accepts
    /// over links from now on.
    pub(crate) fn publish(&self, address: SocketAddr, listener: TakesLinks) {
        let shared = &*self.shared;
        let mut published = lock(&shared.published);
        if let Some(known) = published.iter_mut().find(|known| known.address == address) {
            return known.listeners.push(listener);
        }
        match cable::listen_nonblocking(&name_of(address)) {
            Ok(rendezvous) => {
                let (rendezvous, listeners) = (Arc::new(rendezvous), vec![listener]);
                published.push(Published { address, rendezvous, listeners, is_shared: false });
                drop(published);
                sys::signal(shared.changed.as_raw_fd());
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                drop(published);
                share_with_owner(address);
            }
            // The kernel makes its connections.
            Err(_) => {}
        }
    }

    /// A listener at `address` has begun to accept: over links as well, if no other process has waited there.
    pub(crate) fn accepts(&self, address: SocketAddr, listener: &TakesLinks) {
        let published = lock(&self.shared.published);
        let is_it = |known: &&Published| known.address == address && !known.is_shared;
        let found = published.iter().find(is_it);
        if found.is_some_and(|known| known.listeners.iter().any(|it| it.is_same(listener))) {
            listener.set(true);
        }
    }

    /// A listener at `address` is closed.
    pub(crate) fn withdraw(&self, address: SocketAddr, listener: &TakesLinks) {
        let shared = &*self.shared;
        listener.set(false);
        lock(&shared.published).retain_mut(|known| {
            if known.address == address {
                known.listeners.retain(|it| !it.is_same(listener));
            }
            !known.listeners.is_empty()
        });
        sys::signal(shared.changed.as_raw_fd());
    }

    /// The link to the process that accepts connections to `remote` over links, made if there is none yet.
    fn link_to(&self, host: &Host, remote: SocketAddr) -> Option<Link> {
        if let Some((_, link)) = lock(&self.shared.reached).iter().find(|(to, _)| *to == remote) {
            return Some(*link);
        }
        let found = self.link_by(host, names_for(remote));
        if let Some(link) = found {
            let mut reached = lock(&self.shared.reached);
            if reached.len() >= MOST_REACHED {
                reached.remove(0);
            }
            reached.push((remote, link));
        }
        found
    }

    /// The link to the first process found by one of these names.
    fn link_by(&self, host: &Host, mut names: impl Iterator<Item = String>) -> Option<Link> {
        names.find_map(|name| {
            let (socket, pid) = cable::dial(&name, PATIENCE).ok()?;
            // Not visible from here, or this process: the kernel makes the connection.
            if pid == 0 || pid.cast_unsigned() == std::process::id() {
                return None;
            }
            let mut links = lock(&self.shared.links);
            links.retain(|(_, link)| host.inet().has_link(link.0));
            if let Some((_, link)) = links.iter().find(|(of, _)| *of == pid) {
                return Some(*link);
            }
            let link = host.add_link(cable::join(socket, pid).ok()?).ok()?;
            links.push((pid, link));
            Some(link)
        })
    }

    /// Whether there is a link, now or already, to a process found by one of these names.
    pub(super) fn link_to_datagrams(
        &self,
        host: &Host,
        names: impl Iterator<Item = String>,
    ) -> bool {
        self.link_by(host, names).is_some()
    }

    /// Whether another process listens at `name`.
    pub(super) fn is_at(name: &str) -> bool {
        let is_other = |pid: i32| pid != 0 && pid.cast_unsigned() != std::process::id();
        cable::dial(name, PATIENCE).is_ok_and(|(_, pid)| is_other(pid))
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

    /// No connection could be made over the link: the process does not accept there any more; or, if `is_refused` is
    /// false, the link does not lead to it, or it does not answer.
    fn forget(&self, link: Link, is_refused: bool) {
        lock(&self.shared.reached).retain(|(_, known)| *known != link);
        if !is_refused {
            lock(&self.shared.links).retain(|(_, known)| *known != link);
        }
    }

    /// The kernel has the local end of a connection over `link`: has the other process give it the other end.
    ///
    /// # Errors
    /// `TimedOut` if the other process does not do so; those of reaching it.
    pub(crate) fn hand_over_both(
        &self,
        link: u32,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> io::Result<()> {
        let ends = (canonical(local), canonical(remote));
        let shared = &*self.shared;
        if lock(&shared.handing_over).contains(&ends) {
            // At the request of the other process, whose end the kernel has already.
            return Ok(());
        }
        let pid =
            lock(&shared.links).iter().find(|(_, known)| known.0 == link).map(|(pid, _)| *pid);
        let pid = pid.ok_or(io::ErrorKind::NotConnected)?;
        lock(&shared.handing_over).push(ends);
        let until = Instant::now() + HAND_OVER_PATIENCE;
        let asked = loop {
            match ask(pid.cast_unsigned(), HAND_OVER, ends.1, ends.0) {
                Ok(true) => break Ok(()),
                Ok(false) if Instant::now() < until => sleep(Duration::from_millis(1)),
                Ok(false) => break Err(io::ErrorKind::TimedOut.into()),
                Err(error) => break Err(error),
            }
        };
        lock(&shared.handing_over).retain(|known| *known != ends);
        asked
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
    fn serve(&self) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        while !self.stop.load(Ordering::Relaxed) {
            let mut names: Vec<_> =
                lock(&self.published).iter().map(|known| known.rendezvous.clone()).collect();
            names.extend(lock(&self.names).iter().cloned());
            let mut fds = vec![entry(self.changed.as_raw_fd()), entry(self.control.as_raw_fd())];
            fds.extend(names.iter().map(|name| entry(name.as_fd().as_raw_fd())));
            if sys::poll_all(&mut fds, None) < 0 {
                continue;
            }
            if fds[0].revents != 0 {
                sys::drain(self.changed.as_raw_fd());
            }
            if fds[1].revents != 0 {
                // A process that sends nothing, or something else, gets no answer.
                let _ = self.answer();
            }
            for (name, _) in names.iter().zip(&fds[2..]).filter(|(_, fd)| fd.revents != 0) {
                let Some(inner) = self.host.upgrade() else { return };
                let config = cable::Config { mtu: MTU, ..cable::Config::default() };
                // It may have gone again.
                if let Ok(cable) = name.accept(config) {
                    self.accepted(&Host { inner }, cable);
                }
            }
        }
    }

    fn accepted(&self, host: &Host, cable: ProcessCable) {
        let pid = cable.peer_pid();
        // Without it the other process finds no way, and connects by the kernel.
        if let Ok(link) = host.add_link(cable) {
            let mut links = lock(&self.links);
            links.retain(|(_, link)| host.inet().has_link(link.0));
            links.push((pid, link));
        }
    }

    /// Answers one request.
    fn answer(&self) -> io::Result<()> {
        // SAFETY: no address is wanted.
        let socket = sys::owned(unsafe {
            libc::accept4(
                self.control.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            )
        })?;
        if !unix::trusts(unix::peer(socket.as_fd())?.1) {
            return Ok(());
        }
        unix::set_timeouts(&socket, PATIENCE)?;
        let mut request = [0; REQUEST];
        if message::receive(socket.as_fd(), &mut request)?.0 != REQUEST {
            return Ok(());
        }
        let (local, remote) = (read(&request[1..19]), read(&request[19..]));
        let done = match request[0] {
            HAND_OVER => self.hand_over(local, remote),
            SHARED => {
                self.share(local);
                true
            }
            _ => false,
        };
        message::send(socket.as_fd(), &[if done { DONE } else { NOT_NOW }], &[], 0).map(drop)
    }

    fn hand_over(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let ends = (local, remote);
        if lock(&self.handing_over).contains(&ends) {
            // Both processes hand it over at the same time.
            return true;
        }
        lock(&self.handing_over).push(ends);
        let done = (self.hand_over)(local, remote);
        lock(&self.handing_over).retain(|known| *known != ends);
        done
    }

    /// Other processes wait at this address, too.
    fn share(&self, address: SocketAddr) {
        let mut published = lock(&self.published);
        for known in published.iter_mut().filter(|known| canonical(known.address) == address) {
            known.is_shared = true;
            known.listeners.iter().for_each(|listener| listener.set(false));
        }
    }
}

/// The names under which a listener for `remote` may be published, the most specific first.
fn names_for(remote: SocketAddr) -> impl Iterator<Item = String> {
    let remote = canonical(remote);
    let any4 = remote.is_ipv4().then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let addresses = [Some(remote.ip()), any4, Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED))];
    addresses.into_iter().flatten().map(move |ip| name_of(SocketAddr::new(ip, remote.port())))
}

/// The process that has published `address` shares it with this one from now on.
fn share_with_owner(address: SocketAddr) {
    if let Ok((_, pid)) = cable::dial(&name_of(address), PATIENCE)
        && pid != 0
        && pid.cast_unsigned() != std::process::id()
    {
        let _ = ask(pid.cast_unsigned(), SHARED, address, address);
    }
}

/// Sends a request to a process and returns whether it has done it.
fn ask(pid: u32, kind: u8, local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    let socket = unix::connect(&control_name(pid), libc::SOCK_SEQPACKET, HAND_OVER_PATIENCE)?;
    let (peer, user) = unix::peer(socket.as_fd())?;
    if peer.cast_unsigned() != pid || !unix::trusts(user) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut request = [0; REQUEST];
    request[0] = kind;
    write(local, &mut request[1..19]);
    write(remote, &mut request[19..]);
    message::send(socket.as_fd(), &request, &[], 0)?;
    let mut answer = [0];
    Ok(message::receive(socket.as_fd(), &mut answer)?.0 == 1 && answer[0] == DONE)
}

fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

fn write(end: SocketAddr, to: &mut [u8]) {
    let ip = match end.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    to[..16].copy_from_slice(&ip.octets());
    to[16..].copy_from_slice(&end.port().to_be_bytes());
}

fn read(from: &[u8]) -> SocketAddr {
    let ip: [u8; 16] = from[..16].try_into().unwrap_or_default();
    let port = u16::from_be_bytes([from[16], from[17]]);
    SocketAddr::new(IpAddr::from(ip).to_canonical(), port)
}

impl Host {
    /// From now on connections between this process and others of the machine that do the same go over links.
    /// `hand_over` hands one of this process's over to the kernel.
    ///
    /// # Errors
    /// No descriptor or thread left.
    #[doc(hidden)]
    pub fn reach_processes(&self, hand_over: HandOver) -> io::Result<()> {
        let peers = Peers::start(&self.inner, hand_over)?;
        let _ = self.inner.peers.set(peers);
        Ok(())
    }

    /// The link to the process that accepts connections to `remote`, an address of this machine; `None`: the kernel
    /// makes the connection.
    #[doc(hidden)]
    pub fn link_to(&self, remote: SocketAddr) -> Option<Link> {
        self.peers()?.link_to(self, remote)
    }

    /// A connection over `link` was refused, or, if `is_refused` is false, not answered.
    #[doc(hidden)]
    pub fn forget_link(&self, link: Link, is_refused: bool) {
        self.peers().into_iter().for_each(|peers| peers.forget(link, is_refused));
    }

    pub(crate) fn peers(&self) -> Option<&Peers> {
        self.inner.peers.get()
    }
}

/// Whether a process accepts connections to `remote`, an address of this machine, over links.
#[doc(hidden)]
pub fn is_published(remote: SocketAddr) -> bool {
    names_for(remote).any(|name| {
        cable::dial(&name, PATIENCE).is_ok_and(|(_, pid)| pid.cast_unsigned() != std::process::id())
    })
}
