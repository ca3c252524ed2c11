//! The NAPI instances of this network namespace: their settings and interrupts.

use busypoll_linux::netdev::Threaded;
use busypoll_observe::napi;

use crate::metrics::{NAPI_DEFER, NAPI_FLUSH, NAPI_INTERRUPTS, NAPI_SUSPEND, NAPI_THREADED};
use crate::page::Page;

/// Adds them. Returns how many were left out.
pub(crate) fn collect(page: &mut Page) -> busypoll_linux::Result<u64> {
    let seen = napi::read()?;
    for instance in &seen.rows {
        let napi = &instance.napi;
        let id = napi.id.to_string();
        let labels = [instance.device.as_str(), id.as_str()];
        if let Some(count) = instance.interrupts {
            page.count(&NAPI_INTERRUPTS, &labels, count);
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
    Ok(seen.unseen)
}
