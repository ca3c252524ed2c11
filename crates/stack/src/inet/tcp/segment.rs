//! The content of one segment, without addresses, ports and checksum.

use super::seq::Seq;
use crate::wire::{Data, Rest};
use std::ops::{BitOr, Range};

/// The control bits of RFC 9293 and RFC 3168.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(1);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(2);
    /// Reset the connection.
    pub const RST: Flags = Flags(4);
    /// Push: pass the data received to the application.
    pub const PSH: Flags = Flags(8);
    /// The acknowledgment field is valid.
    pub const ACK: Flags = Flags(16);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(32);
    /// ECN echo.
    pub const ECE: Flags = Flags(64);
    /// Congestion window reduced.
    pub const CWR: Flags = Flags(128);

    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    #[inline]
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The most SACK blocks one segment has room for (RFC 2018 section 3).
pub const MAX_SACKS: usize = 4;

/// SACK blocks, in the order of the segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sacks {
    blocks: [(Seq, Seq); MAX_SACKS],
    len: u8,
}

impl Sacks {
    /// Adds a block; false if there is no room.
    #[inline]
    pub fn push(&mut self, block: Range<Seq>) -> bool {
        let room = self.blocks.get_mut(usize::from(self.len));
        let fits = room.is_some();
        if let Some(room) = room {
            *room = (block.start, block.end);
            self.len += 1;
        }
        fits
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The blocks.
    pub fn iter(&self) -> impl Iterator<Item = Range<Seq>> + '_ {
        self.blocks.iter().take(self.len()).map(|&(start, end)| start..end)
    }

    /// Keeps the first `most`.
    pub fn truncate(&mut self, most: usize) {
        self.len = self.len.min(most.min(MAX_SACKS) as u8);
        let len = self.len();
        self.blocks.iter_mut().skip(len).for_each(|block| *block = Default::default());
    }
}

/// The options of a segment; absent ones are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The largest segment its sender wants to receive, bytes of data. In a SYN.
    pub mss: Option<u16>,
    /// The shift of its sender's windows (RFC 7323). In a SYN.
    pub window_scale: Option<u8>,
    /// Its sender understands SACK. In a SYN.
    pub sack_permitted: bool,
    /// TSval and TSecr (RFC 7323).
    pub timestamps: Option<(u32, u32)>,
    /// The data its sender holds beyond its acknowledgment.
    pub sacks: Sacks,
}

/// One segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The number of its first byte, or of its SYN.
    pub seq: Seq,
    /// The number its sender expects next; valid if `flags` has ACK.
    pub ack: Seq,
    /// The control bits.
    pub flags: Flags,
    /// The window field, not scaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options.
    pub options: Options,
    /// Its packet was marked by a congested router (ECN CE).
    pub congested: bool,
    /// The data, or its first piece.
    pub payload: &'a [u8],
    /// What follows it, if the data lies in several pieces.
    pub rest: Rest<'a>,
}

impl<'a> Segment<'a> {
    /// All its data.
    #[inline]
    pub fn data(&self) -> Data<'a> {
        Data { first: self.payload, rest: self.rest }
    }

    /// Bytes of data.
    #[inline]
    pub fn data_len(&self) -> usize {
        self.payload.len() + self.rest.len()
    }

    /// SEG.LEN: bytes of sequence space it takes, SYN and FIN counted.
    #[inline]
    pub fn len(&self) -> u32 {
        let control = u32::from(self.flags.has(Flags::SYN)) + u32::from(self.flags.has(Flags::FIN));
        self.data_len() as u32 + control
    }

    /// Whether it takes no sequence space.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number after its last byte.
    #[inline]
    pub fn end(&self) -> Seq {
        self.seq + self.len()
    }

    //= RFC 9293 3.10.7.1
    //# If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK> If the ACK bit is
    //# on, <SEQ=SEG.ACK><CTL=RST>
    /// The RST that answers it if there is no connection.
    pub(super) fn refusal(&self) -> Segment<'static> {
        if self.flags.has(Flags::ACK) {
            return Segment { seq: self.ack, flags: Flags::RST, ..Segment::default() };
        }
        let flags = Flags::RST | Flags::ACK;
        Segment { seq: Seq(0), ack: self.end(), flags, ..Segment::default() }
    }
}
