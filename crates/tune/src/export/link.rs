//! systemd.link(5): what udev sets on a device when it appears.
//!
//! Only the first file that matches counts, so the defaults of 99-default.link are repeated.

use super::{Export, ExportedFile, ForDevice};
use crate::key::Key;
use crate::value::Value;

const DEFAULTS: &str = "NamePolicy=keep kernel database onboard slot path\n\
                        AlternativeNamesPolicy=database onboard slot path\n\
                        MACAddressPolicy=persistent\n";

pub(super) fn files(export: &Export) -> Vec<ExportedFile> {
    let file = |device: &ForDevice| {
        let lines: Vec<String> = device.settings.iter().filter_map(|(k, v)| line(k, v)).collect();
        (!lines.is_empty()).then(|| ExportedFile {
            path: path(device),
            text: format!(
                "{}\n[Match]\n{}\n\n[Link]\n{DEFAULTS}{}\n",
                export.header(),
                matches(device),
                lines.join("\n")
            ),
        })
    };
    export.devices.iter().filter_map(file).collect()
}

pub(super) fn path(device: &ForDevice) -> String {
    format!("/etc/systemd/network/60-busypoll-{}.link", device.name())
}

/// Matches the permanent address, or the name if there is none.
fn matches(device: &ForDevice) -> String {
    let identity = &device.identity;
    match (&identity.permanent, identity.driver.as_str()) {
        (Some(address), "") => format!("PermanentMACAddress={address}"),
        (Some(address), driver) => format!("PermanentMACAddress={address}\nDriver={driver}"),
        // Driver= of systemd.link is the driver of the bus device, which software devices lack.
        (None, _) => format!("OriginalName={}", identity.name),
    }
}

/// The line for a setting, if systemd.link has an option for it.
fn line(key: &Key, value: &Value) -> Option<String> {
    option(key, value).map(|(name, value)| format!("{name}={value}"))
}

/// The option for a setting and its value, if systemd.link has one.
pub(super) fn option(key: &Key, value: &Value) -> Option<(String, String)> {
    let switch = matches!(value, Value::Switch(true));
    let yes_no = if switch { "yes" } else { "no" };
    let number = value.number().unwrap_or(0);
    let (name, value) = match key {
        Key::AdaptiveRx => ("UseAdaptiveRxCoalesce", yes_no.to_owned()),
        Key::RxUsecs => ("RxCoalesceSec", format!("{number}us")),
        Key::RxFrames => ("RxMaxCoalescedFrames", number.to_string()),
        Key::Combined => ("CombinedChannels", number.to_string()),
        Key::RxChannels => ("RxChannels", number.to_string()),
        Key::TxChannels => ("TxChannels", number.to_string()),
        Key::RxRing => ("RxBufferSize", number.to_string()),
        Key::TxRing => ("TxBufferSize", number.to_string()),
        Key::Feature(name) => (feature(name)?, yes_no.to_owned()),
        _ => return None,
    };
    Some((name.to_owned(), value))
}

fn feature(name: &str) -> Option<&'static str> {
    Some(match name {
        "rx-gro" => "GenericReceiveOffload",
        "rx-gro-hw" => "GenericReceiveOffloadHardware",
        "rx-lro" => "LargeReceiveOffload",
        "rx-checksum" => "ReceiveChecksumOffload",
        "tx-generic-segmentation" => "GenericSegmentationOffload",
        "tx-tcp-segmentation" => "TCPSegmentationOffload",
        "tx-tcp6-segmentation" => "TCP6SegmentationOffload",
        _ => return None,
    })
}

/// Whether systemd.link has an option for it.
pub(super) fn can_say(key: &Key) -> bool {
    line(key, &Value::Switch(true)).is_some()
}
