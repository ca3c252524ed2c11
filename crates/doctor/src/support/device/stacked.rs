//! Devices that are stacked on others and add no queue of their own: their packets keep the NAPI id of the
//! device they arrived at.

use busypoll_linux::link::Link;

use super::Sources;
use crate::rules::{STACKED, STACKED_UNKNOWN};
use crate::{Report, Subject};

/// Kinds whose packets come from the device they were made on.
const ON_ONE: &[&str] =
    &["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec", "hsr", "rmnet", "vxcan"];
/// Kinds whose packets come from their ports.
const ON_PORTS: &[&str] = &["bridge", "bond", "team", "vrf", "openvswitch"];
/// Kinds whose packets arrive inside other packets; the lower device may be unspecified.
const TUNNELS: &[&str] = &[
    "vxlan",
    "geneve",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "erspan",
    "ip6erspan",
    "ipip",
    "sit",
    "ip6tnl",
    "vti",
    "vti6",
    "xfrm",
    "gtp",
    "bareudp",
    "fou",
    "amt",
];

/// The lower devices, if `link` is such a device; empty if they are not fixed.
pub(super) fn below(link: &Link, sources: &Sources, report: &mut Report) -> Option<Vec<Link>> {
    let kind = link.kind.as_deref()?;
    let ports = ON_PORTS.contains(&kind);
    if !ports && !ON_ONE.contains(&kind) && !TUNNELS.contains(&kind) {
        return None;
    }
    let below: Vec<Link> = match ports {
        true => sources.links.iter().filter(|l| l.master == Some(link.ifindex)).cloned().collect(),
        false => {
            let lower = link.lower.filter(|l| l.netns.is_none());
            lower.and_then(|l| sources.by_index(l.ifindex)).cloned().into_iter().collect()
        }
    };
    let subject = Subject::device(&link.name);
    let read = format!("ip -d link show {}", link.name);
    let names: Vec<&str> = below.iter().map(|l| l.name.as_str()).collect();
    if names.is_empty() {
        let what = format!("the device below this {kind} is not known");
        report.add(STACKED_UNKNOWN.finding(subject, what).evidence(read, kind));
    } else {
        let what = format!("{kind}: sockets poll the device below, {}", names.join(", "));
        report.add(STACKED.finding(subject, what).evidence(read, kind));
    }
    Some(below)
}
