//! A host: NICs, inet and the two sysctls, put together. Each queue gets a NAPI context whose floor above is inet. An
//! interface that shares its addresses with the kernel gets the service that keeps the two in step ([`companion`]).

use crate::{
    icmp_sockets::IcmpSockets,
    inet::{
        Addressing, CONTEXTS, Cidr, Context, Inet, Input, Serving, Source, WakeBy,
        kernel::KernelView, tcp,
    },
    lease::Lease,
    ledger::{Ledger, QueuePlace, Way},
    napi,
    nic::{
        self, Nic,
        cable::ProcessCable,
        pcap::Capture,
        xdp::{Grant, Xdp},
    },
    sync::lock,
    sys,
};
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

mod companion;
mod companion_listener;
mod datagram_links;
pub mod firewall;
mod give_back;
mod given_up;
mod group_ring;
mod groups;
mod idle_links;
mod kernel_sockets;
mod kernel_udp;
mod later;
mod link_watch;
mod peers;
mod poller_slot;
mod port_reservation;
pub(crate) mod reuse;
mod take_over;
mod workers;
pub(crate) use companion::{Companion, CompanionService};
pub(crate) use companion_listener::{CompanionEndpoint, CompanionListener};
use datagram_links::DatagramLinks;
pub(crate) use datagram_links::{Accepted, DatagramWay};
pub use datagram_links::{PublishedUdp, is_udp_published};
use link_watch::LinkWatch;
use peers::Peers;
pub use peers::{
    Asked, Containers, HandOver, Leave, LeaveStream, MoveStream, StreamOffer, before_fork,
    is_in_directory, is_published, is_stream_offered, offers, peer_inode, serve_local_streams,
    shares::share_address, stream_ends, stream_names,
};
pub(crate) use peers::{OtherEnd, Received, Rest};
pub(crate) use poller_slot::PollerSlot;
pub use port_reservation::KernelBinding;
pub(crate) use port_reservation::{PortReservation, ReservationOptions};

/// TIME_WAIT entries may keep one in this many of the process's descriptors.
const TIME_WAIT_SHARE: usize = 8;

/// A host in user space. It is cheap to clone, and lives as long as one of its clones or sockets.
///
/// ```
/// use busypoll_stack::{Host, nic::cable};
/// let (a, b) = cable::pair(cable::Config::default())?;
/// let host = Host::builder().interface(a, "10.0.0.1/24").busy_read(50).build()?;
/// assert_eq!(host.busy_read(), 50);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

struct Inner {
    inet: Arc<Inet>,
    /// Of interfaces, once there are any.
    contexts: OnceLock<Vec<Serving>>,
    kernel: Option<companion::CompanionService>,
    /// `None` until there is a link to another process.
    link_watch: Mutex<Option<LinkWatch>>,
    peers: OnceLock<Peers>,
    datagram_links: Arc<DatagramLinks>,
    watchdog: Duration,
    wake: WakeCell,
    skipped_rules: usize,
    delivery_hook: Option<DeliveryHook>,
    tcp: tcp::Config,
    busy_read: AtomicU32,
    busy_poll: AtomicU32,
    poller_slot: Arc<PollerSlot>,
    capture: Option<Capture>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // It resets connections, for which it needs the contexts.
        drop(self.peers.take());
        *lock(&self.link_watch) = None;
        // Then the contexts: their passes and timers may still make connections or move them to TIME_WAIT.
        drop(self.contexts.take());
        self.kernel.iter().for_each(companion::CompanionService::close_group_rings);
        // It finds the contexts closed, and ends.
        self.poller_slot.waiter().wake();
        // A connection without a socket keeps its port's companion, which keeps inet.
        self.inet.tcp_forget_all();
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.contexts()).finish()
    }
}

