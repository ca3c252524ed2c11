//! Time stamps of a receive in the stack, taken at interfaces that the stack has anyway: the NIC's doorbell, the pass
//! over the ring, the frame handed up (a stamped NIC wraps the real one), the host's delivery hook, recv's return.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use busypoll_stack::nic::{Frame, Info, Nic, Queue, RingFull, RxQueue, Steering, TxQueue};

use crate::clock::Clock;
use crate::stats::{self, Rtts};

/// The last packet's time stamps, in ticks. One transaction is in flight at a time, so one set is enough.
#[derive(Debug, Default)]
pub struct Stamps {
    /// The sender rings its doorbell.
    doorbell: AtomicU64,
    /// The pass that finds the frame begins.
    pass: AtomicU64,
    /// The frame is handed up.
    frame: AtomicU64,
    /// `inet` hands the datagram to its socket.
    socket: AtomicU64,
    /// The delivery hook has returned: the datagram is in the socket's queue.
    queued: AtomicU64,
}

/// The stages of a receive, in order.
pub const STAGES: [&str; 6] = ["ring", "wake-up", "napi", "inet", "socket", "return"];

/// How long each stage took, by packet.
#[derive(Debug, Clone)]
pub struct Times {
    /// As in [`STAGES`].
    pub stages: [Rtts; STAGES.len()],
    /// From the doorbell to recv's return.
    pub total: Rtts,
}

impl Default for Times {
    fn default() -> Self {
        Self { stages: std::array::from_fn(|_| stats::histogram()), total: stats::histogram() }
    }
}

/// Records the stages of every packet for which recv has returned.
#[derive(Debug, Clone)]
pub struct Recorder {
    /// Shared with the NICs.
    pub stamps: Arc<Stamps>,
    /// Shared with the code that reports.
    pub times: Arc<Mutex<Times>>,
    /// Whether the receiver sleeps: then the time until the pass begins is its wake-up.
    pub sleeps: bool,
}

impl Recorder {
    /// Of a receiver that sleeps, or polls.
    pub fn new(sleeps: bool) -> Self {
        Self { stamps: Arc::default(), times: Arc::default(), sleeps }
    }

    /// The hook to call when `inet` hands a datagram to its socket.
    pub fn at_the_socket(&self, clock: &Clock) -> impl Fn() + Send + Sync + 'static {
        let (stamps, clock) = (self.stamps.clone(), clock.clone());
        move || stamps.socket.store(clock.now(), Ordering::Relaxed)
    }

    /// Must be called as soon as recv has returned.
    pub fn returned(&self, clock: &Clock) {
        let now = clock.now();
        let at = |stamp: &AtomicU64| stamp.load(Ordering::Relaxed);
        let s = &self.stamps;
        let (doorbell, frame) = (at(&s.doorbell), at(&s.frame));
        let (socket, queued) = (at(&s.socket), at(&s.queued));
        // For a pass that had begun before the doorbell, only the time after the doorbell counts.
        let pass = at(&s.pass).max(doorbell);
        let waited = (doorbell, pass);
        let nothing = (0, 0);
        let spans = [
            if self.sleeps { nothing } else { waited },
            if self.sleeps { waited } else { nothing },
            (pass, frame),
            (frame, socket),
            (socket, queued),
            (queued, now),
        ];
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        for (stage, (from, to)) in times.stages.iter_mut().zip(spans) {
            stage.saturating_record(clock.nanos(from, to));
        }
        times.total.saturating_record(clock.nanos(doorbell, now));
    }
}

/// A NIC whose packets are time stamped.
pub struct Stamped<N> {
    nic: N,
    clock: Clock,
    stamps: Arc<Stamps>,
    end: End,
}

/// Which end of the link this NIC is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its doorbell is stamped.
    Sender,
    /// Its passes are stamped.
    Receiver,
}

impl<N> Stamped<N> {
    /// Wraps a NIC.
    pub fn new(nic: N, clock: &Clock, stamps: &Arc<Stamps>, end: End) -> Self {
        Self { nic, clock: clock.clone(), stamps: stamps.clone(), end }
    }
}

