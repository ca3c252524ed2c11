//! Whether a device's packets can be busy polled: which devices to check, and what each kind of device means.

mod facts;
mod napi;
mod pollers;
mod stacked;
mod steering;
mod veth;
mod xdp;

use std::collections::{BTreeSet, HashSet};

use busypoll_linux::ethtool::Ethtool;
use busypoll_linux::link::{Link, Links};
use busypoll_linux::netdev::Netdev;
use busypoll_linux::route::{RouteKind, route_to};
use busypoll_linux::sysfs::Sysfs;

use self::pollers::Pollers;
use crate::rules;
use crate::tuning::coalesce;
use crate::{Error, Report, Scope, Subject, count};

/// The kernel's interfaces to devices, each opened once. One that could not be opened is reported once.
pub(crate) struct Sources {
    links: Vec<Link>,
    /// None before Linux 6.8; the check of the kernel reports that.
    netdev: Option<Netdev>,
    sysfs: Option<Sysfs>,
    /// Only faults of the receive path count, not those of the packets that are sent.
    receive_only: bool,
}

impl Sources {
    fn open(report: &mut Report) -> Result<Self, Error> {
        let links = Links::open()?.all()?;
        let sysfs = Sysfs::open()
            .map_err(|e| report.not_seen(Subject::Machine, "RPS and TUN flags", "sysfs", e))
            .ok();
        Ok(Sources { links, netdev: Netdev::open().ok(), sysfs, receive_only: false })
    }

    fn by_index(&self, ifindex: u32) -> Option<&Link> {
        self.links.iter().find(|l| l.ifindex == ifindex)
    }

    /// The command that writes a device's sysfs attribute from this namespace. `queues/*/rps_cpus` is allowed.
    fn sysfs_command(&self, device: &str, attribute: &str, value: &str) -> String {
        let path = format!("/sys/class/net/{device}/{attribute}");
        let write = match attribute.contains('*') {
            true => format!("for f in {path}; do echo {value} > $f; done"),
            false => format!("echo {value} > {path}"),
        };
        match &self.sysfs {
            // The mounted /sys shows the devices of another namespace.
            Some(sysfs) if !sysfs.is_mounted() => {
                format!("unshare -m sh -c 'mount -t sysfs sysfs /sys && {write}'")
            }
            _ => write,
        }
    }
}

pub(crate) fn check(scope: &Scope, report: &mut Report) -> Result<(), Error> {
    let mut sources = Sources::open(report)?;
    let mut waiting = requested(scope, &mut sources, report)?;
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    while let Some(link) = waiting.pop() {
        if seen.insert(link.ifindex) {
            // The devices below are checked as well: sockets poll their queues.
            waiting.extend(check_one(&link, scope, &mut sources, report, &mut all));
        }
    }
    all.reverse();
    facts::add(&all, report);
    Ok(())
}

/// Checks the devices that deliver a process's packets: reports their faults, and what could not be seen.
pub(crate) fn behind_processes(names: &BTreeSet<String>, report: &mut Report) {
    let mut found = Report::default();
    let Ok(mut sources) = Sources::open(&mut found) else { return };
    sources.receive_only = true;
    let named = |link: &&Link| names.contains(&link.name);
    let mut waiting: Vec<Link> = sources.links.iter().filter(named).cloned().collect();
    let mut seen = HashSet::new();
    while let Some(link) = waiting.pop() {
        if seen.insert(link.ifindex) {
            let below =
                check_one(&link, &Scope::default(), &mut sources, &mut found, &mut Vec::new());
            waiting.extend(below);
        }
    }
    for finding in found.into_findings() {
        let verdict = finding.verdict();
        if verdict.is_fault() || finding.rule == &rules::GRO_FLUSH_PRICE {
            report.add(finding);
        }
    }
}

/// The requested devices, last first.
fn requested(
    scope: &Scope,
    sources: &mut Sources,
    report: &mut Report,
) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    let mut asked = Links::open()?;
    for name in &scope.devices {
        links.push(asked.get(name)?);
    }
    if let Some(address) = scope.peer {
        let subject = Subject::Peer { address };
        let route = route_to(address)?;
        let through = sources.by_index(route.ifindex).cloned();
        let name = through.as_ref().map_or("?", |l| l.name.as_str());
        let read = format!("ip route get {address}");
        if route.kind == RouteKind::Local {
            let found = rules::PEER_LOCAL.finding(subject, "the address is this machine's own");
            report.add(found.evidence(read, format!("local, over {name}")));
        } else {
            let next = route.gateway.map_or(String::new(), |via| format!(" via {via}"));
            let what = format!("packets leave by {name}{next}");
            report.add(rules::PEER_ROUTE.finding(subject, what).evidence(read, name));
            links.extend(through);
        }
    } else if scope.devices.is_empty() && scope.pids.is_empty() {
        links.extend(sources.links.iter().filter(|l| l.up && !l.loopback).cloned());
    }
    links.reverse();
    Ok(links)
}