/// Puts a [`Host`] together.
#[derive(Default)]
pub struct Builder {
    interfaces: Vec<(Box<dyn Nic>, Option<String>)>,
    gateways: Vec<IpAddr>,
    busy_read: u32,
    busy_poll: u32,
    watchdog: Option<Duration>,
    interrupt_cpus: Vec<usize>,
    delivery_hook: Option<DeliveryHook>,
    tcp: tcp::Config,
    ledger: Option<Arc<Ledger>>,
    icmp: Option<IcmpSockets>,
    shares_later: bool,
    capture: Option<Capture>,
}

/// A link of a [`Host`] to another process of this machine, made by [`Host::add_link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub(crate) u32);

/// Called for each datagram as it passes from inet to its socket.
pub(crate) type DeliveryHook = Arc<dyn Fn() + Send + Sync>;

impl Builder {
    /// A NIC whose address is ours, as `10.0.0.1/24` (cable, TAP); or addresses, of both families, with commas
    /// or spaces between them: `10.0.0.1/24, fd00::1/64`. With an IPv6 address it has a link-local one as well.
    #[must_use]
    pub fn interface(mut self, nic: impl Nic + 'static, address: impl Into<String>) -> Builder {
        self.interfaces.push((Box::new(nic), Some(address.into())));
        self
    }

    /// A NIC that shares an interface with the kernel (XDP). The kernel's addresses, routes and neighbours are used.
    #[must_use]
    pub fn shared_interface(mut self, nic: impl Nic + 'static) -> Builder {
        self.interfaces.push((Box::new(nic), None));
        self
    }

