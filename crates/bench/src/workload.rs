//! Request and response over any endpoint: the server's loop, the closed loop (netperf's _RR)
//! and the open loop. Independent of kernel and stack; an arm provides an [`Endpoint`].

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::stats::Rtts;
use crate::units::Size;

/// How long one [`Endpoint::recv`] waits before it reports silence.
pub const RECEIVE_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a stream's peer has to connect, to take what is sent, and to send the rest of a message.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(5);

/// After this time without an answer, later ones count as late. Much longer than any round trip here, and much shorter
/// than a measurement.
const QUIET: Duration = Duration::from_millis(1);

/// How often a request is repeated after silence before the peer counts as absent.
pub(crate) const TRIES: usize = 20;

/// The pacing of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// The next request waits for the last answer, and for the gap since the last request.
    Closed {
        /// Zero = flat out.
        gap: Duration,
    },
    /// This many requests per second, whether or not answers come.
    Open {
        /// Requests per second.
        rate: f64,
    },
}

/// One end of an arm: how it sends, and how it waits.
pub trait Endpoint {
    /// Sends one message whole.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Waits in the arm's mode for one message (a stream fills `buffer`); none after [`RECEIVE_TIMEOUT`].
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Takes a message if there is one, without waiting.
    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Waits in the arm's mode for what a stream brings next, however little; of datagrams for one.
    fn recv_some(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.recv(buffer)
    }

    /// How long requests were on their way, in nanoseconds, if the other end tells.
    fn one_way(&mut self) -> Option<&mut Rtts> {
        None
    }

    /// Makes the endpoint close without a handshake, so that nothing of it remains.
    fn abandon(&mut self) {}

    /// The endpoint's own counts of polling.
    fn polling(&self) -> Polling {
        Polling::default()
    }
}

/// Fills `buffer` from a stream by `receive`, which waits as [`Endpoint::recv`] does.
///
/// # Errors
/// Those of `receive`; [`unfinished`] if the rest of a message does not come.
#[inline]
pub(crate) fn fill(
    buffer: &mut [u8],
    mut receive: impl FnMut(&mut [u8]) -> io::Result<Option<usize>>,
) -> io::Result<Option<usize>> {
    let (mut filled, mut give_up) = (0, None);
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match receive(rest)? {
            Some(n) => {
                filled += n;
                give_up = None;
            }
            None if filled == 0 => return Ok(None),
            // Half a message: the rest is in flight, the connection ends, or the peer is gone without closing.
            None if Instant::now() < *give_up.get_or_insert_with(|| Instant::now() + GIVE_UP) => {}
            None => return Err(unfinished()),
        }
    }
    Ok(Some(filled))
}

/// The error for a message whose rest does not come.
pub(crate) fn unfinished() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the peer went silent in the middle of a message")
}

/// An endpoint's counts of how its packets were found, since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polling {
    /// `SO_INCOMING_NAPI_ID`, 0 if unknown.
    pub napi_id: u32,
    /// Packets its own busy poll found (stack).
    pub hits: u64,
    /// Passes that found nothing (stack).
    pub misses: u64,
    /// Refused attempts to become the queue's owner (stack).
    pub yields: u64,
    /// Interrupts taken (stack).
    pub interrupts: u64,
}

impl Polling {
    /// The counts since `earlier`; the current napi id.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            napi_id: self.napi_id,
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            yields: self.yields.saturating_sub(earlier.yields),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
        }
    }

    /// Adds the other end's counts.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.yields += other.yields;
        self.interrupts += other.interrupts;
    }
}

/// The state of a run, which the client sets and the server reads.
#[derive(Debug, Default)]
pub struct Stage(AtomicU8);

impl Stage {
    const MEASURE: u8 = 1;
    const STOP: u8 = 2;

    /// The measurement begins.
    pub fn measure(&self) {
        self.0.store(Self::MEASURE, Ordering::Release);
    }

    /// The server must stop.
    pub fn stop(&self) {
        self.0.store(Self::STOP, Ordering::Release);
    }

    fn is_stop(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::STOP
    }
}

/// Answers until stopped and one more message, or a silence, comes. Returns the endpoint's counts
/// of the measurement.
///
/// A response repeats the first bytes of its request, so that a client recognises a late one.
///
/// # Errors
/// The endpoint's errors, except that the client left.
pub fn serve(endpoint: &mut impl Endpoint, size: Size, stage: &Stage) -> io::Result<Polling> {
    let mut request = vec![0; size.request];
    let mut response = vec![0; size.response];
    let mut start = None;
    let end = loop {
        let n = match endpoint.recv(&mut request) {
            Ok(Some(n)) => n,
            Ok(None) if stage.is_stop() => break endpoint.polling(),
            Ok(None) => continue,
            Err(e) if is_over(&e) => break endpoint.polling(),
            Err(e) => return Err(e),
        };
        match stage.0.load(Ordering::Relaxed) {
            Stage::STOP => break endpoint.polling(),
            Stage::MEASURE if start.is_none() => start = Some(endpoint.polling()),
            _ => {}
        }
        let echoed = n.min(8).min(response.len());
        response[..echoed].copy_from_slice(&request[..echoed]);
        match endpoint.send(&response) {
            Ok(()) => {}
            Err(e) if is_over(&e) => break endpoint.polling(),
            // The open loop's client counts it as a loss.
            Err(e) if is_full(&e) => {}
            Err(e) => return Err(e),
        }
    };
    Ok(end.since(&start.unwrap_or(end)))
}

