//! An Ansible play that installs the sysctl.d file, the .link files and the udev rules, using only
//! ansible.builtin modules.

use super::{Export, ExportedFile, link, sysctl, udev};

pub(super) fn files(export: &Export) -> Vec<ExportedFile> {
    let files: Vec<(&str, ExportedFile)> = sysctl::files(export)
        .into_iter()
        .map(|f| ("load sysctl", f))
        .chain(link::files(export).into_iter().map(|f| ("load udev", f)))
        .chain(udev::files(export).into_iter().map(|f| ("load udev", f)))
        .collect();
    if files.is_empty() {
        return Vec::new();
    }
    let mut text = export.header();
    if !export.devices.is_empty() {
        text += "# Its files know a device by its address: export one play per machine.\n";
    }
    text += &format!(
        "---\n- name: {}\n  hosts: all\n  become: true\n  gather_facts: false\n  tasks:\n",
        quoted(&format!("busypoll {}", export.profile))
    );
    for (handler, file) in &files {
        text += &format!(
            "    - name: {}\n      ansible.builtin.copy:\n        dest: {}\n        mode: \"0644\"\n        \
             content: !unsafe |\n",
            quoted(&format!("install {}", file.path)),
            quoted(&file.path)
        );
        for line in file.text.lines() {
            text += &if line.is_empty() { "\n".into() } else { format!("          {line}\n") };
        }
        text += &format!("      notify: {handler}\n");
    }
    text += "  handlers:\n";
    if files.iter().any(|(handler, _)| *handler == "load sysctl") {
        text += "    - name: load sysctl\n      ansible.builtin.command: sysctl --system\n";
    }
    if files.iter().any(|(handler, _)| *handler == "load udev") {
        text += "    - name: load udev\n      ansible.builtin.shell: udevadm control --reload && udevadm \
                 trigger --action=add --subsystem-match=net\n";
    }
    vec![ExportedFile { path: "busypoll.yml".into(), text }]
}

/// A quoted YAML scalar.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
