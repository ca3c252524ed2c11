//! Network devices and their addresses over rtnetlink. Reads only.
//!
//! Kernel source: `net/core/rtnetlink.c` (`RTM_GETLINK`), `net/ipv4/devinet.c` and
//! `net/ipv6/addrconf.c` (`RTM_GETADDR`). No permission is needed.

use std::net::IpAddr;

use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_bindings::rt_link::{self, Ifinfomsg, IterableLinkAttrs};

use crate::error::{Error, Result};
use crate::netlink::{self, Socket};

/// One network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index, unique in its network namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Administratively up (`ip link set … up`).
    pub up: bool,
    /// Has a carrier: can pass packets.
    pub running: bool,
    /// The loopback device, which never busy polls.
    pub loopback: bool,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Its Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// The kind of a software device: `veth`, `tun`, `vlan`, `bond`; none for hardware.
    pub kind: Option<String>,
    /// The number of receive queues it was created with.
    pub rx_queues: u32,
    /// The device below it or, for veth, its other end; see [`Lower`].
    pub lower: Option<Lower>,
    /// The bridge, bond or team it is a port of.
    pub master: Option<u32>,
    /// The XDP program attached to it.
    pub xdp: Option<Xdp>,
}

/// The device below a VLAN, macvlan or tunnel, or the other end of a veth pair (`IFLA_LINK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lower {
    /// Its index **in its own** network namespace.
    pub ifindex: u32,
    /// That namespace, if it is another one: see [`crate::netns::find`]. Negative if the namespace has no number
    /// here.
    pub netns: Option<i32>,
}

/// An attached XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xdp {
    /// Where it runs.
    pub mode: XdpMode,
    /// Its id, as bpftool lists it; the kernel gives none if several are attached.
    pub program: Option<u32>,
}

/// Where an XDP program runs (`XDP_ATTACHED_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Driver,
    /// After the kernel has made an skb: works on any device, slower.
    Generic,
    /// In the hardware.
    Hardware,
    /// In several places.
    Several,
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The device.
    pub ifindex: u32,
    /// The local address.
    pub ip: IpAddr,
    /// The length of the network prefix in bits.
    pub prefix: u8,
}

/// A connection to rtnetlink, in the network namespace it was opened in.
///
/// ```
/// use busypoll_linux::link::Links;
/// let mut links = Links::open()?;
/// let lo = links.get("lo")?;
/// assert!(lo.loopback);
/// println!("{:?}", links.addresses(lo.ifindex)?);
/// assert_eq!(
///     links.get("nosuch0").unwrap_err().to_string(),
///     "no network device \"nosuch0\" in this network namespace; `ip link` lists the devices"
/// );
/// # Ok::<(), busypoll_linux::Error>(())
/// ```
pub struct Links {
    socket: Socket,
}

impl Links {
    /// Opens it in the calling thread's network namespace.
    pub fn open() -> Result<Self> {
        let socket = Socket::route().map_err(|e| Error::os("opening an rtnetlink socket", e))?;
        Ok(Links { socket })
    }

