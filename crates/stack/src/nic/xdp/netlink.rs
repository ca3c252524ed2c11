//! Netlink messages (RFC 3549; include/uapi/linux/netlink.h): a socket, a request, and readers that
//! accept any bytes. Owns the wire format. The callers interpret the messages: [`device`] here, the kernel's
//! tables in `inet::kernel`, the firewall's in `host`.
//!
//! [`device`]: super::device

use crate::{
    sync::{self, Mutex},
    sys,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Large enough for any datagram of the kernel (`NLMSG_GOODSIZE`, dumps up to 32 KiB).
const BUFFER: usize = 64 * 1024;

/// A message being written: header, family header, attributes.
#[derive(Clone)]
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// A request of type `kind` with the family's fixed `header`.
    pub(crate) fn new(kind: u16, header: &[u8]) -> Request {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(header);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Request(bytes)
    }

    fn add_flags(mut self, flags: u16) -> Request {
        let old = u16::from_ne_bytes([self.0[6], self.0[7]]);
        self.0[6..8].copy_from_slice(&(old | flags).to_ne_bytes());
        self
    }

    /// Asks for everything (NLM_F_DUMP).
    pub(crate) fn dump(self) -> Request {
        self.add_flags(NLM_F_DUMP)
    }

    /// Sets further header flags, NLM_F_CREATE and the like.
    pub(crate) fn flags(self, flags: u16) -> Request {
        self.add_flags(flags)
    }

    /// Appends an attribute.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        let length = (value.len() + 4) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[0..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

/// A received message.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    /// RTM_*, NFT_MSG_*.
    pub(crate) kind: u16,
    flags: u16,
    sequence: u32,
    /// Family header and attributes.
    pub(crate) payload: &'a [u8],
}

impl<'a> Message<'a> {
    #[cfg(test)]
    pub(crate) fn of(kind: u16, payload: &'a [u8]) -> Message<'a> {
        Message { kind, flags: 0, sequence: 0, payload }
    }

    /// The attributes behind a family header of `header` bytes.
    pub(crate) fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes(self.payload.get(header.next_multiple_of(4)..).unwrap_or_default())
    }
}

/// Walks over attributes; ends at the first that does not fit.
#[derive(Clone)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes nested in another's value.
    pub(crate) fn nested(value: &'a [u8]) -> Attributes<'a> {
        Attributes(value)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.0, 0)?);
        // NLA_F_NESTED and NLA_F_NET_BYTEORDER are no part of the type.
        let kind = u16_at(self.0, 2)? & 0x3fff;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// The 16 bits at `offset`, in the machine's order.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..)?.first_chunk().copied()?))
}

/// The 32 bits at `offset`, in the machine's order.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..)?.first_chunk().copied()?))
}

/// The messages of one datagram.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let message = Message {
            kind: u16_at(self.0, 4)?,
            flags: u16_at(self.0, 6)?,
            sequence: u32_at(self.0, 8)?,
            payload: self.0.get(HEADER..length)?,
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

/// A netlink socket for requests.
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a route netlink socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Socket> {
        Socket::of(libc::NETLINK_ROUTE)
    }

    /// The same for another `protocol` (NETLINK_*).
    pub(crate) fn of(protocol: libc::c_int) -> io::Result<Socket> {
        Ok(Socket { fd: open(protocol)?, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends `request` and hands every message of the answer to `each`.
    ///
    /// # Errors
    /// The kernel's error; `Interrupted` if the tables changed during a dump: request it again.
    pub(crate) fn request(
        &mut self,
        request: Request,
        each: &mut dyn FnMut(Message<'_>),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence);
        // SAFETY: a live buffer and its length.
        let sent = unsafe {
            libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL)
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut interrupted = false;
        loop {
            let length = match receive(self.fd.as_fd(), &mut self.buffer, 0) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            for message in Messages(&self.buffer[..length]) {
                if message.sequence != self.sequence {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_ERROR | NLMSG_DONE => {
                        let errno = u32_at(message.payload, 0).unwrap_or(0) as i32;
                        return match errno {
                            0 if interrupted => Err(io::ErrorKind::Interrupted.into()),
                            0 => Ok(()),
                            _ => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
                        };
                    }
                    _ => each(message),
                }
            }
        }
    }
}

/// The messages of multicast groups. The buffer has its own lock, so that a thread can wait for the descriptor
/// while another reads.
pub(crate) struct Announcements {
    fd: OwnedFd,
    buffer: Mutex<Vec<u8>>,
}

impl Announcements {
    /// Listens to the route netlink `groups` (RTNLGRP_*) of the calling thread's network namespace.
    pub(crate) fn open(groups: &[u32]) -> io::Result<Announcements> {
        let fd = open(libc::NETLINK_ROUTE)?;
        for group in groups {
            // SAFETY: the option takes an int of this size.
            let joined = unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_NETLINK,
                    libc::NETLINK_ADD_MEMBERSHIP,
                    std::ptr::from_ref(group).cast(),
                    4,
                )
            };
            if joined != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Announcements { fd, buffer: Mutex::new(vec![0; BUFFER]) })
    }

    /// Hands all messages so far to `each`, in order and for one caller at a time. Does not wait for more.
    ///
    /// # Errors
    /// `ENOBUFS` if announcements were lost: dump again.
    pub(crate) fn drain(&self, each: &mut dyn FnMut(Message<'_>)) -> io::Result<()> {
        let mut buffer = sync::lock(&self.buffer);
        loop {
            let length = match receive(self.fd.as_fd(), &mut buffer, libc::MSG_DONTWAIT) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            Messages(&buffer[..length]).for_each(&mut *each);
        }
    }
}

impl AsFd for Announcements {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open(protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = sys::owned(unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol)
    })?;
    // The socket needs an address: without one it receives no multicast messages (do_one_broadcast, af_netlink.c).
    // SAFETY: all zeros is a valid sockaddr_nl: the kernel chooses.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: a valid address of that length.
    match unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: a live buffer and its length.
    let length =
        unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_walked_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for message in Messages(&bytes) {
                let walked: usize = message.attributes(12).map(|(_, value)| value.len()).sum();
                prop_assert!(walked <= bytes.len());
            }
        }
    }

    #[test]
    fn a_written_message_is_parsed_back() {
        let bytes = Request::new(18, &[1, 2, 3, 4]).attribute(3, b"eth0\0").finish(7);
        let message = Messages(&bytes).next().unwrap();
        assert_eq!((message.kind, message.sequence), (18, 7));
        let attributes: Vec<_> = message.attributes(4).collect();
        assert_eq!(attributes, [(3, &b"eth0\0"[..])]);
    }

    /// A length of zero must not make the iterator loop for ever.
    #[test]
    fn a_length_of_zero_ends_the_walk() {
        assert_eq!(Attributes(&[0; 16]).count(), 0);
        assert_eq!(Messages(&[0; 64]).count(), 0);
    }
}