    /// The gateway for packets of its family whose destination is in no network of our own interfaces.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<IpAddr>) -> Builder {
        self.gateways.push(gateway.into());
        self
    }

    /// `busy_read`, microseconds: what `SO_BUSY_POLL` of new sockets starts with. 0 = off, the default.
    #[must_use]
    pub fn busy_read(mut self, micros: u32) -> Builder {
        self.busy_read = micros;
        self
    }

    /// `busy_poll`, microseconds: how long `poll` and `Epoll` may busy poll. 0 = off, the default.
    #[must_use]
    pub fn busy_poll(mut self, micros: u32) -> Builder {
        self.busy_poll = micros;
        self
    }

    /// TCP's settings, under Linux's names. The default is [`TcpConfig`](crate::TcpConfig)'s, which is Linux's with a
    /// few exceptions.
    ///
    /// ```
    /// use busypoll_stack::{Host, TcpConfig, nic::cable};
    /// use std::time::Duration;
    /// # let (a, b) = cable::pair(cable::Config::default())?;
    /// let config = TcpConfig { tcp_rto_min: Duration::from_millis(1), ..TcpConfig::default() };
    /// let host = Host::builder().interface(a, "10.0.0.1/24").tcp(config).build()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn tcp(mut self, config: tcp::Config) -> Builder {
        self.tcp = config;
        self
    }

    /// How long after its last poll a queue stays with its pollers, at the least, before the interrupt thread takes
    /// it; 200 us unless set. At the most it is four times as long. While no thread sleeps that a packet could wake,
    /// it is four times as long, and after a time of nothing but polling up to 32 times.
    #[must_use]
    pub fn watchdog(mut self, watchdog: Duration) -> Builder {
        self.watchdog = Some(watchdog);
        self
    }

    /// The CPUs of the interrupt threads, used in turn, as `smp_affinity` places a hardware interrupt. Unless set, the
    /// threads run anywhere.
    #[must_use]
    pub fn interrupt_cpus(mut self, cpus: &[usize]) -> Builder {
        self.interrupt_cpus = cpus.to_vec();
        self
    }

    /// Calls `hook` for each datagram as it passes from inet to its socket, on the delivering thread and before any
    /// lock is taken. For the time stamp of a measurement.
    #[must_use]
    pub fn on_delivery(mut self, hook: impl Fn() + Send + Sync + 'static) -> Builder {
        self.delivery_hook = Some(Arc::new(hook));
        self
    }

    /// An interface, shared with the kernel, that another process holds and has granted to this one. Its connections
    /// and listeners are listed in the lease's ledger. The granting process reports firewall rules.
    ///
    /// # Errors
    /// As [`Xdp::open`].
    #[doc(hidden)]
    pub fn leased(mut self, lease: Lease) -> io::Result<Builder> {
        let nic = Xdp::open_granted(lease.grant)?;
        self.ledger = Some(lease.ledger);
        self.icmp = Some(lease.icmp);
        Ok(self.shared_interface(nic))
    }

    /// Lists its sockets in this ledger.
    #[doc(hidden)]
    pub fn ledger(mut self, ledger: Arc<Ledger>) -> Builder {
        self.ledger = Some(ledger);
        self
    }

    /// Captures the frames of all its NICs, and of the links that are added. What the kernel carries for its sockets is
    /// not captured.
    #[must_use]
    pub fn capture(mut self, capture: Capture) -> Builder {
        self.capture = Some(capture);
        self
    }

    /// The host can share an interface with the kernel later, see [`Host::add_leased`]. `icmp` receives ICMP errors.
    #[doc(hidden)]
    #[must_use]
    pub fn shares_later(mut self, icmp: IcmpSockets) -> Builder {
        self.icmp = Some(icmp);
        self.shares_later = true;
        self
    }

    /// Opens every queue and puts it into service.
    ///
    /// # Errors
    /// The drivers' errors; an invalid address.
    pub fn build(mut self) -> io::Result<Host> {
        let most = u32::try_from(sys::descriptor_limit() / TIME_WAIT_SHARE).unwrap_or(u32::MAX);
        self.tcp.tcp_max_tw_ports = self.tcp.tcp_max_tw_ports.min(most);
        let wake = WakeCell::default();
        let seed = u128::from_ne_bytes(sys::random()?);
        let ledger = self.ledger.take();
        let inet = Inet::with_ledger(seed, self.tcp.clone(), ledger.clone(), waker(&wake));
        let mut opened = Opened::default();
        let watchdog = self.watchdog.unwrap_or(napi::WATCHDOG);
        for (nic, address) in self.interfaces {
            let opens = Opens {
                inet: &inet,
                ledger: ledger.as_ref(),
                capture: self.capture.as_ref(),
                watchdog,
                interrupt_cpus: &self.interrupt_cpus,
                reports_rules: self.icmp.is_none(),
            };
            opens.open(nic, address.as_deref(), &mut opened)?;
        }
        for gateway in self.gateways {
            route_by(&inet, gateway)?;
        }
        let Opened { contexts, shared, links, skipped_rules } = opened;
        if let Some(first) = contexts.first() {
            // Timers of inet run on the first queue's interrupt thread.
            let _ = wake.first.set(Arc::downgrade(first.context()));
        }
        let kernel = match shared.is_empty() && !self.shares_later {
            true => None,
            false => {
                let icmp = self.icmp.map_or_else(IcmpSockets::open, Ok)?;
                inet.share_machine();
                Some(companion::CompanionService::start(inet.clone(), icmp)?)
            }
        };
        if let Some(kernel) = kernel.as_ref().filter(|_| !shared.is_empty()) {
            kernel.add_interfaces(shared)?;
        }
        let link_watch = match links.is_empty() {
            true => None,
            false => Some(LinkWatch::start(inet.clone(), links)?),
        };
        let busy_read = AtomicU32::new(self.busy_read);
        let busy_poll = AtomicU32::new(self.busy_poll);
        let (delivery_hook, tcp) = (self.delivery_hook, self.tcp);
        let contexts = match contexts.is_empty() {
            true => OnceLock::new(),
            false => OnceLock::from(contexts),
        };
        let inner = Inner {
            inet,
            contexts,
            kernel,
            link_watch: Mutex::new(link_watch),
            peers: OnceLock::new(),
            datagram_links: Arc::default(),
            watchdog,
            wake,
            skipped_rules,
            delivery_hook,
            tcp,
            busy_read,
            busy_poll,
            poller_slot: Arc::new(PollerSlot::new()),
            capture: self.capture,
        };
        Ok(Host { inner: Arc::new(inner) })
    }
}

