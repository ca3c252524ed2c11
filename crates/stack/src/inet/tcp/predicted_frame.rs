//! From the frame to the reader, top to bottom: a frame from the queue that a thread polls for this flow, with a plain
//! segment of the flow in an IPv4 packet without options. Addresses and ports that are those of the flow need no check
//! and no lookup: its first segment had them.

use super::{Flow, plain::Plain, predicted::MOST, tuple::Tuple};
use crate::{
    inet::{Inet, Pass, iface::Interface, last_packet::Received},
    nic::{Checksum, Frame},
    wire::checksum::Sum,
};

/// What each frame of an IPv4 flow has, as it is on the wire: source and destination, and their ports. An IPv6 flow has
/// addresses that no frame has.
pub(super) struct FrameKey {
    ends: [u8; 12],
    addresses: Sum,
}

/// From the Ethernet type on: IPv4, a header without options, not marked by a router.
const FIRST: [[u8; 4]; 2] = [[0x08, 0x00, 0x45, 0], [0xff, 0xff, 0xff, 3]];
/// From the offset of the fragment on: a whole packet, of TCP.
const SECOND: [[u8; 4]; 2] = [[0, 0, 0, TCP], [0x3f, 0xff, 0, 0xff]];

/// Whether the bytes at `at` are those of the pattern, as far as its mask says.
#[inline(always)]
fn is_like([pattern, mask]: [[u8; 4]; 2], head: &[u8; LEAST], at: usize) -> bool {
    let four = head[at..].first_chunk().map_or(0, |four| u32::from_ne_bytes(*four));
    four & u32::from_ne_bytes(mask) == u32::from_ne_bytes(pattern)
}

/// Bytes before the segment, and of the shortest frame.
const LINK: usize = 14;
const IP: usize = 20;
const TCP: u8 = crate::wire::Protocol::TCP.0;
const LEAST: usize = LINK + IP + super::plain::PLAIN_LEN;

impl FrameKey {
    pub(super) fn new(tuple: &Tuple) -> FrameKey {
        let (addresses, ports) = tuple.received_as();
        let [a, b, c, d, e, f, g, h] = addresses;
        let [i, j, k, l] = ports;
        FrameKey { ends: [a, b, c, d, e, f, g, h, i, j, k, l], addresses: Sum::of(&addresses) }
    }
}

impl Inet {
    /// Processes a frame, if it is as the flow predicts that the thread polls for. False if not: nothing has changed.
    #[inline(always)]
    pub(in crate::inet) fn tcp_predicted_frame(
        &self,
        iface: &Interface,
        received: &Received,
        frame: &Frame<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let Some(head) = frame.bytes.first_chunk::<LEAST>() else { return false };
        let (Some(Flow { core, .. }), None) = (pass.expected_flow, &pass.deferred) else {
            return false;
        };

        // Ethernet: to us. IPv4 without options, whole, for TCP, not marked by a router.
        let at = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let len = usize::from(at(LINK + 2));
        let is_ours = frame.bytes.len() <= LEAST + MOST
            && iface.is_to_us(head)
            && is_like(FIRST, head, LINK - 2)
            && is_like(SECOND, head, LINK + 6)
            && head[LINK + 12..LINK + IP + 4] == core.frame_key.ends
            && core.frame_key.addresses.plus(Sum::of(&head[LINK..LINK + 12])).is_intact();
        if !is_ours {
            return false;
        }
        let Some(segment) = frame.bytes.get(LINK + IP..LINK + len) else { return false };

        // TCP: its checksum, which a peer on this machine may have left to hardware that does not exist.
        let sum = core.frame_key.addresses;
        let pseudo = || sum.plus_word(TCP.into()).plus_word(segment.len() as u16);
        let partial = match frame.checksum {
            Checksum::Partial => true,
            _ if pseudo().plus(Sum::of(segment)).is_intact() => false,
            Checksum::MaybePartial if at(LINK + IP + 16) == pseudo().fold() => true,
            _ => return false,
        };
        let Some((segment, data)) = Plain::parse(segment) else { return false };
        if !core.predicted(self, &segment, data, pass) {
            return false;
        }
        received.tcp_segments.add(1);
        if partial {
            received.tcp_partial.add(1);
        }
        true
    }
}
