//! A profile of tuned(8): plugins sysctl, net and sysfs.

use super::{Export, ExportedFile, ForDevice, queues};
use crate::key::Key;
use crate::machine::attribute;
use crate::value::{Value, to_mask};

pub(super) fn files(export: &Export) -> Vec<ExportedFile> {
    let mut text = export.header();
    if export.devices.iter().any(|d| d.settings.iter().any(|(key, _)| *key == Key::InterruptCpus)) {
        text += "# Not here: interrupts.cpus: tuned has no line for a device's interrupts; --format udev has\n";
    }
    text += &format!("\n[main]\nsummary=busypoll {}: {}\n", export.profile, export.summary);
    let empty = text.len();
    if !export.machine.is_empty() {
        text += "\n[sysctl]\n";
        for (key, value) in &export.machine {
            text += &format!("net.core.{}={}\n", key.names().1, value.number().unwrap_or(0));
        }
    }
    for device in &export.devices {
        text += &net(device);
        text += &sysfs(device);
    }
    if text.len() == empty {
        return Vec::new();
    }
    vec![ExportedFile { path: "/etc/tuned/busypoll/tuned.conf".into(), text }]
}

fn net(device: &ForDevice) -> String {
    let mut lines = Vec::new();
    for option in ["features", "coalesce", "channels", "ring"] {
        let words: Vec<String> =
            device.settings.iter().filter_map(|(key, value)| word(option, key, value)).collect();
        if !words.is_empty() {
            lines.push(format!("{option}={}\n", words.join(" ")));
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let name = device.name();
    // By default tuned would lower the link's speed while traffic is low.
    format!(
        "\n[net_{name}]\ntype=net\ndynamic=0\ndevices={}\n{}",
        device.identity.name,
        lines.concat()
    )
}

fn word(option: &str, key: &Key, value: &Value) -> Option<String> {
    let of = match key {
        Key::Feature(_) => "features",
        Key::RxUsecs | Key::RxFrames | Key::AdaptiveRx => "coalesce",
        Key::Combined | Key::RxChannels | Key::TxChannels => "channels",
        Key::RxRing | Key::TxRing => "ring",
        _ => return None,
    };
    let value = match value {
        Value::Switch(true) => "on".to_owned(),
        Value::Switch(false) => "off".to_owned(),
        value => value.number()?.to_string(),
    };
    // tuned knows features by the names ethtool -K takes.
    let name = match key {
        Key::Feature(name) => short(name),
        _ => key.names().1,
    };
    (of == option).then(|| format!("{name} {value}"))
}

fn short(feature: &str) -> &str {
    match feature {
        "rx-gro" => "gro",
        "rx-lro" => "lro",
        "tx-generic-segmentation" => "gso",
        other => other,
    }
}

fn sysfs(device: &ForDevice) -> String {
    let mut lines = Vec::new();
    for (key, value) in &device.settings {
        let text = match value {
            Value::Cpus(list) => to_mask(&list.parse().unwrap_or_default()),
            Value::Switch(on) => u8::from(*on).to_string(),
            Value::Number(n) => n.to_string(),
        };
        let places = match key {
            Key::Threaded => vec![crate::machine::At::Whole],
            Key::RpsCpus | Key::RpsFlowCnt | Key::XpsCpus => queues(device, key),
            _ => Vec::new(),
        };
        for file in places.iter().filter_map(|at| attribute(key, at)) {
            lines.push(format!("/sys/class/net/{}/{file}={text}\n", device.identity.name));
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    format!("\n[sysfs_{}]\ntype=sysfs\n{}", device.name(), lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Identity;

    #[test]
    fn settings_without_a_tuned_plugin_are_named_in_a_comment() {
        let of = |key| {
            let identity = Identity {
                name: "eth1".into(),
                ifindex: 7,
                driver: "ice".into(),
                bus: String::new(),
                permanent: None,
                mac: None,
            };
            let settings = vec![(Key::RxUsecs, Value::Number(0)), (key, Value::Cpus("0".into()))];
            let device = ForDevice { identity, settings, rx_queues: vec![0], tx_queues: vec![0] };
            let export = Export {
                profile: "mine".into(),
                summary: String::new(),
                machine: Vec::new(),
                devices: vec![device],
                left_out: Vec::new(),
            };
            files(&export).remove(0).text
        };
        assert!(of(Key::InterruptCpus).contains("# Not here: interrupts.cpus: "));
        assert!(!of(Key::RpsCpus).contains("Not here"));
    }
}
