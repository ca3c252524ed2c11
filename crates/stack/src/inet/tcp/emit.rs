//! Segments on their way out, into the frame that carries them: header, data, checksum.

use super::{
    connection::Outgoing,
    parse,
    segment::{Flags, Segment},
    tuple::Tuple,
};
use crate::{
    inet::{Count, Inet, Path, SendError, segments::Run},
    time::Instant,
    wire::checksum::Sum,
};

/// Where in a header the checksum is.
const CHECKSUM: usize = 16;

/// ECT(0) (RFC 3168 section 5).
const ECN_CAPABLE: u8 = 2;

/// Sends one segment of a connection between the ends of `tuple`.
#[inline]
pub(super) fn push(run: &mut Run<'_>, tuple: &Tuple, out: &Outgoing<'_>) -> Result<(), SendError> {
    let len = parse::header_len(&out.segment.options) + out.payload.len();
    let ecn = if out.ecn_capable { ECN_CAPABLE } else { 0 };
    run.push(len, ecn, |room| {
        let ports = (tuple.local_port(), tuple.remote_port());
        let Ok(mut to) = parse::lay(room.bytes, ports, &out.segment) else { return };
        for piece in out.payload.clone() {
            let Some((here, rest)) = to.split_at_mut_checked(piece.len()) else { return };
            here.copy_from_slice(piece);
            to = rest;
        }
        let checksum = room.checksum(|| Sum::of(room.bytes));
        if let Some(field) = room.bytes.get_mut(CHECKSUM..CHECKSUM + 2) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    })?;
    if out.last {
        run.doorbell();
    }
    Ok(())
}

impl From<Segment<'static>> for Outgoing<'_> {
    fn from(segment: Segment<'static>) -> Self {
        Outgoing { segment, ..Outgoing::default() }
    }
}

impl Inet {
    /// Sends a segment without data over `path`. Nobody misses it if it cannot go.
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
        // Whoever waits for it will ask again.
        let _ = push(&mut self.run(path, now), tuple, &out);
    }
}
