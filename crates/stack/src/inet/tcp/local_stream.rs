//! AF_UNIX streams over a link. The kernel has connected the two sockets; from a byte on that both processes agree on,
//! the data goes over a connection of ours that both make without a handshake. It ends as AF_UNIX does: shutdown(2) is
//! the kernel's, so a FIN says that the peer has closed its socket, and nothing can be sent any more.

use super::{
    TcpOptions,
    application::Flow,
    claims::{FlowClaim, Kind},
    connection::{Connection, Start, State, errno},
    flow::{Core, NewFlow, mss},
    handshake::{Agreed, Request},
    segment::{Flags, Segment},
    seq::Seq,
    table::Entry,
    tuple::Tuple,
};
use crate::{
    inet::{Inet, Pass, PathOptions, input::Arrival},
    nic::Checksum,
    time::Instant,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
};

/// Both begin with this number.
const FIRST: Seq = Seq(1);

/// Windows are counted in units of 128 bytes.
const SHIFT: u8 = 7;

/// The size of either buffer. What both hold is a segment more, as no more is taken than the peer has room for: so a
/// process that is killed has sent all but a segment. It is as much as a kernel's socket holds with its usual buffer,
/// and fits into the largest that any user may have, should the kernel have it again.
const BUFFER: u32 = 248 * 1024;

/// What may be sent before the first window is known: the buffer less what was received by the kernel.
const FIRST_WINDOW: u32 = 216 * 1024;

/// The networks of the ends: nothing else has addresses there, as the kernel knows nothing of these connections.
const CONNECTED: [u8; 2] = [127, 85];
const ACCEPTED: [u8; 2] = [127, 86];

/// The ends of the stream whose connected socket has this inode number: of the socket that connected, and of the
/// accepted one. `None`: it has no such ends.
pub(crate) fn ends_of_local_stream(inode: u32) -> Option<(SocketAddr, SocketAddr)> {
    let [high, low, port @ ..] = inode.to_be_bytes();
    let port = u16::from_be_bytes(port);
    let at = |[a, b]: [u8; 2]| SocketAddr::new(Ipv4Addr::new(a, b, high, low).into(), port);
    (port != 0).then(|| (at(CONNECTED), at(ACCEPTED)))
}

/// The inode number of the connected socket of the stream with this end, and whether it is the accepted one's.
pub(crate) fn local_stream_of(end: SocketAddr) -> Option<(u32, bool)> {
    let IpAddr::V4(ip) = end.ip() else { return None };
    let [a, b, high, low] = ip.octets();
    let [port, last] = end.port().to_be_bytes();
    let inode = u32::from_be_bytes([high, low, port, last]);
    is_end_of_local_stream(end).then_some((inode, [a, b] == ACCEPTED))
}

pub(super) fn is_end_of_local_stream(end: SocketAddr) -> bool {
    match end.ip() {
        IpAddr::V4(ip) => {
            matches!(ip.octets(), [a, b, ..] if [CONNECTED, ACCEPTED].contains(&[a, b]))
        }
        IpAddr::V6(_) => false,
    }
}

/// One end of a stream that its process leaves to the kernel.
#[doc(hidden)]
#[derive(Debug)]
pub struct Left {
    /// The number of the byte it waits for.
    pub(crate) next: u32,
    /// Its kernel's socket, by which the other process sends itself what it has received and not read.
    pub(crate) kernel: OwnedFd,
}

impl Inet {
    /// Makes the stream with these ends, local and remote, over the link of that number. `received` was received by the
    /// kernel's socket and not read.
    ///
    /// # Errors
    /// EEXIST: there is one. EHOSTUNREACH: the link has ended. ENOBUFS: no memory for what was received.
    pub(crate) fn tcp_local_stream(
        self: &Arc<Inet>,
        (local, remote): (SocketAddr, SocketAddr),
        link: u32,
        received: &[u8],
        pass: &mut Pass<'_>,
    ) -> io::Result<Flow> {
        let unreachable = || errno(libc::EHOSTUNREACH);
        let path_options = PathOptions { link, ..PathOptions::default() };
        let path = self.tcp_path((local, remote), 0, path_options, pass.now);
        let path = path.map_err(|_| unreachable())?;
        let iface = path.interface().cloned().ok_or_else(unreachable)?;
        let (tuple, napi) = (Tuple::new(local, remote), path.napi());
        let mss = mss(path.max_transport_len());
        // Before the first byte that the peer sends are those that it has sent by the kernel.
        let connection = self.local_connection(FIRST - received.len() as u32, mss, pass.now);
        // No port is claimed: these addresses are no program's.
        let flow_claim = FlowClaim { kind: Kind::new(true, true), chosen: true };
        let parts =
            NewFlow { tuple, connection, path, endpoint: None, napi, flow_claim, port_ref: None };
        let core = Core::new(parts);
        core.lock().imported = true;
        if !self.tcp.table.insert(tuple, Entry::Flow(core.clone())) {
            return Err(errno(libc::EEXIST));
        }
        let flow = Flow::new(core.clone(), self.clone());
        let fed = self.feed(&core, received, pass);
        if fed && !iface.has_ended() {
            return Ok(flow);
        }
        flow.end_silently(libc::ECONNABORTED, pass);
        Err(if fed { unreachable() } else { errno(libc::ENOBUFS) })
    }

