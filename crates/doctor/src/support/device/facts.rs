//! The facts about one device, for the report and for the checks.

use busypoll_linux::link::Link;
use busypoll_linux::netdev::{Direction, Napi, Queue, Threaded};
use serde::Serialize;

use super::Sources;
use crate::tuning::nic::Nic;
use crate::{Report, Subject, count};

/// One device.
#[derive(Debug, Serialize)]
pub(crate) struct Device {
    name: String,
    pub(crate) ifindex: u32,
    kind: Option<String>,
    pub(crate) driver: Option<String>,
    bus: Option<String>,
    mtu: u32,
    pub(crate) napis: Vec<Instance>,
    /// Whether this kernel lists NAPI instances at all.
    pub(crate) napis_listed: bool,
    /// Receive queues.
    pub(crate) queues: Vec<ReceiveQueue>,
    /// How AF_XDP sockets receive: zero copy, copy, or copy through skbs (generic XDP).
    af_xdp: Option<&'static str>,
    /// Whether the kernel can busy poll for AF_XDP sockets: it can where queues name their NAPI instances. A program
    /// that spins on the rings itself does not need this.
    af_xdp_busy_poll: Option<bool>,
    /// Its interrupts and their coalescing.
    pub(crate) nic: Nic,
}

/// One NAPI instance.
#[derive(Debug, Serialize)]
pub(crate) struct Instance {
    pub(crate) id: u32,
    /// Receive queues it serves, if the driver reports them.
    rx_queues: Vec<u32>,
    pub(crate) irq: Option<u32>,
    pub(crate) defer_hard_irqs: Option<u32>,
    pub(crate) gro_flush_timeout_ns: Option<u64>,
    pub(crate) irq_suspend_timeout_ns: Option<u64>,
    threaded: Option<String>,
    pid: Option<u32>,
}

/// One receive queue.
#[derive(Debug, Serialize)]
pub(crate) struct ReceiveQueue {
    pub(crate) index: u32,
    pub(crate) napi: Option<u32>,
    /// An AF_XDP socket is bound to it.
    pub(crate) xsk: bool,
}

impl Device {
    pub(crate) fn collect(link: &Link, sources: &mut Sources, report: &mut Report) -> Self {
        let subject = || Subject::device(&link.name);
        let driver = super::ethtool(&link.name, report).and_then(|e| e.driver().ok());
        let (mut napis, mut queues, mut features) = (Vec::new(), Vec::new(), None);
        let mut listed = false;
        if let Some(netdev) = &mut sources.netdev {
            match netdev.napis(link.ifindex) {
                Ok(found) => (napis, listed) = (found, true),
                Err(e) => report.not_seen(subject(), "its NAPI instances", "netdev napi-get", e),
            }
            // Both are newer than napi-get, and a device may lack them.
            queues = netdev.queues(link.ifindex).unwrap_or_default();
            features = netdev.xdp_features(link.ifindex).ok();
        }
        queues.retain(|q| q.direction == Direction::Rx);
        Device {
            name: link.name.clone(),
            ifindex: link.ifindex,
            kind: link.kind.clone(),
            driver: driver.as_ref().map(|d| d.name.clone()),
            bus: driver.map(|d| d.bus).filter(|b| !b.is_empty()),
            mtu: link.mtu,
            napis: napis.iter().map(|n| Instance::new(n, &queues)).collect(),
            napis_listed: listed,
            af_xdp: features.map(|f| match (f.zero_copy(), f.native()) {
                (true, _) => "zero copy",
                (false, true) => "copy",
                (false, false) => "copy, generic",
            }),
            af_xdp_busy_poll: (!queues.is_empty()).then(|| queues.iter().any(|q| q.napi.is_some())),
            queues: queues.iter().map(ReceiveQueue::new).collect(),
            nic: Nic::check(&link.name, sources.sysfs.as_ref(), report),
        }
    }

    fn lines(&self) -> Vec<String> {
        let kind = self.kind.as_deref().unwrap_or("device");
        let driver = self.driver.as_deref().unwrap_or("unknown");
        let bus = self.bus.as_deref().map_or(String::new(), |bus| format!(" at {bus}"));
        let mut head = format!("{}  {kind}, driver {driver}{bus}, mtu {}", self.name, self.mtu);
        if !self.queues.is_empty() {
            head += &format!(", {}", count(self.queues.len(), "receive queue"));
        }
        if let Some(af_xdp) = self.af_xdp {
            let polls = match self.af_xdp_busy_poll {
                Some(true) => ", the kernel can busy poll for it",
                Some(false) => ", only its program can poll, not the kernel (queues name no NAPI)",
                None => "",
            };
            head += &format!("; AF_XDP: {af_xdp}{polls}");
        }
        let mut lines = vec![head];
        lines.extend(self.nic.lines());
        lines.extend(self.napis.iter().map(Instance::line));
        lines
    }
}

impl Instance {
    fn new(napi: &Napi, queues: &[Queue]) -> Self {
        let serves = |q: &&Queue| q.napi == Some(napi.id);
        Instance {
            id: napi.id.get(),
            rx_queues: queues.iter().filter(serves).map(|q| q.id).collect(),
            irq: napi.irq,
            defer_hard_irqs: napi.defer_hard_irqs,
            gro_flush_timeout_ns: napi.gro_flush_timeout_ns,
            irq_suspend_timeout_ns: napi.irq_suspend_timeout_ns,
            threaded: napi.threaded.map(|t| match t {
                Threaded::Off => "off".into(),
                Threaded::On => "on".into(),
                Threaded::BusyPoll => "busy-poll".into(),
                other => format!("{other:?}"),
            }),
            pid: napi.pid,
        }
    }

    fn line(&self) -> String {
        let some = |value: Option<u64>| value.map_or("?".into(), |v| v.to_string());
        let us = |ns: Option<u64>| ns.map_or("?".into(), |ns| format!("{}us", ns as f64 / 1e3));
        let mut line = format!("    napi {}", self.id);
        if !self.rx_queues.is_empty() {
            line += &format!("  rx {:?}", self.rx_queues);
        }
        if let Some(irq) = self.irq {
            line += &format!("  irq {irq}");
        }
        line += &format!(
            "  defer-hard-irqs {}  gro-flush-timeout {}  irq-suspend-timeout {}  threaded {}",
            some(self.defer_hard_irqs.map(u64::from)),
            us(self.gro_flush_timeout_ns),
            us(self.irq_suspend_timeout_ns),
            self.threaded.as_deref().unwrap_or("?"),
        );
        if let Some(pid) = self.pid {
            line += &format!(" (thread {pid})");
        }
        line
    }
}

impl ReceiveQueue {
    fn new(queue: &Queue) -> Self {
        ReceiveQueue { index: queue.id, napi: queue.napi.map(|n| n.get()), xsk: queue.xsk }
    }
}

pub(crate) fn add(devices: &[Device], report: &mut Report) {
    let lines = devices.iter().flat_map(Device::lines).collect();
    report.facts("devices", devices, lines);
}
