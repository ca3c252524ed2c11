//! The header of nearly every segment of an established connection, read and written word by word.

use super::{parse::TIMESTAMPS, segment::Flags, seq::Seq};

/// A segment with ACK, timestamps and perhaps PSH, but no other flag or option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::inet) struct Plain {
    pub(in crate::inet) seq: Seq,
    pub(in crate::inet) ack: Seq,
    pub(in crate::inet) flags: Flags,
    pub(in crate::inet) window: u16,
    /// TSval and TSecr.
    pub(in crate::inet) stamps: (u32, u32),
}

/// Bytes of its header.
pub(in crate::inet) const PLAIN_LEN: usize = 32;
/// The data offset, in words, and reserved bits.
const OFFSET: u8 = (PLAIN_LEN as u8 / 4) << 4;

impl Plain {
    /// Reads the header of a whole segment, and its data. `None` if it is not plain.
    #[inline(always)]
    pub(super) fn parse(segment: &[u8]) -> Option<(Plain, &[u8])> {
        let (head, data) = segment.split_first_chunk::<PLAIN_LEN>()?;
        let (words, _) = head.as_chunks::<4>();
        let &[_, seq, ack, [offset, flags, high, low], _, options, value, echo] = words else {
            return None;
        };
        let flags = Flags(flags);
        let plain = offset == OFFSET
            && flags | Flags::PSH == Flags::ACK | Flags::PSH
            && options == TIMESTAMPS;
        let word = u32::from_be_bytes;
        let window = u16::from_be_bytes([high, low]);
        let stamps = (word(value), word(echo));
        plain.then_some((
            Plain { seq: Seq(word(seq)), ack: Seq(word(ack)), flags, window, stamps },
            data,
        ))
    }

    /// Writes the header, with `checksum` as its checksum, after the `ports`.
    #[inline(always)]
    pub(in crate::inet) fn write(&self, head: &mut [u8; PLAIN_LEN], ports: [u8; 4], checksum: u16) {
        let window =
            u32::from(OFFSET) << 24 | u32::from(self.flags.0) << 16 | u32::from(self.window);
        let words = [
            ports,
            self.seq.0.to_be_bytes(),
            self.ack.0.to_be_bytes(),
            window.to_be_bytes(),
            (u32::from(checksum) << 16).to_be_bytes(),
            TIMESTAMPS,
            self.stamps.0.to_be_bytes(),
            self.stamps.1.to_be_bytes(),
        ];
        for (place, word) in head.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{parse, segment::Options, segment::Segment},
        *,
    };

    const PLAIN: Plain = Plain {
        seq: Seq(0x0102_0304),
        ack: Seq(u32::MAX),
        flags: Flags(0x18),
        window: 0xabcd,
        stamps: (7, u32::MAX - 1),
    };

    fn written() -> Vec<u8> {
        let mut bytes = vec![0xee; PLAIN_LEN + 3];
        let Some((head, data)) = bytes.split_first_chunk_mut::<PLAIN_LEN>() else { return bytes };
        PLAIN.write(head, [1, 2, 3, 4], 0x5678);
        data.copy_from_slice(b"abc");
        bytes
    }

    #[test]
    fn it_is_the_segment_that_the_general_code_writes_and_reads() {
        let options = Options { timestamps: Some(PLAIN.stamps), ..Options::default() };
        let Plain { seq, ack, flags, window, .. } = PLAIN;
        let general =
            Segment { seq, ack, flags, window, options, payload: b"abc", ..Segment::default() };
        let mut bytes = vec![0; PLAIN_LEN + 3];
        parse::write_header(&mut bytes, (0x0102, 0x0304), &general)
            .unwrap()
            .copy_from_slice(b"abc");
        bytes[16..18].copy_from_slice(&[0x56, 0x78]);
        assert_eq!(written(), bytes);
        assert_eq!(Plain::parse(&bytes), Some((PLAIN, &b"abc"[..])));
    }

    #[test]
    fn a_segment_with_anything_else_is_not_plain() {
        let whole = written();
        for len in 0..PLAIN_LEN {
            assert_eq!(Plain::parse(&whole[..len]), None);
        }
        // The length, each flag but PSH, each byte that says what the options are.
        for (at, bit) in [
            (12, 0x10),
            (12, 0x80),
            (13, 1),
            (13, 2),
            (13, 4),
            (13, 16),
            (13, 32),
            (13, 64),
            (13, 128),
        ]
        .into_iter()
        .chain((20..24).map(|at| (at, 1)))
        {
            let mut other = whole.clone();
            other[at] ^= bit;
            assert_eq!(Plain::parse(&other), None, "byte {at}, bit {bit}");
        }
    }
}
