//! Reads and writes one setting at one place of a device. Touches only what [`Machine::write`] changes.

use busypoll_linux::ethtool::{ChannelChange, CoalesceChange, RingChange};
use busypoll_linux::irqbalance::Irqbalance;
use busypoll_linux::netdev::{Napi, NapiChange, Netdev, Threaded};
use busypoll_linux::sysctl::Sysctl;
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::topology::CpuList;
use busypoll_linux::{Error, Result, irq};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::key::Key;
use crate::value::{Value, from_mask, to_mask};

/// The part of a device that a setting belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// The whole device, or the whole machine.
    Whole,
    /// One of its queues.
    Queue(u32),
    /// One of its NAPI instances.
    Napi {
        /// Its position among the device's instances, in the order of their ids: it stays the same when the
        /// instances are created again.
        index: u32,
        /// Its id.
        id: u32,
    },
    /// One of its interrupts.
    Irq {
        /// Its number.
        number: u32,
        /// The driver's name for it.
        name: String,
    },
}

/// One setting of one part of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Knob {
    /// The setting.
    pub key: Key,
    /// The part.
    pub at: At,
}

impl Knob {
    /// Whether both are the same setting; NAPI ids and interrupt numbers may have changed in between.
    pub fn same(&self, other: &Knob) -> bool {
        self.key == other.key
            && match (&self.at, &other.at) {
                (At::Napi { index: a, .. }, At::Napi { index: b, .. }) => a == b,
                (At::Irq { number: a, name: n }, At::Irq { number: b, name: m }) => {
                    if n.is_empty() || m.is_empty() { a == b } else { n == m }
                }
                (a, b) => a == b,
            }
    }

    /// For the user: `rx-usecs`, `rps-cpus of rx-0`, `gro-flush-timeout of napi 8193`.
    pub fn show(&self) -> String {
        let (section, name) = self.key.names();
        match (&self.at, &self.key) {
            (At::Whole, Key::IrqbalanceBan) => "left alone by irqbalance".into(),
            (At::Whole, _) if self.key.is_system_wide() => format!("net.core.{name}"),
            (At::Whole, Key::Combined | Key::RxChannels | Key::TxChannels) => {
                format!("{section} {name}")
            }
            (At::Whole, Key::RxRing | Key::TxRing) => format!("ring {name}"),
            (At::Whole, Key::InterruptCpus) => "interrupts".into(),
            (At::Whole, _) if self.key.is_napi() => format!("{name} (device)"),
            (At::Whole, _) => name.to_owned(),
            (At::Queue(queue), Key::XpsCpus) => format!("{name} of tx-{queue}"),
            (At::Queue(queue), _) => format!("{name} of rx-{queue}"),
            (At::Napi { id, .. }, _) => format!("{name} of napi {id}"),
            (At::Irq { number, name }, _) if name.is_empty() => format!("interrupt {number}"),
            (At::Irq { number, name }, _) => format!("interrupt {number} ({name})"),
        }
    }
}

// include/uapi/linux/virtio_net.h
const VIRTIO_NET_F_VQ_NOTF_COAL: usize = 52;
const VIRTIO_NET_F_NOTF_COAL: usize = 53;

/// The running system, in the calling thread's network namespace.
pub struct Machine {
    pub(crate) sysfs: Sysfs,
    // None before Linux 6.8.
    netdev: Option<Netdev>,
}

impl Machine {
    /// Opens the interfaces for reading and writing settings.
    ///
    /// # Errors
    /// If `/sys` or netlink cannot be opened.
    pub fn open() -> Result<Self> {
        let netdev = match Netdev::open() {
            Err(Error::Unsupported { .. }) => None,
            opened => Some(opened?),
        };
        Ok(Machine { sysfs: Sysfs::open()?, netdev })
    }

