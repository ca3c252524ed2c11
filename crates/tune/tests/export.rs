//! The exported files.

mod common;

use busypoll_lab::Lab;
use busypoll_tune::{Format, Profile};
use common::export;

#[test]
fn system_wide_settings_need_no_device() {
    let export = export(None, &Profile::find("busy-poll").unwrap());
    let [file] = &export.files(Format::Sysctl).unwrap()[..] else { panic!() };
    assert_eq!(file.path, "/etc/sysctl.d/60-busypoll.conf");
    let settings: Vec<&str> = file.text.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(settings, ["net.core.busy_read = 50", "net.core.busy_poll = 50"]);
    let error = export.files(Format::Link).unwrap_err().to_string();
    assert!(error.contains("--format link") && error.contains("--dev"), "{error}");
    // The file names the settings it leaves out, with the reason.
    assert!(file.text.contains("# Not here: coalesce.rx-usecs: it belongs to a device"));
}

/// Two devices with settings of every kind, and none.
#[test]
fn the_role_s_variables_hold_the_values_of_the_files() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    lab.server
        .enter(|| {
            let profile = Profile::find("lowest-latency").unwrap();
            let role = export(Some("lab-server"), &profile).role().unwrap();
            let defaults = &role.iter().find(|file| file.path.ends_with("defaults/main.yml"));
            let text = &defaults.unwrap().text;
            for wanted in [
                "busypoll_state: present",
                "  net.core.busy_read: \"50\"",
                "  - name: \"lab-server\"",
            ] {
                assert!(text.contains(wanted), "no {wanted}: {text}");
            }
            let role = export(None, &Profile::find("busy-poll").unwrap()).role().unwrap();
            assert!(role.iter().any(|file| file.text.contains("busypoll_devices: []")), "{role:?}");
        })
        .unwrap();
}

#[test]
fn settings_that_need_a_poller_are_in_no_file() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    lab.server
        .enter(|| {
            for profile in ["prefer-busy-poll", "irq-suspend"] {
                let export = export(Some("lab-server"), &Profile::find(profile).unwrap());
                for format in [Format::Link, Format::Udev, Format::Tuned] {
                    for file in export.files(format).unwrap() {
                        let set =
                            |l: &&str| !l.trim_start().starts_with('#') && l.contains("flush");
                        assert_eq!(file.text.lines().find(set), None, "{}", file.path);
                        assert!(file.text.contains("ExecStartPost=+busypoll tune apply"));
                    }
                }
            }
        })
        .unwrap();
}
