//! Private epoll instances: one for each set of descriptors that a thread waits for in poll or select, made when the
//! set first comes and kept while it is reused.
//!
//! They serve spinning only. The real poll and select say what is ready, and do the sleeping. An instance may be stale
//! because a descriptor was closed past our hooks; that costs a vain spin and nothing else.
//!
//! A thread's instances are in memory of its own, mapped at its first such wait and unmapped when the thread ends. A
//! forked child has none.

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use busypoll_linux::EpollParams;
use libc::{c_int, c_void};
use rustix::event::epoll as instance;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::fd_state::{self, Kind};
use super::timeout::within;
use super::{busy_poll_options, sockets};
use crate::config::Config;
use crate::spin_policy;

/// Descriptors in a set. For a larger set the thread does not spin.
const MAX_MEMBERS: usize = 1024;
/// Sets per thread.
const SETS: usize = 4;

/// The number of instances in the process, and the divisor of RLIMIT_NOFILE that bounds it.
static INSTANCES: AtomicU32 = AtomicU32::new(0);
const SHARE: u64 = 8;

/// A descriptor and the events to wait for, as in poll(2).
pub type Member = (c_int, u16);

struct KeptMember {
    member: Member,
    generation: u16,
}

struct PrivateEpoll {
    /// 0: none. The library's descriptors are never that low.
    epoll: c_int,
    epoll_generation: u16,
    /// How long to spin, in microseconds.
    micros: u32,
    /// The parameters that the kernel has.
    params: EpollParams,
    last_used: u32,
    len: usize,
    members: [KeptMember; MAX_MEMBERS],
}

/// Zeroed memory is an empty cache.
struct Cache {
    /// The process it belongs to, by [`PROCESS`]: another one after a fork.
    process: u32,
    uses: u32,
    /// Decreases with every new set. Below zero, sets change too often to be kept.
    credit: i32,
    sets: [PrivateEpoll; SETS],
}

local! {
    static CACHE: Cell<*mut Cache> = Cell::new(ptr::null_mut());
}

/// Incremented by every fork, in the child.
static PROCESS: AtomicU32 = AtomicU32::new(1);
/// The key whose destructor frees a thread's cache.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Called at load time.
pub fn prepare() {
    let mut key = 0;
    // SAFETY: plain calls with functions that live as long as the library, which is never unloaded.
    unsafe {
        if libc::pthread_key_create(&raw mut key, Some(thread_ends)) == 0 {
            KEY.store(key, Ordering::Relaxed);
        }
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

/// A child must not use its parent's instances: both share the same open files.
extern "C" fn in_child() {
    spin_policy::in_child();
    PROCESS.fetch_add(1, Ordering::Relaxed);
    INSTANCES.store(0, Ordering::Relaxed);
    let mut at = 0;
    while let Some((fd, kind)) = fd_state::next_known(at, u32::MAX) {
        if kind == Kind::Internal {
            drop_internal(fd);
        }
        at = fd.cast_unsigned() + 1;
    }
}

extern "C" fn thread_ends(cache: *mut c_void) {
    // If a signal handler waits on this thread later, it starts with a new cache.
    let _ = CACHE.try_with(|cell| cell.set(ptr::null_mut()));
    let cache = cache.cast::<Cache>();
    // SAFETY: `current` made it for this thread, which does not use it any more.
    unsafe {
        if (*cache).process == PROCESS.load(Ordering::Relaxed) {
            (*cache).sets.iter_mut().for_each(PrivateEpoll::close);
        }
        let _ = munmap(cache.cast(), size_of::<Cache>());
    }
}

fn drop_internal(fd: c_int) {
    fd_state::forget(fd);
    // SAFETY: the library's own descriptor, not used after this.
    unsafe { rustix::io::close(fd) };
}

/// A set that can be spun on.
pub struct SpinTarget {
    /// The instance; it belongs to the thread, until its next wait.
    pub epoll: c_int,
    /// How long to spin, in microseconds.
    pub micros: u32,
}

/// The instance for a set of descriptors, for a wait of at most `limit` nanoseconds; `None` where spinning is of no
/// use, or not possible.
pub fn find(
    config: &Config,
    members: impl Iterator<Item = Member> + Clone,
    limit: Option<u64>,
) -> Option<SpinTarget> {
    // Most waits end here: no descriptor is a socket that polls.
    let mut count = 0;
    let mut any = false;
    for (fd, _) in members.clone() {
        count += 1;
        let state = sockets::lookup(config, fd);
        any |= state.kind() == Kind::Socket && config.kernel_micros(state.settings()) > 0;
    }
    if !any || count > MAX_MEMBERS {
        return None;
    }
    let cache = current()?;
    cache.uses = cache.uses.wrapping_add(1);
    let uses = cache.uses;
    if let Some(set) = cache.sets.iter_mut().find(|set| set.is(members.clone(), count)) {
        cache.credit = (cache.credit + 1).min(64);
        set.last_used = uses;
        return set.within(limit);
    }
    if cache.credit < 0 {
        cache.credit += 1;
        return None;
    }
    // A new set costs as much as sixteen waits.
    cache.credit -= 16;
    let oldest = cache.sets.iter_mut().max_by_key(|s| uses.wrapping_sub(s.last_used))?;
    oldest.close();
    oldest.make(config, members)?;
    oldest.last_used = uses;
    oldest.within(limit)
}

/// The calling thread's cache.
fn current() -> Option<&'static mut Cache> {
    let mut cache = CACHE.try_with(Cell::get).ok()?;
    let process = PROCESS.load(Ordering::Relaxed);
    if cache.is_null() {
        // SAFETY: new anonymous memory, zeroed, page-aligned.
        let memory = unsafe {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), size_of::<Cache>(), both, MapFlags::PRIVATE).ok()?
        };
        cache = memory.cast();
        // SAFETY: just mapped, and this thread's alone.
        unsafe {
            (*cache).process = process;
            (*cache).credit = 64;
            libc::pthread_setspecific(KEY.load(Ordering::Relaxed), memory);
        }
        CACHE.try_with(|cell| cell.set(cache)).ok()?;
    }
    // SAFETY: this thread's own memory. A wait in a signal handler may come between and use it as well; it finds a set
    // or makes one, and leaves both valid.
    let cache = unsafe { &mut *cache };
    if cache.process != process {
        // Forked: the instances were closed in the child.
        cache.process = process;
        cache.sets.iter_mut().for_each(|set| set.epoll = 0);
    }
    Some(cache)
}

