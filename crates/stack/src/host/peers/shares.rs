//! Groups of processes that wait for listeners at one address ([`workers`](super::super::workers)), as a process has a
//! part in them: it joins the one that has the name of the address, gives the group's memory if it has the name itself, and
//! takes the name over when that one has gone.

use super::{
    HAND_OVER_PATIENCE, PATIENCE, Peers, Published, Shared, TCP, addresses_for, canonical, name_of,
    names_for,
    requests::{DONE, GROUP, JOIN, NOT_NOW, Peer, Process, request},
};
use crate::{
    host::{Host, Link, workers::Group},
    inet::tcp::TakesLinks,
    nic::cable,
    sync::lock,
    sys,
    thread::serve,
    unix::{self, message},
};
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

/// The kind of the names by which clients see that there is a group.
const MARK: &str = "busypoll-group";

/// What a process has of a group.
pub(super) struct Shares {
    pub(super) group: Arc<Group>,
    /// The connection to the process that has the name, which hangs up when that gives it up.
    owner: Option<OwnedFd>,
    /// This process has the name: the connections to the others.
    members: Vec<(u32, OwnedFd)>,
    /// This process has the name: clients see by this one that there is a group.
    _mark: Option<OwnedFd>,
}

impl Published {
    /// Whether the process that had the name has gone, and no other one is found yet.
    pub(super) fn seeks_owner(&self) -> bool {
        self.rendezvous.is_none() && self.shared.as_ref().is_some_and(|it| it.owner.is_none())
    }

    /// There is a group from now on. Returns the listeners that were alone until now.
    ///
    /// # Errors
    /// No memory or descriptor left.
    fn become_group(&mut self) -> io::Result<Vec<TakesLinks>> {
        if self.shared.is_some() {
            return Ok(Vec::new());
        }
        let shares = Shares::new(self.address)?;
        self.listeners.iter().for_each(|listener| share(&shares.group, listener));
        self.shared = Some(shares);
        Ok(self.listeners.clone())
    }
}

/// A program that takes no links waits at `address`, or will: the process that has published it, if there is one, takes
/// connections over links only while it waits.
#[doc(hidden)]
pub fn share_address(address: SocketAddr) {
    // The group stays when this process leaves it.
    let _ = Shares::join(address);
}

impl Shares {
    /// A new group, of which this process has the name.
    pub(super) fn new(address: SocketAddr) -> io::Result<Shares> {
        let (group, mark) = (Group::create()?, mark(address).ok());
        Ok(Shares { group, owner: None, members: Vec::new(), _mark: mark })
    }

    /// Joins those that wait at `address`.
    ///
    /// # Errors
    /// The process that has published it is another user's, or does not answer.
    pub(super) fn join(address: SocketAddr) -> io::Result<Shares> {
        let (_, pid) = cable::dial(&name_of(TCP, address), PATIENCE)?;
        if pid == 0 || pid.cast_unsigned() == std::process::id() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (owner, group) = Shares::ask(&Peer::here(pid.cast_unsigned()), JOIN, address)?;
        Ok(Shares { group, owner: Some(owner), members: Vec::new(), _mark: None })
    }

    /// Asks a process for the memory of a group.
    fn ask(peer: &Peer, kind: u8, address: SocketAddr) -> io::Result<(OwnedFd, Arc<Group>)> {
        let socket = request(peer, kind, (address, address), HAND_OVER_PATIENCE)?;
        let (_, mut files) = message::receive(socket.as_fd(), &mut [0])?;
        let file = files.pop().ok_or(io::ErrorKind::NotFound)?;
        Ok((socket, Group::open(file)?))
    }

    /// The connections to other processes of the group.
    pub(super) fn others(&self) -> impl Iterator<Item = &OwnedFd> {
        self.owner.iter().chain(self.members.iter().map(|(_, socket)| socket))
    }
}

impl Peers {
    /// The group of the processes that wait at `remote`, of which one is at the other end of `link`; `None`: it is the
    /// only one.
    pub(super) fn group_of(&self, link: Link, remote: SocketAddr) -> Option<Arc<Group>> {
        let peer = self.shared.peer_of(link.0);
        // In another network namespace there is no mark.
        let peer = peer.filter(|peer| peer.channel.is_some() || is_group(remote))?;
        Shares::ask(&peer, GROUP, remote).ok().map(|(_, group)| group)
    }

    /// The link to a process of a group, made if there is none yet.
    pub(super) fn link_to_process(&self, host: &Host, pid: u32, group: &Group) -> Option<Link> {
        let (process, slow) = (Process::here(pid), self.is_slow(Process::here(pid)));
        let known = self.shared.link_to(process).filter(|link| host.inet().has_link(link.0));
        if slow || known.is_some() {
            return known.filter(|_| !slow);
        }
        let link = self.look_up(host, [process_name(pid)].into_iter());
        if link.is_none() && is_gone(pid) {
            group.remove(pid);
        }
        link
    }
}

