//! The calling thread's capabilities. Reads `/proc`; changes nothing.
//!
//! Kernel source: `kernel/capability.c`. The kernel checks capabilities in two ways: `capable()` requires it
//! in the *initial* user namespace (`SO_PREFER_BUSY_POLL`, napi-set, sysctls), `ns_capable()` in the
//! user namespace that owns the object (ethtool and rtnetlink on devices of one's own namespace).

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::error::{Error, Result};
use crate::stat::status_field;

/// The capabilities busypoll uses (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Capability {
    /// Network settings: budgets, prefer, napi-set, ethtool, XDP programs.
    NetAdmin = 12,
    /// Raw sockets, AF_XDP sockets.
    NetRaw = 13,
    /// Reading the descriptors of other users' processes.
    SysPtrace = 19,
    /// Making and entering network namespaces.
    SysAdmin = 21,
    /// Real-time priorities.
    SysNice = 23,
    /// BPF tracing.
    Perfmon = 38,
    /// Loading BPF programs.
    Bpf = 39,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysNice => "CAP_SYS_NICE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        })
    }
}

/// The effective capabilities of a thread and whether its user namespace is the initial one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    effective: u64,
    initial_user_namespace: bool,
}

impl Caps {
    /// The capabilities of the calling thread.
    ///
    /// ```
    /// use busypoll_linux::caps::{Capability, Caps};
    /// let caps = Caps::current()?;
    /// if let Some(missing) = caps.missing_globally(&[Capability::NetAdmin]) {
    ///     println!("SO_PREFER_BUSY_POLL is not for us: {missing}");
    /// }
    /// # Ok::<(), busypoll_linux::Error>(())
    /// ```
    pub fn current() -> Result<Self> {
        let path = "/proc/thread-self/status";
        let field = status_field(path, "CapEff")?;
        let effective = u64::from_str_radix(&field, 16).map_err(|_| Error::Malformed {
            path: path.into(),
            why: format!("CapEff is {field:?}"),
        })?;
        // The initial user namespace has had this inode number since Linux 3.8
        // (PROC_USER_INIT_INO, include/linux/proc_ns.h). The id map is no proof: others can look the same.
        const USER_NS_INIT_INO: u64 = 0xEFFF_FFFD;
        let ns = "/proc/thread-self/ns/user";
        let ino = fs::metadata(ns).map_err(|e| Error::os(format!("reading {ns}"), e))?.ino();
        Ok(Caps { effective, initial_user_namespace: ino == USER_NS_INIT_INO })
    }

    /// Whether the capability is effective in the thread's own user namespace.
    pub fn has(self, capability: Capability) -> bool {
        self.effective & (1 << capability as u8) != 0
    }

    /// Whether the capability is effective in the initial user namespace.
    pub fn has_globally(self, capability: Capability) -> bool {
        self.initial_user_namespace && self.has(capability)
    }

    /// Whether the thread is in the initial user namespace: false in most rootless containers.
    pub fn in_initial_user_namespace(self) -> bool {
        self.initial_user_namespace
    }

    /// One line naming those of `needed` that are missing in the thread's own user namespace.
    pub fn missing(self, needed: &[Capability]) -> Option<String> {
        let missing: Vec<String> =
            needed.iter().filter(|c| !self.has(**c)).map(ToString::to_string).collect();
        (!missing.is_empty())
            .then(|| format!("missing {}; run as root or grant it with setcap", missing.join(", ")))
    }

    /// One line naming those of `needed` that are missing in the initial user namespace.
    pub fn missing_globally(self, needed: &[Capability]) -> Option<String> {
        if self.initial_user_namespace || needed.is_empty() {
            return self.missing(needed);
        }
        let needed: Vec<String> = needed.iter().map(ToString::to_string).collect();
        Some(format!(
            "missing {} in the initial user namespace: this process is in a user namespace of its \
             own, where no capability counts for this; run it outside",
            needed.join(", ")
        ))
    }
}
