//! `poll`: one wait for any of a few sockets.

use super::{
    busy::{BusyLimits, busy_loop},
    kernel_fds::KernelFdCheck,
    readiness::{Events, Watch},
    source::{Socket, Source},
};
use crate::{
    inet::{Context, Poller},
    napi::{self, BUSY_POLL_BUDGET, KernelFds, NapiId, Waiter, Wake, WakeList, WakeOnEvent},
    pool::{Last, Pool},
    signal,
    spin::SpinTurn,
    time,
};
use std::{cell::Cell, convert::Infallible, io, ptr, sync::Arc, time::Duration};

/// One socket to wait for.
#[derive(Debug)]
pub struct PollFd<'a> {
    /// The socket.
    pub socket: &'a dyn Socket,
    /// What to wait for; errors and hang-ups are always waited for.
    pub events: Events,
    /// The events found; written by [`poll`].
    pub revents: Events,
}

/// One source to wait for.
pub trait Entry {
    /// The source of the events.
    fn source(&self) -> &dyn Source;

    /// What to wait for.
    fn events(&self) -> Events;

    /// Stores the events found.
    fn report(&mut self, found: Events);
}

impl Entry for PollFd<'_> {
    fn source(&self) -> &dyn Source {
        self.socket.source()
    }

    fn events(&self) -> Events {
        self.events
    }

    fn report(&mut self, found: Events) {
        self.revents = found;
    }
}

/// Wakes the polling thread.
impl Watch for WakeOnEvent {
    fn notify(&self, _events: Events, _napi: Option<NapiId>, wake: &mut WakeList) -> bool {
        wake.push(self.0.clone());
        true
    }
}

/// Waits until one of `fds` is ready or `timeout` is over (`None`: never); returns how many are ready. Busy
/// polls for the host's `busy_poll` microseconds first, but only if a member has `SO_BUSY_POLL` > 0, as
/// poll(2) does. It polls the queues of all members; Linux polls the first that it finds.
///
/// # Errors
/// `Interrupted` by a signal while it sleeps, as [`UdpSocket::recv`](crate::UdpSocket::recv); no
/// descriptor left for the thread's eventfd.
///
/// ```
/// use busypoll_stack::{Events, Host, PollFd, UdpSocket, nic::cable, poll};
/// use std::time::Duration;
/// # let (a, _b) = cable::pair(cable::Config::default())?;
/// # let host = Host::builder().interface(a, "10.0.0.1/24").build()?;
/// let socket = UdpSocket::bind(&host, "10.0.0.1:0")?;
/// let mut fds = [PollFd { socket: &socket, events: Events::READABLE, revents: Events::default() }];
/// assert_eq!(poll(&mut fds, Some(Duration::from_millis(1)))?, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    let willing = fds.iter().filter(|fd| fd.socket.busy_poll() > 0);
    let micros = willing.map(|fd| fd.socket.host().busy_poll()).max().unwrap_or(0);
    poll_with_kernel_fds(fds, micros, timeout, &mut KernelFds::none())
}

/// As [`poll`], for any sources, and also until one of `kernel_fds` is ready; busy polls for `micros` microseconds.
/// Returns how many of `fds` are ready; 0 also if only `kernel_fds` are. A call that waited has polled `kernel_fds`
/// after the wait was over.
///
/// # Errors
/// As [`poll`].
pub fn poll_with_kernel_fds<E: Entry>(
    fds: &mut [E],
    micros: u32,
    timeout: Option<Duration>,
    kernel_fds: &mut KernelFds,
) -> io::Result<usize> {
    let ready = update_revents(fds);
    if ready > 0 {
        return Ok(ready);
    }
    let Ok(mut contexts) = CONTEXTS.lend(&LAST, || Ok::<_, Infallible>(Vec::new()));
    collect_contexts(fds, &mut contexts);
    let is_counted = timeout != Some(Duration::ZERO) && count_wait(fds, true);
    let result = wait(fds, micros, timeout, &contexts, kernel_fds);
    if is_counted {
        count_wait(fds, false);
    }
    contexts.clear();
    result
}

