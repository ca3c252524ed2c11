//! IPv6 extension headers (RFC 8200 section 4).
//!
//! Owns the way from the fixed header to what a packet carries: which headers are passed over,
//! which packets are refused and what their sender is told. Putting fragments together is inet's
//! business; so is whether it knows the protocol that is found.

use std::net::Ipv6Addr;

use super::{Error, Protocol, Result, be16, be32, icmpv6, ipv6, put16, put32, tcp, udp};
use icmpv6::code;

/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;
/// The most extension headers one packet may have: RFC 8200 section 4.1 needs six.
pub const MAX_HEADERS: usize = 8;
/// The most options in one header, padding apart (RFC 8504 section 5.3: "SHOULD be 8").
pub const MAX_OPTIONS: usize = 8;
/// The most padding in a row, bytes (RFC 8504 section 5.3).
pub const MAX_PADDING: usize = 7;

/// What a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// All of it.
    Whole(Upper<'a>),
    /// A part of it.
    Fragment(Fragment<'a>),
}

/// What stands behind the last extension header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upper<'a> {
    /// What the payload is. [`Protocol::NO_NEXT_HEADER`] is to be ignored; what inet does not
    /// know is answered with [`Upper::unknown`].
    pub protocol: Protocol,
    /// Where in the packet the byte is that named the protocol.
    pub named_at: usize,
    /// Where in the packet the payload begins.
    pub offset: usize,
    /// The payload.
    pub payload: &'a [u8],
}

impl Upper<'_> {
    /// What to tell the sender of a protocol nobody here knows (RFC 8200 section 4): "an ICMP
    /// Parameter Problem message […] with an ICMP Code value of 1".
    #[must_use]
    pub fn unknown(&self) -> Problem {
        Problem { code: code::UNRECOGNIZED_NEXT_HEADER, pointer: self.named_at as u32 }
    }
}

/// A part of a packet (RFC 8200 section 4.5). The whole is: the bytes before
/// [`Fragment::header_at`], the byte at [`Fragment::named_at`] replaced by [`Fragment::next`] and
/// the payload length set anew, then the data of all fragments in the order of their offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// What all fragments of one packet have in common, with the addresses.
    pub ident: u32,
    /// Where the data belongs, bytes from where the first fragment's data begins.
    pub offset: usize,
    /// Whether this is not the last.
    pub more: bool,
    /// What the data of the first fragment begins with.
    pub next: Protocol,
    /// Where in the packet the byte is that named the fragment header.
    pub named_at: usize,
    /// Where in the packet the fragment header begins.
    pub header_at: usize,
    /// The data: not empty; a multiple of 8 bytes if there is more.
    pub data: &'a [u8],
}

/// What the sender of a refused packet is told: an ICMPv6 parameter problem (RFC 4443 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// The code.
    pub code: u8,
    /// Which byte of the packet is at fault.
    pub pointer: u32,
}

/// Why a packet is to be discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The cause to count.
    pub error: Error,
    /// What to tell the sender. The rule that multicast packets are answered only with code 2
    /// (RFC 4443 section 2.4 (e.3)) is kept here already; the others of that section are inet's.
    pub problem: Option<Problem>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, problem: None }
    }
}

type Found<T> = std::result::Result<T, Refused>;

/// Walks a whole packet; `packet` is at least the fixed header.
#[inline]
pub(super) fn content(packet: &[u8], first: Protocol, dst: Ipv6Addr) -> Found<Content<'_>> {
    match first {
        Protocol::TCP | Protocol::UDP | Protocol::ICMPV6 => Ok(Content::Whole(Upper {
            protocol: first,
            named_at: 6,
            offset: ipv6::HEADER_LEN,
            payload: &packet[ipv6::HEADER_LEN..],
        })),
        _ => {
            let walk = Walk { packet, multicast: dst.is_multicast() };
            walk.from(first, 6, ipv6::HEADER_LEN)
        }
    }
}

