//! Multicast: copies the memberships on the chosen interface that setsockopt(2) has set in the kernel to our stack.

use super::{
    address,
    common::lock,
    file::{File, Live},
    route,
};
use busypoll_stack::{Groups, Sources};
use libc::{c_int, sockaddr_storage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// include/uapi/linux/in.h and in6.h: the same numbers for both families.
const MCAST_JOIN_GROUP: c_int = 42;
const MCAST_BLOCK_SOURCE: c_int = 43;
const MCAST_UNBLOCK_SOURCE: c_int = 44;
const MCAST_LEAVE_GROUP: c_int = 45;
const MCAST_JOIN_SOURCE_GROUP: c_int = 46;
const MCAST_LEAVE_SOURCE_GROUP: c_int = 47;
const MCAST_MSFILTER: c_int = 48;
const IP_MSFILTER: c_int = 41;
const IP_MULTICAST_ALL: c_int = 49;
const IPV6_MULTICAST_ALL: c_int = 29;
/// The filter mode; otherwise it is `MCAST_EXCLUDE`, 0.
const MCAST_INCLUDE: u32 = 1;

/// The kernel has accepted an option; returns whether it was about groups.
pub fn apply(file: &File, level: c_int, name: c_int, value: &[u8]) -> bool {
    if !matches!(level, libc::IPPROTO_IP | libc::IPPROTO_IPV6) {
        return false;
    }
    let mut groups = lock(&file.groups);
    let Some(known) = change(&mut groups, level == libc::IPPROTO_IPV6, name, Value(value)) else {
        return false;
    };
    if let (Some(()), Some(Live::Udp(udp))) = (known, file.live()) {
        udp.set_groups(groups.clone());
    }
    true
}

/// Applies an option to `groups`. `None`: it is another kind of option. `Some(None)`: it is for another interface, or
/// too short, and then the kernel has refused it.
fn change(groups: &mut Groups, six: bool, name: c_int, mut value: Value<'_>) -> Option<Option<()>> {
    let changed = match (six, name) {
        (false, IP_MULTICAST_ALL) | (true, IPV6_MULTICAST_ALL) => {
            // One byte is enough.
            value.0.first().map(|on| groups.set_multicast_all(six, *on != 0))
        }
        (false, libc::IP_ADD_MEMBERSHIP) => value.mreq().map(|(to, on)| groups.join(to, on)),
        (false, libc::IP_DROP_MEMBERSHIP) => value.mreq().map(|(to, on)| groups.leave(to, on)),
        (true, libc::IPV6_ADD_MEMBERSHIP) => value.mreq6().map(|(to, on)| groups.join(to, on)),
        (true, libc::IPV6_DROP_MEMBERSHIP) => value.mreq6().map(|(to, on)| groups.leave(to, on)),
        (false, libc::IP_ADD_SOURCE_MEMBERSHIP) => {
            value.mreq_source().map(|(to, on, from)| groups.join_source(to, on, from))
        }
        (false, libc::IP_DROP_SOURCE_MEMBERSHIP) => {
            value.mreq_source().map(|(to, on, from)| groups.leave_source(to, on, from))
        }
        (false, libc::IP_BLOCK_SOURCE) => {
            value.mreq_source().map(|(to, on, from)| groups.block(to, on, from))
        }
        (false, libc::IP_UNBLOCK_SOURCE) => {
            value.mreq_source().map(|(to, on, from)| groups.unblock(to, on, from))
        }
        (false, IP_MSFILTER) => value.filter4().map(|(to, on, from)| groups.set(to, on, from)),
        (_, MCAST_JOIN_GROUP) => value.request().map(|(to, on)| groups.join(to, on)),
        (_, MCAST_LEAVE_GROUP) => value.request().map(|(to, on)| groups.leave(to, on)),
        (_, MCAST_JOIN_SOURCE_GROUP) => {
            value.source_request().map(|(to, on, from)| groups.join_source(to, on, from))
        }
        (_, MCAST_LEAVE_SOURCE_GROUP) => {
            value.source_request().map(|(to, on, from)| groups.leave_source(to, on, from))
        }
        (_, MCAST_BLOCK_SOURCE) => {
            value.source_request().map(|(to, on, from)| groups.block(to, on, from))
        }
        (_, MCAST_UNBLOCK_SOURCE) => {
            value.source_request().map(|(to, on, from)| groups.unblock(to, on, from))
        }
        (_, MCAST_MSFILTER) => value.filter().map(|(to, on, from)| groups.set(to, on, from)),
        _ => return None,
    };
    Some(changed)
}

/// An option's value, read from its start. Groups are returned with the index of the chosen interface.
struct Value<'a>(&'a [u8]);