/// Whether the client has closed its end: it has finished, or ended.
pub(crate) fn is_over(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

/// The counts of a loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that were answered.
    pub transactions: u64,
    /// Requests that were not answered within [`RECEIVE_TIMEOUT`].
    pub lost: u64,
}

/// The client side of an exchange, with its buffers.
pub struct Client<'a, E> {
    endpoint: E,
    clock: &'a Clock,
    request: Vec<u8>,
    response: Vec<u8>,
    sequence: u8,
}

impl<'a, E: Endpoint> Client<'a, E> {
    /// A client that sends and expects messages of `size`.
    pub fn new(endpoint: E, clock: &'a Clock, size: Size) -> Self {
        let (request, response) = (vec![0; size.request], vec![0; size.response]);
        Self { endpoint, clock, request, response, sequence: 0 }
    }

    /// The endpoint.
    pub fn endpoint(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// Repeats a request until the first answer: then neighbours are resolved and the server runs.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if no answer comes for about two seconds.
    pub fn greet(&mut self) -> io::Result<()> {
        for _ in 0..TRIES {
            match self.exchange() {
                Ok(true) => return Ok(()),
                // The server does not listen yet; the kernel reports that at once, so wait here.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    thread::sleep(RECEIVE_TIMEOUT)
                }
                Ok(false) => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the peer never answered"))
    }

    /// One request and its response; false after a silence.
    fn exchange(&mut self) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        self.request[0] = self.sequence;
        self.endpoint.send(&self.request)?;
        while self.endpoint.recv(&mut self.response)?.is_some() {
            // Any other is a late answer to an earlier request.
            if self.response[0] == self.sequence {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The closed loop: the next request is sent when the last one was answered, and `gap` after
    /// that was sent at the earliest; for `time`, and `most` requests at most. Round trips are added to `rtts`.
    ///
    /// # Errors
    /// The endpoint's errors.
    pub fn closed_loop(
        &mut self,
        time: Duration,
        gap: Duration,
        most: u64,
        rtts: &mut Rtts,
    ) -> io::Result<Tally> {
        let mut tally = Tally::default();
        let mut from = self.clock.now();
        let end = from + self.clock.ticks(time);
        while from < end && tally.transactions + tally.lost < most {
            let answered = self.exchange()?;
            let to = self.clock.now();
            let nanos = self.clock.nanos(from, to);
            if answered {
                rtts.saturating_record(nanos);
                tally.transactions += 1;
            } else {
                tally.lost += 1;
            }
            from = to;
            if let Some(pause) = gap.checked_sub(Duration::from_nanos(nanos))
                && !pause.is_zero()
            {
                thread::sleep(pause);
                from = self.clock.now();
            }
        }
        Ok(tally)
    }

    /// The open loop: request *i* is due at `i / rate` whether or not earlier ones were answered, and
    /// its latency counts from then, not from when it could be sent. The client never sleeps, so
    /// that only the server's waiting is measured. Needs requests and responses of at least 8 bytes.
    ///
    /// `settled` is called once, when all answers have come, or no more do: waiting longer for a lost one would only
    /// measure this client's timeout.
    ///
    /// # Errors
    /// The endpoint's errors.
    pub fn open_loop(
        &mut self,
        time: Duration,
        rate: f64,
        rtts: &mut Rtts,
        settled: impl FnOnce(),
    ) -> io::Result<Tally> {
        debug_assert!(self.request.len() >= 8 && self.response.len() >= 8);
        let start = self.clock.now();
        let per_second = self.clock.ticks(Duration::from_secs(1)) as f64;
        let due = |i: u64| start + (i as f64 / rate * per_second) as u64;
        let end = start + self.clock.ticks(time);
        let give_up = end + self.clock.ticks(RECEIVE_TIMEOUT);
        let quiet = self.clock.ticks(QUIET);
        let mut settled = Some(settled);
        let mut last = end;
        let (mut sent, mut answered) = (0u64, 0u64);
        loop {
            let now = self.clock.now();
            let next = due(sent);
            if next < end && now >= next {
                self.request[..8].copy_from_slice(&sent.to_le_bytes());
                match self.endpoint.send(&self.request) {
                    Ok(()) => {}
                    // A full queue is a loss like any other: no answer will come.
                    Err(e) if is_full(&e) => {}
                    Err(e) => return Err(e),
                }
                sent += 1;
            }
            while let Some(n) = self.endpoint.try_recv(&mut self.response)? {
                let to = self.clock.now();
                let Some(index) = self.response[..n].first_chunk::<8>() else { continue };
                let index = u64::from_le_bytes(*index);
                if index < sent {
                    rtts.saturating_record(self.clock.nanos(due(index), to));
                    answered += 1;
                    last = last.max(to);
                }
            }
            if now < end || due(sent) < end {
                continue;
            }
            let over = answered >= sent || now >= give_up;
            if over || now > last + quiet {
                settled.take().into_iter().for_each(|settled| settled());
            }
            if over {
                return Ok(Tally { transactions: answered, lost: sent.saturating_sub(answered) });
            }
        }
    }
}

fn is_full(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::WouldBlock || e.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A simulated server: answers at once, or not, or late.
    struct Loopback {
        queue: VecDeque<Vec<u8>>,
        sent: usize,
        lose: fn(usize) -> bool,
        late: fn(usize) -> bool,
        held: Vec<Vec<u8>>,
    }

    fn loopback(lose: fn(usize) -> bool, late: fn(usize) -> bool) -> Loopback {
        Loopback { queue: VecDeque::new(), sent: 0, lose, late, held: Vec::new() }
    }

    impl Endpoint for Loopback {
        fn send(&mut self, message: &[u8]) -> io::Result<()> {
            self.sent += 1;
            if (self.late)(self.sent) {
                self.held.push(message.to_vec());
            } else if !(self.lose)(self.sent) {
                self.queue.extend(self.held.drain(..));
                self.queue.push_back(message.to_vec());
            }
            Ok(())
        }
        fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
            self.try_recv(buffer)
        }
        fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(self.queue.pop_front().map(|m| {
                buffer[..m.len()].copy_from_slice(&m);
                m.len()
            }))
        }
    }

    const TIME: Duration = Duration::from_millis(5);

    fn closed(endpoint: Loopback) -> (Tally, Rtts) {
        let clock = Clock::default();
        let mut rtts = crate::stats::histogram();
        let mut client = Client::new(endpoint, &clock, Size { request: 1, response: 1 });
        let tally = client.closed_loop(TIME, Duration::ZERO, u64::MAX, &mut rtts).expect("no I/O");
        (tally, rtts)
    }

    #[test]
    fn every_transaction_is_one_sample() {
        let (tally, rtts) = closed(loopback(|_| false, |_| false));
        assert!(tally.transactions > 10 && tally.lost == 0, "{tally:?}");
        assert_eq!(rtts.len(), tally.transactions);
    }

    #[test]
    fn lost_and_late_answers_are_not_samples() {
        let (tally, rtts) = closed(loopback(|n| n % 4 == 1, |n| n % 4 == 3));
        assert!(tally.lost > 0 && tally.transactions.abs_diff(tally.lost) <= 1, "{tally:?}");
        assert_eq!(rtts.len(), tally.transactions);
    }

    #[test]
    fn a_peer_that_never_answers_is_an_error() {
        let clock = Clock::default();
        let silent = loopback(|_| true, |_| false);
        let mut client = Client::new(silent, &clock, Size { request: 1, response: 1 });
        assert_eq!(client.greet().map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[test]
    fn the_open_loop_offers_its_rate_and_counts_losses() {
        let clock = Clock::default();
        let mut rtts = crate::stats::histogram();
        let lossy = loopback(|n| n % 10 == 0, |_| false);
        let mut client = Client::new(lossy, &clock, Size { request: 16, response: 16 });
        let start = std::time::Instant::now();
        let mut took = Duration::ZERO;
        let settled = || took = start.elapsed();
        let tally = client.open_loop(Duration::from_millis(50), 10_000.0, &mut rtts, settled);
        let tally = tally.expect("no I/O");
        assert!(
            took + RECEIVE_TIMEOUT / 2 < start.elapsed(),
            "the lost answer's wait was measured: {took:?}"
        );
        assert_eq!((tally.transactions, tally.lost), (450, 50));
        assert_eq!(rtts.len(), 450);
    }

    #[test]
    fn the_open_loop_counts_from_the_intended_time() {
        // Every send takes 2 ms while 1000 requests per second are due: requests become ever later.
        struct Slow(VecDeque<[u8; 8]>);
        impl Endpoint for Slow {
            fn send(&mut self, message: &[u8]) -> io::Result<()> {
                thread::sleep(Duration::from_millis(2));
                self.0.extend(message.first_chunk::<8>());
                Ok(())
            }
            fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
                self.try_recv(buffer)
            }
            fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
                Ok(self.0.pop_front().map(|m| {
                    buffer[..8].copy_from_slice(&m);
                    8
                }))
            }
        }
        let clock = Clock::default();
        let mut rtts = crate::stats::histogram();
        let size = Size { request: 8, response: 8 };
        let mut client = Client::new(Slow(VecDeque::new()), &clock, size);
        let tally = client.open_loop(Duration::from_millis(40), 1000.0, &mut rtts, || ());
        let tally = tally.expect("no I/O");
        assert_eq!(tally.transactions, 40);
        assert!(rtts.max() > 35_000_000, "the last was at least 38 ms late: {}", rtts.max());
    }
}
