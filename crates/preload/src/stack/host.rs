//! The process's Host: made when a socket first needs it, in the process that needs it. A child of that process leaves
//! it behind before any code of the program runs there.

use super::{
    companion_address, exit,
    file::{self, File, lock},
    foreign, handover_child, handover_parent, internal_fds, route,
};
use crate::{
    config::{self, Config},
    errno, fds, handler_frames,
    inside::{self, Inside, cancel, is_inside},
    real,
    report::Once,
    signals, spin_policy,
    stack::FILES,
};
use busypoll_policy::{Plane, Settings, mark};
use busypoll_stack::{
    Host,
    lease::{self, Answer, End},
    ledger::Ledger,
    nic::xdp,
    process, signal, spin, thread,
};
use libc::{c_int, pid_t};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
    process::{Pid, getpid},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    fmt, io,
    mem::{self, ManuallyDrop},
    os::fd::{FromRawFd, IntoRawFd, OwnedFd},
    ptr,
    sync::{Arc, Mutex, MutexGuard},
};

/// The Host, and whether making one was refused.
#[derive(Default)]
struct Slot {
    made: Option<Made>,
    refused: bool,
}

/// The Host with its ledger in shared memory, and the process that made it.
#[derive(Clone)]
pub struct Made {
    host: Host,
    pub ledger: Arc<Ledger>,
    process: Pid,
}

static HOST: Mutex<Slot> = Mutex::new(Slot { made: None, refused: false });

static REFUSED: Once = Once::new();

static IN_HANDLER: Once = Once::new();

static UNGUARDED: Once = Once::new();

static GONE: Once = Once::new();

/// The interface of the run.
pub fn device() -> &'static str {
    config::get().and_then(|config| config.launch.dev.as_deref()).unwrap_or("?")
}

/// The Host, made if need be. `None` if there can be none: the sockets of this process are the kernel's.
pub fn get() -> Option<Host> {
    let mut slot = lock(&HOST);
    if let Some(made) = &slot.made {
        return Some(made.host.clone());
    }
    if slot.refused {
        return None;
    }
    if handler_frames::is_running() {
        let why = format_args!(
            "{}: a signal handler uses the first socket of this process, and no thread may be started there",
            device()
        );
        report_not_accelerated(&IN_HANDLER, why, "that socket stays with the kernel");
        return None;
    }
    match make() {
        Ok(made) => Some(slot.made.insert(made).host.clone()),
        Err(error) => {
            slot.refused = true;
            report_not_accelerated(
                &REFUSED,
                format_args!("{error}"),
                "the sockets of this process stay with the kernel",
            );
            None
        }
    }
}

/// Reports why something is not accelerated, and the consequence. With `--strict` the program ends instead.
pub fn report_not_accelerated(once: &Once, why: fmt::Arguments<'_>, then: &str) {
    let strict = config::get().is_some_and(|config| config.launch.strict);
    let then = if strict { "the program ends, as --strict requires" } else { then };
    once.report(format_args!("{why}; {then}"));
    if strict {
        // SAFETY: ends the process, as `--strict` requires.
        unsafe { libc::_exit(2) };
    }
}

/// The Host, if there is one.
pub fn existing() -> Option<Host> {
    lock(&HOST).made.as_ref().map(|made| made.host.clone())
}

/// The Host, if there is one and this process made it: not in a child that shares its parent's memory.
pub fn made_by_this_process() -> Option<Made> {
    lock(&HOST).made.clone().filter(|made| made.process == getpid())
}

