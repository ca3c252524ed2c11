//! `--prove`: what was counted while packets arrived, and the resulting verdict.
//!
//! With BPF: each packet, by the socket that it reached and by how it was found; and every pass over every queue, by
//! kind and by spinning thread. Without BPF: the kernel's own counters, in the network namespace of the devices;
//! they say nothing about a single process.
//!
//! | file | |
//! |---|---|
//! | `count` | counting |
//! | `units` | the packets of each socket and epoll instance |
//! | `process`, `device` | the verdict on a process or a device: the share of its packets found by busy polling |
//! | `passes` | the passes over its queues: evidence, and spinners that are in the way |
//! | `cause` | why packets were not found by busy polling |
//! | `refuted` | removes findings from settings that the packets refute |

mod cause;
mod count;
mod device;
mod passes;
mod process;
mod refuted;
mod show;
mod units;

use std::collections::BTreeSet;

use busypoll_linux::link::Links;
use busypoll_linux::netns;

use crate::process::{Census, NapiState, Napis};
use crate::rules::PROVE_STACK_PLANE;
use crate::{Error, Report, Scope};

/// Fewer packets are too few for a verdict.
const ENOUGH: u64 = 20;
/// Below this share of packets, in percent, busy polling does not work.
const WORKS: u64 = 50;

fn percent(part: u64, all: u64) -> u64 {
    (100 * part).checked_div(all).unwrap_or(0)
}

/// A device: the inode of its network namespace, and its name there.
type Device = (u32, String);

/// What to count.
struct Target {
    /// The devices asked for, those behind the processes asked for, or all of this namespace.
    devices: BTreeSet<Device>,
    /// The processes asked for.
    pids: Vec<u32>,
    /// Devices for which a process has switched busy polling on.
    on_devices: BTreeSet<Device>,
    /// The processes, and where the queues of their sockets are.
    census: Census,
    napis: Napis,
    /// No device and no process was named: a device without packets is not reported.
    any: bool,
}

pub(crate) fn check(scope: &Scope, report: &mut Report) -> Result<(), Error> {
    let Some(time) = scope.prove else { return Ok(()) };
    let mut target = Target::of(scope, report)?;
    let counts = count::over(time, &target, report)?;
    // Include sockets that were opened and waits that began while counting.
    if let Ok(now) = Census::take(scope, &mut Report::default()) {
        let earlier = std::mem::replace(&mut target.census, now);
        target.census.absorb(earlier);
    }
    // Packets may have come from a queue that no socket has learnt.
    let brought = counts.deliveries.iter().flat_map(|all| &all.rows);
    let brought = brought.filter_map(|row| Some((row.netns, row.napi?)));
    target.napis = Napis::of(target.census.sockets(), brought);
    if target.pids.is_empty() {
        device::judge(&target, &counts, report);
    } else {
        process::judge(&target, &counts, report);
    }
    show::add(&target, &counts, report);
    Ok(())
}

impl Target {
    fn of(scope: &Scope, report: &mut Report) -> Result<Self, Error> {
        let here = netns::inode()?;
        let mut devices: BTreeSet<Device> =
            scope.devices.iter().map(|name| (here, name.clone())).collect();
        let any = scope.devices.is_empty() && scope.pids.is_empty();
        // The check of processes has already reported what could not be seen of them.
        let census = Census::take(scope, &mut Report::default())?;
        let napis = Napis::find(census.sockets());
        let mut pids = scope.pids.clone();
        pids.retain(|pid| {
            let process = census.processes.get(pid).filter(|process| process.on_stack_plane);
            if let Some(process) = process {
                let what = "its packets come by the stack plane, which counts how each was found";
                let finding = PROVE_STACK_PLANE.finding(process.subject(), what);
                report.add(finding.remedy("busypoll ss -i"));
                report.undecided = true;
            }
            process.is_none()
        });
        let mut on_devices = BTreeSet::new();
        for process in census.processes.values() {
            for (_, socket) in process.sockets() {
                if let Some(id) = socket.napi
                    && let NapiState::Alive(location) = napis.state(id)
                {
                    let device = (location.netns, location.device.clone());
                    if process.has_switched_on() {
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
        Ok(Target { devices, pids, on_devices, census, napis, any })
    }
}
