//! An epoll of the program. The kernel's instance, which the program's descriptor is of, has the kernel's descriptors
//! and the companions of sockets that have not come to life; our half, a set of the stack, has those that have. A
//! set comes to life itself, as a member of others, when its first member does. A listener in an instance that another
//! process has, too, is in both: ours tells of what comes over our queues, the kernel's, to all of them, of the rest.

use super::{
    bells::Bells,
    joined::Joined,
    member::{Apart, Half, Key, Member},
};
use crate::{
    fds::{self, Ref},
    real,
    stack::{error, file::lock, own, said},
};
use busypoll_policy::{Plane, Settings};
use busypoll_stack::{
    Epoll, EpollEvent, EpollParams, Events, Source, Watch,
    napi::{Context, NapiId, Outside},
};
use libc::{c_int, epoll_event};
use rustix::net::{SocketType, sockopt};
use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// How deep sets may stand in sets (EP_MAX_NESTS).
const NESTS: usize = 4;

/// An epoll of the program.
#[derive(Debug)]
pub struct Set {
    ours: Epoll,
    polls: Mutex<Polls>,
    members: Mutex<HashMap<Key, Member>>,
    /// Members that have not come to life.
    dormant: AtomicUsize,
    /// Some member has come to life: waits are ours.
    is_mixed: AtomicBool,
    /// Threads that wait in the kernel's half alone, from before that.
    in_kernel: AtomicUsize,
    /// What calls them out.
    call: OnceLock<OwnedFd>,
    /// The kernel's instance may have something to report.
    has_kernels: AtomicBool,
    /// Whose events come first when there is not room for all, so that neither half starves.
    kernels_turn: AtomicBool,
    /// A descriptor of the kernel's instance of our own: the program's may be closed while others of it are open.
    kernel: OnceLock<OwnedFd>,
    /// What tells when the kernel's half of an inner set has something new.
    bells: Bells,
    /// The set as a member of others.
    source: OnceLock<Arc<dyn Source>>,
    pub joined: Joined,
}

/// By whose wish our half busy polls.
#[derive(Clone, Copy, Debug)]
enum Polls {
    /// The policy's for the program.
    Program(Settings),
    /// The policy's for the sockets it has watched.
    Sockets(Settings),
    /// The program's own, which prevails.
    Own(EpollParams),
}

impl Polls {
    fn params(self) -> EpollParams {
        match self {
            Polls::Own(params) => params,
            Polls::Program(settings) | Polls::Sockets(settings) => EpollParams {
                busy_poll_usecs: settings.micros_on(Plane::Stack),
                busy_poll_budget: settings.busy_poll_budget,
                prefer_busy_poll: settings.prefers_on(Plane::Stack),
            },
        }
    }
}

impl Set {
    /// Of an instance made just now by a program of which the policy says so.
    pub fn new(settings: Settings) -> Arc<Set> {
        Set::that_polls(Polls::Program(settings))
    }

    fn that_polls(polls: Polls) -> Arc<Set> {
        let ours = Epoll::detached();
        // Its time is less than 2^31: settings are, and the kernel has accepted the program's.
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

    /// What a child has of it after fork(2): the kernel's half, which it shares; of ours, those that may come to life
    /// there, until [`succeed`](Set::succeed) by their parent's names.
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

    /// Before a fork: the kernel's instance will be the child's, too, which is to hear there of the kernel's connections
    /// also once their listener has come to life here.
    pub fn share(&self) {
        let mut members = lock(&self.members);
        for ((_, fd), member) in members.iter_mut() {
            member.shared |= matches!(member.half, Half::Kernel) && listens(*fd);
        }
    }

    /// In a child: `heirs` are the files there, by the names of those whose place they have taken. What has no heir is
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

    /// It watches a socket of which the policy says so: the first socket's take the place of the program's.
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

    /// The calling thread may wait by the kernel's own call, and says when it [has](Set::has_waited_in_kernel);
    /// false if a member lives.
    pub fn waits_in_kernel(&self) -> bool {
        self.in_kernel.fetch_add(1, Ordering::SeqCst);
        // It comes after us, and calls, or we see it.
        let waits = !self.is_mixed.load(Ordering::SeqCst);
        if !waits {
            self.has_waited_in_kernel();
        }
        waits
    }

    /// It has; and if it was called out, the next one is.
    pub fn has_waited_in_kernel(&self) {
        let others = self.in_kernel.fetch_sub(1, Ordering::SeqCst) > 1;
        if others && self.is_mixed() {
            self.call_out();
        }
    }

    /// Ends the wait of a thread in the kernel's half. Edge-triggered: each call is for one of them.
    fn call_out(&self) {
        let Some(kernel) = self.kernel() else { return };
        if self.call.get().is_none() {
            // SAFETY: a plain system call.
            let made = own::keep(unsafe { real::eventfd(0, libc::EFD_NONBLOCK) });
            let mut event =
                epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: call() };
            // SAFETY: valid for the call. Without a descriptor it fails, and the thread waits on.
            if unsafe { real::epoll_ctl(kernel, libc::EPOLL_CTL_ADD, made, &raw mut event) } != 0 {
                return;
            }
            // SAFETY: made just now, and ours. Another thread's stays if it was first.
            let _ = self.call.set(unsafe { OwnedFd::from_raw_fd(made) });
        }
        let Some(call) = self.call.get() else { return };
        // It fails only when it is full of calls that nobody has heard.
        let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
    }

