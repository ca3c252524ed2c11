//! ICMP for IPv4 (RFC 792).
//!
//! Owns the bytes of echoes and errors. Inet decides when an error may be sent (RFC 1122 section
//! 3.2.2) and which socket gets a received one.

use super::checksum::{self, Sum};
use super::{Error, Result, be16, ipv4, put16, put32};

/// Bytes of a header: the first 8 bytes of every message here.
pub const HEADER_LEN: usize = 8;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type(pub u8);

impl Type {
    /// The reply to a ping.
    pub const ECHO_REPLY: Type = Type(0);
    /// A packet could not be delivered; the [`code`] says why.
    pub const UNREACHABLE: Type = Type(3);
    /// A ping.
    pub const ECHO_REQUEST: Type = Type(8);
    /// Too many hops, or missing fragments.
    pub const TIME_EXCEEDED: Type = Type(11);
    /// A header field that could not be processed.
    pub const PARAMETER_PROBLEM: Type = Type(12);

    /// Whether this is one of the errors above, which quote the packet they are about.
    #[inline]
    #[must_use]
    pub fn is_error(self) -> bool {
        matches!(self, Self::UNREACHABLE | Self::TIME_EXCEEDED | Self::PARAMETER_PROBLEM)
    }
}

/// The codes of the errors (RFC 792, RFC 1122 section 3.2.2.1, RFC 1812 section 5.2.7.1).
pub mod code {
    /// Unreachable: no route to the network.
    pub const NET_UNREACHABLE: u8 = 0;
    /// Unreachable: the host does not answer.
    pub const HOST_UNREACHABLE: u8 = 1;
    /// Unreachable: the host does not support the protocol.
    pub const PROTOCOL_UNREACHABLE: u8 = 2;
    /// Unreachable: no socket is bound to the port.
    pub const PORT_UNREACHABLE: u8 = 3;
    /// Unreachable: too big for the next hop, and DF is set.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Unreachable: the network is administratively prohibited.
    pub const NET_PROHIBITED: u8 = 9;
    /// Time exceeded: a fragment is missing.
    pub const REASSEMBLY_EXCEEDED: u8 = 1;
}

/// The messages of both ICMPs, as far as they are alike.
macro_rules! message {
    () => {
        /// A view of a message.
        #[derive(Debug, Clone, Copy)]
        pub struct Packet<T>(T);

        impl<T: AsRef<[u8]>> Packet<T> {
            /// Checks that the header is complete. The message is as long as the buffer, an IP payload.
            ///
            /// # Errors
            /// [`Error::Truncated`].
            #[inline]
            pub fn new_checked(buf: T) -> Result<Packet<T>> {
                if buf.as_ref().len() < HEADER_LEN {
                    return Err(Error::Truncated);
                }
                Ok(Packet(buf))
            }

            /// The type of the message.
            #[inline]
            pub fn kind(&self) -> Type {
                Type(self.0.as_ref()[0])
            }

            /// The code within the type; see [`code`].
            #[inline]
            pub fn code(&self) -> u8 {
                self.0.as_ref()[1]
            }

            /// The checksum field.
            #[inline]
            pub fn checksum(&self) -> u16 {
                be16(self.0.as_ref(), 2)
            }

            /// The identifier of an echo; meaningless in other messages.
            #[inline]
            pub fn ident(&self) -> u16 {
                be16(self.0.as_ref(), 4)
            }

            /// The sequence number of an echo; meaningless in other messages.
            #[inline]
            pub fn sequence(&self) -> u16 {
                be16(self.0.as_ref(), 6)
            }
        }

        impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
            /// The bytes after the header: an echo's data or the quoted packet.
            #[inline]
            pub fn payload(&self) -> &'a [u8] {
                &self.0.as_ref()[HEADER_LEN..]
            }
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
            /// Writes an echo's header. The message is as long as the buffer; call
            /// [`Packet::fill_checksum`] when the data is in place.
            ///
            /// # Errors
            /// [`Error::Truncated`] if the buffer is too short for the header.
            #[inline]
            pub fn init_echo(buf: T, kind: Type, ident: u16, sequence: u16) -> Result<Packet<T>> {
                let rest = u32::from(ident) << 16 | u32::from(sequence);
                Self::init(buf, kind, 0, rest)
            }

            #[inline]
            pub(super) fn init(mut buf: T, kind: Type, code: u8, rest: u32) -> Result<Packet<T>> {
                let b = buf.as_mut();
                if b.len() < HEADER_LEN {
                    return Err(Error::Truncated);
                }
                b[0] = kind.0;
                b[1] = code;
                put16(b, 2, 0);
                put32(b, 4, rest);
                Ok(Packet(buf))
            }

            /// The bytes after the header, writable.
            #[inline]
            pub fn payload_mut(&mut self) -> &mut [u8] {
                &mut self.0.as_mut()[HEADER_LEN..]
            }

            /// Quotes as much of the packet that an error is about as fits in the buffer, which has room for `least`
            /// bytes of it.
            fn quote(&mut self, quote: &[u8], least: usize) -> Result<()> {
                let room = self.payload_mut();
                if room.len() < least {
                    return Err(Error::Truncated);
                }
                let len = room.len().min(quote.len());
                room[..len].copy_from_slice(&quote[..len]);
                // The message is as long as the buffer, so the rest after the quote is zeroed.
                room[len..].fill(0);
                Ok(())
            }
        }
    };
}
pub(super) use message;

