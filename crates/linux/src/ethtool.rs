//! Driver, features, interrupt coalescing, channels and rings of a device: the `SIOCETHTOOL` ioctl. Touches
//! only the device it was opened for.
//!
//! Kernel source: `net/ethtool/ioctl.c`, `include/uapi/linux/ethtool.h`. Reading needs no permission;
//! setting needs `CAP_NET_ADMIN` in the user namespace that owns the network namespace.

use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;

use crate::caps::Capability;
use crate::error::{Error, Result};
use crate::sys;

mod queues;
mod supported;

pub use queues::{ChannelChange, Channels, RingChange, Rings};
pub use supported::SupportedCoalesce;

// Commands of include/uapi/linux/ethtool.h.
const GDRVINFO: u32 = 0x03;
const GCOALESCE: u32 = 0x0e;
const SCOALESCE: u32 = 0x0f;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const SS_FEATURES: u32 = 4;
const STRING_LEN: usize = 32;

/// The features behind `ethtool -K … gro`: veth has NAPI instances while they are on.
pub const GRO: &[&str] = &["rx-gro"];

/// The features behind `ethtool -K … tso` (`NETIF_F_ALL_TSO`): packets that veth sends get a NAPI id
/// at the receiver only while they are all off.
pub const TSO: &[&str] = &[
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
];

/// The driver of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The driver: `ixgbe`, `virtio_net`, `veth`.
    pub name: String,
    /// Its version, today mostly the kernel's.
    pub version: String,
    /// The firmware's version, where there is any.
    pub firmware: String,
    /// The device's bus address, such as PCI; empty for software devices.
    pub bus: String,
}

/// Interrupt coalescing of the receive side, as `ethtool -c` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// `rx-usecs`: how long after a packet the interrupt may wait, in microseconds.
    pub rx_usecs: u32,
    /// `rx-frames`: after how many packets the interrupt fires at the latest.
    pub rx_frames: u32,
    /// `adaptive-rx`: the driver chooses by load.
    pub adaptive_rx: bool,
}

/// The coalescing values to change; a `None` is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoalesceChange {
    /// See [`Coalesce::rx_usecs`].
    pub rx_usecs: Option<u32>,
    /// See [`Coalesce::rx_frames`].
    pub rx_frames: Option<u32>,
    /// See [`Coalesce::adaptive_rx`].
    pub adaptive_rx: Option<bool>,
}

/// One offload feature, as `ethtool -k` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name: `rx-gro`, `tx-tcp-segmentation` (`ethtool -k` shortens some).
    pub name: String,
    /// Whether it is on now.
    pub on: bool,
    /// Whether it was requested: it switches on when no other feature prevents it.
    pub wanted: bool,
    /// Whether this device lets it be changed.
    pub changeable: bool,
}

/// A device's ethtool interface, in the network namespace it was opened in.
///
/// ```no_run
/// use busypoll_linux::ethtool::{Ethtool, GRO, TSO};
/// let veth = Ethtool::open("veth0")?;
/// veth.set_features(GRO, true)?; // the receiver: gives it NAPI instances
/// veth.set_features(TSO, false)?; // the sender: keeps the ids on its packets
/// # Ok::<(), busypoll_linux::Error>(())
/// ```
#[derive(Debug)]
pub struct Ethtool {
    // The kernel looks the name up in this socket's namespace.
    socket: OwnedFd,
    device: String,
}