/// A wait begins, or ends, for those sources that count it. Returns whether any does.
fn count_wait<E: Entry>(fds: &[E], begins: bool) -> bool {
    let counts = |fd: &&E| fd.events().has(Events::READABLE) && fd.source().counts_waits();
    let mut any = false;
    for fd in fds.iter().filter(counts) {
        fd.source().waits(begins);
        any = true;
    }
    any
}

/// The memory of one wait serves the next.
static CONTEXTS: Pool<Vec<Arc<Context>>> = Pool::new();

thread_local!(static LAST: Last<Vec<Arc<Context>>> = const { Cell::new(ptr::null()) });

/// Busy polls, then sleeps.
fn wait<E: Entry>(
    fds: &mut [E],
    micros: u32,
    timeout: Option<Duration>,
    contexts: &[Arc<Context>],
    kernel_fds: &mut KernelFds,
) -> io::Result<usize> {
    let begun = time::now();
    let deadline = timeout.map(|timeout| begun + timeout);
    let nonblocking = timeout == Some(Duration::ZERO);
    let turn = SpinTurn::begin(Duration::from_micros(if nonblocking { 0 } else { micros.into() }));
    if micros > 0 && turn.may_poll() {
        let limits = BusyLimits {
            span: Duration::from_micros(micros.into()),
            budget: BUSY_POLL_BUDGET,
            deadline,
        };
        let mut poller = Poller::new(fds.as_ptr().addr());
        let mut kernel = KernelFdCheck::new(begun, kernel_fds);
        let any = || fds.iter().any(|fd| fd.source().is_ready_for(fd.events()));
        busy_loop(contexts, &limits, &mut poller, |now, _| {
            any() || kernel.is_due(now) && kernel.check()
        });
        let found = kernel.has_found();
        let ready = update_revents(fds);
        if ready > 0 && !found {
            kernel_fds.look();
        }
        if ready > 0 || found {
            return Ok(ready);
        }
    }
    if nonblocking {
        return Ok(0);
    }
    let mut waiter = Waiter::of_this_thread()?;
    let watch: Arc<dyn Watch> = waiter.watcher();
    for fd in &*fds {
        fd.source().watch(watch.clone());
    }
    let result = loop {
        waiter.start();
        // The sources are watched already: an event after this check wakes the thread.
        let ready = update_revents(fds);
        if ready > 0 {
            break Ok(ready);
        }
        if signal::has_deferred_signal() {
            break Err(io::ErrorKind::Interrupted.into());
        }
        let left = deadline.map(|deadline| deadline - time::now());
        match napi::sleep_for(contexts, &waiter, left, kernel_fds) {
            Wake::Woken | Wake::Interrupt => {}
            Wake::Timeout | Wake::KernelFds => break Ok(update_revents(fds)),
            Wake::Signal => match update_revents(fds) {
                0 => break Err(io::ErrorKind::Interrupted.into()),
                ready => break Ok(ready),
            },
        }
    };
    for fd in &*fds {
        fd.source().unwatch(&watch);
    }
    result
}

/// Stores the events of each of `fds`, and returns how many are ready.
fn update_revents<E: Entry>(fds: &mut [E]) -> usize {
    let mut ready = 0;
    for fd in fds {
        let found = fd.source().readiness().reported(fd.events());
        fd.report(found);
        ready += usize::from(!found.is_empty());
    }
    ready
}

/// Adds the NAPI contexts that packets for `fds` come from, each once.
fn collect_contexts<E: Entry>(fds: &[E], contexts: &mut Vec<Arc<Context>>) {
    for context in fds.iter().filter_map(|fd| fd.source().context()) {
        if !contexts.iter().any(|known| Arc::ptr_eq(known, &context)) {
            contexts.push(context);
        }
    }
}
