//! The kernel's data about an interface before it is taken. Reads rtnetlink and ethtool, changes nothing.

use super::{
    Error,
    netlink::{Attributes, Request, Socket, u32_at},
};
use crate::{sys, wire::MacAddr};
use std::{io, os::fd::AsRawFd};

/// An Ethernet interface.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) ifindex: u32,
    pub(super) mac: MacAddr,
    pub(super) mtu: usize,
    pub(super) queues: u32,
    /// `veth`, `virtio_net`, `ice`; empty if the driver does not report it.
    pub(super) driver: String,
}

/// Software devices that deliver frames whose sender left the transport checksum to hardware.
/// With virtio_net, a frame from another guest on the same host has a partial checksum (drivers/net/
/// virtio_net.c, `VIRTIO_NET_F_GUEST_CSUM`).
const PARTIAL_CHECKSUMS: [&str; 5] = ["veth", "tun", "macvlan", "bridge", "virtio_net"];

// linux/rtnetlink.h, linux/if_link.h
const RTM_GETLINK: u16 = 18;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const XDP_ATTACHED_SKB: u8 = 2;
const XDP_ATTACHED_HW: u8 = 3;
const IFINFO: usize = 16;

/// The answer to RTM_GETLINK.
#[derive(Default)]
struct Link {
    kind: u16,
    ifindex: u32,
    flags: u32,
    mac: [u8; 6],
    mtu: usize,
    program: Option<Program>,
}

// linux/genetlink.h, linux/netdev.h
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const GENL_HEADER: usize = 4;

pub(super) fn zero_copy_segments(ifindex: u32) -> io::Result<Option<u32>> {
    let mut socket = Socket::of(libc::NETLINK_GENERIC)?;
    let request = Request::new(libc::GENL_ID_CTRL as u16, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
        .attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let mut family = None;
    socket.request(request, &mut |message| {
        let mut attributes = message.attributes(GENL_HEADER);
        let id = attributes.find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID);
        family = family.or(id.and_then(|(_, id)| super::netlink::u16_at(id, 0)));
    })?;
    let family = family.ok_or(io::ErrorKind::NotFound)?;
    let request = Request::new(family, &[NETDEV_CMD_DEV_GET, 1, 0, 0])
        .attribute(NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let mut segments = None;
    socket.request(request, &mut |message| {
        let mut attributes = message.attributes(GENL_HEADER);
        let most = attributes.find(|(kind, _)| *kind == NETDEV_A_DEV_XDP_ZC_MAX_SEGS);
        segments = segments.or(most.and_then(|(_, most)| u32_at(most, 0)));
    })?;
    Ok(segments)
}

/// An XDP program on an interface.
#[derive(Clone, Copy)]
pub(super) struct Program {
    pub(super) id: u32,
    /// The keyword of `ip link set` for its mode. `xdp` would remove only a program in the driver.
    pub(super) off: &'static str,
}

impl Program {
    /// Parses an IFLA_XDP.
    fn read(xdp: &[u8]) -> Option<Program> {
        let find = |wanted| Attributes::nested(xdp).find(|(kind, _)| *kind == wanted);
        let (_, id) = find(IFLA_XDP_PROG_ID)?;
        let off = match find(IFLA_XDP_ATTACHED).and_then(|(_, place)| place.first().copied()) {
            Some(XDP_ATTACHED_SKB) => "xdpgeneric",
            Some(XDP_ATTACHED_HW) => "xdpoffload",
            _ => "xdp",
        };
        Some(Program { id: u32_at(id, 0)?, off })
    }
}

fn link(name: &str) -> io::Result<Link> {
    let mut request_name = name.as_bytes().to_vec();
    request_name.push(0);
    let request = Request::new(RTM_GETLINK, &[0; IFINFO]).attribute(IFLA_IFNAME, &request_name);
    let mut link = Link::default();
    Socket::open()?.request(request, &mut |message| {
        let header = message.payload;
        link.kind = super::netlink::u16_at(header, 2).unwrap_or(0);
        link.ifindex = u32_at(header, 4).unwrap_or(0);
        link.flags = u32_at(header, 8).unwrap_or(0);
        for (kind, value) in message.attributes(IFINFO) {
            match kind {
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or(0) as usize,
                IFLA_XDP => link.program = Program::read(value),
                _ => {}
            }
        }
    })?;
    Ok(link)
}

impl Device {
    /// Looks `name` up in the calling thread's network namespace. It must be an Ethernet interface that is up.
    pub(super) fn find(name: &str) -> Result<Device, Error> {
        let device = || name.to_owned();
        // An interface's name has at most 15 bytes (IFNAMSIZ).
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(Error::UnknownDevice { device: device() });
        }
        let link = link(name).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV) => Error::UnknownDevice { device: device() },
            _ => Error::os(name, "look the interface up", e),
        })?;
        if link.kind != libc::ARPHRD_ETHER {
            return Err(Error::NotEthernet { device: device() });
        }
        if link.flags & libc::IFF_UP as u32 == 0 {
            return Err(Error::Down { device: device() });
        }
        let (queues, tx) = queues(name);
        // On a queue without a socket of ours, our packets would pass to the kernel, which would refuse them.
        if queues > tx {
            return Err(Error::Unpaired { device: device(), rx: queues, tx });
        }
        Ok(Device {
            name: device(),
            ifindex: link.ifindex,
            mac: MacAddr(link.mac),
            mtu: link.mtu,
            queues,
            driver: driver(name),
        })
    }

    /// Whether received frames may carry partial checksums.
    pub(super) fn partial_checksums(&self) -> bool {
        PARTIAL_CHECKSUMS.contains(&self.driver.as_str())
    }

    /// For how many frames of a packet the driver has zero copy; `None` if it has none, or the kernel does not say.
    pub(super) fn zero_copy_segments(&self) -> Option<u32> {
        zero_copy_segments(self.ifindex).ok().flatten()
    }

    /// The XDP program that is on the interface now.
    pub(super) fn program(&self) -> Option<Program> {
        link(&self.name).ok()?.program
    }
}

/// `struct ethtool_channels`, linux/ethtool.h.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_drvinfo`, linux/ethtool.h.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// The numbers of receive and transmit queues. A driver that does not report them has one of each.
fn queues(name: &str) -> (u32, u32) {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    if ethtool(name, &mut channels).is_err() {
        return (1, 1);
    }
    let Channels { combined, rx, tx, .. } = channels;
    ((combined + rx).max(1), (combined + tx).max(1))
}

fn driver(name: &str) -> String {
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    match ethtool(name, &mut info) {
        Ok(()) => info.driver.iter().take_while(|b| **b != 0).map(|b| char::from(*b)).collect(),
        Err(_) => String::new(),
    }
}

/// One SIOCETHTOOL call; `T` is the struct of the command in its first word.
fn ethtool<T>(name: &str, command: &mut T) -> io::Result<()> {
    // SAFETY: no pointers.
    let fd = sys::owned(unsafe {
        libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)
    })?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
    // SAFETY: the kernel reads the name, and reads and writes the struct that `ifru_data` points to, which has
    // the layout of its command.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
