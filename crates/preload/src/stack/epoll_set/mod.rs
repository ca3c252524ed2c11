//! An epoll set of the program. The kernel's instance, which the program's descriptor refers to, has the kernel's
//! descriptors and the companions of inactive sockets. Our half, an epoll of the stack, has the active sockets. A set
//! becomes active itself, as a member of others, when its first member does. A listener in an instance that another
//! process shares is in both halves: ours reports connections over our queues, the kernel's, in all these processes,
//! the others.

mod events;
mod member;
mod members;
mod memberships;
mod nested;
mod nested_notify;
mod wakeup_fd;

use crate::stack::common::lock;
use busypoll_policy::{Plane, Settings};
use busypoll_stack::{Epoll, EpollParams, Source, napi::KeptFd, word_hash::WordMap};
use libc::c_int;
use std::{
    os::fd::{FromRawFd, OwnedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

pub use events::on_thread_exit;
pub use member::Key;
use member::{Half, Member};
use members::listens;
pub use memberships::Memberships;
use nested_notify::NestedNotify;
pub use wakeup_fd::split_off_wakeup;

/// Finds a descriptor of a set that this process has inherited.
pub type FindFd = fn(&Arc<EpollSet>) -> Option<c_int>;

/// The origin of the busy-poll parameters of our half.
#[derive(Clone, Copy, Debug)]
enum BusyPollParams {
    /// The policy's settings for the program.
    Program(Settings),
    /// The policy's settings for the sockets it has watched.
    Sockets(Settings),
    /// The program's own parameters, which prevail.
    Explicit(EpollParams),
}

impl BusyPollParams {
    fn params(self) -> EpollParams {
        match self {
            BusyPollParams::Explicit(params) => params,
            BusyPollParams::Program(settings) | BusyPollParams::Sockets(settings) => EpollParams {
                busy_poll_usecs: settings.micros_on(Plane::Stack),
                busy_poll_budget: settings.busy_poll_budget,
                prefer_busy_poll: settings.prefers_on(Plane::Stack),
            },
        }
    }
}

/// An epoll set of the program.
#[derive(Debug)]
pub struct EpollSet {
    ours: Epoll,
    busy_poll: Mutex<BusyPollParams>,
    pub(super) members: Mutex<WordMap<Key, Member>>,
    /// The number of members that are not active.
    pub(super) inactive: AtomicUsize,
    /// Until then, in nanoseconds, none of them can be activated; 0: look.
    pub(super) look_again: AtomicU64,
    /// Some member is active: waits are ours.
    is_mixed: AtomicBool,
    /// The number of threads that wait only in the kernel's half, since before that.
    kernel_waiters: AtomicUsize,
    /// A thread has waited for it, by any call, and will do so again.
    has_been_waited_for: AtomicBool,
    /// The eventfd that ends their waits.
    wakeup: OnceLock<OwnedFd>,
    /// The kernel's instance may have something to report.
    has_kernel_members: AtomicBool,
    /// The half whose events come first when there is not room for all, so that neither half starves.
    kernel_first: AtomicBool,
    /// Waits in a row that began without asking the kernel.
    kernel_skips: AtomicU32,
    /// Our own descriptor of the kernel's instance: the program may close its descriptor while a duplicate stays open.
    kernel: OnceLock<Arc<KeptFd>>,
    /// Notifies when the kernel's half of an inner set has something new.
    nested_notify: NestedNotify,
    /// The set as a member of others.
    source: OnceLock<Arc<dyn Source>>,
    pub memberships: Memberships,
}

impl EpollSet {
    /// For a new instance of a program with these settings of the policy.
    pub fn new(settings: Settings) -> Arc<EpollSet> {
        EpollSet::with_params(BusyPollParams::Program(settings))
    }

    fn with_params(busy_poll: BusyPollParams) -> Arc<EpollSet> {
        let ours = Epoll::detached();
        // It cannot fail: the time is below 2^31 in the policy, and the kernel has accepted the program's.
        let _ = ours.set_params(busy_poll.params());
        Arc::new(EpollSet {
            ours,
            busy_poll: Mutex::new(busy_poll),
            members: Mutex::default(),
            inactive: AtomicUsize::new(0),
            look_again: AtomicU64::new(0),
            is_mixed: AtomicBool::new(false),
            kernel_waiters: AtomicUsize::new(0),
            has_been_waited_for: AtomicBool::new(false),
            wakeup: OnceLock::new(),
            has_kernel_members: AtomicBool::new(false),
            kernel_first: AtomicBool::new(false),
            kernel_skips: AtomicU32::new(0),
            kernel: OnceLock::new(),
            nested_notify: NestedNotify::default(),
            source: OnceLock::new(),
            memberships: Memberships::default(),
        })
    }

    /// The child's set after fork(2): it shares the kernel's half. Of our half it has those members that may be
    /// activated in the child, under the parent's ids until [`adopt_child_files`](EpollSet::adopt_child_files).
    pub fn for_child(&self) -> Arc<EpollSet> {
        let busy_poll = self
            .busy_poll
            .try_lock()
            .map_or(BusyPollParams::Explicit(self.ours.params()), |busy_poll| *busy_poll);
        let child = EpollSet::with_params(busy_poll);
        child
            .has_kernel_members
            .store(self.has_kernel_members.load(Ordering::Relaxed), Ordering::Relaxed);
        if let Ok(members) = self.members.try_lock() {
            let mut inherited = lock(&child.members);
            for (key, member) in members.iter().filter(|(_, member)| member.inner.is_none()) {
                let half = match member.half {
                    Half::Kernel => Half::Kernel,
                    _ => Half::Pending,
                };
                let shared = member.shared || matches!(half, Half::Kernel);
                let (events, data) = (member.events, member.data);
                inherited.insert(
                    *key,
                    Member { events, data, half, shared, own_events: None, inner: None },
                );
            }
        }
        child
    }

    /// Before a fork: the child will share the kernel's instance. Listeners stay in it even when they are activated
    /// here, so that the child still sees the kernel's connections.
    pub fn share(&self) {
        let mut members = lock(&self.members);
        for ((_, fd), member) in members.iter_mut() {
            member.shared |= matches!(member.half, Half::Kernel) && listens(*fd);
        }
    }

    /// The busy-poll parameters of our half.
    pub fn params(&self) -> EpollParams {
        self.ours.params()
    }

    /// The program has set them on the kernel's half (`EPIOCSPARAMS`).
    pub fn set_params(&self, params: EpollParams) {
        let mut busy_poll = lock(&self.busy_poll);
        *busy_poll = BusyPollParams::Explicit(params);
        // The kernel has accepted them.
        let _ = self.ours.set_params(params);
    }

    /// It watches a socket with these settings of the policy: the first socket's replace the program's.
    pub fn watches(&self, settings: Settings) {
        let mut busy_poll = lock(&self.busy_poll);
        let settings = match *busy_poll {
            BusyPollParams::Explicit(_) => return,
            BusyPollParams::Program(_) => settings,
            BusyPollParams::Sockets(so_far) => so_far.joined(settings, Plane::Stack),
        };
        *busy_poll = BusyPollParams::Sockets(settings);
        // As in `with_params`.
        let _ = self.ours.set_params(busy_poll.params());
    }

    /// Whether waits are ours.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed.load(Ordering::Acquire)
    }

    /// The kernel's half has a member from now on: threads that wait in our half alone begin anew, with both.
    pub fn has_kernel_members(&self) {
        if !self.has_kernel_members.load(Ordering::Acquire)
            && !self.has_kernel_members.swap(true, Ordering::AcqRel)
        {
            self.ours.end_waits();
        }
    }

    /// Makes our own descriptor of the kernel's instance from `by`, one of the program's.
    pub fn hold_kernel_fd(&self, by: c_int) {
        if self.kernel.get().is_some() {
            return;
        }
        // By the hook, which makes it one of the library's own descriptors.
        // SAFETY: a plain system call.
        let copy = unsafe { libc::fcntl(by, libc::F_DUPFD_CLOEXEC, 0) };
        if copy >= 0 {
            // SAFETY: just made, and ours.
            let _ = self.kernel.set(KeptFd::new(unsafe { OwnedFd::from_raw_fd(copy) }));
        }
    }

    /// As [`hold_kernel_fd`](EpollSet::hold_kernel_fd), in a child that has inherited the instance and not yet used it.
    fn hold_inherited(self: &Arc<EpollSet>, find: FindFd) {
        if self.kernel.get().is_none() {
            find(self).into_iter().for_each(|by| self.hold_kernel_fd(by));
        }
    }

    fn kernel(&self) -> Option<c_int> {
        self.kernel.get().map(|kernel| kernel.raw_fd())
    }

    /// Waits on this set, and on the sets around it, are ours from now on.
    fn activate(self: &Arc<EpollSet>, find: FindFd) {
        if !self.is_mixed.swap(true, Ordering::SeqCst) {
            if self.kernel_waiters.load(Ordering::SeqCst) > 0 {
                self.wake_kernel_waiter();
            }
            self.memberships.activated(&self.source(), find);
        }
    }

    pub fn nested_notify(&self) -> &NestedNotify {
        &self.nested_notify
    }
}
