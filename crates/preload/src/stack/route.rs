//! Routing: which addresses are on the chosen interface, and which peers are reached over it. The kernel is asked each
//! time, as a socket needs this once in its life.

use super::{common::lock, host, not_accelerated};
use std::{
    ffi::{CStr, CString},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    ptr,
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

/// The addresses of this machine, and whether each is on the chosen interface.
fn addresses() -> Vec<(IpAddr, bool)> {
    let mut found = Vec::new();
    let mut list = ptr::null_mut();
    // SAFETY: a valid pointer for the list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return found;
    }
    let mut at = list;
    // SAFETY: entries of the list are valid until it is freed.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: a name and an address of the list; an address that is not null is complete.
        let (name, address) = unsafe {
            let len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            (CStr::from_ptr(entry.ifa_name), super::address::read(entry.ifa_addr, len))
        };
        if let Ok(address) = address {
            found.push((address.ip(), name.to_bytes() == not_accelerated::device().as_bytes()));
        }
    }
    // SAFETY: made by getifaddrs.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// The addresses of this machine, on all interfaces.
pub fn all_addresses() -> Vec<IpAddr> {
    addresses().into_iter().map(|(address, _)| address).collect()
}

/// The address from which a socket bound to `bound` connects to `to`, which another network namespace has; `None`: it is
/// this one's, or there is no way.
pub fn source_to_container(to: IpAddr, bound: IpAddr) -> Option<IpAddr> {
    let (to, bound) = (to.to_canonical(), bound.to_canonical());
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // To an address of its own the kernel sends from that.
    let chosen = source(SocketAddr::new(to, 1), any).filter(|from| *from != to)?;
    let from = if bound.is_unspecified() { chosen } else { bound };
    (!from.is_loopback() && from.is_ipv4() == to.is_ipv4()).then_some(from)
}

/// Whether a socket bound to `local` receives from the chosen interface. For a group: once it has joined it there.
pub fn receives_from_interface(local: IpAddr) -> bool {
    let local = local.to_canonical();
    local.is_unspecified() || local.is_multicast() || !local.is_loopback() && has_address(local)
}

/// Whether the chosen interface has this address. A process with the queues knows the kernel's list; an address that is
/// not in it may be new, so the kernel is asked.
pub fn has_address(address: IpAddr) -> bool {
    host::existing().is_some_and(|host| host.has_shared_address(address))
        || addresses().contains(&(address, true))
}

/// Whether it is an address of this machine, as far as links go: of loopback, or of the chosen interface. If none is
/// chosen, of any.
pub fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback()
        || !address.is_multicast()
            && match host::with_interface() {
                Some(host) => host.has_shared_address(address),
                None if not_accelerated::device() == host::LOOPBACK => {
                    all_addresses().contains(&address)
                }
                None => has_address(address),
            }
}

/// Whether an unbound socket sends to `to` over the chosen interface.
pub fn is_egress_to(to: IpAddr) -> bool {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    source((to, 1).into(), any).is_some_and(has_address)
}

/// The source address that a socket bound to `from` uses for `to`.
fn source(to: SocketAddr, from: IpAddr) -> Option<IpAddr> {
    let probe = UdpSocket::bind((from, 0)).ok()?;
    probe.connect(to).ok()?;
    probe.local_addr().ok().map(|local| local.ip())
}

/// The last route over the chosen interface: destination, and local address.
pub type LastRoute = Option<(IpAddr, IpAddr)>;

/// The last positive answer of [`leads_to`], as programs connect to the same destination repeatedly. Locked across a
/// fork, so that the child finds it free.
pub fn last_route() -> MutexGuard<'static, LastRoute> {
    static LAST: Mutex<LastRoute> = Mutex::new(None);
    lock(&LAST)
}

/// Whether the route to `remote` leads over the chosen interface, and to another machine. `local` is the socket's
/// address.
pub fn leads_to(remote: SocketAddr, local: IpAddr) -> bool {
    let to = remote.ip().to_canonical();
    if to.is_loopback() || to.is_unspecified() || to.is_multicast() {
        return false;
    }
    if host::existing().is_some() && *last_route() == Some((to, local)) {
        return true;
    }
    let from: IpAddr = match (to, local.to_canonical()) {
        (IpAddr::V4(_), IpAddr::V6(_)) => Ipv4Addr::UNSPECIFIED.into(),
        (IpAddr::V6(_), IpAddr::V4(_)) => Ipv6Addr::UNSPECIFIED.into(),
        (_, from) => from,
    };
    let Some(source) = source(SocketAddr::new(to, remote.port().max(1)), from) else {
        return false;
    };
    let addresses = addresses();
    // The comparison ignores scope ids.
    let leads =
        addresses.contains(&(source, true)) && !addresses.iter().any(|(address, _)| *address == to);
    if leads {
        *last_route() = Some((to, local));
    }
    leads
}

/// The index of the chosen interface; 0: there is none of that name.
pub fn index() -> u32 {
    static INDEX: AtomicU32 = AtomicU32::new(0);
    let known = INDEX.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let Ok(name) = CString::new(not_accelerated::device()) else { return 0 };
    // SAFETY: a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    INDEX.store(index, Ordering::Relaxed);
    index
}

/// The first IPv4 address of the chosen interface when this was first called; unspecified if it had none.
pub fn ipv4_address() -> Ipv4Addr {
    static ADDRESS: OnceLock<Ipv4Addr> = OnceLock::new();
    if let Some(known) = ADDRESS.get() {
        return *known;
    }
    let first = addresses().into_iter().find_map(|address| match address {
        (IpAddr::V4(v4), true) => Some(v4),
        _ => None,
    });
    // Computed before: a child of a fork would wait for ever for a thread that initialises this.
    *ADDRESS.get_or_init(|| first.unwrap_or(Ipv4Addr::UNSPECIFIED))
}
