//! `net.core.busy_read` and `net.core.busy_poll`: host-wide, in the initial network namespace only.
//! Includes the guard that restores a value.
//!
//! Kernel source: `net/core/sysctl_net_core.c`. Reading needs no permission; writing needs root or
//! `CAP_NET_ADMIN` in the initial user namespace. Their effect reaches every network namespace.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use crate::caps::Capability;
use crate::error::{Error, Result};
use crate::netns;

/// One of the two host-wide busy-poll settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sysctl {
    /// `net.core.busy_read`: the `SO_BUSY_POLL` value that sockets created from now on start with.
    BusyRead,
    /// `net.core.busy_poll`: how long poll(2), select(2) and epoll may poll. poll and select do so
    /// only for members whose `SO_BUSY_POLL` is above zero, epoll for any member with a NAPI id.
    BusyPoll,
}

/// `net.core.rps_sock_flow_entries`: the size of the table by which RFS steers flows; 0 = no RFS. Only the initial
/// network namespace shows it; `None` if it cannot be seen, which does not mean 0.
#[must_use]
pub fn rps_sock_flow_entries() -> Option<u32> {
    let file = "/proc/sys/net/core/rps_sock_flow_entries";
    in_initial_netns(|| fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// A value read here, or else in the initial network namespace.
fn in_initial_netns(read: impl Fn() -> Option<u32> + Sync) -> Option<u32> {
    // The init process and a kernel thread are in the initial network namespace.
    let there = ["/proc/1/ns/net", "/proc/2/ns/net"].iter();
    let mut there = there.map(|path| netns::enter(path.as_ref(), &read));
    read().or_else(|| there.find_map(|value| value.ok()?))
}

impl Sysctl {
    /// The machine's value in microseconds. Only the initial network namespace shows it; `None` if it cannot be seen,
    /// which does not mean 0.
    #[must_use]
    pub fn of_machine(self) -> Option<u32> {
        in_initial_netns(|| self.get().ok())
    }

    /// The name as sysctl(8) writes it.
    pub fn name(self) -> &'static str {
        match self {
            Sysctl::BusyRead => "net.core.busy_read",
            Sysctl::BusyPoll => "net.core.busy_poll",
        }
    }

    /// The file behind it.
    pub fn path(self) -> &'static str {
        match self {
            Sysctl::BusyRead => "/proc/sys/net/core/busy_read",
            Sysctl::BusyPoll => "/proc/sys/net/core/busy_poll",
        }
    }

    /// The value, in microseconds; 0 = off.
    ///
    /// # Errors
    /// [`Error::NotInitialNetns`] if the setting is not visible here.
    pub fn get(self) -> Result<u32> {
        read(self, &self.open(false)?)
    }

    /// Sets the value, in microseconds, for the whole machine; 0 = off.
    ///
    /// # Errors
    /// [`Error::Denied`] without root; [`Error::NotInitialNetns`] if the setting is not visible here.
    pub fn set(self, micros: u32) -> Result<()> {
        check_range(self, micros)?;
        write(self, &self.open(true)?, micros)
    }

    /// Sets the value until the guard is dropped, which restores the old one.
    ///
    /// A killed process restores nothing: on a machine that matters, journal
    /// [`SysctlGuard::before`] first.
    ///
    /// ```no_run
    /// use busypoll_linux::sysctl::Sysctl;
    /// let guard = Sysctl::BusyPoll.set_for_now(50)?;
    /// // poll(2) busy polls for 50 us here
    /// guard.restore()?;
    /// # Ok::<(), busypoll_linux::Error>(())
    /// ```
    pub fn set_for_now(self, micros: u32) -> Result<SysctlGuard> {
        check_range(self, micros)?;
        let file = self.open(true)?;
        let before = read(self, &file)?;
        let guard = SysctlGuard { sysctl: self, before, file };
        write(self, &guard.file, micros)?;
        Ok(guard)
    }

    fn open(self, write: bool) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(write)
            .open(self.path())
            .map_err(|e| explain(self, "opening", e))
    }
}

/// Restores a host-wide setting when dropped, from any network namespace the thread is in by
/// then. Guards of one setting must be dropped in the reverse order of their creation.
#[derive(Debug)]
pub struct SysctlGuard {
    sysctl: Sysctl,
    before: u32,
    // Kept open: after setns(2) into another namespace the path no longer leads to it.
    file: File,
}

impl SysctlGuard {
    /// The value that will be restored, in microseconds.
    pub fn before(&self) -> u32 {
        self.before
    }

    /// Restores the value now and reports errors, which dropping the guard cannot.
    pub fn restore(self) -> Result<()> {
        // Dropping then writes the same value again, which is harmless.
        write(self.sysctl, &self.file, self.before)
    }
}

impl Drop for SysctlGuard {
    fn drop(&mut self) {
        // Errors cannot be reported from here; `restore` does.
        let _ = write(self.sysctl, &self.file, self.before);
    }
}

fn check_range(sysctl: Sysctl, micros: u32) -> Result<()> {
    if micros > i32::MAX as u32 {
        return Err(Error::OutOfRange {
            what: sysctl.name(),
            value: micros.into(),
            allowed: "0 to 2147483647 microseconds",
        });
    }
    Ok(())
}

fn read(sysctl: Sysctl, file: &File) -> Result<u32> {
    let mut buffer = [0; 32];
    let n = file.read_at(&mut buffer, 0).map_err(|e| explain(sysctl, "reading", e))?;
    let text = String::from_utf8_lossy(&buffer[..n]);
    text.trim().parse().map_err(|_| Error::Malformed {
        path: sysctl.path().into(),
        why: format!("{:?} is not a number of microseconds", text.trim()),
    })
}

fn write(sysctl: Sysctl, file: &File, micros: u32) -> Result<()> {
    // sysctl accepts a value only in one write at offset 0.
    let text = micros.to_string();
    file.write_all_at(text.as_bytes(), 0).map_err(|e| explain(sysctl, "setting", e))
}

fn explain(sysctl: Sysctl, doing: &str, e: io::Error) -> Error {
    match e.raw_os_error() {
        Some(libc::ENOENT) => Error::NotInitialNetns { name: sysctl.name() },
        Some(libc::EACCES | libc::EPERM) => {
            Error::denied_globally(format!("{doing} {}", sysctl.name()), Capability::NetAdmin)
        }
        _ => Error::os(format!("{doing} {}", sysctl.name()), e),
    }
}
