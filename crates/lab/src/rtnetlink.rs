//! The five rtnetlink requests that a lab needs, encoded by hand: rtnetlink(7), and veth's in
//! `include/uapi/linux/veth.h`.
//!
//! They act in the network namespace of the thread that opened the socket.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const HEADER: usize = 16;
const ALIGN: usize = 4;

/// The properties of a new end of a veth pair.
pub(crate) struct VethEnd {
    pub(crate) name: &'static str,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    pub(crate) queues: u32,
}

/// An rtnetlink socket.
pub(crate) struct Socket(File);

impl Socket {
    pub(crate) fn open() -> io::Result<Self> {
        // Without a protocol it is protocol 0, NETLINK_ROUTE.
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let fd = socket_with(family, SocketType::RAW, flags, None)?;
        Ok(Self(fd.into()))
    }

    /// Creates a veth pair: one end here, the other directly in `peer_namespace`.
    pub(crate) fn add_veth(
        &self,
        end: &VethEnd,
        peer: &VethEnd,
        peer_namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let message = Message::new(libc::RTM_NEWLINK, flags, &link_header(0, 0));
        self.request(message.veth_end(end).nest(libc::IFLA_LINKINFO, |info| {
            info.attribute(libc::IFLA_INFO_KIND, b"veth").nest(libc::IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |other| {
                    other
                        .bytes(&link_header(0, 0))
                        .veth_end(peer)
                        .attribute(libc::IFLA_NET_NS_FD, &peer_namespace.as_raw_fd().to_ne_bytes())
                })
            })
        }))
    }

    /// Disables automatic IPv6 link-local addresses on the interface, and with them
    /// duplicate address detection and router solicitations.
    pub(crate) fn no_automatic_ipv6(&self, ifindex: u32) -> io::Result<()> {
        let message = Message::new(libc::RTM_NEWLINK, 0, &link_header(ifindex, 0));
        self.request(message.nest(libc::IFLA_AF_SPEC, |families| {
            families.nest(libc::AF_INET6 as u16, |inet6| {
                inet6.attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE])
            })
        }))
    }

    /// Brings an interface up.
    pub(crate) fn set_up(&self, ifindex: u32) -> io::Result<()> {
        self.request(Message::new(libc::RTM_NEWLINK, 0, &link_header(ifindex, libc::IFF_UP as u32)))
    }

    /// Adds an address, usable at once: an IPv6 one without duplicate address detection.
    pub(crate) fn add_address(&self, ifindex: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let (family, octets) = match address {
            IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
        };
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let mut header =
            vec![family as u8, prefix, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE];
        header.extend(ifindex.to_ne_bytes());
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let message = Message::new(libc::RTM_NEWADDR, flags, &header);
        self.request(
            message.attribute(libc::IFA_LOCAL, &octets).attribute(libc::IFA_ADDRESS, &octets),
        )
    }

    /// Adds the route to one address, by a neighbour.
    pub(crate) fn add_route(&self, to: IpAddr, by: IpAddr, ifindex: u32) -> io::Result<()> {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let (family, to, by) =
            (if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }, octets(to), octets(by));
        // struct rtmsg: family, prefix lengths of destination and source, TOS, table, protocol, scope, type, flags.
        let mut header = vec![family as u8, to.len() as u8 * 8, 0, 0];
        header.extend([libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE]);
        header.extend([libc::RTN_UNICAST, 0, 0, 0, 0]);
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        self.request(
            Message::new(libc::RTM_NEWROUTE, flags, &header)
                .attribute(libc::RTA_DST, &to)
                .attribute(libc::RTA_GATEWAY, &by)
                .attribute(libc::RTA_OIF, &ifindex.to_ne_bytes()),
        )
    }

    /// Sends one request and waits for the kernel's acknowledgement.
    fn request(&self, message: Message) -> io::Result<()> {
        (&self.0).write_all(&message.finish())?;
        let mut answer = [0; 4096];
        let length = (&self.0).read(&mut answer)?;
        // struct nlmsgerr: the result follows the header, 0 or a negative errno.
        let kind = answer[..length].get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        let verdict = answer[..length].get(HEADER..HEADER + 4);
        match (kind, verdict) {
            (Some(kind), Some(v)) if i32::from(kind) == libc::NLMSG_ERROR => {
                match i32::from_ne_bytes([v[0], v[1], v[2], v[3]]) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
                }
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer that is no verdict")),
        }
    }
}

/// struct ifinfomsg; `up` holds the interface flags to set.
fn link_header(ifindex: u32, up: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[8..12].copy_from_slice(&up.to_ne_bytes());
    header[12..].copy_from_slice(&up.to_ne_bytes());
    header
}

/// A netlink message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, family_header: &[u8]) -> Self {
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self(bytes).bytes(family_header)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        self
    }

    fn attribute(self, kind: u16, value: &[u8]) -> Self {
        let length = (ALIGN + value.len()) as u16;
        self.bytes(&[length.to_ne_bytes(), kind.to_ne_bytes()].concat()).bytes(value)
    }

    fn nest(self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        let mut message = fill(self.attribute(kind | libc::NLA_F_NESTED as u16, &[]));
        let length = (message.0.len() - start) as u16;
        message.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        message
    }

    fn veth_end(self, end: &VethEnd) -> Self {
        self.attribute(libc::IFLA_IFNAME, &[end.name.as_bytes(), b"\0"].concat())
            .attribute(libc::IFLA_ADDRESS, &end.mac)
            .attribute(libc::IFLA_MTU, &end.mtu.to_ne_bytes())
            .attribute(libc::IFLA_NUM_TX_QUEUES, &end.queues.to_ne_bytes())
            .attribute(libc::IFLA_NUM_RX_QUEUES, &end.queues.to_ne_bytes())
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}
