//! Datagrams to and from other programs of this machine, over links. A socket that is bound by the program and waits
//! publishes its address; one that sends to an address of the machine looks for it there. Which of them are activated,
//! and when, is decided here.

use super::{
    common::{self, lock},
    file::{FILES, File, Live, Ref},
    host,
    local_udp::{BOUND, KERNELS, OWN, PUBLISHED, SENT, WAITED, WANTED},
    route,
};
use crate::config;
use busypoll_policy::Protocol;
use busypoll_stack::{Host, PublishedUdp, UdpSocket, is_udp_published};
use libc::c_int;
use std::{
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

/// How long a process without a host takes an address as the kernel's without another look.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub fn is_on() -> bool {
    config::get().is_some_and(|config| config.launch.same_host)
}

/// What sends a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// As without links.
    AsEver,
    Kernel,
    /// Our stack, once the socket is activated.
    Link,
}

/// Whether `file`, a UDP socket at `fd` that is not active, may be activated now.
pub fn may_activate(file: &File, fd: c_int) -> bool {
    if !is_on() {
        return true;
    }
    let udp = &file.local_udp;
    if !udp.is(SENT) {
        udp.set(WAITED);
    }
    if !udp.is(KERNELS) {
        if !common::local(fd).is_ok_and(|local| local.ip().to_canonical().is_loopback()) {
            return true;
        }
        udp.set(KERNELS);
    }
    if !udp.is(OWN) {
        file.set_kernel_owned();
        return false;
    }
    if udp.is(WANTED) || udp.is_asked() {
        return udp.begin_activation();
    }
    if !udp.is(PUBLISHED) && udp.is(BOUND) && udp.is(WAITED) {
        match host::for_links().and_then(|host| publish(file, fd, &host, false)) {
            Some(published) => udp.publish(published),
            None => file.set_kernel_owned(),
        }
    }
    false
}

/// `file`, a UDP socket at `fd`, is active: it takes datagrams over links from now on.
pub fn activated(file: &File, fd: c_int, udp: &UdpSocket) {
    if !is_on() || !file.local_udp.is(OWN) {
        udp.set_looks(false);
        return;
    }
    let local = &file.local_udp;
    udp.set_looks(looks(file) || udp.peer_addr().is_ok());
    let published = local.take_published();
    let published =
        published.or_else(|| host::existing().and_then(|host| publish(file, fd, &host, true)));
    if let Some(published) = published {
        udp.receive_over_links(published);
    }
}

fn publish(file: &File, fd: c_int, host: &Host, is_ready: bool) -> Option<PublishedUdp> {
    // Another socket may have the port, too: the kernel knows which of them gets a datagram.
    let is_on = |name| file.is_on(fd, libc::SOL_SOCKET, name);
    if is_on(libc::SO_REUSEADDR) || is_on(libc::SO_REUSEPORT) {
        return None;
    }
    let local = common::local(fd).ok()?;
    let is_named = file.local_udp.is(BOUND) && file.local_udp.is(WAITED);
    let only_v6 = file.is_only_v6(fd);
    host.publish_udp(local, common::remote(fd), (only_v6, is_named, is_ready))
}

/// Whether the process at a destination is worth a look: a server answers those that have asked.
fn looks(file: &File) -> bool {
    !(file.local_udp.is(BOUND) && file.local_udp.is(WAITED))
}

/// The first datagrams of a socket that is not active, to `to` or to its peer.
pub fn sender(file: &File, fd: c_int, to: Option<SocketAddr>) -> Sender {
    if !is_on() || file.protocol != Protocol::Udp {
        return Sender::AsEver;
    }
    let udp = &file.local_udp;
    if !udp.is(WAITED) {
        udp.set(SENT);
    }
    if udp.is(KERNELS) && udp.is_kernels_now() {
        return Sender::Kernel;
    }
    let peer = udp.ends();
    let Some(to) = to.or(peer.map(|(_, peer)| peer)) else { return Sender::AsEver };
    if !udp.is(KERNELS) {
        // At any address or one of the interface it is ours.
        let is_bound = || common::local(fd).is_ok_and(|local| local.port() != 0);
        if !udp.is(OWN) || !route::is_own(to.ip()) || peer.is_none() && is_bound() {
            return Sender::AsEver;
        }
        udp.set(KERNELS);
    } else if !route::is_own(to.ip()) {
        return Sender::Kernel;
    }
    if !udp.is(OWN) || (0..=2).contains(&fd) {
        return Sender::Kernel;
    }
    let host = host::existing().or_else(|| is_found(to).then(host::for_links).flatten());
    let Some(host) = host else {
        udp.set_kernels_now();
        return Sender::Kernel;
    };
    let looks = looks(file) || peer.is_some();
    let from = peer.map_or(SocketAddr::new(common::any_of(to.ip()), 0), |(local, _)| local);
    match host.sends_over_link(from, to, looks) {
        Some(true) => {
            udp.set(WANTED);
            Sender::Link
        }
        // The process that was asked is ready soon.
        Some(false) => Sender::Kernel,
        None => {
            udp.set_kernels_now();
            Sender::Kernel
        }
    }
}

/// Whether a process takes datagrams to `to` over links, as far as was seen lately.
fn is_found(to: SocketAddr) -> bool {
    static KERNELS: Mutex<Option<(SocketAddr, Instant)>> = Mutex::new(None);
    let now = Instant::now();
    if lock(&KERNELS).is_some_and(|(known, until)| known == to && now < until) {
        return false;
    }
    let found = is_udp_published(to);
    if !found {
        *lock(&KERNELS) = Some((to, now + LOOK_AGAIN));
    }
    found
}

/// The kernel has connected `file`, a UDP socket that is not active. Whether its datagrams may go over a link.
pub fn connected(file: &File, fd: c_int, remote: SocketAddr) -> bool {
    let is_ours =
        is_on() && file.local_udp.is(OWN) && remote.port() != 0 && route::is_own(remote.ip());
    if is_ours {
        file.local_udp.set_ends(common::local(fd).ok().map(|local| (local, remote)));
        file.local_udp.set(KERNELS);
    }
    is_ours
}

/// Another process, or another socket, may receive what is sent to `file` from now on: the kernel knows which of them
/// does.
pub fn share(file: &File) {
    let udp = &file.local_udp;
    if !udp.is(OWN) {
        return;
    }
    udp.clear(OWN);
    drop(udp.take_published());
    if let Some(Live::Udp(live)) = file.live() {
        live.receive_by_kernel();
    }
}

/// Before another process begins: the sockets of this process, which that one gets if `is_passed` says so of a descriptor.
pub fn own_sockets(is_passed: impl Fn(c_int) -> bool) -> Vec<Ref> {
    if !is_on() {
        return Vec::new();
    }
    let is_own = |file: &Ref| file.protocol == Protocol::Udp && file.local_udp.is(OWN);
    let passed = FILES.all().filter_map(|(fd, file)| file.filter(is_own).filter(|_| is_passed(fd)));
    passed.collect()
}
