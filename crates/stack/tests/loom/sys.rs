//! `src/sys.rs` under loom: the real kernel's descriptors, polled without waiting; only the waiting is loom's. So loom
//! finds schedules in which all threads sleep, and level, edge and one-shot have the kernel's meaning.

use crate::{
    sync::{AtomicU32, Ordering},
    time,
};
use std::{os::fd::RawFd, time::Duration};

#[path = "../../src/sys.rs"]
mod real;

pub(crate) use real::{Alarm, epoll, eventfd, owned, timespec};

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel::default();
}

#[derive(Default)]
struct Kernel {
    /// Threads asleep, each with its descriptors: an epoll instance is readable if it has events.
    asleep: loom::sync::Mutex<Vec<Sleeper>>,
}

struct Sleeper {
    fds: Vec<RawFd>,
    bell: std::sync::Arc<loom::sync::Condvar>,
}

/// A call that may make descriptors readable. It wakes exactly the threads that the kernel would wake: each spurious
/// wake-up would add schedules to explore at every step.
fn change<R>(call: impl FnOnce() -> R) -> R {
    let mut asleep = KERNEL.asleep.lock().unwrap();
    let result = call();
    asleep.retain(|sleeper| {
        let stays = sleeper.fds.iter().all(|fd| real::poll(*fd, Some(Duration::ZERO)) == 0);
        if !stays {
            sleeper.bell.notify_one();
        }
        stays
    });
    drop(asleep);
    result
}

loom::lazy_static! {
    /// Threads asleep on a word, by its address.
    static ref FUTEXES: loom::sync::Mutex<Vec<(usize, std::sync::Arc<loom::sync::Condvar>)>> = Default::default();
}

pub(crate) fn futex_wait(word: &AtomicU32, value: u32) {
    let mut asleep = FUTEXES.lock().unwrap();
    // As in the kernel, no wake-up comes between this and the sleep.
    if word.load(Ordering::SeqCst) == value {
        let bell = std::sync::Arc::new(loom::sync::Condvar::new());
        asleep.push((std::ptr::from_ref(word).addr(), bell.clone()));
        drop(bell.wait(asleep).unwrap());
    }
}

pub(crate) fn futex_wake(word: &AtomicU32) {
    let mut asleep = FUTEXES.lock().unwrap();
    let sleeper = asleep.iter().position(|(at, _)| *at == std::ptr::from_ref(word).addr());
    if let Some(sleeper) = sleeper {
        asleep.remove(sleeper).1.notify_one();
    }
}

fn block(fds: &[RawFd], timeout: Option<Duration>, mut ready: impl FnMut() -> i32) -> i32 {
    let mut asleep = KERNEL.asleep.lock().unwrap();
    let bell = std::sync::Arc::new(loom::sync::Condvar::new());
    loop {
        let count = ready();
        if count > 0 {
            return count;
        }
        if let Some(timeout) = timeout {
            drop(asleep);
            time::pass(timeout);
            loom::thread::yield_now();
            return 0;
        }
        asleep.push(Sleeper { fds: fds.to_vec(), bell: bell.clone() });
        asleep = bell.wait(asleep).unwrap();
    }
}

pub(crate) fn signal(event: RawFd) {
    change(|| real::signal(event));
}

pub(crate) fn drain(event: RawFd) {
    let _asleep = KERNEL.asleep.lock().unwrap();
    real::drain(event);
}

pub(crate) fn poll(fd: RawFd, timeout: Option<Duration>) -> libc::c_int {
    block(&[fd], timeout, || real::poll(fd, Some(Duration::ZERO)))
}

pub(crate) fn poll_all(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> libc::c_int {
    let asleep_on: Vec<_> = fds.iter().map(|fd| fd.fd).collect();
    block(&asleep_on, timeout, || real::poll_all(fds, Some(Duration::ZERO)))
}

pub(crate) fn epoll_control(
    epoll: RawFd,
    op: libc::c_int,
    fd: RawFd,
    events: u32,
    data: u64,
) -> std::io::Result<()> {
    change(|| real::epoll_control(epoll, op, fd, events, data))
}

pub(crate) fn epoll_wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> libc::c_int {
    block(&[epoll], timeout, || real::epoll_wait(epoll, events, Some(Duration::ZERO)))
}
