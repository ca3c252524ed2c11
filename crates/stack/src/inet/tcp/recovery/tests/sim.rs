//! One flow in virtual time: a greedy sender driven by [`Recovery`], a link with a queue, loss, reordering and
//! duplication by seed, and an ideal receiver that reports all it has.

use super::super::*;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

pub const MSS: u32 = 1_448;
const WIRE: u32 = 66;

/// A network, and the data sent through it.
#[derive(Clone, Debug)]
pub struct Net {
    /// Bytes per second.
    pub rate: u64,
    /// Both directions, without queueing.
    pub rtt: Duration,
    /// The size of the queue, bytes.
    pub buffer: u32,
    /// Segments per million that are lost, that are delayed by a quarter of `rtt`, and that are duplicated.
    pub loss: u32,
    pub reorder: u32,
    pub duplicate: u32,
    /// ACKs per million.
    pub ack_loss: u32,
    /// Segments whose first transmission is lost, by position in the stream, from 1.
    pub drop: Vec<u64>,
    /// Everything waits in this time: (from, for how long).
    pub pause: Option<(Duration, Duration)>,
    /// An ECN mark instead of a loss.
    pub mark: bool,
    /// How many bytes to send.
    pub bytes: u32,
    /// The receiver's buffer.
    pub window: u32,
    pub seed: u64,
    /// The receiver waits for a second segment, at most this long.
    pub delayed_ack: Duration,
    pub agreed: Agreed,
    pub settings: Settings,
}

impl Default for Net {
    fn default() -> Net {
        let rtt = Duration::from_millis(20);
        Net {
            rate: 12_500_000,
            rtt,
            buffer: 250_000,
            loss: 0,
            reorder: 0,
            duplicate: 0,
            ack_loss: 0,
            drop: Vec::new(),
            pause: None,
            mark: false,
            bytes: u32::MAX,
            window: 4_000_000,
            seed: 1,
            delayed_ack: Duration::from_millis(40),
            agreed: Agreed {
                sack: true,
                timestamps: Some(Duration::from_millis(1)),
                ecn: false,
                rtt: Some(rtt),
                retransmissions: 0,
            },
            settings: Settings::new(&Config::default(), &TcpOptions::default()),
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Data { start: u64, end: u64, stamp: u64, marked: bool },
    Ack { ack: u64, sacks: Vec<(u64, u64)>, echo: u64, ece: bool },
    DelayedAck(u64),
    Timer(u64),
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub delivered: u64,
    pub elapsed: Duration,
    pub timeouts: u32,
    pub probes: u32,
    pub segments: u64,
    pub resent: u64,
    /// The longest time without anything acknowledged.
    pub silence: Duration,
    pub figures: Figures,
    /// (time, cwnd) at each ACK.
    pub windows: Vec<(Instant, u32)>,
    pub queue_drops: u64,
    /// The most segments on the scoreboard, and its capacity when everything was acknowledged.
    pub most_segments: usize,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.delivered as f64 / self.elapsed.as_secs_f64()
    }
}

/// xorshift64*.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn chance(&mut self, in_a_million: u32) -> bool {
        in_a_million > 0 && (self.next() >> 20) % 1_000_000 < u64::from(in_a_million)
    }
}

struct Sim {
    net: Net,
    dice: Dice,
    start: Instant,
    now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    count: u64,
    sender: Recovery,
    base: Seq,
    next: u64,
    link_free: Instant,
    timer: Option<Instant>,
    timer_id: u64,
    // the receiver
    got: BTreeMap<u64, u64>,
    recent: Vec<u64>,
    expected: u64,
    pending: u32,
    echo: u64,
    delayed_id: u64,
    ece: bool,
    acked: u64,
    last_progress: Instant,
    out: Outcome,
}

