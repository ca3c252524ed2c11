//! TCP's state of a whole host besides its connections: the tables, the timer wheel, the secrets; and the tick that
//! fires timers.

use super::{
    Config,
    claims::{Claim, Claims},
    cookie::Cookies,
    flow::Core,
    isn::Secrets,
    receive::DELAY_MIN,
    request::SynQueueEntry,
    shared::Shared,
    table::Table,
    time_wait::TimeWaitEntry,
    wheel::{Handle, Wheel},
};
use crate::{
    inet::{Inet, Pass, counters::Counters, input::Arrival, neighbour::earlier, random::Random},
    sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock},
    time::Instant,
    wire::{Protocol, ethernet, ipv4, ipv6, tcp},
};
use std::{
    net::IpAddr,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

/// Steps on the wheel per hold of its lock.
const BURST: usize = 64;

/// Bursts of one tick; what is still due then waits for the next tick, which follows at once.
const BURSTS: usize = 64;

/// How often the wheel is checked while timers are set. As a rule no timer is shorter: the shortest is a delayed ACK
/// ([`DELAY_MIN`]). So a thread that sends and receives finds a check due in time already. It need not request one in
/// the middle of an answer, by a system call that wakes a thread on its CPU.
const CHECK_INTERVAL: Duration = Duration::from_micros(DELAY_MIN as u64);

/// The owner of a timer. At most one timer of each connection is on the wheel, and it may fire earlier than needed:
/// the hot path moves deadlines later without touching the wheel.
pub(super) enum Timer {
    Flow(Arc<Core>),
    SynQueue(Arc<SynQueueEntry>),
    TimeWait(Arc<TimeWaitEntry>),
}

/// TCP's part of an [`Inet`].
pub(in crate::inet) struct Tcp {
    pub(super) shared: Arc<Shared>,
    pub(super) table: Table,
    pub(super) claims: Mutex<Claims>,
    wheel: Mutex<Wheel<Timer>>,
    /// A timer was set since the last check of the wheel. Not of [`crate::sync`]: it only decides when the next check
    /// is.
    timer_set: AtomicBool,
    pub(super) secrets: Secrets,
    pub(super) cookies: Cookies,
    /// How far the choice of ports has gone, by hash of the destination (RFC 6056).
    pub(super) port_steps: Box<[AtomicU32; 256]>,
    /// TIME_WAIT entries.
    pub(super) time_wait_entries: AtomicU32,
    /// TIME_WAIT entries that hold a port alone.
    pub(super) time_wait_ports: AtomicU32,
    /// Until when segments of no connection get no answer, in nanoseconds.
    silent_until: AtomicU64,
    /// Until when they go to the kernel.
    handed_over_until: AtomicU64,
    /// Takes the packets of such segments.
    to_kernel: OnceLock<ToKernel>,
}

/// Gives the kernel an IP packet, by its destination.
pub(crate) type ToKernel = Box<dyn Fn(&[u8], IpAddr) + Send + Sync>;

impl Tcp {
    pub(in crate::inet) fn new(config: Config, counters: Arc<Counters>, random: &Random) -> Tcp {
        Tcp {
            shared: Shared::new(config, counters, random.key()),
            table: Table::new(random.hasher()),
            claims: Mutex::default(),
            wheel: Mutex::default(),
            timer_set: AtomicBool::new(false),
            secrets: Secrets::new(|| random.key()),
            cookies: Cookies::new(|| random.key()),
            port_steps: Box::new(std::array::from_fn(|_| AtomicU32::new(random.next() as u32))),
            time_wait_entries: AtomicU32::new(0),
            time_wait_ports: AtomicU32::new(0),
            silent_until: AtomicU64::new(0),
            handed_over_until: AtomicU64::new(0),
            to_kernel: OnceLock::new(),
        }
    }

    /// How many timers are on the wheel.
    #[cfg(test)]
    pub(super) fn timers(&self) -> usize {
        lock(&self.wheel).len()
    }

    /// The host's settings.
    #[inline]
    pub(super) fn config(&self) -> &Config {
        &self.shared.config
    }
}

impl Inet {
    /// Segments of no connection go to the kernel by `give`, while they may be for a connection of the kernel's.
    pub(crate) fn tcp_give_to_kernel_by(&self, give: ToKernel) {
        let _ = self.tcp.to_kernel.set(give);
    }

    /// A segment of no connection has come over our rings, and may be for one that the kernel has: it was on its way when
    /// that one was handed over. Its sender would repeat it only after a fifth of a second.
    #[cold]
    pub(super) fn tcp_to_kernel(&self, arrival: &Arrival<'_>, now: Instant) {
        if now.nanos() >= self.tcp.handed_over_until.load(Ordering::Relaxed) {
            return;
        }
        let Some(give) = self.tcp.to_kernel.get() else { return };
        if let Some((packet, to)) = with_checksum(arrival.frame) {
            give(&packet, to);
        }
    }

    /// A port is being taken over from the kernel: until `end`, segments of no connection get no answer, as they may
    /// belong to a connection of the kernel. Their senders repeat them.
    pub(crate) fn tcp_take_over_until(&self, end: Instant) {
        self.tcp.silent_until.fetch_max(end.nanos(), Ordering::Relaxed);
    }

    /// A connection is being handed over to the kernel: until `end`, segments of no connection go there.
    pub(crate) fn tcp_hand_over_until(&self, end: Instant) {
        self.tcp.handed_over_until.fetch_max(end.nanos(), Ordering::Relaxed);
        self.tcp_take_over_until(end);
    }

    /// Whether a port is being taken over.
    pub(super) fn tcp_is_taking_over(&self, now: Instant) -> bool {
        now.nanos() < self.tcp.silent_until.load(Ordering::Relaxed)
    }

    /// Sets `timer` to fire at `at`. If the timer of `old` is still on the wheel, that one is moved instead.
    #[cold]
    pub(super) fn tcp_timer(
        &self,
        at: Instant,
        old: Option<Handle>,
        timer: impl FnOnce() -> Timer,
    ) -> Handle {
        let mut wheel = lock(&self.tcp.wheel);
        let handle = match old {
            Some(handle) if wheel.modify(handle, at) => handle,
            _ => wheel.insert(at, timer()),
        };
        drop(wheel);
        self.tcp.timer_set.store(true, Ordering::Relaxed);
        self.tick_by(Some(Wheel::<Timer>::fires(at)));
        handle
    }

    pub(super) fn tcp_cancel(&self, handle: Handle) {
        let cancelled = lock(&self.tcp.wheel).cancel(handle);
        // The last reference to a connection may be dropped here: not under the lock.
        drop(cancelled);
    }

    /// Fires what is due; returns when to check next.
    pub(in crate::inet) fn tcp_tick(&self, pass: &mut Pass<'_>) -> Option<Instant> {
        let mut due = Vec::new();
        for _ in 0..BURSTS {
            let done = lock(&self.tcp.wheel)
                .drain(pass.now, BURST, |handle, timer| due.push((handle, timer)));
            for (handle, timer) in due.drain(..) {
                match timer {
                    Timer::Flow(core) => core.timer(handle, self, pass),
                    Timer::SynQueue(handshake) => handshake.timer(self, pass),
                    Timer::TimeWait(time_wait) => time_wait.timer(self),
                }
            }
            if done {
                break;
            }
        }
        self.deliver_local(pass);
        let next = lock(&self.tcp.wheel).next();
        let timer_set = self.tcp.timer_set.swap(false, Ordering::Relaxed);
        earlier(next, timer_set.then(|| pass.now + CHECK_INTERVAL))
    }

    pub(super) fn tcp_release(&self, claim: &Claim) {
        lock(&self.tcp.claims).remove(claim);
    }
}

/// The IP packet in a frame, a TCP segment, and its destination. Its checksum may have been left to hardware.
fn with_checksum(frame: &[u8]) -> Option<(Vec<u8>, IpAddr)> {
    let payload = ethernet::Frame::new_checked(frame).ok()?.payload();
    let (len, header, sum, to): (_, _, _, IpAddr) = match payload.first()? >> 4 {
        4 => {
            let ip = ipv4::Packet::new_checked(payload).ok()?;
            (ip.total_len(), ip.header_len(), ip.address_sum(), ip.dst().into())
        }
        _ => {
            let ip = ipv6::Packet::new_checked(payload)
                .ok()
                .filter(|ip| ip.next_header() == Protocol::TCP)?;
            (ip.total_len(), ipv6::HEADER_LEN, ip.address_sum(), ip.dst().into())
        }
    };
    let mut packet = payload.get(..len)?.to_vec();
    tcp::Packet::new_checked(packet.get_mut(header..)?).ok()?.fill_checksum(sum);
    Some((packet, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{EtherType, MacAddr};

    /// As veth delivers it: with padding, and a checksum that was left to hardware.
    #[test]
    fn a_packet_for_the_kernel_is_whole_and_has_its_checksum() {
        let (from, to) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        let mut frame = vec![0; 80];
        let mac = MacAddr::BROADCAST;
        let mut ethernet =
            ethernet::Frame::init(&mut frame[..], mac, mac, EtherType::IPV4).unwrap();
        let len = tcp::HEADER_LEN + 3;
        let packet = ethernet.payload_mut();
        let mut ip = ipv4::Packet::init(packet, from, to, Protocol::TCP, len).unwrap();
        ip.fill_checksum();
        let header = tcp::Header {
            src_port: 1,
            dst_port: 2,
            seq: 3,
            ack: 4,
            flags: 0x18,
            window: 5,
            urgent: 0,
        };
        let mut segment = tcp::Packet::init(&mut ip.payload_mut()[..len], &header, 0).unwrap();
        segment.payload_mut().copy_from_slice(b"abc");
        segment.fill_partial_checksum(ipv4::address_sum(from, to));
        let (packet, at) = with_checksum(&frame).unwrap();
        assert_eq!((packet.len(), at), (ipv4::HEADER_LEN + len, to.into()));
        let ip = ipv4::Packet::new_checked(&packet[..]).unwrap();
        let segment = tcp::Packet::new_checked(ip.payload()).unwrap();
        segment.verify_checksum(ip.address_sum()).unwrap();
        assert_eq!(segment.payload(), b"abc");
        // A part of a packet is none.
        assert!(with_checksum(&frame[..40]).is_none());
    }
}
