//! One run of a line: the two ends on their CPUs and in their hosts, and the counts between two readings.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, Namespace};
use busypoll_linux::stat::CpuTimes;
use busypoll_stack::{Host, inet::Context};

use super::lines::Line;
use super::relay::Losses;
use crate::arm::Mode;
use crate::demand::Usage;
use crate::evidence;
use crate::run::Skipped;
use crate::siblings::OneCore;
use crate::slot::{Announce, inside};
use crate::stats::Rtts;

/// The most connections of one round, as each leaves a TIME_WAIT socket.
pub(super) const CONNECTIONS: u64 = 10_000;

/// The measurement starts after this time even if the first byte has not come.
pub(super) const FIRST_BYTE: Duration = Duration::from_secs(2);

/// The environment and the duration of one run of a line.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) line: &'a Line,
    pub(super) lab: Option<&'a Lab>,
    pub(super) client_cpu: u32,
    pub(super) server_cpu: u32,
    pub(super) busy_poll: Duration,
    /// The largest packet, in bytes.
    pub(super) mtu: usize,
    pub(super) warm_up: Duration,
    pub(super) measure: Duration,
}

impl Place<'_> {
    /// `SO_BUSY_POLL` in microseconds; 0: the end sleeps.
    pub(super) fn busy_poll_micros(&self) -> u32 {
        match self.line.arm.mode {
            Mode::BusyPoll => self.busy_poll.as_micros().try_into().unwrap_or(i32::MAX as u32),
            Mode::Blocking | Mode::Spin | Mode::Interrupt => 0,
        }
    }
}

/// The result of one run.
#[derive(Debug, Clone)]
pub(super) struct RunResult {
    /// Bytes, or connections.
    pub(super) count: u64,
    pub(super) elapsed: Duration,
    pub(super) usage: Usage,
    /// Packets that busy polling took from the devices of both ends.
    pub(super) busy_polled: u64,
    /// The duration of each connection, in nanoseconds.
    pub(super) times: Option<Rtts>,
}

/// State shared by the ends of a run and its observer.
#[derive(Default)]
pub(super) struct Gauge {
    count: AtomicU64,
    pub(super) stop: AtomicBool,
    /// The contexts of the stack's ends.
    contexts: Mutex<Vec<Arc<Context>>>,
}

impl Gauge {
    /// Counts bytes or connections.
    pub(super) fn add(&self, count: u64) {
        // One writer: the end that receives.
        self.count.store(self.count.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Includes the busy polling of `host` in the counts.
    pub(super) fn watch(&self, host: &Host) {
        self.contexts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(host.contexts().cloned());
    }

    /// Packets that busy polling has found so far: the kernel's at the ends of `lab`, or the stack's.
    pub(super) fn busy_polled(&self, lab: Option<&Lab>) -> Result<u64, String> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let stack = contexts.iter().map(|context| context.stats().bp_cleaned).sum();
        let kernel = lab.map_or(Ok(0), evidence::busy_poll_rx_packets)?;
        Ok(if contexts.is_empty() { kernel } else { stack })
    }
}

/// One connection between the hosts of the lab, if there is one.
pub(super) fn stream(
    place: &Place<'_>,
    receive: impl FnOnce(&Announce, &Gauge) -> Result<(), String> + Send,
    send: impl FnOnce(SocketAddr, &Gauge) -> Result<(), String> + Send,
) -> Result<RunResult, String> {
    let hosts = (place.lab.map(|lab| &*lab.client), place.lab.map(|lab| &*lab.server));
    stream_between(place, hosts, receive, send)
}

/// Runs the two ends on their CPUs and in their hosts while this thread reads the gauge.
pub(super) fn stream_between(
    place: &Place<'_>,
    (client, server): (Option<&Namespace>, Option<&Namespace>),
    receive: impl FnOnce(&Announce, &Gauge) -> Result<(), String> + Send,
    send: impl FnOnce(SocketAddr, &Gauge) -> Result<(), String> + Send,
) -> Result<RunResult, String> {
    let gauge = Gauge::default();
    let (announce, address) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let gauge = &gauge;
        let receiver = scope.spawn(move || {
            inside(server, place.server_cpu, || receive(&Announce::new(announce), gauge))
        });
        let sender = scope.spawn(move || {
            inside(client, place.client_cpu, move || {
                // A closed channel means that the receiver failed; its result has the reason.
                address.recv().map_err(|_| String::new()).and_then(|to| send(to, gauge))
            })
        });
        let result = observe(place, gauge, || receiver.is_finished() || sender.is_finished());
        gauge.stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap_or_else(|_| Err("the sender panicked".to_owned()));
        let received = receiver.join().unwrap_or_else(|_| Err("the receiver panicked".to_owned()));
        received?;
        sent?;
        result
    })
}

/// One connection after another between the hosts of the lab. `serve` announces its listener and answers,
/// `dial` connects to it and measures.
pub(super) fn connections(
    place: &Place<'_>,
    serve: impl FnOnce(&Announce, &Gauge) -> Result<(), String> + Send,
    dial: impl FnOnce(SocketAddr, &Gauge) -> Result<RunResult, String> + Send,
) -> Result<RunResult, String> {
    let lab = place.lab.ok_or("needs the lab")?;
    let gauge = Gauge::default();
    let (announce, address) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let gauge = &gauge;
        let server = scope.spawn(move || {
            inside(Some(&*lab.server), place.server_cpu, || serve(&Announce::new(announce), gauge))
        });
        let client = inside(Some(&*lab.client), place.client_cpu, move || {
            // A closed channel means that the server failed; its result has the reason.
            address.recv().map_err(|_| String::new()).and_then(|to| dial(to, gauge))
        });
        // Also if the client failed before it connected.
        gauge.stop.store(true, Ordering::Relaxed);
        let server = server.join().unwrap_or_else(|_| Err("the server panicked".to_owned()));
        server.and(client)
    })
}

/// Reads the gauge at the start and at the end of the measurement.
fn observe(
    place: &Place<'_>,
    gauge: &Gauge,
    ended: impl Fn() -> bool,
) -> Result<RunResult, String> {
    let read = || {
        let cpu = CpuTimes::now().map_err(|e| e.to_string())?;
        let now = (Instant::now(), gauge.count.load(Ordering::Relaxed));
        Ok::<_, String>((now, cpu, gauge.busy_polled(place.lab)?))
    };
    let begin = Instant::now();
    while gauge.count.load(Ordering::Relaxed) == 0 && begin.elapsed() < FIRST_BYTE {
        if ended() {
            return Err("it ended before it had begun".to_owned());
        }
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(place.warm_up);
    let ((start, first), before, polled_before) = read()?;
    thread::sleep(place.measure);
    let ((end, last), after, polled) = read()?;
    let elapsed = end - start;
    let times = after.since(&before);
    let usage = Usage { used: times.used(elapsed), capacity: elapsed * times.cpus.len() as u32 };
    match last - first {
        0 => Err("nothing came through".to_owned()),
        count => {
            let busy_polled = polled.saturating_sub(polled_before);
            Ok(RunResult { count, elapsed, usage, busy_polled, times: None })
        }
    }
}

/// The rounds of a line; none for a failed round.
pub(super) struct LineRun {
    pub(super) line: Line,
    pub(super) results: Vec<Option<RunResult>>,
}

/// The result of a measurement.
#[derive(Default)]
pub struct Outcome {
    pub(super) lines: Vec<LineRun>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) idle: Usage,
    pub(super) one_core: OneCore,
    pub(super) stopped_after: Option<usize>,
    pub(super) losses: Option<Losses>,
}
