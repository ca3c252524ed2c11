//! udev(7) rules for what systemd.link(5) has no option for: attributes of queues, interrupts, the rarer
//! offloads.

use super::{Export, ExportedFile, ForDevice, link, queues};
use crate::key::Key;
use crate::machine::At;
use crate::machine::attribute;
use crate::value::{Value, to_mask};

pub(super) fn files(export: &Export) -> Vec<ExportedFile> {
    let file = |device: &ForDevice| {
        let mut actions: Vec<String> = Vec::new();
        for (key, value) in &device.settings {
            actions.extend(of(device, key, value));
        }
        (!actions.is_empty()).then(|| ExportedFile {
            path: path(device),
            text: format!(
                "{}\nACTION==\"add|change\", SUBSYSTEM==\"net\", {}, \\\n  {}\n",
                export.header(),
                matches(device),
                actions.join(", \\\n  ")
            ),
        })
    };
    export.devices.iter().filter_map(file).collect()
}

pub(super) fn path(device: &ForDevice) -> String {
    format!("/etc/udev/rules.d/60-busypoll-{}.rules", device.name())
}

fn matches(device: &ForDevice) -> String {
    let identity = &device.identity;
    match &identity.permanent {
        // A VLAN on top has the same address but no driver.
        Some(address) => {
            format!("ATTR{{address}}==\"{address}\", DRIVERS==\"{}\"", identity.driver)
        }
        None => format!("KERNEL==\"{}\"", identity.name),
    }
}

fn of(device: &ForDevice, key: &Key, value: &Value) -> Vec<String> {
    let whole = |text: String| {
        let file = attribute(key, &At::Whole).unwrap_or_default();
        vec![format!("ATTR{{{file}}}=\"{text}\"")]
    };
    match (key, value) {
        (Key::Threaded, Value::Switch(_)) => whole(attribute_value(key, value)),
        (Key::RpsCpus | Key::XpsCpus | Key::RpsFlowCnt, _) => queues(device, key)
            .iter()
            .filter_map(|at| attribute(key, at))
            .map(|file| format!("ATTR{{{file}}}=\"{}\"", attribute_value(key, value)))
            .collect(),
        (Key::InterruptCpus, Value::Cpus(list)) => vec![format!(
            // udev writes $ as $$; %k is the device.
            "RUN+=\"/bin/sh -c 'for irq in /sys/class/net/%k/device/msi_irqs/* \
             /sys/class/net/%k/device/../msi_irqs/*; do echo {list} > \
             /proc/irq/$${{irq##*/}}/smp_affinity_list; done 2>/dev/null; true'\""
        )],
        (Key::Feature(name), Value::Switch(on)) if !link::can_say(key) => {
            let state = if *on { "on" } else { "off" };
            vec![format!("RUN+=\"/usr/sbin/ethtool -K %k {name} {state}\"")]
        }
        _ => Vec::new(),
    }
}

/// What is written to the setting's file.
pub(super) fn attribute_value(key: &Key, value: &Value) -> String {
    match value {
        Value::Switch(on) if *key == Key::Threaded => u8::from(*on).to_string(),
        Value::Cpus(list) => to_mask(&list.parse().unwrap_or_default()),
        value => value.number().unwrap_or(0).to_string(),
    }
}
