//! A socket is activated when it first connects, receives, sends, accepts or is waited for, in the process that does so;
//! it is deactivated when it must start anew. If our stack cannot have it, it is the kernel's for good.

use super::{
    address,
    common::{self, checked, companion, lock},
    companion_options,
    file::{FILES, File, Live, Ref, fd_of_set, local_of},
    host, local_udp, not_accelerated, rings, route, udp_links,
    unsupported_options::{self, NOT_AN_OPTION, UnsupportedOption},
};
use crate::{
    config, handler_frames,
    inside::ERESTARTSYS,
    memory, real,
    report::{Once, OncePer},
};
use busypoll_policy::{Plane, Protocol};
use busypoll_stack::{Host, KernelBinding, TcpListener, TcpStream, UdpSocket, options as known};
use libc::c_int;
use std::{
    io,
    net::{self, IpAddr, SocketAddr},
    sync::atomic::Ordering,
    time::Duration,
};

/// A port that had no other socket so long ago has none with a connection now.
const JUST_NOW: Duration = Duration::from_millis(10);

static NOT_ACCELERATED: Once = Once::new();

/// A line for each unsupported option.
static REPORTED: OncePer<32> = OncePer::new();

static SHORT: Once = Once::new();

/// Whether memory is scarce, which is reported; then no new socket is ours.
pub fn is_short() -> bool {
    let short = memory::is_short();
    if short {
        let why = format_args!("{}: memory is short", not_accelerated::device());
        not_accelerated::report(
            &SHORT,
            why,
            "until there is more, a new socket stays with the kernel",
        );
    }
    short
}

impl File {
    /// For a connection from `remote` that was accepted here, at `fd`.
    pub fn accepted(&self, fd: c_int, stream: TcpStream, remote: SocketAddr) -> File {
        let file = File::new(Protocol::Tcp, self.domain);
        file.cmsg_flags.store(self.cmsg_flags.load(Ordering::Relaxed), Ordering::Relaxed);
        file.set_private();
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
        if self.domain == libc::AF_UNIX {
            return None;
        }
        let listens = self.backlog() >= 0;
        if self.protocol == Protocol::Tcp && !listens {
            report_if_foreign(self, fd);
            return None;
        }
        if self.protocol == Protocol::Udp && !udp_links::may_activate(self, fd) {
            return None;
        }
        let local = local_of(self, fd).ok();
        if self.protocol == Protocol::Udp
            && local.is_some_and(|it| it.port() == 0 || self.is_foreign_group(it.ip()))
        {
            return None;
        }
        let live = self.make(fd, (local, common::remote(fd)), |host| {
            Ok(match self.protocol {
                Protocol::Udp => {
                    let companion = companion::<net::UdpSocket>(fd);
                    Live::Udp(UdpSocket::adopt(host, &companion)?)
                }
                Protocol::Tcp => {
                    let companion = companion::<net::TcpListener>(fd);
                    let backlog = self.backlog().cast_unsigned();
                    let shares = self.is_inherited;
                    let listener = TcpListener::with_companion(host, &companion, backlog, shares)?;
                    if self.containers(local, None).is_some() {
                        listener.publish_to_containers(self.is_only_v6(fd));
                    }
                    Live::Listener(listener)
                }
            })
        });
        match live {
            Some(Live::Udp(udp)) => udp_links::activated(self, fd, udp),
            // Threads wait until it is one or the other.
            None if self.local_udp.is(local_udp::KERNELS) => self.set_kernel_owned(),
            _ => {}
        }
        live
    }

