//! The kernel's answer to "how would you send this?", and a small memory of such answers. Owns
//! RTM_GETROUTE (`inet_rtm_getroute`, `inet6_rtm_getroute`) and the cache.

use super::{
    super::iface::Hop,
    tables::{family, ip, octets},
};
use crate::nic::xdp::netlink::{Attributes, Request, Socket, u32_at};
use std::{collections::HashMap, io, net::IpAddr};

// linux/rtnetlink.h
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const RTN_UNICAST: u8 = 1;
const RTN_BROADCAST: u8 = 3;
const RTN_MULTICAST: u8 = 5;
/// Size of `struct rtmsg`, and where the type is in it.
const RTMSG: usize = 12;
const RTMSG_TYPE: usize = 7;

/// Answers kept. A host that talks to more destinations asks again: a few microseconds each.
const KEPT: usize = 1024;

/// Answers by destination, each with the generation it was asked in.
#[derive(Default)]
pub(super) struct Cache(HashMap<IpAddr, (u64, Option<Hop>)>);

impl Cache {
    /// What is known: outer `None` if nothing.
    pub(super) fn get(&self, dst: IpAddr, generation: u64) -> Option<Option<Hop>> {
        self.0.get(&dst).filter(|(asked, _)| *asked == generation).map(|(_, hop)| *hop)
    }

    pub(super) fn insert(&mut self, dst: IpAddr, generation: u64, hop: Option<Hop>) {
        if self.0.len() >= KEPT {
            self.0.clear();
        }
        self.0.insert(dst, (generation, hop));
    }
}

/// Asks the kernel; `None` if it would not use the interface `ifindex`, whose MTU is `mtu`. The hop's MTU
/// is that of the route, what path MTU discovery has told the kernel included, and never above `mtu`: the
/// interface's may have been lowered since the NIC was opened.
pub(super) fn ask(
    socket: &mut Socket,
    dst: IpAddr,
    ifindex: u32,
    mtu: u32,
) -> io::Result<Option<Hop>> {
    let mut header = [0; RTMSG];
    header[0] = family(dst);
    header[1] = if dst.is_ipv4() { 32 } else { 128 };
    let mut request = Request::new(RTM_GETROUTE, &header).attribute(RTA_DST, &octets(dst));
    if matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        // Such an address means something on one link only: this one.
        request = request.attribute(RTA_OIF, &ifindex.to_ne_bytes());
    }
    let mut hop = None;
    let answered = socket.request(request, &mut |message| {
        let kind = message.payload.get(RTMSG_TYPE).copied().unwrap_or(0);
        let (mut oif, mut gateway, mut source, mut route_mtu) = (None, None, None, None);
        for (attribute, value) in message.attributes(RTMSG) {
            match attribute {
                RTA_OIF => oif = u32_at(value, 0),
                RTA_GATEWAY => gateway = ip(value),
                // The gateway is of the other family (RFC 5549): two bytes say which, then comes the address.
                RTA_VIA => gateway = value.get(2..).and_then(ip),
                RTA_PREFSRC => source = ip(value),
                RTA_METRICS => {
                    route_mtu = Attributes::nested(value)
                        .find(|(metric, _)| *metric == RTAX_MTU)
                        .and_then(|(_, value)| u32_at(value, 0));
                }
                _ => {}
            }
        }
        let sendable = matches!(kind, RTN_UNICAST | RTN_BROADCAST | RTN_MULTICAST);
        if let (true, Some(source)) = (sendable && oif == Some(ifindex), source) {
            hop = Some(Hop {
                next_hop: gateway.unwrap_or(dst),
                source,
                mtu: route_mtu.into_iter().chain((mtu > 0).then_some(mtu)).min(),
            });
        }
    });
    match answered {
        Ok(()) => Ok(hop),
        // No way there: unreachable, prohibited, blackhole (EINVAL).
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)
            ) =>
        {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}
