//! The open file description of a descriptor of ours, shared by its duplicates (dup(2)).
//!
//! A socket begins as its companion alone. It is bound and made to listen there, so errors are the kernel's. Then it is
//! [activated](super::activation), or it is the kernel's for good, and the library leaves it alone.

use super::{
    common::{self, answer, lock},
    companion_address::{self, CompanionAddress, Moment},
    epoll_set::{EpollSet, Memberships},
    handover_channel::{Answer, Channel, InheritedConnection},
    local_stream_state::LocalStream,
    local_udp::{self, LocalUdp},
    not_accelerated,
    unsupported_options::UnsupportedOption,
};
use crate::{
    errno, fds,
    inside::{ERESTARTSYS, Inside},
    real::Failed,
    report::Once,
};
use busypoll_policy::Protocol;
use busypoll_stack::{Groups, Socket, TcpListener, TcpStream, UdpSocket, end_frozen};
use libc::c_int;
use std::{
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering},
    },
    time::Instant,
};

/// The files by descriptor.
pub static FILES: fds::Table<File> = fds::Table::new();

/// A reference to a file.
pub type Ref = fds::Ref<File>;

/// Whether both are one file.
pub fn is_same(one: &Ref, other: &Ref) -> bool {
    std::ptr::eq::<File>(&**one, &**other)
}

