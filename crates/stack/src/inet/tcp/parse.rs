//! Converts bytes to a [`Segment`] and back: the only place where TCP meets its wire format.

use super::segment::{Flags, MAX_SACKS, Options, Segment};
use super::seq::Seq;
use crate::wire::tcp::{self, Blocks, HEADER_LEN, Header, Opt, kind};
use crate::wire::{self, Error, Rest};

//= RFC 7323 2.3
//# If a Window Scale option is received with a shift.cnt value larger than 14, the TCP [...] MUST use 14 instead of
//# the specified value.
const MAX_SHIFT: u8 = 14;
/// Two NOPs and timestamps, which aligns the values: nearly every segment's options begin so.
pub(super) const TIMESTAMPS: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

/// Parses a segment; `congested` if its packet was marked (ECN CE). Options that are misplaced or invalid are
/// ignored; of a repeated option the last counts, as in Linux (`tcp_parse_options`).
#[inline(always)]
pub(crate) fn parse<'a>(packet: &tcp::Packet<&'a [u8]>, congested: bool) -> Segment<'a> {
    let flags = Flags(packet.flags());
    Segment {
        seq: Seq(packet.seq()),
        ack: Seq(packet.ack()),
        flags,
        //= RFC 9293 3.1
        //# The window size MUST be treated as an unsigned number, or else large window sizes will appear like
        //# negative windows and TCP will not work (MUST-1).
        window: packet.window(),
        urgent: packet.urgent(),
        //= RFC 9293 3.1
        //# A TCP implementation MUST be able to receive a TCP Option in any segment (MUST-5).
        options: options(packet.option_bytes(), flags.has(Flags::SYN)),
        congested,
        payload: packet.payload(),
        rest: Rest::NONE,
    }
}

#[inline]
fn options(bytes: &[u8], syn: bool) -> Options {
    match bytes {
        [] => Options::default(),
        &[a, b, c, d, v0, v1, v2, v3, e0, e1, e2, e3] if [a, b, c, d] == TIMESTAMPS => {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            let echo = u32::from_be_bytes([e0, e1, e2, e3]);
            Options { timestamps: Some((value, echo)), ..Options::default() }
        }
        _ => any_options(bytes, syn),
    }
}

#[cold]
#[inline(never)]
fn any_options(bytes: &[u8], syn: bool) -> Options {
    let mut options = Options::default();
    for option in tcp::Options::new(bytes) {
        match option {
            Opt::Mss(mss) if syn && mss != 0 => options.mss = Some(mss),
            //= RFC 7323 2.2
            //# A Window Scale option in a segment without a SYN bit MUST be ignored.
            Opt::WindowScale(shift) if syn => options.window_scale = Some(shift.min(MAX_SHIFT)),
            Opt::SackPermitted if syn => options.sack_permitted = true,
            Opt::Sack(blocks) if !syn => options.sacks = sacks(blocks),
            Opt::Timestamps(value, echo) => options.timestamps = Some((value, echo)),
            //= RFC 9293 3.1
            //# A TCP implementation MUST (MUST-6) ignore without error any TCP Option it does not implement, assuming
            //# that the option has a length field.
            _ => {}
        }
    }
    options
}

fn sacks(blocks: Blocks<'_>) -> super::segment::Sacks {
    let mut sacks = super::segment::Sacks::default();
    for (start, end) in blocks.iter() {
        sacks.push(Seq(start)..Seq(end));
    }
    sacks
}

/// How many SACK blocks fit beside the other options.
#[inline]
fn blocks_that_fit(options: &Options) -> usize {
    let most = if options.timestamps.is_some() { MAX_SACKS - 1 } else { MAX_SACKS };
    options.sacks.len().min(most)
}

/// The length of a segment's options, padding included. SACK blocks beyond the room, three beside timestamps, do not
/// count and are not written.
#[inline]
pub(crate) fn options_len(options: &Options) -> usize {
    let sack_permitted = options.sack_permitted && options.timestamps.is_none();
    let blocks = blocks_that_fit(options);
    4 * usize::from(options.mss.is_some())
        + 12 * usize::from(options.timestamps.is_some())
        + 4 * usize::from(sack_permitted)
        + 4 * usize::from(options.window_scale.is_some())
        + if blocks == 0 { 0 } else { 4 + 8 * blocks }
}

