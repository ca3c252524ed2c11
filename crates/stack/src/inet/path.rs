//! A path: a cached route of a socket with its interface, its transmit queue and its prebuilt headers, which lack only
//! lengths and checksums. Sending over a path needs no lookup.

use super::{
    Inet, Payload, SendError,
    dad::needs_scope,
    dual,
    iface::{Interface, MARK_USED_INTERVAL, Resolved, push},
    input::Arrival,
    neighbour::Version,
    route::{NextHop, RouteResult},
    tcp::plain::{PLAIN_LEN, Plain},
    template::{Template, TransportBuf},
};
use crate::{
    napi::NapiId,
    nic::{RingFull, TxQueue},
    sync::{Arc, AtomicU64, Ordering},
    time::Instant,
    wire::{MacAddr, Protocol, ethernet, ipv4, udp},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The socket options that affect sent packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// `SO_BROADCAST`: sending to a broadcast address is allowed.
    pub broadcast: bool,
    /// `IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`.
    pub discover: PmtuDiscover,
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`.
    pub ttl: u8,
    /// `IP_TOS`, `IPV6_TCLASS`.
    pub tos: u8,
    /// The number of the link to a process of this machine that leads to the remote end, whatever the routes say; 0:
    /// the routes say.
    pub link: u32,
}

impl Default for PathOptions {
    fn default() -> PathOptions {
        PathOptions {
            broadcast: false,
            discover: PmtuDiscover::WANT,
            ttl: ipv4::DEFAULT_TTL,
            tos: 0,
            link: 0,
        }
    }
}

/// Path MTU discovery of a socket: what happens to datagrams above the MTU. The numbers are those of `IP_PMTUDISC_*`
/// (ip(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmtuDiscover(u8);

impl PmtuDiscover {
    /// Datagrams above the path MTU are fragmented here, and routers may fragment all of them.
    pub const DONT: PmtuDiscover = PmtuDiscover(0);
    /// Datagrams above the path MTU are fragmented here; routers must not fragment.
    pub const WANT: PmtuDiscover = PmtuDiscover(1);
    /// Datagrams above the path MTU are refused.
    pub const DO: PmtuDiscover = PmtuDiscover(2);
    /// Datagrams above the interface's MTU are refused; the path MTU is ignored.
    pub const PROBE: PmtuDiscover = PmtuDiscover(3);
    /// As `PROBE`, and routers may fragment.
    pub const INTERFACE: PmtuDiscover = PmtuDiscover(4);
    /// Datagrams above the interface's MTU are fragmented here, and routers may fragment; the path MTU is ignored.
    pub const OMIT: PmtuDiscover = PmtuDiscover(5);

    /// From the socket option's value.
    pub fn new(number: u8) -> Option<PmtuDiscover> {
        (number <= PmtuDiscover::OMIT.0).then_some(PmtuDiscover(number))
    }

    /// The socket option's value.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Whether a datagram above the MTU is sent in fragments (`ip_sk_ignore_df`).
    pub(super) fn fragments(self) -> bool {
        matches!(self, PmtuDiscover::DONT | PmtuDiscover::WANT | PmtuDiscover::OMIT)
    }

    /// Whether only the interface's MTU counts (`ip_sk_use_pmtu`).
    fn ignores_path_mtu(self) -> bool {
        matches!(self, PmtuDiscover::PROBE | PmtuDiscover::INTERFACE | PmtuDiscover::OMIT)
    }

    /// Whether routers must not fragment (`ip_dont_fragment`). With a locked MTU they may: the path needs smaller
    /// packets than this host sends (RFC 1191 section 3).
    fn dont_fragment(self, mtu_locked: bool) -> bool {
        match self {
            PmtuDiscover::DO | PmtuDiscover::PROBE => true,
            PmtuDiscover::WANT => !mtu_locked,
            _ => false,
        }
    }

    /// Whether a connected socket gets EMSGSIZE when a datagram was above the path MTU (`__udp4_lib_err`).
    pub fn reports_too_big(self) -> bool {
        self != PmtuDiscover::DONT
    }
}

/// A path from a local to a remote address and port, valid while [`is_current`](Path::is_current).
#[derive(Debug)]
pub struct Path {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// `None`: the destination is this host.
    pub(super) iface: Option<Arc<Interface>>,
    pub(super) queue: u32,
    pub(super) next_hop: NextHop,
    pub(super) mtu: usize,
    pub(super) options: PathOptions,
    /// The most bytes after the IP header of a packet that the template can send; 0 if the neighbour is not
    /// resolved or the destination is this host.
    template_max: usize,
    /// The link completes or accepts partial checksums.
    partial: bool,
    template: Template,
    generation: u64,
    kernel_generation: u64,
    neighbour: Option<(Arc<Version>, u32)>,
    /// When to mark the kernel's neighbour as used next, in nanoseconds.
    mark_used_at: AtomicU64,
}

impl Inet {
    /// Looks up the path of datagrams from `local`, whose address may be unspecified, to `remote`. `queue` is the
    /// transmit queue to use, ideally the one beside the socket's receive queue. An unknown neighbour is solicited
    /// at once; until it answers, datagrams sent over the path are queued.
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
        self.path_of(Protocol::UDP, (local, remote), queue, options, now)
    }

    /// As [`path`](Inet::path), for any protocol. TCP sends over it with [`run`](Inet::run).
    pub(super) fn path_of(
        &self,
        protocol: Protocol,
        (local, remote): (SocketAddr, SocketAddr),
        queue: u32,
        options: PathOptions,
        now: Instant,
    ) -> Result<Path, SendError> {
        let (mut local, mut remote) =
            dual::in_common_family(local, remote).ok_or(SendError::Family)?;
        if remote.port() == 0 {
            return Err(SendError::InvalidPort);
        }
        // Only the IPv6 header has a flow label.
        let label = || self.random.hash((protocol.0, local, remote)) as u32;
        let flow = if remote.is_ipv6() { label() } else { 0 };
        // The generation is read before the lookup, so that a change in between outdates the path.
        let generation = self.generation();
        let found = match options.link {
            0 => self.look_up_route(local.ip(), remote.ip(), scope_of(local, remote)),
            number => self.link_to_process(number, remote.ip()),
        };
        let link = match found? {
            RouteResult::Link(link) => link,
            RouteResult::Local => {
                if remote.ip().is_unspecified() {
                    remote.set_ip(loopback(remote));
                }
                if local.ip().is_unspecified() {
                    local.set_ip(remote.ip());
                }
                let next_hop = NextHop::Unicast(remote.ip());
                let template = Template::new(protocol, (local, remote), true, options, flow);
                let mut path = Path::new(template, (local, remote), next_hop, options);
                path.generation = generation;
                return Ok(path);
            }
        };
        if link.next_hop == NextHop::Broadcast && !options.broadcast {
            return Err(SendError::Broadcast);
        }
        if local.ip().is_loopback() && link.iface.kernel().is_some() {
            // A loopback source must not leave the host (RFC 1122 section 3.2.1.3 (g)): the kernel reports it.
            return Err(SendError::UseKernel);
        }
        // A socket bound to a group does not send from the group's address.
        if local.ip().is_unspecified() || local.ip().is_multicast() {
            local.set_ip(link.source);
        }
        let iface = link.iface;
        for end in [&mut local, &mut remote] {
            if let SocketAddr::V6(end) = end
                && needs_scope(*end.ip())
            {
                end.set_scope_id(iface.scope_id());
            }
        }
        let resolved = self.resolve(&iface, queue, link.next_hop, now);
        let whole = options.discover.dont_fragment(link.mtu_locked);
        let template = Template::new(protocol, (local, remote), whole, options, flow);
        let mut path = Path::new(template, (local, remote), link.next_hop, options);
        path.mtu = if options.discover.ignores_path_mtu() { iface.info().mtu } else { link.mtu };
        path.queue = queue;
        path.generation = generation;
        path.kernel_generation = link.kernel_generation;
        path.partial = iface.info().tx_checksum;
        match resolved {
            Resolved::To(mac, version) => {
                path.set_neighbour(mac, iface.mac());
                path.neighbour = version;
            }
            Resolved::Unknown(version) => path.neighbour = version,
        }
        if iface.kernel().is_some() {
            path.mark_used_at = AtomicU64::new((now + MARK_USED_INTERVAL).nanos());
        }
        path.iface = Some(iface);
        Ok(path)
    }

    /// The source address of packets from `local`, whose address may be unspecified, to `remote`.
    pub(super) fn source(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<IpAddr, SendError> {
        let (local, remote) = dual::in_common_family(local, remote).ok_or(SendError::Family)?;
        Ok(match self.look_up_route(local.ip(), remote.ip(), scope_of(local, remote))? {
            _ if !local.ip().is_unspecified() => local.ip(),
            RouteResult::Link(link) => link.source,
            RouteResult::Local if remote.ip().is_unspecified() => loopback(remote),
            RouteResult::Local => remote.ip(),
        })
    }

    /// An address of a conversation as getsockname and getpeername return it: a link-local address gets the scope id of
    /// the interface that has `local`.
    #[cold]
    pub(super) fn shown(&self, local: IpAddr, mut end: SocketAddr) -> SocketAddr {
        if let SocketAddr::V6(v6) = &mut end
            && needs_scope(*v6.ip())
            && let Some(iface) = self.topology().interfaces.iter().find(|iface| iface.has(local))
        {
            v6.set_scope_id(iface.scope_id());
        }
        end
    }

    /// An upper layer got an answer from the path's remote end, which proves that the next hop is reachable
    /// (`MSG_CONFIRM`; RFC 4861 section 7.3.1).
    pub fn confirm(&self, path: &Path, now: Instant) {
        let (Some(iface), NextHop::Unicast(address)) = (&path.iface, path.next_hop) else { return };
        self.confirm_neighbour(iface, address, now);
    }
}

/// The scope id of a conversation's link-local addresses; 0 if neither has one.
fn scope_of(local: SocketAddr, remote: SocketAddr) -> u32 {
    let said = |end| match end {
        SocketAddr::V6(end) if needs_scope(*end.ip()) => end.scope_id(),
        _ => 0,
    };
    match said(remote) {
        0 => said(local),
        scope => scope,
    }
}

/// The loopback address that an unspecified destination of this family stands for.
fn loopback(unspecified: SocketAddr) -> IpAddr {
    match unspecified {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

impl Path {
    fn new(
        template: Template,
        (local, remote): (SocketAddr, SocketAddr),
        next_hop: NextHop,
        options: PathOptions,
    ) -> Path {
        Path {
            local,
            remote,
            iface: None,
            queue: 0,
            next_hop,
            mtu: template.ip_len() + template.max_transport_len(),
            options,
            template_max: 0,
            partial: false,
            template,
            generation: 0,
            kernel_generation: 0,
            neighbour: None,
            mark_used_at: AtomicU64::new(u64::MAX),
        }
    }

    fn set_neighbour(&mut self, to: MacAddr, from: MacAddr) {
        self.template.set_link_header(to, from);
        self.template_max = self.max_transport_len();
    }

    /// Sends on the queue beside the one a packet arrived on, if both are on the same interface.
    #[inline]
    pub(super) fn use_queue(&mut self, arrival: &Arrival<'_>) {
        if let (Some(ours), Some(theirs)) = (&self.iface, arrival.iface)
            && std::ptr::eq(&**ours, theirs)
        {
            self.queue = arrival.queue;
        }
    }

    /// The NAPI context of the queue pair it sends on.
    pub(super) fn napi(&self) -> Option<NapiId> {
        self.iface.as_ref().and_then(|iface| iface.napi(self.queue))
    }

    /// Whether it leads over a link to a process of this machine.
    #[inline]
    pub(crate) fn is_over_link(&self) -> bool {
        self.options.link != 0
    }

    /// Whether nothing has changed since the path was looked up. If false, look it up again.
    #[inline(always)]
    pub fn is_current(&self, inet: &Inet) -> bool {
        self.generation == inet.generation()
            && self.neighbour.as_ref().is_none_or(|(version, seen)| version.get() == *seen)
            && self
                .iface
                .as_ref()
                .is_none_or(|iface| iface.kernel_generation() == self.kernel_generation)
    }

    /// The local address and port. An unspecified address was replaced by the route's source address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The remote address and port.
    #[inline]
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// The interface; `None` if the destination is this host.
    pub fn interface(&self) -> Option<&Arc<Interface>> {
        self.iface.as_ref()
    }

    /// The path MTU, bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Whether the ring has room for the fragments of the largest datagram.
    #[cold]
    pub(crate) fn has_room(&self) -> bool {
        let frames = self.template.max_transport_len() / self.mtu.max(1) + 1;
        let iface = self.iface.as_ref();
        iface.is_none_or(|iface| iface.transmit(self.queue).ring().has_room(frames))
    }

    /// The most bytes of transport header and data in one packet.
    pub(super) fn max_transport_len(&self) -> usize {
        self.mtu.saturating_sub(self.template.ip_len()).min(self.template.max_transport_len())
    }

    /// The most bytes of data in a datagram, fragmented or not.
    pub(super) fn largest_datagram(&self) -> usize {
        self.template.max_transport_len() - udp::HEADER_LEN
    }

    /// The interface, if the template can send a packet with `len` bytes after its IP header.
    #[inline]
    pub(super) fn fast_path(&self, len: usize) -> Option<&Interface> {
        if len <= self.template_max { self.iface.as_deref() } else { None }
    }

    /// Marks the kernel's neighbour as used from time to time, so that the kernel verifies it when it is stale.
    #[inline]
    pub(super) fn mark_neighbour_used(&self, now: Instant) {
        if now.nanos() >= self.mark_used_at.load(Ordering::Relaxed) {
            self.mark_used(now);
        }
    }

    #[cold]
    fn mark_used(&self, now: Instant) {
        self.mark_used_at.store((now + MARK_USED_INTERVAL).nanos(), Ordering::Relaxed);
        if let (Some(iface), NextHop::Unicast(address)) = (&self.iface, self.next_hop) {
            iface.mark_neighbour_used(address, now);
        }
    }

    /// Puts a datagram on the ring. The caller has checked [`fast_path`](Path::fast_path).
    #[inline]
    pub(super) fn push_datagram<P: Payload + ?Sized>(
        &self,
        tx: &mut dyn TxQueue,
        payload: &P,
    ) -> Result<(), RingFull> {
        let len = self.template.before_transport() + udp::HEADER_LEN + payload.len();
        push(tx, len, self.partial, &mut |frame| {
            self.template.write_datagram(frame, payload, self.partial);
        })
    }

    /// Puts a segment of `len` bytes on the ring. The caller has checked [`fast_path`](Path::fast_path).
    #[inline]
    pub(super) fn push_segment(
        &self,
        tx: &mut dyn TxQueue,
        len: usize,
        ecn: u8,
        fill: &mut impl FnMut(TransportBuf<'_>),
    ) -> Result<(), RingFull> {
        push(tx, self.template.before_transport() + len, self.partial, &mut |frame| {
            self.template.write_segment(frame, ecn, self.partial, &mut *fill);
        })
    }

    /// Sends a plain segment with `data` between these ports, and rings the doorbell. The path of a connection was made
    /// before its local port was chosen, and may not have it. The caller has checked [`fast_path`](Path::fast_path).
    /// False: the ring is full.
    #[inline(always)]
    pub(super) fn push_plain(
        &self,
        iface: &Interface,
        ports: [u8; 4],
        (segment, data): (&Plain, &[u8]),
        now: Instant,
    ) -> bool {
        self.mark_neighbour_used(now);
        let len = self.template.before_transport() + PLAIN_LEN + data.len();
        let mut tx = iface.transmit(self.queue);
        let pushed = push(tx.ring(), len, self.partial, &mut |frame| {
            self.template.write_plain(frame, ports, (segment, data), self.partial);
        });
        if pushed.is_ok() {
            tx.count_segment();
        }
        pushed.is_ok()
    }

    /// Builds the IP packet of a datagram of at most [`largest_datagram`](Path::largest_datagram) bytes.
    pub(super) fn datagram<P: Payload + ?Sized>(&self, payload: &P) -> Vec<u8> {
        self.packet(udp::HEADER_LEN + payload.len(), |frame| {
            self.template.write_datagram(frame, payload, false);
        })
    }

    /// Builds the IP packet of a segment of `len` bytes.
    pub(super) fn segment(
        &self,
        len: usize,
        ecn: u8,
        fill: impl FnOnce(TransportBuf<'_>),
    ) -> Vec<u8> {
        self.packet(len, |frame| self.template.write_segment(frame, ecn, false, fill))
    }

    fn packet(&self, len: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut frame = vec![0; self.template.before_transport() + len];
        write(&mut frame);
        frame.drain(..ethernet::HEADER_LEN);
        frame
    }
}
