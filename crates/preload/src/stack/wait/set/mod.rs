//! An epoll set of the program. The kernel's instance, which the program's descriptor refers to, has the kernel's
//! descriptors and the companions of inactive sockets. Our half, an epoll of the stack, has the active sockets. A set
//! becomes active itself, as a member of others, when its first member does. A listener in an instance that another
//! process shares is in both halves: ours reports connections over our queues, the kernel's, in all these processes,
//! the others.

mod called;
mod members;
mod nested;
mod polls;
mod take;

use super::{
    bells::Bells,
    joined::Joined,
    member::{Half, Key, Member},
};
use crate::{
    fds::{self, Ref},
    real,
    stack::{file::lock, own},
};
use busypoll_policy::{Plane, Settings};
use busypoll_stack::{Epoll, EpollParams, Source};
use libc::c_int;
use std::{
    collections::{HashMap, HashSet},
    mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

pub use called::but_calls;
use members::listens;
use polls::Polls;
pub use take::leave_thread;

/// An epoll set of the program.
#[derive(Debug)]
pub struct Set {
    ours: Epoll,
    polls: Mutex<Polls>,
    members: Mutex<HashMap<Key, Member>>,
    /// The number of members that are not active.
    dormant: AtomicUsize,
    /// Some member is active: waits are ours.
    is_mixed: AtomicBool,
    /// The number of threads that wait only in the kernel's half, since before that.
    in_kernel: AtomicUsize,
    /// The eventfd that ends their waits.
    call: OnceLock<OwnedFd>,
    /// The kernel's instance may have something to report.
    has_kernels: AtomicBool,
    /// The half whose events come first when there is not room for all, so that neither half starves.
    kernels_turn: AtomicBool,
    /// Our own descriptor of the kernel's instance: the program may close its descriptor while a duplicate stays open.
    kernel: OnceLock<OwnedFd>,
    /// Notifies when the kernel's half of an inner set has something new.
    bells: Bells,
    /// The set as a member of others.
    source: OnceLock<Arc<dyn Source>>,
    pub joined: Joined,
}

impl Set {
    /// For a new instance of a program with these settings of the policy.
    pub fn new(settings: Settings) -> Arc<Set> {
        Set::that_polls(Polls::Program(settings))
    }

    fn that_polls(polls: Polls) -> Arc<Set> {
        let ours = Epoll::detached();
        // It cannot fail: the time is below 2^31 in the policy, and the kernel has accepted the program's.
        let _ = ours.set_params(polls.params());
        Arc::new(Set {
            ours,
            polls: Mutex::new(polls),
            members: Mutex::default(),
            dormant: AtomicUsize::new(0),
            is_mixed: AtomicBool::new(false),
            in_kernel: AtomicUsize::new(0),
            call: OnceLock::new(),
            has_kernels: AtomicBool::new(false),
            kernels_turn: AtomicBool::new(false),
            kernel: OnceLock::new(),
            bells: Bells::default(),
            source: OnceLock::new(),
            joined: Joined::default(),
        })
    }

    /// The child's set after fork(2): it shares the kernel's half. Of our half it has those members that may be
    /// activated in the child, under the parent's ids until [`succeed`](Set::succeed).
    pub fn inherited(&self) -> Arc<Set> {
        let polls = self.polls.try_lock().map_or(Polls::Own(self.ours.params()), |polls| *polls);
        let heir = Set::that_polls(polls);
        heir.has_kernels.store(self.has_kernels.load(Ordering::Relaxed), Ordering::Relaxed);
        if let Ok(members) = self.members.try_lock() {
            let mut theirs = lock(&heir.members);
            for (key, member) in members.iter().filter(|(_, member)| member.inner.is_none()) {
                let half = match member.half {
                    Half::Kernel => Half::Kernel,
                    _ => Half::Nowhere,
                };
                let shared = member.shared || matches!(half, Half::Kernel);
                let (events, data) = (member.events, member.data);
                theirs
                    .insert(*key, Member { events, data, half, shared, apart: None, inner: None });
            }
        }
        heir
    }

    /// Before a fork: the child will share the kernel's instance. Listeners stay in it even when they are activated
    /// here, so that the child still sees the kernel's connections.
    pub fn share(&self) {
        let mut members = lock(&self.members);
        for ((_, fd), member) in members.iter_mut() {
            member.shared |= matches!(member.half, Half::Kernel) && listens(*fd);
        }
    }

    /// In a child: `heirs` are its files, by the ids of the parent's files that they replace. A member without one is
    /// the kernel's.
    pub fn succeed(self: &Arc<Set>, heirs: &HashMap<usize, Ref>) {
        let mut members = lock(&self.members);
        let of_parent = mem::take(&mut *members);
        let file = |id: &usize| heirs.get(id).filter(|file| !file.is_kernels());
        let ids: HashSet<usize> = of_parent.keys().map(|key| key.0).collect();
        members.extend(of_parent.into_iter().filter_map(|((id, fd), member)| {
            file(&id).map(|file| ((file.joined.id(), fd), member))
        }));
        self.dormant.store(members.len(), Ordering::Relaxed);
        drop(members);
        ids.iter().filter_map(file).for_each(|file| file.joined.join(self));
    }

    /// The busy-poll parameters of our half.
    pub fn params(&self) -> EpollParams {
        self.ours.params()
    }

    /// The program has set them on the kernel's half (`EPIOCSPARAMS`).
    pub fn set_params(&self, params: EpollParams) {
        let mut polls = lock(&self.polls);
        *polls = Polls::Own(params);
        // The kernel has accepted them.
        let _ = self.ours.set_params(params);
    }

    /// It watches a socket with these settings of the policy: the first socket's replace the program's.
    pub fn watches(&self, settings: Settings) {
        let mut polls = lock(&self.polls);
        let settings = match *polls {
            Polls::Own(_) => return,
            Polls::Program(_) => settings,
            Polls::Sockets(so_far) => so_far.joined(settings, Plane::Stack),
        };
        *polls = Polls::Sockets(settings);
        // As in `that_polls`.
        let _ = self.ours.set_params(polls.params());
    }

    /// Whether waits are ours.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed.load(Ordering::Acquire)
    }

    /// The kernel's half has a member from now on.
    pub fn has_kernels(&self) {
        self.has_kernels.store(true, Ordering::Release);
    }

    /// Makes our own descriptor of the kernel's instance from `by`, one of the program's.
    pub fn hold(&self, by: c_int) {
        if self.kernel.get().is_some() {
            return;
        }
        // SAFETY: a plain system call.
        let copy = own::keep(unsafe { real::dup(by) });
        if copy >= 0 {
            // SAFETY: just made, and ours.
            let _ = self.kernel.set(unsafe { OwnedFd::from_raw_fd(copy) });
        }
    }

    /// As [`hold`](Set::hold), in a child that has inherited the instance and not yet used it.
    fn hold_inherited(self: &Arc<Set>) {
        if self.kernel.get().is_none() {
            let is_it = |file: &Ref| file.set().is_some_and(|set| Arc::ptr_eq(set, self));
            let mut all = fds::all();
            let by = all.find_map(|(fd, file)| file.is_some_and(|file| is_it(&file)).then_some(fd));
            by.into_iter().for_each(|by| self.hold(by));
        }
    }

    fn kernel(&self) -> Option<c_int> {
        self.kernel.get().map(AsRawFd::as_raw_fd)
    }

    /// Waits on this set, and on the sets around it, are ours from now on.
    fn come_to_life(self: &Arc<Set>) {
        if !self.is_mixed.swap(true, Ordering::SeqCst) {
            if self.in_kernel.load(Ordering::SeqCst) > 0 {
                self.call_out();
            }
            self.joined.came_to_life(&self.source());
        }
    }

    pub fn bells(&self) -> &Bells {
        &self.bells
    }
}
