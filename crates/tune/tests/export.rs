//! What is exported, and that the tools it is for take it.

mod common;

use std::fs;

use busypoll_lab::Lab;
use busypoll_linux::topology::CpuList;
use busypoll_tune::{
    Device, Export, ExportedFile, Format, Machine, Options, Process, Profile, Request, apply,
    journal,
};
use common::{State, everything};

const PROFILE: &str = "[features]\ngso = false\nrx-udp-gro-forwarding = true\n[channels]\nrx = 1\n\
                       [queues]\nrps-cpus = \"0-1\"\nrps-flow-cnt = 64\nxps-cpus = \"1\"\n\
                       [napi]\nthreaded = true\ngro-flush-timeout = \"20us\"\n[interrupts]\ncpus = \"0\"\n\
                       [coalesce]\nrx-usecs = 7\n";

fn export(device: Option<&str>, profile: &Profile) -> Export {
    let devices: Vec<Device> = device.into_iter().map(|d| Device::open(d).unwrap()).collect();
    let app_cpus = Some("0".parse::<CpuList>().unwrap());
    let options = Options { app_cpus, ..Options::default() };
    Export::make(&mut Machine::open().unwrap(), &devices, profile, &options)
}

#[test]
fn settings_of_the_machine_alone_need_no_device() {
    let export = export(None, &Profile::find("busy-poll").unwrap());
    let [file] = &export.files(Format::Sysctl).unwrap()[..] else { panic!() };
    assert_eq!(file.path, "/etc/sysctl.d/60-busypoll.conf");
    let settings: Vec<&str> = file.text.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(settings, ["net.core.busy_read = 50", "net.core.busy_poll = 50"]);
    let error = export.files(Format::Link).unwrap_err().to_string();
    assert!(error.contains("--format link") && error.contains("--dev"), "{error}");
    // What it leaves out it says, with the reason.
    assert!(file.text.contains("# Not here: coalesce.rx-usecs: it belongs to a device"));
}

/// Every block of the play is the file of its own format, by YAML's rule for literal blocks: the
/// indentation of the first line is taken off each.
#[test]
fn the_play_holds_the_files_themselves() {
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
fn what_needs_a_poller_is_in_no_file() {
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

/// udev itself installs the .link file and the rules on one veth; tune applies the profile to another. Both
/// end up the same.
#[test]
fn udev_makes_of_the_files_what_apply_makes_of_the_profile() {
    busypoll_lab::needs_root!();
    busypoll_lab::needs!(program "udevadm", program "unshare", program "mount", program "ethtool");
    let state = State::new("export");
    let path = state.0.join("p.toml");
    fs::write(&path, PROFILE).unwrap();
    let profile = Profile::find(path.to_str().unwrap()).unwrap();

    let (applied, installed) =
        (Lab::builder().queues(2).build().unwrap(), Lab::builder().queues(2).build().unwrap());
    let device = applied.server.interface();
    let fresh = everything(&applied.server, device);
    // SAFETY: no other test of this file reads or writes the environment.
    unsafe { std::env::set_var("BUSYPOLL_STATE", &state.0) };
    applied
        .server
        .enter(|| {
            let options = Options { devices: vec![device.into()], ..Options::default() };
            let request = Request {
                profile: &profile,
                options: &options,
                guard: None,
                confirm_within: None,
                pollers: vec![Process::find(std::process::id()).unwrap()],
            };
            let mut machine = Machine::open().unwrap();
            apply(&mut machine, journal().unwrap(), &request, &mut |_| ()).unwrap();
        })
        .unwrap();

    let files: Vec<ExportedFile> = installed
        .server
        .enter(|| {
            let export = export(Some(device), &profile);
            let formats = [Format::Link, Format::Udev];
            formats.into_iter().flat_map(|f| export.files(f).unwrap()).collect()
        })
        .unwrap();
    for file in &files {
        let path = state.0.join(file.path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &file.text).unwrap();
    }
    // In a mount namespace of its own: this network namespace's sysfs, our files, nobody's database.
    // `udevadm test` writes attributes and lists what it would run, which is then run.
    let script = "set -e; mkdir -p /etc/systemd/network /etc/udev/rules.d; \
                  mount -t tmpfs none /run; mount -t sysfs none /sys; \
                  mount --bind $1/etc/systemd/network /etc/systemd/network; \
                  mount --bind $1/etc/udev/rules.d /etc/udev/rules.d; \
                  udevadm test-builtin net_setup_link /sys/class/net/$2; \
                  udevadm test --action=add /sys/class/net/$2 > /run/out; cat /run/out; \
                  sed -n \"s/^run: '\\(.*ethtool.*\\)'$/\\1/p\" /run/out > /run/todo; sh -e /run/todo";
    let output = installed
        .server
        .command("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(&state.0)
        .arg(device)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("nvalid"), "{said}");

    let want = everything(&applied.server, device);
    let got = everything(&installed.server, device);
    assert_ne!(want, fresh);
    // What needs a poller is not exported, and threads are switched on for the device here, for each NAPI
    // instance there.
    let plain = |lines: Vec<String>| -> Vec<String> {
        let other = |l: &String| !l.starts_with("napi ") && !l.starts_with("threaded");
        let threads =
            lines.iter().filter(|l| l.starts_with("napi")).map(|l| l.contains("Some(On)"));
        let threads = format!("{:?}", threads.collect::<Vec<_>>());
        lines.into_iter().filter(other).chain([threads]).collect()
    };
    assert_eq!(plain(got), plain(want), "{said}");
}