struct Walk<'a> {
    packet: &'a [u8],
    multicast: bool,
}

impl<'a> Walk<'a> {
    /// From the header at `at`, which the byte at `named_at` calls `next`. Every round moves `at`
    /// on by 8 bytes or more.
    #[cold]
    fn from(&self, mut next: Protocol, mut named_at: usize, mut at: usize) -> Found<Content<'a>> {
        for headers in 0.. {
            let rest = self.packet.get(at..).ok_or(Error::Truncated)?;
            let len = match next {
                // RFC 8200 section 4.1: hop-by-hop options are "restricted to appear immediately
                // after an IPv6 header only"; elsewhere they are an unrecognized next header.
                Protocol::HOP_BY_HOP if headers > 0 => {
                    return Err(self.refuse(code::UNRECOGNIZED_NEXT_HEADER, named_at));
                }
                Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS => {
                    let len = header_len(rest)?;
                    self.options(at + 2, at + len)?;
                    len
                }
                Protocol::ROUTING => {
                    let len = header_len(rest)?;
                    // No type is implemented, type 0 least of all (RFC 5095). Section 4.4: "If
                    // Segments Left is zero, the node must ignore the Routing header"; else
                    // "Code 0 […] pointing to the unrecognized Routing Type".
                    if rest[3] != 0 {
                        return Err(self.refuse(code::ERRONEOUS_FIELD, at + 2));
                    }
                    len
                }
                Protocol::FRAGMENT => {
                    let fragment = self.fragment(rest, named_at, at)?;
                    // RFC 6946: a fragment that is all of its packet has no others to wait for.
                    if fragment.offset != 0 || fragment.more {
                        return Ok(Content::Fragment(fragment));
                    }
                    FRAGMENT_LEN
                }
                protocol => {
                    let upper = Upper { protocol, named_at, offset: at, payload: rest };
                    return Ok(Content::Whole(upper));
                }
            };
            if headers == MAX_HEADERS {
                break;
            }
            next = Protocol(rest[0]);
            named_at = at;
            at += len;
        }
        Err(Error::BadExtension.into())
    }

    fn fragment(&self, rest: &'a [u8], named_at: usize, at: usize) -> Found<Fragment<'a>> {
        let data = rest.get(FRAGMENT_LEN..).ok_or(Error::Truncated)?;
        let word = be16(rest, 2);
        let (offset, more) = (usize::from(word & !7), word & 1 != 0);
        let next = Protocol(rest[0]);
        let f =
            Fragment { ident: be32(rest, 4), offset, more, next, named_at, header_at: at, data };
        let problem = |code, pointer| self.refuse_as(Error::BadFragment, code, pointer);
        if more && !data.len().is_multiple_of(8) {
            // "pointing to the Payload Length field of the fragment packet"
            return Err(problem(code::ERRONEOUS_FIELD, 4));
        }
        // What stands before the fragment header counts too.
        if at - ipv6::HEADER_LEN + offset + data.len() > ipv6::MAX_PAYLOAD {
            // "pointing to the Fragment Offset field of the fragment packet"
            return Err(problem(code::ERRONEOUS_FIELD, at + 2));
        }
        if data.is_empty() && (more || offset != 0) {
            return Err(Error::BadFragment.into());
        }
        // RFC 8200 section 4.5: "If the first fragment does not include all headers through an
        // Upper-Layer header, then that fragment should be discarded and an ICMP Parameter
        // Problem, Code 3 […] with the Pointer field set to zero."
        if more && offset == 0 && !all_headers(next, data) {
            return Err(problem(code::INCOMPLETE_HEADER_CHAIN, 0));
        }
        Ok(f)
    }

    /// The options in `packet[from..to]` (RFC 8200 section 4.2).
    fn options(&self, from: usize, to: usize) -> Found<()> {
        let (mut at, mut known, mut padding) = (from, 0, 0);
        while at < to {
            let kind = self.packet[at];
            let len = match (kind, self.packet.get(at + 1)) {
                (PAD1, _) => 1,
                (_, Some(len)) if at + 1 < to => 2 + usize::from(*len),
                _ => return Err(Error::BadExtension.into()),
            };
            if at + len > to {
                return Err(Error::BadExtension.into());
            }
            if matches!(kind, PAD1 | PADN) {
                padding += len;
            } else {
                (known, padding) = (known + 1, 0);
                self.option(kind, at)?;
            }
            if padding > MAX_PADDING || known > MAX_OPTIONS {
                return Err(Error::BadExtension.into());
            }
            at += len;
        }
        Ok(())
    }

    /// None is implemented: the two high bits of the type say what becomes of the packet.
    fn option(&self, kind: u8, at: usize) -> Found<()> {
        match kind >> 6 {
            0b00 => Ok(()),
            0b01 => Err(Error::BadExtension.into()),
            // "regardless of whether or not the packet's Destination Address was a multicast
            // address, send an ICMP Parameter Problem, Code 2"
            0b10 => Err(refused(Error::BadExtension, code::UNRECOGNIZED_OPTION, at)),
            _ => Err(self.refuse(code::UNRECOGNIZED_OPTION, at)),
        }
    }

    fn refuse(&self, code: u8, pointer: usize) -> Refused {
        self.refuse_as(Error::BadExtension, code, pointer)
    }

    fn refuse_as(&self, error: Error, code: u8, pointer: usize) -> Refused {
        if self.multicast { error.into() } else { refused(error, code, pointer) }
    }
}

