//! Flows through one bottleneck, in virtual time and by a seed: whole connections of the stack at both ends, a queue of
//! limited bytes before a link of limited rate, then a delay; the way back has the same rate and delay. Contents are
//! not checked here (other tests do that).

use busypoll_stack::{
    inet::tcp::{
        Config, TcpOptions,
        connection::{Connection, Start},
        handshake::{Answer, Request},
        segment::{Flags, Segment},
        seq::Seq,
        shared::Shared,
    },
    time::Instant,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    io::{IoSlice, IoSliceMut},
    sync::Arc,
    time::Duration,
};

/// Ethernet, IP and TCP headers, preamble and gap, bytes.
const OVERHEAD: u64 = 78;
static DATA: [u8; 1 << 16] = [0; 1 << 16];

/// The network, and the traffic through it.
#[derive(Clone, Debug)]
pub struct Net {
    /// Bytes per second.
    pub rate: u64,
    /// The size of the queue before the bottleneck, bytes.
    pub buffer: u64,
    /// Of 100,000 packets: lost; delayed by a quarter of the round trip, so that others overtake them; marked by ECN;
    /// and ACKs lost.
    pub loss: u64,
    pub reorder: u64,
    pub mark: u64,
    pub ack_loss: u64,
    /// Per flow: the round trip without queueing, and when it begins.
    pub flows: Vec<(Duration, Duration)>,
    pub config: Config,
    pub options: TcpOptions,
    pub seed: u64,
    pub span: Duration,
    /// Received bytes are counted from this time on.
    pub count_from: Duration,
    /// The sender stops after this many bytes.
    pub bytes: u64,
}

/// The result of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Bytes that the receiving application got, from `count_from` on, and in all.
    pub counted: u64,
    pub read: u64,
    /// The longest time without data.
    pub silence: Duration,
    pub segments: u32,
    pub sent_again: u32,
    pub cwnd: u32,
    /// When the receiver had read `bytes`.
    pub done: Option<Duration>,
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn chance(&mut self, of_100_000: u64) -> bool {
        of_100_000 > 0 && (self.next() >> 32) % 100_000 < of_100_000
    }
}

struct Packet {
    flow: usize,
    to: usize,
    segment: Segment<'static>,
    len: usize,
    ecn_capable: bool,
    congested: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(u64),
    Timer(usize, usize, u64),
    Begin(usize),
}

/// One direction of the bottleneck.
#[derive(Default)]
struct Pipe {
    free: Instant,
}

struct Host {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    request: Option<Request>,
    timer: Option<Instant>,
    timer_id: u64,
}

struct Flow {
    /// The sender, the receiver.
    hosts: [Host; 2],
    rtt: Duration,
    written: u64,
    last_read: Instant,
    began: Instant,
    outcome: Outcome,
}

struct World<'n> {
    net: &'n Net,
    rng: Rng,
    now: Instant,
    start: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    count: u64,
    packets: BTreeMap<u64, Packet>,
    pipes: [Pipe; 2],
    flows: Vec<Flow>,
}