fn make() -> io::Result<Made> {
    let Some(config) = config::get() else { return Err(io::ErrorKind::NotFound.into()) };
    let Some(guard) = &config.launch.guard else {
        return Err(io::Error::other("the stack plane needs an interface; give --dev"));
    };
    let failed = |why: String| Err(io::Error::other(format!("{}: {why}", device())));
    thread::on_start(inside::stay_inside);
    signal::on_first_sleep(internal_fds::first_sleep);
    spin::set_rule(spin_policy::RULE);
    let (lease, connection) = match lease::claim(guard, as_internal) {
        Ok(Answer::Granted(lease, connection)) => (lease, connection),
        Ok(Answer::OwnedBy(pid)) => {
            return Err(xdp::Error::Owned { device: device().to_owned(), pid }.into());
        }
        Ok(Answer::Refused(why)) => return Err(io::Error::other(why)),
        Err(error) => return failed(format!("its guard does not answer ({error})")),
    };
    let (polls_for, ledger) = (settings(config).micros_on(Plane::Stack), lease.ledger.clone());
    let host = Host::builder().leased(*lease)?.busy_read(polls_for).busy_poll(polls_for).build()?;
    lease::on_end(connection, |end| {
        match end {
        End::Interface => GONE.report(format_args!(
            "{}: the interface is gone: its connections cannot send or receive any more. New sockets, also on another \
             interface of that name, stay with the kernel until the program is restarted",
            device()
        )),
        End::Guard => UNGUARDED.report(format_args!(
            "{}: the guard of this run is gone: the program goes on, but if this process is killed, its peers get \
             no reset",
            device()
        )),
    }
    })?;
    signals::fatal::arm(exit::close_all);
    Ok(Made { host, ledger, process: getpid() })
}

/// A descriptor that the guard has sent, as one of the library's own.
fn as_internal(fd: OwnedFd) -> OwnedFd {
    // SAFETY: `keep` returns the same descriptor under its new number.
    unsafe { OwnedFd::from_raw_fd(internal_fds::make_internal(fd.into_raw_fd())) }
}

/// The policy's settings for this program as a whole.
pub fn settings(config: &Config) -> Settings {
    let settings = config.launch.policy.for_program(&config.program);
    match settings.plane {
        Plane::Stack => settings,
        _ => config.launch.policy.defaults,
    }
}

/// The locks that are held across a fork, so that the child finds them free and their data whole.
struct ForkLocks {
    forking: handover_parent::Forking,
    channels: handover_child::Channels,
    slot: MutexGuard<'static, Slot>,
    _spare: MutexGuard<'static, Vec<&'static fds::Cell<File>>>,
    known: MutexGuard<'static, cancel::Threads>,
    stack: process::Fork,
    _last: MutexGuard<'static, route::LastRoute>,
    _changing: MutexGuard<'static, ()>,
    /// Dropped last: a signal handler that runs then may need all of these.
    inside: Option<Inside>,
}

impl ForkLocks {
    fn take(forking: handover_parent::Forking, inside: Option<Inside>) -> ForkLocks {
        ForkLocks {
            forking,
            channels: handover_child::Channels::take(),
            slot: lock(&HOST),
            _spare: FILES.spare(),
            known: cancel::threads(),
            stack: process::before_fork(),
            _last: route::last_route(),
            _changing: signals::changing(),
            inside,
        }
    }

    /// In the child. Allocates nothing.
    #[must_use]
    fn in_child(mut self) -> Option<Inside> {
        inside::clear_ending();
        self.forking.in_child();
        self.known.in_child();
        self.stack.in_child();
        // Not dropped: its threads do not exist here, and its rings are the parent's.
        mem::forget(mem::take(&mut *self.slot));
        self.inside
    }
}

local! {
    static FORK_LOCKS: RefCell<Option<ManuallyDrop<ForkLocks>>> = RefCell::new(None);
}

fn take_fork_locks() -> Option<ForkLocks> {
    FORK_LOCKS.try_with(RefCell::take).ok().flatten().map(ManuallyDrop::into_inner)
}

