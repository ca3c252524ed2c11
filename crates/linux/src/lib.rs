//! The kernel's interfaces as typed functions: one file per interface.
//!
//! | module | kernel interface | kernel source |
//! |---|---|---|
//! | [`sockopt`] | `SO_BUSY_POLL` and three related options | `net/core/sock.c` |
//! | [`epoll`] | `EPIOCSPARAMS`, `EPIOCGPARAMS` | `fs/eventpoll.c` |
//! | [`cgroup`] | the CPU quota of this process's control group | `kernel/sched/core.c` |
//! | [`ticks`] | a clock cheaper than clock_gettime(2) | - |
//! | [`spinners`] | memory shared between processes: which CPUs have a spinner | - |
//! | [`sysctl`] | `net.core.busy_read`, `net.core.busy_poll` | `net/core/sysctl_net_core.c` |
//! | [`netdev`] | NAPI instances and queues: generic netlink `netdev` | `net/core/netdev-genl.c` |
//! | [`ethtool`] | driver, features, coalescing, channels, rings: `SIOCETHTOOL` | `net/ethtool/ioctl.c` |
//! | [`link`] | devices and their addresses: rtnetlink | `net/core/rtnetlink.c` |
//! | [`route`] | the route to an address: rtnetlink | `net/ipv4/route.c` |
//! | [`netns`] | the network namespace behind a number | `net/core/net_namespace.c` |
//! | [`sysfs`] | the attributes of devices, of this thread's network namespace | `net/core/net-sysfs.c` |
//! | [`irq`] | a device's interrupts and the CPUs they go to | `kernel/irq/proc.c` |
//! | [`irqbalance`] | the daemon that moves interrupts, and those it leaves alone | - |
//! | [`process`] | another process: its descriptors, epoll lists and waits | `kernel/pid.c`, `fs/proc/fd.c` |
//! | [`socket`] | facts about a socket: cookie, protocol, addresses | `net/core/sock.c` |
//! | [`executable`] | the kind of an executable: dynamic, static, Go, privileged | `fs/binfmt_elf.c`, `fs/exec.c` |
//! | [`stat`] | `BusyPollRxPackets`, interrupts, context switches, CPU time | `/proc` |
//! | [`power`] | frequency governors, idle states | `/sys/devices/system/cpu` |
//! | [`clocksource`] | the clock behind clock_gettime | `kernel/time/clocksource.c` |
//! | [`numa`] | nodes, and how fast memory is copied | `drivers/base/node.c` |
//! | [`machine`] | hypervisor, isolated CPUs, SMT, IOMMU | `/sys` |
//! | [`topology`] | CPUs, SMT siblings, NUMA nodes, pinning | `/sys/devices/system/cpu` |
//! | `bpf` (feature) | BPF programs that observe: open files, threads, NAPI passes | `kernel/bpf`, `net/core/dev.c` |
//! | [`caps`] | the calling thread's capabilities | `kernel/capability.c` |
//!
//! Every call refers to the **calling thread's** network namespace; a handle ([`netdev::Netdev`],
//! [`ethtool::Ethtool`], [`link::Links`]) keeps the namespace it was opened in.
//!
//! No code here tests the kernel's version: a kernel that lacks an interface refuses the call,
//! and the result is [`Error::Unsupported`].
//!
//! Times are in microseconds, except where the kernel's own unit is kept and the name ends in `_ns`.

#[cfg(feature = "bpf")]
pub mod bpf;
pub mod caps;
pub mod cgroup;
pub mod clocksource;
pub mod deferral;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod executable;
pub mod irq;
pub mod irqbalance;
pub mod link;
pub mod machine;
pub mod netdev;
mod netlink;
pub mod netns;
pub mod numa;
pub mod polls;
pub mod power;
pub mod process;
pub mod route;
pub mod socket;
pub mod sockopt;
pub mod spinners;
pub mod stat;
mod sys;
pub mod sysctl;
pub mod sysfs;
pub mod ticks;
pub mod topology;

pub use caps::Capability;
pub use epoll::EpollParams;
pub use error::{Error, Result};
pub use sockopt::NapiId;
