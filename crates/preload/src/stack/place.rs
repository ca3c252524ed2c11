//! Which addresses are on the chosen interface, and which peers are reached by it. Asks the kernel each time: it is
//! asked once in a socket's life.

use super::{file::lock, host};
use std::{
    ffi::{CStr, CString},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    ptr,
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

/// The addresses of this machine: on the chosen interface, or elsewhere.
fn addresses() -> Vec<(IpAddr, bool)> {
    let mut found = Vec::new();
    let mut list = ptr::null_mut();
    // SAFETY: a valid place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return found;
    }
    let mut at = list;
    // SAFETY: entries of the list are valid until it is freed.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: a name and an address of the list; the address, if any, is whole.
        let (name, address) = unsafe {
            let len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            (CStr::from_ptr(entry.ifa_name), super::address::read(entry.ifa_addr, len))
        };
        if let Ok(address) = address {
            found.push((address.ip(), name.to_bytes() == host::device().as_bytes()));
        }
    }
    // SAFETY: made by getifaddrs.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// Whether a socket bound to `local` hears the chosen interface; to a group, once it is in it there.
pub fn is_ours(local: IpAddr) -> bool {
    let local = local.to_canonical();
    local.is_unspecified() || local.is_multicast() || !local.is_loopback() && is_on(local)
}

/// Whether the chosen interface has this address. Who has the queues follows the kernel's list; what is not there is
/// asked for, as it may have come just now.
pub fn is_on(address: IpAddr) -> bool {
    host::made().is_some_and(|host| host.has_shared_address(address))
        || addresses().contains(&(address, true))
}

/// Whether what is sent to `to`, by a socket that says no more, leaves over the chosen interface.
pub fn is_way_to(to: IpAddr) -> bool {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    source((to, 1).into(), any).is_some_and(is_on)
}

/// The address from which a socket bound to `from` sends to `to`.
fn source(to: SocketAddr, from: IpAddr) -> Option<IpAddr> {
    let probe = UdpSocket::bind((from, 0)).ok()?;
    probe.connect(to).ok()?;
    probe.local_addr().ok().map(|local| local.ip())
}

/// Where a way led over the chosen interface: to, and from.
pub type Last = Option<(IpAddr, IpAddr)>;

/// The last answer of [`leads_to`]: programs connect to one place again and again. Held across a fork, so that the
/// child finds it free.
pub fn last() -> MutexGuard<'static, Last> {
    static LAST: Mutex<Last> = Mutex::new(None);
    lock(&LAST)
}

/// Whether the way to `remote` leads over the chosen interface, and to another machine. `local`: where it is bound.
pub fn leads_to(remote: SocketAddr, local: IpAddr) -> bool {
    let to = remote.ip().to_canonical();
    if to.is_loopback() || to.is_unspecified() || to.is_multicast() {
        return false;
    }
    if host::made().is_some() && *last() == Some((to, local)) {
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
    // A scope is no part of what is compared.
    let leads =
        addresses.contains(&(source, true)) && !addresses.iter().any(|(address, _)| *address == to);
    if leads {
        *last() = Some((to, local));
    }
    leads
}

/// The number of the chosen interface; 0: there is none of that name.
pub fn index() -> u32 {
    static INDEX: AtomicU32 = AtomicU32::new(0);
    let known = INDEX.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let Ok(name) = CString::new(host::device()) else { return 0 };
    // SAFETY: a string of C.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    INDEX.store(index, Ordering::Relaxed);
    index
}

/// The first IPv4 address of the chosen interface, as it was when first asked for; unspecified if it had none.
pub fn address4() -> Ipv4Addr {
    static ADDRESS: OnceLock<Ipv4Addr> = OnceLock::new();
    if let Some(known) = ADDRESS.get() {
        return *known;
    }
    let first = addresses().into_iter().find_map(|address| match address {
        (IpAddr::V4(v4), true) => Some(v4),
        _ => None,
    });
    // Asked before: a child of a fork meanwhile would wait for ever for who was asking.
    *ADDRESS.get_or_init(|| first.unwrap_or(Ipv4Addr::UNSPECIFIED))
}
