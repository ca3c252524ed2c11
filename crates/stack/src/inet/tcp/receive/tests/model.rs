//! The receiver against a map from number to byte.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Byte by byte; numbers count from the first byte and do not wrap.
#[derive(Default)]
struct Model {
    /// Each byte that arrived inside the window, its first copy, and when a segment last covered it.
    bytes: BTreeMap<i64, (u8, usize)>,
    read: i64,
    next: i64,
    edge: i64,
    fin: Option<i64>,
    duplicate: Option<Range<i64>>,
}

impl Model {
    fn segment(&mut self, seq: i64, payload: &[u8], fin: bool, stamp: usize) {
        let end = seq + payload.len() as i64;
        let last = self.bytes.keys().next_back().map_or(0, |last| last + 1).max(self.next);
        if fin && self.fin.is_none() && end >= last && end <= self.edge {
            self.fin = Some(end);
        }
        // Numbers before the first byte, and the FIN's number, are not duplicate data.
        let read_on = if seq < 0 { self.next } else { 0 };
        let old = |at: &i64| (read_on..self.data_end()).contains(at);
        let had = |at: &i64| old(at) || *at >= self.next && self.bytes.contains_key(at);
        if let Some(first) = (seq..end).find(had) {
            // Data below and data above RCV.NXT are two runs.
            let same = |at: &i64| if old(&first) { old(at) } else { had(at) };
            self.report(first..(first..end).find(|at| !same(at)).unwrap_or(end));
        }
        for (at, &byte) in (seq..end).zip(payload) {
            if at >= self.next && at < self.edge && self.fin.is_none_or(|fin| at < fin) {
                self.bytes.entry(at).or_insert((byte, 0)).1 = stamp;
            }
        }
        while self.bytes.contains_key(&self.next) {
            self.next += 1;
        }
        self.next += i64::from(self.fin == Some(self.next));
    }

    fn report(&mut self, run: Range<i64>) {
        match &mut self.duplicate {
            None => self.duplicate = Some(run),
            Some(old) if old.start <= run.end && run.start <= old.end => {
                *old = old.start.min(run.start)..old.end.max(run.end);
            }
            Some(_) => {}
        }
    }

    /// The held data beyond RCV.NXT, newest first.
    fn blocks(&self) -> Vec<Range<i64>> {
        let mut blocks: Vec<(Range<i64>, usize)> = Vec::new();
        for (&at, &(_, stamp)) in self.bytes.range(self.next..) {
            match blocks.last_mut() {
                Some((run, newest)) if run.end == at => {
                    run.end += 1;
                    *newest = stamp.max(*newest);
                }
                _ => blocks.push((at..at + 1, stamp)),
            }
        }
        blocks.sort_by_key(|(_, newest)| std::cmp::Reverse(*newest));
        blocks.into_iter().map(|(run, _)| run).collect()
    }

    fn data_end(&self) -> i64 {
        self.next - i64::from(self.fin.is_some_and(|fin| fin < self.next))
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let end = self.data_end().min(self.read + len as i64);
        let bytes = self.bytes.range(self.read..end).map(|(_, (byte, _))| *byte).collect();
        self.read = end;
        bytes
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Offsets count from RCV.NXT.
    Segment {
        offset: i64,
        len: usize,
        fin: bool,
    },
    Read(usize),
    Peek(usize),
    Announce,
    Acknowledge,
}

fn step() -> impl Strategy<Value = Step> {
    let offset =
        prop_oneof![3 => Just(0i64), 6 => 0..120i64, 3 => -60..60i64, 1 => -3000..30_000i64];
    let len = prop_oneof![5 => 0..40usize, 1 => 0..1460usize];
    let fin = prop::bool::weighted(0.03);
    let segment = (offset, len, fin);
    prop_oneof![
        10 => segment.prop_map(|(offset, len, fin)| Step::Segment { offset, len, fin }),
        2 => (0..3000usize).prop_map(Step::Read),
        1 => (0..300usize).prop_map(Step::Peek),
        3 => Just(Step::Announce),
        2 => Just(Step::Acknowledge),
    ]
}

fn take(rx: &mut Receiver, len: usize, peek: bool) -> Vec<u8> {
    let (mut left, mut right) = (vec![0; len / 3], vec![0; len - len / 3]);
    let mut into = [IoSliceMut::new(&mut left), IoSliceMut::new(&mut right)];
    let len = if peek { rx.peek(&mut into) } else { rx.read(&mut into, Instant::ZERO) };
    let mut bytes = [left, right].concat();
    bytes.truncate(len);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn equals_a_map_of_bytes(
        limit in prop_oneof![Just(300u32), Just(5000), Just(100_000)],
        irs in prop_oneof![Just(u32::MAX - 200), any::<u32>()],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let sizes = BufferSizes { initial: limit, max: limit };
        let memory = Arc::new(Memory::new(1 << 30));
        let mut rx = Receiver::new(Seq(irs), sizes, 3, MSS, memory.clone(), Instant::ZERO);
        let zero = rx.next();
        let seq = |at: i64| Seq(zero.0.wrapping_add(at as u32));
        let mut model = Model { edge: limit.min(65535).into(), ..Model::default() };
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Segment { offset, len, fin } => {
                    let at = model.next + offset;
                    // The copies of a byte that arrives twice differ.
                    let payload: Vec<_> = (0..len).map(|i| (n * 13 + i) as u8).collect();
                    let (before, end) = (model.next, model.data_end());
                    let fin_before = model.fin.is_some_and(|fin| fin < before);
                    model.segment(at, &payload, fin, n + 1);
                    let arrived = rx.segment(seq(at), &payload, fin, Instant::ZERO);
                    prop_assert_eq!(arrived.new_in_order as i64, model.data_end() - end);
                    let fin_now = model.fin.is_some_and(|fin| fin < model.next);
                    prop_assert_eq!(arrived.fin_reached, fin_now && !fin_before);
                    prop_assert!(!arrived.dropped);
                    if arrived.fin_reached {
                        model.duplicate = None;
                    }
                }
                Step::Read(len) => prop_assert_eq!(take(&mut rx, len, false), model.read(len)),
                Step::Peek(len) => {
                    let read = model.read;
                    prop_assert_eq!(take(&mut rx, len, true), model.read(len));
                    model.read = read;
                }
                Step::Announce => {
                    let window = rx.window();
                    prop_assert_eq!(window % 8, 0);
                    prop_assert!(model.next + i64::from(window) <= model.read + i64::from(limit.max(16)) + 65536);
                    model.edge = model.edge.max(model.next + i64::from(window));
                }
                Step::Acknowledge => {
                    rx.acknowledged();
                    model.duplicate = None;
                    prop_assert_eq!(rx.ack_need(), AckNeed::None);
                }
            }
            prop_assert_eq!(rx.next(), seq(model.next));
            prop_assert_eq!(rx.available() as i64, model.data_end() - model.read);
            prop_assert_eq!(rx.window.edge(), seq(model.edge));
            let mut expected: Vec<_> = model.duplicate.iter().cloned().chain(model.blocks()).collect();
            expected.truncate(4);
            let sacks: Vec<_> = rx.sacks().iter().collect();
            let expected: Vec<_> = expected.iter().map(|run| seq(run.start)..seq(run.end)).collect();
            prop_assert_eq!(sacks, expected);
        }
        drop(rx);
        prop_assert_eq!(memory.used(), 0);
    }
}
