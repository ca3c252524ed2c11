//! How much CPU time this process's control group may use. Reads files, changes nothing.
//!
//! Kernel source: `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`), `scheduler/sched-bwc.rst`
//! (`cpu.cfs_quota_us` of version 1).

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::error::{Error, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// The root of control groups of version 2, where one is mounted as a whole.
///
/// # Errors
/// Where none is: on a machine that has version 1 alone, and in a container.
pub fn root() -> Result<File> {
    let table = "/proc/self/mountinfo";
    let mounts = fs::read_to_string(table).map_err(|e| Error::os(format!("reading {table}"), e))?;
    let path = mounts.lines().find_map(|line| {
        // ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS … - TYPE SOURCE OPTIONS
        let (of_mount, of_file_system) = line.split_once(" - ")?;
        let mut words = of_mount.split(' ').skip(3);
        let (root, path) = (words.next()?, words.next()?);
        (root == "/" && of_file_system.starts_with("cgroup2 ")).then_some(path)
    });
    let path = path.ok_or_else(|| {
        let why = "none is mounted here as a whole; mount -t cgroup2 none /mnt shows one";
        Error::os("looking for control groups of version 2", io::Error::other(why))
    })?;
    File::open(path).map_err(|e| Error::os(format!("opening {path}"), e))
}

/// The CPUs that the quota of this process's control group is worth, the tightest from here up to
/// the root; `None` without a quota.
#[must_use]
pub fn cpu_quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            // hierarchy:controllers:path
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let second = controllers.is_empty();
            if !second && !controllers.split(',').any(|c| c == "cpu") {
                return None;
            }
            let root = if second { ROOT.to_owned() } else { format!("{ROOT}/cpu") };
            let own = path.trim_start_matches('/');
            Path::new(own)
                .ancestors()
                .filter_map(|group| quota(&Path::new(&root).join(group)))
                .reduce(f64::min)
        })
        .reduce(f64::min)
}

fn quota(group: &Path) -> Option<f64> {
    let number = |name: &str| -> Option<f64> {
        fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
    };
    match fs::read_to_string(group.join("cpu.max")) {
        Ok(text) => worth(&text),
        Err(_) => {
            let quota = number("cpu.cfs_quota_us").filter(|q| *q > 0.0)?;
            Some(quota / number("cpu.cfs_period_us").filter(|p| *p > 0.0)?)
        }
    }
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
