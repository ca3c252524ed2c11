//! How much CPU time a process's control groups may use. Reads files, changes nothing.
//!
//! Kernel source: `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`), `scheduler/sched-bwc.rst`
//! (`cpu.cfs_quota_us` of version 1).

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::error::{Error, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// The root of control groups of version 2, of which all others are part: as it is mounted, else by a mount of our
/// own that is attached nowhere (fsmount(2), which needs `CAP_SYS_ADMIN`). `ip netns exec` hides the first.
///
/// # Errors
/// Where there is no such file system, or no permission.
pub fn root() -> Result<OwnedFd> {
    let table = "/proc/self/mountinfo";
    let mounts = fs::read_to_string(table).map_err(|e| Error::os(format!("reading {table}"), e))?;
    let mounted = mounts.lines().find_map(|line| {
        // ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS … - TYPE SOURCE OPTIONS
        let (of_mount, of_file_system) = line.split_once(" - ")?;
        let mut words = of_mount.split(' ').skip(3);
        let (root, path) = (words.next()?, words.next()?);
        (root == "/" && of_file_system.starts_with("cgroup2 ")).then_some(path)
    });
    if let Some(file) = mounted.and_then(|path| File::open(path).ok()) {
        return Ok(file.into());
    }
    mount_nowhere("")
        .map_err(|e| Error::os("mounting control groups of version 2, attached nowhere", e.into()))
}

/// A control group with a quota of CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// Its name: `/user.slice/a.service`.
    pub group: String,
    /// How many CPUs the quota is worth.
    pub cpus: f64,
    /// The command that takes the quota away.
    pub remedy: String,
    /// Periods so far in which it ran.
    pub periods: u64,
    /// Of these, the ones in which it had to stop.
    pub throttled: u64,
    /// For how long it was stopped, all its CPUs together, in microseconds.
    pub stopped_us: u64,
}

/// The CPUs that the quota of this process's control group is worth, the tightest from here up to
/// the root; `None` without a quota.
#[must_use]
pub fn cpu_quota() -> Option<f64> {
    quotas_at("/proc/self/cgroup").into_iter().map(|quota| quota.cpus).reduce(f64::min)
}

/// The control groups that limit the CPU time of a process: its own and those above, of both versions.
#[must_use]
pub fn quotas_of(pid: u32) -> Vec<Quota> {
    quotas_at(&format!("/proc/{pid}/cgroup"))
}

/// A tree of control groups, where this process can read it.
struct Tree {
    root: PathBuf,
    /// What is to be mounted first by a command that writes there: of one that is mounted nowhere.
    mount: Option<String>,
    // Keeps the mount alive that `root` leads through.
    _own: Option<OwnedFd>,
}

fn quotas_at(table: &str) -> Vec<Quota> {
    let groups = fs::read_to_string(table).unwrap_or_default();
    let of_line = |line: &str| {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        if !controllers.is_empty() && !controllers.split(',').any(|c| c == "cpu") {
            return None;
        }
        let tree = Tree::of(controllers, path)?;
        let own = path.trim_start_matches('/');
        let found = Path::new(own).ancestors().filter_map(|group| tree.quota(group));
        Some(found.collect::<Vec<_>>())
    };
    groups.lines().filter_map(of_line).flatten().collect()
}

impl Tree {
    /// The tree of these controllers, of version 2 without any, in which there is such a group.
    fn of(controllers: &str, group: &str) -> Option<Self> {
        let names: &[&str] = match controllers {
            // Where version 1 has the CPU controller version 2 is beside it.
            "" => &["", "unified"],
            _ => &[controllers, "cpu", "cpu,cpuacct"],
        };
        let group = group.trim_start_matches('/');
        let mounted = names.iter().map(|name| Path::new(ROOT).join(name));
        let there = |root: &PathBuf| root.join(group).join("cgroup.procs").exists();
        if let Some(root) = mounted.into_iter().find(there) {
            return Some(Tree { root, mount: None, _own: None });
        }
        let own = mount_nowhere(controllers).ok()?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd()));
        let mount = match controllers {
            "" => "mount -t cgroup2 none /sys/fs/cgroup".into(),
            _ => format!("mount -t cgroup -o {controllers} none /sys/fs/cgroup"),
        };
        Some(Tree { root, mount: Some(mount), _own: Some(own) })
    }

    fn quota(&self, group: &Path) -> Option<Quota> {
        let read = |name: &str| fs::read_to_string(self.root.join(group).join(name));
        let number = |name: &str| -> Option<f64> { read(name).ok()?.trim().parse().ok() };
        let (cpus, file, none) = match read("cpu.max") {
            Ok(text) => (worth(&text)?, "cpu.max", "max"),
            Err(_) => {
                let quota = number("cpu.cfs_quota_us").filter(|q| *q > 0.0)?;
                let period = number("cpu.cfs_period_us").filter(|p| *p > 0.0)?;
                (quota / period, "cpu.cfs_quota_us", "-1")
            }
        };
        let stat = read("cpu.stat").unwrap_or_default();
        let count = |name: &str| -> Option<u64> {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse().ok()
        };
        let remedy = match &self.mount {
            None => format!("echo {none} > {}", self.root.join(group).join(file).display()),
            Some(mount) => {
                let file = Path::new(ROOT).join(group).join(file);
                format!("unshare -m sh -c '{mount} && echo {none} > {}'", file.display())
            }
        };
        Some(Quota {
            group: format!("/{}", group.display()),
            cpus,
            remedy,
            periods: count("nr_periods").unwrap_or(0),
            throttled: count("nr_throttled").unwrap_or(0),
            // Version 1 counts nanoseconds.
            stopped_us: count("throttled_usec")
                .or_else(|| Some(count("throttled_time")? / 1000))
                .unwrap_or(0),
        })
    }
}

/// The tree of these controllers, of version 2 without any, by a mount that is attached nowhere (fsmount(2), which
/// needs `CAP_SYS_ADMIN`).
fn mount_nowhere(controllers: &str) -> rustix::io::Result<OwnedFd> {
    let kind = if controllers.is_empty() { "cgroup2" } else { "cgroup" };
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for controller in controllers.split(',').filter(|c| !c.is_empty()) {
        rustix::mount::fsconfig_set_flag(&context, controller)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::empty();
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // What fsmount returns stands for a place only.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&mount, ".", flags, Mode::empty())
}

/// `max 100000` or `50000 100000`.
fn worth(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_in_cpus() {
        assert_eq!(worth("50000 100000\n"), Some(0.5));
        assert_eq!(worth("400000 100000"), Some(4.0));
        assert_eq!(worth("max 100000\n"), None);
        for bad in ["", "x y", "1", "1 0"] {
            assert_eq!(worth(bad), None, "{bad:?}");
        }
        // Whatever this machine has, it is a sensible number.
        assert!(cpu_quota().is_none_or(|cpus| cpus > 0.0));
    }
}
