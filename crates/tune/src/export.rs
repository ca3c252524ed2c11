//! A profile as files for other tools: sysctl.d, systemd's .link, a udev rule, a tuned profile, an
//! Ansible role. Writes nothing itself.
//!
//! Settings that need a poller (`napi.*`) are left out everywhere: at boot no process polls.
//! Each file says how to apply them instead.

mod ansible;
mod link;
mod sysctl;
mod tuned;
mod udev;

use clap::ValueEnum;

use crate::device::{Device, Identity};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::machine::{At, Knob, Machine};
use crate::plan::{Options, resolve};
use crate::profile::Profile;
use crate::value::Value;

/// The formats a profile can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// `/etc/sysctl.d/60-busypoll.conf`, for the machine's own settings
    Sysctl,
    /// `/etc/systemd/network/60-busypoll-IF.link`, for offloads, coalescing, channels and rings
    Link,
    /// `/etc/udev/rules.d/60-busypoll-IF.rules`, for packet steering and interrupts
    Udev,
    /// `/etc/tuned/busypoll/tuned.conf`
    Tuned,
}

/// A profile with its values for one machine.
#[derive(Clone, Debug)]
pub struct Export {
    profile: String,
    summary: String,
    machine: Vec<(Key, Value)>,
    devices: Vec<ForDevice>,
    /// The settings that are in no file, with the reason.
    pub left_out: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct ForDevice {
    identity: Identity,
    settings: Vec<(Key, Value)>,
    rx_queues: Vec<u32>,
    tx_queues: Vec<u32>,
}

/// A file to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFile {
    /// Its path.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl Export {
    /// Works out a profile's values for this machine.
    pub fn make(
        machine: &mut Machine,
        devices: &[Device],
        profile: &Profile,
        options: &Options,
    ) -> Self {
        let mut export = Export {
            profile: profile.name.clone(),
            summary: profile.summary.clone(),
            machine: Vec::new(),
            devices: Vec::new(),
            left_out: Vec::new(),
        };
        for device in devices {
            export.devices.push(ForDevice {
                identity: device.identity.clone(),
                settings: Vec::new(),
                rx_queues: machine.sysfs.rx_queues(device.name()),
                tx_queues: machine.sysfs.tx_queues(device.name()),
            });
        }
        for setting in &profile.settings {
            let key = &setting.key;
            if key.is_napi() && *key != Key::Threaded {
                let why = "it must not be set while no process polls; let the program's service apply it: \
                           ExecStartPost=+busypoll tune apply … --poller $MAINPID";
                export.left_out.push((key.to_string(), why.into()));
                continue;
            }
            if *key == Key::IrqbalanceBan {
                let why = "its numbers are this boot's: see irqbalance(1), --banirq and --banmod";
                export.left_out.push((key.to_string(), why.into()));
                continue;
            }
            if key.is_system_wide() {
                match resolve(machine, None, &setting.want, 0, options) {
                    Ok(value) => export.machine.push((key.clone(), value)),
                    Err(why) => export.left_out.push((key.to_string(), why)),
                }
                continue;
            }
            if devices.is_empty() {
                let why = "it belongs to a device: name one with --dev";
                export.left_out.push((key.to_string(), why.into()));
            }
            for (device, of) in devices.iter().zip(&mut export.devices) {
                if let Some(why) = lacking(machine, device, key) {
                    export.left_out.push((format!("{key} of {}", device.name()), why.into()));
                    continue;
                }
                let is_gro = *key == Key::Feature("rx-gro".into());
                let value = match resolve(machine, Some(device), &setting.want, 0, options) {
                    Ok(_) if profile.built_in && device.is_veth() && is_gro => Value::Switch(true),
                    Ok(value) => value,
                    Err(why) => {
                        export.left_out.push((key.to_string(), why));
                        continue;
                    }
                };
                of.settings.push((key.clone(), value));
            }
        }
        export
    }

    /// The files of one format.
    ///
    /// # Errors
    /// A message of one line if no setting of the profile can be written in this format.
    pub fn files(&self, format: Format) -> Result<Vec<ExportedFile>> {
        let files = match format {
            Format::Sysctl => sysctl::files(self),
            Format::Link => link::files(self),
            Format::Udev => udev::files(self),
            Format::Tuned => tuned::files(self),
        };
        if files.is_empty() {
            let name = format.to_possible_value().map(|v| v.get_name().to_owned());
            let hint = if self.devices.is_empty() { "; --dev IF adds a device's" } else { "" };
            return Err(Error::Option(format!(
                "profile {} has no setting that --format {} can hold{hint}",
                self.profile,
                name.unwrap_or_default()
            )));
        }
        Ok(files)
    }

    /// A play and a role for Ansible that install the files for sysctl, systemd.link and udev on a group of hosts.
    ///
    /// # Errors
    /// A message of one line if no setting of the profile is in any of these files.
    pub fn role(&self) -> Result<Vec<ExportedFile>> {
        let formats = [Format::Sysctl, Format::Link, Format::Udev];
        if formats.iter().all(|format| self.files(*format).is_err()) {
            self.files(Format::Sysctl)?;
        }
        Ok(ansible::files(self))
    }

    /// The first lines of every file.
    fn header(&self) -> String {
        let mut text = format!("# busypoll profile {}: {}\n", self.profile, self.summary);
        for (key, why) in &self.left_out {
            text += &format!("# Not here: {key}: {why}\n");
        }
        text
    }
}

impl ForDevice {
    /// The device's name, usable in a file name.
    fn name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        self.identity.name.chars().map(plain).collect()
    }
}

/// Why this device cannot have a setting, if so.
fn lacking(machine: &mut Machine, device: &Device, key: &Key) -> Option<&'static str> {
    let places = machine.places(Some(device), key).ok()?;
    if key.is_napi() {
        // A device that is down has no instances yet.
        return None;
    }
    let Some(at) = places.into_iter().next() else { return Some("the device shows none") };
    let read = machine.read(Some(device), &Knob { key: key.clone(), at });
    read.err().map(|_| "not supported by this device")
}

/// The queues that a setting applies to, when only the device's export is known.
fn queues(device: &ForDevice, key: &Key) -> Vec<At> {
    let list = match key {
        Key::XpsCpus => &device.tx_queues,
        _ => &device.rx_queues,
    };
    list.iter().copied().map(At::Queue).collect()
}