impl Shared {
    /// Gives the process at the other end of `socket` the memory of the group at `address`. If it joins it, there is a
    /// group from now on.
    pub(super) fn give_group(
        self: &Arc<Shared>,
        socket: OwnedFd,
        address: SocketAddr,
        joins: bool,
    ) -> io::Result<()> {
        let pid = unix::peer(socket.as_fd())?.0.cast_unsigned();
        let mut published = lock(&self.published);
        let has =
            |known: &Published, ip| canonical(known.address) == SocketAddr::new(ip, address.port());
        let at = match joins {
            true => published.iter().position(|known| has(known, address.ip())),
            false => addresses_for(address).find_map(|ip| {
                published.iter().position(|known| known.shared.is_some() && has(known, ip))
            }),
        };
        let Some(known) = at.map(|at| &mut published[at]).filter(|it| it.rendezvous.is_some())
        else {
            return message::send(socket.as_fd(), &[NOT_NOW], &[], 0).map(drop);
        };
        let left = known.become_group()?;
        let Some(shares) = &mut known.shared else { return Ok(()) };
        let file = shares.group.file().as_raw_fd();
        message::send(socket.as_fd(), &[DONE], &[file], 0)?;
        if joins {
            shares.members.push((pid, socket));
        }
        drop(published);
        self.be_found();
        self.give_back_later(left);
        Ok(())
    }

    /// A program that takes no links waits at `address`, or will.
    pub(super) fn share(self: &Arc<Shared>, address: SocketAddr) {
        let address = canonical(address);
        let mut published = lock(&self.published);
        let is_it =
            |it: &&mut Published| canonical(it.address) == address && it.rendezvous.is_some();
        let left = published.iter_mut().find(is_it).and_then(|known| known.become_group().ok());
        drop(published);
        self.be_found();
        self.give_back_later(left.unwrap_or_default());
    }

    fn give_back_later(self: &Arc<Shared>, left: Vec<TakesLinks>) {
        // This thread must go on to answer. Without another one the connections wait for this process to accept.
        let shared = self.clone();
        if left.iter().any(|listener| listener.queued().is_none_or(|queued| !queued.is_empty())) {
            let _ = serve("busypoll/peers", move || shared.give_back(&left));
        }
    }

    /// Processes of groups have ended, or have given up their names.
    pub(super) fn renew_groups(&self) {
        let mut published = lock(&self.published);
        let mut lost = Vec::new();
        for known in published.iter_mut() {
            let Some(shares) = &mut known.shared else { continue };
            let group = &shares.group;
            shares.members.retain(|(pid, socket)| {
                let is_there = !sys::has_hung_up(socket.as_raw_fd());
                // A process that has closed its listener has left its place itself.
                if !is_there && is_gone(*pid) {
                    group.remove(*pid);
                }
                is_there
            });
            shares.owner.take_if(|owner| sys::has_hung_up(owner.as_raw_fd()));
            if known.rendezvous.is_none() && shares.owner.is_none() {
                match cable::listen_nonblocking(&name_of(TCP, known.address)) {
                    Ok(rendezvous) => {
                        known.rendezvous = Some(Arc::new(rendezvous));
                        shares._mark = mark(known.address).ok();
                        if let (Some(named), Some(by)) = (&mut known.named, &self.containers) {
                            named.renew(by, known.address);
                        }
                    }
                    Err(_) => lost.push(known.address),
                }
            }
        }
        drop(published);
        for address in lost {
            // Otherwise it is tried again.
            if let Ok(shares) = Shares::join(address) {
                let mut published = lock(&self.published);
                let known = published.iter_mut().find(|known| known.address == address);
                if let Some(known) = known.filter(|known| known.seeks_owner()) {
                    known.listeners.iter().for_each(|listener| share(&shares.group, listener));
                    known.shared = Some(shares);
                }
            }
        }
    }

    /// Clients find this process by its process id.
    pub(super) fn be_found(&self) {
        let mut own_name = lock(&self.own_name);
        if own_name.is_none()
            && let Ok(name) = cable::listen_nonblocking(&process_name(std::process::id()))
        {
            let name = Arc::new(name);
            lock(&self.names).push(name.clone());
            *own_name = Some(name);
            sys::signal(self.changed.as_raw_fd());
        }
    }
}

/// A listener at the address of a group says there whether a thread waits.
pub(super) fn share(group: &Arc<Group>, listener: &TakesLinks) {
    match group.join() {
        Some(place) => listener.share(place),
        None => listener.never(),
    }
}

/// Whether there is a group at `remote`.
pub(super) fn is_group(remote: SocketAddr) -> bool {
    names_for(MARK, remote).any(|mark| is_marked(&mark))
}

/// A name that no process listens at: it says that there is a group.
fn mark(address: SocketAddr) -> io::Result<OwnedFd> {
    unix::bind(&name_of(MARK, address), libc::SOCK_DGRAM)
}

fn is_marked(mark: &str) -> bool {
    unix::connect(mark, libc::SOCK_DGRAM, PATIENCE).is_ok()
}

/// Whether a process takes links no more. An error of another kind says nothing of it.
fn is_gone(pid: u32) -> bool {
    let dialled = cable::dial_first([process_name(pid)].into_iter());
    dialled.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The name at which a process that is one of a group takes links.
fn process_name(pid: u32) -> String {
    format!("process-{pid}")
}
