//! sysctl.d(5).

use super::{Export, ExportedFile};

pub(super) fn files(export: &Export) -> Vec<ExportedFile> {
    if export.machine.is_empty() {
        return Vec::new();
    }
    let mut text = export.header();
    for (key, value) in &export.machine {
        let number = value.number().unwrap_or(0);
        text += &format!("net.core.{} = {number}\n", key.names().1);
    }
    vec![ExportedFile { path: "/etc/sysctl.d/60-busypoll.conf".into(), text }]
}
