//! Both sides of a FIX session over an endpoint of a stream: logon, a test request and its heartbeat, orders and their
//! reports, heartbeats after a second without a message. A benchmark's request is an order, its response the report.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::message::{Builder, Message, Timestamp};
use crate::clock::Clock;
use crate::stats::{self, Rtts};
use crate::workload::{Endpoint, GIVE_UP, Polling};

const HEARTBEAT: Duration = Duration::from_secs(1);
const LOGON: u8 = b'A';
const HEARTBEAT_KIND: u8 = b'0';
const TEST_REQUEST: u8 = b'1';
const LOGOUT: u8 = b'5';
const ORDER: u8 = b'D';
const REPORT: u8 = b'8';
/// Our own fields: the clock when the order was sent, and how long it took to its receiver.
const SENT: u32 = 5001;
const TOOK: u32 = 5002;
/// Bytes of a benchmark's message that an order carries.
const CARRIED: usize = 8;

/// What both sides do.
struct Session<'a, E> {
    endpoint: E,
    clock: &'a Clock,
    /// Sender and target.
    names: [&'static [u8]; 2],
    builder: Builder,
    time: Timestamp,
    /// What has come and is not read, up to `filled`.
    buffer: Vec<u8>,
    filled: usize,
    /// What the last message takes of it.
    done: usize,
    next_in: u64,
    next_out: u64,
    last_out: Instant,
    heartbeats: u64,
}

impl<'a, E: Endpoint> Session<'a, E> {
    fn new(endpoint: E, clock: &'a Clock, names: [&'static [u8]; 2]) -> Self {
        Self {
            endpoint,
            clock,
            names,
            builder: Builder::default(),
            time: Timestamp::default(),
            buffer: vec![0; 16 * 1024],
            filled: 0,
            done: 0,
            next_in: 1,
            next_out: 1,
            last_out: Instant::now(),
            heartbeats: 0,
        }
    }

    /// Sends a message whose own fields `add` adds.
    fn send(&mut self, kind: u8, add: impl FnOnce(&mut Builder)) -> io::Result<()> {
        let [sender, target] = self.names;
        let builder = self.builder.begin(kind).field(49, sender).field(56, target);
        builder.count(34, self.next_out).field(52, self.time.now());
        add(builder);
        self.endpoint.send(builder.finish())?;
        self.next_out += 1;
        self.last_out = Instant::now();
        Ok(())
    }

    /// The next message of the application, read by `read`; messages of the session are answered here. None after a
    /// silence.
    fn receive<R>(
        &mut self,
        kinds: &[u8],
        read: impl FnOnce(Message<'_>) -> R,
    ) -> io::Result<Option<R>> {
        loop {
            self.buffer.copy_within(self.done..self.filled, 0);
            self.filled -= self.done;
            self.done = 0;
            let Some((message, length)) =
                Message::find(&self.buffer[..self.filled]).map_err(wrong)?
            else {
                let room = self.buffer.get_mut(self.filled..).filter(|room| !room.is_empty());
                let room = room.ok_or_else(|| wrong("longer than any message here"))?;
                match self.endpoint.recv_some(room)? {
                    Some(n) => self.filled += n,
                    None if self.last_out.elapsed() > HEARTBEAT => {
                        self.send(HEARTBEAT_KIND, |_| ())?;
                        return Ok(None);
                    }
                    None => return Ok(None),
                }
                continue;
            };
            self.done = length;
            if message.count(34) != Some(self.next_in) {
                return Err(wrong("a sequence number is not the next"));
            }
            self.next_in += 1;
            let kind = message.kind();
            if kinds.contains(&kind) {
                return Ok(Some(read(message)));
            }
            match kind {
                HEARTBEAT_KIND => self.heartbeats += 1,
                TEST_REQUEST => {
                    let id = message.get(112).unwrap_or_default().to_vec();
                    self.send(HEARTBEAT_KIND, |fields| {
                        fields.field(112, &id);
                    })?;
                }
                LOGOUT => {
                    self.send(LOGOUT, |_| ())?;
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                _ => return Err(wrong("a message that no side of this session sends")),
            }
        }
    }

    /// Waits for a message of this kind, which must come.
    fn expect(&mut self, kind: u8) -> io::Result<()> {
        let give_up = Instant::now() + GIVE_UP;
        while Instant::now() < give_up {
            if self.receive(&[kind], |_| ())?.is_some() {
                return Ok(());
            }
        }
        Err(io::Error::new(
            ErrorKind::TimedOut,
            "the other side of the FIX session does not answer",
        ))
    }
}

fn wrong(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("FIX: {why}"))
}

