//! A way that has been found, kept by the socket that uses it: the interface, the transmit queue, and the
//! three headers ready but for lengths and checksums. Sending over it finds nothing out again.

use super::{
    Inet, Payload, SendError,
    iface::{Interface, Resolved, push},
    neighbour::Version,
    route::{NextHop, Way},
};
use crate::{
    nic::{RingFull, TxQueue},
    sync::{Arc, AtomicU64, Ordering},
    time::Instant,
    wire::{EtherType, MacAddr, Protocol, checksum::Sum, ethernet, ipv4, udp},
};
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

/// Bytes of the IPv4 and UDP headers.
pub(super) const HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;

// Where in the template lengths and checksums are.
const TOTAL_LEN: usize = 2;
const IP_CHECKSUM: usize = 10;
const UDP_LEN: usize = ipv4::HEADER_LEN + 4;
const UDP_CHECKSUM: usize = ipv4::HEADER_LEN + 6;

/// How often the kernel is told that a neighbour it keeps for us is in use.
pub(super) const KERNEL_REMINDER: Duration = Duration::from_secs(10);

/// What a socket's options say about its datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// `SO_BROADCAST`: broadcast addresses may be sent to.
    pub broadcast: bool,
    /// `IP_MTU_DISCOVER` is `IP_PMTUDISC_DO`: never fragment here, refuse what is too big.
    pub dont_fragment: bool,
    /// `IP_TTL`.
    pub ttl: u8,
    /// `IP_TOS`.
    pub tos: u8,
}

impl Default for PathOptions {
    fn default() -> PathOptions {
        PathOptions { broadcast: false, dont_fragment: false, ttl: ipv4::DEFAULT_TTL, tos: 0 }
    }
}

/// A way from a local to a remote address and port. Good while [`is_current`](Path::is_current).
#[derive(Debug)]
pub struct Path {
    pub(super) local: SocketAddrV4,
    pub(super) remote: SocketAddrV4,
    /// `None`: to ourselves.
    pub(super) iface: Option<Arc<Interface>>,
    pub(super) queue: u32,
    pub(super) next_hop: NextHop,
    pub(super) mtu: usize,
    pub(super) options: PathOptions,
    /// The largest payload the template serves; `None` if there is no template to use: the neighbour is
    /// not known, or it is to ourselves.
    ready: Option<usize>,
    partial: bool,
    ethernet: [u8; ethernet::HEADER_LEN],
    headers: [u8; HEADERS],
    /// The sum of the IP header with no length.
    ip_sum: Sum,
    /// The sum of the pseudo-header with no length.
    pseudo: Sum,
    /// The sum of the ports.
    ports: Sum,
    generation: u64,
    kernel_generation: u64,
    neighbour: Option<(Arc<Version>, u32)>,
    /// When the kernel is next told, in nanoseconds.
    reminder: AtomicU64,
}