/// What interfaces are opened with.
struct Opens<'a> {
    inet: &'a Arc<Inet>,
    ledger: Option<&'a Arc<Ledger>>,
    capture: Option<&'a Capture>,
    watchdog: Duration,
    interrupt_cpus: &'a [usize],
    /// No other process has reported firewall rules.
    reports_rules: bool,
}

/// Interfaces in service.
#[derive(Default)]
struct Opened {
    contexts: Vec<Serving>,
    shared: Vec<companion::Shared>,
    links: Vec<link_watch::Link>,
    skipped_rules: usize,
}

impl Opens<'_> {
    fn open(
        &self,
        mut nic: Box<dyn Nic>,
        address: Option<&str>,
        opened: &mut Opened,
    ) -> io::Result<()> {
        let info = nic.info().clone();
        let (mut tx, mut rx) = (Vec::new(), Vec::new());
        for index in 0..info.queues {
            let queue = captured(self.capture, nic.open(index)?);
            let nic::Queue { rx: receive, tx: transmit, interrupt } = queue;
            tx.push(transmit);
            rx.push((receive, interrupt));
        }
        let view = match info.ifindex {
            Some(ifindex) => Some(KernelView::open(ifindex)?),
            None => None,
        };
        let addressing = addressing(&info, address, view.clone())?;
        let interface = self.inet.add_interface(info.clone(), tx, addressing);
        for (queue, (receive, interrupt)) in (0..).zip(rx) {
            let hangs_up = interrupt.hang_up().is_some().then(|| interrupt.clone());
            let place = self.ledger.and_then(|ledger| ledger.place_queue(Way::Interface));
            let counters = place.as_ref().map(QueuePlace::counters).unwrap_or_default();
            let source = Source::Queue(queue);
            let input = Input { inet: self.inet.clone(), interface: interface.clone(), source };
            let serving = CONTEXTS.start(napi::Parts {
                device: info.name.clone(),
                queue,
                rx: receive,
                interrupt,
                upper: Arc::new(input),
                watchdog: self.watchdog,
                counters,
            })?;
            interface.set_napi(queue, serving.context().id());
            place.iter().for_each(|place| place.set_napi(serving.context().id()));
            if let (Some(thread), false) = (serving.thread(), self.interrupt_cpus.is_empty()) {
                let cpu = self.interrupt_cpus[opened.contexts.len() % self.interrupt_cpus.len()];
                sys::pin(thread.id(), cpu)?;
            }
            if let Some(interrupt) = hangs_up {
                let (context, interface) = (serving.context().clone(), interface.clone());
                let (datagrams, _serving, _place) = (None, None, None);
                opened.links.push(link_watch::Link {
                    interrupt,
                    context,
                    interface,
                    datagrams,
                    timers: None,
                    _serving,
                    _place,
                });
            }
            opened.contexts.push(serving);
        }
        if let Some(view) = view {
            if opened.skipped_rules == 0
                && self.reports_rules
                && let Some(rules) = firewall::rules()
            {
                rules.report(&info.name);
                opened.skipped_rules = rules.count();
            }
            let steering = nic.steering();
            let group_ring = group_ring::GroupRing::new(self.watchdog);
            let nic = Mutex::new(nic);
            let shared = companion::Shared { view, interface, steering, group_ring, _nic: nic };
            opened.shared.push(shared);
        }
        Ok(())
    }
}

