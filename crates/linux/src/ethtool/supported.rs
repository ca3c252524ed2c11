//! Which coalescing settings a device supports. Reads only.
//!
//! The ioctl has a field for each setting and returns 0 for those the driver does not support; the netlink family
//! `ethtool` leaves those out (`coalesce_put_u32`, `net/ethtool/coalesce.c`).

use netlink_bindings::traits::{NetlinkRequest, Protocol};

use crate::error::{Error, Result};
use crate::ethtool::Ethtool;
use crate::netlink::{Socket, attribute};

// include/uapi/linux/ethtool_netlink.h
const MSG_COALESCE_GET: u8 = 19;
const VERSION: u8 = 1;
const A_HEADER_DEV_NAME: u16 = 2;
const A_COALESCE_HEADER: u16 = 1;
const A_COALESCE_RX_USECS: u16 = 2;
const A_COALESCE_RX_MAX_FRAMES: u16 = 3;
const A_COALESCE_USE_ADAPTIVE_RX: u16 = 11;

/// Which coalescing settings a driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedCoalesce {
    /// See [`Coalesce::rx_usecs`](super::Coalesce::rx_usecs).
    pub rx_usecs: bool,
    /// See [`Coalesce::rx_frames`](super::Coalesce::rx_frames).
    pub rx_frames: bool,
    /// See [`Coalesce::adaptive_rx`](super::Coalesce::adaptive_rx).
    pub adaptive_rx: bool,
}

impl Ethtool {
    /// Which coalescing settings the driver supports, looked up by the device's name in the calling thread's network
    /// namespace. The driver may still refuse a value.
    ///
    /// # Errors
    /// [`Error::DeviceLacks`] if it supports none; [`Error::Unsupported`] before Linux 5.7.
    pub fn supported_coalesce(&self) -> Result<SupportedCoalesce> {
        let (mut socket, family) = Socket::generic(c"ethtool").map_err(|e| match e.errno() {
            Some(libc::ENOENT) => {
                Error::Unsupported { what: "the netlink family ethtool", since: "5.7", with: "" }
            }
            _ => e.into_error("asking for the netlink family ethtool"),
        })?;
        let mut supported = None;
        let asked = socket.request(&CoalesceGet::of(&self.device), family, |reply| {
            let has = |kind| attribute(reply, kind).is_some();
            supported = Some(SupportedCoalesce {
                rx_usecs: has(A_COALESCE_RX_USECS),
                rx_frames: has(A_COALESCE_RX_MAX_FRAMES),
                adaptive_rx: has(A_COALESCE_USE_ADAPTIVE_RX),
            });
        });
        let what = || "interrupt coalescing".to_owned();
        let lacks = || Error::DeviceLacks { device: self.device.clone(), what: what() };
        match asked {
            Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => Err(lacks()),
            Err(e) => Err(e.into_error(format!("{}: {}", self.device, what()))),
            Ok(()) => supported.ok_or_else(lacks),
        }
    }
}

/// The request, encoded.
struct CoalesceGet(Vec<u8>);

impl CoalesceGet {
    fn of(device: &str) -> Self {
        let name = attribute_of(A_HEADER_DEV_NAME, &[device.as_bytes(), &[0]].concat());
        let header = attribute_of(A_COALESCE_HEADER | libc::NLA_F_NESTED as u16, &name);
        // struct genlmsghdr: cmd, version, reserved.
        Self([&[MSG_COALESCE_GET, VERSION, 0, 0][..], &header].concat())
    }
}

fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
    // A device's name is at most 15 bytes.
    let len = (4 + value.len()) as u16;
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

impl NetlinkRequest for CoalesceGet {
    type ReplyType<'a> = &'a [u8];

    fn protocol(&self) -> Protocol {
        Protocol::Generic(b"ethtool")
    }

    fn flags(&self) -> u16 {
        0
    }

    fn payload(&self) -> &[u8] {
        &self.0
    }

    /// The attributes, behind the struct genlmsghdr.
    fn decode_reply(reply: &[u8]) -> &[u8] {
        reply.get(4..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_named_within_a_header() {
        let CoalesceGet(bytes) = CoalesceGet::of("eth0");
        assert_eq!(bytes[..4], [19, 1, 0, 0]);
        assert_eq!(bytes.len() % 4, 0);
        let header = attribute(&bytes[4..], A_COALESCE_HEADER | libc::NLA_F_NESTED as u16);
        let name = attribute(header.unwrap(), A_HEADER_DEV_NAME);
        assert_eq!(name, Some(b"eth0\0".as_slice()));
    }
}
