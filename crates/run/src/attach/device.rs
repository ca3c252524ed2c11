//! The device of a NAPI context, looked up in the network namespace of the process.

use std::collections::HashMap;
use std::os::fd::AsFd;

use busypoll_linux::link::Links;
use busypoll_linux::netdev::Netdev;
use busypoll_linux::process::Process;
use busypoll_linux::{NapiId, netns};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::inspect::Socket;

/// What is known of a NAPI context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// It is a queue of this device.
    Name(String),
    /// The context does not exist any more.
    Gone,
    /// It is in a namespace that this user may not enter.
    Hidden,
}

impl Device {
    pub fn name(self) -> Option<String> {
        match self {
            Device::Name(name) => Some(name),
            Device::Gone | Device::Hidden => None,
        }
    }
}

/// The NAPI contexts of one namespace, read again when an unknown one appears.
#[derive(Debug, Default)]
pub(super) struct Devices {
    seen: Option<Namespace>,
    names: HashMap<NapiId, Device>,
}

#[derive(Debug)]
struct Namespace {
    cookie: Option<u64>,
    instances: HashMap<NapiId, String>,
}

impl Devices {
    /// The device a socket's packets come from.
    pub fn of(&mut self, process: &Process, socket: &Socket) -> Option<Device> {
        let napi = socket.napi?;
        if let Some(known) = self.names.get(&napi) {
            return Some(known.clone());
        }
        // The process may have entered another namespace since, and devices come and go.
        self.seen = look(process);
        let device = match &self.seen {
            None => Device::Hidden,
            Some(seen) => match seen.instances.get(&napi) {
                Some(name) => Device::Name(name.clone()),
                None if seen.cookie.is_some() && seen.cookie == socket.info.netns_cookie => {
                    Device::Gone
                }
                None => Device::Hidden,
            },
        };
        self.names.insert(napi, device.clone());
        Some(device)
    }
}

/// The NAPI contexts in the namespace of a process; `None` if this user may not enter it.
fn look(process: &Process) -> Option<Namespace> {
    if process.shares_our_netns()? {
        return instances();
    }
    let namespace = process.netns().ok()?;
    // In a thread of its own, as it cannot always return to our namespace.
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
            instances()
        });
        inside.join().ok().flatten()
    })
}

/// The NAPI contexts of the calling thread's namespace.
fn instances() -> Option<Namespace> {
    let links = Links::open().and_then(|mut links| links.all()).ok()?;
    let names: HashMap<u32, String> = links.into_iter().map(|l| (l.ifindex, l.name)).collect();
    let napis = Netdev::open().and_then(|mut netdev| netdev.all_napis()).ok()?;
    let name = |ifindex| names.get(&ifindex).cloned();
    let instances = napis.into_iter().filter_map(|n| Some((n.id, name(n.ifindex)?))).collect();
    Some(Namespace { cookie: netns::cookie().ok(), instances })
}
