//! The errors of an AF_XDP NIC, with messages that tell the user what to do. Owns the texts and the diagnosis of
//! `EPERM`; reads this process's capabilities, changes nothing.

use std::io;

/// Why an AF_XDP NIC or one of its queues could not be opened. One line each: what, where, remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No interface of that name in this network namespace.
    #[error("no network device `{device}` in this network namespace; `ip link` lists the devices")]
    UnknownDevice {
        /// The interface.
        device: String,
    },
    /// The interface is administratively down.
    #[error("{device} is down; bring it up with `ip link set {device} up`")]
    Down {
        /// The interface.
        device: String,
    },
    /// Not Ethernet (loopback, tun, ...).
    #[error("{device} is not an Ethernet device; AF_XDP queues need one")]
    NotEthernet {
        /// The interface.
        device: String,
    },
    /// The process lacks a capability.
    #[error(
        "{device}: AF_XDP needs {missing}; run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon+ep {}`",
        this_program()
    )]
    Capability {
        /// The interface.
        device: String,
        /// The names of the missing capabilities.
        missing: String,
    },
    /// All capabilities are there, but only in a user namespace, or a security module refused.
    #[error(
        "{device}: the kernel refused to {step} although all capabilities are there; run outside of user namespaces and containers, or see the security log"
    )]
    Refused {
        /// The interface.
        device: String,
        /// What was refused.
        step: &'static str,
    },
    /// `CONFIG_XDP_SOCKETS` is off.
    #[error(
        "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use the `tap` driver or the kernel plane"
    )]
    NoAfXdp,
    /// Another process drives this device.
    #[error(
        "the queues of {device} belong to {}, and a queue has one owner; stop that process or use the kernel's sockets beside it",
        named(*pid)
    )]
    Owned {
        /// The interface.
        device: String,
        /// The owner, as seen from here; 0 if its PID namespace is not visible.
        pid: i32,
    },
    /// As many processes as can share the interface do.
    #[error("{device} is shared by {most} processes already, which is the most")]
    Full {
        /// The interface.
        device: String,
        /// How many can share it.
        most: usize,
    },
    /// Another process drives this device, and cannot share it.
    #[error("the queues of {device} belong to {}, which cannot share them: {why}", named(*pid))]
    NotShared {
        /// The interface.
        device: String,
        /// The owner, as seen from here; 0 if its PID namespace is not visible.
        pid: i32,
        /// Why not.
        why: String,
    },
    /// Another AF_XDP program uses the queue.
    #[error(
        "queue {queue} of {device} is in use by another AF_XDP program (`ss --xdp -p` may name it); stop it or choose another device"
    )]
    QueueBusy {
        /// The interface.
        device: String,
        /// The queue.
        queue: u32,
    },
    /// The queue is open already, in this process.
    #[error("queue {queue} of {device} is open already in this process")]
    QueueOpen {
        /// The interface.
        device: String,
        /// The queue.
        queue: u32,
    },
    /// No such queue.
    #[error(
        "{device} has no queue {queue}, only {queues}; `ethtool -L {device}` changes their number"
    )]
    NoQueue {
        /// The interface.
        device: String,
        /// The queue asked for.
        queue: u32,
        /// How many there are.
        queues: u32,
    },
    /// Packets would come to queues without a transmit queue.
    #[error(
        "{device} has {rx} receive queues and only {tx} to send from, but they are used in pairs; `ethtool -L {device}` changes their numbers"
    )]
    Unpaired {
        /// The interface.
        device: String,
        /// How many queues receive.
        rx: u32,
        /// How many queues send.
        tx: u32,
    },
    /// The queue was opened again, on a thread in another network namespace than the interface's.
    #[error(
        "queue {queue} of {device} was opened again from another network namespace; open it on a thread inside the interface's"
    )]
    Namespace {
        /// The interface.
        device: String,
        /// The queue.
        queue: u32,
    },
    /// A packet would not fit a frame.
    #[error(
        "the MTU of {device} is {mtu}, AF_XDP frames hold {limit}; lower it with `ip link set {device} mtu {limit}`"
    )]
    Mtu {
        /// The interface.
        device: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// The largest that fits.
        limit: usize,
    },
    /// Another tool's XDP program is on the interface.
    #[error(
        "{device} runs the XDP program `{program}` (id {id}) already; remove it with `ip link set {device} {off} off` or by ending the program that attached it"
    )]
    ProgramPresent {
        /// The interface.
        device: String,
        /// The program's name.
        program: String,
        /// Its id, as `bpftool prog` shows it.
        id: u32,
        /// The keyword of `ip link set` for its mode: `xdp`, `xdpgeneric` or `xdpoffload`.
        off: &'static str,
    },
    /// `RLIMIT_MEMLOCK` is too small for the frames.
    #[error(
        "{device}: {bytes} bytes of frames exceed the locked memory limit; raise it (`ulimit -l unlimited`) or give the program CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The interface.
        device: String,
        /// The size of the frames.
        bytes: usize,
    },
    /// The builder was given a ring size that is no power of two or too large.
    #[error("{frames} frames per ring is not a power of two from {min} to {max}")]
    RingSize {
        /// The size requested.
        frames: usize,
        /// The smallest.
        min: usize,
        /// The largest.
        max: usize,
    },
    /// Anything else, with the step it happened in.
    #[error("{device}: cannot {step}: {source}")]
    Os {
        /// The interface.
        device: String,
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// The error of a `step` on `device`. For `EPERM`, names the missing capabilities.
    pub(super) fn os(device: &str, step: &'static str, source: io::Error) -> Error {
        let device = device.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => match missing_capabilities() {
                missing if missing.is_empty() => Error::Refused { device, step },
                missing => Error::Capability { device, missing },
            },
            _ => Error::Os { device, step, source },
        }
    }
}

