//! Helpers for tests of tune: a state directory, all settings of a device, a child process to kill.
#![allow(dead_code)] // each test file uses its own part

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use busypoll_lab::{LabHost, Namespace};
use busypoll_linux::ethtool::Ethtool;
use busypoll_linux::link::Links;
use busypoll_linux::netdev::Netdev;
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::topology::CpuList;
use busypoll_tune::{Device, Export, Machine, Options, Profile};

/// A state directory for one test, removed with it.
pub struct State(pub PathBuf);

impl State {
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("busypoll-tune-{name}-{unique}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        State(dir)
    }

    /// The journals in it.
    pub fn journals(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).unwrap().flatten();
        let names = files.map(|f| f.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".journal")).collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All that tune can set on a device in a namespace, and other settings: one line per value. NAPI
/// instances by position, as veth creates them again with GRO.
pub fn everything(namespace: &Namespace, device: &str) -> Vec<String> {
    namespace.enter(|| look(device)).unwrap()
}

fn look(device: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let ethtool = Ethtool::open(device).unwrap();
    for f in ethtool.features().unwrap() {
        lines.push(format!("feature {} {} {}", f.name, f.on, f.wanted));
    }
    lines.push(format!("{:?}", ethtool.channels().ok()));
    lines.push(format!("{:?}", ethtool.rings().ok()));
    lines.push(format!("{:?}", ethtool.coalesce().ok()));
    let ifindex = Links::open().unwrap().get(device).unwrap().ifindex;
    let mut napis = Netdev::open().unwrap().napis(ifindex).unwrap();
    napis.sort_by_key(|n| n.id);
    for (i, n) in napis.iter().enumerate() {
        lines.push(format!(
            "napi {i} {:?} {:?} {:?} {:?} {:?}",
            n.irq, n.defer_hard_irqs, n.gro_flush_timeout_ns, n.irq_suspend_timeout_ns, n.threaded
        ));
    }
    let sysfs = Sysfs::open().unwrap();
    let mut files =
        vec!["gro_flush_timeout".into(), "napi_defer_hard_irqs".into(), "threaded".into()];
    files.extend(
        sysfs
            .rx_queues(device)
            .iter()
            .flat_map(|q| ["rps_cpus", "rps_flow_cnt"].map(|file| format!("queues/rx-{q}/{file}"))),
    );
    files.extend(sysfs.tx_queues(device).iter().map(|q| format!("queues/tx-{q}/xps_cpus")));
    for file in files {
        lines.push(format!("{file} {:?}", sysfs.attribute(device, &file)));
    }
    lines
}

/// A profile for a program on CPU 0, as files.
pub fn export(device: Option<&str>, profile: &Profile) -> Export {
    let devices: Vec<Device> = device.into_iter().map(|d| Device::open(d).unwrap()).collect();
    let app_cpus = Some("0".parse::<CpuList>().unwrap());
    let options = Options { app_cpus, ..Options::default() };
    Export::make(&mut Machine::open().unwrap(), &devices, profile, &options)
}

/// A command that runs the ignored test `child` of this test program on a host with these variables.
pub fn child(host: &LabHost, state: &State, what: &str, kill_at: usize) -> Command {
    let mut command = host.command(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("BUSYPOLL_STATE", &state.0)
        .env("TUNE_CHILD", what)
        .env("TUNE_DEVICE", host.interface())
        .env("TUNE_KILL_AT", kill_at.to_string());
    command
}
