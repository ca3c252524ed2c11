//! The BPF programs of a control group that filter and translate what its processes send and receive: systemd attaches
//! them for `IPAddressDeny=`, Cilium for service addresses. What goes over AF_XDP or memory skips them.

use crate::nic::xdp::group_programs;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::fd::AsFd,
};

/// The hooks (`enum bpf_attach_type`) past which our packets and calls go: packets in and out; connect, sendmsg and
/// recvmsg, of IPv4 and IPv6 each. Binding is the kernel's.
const HOOKS: [u32; 8] = [0, 1, 10, 11, 14, 15, 19, 20];

/// The programs that this product attaches (`crates/linux/bpf`): they only count.
const OWN: [&str; 2] = ["delivered_to", "reached"];

/// The names of the programs that run for the calling process, sorted; a program without one is called by its id. None
/// if they cannot be read, which takes CAP_NET_ADMIN and CAP_SYS_ADMIN.
pub(super) fn names() -> Vec<String> {
    let Some(group) = own_group() else { return Vec::new() };
    let hooks = HOOKS.iter().filter_map(|hook| group_programs(group.as_fd(), *hook).ok());
    let names: BTreeSet<String> =
        hooks.flatten().filter(|name| !OWN.contains(&name.as_str())).collect();
    names.into_iter().collect()
}

/// The directory of the calling process's control group of version 2.
fn own_group() -> Option<File> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let (root, at) = mounts.lines().find_map(mount)?;
    // Of a namespace of control groups the mount shows a part.
    let below = if root == "/" { group } else { group.strip_prefix(root)? };
    File::open(format!("{at}{below}")).ok()
}

/// The root, within its file system, and the place of a mount of control groups of version 2.
fn mount(line: &str) -> Option<(&str, &str)> {
    // ID PARENT DEVICE ROOT PLACE … - TYPE SOURCE OPTIONS
    let (of_mount, of_file_system) = line.split_once(" - ")?;
    let mut words = of_mount.split(' ').skip(3);
    let (root, at) = (words.next()?, words.next()?);
    of_file_system.starts_with("cgroup2 ").then_some((root, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_control_groups_is_found() {
        let line = "35 24 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount(line), Some(("/", "/sys/fs/cgroup")));
        assert_eq!(mount("36 24 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"), None);
        assert_eq!(mount("cut"), None);
    }
}
