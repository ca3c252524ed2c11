//! Writes outgoing segments into frames: header, data, checksum.

use super::{
    connection::Outgoing,
    parse,
    segment::{Flags, Segment},
    tuple::Tuple,
};
use crate::{
    inet::{
        Count, Inet, Pass, Path, PathOptions, SendError, input::Arrival, reply_path::ReplyPath,
        segments::SegmentBatch, template::TransportBuf,
    },
    time::Instant,
    wire::{Protocol, checksum::Sum},
};

/// The offset of the checksum in a header.
const CHECKSUM: usize = 16;

/// ECT(0) (RFC 3168 section 5).
const ECN_CAPABLE: u8 = 2;

/// Sends one segment of a connection between the ends of `tuple`. `rings`: the last segment rings the doorbell.
#[inline]
pub(super) fn push(
    batch: &mut SegmentBatch<'_>,
    tuple: &Tuple,
    out: &Outgoing<'_>,
    rings: bool,
) -> Result<(), SendError> {
    let len = parse::header_len(&out.segment.options) + out.payload.len();
    let ecn = if out.ecn_capable { ECN_CAPABLE } else { 0 };
    batch.push(len, ecn, |room| write_segment(room, tuple, out))?;
    if out.last && rings {
        batch.doorbell();
    }
    Ok(())
}

#[inline(always)]
fn write_segment(room: TransportBuf<'_>, tuple: &Tuple, out: &Outgoing<'_>) {
    let ports = (tuple.local_port(), tuple.remote_port());
    let Ok(mut to) = parse::write_header(room.bytes, ports, &out.segment) else { return };
    for piece in out.payload.clone() {
        let Some((here, rest)) = to.split_at_mut_checked(piece.len()) else { return };
        here.copy_from_slice(piece);
        to = rest;
    }
    let checksum = room.checksum(|| Sum::of(room.bytes));
    if let Some(field) = room.bytes.get_mut(CHECKSUM..CHECKSUM + 2) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The route of an answer to a segment for which no state is kept.
pub(super) enum ReplyRoute<'a> {
    Back(ReplyPath<'a>),
    Over(Path),
}

impl ReplyRoute<'_> {
    /// The most bytes of header and data in one segment.
    pub(super) fn max_transport_len(&self) -> usize {
        match self {
            ReplyRoute::Back(back) => back.max_transport_len(),
            ReplyRoute::Over(path) => path.max_transport_len(),
        }
    }
}

impl From<Segment<'static>> for Outgoing<'_> {
    fn from(segment: Segment<'static>) -> Self {
        Outgoing { segment, ..Outgoing::default() }
    }
}

impl Inet {
    /// The route of answers to a segment for which no state is kept: the way the segment came, if that is possible.
    pub(super) fn tcp_reply_route<'a>(
        &self,
        tuple: &Tuple,
        arrival: &Arrival<'a>,
        options: PathOptions,
        now: Instant,
    ) -> Result<ReplyRoute<'a>, SendError> {
        let ends = (tuple.local(), tuple.remote());
        match self.reply_path(arrival, Protocol::TCP, ends, options) {
            Some(back) => Ok(ReplyRoute::Back(back)),
            None => self.tcp_path(ends, arrival.queue, options, now).map(ReplyRoute::Over),
        }
    }

    /// Sends a segment without data; it is dropped if it cannot be sent.
    pub(super) fn tcp_answer(
        &self,
        route: &ReplyRoute<'_>,
        tuple: &Tuple,
        segment: impl Into<Outgoing<'static>>,
        pass: &mut Pass<'_>,
    ) {
        let back = match route {
            ReplyRoute::Back(back) => back,
            ReplyRoute::Over(path) => return self.tcp_send_bare(path, tuple, segment, pass.now),
        };
        let out = segment.into();
        if out.segment.flags.has(Flags::RST) {
            self.tcp_count(Count::TcpOutRsts);
        }
        let len = parse::header_len(&out.segment.options);
        let _ = back.send_segment(len, |room| write_segment(room, tuple, &out), pass);
    }

    /// Sends a segment without data over `path`; it is dropped if it cannot be sent.
    pub(super) fn tcp_send_bare(
        &self,
        path: &Path,
        tuple: &Tuple,
        segment: impl Into<Outgoing<'static>>,
        now: Instant,
    ) {
        let out = segment.into();
        if out.segment.flags.has(Flags::RST) {
            self.tcp_count(Count::TcpOutRsts);
        }
        // A peer that waits for it will ask again.
        let _ = push(&mut self.segment_batch(path, now), tuple, &out, true);
    }
}