    /// The kernel's half has a member from now on.
    pub fn has_kernels(&self) {
        self.has_kernels.store(true, Ordering::Release);
    }

    /// Takes a descriptor of our own of the kernel's instance; `by`, one of the program's.
    pub fn hold(&self, by: c_int) {
        if self.kernel.get().is_some() {
            return;
        }
        // SAFETY: a plain system call.
        let copy = own::keep(unsafe { real::dup(by) });
        if copy >= 0 {
            // SAFETY: made just now, and ours.
            let _ = self.kernel.set(unsafe { OwnedFd::from_raw_fd(copy) });
        }
    }

    /// The same in a child, which has inherited the instance, and nobody has named it there yet.
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

    /// Adds a file that has not come to life: its companion, by the kernel's own rules.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    ///
    /// # Safety
    /// `event` as for epoll_ctl(2).
    pub unsafe fn add_dormant(
        self: &Arc<Set>,
        epoll: c_int,
        fd: c_int,
        joined: &Joined,
        inner: Option<&Arc<Set>>,
        event: *mut epoll_event,
    ) -> io::Result<()> {
        self.hold(epoll);
        let mut members = lock(&self.members);
        let key = (joined.id(), fd);
        let known = members.get(&key);
        if known.is_some_and(|known| !matches!(known.half, Half::Kernel)) {
            // Of that the kernel knows nothing.
            return Err(error(libc::EEXIST));
        }
        // SAFETY: the caller's word.
        said(unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, event) })?;
        // Another process that has the instance has taken it out.
        let shared = known.is_some_and(|known| known.shared);
        // SAFETY: the kernel has read it.
        let epoll_event { events, u64: data } = unsafe { event.read_unaligned() };
        let inner = inner.map(Arc::downgrade);
        let member = Member { events, data, half: Half::Kernel, shared, apart: None, inner };
        if members.insert(key, member).is_none() {
            self.dormant.fetch_add(1, Ordering::Relaxed);
        }
        self.has_kernels();
        drop(members);
        joined.join(self);
        Ok(())
    }

    /// Adds a file that has come to life.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn add(
        self: &Arc<Set>,
        fd: c_int,
        joined: &Joined,
        inner: Option<&Arc<Set>>,
        source: &Arc<dyn Source>,
        event: epoll_event,
    ) -> io::Result<()> {
        if let Some(inner) = inner {
            let deep = inner.depth_without(self).ok_or_else(|| error(libc::ELOOP))?;
            if deep + 1 + self.height() > NESTS {
                return Err(error(libc::ELOOP));
            }
        }
        let mut members = lock(&self.members);
        let key = (joined.id(), fd);
        if members.contains_key(&key) {
            return Err(error(libc::EEXIST));
        }
        let half = self.enter(fd, source, event.events, event.u64, inner)?;
        let inner = inner.map(Arc::downgrade);
        let (events, data) = (event.events, event.u64);
        members.insert(key, Member { events, data, half, shared: false, apart: None, inner });
        drop(members);
        joined.join(self);
        self.come_to_life();
        Ok(())
    }

    /// Puts a source into our half.
    fn enter(
        &self,
        fd: c_int,
        source: &Arc<dyn Source>,
        events: u32,
        data: u64,
        inner: Option<&Arc<Set>>,
    ) -> io::Result<Half> {
        let watch = self.ours.add_source(source, tag(fd), Events(events), data)?;
        if let Some(inner) = inner {
            inner.kernel().map_or(Ok(()), |kernel| self.bells.hear(inner, kernel, &watch))?;
        }
        Ok(Half::Ours(Arc::downgrade(source)))
    }

    /// Changes what is waited for. What is no member here may be one of the kernel's instance, also to
    /// [`remove`](Set::remove).
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn modify(
        &self,
        epoll: c_int,
        fd: c_int,
        id: usize,
        mut event: epoll_event,
    ) -> io::Result<()> {
        let in_kernel = |event: &mut epoll_event| {
            // SAFETY: valid for the call.
            said(unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, event) }).map(drop)
        };
        let mut members = lock(&self.members);
        let Some(member) = members.get_mut(&(id, fd)) else { return in_kernel(&mut event) };
        let exclusive = event.events & libc::EPOLLEXCLUSIVE as u32 != 0;
        match &member.half {
            Half::Kernel => member.unless_gone(in_kernel(&mut event))?,
            _ if exclusive => return Err(error(libc::EINVAL)),
            half => {
                if let Half::Ours(source) = half {
                    let source = source.upgrade().ok_or_else(|| error(libc::ENOENT))?;
                    let (events, data) = (Events(event.events), Some(event.u64));
                    self.ours.modify_source(&source, tag(fd), events, data)?;
                }
                if member.shared {
                    // Another process may have removed it.
                    let _ = in_kernel(&mut event);
                }
            }
        }
        (member.events, member.data) = (event.events, event.u64);
        Ok(())
    }

    /// Removes a member. That and the kernel's part are one step to a file that comes to life meanwhile.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn remove(&self, epoll: c_int, fd: c_int, id: usize) -> io::Result<()> {
        let in_kernel = || {
            // SAFETY: a plain system call.
            let result =
                unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
            said(result).map(drop)
        };
        let mut members = lock(&self.members);
        let Some(member) = members.remove(&(id, fd)) else { return in_kernel() };
        if member.half.is_dormant() {
            self.dormant.fetch_sub(1, Ordering::Relaxed);
        }
        if matches!(member.half, Half::Kernel) {
            return member.unless_gone(in_kernel());
        }
        if member.shared {
            // Another process may have removed it.
            let _ = in_kernel();
        }
        let Half::Ours(source) = member.half else { return Ok(()) };
        let source = source.upgrade().ok_or_else(|| error(libc::ENOENT))?;
        self.ours.remove_source(&source, tag(fd))
    }

    /// The file `id` begins anew as `new`: its members go back to the kernel's half, with its companion.
    pub fn rename(&self, id: usize, new: usize) {
        let mut members = lock(&self.members);
        let renamed: Vec<Key> = members.keys().filter(|key| key.0 == id).copied().collect();
        for key in renamed {
            let Some(mut member) = members.remove(&key) else { continue };
            if let Half::Ours(source) = &member.half {
                if let Some(source) = source.upgrade() {
                    // It is there, as it is a member.
                    let _ = self.ours.remove_source(&source, tag(key.1));
                }
                self.dormant.fetch_add(1, Ordering::Relaxed);
                let mut event = epoll_event { events: member.events, u64: member.data };
                if let Some(kernel) = self.kernel() {
                    // If the descriptor is closed, it was the last that could have named it.
                    // SAFETY: valid for the call.
                    unsafe {
                        real::epoll_ctl(kernel, libc::EPOLL_CTL_ADD, key.1, &raw mut event);
                    }
                    self.has_kernels();
                }
                (member.half, member.apart) = (Half::Kernel, None);
            }
            members.insert((new, key.1), member);
        }
    }

    /// The file `id` has come to life: its members go over to our half.
    pub fn adopt(self: &Arc<Set>, id: usize, source: &Arc<dyn Source>) {
        self.hold_inherited();
        let mut members = lock(&self.members);
        let mut adopted = false;
        for ((of, fd), member) in members.iter_mut() {
            if *of != id || !member.half.is_dormant() {
                continue;
            }
            if let (Half::Kernel, Some(kernel)) = (&member.half, self.kernel())
                && !(member.shared && is_of_use(*fd))
            {
                // If the descriptor is closed, it was the last that could have named it.
                // SAFETY: a plain system call.
                unsafe { real::epoll_ctl(kernel, libc::EPOLL_CTL_DEL, *fd, ptr::null_mut()) };
                // Whatever comes now.
                member.half = Half::Nowhere;
                member.shared = false;
            }
            member.apart = member.shared.then(|| Arc::new(Apart(Arc::downgrade(source))) as _);
            let source = member.apart.as_ref().unwrap_or(source);
            let inner = member.inner.as_ref().and_then(Weak::upgrade);
            if let Ok(half) = self.enter(*fd, source, member.events, member.data, inner.as_ref()) {
                member.half = half;
                self.dormant.fetch_sub(1, Ordering::Relaxed);
                adopted = true;
            }
        }
        drop(members);
        if adopted {
            self.come_to_life();
        }
    }

    /// The file `id` is closed.
    pub fn forget(&self, id: usize) {
        let mut members = lock(&self.members);
        members.retain(|(of, _), member| {
            let stays = *of != id;
            if !stays && member.half.is_dormant() {
                self.dormant.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }

    /// Waits are ours from now on, and those of the sets around.
    fn come_to_life(self: &Arc<Set>) {
        if !self.is_mixed.swap(true, Ordering::SeqCst) {
            if self.in_kernel.load(Ordering::SeqCst) > 0 {
                self.call_out();
            }
            self.joined.came_to_life(&self.source());
        }
    }

    /// Brings to life what can be: whoever waits for a socket needs it.
    pub fn wake_up(self: &Arc<Set>) {
        if self.dormant.load(Ordering::Relaxed) == 0 {
            return;
        }
        let dormant: Vec<Key> = lock(&self.members)
            .iter()
            .filter(|(_, member)| member.half.is_dormant())
            .map(|(key, _)| *key)
            .collect();
        for (id, fd) in dormant {
            let file = fds::get(fd).filter(|file| file.membership().id() == id);
            if let Some(inner) = file.as_ref().and_then(|file| file.set()) {
                inner.wake_up();
                continue;
            }
            let Some(file) = file.filter(|file| !file.is_kernels()) else {
                // It has turned out to be the kernel's.
                if lock(&self.members).remove(&(id, fd)).is_some() {
                    self.dormant.fetch_sub(1, Ordering::Relaxed);
                }
                continue;
            };
            if let Some(live) = file.activate(fd) {
                self.adopt(id, &live.socket().events());
            }
        }
    }

    /// Writes what is there to `out`, without waiting.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn take(&self, epoll: c_int, out: &mut [epoll_event]) -> io::Result<usize> {
        self.bells.ring();
        if !self.has_kernels.load(Ordering::Acquire) {
            return Ok(self.take_ours(out));
        }
        let kernels_first = self.kernels_turn.load(Ordering::Relaxed);
        let mut found = 0;
        for kernels in [kernels_first, !kernels_first] {
            let room = out.get_mut(found..).unwrap_or_default();
            if !room.is_empty() {
                found +=
                    if kernels { self.take_kernels(epoll, room)? } else { self.take_ours(room) };
            }
        }
        if found == out.len() {
            self.kernels_turn.store(!kernels_first, Ordering::Relaxed);
        }
        Ok(found)
    }

    fn take_kernels(&self, epoll: c_int, out: &mut [epoll_event]) -> io::Result<usize> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: room for as many events.
        let found = said(unsafe { real::epoll_wait(epoll, out.as_mut_ptr(), room, 0) })?;
        let found = out.get_mut(..usize::try_from(found).unwrap_or(0)).unwrap_or_default();
        let left = usize::try_from(but_calls(found)).unwrap_or(0);
        // It was for another thread, which has found nothing and sleeps again.
        if left < found.len() && self.in_kernel.load(Ordering::SeqCst) > 0 {
            self.call_out();
        }
        Ok(left)
    }

    fn take_ours(&self, out: &mut [epoll_event]) -> usize {
        // The memory of one wait serves the next.
        thread_local!(static FOUND: Cell<Vec<EpollEvent>> = const { Cell::new(Vec::new()) });
        let mut found = FOUND.try_with(Cell::take).unwrap_or_default();
        found.clear();
        self.ours.take(&mut found, out.len());
        for (to, event) in out.iter_mut().zip(&found) {
            *to = epoll_event { events: event.events.0, u64: event.data };
        }
        let count = found.len().min(out.len());
        let _ = FOUND.try_with(|spare| spare.set(found));
        count
    }

    /// Waits until there may be something to take, or time is over.
    ///
    /// # Errors
    /// `Interrupted`; no descriptor left.
    pub fn wait(&self, epoll: c_int, timeout: Option<std::time::Duration>) -> io::Result<()> {
        thread_local!(static OUTSIDE: Cell<Outside> = const { Cell::new(Outside::nothing()) });
        let mut outside = OUTSIDE.try_with(Cell::take).unwrap_or_default();
        outside.clear();
        self.mind(epoll, &mut outside);
        let result = self.ours.wait_beside(timeout, &mut outside);
        let _ = OUTSIDE.try_with(|spare| spare.set(outside));
        result.map(drop)
    }

    /// Adds to `outside` the descriptors that tell of the kernel's half; `epoll`, one of the program's.
    pub fn mind(&self, epoll: c_int, outside: &mut Outside) {
        if self.has_kernels.load(Ordering::Acquire) {
            outside.push(epoll, libc::POLLIN);
        }
        if let Some(bells) = self.bells.fd() {
            outside.push(bells, libc::POLLIN);
        }
    }

    /// The same by a descriptor of our own.
    pub fn mind_by_own(&self, outside: &mut Outside) {
        if let Some(kernel) = self.kernel() {
            self.mind(kernel, outside);
        }
    }

    /// The set as a source of events, for those around it and for poll.
    pub fn source(self: &Arc<Set>) -> Arc<dyn Source> {
        let around = || -> Arc<dyn Source> {
            Arc::new(Around { set: Arc::downgrade(self), ours: self.ours.as_source() })
        };
        self.source.get_or_init(around).clone()
    }

    /// Whether a wait would find something in the kernel's half.
    fn kernel_is_ready(&self) -> bool {
        let Some(kernel) = self.kernel().filter(|_| self.has_kernels.load(Ordering::Acquire))
        else {
            return false;
        };
        let mut fd = libc::pollfd { fd: kernel, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { real::poll(&raw mut fd, 1, 0) > 0 }
    }

    /// How deep sets stand in it; `None` if `other` is among them, or it is `other`.
    fn depth_without(&self, other: &Set) -> Option<usize> {
        if ptr::eq(self, other) {
            return None;
        }
        let inner: Vec<Arc<Set>> = lock(&self.members)
            .values()
            .filter_map(|member| member.inner.as_ref()?.upgrade())
            .collect();
        inner
            .iter()
            .try_fold(0, |deepest, inner| Some(deepest.max(1 + inner.depth_without(other)?)))
    }

    pub fn bells(&self) -> &Bells {
        &self.bells
    }

    /// How many sets stand around it.
    fn height(&self) -> usize {
        self.joined.sets().iter().map(|around| 1 + around.height()).max().unwrap_or(0)
    }
}

/// A set as a source of events. Readable while a wait for it would find something in either half.
struct Around {
    set: Weak<Set>,
    ours: Arc<dyn Source>,
}

impl Source for Around {
    fn readiness(&self) -> Events {
        let Some(set) = self.set.upgrade() else { return Events::default() };
        set.bells.ring();
        let ready = self.ours.readiness();
        if ready.is_empty() && set.kernel_is_ready() { Events::READABLE } else { ready }
    }

    fn is_ready_for(&self, interest: Events) -> bool {
        // The kernel's half is minded by those who wait.
        self.ours.is_ready_for(interest)
    }

    fn is_closed(&self) -> bool {
        self.ours.is_closed()
    }

    fn napi(&self) -> Option<NapiId> {
        self.ours.napi()
    }

    fn context(&self) -> Option<Arc<Context>> {
        self.ours.context()
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        self.ours.watch(watch);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.ours.unwatch(watch);
    }
}

/// Whether the companion `fd` tells another process something that has it in a set: of connections to a listener, of
/// room to send. A stream's is not connected, and for that ready for ever (EPOLLHUP).
fn is_of_use(fd: c_int) -> bool {
    // SAFETY: open or not: then it is an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let is_stream = sockopt::socket_type(fd).is_ok_and(|kind| kind == SocketType::STREAM);
    !is_stream || listens(fd.as_raw_fd())
}

fn listens(fd: c_int) -> bool {
    // SAFETY: open or not: then it is an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    sockopt::socket_acceptconn(fd).is_ok_and(|listens| listens)
}

fn tag(fd: c_int) -> u64 {
    u64::from(fd.cast_unsigned())
}

/// What a call out is known by among events: an address that is no one else's.
fn call() -> u64 {
    static CALL: u8 = 0;
    (&raw const CALL).addr() as u64
}

/// Takes a call out from among `events`; how many are left.
pub fn but_calls(events: &mut [epoll_event]) -> c_int {
    let mut left = events.len();
    if let Some(at) = events.iter().position(|event| event.u64 == call()) {
        left -= 1;
        events.swap(at, left);
    }
    c_int::try_from(left).unwrap_or(c_int::MAX)
}
