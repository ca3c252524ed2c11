//! Processes of other network namespaces of this host, such as those of containers, with which connections go over links
//! because a policy says so: they find each other by a [directory] that both have.
//!
//! The kernel connects them by a network, with its firewalls and address translation; a link passes these by. So a process
//! accepts only where it has published itself, and both ends look at the addresses: the client's must not be one of the
//! listener's network namespace, nor the other way round.

use super::{
    ACCEPT_PATIENCE, Host, Link, Linked, MOST_REACHED, MTU, PATIENCE, Peers, ProcessWay, Shared,
    canonical,
    directory::{self, Directory},
    requests::{LINK_REQUEST, Peer, Process, called, ends_of, process_of, send_link_request},
};
use crate::{host::workers::Group, nic::cable, sync::lock, sys, unix};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex},
};

/// How processes of other network namespaces are found.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Containers {
    /// The directory.
    pub directory: String,
    /// The addresses of this network namespace.
    pub addresses: fn() -> Vec<IpAddr>,
}

/// The same, as a process uses it.
pub(super) struct Served {
    directory: Directory,
    addresses: fn() -> Vec<IpAddr>,
    /// What was found at the last addresses.
    found: Mutex<Vec<Found>>,
}

/// A process that was found at an address, and the group of those that wait there, if it is not alone.
#[derive(Clone)]
struct Found {
    at: SocketAddr,
    process: Process,
    group: Option<Arc<Group>>,
}

/// Where processes of other network namespaces are to find a listener.
pub(super) struct Named {
    only_v6: bool,
    /// Where they do.
    at: Vec<SocketAddr>,
}

/// Whether a process of another network namespace may accept at `remote`.
#[doc(hidden)]
pub fn is_in_directory(directory: &str, remote: SocketAddr) -> bool {
    directory::is_claimed(directory, canonical(remote))
}

