//! Packets of more than one frame (multi-buffer AF_XDP, Linux 6.6 and newer). Owns how large frames are, how the pieces
//! of a received packet are handed up, and which frames of the transmit half lie side by side for one packet.
//!
//! A packet that fits in a frame passes none of this.

use super::{Error, device::Device};
use crate::sys;

/// Bytes the kernel keeps free before a received packet (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// An Ethernet header and two VLAN tags.
const LINK_HEADER: usize = 14 + 2 * 4;
pub(super) const SMALL_FRAME: usize = 2048;
const LARGE_FRAME: usize = 4096;
/// The largest packet of any MTU.
const LARGEST: usize = LINK_HEADER + 65_535;

/// How the packets of a device lie in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    /// Bytes of a frame: 2048 or 4096.
    pub(super) frame: usize,
    /// Bytes of the largest packet, with its link-layer header.
    pub(super) packet: usize,
    /// This kernel has packets of several frames.
    pub(super) kernel_has_pieces: bool,
}

impl Packing {
    /// For packets of the device's MTU.
    ///
    /// # Errors
    /// [`Error::Mtu`]: they need several frames, and this kernel is older than 6.6.
    pub(super) fn of(device: &Device) -> Result<Packing, Error> {
        Packing::new(device.mtu, sys::kernel_release() >= (6, 6)).ok_or_else(|| Error::Mtu {
            device: device.name.clone(),
            mtu: device.mtu,
            limit: LARGE_FRAME - HEADROOM - LINK_HEADER,
        })
    }

    fn new(mtu: usize, kernel_has_pieces: bool) -> Option<Packing> {
        let packet = LINK_HEADER + mtu;
        let frame = [SMALL_FRAME, LARGE_FRAME].into_iter().find(|size| HEADROOM + packet <= *size);
        let frame = frame.or(kernel_has_pieces.then_some(LARGE_FRAME))?;
        Some(Packing { frame, packet, kernel_has_pieces })
    }

    /// Whether received packets of the MTU take several frames.
    pub(super) fn needs_pieces(self) -> bool {
        HEADROOM + self.packet > self.frame
    }

    /// Frames of the largest packet that is sent. It has no headroom.
    fn sent_frames(self) -> usize {
        self.packet.div_ceil(self.frame)
    }

    /// Frames of the largest packet, received or sent.
    fn most_frames(self) -> usize {
        self.packet.div_ceil(self.frame - HEADROOM).max(self.sent_frames())
    }

    /// Whether zero copy can carry packets of the MTU. `segments` is asked if they need several frames: for how many of a
    /// packet the driver has zero copy (`xdp-zc-max-segs`), `None` if it has none or does not say.
    pub(super) fn fits_zero_copy(self, segments: impl FnOnce() -> Option<u32>) -> bool {
        let frames = self.most_frames();
        frames <= 1 || segments().is_some_and(|most| frames <= most as usize)
    }

    /// The largest MTU that zero copy carries, if that is less than this one.
    pub(super) fn zero_copy_limit(self, segments: impl FnOnce() -> Option<u32>) -> Option<usize> {
        let mut known = None;
        let fits = self.fits_zero_copy(|| {
            known = segments();
            known
        });
        let most = known.filter(|_| !fits)?;
        Some(most.max(1) as usize * (LARGE_FRAME - HEADROOM) - LINK_HEADER)
    }
}

/// What takes a received packet: its first piece, and the others.
pub(super) type HandUp<'a> = dyn FnMut(&[u8], &[&[u8]]) + 'a;

/// The most pieces of a received packet that are handed up where they lie.
const PIECES: usize = 40;

/// The pieces of a received packet, which are handed up when the last has come.
pub(super) struct Chain<'a> {
    pieces: [&'a [u8]; PIECES],
    count: usize,
}

