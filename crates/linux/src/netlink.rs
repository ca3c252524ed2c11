//! One request and its replies over a netlink socket. Handles framing, acknowledgements and errors; the
//! callers interpret the payload.
//!
//! Kernel source: `net/netlink/af_netlink.c`, `Documentation/userspace-api/netlink/intro.rst`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use netlink_bindings::nlctrl;
use netlink_bindings::traits::{NetlinkRequest, Protocol};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::error::Error;
use crate::sys;

const HEADER: usize = 16;
/// An error number, then the header of the request it answers.
const ERROR_BODY: usize = 4 + HEADER;
// Dumps come in messages of at most 32 KiB; a single large device can need more than a page.
const BUFFER: usize = 64 << 10;

/// A netlink socket, in the network namespace it was opened in.
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// The kernel's refusal of a request.
#[derive(Debug)]
pub(crate) struct Refused {
    errno: Option<i32>,
    source: io::Error,
    /// The kernel's own explanation (extended acknowledgement).
    message: Option<String>,
}

impl Refused {
    pub(crate) fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// As an error of this crate, if the caller has no more specific one.
    pub(crate) fn into_error(self, doing: impl Into<String>) -> Error {
        let mut doing = doing.into();
        if let Some(message) = self.message {
            doing = format!("{doing}: {message}");
        }
        Error::os(doing, self.source)
    }
}

impl From<io::Error> for Refused {
    fn from(source: io::Error) -> Self {
        Refused { errno: source.raw_os_error(), source, message: None }
    }
}

impl From<rustix::io::Errno> for Refused {
    fn from(e: rustix::io::Errno) -> Self {
        io::Error::from(e).into()
    }
}

impl Socket {
    pub(crate) fn route() -> io::Result<Self> {
        // NETLINK_ROUTE is protocol 0, the default.
        Self::open(None)
    }

    /// A generic netlink socket, and the message type of the family of that name.
    pub(crate) fn generic(family: &'static std::ffi::CStr) -> Result<(Self, u16), Refused> {
        let mut socket = Self::open(Some(net::netlink::GENERIC))?;
        let mut request = nlctrl::Request::new().op_getfamily_do();
        request.encode().push_family_name(family);
        let mut id = None;
        socket.request(&request, libc::GENL_ID_CTRL as u16, |reply| {
            id = reply.get_family_id().ok()
        })?;
        let id = id.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok((socket, id))
    }

