//! The devices that deliver a process's packets: their findings concern the process, too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use busypoll_linux::link::Links;
use busypoll_linux::netns;
use busypoll_linux::route::route_to;

use super::{Census, NapiState, Napis, class};
use crate::support::device;
use crate::{Report, Scope};

/// If the device of a socket is not known, all devices that are up are checked, unless there are more than this.
const MOST: usize = 4;

/// What is known of the devices of one network namespace.
#[derive(Default)]
struct Wanted {
    names: BTreeSet<String>,
    peers: BTreeSet<IpAddr>,
    /// A socket without an id may receive from any device.
    any: bool,
    /// A socket is bound to a loopback address.
    loopback: bool,
}

pub(super) fn check(scope: &Scope, census: &Census, napis: &Napis, report: &mut Report) {
    let mut wanted: BTreeMap<u32, Wanted> = BTreeMap::new();
    let processes = census.processes.values().filter(|p| scope.pids.contains(&p.pid));
    for (_, socket) in processes.flat_map(|p| p.sockets()) {
        if !class(socket).learns() {
            continue;
        }
        let there = wanted.entry(socket.netns).or_default();
        if napis.is_local(socket) {
            there.loopback = true;
            continue;
        }
        match (socket.napi.map(|id| napis.state(id)), socket.peer) {
            (Some(NapiState::Alive(location)), _) => {
                // The id may be that of a lower device in another namespace.
                wanted.entry(location.netns).or_default().names.insert(location.device.clone());
            }
            (_, Some(peer)) if there.peers.len() < 64 => drop(there.peers.insert(peer.ip())),
            _ => there.any = true,
        }
        // A connected peer fixes the device; an id learnt earlier does not.
        if socket.peer.is_none() {
            wanted.entry(socket.netns).or_default().any = true;
        }
    }
    let here = netns::inode().ok();
    for (inode, wanted) in wanted {
        if here == Some(inode) || inode == 0 {
            wanted.check(report);
        } else if let Some(path) = netns::with_inode(inode) {
            let mut inside = Report::default();
            // The check of NAPI ids has reported namespaces that cannot be entered.
            if netns::enter(&path, || wanted.check(&mut inside)).is_ok() {
                report.take_over(inside, &path);
            }
        }
    }
}

impl Wanted {
    fn check(&self, report: &mut Report) {
        let Ok(links) = Links::open().and_then(|mut links| links.all()) else { return };
        let mut names = self.names.clone();
        for peer in &self.peers {
            if let Ok(route) = route_to(*peer)
                && let Some(link) = links.iter().find(|l| l.ifindex == route.ifindex)
            {
                names.insert(link.name.clone());
            }
        }
        if self.any {
            let up: Vec<_> =
                links.iter().filter(|l| l.up && !l.loopback && l.master.is_none()).collect();
            if up.len() <= MOST {
                names.extend(up.iter().map(|l| l.name.clone()));
            }
        }
        if self.loopback {
            names.extend(links.iter().filter(|l| l.loopback && !l.up).map(|l| l.name.clone()));
        }
        // Devices stacked on these have settings of their own.
        for lower in names.clone() {
            let Some(lower) = links.iter().find(|l| l.name == lower) else { continue };
            let stands_on = |l: &&busypoll_linux::link::Link| {
                lower.master == Some(l.ifindex)
                    || l.kind.as_deref() != Some("veth")
                        && l.lower
                            .is_some_and(|on| on.netns.is_none() && on.ifindex == lower.ifindex)
            };
            names.extend(links.iter().filter(stands_on).map(|l| l.name.clone()));
        }
        device::behind_processes(&names, report);
    }
}