impl<'a> Chain<'a> {
    pub(super) fn new() -> Chain<'a> {
        Chain { pieces: [&[]; PIECES], count: 0 }
    }

    /// Adds a piece, `None` if it lies outside the frames. Hands the packet to `sink` if no `more` pieces follow and none
    /// was missing. `gather` has what [`keep`](Chain::keep) has kept.
    pub(super) fn add(
        &mut self,
        gather: &mut Gather,
        piece: Option<&'a [u8]>,
        more: bool,
        sink: &mut HandUp<'_>,
    ) {
        if !gather.begun
            && let (Some(piece), Some(place)) = (piece, self.pieces.get_mut(self.count))
        {
            *place = piece;
            self.count += 1;
            if !more && let [first, rest @ ..] = &self.pieces[..self.count] {
                sink(first, rest);
                self.count = 0;
            }
            return;
        }
        // Too many, or one is missing.
        self.keep(gather);
        if let Some(whole) = gather.add(piece, more) {
            sink(whole, &[]);
        }
    }

    /// Keeps a copy of the pieces so far, because their frames are about to go back to the kernel.
    pub(super) fn keep(&mut self, gather: &mut Gather) {
        for piece in &self.pieces[..std::mem::take(&mut self.count)] {
            gather.add(Some(piece), true);
        }
    }
}

/// A packet that was not complete when a pass ended: a copy of its pieces, until the last has come.
pub(super) struct Gather {
    bytes: Box<[u8]>,
    len: usize,
    /// A piece has come, but not the last.
    pub(super) begun: bool,
    /// A piece was missing or too much: the rest of the packet is dropped.
    spoiled: bool,
}

impl Gather {
    pub(super) fn new(packing: Packing) -> Gather {
        // The MTU may be raised later. Pages that are not used take no memory.
        let room = if packing.kernel_has_pieces { LARGEST } else { 0 };
        Gather { bytes: vec![0; room].into(), len: 0, begun: false, spoiled: false }
    }

    /// Adds a piece, `None` if it lies outside the frames. Returns the packet if no `more` pieces follow and none was
    /// missing.
    pub(super) fn add(&mut self, piece: Option<&[u8]>, more: bool) -> Option<&[u8]> {
        if !self.begun {
            (self.begun, self.len, self.spoiled) = (true, 0, false);
        }
        let room = piece.and_then(|piece| {
            let place = self.bytes.get_mut(self.len..self.len + piece.len())?;
            Some((place, piece))
        });
        match room {
            Some((place, piece)) => {
                place.copy_from_slice(piece);
                self.len += piece.len();
            }
            None => self.spoiled = true,
        }
        self.begun = more;
        (!more && !self.spoiled).then(|| &self.bytes[..self.len])
    }
}

/// The frames of a transmit half, in places for one packet each. A place is several frames side by side, so that a
/// packet is written in one piece, and sent as one of several.
pub(super) struct Places {
    first: u64,
    frame: u64,
    /// Frames of a place.
    frames: usize,
    /// Frames of each place that the kernel has.
    in_flight: Box<[u8]>,
    /// Frames that the kernel is done with.
    pub(super) done: Vec<u64>,
}

impl Places {
    /// Over the frames at `addresses`, which follow each other. `None`: each frame is a place.
    pub(super) fn new(packing: Packing, addresses: &[u64]) -> Option<Places> {
        let frames = packing.sent_frames();
        let first = *addresses.first()?;
        (frames > 1).then(|| Places {
            first,
            frame: packing.frame as u64,
            frames,
            in_flight: vec![0; addresses.len() / frames].into(),
            done: Vec::with_capacity(addresses.len()),
        })
    }

    /// The addresses of all places.
    pub(super) fn addresses(&self) -> impl DoubleEndedIterator<Item = u64> {
        let (first, bytes) = (self.first, self.frame * self.frames as u64);
        (0..self.in_flight.len() as u64).map(move |at| first + at * bytes)
    }

    /// The addresses and lengths of the pieces of a packet of `len` bytes at `place`.
    pub(super) fn pieces(&self, place: u64, len: usize) -> impl Iterator<Item = (u64, u32)> {
        let frame = self.frame;
        (0..(len as u64).div_ceil(frame)).map(move |at| {
            let from = at * frame;
            (place + from, frame.min(len as u64 - from) as u32)
        })
    }

    /// The kernel gets that many frames of a place.
    pub(super) fn sent(&mut self, place: u64, frames: u32) {
        if let Some(at) = self.index(place) {
            self.in_flight[at] = frames as u8;
        }
    }