/// Adds a default route by `gateway` to each interface that reaches it. Fails if none does.
fn route_by(inet: &Inet, gateway: IpAddr) -> io::Result<()> {
    let everywhere = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let everywhere: Cidr = everywhere.parse().map_err(io::Error::other)?;
    let interfaces = inet.interfaces();
    let result = interfaces.iter().map(|on| inet.add_route(on, everywhere, Some(gateway)));
    result.reduce(|found, next| found.or(next)).unwrap_or(Ok(()))
}

/// The contexts whose interrupt thread runs the timers of inet.
#[derive(Clone, Default)]
struct WakeCell {
    /// That of the first interface.
    first: Arc<OnceLock<Weak<Context>>>,
    /// Those of the links, of which the first one does so where there is no interface.
    links: link_watch::LinkTimers,
}

fn waker(cell: &WakeCell) -> WakeBy {
    let cell = cell.clone();
    Box::new(move |deadline| {
        let context = match cell.first.get() {
            Some(first) => first.upgrade(),
            None => lock(&cell.links).iter().find_map(Weak::upgrade),
        };
        if let Some(context) = context {
            context.tick_by(deadline);
        }
    })
}

fn addressing(
    info: &nic::Info,
    address: Option<&str>,
    view: Option<Arc<KernelView>>,
) -> io::Result<Addressing> {
    let wrong = |why: &str| {
        let why = format!("{}: {why}", info.name);
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    };
    match (address, view) {
        (None, Some(view)) => Ok(Addressing::Kernel(view)),
        (Some(text), None) => {
            let mut addresses = Vec::new();
            for address in text.split([',', ' ']).filter(|address| !address.is_empty()) {
                match address.parse() {
                    Ok(address) => addresses.push(address),
                    Err(_) => {
                        let why = "is not an address like 10.0.0.1/24 or fd00::1/64";
                        return wrong(&format!("'{address}' {why}"));
                    }
                }
            }
            match addresses.is_empty() {
                true => wrong("it needs an address like 10.0.0.1/24 or fd00::1/64"),
                false => Ok(Addressing::Own(addresses)),
            }
        }
        (Some(_), Some(_)) => wrong("its addresses are the kernel's; use shared_interface"),
        (None, None) => wrong("it has no kernel to take addresses from; give one to interface"),
    }
}

fn captured(capture: Option<&Capture>, queue: nic::Queue) -> nic::Queue {
    match capture {
        Some(capture) => capture.of(queue),
        None => queue,
    }
}

impl Host {
    /// A builder for a host.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Adds a cable to another process of this machine. On it both processes have all addresses of the machine,
    /// 127.0.0.1 and `::1` among them: a listener accepts connections that come over it, whatever address it has, and
    /// [`TcpStream::set_link`](crate::TcpStream::set_link) makes a connection take it. When the other process ends, its
    /// connections are reset.
    ///
    /// ```
    /// use busypoll_stack::{Host, TcpListener, TcpStream, nic::cable};
    /// let name = format!("example-link-{}", std::process::id());
    /// let rendezvous = cable::listen(&name)?;
    /// // In another process:
    /// let other = std::thread::spawn(move || -> std::io::Result<TcpStream> {
    ///     let host = Host::builder().build()?;
    ///     let link = host.add_link(cable::connect(&name)?)?;
    ///     let stream = TcpStream::new(&host);
    ///     stream.set_link(link);
    ///     stream.connect_to("127.0.0.1:7000".parse().unwrap())?;
    ///     Ok(stream)
    /// });
    /// let host = Host::builder().build()?;
    /// let listener = TcpListener::bind(&host, "127.0.0.1:7000")?;
    /// host.add_link(rendezvous.accept(cable::Config::default())?)?;
    /// let (accepted, _) = listener.accept()?;
    /// assert_eq!(accepted.peer_addr()?, other.join().unwrap()?.local_addr()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// No descriptor, thread or NAPI context left.
    pub fn add_link(&self, cable: ProcessCable) -> io::Result<Link> {
        let ports = cable.ports();
        self.add_link_with(cable, ports)
    }