/// Runs a network to its end.
pub fn run(net: &Net) -> Vec<Outcome> {
    let start = Instant::from_millis(5_000);
    let flows = net.flows.iter().enumerate().map(|(i, &(rtt, begins))| Flow {
        hosts: [0, 1].map(|side| Host {
            shared: Shared::alone(net.config.clone(), (net.seed ^ (i as u64) << 8 ^ side).into()),
            connection: None,
            request: None,
            timer: None,
            timer_id: 0,
        }),
        rtt,
        written: 0,
        last_read: start + begins,
        began: start + begins,
        outcome: Outcome::default(),
    });
    let mut world = World {
        net,
        rng: Rng(net.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        now: start,
        start,
        events: BinaryHeap::new(),
        count: 0,
        packets: BTreeMap::new(),
        pipes: Default::default(),
        flows: flows.collect(),
    };
    for flow in 0..net.flows.len() {
        world.at(world.flows[flow].began, Event::Begin(flow));
    }
    world.run();
    world.flows.into_iter().map(|flow| flow.outcome).collect()
}

impl World<'_> {
    fn at(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn run(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            let over = at.since(self.start) > self.net.span;
            if over || self.flows.iter().all(|flow| flow.outcome.read >= self.net.bytes) {
                break;
            }
            self.now = at;
            match event {
                Event::Begin(flow) => {
                    let (iss, ts_offset) = (Seq(self.rng.next() as u32), self.rng.next() as u32);
                    let sender = &mut self.flows[flow].hosts[0];
                    let start = Start { iss, ts_offset, mss: 1_460 };
                    let options = &self.net.options;
                    let connection = Connection::connect(&sender.shared, options, start, at);
                    sender.connection = Some(connection);
                    self.act(flow, 0);
                }
                Event::Arrive(id) => {
                    if let Some(packet) = self.packets.remove(&id) {
                        self.deliver(&packet);
                        self.act(packet.flow, packet.to);
                    }
                }
                Event::Timer(flow, side, id) => {
                    let host = &mut self.flows[flow].hosts[side];
                    if id != host.timer_id {
                        continue;
                    }
                    host.timer = None;
                    if let Some(connection) = &mut host.connection {
                        connection.timer(at);
                    }
                    self.act(flow, side);
                }
            }
        }
        let now = self.now;
        for flow in &mut self.flows {
            if flow.outcome.read < self.net.bytes {
                flow.outcome.silence = flow.outcome.silence.max(now.since(flow.last_read));
            }
            if let Some(sender) = &mut flow.hosts[0].connection {
                let info = sender.info(now);
                flow.outcome.segments = info.data_segs_out;
                flow.outcome.sent_again = info.total_retrans;
                flow.outcome.cwnd = info.snd_cwnd;
            }
        }
    }

    /// The actions of the application and the connection after an event.
    fn act(&mut self, flow: usize, side: usize) {
        let now = self.now;
        self.application(flow, side);
        let mut out = VecDeque::new();
        let host = &mut self.flows[flow].hosts[side];
        if let Some(connection) = &mut host.connection {
            connection.transmit(now, &mut |outgoing| {
                out.push_back(Packet {
                    flow,
                    to: 1 - side,
                    segment: outgoing.segment.clone(),
                    len: outgoing.payload.len(),
                    ecn_capable: outgoing.ecn_capable,
                    congested: false,
                });
                true
            });
            let deadline = connection.deadline();
            if deadline != host.timer {
                host.timer = deadline;
                host.timer_id += 1;
                let id = host.timer_id;
                if let Some(at) = deadline {
                    self.at(at.max(now), Event::Timer(flow, side, id));
                }
            }
        }
        for packet in out {
            self.put(packet);
        }
    }

    fn application(&mut self, index: usize, side: usize) {
        let (now, bytes) = (self.now, self.net.bytes);
        let flow = &mut self.flows[index];
        let Some(connection) = &mut flow.hosts[side].connection else { return };
        if side == 0 {
            while flow.written < bytes {
                let len = (bytes - flow.written).min(DATA.len() as u64) as usize;
                match connection.send(&[IoSlice::new(&DATA[..len])], false, now) {
                    Ok(written) => flow.written += written as u64,
                    Err(_) => break,
                }
            }
            return;
        }
        let mut into = [0; 1 << 14];
        while let Ok(read @ 1..) = connection.recv(&mut [IoSliceMut::new(&mut into)], false, now) {
            let read = read as u64;
            flow.outcome.read += read;
            if now.since(self.start) >= self.net.count_from {
                flow.outcome.counted += read;
            }
            flow.outcome.silence = flow.outcome.silence.max(now.since(flow.last_read));
            flow.last_read = now;
            if flow.outcome.read >= bytes {
                flow.outcome.done.get_or_insert(now.since(flow.began));
            }
        }
    }

    fn put(&mut self, mut packet: Packet) {
        let forward = packet.to == 1;
        let (net, rtt) = (self.net, self.flows[packet.flow].rtt);
        if self.rng.chance(if forward { net.loss } else { net.ack_loss }) {
            return;
        }
        packet.congested = packet.ecn_capable && self.rng.chance(net.mark);
        let size = packet.len as u64 + OVERHEAD;
        let pipe = &mut self.pipes[packet.to];
        let waiting = pipe.free.since(self.now).as_nanos() as u64 * net.rate / 1_000_000_000;
        if forward && waiting + size > net.buffer + 1_538 {
            return;
        }
        pipe.free = pipe.free.max(self.now) + Duration::from_nanos(size * 1_000_000_000 / net.rate);
        let mut arrival = pipe.free + rtt / 2;
        if forward && self.rng.chance(net.reorder) {
            arrival = arrival + rtt / 4;
        }
        self.at(arrival, Event::Arrive(self.count + 1));
        self.packets.insert(self.count, packet);
    }

    fn deliver(&mut self, packet: &Packet) {
        let now = self.now;
        let segment = Segment {
            payload: &DATA[..packet.len],
            congested: packet.congested,
            ..packet.segment.clone()
        };
        let (flow, to) = (packet.flow, packet.to);
        let host = &mut self.flows[flow].hosts[to];
        if let Some(connection) = &mut host.connection {
            connection.segment(&segment, now);
            return;
        }
        let options = &self.net.options;
        let mut answer = None;
        if let Some(request) = &mut host.request {
            match request.segment(&host.shared, &segment, now) {
                Answer::Accept => {
                    let mut accepted =
                        Connection::accepted(&host.shared, options, request, 1_460, now);
                    accepted.segment(&segment, now);
                    (host.connection, host.request) = (Some(accepted), None);
                }
                Answer::SynAck => answer = Some(request.syn_ack(now).segment),
                _ => {}
            }
        } else if segment.flags.has(Flags::SYN) {
            let start = Start { iss: Seq(77), ts_offset: 5, mss: 1_460 };
            let mut request = Request::new(&host.shared, options, &segment, start, now);
            answer = Some(request.syn_ack(now).segment);
            host.request = Some(request);
        }
        if let Some(segment) = answer {
            let (ecn_capable, congested) = (false, false);
            self.put(Packet { flow, to: 1 - to, segment, len: 0, ecn_capable, congested });
        }
    }
}
