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

/// Every block of the play is the file of its own format, by YAML's rule for literal blocks: the
/// indentation of the first line is removed from each line.
#[test]
fn the_play_contains_the_files_themselves() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    lab.server
        .enter(|| {
            let export = export(Some("lab-server"), &Profile::find("lowest-latency").unwrap());
            let play = export.files(Format::Ansible).unwrap().remove(0).text;
            let blocks = play.split("content: !unsafe |\n").skip(1).map(|rest| {
                let lines =
                    rest.lines().take_while(|l| l.is_empty() || l.starts_with("          "));
                lines.map(|l| format!("{}\n", l.get(10..).unwrap_or(""))).collect::<String>()
            });
            let files = [Format::Sysctl, Format::Link, Format::Udev];
            let files = files.into_iter().flat_map(|f| export.files(f).unwrap());
            assert_eq!(blocks.collect::<Vec<_>>(), files.map(|f| f.text).collect::<Vec<_>>());
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
                for format in [Format::Link, Format::Udev, Format::Tuned, Format::Ansible] {
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
