//! One direction of one queue: the decision about each frame, and the frames held back.
//!
//! Decisions depend only on the seed and the frame's number. Time is an argument and decides only
//! when held frames leave.

use super::{Config, Counters, DirectionCounters, Faults, alarm::Direction, damage};
use crate::{nic::Checksum, time::Instant};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// How long a frame waits for another to overtake it.
const OVERTAKING: Duration = Duration::from_millis(1);

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
struct Random(u64);

impl Random {
    /// The random numbers for frame `number`: a separate stream, so that no decision changes later ones.
    fn new(key: u64, number: u64) -> Random {
        Random(Random(key.wrapping_add(number)).roll())
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with this probability; 1 is certain, because the random number is below 1.
    fn hits(&mut self, probability: f64) -> bool {
        ((self.roll() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }
}

/// What to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    lost: bool,
    duplicated: bool,
    reordered: bool,
    /// The number that selects the bit to flip.
    corrupted: Option<u64>,
}

impl Decision {
    const NONE: Decision =
        Decision { lost: false, duplicated: false, reordered: false, corrupted: None };

    fn of(faults: &Faults, mut random: Random) -> Decision {
        Decision {
            lost: random.hits(faults.loss),
            duplicated: random.hits(faults.duplication),
            reordered: random.hits(faults.reordering),
            corrupted: random.hits(faults.corruption).then(|| random.roll()),
        }
    }
}

/// The counters of one direction.
pub(super) struct Tally {
    counters: Arc<Counters>,
    direction: Direction,
}

impl Tally {
    pub(super) fn new(counters: &Arc<Counters>, direction: Direction) -> Tally {
        Tally { counters: counters.clone(), direction }
    }

    fn add(&self, which: impl FnOnce(&DirectionCounters) -> &AtomicU64) {
        let counters = match self.direction {
            Direction::Receive => &self.counters.receive,
            Direction::Transmit => &self.counters.transmit,
        };
        which(counters).fetch_add(1, Relaxed);
    }
}

/// A frame held back.
pub(super) struct Held {
    due: Instant,
    pub(super) bytes: Vec<u8>,
    pub(super) checksum: Checksum,
}

pub(super) struct Line {
    faults: Faults,
    key: u64,
    limit: usize,
    /// The number of the next frame.
    number: u64,
    /// In the order of their due times.
    held: VecDeque<Held>,
    /// Waits for the next frame to overtake it.
    late: Option<Held>,
    spare: Vec<Vec<u8>>,
    tally: Tally,
}

impl Line {
    pub(super) fn new(config: &Config, direction: Direction, queue: u32, tally: Tally) -> Line {
        let (faults, way) = match direction {
            Direction::Receive => (config.receive, 0),
            Direction::Transmit => (config.transmit, 1),
        };
        let key = Random::new(config.seed, u64::from(queue) << 1 | way).roll();
        let (held, spare) = (VecDeque::new(), Vec::new());
        Line { faults, key, limit: config.limit, number: 0, held, late: None, spare, tally }
    }

    /// The decision about the next frame.
    pub(super) fn next_decision(&self) -> Decision {
        Decision::of(&self.faults, Random::new(self.key, self.number))
    }

    /// Whether the next frame can go on unchanged and at once, without overtaking another.
    pub(super) fn passes_untouched(&self, decision: &Decision) -> bool {
        *decision == Decision::NONE
            && self.faults.delay.is_zero()
            && self.held.is_empty()
            && self.late.is_none()
    }

    /// The next frame went on unchanged.
    pub(super) fn passed(&mut self) {
        self.number += 1;
        self.tally.add(|c| &c.frames);
    }

    /// Takes the next frame. [`take_due`](Line::take_due) returns what remains of it.
    pub(super) fn enter(
        &mut self,
        decision: Decision,
        mut bytes: Vec<u8>,
        mut checksum: Checksum,
        now: Instant,
    ) {
        self.passed();
        if decision.lost {
            self.tally.add(|c| &c.lost);
            return self.recycle(bytes);
        }
        if let Some(number) = decision.corrupted
            && damage::flip_a_bit(&mut bytes, checksum, number)
        {
            self.tally.add(|c| &c.corrupted);
            checksum = Checksum::Unverified;
        }
        let due = now + self.faults.delay;
        let copy = decision.duplicated.then(|| {
            self.tally.add(|c| &c.duplicated);
            let mut copy = self.buffer();
            copy.extend_from_slice(&bytes);
            Held { due, bytes: copy, checksum }
        });
        let frame = Held { due, bytes, checksum };
        match self.late.take() {
            None if decision.reordered => {
                self.tally.add(|c| &c.reordered);
                self.late = Some(Held { due: due + OVERTAKING, ..frame });
            }
            overtaken => {
                self.hold(frame);
                if let Some(overtaken) = overtaken {
                    self.hold(Held { due, ..overtaken });
                }
            }
        }
        if let Some(copy) = copy {
            self.hold(copy);
        }
    }

    fn hold(&mut self, frame: Held) {
        if self.held.len() < self.limit {
            self.held.push_back(frame);
        } else {
            self.tally.add(|c| &c.overflowed);
            self.recycle(frame.bytes);
        }
    }

    /// The next held frame that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Held> {
        // All held frames came before the late one, so it goes behind them.
        if let Some(late) = self.late.take_if(|late| late.due <= now) {
            self.hold(late);
        }
        self.held.pop_front_if(|frame| frame.due <= now)
    }

    /// Undoes a [`take_due`](Line::take_due).
    pub(super) fn put_back(&mut self, frame: Held) {
        self.held.push_front(frame);
    }

    /// When [`take_due`](Line::take_due) next has a frame to return.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.front().into_iter().chain(&self.late).map(|frame| frame.due).min()
    }

