//! Prove it: what was counted while packets came, and the verdict that follows.
//!
//! With BPF: every pass over every queue, by kind and by spinning thread. Without: what the kernel counts
//! anyway, in the network namespace of the devices.

mod count;
mod show;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use busypoll_linux::link::Links;
use busypoll_linux::{NapiId, netns};

use crate::process::{Census, Life, Napis};
use crate::{Error, Report, Scope};

/// A device: the inode of its network namespace, and its name there.
type Device = (u32, String);

/// What is looked at.
struct Target {
    /// The devices asked for, those behind the processes asked for, or all of this namespace.
    devices: BTreeSet<Device>,
    /// The processes asked for.
    pids: Vec<u32>,
    /// Processes, and devices behind them, for which busy polling is switched on.
    on: BTreeSet<u32>,
    on_devices: BTreeSet<Device>,
    /// The NAPI instances that bring each process its packets.
    queues: BTreeMap<u32, BTreeSet<NapiId>>,
    /// Nothing was asked for: a device without packets is not worth a line.
    any: bool,
}

pub(crate) fn check(scope: &Scope, report: &mut Report) -> Result<(), Error> {
    let Some(time) = scope.prove else { return Ok(()) };
    let target = Target::of(scope, report)?;
    let counts = count::over(time, &target, report)?;
    verdict::judge(&target, &counts, report);
    show::tell(&counts, report);
    Ok(())
}

impl Target {
    fn of(scope: &Scope, report: &mut Report) -> Result<Self, Error> {
        let here = netns::inode()?;
        let mut devices: BTreeSet<Device> =
            scope.devices.iter().map(|name| (here, name.clone())).collect();
        let any = scope.devices.is_empty() && scope.pids.is_empty();
        // What cannot be seen of processes has been said by the check before this one.
        let census = Census::take(scope, &mut Report::default())?;
        let napis = Napis::find(census.sockets());
        let mut pids = scope.pids.clone();
        pids.retain(|pid| {
            let process = census.processes.get(pid).filter(|process| process.on_stack_plane);
            if let Some(process) = process {
                let what = "whether its packets are found by busy polling";
                let why = "its packets come by the stack plane, past the kernel's counters";
                report.not_seen(process.subject(), what, "tracepoint napi:napi_poll", why);
            }
            process.is_none()
        });
        let (mut on, mut on_devices) = (BTreeSet::new(), BTreeSet::new());
        let mut queues: BTreeMap<u32, BTreeSet<NapiId>> = BTreeMap::new();
        for process in census.processes.values() {
            let polling = process.has_switched_on();
            if polling {
                on.insert(process.pid);
            }
            for (_, socket) in process.sockets() {
                if let Some(id) = socket.napi
                    && let Life::Alive(place) = napis.life(id)
                {
                    queues.entry(process.pid).or_default().insert(id);
                    let device = (place.netns, place.device.clone());
                    if polling {
                        on_devices.insert(device.clone());
                    }
                    if !scope.pids.is_empty() {
                        devices.insert(device);
                    }
                }
            }
        }
        if any {
            let links = Links::open()?.all()?.into_iter().filter(|l| l.up && !l.loopback);
            devices.extend(links.map(|link| (here, link.name)));
        }
        Ok(Target { devices, pids, on, on_devices, queues, any })
    }
}
