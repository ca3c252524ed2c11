//! The Linux host, typed in and out: one file per kernel interface.
//!
//! | module | kernel interface | kernel source |
//! |---|---|---|
//! | [`sockopt`] | `SO_BUSY_POLL` and its three companions | `net/core/sock.c` |
//! | [`epoll`] | `EPIOCSPARAMS`, `EPIOCGPARAMS` | `fs/eventpoll.c` |
//! | [`sysctl`] | `net.core.busy_read`, `net.core.busy_poll` | `net/core/sysctl_net_core.c` |
//! | [`netdev`] | NAPI instances and queues: generic netlink `netdev` | `net/core/netdev-genl.c` |
//! | [`ethtool`] | driver, features, coalescing, channels: `SIOCETHTOOL` | `net/ethtool/ioctl.c` |
//! | [`link`] | devices and their addresses: rtnetlink | `net/core/rtnetlink.c` |
//! | [`stat`] | `BusyPollRxPackets`, interrupts, context switches, CPU time | `/proc` |
//! | [`topology`] | CPUs, SMT siblings, NUMA nodes, pinning | `/sys/devices/system/cpu` |
//! | [`caps`] | what this thread is allowed to do | `kernel/capability.c` |
//!
//! Every call speaks of the **calling thread's** network namespace; a handle ([`netdev::Netdev`],
//! [`ethtool::Ethtool`], [`link::Links`]) keeps the namespace it was opened in.
//!
//! Nothing here looks at the kernel's version: a kernel that lacks an interface says so when asked,
//! and the answer is [`Error::Unsupported`].
//!
//! Times are microseconds, except where the kernel's own unit is kept and the name ends in `_ns`.

pub mod caps;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod link;
pub mod netdev;
mod netlink;
pub mod sockopt;
pub mod stat;
mod sys;
pub mod sysctl;
pub mod topology;

pub use caps::Capability;
pub use epoll::EpollParams;
pub use error::{Error, Result};
pub use sockopt::NapiId;
