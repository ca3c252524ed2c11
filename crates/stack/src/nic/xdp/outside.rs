//! Listeners that programs outside have: programs without a slot, which accept from the kernel alone. Such a program got
//! a listener from a process of ours, by execve(2) or `SCM_RIGHTS`. Its port is shared: the kernel makes the connections
//! from then on, whichever process steers the port. The process that holds the interface (the guard of a run) enters
//! this, and removes it when the listener is closed everywhere.

use super::{
    bpf::{
        program::{Key, OUTSIDE, SHARED},
        sys,
    },
    netlink::{Request, Socket},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
};

/// include/uapi/asm-generic/socket.h.
const SO_COOKIE: i32 = 57;

/// The request for the sockets of a state, of both families (include/uapi/linux/inet_diag.h, `inet_diag_req`).
const TCPDIAG_GETSOCK: u16 = 18;
const REQUEST: usize = 60;
const STATES: usize = 52;
const LISTEN: u32 = 1 << 10;
/// In `inet_diag_msg`, after four bytes and 40 bytes of addresses.
const COOKIE: usize = 44;

/// The request for the addresses of all interfaces: a `struct ifaddrmsg` (include/uapi/linux/if_addr.h).
const RTM_GETADDR: u16 = 22;
const IFADDR: usize = 8;
const IFADDR_INDEX: usize = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// The listeners of programs outside.
#[derive(Default)]
pub(super) struct Outside(Vec<Listener>);

/// A listener, which lives as long as any process has a descriptor of it.
struct Listener {
    cookie: u64,
    local: SocketAddr,
    only_v6: bool,
    /// The entries of its port, an address each.
    keys: Vec<Key>,
}

impl Outside {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Shares the port of `socket`, a listener, at the addresses of an interface.
    ///
    /// # Errors
    /// It is no TCP listener; a full map.
    pub(super) fn share(
        &mut self,
        map: &OwnedFd,
        ifindex: u32,
        socket: &OwnedFd,
    ) -> io::Result<()> {
        let (local, only_v6) = listens_at(socket)?;
        let cookie = cookie(socket)?;
        let mut listener = Listener { cookie, local, only_v6, keys: Vec::new() };
        let entered = addresses(ifindex).and_then(|at| listener.enter(map, &at));
        self.0.retain(|known| known.cookie != cookie);
        self.0.push(listener);
        entered
    }

    /// Removes those that no process has any more, and shares the others at addresses that the interface has got.
    pub(super) fn update(&mut self, map: &OwnedFd, ifindex: u32) {
        if self.0.is_empty() {
            return;
        }
        // Without the list they stay: the kernel goes on making the connections.
        let Ok(open) = open_listeners() else { return };
        let (left, over): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|it| open.contains(&it.cookie));
        self.0 = left;
        let is_used = |key: &Key| self.0.iter().any(|listener| listener.keys.contains(key));
        for key in over.iter().flat_map(|listener| &listener.keys).filter(|key| !is_used(key)) {
            let _ = sys::delete(map, &key.sharer(OUTSIDE));
        }
        let Ok(at) = addresses(ifindex) else { return };
        for listener in &mut self.0 {
            // With a full map the kernel makes no connections there.
            let _ = listener.enter(map, &at);
        }
    }
}

impl Listener {
    /// Marks its port at those of the addresses `at` that are new.
    fn enter(&mut self, map: &OwnedFd, at: &[IpAddr]) -> io::Result<()> {
        for ip in at {
            if !self.covers(*ip) {
                continue;
            }
            let key = Key::new(libc::IPPROTO_TCP as u8, SocketAddr::new(*ip, self.local.port()));
            if !self.keys.contains(&key) {
                // Known before it is entered, so that it is removed.
                self.keys.push(key);
                enter(map, &key)?;
            }
        }
        Ok(())
    }

    fn covers(&self, ip: IpAddr) -> bool {
        match self.local.ip().to_canonical() {
            IpAddr::V4(of) if of.is_unspecified() => ip.is_ipv4(),
            IpAddr::V6(of) if of.is_unspecified() => ip.is_ipv6() || !self.only_v6,
            of => of == ip,
        }
    }
}