    /// A link to a process of another network namespace: no datagrams go over it, as both have sockets at addresses
    /// that the other one may have, too.
    fn add_link_to_container(&self, cable: ProcessCable) -> io::Result<Link> {
        self.add_link_with(cable, None)
    }

    fn add_link_with(
        &self,
        mut cable: ProcessCable,
        ports: Option<nic::cable::Ports>,
    ) -> io::Result<Link> {
        let (info, peer) = (cable.info().clone(), cable.peer_mac());
        let pid = cable.peer_pid();
        let inner = &*self.inner;
        let nic::Queue { rx, tx, interrupt } = captured(inner.capture.as_ref(), cable.open(0)?);
        let interface = inner.inet.add_link(info.clone(), vec![tx], peer);
        let source = Source::Queue(0);
        let input = Input { inet: inner.inet.clone(), interface: interface.clone(), source };
        let ledger = inner.inet.ledger();
        let place = ledger.and_then(|ledger| ledger.place_queue(Way::Link(pid)));
        let serving = CONTEXTS.start(napi::Parts {
            device: info.name,
            queue: 0,
            rx,
            interrupt: interrupt.clone(),
            upper: Arc::new(input),
            watchdog: inner.watchdog,
            counters: place.as_ref().map(QueuePlace::counters).unwrap_or_default(),
        })?;
        let context = serving.context().clone();
        interface.set_napi(0, context.id());
        place.iter().for_each(|place| place.set_napi(context.id()));
        let timers = inner.wake.links.clone();
        lock(&timers).push(Arc::downgrade(&context));
        let number = interface.link();
        let datagrams = ports.map(|ports| {
            inner.datagram_links.add(number, ports);
            inner.datagram_links.clone()
        });
        let (_serving, _place) = (Some(serving), place);
        let timers = Some(timers);
        let watched =
            link_watch::Link { interrupt, context, interface, datagrams, timers, _serving, _place };
        let mut watch = lock(&inner.link_watch);
        match &*watch {
            Some(watch) => watch.add(watched),
            None => *watch = Some(LinkWatch::start(inner.inet.clone(), vec![watched])?),
        }
        Ok(Link(number))
    }

    /// Adds an interface, shared with the kernel, that another process holds and has granted to this one: once, to a
    /// host without any that [can have one](Builder::shares_later).
    ///
    /// # Errors
    /// As [`Xdp::open`].
    #[doc(hidden)]
    pub fn add_leased(&self, grant: Grant) -> io::Result<()> {
        let inner = &*self.inner;
        let Some(kernel) = inner.kernel.as_ref().filter(|_| inner.contexts.get().is_none()) else {
            return Err(io::ErrorKind::AlreadyExists.into());
        };
        let mut opened = Opened::default();
        let opens = Opens {
            inet: &inner.inet,
            ledger: inner.inet.ledger(),
            capture: inner.capture.as_ref(),
            watchdog: inner.watchdog,
            interrupt_cpus: &[],
            reports_rules: false,
        };
        opens.open(Box::new(Xdp::open_granted(grant)?), None, &mut opened)?;
        if let Some(first) = opened.contexts.first() {
            let _ = inner.wake.first.set(Arc::downgrade(first.context()));
        }
        kernel.add_interfaces(opened.shared)?;
        let _ = inner.contexts.set(opened.contexts);
        Ok(())
    }

    /// Closes a link: the connections that it has are reset, at both ends.
    #[doc(hidden)]
    pub fn close_link(&self, link: Link) {
        lock(&self.inner.link_watch).iter().for_each(|watch| watch.close(link.0));
    }

    /// Takes the frames that have come over links so far.
    #[doc(hidden)]
    pub fn take_link_frames(&self) {
        lock(&self.inner.link_watch).iter().for_each(LinkWatch::take_frames);
    }

    /// `busy_read`, microseconds.
    pub fn busy_read(&self) -> u32 {
        self.inner.busy_read.load(Ordering::Relaxed)
    }

