//! The errors of this crate: each is one line with the failed call, its object and a remedy.

use std::io;

use crate::caps::{Capability, Caps};

/// A failed call to the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused because a capability is missing (`EPERM`, `EACCES`).
    #[error("{doing}: permission denied, needs {capability}{scope}; {remedy}")]
    Denied {
        /// The call that was refused.
        doing: String,
        /// The capability the kernel asked for.
        capability: Capability,
        /// Where the capability must be held; empty, or " in …".
        scope: &'static str,
        /// What the user can do about it.
        remedy: &'static str,
    },
    /// This kernel does not have the interface.
    #[error("{what} is not in this kernel; it needs Linux {since} or newer{with}")]
    Unsupported {
        /// The interface.
        what: &'static str,
        /// The first kernel that had it.
        since: &'static str,
        /// The build option it needs besides; empty, or " built with …".
        with: &'static str,
    },
    /// No device of that name.
    #[error("no network device {name:?} in this network namespace; `ip link` lists the devices")]
    NoDevice {
        /// The name, or `ifindex N`.
        name: String,
    },
    /// No route to an address.
    #[error("no route to {address} from here; `ip route get {address}` says why")]
    NoRoute {
        /// The address.
        address: std::net::IpAddr,
    },
    /// The device lacks a facility.
    #[error("{device} does not support this: {what}")]
    DeviceLacks {
        /// The device's name.
        device: String,
        /// The facility.
        what: String,
    },
    /// No NAPI instance with that id.
    #[error(
        "no NAPI instance {id} here: its device was reset, reconfigured, taken down or is in another \
         network namespace; read SO_INCOMING_NAPI_ID or the NAPI list again"
    )]
    NoNapi {
        /// The id that was looked for.
        id: u32,
    },
    /// A NAPI instance was to be changed that does not belong to the given device.
    #[error(
        "NAPI instance {id} belongs to ifindex {actual}, not to ifindex {expected}; nothing was changed"
    )]
    OtherDevice {
        /// The NAPI instance.
        id: u32,
        /// The device the caller named.
        expected: u32,
        /// The device it belongs to.
        actual: u32,
    },
    /// The sysctl is not visible from this network namespace.
    #[error(
        "{name} is not visible here: it exists only in the initial network namespace (and in kernels \
         built with CONFIG_NET_RX_BUSY_POLL); set it from outside the container or namespace"
    )]
    NotInitialNetns {
        /// The sysctl's name.
        name: &'static str,
    },
    /// A descriptor is not an epoll instance.
    #[error(
        "the descriptor is not an epoll instance; busy-poll parameters belong to epoll_create1(2)'s"
    )]
    NotEpoll,
    /// No process of that number.
    #[error("no process {pid}: it has ended, or there never was one (`ps -e` lists the processes)")]
    NoProcess {
        /// The number.
        pid: u32,
    },
    /// A value the kernel would refuse.
    #[error("{what}: {value} is out of range; allowed is {allowed}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A malformed CPU list.
    #[error("CPU list {list:?}: {why}; write numbers and ranges such as 0,2-3")]
    CpuList {
        /// The list as given.
        list: String,
        /// What is wrong with it.
        why: String,
    },
    /// A CPU that does not exist, is offline, or is forbidden to this process.
    #[error("CPU {cpu} cannot be used: online are {online}, and a cpuset may forbid some of them")]
    NoCpu {
        /// The CPU asked for.
        cpu: u32,
        /// The CPUs that are online.
        online: String,
    },
    /// Two CPUs are needed and this thread has fewer.
    #[error(
        "two CPUs are needed, this thread may run on {allowed} only; widen its affinity (taskset, cpuset)"
    )]
    OneCpu {
        /// The CPUs that are allowed.
        allowed: String,
    },
    /// A file or message of the kernel with unexpected contents.
    #[error("{path}: unexpected contents: {why}")]
    Malformed {
        /// The file, or the netlink message.
        path: String,
        /// What was missing.
        why: String,
    },
    /// Any other error.
    #[error("{doing}: {source}")]
    Os {
        /// The call that failed.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The result of every call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn os(doing: impl Into<String>, source: io::Error) -> Self {
        Error::Os { doing: doing.into(), source }
    }

    /// A refusal by `capable()`: only the initial user namespace counts.
    pub(crate) fn denied_globally(doing: impl Into<String>, capability: Capability) -> Self {
        // "Run as root" does not help root in a container: name the user namespace as the cause.
        let remedy = if Caps::current().is_ok_and(|c| !c.in_initial_user_namespace()) {
            "this process is in a user namespace of its own, where no capability counts for this: \
             run it outside"
        } else {
            "run as root or grant the program the capability (setcap)"
        };
        Error::Denied {
            doing: doing.into(),
            capability,
            scope: " in the initial user namespace",
            remedy,
        }
    }

    /// A refusal by `ns_capable()`: the user namespace that owns the network namespace counts.
    pub(crate) fn denied_in_netns(doing: impl Into<String>, capability: Capability) -> Self {
        Error::Denied {
            doing: doing.into(),
            capability,
            scope: " in the user namespace that owns this network namespace",
            remedy: "run as root or grant the program the capability (setcap)",
        }
    }

    /// Whether the cause is a missing permission.
    pub fn is_denied(&self) -> bool {
        matches!(self, Error::Denied { .. })
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        let kind = match &e {
            Error::Denied { .. } => io::ErrorKind::PermissionDenied,
            Error::Unsupported { .. } | Error::DeviceLacks { .. } => io::ErrorKind::Unsupported,
            Error::NoDevice { .. }
            | Error::NoRoute { .. }
            | Error::NoNapi { .. }
            | Error::NotInitialNetns { .. } => io::ErrorKind::NotFound,
            Error::Malformed { .. } => io::ErrorKind::InvalidData,
            Error::Os { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, e)
    }
}