/// Marks a port, and the entry of the process that steers it. One that comes meanwhile finds the mark.
fn enter(map: &OwnedFd, key: &Key) -> io::Result<()> {
    sys::update(map, &key.sharer(OUTSIDE), &0)?;
    match sys::lookup(map, key) {
        // Flags that its process changes meanwhile are implied by this one.
        Some(value) if value & SHARED == 0 => match sys::replace(map, key, &(value | SHARED)) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        },
        _ => Ok(()),
    }
}

fn option(socket: &OwnedFd, (level, name): (i32, i32)) -> io::Result<u64> {
    let (mut value, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: room for the value, and its length; a shorter one leaves the rest zero (little-endian), or is read below.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if got == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

fn cookie(socket: &OwnedFd) -> io::Result<u64> {
    option(socket, (libc::SOL_SOCKET, SO_COOKIE))
}

/// The address of a TCP listener, and whether it is `IPV6_V6ONLY`.
fn listens_at(socket: &OwnedFd) -> io::Result<(SocketAddr, bool)> {
    let is_tcp = option(socket, (libc::SOL_SOCKET, libc::SO_PROTOCOL))? == libc::IPPROTO_TCP as u64;
    if !is_tcp || option(socket, (libc::SOL_SOCKET, libc::SO_ACCEPTCONN))? == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let local = std::net::TcpListener::from(socket.try_clone()?).local_addr()?;
    let only_v6 = local.is_ipv6() && option(socket, (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY))? != 0;
    Ok((local, only_v6))
}

/// The addresses of the interface with this index.
fn addresses(ifindex: u32) -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    let mut socket = Socket::of(libc::NETLINK_ROUTE)?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; IFADDR];
        request[0] = family as u8;
        socket.request(Request::new(RTM_GETADDR, &request).dump(), &mut |message| {
            let index = message.payload.get(IFADDR_INDEX..).and_then(|rest| rest.first_chunk());
            if index != Some(&ifindex.to_ne_bytes()) {
                return;
            }
            let of = |kind| message.attributes(IFADDR).find(|(of, _)| *of == kind);
            // On a point-to-point link the other one is the peer's.
            let address = of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS)).map(|(_, bytes)| bytes);
            found.extend(address.and_then(|bytes| match bytes.len() {
                4 => Some(Ipv4Addr::from(*bytes.first_chunk()?).into()),
                _ => Some(IpAddr::from(Ipv6Addr::from(*bytes.first_chunk()?))),
            }));
        })?;
    }
    Ok(found)
}

/// The cookies of all TCP listeners of this network namespace.
fn open_listeners() -> io::Result<Vec<u64>> {
    let mut request = [0; REQUEST];
    request[STATES..STATES + 4].copy_from_slice(&LISTEN.to_ne_bytes());
    let mut open = Vec::new();
    let mut socket = Socket::of(libc::NETLINK_SOCK_DIAG)?;
    socket.request(Request::new(TCPDIAG_GETSOCK, &request).dump(), &mut |message| {
        let cookie = message.payload.get(COOKIE..).and_then(|rest| rest.first_chunk());
        open.extend(cookie.map(|bytes| u64::from_ne_bytes(*bytes)));
    })?;
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_listener_is_open_until_its_last_descriptor_is_closed() {
        let socket = OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        let (copy, its) = (socket.try_clone().unwrap(), cookie(&socket).unwrap());
        let (at, only_v6) = listens_at(&socket).unwrap();
        assert!(at.ip().is_loopback() && !only_v6);
        drop(socket);
        assert!(open_listeners().unwrap().contains(&its));
        drop(copy);
        assert!(!open_listeners().unwrap().contains(&its));
        // The loopback interface is the first one.
        assert_eq!(addresses(1).unwrap()[0], IpAddr::from([127, 0, 0, 1]));
    }
}
