//! Multicast groups of a socket. The companion joins them in the kernel (IGMP, MLD, the NIC's filter). This is a copy
//! of its memberships, so that datagrams from our queues reach the same sockets as they would in the kernel.

use super::{Bound, Inner, UdpSocket};
use crate::{socket::options::errno, sync::lock};
use std::{io, net::IpAddr};

/// The groups that a socket is in, on which interfaces (by index), and from which sources it receives.
///
/// ```
/// use busypoll_stack::Groups;
///
/// let (group, exchange, stranger) =
///     ("239.1.1.1".parse().unwrap(), "10.0.0.7".parse().unwrap(), "10.0.0.9".parse().unwrap());
/// let mut groups = Groups::default();
/// groups.join_source(group, 2, exchange);
/// assert!(groups.accepts_group(group, 2, exchange));
/// assert!(!groups.accepts_group(group, 2, stranger));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    memberships: Vec<Membership>,
    /// `IP_MULTICAST_ALL` and `IPV6_MULTICAST_ALL` are off: datagrams to groups that only other sockets have joined are
    /// not received.
    only_joined: [bool; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Membership {
    group: IpAddr,
    interface: u32,
    sources: Sources,
}

/// The source filter of a membership (RFC 3376 section 2, the filter mode).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// All sources but these: EXCLUDE.
    AllBut(Vec<IpAddr>),
    /// Only these: INCLUDE.
    Only(Vec<IpAddr>),
}

impl Groups {
    fn find(&mut self, group: IpAddr, interface: u32) -> Option<&mut Sources> {
        let is = |it: &&mut Membership| it.group == group && it.interface == interface;
        self.memberships.iter_mut().find(is).map(|it| &mut it.sources)
    }

    /// Sets the source filter of a group, joined or not: `IP_MSFILTER`, `MCAST_MSFILTER`.
    pub fn set(&mut self, group: IpAddr, interface: u32, sources: Sources) {
        match self.find(group, interface) {
            Some(known) => *known = sources,
            None => self.memberships.push(Membership { group, interface, sources }),
        }
    }

    /// `IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP`, `MCAST_JOIN_GROUP`.
    pub fn join(&mut self, group: IpAddr, interface: u32) {
        self.set(group, interface, Sources::AllBut(Vec::new()));
    }

    /// `IP_DROP_MEMBERSHIP`, `IPV6_LEAVE_GROUP`, `MCAST_LEAVE_GROUP`.
    pub fn leave(&mut self, group: IpAddr, interface: u32) {
        self.memberships.retain(|it| (it.group, it.interface) != (group, interface));
    }

    /// `IP_ADD_SOURCE_MEMBERSHIP`, `MCAST_JOIN_SOURCE_GROUP`.
    pub fn join_source(&mut self, group: IpAddr, interface: u32, source: IpAddr) {
        match self.find(group, interface) {
            Some(Sources::Only(list)) => list.push(source),
            _ => self.set(group, interface, Sources::Only(vec![source])),
        }
    }

    /// `IP_DROP_SOURCE_MEMBERSHIP`, `MCAST_LEAVE_SOURCE_GROUP`: without the last source the group is left
    /// (`ip_mc_source`).
    pub fn leave_source(&mut self, group: IpAddr, interface: u32, source: IpAddr) {
        if let Some(Sources::Only(list)) = self.find(group, interface) {
            list.retain(|it| *it != source);
            if list.is_empty() {
                self.leave(group, interface);
            }
        }
    }

    /// `IP_BLOCK_SOURCE`, `MCAST_BLOCK_SOURCE`.
    pub fn block(&mut self, group: IpAddr, interface: u32, source: IpAddr) {
        if let Some(Sources::AllBut(list)) = self.find(group, interface) {
            list.push(source);
        }
    }

    /// `IP_UNBLOCK_SOURCE`, `MCAST_UNBLOCK_SOURCE`.
    pub fn unblock(&mut self, group: IpAddr, interface: u32, source: IpAddr) {
        if let Some(Sources::AllBut(list)) = self.find(group, interface) {
            list.retain(|it| *it != source);
        }
    }

    /// `IP_MULTICAST_ALL`, or `IPV6_MULTICAST_ALL` if `of_v6`: datagrams to groups that other sockets have joined are
    /// received, too. On by default.
    pub fn set_multicast_all(&mut self, of_v6: bool, on: bool) {
        self.only_joined[usize::from(of_v6)] = !on;
    }

    /// Whether a datagram from `source` to `group` that came in over `interface` is received (`ip_mc_sf_allow`,
    /// `inet6_mc_check`).
    pub fn accepts_group(&self, group: IpAddr, interface: u32, source: IpAddr) -> bool {
        let is = |it: &&Membership| it.group == group && it.interface == interface;
        match self.memberships.iter().find(is).map(|it| &it.sources) {
            Some(Sources::AllBut(list)) => !list.contains(&source),
            Some(Sources::Only(list)) => list.contains(&source),
            None => !self.only_joined[usize::from(group.is_ipv6())],
        }
    }

