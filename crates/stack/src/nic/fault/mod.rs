//! A bad link in front of any NIC: frames are lost, duplicated, reordered, corrupted and delayed, as often as
//! configured and the same way in every run.
//!
//! Owns the frames it holds back, per queue and direction. `line` decides what happens to each frame,
//! `damage` corrupts one, `alarm` is the interrupt that also fires when a held frame is due.

mod alarm;
mod damage;
mod line;

use self::{
    alarm::{Alarm, Direction},
    line::{Line, Tally},
};
use super::{Checksum, Frame, Info, Nic, Queue, RingFull, RxQueue, Steering, TxQueue};
use crate::{
    sync::{Mutex, lock},
    time::{self, Instant},
};
use std::{
    io,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

/// How soon a frame that met a full transmit ring is tried again.
const RETRY: Duration = Duration::from_micros(100);

/// What happens to frames going one way: probabilities from 0 (never) to 1 (always), and a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub loss: f64,
    /// The frame comes twice.
    pub duplication: f64,
    /// The next frame overtakes this one. If none comes, the frame leaves a millisecond late.
    pub reordering: f64,
    /// One bit of the IP packet is flipped, so that a checksum is wrong; a partial checksum is completed
    /// first. Frames that are not IP, such as ARP, and the first eight bytes of an IPv6 header are not
    /// corrupted, because no checksum would show it.
    pub corruption: f64,
    /// Every frame is delayed by this much. Order is kept.
    pub delay: Duration,
}

/// The configuration of a bad link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// What happens to the n-th frame of a queue in one direction depends only on this and n, not on
    /// time.
    pub seed: u64,
    /// Frames from the NIC.
    pub receive: Faults,
    /// Frames to the NIC.
    pub transmit: Faults,
    /// The most frames held at once per queue and direction; more are dropped and counted. The default is netem's.
    pub limit: usize,
}

impl Default for Config {
    /// A perfect link.
    fn default() -> Config {
        let (receive, transmit) = (Faults::default(), Faults::default());
        Config { seed: 0, receive, transmit, limit: 1000 }
    }
}

/// Counters of one direction, over all queues.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DirectionCounters {
    /// All frames.
    pub frames: AtomicU64,
    /// Frames lost.
    pub lost: AtomicU64,
    /// Frames that came twice.
    pub duplicated: AtomicU64,
    /// Frames held for the next one to overtake.
    pub reordered: AtomicU64,
    /// Frames with a bit flipped.
    pub corrupted: AtomicU64,
    /// Frames dropped because [`Config::limit`] were held.
    pub overflowed: AtomicU64,
}

/// The counters of a [`Fault`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Frames from the NIC.
    pub receive: DirectionCounters,
    /// Frames to the NIC.
    pub transmit: DirectionCounters,
}

/// A NIC on a bad link.
///
/// ```
/// use busypoll_stack::nic::{Nic, cable, fault::{Config, Fault, Faults}};
/// use std::time::Duration;
///
/// let (a, b) = cable::pair(cable::Config::default())?;
/// let bad = Faults { loss: 0.01, delay: Duration::from_micros(200), ..Faults::default() };
/// let a = Fault::new(Box::new(a), Config { seed: 7, receive: bad, ..Config::default() })?;
/// assert_eq!(a.info().name, "cable0");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Fault {
    inner: Box<dyn Nic>,
    config: Config,
    counters: Arc<Counters>,
}

impl Fault {
    /// Puts a bad link in front of `inner`.
    ///
    /// # Errors
    /// A probability outside of 0 to 1, or a limit of 0.
    pub fn new(inner: Box<dyn Nic>, config: Config) -> io::Result<Fault> {
        let invalid = |line: String| Err(io::Error::new(io::ErrorKind::InvalidInput, line));
        for (way, faults) in [("receive", config.receive), ("transmit", config.transmit)] {
            let Faults { loss, duplication, reordering, corruption, .. } = faults;
            for (what, probability) in [
                ("loss", loss),
                ("duplication", duplication),
                ("reordering", reordering),
                ("corruption", corruption),
            ] {
                if !(0.0..=1.0).contains(&probability) {
                    return invalid(format!(
                        "fault: {way} {what} {probability} is no probability: choose 0 to 1"
                    ));
                }
            }
        }
        if config.limit == 0 {
            return invalid("fault: a limit of 0 frames loses them all: choose 1 or more".into());
        }
        Ok(Fault { inner, config, counters: Arc::default() })
    }

