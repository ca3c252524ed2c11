//! Busy polling by epoll: the parameters of one epoll instance, and a search for the instances of this process.
//! Touches only the descriptors it is given or this process owns.
//!
//! Kernel source: `fs/eventpoll.c` (`ep_eventpoll_bp_ioctl`), ioctl_eventpoll(2).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::{ForeignRawFd, PidfdFlags, PidfdGetfdFlags};

use crate::caps::Capability;
use crate::error::{Error, Result};
use crate::sys;

/// How epoll_wait(2) on one epoll instance busy polls.
///
/// epoll ignores `SO_BUSY_POLL` of its members: without these parameters, or `net.core.busy_poll`, it
/// sleeps at once. It polls **one** NAPI instance, that of the last member that had data; members on
/// other queues are not polled. If `busy_poll_usecs` and `prefer_busy_poll` are both zero,
/// `net.core.busy_poll` decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollParams {
    /// How long epoll_wait may poll before it sleeps, in microseconds, at most `i32::MAX`.
    pub busy_poll_usecs: u32,
    /// The most packets one pass may take; 0 = the kernel's 8. Above 64 needs `CAP_NET_ADMIN`.
    pub busy_poll_budget: u16,
    /// Keep the interrupt masked between polls; needs no capability here, unlike
    /// `SO_PREFER_BUSY_POLL`. With `busy_poll_usecs` 0 each epoll_wait makes one pass.
    pub prefer_busy_poll: bool,
}

/// `EPIOCGPARAMS`: the busy-poll parameters of an epoll instance.
///
/// # Errors
/// [`Error::NotEpoll`]; [`Error::Unsupported`] before Linux 6.9.
pub fn params(epoll: impl AsFd) -> Result<EpollParams> {
    let fd = epoll.as_fd();
    let p = sys::get_epoll_params(fd).map_err(|e| explain(fd, "EPIOCGPARAMS", e))?;
    Ok(EpollParams {
        busy_poll_usecs: p.busy_poll_usecs,
        busy_poll_budget: p.busy_poll_budget,
        prefer_busy_poll: p.prefer_busy_poll != 0,
    })
}

/// `EPIOCSPARAMS`: sets the busy-poll parameters of an epoll instance.
///
/// # Errors
/// [`Error::OutOfRange`] for more than `i32::MAX` microseconds; [`Error::Denied`] for a budget above
/// 64 without `CAP_NET_ADMIN` in the initial user namespace; [`Error::NotEpoll`];
/// [`Error::Unsupported`] before Linux 6.9.
pub fn set_params(epoll: impl AsFd, params: EpollParams) -> Result<()> {
    if params.busy_poll_usecs > i32::MAX as u32 {
        return Err(Error::OutOfRange {
            what: "busy_poll_usecs of an epoll instance",
            value: params.busy_poll_usecs.into(),
            allowed: "0 to 2147483647 microseconds",
        });
    }
    let fd = epoll.as_fd();
    let p = libc::epoll_params {
        busy_poll_usecs: params.busy_poll_usecs,
        busy_poll_budget: params.busy_poll_budget,
        prefer_busy_poll: params.prefer_busy_poll.into(),
        __pad: 0,
    };
    sys::set_epoll_params(fd, p).map_err(|e| {
        let doing = format!("EPIOCSPARAMS with a budget of {} packets", params.busy_poll_budget);
        explain(fd, &doing, e)
    })
}

/// Every epoll instance this process has open, as duplicated descriptors.
///
/// A program can so reach the instance inside a runtime that does not expose it, such as
/// tokio's: the parameters belong to the instance, not to the descriptor.
pub fn instances() -> Result<Vec<OwnedFd>> {
    let os = |doing: &str, e: io::Error| Error::os(doing, e);
    let myself = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .map_err(|e| os("opening a pidfd of this process", e.into()))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").map_err(|e| os("reading /proc/self/fd", e))? {
        let entry = entry.map_err(|e| os("reading /proc/self/fd", e))?;
        let Some(number) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if !is_epoll_number(number) {
            continue;
        }
        let get = || {
            rustix::process::pidfd_getfd(&myself, number as ForeignRawFd, PidfdGetfdFlags::empty())
        };
        // Another thread may close or reuse the number meanwhile, so the duplicate is checked.
        if let Ok(fd) = get()
            && is_epoll_number(fd.as_raw_fd())
        {
            found.push(fd);
        }
    }
    Ok(found)
}

fn is_epoll_number(fd: i32) -> bool {
    fs::read_link(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]")
}

fn explain(fd: std::os::fd::BorrowedFd<'_>, doing: &str, e: io::Error) -> Error {
    match e.raw_os_error() {
        Some(libc::EPERM) => Error::denied_globally(doing, Capability::NetAdmin),
        Some(libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP)
            if !is_epoll_number(fd.as_raw_fd()) =>
        {
            Error::NotEpoll
        }
        Some(libc::ENOTTY | libc::EOPNOTSUPP) => Error::Unsupported {
            what: "busy polling per epoll instance (EPIOCSPARAMS)",
            since: "6.9",
            with: " built with CONFIG_NET_RX_BUSY_POLL",
        },
        _ => Error::os(doing, e),
    }
}