/// The side that logs on and sends orders.
pub struct Initiator<'a, E> {
    session: Session<'a, E>,
    /// Orders on their way, as the acceptor has told.
    one_way: Rtts,
}

impl<'a, E: Endpoint> Initiator<'a, E> {
    /// Logs on, and tests the session by a test request.
    ///
    /// # Errors
    /// The endpoint's errors; [`ErrorKind::TimedOut`] if no answer comes.
    pub fn logon(endpoint: E, clock: &'a Clock) -> io::Result<Self> {
        let mut session = Session::new(endpoint, clock, [b"BUY", b"SELL"]);
        // No encryption; sequence numbers begin at 1.
        session.send(LOGON, |fields| {
            fields.count(98, 0).count(108, 1).field(141, b"Y");
        })?;
        session.expect(LOGON)?;
        session.send(TEST_REQUEST, |fields| {
            fields.field(112, b"BUSY");
        })?;
        session.expect(HEARTBEAT_KIND)?;
        Ok(Self { session, one_way: stats::histogram() })
    }

    /// Logs out, and waits for the other side's logout.
    ///
    /// # Errors
    /// The endpoint's errors.
    pub fn logout(mut self) -> io::Result<()> {
        self.session.send(LOGOUT, |_| ())?;
        self.session.expect(LOGOUT)
    }
}

impl<E: Endpoint> Endpoint for Initiator<'_, E> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let id = hex(message);
        let now = self.session.clock.now();
        self.session.send(ORDER, |fields| {
            let fields = fields.field(11, &id).field(21, b"1").field(55, b"BUSY").field(54, b"1");
            let fields = fields.count(38, 100).field(40, b"2").field(44, b"101.25").field(59, b"0");
            fields.count(SENT, now);
        })
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let read = |message: Message<'_>| (unhex(message.get(11), buffer), message.count(TOOK));
        let Some((carried, took)) = self.session.receive(&[REPORT], read)? else { return Ok(None) };
        if let Some(nanos) = took {
            self.one_way.saturating_record(nanos);
        }
        carried
            .map(|()| Some(buffer.len()))
            .ok_or_else(|| wrong("a report's ClOrdID is not the order's"))
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.recv(buffer)
    }

    fn polling(&self) -> Polling {
        self.session.endpoint.polling()
    }

    fn one_way(&mut self) -> Option<&mut Rtts> {
        Some(&mut self.one_way)
    }
}

/// The side that is logged on to and answers orders.
pub struct Acceptor<'a, E> {
    session: Session<'a, E>,
    took: u64,
}

impl<'a, E: Endpoint> Acceptor<'a, E> {
    /// Waits for the logon when it receives first.
    pub fn new(endpoint: E, clock: &'a Clock) -> Self {
        Self { session: Session::new(endpoint, clock, [b"SELL", b"BUY"]), took: 0 }
    }
}

impl<E: Endpoint> Endpoint for Acceptor<'_, E> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let (id, took, number) = (hex(message), self.took, self.session.next_out);
        self.session.send(REPORT, |fields| {
            let fields =
                fields.count(37, number).count(17, number).field(20, b"0").field(150, b"2");
            let fields = fields.field(39, b"2").field(11, &id).field(55, b"BUSY").field(54, b"1");
            let fields = fields.count(38, 100).count(32, 100).field(31, b"101.25").count(14, 100);
            fields.count(151, 0).field(6, b"101.25").count(TOOK, took);
        })
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let clock = self.session.clock;
        let read = |message: Message<'_>| {
            // Before anything else is read.
            let now = clock.now();
            let sent = message.count(SENT);
            (
                message.kind(),
                sent.map(|sent| clock.nanos(sent, now)),
                unhex(message.get(11), buffer),
            )
        };
        match self.session.receive(&[ORDER, LOGON], read)? {
            Some((ORDER, took, carried)) => {
                self.took = took.unwrap_or(0);
                carried
                    .map(|()| Some(buffer.len()))
                    .ok_or_else(|| wrong("an order without a ClOrdID of ours"))
            }
            Some(_) => {
                self.session.send(LOGON, |fields| {
                    fields.count(98, 0).count(108, 1).field(141, b"Y");
                })?;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.recv(buffer)
    }

    fn abandon(&mut self) {
        self.session.endpoint.abandon();
    }

    fn polling(&self) -> Polling {
        self.session.endpoint.polling()
    }
}

/// The first bytes of a message as a ClOrdID, always of the same length.
fn hex(message: &[u8]) -> [u8; 2 * CARRIED] {
    let mut text = [b'0'; 2 * CARRIED];
    for (pair, byte) in text.chunks_exact_mut(2).zip(message) {
        for (digit, nibble) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
    }
    text
}

