//! The CPU quotas of a process's control groups. Reads files, changes nothing.
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

/// The root of the cgroup2 hierarchy, of which all groups are part: where it is mounted, else by a detached mount of
/// our own (fsmount(2), which needs `CAP_SYS_ADMIN`). `ip netns exec` hides the mounted one.
///
/// # Errors
/// If there is no such file system, or no permission.
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
    mount_detached("")
        .map_err(|e| Error::os("mounting control groups of version 2 (detached)", e.into()))
}

/// A control group with a quota of CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// Its name: `/user.slice/a.service`.
    pub group: String,
    /// How many CPUs the quota is worth.
    pub cpus: f64,
    /// The command that removes the quota.
    pub remedy: String,
    /// Periods so far in which it ran.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled: u64,
    /// The time it was throttled, summed over its CPUs, in microseconds.
    pub stopped_us: u64,
}

/// The quota of this process in CPUs: the smallest from its own control group up to
/// the root; `None` without a quota.
#[must_use]
pub fn cpu_quota() -> Option<f64> {
    quotas_at("/proc/self/cgroup").into_iter().map(|quota| quota.cpus).reduce(f64::min)
}

/// The quotas on a process: those of its own control group and of the groups above, in both versions.
#[must_use]
pub fn quotas_of(pid: u32) -> Vec<Quota> {
    quotas_at(&format!("/proc/{pid}/cgroup"))
}

/// A cgroup hierarchy that this process can read.
struct Tree {
    root: PathBuf,
    /// The mount command that must precede a command that writes there, if it is not mounted.
    mount: Option<String>,
    // Keeps the detached mount alive that `root` leads through.
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
    /// The hierarchy of these controllers, or version 2 if empty, that contains this group.
    fn of(controllers: &str, group: &str) -> Option<Self> {
        let names: &[&str] = match controllers {
            // If version 1 has the CPU controller, version 2 is mounted at `unified`.
            "" => &["", "unified"],
            _ => &[controllers, "cpu", "cpu,cpuacct"],
        };
        let group = group.trim_start_matches('/');
        let mounted = names.iter().map(|name| Path::new(ROOT).join(name));
        let there = |root: &PathBuf| root.join(group).join("cgroup.procs").exists();
        if let Some(root) = mounted.into_iter().find(there) {
            return Some(Tree { root, mount: None, _own: None });
        }
        let own = mount_detached(controllers).ok()?;
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
            Ok(text) => (quota_in_cpus(&text)?, "cpu.max", "max"),
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
            // Version 1 uses nanoseconds.
            stopped_us: count("throttled_usec")
                .or_else(|| Some(count("throttled_time")? / 1000))
                .unwrap_or(0),
        })
    }
}

/// The hierarchy of these controllers, or version 2 if empty, by a detached mount (fsmount(2), which needs
/// `CAP_SYS_ADMIN`).
fn mount_detached(controllers: &str) -> rustix::io::Result<OwnedFd> {
    let kind = if controllers.is_empty() { "cgroup2" } else { "cgroup" };
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for controller in controllers.split(',').filter(|c| !c.is_empty()) {
        rustix::mount::fsconfig_set_flag(&context, controller)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::empty();
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // fsmount returns an O_PATH descriptor, which cannot be read.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&mount, ".", flags, Mode::empty())
}

/// The quota in CPUs of `max 100000` or `50000 100000`.
fn quota_in_cpus(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_in_cpus() {
        assert_eq!(quota_in_cpus("50000 100000\n"), Some(0.5));
        assert_eq!(quota_in_cpus("400000 100000"), Some(4.0));
        assert_eq!(quota_in_cpus("max 100000\n"), None);
        for bad in ["", "x y", "1", "1 0"] {
            assert_eq!(quota_in_cpus(bad), None, "{bad:?}");
        }
        // This machine's quota, if any, is positive.
        assert!(cpu_quota().is_none_or(|cpus| cpus > 0.0));
    }
}