/// Checks one device and returns the devices below it.
fn check_one(
    link: &Link,
    scope: &Scope,
    sources: &mut Sources,
    report: &mut Report,
    all: &mut Vec<facts::Device>,
) -> Vec<Link> {
    let subject = || Subject::device(&link.name);
    let before = report.faults();
    let device = facts::Device::collect(link, sources, report);
    let latency_counts = || scope.devices.contains(&link.name) || Pollers::of(&device).any;
    coalesce::check(&link.name, &device.nic, latency_counts, report);
    let below = 'judged: {
        if link.loopback && !link.up {
            let what = "loopback is down: nothing of this host reaches itself";
            let found = rules::DEVICE_DOWN.finding(subject(), what);
            let found = found.evidence(format!("ip link show {}", link.name), "no UP flag");
            report.add(found.remedy(format!("ip link set {} up", link.name)));
        }
        if link.loopback && sources.receive_only {
            break 'judged Vec::new();
        }
        if link.loopback {
            let found = rules::LOOPBACK.finding(subject(), "loopback can never be busy polled");
            report.add(found.evidence("ip link show lo", "LOOPBACK"));
            break 'judged Vec::new();
        }
        if !link.up {
            let found = rules::DEVICE_DOWN.finding(subject(), "the device is down");
            let found = found.evidence(format!("ip link show {}", link.name), "no UP flag");
            report.add(found.remedy(format!("ip link set {} up", link.name)));
            break 'judged Vec::new();
        }
        if let Some(below) = stacked::below(link, sources, report) {
            break 'judged below;
        }
        match link.kind.as_deref() {
            Some("veth") => veth::check(link, &device, sources, report),
            Some("tun") => tun(link, sources, report),
            Some("wireguard") => {
                let found = rules::WIREGUARD.finding(subject(), "WireGuard erases NAPI ids");
                report.add(found.evidence(format!("ip -d link show {}", link.name), "wireguard"));
            }
            _ => hardware(link, &device, report),
        }
        napi::check(link, &device, sources, report);
        Vec::new()
    };
    // Also for a stacked device: RPS applies again to what the devices below hand up.
    if !link.loopback {
        steering::check(link, sources, report);
    }
    xdp::check(link, &device, report);
    if report.faults() == before && below.is_empty() && !device.napis.is_empty() {
        let of = count(device.napis.len(), "NAPI instance");
        let what = format!("packets carry the ids of {of}");
        report.add(rules::DEVICE_OK.finding(subject(), what));
    }
    all.push(device);
    below
}

fn tun(link: &Link, sources: &Sources, report: &mut Report) {
    let found = rules::TUN.finding(
        Subject::device(&link.name),
        "packets written into a TUN or TAP device carry no NAPI id",
    );
    const IFF_NAPI: u32 = 0x10;
    let flags = sources.sysfs.as_ref().and_then(|s| s.attribute(&link.name, "tun_flags"));
    let number = flags.as_deref().and_then(|f| f.strip_prefix("0x"));
    let number = number.and_then(|f| u32::from_str_radix(f, 16).ok());
    let said = match number {
        Some(flags) if flags & IFF_NAPI != 0 => format!("{flags:#x}, with IFF_NAPI"),
        Some(flags) => format!("{flags:#x}, without IFF_NAPI"),
        None => "unknown".into(),
    };
    report.add(found.evidence(format!("/sys/class/net/{}/tun_flags", link.name), said));
}

/// Drivers that hand packets up without a NAPI id, by their source.
const UNMARKED: &[&str] =
    &["fsl_dpa", "fsl_dpaa2_eth", "smsc911x", "typhoon", "vif", "via-rhine", "via-velocity"];

fn hardware(link: &Link, device: &facts::Device, report: &mut Report) {
    let subject = || Subject::device(&link.name);
    let driver = device.driver.as_deref().unwrap_or_default();
    if UNMARKED.contains(&driver) {
        let what = format!("the driver {driver} does not mark packets");
        let found = rules::DRIVER_SKIPS_NAPI_ID.finding(subject(), what);
        report.add(found.evidence(format!("ethtool -i {}", link.name), driver));
    } else if device.napis_listed && device.napis.is_empty() {
        let found = rules::NO_NAPI.finding(subject(), "it has no NAPI instance to poll");
        let found = found.evidence("netdev netlink napi-get", "none");
        report.add(found.evidence(format!("ethtool -i {}", link.name), driver));
    }
}

/// Opens a device for ethtool, or reports that this failed.
fn ethtool(name: &str, report: &mut Report) -> Option<Ethtool> {
    Ethtool::open(name)
        .map_err(|e| report.not_seen(Subject::device(name), "driver and features", "ethtool", e))
        .ok()
}
