//! IPv6 extension headers (RFC 8200 section 4).
//!
//! Owns the parsing between the fixed header and the payload: which headers are skipped, which
//! packets are discarded and which error their sender gets. Inet reassembles fragments and decides
//! which protocols it supports.

use std::net::Ipv6Addr;

use super::{Error, Protocol, Result, be16, be32, icmpv6, ipv6, put16, put32, tcp, udp};
use icmpv6::code;

/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;
/// The most extension headers of one packet: RFC 8200 section 4.1 needs six.
pub const MAX_HEADERS: usize = 8;
/// The most options in one header, without padding (RFC 8504 section 5.3: "SHOULD be 8").
pub const MAX_OPTIONS: usize = 8;
/// The most consecutive bytes of padding (RFC 8504 section 5.3).
pub const MAX_PADDING: usize = 7;

/// The content of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// A whole packet.
    Whole(Upper<'a>),
    /// A fragment.
    Fragment(Fragment<'a>),
}

/// The payload after the last extension header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upper<'a> {
    /// The protocol of the payload. The caller must ignore [`Protocol::NO_NEXT_HEADER`] and answer
    /// an unsupported protocol with [`Upper::unknown`].
    pub protocol: Protocol,
    /// The offset in the packet of the next header field that names the protocol.
    pub next_header_at: usize,
    /// The offset of the payload in the packet.
    pub offset: usize,
    /// The payload.
    pub payload: &'a [u8],
}

impl Upper<'_> {
    /// The error for an unsupported protocol (RFC 8200 section 4): "an ICMP Parameter Problem
    /// message […] with an ICMP Code value of 1".
    #[must_use]
    pub fn unknown(&self) -> Problem {
        Problem { code: code::UNRECOGNIZED_NEXT_HEADER, pointer: self.next_header_at as u32 }
    }
}

/// A fragment (RFC 8200 section 4.5). The reassembled packet is: the bytes before
/// [`Fragment::header_at`], with the byte at [`Fragment::next_header_at`] replaced by [`Fragment::next`]
/// and a new payload length, then the data of all fragments in the order of their offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// The identification, the same in all fragments of one packet.
    pub ident: u32,
    /// The offset of the data from the start of the first fragment's data, bytes.
    pub offset: usize,
    /// Whether more fragments follow.
    pub more: bool,
    /// The type of the header that the first fragment's data begins with.
    pub next: Protocol,
    /// The offset in the packet of the next header field that names the fragment header.
    pub next_header_at: usize,
    /// The offset of the fragment header in the packet.
    pub header_at: usize,
    /// The data: not empty, and a multiple of 8 bytes unless this is the last fragment.
    pub data: &'a [u8],
}

/// The ICMPv6 parameter problem to send about a discarded packet (RFC 4443 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// The code.
    pub code: u8,
    /// The offset of the erroneous byte in the packet.
    pub pointer: u32,
}

/// Why a packet must be discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The cause to count.
    pub error: Error,
    /// The error to send, if any. For multicast packets it is always code 2 (RFC 4443 section 2.4
    /// (e.3)); inet applies the other rules of that section.
    pub problem: Option<Problem>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, problem: None }
    }
}

type Found<T> = std::result::Result<T, Refused>;