/// Called when the library is loaded: every fork runs these handlers, also those that the C library makes itself
/// (daemon, forkpty).
pub fn prepare(config: &Config) {
    if config.launch.dev.is_none() {
        return;
    }
    spin_policy::prepare(config);
    internal_fds::prepare();
    foreign::prepare(config);
    if let Some(guard) = &config.launch.guard {
        // Without the mark the guard knows the process by its environment alone.
        let _ = map_mark(mark(guard));
    }
    // SAFETY: three functions that live as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// Maps a file with this name for as long as the process lives; it shows in /proc/PID/maps.
fn map_mark(name: &str) -> rustix::io::Result<()> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
    // SAFETY: a new mapping, of no memory in use, without access.
    unsafe { mmap(ptr::null_mut(), 1, ProtFlags::empty(), MapFlags::SHARED, &file, 0) }.map(drop)
}

extern "C" fn before() {
    companion_address::may_be_shared();
    let inside = Inside::enter();
    if inside.is_some() {
        file::deactivate_unused_listeners();
        file::share_epoll_sets();
    }
    let mut forking = handover_parent::Forking::take();
    if inside.is_some() {
        // Before the list of spare cells is locked, as dropping the last reference to a file needs it.
        forking.share();
    }
    let held = ForkLocks::take(forking, inside);
    let _ = FORK_LOCKS.try_with(|cell| cell.replace(Some(ManuallyDrop::new(held))));
}

extern "C" fn in_parent() {
    companion_address::may_be_shared();
    let Some(mut held) = take_fork_locks() else { return };
    held.forking.in_parent();
    // Fields drop in order: signal handlers run when `inside`, the last, is dropped.
}

extern "C" fn in_child() {
    let Some(mut held) = take_fork_locks() else { return };
    let channel = held.forking.child_end().map(|end| held.channels.add(end));
    let ends: Vec<c_int> = FILES
        .all()
        .filter_map(|(fd, file)| (file.is_none() && held.channels.has(fd)).then_some(fd))
        .collect();
    let _inside = held.in_child();
    inside::forget_own_threads();
    let mut child_files = HashMap::new();
    let child_file = |file: &File| {
        let child_file = FILES.hold(file.for_child(channel.as_ref())?);
        child_files.insert(file.memberships().id(), child_file.clone());
        Some(child_file)
    };
    FILES.replace_in_child(child_file, |internal| {
        if !ends.contains(&internal) {
            close_internal(internal);
        }
    });
    ends.into_iter().for_each(|fd| FILES.set_internal(fd));
    child_files
        .values()
        .filter_map(|child_file| child_file.set())
        .for_each(|set| set.adopt_child_files(&child_files));
}

fn close_internal(internal: c_int) {
    // SAFETY: a descriptor of the library's that a child does not use.
    unsafe { real::close(internal) };
}

/// fork(3). A signal handler may have interrupted the C library's allocator, whose locks fork(3) takes once the process
/// has a second thread. If the other threads are all ours, the program cannot expect that: then the child is made by
/// _Fork(3), which takes no locks.
///
/// # Safety
/// That of fork(3).
pub unsafe fn fork() -> pid_t {
    let is_ours = || {
        let _inside = Inside::enter()?;
        (existing().is_some() && inside::is_single_threaded()).then_some(())
    };
    if !handler_frames::is_running() || is_ours().is_none() {
        // SAFETY: the caller's contract.
        return unsafe { real::fork() };
    }
    // SAFETY: the caller's contract.
    forked_by(|| unsafe { real::_Fork() })
}

/// _Fork(3), which does not run pthread_atfork(3) handlers: ours run all the same.
///
/// # Safety
/// That of _Fork(3).
pub unsafe fn raw_fork() -> pid_t {
    // SAFETY: the caller's contract.
    forked_by(|| unsafe { real::_Fork() })
}

/// A fork that does not run pthread_atfork(3) handlers: `fork` returns 0 in the child.
pub fn forked_by<T: Copy + Default + PartialEq>(fork: impl FnOnce() -> T) -> T {
    if is_inside() {
        // In the handler of a fault, whose thread may hold one of the locks: the child has only companions.
        let child = fork();
        if child == T::default() {
            FILES.clear_in_child(close_internal);
        }
        return child;
    }
    before();
    let child = fork();
    let _errno = errno::Saved::new();
    match child == T::default() {
        true => in_child(),
        false => in_parent(),
    }
    child
}