    /// The device of that name.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn get(&mut self, name: &str) -> Result<Link> {
        // The kernel refuses longer names (IFNAMSIZ) with ERANGE or EINVAL; no device can have one.
        if name.is_empty() || name.len() > 15 || name.contains('\0') {
            return Err(Error::NoDevice { name: name.into() });
        }
        let mut request = rt_link::Request::new().op_getlink_do(&Ifinfomsg::new());
        request.encode().push_ifname_bytes(name.as_bytes());
        let mut found = None;
        let done = self.socket.request(&request, 0, |(header, attributes)| {
            found = Some(read_link(&header, attributes));
        });
        match (done, found) {
            (Ok(()), Some(link)) => link,
            (Err(e), _) if e.errno() != Some(libc::ENODEV) => {
                Err(e.into_error(format!("looking up network device {name}")))
            }
            _ => Err(Error::NoDevice { name: name.into() }),
        }
    }

    /// Every device of the network namespace.
    pub fn all(&mut self) -> Result<Vec<Link>> {
        let request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::new());
        let mut links = Vec::new();
        let done = self.socket.request(&request, 0, |(header, attributes)| {
            links.push(read_link(&header, attributes));
        });
        done.map_err(|e| e.into_error("listing network devices"))?;
        links.into_iter().collect()
    }

    /// The IPv4 and IPv6 addresses of a device; empty if there is no such device.
    pub fn addresses(&mut self, ifindex: u32) -> Result<Vec<Address>> {
        let request = rt_addr::Request::new().op_getaddr_dump(&Ifaddrmsg::new());
        let mut addresses = Vec::new();
        let done = self.socket.request(&request, 0, |(header, attributes)| {
            // On a point-to-point device IFA_ADDRESS is the peer's. IPv6 may send no IFA_LOCAL.
            let ip = attributes.get_local().or_else(|_| attributes.get_address());
            if let Ok(ip) = ip
                && header.ifa_index == ifindex
            {
                addresses.push(Address { ifindex, ip, prefix: header.ifa_prefixlen });
            }
        });
        done.map_err(|e| e.into_error("listing network addresses"))?;
        Ok(addresses)
    }
}

fn read_link(header: &Ifinfomsg, attributes: IterableLinkAttrs<'_>) -> Result<Link> {
    let flag = |flag: i32| header.ifi_flags & flag as u32 != 0;
    let name = attributes.get_ifname().map_err(|e| Error::Malformed {
        path: "rtnetlink RTM_NEWLINK".into(),
        why: e.to_string(),
    })?;
    let info = attributes.get_linkinfo().ok();
    let kind = info.as_ref().and_then(|info| info.get_kind().ok());
    let lower = attributes.get_link().ok();
    let lower = lower.or_else(|| vxlan_lower(info.as_ref()?.get_buf()));
    Ok(Link {
        ifindex: header.ifi_index as u32,
        name: name.to_string_lossy().into_owned(),
        up: flag(libc::IFF_UP),
        running: flag(libc::IFF_RUNNING),
        loopback: flag(libc::IFF_LOOPBACK),
        mtu: attributes.get_mtu().unwrap_or(0),
        mac: attributes.get_address().ok().and_then(|mac| mac.try_into().ok()),
        kind: kind.map(|k| k.to_string_lossy().into_owned()),
        rx_queues: attributes.get_num_rx_queues().unwrap_or(1),
        lower: lower
            .filter(|index| *index != 0)
            .map(|ifindex| Lower { ifindex, netns: attributes.get_link_netnsid().ok() }),
        master: attributes.get_master().ok(),
        xdp: attributes.get_xdp().ok().and_then(read_xdp),
    })
}

/// VXLAN has its lower device in an attribute of its own.
fn vxlan_lower(info: &[u8]) -> Option<u32> {
    const IFLA_VXLAN_LINK: u16 = 3;
    if netlink::attribute(info, libc::IFLA_INFO_KIND)? != b"vxlan\0" {
        return None;
    }
    let data = netlink::attribute(info, libc::IFLA_INFO_DATA)?;
    let index = netlink::attribute(data, IFLA_VXLAN_LINK)?;
    Some(u32::from_ne_bytes(index.try_into().ok()?))
}

fn read_xdp(xdp: rt_link::IterableXdpAttrs<'_>) -> Option<Xdp> {
    // XDP_ATTACHED_* of include/uapi/linux/if_link.h.
    let mode = match xdp.get_attached().ok()? {
        1 => XdpMode::Driver,
        2 => XdpMode::Generic,
        3 => XdpMode::Hardware,
        4 => XdpMode::Several,
        _ => return None,
    };
    Some(Xdp { mode, program: xdp.get_prog_id().ok().filter(|id| *id != 0) })
}