/// The most sources of a filter here (`net.ipv4.igmp_max_msf` is 10 by default).
const MOST_SOURCES: u32 = 1 << 16;

impl Value<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn v4(&mut self) -> Option<Ipv4Addr> {
        self.take::<4>().map(Ipv4Addr::from)
    }

    /// `struct sockaddr_storage`.
    fn address(&mut self) -> Option<IpAddr> {
        let bytes: [u8; size_of::<sockaddr_storage>()] = self.take()?;
        // SAFETY: as many bytes are readable.
        let read = unsafe { address::read(bytes.as_ptr().cast(), bytes.len() as u32) };
        read.ok().map(|address| address.ip())
    }

    /// `struct ip_mreq` or `ip_mreqn`.
    fn mreq(&mut self) -> Option<(IpAddr, u32)> {
        let (group, address) = (self.v4()?, self.v4()?);
        let index = self.word().unwrap_or(0);
        on(group.into(), address, index)
    }

    /// `struct ipv6_mreq`.
    fn mreq6(&mut self) -> Option<(IpAddr, u32)> {
        let (group, index) = (Ipv6Addr::from(self.take::<16>()?), self.word()?);
        on(group.into(), Ipv4Addr::UNSPECIFIED, index)
    }

    /// `struct ip_mreq_source`.
    fn mreq_source(&mut self) -> Option<(IpAddr, u32, IpAddr)> {
        let (group, address, source) = (self.v4()?, self.v4()?, self.v4()?);
        let (group, index) = on(group.into(), address, 0)?;
        Some((group, index, source.into()))
    }

    /// `struct ip_msfilter`.
    fn filter4(&mut self) -> Option<(IpAddr, u32, Sources)> {
        let (group, address) = (self.v4()?, self.v4()?);
        let (group, index) = on(group.into(), address, 0)?;
        let sources = self.sources(|value| value.v4().map(IpAddr::V4))?;
        Some((group, index, sources))
    }

    /// `struct group_req`.
    fn request(&mut self) -> Option<(IpAddr, u32)> {
        let (index, _padding) = (self.word()?, self.word()?);
        on(self.address()?, Ipv4Addr::UNSPECIFIED, index)
    }

    /// `struct group_source_req`.
    fn source_request(&mut self) -> Option<(IpAddr, u32, IpAddr)> {
        let (group, index) = self.request()?;
        Some((group, index, self.address()?))
    }

    /// `struct group_filter`.
    fn filter(&mut self) -> Option<(IpAddr, u32, Sources)> {
        let (group, index) = self.request()?;
        let sources = self.sources(Value::address)?;
        Some((group, index, sources))
    }

    fn sources(&mut self, one: impl Fn(&mut Self) -> Option<IpAddr>) -> Option<Sources> {
        let (mode, count) = (self.word()?, self.word()?.min(MOST_SOURCES));
        let list = (0..count).map(|_| one(self)).collect::<Option<Vec<_>>>()?;
        Some(if mode == MCAST_INCLUDE { Sources::Only(list) } else { Sources::AllBut(list) })
    }
}

/// The group and the index of the chosen interface, if the option is for it: by index, else by an address on it, else
/// if the route to the group leads there (`ip_mc_find_dev`, `ipv6_sock_mc_join`).
fn on(group: IpAddr, address: Ipv4Addr, index: u32) -> Option<(IpAddr, u32)> {
    let chosen = route::index();
    let is_chosen = match (index, address) {
        (0, Ipv4Addr::UNSPECIFIED) => route::is_egress_to(group),
        (0, address) => route::has_address(address.into()),
        (index, _) => index == chosen,
    };
    (is_chosen && chosen != 0).then_some((group, chosen))
}
