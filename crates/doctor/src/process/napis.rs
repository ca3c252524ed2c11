//! The state of NAPI ids: alive, with the device, or dead. Reads netlink in every network namespace that
//! can be entered.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use busypoll_linux::bpf::files::Socket;
use busypoll_linux::caps::{Capability, Caps};
use busypoll_linux::ethtool::{Channels, Ethtool};
use busypoll_linux::link::Links;
use busypoll_linux::netdev::{Direction, Napi, Netdev};
use busypoll_linux::route::{RouteKind, route_to};
use busypoll_linux::{NapiId, netns};

use super::Process;

/// Where a living NAPI instance is.
#[derive(Clone, Debug)]
pub(crate) struct NapiLocation {
    pub(crate) device: String,
    /// The inode of the device's network namespace.
    pub(crate) netns: u32,
    /// The receive queue, if the driver reports it.
    pub(crate) queue: Option<u32>,
    pub(crate) napi: Napi,
    /// The `ethtool -L` name of the queues that can be reduced to one, if there are more.
    pub(crate) one_channel: Option<&'static str>,
}

impl fmt::Display for NapiLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queue {
            Some(queue) => write!(f, "{} queue {queue}", self.device),
            None => f.write_str(&self.device),
        }
    }
}

/// The state of a NAPI id.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NapiState<'a> {
    Alive(&'a NapiLocation),
    Dead,
    /// Not found, but not every network namespace could be searched.
    Unknown,
}

/// The NAPI instances that sockets have learnt, and the peers that are local addresses.
#[derive(Debug, Default)]
pub(crate) struct Napis {
    alive: HashMap<NapiId, NapiLocation>,
    local: HashSet<(u32, IpAddr)>,
    complete: bool,
}

/// What to look up in one network namespace.
#[derive(Default)]
struct Questions {
    ids: BTreeSet<NapiId>,
    peers: BTreeSet<IpAddr>,
}

/// At most this many peers of sockets without an id are looked up.
const MOST_PEERS: usize = 64;

impl Napis {
    /// Searches the sockets' namespaces first. A packet keeps the id of the first device it passed, so an
    /// id that is not found there may belong to a device in any other namespace.
    pub(crate) fn find<'a>(sockets: impl Iterator<Item = &'a Socket>) -> Self {
        Self::of(sockets, std::iter::empty())
    }

    /// The same, with further ids that were seen in packets.
    pub(crate) fn of<'a>(
        sockets: impl Iterator<Item = &'a Socket>,
        seen: impl Iterator<Item = (u32, NapiId)>,
    ) -> Self {
        let mut by_netns: BTreeMap<u32, Questions> = BTreeMap::new();
        for (netns, id) in seen {
            by_netns.entry(netns).or_default().ids.insert(id);
        }
        for socket in sockets {
            let questions = by_netns.entry(socket.netns).or_default();
            match (socket.napi, socket.peer) {
                (Some(id), _) => drop(questions.ids.insert(id)),
                (None, Some(peer)) if questions.peers.len() < MOST_PEERS => {
                    questions.peers.insert(peer.ip().to_canonical());
                }
                (None, _) => {}
            }
        }
        // Without these capabilities other namespaces are not even visible: in a container the id may be
        // that of the host's device.
        let everywhere = [Capability::SysAdmin, Capability::SysPtrace];
        let complete =
            Caps::current().is_ok_and(|caps| everywhere.iter().all(|c| caps.has_globally(*c)));
        let mut napis = Napis { complete, ..Napis::default() };
        for (inode, questions) in &by_netns {
            napis.look_into(*inode, questions);
        }
        let all = by_netns.values().flat_map(|q| q.ids.iter().copied());
        let missing: BTreeSet<NapiId> = all.filter(|id| !napis.alive.contains_key(id)).collect();
        if !missing.is_empty() {
            let looked: HashSet<u32> = by_netns.keys().copied().collect();
            let questions = Questions { ids: missing, ..Questions::default() };
            for inode in netns::in_use().difference(&looked) {
                napis.look_into(*inode, &questions);
            }
        }
        napis
    }

    fn look_into(&mut self, inode: u32, questions: &Questions) {
        let found = netns::with_inode(inode).and_then(|path| {
            netns::enter(&path, || find_locations(inode, questions)).ok().flatten()
        });
        let Some((locations, local)) = found else {
            self.complete = false;
            return;
        };
        self.alive.extend(locations.into_iter().map(|p| (p.napi.id, p)));
        self.local.extend(local.into_iter().map(|peer| (inode, peer)));
    }

    /// The state of an id.
    pub(crate) fn state(&self, id: NapiId) -> NapiState<'_> {
        match self.alive.get(&id) {
            Some(location) => NapiState::Alive(location),
            None if self.complete => NapiState::Dead,
            None => NapiState::Unknown,
        }
    }

    /// Whether a socket's packets never leave the namespace, so that they use loopback.
    pub(crate) fn is_local(&self, socket: &Socket) -> bool {
        let ip = |end: Option<SocketAddr>| end.map(|end| end.ip().to_canonical());
        let (bound, peer) = (ip(socket.local), ip(socket.peer));
        bound.is_some_and(|ip| ip.is_loopback())
            || peer.is_some_and(|ip| ip.is_loopback() || self.local.contains(&(socket.netns, ip)))
    }
}