/// A socket of ours.
#[derive(Debug)]
pub struct File {
    pub protocol: Protocol,
    pub domain: c_int,
    /// The companion's address, for TCP.
    pub address: CompanionAddress,
    /// The program made it by a call here, so all options that it has set are known.
    pub(super) options_known: AtomicBool,
    pub(super) live: OnceLock<Live>,
    /// The owner: our stack, the kernel, or the parent process.
    owner: AtomicU8,
    /// Set for a connection of the parent's, or that was one.
    inherited: Option<InheritedConnection>,
    /// No other process has had its companion since it has been connected.
    private: AtomicBool,
    /// What decides when this process takes over a connection that its parent has handed over.
    pub follow: Follow,
    /// Other processes may have it, as this one did not make it.
    pub is_inherited: bool,
    /// A listener from which the parent had accepted at the fork: the parent's queues have its connections.
    is_parents_listener: bool,
    /// A child has prepared it for a program that it will execute.
    pub for_exec: AtomicBool,
    /// Its index among the connections that the child of a fork in progress shares, or [`NOT_SHARED`].
    shared_index: AtomicU32,
    /// A duplicate of the companion, after the program has closed its own descriptor and children still have theirs.
    pub(super) kept_companion: OnceLock<OwnedFd>,
    /// `O_NONBLOCK`, as the program has set it. The companion of a listener has it also while a process in which the
    /// listener is active accepts from it.
    nonblocking: AtomicBool,
    /// Connecting has failed, and may be tried again.
    failed: AtomicBool,
    /// A listener that was activated only because its process has the queues: no thread has waited for it here.
    pub(super) early: AtomicBool,
    /// The backlog of listen(2); below zero: it does not listen.
    backlog: AtomicI32,
    /// When it was bound, if no other socket had its port then.
    pub bound_alone: Mutex<Option<Instant>>,
    /// The ancillary data that socket options have requested: bits of [`super::cmsg`].
    pub cmsg_flags: AtomicU32,
    /// Options that are not a single number were set: SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, TCP_CONGESTION. An accepted
    /// socket gets them from its companion.
    has_complex_options: AtomicBool,
    /// Options it has set that our stack does not support.
    required_options: Mutex<Vec<UnsupportedOption>>,
    /// Options set before its activation: level, name, value.
    pub(super) early_options: Mutex<Vec<(c_int, c_int, c_int)>>,
    /// Its multicast memberships on the chosen interface.
    pub groups: Mutex<Groups>,
    /// Held while it is activated, or while its owner changes.
    pub activation: Mutex<()>,
    /// Of a UDP socket.
    pub local_udp: LocalUdp,
    /// Of an AF_UNIX stream that may move to a link.
    pub local_stream: OnceLock<Box<LocalStream>>,
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

/// The value of [`File::shared_index`] of a connection that is not shared.
const NOT_SHARED: u32 = u32::MAX;

/// Values of [`File::owner`].
const OURS: u8 = 0;
const KERNELS: u8 = 1;
const PARENTS: u8 = 2;
/// The kernel's so far: the parent has handed it over for this process, which may take it over.
const FOLLOWS: u8 = 3;

/// See [`follow`](super::follow).
#[derive(Debug, Default)]
pub struct Follow {
    /// When it was handed over.
    since: OnceLock<Moment>,
    /// Whether this process alone has it, by the parent's word; if not, the parent is asked again.
    pub is_alone: AtomicBool,
    /// Whether something was sent on it since the last receive.
    pub has_sent: AtomicBool,
    /// How many exchanges there were since.
    pub exchanges: AtomicU32,
    /// From how many on this process tries to take it over; 0: that is not decided.
    pub due: AtomicU32,
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
            private: AtomicBool::new(false),
            follow: Follow::default(),
            is_inherited: false,
            is_parents_listener: false,
            for_exec: AtomicBool::new(false),
            shared_index: AtomicU32::new(NOT_SHARED),
            kept_companion: OnceLock::new(),
            nonblocking: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            early: AtomicBool::new(false),
            backlog: AtomicI32::new(-1),
            bound_alone: Mutex::default(),
            cmsg_flags: AtomicU32::new(0),
            has_complex_options: AtomicBool::new(false),
            required_options: Mutex::default(),
            early_options: Mutex::default(),
            groups: Mutex::default(),
            activation: Mutex::default(),
            local_udp: LocalUdp::default(),
            local_stream: OnceLock::new(),
            memberships: Memberships::default(),
            epoll: None,
        }
    }

    /// Set for an AF_UNIX stream that is the kernel's so far, and may move.
    #[inline]
    pub fn kernel_stream(&self) -> Option<&LocalStream> {
        let stream = self.local_stream.get()?;
        (self.live.get().is_none() && !self.is_kernel_owned()).then_some(stream)
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

    /// The child's file after fork(2). A listener may be activated there. A socket that is active in the parent stays
    /// there, and the child has the companion.
    pub fn for_child(&self, channel: Option<&Arc<Channel>>) -> Option<File> {
        if let Some(set) = &self.epoll {
            return Some(File::of_set(set.for_child()));
        }
        let mut file = self.inactive_copy();
        file.is_inherited = true;
        file.backlog.store(self.backlog(), Ordering::Relaxed);
        match self.live.get() {
            None if self.is_kernel_owned() && self.backlog() < 0 => return None,
            // Both have the kernel's from now on.
            None if self.follows() => return None,
            None if self.local_udp.is(local_udp::KERNELS) => return None,
            Some(Live::Stream(_)) if self.is_kernel_owned() => return None,
            // A child can use a connection only with the parent's help. Another thread may have accepted this one
            // after the parent had listed those that the child shares.
            Some(Live::Stream(_)) => {
                let shared = channel.zip(self.shared_index());
                file.inherited = Some(shared.map(|(on, at)| InheritedConnection::new(on, at))?);
                // As long as the kernel had it, programs that children execute got it.
                file.for_exec.store(self.has_followed(), Ordering::Relaxed);
            }
            Some(Live::Listener(listener)) => {
                file.is_parents_listener = !self.is_kernel_owned() && listener.has_port();
            }
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
    pub(super) fn inactive_copy(&self) -> File {
        let mut file = File::new(self.protocol, self.domain);
        file.is_inherited = self.is_inherited;
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

    pub(super) fn has_complex_options(&self) -> bool {
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

    /// Whether handing it over takes the process at its other end.
    pub fn needs_other_process(&self) -> bool {
        self.domain == libc::AF_UNIX
            || matches!(self.live(), Some(Live::Stream(stream)) if stream.is_over_link())
    }

    /// Whether our stack owns it, or may own it later. A connection of the parent's is handed over to the kernel by
    /// this call.
    #[inline]
    pub fn is_ours(&self) -> bool {
        match self.owner.load(Ordering::Relaxed) {
            OURS | FOLLOWS => true,
            KERNELS => false,
            _ => {
                hand_over_now(self);
                false
            }
        }
    }

    /// Set for a connection of the parent's.
    pub fn inherited(&self) -> Option<&InheritedConnection> {
        let is_parents = self.owner.load(Ordering::Relaxed) == PARENTS;
        self.inherited.as_ref().filter(|_| is_parents)
    }

    /// Whether it is a connection that the parent has handed over, and this process may take over.
    pub fn follows(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == FOLLOWS
    }

    /// Set if [it was handed over](File::follows), and no other process has got this one's sockets since.
    pub fn followed(&self) -> Option<&InheritedConnection> {
        let is_known = self.follow.since.get() == Some(&companion_address::moment());
        self.inherited.as_ref().filter(|_| self.follows() && is_known)
    }

    /// This process has taken it over; it is in use from now on.
    pub(super) fn set_followed(&self) {
        self.private.store(true, Ordering::Relaxed);
        self.owner.store(OURS, Ordering::Relaxed);
    }

    /// Whether this process has taken it over.
    pub fn has_followed(&self) -> bool {
        self.follow.since.get().is_some() && self.live.get().is_some()
    }

    /// Whether no other process had its companion when it was connected, nor has had it since.
    pub fn is_private(&self) -> bool {
        self.private.load(Ordering::Relaxed)
    }

    /// It is connected again.
    pub fn clear_private(&self) {
        self.private.store(false, Ordering::Relaxed);
    }

    /// It was accepted, or is connected, here.
    pub fn set_private(&self) {
        self.private.store(true, Ordering::Relaxed);
    }

    /// Whether it is a listener whose connections the parent's queues have.
    pub fn is_parents_listener(&self) -> bool {
        self.is_parents_listener
    }

    pub fn shared_index(&self) -> Option<u32> {
        Some(self.shared_index.load(Ordering::Relaxed)).filter(|index| *index != NOT_SHARED)
    }

    pub fn set_shared_index(&self, index: Option<u32>) {
        self.shared_index.store(index.unwrap_or(NOT_SHARED), Ordering::Relaxed);
    }

    pub fn kept_companion(&self) -> Option<&OwnedFd> {
        self.kept_companion.get()
    }

    /// The socket, if it is active.
    #[inline]
    pub fn live(&self) -> Option<&Live> {
        self.live.get()
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
}

/// Before a fork: the kernel's half of epoll sets is shared with the child.
pub fn share_epoll_sets() {
    FILES.all().filter_map(|(_, file)| file?.set().cloned()).for_each(|set| set.share());
}

static LOST: Once = Once::new();
static LEFT: Once = Once::new();

/// `file`, a connection of the parent's, is used: it is handed over to the kernel.
#[cold]
pub fn hand_over_now(file: &File) {
    let Some(inherited) = file.inherited() else { return };
    let mut all = FILES.all();
    let is_it =
        |known: &Option<Ref>| known.as_ref().is_some_and(|known| std::ptr::eq(&**known, file));
    let fd = all.find_map(|(fd, known)| is_it(&known).then_some(fd));
    let since = companion_address::moment();
    let answer = match fd {
        Some(fd) => {
            // SAFETY: a descriptor of the program's, open by the contract of its call.
            let companion = unsafe { BorrowedFd::borrow_raw(fd) };
            let answer = inherited.claim(companion);
            if answer == Answer::No {
                // The parent was killed in the middle of a move.
                end_frozen(companion);
            }
            answer
        }
        None => Answer::No,
    };
    file.set_kernel_owned();
    match answer {
        Answer::Yes => {}
        Answer::Later | Answer::Alone => {
            if !inherited.is_shared() && file.follow.since.set(since).is_ok() {
                file.follow.is_alone.store(answer == Answer::Alone, Ordering::Relaxed);
                file.owner.store(FOLLOWS, Ordering::Relaxed);
            }
        }
        // The parent is gone, and has handed it over to the kernel.
        Answer::No if fd.is_some_and(|fd| common::remote(fd).is_some()) => {
            let why = format_args!("{}: a child process uses a connection of its parent's", not_accelerated::device());
            not_accelerated::report(&LEFT, why, "it is handed over to the kernel; such a program needs --plane kernel");
        }
        Answer::No => LOST.report(format_args!(
            "{}: a connection of the parent process cannot be handed over to the kernel, so the child finds it closed; \
             such a program needs --plane kernel",
            not_accelerated::device()
        )),
        // The parent has reported it.
        // SAFETY: ends the process, as `--strict` requires.
        Answer::Strict => unsafe { libc::_exit(2) },
    }
}

/// Enters with a file. `None`: the call is for the real function, as the library itself made it, or the socket has
/// turned out to be the kernel's.
///
/// The parts must be dropped in the order `file`, `inside`, as the pattern `(inside, file)` does.
#[inline]
pub fn enter(file: Ref) -> Option<(Inside, Ref)> {
    if file.is_kernel_owned() {
        return None;
    }
    let inside = Inside::enter()?;
    if !file.is_ours() {
        drop(file);
        return None;
    }
    Some((inside, file))
}

/// A call that the library makes on a descriptor of the program, as the hook would serve it: by the socket of ours that
/// is there now, anew when a signal has interrupted it and it restarts; otherwise by the kernel.
pub fn dispatch<T: Failed + PartialEq>(
    fd: libc::c_int,
    ours: impl Fn(Ref) -> T,
    by_kernel: impl FnOnce() -> T,
) -> T {
    while let Some(file) = FILES.get(fd) {
        let result = ours(file);
        if result != T::FAILED || errno::get() != ERESTARTSYS {
            return result;
        }
    }
    by_kernel()
}

/// The answer; if there is none, the kernel's. The kernel's call may sleep, so the thread leaves first, and a file that
/// was closed meanwhile is dropped before.
#[inline]
pub fn answer_or<T: Failed + TryFrom<usize>>(
    inside: Inside,
    file: Ref,
    result: Option<io::Result<usize>>,
    by_kernel: impl FnOnce() -> T,
) -> T {
    let kernel_wait = match &result {
        Some(_) => Ok(None),
        None => file.local_udp.begin_kernel_wait(),
    };
    // An AF_UNIX stream may have moved since the call has looked, and the kernel's socket has nothing any more.
    let has_moved = result.is_none()
        && file.domain == libc::AF_UNIX
        && file.live().is_some()
        && !file.is_kernel_owned();
    if kernel_wait.is_err() || has_moved {
        // Until it is activated. The hook makes the call anew.
        drop(lock(&file.activation));
        errno::set(ERESTARTSYS);
        return T::FAILED;
    }
    let answered = result.map(answer);
    drop(file);
    drop(inside);
    answered.unwrap_or_else(by_kernel)
}

/// A descriptor of `set`, in a child that has inherited it.
pub fn fd_of_set(set: &Arc<EpollSet>) -> Option<c_int> {
    let is_it = |file: &Ref| file.set().is_some_and(|known| Arc::ptr_eq(known, set));
    let mut all = FILES.all();
    all.find_map(|(fd, file)| file.is_some_and(|file| is_it(&file)).then_some(fd))
}

/// The address of the companion of `file`, from the kernel only if it is not known.
pub fn local_of(file: &File, fd: c_int) -> io::Result<SocketAddr> {
    match file.address.get() {
        Some(known) => Ok(known),
        None => common::local(fd),
    }
}
