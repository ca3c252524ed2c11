//! The kernel's side of a TAP device: making it, attaching to it, its MTU, address and state, all by
//! ioctl (drivers/net/tun.c, net/core/dev_ioctl.c), and the error messages when one is refused.
//!
//! Keeps no state; changes only the interface with the given name.

use crate::wire::MacAddr;
use std::{
    fs, io, mem,
    net::{Ipv4Addr, UdpSocket},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

/// The kernel's `MAX_TAP_QUEUES`.
const MAX_QUEUES: u32 = 256;

/// An error of the same kind as `error` with our own message.
fn because(error: &io::Error, line: String) -> io::Error {
    io::Error::new(error.kind(), line)
}

fn invalid(line: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, line)
}

/// Attaches `queues` descriptors to the TAP device `name`, which is created if it does not exist. Also returns
/// its name: the kernel fills in the number of a `tap%d`.
pub(super) fn attach(name: &str, queues: u32) -> io::Result<(String, Vec<OwnedFd>)> {
    if queues == 0 || queues > MAX_QUEUES {
        return Err(invalid(format!(
            "TAP device `{name}`: {queues} queues asked for; choose 1 to {MAX_QUEUES}"
        )));
    }
    let mut name = name.to_owned();
    let mut fds = Vec::new();
    for _ in 0..queues {
        let fd = control()?;
        let mut request = request(&name)?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI;
        let flags = if queues > 1 { flags | libc::IFF_MULTI_QUEUE } else { flags };
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        ioctl(fd.as_fd(), libc::TUNSETIFF, &mut request)
            .map_err(|error| refused(&name, queues, &error))?;
        name = name_of(&request);
        // Off by default, but a persistent device keeps the settings of its last user. With all offloads off,
        // the kernel completes every checksum and segments every packet before we see the frame.
        // SAFETY: TUNSETOFFLOAD takes a plain number.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, 0) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return Err(because(
                &error,
                format!("TAP device `{name}`: cannot turn its offloads off: {error}"),
            ));
        }
        fds.push(fd);
    }
    Ok((name, fds))
}

/// A descriptor of the TUN/TAP driver, not attached to a device yet.
fn control() -> io::Result<OwnedFd> {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map(OwnedFd::from)
        .map_err(|error| {
            because(
                &error,
                match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                        "no /dev/net/tun: load the driver with `modprobe tun`, or give the container \
                         the device (`--device /dev/net/tun`)"
                            .to_owned()
                    }
                    Some(libc::EACCES | libc::EPERM) => {
                        "may not open /dev/net/tun: run as root, or let this user read and write it"
                            .to_owned()
                    }
                    _ => format!("cannot open /dev/net/tun: {error}"),
                },
            )
        })
}

/// The error for a failed TUNSETIFF (tun_set_iff in drivers/net/tun.c).
fn refused(name: &str, queues: u32, error: &io::Error) -> io::Error {
    because(
        error,
        match error.raw_os_error() {
            Some(libc::EPERM) => format!(
                "may not use TAP device `{name}`: needs CAP_NET_ADMIN; run as root, or have one made \
                 for this user: `ip tuntap add dev {name} mode tap user $USER`"
            ),
            Some(libc::EBUSY) => format!(
                "TAP device `{name}` is in use{}: end that process or choose another name",
                owner(name).map_or(String::new(), |pid| format!(" by process {pid}"))
            ),
            Some(libc::EINVAL) if exists(name) => format!(
                "`{name}` exists and is no TAP device with {}: choose another name, or make it \
                 anew with `ip tuntap add dev {name} mode tap{}`",
                if queues > 1 { "several queues" } else { "one queue" },
                if queues > 1 { " multi_queue" } else { "" },
            ),
            Some(libc::EINVAL) => format!("`{name}` is no name for an interface"),
            Some(libc::E2BIG) => format!("TAP device `{name}` has no queue left"),
            _ => format!("cannot open TAP device `{name}`: {error}"),
        },
    )
}

/// The process that holds the TAP device, as far as /proc shows it. Other namespaces may have a device of the same
/// name, so one of the process's threads must be in ours.
fn owner(name: &str) -> Option<u32> {
    let ours = fs::read_link("/proc/thread-self/ns/net").ok()?;
    let wanted = format!("iff:\t{name}");
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let holds = |process: &Path| {
        entries(process.join("fdinfo")).any(|entry| {
            fs::read_to_string(entry.path()).is_ok_and(|info| info.lines().any(|l| l == wanted))
        })
    };
    let lives_here = |process: &Path| {
        entries(process.join("task"))
            .any(|task| fs::read_link(task.path().join("ns/net")).is_ok_and(|ns| ns == ours))
    };
    entries("/proc".into())
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .find(|(_, process)| holds(process) && lives_here(process))
        .map(|(pid, _)| pid)
}