    /// For a thread that waits for datagrams on a socket without a port: it waits for the answer to what another thread
    /// will send. The socket is bound now. Otherwise the send would activate it, and this thread would sleep on in the
    /// kernel.
    pub fn bind_to_wait(&self, fd: c_int) {
        if self.live.get().is_none()
            && self.protocol == Protocol::Udp
            && !self.is_kernel_owned()
            && !self.local_udp.is(local_udp::KERNELS)
            && common::local(fd).is_ok_and(|local| local.port() == 0)
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

    /// A TCP socket for connecting to `remote`, bound to `local` on the companion's port if that is bound; over a link, if
    /// `is_near`, whatever address that is. `None`: the companion connects.
    pub fn stream(
        &self,
        fd: c_int,
        local: Option<SocketAddr>,
        (remote, is_near): (SocketAddr, bool),
    ) -> Option<&TcpStream> {
        if (0..=2).contains(&fd) {
            self.require(unsupported_options::STANDARD);
        }
        let live = self.make_near(fd, (local, Some(remote)), is_near, |host| {
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
        make: impl FnOnce(&Host) -> io::Result<Live>,
    ) -> Option<&Live> {
        self.make_near(fd, ends, false, make)
    }

    /// The same, for a socket that connects over a link, if `is_near`.
    fn make_near(
        &self,
        fd: c_int,
        ends: (Option<SocketAddr>, Option<SocketAddr>),
        is_near: bool,
        make: impl FnOnce(&Host) -> io::Result<Live>,
    ) -> Option<&Live> {
        let _activation = lock(&self.activation);
        if let Some(live) = self.live.get() {
            return Some(live);
        }
        if stays_with_kernel(self) {
            if self.backlog() >= 0 {
                // Another process may have its port.
                host::share_listener(fd);
            }
            return None;
        }
        if rings::keep_sockets() || is_short() {
            self.set_kernel_owned();
            return None;
        }
        let host = match self.needs_interface(ends, is_near) {
            true => host::get(),
            false => host::for_links(),
        };
        // Other processes connect to a listener over links, too.
        let listens = self.protocol == Protocol::Tcp && self.backlog() >= 0;
        let has_links = config::get().is_some_and(|config| config.launch.same_host);
        let host = host.or_else(|| (listens && has_links).then(host::for_links).flatten());
        if host.is_none() && handler_frames::is_running() {
            self.set_kernel_owned();
        }
        let host = host?;
        let made = make(&host).inspect(|live| {
            live.set_nonblocking(self.is_nonblocking());
            self.apply_settings(live, ends);
            self.copy_options(fd, live);
            if self.has_complex_options() {
                companion_options::copy_owner(fd, live);
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
                self.memberships.activated(&live.socket().events(), fd_of_set);
                Some(live)
            }
            Err(error) => {
                let (device, word) = (not_accelerated::device(), self.protocol.word());
                let why = format_args!("{device}: a {word} socket: {error}");
                not_accelerated::report(&NOT_ACCELERATED, why, "it stays with the kernel");
                self.set_kernel_owned();
                None
            }
        }
    }

    /// Whether it sends or receives over the interface, with these ends, local and remote: not at a loopback address, nor
    /// to an address of this machine. If it is bound to an address of the interface, only a Host that has the interface
    /// knows that address.
    fn needs_interface(
        &self,
        (local, remote): (Option<SocketAddr>, Option<SocketAddr>),
        is_near: bool,
    ) -> bool {
        let is_any = local.is_none_or(|local| local.ip().to_canonical().is_unspecified());
        let is_loopback = local.is_some_and(|local| local.ip().to_canonical().is_loopback());
        let stays_here = || {
            is_near
                || self.local_udp.is(local_udp::KERNELS)
                || remote.is_some_and(|remote| route::is_own(remote.ip()))
        };
        !(is_loopback || is_any && stays_here())
    }

    /// Copies the options that are not a single number from the companion `fd` to `live`.
    pub(super) fn copy_options(&self, fd: c_int, live: &Live) {
        if !self.has_complex_options() {
            return;
        }
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            companion_options::set_timeout(live, name, companion_options::timeout(fd, name));
        }
        companion_options::copy_linger(fd, live);
        companion_options::copy_congestion(fd, live);
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
                let _ = companion_options::set_number(
                    live,
                    libc::SOL_SOCKET,
                    name,
                    value.cast_signed(),
                );
            }
        }
        for (level, name, value) in lock(&self.early_options).iter() {
            // An option that the kernel has accepted and our stack does not know is ignored.
            let _ = companion_options::set_number(live, *level, *name, *value);
        }
    }

    /// The directory by which the policy has it connect with other network namespaces, with these addresses.
    pub fn containers(
        &self,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
    ) -> Option<&'static str> {
        let config = config::get().filter(|config| config.launch.same_host)?;
        let policy = &config.launch.policy;
        policy.for_socket(&config.program, self.protocol, local, remote).containers
    }

    /// Whether the policy puts it on the stack plane, with these addresses.
    pub fn is_for_stack(&self, local: Option<SocketAddr>, remote: Option<SocketAddr>) -> bool {
        let Some(config) = config::get() else { return false };
        let policy = &config.launch.policy;
        let settings = policy.for_socket(&config.program, self.protocol, local, remote);
        settings.plane == Plane::Stack
            && local.is_none_or(|local| {
                route::receives_from_interface(local.ip())
                    // Processes of this machine connect over links.
                    || config.launch.same_host
                        && (self.protocol == Protocol::Tcp || self.local_udp.is(local_udp::OWN))
                        && local.ip().to_canonical().is_loopback()
            })
    }
}

