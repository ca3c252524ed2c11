//! A relay between two NICs: a long path with losses. Every frame has the same delay, and its loss
//! depends only on a seed and its number, so that two senders lose the same packets.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_stack::nic::{Checksum, Frame, Queue};

/// How often the relay looks for frames: the most it adds to the delay.
const TICK: Duration = Duration::from_micros(100);
/// Frames taken at once.
const BATCH: usize = 256;
/// The most frames in flight in one direction: further ones are dropped, as by a router.
const QUEUE: usize = 4096;
/// The offset of the protocol of an IPv4 packet in an Ethernet frame.
const PROTOCOL: usize = 23;
const TCP: u8 = 6;

/// The path's properties, as the user gives them.
#[derive(Debug, Clone, Copy)]
pub struct Losses {
    /// The share of packets lost in each direction, 0 to 1.
    pub loss: f64,
    /// Round trip.
    pub rtt: Duration,
}

/// The properties of the path in one round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// The delay of one direction.
    pub(super) delay: Duration,
    /// The share of TCP packets lost, 0 to 1.
    pub(super) loss: f64,
    pub(super) seed: u64,
}

/// Carries frames between `ends` until `stop`.
pub(super) fn run(mut ends: [Queue; 2], way: Way, stop: &AtomicBool) {
    let mut lines = [Line::new(way, 0), Line::new(way, 1)];
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        for (from, line) in lines.iter_mut().enumerate() {
            let [one, other] = &mut ends;
            let (from, to) = if from == 0 { (one, other) } else { (other, one) };
            from.rx.poll(BATCH, &mut |frame| line.take(&frame, now));
            while let Some((bytes, partial)) = line.due(now) {
                // A full ring drops the frame, as a router would.
                let fill = &mut |room: &mut [u8]| room.copy_from_slice(&bytes);
                let _ = to.tx.push(bytes.len(), partial, fill);
            }
            to.tx.flush();
        }
        thread::sleep(TICK);
    }
}

/// One direction.
struct Line {
    way: Way,
    direction: u64,
    /// TCP packets so far.
    count: u64,
    frames: VecDeque<(Instant, Vec<u8>, bool)>,
}

impl Line {
    fn new(way: Way, direction: u64) -> Self {
        Self { way, direction, count: 0, frames: VecDeque::new() }
    }

    fn take(&mut self, frame: &Frame<'_>, now: Instant) {
        // Other packets are ARP, which both senders have.
        if frame.bytes.get(PROTOCOL) == Some(&TCP) {
            self.count += 1;
            let fate = mix(self.way.seed ^ self.direction << 32, self.count);
            if (fate >> 11) as f64 / (1u64 << 53) as f64 <= self.way.loss {
                return;
            }
        }
        if self.frames.len() < QUEUE {
            let partial = frame.checksum == Checksum::Partial;
            self.frames.push_back((now + self.way.delay, frame.data().to_vec(), partial));
        }
    }

    fn due(&mut self, now: Instant) -> Option<(Vec<u8>, bool)> {
        let (due, ..) = self.frames.front()?;
        if *due > now {
            return None;
        }
        self.frames.pop_front().map(|(_, bytes, partial)| (bytes, partial))
    }
}

/// A random number for the `count`th packet (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
fn mix(seed: u64, count: u64) -> u64 {
    let z = seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Vec<u8> {
        let mut bytes = vec![0; 60];
        bytes[PROTOCOL] = TCP;
        bytes
    }

    #[test]
    fn loss_depends_only_on_seed_and_number_and_has_the_requested_rate() {
        let delay = Duration::from_millis(10);
        let fates = |seed| {
            let mut line = Line::new(Way { delay, loss: 0.01, seed }, 0);
            let (bytes, now) = (packet(), Instant::now());
            (0..QUEUE)
                .map(|_| {
                    let before = line.frames.len();
                    line.take(&Frame::whole(&bytes, Checksum::Unverified), now);
                    line.frames.len() > before
                })
                .collect::<Vec<bool>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        let lost = fates(3).iter().filter(|arrived| !**arrived).count();
        assert!((20..=65).contains(&lost), "{lost} of {QUEUE}");
    }

    #[test]
    fn frames_come_out_after_the_delay_and_in_order() {
        let delay = Duration::from_millis(10);
        let mut line = Line::new(Way { delay, loss: 0.0, seed: 1 }, 0);
        let now = Instant::now();
        for n in 0..3 {
            let mut bytes = packet();
            bytes[0] = n;
            line.take(&Frame::whole(&bytes, Checksum::Unverified), now);
        }
        assert!(line.due(now + delay / 2).is_none());
        let out: Vec<u8> =
            std::iter::from_fn(|| line.due(now + delay)).map(|(bytes, _)| bytes[0]).collect();
        assert_eq!(out, [0, 1, 2]);
    }
}
