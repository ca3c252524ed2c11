//! The trace itself: reads records until the time is over, and keeps their number within bounds.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use busypoll_bench::data::{FoundCounts, SlowPacket, TraceCost};
use busypoll_linux::bpf::trace::{Counts, Ends, Found, Received, Record, Sent};

use crate::error::TraceError;
use crate::flows::{Flows, Key, Plane};
use crate::slowest::Slowest;
use crate::stack::Packet;
use crate::story::Story;
use crate::target::Traced;
use crate::{stages, story};

/// How often the records are read.
const PAUSE: Duration = Duration::from_millis(50);
/// More records in one pause make the sampling coarser: twenty thousand a second.
const MOST_IN_A_PAUSE: u64 = 1000;
/// New processes and their stacks are looked for once in so many pauses.
const LOOK: u64 = 5;
/// Threads whose call has taken packets and has not returned, and packets of one such call.
const MOST_PENDING: usize = 4096;

/// What came of a trace.
pub struct Outcome {
    /// For how long.
    pub time: Duration,
    /// Received packets.
    pub receives: Flows,
    /// Sent ones.
    pub sends: Flows,
    /// The slowest of each.
    pub slowest: Vec<SlowPacket>,
    /// The last sampling.
    pub one_in: u64,
    /// What the kernel's programs met.
    pub counts: Counts,
    /// What it cost.
    pub cost: Option<TraceCost>,
    /// Packets that were received and sent, of those that were traced.
    pub seen: u64,
}

/// Sums up records.
struct Collector {
    receives: Flows,
    sends: Flows,
    slow_receives: Slowest,
    slow_sends: Slowest,
    /// Taken by calls that have not returned, by thread.
    pending: HashMap<u32, Vec<Received>>,
    seen: u64,
    /// Of those, packets of the stack plane.
    stack_plane: u64,
}

/// Traces for this long, or until all has ended, or SIGINT or SIGTERM comes.
///
/// # Errors
/// If the kernel's maps cannot be read.
pub fn watch(
    traced: &mut Traced,
    time: Option<Duration>,
    one_in: u64,
) -> Result<Outcome, TraceError> {
    let signals = ends()?;
    let mut one_in = one_in;
    traced.tracer.sample(one_in)?;
    let begin = Instant::now();
    let (kernel, command) = (traced.tracer.cost(), own_cpu_time());
    let mut all = Collector::new();
    for round in 0u64.. {
        if round.is_multiple_of(LOOK) {
            traced.stacks.look(&traced.lives.pids(), &mut traced.tracer)?;
        }
        traced.stacks.trace_until(monotonic() + window(one_in));
        let left = time.map_or(PAUSE, |time| time.saturating_sub(begin.elapsed()).min(PAUSE));
        let over = is_over(&signals, left)
            || time.is_some_and(|time| begin.elapsed() >= time)
            || traced.lives.have_ended();
        let before = all.seen;
        let events = traced.stacks.events();
        // No more than there were when it began, so that it comes to an end.
        let mut records = 0u64;
        while let Some(record) = traced.tracer.next_record() {
            match record {
                Record::Scheduled(scheduled) => traced.stacks.scheduled(*scheduled),
                record => all.add(record),
            }
            records += 1;
            if records > 64 * MOST_IN_A_PAUSE {
                break;
            }
        }
        traced.stacks.packets(events, &mut traced.tracer, |packet| all.add_stack_plane(packet))?;
        if over {
            break;
        }
        if all.seen - before > MOST_IN_A_PAUSE && one_in < 1 << 20 {
            one_in *= 2;
            traced.tracer.sample(one_in)?;
        }
    }
    traced.lives.end();
    all.finish();
    let time = begin.elapsed();
    let mut counts = traced.tracer.counts()?;
    counts.lost += traced.stacks.lost();
    let packets = counts.seen_in + counts.seen_out + all.stack_plane;
    let cost = kernel.zip(traced.tracer.cost()).map(|(before, after)| {
        let ns = after.ns.saturating_sub(before.ns) as f64;
        TraceCost {
            kernel_cpu_share: ns / time.as_nanos() as f64,
            per_packet_ns: (packets > 0).then(|| ns / packets as f64),
            command_cpu_share: (own_cpu_time() - command).as_secs_f64() / time.as_secs_f64(),
        }
    });
    let mut slowest = all.slow_receives.into_inner();
    slowest.extend(all.slow_sends.into_inner());
    slowest.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
    slowest.truncate(crate::slowest::MOST);
    Ok(Outcome {
        time,
        receives: all.receives,
        sends: all.sends,
        slowest,
        one_in,
        counts,
        cost,
        seen: all.seen,
    })
}

