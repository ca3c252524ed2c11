//! The copies of the kernel's tables and how notifications change them. Owns the parsing of RTM_*LINK,
//! RTM_*ADDR and RTM_*NEIGH messages; does no input or output.

use super::Neighbours;
use crate::{
    nic::xdp::netlink::{Message, Request, u16_at, u32_at},
    time::Instant,
    wire::MacAddr,
};
use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

// linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

// linux/if_link.h, linux/if_addr.h, linux/neighbour.h
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_FLAGS_EXT: u16 = 15;
const NTF_EXT_LEARNED: u8 = 0x10;
pub(super) const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
/// Resolved by the protocol, and so confirmed by answers.
const NUD_DYNAMIC: u16 = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE;
const NUD_USABLE: u16 = NUD_DYNAMIC | NUD_NOARP | NUD_PERMANENT;

const AF_UNSPEC: u8 = libc::AF_UNSPEC as u8;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
/// The address must not be used yet, or never: another host may have it, or has it (RFC 4862 section 5.4).
const IFA_F_TENTATIVE: u8 = 0x40;
const IFA_F_DADFAILED: u8 = 0x08;
const IFA_F_OPTIMISTIC: u8 = 0x04;
/// Sizes of `struct ifinfomsg`, `ifaddrmsg`, `ndmsg`.
const IFINFO: usize = 16;
const IFADDR: usize = 8;
const NDMSG: usize = 12;

/// What a message has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing that affects a path.
    None,
    /// Some paths may have changed.
    Paths,
}

/// An address of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) local: IpAddr,
    pub(super) prefix: u8,
    broadcast: Option<IpAddr>,
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    state: u16,
    /// The NTF_* flags, and in `more_flags` those of NDA_FLAGS_EXT.
    flags: u8,
    more_flags: u32,
    mac: MacAddr,
    confirmed: Option<Instant>,
    /// Packets may have been sent to it since it last became stale.
    used: bool,
}

impl Neighbour {
    pub(super) fn usable(&self) -> Option<MacAddr> {
        (self.state & NUD_USABLE != 0).then_some(self.mac)
    }

    pub(super) fn is_stale(&self) -> bool {
        self.state & NUD_STALE != 0
    }

    /// A packet is sent to it.
    pub(super) fn mark_used(&mut self) {
        self.used = true;
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state & NUD_FAILED != 0
    }

    /// Whether an administrator (permanent, noarp) or the kernel itself (managed) maintains it. Any message from us,
    /// even NTF_USE, would make it an ordinary entry (`__neigh_update`).
    pub(super) fn is_managed_elsewhere(&self) -> bool {
        self.state & (NUD_NOARP | NUD_PERMANENT) != 0 || self.more_flags != 0
    }

    /// The flags that a message about it must repeat or the entry loses them: it was learned by a control plane.
    pub(super) fn kept_flags(&self) -> u8 {
        self.flags & NTF_EXT_LEARNED
    }

    /// Whether to confirm it now; if so, records the time.
    pub(super) fn wants_confirmation(&mut self, now: Instant, every: Duration) -> bool {
        let due = self.confirmed.is_none_or(|last| now.since(last) >= every);
        let wants = due && self.state & NUD_DYNAMIC != 0 && !self.is_managed_elsewhere();
        if wants {
            self.confirmed = Some(now);
        }
        wants
    }

    /// What a sender can see of it: its address, and whether it has failed.
    fn visible(&self) -> (Option<MacAddr>, bool) {
        (self.usable(), self.has_failed())
    }
}

/// One interface's tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// The largest IP packet, bytes.
    pub(super) mtu: u32,
    /// The interface's MAC address, if it is an Ethernet interface.
    pub(super) mac: Option<MacAddr>,
    flags: u32,
    pub(super) addresses: Vec<Address>,
    pub(super) neighbours: Neighbours,
}