    fn open(protocol: Option<net::Protocol>) -> io::Result<Self> {
        let fd = net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            sys::set_option(fd.as_fd(), libc::SOL_NETLINK, option, 1)?;
        }
        Ok(Socket { fd, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends a request of the generated bindings and passes every reply to `each`. `family` is the message
    /// type of a generic netlink request, which the bindings do not know.
    pub(crate) fn request<R: NetlinkRequest>(
        &mut self,
        request: &R,
        family: u16,
        mut each: impl for<'a> FnMut(R::ReplyType<'a>),
    ) -> Result<(), Refused> {
        let kind = match request.protocol() {
            Protocol::Raw { request_type, .. } => request_type,
            Protocol::Generic(_) => family,
        };
        let flags = request.flags() | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        self.sequence = self.sequence.wrapping_add(1);
        let payload = request.payload();
        let mut message = Vec::with_capacity(HEADER + payload.len());
        message.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(payload);
        rustix::io::retry_on_intr(|| net::send(&self.fd, &message, SendFlags::empty()))?;
        loop {
            let (_, len) = rustix::io::retry_on_intr(|| {
                net::recv(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC)
            })?;
            let Some(received) = self.buffer.get(..len) else {
                return Err(io::Error::from_raw_os_error(libc::EMSGSIZE).into());
            };
            for message in Messages(received) {
                // Replies left over from a request that failed half-way.
                if message.sequence != self.sequence {
                    continue;
                }
                match i32::from(message.kind) {
                    libc::NLMSG_DONE | libc::NLMSG_ERROR => return message.outcome(),
                    libc::NLMSG_NOOP => {}
                    _ => each(R::decode_reply(message.body)),
                }
            }
        }
    }
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

impl Message<'_> {
    /// The result of a message that ends a request: an acknowledgement (error 0), a refusal, or the end of a dump,
    /// which can be a refusal too.
    fn outcome(&self) -> Result<(), Refused> {
        let code = match self.body.first_chunk() {
            Some(code) => i32::from_ne_bytes(*code),
            None => return Err(io::Error::from_raw_os_error(libc::EBADMSG).into()),
        };
        if code == 0 {
            return Ok(());
        }
        // An error message repeats the request's header (only that, with NETLINK_CAP_ACK); a done message does not.
        let skip = if i32::from(self.kind) == libc::NLMSG_ERROR { ERROR_BODY } else { 4 };
        const NLMSGERR_ATTR_MSG: u16 = 1;
        let message = attribute(self.body.get(skip..).unwrap_or_default(), NLMSGERR_ATTR_MSG)
            .map(|m| String::from_utf8_lossy(m).trim_end_matches('\0').to_string());
        let errno = code.wrapping_neg();
        Err(Refused { errno: Some(errno), source: io::Error::from_raw_os_error(errno), message })
    }
}

/// The messages of one receive; stops at the first incomplete one.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = u32::from_ne_bytes(*self.0.first_chunk()?) as usize;
        let whole = self.0.get(..len)?;
        let (header, body) = whole.split_at_checked(HEADER)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        let sequence = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        Some(Message { kind: u16::from_ne_bytes([header[4], header[5]]), sequence, body })
    }
}

/// The value of the first attribute of that type.
pub(crate) fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((header, rest)) = attributes.split_at_checked(4) {
        let len = u16::from_ne_bytes([header[0], header[1]]) as usize;
        let value = rest.get(..len.checked_sub(4)?)?;
        if u16::from_ne_bytes([header[2], header[3]]) == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(kind: i32, body: &[u8]) -> Vec<u8> {
        let mut m = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        m.extend((kind as u16).to_ne_bytes());
        m.extend([0; 2 + 4 + 4]);
        m.extend(body);
        m
    }

    #[test]
    fn a_dump_that_ends_in_an_error_is_a_refusal() {
        let body = (-libc::ENODEV).to_ne_bytes();
        let framed = framed(libc::NLMSG_DONE, &body);
        let refused = Messages(&framed).next().unwrap().outcome().unwrap_err();
        assert_eq!(refused.errno(), Some(libc::ENODEV));
    }

    #[test]
    fn the_kernels_explanation_is_passed_on() {
        let mut body = (-libc::ERANGE).to_ne_bytes().to_vec();
        body.extend([0; HEADER]);
        body.extend([8u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat());
        body.extend(b"bad\0");
        let framed = framed(libc::NLMSG_ERROR, &body);
        let error = Messages(&framed).next().unwrap().outcome().unwrap_err().into_error("napi-set");
        assert!(error.to_string().starts_with("napi-set: bad: "), "{error}");
    }

    #[test]
    fn cut_messages_and_attributes_end_the_walk() {
        let whole = framed(libc::NLMSG_DONE, &0i32.to_ne_bytes());
        for cut in 0..whole.len() {
            assert!(Messages(&whole[..cut]).next().is_none());
        }
        assert!(Messages(&[0; 64]).next().is_none(), "a length of zero");
        let attributes = [8, 0, 6, 0, 1, 2, 3, 4];
        assert_eq!(attribute(&attributes, 6), Some([1, 2, 3, 4].as_slice()));
        for cut in 0..attributes.len() {
            assert_eq!(attribute(&attributes[..cut], 6), None);
        }
        assert_eq!(attribute(&[0; 16], 6), None, "a length of zero");
    }
}