/// The owner as the message names it, by its PID as seen from here.
fn named(pid: i32) -> String {
    match pid {
        0 => "a process that cannot be seen from here (in another PID namespace, or queried too often)".into(),
        pid => format!("process {pid}"),
    }
}

/// The program that needs the capabilities: this process's. Under `busypoll run` that is `busypoll` itself, which opens
/// the device; file capabilities on the application would keep it from loading the preload library.
fn this_program() -> String {
    std::env::current_exe().map_or("on the program".into(), |path| path.display().to_string())
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        use io::ErrorKind as Kind;
        let kind = match &error {
            Error::UnknownDevice { .. } | Error::NoQueue { .. } => Kind::NotFound,
            Error::Down { .. } => Kind::NetworkDown,
            Error::Capability { .. } | Error::Refused { .. } => Kind::PermissionDenied,
            Error::NoAfXdp | Error::NotEthernet { .. } | Error::Unpaired { .. } => {
                Kind::Unsupported
            }
            Error::Owned { .. }
            | Error::Full { .. }
            | Error::NotShared { .. }
            | Error::QueueBusy { .. }
            | Error::QueueOpen { .. }
            | Error::ProgramPresent { .. } => Kind::ResourceBusy,
            Error::Namespace { .. } | Error::Mtu { .. } | Error::RingSize { .. } => {
                Kind::InvalidInput
            }
            Error::LockedMemory { .. } => Kind::OutOfMemory,
            Error::Os { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// The names of the capabilities that AF_XDP needs and this thread lacks. Without CAP_PERFMON the verifier rejects a
/// program whose packet offsets depend on the packet, as with IP options (kernel/bpf/verifier.c, `sanitize_ptr_alu`).
/// CAP_SYS_ADMIN includes both CAP_BPF and CAP_PERFMON (kernel/bpf/token.c, `bpf_ns_capable`).
fn missing_capabilities() -> String {
    // linux/capability.h
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const SYS_ADMIN: u32 = 21;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    let effective = effective_capabilities();
    let has = |capability: u32| effective >> capability & 1 == 1;
    let wanted = [
        ("CAP_NET_RAW", has(NET_RAW)),
        ("CAP_NET_ADMIN", has(NET_ADMIN)),
        ("CAP_BPF", has(BPF) || has(SYS_ADMIN)),
        ("CAP_PERFMON", has(PERFMON) || has(SYS_ADMIN)),
    ];
    let missing: Vec<&str> = wanted.iter().filter(|w| !w.1).map(|w| w.0).collect();
    missing.join(", ")
}

fn effective_capabilities() -> u64 {
    /// `struct __user_cap_header_struct` and two `struct __user_cap_data_struct`, linux/capability.h.
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Default, Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: both structs have the kernel's layout; version 3 writes exactly two data structs.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    if result != 0 {
        return 0;
    }
    u64::from(data[0].effective) | u64::from(data[1].effective) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_no_pid_if_the_owner_is_not_visible() {
        let said = |pid| Error::Owned { device: "eth1".into(), pid }.to_string();
        assert!(
            said(77).starts_with("the queues of eth1 belong to process 77, and"),
            "{}",
            said(77)
        );
        assert!(said(0).contains("a process that cannot be seen from here"), "{}", said(0));
        assert!(!said(0).contains('0'), "{}", said(0));
    }
}
