//! Route lookups in the kernel and a small cache of their results. Owns RTM_GETROUTE (`inet_rtm_getroute`,
//! `inet6_rtm_getroute`) and the cache.

use super::{
    super::iface::Hop,
    tables::{family, ip, octets},
};
use crate::nic::xdp::netlink::{Attributes, Request, Socket, u32_at};
use std::{collections::HashMap, io, net::IpAddr};

// linux/rtnetlink.h
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
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

/// The number of young results, and of old ones. A host with more destinations or sources repeats lookups, which take
/// a few microseconds each.
const CACHE_LEN: usize = 1024;

/// A destination, and the source if the sender has specified one: policy rules match both.
pub(super) type RouteKey = (IpAddr, Option<IpAddr>);

/// Lookup results, each with its generation.
#[derive(Default)]
pub(super) struct Cache {
    young: Answers,
    /// The previous young ones. A used entry becomes young again, so that lookups that are never repeated evict only
    /// each other.
    old: Answers,
}

type Answers = HashMap<RouteKey, (u64, Option<Hop>)>;

impl Cache {
    /// The cached result; the outer `None` means that there is none.
    pub(super) fn get(&mut self, key: RouteKey, generation: u64) -> Option<Option<Hop>> {
        let is_current = |(cached, _): &&(u64, Option<Hop>)| *cached == generation;
        if let Some((_, hop)) = self.young.get(&key).filter(is_current) {
            return Some(*hop);
        }
        let hop = self.old.get(&key).filter(is_current).map(|(_, hop)| *hop)?;
        self.insert(key, generation, hop);
        Some(hop)
    }

    pub(super) fn insert(&mut self, key: RouteKey, generation: u64, hop: Option<Hop>) {
        if self.young.len() >= CACHE_LEN {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, (generation, hop));
    }
}

/// Looks up a route in the kernel; `None` if the route does not use the interface `ifindex`, whose MTU is `mtu`. The
/// hop's MTU is that of the route, including the kernel's path MTU discovery, and never above `mtu`: the interface's
/// MTU may have been lowered since the NIC was opened.
pub(super) fn query(
    socket: &mut Socket,
    key: RouteKey,
    ifindex: u32,
    mtu: u32,
) -> io::Result<Option<Hop>> {
    let (dst, src) = key;
    let mut hop = None;
    let answered = socket.request(request(key, ifindex), &mut |message| {
        let kind = message.payload.get(RTMSG_TYPE).copied().unwrap_or(0);
        let (mut oif, mut gateway, mut source, mut route_mtu) = (None, None, None, None);
        for (attribute, value) in message.attributes(RTMSG) {
            match attribute {
                RTA_OIF => oif = u32_at(value, 0),
                RTA_GATEWAY => gateway = ip(value),
                // A gateway of the other family (RFC 5549): two bytes of family, then the address.
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
        // The kernel does not return a source that the request specified.
        if let (true, Some(source)) = (sendable && oif == Some(ifindex), src.or(source)) {
            hop = Some(Hop {
                next_hop: gateway.unwrap_or(dst),
                source,
                mtu: route_mtu.into_iter().chain((mtu > 0).then_some(mtu)).min(),
            });
        }
    });
    match answered {
        Ok(()) => Ok(hop),
        // No route: unreachable, prohibited, blackhole (EINVAL).
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

fn request((dst, src): RouteKey, ifindex: u32) -> Request {
    let bits = if dst.is_ipv4() { 32 } else { 128 };
    let mut header = [0; RTMSG];
    (header[0], header[1]) = (family(dst), bits);
    header[2] = src.map_or(0, |_| bits);
    let mut request = Request::new(RTM_GETROUTE, &header).attribute(RTA_DST, &octets(dst));
    if let Some(src) = src {
        request = request.attribute(RTA_SRC, &octets(src));
    }
    if matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        // A link-local address is valid on one link only: this one.
        request = request.attribute(RTA_OIF, &ifindex.to_ne_bytes());
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    const DST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));
    const SRC: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2));

    #[test]
    fn a_specified_source_is_part_of_the_request() {
        let sent = |src| request((DST, src), 7).finish(1)[16..].to_vec();
        let attribute = |kind: u16, value: [u8; 4]| {
            [&8u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value].concat()
        };
        let header = |bits| [libc::AF_INET as u8, 32, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
        let to = attribute(RTA_DST, [10, 0, 0, 9]);
        assert_eq!(sent(None), [header(0), to.clone()].concat());
        let from = attribute(RTA_SRC, [10, 2, 0, 2]);
        assert_eq!(sent(Some(SRC)), [header(32), to, from].concat());
    }

    #[test]
    fn a_used_entry_outlives_lookups_that_are_not_repeated() {
        let mut cache = Cache::default();
        let hop = Some(Hop { next_hop: DST, source: SRC, mtu: None });
        cache.insert((DST, None), 1, hop);
        for n in 0..20 * CACHE_LEN as u32 {
            let once = IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
            cache.insert((once, Some(SRC)), 1, hop);
            assert_eq!(cache.get((DST, None), 1), Some(hop), "after {n}");
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * CACHE_LEN);
    }

    #[test]
    fn a_result_is_valid_for_its_source_and_generation_only() {
        let mut cache = Cache::default();
        let hop = Hop { next_hop: DST, source: SRC, mtu: None };
        cache.insert((DST, Some(SRC)), 1, Some(hop));
        assert_eq!(cache.get((DST, Some(SRC)), 1), Some(Some(hop)));
        assert_eq!(cache.get((DST, None), 1), None);
        assert_eq!(cache.get((DST, Some(DST)), 1), None);
        assert_eq!(cache.get((DST, Some(SRC)), 2), None);
    }
}
