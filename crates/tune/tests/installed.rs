//! Exported files, installed by the tools they are for, give one veth the settings that apply gives another.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, needs, needs_root};
use busypoll_tune::{
    ExportedFile, Format, Machine, Options, Process, Profile, Request, apply, journal,
};
use common::{State, everything, export};

const PROFILE: &str = "[features]\ngso = false\nrx-udp-gro-forwarding = true\n[channels]\nrx = 1\n\
                       [queues]\nrps-cpus = \"0-1\"\nrps-flow-cnt = 64\nxps-cpus = \"1\"\n\
                       [napi]\nthreaded = true\ngro-flush-timeout = \"20us\"\n[interrupts]\ncpus = \"0\"\n\
                       [coalesce]\nrx-usecs = 7\n";

/// Held by the test whose state directory is in the environment.
static STATE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn lab() -> Lab {
    Lab::builder().queues(2).build().unwrap()
}

fn profile(state: &State, text: &str) -> Profile {
    let path = state.0.join("p.toml");
    fs::write(&path, text).unwrap();
    Profile::find(path.to_str().unwrap()).unwrap()
}

/// The settings of a device after an apply.
fn applied(state: &State) -> Vec<String> {
    let _one = STATE.lock();
    // SAFETY: tests of this file that read or write the environment hold `STATE`.
    unsafe { std::env::set_var("BUSYPOLL_STATE", &state.0) };
    let (lab, profile) = (lab(), profile(state, PROFILE));
    let (host, device) = (&lab.server, lab.server.interface());
    let fresh = everything(host, device);
    host.enter(|| {
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
    let want = everything(host, device);
    assert_ne!(want, fresh);
    want
}

/// Writes a profile's files of these formats below the state directory.
fn exported(lab: &Lab, state: &State, text: &str, formats: &[Format]) -> Vec<ExportedFile> {
    let profile = profile(state, text);
    let files: Vec<ExportedFile> = lab
        .server
        .enter(|| {
            let export = export(Some(lab.server.interface()), &profile);
            formats.iter().flat_map(|format| export.files(*format).unwrap()).collect()
        })
        .unwrap();
    for file in &files {
        let path = state.0.join(file.path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &file.text).unwrap();
    }
    files
}

/// Settings as far as both can have them: those that need a poller are not exported, and `threaded` is set for the
/// device by files, for each NAPI instance by apply.
fn plain(lines: &[String]) -> Vec<String> {
    let other = |l: &&String| !l.starts_with("napi ") && !l.starts_with("threaded");
    let threads = lines.iter().filter(|l| l.starts_with("napi")).map(|l| l.contains("Some(On)"));
    let threads = format!("{:?}", threads.collect::<Vec<_>>());
    lines.iter().filter(other).cloned().chain([threads]).collect()
}

/// A shell on the server, in a mount namespace of its own with that network namespace's sysfs and a copy of
/// `/etc`: `$1` is the state directory, `$2` the device.
fn shell(lab: &Lab, state: &State, script: &str) -> Command {
    let mut command = lab.server.command("unshare");
    let script = format!(
        "set -e; mount -t tmpfs none /run; mount -t sysfs none /sys; \
         cp -a /etc /run; mount --bind /run/etc /etc; {script}"
    );
    command.args(["-m", "sh", "-c", &script, "sh"]).arg(&state.0).arg(lab.server.interface());
    command.env("LC_ALL", "C.UTF-8").env("HOME", &state.0).stdin(Stdio::null());
    command
}

fn output_of(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// `udevadm test` writes attributes and lists the commands it would run, which are then run; udev's database is
/// not touched.
#[test]
fn udev_installs_the_exported_files() {
    needs_root!();
    needs!(program "udevadm", program "unshare", program "mount", program "ethtool");
    let (lab, state) = (lab(), State::new("udev"));
    exported(&lab, &state, PROFILE, &[Format::Link, Format::Udev]);
    let script = "cp -a $1/etc/. /etc; udevadm test-builtin net_setup_link /sys/class/net/$2; \
                  udevadm test --action=add /sys/class/net/$2 > /run/out; cat /run/out; \
                  sed -n \"s/^run: '\\(.*ethtool.*\\)'$/\\1/p\" /run/out > /run/todo; sh -e /run/todo";
    let output = shell(&lab, &state, script).output().unwrap();
    let said = output_of(&output);
    assert!(output.status.success() && !said.contains("nvalid"), "{said}");
    let got = everything(&lab.server, lab.server.interface());
    assert_eq!(plain(&got), plain(&applied(&state)), "{said}");
}

/// tuned itself. It ignores virtual devices, so this script makes it accept this one.
const TUNED: &str = "
import runpy, sys
from tuned.plugins.plugin_net import NetTuningPlugin
program, device = sys.argv[1:3]
def devices(self):
    self._devices_supported, self._free_devices, self._assigned_devices = True, {device}, set()
NetTuningPlugin._init_devices = devices
sys.argv[1:3] = []
runpy.run_path(program, run_name='__main__')
";

#[test]
fn tuned_installs_the_exported_profile() {
    needs_root!();
    needs!(program "unshare", program "mount", program "ethtool", program "/usr/bin/python3");
    let Some(tools) = busypoll_lab::needs::unpacked("tools") else {
        return busypoll_lab::needs::skipped(module_path!(), "tuned: run .ci/tools");
    };
    let (lab, state) = (lab(), State::new("tuned"));
    let fresh = everything(&lab.server, lab.server.interface());
    exported(&lab, &state, PROFILE, &[Format::Tuned]);
    fs::copy(tools.join("etc/tuned/tuned-main.conf"), state.0.join("etc/tuned/tuned-main.conf"))
        .unwrap();
    fs::write(state.0.join("real.py"), TUNED).unwrap();
    let log = state.0.join("log");
    let script = format!(
        "cp -a $1/etc/. /etc; mkdir /run/tuned; exec /usr/bin/python3 $1/real.py {}/usr/sbin/tuned $2 \
         --no-dbus --no-socket --profile busypoll --log $1/log",
        tools.display()
    );
    let mut tuned = shell(&lab, &state, &script);
    tuned.env("PYTHONPATH", tools.join("usr/lib/python3/dist-packages"));
    let mut tuned = Running(tuned.spawn().unwrap());
    let told = wait_for_line(&log, "static tuning from profile 'busypoll' applied");
    let got = everything(&lab.server, lab.server.interface());
    assert!(!told.contains("ERROR") && !told.contains("WARNING"), "{told}");
    assert_eq!(plain(&got), plain(&applied(&state)), "{told}");
    // When it stops, it restores what it had changed.
    let pid = tuned.0.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    tuned.0.wait().unwrap();
    assert_eq!(everything(&lab.server, lab.server.interface()), fresh);
}

struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Ends it if it is still running.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_line(log: &Path, line: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if text.contains(line) {
            return text;
        }
        assert!(Instant::now() < deadline, "no {line:?} in: {text}");
        sleep(Duration::from_millis(50));
    }
}

/// What a run of the role is given: the play, connected to this machine.
const PLAY: &str = "ansible-playbook -i localhost, -c local -e ansible_become=false -e busypoll_before=$1/before \
                    -e ansible_python_interpreter=/usr/bin/python3 $1/busypoll.yml";

/// The commands that load what is installed, replaced by scripts that only record the call.
const RECORDED: &str = "mkdir $1/bin; \
     for name in sysctl udevadm; do \
         printf '#!/bin/sh\necho %s \"$@\" >> %s/called\n' $name $1 > $1/bin/$name; \
         chmod +x $1/bin/$name; \
     done; \
     export PATH=$1/bin:$PATH;";

/// Writes the role below the state directory; returns the files that the other formats hold.
fn role(lab: &Lab, state: &State) -> Vec<ExportedFile> {
    let text = format!("{PROFILE}[sysctl]\nbusy_read = 50\n");
    let profile = profile(state, &text);
    lab.server
        .enter(|| {
            let export = export(Some(lab.server.interface()), &profile);
            for file in export.role().unwrap() {
                let path = state.0.join(file.path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, file.text).unwrap();
            }
            let formats = [Format::Sysctl, Format::Link, Format::Udev];
            formats.iter().flat_map(|format| export.files(*format).unwrap()).collect()
        })
        .unwrap()
}

/// The settings in a file, in no order: the role keeps them by kind.
fn settings(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut settings: Vec<&str> = lines.map(|line| line.trim_matches([' ', ',', '\\'])).collect();
    settings.sort_unstable();
    settings
}

#[test]
fn ansible_installs_the_exported_files() {
    needs_root!();
    needs!(program "ansible-playbook", program "unshare", program "mount", program "ethtool");
    let (lab, state) = (lab(), State::new("ansible"));
    let files = role(&lab, &state);
    let script = format!("{RECORDED} {PLAY}; mkdir $1/got; cp -a /etc $1/got");
    let output = shell(&lab, &state, &script).output().unwrap();
    assert!(output.status.success(), "{}", output_of(&output));
    for file in &files {
        let got = fs::read_to_string(state.0.join("got").join(&file.path[1..])).unwrap();
        assert_eq!(settings(&got), settings(&file.text), "{}", file.path);
    }
    let called = fs::read_to_string(state.0.join("called")).unwrap();
    let expected = "sysctl --system\nudevadm control --reload\nudevadm trigger --action=add --subsystem-match=net\n";
    assert_eq!(called, expected);
}

/// What udev would do with the installed files, by hand.
const APPLIED: &str = "ethtool -K $2 gso off rx-udp-gro-forwarding on; ethtool -L $2 rx 1; cd /sys/class/net/$2; \
     echo 3 > queues/rx-0/rps_cpus; echo 64 > queues/rx-0/rps_flow_cnt; echo 2 > queues/tx-0/xps_cpus; \
     echo 1 > threaded; cd /;";

#[test]
#[ignore = "long: Ansible runs the role five times"]
fn the_ansible_role_changes_nothing_twice_and_restores_what_stood_before() {
    needs_root!();
    needs!(program "ansible-playbook", program "unshare", program "mount", program "ethtool");
    let (lab, state) = (lab(), State::new("role"));
    let files = role(&lab, &state);
    let fresh = everything(&lab.server, lab.server.interface());
    let absent = "-e busypoll_state=absent";
    let script = format!(
        "{RECORDED} {PLAY} --check > $1/check; ls -R /etc > $1/after-check; ls $1/before >> $1/after-check || true; \
         {PLAY} > $1/first; {PLAY} > $1/second; {APPLIED} \
         {PLAY} {absent} > $1/absent; {PLAY} {absent} > $1/absent-again; ls -R /etc > $1/removed"
    );
    let output = shell(&lab, &state, &script).output().unwrap();
    let read = |name: &str| fs::read_to_string(state.0.join(name)).unwrap_or_default();
    assert!(output.status.success(), "{}{}", read("first"), output_of(&output));
    let changes = |name: &str| -> u32 {
        let text = read(name);
        let recap = text.split("changed=").nth(1).unwrap_or_else(|| panic!("{name}: {text}"));
        recap.split_whitespace().next().unwrap().parse().unwrap()
    };
    // One for each file at the least, and none where there is nothing to do.
    let least = files.len() as u32;
    for (name, wanted) in [
        ("check", least..=20),
        ("first", least..=20),
        ("second", 0..=0),
        ("absent", least..=20),
        ("absent-again", 0..=0),
    ] {
        assert!(wanted.contains(&changes(name)), "{name}: {}", read(name));
    }
    assert!(!read("after-check").contains("busypoll"), "a check changes nothing");
    assert!(!read("removed").contains("busypoll"), "{}", read("removed"));
    assert_eq!(everything(&lab.server, lab.server.interface()), fresh);
}
