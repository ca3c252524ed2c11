//! Fork. A child of the process that has the Host leaves it behind before any code of the program runs there.

use super::{
    activation, companion_address, copy, exit,
    file::{self, FILES, File},
    foreign,
    handover_channel::Channels,
    handover_parent::Forking,
    host, links, local_stream, local_stream_end, route, thread_end, udp_links, wait,
};
use crate::{
    config::Config,
    errno, fds, handler_frames,
    inside::{self, Inside, cancel, is_inside},
    real, signals, spin_policy,
};
use busypoll_policy::mark;
use busypoll_stack::{process, thread};
use libc::{c_int, pid_t};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
};
use std::{cell::RefCell, collections::HashMap, mem::ManuallyDrop, ptr, sync::MutexGuard};

/// The locks that are held across a fork, so that the child finds them free and their data whole.
struct ForkLocks {
    pending: local_stream_end::Forking,
    forking: Forking,
    channels: Channels,
    slot: MutexGuard<'static, host::Slot>,
    _spare: MutexGuard<'static, Vec<&'static fds::Cell<File>>>,
    known: MutexGuard<'static, cancel::Threads>,
    stack: process::Fork,
    _last: MutexGuard<'static, route::LastRoute>,
    _changing: MutexGuard<'static, ()>,
    /// Dropped last: a signal handler that runs then may need all of these.
    inside: Option<Inside>,
}

impl ForkLocks {
    fn take(forking: Forking, inside: Option<Inside>) -> ForkLocks {
        ForkLocks {
            pending: local_stream_end::Forking::take(),
            forking,
            channels: Channels::take(),
            slot: host::slot(),
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
        spin_policy::in_child();
        self.pending.in_child();
        self.forking.in_child();
        self.known.in_child();
        self.stack.in_child();
        self.slot.forget();
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
    thread_end::prepare(|| {
        wait::on_thread_exit();
        copy::on_thread_exit();
        spin_policy::on_thread_exit();
    });
    let _ = host::AT_END.set(exit::close_all);
    let _ = host::HAND_OVER.set(links::hand_over);
    let _ = host::ADDRESSES.set(route::all_addresses);
    local_stream::prepare();
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
        links::give_back(false);
        local_stream::share(|_| true);
        activation::deactivate_unused_listeners();
        activation::share_udp(&udp_links::own_sockets(|_| true));
        file::share_epoll_sets();
        host::share_companions();
    }
    let mut forking = Forking::take();
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
    drop(held);
    // Another thread may have made one since: the child has it, too.
    if let Some(_inside) = Inside::enter() {
        local_stream::share(|_| true);
    }
}

extern "C" fn in_child() {
    let Some(mut held) = take_fork_locks() else { return };
    let channel = held.forking.child_end().map(|(end, board)| held.channels.add(end, board));
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
        (host::existing().is_some() && inside::is_single_threaded()).then_some(())
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
    thread::wait_until_started();
    let child = fork();
    let _errno = errno::Saved::new();
    match child == T::default() {
        true => in_child(),
        false => in_parent(),
    }
    child
}