impl PrivateEpoll {
    /// Whether this is the set of `members`, unchanged.
    fn is(&self, members: impl Iterator<Item = Member>, count: usize) -> bool {
        self.epoll != 0
            && self.len == count
            && self.alive()
            && self.members.iter().zip(members).all(|(kept, member)| {
                kept.member == member && kept.generation == fd_state::get(member.0).generation()
            })
    }

    /// Shortens the kernel's polling time to `limit`, if need be.
    fn within(&mut self, limit: Option<u64>) -> Option<SpinTarget> {
        let micros = within(self.micros, limit);
        if micros == 0 {
            return None;
        }
        if micros != self.params.busy_poll_usecs {
            let params = EpollParams { busy_poll_usecs: micros, ..self.params };
            busy_poll_options::set_params(self.epoll, params).ok()?;
            self.params = params;
        }
        Some(SpinTarget { epoll: self.epoll, micros })
    }

    /// Whether the number still refers to its instance: the program can take the number by dup2.
    fn alive(&self) -> bool {
        let state = fd_state::get(self.epoll);
        state.kind() == Kind::Internal && state.generation() == self.epoll_generation
    }

    fn close(&mut self) {
        if self.epoll != 0 {
            INSTANCES.fetch_sub(1, Ordering::Relaxed);
            if self.alive() {
                drop_internal(self.epoll);
            }
        }
        self.epoll = 0;
    }

    /// Makes an instance, unless the process has its share of descriptors in instances already.
    fn make(&mut self, config: &Config, members: impl Iterator<Item = Member>) -> Option<()> {
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        if u64::from(INSTANCES.fetch_add(1, Ordering::Relaxed)) >= most.unwrap_or(u64::MAX) / SHARE
            || self.fill(config, members).is_none()
        {
            INSTANCES.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(())
    }

    fn fill(&mut self, config: &Config, members: impl Iterator<Item = Member>) -> Option<()> {
        let epoll = instance::create(instance::CreateFlags::CLOEXEC).ok()?;
        // The index of the settings that serve all its sockets.
        let mut most: Option<usize> = None;
        self.len = 0;
        for ((fd, events), kept) in members.zip(&mut self.members) {
            let state = fd_state::get(fd);
            *kept = KeptMember { member: (fd, events), generation: state.generation() };
            self.len += 1;
            // SAFETY: a number that is not open is an error of the calls below.
            let watched = unsafe { BorrowedFd::borrow_raw(fd) };
            if state.kind() != Kind::Socket && is_regular(watched) {
                return None;
            }
            let flags = instance::EventFlags::from_bits_retain(events.into());
            let data = instance::EventData::new_u64(0);
            match instance::add(&epoll, watched, data, flags) {
                Ok(()) => {}
                // The descriptor is in the set twice, perhaps with other events: both count.
                Err(rustix::io::Errno::EXIST) => {
                    let all = instance::EventFlags::IN
                        | instance::EventFlags::PRI
                        | instance::EventFlags::OUT
                        | flags;
                    instance::modify(&epoll, watched, data, all).ok()?;
                }
                // Not a valid descriptor: the real poll returns at once.
                Err(_) => return None,
            }
            if state.kind() == Kind::Socket {
                let index = state.settings();
                most = Some(most.map_or(index, |most| config.joined(most, index)));
            }
        }
        let wanted = busy_poll_options::params(config, most?);
        let less = EpollParams { busy_poll_budget: 0, ..wanted };
        let try_params =
            |params| busy_poll_options::set_params(epoll.as_raw_fd(), params).map(|()| params);
        self.params = try_params(wanted)
            .or_else(|_| try_params(less))
            .map_err(|error| busy_poll_options::report_refusal("EPIOCSPARAMS", &error))
            .ok()?;
        let epoll = move_high(epoll);
        self.epoll_generation = fd_state::put(epoll, Kind::Internal, 0, 0).generation();
        self.epoll = epoll;
        self.micros = wanted.busy_poll_usecs;
        Some(())
    }
}

/// A regular file is always ready, and the real poll returns at once. A file of the kernel's like `/proc/mounts`
/// reports a change only to the first poll, which must be the real one.
fn is_regular(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file())
}

/// Moves a descriptor to a high number: programs use the lowest free ones.
fn move_high(fd: OwnedFd) -> c_int {
    for least in [900, 200] {
        if let Ok(moved) = rustix::io::fcntl_dupfd_cloexec(&fd, least) {
            return moved.into_raw_fd();
        }
    }
    fd.into_raw_fd()
}
