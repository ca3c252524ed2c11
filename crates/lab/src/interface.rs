//! One end of the veth pair, from its creation until it is ready.
//!
//! Every function acts on one side's interface in the network namespace of the calling thread.

use std::net::UdpSocket;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use busypoll_linux::ethtool::{self, Ethtool};
use busypoll_linux::link::Links;

use crate::{LabError, PREFIX_V4, PREFIX_V6, Side, rtnetlink};

/// The kernel needs milliseconds; this limit is for a machine that hangs.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn index(side: Side) -> Result<u32, LabError> {
    Ok(Links::open()?.get(side.interface())?.ifindex)
}

/// Whether the interface has its IPv6 address.
pub(crate) fn has_ipv6(side: Side) -> bool {
    UdpSocket::bind((side.ipv6(), 0)).is_ok()
}

/// Sets the offloads of the interface and brings it up.
pub(crate) fn bring_up(side: Side, gro: bool, tso: bool) -> Result<(), LabError> {
    let interface = side.interface();
    // set_features checks the result: without GRO veth has no NAPI context.
    let device = Ethtool::open(interface)?;
    device.set_features(ethtool::GRO, gro)?;
    device.set_features(ethtool::TSO, tso)?;
    let ifindex = index(side)?;
    let up = || {
        let socket = rtnetlink::Socket::open()?;
        unless_ipv6_is_off(socket.no_automatic_ipv6(ifindex))?;
        socket.set_up(ifindex)
    };
    up().map_err(LabError::system(format!("bring {interface} up")))
}

/// Gives the interface its addresses.
pub(crate) fn add_addresses(side: Side) -> Result<(), LabError> {
    let ifindex = index(side)?;
    let add = || {
        let socket = rtnetlink::Socket::open()?;
        socket.add_address(ifindex, side.ipv4().into(), PREFIX_V4)?;
        unless_ipv6_is_off(socket.add_address(ifindex, side.ipv6().into(), PREFIX_V6))
    };
    add().map_err(LabError::system(format!("give {} its addresses", side.interface())))
}

/// Waits for two things that the kernel does asynchronously: detecting the carrier
/// (`net/core/link_watch.c`), before which the interface drops outgoing packets, and joining the group for
/// neighbour solicitations (`addrconf_dad_work`). Otherwise the first exchange often takes a second,
/// until ARP or ND tries again.
pub(crate) fn wait_until_ready(side: Side) -> Result<(), LabError> {
    let mut links = Links::open()?;
    let deadline = Instant::now() + READY_TIMEOUT;
    let is_resolvable = || !has_ipv6(side) || hears_solicitations(side);
    while !(links.get(side.interface())?.running && is_resolvable()) {
        if Instant::now() > deadline {
            let late = LabError::system(format!("see {} ready", side.interface()));
            return Err(late(io::ErrorKind::TimedOut.into()));
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Whether the interface is in the multicast group for solicitations of its IPv6 address: the last
/// 24 bits of the address below ff02::1:ff00:0 (RFC 4291 section 2.7.1).
fn hears_solicitations(side: Side) -> bool {
    let [.., a, b, c] = side.ipv6().octets();
    let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    let groups = fs::read_to_string("/proc/thread-self/net/igmp6").unwrap_or_default();
    groups.lines().any(|line| line.contains(side.interface()) && line.contains(&group))
}

/// Ignores the errors of IPv6 requests if IPv6 is switched off: by `ipv6.disable=1`, or by a
/// `disable_ipv6` that new namespaces inherit.
fn unless_ipv6_is_off(answer: io::Result<()>) -> io::Result<()> {
    match answer.as_ref().map_err(io::Error::raw_os_error) {
        Err(Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES)) => Ok(()),
        _ => answer,
    }
}