/// Bytes of the header with these options.
#[inline]
pub(crate) fn header_len(options: &Options) -> usize {
    HEADER_LEN + options_len(options)
}

/// Writes the header of a segment into `buf`, which is as long as header and data; returns the room for the data. The
/// caller writes the data and the checksum, and `segment.payload` is not used. Options stand where Linux has them
/// (`tcp_options_write` in net/ipv4/tcp_output.c), aligned to words.
///
/// # Errors
/// [`Error::Truncated`] if the buffer is too short; [`Error::BadLength`] if the options exceed one segment, which
/// those of a SYN or those of any other segment do not.
#[inline]
pub(crate) fn write_header<'a>(
    buf: &'a mut [u8],
    (src_port, dst_port): (u16, u16),
    segment: &Segment<'_>,
) -> wire::Result<&'a mut [u8]> {
    if let Options {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps: Some(timestamps),
        sacks,
    } = &segment.options
        && sacks.is_empty()
    {
        return write_timestamped_header(buf, (src_port, dst_port), segment, *timestamps);
    }
    let header = Header {
        src_port,
        dst_port,
        seq: segment.seq.0,
        ack: segment.ack.0,
        flags: segment.flags.0,
        window: segment.window,
        urgent: segment.urgent,
    };
    let mut packet = tcp::Packet::init(&mut *buf, &header, options_len(&segment.options))?;
    put_options(packet.options_mut(), &segment.options).ok_or(Error::Truncated)?;
    let len = packet.header_len();
    Ok(&mut buf[len..])
}

/// The length of a header with timestamps and no other option, in words.
const TIMESTAMPED_WORDS: usize = (HEADER_LEN + 12) / 4;

/// The header of nearly every segment: word by word, without a check of each option.
#[inline]
fn write_timestamped_header<'a>(
    buf: &'a mut [u8],
    (src_port, dst_port): (u16, u16),
    segment: &Segment<'_>,
    (value, echo): (u32, u32),
) -> wire::Result<&'a mut [u8]> {
    let (head, data) = buf.split_at_mut_checked(4 * TIMESTAMPED_WORDS).ok_or(Error::Truncated)?;
    let two = |upper: u16, lower: u16| u32::from(upper) << 16 | u32::from(lower);
    let words: [u32; TIMESTAMPED_WORDS] = [
        two(src_port, dst_port),
        segment.seq.0,
        segment.ack.0,
        two((TIMESTAMPED_WORDS as u16) << 12 | u16::from(segment.flags.0), segment.window),
        two(0, segment.urgent),
        u32::from_be_bytes(TIMESTAMPS),
        value,
        echo,
    ];
    for (place, word) in head.as_chunks_mut().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
    Ok(data)
}

/// `None` if there is no room, which [`options_len`] rules out.
#[inline]
fn put_options(mut room: &mut [u8], options: &Options) -> Option<()> {
    if let Some(mss) = options.mss {
        let [a, b] = mss.to_be_bytes();
        put(&mut room, [kind::MSS, 4, a, b])?;
    }
    if let Some((value, echo)) = options.timestamps {
        // SACK-permitted takes the place of the two NOPs.
        let [.., stamps, len] = TIMESTAMPS;
        let first = if options.sack_permitted {
            [kind::SACK_PERMITTED, 2, stamps, len]
        } else {
            TIMESTAMPS
        };
        put(&mut room, first)?;
        put(&mut room, value.to_be_bytes())?;
        put(&mut room, echo.to_be_bytes())?;
    } else if options.sack_permitted {
        put(&mut room, [kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2])?;
    }
    if let Some(shift) = options.window_scale {
        put(&mut room, [kind::NOP, kind::WINDOW_SCALE, 3, shift])?;
    }
    let blocks = blocks_that_fit(options);
    if blocks != 0 {
        put(&mut room, [kind::NOP, kind::NOP, kind::SACK, 2 + 8 * blocks as u8])?;
        for block in options.sacks.iter().take(blocks) {
            put(&mut room, block.start.0.to_be_bytes())?;
            put(&mut room, block.end.0.to_be_bytes())?;
        }
    }
    Some(())
}