/// The requests that fill empty tables: link, addresses, neighbours.
pub(super) fn dumps(ifindex: u32) -> [Request; 5] {
    let mut link = [0; IFINFO];
    link[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let address = |family| {
        let mut address = [0; IFADDR];
        address[0] = family;
        Request::new(RTM_GETADDR, &address).dump()
    };
    let neighbours = |family| Request::new(RTM_GETNEIGH, &ndmsg(family, ifindex, 0, 0)).dump();
    [
        Request::new(RTM_GETLINK, &link),
        address(AF_INET),
        address(AF_INET6),
        neighbours(AF_INET),
        neighbours(AF_INET6),
    ]
}

/// A `struct ndmsg`.
pub(super) fn ndmsg(family: u8, ifindex: u32, state: u16, flags: u8) -> [u8; NDMSG] {
    let mut header = [0; NDMSG];
    header[0] = family;
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

impl Tables {
    /// Whether an address is a subnet's broadcast address.
    pub(super) fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        self.addresses.iter().any(|a| a.broadcast == Some(address.into()))
    }

    /// Applies one message. Messages about other interfaces and malformed ones change no table.
    pub(super) fn apply(&mut self, ifindex: u32, message: Message<'_>) -> Change {
        match message.kind {
            RTM_NEWLINK | RTM_DELLINK => self.link(ifindex, message),
            RTM_NEWADDR | RTM_DELADDR => self.address(ifindex, message),
            RTM_NEWNEIGH | RTM_DELNEIGH => self.neighbour(ifindex, message),
            RTM_NEWROUTE | RTM_DELROUTE | RTM_NEWRULE | RTM_DELRULE | RTM_NEWNEXTHOP
            | RTM_DELNEXTHOP => Change::Paths,
            _ => Change::None,
        }
    }

    /// The routes of an interface that goes down are removed without a notification (fib_sync_down_dev), so
    /// any interface's change of flags may change a path.
    fn link(&mut self, ifindex: u32, message: Message<'_>) -> Change {
        // A bridge sends AF_BRIDGE messages about its ports. RTM_DELLINK among them means that a port has left the
        // bridge; the device still exists (`br_ifinfo_notify`).
        if message.payload.first() != Some(&AF_UNSPEC) {
            return Change::None;
        }
        let [Some(index), Some(flags), Some(change)] =
            [4, 8, 12].map(|at| u32_at(message.payload, at))
        else {
            return Change::None;
        };
        if index != ifindex {
            let quiet = message.kind == RTM_NEWLINK && change == 0;
            return if quiet { Change::None } else { Change::Paths };
        }
        if message.kind == RTM_DELLINK {
            *self = Tables::default();
            return Change::Paths;
        }
        let mtu = message
            .attributes(IFINFO)
            .find(|(kind, _)| *kind == IFLA_MTU)
            .and_then(|(_, value)| u32_at(value, 0))
            .unwrap_or(self.mtu);
        let mac = message
            .attributes(IFINFO)
            .find(|(kind, _)| *kind == IFLA_ADDRESS)
            .map_or(self.mac, |(_, value)| value.try_into().ok().map(MacAddr));
        let before = (self.mtu, self.mac, self.flags);
        (self.mtu, self.mac, self.flags) = (mtu, mac, flags);
        if before == (mtu, mac, flags) { Change::None } else { Change::Paths }
    }

    /// Another interface's addresses matter too: routes are added and removed with them.
    fn address(&mut self, ifindex: u32, message: Message<'_>) -> Change {
        let (Some(&[family, prefix, flags, _]), Some(index)) =
            (message.payload.first_chunk::<4>(), u32_at(message.payload, 4))
        else {
            return Change::None;
        };
        let most = match family {
            AF_INET => 32,
            AF_INET6 => 128,
            _ => return Change::None,
        };
        if prefix > most {
            return Change::None;
        }
        if index != ifindex {
            return Change::Paths;
        }
        let (mut address, mut local, mut broadcast) = (None, None, None);
        for (kind, value) in message.attributes(IFADDR) {
            match kind {
                IFA_ADDRESS => address = ip(value),
                IFA_LOCAL => local = ip(value),
                IFA_BROADCAST => broadcast = ip(value),
                _ => {}
            }
        }
        // On a point-to-point link IFA_ADDRESS is the peer's address.
        let Some(local) = local.or(address) else { return Change::None };
        self.addresses.retain(|a| (a.local, a.prefix) != (local, prefix));
        let unsure = flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0;
        let usable = !unsure && flags & IFA_F_DADFAILED == 0;
        if message.kind == RTM_NEWADDR && usable {
            self.addresses.push(Address { local, prefix, broadcast });
        }
        Change::Paths
    }

    fn neighbour(&mut self, ifindex: u32, message: Message<'_>) -> Change {
        let (Some(&family), Some(index), Some(state), Some(&flags)) = (
            message.payload.first(),
            u32_at(message.payload, 4),
            u16_at(message.payload, 8),
            message.payload.get(10),
        ) else {
            return Change::None;
        };
        if !matches!(family, AF_INET | AF_INET6) || index != ifindex {
            return Change::None;
        }
        let (mut destination, mut mac, mut more_flags) = (None, None, 0);
        for (kind, value) in message.attributes(NDMSG) {
            match kind {
                NDA_DST => destination = ip(value),
                NDA_LLADDR => mac = value.try_into().ok().map(MacAddr),
                NDA_FLAGS_EXT => more_flags = u32_at(value, 0).unwrap_or(0),
                _ => {}
            }
        }
        let Some(destination) = destination else { return Change::None };
        let before = self.neighbours.remove(&destination);
        let mut in_doubt = false;
        if message.kind == RTM_NEWNEIGH {
            let mut neighbour = Neighbour {
                // A usable state without an address would be of no use.
                state: if mac.is_some() { state } else { state & NUD_FAILED },
                flags,
                more_flags,
                mac: mac.unwrap_or(MacAddr([0; 6])),
                confirmed: before.and_then(|b| b.confirmed),
                used: before.is_none_or(|b| b.used),
            };
            // If packets were sent since it was last stale, the senders must look up their paths, which starts the
            // verification. An idle neighbour does not outdate paths again.
            in_doubt = neighbour.is_stale() && std::mem::take(&mut neighbour.used);
            self.neighbours.insert(destination, neighbour);
        }
        let visible = |n: Option<&Neighbour>| n.map_or((None, false), Neighbour::visible);
        let same = visible(before.as_ref()) == visible(self.neighbours.get(&destination));
        if same && !in_doubt { Change::None } else { Change::Paths }
    }
}

/// Parses the address in an attribute.
pub(super) fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The bytes of an address for an attribute.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

pub(super) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;

    /// The message that a port has left a bridge differs from that of a deleted device in the family only.
    #[test]
    fn only_messages_about_the_device_itself_count() {
        let mut tables = Tables { mtu: 1500, flags: 1, ..Tables::default() };
        let apply = |tables: &mut Tables, kind, family| {
            let mut link = [0; IFINFO];
            (link[0], link[4]) = (family, 7);
            tables.apply(7, Message::of(kind, &link))
        };
        for kind in [RTM_NEWLINK, RTM_DELLINK] {
            assert_eq!(apply(&mut tables, kind, AF_BRIDGE), Change::None);
            assert_eq!((tables.mtu, tables.flags), (1500, 1));
        }
        assert_eq!(apply(&mut tables, RTM_DELLINK, AF_UNSPEC), Change::Paths);
        assert_eq!(tables.mtu, 0);
    }
}