/// The bytes that [`hex`] has written; none if it is no such text.
fn unhex(text: Option<&[u8]>, into: &mut [u8]) -> Option<()> {
    let text = text.filter(|text| text.len() == 2 * CARRIED)?;
    for (byte, pair) in into.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        *byte = (high? * 16 + low?) as u8;
    }
    Some(())
}

/// Bytes of an order and of a report, with their headers.
pub fn sizes() -> (usize, usize) {
    /// Keeps the length of what was sent last.
    struct Length(usize);
    impl Endpoint for Length {
        fn send(&mut self, message: &[u8]) -> io::Result<()> {
            self.0 = message.len();
            Ok(())
        }
        fn recv(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(None)
        }
        fn try_recv(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(None)
        }
    }
    let clock = Clock::default();
    let session = |names| Session { next_out: 100_000, ..Session::new(Length(0), &clock, names) };
    let mut initiator =
        Initiator { session: session([b"BUY", b"SELL"]), one_way: stats::histogram() };
    let mut acceptor = Acceptor { session: session([b"SELL", b"BUY"]), took: 10_000 };
    // The messages are never delivered, only measured.
    let _ = (initiator.send(&[0]), acceptor.send(&[0]));
    (initiator.session.endpoint.0, acceptor.session.endpoint.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Tcp, Wait};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    fn pair<R: Send>(
        client: impl FnOnce(Tcp<'_>, &Clock) -> R + Send,
        server: impl FnOnce(Tcp<'_>, &Clock) + Send,
    ) -> R {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let (at, clock) = (listener.local_addr().expect("an address"), Clock::default());
        thread::scope(|scope| {
            let client = scope
                .spawn(|| client(Tcp::client(at, Wait::Sleep, &clock).expect("connected"), &clock));
            let (stream, _) = listener.accept().expect("a client");
            server(Tcp::new(stream, Wait::Sleep, &clock).expect("options"), &clock);
            client.join().expect("no panic")
        })
    }

    #[test]
    fn a_session_logs_on_tests_itself_and_trades() {
        let (answered, one_way, heartbeats) = pair(
            |tcp, clock| {
                let mut initiator = Initiator::logon(tcp, clock).expect("logged on");
                let mut answered = 0;
                for n in 0..50u8 {
                    initiator.send(&[n, 7]).expect("sent");
                    let mut answer = [0; 2];
                    while initiator.recv(&mut answer).expect("a report").is_none() {}
                    answered += u32::from(answer == [n, 7]);
                }
                // A second of silence: both sides heartbeat.
                let from = initiator.session.heartbeats;
                while initiator.session.heartbeats == from {
                    assert_eq!(initiator.recv(&mut [0; 2]).expect("a session"), None);
                }
                let one_way = initiator.one_way().expect("recorded").len();
                let heartbeats = initiator.session.heartbeats;
                let _ = initiator.logout();
                (answered, one_way, heartbeats)
            },
            |tcp, clock| {
                let mut acceptor = Acceptor::new(tcp, clock);
                let mut order = [0; 2];
                loop {
                    match acceptor.recv(&mut order) {
                        Ok(Some(_)) => acceptor.send(&order).expect("sent"),
                        Ok(None) => {}
                        Err(e) => break assert_eq!(e.kind(), ErrorKind::UnexpectedEof, "{e}"),
                    }
                }
            },
        );
        assert_eq!((answered, one_way), (50, 50));
        assert!(heartbeats >= 1, "the initiator heard {heartbeats}");
    }

    #[test]
    fn what_is_no_fix_or_out_of_order_is_an_error() {
        for text in ["GET / HTTP/1.0\r\n\r\n", "8=FIX.4.2\u{1}9=5\u{1}35=0\u{1}10=161\u{1}"] {
            let error = pair(
                |tcp, clock| Initiator::logon(tcp, clock).map(drop).expect_err("no session"),
                |mut tcp, _| {
                    tcp.recv_some(&mut [0; 512]).expect("a logon");
                    tcp.send(text.as_bytes()).expect("sent");
                },
            );
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
    }

    #[test]
    fn an_order_and_a_report_are_as_long_as_real_ones() {
        let (order, report) = sizes();
        assert!((150..250).contains(&order) && (180..300).contains(&report), "{order} {report}");
    }

    #[test]
    fn a_client_order_id_carries_eight_bytes() {
        let mut back = [0; CARRIED];
        unhex(Some(&hex(&[1, 255, 16])), &mut back).expect("ours");
        assert_eq!(back, [1, 255, 16, 0, 0, 0, 0, 0]);
        assert_eq!(unhex(Some(b"zz"), &mut back), None);
        assert_eq!(unhex(Some(&[b'g'; 16]), &mut back), None);
        assert_eq!(unhex(None, &mut back), None);
    }
}
