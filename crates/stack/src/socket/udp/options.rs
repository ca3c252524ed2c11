//! The options of UDP sockets: the values of those that are not about waiting, and the calls.

use super::UdpSocket;
use crate::{
    host::Companion,
    inet::{BindOptions, PathOptions, PmtuDiscover},
    socket::options::*,
    sync::lock,
};
use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed},
};

/// The option values of a socket.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) receive_buffer: AtomicU32,
    pub(super) send_buffer: AtomicU32,
    reuse_address: AtomicBool,
    reuse_port: AtomicBool,
    only_v6: AtomicBool,
    broadcast: AtomicBool,
    ttl: AtomicU8,
    tos: AtomicU8,
    mtu_discover: AtomicU8,
}

impl Options {
    pub(super) fn new() -> Options {
        let path = PathOptions::default();
        Options {
            receive_buffer: AtomicU32::new(BUFFER),
            send_buffer: AtomicU32::new(BUFFER),
            reuse_address: AtomicBool::new(false),
            reuse_port: AtomicBool::new(false),
            only_v6: AtomicBool::new(false),
            broadcast: AtomicBool::new(path.broadcast),
            ttl: AtomicU8::new(path.ttl),
            tos: AtomicU8::new(path.tos),
            mtu_discover: AtomicU8::new(PmtuDiscover::WANT.number()),
        }
    }

    /// The options for binding.
    pub(super) fn bind(&self) -> BindOptions {
        BindOptions {
            reuse_address: self.reuse_address.load(Relaxed),
            reuse_port: self.reuse_port.load(Relaxed),
            only_v6: self.only_v6.load(Relaxed),
        }
    }

    pub(super) fn broadcast(&self) -> bool {
        self.broadcast.load(Relaxed)
    }

    pub(super) fn discover(&self) -> PmtuDiscover {
        PmtuDiscover::new(self.mtu_discover.load(Relaxed)).unwrap_or(PmtuDiscover::WANT)
    }

    /// The options for the path of a datagram.
    pub(super) fn path(&self) -> PathOptions {
        PathOptions {
            broadcast: self.broadcast(),
            discover: self.discover(),
            ttl: self.ttl.load(Relaxed),
            tos: self.tos.load(Relaxed),
            link: 0,
        }
    }

