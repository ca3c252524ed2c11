//! The NAPI instances of this network namespace over netlink: their settings and interrupts.

use busypoll_linux::Result;
use busypoll_linux::link::Links;
use busypoll_linux::netdev::{Napi, Netdev};
use busypoll_linux::stat;

use crate::Seen;

/// The most instances listed.
const INSTANCES: usize = 1024;

/// A NAPI instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its device's name.
    pub device: String,
    /// Its id and settings.
    pub napi: Napi,
    /// Its interrupts since boot; `None` where the driver does not name its interrupt.
    pub interrupts: Option<u64>,
}

/// Reads them.
///
/// # Errors
/// As [`Netdev::open`].
pub fn read() -> Result<Seen<Instance>> {
    let napis = Netdev::open()?.all_napis()?;
    let links = Links::open()?.all()?;
    let interrupts = stat::interrupts()?;
    let unseen = napis.len().saturating_sub(INSTANCES) as u64;
    let instance = |napi: Napi| {
        let link = links.iter().find(|link| link.ifindex == napi.ifindex)?;
        let row = napi.irq.and_then(|irq| interrupts.irq(irq));
        Some(Instance { device: link.name.clone(), interrupts: row.map(|row| row.total()), napi })
    };
    Ok(Seen { rows: napis.into_iter().take(INSTANCES).filter_map(instance).collect(), unseen })
}