/// Resets `file` to what socket(2) made it, for all its descriptors: its companion alone, with its options.
pub fn deactivate(file: &Ref) -> Ref {
    let inactive_copy = FILES.hold(file.inactive_copy());
    FILES.replace(file, &inactive_copy);
    file.memberships.transfer_to(&inactive_copy.memberships);
    inactive_copy
}

/// Another process may have these UDP sockets from now on. Those at loopback addresses are the kernel's then, which knows
/// which process reads first.
pub fn share_udp(files: &[Ref]) {
    files.iter().for_each(|file| udp_links::share(file));
    let mut has_taken = false;
    for file in files.iter().filter(|file| file.local_udp.is(local_udp::KERNELS)) {
        let Some(Live::Udp(udp)) = file.live() else {
            file.set_kernel_owned();
            continue;
        };
        if !std::mem::replace(&mut has_taken, true) {
            // What was sent to them over links so far is theirs.
            host::existing().into_iter().for_each(|host| host.take_link_frames());
        }
        deactivate(file).set_kernel_owned();
        udp.leave(ERESTARTSYS);
    }
}

/// As [`deactivate`] in the epoll sets; at its descriptors the file stays, and reports what it has to report, until the
/// caller replaces it by the returned one.
pub fn leave_sets(file: &Ref) -> Ref {
    let successor = FILES.hold(file.inactive_copy());
    file.set_kernel_owned();
    file.memberships.transfer_to(&successor.memberships);
    successor
}

/// `file`, at `fd`, is the kernel's from now on. A listener stays in the table: its companion may be shared with a
/// process in which it is active.
pub fn leave_fd_to_kernel(fd: c_int, file: &Ref) {
    file.set_kernel_owned();
    if file.backlog() < 0 {
        FILES.clear_if(fd, file);
    }
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

/// `file`, at `fd`, needs `option`. False where it cannot have it: it is a connection or an active listener of ours.
pub fn require(file: &Ref, fd: c_int, option: UnsupportedOption) -> bool {
    match file.live() {
        None => {
            file.require(option);
            true
        }
        Some(Live::Udp(udp)) => {
            let peer = udp.peer_addr().ok();
            let file = deactivate(file);
            // The program may have connected it when it was ours.
            if let Some(peer) = peer.filter(|peer| common::remote(fd) != Some(*peer)) {
                connect_companion(&file, fd, peer);
            }
            file.require(option);
            release_if_required(&file, fd);
            true
        }
        Some(_) => false,
    }
}

/// Connects the companion of a UDP socket. It cannot fail: our stack had a route.
fn connect_companion(file: &File, fd: c_int, peer: SocketAddr) {
    let (name, len) = address::laid_out(peer, file.domain);
    // SAFETY: a valid address of that length.
    unsafe { real::connect(fd, (&raw const name).cast(), len) };
}

/// If `file`, at `fd` and in use, has set an unsupported option, it stays with the kernel from now on.
pub fn release_if_required(file: &Ref, fd: c_int) {
    if stays_with_kernel(file) {
        // It must not be activated in a child either.
        FILES.clear_if(fd, file);
    }
}

/// Whether `file`, which would be activated, stays with the kernel because of an unsupported option.
pub fn stays_with_kernel(file: &File) -> bool {
    let Some(option) = file.unsupported() else { return false };
    not_accelerated::report(
        REPORTED.of(option.what),
        format_args!("{}", option.reason_for("socket")),
        "it stays with the kernel",
    );
    file.set_kernel_owned();
    true
}

/// As [`stays_with_kernel`] if `file`, at `fd`, is a connection that another process has made; it is never activated
/// here.
pub fn report_if_foreign(file: &File, fd: c_int) {
    if file.unsupported().is_some_and(|option| option.level == NOT_AN_OPTION)
        && common::remote(fd).is_some()
    {
        stays_with_kernel(file);
    }
}

/// Binds an unbound companion to a free port, as the kernel would at its first send.
pub fn bind_free_port(fd: libc::c_int, domain: libc::c_int) -> io::Result<()> {
    let (name, len) = address::laid_out(address::any(domain), domain);
    // SAFETY: a valid address of that length.
    checked(unsafe { real::bind(fd, (&raw const name).cast(), len) }).map(drop)
}
