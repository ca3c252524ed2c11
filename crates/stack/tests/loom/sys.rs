//! `src/sys.rs` under loom: the real kernel's descriptors, asked without waiting; only the waiting is
//! loom's. So loom finds the schedules in which everybody sleeps, and level, edge and one-shot mean what
//! they mean to the kernel.

use crate::time;
use std::{os::fd::RawFd, time::Duration};

#[path = "../../src/sys.rs"]
mod real;

pub(crate) use real::{epoll, eventfd, owned, timespec};

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel::default();
}

#[derive(Default)]
struct Kernel {
    entered: loom::sync::Mutex<()>,
    changed: loom::sync::Condvar,
}

fn change<R>(call: impl FnOnce() -> R) -> R {
    let entered = KERNEL.entered.lock().unwrap();
    let result = call();
    KERNEL.changed.notify_all();
    drop(entered);
    result
}

fn block(timeout: Option<Duration>, mut ready: impl FnMut() -> libc::c_int) -> libc::c_int {
    let mut entered = KERNEL.entered.lock().unwrap();
    loop {
        let count = ready();
        if count > 0 {
            return count;
        }
        if let Some(timeout) = timeout {
            drop(entered);
            time::pass(timeout);
            loom::thread::yield_now();
            return 0;
        }
        entered = KERNEL.changed.wait(entered).unwrap();
    }
}

pub(crate) fn signal(event: RawFd) {
    change(|| real::signal(event));
}

pub(crate) fn drain(event: RawFd) {
    let _entered = KERNEL.entered.lock().unwrap();
    real::drain(event);
}

pub(crate) fn poll(fd: RawFd, timeout: Option<Duration>) -> libc::c_int {
    block(timeout, || real::poll(fd, Some(Duration::ZERO)))
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
    block(timeout, || real::epoll_wait(epoll, events, Some(Duration::ZERO)))
}

/// A clock that has run out as soon as nobody else has anything to do.
#[derive(Debug)]
pub(crate) struct Alarm {
    real: real::Alarm,
    span: std::sync::Mutex<Duration>,
}

impl Alarm {
    pub(crate) fn new() -> std::io::Result<Alarm> {
        Ok(Alarm { real: real::Alarm::new()?, span: std::sync::Mutex::default() })
    }

    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.real.fd()
    }

    pub(crate) fn set(&self, span: Duration) {
        *self.span.lock().unwrap() = span;
    }
}

pub(crate) fn epoll_wait_alarm(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    alarm: Option<&Alarm>,
    timeout: Option<Duration>,
) -> libc::c_int {
    let alarm = alarm.map(|alarm| *alarm.span.lock().unwrap());
    assert_ne!(alarm, Some(Duration::ZERO), "watching with no clock running");
    epoll_wait(epoll, events, alarm.or(timeout))
}