    /// The counters. They go on counting after the NIC is handed to a host.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

impl Nic for Fault {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let Queue { rx, tx, interrupt } = self.inner.open(index)?;
        let line = |direction: Direction| {
            Line::new(&self.config, direction, index, Tally::new(&self.counters, direction))
        };
        let Config { receive, transmit, .. } = self.config;
        // Whether frames may be held: for a delay, for a frame to overtake, for room in a poll or a ring.
        let holds = |f: Faults| !f.delay.is_zero() || f.reordering > 0.0 || f.duplication > 0.0;
        let alarm = (holds(receive) || holds(transmit) || transmit.corruption > 0.0)
            .then(|| Alarm::new(interrupt.clone()).map(Arc::new))
            .transpose()?;
        let outgoing = Arc::new(Mutex::new(Outgoing {
            inner: tx,
            line: line(Direction::Transmit),
            alarm: alarm.clone(),
        }));
        Ok(Queue {
            rx: Box::new(Rx {
                inner: rx,
                line: line(Direction::Receive),
                outgoing: outgoing.clone(),
                alarm: alarm.clone(),
            }),
            tx: Box::new(Tx(outgoing)),
            interrupt: alarm.map_or(interrupt, |alarm| alarm),
        })
    }

    fn steering(&self) -> Option<Arc<dyn Steering>> {
        self.inner.steering()
    }
}

/// The time, if frames can be held; otherwise it is not needed.
fn now(alarm: &Option<Arc<Alarm>>) -> Instant {
    if alarm.is_some() { time::now() } else { Instant::ZERO }
}

struct Rx {
    inner: Box<dyn RxQueue>,
    line: Line,
    /// The receive half also pushes delayed transmit frames, because only polls are sure to happen.
    outgoing: Arc<Mutex<Outgoing>>,
    alarm: Option<Arc<Alarm>>,
}

impl RxQueue for Rx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let now = now(&self.alarm);
        if self.alarm.as_ref().is_some_and(|alarm| alarm.is_due(Direction::Transmit, now)) {
            lock(&self.outgoing).flush(now);
        }
        let line = &mut self.line;
        let mut room = budget;
        deliver(line, now, &mut room, sink);
        if room > 0 {
            self.inner.poll(room, &mut |frame| {
                let decision = line.next_decision();
                if room > 0 && line.passes_untouched(&decision) {
                    line.passed();
                    room -= 1;
                    sink(frame);
                } else {
                    let mut bytes = line.buffer();
                    frame.data().pieces().for_each(|piece| bytes.extend_from_slice(piece));
                    line.enter(decision, bytes, frame.checksum, now);
                    deliver(line, now, &mut room, sink);
                }
            });
        }
        if let Some(alarm) = &self.alarm {
            alarm.set(Direction::Receive, line.due());
        }
        budget - room
    }
}

/// Hands up the due frames, as far as there is room.
fn deliver(line: &mut Line, now: Instant, room: &mut usize, sink: &mut dyn FnMut(Frame<'_>)) {
    while *room > 0
        && let Some(held) = line.take_due(now)
    {
        *room -= 1;
        sink(Frame::whole(&held.bytes, held.checksum));
        line.recycle(held.bytes);
    }
}

/// The transmit half, used by its owner and, for due frames, by the receive half.
struct Outgoing {
    inner: Box<dyn TxQueue>,
    line: Line,
    alarm: Option<Arc<Alarm>>,
}

impl Outgoing {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        let decision = self.line.next_decision();
        if self.line.passes_untouched(&decision) {
            self.inner.push(len, partial, fill)?;
            self.line.passed();
            return Ok(());
        }
        let now = now(&self.alarm);
        if !self.release(now) {
            return Err(RingFull);
        }
        let mut bytes = self.line.buffer();
        bytes.resize(len, 0);
        fill(&mut bytes);
        let checksum = if partial { Checksum::Partial } else { Checksum::Unverified };
        self.line.enter(decision, bytes, checksum, now);
        Ok(())
    }

    fn flush(&mut self, now: Instant) {
        let released = self.release(now);
        self.inner.flush();
        if let Some(alarm) = &self.alarm {
            let due = self.line.due();
            alarm.set(Direction::Transmit, if released { due } else { Some(now + RETRY) });
        }
    }

    /// Pushes the due frames; false if the ring became full.
    fn release(&mut self, now: Instant) -> bool {
        while let Some(held) = self.line.take_due(now) {
            let partial = held.checksum == Checksum::Partial;
            let mut fill = |frame: &mut [u8]| frame.copy_from_slice(&held.bytes);
            if self.inner.push(held.bytes.len(), partial, &mut fill).is_err() {
                self.line.put_back(held);
                return false;
            }
            self.line.recycle(held.bytes);
        }
        true
    }
}

struct Tx(Arc<Mutex<Outgoing>>);

impl TxQueue for Tx {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        lock(&self.0).push(len, partial, fill)
    }

    fn flush(&mut self) {
        let mut outgoing = lock(&self.0);
        let now = now(&outgoing.alarm);
        outgoing.flush(now);
    }
}