impl Ethtool {
    /// Opens the device of that name in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn open(device: &str) -> Result<Self> {
        let socket = UdpSocket::bind("0.0.0.0:0")
            .map_err(|e| Error::os("opening a socket for ethtool", e))?
            .into();
        let opened = Ethtool { socket, device: device.into() };
        // Every device answers this request, so an unknown device is detected now.
        opened.driver()?;
        Ok(opened)
    }

    /// The driver.
    pub fn driver(&self) -> Result<Driver> {
        // struct ethtool_drvinfo: cmd, then driver, version, fw_version, bus_info of 32 bytes each.
        let mut request = [0; 49];
        request[0] = GDRVINFO;
        self.ask("reading its driver", &mut request)?;
        let text = |at: usize| string(&request[1 + 8 * at..9 + 8 * at]);
        Ok(Driver { name: text(0), version: text(1), firmware: text(2), bus: text(3) })
    }

    /// Interrupt coalescing.
    ///
    /// # Errors
    /// [`Error::DeviceLacks`] on veth and other software devices.
    pub fn coalesce(&self) -> Result<Coalesce> {
        let raw = self.raw_coalesce()?;
        Ok(Coalesce { rx_usecs: raw[1], rx_frames: raw[2], adaptive_rx: raw[10] != 0 })
    }

    /// Changes interrupt coalescing; values that are `None` stay as they are.
    ///
    /// # Errors
    /// [`Error::Denied`] without `CAP_NET_ADMIN`; [`Error::DeviceLacks`] where the device has no
    /// coalescing or not this kind of it.
    pub fn set_coalesce(&self, change: CoalesceChange) -> Result<()> {
        let mut raw = self.raw_coalesce()?;
        raw[0] = SCOALESCE;
        raw[1] = change.rx_usecs.unwrap_or(raw[1]);
        raw[2] = change.rx_frames.unwrap_or(raw[2]);
        raw[10] = change.adaptive_rx.map_or(raw[10], u32::from);
        self.ask("setting interrupt coalescing", &mut raw)
    }

    fn raw_coalesce(&self) -> Result<[u32; 23]> {
        // struct ethtool_coalesce: cmd, rx_coalesce_usecs, rx_max_coalesced_frames, …,
        // [10] use_adaptive_rx_coalesce, …
        let mut request = [0; 23];
        request[0] = GCOALESCE;
        self.ask("interrupt coalescing", &mut request)?;
        Ok(request)
    }

    /// Every offload feature this kernel knows, on or off.
    pub fn features(&self) -> Result<Vec<Feature>> {
        let names = self.feature_names()?;
        let raw = self.raw_features(names.len())?;
        let bit = |i: usize, word: usize| raw[2 + i / 32 * 4 + word] >> (i % 32) & 1 == 1;
        // struct ethtool_get_features_block: available, requested, active, never_changed.
        Ok(names
            .into_iter()
            .enumerate()
            .filter(|(_, name)| !name.is_empty())
            .map(|(i, name)| Feature {
                name,
                on: bit(i, 2),
                wanted: bit(i, 1),
                changeable: bit(i, 0) && !bit(i, 3),
            })
            .collect())
    }

    /// Whether every one of the named features is on; see [`GRO`].
    ///
    /// # Errors
    /// [`Error::DeviceLacks`] for a name this kernel does not know.
    pub fn all_on(&self, names: &[&str]) -> Result<bool> {
        Ok(self.pick(names)?.iter().all(|f| f.on))
    }

    /// Whether every one of the named features is off; see [`TSO`].
    ///
    /// # Errors
    /// [`Error::DeviceLacks`] for a name this kernel does not know.
    pub fn all_off(&self, names: &[&str]) -> Result<bool> {
        Ok(self.pick(names)?.iter().all(|f| !f.on))
    }

    fn pick(&self, names: &[&str]) -> Result<Vec<Feature>> {
        let features = self.features()?;
        names
            .iter()
            .map(|name| {
                features.iter().find(|f| f.name == *name).cloned().ok_or_else(|| {
                    Error::DeviceLacks {
                        device: self.device.clone(),
                        what: format!("feature {name}"),
                    }
                })
            })
            .collect()
    }

    /// Switches features on or off and checks the result; those already so are not touched.
    ///
    /// # Errors
    /// [`Error::Denied`] without `CAP_NET_ADMIN`; [`Error::DeviceLacks`] for an unknown name, and for a
    /// feature that is fixed or that another feature prevents. The wanted features are then reset to what they
    /// were before.
    pub fn set_features(&self, names: &[&str], on: bool) -> Result<()> {
        let before = self.pick(names)?;
        // A wanted feature that is prevented now would switch on later: that counts as a difference.
        if before.iter().all(|f| f.on == on && (f.wanted == on || !f.changeable)) {
            return Ok(());
        }
        self.want(before.iter().map(|f| (f.name.as_str(), on)))?;
        // The kernel accepts a request that it cannot fulfil without an error: check the result.
        let Some(refused) = self.pick(names)?.into_iter().find(|f| f.on != on) else {
            return Ok(());
        };
        self.want(before.iter().map(|f| (f.name.as_str(), f.wanted)))?;
        let why = if refused.changeable { "while another feature forbids it" } else { "(fixed)" };
        let state = if on { "on" } else { "off" };
        Err(Error::DeviceLacks {
            device: self.device.clone(),
            what: format!("switching {} {state} {why}", refused.name),
        })
    }

    /// Sets whether a feature is wanted, and returns the result: if another feature prevents it, the request is
    /// kept and takes effect when that one is off.
    ///
    /// # Errors
    /// [`Error::Denied`] without `CAP_NET_ADMIN`; [`Error::DeviceLacks`] for an unknown name and for a
    /// feature that is fixed.
    pub fn set_wanted(&self, name: &str, on: bool) -> Result<Feature> {
        let before = self.pick(&[name])?;
        if before.iter().any(|f| !f.changeable) {
            let what = format!("changing feature {name}, which is fixed");
            return Err(Error::DeviceLacks { device: self.device.clone(), what });
        }
        self.want([(name, on)].into_iter())?;
        self.pick(&[name])?.pop().ok_or_else(|| Error::DeviceLacks {
            device: self.device.clone(),
            what: format!("feature {name}"),
        })
    }

    fn want<'a>(&self, wishes: impl Iterator<Item = (&'a str, bool)>) -> Result<()> {
        let all = self.feature_names()?;
        // struct ethtool_sfeatures: cmd, size, then blocks of (valid, requested).
        let blocks = all.len().div_ceil(32);
        let mut request = vec![0; 2 + 2 * blocks];
        (request[0], request[1]) = (SFEATURES, blocks as u32);
        let mut named = Vec::new();
        for (name, on) in wishes {
            let Some(i) = all.iter().position(|n| n == name) else { continue };
            request[2 + i / 32 * 2] |= 1 << (i % 32);
            request[3 + i / 32 * 2] |= u32::from(on) << (i % 32);
            named.push(name);
        }
        self.ask(&format!("switching {}", named.join(", ")), &mut request)
    }

    /// The names of all features in the order of their bits; unused bits have an empty one.
    fn feature_names(&self) -> Result<Vec<String>> {
        // struct ethtool_sset_info: cmd, reserved, sset_mask (64 bits), then one count per bit.
        let mut info = [0u32; 5];
        let mask = (1u64 << SS_FEATURES).to_ne_bytes();
        info[0] = GSSET_INFO;
        info[2] = u32::from_ne_bytes([mask[0], mask[1], mask[2], mask[3]]);
        info[3] = u32::from_ne_bytes([mask[4], mask[5], mask[6], mask[7]]);
        self.ask("the number of features", &mut info)?;
        let count = info[4] as usize;
        // struct ethtool_gstrings: cmd, string_set, len, then the strings. The kernel writes all that
        // it has: the count from above, which is fixed when the kernel is built.
        let mut strings = vec![0; 3 + count * STRING_LEN / 4];
        (strings[0], strings[1], strings[2]) = (GSTRINGS, SS_FEATURES, count as u32);
        self.ask("the names of features", &mut strings)?;
        Ok(strings[3..].chunks_exact(STRING_LEN / 4).map(string).collect())
    }

    fn raw_features(&self, count: usize) -> Result<Vec<u32>> {
        // struct ethtool_gfeatures: cmd, size, then blocks of four words.
        let blocks = count.div_ceil(32);
        let mut request = vec![0; 2 + 4 * blocks];
        (request[0], request[1]) = (GFEATURES, blocks as u32);
        self.ask("features", &mut request)?;
        Ok(request)
    }

    fn ask(&self, what: &str, request: &mut [u32]) -> Result<()> {
        let doing = || format!("{}: {what}", self.device);
        sys::ethtool(&self.socket, &self.device, request).map_err(|e: io::Error| {
            match e.raw_os_error() {
                Some(libc::ENODEV) => Error::NoDevice { name: self.device.clone() },
                Some(libc::EPERM) => Error::denied_in_netns(doing(), Capability::NetAdmin),
                Some(libc::EOPNOTSUPP) => {
                    Error::DeviceLacks { device: self.device.clone(), what: what.into() }
                }
                _ => Error::os(doing(), e),
            }
        })
    }
}

/// A zero-terminated string in words in the kernel's byte order.
fn string(words: &[u32]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