impl Inet {
    /// Finds the way from `local`, perhaps of unspecified address, to `remote`. `queue` is the transmit
    /// queue to use, best the one beside the receive queue of the socket. An unknown neighbour is asked for
    /// at once; until it answers, datagrams sent over the path wait.
    ///
    /// # Errors
    /// Any [`SendError`] but `RingFull` and `TooBig`.
    pub fn path(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        queue: u32,
        options: PathOptions,
        now: Instant,
    ) -> Result<Path, SendError> {
        let (SocketAddr::V4(mut local), SocketAddr::V4(mut remote)) = (local, remote) else {
            return Err(SendError::Family);
        };
        if remote.port() == 0 {
            return Err(SendError::InvalidPort);
        }
        // Read before what they stand for, so that a change in between shows.
        let generation = self.generation();
        let link = match self.way(*local.ip(), *remote.ip())? {
            Way::Link(link) => link,
            Way::Local => {
                if remote.ip().is_unspecified() {
                    remote.set_ip(Ipv4Addr::LOCALHOST);
                }
                if local.ip().is_unspecified() {
                    local.set_ip(*remote.ip());
                }
                let next_hop = NextHop::One(*remote.ip());
                let mut path = Path::new(local, remote, next_hop, ipv4::MAX_LEN, true, options);
                path.generation = generation;
                return Ok(path);
            }
        };
        if link.next_hop == NextHop::Everybody && !options.broadcast {
            return Err(SendError::Broadcast);
        }
        if local.ip().is_unspecified() {
            local.set_ip(link.source);
        }
        let iface = link.iface;
        let kernel_generation = iface.kernel_generation();
        let resolved = self.resolve(&iface, queue, link.next_hop, now);
        // Fragments that routers make are better than none (RFC 1191 section 3, as Linux).
        let whole = options.dont_fragment || !link.mtu_locked;
        let mut path = Path::new(local, remote, link.next_hop, link.mtu, whole, options);
        path.queue = queue;
        path.generation = generation;
        path.kernel_generation = kernel_generation;
        path.partial = iface.info().tx_checksum;
        match resolved {
            Resolved::To(mac, version) => {
                path.to(mac, iface.info().mac);
                path.neighbour = version;
            }
            Resolved::Unknown(version) => path.neighbour = version,
        }
        if iface.kernel().is_some() {
            path.reminder = AtomicU64::new((now + KERNEL_REMINDER).nanos());
        }
        path.iface = Some(iface);
        Ok(path)
    }

    /// The source address of datagrams to `remote`.
    pub(super) fn source(&self, local: Ipv4Addr, remote: Ipv4Addr) -> Result<Ipv4Addr, SendError> {
        Ok(match self.way(local, remote)? {
            _ if !local.is_unspecified() => local,
            Way::Link(link) => link.source,
            Way::Local if remote.is_unspecified() => Ipv4Addr::LOCALHOST,
            Way::Local => remote,
        })
    }

    /// A floor above has an answer from the path's far end, which proves that its next hop hears us
    /// (`MSG_CONFIRM`; RFC 4861 section 7.3.1).
    pub fn confirm(&self, path: &Path, now: Instant) {
        let (Some(iface), NextHop::One(address)) = (&path.iface, path.next_hop) else { return };
        self.confirm_neighbour(iface, address, now);
    }
}

impl Path {
    fn new(
        local: SocketAddrV4,
        remote: SocketAddrV4,
        next_hop: NextHop,
        mtu: usize,
        dont_fragment: bool,
        options: PathOptions,
    ) -> Path {
        let mut headers = [0; HEADERS];
        let (src, dst) = (*local.ip(), *remote.ip());
        if let Ok(mut ip) =
            ipv4::Packet::init(&mut headers, src, dst, Protocol::UDP, udp::HEADER_LEN)
        {
            ip.set_ttl(options.ttl);
            ip.set_tos(options.tos);
            ip.set_dont_fragment(dont_fragment);
            // It has room for a header and no payload: this cannot fail.
            let _ = udp::Packet::init(ip.payload_mut(), local.port(), remote.port(), 0);
        }
        for at in [TOTAL_LEN, IP_CHECKSUM, UDP_LEN] {
            headers[at..at + 2].fill(0);
        }
        Path {
            local,
            remote,
            iface: None,
            queue: 0,
            next_hop,
            mtu,
            options,
            ready: None,
            partial: false,
            ethernet: [0; ethernet::HEADER_LEN],
            ip_sum: Sum::of(&headers[..ipv4::HEADER_LEN]),
            headers,
            pseudo: ipv4::address_sum(src, dst).plus_word(Protocol::UDP.0.into()),
            ports: Sum::ZERO.plus_word(local.port()).plus_word(remote.port()),
            generation: 0,
            kernel_generation: 0,
            neighbour: None,
            reminder: AtomicU64::new(u64::MAX),
        }
    }

    fn to(&mut self, to: MacAddr, from: MacAddr) {
        // The buffer has the header's size: this cannot fail.
        let _ = ethernet::Frame::init(&mut self.ethernet, to, from, EtherType::IPV4);
        self.ready = self.mtu.min(ipv4::MAX_LEN).checked_sub(HEADERS);
    }

