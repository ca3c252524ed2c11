//! The attributes of network devices under `/sys/class/net`, in the calling thread's network namespace.
//! Touches only what [`Sysfs::set_attribute`] changes.
//!
//! `/sys` shows the devices of the namespace it was mounted in, not of the reader's: after nsenter(1), in
//! containers and in the lab these differ, and a device there may have the same name. So `/sys` is
//! compared with rtnetlink first, and if it is another namespace's, a detached sysfs of our own is
//! mounted (fsmount(2), which needs `CAP_SYS_ADMIN`).
//!
//! Kernel source: `net/core/net-sysfs.c`, `fs/sysfs/mount.c`.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::caps::Capability;
use crate::error::{Error, Result};
use crate::link::Links;

/// `/sys/class/net` of one network namespace.
#[derive(Debug)]
pub struct Sysfs {
    root: PathBuf,
    // Keeps the detached mount alive that `root` leads through.
    _mount: Option<OwnedFd>,
}

impl Sysfs {
    /// The sysfs of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Os`] if `/sys` is another namespace's and there is no permission to mount the right
    /// one.
    pub fn open() -> Result<Self> {
        if shows_this_namespace(Path::new("/sys")) {
            return Ok(Sysfs { root: "/sys".into(), _mount: None });
        }
        let mount = mount_detached().or_else(|e| mount_as_user().ok_or(e)).map_err(|e| {
            let doing = "/sys is that of another network namespace; run it as root, which may mount this one's";
            Error::os(doing, e.into())
        })?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        Ok(Sysfs { root, _mount: Some(mount) })
    }

    /// Whether `/sys` itself is the right one, so that shell commands that write there reach these devices.
    pub fn is_mounted(&self) -> bool {
        self._mount.is_none()
    }

    /// An attribute of a device such as `queues/rx-0/rps_cpus`, trimmed; none if
    /// the device lacks it or it may not be read.
    pub fn attribute(&self, device: &str, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(device, name)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The path of an attribute.
    pub fn path(&self, device: &str, name: &str) -> PathBuf {
        self.root.join("class/net").join(device).join(name)
    }

    /// Writes an attribute of a device.
    ///
    /// # Errors
    /// [`Error::Denied`] without `CAP_NET_ADMIN`; [`Error::DeviceLacks`] if there is no such
    /// attribute; [`Error::Os`] for a value the kernel refuses, and for a read-only `/sys`.
    pub fn set_attribute(&self, device: &str, name: &str, value: &str) -> Result<()> {
        let doing = || format!("{device}: writing {value} to {name} in /sys/class/net");
        // Not fs::write: it would create a missing file, which sysfs refuses as forbidden instead of missing.
        let file = OpenOptions::new().write(true).open(self.path(device, name));
        file.and_then(|mut file| file.write_all(value.as_bytes())).map_err(|e| {
            match e.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    Error::denied_in_netns(doing(), Capability::NetAdmin)
                }
                Some(libc::ENOENT | libc::EOPNOTSUPP) => {
                    Error::DeviceLacks { device: device.into(), what: name.into() }
                }
                _ => Error::os(doing(), e),
            }
        })
    }

    /// The indexes of the receive queues of a device, ascending.
    pub fn rx_queues(&self, device: &str) -> Vec<u32> {
        self.queues(device, "rx-")
    }

    /// The indexes of the transmit queues of a device, ascending.
    pub fn tx_queues(&self, device: &str) -> Vec<u32> {
        self.queues(device, "tx-")
    }

    fn queues(&self, device: &str, prefix: &str) -> Vec<u32> {
        let folder = fs::read_dir(self.path(device, "queues")).into_iter().flatten().flatten();
        let mut queues: Vec<u32> = folder
            .filter_map(|e| e.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
            .collect();
        queues.sort_unstable();
        queues
    }
}

/// Whether that sysfs lists the same devices, by name and index, as rtnetlink in this namespace.
fn shows_this_namespace(root: &Path) -> bool {
    let Ok(links) = Links::open().and_then(|mut links| links.all()) else { return false };
    let real: HashSet<(String, u32)> = links.into_iter().map(|l| (l.name, l.ifindex)).collect();
    let folder = fs::read_dir(root.join("class/net")).into_iter().flatten().flatten();
    let listed = folder.filter_map(|entry| {
        // bonding_masters is a file beside the devices.
        let index = fs::read_to_string(entry.path().join("ifindex")).ok()?.trim().parse().ok()?;
        Some((entry.file_name().into_string().ok()?, index))
    });
    listed.collect::<HashSet<(String, u32)>>() == real
}

/// The same for root of a user namespace that does not own its mount namespace, as in an unprivileged
/// lab: on a temporary thread with a mount namespace of its own.
fn mount_as_user() -> Option<OwnedFd> {
    let mount = || {
        // SAFETY: the thread's mounts, and with them its own working directory, are no longer shared with
        // the others; it ends here and opens no path.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.ok()?;
        mount_detached().ok()
    };
    thread::scope(|scope| thread::Builder::new().spawn_scoped(scope, mount).ok()?.join().ok()?)
}

fn mount_detached() -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount =
        |more| rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes | more);
    // In a container whose /sys is read-only only a read-only mount is permitted.
    mount(MountAttrFlags::empty()).or_else(|_| mount(MountAttrFlags::MOUNT_ATTR_RDONLY))
}