/// Inside the namespace: the wanted instances, and which of the peers are local addresses.
fn find_locations(inode: u32, questions: &Questions) -> Option<(Vec<NapiLocation>, Vec<IpAddr>)> {
    let is_local =
        |peer: &&IpAddr| route_to(**peer).is_ok_and(|route| route.kind == RouteKind::Local);
    let local = questions.peers.iter().filter(is_local).copied().collect();
    let mut locations = Vec::new();
    if !questions.ids.is_empty() {
        let mut netdev = Netdev::open().ok()?;
        let mut napis = netdev.all_napis().ok()?;
        napis.retain(|n| questions.ids.contains(&n.id));
        let devices: BTreeSet<u32> = napis.iter().map(|n| n.ifindex).collect();
        let links = if devices.is_empty() { Vec::new() } else { Links::open().ok()?.all().ok()? };
        let mut queues = HashMap::new();
        for ifindex in devices {
            for queue in netdev.queues(ifindex).unwrap_or_default() {
                if let (Direction::Rx, Some(napi)) = (queue.direction, queue.napi) {
                    queues.insert(napi, queue.id);
                }
            }
        }
        locations.extend(napis.into_iter().map(|napi| {
            let link = links.iter().find(|l| l.ifindex == napi.ifindex);
            NapiLocation {
                device: link.map_or_else(|| "?".into(), |l| l.name.clone()),
                one_channel: link.and_then(|l| one_channel(&l.name)),
                netns: inode,
                queue: queues.get(&napi.id).copied(),
                napi,
            }
        }));
    }
    Some((locations, local))
}

fn one_channel(device: &str) -> Option<&'static str> {
    let channels = Ethtool::open(device).ok()?.channels().ok()?;
    match channels {
        Channels { combined: 2.., .. } => Some("combined"),
        Channels { rx: 2.., .. } => Some("rx"),
        _ => None,
    }
}

impl Process {
    /// A command about a device, run in the device's namespace.
    pub(crate) fn in_its_namespace(&self, location: &NapiLocation, command: String) -> String {
        let ours = fs::metadata("/proc/self/ns/net").map(|m| m.ino()).ok();
        let its = fs::metadata(format!("/proc/{}/ns/net", self.pid)).map(|m| m.ino()).ok();
        match location.netns {
            there if ours == Some(there.into()) => command,
            there if its == Some(there.into()) => {
                format!("nsenter --net=/proc/{}/ns/net {command}", self.pid)
            }
            there => match netns::with_inode(there) {
                Some(path) => format!("nsenter --net={} {command}", path.display()),
                None => command,
            },
        }
    }

    /// A command that writes a sysfs attribute of a device, run in the device's namespace.
    pub(crate) fn write_in_its_namespace(
        &self,
        location: &NapiLocation,
        file: &str,
        value: &str,
    ) -> String {
        let shown = busypoll_linux::sysfs::Sysfs::open().is_ok_and(|sysfs| sysfs.is_mounted());
        let here = netns::inode().ok() == Some(location.netns) && shown;
        let path = format!("/sys/class/net/{}/{file}", location.device);
        let write = format!("echo {value} > {path}");
        if here {
            return write;
        }
        let inside = format!("unshare -m sh -c 'mount -t sysfs sysfs /sys && {write}'");
        self.in_its_namespace(location, inside)
    }
}
