//! Packets queued until their neighbour is resolved (the kernel's `arp_queue`). Bounded in packets per neighbour, where
//! the oldest is dropped, and in bytes in total.

use super::neighbour::earlier;
use crate::time::Instant;
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

/// The most packets queued for one neighbour.
pub const QUEUED_PER_NEIGHBOUR: usize = 16;

/// The most bytes queued on one interface.
const BYTES: usize = 4 << 20;

/// The most neighbours with a queue.
const NEIGHBOURS: usize = 1024;

/// A queued IP packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueuedPacket {
    pub(super) packet: Box<[u8]>,
    pub(super) queue: u32,
    /// The MTU of its path.
    pub(super) mtu: usize,
}

/// The packets queued for one neighbour.
#[derive(Debug)]
struct Queue {
    since: Instant,
    /// When the neighbour was last solicited.
    solicited: Instant,
    packets: VecDeque<QueuedPacket>,
}

#[derive(Debug, Default)]
pub(super) struct NeighbourQueues {
    waiting: BTreeMap<IpAddr, Queue>,
    bytes: usize,
}

/// What [`NeighbourQueues::tick`] finds to do.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Neighbours that were not resolved in time.
    pub(super) expired: Vec<IpAddr>,
    /// Neighbours to solicit again.
    pub(super) solicit: Vec<IpAddr>,
    /// When the next one is due.
    pub(super) next: Option<Instant>,
}

impl NeighbourQueues {
    /// Queues a packet and returns how many packets were dropped, this or older ones. The caller must solicit the
    /// neighbour after its first packet.
    pub(super) fn push(&mut self, neighbour: IpAddr, queued: QueuedPacket, now: Instant) -> u64 {
        let full = self.bytes + queued.packet.len() > BYTES
            || (self.waiting.len() >= NEIGHBOURS && !self.contains(neighbour));
        if full {
            return 1;
        }
        self.bytes += queued.packet.len();
        let new = || Queue { since: now, solicited: now, packets: VecDeque::new() };
        let queue = &mut self.waiting.entry(neighbour).or_insert_with(new).packets;
        queue.push_back(queued);
        if queue.len() <= QUEUED_PER_NEIGHBOUR {
            return 0;
        }
        let oldest = queue.pop_front().map_or(0, |oldest| oldest.packet.len());
        self.bytes -= oldest;
        1
    }

    /// Removes and returns all packets queued for `neighbour`, oldest first.
    pub(super) fn take_all(&mut self, neighbour: IpAddr) -> VecDeque<QueuedPacket> {
        let taken =
            self.waiting.remove(&neighbour).map(|waiting| waiting.packets).unwrap_or_default();
        self.bytes -= taken.iter().map(|queued| queued.packet.len()).sum::<usize>();
        taken
    }

    /// The neighbours that have packets queued.
    pub(super) fn neighbours(&self) -> Vec<IpAddr> {
        self.waiting.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether packets are queued for `neighbour`.
    pub(super) fn contains(&self, neighbour: IpAddr) -> bool {
        self.waiting.contains_key(&neighbour)
    }

    /// The neighbours whose packets have waited for `timeout`, and those not solicited within `retry`, which the
    /// caller must solicit now.
    pub(super) fn tick(&mut self, now: Instant, timeout: Duration, retry: Duration) -> Due {
        let mut due = Due::default();
        for (&neighbour, waiting) in &mut self.waiting {
            if waiting.since + timeout <= now {
                due.expired.push(neighbour);
                continue;
            }
            if waiting.solicited + retry <= now {
                waiting.solicited = now;
                due.solicit.push(neighbour);
            }
            let next = (waiting.since + timeout).min(waiting.solicited + retry);
            due.next = earlier(due.next, Some(next));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn packet(byte: u8, len: usize) -> QueuedPacket {
        QueuedPacket { packet: vec![byte; len].into(), queue: 0, mtu: 1500 }
    }

    #[test]
    fn the_oldest_packet_of_a_full_queue_is_dropped() {
        let mut queues = NeighbourQueues::default();
        let dropped: u64 = (0..20).map(|i| queues.push(A, packet(i, 100), Instant::ZERO)).sum();
        assert_eq!(dropped, 4);
        let taken = queues.take_all(A);
        assert_eq!((taken.len(), taken[0].packet[0]), (QUEUED_PER_NEIGHBOUR, 4));
        assert_eq!(queues.bytes, 0);
    }

    #[test]
    fn the_total_is_bounded_in_neighbours_and_bytes() {
        let push = |queues: &mut NeighbourQueues, i, len| {
            queues.push(Ipv4Addr::from_bits(i).into(), packet(0, len), Instant::ZERO)
        };
        let mut queues = NeighbourQueues::default();
        let dropped: u64 = (0..2000).map(|i| push(&mut queues, i, 10)).sum();
        assert_eq!((dropped, queues.waiting.len()), (2000 - NEIGHBOURS as u64, NEIGHBOURS));
        let dropped: u64 = (0..500).map(|i| push(&mut queues, i, 60_000)).sum();
        assert!(dropped > 400 && queues.bytes <= BYTES);
    }
}