    /// The number of packets the devices have received so far.
    pub(crate) fn received<'a>(&self, devices: impl IntoIterator<Item = &'a Device>) -> u64 {
        let packets = |d: &Device| self.sysfs.attribute(d.name(), "statistics/rx_packets");
        devices.into_iter().filter_map(|d| packets(d)?.parse::<u64>().ok()).sum()
    }

    fn napis(&mut self, device: &Device) -> Result<Vec<Napi>> {
        let Some(netdev) = &mut self.netdev else { return Ok(Vec::new()) };
        let mut napis = netdev.napis(device.identity.ifindex)?;
        napis.sort_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// The parts of a device that have this setting now: the device, or each queue, NAPI instance or interrupt.
    pub fn places(&mut self, device: Option<&Device>, key: &Key) -> Result<Vec<At>> {
        let Some(device) = device else { return Ok(vec![At::Whole]) };
        let queues = |list: Vec<u32>| list.into_iter().map(At::Queue).collect();
        Ok(match key {
            Key::RpsCpus | Key::RpsFlowCnt => queues(self.sysfs.rx_queues(device.name())),
            Key::XpsCpus => queues(self.sysfs.tx_queues(device.name())),
            Key::InterruptCpus => irq::of_device(&self.sysfs, device.name())
                .into_iter()
                .map(|number| At::Irq { number, name: irq::names(number).join(" ") })
                .collect(),
            key if key.is_napi() => {
                let napis = self.napis(device)?;
                let per_napi = match key {
                    Key::Threaded => napis.iter().all(|n| n.threaded.is_some()),
                    _ => napis.iter().all(|n| n.defer_hard_irqs.is_some()),
                };
                if self.netdev.is_none() || !per_napi {
                    // Before 6.13 (threaded: 6.17) these belong to the device as a whole.
                    return Ok(vec![At::Whole]);
                }
                let ids = napis.iter().zip(0..);
                ids.map(|(napi, index)| At::Napi { index, id: napi.id.get() }).collect()
            }
            _ => vec![At::Whole],
        })
    }

    /// Why a device would refuse a value for a setting, if it reports that beforehand; nothing is changed.
    pub fn objection(&self, device: &Device, key: &Key, value: &Value) -> Option<String> {
        let wanted = value.number().unwrap_or(0);
        let most = |most: u32| {
            (wanted > most.into()).then(|| format!("the device has {most} at the most"))
        };
        match key {
            Key::RxUsecs | Key::RxFrames | Key::AdaptiveRx => {
                self.coalescing_objection(device, key, value)
            }
            Key::Combined => most(device.ethtool.channels().ok()?.max_combined),
            Key::RxChannels => most(device.ethtool.channels().ok()?.max_rx),
            Key::TxChannels => most(device.ethtool.channels().ok()?.max_tx),
            Key::RxRing => most(device.ethtool.rings().ok()?.max_rx),
            Key::TxRing => most(device.ethtool.rings().ok()?.max_tx),
            _ => None,
        }
    }

    fn coalescing_objection(&self, device: &Device, key: &Key, value: &Value) -> Option<String> {
        // This driver accepts all of these, but then does only what the device supports (`virtnet_set_coalesce`).
        if device.identity.driver == "virtio_net" {
            // One character for each bit, the lowest first.
            let features = self.sysfs.attribute(device.name(), "device/features")?;
            let has = |bit: usize| features.as_bytes().get(bit) == Some(&b'1');
            let plain = match key {
                Key::RxFrames => Value::Number(1),
                Key::AdaptiveRx => Value::Switch(false),
                _ => Value::Number(0),
            };
            if !has(VIRTIO_NET_F_NOTF_COAL) && *value != plain {
                return Some(
                    "the virtual NIC has no notification coalescing (VIRTIO_NET_F_NOTF_COAL)"
                        .into(),
                );
            }
            if *key == Key::AdaptiveRx && !has(VIRTIO_NET_F_VQ_NOTF_COAL) && *value != plain {
                return Some(
                    "the virtual NIC has no notification coalescing for each queue \
                     (VIRTIO_NET_F_VQ_NOTF_COAL)"
                        .into(),
                );
            }
        }
        let supported = device.ethtool.supported_coalesce().ok()?;
        let is_supported = match key {
            Key::RxFrames => supported.rx_frames,
            Key::AdaptiveRx => supported.adaptive_rx,
            _ => supported.rx_usecs,
        };
        (!is_supported).then(|| "its driver does not support it".into())
    }

    /// Reads a setting. For a feature: whether it is wanted.
    pub fn read(&mut self, device: Option<&Device>, knob: &Knob) -> Result<Value> {
        let number = |n: u32| Ok(Value::Number(n.into()));
        let Some(device) = device else {
            return match (sysctl(&knob.key), &knob.key) {
                (Some(sysctl), _) => number(sysctl.get()?),
                (None, Key::IrqbalanceBan) => {
                    Ok(Value::cpus(&irqbalance()?.banned()?.into_iter().collect()))
                }
                (None, key) => Err(lacks("this machine", key)),
            };
        };
        match (&knob.key, &knob.at) {
            (Key::RxUsecs, _) => number(device.ethtool.coalesce()?.rx_usecs),
            (Key::RxFrames, _) => number(device.ethtool.coalesce()?.rx_frames),
            (Key::AdaptiveRx, _) => Ok(Value::Switch(device.ethtool.coalesce()?.adaptive_rx)),
            (Key::Combined, _) => number(device.ethtool.channels()?.combined),
            (Key::RxChannels, _) => number(device.ethtool.channels()?.rx),
            (Key::TxChannels, _) => number(device.ethtool.channels()?.tx),
            (Key::RxRing, _) => number(device.ethtool.rings()?.rx),
            (Key::TxRing, _) => number(device.ethtool.rings()?.tx),
            (Key::Feature(name), _) => {
                let features = device.ethtool.features()?;
                let feature = features.iter().find(|f| f.name == *name);
                let feature = feature.ok_or_else(|| lacks(device.name(), &knob.key))?;
                Ok(Value::Switch(if feature.changeable { feature.wanted } else { feature.on }))
            }
            (Key::InterruptCpus, At::Irq { .. }) => {
                let number = self.irq(device, knob)?;
                Ok(Value::cpus(&irq::affinity(number)?))
            }
            (key, At::Napi { .. }) => {
                let napi = self.napi(device, knob)?;
                let value = match key {
                    Key::DeferHardIrqs => napi.defer_hard_irqs.map(u64::from),
                    Key::GroFlushTimeout => napi.gro_flush_timeout_ns,
                    Key::IrqSuspendTimeout => napi.irq_suspend_timeout_ns,
                    _ => {
                        let threaded = napi.threaded.ok_or_else(|| lacks(device.name(), key))?;
                        return Ok(Value::Switch(threaded != Threaded::Off));
                    }
                };
                value.map(Value::Number).ok_or_else(|| lacks(device.name(), key))
            }
            (key, at) => {
                let file = attribute(key, at).ok_or_else(|| lacks(device.name(), key))?;
                let text = self.sysfs.attribute(device.name(), &file);
                let text = text.ok_or_else(|| lacks(device.name(), key))?;
                let value = match key {
                    Key::RpsCpus | Key::XpsCpus => from_mask(&text).map(|l| Value::cpus(&l)),
                    Key::Threaded => Some(Value::Switch(text != "0")),
                    _ => text.parse().ok().map(Value::Number),
                };
                value.ok_or(Error::Malformed { path: file, why: format!("{text:?}") })
            }
        }
    }

    /// Writes a setting; the kernel or the driver may round it.
    pub fn write(&mut self, device: Option<&Device>, knob: &Knob, value: &Value) -> Result<()> {
        let wrong = || Error::Malformed {
            path: format!("the value of {}", knob.key),
            why: format!("{value:?} is not of its kind"),
        };
        let number = || value.number().and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong);
        let switch = || match value {
            Value::Switch(on) => Ok(*on),
            _ => Err(wrong()),
        };
        let cpus = || match value {
            Value::Cpus(list) if list.is_empty() => Ok([].into_iter().collect::<CpuList>()),
            Value::Cpus(list) => list.parse(),
            _ => Err(wrong()),
        };
        let Some(device) = device else {
            return match (sysctl(&knob.key), &knob.key) {
                (Some(sysctl), _) => sysctl.set(number()?),
                (None, Key::IrqbalanceBan) => irqbalance()?.ban(&cpus()?.iter().collect()),
                (None, key) => Err(lacks("this machine", key)),
            };
        };
        let coalesce = |change| device.ethtool.set_coalesce(change);
        let channels = |change| device.ethtool.set_channels(change);
        let rings = |change| device.ethtool.set_rings(change);
        match (&knob.key, &knob.at) {
            (Key::RxUsecs, _) => {
                coalesce(CoalesceChange { rx_usecs: Some(number()?), ..Default::default() })
            }
            (Key::RxFrames, _) => {
                coalesce(CoalesceChange { rx_frames: Some(number()?), ..Default::default() })
            }
            (Key::AdaptiveRx, _) => {
                coalesce(CoalesceChange { adaptive_rx: Some(switch()?), ..Default::default() })
            }
            (Key::Combined, _) => {
                channels(ChannelChange { combined: Some(number()?), ..Default::default() })
            }
            (Key::RxChannels, _) => {
                channels(ChannelChange { rx: Some(number()?), ..Default::default() })
            }
            (Key::TxChannels, _) => {
                channels(ChannelChange { tx: Some(number()?), ..Default::default() })
            }
            (Key::RxRing, _) => rings(RingChange { rx: Some(number()?), ..Default::default() }),
            (Key::TxRing, _) => rings(RingChange { tx: Some(number()?), ..Default::default() }),
            (Key::Feature(name), _) => device.ethtool.set_wanted(name, switch()?).map(drop),
            (Key::InterruptCpus, At::Irq { .. }) => {
                irq::set_affinity(self.irq(device, knob)?, &cpus()?)
            }
            (key, At::Napi { .. }) => {
                let napi = self.napi(device, knob)?;
                let mut change = NapiChange::default();
                match key {
                    Key::DeferHardIrqs => change.defer_hard_irqs = Some(number()?),
                    Key::GroFlushTimeout => change.gro_flush_timeout_ns = Some(number()?),
                    Key::IrqSuspendTimeout => change.irq_suspend_timeout_ns = Some(number()?),
                    _ => {
                        let on = if switch()? { Threaded::On } else { Threaded::Off };
                        change.threaded = Some(on);
                    }
                }
                let netdev = self.netdev.as_mut().ok_or_else(|| lacks(device.name(), key))?;
                netdev.set_napi(device.identity.ifindex, napi.id, change)
            }
            (key, at) => {
                let file = attribute(key, at).ok_or_else(|| lacks(device.name(), key))?;
                let text = match key {
                    Key::RpsCpus | Key::XpsCpus => to_mask(&cpus()?),
                    Key::Threaded => u8::from(switch()?).to_string(),
                    _ => value.number().ok_or_else(wrong)?.to_string(),
                };
                self.sysfs.set_attribute(device.name(), &file, &text)
            }
        }
    }

    /// The NAPI instance of a setting: the one with its id or, if they were created again, at its position.
    fn napi(&mut self, device: &Device, knob: &Knob) -> Result<Napi> {
        let At::Napi { index, id } = knob.at else { return Err(lacks(device.name(), &knob.key)) };
        let napis = self.napis(device)?;
        let found = napis.iter().find(|n| n.id.get() == id).or(napis.get(index as usize));
        found.cloned().ok_or(Error::NoNapi { id })
    }

    /// The number of a setting's interrupt: it changes when a driver is reloaded.
    fn irq(&mut self, device: &Device, knob: &Knob) -> Result<u32> {
        let At::Irq { number, name } = &knob.at else {
            return Err(lacks(device.name(), &knob.key));
        };
        let now = irq::of_device(&self.sysfs, device.name());
        let named = |n: &u32| !name.is_empty() && irq::names(*n).join(" ") == *name;
        let found = now.iter().copied().find(named).or(now.iter().copied().find(|n| n == number));
        found.ok_or_else(|| Error::DeviceLacks {
            device: device.name().into(),
            what: format!("interrupt {number} ({name})"),
        })
    }
}