fn exists(name: &str) -> bool {
    configure(name, libc::SIOCGIFINDEX, |_| ()).is_ok()
}

/// Attaches a queue to the device's traffic, or detaches and empties it.
pub(super) fn set_queue(fd: BorrowedFd<'_>, name: &str, attached: bool) -> io::Result<()> {
    let mut request = request(name)?;
    let flag = if attached { libc::IFF_ATTACH_QUEUE } else { libc::IFF_DETACH_QUEUE };
    request.ifr_ifru.ifru_flags = flag as libc::c_short;
    ioctl(fd, libc::TUNSETQUEUE, &mut request).map_err(|error| {
        because(&error, format!("TAP device `{name}`: cannot open the queue: {error}"))
    })
}

/// The kernel's link-layer address on the device.
pub(super) fn mac(name: &str) -> io::Result<MacAddr> {
    let request = configure(name, libc::SIOCGIFHWADDR, |_| ())?;
    // SAFETY: SIOCGIFHWADDR fills in the hardware address.
    let [a, b, c, d, e, f, ..] = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(MacAddr([a, b, c, d, e, f].map(|byte| byte as u8)))
}

/// The MTU of the device.
pub(super) fn mtu(name: &str) -> io::Result<usize> {
    let request = configure(name, libc::SIOCGIFMTU, |_| ())?;
    // SAFETY: SIOCGIFMTU fills in the MTU.
    Ok(usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// Sets the MTU of the device.
pub(super) fn set_mtu(name: &str, mtu: usize) -> io::Result<()> {
    let number = libc::c_int::try_from(mtu).unwrap_or(libc::c_int::MAX);
    configure(name, libc::SIOCSIFMTU, |request| request.ifr_ifru.ifru_mtu = number)
        .map(drop)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => invalid(format!(
                "TAP device `{name}`: an MTU of {mtu} bytes is out of range; choose 68 to 65521"
            )),
            _ => may_not(name, "set its MTU", &error),
        })
}

/// Parses `10.0.0.1/24`.
pub(super) fn parse_address(text: &str) -> io::Result<(Ipv4Addr, u8)> {
    text.split_once('/')
        .and_then(|(address, prefix)| Some((address.parse().ok()?, prefix.parse().ok()?)))
        .filter(|(_, prefix)| *prefix <= 32)
        .ok_or_else(|| {
            invalid(format!(
                "`{text}` is no IPv4 address with a prefix length, such as 10.0.0.1/24"
            ))
        })
}

/// Gives the kernel's end its address.
pub(super) fn set_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    configure(name, libc::SIOCSIFADDR, |request| request.ifr_ifru.ifru_addr = ipv4(address))
        .and_then(|_| {
            let mask = ipv4(Ipv4Addr::from_bits(mask));
            configure(name, libc::SIOCSIFNETMASK, |request| request.ifr_ifru.ifru_netmask = mask)
        })
        .map(drop)
        .map_err(|error| may_not(name, "set its address", &error))
}

/// Brings the kernel's end up.
pub(super) fn set_up(name: &str) -> io::Result<()> {
    let request = configure(name, libc::SIOCGIFFLAGS, |_| ())?;
    // SAFETY: SIOCGIFFLAGS fills in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    if flags & libc::IFF_UP as libc::c_short != 0 {
        return Ok(());
    }
    configure(name, libc::SIOCSIFFLAGS, |request| {
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    })
    .map(drop)
    .map_err(|error| may_not(name, "bring it up", &error))
}

fn may_not(name: &str, what: &str, error: &io::Error) -> io::Error {
    because(
        error,
        match error.raw_os_error() {
            Some(libc::EPERM) => format!(
                "TAP device `{name}`: may not {what}: needs CAP_NET_ADMIN; run as root, or have it \
                 done by `ip link` and `ip address`"
            ),
            _ => format!("TAP device `{name}`: cannot {what}: {error}"),
        },
    )
}

fn ipv4(address: Ipv4Addr) -> libc::sockaddr {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: both are 16 bytes of plain data; every sockaddr_in is passed as a sockaddr.
    unsafe { mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) }
}

/// A request about interface `name`, otherwise zero.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data; all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(invalid(format!(
            "`{name}` is no name for an interface: choose 1 to {} characters",
            request.ifr_name.len() - 1
        )));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn name_of(request: &libc::ifreq) -> String {
    let bytes: Vec<u8> =
        request.ifr_name.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends a request about interface `name` to the calling thread's network namespace.
fn configure(
    name: &str,
    operation: libc::Ioctl,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    let mut request = request(name)?;
    fill(&mut request);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    ioctl(socket.as_fd(), operation, &mut request)?;
    Ok(request)
}

fn ioctl(fd: BorrowedFd<'_>, operation: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every operation used in this file reads and writes one ifreq.
    match unsafe { libc::ioctl(fd.as_raw_fd(), operation, request as *mut libc::ifreq) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