    fn local_connection(&self, first: Seq, mss: u16, now: Instant) -> Connection {
        let options = TcpOptions {
            nodelay: true,
            send_buffer: BUFFER,
            receive_buffer: BUFFER,
            // Any limit: see `may_queue`.
            notsent_low_water: u32::MAX - 1,
            ..TcpOptions::default()
        };
        let shared = &self.tcp.shared;
        let agreed = Agreed {
            mss,
            window_scale: Some((SHIFT, SHIFT)),
            sack: true,
            timestamps: true,
            ecn: false,
        };
        let start = Start { iss: FIRST - 1, ts_offset: 0, mss };
        let mut request = Request::from_cookie(shared, &options, &ack(first), agreed, start, now);
        request.agreed.window_scale = agreed.window_scale;
        let mut connection = Connection::accepted(shared, &options, &request, mss, now);
        connection.is_local_stream = true;
        connection
    }

    /// Makes the connection established, and gives it what was received. Returns whether there was memory for it.
    fn feed(&self, core: &Arc<Core>, received: &[u8], pass: &mut Pass<'_>) -> bool {
        /// No segment is longer.
        const MOST: usize = 1 << 14;
        let mut next = FIRST - received.len() as u32;
        core.segment(self, &ack(next), &arrival(), pass);
        core.lock().connection.receiver.honour(FIRST + FIRST_WINDOW);
        for payload in received.chunks(MOST) {
            core.segment(self, &Segment { payload, ..ack(next) }, &arrival(), pass);
            next += payload.len() as u32;
        }
        core.lock().connection.receiver.next() == FIRST
    }
}

/// Synthetic segments come over no interface.
fn arrival() -> Arrival<'static> {
    let checksum = Checksum::Partial;
    Arrival { iface: None, queue: 0, received: None, frame: &[], to_us: true, checksum }
}

/// A segment as the peer would send it.
fn ack(seq: Seq) -> Segment<'static> {
    Segment {
        seq,
        ack: FIRST,
        flags: Flags::ACK,
        window: (FIRST_WINDOW >> SHIFT) as u16,
        ..Segment::default()
    }
}

impl Flow {
    /// Ends it here, without a word to the peer: calls on it return `error`.
    pub(crate) fn end_silently(&self, error: i32, pass: &mut Pass<'_>) {
        let mut state = self.core.enter(pass);
        state.connection.end_handed_over(error);
        self.core.finish(state, &self.inet, pass);
    }

    /// The program has shut it down, and the kernel will: this end shows it before the peer knows.
    pub(crate) fn shut_before_leaving(&self, how: Shutdown, pass: &mut Pass<'_>) {
        let mut state = self.core.enter(pass);
        let connection = &mut state.connection;
        connection.read_shut |= how != Shutdown::Write;
        connection.write_shut |= how != Shutdown::Read;
        connection.notify = true;
        self.core.finish(state, &self.inet, pass);
    }
}

impl Connection {
    /// The peer has closed its socket: it takes nothing any more.
    #[cold]
    pub(super) fn peer_closed(&mut self) {
        self.write_shut = true;
        self.fin_queued = true;
        self.enter(State::LastAck);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_stream_name_its_connected_socket() {
        for inode in [1, 0x1234_5678, u32::MAX] {
            let (connected, accepted) = ends_of_local_stream(inode).unwrap();
            assert_eq!(local_stream_of(connected), Some((inode, false)));
            assert_eq!(local_stream_of(accepted), Some((inode, true)));
        }
        assert!(ends_of_local_stream(0x1_0000).is_none(), "no port");
        assert_eq!(local_stream_of("127.0.0.1:80".parse().unwrap()), None);
        assert_eq!(local_stream_of("[::1]:80".parse().unwrap()), None);
    }
}