    /// Sets `busy_read`, for sockets made from now on.
    pub fn set_busy_read(&self, micros: u32) {
        self.inner.busy_read.store(micros, Ordering::Relaxed);
    }

    /// `busy_poll`, microseconds.
    pub fn busy_poll(&self) -> u32 {
        self.inner.busy_poll.load(Ordering::Relaxed)
    }

    /// Sets `busy_poll`.
    pub fn set_busy_poll(&self, micros: u32) {
        self.inner.busy_poll.store(micros, Ordering::Relaxed);
    }

    /// Waits until what has been captured so far is in the file, for this time at most.
    #[doc(hidden)]
    pub fn flush_capture(&self, most: Duration) {
        self.inner.capture.iter().for_each(|capture| capture.flush(most));
    }

    /// The NAPI contexts in service, one for each queue of each interface.
    pub fn contexts(&self) -> impl Iterator<Item = &Arc<Context>> {
        self.inner.contexts.get().into_iter().flatten().map(Serving::context)
    }

    /// Inet's counters, by the names of `nstat`.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.inet.counters()
    }

    /// Whether bind(2) would find the port of `local` in use by sockets of this host, including connections that
    /// outlived their listener. Of `options`, only those about sharing the port count. The kernel's own sockets are
    /// not considered.
    #[doc(hidden)]
    pub fn is_tcp_port_taken(&self, local: SocketAddr, options: &tcp::ListenOptions) -> bool {
        self.inner.inet.tcp_is_taken(local, options)
    }

    /// Whether the kernel has `address` on an interface shared with it, by its announcements so far.
    #[doc(hidden)]
    pub fn has_shared_address(&self, address: IpAddr) -> bool {
        self.inner.kernel.as_ref().is_some_and(|kernel| kernel.has_address(address))
    }

    /// Releases the ports of closed connections that are kept for new ones. For a caller that finds no port left, or
    /// finds one of these in use. False: there were none.
    #[doc(hidden)]
    pub fn release_idle_ports(&self) -> bool {
        self.inner.kernel.as_ref().is_some_and(|kernel| kernel.release_idle_ports())
    }

    /// How many firewall rules of the kernel were in force when this host was built. Packets of this host's sockets
    /// skip them on a shared interface, because XDP comes before them. They are also reported on stderr, once per
    /// process.
    ///
    /// Counted are the rules of every nftables table that hooks into anything but forwarding, a chain's policy
    /// to drop as one, and each loaded table of legacy iptables as one. Also 0 without CAP_NET_ADMIN, which reading
    /// the rules takes.
    pub fn skipped_firewall_rules(&self) -> usize {
        self.inner.skipped_rules
    }

    /// To be called before fork(2) and execve(2): child processes, or the new program, may use the kernel sockets
    /// beside this host's.
    #[doc(hidden)]
    pub fn share_kernel_sockets(&self) {
        if let Some(kernel) = &self.inner.kernel {
            kernel.leave_group_rings();
        }
    }

    #[inline]
    pub(crate) fn inet(&self) -> &Arc<Inet> {
        &self.inner.inet
    }

    pub(crate) fn tcp_config(&self) -> &tcp::Config {
        &self.inner.tcp
    }

    pub(crate) fn delivery_hook(&self) -> Option<DeliveryHook> {
        self.inner.delivery_hook.clone()
    }

    pub(crate) fn poller_slot(&self) -> &Arc<PollerSlot> {
        &self.inner.poller_slot
    }

    /// Whether all packets have left the interfaces: none waits for its neighbour to be resolved, or for the NIC.
    #[doc(hidden)]
    pub fn has_sent_all(&self) -> bool {
        self.inet().has_sent_all()
    }

    pub(crate) fn kernel(&self) -> Option<&companion::CompanionService> {
        self.inner.kernel.as_ref()
    }
}