message!();

impl<T: AsRef<[u8]>> Packet<T> {
    /// The next hop's MTU in a "fragmentation needed", bytes; `None` in any other message and from
    /// routers older than RFC 1191, which leave it 0. The caller must check it: any host may send
    /// 68 or less.
    #[inline]
    pub fn next_hop_mtu(&self) -> Option<u16> {
        match (self.kind(), self.code(), self.sequence()) {
            (_, _, 0) => None,
            (Type::UNREACHABLE, code::FRAGMENTATION_NEEDED, mtu) => Some(mtu),
            _ => None,
        }
    }

    /// The offset in the quoted packet that a parameter problem is about.
    #[inline]
    pub fn pointer(&self) -> Option<u8> {
        // RFC 792: "If code = 0, identifies the octet where an error was detected."
        (self.kind() == Type::PARAMETER_PROBLEM && self.code() == 0).then(|| self.0.as_ref()[4])
    }

    /// Verifies the checksum, which covers the whole message.
    ///
    /// # Errors
    /// [`Error::BadChecksum`].
    #[inline]
    pub fn verify_checksum(&self) -> Result<()> {
        if Sum::of(self.0.as_ref()).is_intact() { Ok(()) } else { Err(Error::BadChecksum) }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
    /// The packet an error is about: one we sent, if the error is genuine. Its payload may be cut
    /// anywhere; [`udp::ports`](super::udp::ports) needs 4 bytes of it.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the message is no error; else as [`ipv4::Packet::new_quoted`].
    #[inline]
    pub fn quoted(&self) -> Result<ipv4::Packet<&'a [u8]>> {
        if !self.kind().is_error() {
            return Err(Error::BadValue);
        }
        ipv4::Packet::new_quoted(self.payload())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes an error and its checksum. `rest` is the second half of the header: the next hop's
    /// MTU, or the pointer shifted left by 24, or 0. `quote` is the IP packet the error is about;
    /// as much of it is quoted as fits in the buffer.
    ///
    /// # Errors
    /// [`Error::Truncated`] unless there is room for all of `quote`, or for its header and 8 bytes
    /// more (RFC 792). As [`ipv4::Packet::new_quoted`] if `quote` is no IPv4 packet.
    pub fn init_error(buf: T, kind: Type, code: u8, rest: u32, quote: &[u8]) -> Result<Packet<T>> {
        let needed = (ipv4::Packet::new_quoted(quote)?.header_len() + 8).min(quote.len());
        let mut packet = Self::init(buf, kind, code, rest)?;
        packet.quote(quote, needed)?;
        packet.fill_checksum();
        Ok(packet)
    }

    /// Turns an echo request into its reply, in place: the data stays the same (RFC 1122 section
    /// 3.2.2.6), and a valid checksum stays valid.
    #[inline]
    pub fn turn_into_reply(&mut self) {
        let checksum = self.checksum();
        let b = self.0.as_mut();
        let old = be16(b, 0);
        b[0] = Type::ECHO_REPLY.0;
        b[1] = 0;
        // A reply of all zeroes needs a checksum of all ones, which `update` cannot tell. For
        // any other message 0 and 0xffff are equivalent.
        let checksum = match checksum::update(checksum, old, 0) {
            0 => 0xffff,
            c => c,
        };
        put16(b, 2, checksum);
    }

    /// Writes the checksum over the whole message.
    #[inline]
    pub fn fill_checksum(&mut self) {
        put16(self.0.as_mut(), 2, 0);
        let checksum = Sum::of(self.0.as_ref()).checksum();
        put16(self.0.as_mut(), 2, checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Protocol, udp};
    use super::*;
    use std::net::Ipv4Addr;

    // `ping -c1 -s16`, request and reply, from Linux 6.18.
    #[rustfmt::skip]
    const REQUEST: [u8; 24] = [
        0x08, 0x00, 0x64, 0xb2, 0x22, 0x96, 0x00, 0x01, 0xda, 0x1e, 0x00, 0x6b,
        0x00, 0x00, 0x00, 0x00, 0x8b, 0x2c, 0x0b, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];
    const REPLY_START: [u8; 8] = [0x00, 0x00, 0x6c, 0xb2, 0x22, 0x96, 0x00, 0x01];

    // Linux 6.18: port 7 unreachable, quoting "hello" from 10.9.0.1:4000 to 10.9.0.2:7.
    #[rustfmt::skip]
    const UNREACHABLE: [u8; 41] = [
        0x03, 0x03, 0x95, 0x43, 0x00, 0x00, 0x00, 0x00, 0x45, 0x00, 0x00, 0x21, 0x9e, 0xb7,
        0x40, 0x00, 0x40, 0x11, 0x88, 0x00, 0x0a, 0x09, 0x00, 0x01, 0x0a, 0x09, 0x00, 0x02,
        0x0f, 0xa0, 0x00, 0x07, 0x00, 0x0d, 0x14, 0x33, 0x68, 0x65, 0x6c, 0x6c, 0x6f,
    ];

    #[test]
    fn an_echo_is_read_and_written() {
        let echo = Packet::new_checked(&REQUEST).unwrap();
        assert_eq!((echo.kind(), echo.code()), (Type::ECHO_REQUEST, 0));
        assert_eq!((echo.ident(), echo.sequence()), (0x2296, 1));
        assert_eq!(echo.payload(), &REQUEST[8..]);
        echo.verify_checksum().unwrap();
        assert_eq!(echo.quoted().err(), Some(Error::BadValue));
        assert_eq!((echo.next_hop_mtu(), echo.pointer()), (None, None));

        let mut buf = [0; 24];
        let mut written = Packet::init_echo(&mut buf, Type::ECHO_REQUEST, 0x2296, 1).unwrap();
        written.payload_mut().copy_from_slice(&REQUEST[8..]);
        written.fill_checksum();
        assert_eq!(buf, REQUEST);
    }

    #[test]
    fn a_request_becomes_the_reply_that_linux_sends() {
        let mut bytes = REQUEST;
        Packet::new_checked(&mut bytes).unwrap().turn_into_reply();
        assert_eq!(bytes, *[&REPLY_START[..], &REQUEST[8..]].concat());
        Packet::new_checked(&bytes).unwrap().verify_checksum().unwrap();
    }

    #[test]
    fn a_reply_of_all_zeroes_has_a_valid_checksum() {
        let mut bytes = [0; 16];
        let mut echo = Packet::init_echo(&mut bytes, Type::ECHO_REQUEST, 0, 0).unwrap();
        echo.fill_checksum();
        echo.turn_into_reply();
        assert_eq!(echo.checksum(), 0xffff);
        echo.verify_checksum().unwrap();
    }

    #[test]
    fn an_error_and_its_quote_are_read() {
        let error = Packet::new_checked(&UNREACHABLE).unwrap();
        error.verify_checksum().unwrap();
        assert_eq!((error.kind(), error.code()), (Type::UNREACHABLE, code::PORT_UNREACHABLE));
        assert!(error.kind().is_error());
        let quoted = error.quoted().unwrap();
        assert_eq!(quoted.src(), Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(quoted.dst(), Ipv4Addr::new(10, 9, 0, 2));
        assert_eq!(quoted.protocol(), Protocol::UDP);
        assert_eq!(udp::ports(quoted.payload()), Ok((4000, 7)));

        // The minimum of RFC 792: the header and 8 bytes.
        let least = Packet::new_checked(&UNREACHABLE[..36]).unwrap();
        assert_eq!(udp::ports(least.quoted().unwrap().payload()), Ok((4000, 7)));
        let less = Packet::new_checked(&UNREACHABLE[..27]).unwrap();
        assert_eq!(less.quoted().err(), Some(Error::Truncated));
    }

    #[test]
    fn the_same_error_is_written() {
        let mut buf = [0xee; 41];
        let (kind, code) = (Type::UNREACHABLE, code::PORT_UNREACHABLE);
        Packet::init_error(&mut buf, kind, code, 0, &UNREACHABLE[8..]).unwrap();
        assert_eq!(buf, UNREACHABLE);

        let mut init = |room: usize, quote: &[u8]| {
            Packet::init_error(&mut buf[..room], kind, code, 0, quote).err()
        };
        assert_eq!(init(36, &UNREACHABLE[8..]), None);
        assert_eq!(init(35, &UNREACHABLE[8..]), Some(Error::Truncated));
        assert_eq!(init(30, &UNREACHABLE[8..30]), None); // a quoted packet of 22 bytes only
        assert_eq!(init(41, &REQUEST), Some(Error::BadVersion));
        assert_eq!(init(7, &UNREACHABLE[8..]), Some(Error::Truncated));
    }

    #[test]
    fn mtu_and_pointer_are_read_only_in_messages_that_have_them() {
        let mut buf = [0; 36];
        let quote = &UNREACHABLE[8..36];
        let mut init = |kind, code, rest| {
            let p = Packet::init_error(&mut buf, kind, code, rest, quote).unwrap();
            p.verify_checksum().unwrap();
            (p.next_hop_mtu(), p.pointer())
        };
        let needed = code::FRAGMENTATION_NEEDED;
        assert_eq!(init(Type::UNREACHABLE, needed, 1400), (Some(1400), None));
        assert_eq!(init(Type::UNREACHABLE, needed, 0), (None, None));
        assert_eq!(init(Type::UNREACHABLE, code::HOST_UNREACHABLE, 1400), (None, None));
        assert_eq!(init(Type::PARAMETER_PROBLEM, 0, 9 << 24), (None, Some(9)));
        assert_eq!(init(Type::PARAMETER_PROBLEM, 1, 9 << 24), (None, None));
    }
}