    /// # Errors
    /// ENOPROTOOPT for a name that is unknown or read only, EINVAL for a value out of range.
    pub(super) fn set(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let within = |range: std::ops::RangeInclusive<u8>| {
            let good = u8::try_from(value).ok().filter(|good| range.contains(good));
            good.ok_or_else(|| errno(libc::EINVAL))
        };
        match (level, name) {
            (SOL_SOCKET, SO_RCVBUF) => self.receive_buffer.store(at_least(1, value)?, Relaxed),
            (SOL_SOCKET, SO_SNDBUF) => self.send_buffer.store(at_least(1, value)?, Relaxed),
            (SOL_SOCKET, SO_REUSEADDR) => self.reuse_address.store(value != 0, Relaxed),
            (SOL_SOCKET, SO_REUSEPORT) => self.reuse_port.store(value != 0, Relaxed),
            (SOL_SOCKET, SO_BROADCAST) => self.broadcast.store(value != 0, Relaxed),
            (IPPROTO_IPV6, IPV6_V6ONLY) => self.only_v6.store(value != 0, Relaxed),
            (IPPROTO_IP, IP_TTL) | (IPPROTO_IPV6, IPV6_UNICAST_HOPS) if value == -1 => {
                self.ttl.store(PathOptions::default().ttl, Relaxed);
            }
            (IPPROTO_IP, IP_TTL) | (IPPROTO_IPV6, IPV6_UNICAST_HOPS) => {
                self.ttl.store(within(1..=255)?, Relaxed);
            }
            // RFC 3542 section 6.5: "use kernel default".
            (IPPROTO_IPV6, IPV6_TCLASS) if value == -1 => self.tos.store(0, Relaxed),
            // Linux uses the lowest byte of any value.
            (IPPROTO_IP, IP_TOS) | (IPPROTO_IPV6, IPV6_TCLASS) => {
                self.tos.store(value as u8, Relaxed);
            }
            (IPPROTO_IP, IP_MTU_DISCOVER) | (IPPROTO_IPV6, IPV6_MTU_DISCOVER) => {
                self.mtu_discover.store(within(0..=PmtuDiscover::OMIT.number())?, Relaxed);
            }
            _ => return Err(errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    /// # Errors
    /// ENOPROTOOPT for an unknown name.
    pub(super) fn get(&self, level: i32, name: i32) -> io::Result<u32> {
        Ok(match (level, name) {
            (SOL_SOCKET, SO_RCVBUF) => self.receive_buffer.load(Relaxed),
            (SOL_SOCKET, SO_SNDBUF) => self.send_buffer.load(Relaxed),
            (SOL_SOCKET, SO_REUSEADDR) => self.bind().reuse_address.into(),
            (SOL_SOCKET, SO_REUSEPORT) => self.bind().reuse_port.into(),
            (SOL_SOCKET, SO_BROADCAST) => self.broadcast().into(),
            (IPPROTO_IPV6, IPV6_V6ONLY) => self.bind().only_v6.into(),
            (IPPROTO_IP, IP_TTL) | (IPPROTO_IPV6, IPV6_UNICAST_HOPS) => {
                self.ttl.load(Relaxed).into()
            }
            (IPPROTO_IP, IP_TOS) | (IPPROTO_IPV6, IPV6_TCLASS) => self.tos.load(Relaxed).into(),
            (IPPROTO_IP, IP_MTU_DISCOVER) | (IPPROTO_IPV6, IPV6_MTU_DISCOVER) => {
                self.mtu_discover.load(Relaxed).into()
            }
            _ => return Err(errno(libc::ENOPROTOOPT)),
        })
    }
}

impl UdpSocket {
    fn with_companion<T>(&self, of: impl FnOnce(&Companion) -> io::Result<T>) -> io::Result<T> {
        let bound = lock(&self.0.binding);
        let kernel = bound.as_ref().and_then(|bound| bound.kernel.as_ref());
        kernel.map_or_else(|| Err(errno(libc::ENOPROTOOPT)), of)
    }

    /// Sets an option of [`options`](crate::options) by its Linux names.
    ///
    /// # Errors
    /// ENOPROTOOPT for one that is unknown or read only, EINVAL for a value out of range.
    pub fn setsockopt(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let endpoint = &self.0.endpoint;
        if level == SOL_SOCKET
            && let Some(result) = endpoint.waiting.set(name, value)
        {
            return result;
        }
        if (level, name) == (SOL_SOCKET, libc::SO_PRIORITY) {
            return self.with_companion(|kernel| kernel.set_priority(value));
        }
        let before = endpoint.options.path();
        endpoint.options.set(level, name, value)?;
        let after = endpoint.options.path();
        if after != before {
            let bound = lock(&self.0.binding);
            if let Some(kernel) = bound.as_ref().and_then(|bound| bound.kernel.as_ref()) {
                kernel.set_options(&after)?;
            }
            drop(bound);
            self.0.forget_paths();
        }
        Ok(())
    }

    /// Reads an option of [`options`](crate::options) by its Linux names.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown one.
    pub fn getsockopt(&self, level: i32, name: i32) -> io::Result<i32> {
        let endpoint = &self.0.endpoint;
        Ok(match (level, name) {
            (SOL_SOCKET, SO_INCOMING_NAPI_ID) => {
                self.incoming_napi_id().map_or(0, |id| id.get().cast_signed())
            }
            (SOL_SOCKET, SO_ERROR) => endpoint.take_error().unwrap_or(0),
            (SOL_SOCKET, SO_DOMAIN) => domain(self.local_addr()?),
            (SOL_SOCKET, SO_TYPE) => libc::SOCK_DGRAM,
            (SOL_SOCKET, SO_PROTOCOL) => libc::IPPROTO_UDP,
            (SOL_SOCKET, SO_ACCEPTCONN) => 0,
            (SOL_SOCKET, libc::SO_PRIORITY) => self.with_companion(Companion::priority)?,
            _ => {
                let own = (level == SOL_SOCKET).then(|| endpoint.waiting.get(name)).flatten();
                let value = own.map_or_else(|| endpoint.options.get(level, name), Ok)?;
                i32::try_from(value).unwrap_or(i32::MAX)
            }
        })
    }

    /// `SO_BROADCAST`: datagrams may be sent to broadcast addresses.
    ///
    /// # Errors
    /// The kernel's errors, on a shared interface.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.setsockopt(SOL_SOCKET, SO_BROADCAST, on.into())
    }

    /// `SO_BROADCAST`.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(self.0.endpoint.options.broadcast())
    }

    /// `IP_TTL` and `IPV6_UNICAST_HOPS`, one option here: the time to live of datagrams sent, 1 to 255.
    ///
    /// # Errors
    /// EINVAL out of that range.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = i32::try_from(ttl).map_err(|_| errno(libc::EINVAL))?;
        self.setsockopt(IPPROTO_IP, IP_TTL, ttl)
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.0.endpoint.options.path().ttl.into())
    }

    /// `IPV6_V6ONLY`: a socket bound to `[::]` does not receive IPv4. Before [`bind_to`](UdpSocket::bind_to).
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn set_only_v6(&self, on: bool) -> io::Result<()> {
        self.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, on.into())
    }
}