#[inline]
fn put(room: &mut &mut [u8], word: [u8; 4]) -> Option<()> {
    let (here, rest) = std::mem::take(room).split_first_chunk_mut()?;
    *here = word;
    *room = rest;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::segment::Sacks;
    use super::*;

    fn written(segment: &Segment<'_>) -> Vec<u8> {
        let mut buf = vec![0xee; header_len(&segment.options) + segment.payload.len()];
        let data = write_header(&mut buf, (4000, 7), segment).unwrap();
        data.copy_from_slice(segment.payload);
        buf
    }

    fn read(bytes: &[u8]) -> Segment<'_> {
        parse(&tcp::Packet::new_checked(bytes).unwrap(), false)
    }

    fn sacks(blocks: &[(u32, u32)]) -> Sacks {
        let mut sacks = Sacks::default();
        blocks.iter().for_each(|&(start, end)| assert!(sacks.push(Seq(start)..Seq(end))));
        sacks
    }

    fn syn(options: Options) -> Segment<'static> {
        Segment { seq: Seq(7), flags: Flags::SYN, window: 64240, options, ..Segment::default() }
    }

    #[test]
    fn a_syn_has_linuxs_option_layout() {
        let all = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((100, 0)),
            sacks: Sacks::default(),
        };
        let bytes = written(&syn(all.clone()));
        let want = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 100, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!((&bytes[20..], read(&bytes)), (&want[..], syn(all.clone())));

        let bytes = written(&syn(Options { timestamps: None, ..all }));
        assert_eq!(bytes[20..], [2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]);
    }

    //= RFC 9293 3.1 test
    //# the following options MUST be supported
    #[test]
    fn every_set_of_options_survives_the_round_trip() {
        let blocks = [(1, 2), (u32::MAX, 3), (5, 6), (8, 9)];
        for timestamps in [None, Some((u32::MAX, 0x0102_0304))] {
            for n in 0..=4 {
                let sacks = sacks(&blocks[..n]);
                let options = Options { timestamps, sacks, ..Options::default() };
                let flags = Flags::ACK | Flags::PSH;
                let mut segment = Segment {
                    seq: Seq(1),
                    ack: Seq(u32::MAX),
                    flags,
                    window: 5,
                    urgent: 6,
                    options,
                    congested: false,
                    payload: b"data",
                    rest: Rest::NONE,
                };
                let bytes = written(&segment);
                // Beside timestamps there is room for three blocks.
                segment.options.sacks.truncate(if timestamps.is_some() { 3 } else { 4 });
                assert_eq!(read(&bytes), segment);
                assert!(header_len(&segment.options) <= 60);
            }
        }
    }

    //= RFC 7323 2.2 test
    //# A Window Scale option in a segment without a SYN bit MUST be ignored.
    #[test]
    fn options_count_only_where_they_belong() {
        let syn_only = [2, 4, 5, 0xb4, 3, 3, 7, 4, 2];
        assert_eq!(any_options(&syn_only, false), Options::default());
        assert_eq!(any_options(&syn_only, true).mss, Some(1460));
        let sack = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(any_options(&sack, true), Options::default());
        assert_eq!(any_options(&sack, false).sacks.len(), 1);
    }

    //= RFC 7323 2.3 test
    //# If a Window Scale option is received with a shift.cnt value larger than 14, the TCP [...] MUST use 14 [...]
    #[test]
    fn a_shift_beyond_14_is_14_and_an_mss_of_0_is_none() {
        assert_eq!(any_options(&[3, 3, 255], true).window_scale, Some(14));
        assert_eq!(any_options(&[2, 4, 0, 0], true).mss, None);
    }

    #[test]
    fn the_last_of_repeated_options_counts() {
        assert_eq!(any_options(&[2, 4, 1, 0, 2, 4, 2, 0], true).mss, Some(512));
        let twice = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 5, 10, 0, 0, 0, 3, 0, 0, 0, 4];
        assert_eq!(any_options(&twice, false).sacks, sacks(&[(3, 4)]));
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        let ack = Segment { flags: Flags::ACK, ..Segment::default() };
        assert_eq!(write_header(&mut [0; 19], (1, 2), &ack).err(), Some(Error::Truncated));
        let options = Options {
            mss: Some(1),
            timestamps: Some((1, 2)),
            sacks: sacks(&[(1, 2), (3, 4), (5, 6)]),
            ..Options::default()
        };
        let never = Segment { options, ..Segment::default() };
        assert_eq!(write_header(&mut [0; 100], (1, 2), &never).err(), Some(Error::BadLength));
    }
}