    /// Whether the socket is in `group` on any interface.
    pub fn contains(&self, group: IpAddr) -> bool {
        self.memberships.iter().any(|it| it.group == group)
    }

    /// Each group with its interface.
    pub(super) fn joined(&self) -> Vec<(u32, IpAddr)> {
        self.memberships.iter().map(|it| (it.interface, it.group)).collect()
    }
}

impl UdpSocket {
    /// Joins `group` on the interface with the index `interface`. Datagrams to it at the socket's port come over our
    /// queues while no socket of another process receives them, and over a packet socket's ring while one does, for
    /// which the process needs CAP_NET_RAW; else through the kernel. This is checked once a second.
    ///
    /// # Errors
    /// EINVAL if the socket is not bound, if `group` is no group or `interface` is 0; EADDRINUSE if the socket has joined it
    /// already; ENODEV; EOPNOTSUPP if no interface is shared with the kernel, which does the joining.
    pub fn join_multicast(&self, group: IpAddr, interface: u32) -> io::Result<()> {
        self.0.change_group(group, interface, true)
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if it is not in the group; else as [`join_multicast`](UdpSocket::join_multicast).
    pub fn leave_multicast(&self, group: IpAddr, interface: u32) -> io::Result<()> {
        self.0.change_group(group, interface, false)
    }

    /// Sets the memberships to those of the companion, if the program has joined groups on the
    /// [adopted](UdpSocket::adopt) kernel socket itself.
    #[doc(hidden)]
    pub fn set_groups(&self, groups: Groups) {
        if let Some(bound) = &*lock(&self.0.binding) {
            self.0.set_groups(bound, groups);
        }
    }
}

impl Inner {
    fn change_group(&self, group: IpAddr, interface: u32, join: bool) -> io::Result<()> {
        let bound = lock(&self.binding);
        let bound = bound.as_ref().ok_or_else(|| errno(libc::EINVAL))?;
        let kernel = bound.kernel.as_ref().ok_or_else(|| errno(libc::EOPNOTSUPP))?;
        if interface == 0 {
            return Err(errno(libc::EINVAL));
        }
        kernel.change_group(group, interface, join)?;
        let mut groups = self.endpoint.groups();
        match join {
            true => groups.join(group, interface),
            false => groups.leave(group, interface),
        }
        self.set_groups(bound, groups);
        Ok(())
    }

    fn set_groups(&self, bound: &Bound, groups: Groups) {
        let joined = groups.joined();
        // The filter is set before the groups are steered to our queues.
        self.endpoint.set_groups(groups);
        if let Some(kernel) = &bound.kernel {
            kernel.set_groups(joined);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEED: &str = "239.1.1.1";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn sources_are_filtered_by_group_and_interface() {
        let mut groups = Groups::default();
        let accepts = |groups: &Groups, from| groups.accepts_group(ip(FEED), 2, ip(from));
        assert!(accepts(&groups, "10.0.0.7"), "IP_MULTICAST_ALL");
        groups.set_multicast_all(false, false);
        assert!(!accepts(&groups, "10.0.0.7"));

        groups.join(ip(FEED), 2);
        groups.block(ip(FEED), 2, ip("10.0.0.7"));
        assert!(!accepts(&groups, "10.0.0.7") && accepts(&groups, "10.0.0.8"));
        assert!(!groups.accepts_group(ip(FEED), 3, ip("10.0.0.8")), "another interface");
        groups.unblock(ip(FEED), 2, ip("10.0.0.7"));
        assert!(accepts(&groups, "10.0.0.7"));
        groups.leave(ip(FEED), 2);
        assert!(!accepts(&groups, "10.0.0.7"));

        groups.join_source(ip(FEED), 2, ip("10.0.0.7"));
        groups.join_source(ip(FEED), 2, ip("10.0.0.8"));
        assert!(accepts(&groups, "10.0.0.8") && !accepts(&groups, "10.0.0.9"));
        groups.leave_source(ip(FEED), 2, ip("10.0.0.8"));
        assert!(accepts(&groups, "10.0.0.7") && !accepts(&groups, "10.0.0.8"));
        groups.leave_source(ip(FEED), 2, ip("10.0.0.7"));
        assert_eq!(groups.joined(), []);

        groups.set(ip("ff15::1"), 2, Sources::Only(vec![ip("fe80::7")]));
        assert!(groups.accepts_group(ip("ff15::1"), 2, ip("fe80::7")));
        assert!(!groups.accepts_group(ip("ff15::1"), 2, ip("fe80::8")));
        assert!(groups.accepts_group(ip("ff15::2"), 2, ip("fe80::8")), "IPV6_MULTICAST_ALL");
    }
}