/// Whether an address can be one of a network that namespaces have in common, and of one process alone.
fn is_common(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

impl Served {
    /// # Errors
    /// There is no such directory.
    pub(super) fn open(containers: Containers) -> io::Result<Served> {
        let directory = Directory::open(containers.directory)?;
        Ok(Served { directory, addresses: containers.addresses, found: Mutex::default() })
    }

    pub(super) fn is_listening(&self, fd: &OwnedFd) -> bool {
        self.directory.socket().is_some_and(|socket| socket.as_raw_fd() == fd.as_raw_fd())
    }

    /// Whether the process at the other end is one of this user, or of root.
    pub(super) fn trusts(&self, socket: &OwnedFd) -> io::Result<bool> {
        unix::peer(socket.as_fd()).map(|(_, user)| self.directory.trusts(user))
    }

    /// Publishes a listener. Returns where it is found.
    fn name(&self, address: SocketAddr, only_v6: bool) -> Vec<SocketAddr> {
        let (ip, is_any) = (address.ip().to_canonical(), address.ip().is_unspecified());
        let all = if is_any { (self.addresses)() } else { vec![ip] };
        let is_its = |to: &IpAddr| match ip {
            IpAddr::V4(_) => to.is_ipv4(),
            IpAddr::V6(_) => to.is_ipv6() || !only_v6,
        };
        let is_its = |to: &IpAddr| is_common(*to) && (!is_any || is_its(to));
        let at = all.into_iter().filter(is_its).map(|to| SocketAddr::new(to, address.port()));
        at.filter(|at| self.directory.publish(*at, is_any)).collect()
    }
}

impl Named {
    /// This process has the name of the address now, which it had not.
    pub(super) fn renew(&mut self, by: &Served, address: SocketAddr) {
        self.at = by.name(address, self.only_v6);
    }
}

impl Peers {
    /// Processes of other network namespaces find the listener at `address`.
    fn name(&self, address: SocketAddr, only_v6: bool) {
        let Some(containers) = &self.shared.containers else { return };
        let mut published = lock(&self.shared.published);
        let mut all = published.iter_mut();
        let known = all.find(|known| known.address == address && known.named.is_none());
        let Some(known) = known else { return };
        let named = known.named.insert(Named { only_v6, at: Vec::new() });
        if known.rendezvous.is_some() {
            named.renew(containers, address);
        }
        drop(published);
        // The thread listens at the socket from now on.
        sys::signal(self.shared.changed.as_raw_fd());
    }

    /// The way to a process of another network namespace that accepts connections from `source` to `remote`. The link is
    /// made if there is none yet.
    fn way_to_container(&self, host: &Host, ends: (IpAddr, SocketAddr)) -> Option<ProcessWay> {
        let containers = self.shared.containers.as_ref()?;
        let remote = canonical(ends.1);
        let process = containers.directory.find(remote)?;
        let ends = (SocketAddr::new(ends.0, 0), remote);
        let link = self.link_to_container(host, process, ends)?;
        let is_it = |known: &&Found| (known.at, known.process) == (remote, process);
        let known = lock(&containers.found).iter().find(is_it).cloned();
        let Found { group, .. } = known.unwrap_or_else(|| {
            let new = Found { at: remote, process, group: self.group_of(link, remote) };
            let mut found = lock(&containers.found);
            found.retain(|known| known.at != remote);
            found.truncate(MOST_REACHED - 1);
            found.push(new.clone());
            new
        });
        let Some(group) = group else {
            return Some(ProcessWay { link, patience: PATIENCE, is_shared: false });
        };
        // Its process ids are those of the process that was found.
        let way = group.waiting(0).find_map(|pid| {
            let member = Process { pid, ..process };
            let link = self.link_to_container(host, member, ends)?;
            Some(ProcessWay { link, patience: ACCEPT_PATIENCE, is_shared: true })
        });
        if way.is_none() && group.is_empty() {
            self.forget_group(remote);
        }
        way
    }

    /// Whether the process at the other end of a link is of another network namespace.
    pub(crate) fn is_to_container(&self, link: u32) -> bool {
        self.shared.peer_of(link).is_some_and(|peer| peer.channel.is_some())
    }

    /// Whether there is a group at `remote` is asked again.
    pub(super) fn forget_group(&self, remote: SocketAddr) {
        if let Some(containers) = &self.shared.containers {
            lock(&containers.found).retain(|known| known.at != canonical(remote));
        }
    }

    fn link_to_container(
        &self,
        host: &Host,
        process: Process,
        ends: (SocketAddr, SocketAddr),
    ) -> Option<Link> {
        let containers = self.shared.containers.as_ref()?;
        if self.is_slow(process) {
            return None;
        }
        self.joined(host, process, || {
            let path = containers.directory.socket_of(process);
            let socket = unix::connect(&path, libc::SOCK_SEQPACKET, PATIENCE)?;
            let (pid, user) = unix::peer(socket.as_fd())?;
            if !containers.directory.trusts(user) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            send_link_request(&socket, (ends.1, ends.0), containers.directory.own())?;
            let cable = cable::join_by(&socket, pid)?;
            let macs = cable.macs();
            let link = host.add_link_to_container(cable)?;
            let peer = Peer { process, channel: Some(Arc::new(socket)) };
            Ok(Linked { peer, link, macs })
        })
    }
}

impl Shared {
    /// What the thread looks at for processes of other network namespaces.
    pub(super) fn ways_of_containers(&self) -> Vec<Arc<OwnedFd>> {
        let Some(containers) = &self.containers else { return Vec::new() };
        let mut ways = Vec::from_iter(containers.directory.socket());
        ways.extend(lock(&self.links).iter().filter_map(|known| known.peer.channel.clone()));
        ways
    }

    /// Another process has sent something this way, or closed it.
    pub(super) fn serve_containers(self: &Arc<Shared>, way: &Arc<OwnedFd>) {
        if self.containers.as_ref().is_some_and(|it| it.is_listening(way)) {
            // A process that sends nothing, or something else, gets no answer.
            let _ = self.accept_request(way);
            return;
        }
        if let Some(socket) = called(way) {
            let _ = self.answer(socket);
            return;
        }
        let is_it = |known: &mut Linked| {
            known.peer.channel.as_ref().is_some_and(|channel| Arc::ptr_eq(channel, way))
        };
        let ended = Vec::from_iter(lock(&self.links).extract_if(.., is_it));
        if let Some(inner) = self.host.upgrade() {
            ended.iter().for_each(|known| Host { inner: inner.clone() }.close_link(known.link));
        }
    }

    /// Gives the process at the other end of `socket` a link, if it connects to where this process has published itself.
    pub(super) fn give_link(
        &self,
        socket: OwnedFd,
        request: &[u8; LINK_REQUEST],
    ) -> io::Result<()> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let containers = self.containers.as_ref().ok_or_else(refused)?;
        let (local, remote) = ends_of(request);
        let own = (containers.addresses)();
        // It would not be found again, and the kernel would not bring a packet back to it.
        if !own.contains(&local.ip()) || own.contains(&remote.ip()) {
            return Err(refused());
        }
        let accepts = lock(&self.published).iter().any(|known| {
            let (ip, port) = (known.address.ip().to_canonical(), known.address.port());
            known.named.is_some()
                && port == local.port()
                && (ip.is_unspecified() || ip == local.ip())
        });
        let is_full = lock(&self.links).len() >= super::MOST_LINKS;
        let inner = self.host.upgrade().filter(|_| accepts && !is_full).ok_or_else(refused)?;
        let host = Host { inner };
        let config = cable::Config { mtu: MTU, ..cable::Config::default() };
        let (pid, _) = unix::peer(socket.as_fd())?;
        let cable = cable::offer_by(&socket, &config, pid)?;
        let macs = cable.macs();
        let link = host.add_link_to_container(cable)?;
        let peer = Peer { process: process_of(request), channel: Some(Arc::new(socket)) };
        self.add(&host, Linked { peer, link, macs });
        Ok(())
    }

    /// A listener is closed.
    pub(super) fn unname(&self, named: Named) {
        if let Some(containers) = &self.containers {
            named.at.into_iter().for_each(|at| containers.directory.withdraw(at));
        }
    }
}

impl Host {
    /// Processes of other network namespaces find the listener of this process at `address`, which takes IPv4 connections,
    /// too, unless `only_v6`.
    pub(crate) fn publish_to_containers(&self, address: SocketAddr, only_v6: bool) {
        self.peers().into_iter().for_each(|peers| peers.name(address, only_v6));
    }

    /// The way to a process of another network namespace that accepts connections from the first address to the second
    /// one; `None`: the kernel makes the connection.
    #[doc(hidden)]
    pub fn way_to_container(&self, ends: (IpAddr, SocketAddr)) -> Option<ProcessWay> {
        self.peers()?.way_to_container(self, ends)
    }

    /// This process ends: no other one finds it any more.
    #[doc(hidden)]
    pub fn leave_directory(&self) {
        let containers = self.peers().and_then(|peers| peers.shared.containers.as_ref());
        containers.into_iter().for_each(|containers| containers.directory.leave());
    }
}
