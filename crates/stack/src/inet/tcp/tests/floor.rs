//! What a script runs on: a bare connection, or a whole host with the connection inside (`over_inet`). The script is
//! the same for both.

use crate::{
    inet::{
        SocketError,
        counters::Counters,
        tcp::{
            Config, Mark, Ready, TcpOptions,
            connection::{Connection, Outgoing, Start, State},
            handshake::{Answer, Request},
            info::TcpInfo,
            parse,
            segment::Segment,
            seq::Seq,
            shared::Shared,
        },
    },
    time::Instant,
    wire::tcp::Packet,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    sync::Arc,
};

/// Our initial sequence number on a bare connection: it wraps within each script.
const ISS: Seq = Seq(0xffff_fc00);

/// A segment that was sent, read back from its bytes.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) segment: Segment<'static>,
    /// Bytes of header, and the data.
    pub(super) header: usize,
    pub(super) payload: Vec<u8>,
    pub(super) ecn_capable: bool,
    /// On a bare connection: it is marked as the last one to send.
    pub(super) last: bool,
}

/// One end of a connection. The script makes the application's calls and sets the clock.
pub(super) trait ScriptTarget {
    fn connect(&mut self, now: Instant);
    fn listen(&mut self);
    /// A segment has come: header and data. The floor adds ports and checksum.
    fn segment(&mut self, bytes: &mut [u8], congested: bool, now: Instant);
    /// Sends everything allowed; returns what was sent since the last call.
    fn sent(&mut self, now: Instant) -> Vec<Sent>;
    fn deadline(&mut self, now: Instant) -> Option<Instant>;
    fn timer(&mut self, now: Instant);
    /// The transmit ring has room for so many segments at a time.
    fn set_ring_room(&mut self, segments: u64);
    /// An ICMP error about the segment at `quoted`.
    fn unreachable(&mut self, error: SocketError, quoted: Seq, now: Instant);
    fn too_big(&mut self, mss: u16, quoted: Seq, now: Instant);
    /// There is no connection, and no handshake.
    fn is_listening(&self) -> bool;

    fn send(&mut self, data: &[u8], more: bool, now: Instant) -> io::Result<usize>;
    fn send_marked(&mut self, data: &[u8], mark: Mark, now: Instant) -> io::Result<usize>;
    fn recv_urgent(&mut self, peek: bool) -> io::Result<Option<u8>>;
    fn is_at_mark(&self) -> bool;
    fn unread(&self) -> usize;
    fn ready(&mut self) -> Ready;
    fn recv(&mut self, into: &mut [u8], now: Instant) -> io::Result<usize>;
    fn shutdown(&mut self, how: Shutdown, now: Instant);
    fn close(&mut self, now: Instant);
    fn abort(&mut self, now: Instant);
    fn options(&self) -> TcpOptions;
    fn set_options(&mut self, options: TcpOptions, now: Instant);
    fn state(&self) -> State;
    fn take_error(&mut self) -> Option<i32>;
    fn info(&mut self, now: Instant) -> TcpInfo;
    fn unacknowledged(&self) -> usize;
}

/// A connection, or the request that becomes one.
pub(super) struct BareConnection {
    start: Start,
    shared: Arc<Shared>,
    options: TcpOptions,
    request: Option<Request>,
    connection: Option<Connection>,
    sent: Vec<Sent>,
    room: u64,
}

impl BareConnection {
    pub(super) fn new(config: Config, options: TcpOptions, mss: u16) -> BareConnection {
        BareConnection {
            start: Start { iss: ISS, ts_offset: 0x8000_0000, mss },
            shared: Shared::new(config, Arc::new(Counters::new()), 7.into()),
            options,
            request: None,
            connection: None,
            sent: Vec::new(),
            room: u64::MAX,
        }
    }

    fn record(&mut self, outgoing: &Outgoing<'_>) {
        // Through the bytes and back: only what is on the wire counts.
        let mut bytes = vec![0; parse::header_len(&outgoing.segment.options)];
        parse::write_header(&mut bytes, (9, 9), &outgoing.segment)
            .expect("what is sent fits a segment");
        let packet = Packet::new_checked(&bytes[..]).expect("as it was written");
        let segment = parse::parse(&packet, false);
        assert_eq!(segment, outgoing.segment, "the bytes on the wire differ");
        self.sent.push(Sent {
            segment: outgoing.segment.clone(),
            header: bytes.len(),
            payload: outgoing.payload.clone().collect::<Vec<_>>().concat(),
            ecn_capable: outgoing.ecn_capable,
            last: outgoing.last,
        });
    }

    fn conn(&self) -> &Connection {
        self.connection.as_ref().expect("there is a connection")
    }

    fn conn_mut(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("there is a connection")
    }
}