impl Collector {
    fn new() -> Self {
        Collector {
            receives: Flows::new(&stages::RECEIVE),
            sends: Flows::new(&stages::SEND),
            slow_receives: Slowest::default(),
            slow_sends: Slowest::default(),
            pending: HashMap::new(),
            seen: 0,
            stack_plane: 0,
        }
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Received(packet) => {
                // Of calls that do not return, such as those of a kernel thread of io_uring.
                if self.pending.len() >= MOST_PENDING {
                    self.finish();
                }
                let taken = self.pending.entry(packet.tid).or_default();
                taken.push(*packet);
                if taken.len() >= MOST_PENDING {
                    self.finish();
                }
            }
            Record::Returned { tid, at } => {
                for packet in self.pending.remove(&tid).unwrap_or_default() {
                    self.received(&packet, Some(at));
                }
            }
            Record::Sent(packet) => self.sent(&packet, Plane::Kernel),
            // Of threads on the stack plane.
            Record::Scheduled(_) => {}
        }
    }

    fn add_stack_plane(&mut self, packet: Packet) {
        self.stack_plane += 1;
        match packet {
            Packet::Received(packet, stages, way) => {
                self.add_received(&packet, Plane::Stack, &stages, way);
            }
            Packet::Sent(packet) => self.sent(&packet, Plane::Stack),
        }
    }

    fn finish(&mut self) {
        for (_, packets) in std::mem::take(&mut self.pending) {
            packets.iter().for_each(|packet| self.received(packet, None));
        }
    }

    fn received(&mut self, packet: &Received, returned: Option<u64>) {
        let stages = stages::of_receive(packet, returned);
        self.add_received(packet, Plane::Kernel, &stages, way(packet));
    }

    fn add_received(
        &mut self,
        packet: &Received,
        plane: Plane,
        stages: &[u64],
        way: fn(&mut FoundCounts) -> &mut u64,
    ) {
        self.seen += 1;
        let key = Key { plane, ends: packet.ends };
        self.receives.add(key, (packet.pid, &packet.name), stages, Some(way));
        let total = us(stages.iter().sum());
        self.slow_receives.add(total, || {
            let story = story::of_receive(packet, stages);
            slow_packet(("received", &stages::RECEIVE), &packet.ends, stages, story)
        });
    }

    fn sent(&mut self, packet: &Sent, plane: Plane) {
        self.seen += 1;
        let stages = stages::of_send(packet);
        let key = Key { plane, ends: packet.ends };
        self.sends.add(key, (packet.pid, &packet.thread.name), &stages, None);
        let total = us(stages.iter().sum());
        self.slow_sends.add(total, || {
            let story = story::of_send(packet, &stages);
            slow_packet(("sent", &stages::SEND), &packet.ends, &stages, story)
        });
    }
}

/// A slow packet; `names` are those of its stages.
fn slow_packet(
    (direction, names): (&str, &[&str]),
    ends: &Ends,
    stages: &[u64],
    story: Story,
) -> SlowPacket {
    SlowPacket {
        direction: direction.to_owned(),
        total_us: us(stages.iter().sum()),
        stage: names[story.stage].to_owned(),
        stage_us: us(stages[story.stage]),
        cpu: story.cpu,
        socket: ends.local.to_string(),
        story: story.text,
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn way(packet: &Received) -> fn(&mut FoundCounts) -> &mut u64 {
    match packet.found {
        Found::Softirq => |found| &mut found.softirq,
        Found::NapiThread { .. } => |found| &mut found.napi_threads,
        Found::Thread { .. } if packet.napi.is_none() => |found| &mut found.direct,
        Found::Thread { tid, .. } if tid == packet.tid => |found| &mut found.own_polls,
        Found::Thread { .. } => |found| &mut found.other_polls,
    }
}

fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (time.tv_sec.max(0) as u64) * 1_000_000_000 + time.tv_nsec.max(0) as u64
}

/// For how long the stacks record before they have to be asked again, in ns. Instead of every packet of a stream they
/// record all packets of a part of the time.
fn window(one_in: u64) -> u64 {
    match one_in {
        1 => 1_000_000_000,
        more => (PAUSE.as_nanos() as u64 / more).max(5_000_000),
    }
}

fn own_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

/// Blocks the signals that end the trace, so that they come between two rounds.
fn ends() -> io::Result<libc::sigset_t> {
    // SAFETY: plain calls on a set of our own; the thread is the command's only one.
    let (done, signals) = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGINT);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        (libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut()), signals)
    };
    if done == 0 { Ok(signals) } else { Err(io::Error::last_os_error()) }
}

/// Waits for the time, and returns whether one of these signals has come.
fn is_over(signals: &libc::sigset_t, time: Duration) -> bool {
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: a set and a time; no information about the signal is wanted.
    unsafe { libc::sigtimedwait(signals, std::ptr::null_mut(), &raw const time) > 0 }
}
