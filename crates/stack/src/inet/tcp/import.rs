//! Takes a connection over from the kernel, which has made it: the reverse of [`hand_over`](super::hand_over). See
//! `socket/tcp/import.rs` for the kernel's side.

use super::{
    PortRef,
    application::Flow,
    connection::{Start, errno},
    flow::{Core, mss},
    handshake::{Agreed, Request},
    input::millis,
    listener::Listening,
    segment::{Flags, Segment},
    seq::Seq,
    table::Entry,
    tuple::Tuple,
};
use crate::{
    inet::{Count, Inet, Pass, input::Arrival},
    nic::Checksum,
    time::Instant,
};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};

/// A connection of the kernel's on which nothing has been sent yet.
#[derive(Debug)]
pub(crate) struct KernelConnection {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The number of the first byte to be sent.
    pub(crate) snd_nxt: u32,
    /// The data received, none of it read, and the number of its first byte.
    pub(crate) first: u32,
    pub(crate) received: Vec<u8>,
    /// Whether the peer's FIN has come after it.
    pub(crate) fin: bool,
    /// The right edge of the window that the peer may use.
    pub(crate) edge: u32,
    /// The peer's window, and the largest segment the peer takes.
    pub(crate) snd_wnd: u32,
    pub(crate) mss: u16,
    /// The shifts of the windows, the peer's and ours.
    pub(crate) scale: Option<(u8, u8)>,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
    /// The present value of the kernel's timestamp clock for it, of which the lowest bit may be cleared.
    pub(crate) timestamp: Option<u32>,
    /// The smoothed round trip that the kernel has measured.
    pub(crate) rtt: Option<Duration>,
}

/// What the kernel still acknowledges of a connection that is ours already: a packet may have been on its way to the
/// kernel when the connection was taken over.
pub(crate) struct Remainder {
    core: Arc<Core>,
    inet: Arc<Inet>,
    /// The number of the first byte that the kernel has received, and of the next one.
    first: Seq,
    next: Seq,
    /// The peer's FIN was passed on.
    ended: bool,
    ack: Seq,
    window: u16,
}

/// Synthetic segments come over no interface.
fn arrival() -> Arrival<'static> {
    let checksum = Checksum::Partial;
    Arrival { iface: None, queue: 0, received: None, frame: &[], to_us: true, checksum }
}

/// The offset of our timestamps, of which none may be before one that the kernel has sent: the peer would drop the
/// segment (PAWS). The kernel clears the lowest bit of `value` from Linux 6.7 on, and its milliseconds begin at other
/// moments than ours.
fn ts_offset(value: u32, now: Instant) -> u32 {
    (value | 1).wrapping_add(1).wrapping_sub(millis(now))
}

impl Listening {
    /// A connection that came over the queues stays the kernel's.
    pub(crate) fn left_to_kernel(&self) {
        self.inet.counters.add(Count::TCPLeftToKernel);
    }

    /// Makes a connection like one that the kernel has made, as if it had been accepted here. Its packets are to come to
    /// it now.
    ///
    /// # Errors
    /// EEXIST: there is one with these ends. EHOSTUNREACH: no way to the peer over an interface. ENOBUFS: no memory for
    /// what has come. Then there is none of ours.
    pub(crate) fn import(
        &self,
        of: &KernelConnection,
        pass: &mut Pass<'_>,
    ) -> io::Result<Imported> {
        let (inet, listener) = (&self.inet, &self.listener);
        let (options, path_options) = listener.options();
        let end = |of: SocketAddr| (of.ip().to_canonical(), of.port());
        let tuple = Tuple::of(end(of.local), end(of.remote));
        let ends = (tuple.local(), tuple.remote());
        let path = inet.tcp_path(ends, 0, path_options, pass.now).ok();
        let path = path.filter(|path| path.iface.is_some());
        let path = path.ok_or_else(|| errno(libc::EHOSTUNREACH))?;
        let start = Start {
            iss: Seq(of.snd_nxt) - 1,
            ts_offset: of.timestamp.map_or(0, |value| ts_offset(value, pass.now)),
            mss: mss(path.max_transport_len()),
        };
        let agreed = Agreed {
            mss: of.mss,
            window_scale: of.scale,
            sack: of.sack,
            timestamps: of.timestamp.is_some(),
            ecn: of.ecn,
        };
        let shift = of.scale.map_or(0, |(theirs, _)| theirs);
        let ack = Segment {
            seq: Seq(of.first),
            ack: Seq(of.snd_nxt),
            flags: Flags::ACK,
            window: u16::try_from(of.snd_wnd >> shift).unwrap_or(u16::MAX),
            ..Segment::default()
        };
        let shared = &inet.tcp.shared;
        let mut request = Request::from_cookie(shared, &options, &ack, agreed, start, pass.now);
        request.agreed.window_scale = of.scale;
        if let Some(rtt) = of.rtt {
            request.acknowledged_after(rtt, pass.now);
        }
        let core = inet.tcp_accepted(listener, tuple, &request, path, pass);
        {
            let mut state = core.lock();
            state.imported = true;
            // What the kernel's connection has received has confirmed the neighbour to the kernel.
            state.confirm_later(pass.now);
        }
        if !inet.tcp.table.insert(tuple, Entry::Flow(core.clone())) {
            inet.tcp_release(&listener.flow_claim().of(&tuple));
            return Err(errno(libc::EEXIST));
        }
        let mut remainder = Remainder {
            core: core.clone(),
            inet: inet.clone(),
            first: ack.seq,
            next: ack.seq,
            ended: false,
            ack: ack.ack,
            window: ack.window,
        };
        core.segment(inet, &ack, &arrival(), pass);
        core.lock().connection.receiver.honour(Seq(of.edge));
        let received = remainder.received(&of.received, of.fin, pass);
        let imported = Imported(remainder);
        match received {
            Ok(()) => Ok(imported),
            Err(error) => {
                imported.forget(pass);
                Err(error)
            }
        }
    }
}