    /// Whether nothing has changed since the path was found. If something has, find it again.
    #[inline]
    pub fn is_current(&self, inet: &Inet) -> bool {
        self.generation == inet.generation()
            && self.neighbour.as_ref().is_none_or(|(version, seen)| version.get() == *seen)
            && self
                .iface
                .as_ref()
                .is_none_or(|iface| iface.kernel_generation() == self.kernel_generation)
    }

    /// The local address and port, the address found if it was unspecified.
    pub fn local(&self) -> SocketAddr {
        self.local.into()
    }

    /// The remote address and port.
    #[inline]
    pub fn remote(&self) -> SocketAddr {
        self.remote.into()
    }

    /// The interface; `None` if the path leads to ourselves.
    pub fn interface(&self) -> Option<&Arc<Interface>> {
        self.iface.as_ref()
    }

    /// The largest IP packet the path takes, bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// The interface, if a datagram of `len` bytes can go over it by the template.
    #[inline]
    pub(super) fn direct(&self, len: usize) -> Option<&Interface> {
        match (self.ready, &self.iface) {
            (Some(most), Some(iface)) if len <= most => Some(iface),
            _ => None,
        }
    }

    /// Tells the kernel now and then that its neighbour is in use, so that it keeps sure of it.
    #[inline]
    pub(super) fn remind_kernel(&self, now: Instant) {
        if now.nanos() >= self.reminder.load(Ordering::Relaxed) {
            self.remind(now);
        }
    }

    #[cold]
    fn remind(&self, now: Instant) {
        self.reminder.store((now + KERNEL_REMINDER).nanos(), Ordering::Relaxed);
        if let (Some(iface), NextHop::One(address)) = (&self.iface, self.next_hop) {
            iface.remind_kernel(address, KERNEL_REMINDER, now);
        }
    }

    /// Puts one frame on the ring. The payload has passed [`direct`](Path::direct).
    #[inline]
    pub(super) fn push<P: Payload + ?Sized>(
        &self,
        tx: &mut dyn TxQueue,
        payload: &P,
    ) -> Result<(), RingFull> {
        let len = ethernet::HEADER_LEN + HEADERS + payload.len();
        push(tx, len, self.partial, &mut |frame| {
            if let Some((ethernet, packet)) = frame.split_first_chunk_mut() {
                *ethernet = self.ethernet;
                self.lay(packet, payload, self.partial);
            }
        })
    }

    /// The IP packet around `payload`, which is at most [`MAX_PAYLOAD`](super::MAX_PAYLOAD) bytes.
    pub(super) fn packet<P: Payload + ?Sized>(&self, payload: &P) -> Vec<u8> {
        let mut packet = vec![0; HEADERS + payload.len()];
        self.lay(&mut packet, payload, false);
        packet
    }

    #[inline]
    fn lay<P: Payload + ?Sized>(&self, packet: &mut [u8], payload: &P, partial: bool) {
        let total = packet.len() as u16;
        let Some((head, body)) = packet.split_first_chunk_mut::<HEADERS>() else { return };
        let len = total - ipv4::HEADER_LEN as u16;
        let pseudo = self.pseudo.plus_word(len);
        let checksum = if partial {
            pseudo.fold()
        } else {
            // RFC 768: "If the computed checksum is zero, it is transmitted as all ones."
            match pseudo.plus(self.ports).plus_word(len).plus(payload.sum()).checksum() {
                0 => 0xffff,
                checksum => checksum,
            }
        };
        *head = self.headers;
        let mut put = |at: usize, word: u16| head[at..at + 2].copy_from_slice(&word.to_be_bytes());
        put(TOTAL_LEN, total);
        put(IP_CHECKSUM, self.ip_sum.plus_word(total).checksum());
        put(UDP_LEN, len);
        put(UDP_CHECKSUM, checksum);
        payload.copy_to(body);
    }
}