const PAD1: u8 = 0;
const PADN: u8 = 1;

fn refused(error: Error, code: u8, pointer: usize) -> Refused {
    Refused { error, problem: Some(Problem { code, pointer: pointer as u32 }) }
}

/// Bytes of a header that states its length in units of 8, not counting the first, if all of it
/// is there.
fn header_len(rest: &[u8]) -> Result<usize> {
    let len = rest.get(1).map(|len| (usize::from(*len) + 1) * 8);
    len.filter(|len| *len <= rest.len()).ok_or(Error::Truncated)
}

/// Whether the data of a first fragment reaches as far as a header that is not an extension's,
/// and holds that too, if its length is known here.
fn all_headers(mut next: Protocol, mut data: &[u8]) -> bool {
    for _ in 0..MAX_HEADERS {
        let len = match next {
            Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS | Protocol::ROUTING => {
                header_len(data).ok()
            }
            Protocol::FRAGMENT => Some(FRAGMENT_LEN),
            Protocol::TCP => return data.len() >= tcp::HEADER_LEN,
            Protocol::UDP => return data.len() >= udp::HEADER_LEN,
            Protocol::ICMPV6 => return data.len() >= icmpv6::HEADER_LEN,
            _ => return true,
        };
        let Some((header, rest)) = len.and_then(|len| data.split_at_checked(len)) else {
            return false;
        };
        (next, data) = (Protocol(header[0]), rest);
    }
    false
}

/// Writes a fragment header: `next` is what the unfragmented data begins with, `offset` where this
/// fragment's data belongs in it, in bytes.
///
/// # Errors
/// [`Error::Truncated`] below [`FRAGMENT_LEN`] bytes, [`Error::BadFragment`] if `offset` is no
/// multiple of 8 or beyond 65528.
pub fn put_fragment(
    buf: &mut [u8],
    next: Protocol,
    offset: usize,
    more: bool,
    ident: u32,
) -> Result<()> {
    if buf.len() < FRAGMENT_LEN {
        return Err(Error::Truncated);
    }
    let offset = u16::try_from(offset).map_err(|_| Error::BadFragment)?;
    if !offset.is_multiple_of(8) {
        return Err(Error::BadFragment);
    }
    buf[0] = next.0;
    buf[1] = 0;
    put16(buf, 2, offset | u16::from(more));
    put32(buf, 4, ident);
    Ok(())
}