/// The running irqbalance. Its settings are lost when it ends.
fn irqbalance() -> Result<Irqbalance> {
    Irqbalance::find().ok_or_else(|| lacks("this machine", &Key::IrqbalanceBan))
}

fn sysctl(key: &Key) -> Option<Sysctl> {
    match key {
        Key::BusyRead => Some(Sysctl::BusyRead),
        Key::BusyPoll => Some(Sysctl::BusyPoll),
        _ => None,
    }
}

/// The file below `/sys/class/net/DEVICE`.
pub(crate) fn attribute(key: &Key, at: &At) -> Option<String> {
    Some(match (key, at) {
        (Key::DeferHardIrqs, At::Whole) => "napi_defer_hard_irqs".into(),
        (Key::GroFlushTimeout, At::Whole) => "gro_flush_timeout".into(),
        (Key::Threaded, At::Whole) => "threaded".into(),
        (Key::RpsCpus, At::Queue(n)) => format!("queues/rx-{n}/rps_cpus"),
        (Key::RpsFlowCnt, At::Queue(n)) => format!("queues/rx-{n}/rps_flow_cnt"),
        (Key::XpsCpus, At::Queue(n)) => format!("queues/tx-{n}/xps_cpus"),
        _ => return None,
    })
}

fn lacks(device: &str, key: &Key) -> Error {
    Error::DeviceLacks { device: device.into(), what: key.names().1.into() }
}