    /// An empty buffer.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Returns a buffer for reuse.
    pub(super) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < self.limit {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(5);

    fn line(seed: u64, faults: Faults) -> Line {
        let config = Config { seed, receive: faults, limit: 4, ..Config::default() };
        let tally = Tally::new(&Arc::default(), Direction::Receive);
        Line::new(&config, Direction::Receive, 0, tally)
    }

    fn enter(line: &mut Line, number: u8, now: Instant) {
        line.enter(line.next_decision(), vec![number; 14], Checksum::Unverified, now);
    }

    fn due(line: &mut Line, now: Instant) -> Vec<u8> {
        std::iter::from_fn(|| line.take_due(now)).map(|frame| frame.bytes[0]).collect()
    }

    #[test]
    fn decisions_depend_only_on_the_seed_and_the_frames_number() {
        let faults = Faults { loss: 0.3, duplication: 0.3, reordering: 0.3, ..Faults::default() };
        let decisions = |seed, step: u64| {
            let mut line = line(seed, faults);
            let decision = |number| {
                let decision = line.next_decision();
                enter(&mut line, 0, Instant::from_micros(number * step));
                due(&mut line, Instant::from_micros(number * step));
                decision
            };
            (0..1000).map(decision).collect::<Vec<_>>()
        };
        assert_eq!(decisions(1, 1), decisions(1, 5000));
        assert_ne!(decisions(1, 1), decisions(2, 1));
    }

    #[test]
    fn one_probability_does_not_change_the_decisions_of_another() {
        let losses = |duplication| {
            let faults = Faults { loss: 0.5, duplication, ..Faults::default() };
            let line = line(1, faults);
            let decision = |number| Decision::of(&faults, Random::new(line.key, number));
            (0..1000).map(|number| decision(number).lost).collect::<Vec<_>>()
        };
        assert_eq!(losses(0.0), losses(0.9));
    }

    #[test]
    fn faults_occur_with_their_probability() {
        for probability in [0.0, 0.01, 0.5, 1.0] {
            let faults = Faults { corruption: probability, ..Faults::default() };
            let hits = (0..100_000)
                .filter(|n| Decision::of(&faults, Random::new(9, *n)).corrupted.is_some())
                .count();
            let expected = probability * 100_000.0;
            assert!((hits as f64 - expected).abs() <= 4.0 * expected.sqrt() * (1.0 - probability));
        }
    }

    #[test]
    fn one_frame_overtakes_a_reordered_frame() {
        let mut line = line(0, Faults { reordering: 1.0, ..Faults::default() });
        for number in 1..=4 {
            enter(&mut line, number, NOW);
        }
        assert_eq!(due(&mut line, NOW), [2, 1, 4, 3]);
    }

    #[test]
    fn a_reordered_frame_without_a_follower_leaves_late() {
        let mut line = line(0, Faults { reordering: 1.0, ..Faults::default() });
        enter(&mut line, 1, NOW);
        assert_eq!(due(&mut line, NOW), []);
        assert_eq!(line.due(), Some(NOW + OVERTAKING));
        assert_eq!(due(&mut line, NOW + OVERTAKING), [1]);
        assert_eq!(line.due(), None);
    }

    #[test]
    fn delayed_frames_leave_in_order_each_at_its_time() {
        let delay = Duration::from_micros(300);
        let mut line = line(0, Faults { delay, ..Faults::default() });
        assert!(!line.passes_untouched(&Decision::NONE));
        enter(&mut line, 1, NOW);
        enter(&mut line, 2, NOW + Duration::from_micros(100));
        assert_eq!(line.due(), Some(NOW + delay));
        assert_eq!(due(&mut line, NOW + Duration::from_micros(299)), []);
        assert_eq!(due(&mut line, NOW + delay), [1]);
        assert_eq!(due(&mut line, NOW + Duration::from_micros(400)), [2]);
    }

    #[test]
    fn the_number_of_held_frames_is_bounded() {
        let delay = Duration::from_micros(300);
        let mut line = line(0, Faults { delay, duplication: 1.0, ..Faults::default() });
        for number in 1..=100 {
            enter(&mut line, number, NOW);
        }
        assert_eq!(line.tally.counters.receive.overflowed.load(Relaxed), 196);
        assert_eq!(due(&mut line, NOW + delay), [1, 1, 2, 2]);
        assert!(line.spare.len() <= line.limit);
    }
}