impl<N: Nic> Nic for Stamped<N> {
    fn info(&self) -> &Info {
        self.nic.info()
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let queue = self.nic.open(index)?;
        let (clock, stamps) = (self.clock.clone(), self.stamps.clone());
        Ok(match self.end {
            End::Sender => Queue { tx: Box::new(Sender { tx: queue.tx, clock, stamps }), ..queue },
            End::Receiver => {
                Queue { rx: Box::new(Receiver { rx: queue.rx, clock, stamps }), ..queue }
            }
        })
    }

    fn steering(&self) -> Option<Arc<dyn Steering>> {
        self.nic.steering()
    }
}

struct Sender {
    tx: Box<dyn TxQueue>,
    clock: Clock,
    stamps: Arc<Stamps>,
}

impl TxQueue for Sender {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        // Some rings show a frame to the peer as soon as it is pushed, so the stamp comes first.
        self.stamps.doorbell.store(self.clock.now(), Ordering::Relaxed);
        self.tx.push(len, partial, fill)
    }

    fn flush(&mut self) {
        self.tx.flush();
    }
}

struct Receiver {
    rx: Box<dyn RxQueue>,
    clock: Clock,
    stamps: Arc<Stamps>,
}

impl RxQueue for Receiver {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        let pass = self.clock.now();
        let (clock, stamps) = (&self.clock, &self.stamps);
        self.rx.poll(budget, &mut |frame| {
            stamps.frame.store(clock.now(), Ordering::Relaxed);
            stamps.pass.store(pass, Ordering::Relaxed);
            sink(frame);
            stamps.queued.store(clock.now(), Ordering::Relaxed);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(recorder: &Recorder, ticks: [u64; 5]) {
        let s = &recorder.stamps;
        let stamps = [&s.doorbell, &s.pass, &s.frame, &s.socket, &s.queued];
        for (stamp, ticks) in stamps.into_iter().zip(ticks) {
            stamp.store(ticks, Ordering::Relaxed);
        }
    }

    fn p50(recorder: &Recorder) -> Vec<u64> {
        let times = recorder.times.lock().expect("not poisoned");
        times.stages.iter().map(|s| s.value_at_quantile(0.5) / 1000).collect()
    }

    #[test]
    fn stages_add_up_and_the_wait_is_named_by_the_mode() {
        let clock = Clock::default();
        let us = clock.ticks(std::time::Duration::from_micros(1));
        for (sleeps, first_two) in [(false, [40, 0]), (true, [0, 40])] {
            let recorder = Recorder::new(sleeps);
            let start = clock.now() - 100 * us;
            let after = |micros| start + micros * us;
            stamp(&recorder, [start, after(40), after(43), after(48), after(50)]);
            recorder.returned(&clock);
            let stages = p50(&recorder);
            // Conversion between ticks and microseconds rounds.
            let near = |a: u64, b: u64| a.abs_diff(b) <= 1;
            assert!(near(stages[0], first_two[0]) && near(stages[1], first_two[1]), "{stages:?}");
            assert!((2..=3).contains(&stages[2]) && (4..=5).contains(&stages[3]), "{stages:?}");
            assert!((1..=2).contains(&stages[4]) && stages[5] >= 48, "{stages:?}");
        }
    }

    #[test]
    fn a_pass_under_way_counts_from_the_doorbell() {
        let clock = Clock::default();
        let us = clock.ticks(std::time::Duration::from_micros(1));
        let recorder = Recorder::new(false);
        let start = clock.now() - 100 * us;
        let (before, frame) = (start - 30 * us, start + 2 * us);
        stamp(&recorder, [start, before, frame, start + 3 * us, start + 4 * us]);
        recorder.returned(&clock);
        let stages = p50(&recorder);
        assert_eq!(stages[0], 0);
        assert!((1..=2).contains(&stages[2]), "{stages:?}");
    }
}
