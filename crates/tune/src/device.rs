//! Identifies a device by more than its name. Reads only.
//!
//! Names and indexes change when a driver is reloaded or a veth pair is created again: a
//! device is identified by its driver and permanent address, or without one by driver, bus, name and address.

use busypoll_linux::Result;
use busypoll_linux::ethtool::Ethtool;
use busypoll_linux::link::{Link, Links, XdpMode};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The identity of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Its driver.
    pub driver: String,
    /// Its bus address, such as PCI; empty for software devices.
    pub bus: String,
    /// The permanent address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent: Option<String>,
    /// The current address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

impl Identity {
    fn of(link: &Link, ethtool: &Ethtool) -> Self {
        // Without a driver's name it can still be identified by name and address.
        let driver = ethtool.driver().ok();
        Identity {
            name: link.name.clone(),
            ifindex: link.ifindex,
            driver: driver.as_ref().map_or_else(String::new, |d| d.name.clone()),
            bus: driver.map_or_else(String::new, |d| d.bus),
            permanent: ethtool.permanent_address().ok().flatten().map(address),
            mac: link.mac.map(address),
        }
    }

    /// Whether `other` is the same device, perhaps under another name or index.
    fn is(&self, other: &Identity) -> bool {
        if self.driver != other.driver {
            return false;
        }
        match &self.permanent {
            Some(_) => self.permanent == other.permanent,
            None => (&self.bus, &self.name, &self.mac) == (&other.bus, &other.name, &other.mac),
        }
    }
}

fn address(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// A device that exists.
#[derive(Debug)]
pub struct Device {
    /// Its identity.
    pub identity: Identity,
    /// The kind of software device, if it is one.
    pub kind: Option<String>,
    /// Administratively up.
    pub up: bool,
    /// Whether an XDP program is attached in the driver.
    pub has_xdp: bool,
    pub(crate) ethtool: Ethtool,
}

impl Device {
    /// The device of that name in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`busypoll_linux::Error::NoDevice`]; [`Error::Loopback`], which has no queue to poll.
    pub fn open(name: &str) -> Result<Self, Error> {
        let link = Links::open()?.get(name)?;
        if link.loopback {
            return Err(Error::Loopback(name.into()));
        }
        Ok(Self::of(&link)?)
    }

    fn of(link: &Link) -> Result<Self> {
        let ethtool = Ethtool::open(&link.name)?;
        let identity = Identity::of(link, &ethtool);
        let has_xdp = link.xdp.as_ref().is_some_and(|xdp| xdp.mode == XdpMode::Driver);
        Ok(Device { identity, kind: link.kind.clone(), up: link.up, has_xdp, ethtool })
    }

    /// The device that had this `identity`, whatever its name is now.
    ///
    /// # Errors
    /// A sentence for the report: the device is gone, or several match.
    pub fn find(identity: &Identity) -> Result<Self, String> {
        let links = Links::open().and_then(|mut links| links.all()).map_err(|e| e.to_string())?;
        let mut same: Vec<Device> = links
            .iter()
            .filter(|link| !link.loopback)
            .filter_map(|link| Self::of(link).ok())
            .filter(|device| identity.is(&device.identity))
            .collect();
        if same.len() > 1 {
            let at = |d: &Device| {
                (d.identity.ifindex, &d.identity.bus) != (identity.ifindex, &identity.bus)
            };
            same.sort_by_key(at);
            if same.iter().filter(|d| !at(d)).count() != 1 {
                return Err(format!("ambiguous: {} of {} devices match", same.len(), links.len()));
            }
        }
        same.into_iter().next().ok_or_else(|| {
            "gone from this network namespace: removed, or moved to another one".into()
        })
    }

    /// Whether it is one end of a veth pair.
    pub fn is_veth(&self) -> bool {
        self.kind.as_deref() == Some("veth")
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.identity.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, ifindex: u32, bus: &str, permanent: Option<&str>) -> Identity {
        Identity {
            name: name.into(),
            ifindex,
            driver: "e1000e".into(),
            bus: bus.into(),
            permanent: permanent.map(Into::into),
            mac: Some("02:00:00:00:00:01".into()),
        }
    }

    #[test]
    fn a_device_is_itself_under_another_name_index_and_slot() {
        let was = identity("eth1", 3, "0000:00:03.0", Some("52:54:00:00:00:01"));
        assert!(was.is(&identity("lan0", 9, "0000:01:03.0", Some("52:54:00:00:00:01"))));
        assert!(!was.is(&identity("eth1", 3, "0000:00:03.0", Some("52:54:00:00:00:02"))));
        assert!(!was.is(&Identity { driver: "igb".into(), ..was.clone() }));
    }

    #[test]
    fn without_a_permanent_address_everything_but_the_index_counts() {
        let was = identity("veth0", 3, "", None);
        assert!(was.is(&identity("veth0", 9, "", None)));
        assert!(!was.is(&identity("veth1", 3, "", None)));
        let other = Identity { mac: Some("02:00:00:00:00:02".into()), ..was.clone() };
        assert!(!was.is(&other));
    }
}
