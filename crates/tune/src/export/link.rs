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

/// The option for a setting, if systemd.link has one.
fn line(key: &Key, value: &Value) -> Option<String> {
    let switch = matches!(value, Value::Switch(true));
    let yes_no = if switch { "yes" } else { "no" };
    let number = value.number().unwrap_or(0);
    Some(match key {
        Key::AdaptiveRx => format!("UseAdaptiveRxCoalesce={yes_no}"),
        Key::RxUsecs => format!("RxCoalesceSec={number}us"),
        Key::RxFrames => format!("RxMaxCoalescedFrames={number}"),
        Key::Combined => format!("CombinedChannels={number}"),
        Key::RxChannels => format!("RxChannels={number}"),
        Key::TxChannels => format!("TxChannels={number}"),
        Key::RxRing => format!("RxBufferSize={number}"),
        Key::TxRing => format!("TxBufferSize={number}"),
        Key::Feature(name) => format!("{}={yes_no}", feature(name)?),
        _ => return None,
    })
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