impl ScriptTarget for BareConnection {
    fn connect(&mut self, now: Instant) {
        self.connection = Some(Connection::connect(&self.shared, &self.options, self.start, now));
    }

    fn listen(&mut self) {}

    fn segment(&mut self, bytes: &mut [u8], congested: bool, now: Instant) {
        let packet = Packet::new_checked(&*bytes).expect("as it was written");
        let segment = &parse::parse(&packet, congested);
        if let Some(connection) = &mut self.connection {
            connection.segment(segment, now);
            return;
        }
        let Some(request) = &mut self.request else {
            let mut request = Request::new(&self.shared, &self.options, segment, self.start, now);
            self.record(&request.syn_ack(now));
            self.request = Some(request);
            return;
        };
        match request.segment(&self.shared, segment, now) {
            Answer::Accept => {
                let (shared, mss) = (&self.shared, self.start.mss);
                let mut connection = Connection::accepted(shared, &self.options, request, mss, now);
                connection.segment(segment, now);
                (self.request, self.connection) = (None, Some(connection));
            }
            Answer::Ignore => {}
            Answer::Send(outgoing) => self.record(&outgoing),
            Answer::SynAck => {
                let syn_ack = request.syn_ack(now);
                self.record(&syn_ack);
            }
            Answer::Forget => self.request = None,
        }
    }

    fn sent(&mut self, now: Instant) -> Vec<Sent> {
        if let Some(mut connection) = self.connection.take() {
            let room = self.room;
            connection.transmit(now, &mut |outgoing| {
                let fits = (self.sent.len() as u64) < room;
                if fits {
                    self.record(outgoing);
                }
                fits
            });
            self.connection = Some(connection);
        }
        std::mem::take(&mut self.sent)
    }

    fn deadline(&mut self, _: Instant) -> Option<Instant> {
        match (&self.connection, &self.request) {
            (Some(connection), _) => connection.deadline(),
            (None, Some(request)) => Some(request.deadline()),
            (None, None) => None,
        }
    }

    fn timer(&mut self, now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.timer(now);
        } else if let Some(request) = &mut self.request {
            match request.timer(&self.shared, now) {
                Answer::SynAck => {
                    let syn_ack = request.syn_ack(now);
                    self.record(&syn_ack);
                }
                Answer::Forget => self.request = None,
                _ => {}
            }
        }
    }

    fn set_ring_room(&mut self, segments: u64) {
        self.room = segments;
    }

    fn unreachable(&mut self, error: SocketError, quoted: Seq, _: Instant) {
        self.conn_mut().unreachable(error, quoted);
    }

    fn too_big(&mut self, mss: u16, quoted: Seq, now: Instant) {
        // The check that a whole host makes before it accepts ICMP.
        let connection = self.conn_mut();
        if connection.is_in_flight(quoted) && mss < connection.info(now).pmtu_mss as u16 {
            connection.path_mss(mss, now);
        }
    }

    fn is_listening(&self) -> bool {
        self.request.is_none() && self.connection.is_none()
    }

    fn send(&mut self, data: &[u8], more: bool, now: Instant) -> io::Result<usize> {
        self.conn_mut().send(&[IoSlice::new(data)], more, now)
    }

    fn send_marked(&mut self, data: &[u8], mark: Mark, now: Instant) -> io::Result<usize> {
        self.conn_mut().send_marked(&[IoSlice::new(data)], false, mark, now)
    }

    fn recv_urgent(&mut self, peek: bool) -> io::Result<Option<u8>> {
        self.conn_mut().recv_urgent(peek)
    }

    fn is_at_mark(&self) -> bool {
        self.conn().is_at_mark()
    }

    fn unread(&self) -> usize {
        self.conn().unread()
    }

    fn ready(&mut self) -> Ready {
        self.conn_mut().ready()
    }

    fn recv(&mut self, into: &mut [u8], now: Instant) -> io::Result<usize> {
        self.conn_mut().recv(&mut [IoSliceMut::new(into)], false, now)
    }

    fn shutdown(&mut self, how: Shutdown, now: Instant) {
        self.conn_mut().shutdown(how, now).expect("connected");
    }

    fn close(&mut self, now: Instant) {
        self.conn_mut().close(now);
    }

    fn abort(&mut self, now: Instant) {
        self.conn_mut().abort(now);
    }

    fn options(&self) -> TcpOptions {
        self.conn().options()
    }

    fn set_options(&mut self, options: TcpOptions, now: Instant) {
        self.conn_mut().configure(now, |mine| *mine = options);
    }

    fn state(&self) -> State {
        self.conn().state()
    }

    fn take_error(&mut self) -> Option<i32> {
        self.conn_mut().take_error()
    }

    fn info(&mut self, now: Instant) -> TcpInfo {
        self.conn_mut().info(now)
    }

    fn unacknowledged(&self) -> usize {
        self.conn().unacknowledged()
    }
}