/// Runs for this long, or until everything is acknowledged.
pub fn run(net: &Net, span: Duration) -> Outcome {
    let mut net = net.clone();
    net.agreed.rtt = Some(net.rtt);
    let base = Seq(net.seed as u32 ^ 0xffff_0000);
    let start = Instant::from_millis(10_000);
    let mut sim = Sim {
        dice: Dice(net.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        start,
        now: start,
        events: BinaryHeap::new(),
        count: 0,
        sender: Recovery::new(net.settings, net.agreed, MSS, base, start),
        base,
        next: 0,
        link_free: start,
        timer: None,
        timer_id: 0,
        got: BTreeMap::new(),
        recent: Vec::new(),
        expected: 0,
        pending: 0,
        echo: 0,
        delayed_id: 0,
        ece: false,
        acked: 0,
        last_progress: start,
        out: Outcome::default(),
        net,
    };
    sim.transmit();
    while let Some(Reverse((at, _, event))) = sim.events.pop() {
        if at.since(start) > span {
            sim.now = start + span;
            break;
        }
        sim.now = at;
        sim.step(event);
        if sim.acked >= u64::from(sim.net.bytes) {
            break;
        }
    }
    let silence = sim.now.since(sim.last_progress);
    sim.out.silence = sim.out.silence.max(silence);
    sim.out.delivered = sim.acked;
    sim.out.elapsed = sim.now.since(start);
    sim.out.figures = sim.sender.figures();
    sim.out
}

impl Sim {
    fn seq(&self, offset: u64) -> Seq {
        self.base + offset as u32
    }

    fn offset(&self, seq: Seq) -> u64 {
        // Relative to SND.UNA, which is near.
        let near = self.seq(self.acked);
        self.acked.wrapping_add_signed(i64::from(near.distance(seq)))
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Data { start, end, stamp, marked } => self.receive(start, end, stamp, marked),
            Event::DelayedAck(id) => {
                if id == self.delayed_id && self.pending > 0 {
                    self.acknowledge(None);
                }
            }
            Event::Ack { ack, sacks, echo, ece } => {
                let mut blocks = Sacks::default();
                for (start, end) in sacks {
                    blocks.push(self.seq(start)..self.seq(end));
                }
                let tick = self.net.agreed.timestamps;
                let event = AckEvent {
                    ack: self.seq(ack),
                    sacks: &blocks,
                    echoed: tick.map(|_| Instant::from_nanos(echo)),
                    ece,
                    pure: true,
                    unsent: self.unsent(ack),
                };
                self.sender.acked(&event, self.now);
                if ack > self.acked {
                    let silence = self.now.since(self.last_progress);
                    self.out.silence = self.out.silence.max(silence);
                    self.last_progress = self.now;
                    self.acked = ack;
                }
                self.out.windows.push((self.now, self.sender.figures().cwnd));
                self.transmit();
            }
            Event::Timer(id) => {
                if id != self.timer_id {
                    return;
                }
                self.timer = None;
                match self.sender.timer(self.now) {
                    Fired::Nothing | Fired::Retransmit => {}
                    Fired::TimedOut { .. } => self.out.timeouts += 1,
                    Fired::Probe(last) => {
                        self.out.probes += 1;
                        if self.unsent(self.acked) {
                            self.send_new();
                        } else {
                            let (start, end) = (self.offset(last.start), self.offset(last.end));
                            self.put(start, end);
                            self.out.resent += 1;
                            self.sender.resent(last, self.now);
                        }
                    }
                }
                self.transmit();
            }
        }
    }

    fn transmit(&mut self) {
        while let Some(range) = self.sender.next_retransmission() {
            let (start, end) = (self.offset(range.start), self.offset(range.end));
            assert!(end > start && end - start <= u64::from(MSS));
            self.put(start, end);
            self.out.resent += 1;
            self.sender.resent(range, self.now);
        }
        while self.sender.room() >= MSS && self.unsent(self.acked) {
            self.send_new();
        }
        self.out.most_segments = self.out.most_segments.max(self.sender.board.len());
        let deadline = self.sender.deadline();
        assert!(
            deadline.is_some() || self.acked >= self.next,
            "something is out and no timer runs"
        );
        if deadline != self.timer {
            self.timer = deadline;
            self.timer_id += 1;
            if let Some(at) = deadline {
                self.at(at.max(self.now), Event::Timer(self.timer_id));
            }
        }
    }

    fn unsent(&self, acked: u64) -> bool {
        self.next < u64::from(self.net.bytes)
            && self.next + u64::from(MSS) - acked.max(self.acked) <= u64::from(self.net.window)
    }

    fn send_new(&mut self) {
        let end = (self.next + u64::from(MSS)).min(u64::from(self.net.bytes));
        self.put(self.next, end);
        let range = self.seq(self.next)..self.seq(end);
        self.next = end;
        self.sender.sent(range, self.now);
    }

    fn put(&mut self, start: u64, end: u64) {
        self.out.segments += 1;
        let chosen = start == self.next && self.net.drop.contains(&(start / u64::from(MSS) + 1));
        let lost = chosen || self.dice.chance(self.net.loss);
        if lost && !self.net.mark {
            return;
        }
        let size = end - start + u64::from(WIRE);
        let waiting =
            self.link_free.since(self.now).as_nanos() as u64 * self.net.rate / 1_000_000_000;
        if waiting + size > u64::from(self.net.buffer) + u64::from(MSS + WIRE) {
            self.out.queue_drops += 1;
            return;
        }
        let busy = Duration::from_nanos(size * 1_000_000_000 / self.net.rate);
        self.link_free = self.link_free.max(self.now) + busy;
        let mut arrival = self.link_free + self.net.rtt / 2;
        if let Some((from, span)) = self.net.pause {
            let from = self.start + from;
            if (from..from + span).contains(&arrival) {
                arrival = from + span + (arrival - from) / 1_000;
            }
        }
        if self.dice.chance(self.net.reorder) {
            arrival = arrival + self.net.rtt / 4;
        }
        let tick = self.net.agreed.timestamps.map_or(1, |tick| tick.as_nanos() as u64);
        let stamp = self.now.nanos() / tick * tick;
        self.at(arrival, Event::Data { start, end, stamp, marked: lost });
        if self.dice.chance(self.net.duplicate) {
            self.at(arrival, Event::Data { start, end, stamp, marked: lost });
        }
    }

    fn receive(&mut self, start: u64, end: u64, stamp: u64, marked: bool) {
        self.ece |= marked;
        let known = end <= self.expected || self.got.iter().any(|(&s, &e)| s <= start && end <= e);
        if known {
            return self.acknowledge(Some((start, end)));
        }
        // The timestamp of the expected segment is echoed.
        if start <= self.expected || self.pending == 0 && self.got.is_empty() {
            self.echo = if self.pending == 0 { stamp } else { self.echo };
        }
        let (mut low, mut high) = (start, end);
        self.got.retain(|&s, &mut e| {
            let touches = s <= high && low <= e;
            if touches {
                (low, high) = (low.min(s), high.max(e));
            }
            !touches
        });
        self.got.insert(low, high);
        self.recent.retain(|&s| s != low && self.got.contains_key(&s));
        self.recent.insert(0, low);
        let in_order = low <= self.expected;
        let filled = in_order && high > end;
        if in_order {
            self.expected = high;
            self.got.remove(&low);
            self.recent.remove(0);
        }
        self.pending += 1;
        if self.pending >= 2 || !in_order || filled || !self.got.is_empty() {
            self.acknowledge(None);
        } else {
            self.delayed_id += 1;
            self.at(self.now + self.net.delayed_ack, Event::DelayedAck(self.delayed_id));
        }
    }

    fn acknowledge(&mut self, duplicate: Option<(u64, u64)>) {
        self.pending = 0;
        if self.dice.chance(self.net.ack_loss) {
            return;
        }
        let mut sacks = Vec::new();
        if self.net.agreed.sack {
            sacks.extend(duplicate);
            sacks.extend(self.recent.iter().filter_map(|s| self.got.get(s).map(|&e| (*s, e))));
            sacks.truncate(if self.net.agreed.timestamps.is_some() { 3 } else { 4 });
        }
        let ece = std::mem::take(&mut self.ece);
        let event = Event::Ack { ack: self.expected, sacks, echo: self.echo, ece };
        self.at(self.now + self.net.rtt / 2, event);
    }
}
