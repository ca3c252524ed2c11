//! The open file description of a descriptor of ours, shared by its duplicates (dup(2)); and its activation.
//!
//! A socket begins as its companion alone. It is bound and made to listen there, so errors are the kernel's. It is
//! activated when it first connects, receives, sends, accepts or is waited for, in the process that does so. If that is
//! not possible, it is the kernel's for good, and the library leaves it alone.

use super::{
    bind_free_port,
    companion_address::CompanionAddress,
    handover_child::{self, Channel, InheritedConnection},
    host, internal_fds, libc_io, options, rings, route, sockets,
    unsupported_options::{self, UnsupportedOption},
    wait::{EpollSet, Memberships},
};
use crate::{config, fds, handler_frames, memory, report::Once};
use busypoll_policy::{Plane, Protocol};
use busypoll_stack::{
    Groups, KernelBinding, Socket, SteeredPort, TcpListener, TcpStream, UdpSocket, options as known,
};
use libc::c_int;
use std::{
    io,
    mem::ManuallyDrop,
    net::{self, IpAddr, SocketAddr},
    os::fd::{FromRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// The files by descriptor.
pub static FILES: fds::Table<File> = fds::Table::new();

/// A reference to a file.
pub type Ref = fds::Ref<File>;

/// A socket of ours.
#[derive(Debug)]
pub struct File {
    pub protocol: Protocol,
    pub domain: c_int,
    /// The companion's address, for TCP.
    pub address: CompanionAddress,
    /// The program made it by a call here, so all options that it has set are known.
    options_known: AtomicBool,
    live: OnceLock<Live>,
    /// The owner: our stack, the kernel, or the parent process.
    owner: AtomicU8,
    /// Set for a connection of the parent's.
    inherited: Option<InheritedConnection>,
    /// A listener that was active in the parent at the fork: the parent's queues have its connections.
    is_parents_listener: bool,
    /// A child has prepared it for a program that it will execute.
    pub for_exec: AtomicBool,
    /// Its index among the connections that the child of a fork in progress shares.
    shared_index: AtomicU32,
    /// A duplicate of the companion, after the program has closed its own descriptor and children still have theirs.
    kept_companion: OnceLock<OwnedFd>,
    /// `O_NONBLOCK`, as the program has set it. The companion of a listener has it also while a process in which the
    /// listener is active accepts from it.
    nonblocking: AtomicBool,
    /// Connecting has failed, and may be tried again.
    failed: AtomicBool,
    /// A listener that was activated only because its process has the queues: no thread has waited for it here.
    early: AtomicBool,
    /// The backlog of listen(2); below zero: it does not listen.
    backlog: AtomicI32,
    /// When it was bound, if no other socket had its port then.
    pub bound_alone: Mutex<Option<Instant>>,
    /// Its port, reserved before it listened, until it is activated.
    pub steered_port: Mutex<Option<SteeredPort>>,
    /// The ancillary data that socket options have requested: bits of [`super::cmsg`].
    pub cmsg_flags: AtomicU32,
    /// Options that are not a single number were set: SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, TCP_CONGESTION. An accepted
    /// socket gets them from its companion.
    has_complex_options: AtomicBool,
    /// Options it has set that our stack does not support.
    required_options: Mutex<Vec<UnsupportedOption>>,
    /// Options set before its activation: level, name, value.
    early_options: Mutex<Vec<(c_int, c_int, c_int)>>,
    /// Its multicast memberships on the chosen interface.
    pub groups: Mutex<Groups>,
    /// Held while it is activated, or while its owner changes.
    activation: Mutex<()>,
    /// The epoll sets it is a member of.
    pub memberships: Memberships,
    /// It is not a socket but an epoll set; in all else it is the kernel's.
    epoll: Option<Arc<EpollSet>>,
}

/// An active socket.
#[derive(Debug)]
pub enum Live {
    Udp(UdpSocket),
    Stream(TcpStream),
    Listener(TcpListener),
}

impl Live {
    /// The socket, to wait for.
    pub fn socket(&self) -> &dyn Socket {
        match self {
            Live::Udp(udp) => udp,
            Live::Stream(stream) => stream,
            Live::Listener(listener) => listener,
        }
    }

    pub fn set_nonblocking(&self, on: bool) {
        // These cannot fail.
        let _ = match self {
            Live::Udp(udp) => udp.set_nonblocking(on),
            Live::Stream(stream) => stream.set_nonblocking(on),
            Live::Listener(listener) => listener.set_nonblocking(on),
        };
    }
}

/// A port that had no other socket so long ago has none with a connection now.
const JUST_NOW: Duration = Duration::from_millis(10);

/// Values of [`File::owner`].
const OURS: u8 = 0;
const KERNELS: u8 = 1;
const PARENTS: u8 = 2;

static NOT_ACCELERATED: Once = Once::new();

static SHORT: Once = Once::new();

/// Whether memory is scarce, which is reported; then no new socket is ours.
pub fn is_short() -> bool {
    let short = memory::is_short();
    if short {
        let why = format_args!("{}: memory is short", host::device());
        host::report_not_accelerated(
            &SHORT,
            why,
            "until there is more, a new socket stays with the kernel",
        );
    }
    short
}

impl File {
    /// For a new companion.
    pub fn new(protocol: Protocol, domain: c_int) -> File {
        File {
            protocol,
            domain,
            address: CompanionAddress::default(),
            options_known: AtomicBool::new(false),
            live: OnceLock::new(),
            owner: AtomicU8::new(OURS),
            inherited: None,
            is_parents_listener: false,
            for_exec: AtomicBool::new(false),
            shared_index: AtomicU32::new(0),
            kept_companion: OnceLock::new(),
            nonblocking: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            early: AtomicBool::new(false),
            backlog: AtomicI32::new(-1),
            bound_alone: Mutex::default(),
            steered_port: Mutex::default(),
            cmsg_flags: AtomicU32::new(0),
            has_complex_options: AtomicBool::new(false),
            required_options: Mutex::default(),
            early_options: Mutex::default(),
            groups: Mutex::default(),
            activation: Mutex::default(),
            memberships: Memberships::default(),
            epoll: None,
        }
    }

    /// Whether a socket of this kind has options of this level.
    pub fn has_level(&self, level: c_int) -> bool {
        match level {
            libc::IPPROTO_TCP => self.protocol == Protocol::Tcp,
            libc::IPPROTO_IPV6 => self.domain == libc::AF_INET6,
            _ => true,
        }
    }

    /// For an epoll instance.
    pub fn of_set(set: Arc<EpollSet>) -> File {
        let file = File { epoll: Some(set), ..File::new(Protocol::Tcp, libc::AF_UNSPEC) };
        file.set_kernel_owned();
        file
    }

    /// The epoll set that it is.
    #[inline]
    pub fn set(&self) -> Option<&Arc<EpollSet>> {
        self.epoll.as_ref()
    }

    /// For a connection from `remote` that was accepted here, at `fd`.
    pub fn accepted(&self, fd: c_int, stream: TcpStream, remote: SocketAddr) -> File {
        let file = File::new(Protocol::Tcp, self.domain);
        file.cmsg_flags.store(self.cmsg_flags.load(Ordering::Relaxed), Ordering::Relaxed);
        let local = stream.local_addr().ok();
        let live = file.live.get_or_init(|| Live::Stream(stream));
        if self.has_complex_options() {
            self.copy_options(fd, live);
        }
        // Its settings are the listener's, unless the policy has rules that may match its addresses.
        if config::get().is_some_and(|config| !config.launch.policy.rules.is_empty()) {
            self.apply_settings(live, (local, Some(remote)));
        }
        file
    }

    /// The child's file after fork(2). A listener may be activated there. A socket that is active in the parent stays
    /// there, and the child has the companion.
    pub fn for_child(&self, channel: Option<&Arc<Channel>>) -> Option<File> {
        if let Some(set) = &self.epoll {
            return Some(File::of_set(set.for_child()));
        }
        let mut file = self.inactive_copy();
        file.backlog.store(self.backlog(), Ordering::Relaxed);
        match self.live.get() {
            None if self.is_kernel_owned() && self.backlog() < 0 => return None,
            Some(Live::Stream(_)) if self.is_kernel_owned() => return None,
            // A child can use a connection only with the parent's help.
            Some(Live::Stream(_)) => {
                file.inherited = Some(InheritedConnection::new(
                    channel?,
                    self.shared_index.load(Ordering::Relaxed),
                ));
            }
            Some(Live::Listener(_)) => file.is_parents_listener = !self.is_kernel_owned(),
            _ => {
                file.inherited = self.inherited().map(InheritedConnection::for_grandchild);
                file.is_parents_listener = self.is_parents_listener;
            }
        }
        if file.inherited.is_some() {
            file.owner.store(PARENTS, Ordering::Relaxed);
        }
        Some(file)
    }

    /// The same file, not active.
    fn inactive_copy(&self) -> File {
        let file = File::new(self.protocol, self.domain);
        file.cmsg_flags.store(self.cmsg_flags.load(Ordering::Relaxed), Ordering::Relaxed);
        file.set_nonblocking(self.is_nonblocking());
        file.has_complex_options.store(self.has_complex_options(), Ordering::Relaxed);
        // Only tried: in a child of a fork, the lock's holder may not exist.
        if let Ok(set) = self.early_options.try_lock() {
            *lock(&file.early_options) = set.clone();
            file.options_known.store(self.options_known.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if let Ok(required_options) = self.required_options.try_lock() {
            *lock(&file.required_options) = required_options.clone();
        }
        if let Ok(groups) = self.groups.try_lock() {
            *lock(&file.groups) = groups.clone();
        }
        file
    }

    /// `O_NONBLOCK`, as the program has it.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
        if let Some(live) = self.live.get() {
            live.set_nonblocking(on);
        }
    }

    fn has_complex_options(&self) -> bool {
        self.has_complex_options.load(Ordering::Relaxed)
    }

    /// An option that is not a single number was set.
    pub fn set_has_complex_options(&self) {
        self.has_complex_options.store(true, Ordering::Relaxed);
    }

    /// Whether connecting has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub fn set_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel owns it, so that the library leaves it alone.
    #[inline]
    pub fn is_kernel_owned(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == KERNELS
    }

    /// The kernel owns it from now on.
    pub fn set_kernel_owned(&self) {
        self.owner.store(KERNELS, Ordering::Relaxed);
    }

    /// Whether our stack owns it. A connection of the parent's is handed over to the kernel by this call.
    #[inline]
    pub fn is_ours(&self) -> bool {
        match self.owner.load(Ordering::Relaxed) {
            OURS => true,
            KERNELS => false,
            _ => {
                handover_child::hand_over_now(self);
                false
            }
        }
    }

    /// Set for a connection of the parent's.
    pub fn inherited(&self) -> Option<&InheritedConnection> {
        self.inherited.as_ref()
    }

    /// Whether it is a listener whose connections the parent's queues have.
    pub fn is_parents_listener(&self) -> bool {
        self.is_parents_listener
    }

    pub fn set_shared_index(&self, shared_index: u32) {
        self.shared_index.store(shared_index, Ordering::Relaxed);
    }

    /// The lock that is held while its owner changes.
    pub fn activation(&self) -> &Mutex<()> {
        &self.activation
    }

    /// The program closes its descriptor `fd`, and children still have theirs.
    pub fn keep_companion(&self, fd: c_int) {
        // SAFETY: a plain system call.
        let copy = internal_fds::make_internal(unsafe { crate::real::dup(fd) });
        if copy >= 0 {
            // SAFETY: just made, and ours.
            let _ = self.kept_companion.set(unsafe { OwnedFd::from_raw_fd(copy) });
        }
    }

    pub fn kept_companion(&self) -> Option<&OwnedFd> {
        self.kept_companion.get()
    }

    /// The socket, if it is active.
    #[inline]
    pub fn live(&self) -> Option<&Live> {
        self.live.get()
    }

    /// The socket, activated if that is possible: it is bound, or listens. `fd` is one of its descriptors. `None`: the
    /// call is for the companion.
    pub fn activate(&self, fd: c_int) -> Option<&Live> {
        if let Some(live) = self.live.get() {
            if self.early.load(Ordering::Relaxed) {
                self.early.store(false, Ordering::Relaxed);
            }
            return Some(live);
        }
        if !self.is_ours() {
            return None;
        }
        let listens = self.backlog() >= 0;
        if self.protocol == Protocol::Tcp && !listens {
            unsupported_options::report_if_foreign(self, fd);
            return None;
        }
        let local = sockets::local_of(self, fd).ok();
        if self.protocol == Protocol::Udp
            && local.is_some_and(|it| it.port() == 0 || self.is_foreign_group(it.ip()))
        {
            return None;
        }
        self.make(fd, (local, sockets::remote(fd)), |host| {
            Ok(match self.protocol {
                Protocol::Udp => {
                    let companion = companion::<net::UdpSocket>(fd);
                    Live::Udp(UdpSocket::adopt(host, &companion)?)
                }
                Protocol::Tcp => {
                    let companion = companion::<net::TcpListener>(fd);
                    let backlog = self.backlog().cast_unsigned();
                    let steered_port = lock(&self.steered_port).take();
                    Live::Listener(TcpListener::with_steered_companion(
                        host,
                        &companion,
                        backlog,
                        steered_port,
                    )?)
                }
            })
        })
    }

    /// For a thread that waits for datagrams on a socket without a port: it waits for the answer to what another thread
    /// will send. The socket is bound now. Otherwise the send would activate it, and this thread would sleep on in the
    /// kernel.
    pub fn bind_to_wait(&self, fd: c_int) {
        if self.live.get().is_none()
            && self.protocol == Protocol::Udp
            && !self.is_kernel_owned()
            && sockets::local(fd).is_ok_and(|local| local.port() == 0)
            && self.is_for_stack(None, None)
        {
            // Another thread may have bound it before.
            let _ = bind_free_port(fd, self.domain);
        }
    }

    /// Whether it is bound to a group that it has not joined on the chosen interface.
    fn is_foreign_group(&self, local: IpAddr) -> bool {
        let group = local.to_canonical();
        group.is_multicast() && !lock(&self.groups).contains(group)
    }

    /// Activates it before any thread waits for it, as this process has the queues already.
    pub fn activate_early(&self, fd: c_int) {
        if let Some(Live::Listener(_)) = self.activate(fd) {
            self.early.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it is deactivated before a fork: a listener that no thread of this process waits for may be the child's.
    fn is_unused_listener(&self) -> bool {
        match self.live.get() {
            Some(Live::Listener(listener)) => {
                self.early.load(Ordering::Relaxed)
                    && listener.queued() == 0
                    && self.memberships.sets().is_empty()
            }
            _ => false,
        }
    }

    /// A TCP socket for connecting to `remote`, bound to `local` on the companion's port if that is bound. `None`: the
    /// companion connects.
    pub fn stream(
        &self,
        fd: c_int,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Option<&TcpStream> {
        libc_io::check_connecting(fd, self);
        let live = self.make(fd, (local, Some(remote)), |host| {
            let Some(local) = local else { return Ok(Live::Stream(TcpStream::new(host))) };
            let binding = KernelBinding {
                local,
                reuse_address: self.is_on(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR),
                reuse_port: self.is_on(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT),
                only_v6: self.is_only_v6(fd),
                was_exclusive: lock(&self.bound_alone).is_some_and(|at| at.elapsed() < JUST_NOW),
            };
            let companion = companion::<net::TcpStream>(fd);
            TcpStream::adopt_bound(host, &companion, binding).map(Live::Stream)
        });
        match live? {
            Live::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Activates it by `make`, once, if there is memory. `ends` are its local and remote address, as far as they are
    /// known.
    fn make(
        &self,
        fd: c_int,
        ends: (Option<SocketAddr>, Option<SocketAddr>),
        make: impl FnOnce(&busypoll_stack::Host) -> io::Result<Live>,
    ) -> Option<&Live> {
        let _activation = lock(&self.activation);
        if let Some(live) = self.live.get() {
            return Some(live);
        }
        if unsupported_options::stays_with_kernel(self) {
            return None;
        }
        if rings::keep_sockets() || is_short() {
            self.set_kernel_owned();
            return None;
        }
        let host = host::get();
        if host.is_none() && handler_frames::is_running() {
            self.set_kernel_owned();
        }
        let host = host?;
        let made = make(&host).inspect(|live| {
            live.set_nonblocking(self.is_nonblocking());
            self.apply_settings(live, ends);
            self.copy_options(fd, live);
            if self.has_complex_options() {
                options::copy_owner(fd, live);
            }
            if let Live::Udp(udp) = live {
                udp.set_groups(lock(&self.groups).clone());
                // After the options, which may concern them.
                udp.deliver_queued();
            }
        });
        match made {
            Ok(live) => {
                let live = self.live.get_or_init(|| live);
                self.memberships.activated(&live.socket().events());
                Some(live)
            }
            Err(error) => {
                let (device, word) = (host::device(), self.protocol.word());
                let why = format_args!("{device}: a {word} socket: {error}");
                host::report_not_accelerated(&NOT_ACCELERATED, why, "it stays with the kernel");
                self.set_kernel_owned();
                None
            }
        }
    }

    /// Copies the options that are not a single number from the companion `fd` to `live`.
    fn copy_options(&self, fd: c_int, live: &Live) {
        if !self.has_complex_options() {
            return;
        }
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            options::set_timeout(live, name, options::timeout(fd, name));
        }
        options::copy_linger(fd, live);
        options::copy_congestion(fd, live);
    }

    /// Sets the options of a socket with these ends, local and remote: the policy's, and then those that the program
    /// has set, which prevail.
    pub fn apply_settings(
        &self,
        live: &Live,
        (local, remote): (Option<SocketAddr>, Option<SocketAddr>),
    ) {
        if let Some(config) = config::get() {
            let local = local.filter(|local| local.port() != 0);
            let policy = &config.launch.policy;
            let settings = policy.for_socket(&config.program, self.protocol, local, remote);
            self.memberships.set_settings(settings);
            for (name, value) in [
                (known::SO_BUSY_POLL, settings.micros_on(Plane::Stack)),
                (known::SO_PREFER_BUSY_POLL, settings.prefers_on(Plane::Stack).into()),
                // 0, the default, cannot be set.
                (known::SO_BUSY_POLL_BUDGET, settings.busy_poll_budget.into()),
            ] {
                let _ = options::set_number(live, libc::SOL_SOCKET, name, value.cast_signed());
            }
        }
        for (level, name, value) in lock(&self.early_options).iter() {
            // An option that the kernel has accepted and our stack does not know is ignored.
            let _ = options::set_number(live, *level, *name, *value);
        }
    }

    /// Stores an option for its activation.
    pub fn store_option(&self, level: c_int, name: c_int, value: c_int) {
        let mut set = lock(&self.early_options);
        set.retain(|(l, n, _)| (*l, *n) != (level, name));
        set.push((level, name, value));
    }

    /// It has set an option that our stack does not support.
    pub fn require(&self, option: UnsupportedOption) {
        let mut required_options = lock(&self.required_options);
        if !required_options.contains(&option) {
            required_options.push(option);
        }
    }

    pub fn drop_requirement(&self, option: UnsupportedOption) {
        lock(&self.required_options).retain(|known| *known != option);
    }

    /// The first unsupported option it has set.
    pub fn unsupported(&self) -> Option<UnsupportedOption> {
        lock(&self.required_options).first().copied()
    }

    /// The program has just made it: whatever options it has were set by calls here.
    pub fn set_options_known(&self) {
        self.options_known.store(true, Ordering::Relaxed);
    }

    /// Whether an option of the companion `fd` is on that is off on a new socket.
    pub fn is_on(&self, fd: c_int, level: c_int, name: c_int) -> bool {
        match self.options_known.load(Ordering::Relaxed) {
            true => self.stored_option(level, name).is_some_and(|value| value != 0),
            false => options::is_on(fd, level, name),
        }
    }

    /// `IPV6_V6ONLY`, whose default an administrator sets.
    pub fn is_only_v6(&self, fd: c_int) -> bool {
        self.domain == libc::AF_INET6
            && match self.stored_option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
                Some(value) => value != 0,
                None => options::is_on(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
            }
    }

    /// The value an option was last set to.
    pub fn stored_option(&self, level: c_int, name: c_int) -> Option<c_int> {
        let set = lock(&self.early_options);
        set.iter().find(|(l, n, _)| (*l, *n) == (level, name)).map(|(_, _, value)| *value)
    }

    pub fn set_backlog(&self, backlog: c_int) {
        self.backlog.store(backlog, Ordering::Relaxed);
    }

    /// The backlog of listen(2), below zero if it was not called.
    pub fn backlog(&self) -> c_int {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Whether the policy puts it on the stack plane, with these addresses.
    pub fn is_for_stack(&self, local: Option<SocketAddr>, remote: Option<SocketAddr>) -> bool {
        let Some(config) = config::get() else { return false };
        let policy = &config.launch.policy;
        let settings = policy.for_socket(&config.program, self.protocol, local, remote);
        settings.plane == Plane::Stack
            && local.is_none_or(|local| route::receives_from_interface(local.ip()))
    }
}

/// Resets `file` to what socket(2) made it, for all its descriptors: its companion alone, with its options.
pub fn deactivate(file: &Ref) -> Ref {
    let inactive_copy = FILES.hold(file.inactive_copy());
    FILES.replace(file, &inactive_copy);
    file.memberships.transfer_to(&inactive_copy.memberships);
    inactive_copy
}

/// As [`deactivate`] in the epoll sets; at its descriptors the file stays, and reports what it has to report, until the
/// caller replaces it by the returned one.
pub fn leave_sets(file: &Ref) -> Ref {
    let successor = FILES.hold(file.inactive_copy());
    file.set_kernel_owned();
    file.memberships.transfer_to(&successor.memberships);
    successor
}

/// Before a fork: deactivates listeners that no thread has waited for yet, so that the process that accepts first,
/// parent or child, gets the connections.
pub fn deactivate_unused_listeners() {
    for (_, file) in FILES.all() {
        if let Some(file) = file.filter(|file| file.is_unused_listener()) {
            deactivate(&file).set_backlog(file.backlog());
        }
    }
}

/// Before a fork: the kernel's half of epoll sets is shared with the child.
pub fn share_epoll_sets() {
    FILES.all().filter_map(|(_, file)| file?.set().cloned()).for_each(|set| set.share());
}

/// `file`, at `fd`, is the kernel's from now on. A listener stays in the table: its companion may be shared with a
/// process in which it is active.
pub fn leave_fd_to_kernel(fd: c_int, file: &Ref) {
    file.set_kernel_owned();
    if file.backlog() < 0 {
        FILES.clear_if(fd, file);
    }
}

/// A companion, to query it: it stays open.
pub fn companion<T: FromRawFd>(fd: c_int) -> ManuallyDrop<T> {
    // SAFETY: open, by the contract of the program's call; not closed by us.
    ManuallyDrop::new(unsafe { T::from_raw_fd(fd) })
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A time span of setsockopt(2); zero means no limit.
pub fn span(time: libc::timeval) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    let span = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    (!span.is_zero()).then_some(span)
}
