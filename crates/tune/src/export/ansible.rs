//! An Ansible role for groups of hosts that installs what the formats for sysctl, systemd.link and udev hold, with the
//! values as variables; and a play with it. Uses modules of ansible.builtin only.
//!
//! The role finds out on each host which address a device has, and how many queues.

use super::{Export, ExportedFile, ForDevice, link, udev};
use crate::key::Key;
use crate::value::Value;

/// The files of the role that are the same for every profile.
const FILES: &[(&str, &str)] = &[
    ("busypoll.yml", include_str!("role/busypoll.yml")),
    ("roles/busypoll/tasks/main.yml", include_str!("role/tasks/main.yml")),
    ("roles/busypoll/tasks/present.yml", include_str!("role/tasks/present.yml")),
    ("roles/busypoll/tasks/absent.yml", include_str!("role/tasks/absent.yml")),
    ("roles/busypoll/handlers/main.yml", include_str!("role/handlers/main.yml")),
    ("roles/busypoll/templates/sysctl.conf.j2", include_str!("role/templates/sysctl.conf.j2")),
    ("roles/busypoll/templates/device.link.j2", include_str!("role/templates/device.link.j2")),
    ("roles/busypoll/templates/device.rules.j2", include_str!("role/templates/device.rules.j2")),
    (
        "roles/busypoll/templates/save-sysctl.sh.j2",
        include_str!("role/templates/save-sysctl.sh.j2"),
    ),
    (
        "roles/busypoll/templates/save-device.sh.j2",
        include_str!("role/templates/save-device.sh.j2"),
    ),
];

pub(super) fn files(export: &Export) -> Vec<ExportedFile> {
    let file =
        |(path, text): &(&str, &str)| ExportedFile { path: (*path).into(), text: (*text).into() };
    let mut files: Vec<ExportedFile> = FILES.iter().map(file).collect();
    files.push(ExportedFile {
        path: "roles/busypoll/defaults/main.yml".into(),
        text: defaults(export),
    });
    files
}

/// The variables, with the values of the machine that exports.
fn defaults(export: &Export) -> String {
    let mut text = format!(
        "---\n{}# Values of the machine that this was exported on. Other groups of hosts set their own, in group_vars.\n\n\
         # absent: what the role has installed is removed, and what stood before is restored.\n\
         busypoll_state: present\n\n\
         # Where each host keeps what stood before.\n\
         busypoll_before: /var/lib/busypoll-role\n\n",
        export.header()
    );
    let settings = export.machine.iter().map(|(key, value)| {
        (format!("net.core.{}", key.names().1), value.number().unwrap_or(0).to_string())
    });
    text += &mapping("busypoll_sysctl", 0, &settings.collect::<Vec<_>>());
    text += "\n# link: options of systemd.link(5). attributes: files below /sys/class/net/NAME; rx_queues, tx_queues: files of\n\
             # each queue there. features: `ethtool -K`. interrupt_cpus: a list such as 0-3; empty: not set.\n";
    if export.devices.is_empty() {
        return text + "busypoll_devices: []\n";
    }
    text += "busypoll_devices:\n";
    for device in &export.devices {
        text += &format!("  - name: {}\n", quoted(&device.identity.name));
        for (name, values) in parts(device) {
            text += &mapping(name, 4, &values);
        }
        let cpus = device.settings.iter().find_map(|(key, value)| match (key, value) {
            (Key::InterruptCpus, Value::Cpus(list)) => Some(list.to_string()),
            _ => None,
        });
        text += &format!("    interrupt_cpus: {}\n", quoted(&cpus.unwrap_or_default()));
    }
    text
}

/// The settings of a device by the file that holds them.
fn parts(device: &ForDevice) -> [(&'static str, Vec<(String, String)>); 5] {
    let mut parts =
        ["link", "attributes", "rx_queues", "tx_queues", "features"].map(|name| (name, Vec::new()));
    for (key, value) in &device.settings {
        let (part, setting) = match key {
            Key::Threaded => (1, ("threaded".to_owned(), udev::attribute_value(key, value))),
            Key::RpsCpus | Key::RpsFlowCnt => {
                (2, (key.names().1.replace('-', "_"), udev::attribute_value(key, value)))
            }
            Key::XpsCpus => (3, ("xps_cpus".to_owned(), udev::attribute_value(key, value))),
            Key::InterruptCpus => continue,
            key => match (link::option(key, value), key, value) {
                (Some(option), ..) => (0, option),
                (None, Key::Feature(name), Value::Switch(on)) => {
                    (4, (name.clone(), if *on { "on" } else { "off" }.to_owned()))
                }
                _ => continue,
            },
        };
        parts[part].1.push(setting);
    }
    parts
}

/// A mapping of quoted scalars.
fn mapping(name: &str, indent: usize, values: &[(String, String)]) -> String {
    let indent = " ".repeat(indent);
    if values.is_empty() {
        return format!("{indent}{name}: {{}}\n");
    }
    let line = |(key, value): &(String, String)| format!("{indent}  {key}: {}\n", quoted(value));
    format!("{indent}{name}:\n{}", values.iter().map(line).collect::<String>())
}

/// A quoted YAML scalar, which Ansible takes as it stands.
fn quoted(text: &str) -> String {
    let unsafe_ = if text.contains("{{") || text.contains("{%") { "!unsafe " } else { "" };
    format!("{unsafe_}\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