/// Parses the extension headers; `packet` has at least the fixed header.
#[inline]
pub(super) fn content(packet: &[u8], first: Protocol, dst: Ipv6Addr) -> Found<Content<'_>> {
    match first {
        Protocol::TCP | Protocol::UDP | Protocol::ICMPV6 => Ok(Content::Whole(Upper {
            protocol: first,
            next_header_at: 6,
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
    /// Parses from the header at `at` on; `next` is its type, read at `next_header_at`. Every iteration
    /// advances `at` by at least 8 bytes.
    #[cold]
    fn from(
        &self,
        mut next: Protocol,
        mut next_header_at: usize,
        mut at: usize,
    ) -> Found<Content<'a>> {
        for headers in 0.. {
            let rest = self.packet.get(at..).ok_or(Error::Truncated)?;
            let len = match next {
                // RFC 8200 section 4.1: hop-by-hop options are "restricted to appear immediately
                // after an IPv6 header only"; elsewhere they count as an unrecognized next header.
                Protocol::HOP_BY_HOP if headers > 0 => {
                    return Err(self.refuse(code::UNRECOGNIZED_NEXT_HEADER, next_header_at));
                }
                Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS => {
                    let len = header_len(rest)?;
                    self.options(at + 2, at + len)?;
                    len
                }
                Protocol::ROUTING => {
                    let len = header_len(rest)?;
                    // No type is implemented; type 0 is deprecated (RFC 5095). Section 4.4: "If
                    // Segments Left is zero, the node must ignore the Routing header"; else
                    // "Code 0 […] pointing to the unrecognized Routing Type".
                    if rest[3] != 0 {
                        return Err(self.refuse(code::ERRONEOUS_FIELD, at + 2));
                    }
                    len
                }
                Protocol::FRAGMENT => {
                    let fragment = self.fragment(rest, next_header_at, at)?;
                    // RFC 6946: an atomic fragment is processed like a whole packet.
                    if fragment.offset != 0 || fragment.more {
                        return Ok(Content::Fragment(fragment));
                    }
                    FRAGMENT_LEN
                }
                protocol => {
                    let upper = Upper { protocol, next_header_at, offset: at, payload: rest };
                    return Ok(Content::Whole(upper));
                }
            };
            if headers == MAX_HEADERS {
                break;
            }
            next = Protocol(rest[0]);
            next_header_at = at;
            at += len;
        }
        Err(Error::BadExtension.into())
    }

    fn fragment(&self, rest: &'a [u8], next_header_at: usize, at: usize) -> Found<Fragment<'a>> {
        let data = rest.get(FRAGMENT_LEN..).ok_or(Error::Truncated)?;
        let word = be16(rest, 2);
        let (offset, more) = (usize::from(word & !7), word & 1 != 0);
        let next = Protocol(rest[0]);
        let f = Fragment {
            ident: be32(rest, 4),
            offset,
            more,
            next,
            next_header_at,
            header_at: at,
            data,
        };
        let problem = |code, pointer| self.refuse_as(Error::BadFragment, code, pointer);
        if more && !data.len().is_multiple_of(8) {
            // "pointing to the Payload Length field of the fragment packet"
            return Err(problem(code::ERRONEOUS_FIELD, 4));
        }
        // The extension headers before the fragment header count too.
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
                // "The Option Data consists of N-2 zero-valued octets": other values may be a covert channel.
                let mut data = self.packet.get(at..at + len).unwrap_or_default().iter().skip(2);
                if data.any(|byte| *byte != 0) {
                    return Err(Error::BadExtension.into());
                }
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

    /// No option is implemented: the two high bits of the type say what to do with the packet.
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

/// The length of a header whose length field is in units of 8 bytes without the first 8, if it is
/// complete.
fn header_len(rest: &[u8]) -> Result<usize> {
    let len = rest.get(1).map(|len| (usize::from(*len) + 1) * 8);
    len.filter(|len| *len <= rest.len()).ok_or(Error::Truncated)
}

/// Whether the data of a first fragment contains all extension headers and the upper-layer header,
/// if the latter's length is known here.
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

/// Writes a fragment header: `next` is the type of the header that the unfragmented data begins
/// with, `offset` that of this fragment's data in it, bytes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use Protocol as P;

    const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    /// A packet to `dst` with these extension headers, each without its first byte, and a payload.
    fn packet(dst: Ipv6Addr, headers: &[(P, &[u8])], last: P, payload: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        for (i, (_, header)) in headers.iter().enumerate() {
            body.push(headers.get(i + 1).map_or(last, |h| h.0).0);
            body.extend_from_slice(header);
        }
        body.extend_from_slice(payload);
        let first = headers.first().map_or(last, |h| h.0);
        let mut bytes = vec![0; ipv6::HEADER_LEN + body.len()];
        let mut ip = ipv6::Packet::init(&mut bytes, A, dst, first, body.len()).unwrap();
        ip.payload_mut().copy_from_slice(&body);
        bytes
    }

    fn read(bytes: &[u8]) -> Found<Content<'_>> {
        ipv6::Packet::new_checked(bytes).unwrap().content()
    }

    /// The protocol, or the cause of the discard and the code and pointer of the error to send.
    fn outcome(bytes: &[u8]) -> std::result::Result<P, (Error, Option<(u8, u32)>)> {
        match read(bytes) {
            Ok(Content::Whole(upper)) => {
                assert_eq!(bytes[upper.next_header_at], upper.protocol.0);
                assert_eq!(&bytes[upper.offset..], upper.payload);
                Ok(upper.protocol)
            }
            Ok(Content::Fragment(_)) => Ok(P::FRAGMENT),
            Err(r) => Err((r.error, r.problem.map(|p| (p.code, p.pointer)))),
        }
    }

    // Headers without their first byte.
    const PAD: &[u8] = &[0, 1, 4, 0, 0, 0, 0]; // options: nothing but padding
    const ROUTING_DONE: &[u8] = &[0, 0, 0, 0, 0, 0, 0]; // type 0, no segments left
    const ROUTING: &[u8] = &[2, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    fn option(kind: u8) -> [u8; 7] {
        [0, kind, 4, 0, 0, 0, 0]
    }
    fn fragment(offset: u16, more: bool) -> [u8; 7] {
        let [a, b] = (offset | u16::from(more)).to_be_bytes();
        [0, a, b, 0, 0, 0, 9]
    }

    #[test]
    fn headers_that_need_no_action_are_skipped() {
        let all = [(P::HOP_BY_HOP, PAD), (P::DESTINATION_OPTIONS, PAD), (P::ROUTING, ROUTING_DONE)];
        for n in 0..=all.len() {
            for last in [P::TCP, P::UDP, P::ICMPV6, P::NO_NEXT_HEADER, P(50)] {
                let bytes = packet(B, &all[..n], last, b"payload");
                assert_eq!(outcome(&bytes), Ok(last));
            }
        }
        // An option to skip if it is unknown.
        let bytes = packet(B, &[(P::DESTINATION_OPTIONS, &option(0x3e))], P::UDP, &[]);
        assert_eq!(outcome(&bytes), Ok(P::UDP));
    }

    #[test]
    fn hop_by_hop_options_must_come_first() {
        let headers = [(P::DESTINATION_OPTIONS, PAD), (P::HOP_BY_HOP, PAD)];
        let bytes = packet(B, &headers, P::UDP, &[]);
        assert_eq!(outcome(&bytes), Err((Error::BadExtension, Some((1, 40)))));
    }

    #[test]
    fn a_routing_header_with_segments_left_is_discarded() {
        let bytes = packet(B, &[(P::ROUTING, ROUTING)], P::UDP, &[]);
        assert_eq!(outcome(&bytes), Err((Error::BadExtension, Some((0, 42)))));
        let group = packet(ipv6::ALL_NODES, &[(P::ROUTING, ROUTING)], P::UDP, &[]);
        assert_eq!(outcome(&group), Err((Error::BadExtension, None)));
    }

    #[test]
    fn the_type_of_an_unknown_option_decides_about_the_packet() {
        let problem = Some((code::UNRECOGNIZED_OPTION, 42));
        for (kind, one, group) in
            [(0x7e, None, None), (0xbe, problem, problem), (0xfe, problem, None)]
        {
            let to = |dst| packet(dst, &[(P::DESTINATION_OPTIONS, &option(kind))], P::UDP, &[]);
            assert_eq!(outcome(&to(B)), Err((Error::BadExtension, one)), "{kind:x}");
            let to_all = to(ipv6::ALL_NODES);
            assert_eq!(outcome(&to_all), Err((Error::BadExtension, group)), "{kind:x}");
        }
    }

    #[test]
    fn options_beyond_their_header_or_limits_are_discarded() {
        let refused = Err((Error::BadExtension, None));
        for options in [[0, 0, 0, 0, 0, 0, 0x3e], [0, 1, 5, 0, 0, 0, 0], [0, 0x3e, 255, 0, 0, 0, 0]]
        {
            let bytes = packet(B, &[(P::DESTINATION_OPTIONS, &options)], P::UDP, &[0; 300]);
            assert_eq!(outcome(&bytes), refused);
        }
        // Padding with a nonzero byte; eight consecutive bytes of padding; nine options.
        let hiding = [0, 1, 4, 0, 0, 1, 0];
        let padding = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0x3e, 4, 0, 0, 0, 0];
        let many = [[2, 0x3e, 0].as_slice(), &[0x3e, 0].repeat(10), &[0]].concat();
        for options in [&hiding[..], &padding, &many] {
            let bytes = packet(B, &[(P::DESTINATION_OPTIONS, options)], P::UDP, &[]);
            assert_eq!(outcome(&bytes), refused);
        }
    }

    #[test]
    fn the_header_chain_is_bounded_and_must_be_complete() {
        let chain = |n| packet(B, &vec![(P::DESTINATION_OPTIONS, PAD); n], P::UDP, b"data");
        assert_eq!(outcome(&chain(MAX_HEADERS)), Ok(P::UDP));
        assert_eq!(outcome(&chain(MAX_HEADERS + 1)), Err((Error::BadExtension, None)));

        let headers = [(P::DESTINATION_OPTIONS, PAD), (P::ROUTING, ROUTING_DONE)];
        let whole = packet(B, &headers, P::UDP, &[]);
        for len in 40..56 {
            let mut bytes = whole[..len].to_vec();
            bytes[5] = len as u8 - 40;
            assert_eq!(outcome(&bytes), Err((Error::Truncated, None)), "{len}");
        }
    }

    #[test]
    fn a_fragment_header_is_read_and_written() {
        let headers = [(P::HOP_BY_HOP, PAD), (P::FRAGMENT, &fragment(1232, true))];
        let bytes = packet(B, &headers, P::UDP, &[7; 16]);
        let want = Fragment {
            ident: 9,
            offset: 1232,
            more: true,
            next: P::UDP,
            next_header_at: 40,
            header_at: 48,
            data: &[7; 16],
        };
        assert_eq!(read(&bytes), Ok(Content::Fragment(want)));
        assert_eq!(bytes[want.next_header_at], P::FRAGMENT.0);

        let mut header = [0xee; FRAGMENT_LEN];
        put_fragment(&mut header, P::UDP, 1232, true, 9).unwrap();
        assert_eq!(header, bytes[48..56]);
        assert_eq!(put_fragment(&mut header, P::UDP, 12, true, 9), Err(Error::BadFragment));
        assert_eq!(put_fragment(&mut header, P::UDP, 65536, true, 9), Err(Error::BadFragment));
        assert_eq!(put_fragment(&mut header[..7], P::UDP, 0, true, 9), Err(Error::Truncated));
    }

    #[test]
    fn an_atomic_fragment_is_a_whole_packet() {
        let bytes = packet(B, &[(P::FRAGMENT, &fragment(0, false))], P::UDP, b"data");
        assert_eq!(outcome(&bytes), Ok(P::UDP));
    }

    #[test]
    fn invalid_fragments_are_discarded() {
        let one = |offset, more, next, data: &[u8]| {
            outcome(&packet(B, &[(P::FRAGMENT, &fragment(offset, more))], next, data))
        };
        let bad = |problem| Err((Error::BadFragment, problem));
        assert_eq!(one(8, true, P::UDP, &[0; 12]), bad(Some((0, 4))));
        assert_eq!(one(65528, false, P::UDP, &[0; 8]), bad(Some((0, 42))));
        assert_eq!(one(65528, false, P::UDP, &[0; 7]), Ok(P::FRAGMENT));
        assert_eq!(one(8, false, P::UDP, &[]), bad(None));
        assert_eq!(one(0, true, P::UDP, &[]), bad(None));
        // A first fragment must contain all headers, including TCP's or UDP's (RFC 7112).
        assert_eq!(one(0, true, P::TCP, &[0; 16]), bad(Some((3, 0))));
        assert_eq!(one(0, true, P::TCP, &[0; 24]), Ok(P::FRAGMENT));
        assert_eq!(
            one(0, true, P::DESTINATION_OPTIONS, &[17, 0, 1, 4, 0, 0, 0, 0]),
            bad(Some((3, 0)))
        );
        // The extension headers before the fragment header count against 65535 as well.
        let headers = [(P::HOP_BY_HOP, PAD), (P::FRAGMENT, &fragment(65520, false))];
        assert_eq!(outcome(&packet(B, &headers, P::UDP, &[0; 7])), Ok(P::FRAGMENT));
        assert_eq!(outcome(&packet(B, &headers, P::UDP, &[0; 8])), bad(Some((0, 50))));
    }

    #[test]
    fn the_error_for_an_unknown_protocol_points_to_its_next_header_field() {
        let bytes = packet(B, &[(P::DESTINATION_OPTIONS, PAD)], P(200), b"?");
        let Ok(Content::Whole(upper)) = read(&bytes) else { panic!() };
        assert_eq!(upper.unknown(), Problem { code: 1, pointer: 40 });
    }
}
