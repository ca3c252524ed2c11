//! The NAPI instances of this network namespace over netlink: their settings and interrupts.

use busypoll_linux::link::Links;
use busypoll_linux::netdev::{Netdev, Threaded};
use busypoll_linux::stat;

use crate::metrics::{NAPI_DEFER, NAPI_FLUSH, NAPI_INTERRUPTS, NAPI_SUSPEND, NAPI_THREADED};
use crate::page::Page;

/// The most instances listed.
const INSTANCES: usize = 1024;

/// Adds them. Returns how many were left out.
pub(crate) fn collect(page: &mut Page) -> busypoll_linux::Result<u64> {
    let napis = Netdev::open()?.all_napis()?;
    let links = Links::open()?.all()?;
    let interrupts = stat::interrupts()?;
    for napi in napis.iter().take(INSTANCES) {
        let Some(link) = links.iter().find(|link| link.ifindex == napi.ifindex) else { continue };
        let id = napi.id.to_string();
        let labels = [link.name.as_str(), id.as_str()];
        if let Some(row) = napi.irq.and_then(|irq| interrupts.irq(irq)) {
            page.count(&NAPI_INTERRUPTS, &labels, row.total());
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let threaded = napi.threaded.and_then(|threaded| match threaded {
            Threaded::Off => Some(0.0),
            Threaded::On => Some(1.0),
            Threaded::BusyPoll => Some(2.0),
            _ => None,
        });
        for (metric, value) in [
            (&NAPI_DEFER, napi.defer_hard_irqs.map(f64::from)),
            (&NAPI_FLUSH, napi.gro_flush_timeout_ns.map(seconds)),
            (&NAPI_SUSPEND, napi.irq_suspend_timeout_ns.map(seconds)),
            (&NAPI_THREADED, threaded),
        ] {
            if let Some(value) = value {
                page.add(metric, &labels, value);
            }
        }
    }
    Ok(napis.len().saturating_sub(INSTANCES) as u64)
}