/// A connection of ours that has all that the kernel's had. No packet comes to it yet.
pub(crate) struct Imported(Remainder);

impl Imported {
    /// Its packets come to it from now on, for as long as there is this reference to its port.
    pub(crate) fn steered(self, port_ref: PortRef) -> (Flow, Remainder) {
        let Imported(remainder) = self;
        let before = remainder.core.lock().port_ref.replace(port_ref);
        drop(before);
        (Flow::new(remainder.core.clone(), remainder.inet.clone()), remainder)
    }

    /// Ends it without a word to the peer.
    pub(crate) fn forget(self, pass: &mut Pass<'_>) {
        let Imported(Remainder { core, inet, .. }) = self;
        let mut state = core.enter(pass);
        state.connection.end_handed_over(libc::ECONNABORTED);
        core.finish(state, &inet, pass);
    }
}

impl Remainder {
    /// The kernel has acknowledged `data` since the connection began, and the peer's FIN after it if `fin`. Passes on
    /// what is new.
    ///
    /// # Errors
    /// ENOBUFS: there is no memory for it, and the peer will not send it again.
    pub(crate) fn received(
        &mut self,
        data: &[u8],
        fin: bool,
        pass: &mut Pass<'_>,
    ) -> io::Result<()> {
        /// No segment is longer.
        const MOST: usize = 1 << 14;
        let mut rest = data.get((self.next - self.first) as usize..).unwrap_or_default();
        // The kernel's window may be larger than ours.
        self.core.lock().connection.receiver.honour(self.next + rest.len() as u32 + 1u32);
        while !self.ended && (fin || !rest.is_empty()) {
            let (payload, after) = rest.split_at(rest.len().min(MOST));
            self.ended = fin && after.is_empty();
            let flags = if self.ended { Flags::ACK | Flags::FIN } else { Flags::ACK };
            self.segment(Segment { flags, payload, ..Segment::default() }, pass);
            self.next = self.next + payload.len() as u32 + u32::from(self.ended);
            rest = after;
            if self.core.lock().connection.receiver.next().before(self.next) {
                return Err(errno(libc::ENOBUFS));
            }
        }
        Ok(())
    }

    /// The peer has reset the connection, or data of it is lost.
    pub(crate) fn reset(&mut self, pass: &mut Pass<'_>) {
        self.next = self.core.lock().connection.receiver.next();
        self.segment(Segment { flags: Flags::RST | Flags::ACK, ..Segment::default() }, pass);
    }

    fn segment(&self, segment: Segment<'_>, pass: &mut Pass<'_>) {
        let (seq, ack, window) = (self.next, self.ack, self.window);
        let segment = Segment { seq, ack, window, ..segment };
        self.core.segment(&self.inet, &segment, &arrival(), pass);
        self.inet.deliver_local(pass);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's clock and ours count the same milliseconds, which begin at other moments.
    #[test]
    fn no_timestamp_is_before_one_of_the_kernels() {
        const MS: u64 = 1_000_000;
        for (phase, clears) in (0..MS).step_by(70_001).flat_map(|at| [(at, false), (at, true)]) {
            for begun in (7 * MS..9 * MS).step_by(90_007) {
                let kernel = |at: u64| ((at + phase) / MS) as u32;
                let value = if clears { kernel(begun) & !1 } else { kernel(begun) };
                let offset = ts_offset(value, Instant::from_nanos(begun));
                for later in (begun..begun + 4 * MS).step_by(110_017) {
                    let ours = millis(Instant::from_nanos(later)).wrapping_add(offset);
                    let ahead = ours.wrapping_sub(kernel(later)) as i32;
                    assert!((0..=3).contains(&ahead), "{phase} {begun} {later}: {ahead}");
                }
            }
        }
    }
}