    /// Adds to `free` the places whose last frame is done.
    pub(super) fn settle(&mut self, free: &mut Vec<u64>) {
        while let Some(frame) = self.done.pop() {
            let Some(at) = self.index(frame) else { continue };
            match &mut self.in_flight[at] {
                0 => {}
                left => {
                    *left -= 1;
                    if *left == 0 {
                        free.push(self.first + at as u64 * self.frame * self.frames as u64);
                    }
                }
            }
        }
    }

    fn index(&self, address: u64) -> Option<usize> {
        let at = address.checked_sub(self.first)? / self.frame / self.frames as u64;
        usize::try_from(at).ok().filter(|at| *at < self.in_flight.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jumbo(mtu: usize) -> Packing {
        Packing::new(mtu, true).unwrap()
    }

    #[test]
    fn frames_are_the_smallest_that_hold_the_mtu() {
        for (mtu, frame, needs_pieces, sent_frames) in [
            (1500, SMALL_FRAME, false, 1),
            (1770, SMALL_FRAME, false, 1),
            (1771, LARGE_FRAME, false, 1),
            (3818, LARGE_FRAME, false, 1),
            (3819, LARGE_FRAME, true, 1),
            (9000, LARGE_FRAME, true, 3),
            (65_535, LARGE_FRAME, true, 17),
        ] {
            let of = jumbo(mtu);
            let found = (of.frame, of.needs_pieces(), of.sent_frames());
            assert_eq!(found, (frame, needs_pieces, sent_frames), "{mtu}");
        }
        assert_eq!(Packing::new(3818, false).unwrap().frame, LARGE_FRAME);
        assert_eq!(Packing::new(3819, false), None);
    }

    /// What a chain hands up of `packet`, cut at `cuts`, if each pass takes `pass` pieces.
    fn handed_up(packet: &[u8], cuts: &[usize], pass: usize) -> Vec<(Vec<u8>, usize)> {
        let (mut gather, mut found) = (Gather::new(jumbo(9000)), Vec::new());
        let mut ends = cuts.to_vec();
        ends.push(packet.len());
        let mut from = 0;
        let mut chain = Chain::new();
        for (at, &end) in ends.iter().enumerate() {
            let more = at + 1 < ends.len();
            chain.add(&mut gather, Some(&packet[from..end]), more, &mut |first, rest| {
                found.push(([&[first], rest].concat().concat(), 1 + rest.len()));
            });
            from = end;
            if (at + 1) % pass == 0 {
                chain.keep(&mut gather);
                chain = Chain::new();
            }
        }
        assert!(!gather.begun && chain.count == 0);
        found
    }

    #[test]
    fn a_chain_is_handed_up_where_it_lies_wherever_it_is_cut() {
        let packet: Vec<u8> = (0..9022u32).map(|at| (at / 7) as u8).collect();
        for first in (0..=packet.len()).step_by(97) {
            for second in (first..=packet.len()).step_by(977) {
                let cuts = [first, second];
                assert_eq!(handed_up(&packet, &cuts, 9), [(packet.clone(), 3)]);
                // A pass that ends in its middle makes it one.
                for pass in [1, 2] {
                    assert_eq!(handed_up(&packet, &cuts, pass), [(packet.clone(), 1)]);
                }
            }
        }
        for (pieces, found) in [(1, 1), (2, 2), (PIECES, PIECES), (PIECES + 1, 1), (3000, 1)] {
            let cuts: Vec<usize> = (1..pieces).collect();
            assert_eq!(handed_up(&packet, &cuts, 9000), [(packet.clone(), found)], "{pieces}");
        }
    }

    #[test]
    fn a_chain_that_misses_a_piece_is_dropped_alone() {
        let (mut gather, mut chain) = (Gather::new(jumbo(9000)), Chain::new());
        let whole = [5; 100];
        for missing in 0..3 {
            for at in 0..3 {
                let piece = (at != missing).then_some(&whole[..]);
                chain.add(&mut gather, piece, at < 2, &mut |_, _| panic!("{missing} is missing"));
            }
            let mut found = Vec::new();
            for more in [true, false] {
                chain.add(&mut gather, Some(&whole), more, &mut |first, rest| {
                    found.push([&[first], rest].concat().concat().len());
                });
            }
            assert_eq!(found, [200]);
        }
    }

    #[test]
    fn zero_copy_carries_what_its_driver_has_frames_for() {
        let never = || -> Option<u32> { unreachable!("one frame is enough") };
        for mtu in [1500, 1771, 3818] {
            assert!(
                jumbo(mtu).fits_zero_copy(never) && jumbo(mtu).zero_copy_limit(never).is_none()
            );
        }
        // The MTU, what the driver says, the limit that is said.
        for (mtu, segments, fits, limit) in [
            (3819, Some(1), false, Some(3818)),
            (3819, Some(2), true, None),
            (3819, Some(0), false, Some(3818)),
            (3819, None, false, None),
            (7658, Some(2), true, None),
            (7659, Some(2), false, Some(7658)),
            (9000, Some(3), true, None),
            (9000, Some(2), false, Some(7658)),
            (9216, Some(5), true, None),
            (65_535, Some(17), false, Some(65_258)),
            (65_535, Some(18), true, None),
        ] {
            assert_eq!(jumbo(mtu).fits_zero_copy(|| segments), fits, "{mtu} {segments:?}");
            assert_eq!(jumbo(mtu).zero_copy_limit(|| segments), limit, "{mtu} {segments:?}");
            if let Some(limit) = limit {
                assert!(
                    jumbo(limit).fits_zero_copy(|| segments.map(|most| most.max(1))),
                    "{limit}"
                );
            }
        }
    }

    #[test]
    fn a_packet_is_gathered_wherever_it_is_cut() {
        let packet: Vec<u8> = (0..9022u32).map(|at| at as u8).collect();
        let mut gather = Gather::new(jumbo(9000));
        for first in (0..=packet.len()).step_by(41) {
            for second in (first..=packet.len()).step_by(977) {
                assert_eq!(gather.add(Some(&packet[..first]), true), None);
                assert_eq!(gather.add(Some(&packet[first..second]), true), None);
                assert_eq!(gather.add(Some(&packet[second..]), false), Some(&packet[..]));
                assert!(!gather.begun);
            }
        }
    }

    #[test]
    fn a_packet_that_is_too_long_or_misses_a_piece_is_dropped_alone() {
        let packet = vec![7; 4000];
        let mut gather = Gather::new(jumbo(9000));
        for _ in 0..200 {
            assert_eq!(gather.add(Some(&packet), true), None);
        }
        assert_eq!(gather.add(Some(&[1]), false), None);
        assert_eq!(gather.add(None, true), None);
        assert_eq!(gather.add(Some(&packet), false), None);
        assert_eq!(gather.add(Some(&packet), true), None);
        assert_eq!(gather.add(Some(&[1, 2]), false).map(<[u8]>::len), Some(4002));
        // An older kernel sends none.
        let mut none = Gather::new(Packing::new(1500, false).unwrap());
        assert_eq!(none.add(Some(&packet), true), None);
        assert_eq!(none.add(Some(&packet), false), None);
    }

    #[test]
    fn a_place_is_free_when_its_last_frame_is_done() {
        let frames: Vec<u64> = (100..110).map(|at| at * 4096).collect();
        let mut places = Places::new(jumbo(9000), &frames).unwrap();
        let all: Vec<u64> = places.addresses().collect();
        assert_eq!(all, [100 * 4096, 103 * 4096, 106 * 4096], "the tenth frame holds no packet");
        let pieces: Vec<_> = places.pieces(all[1], 9014).collect();
        assert_eq!(pieces, [(103 * 4096, 4096), (104 * 4096, 4096), (105 * 4096, 822)]);
        let mut free = Vec::new();
        places.sent(all[1], 3);
        places.sent(all[2], 1);
        for (frame, expected) in [
            (103, vec![]),
            (100, vec![]), // Nothing of it was sent.
            (105, vec![]),
            (106, vec![all[2]]),
            (106, vec![all[2]]),
            (104, vec![all[2], all[1]]),
            (109, vec![all[2], all[1]]),
            (1, vec![all[2], all[1]]),
        ] {
            places.done.push(frame * 4096);
            places.settle(&mut free);
            assert_eq!(free, expected, "{frame}");
        }
        assert!(Places::new(jumbo(3000), &frames).is_none());
    }
}
