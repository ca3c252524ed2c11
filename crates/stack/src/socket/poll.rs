//! `poll`: waiting for any of a few sockets, once.

use super::{
    busy::{Terms, busy_loop},
    readiness::{Events, Watch},
    source::Socket,
};
use crate::{
    napi::{BUSY_POLL_BUDGET, Context, NapiId, Poller, Waiter, Wake, WakeList},
    time,
};
use std::{
    cell::{Cell, OnceCell},
    io,
    sync::Arc,
    time::Duration,
};

/// One socket to wait for.
#[derive(Debug)]
pub struct PollFd<'a> {
    /// The socket.
    pub socket: &'a dyn Socket,
    /// What to wait for; errors and hang-ups are always waited for.
    pub events: Events,
    /// What is there; written by [`poll`].
    pub revents: Events,
}

/// Wakes the polling thread.
struct Alarm(Arc<Waiter>);

impl Alarm {
    /// The calling thread's own, made once.
    fn of_this_thread(waiter: &Arc<Waiter>) -> Arc<dyn Watch> {
        thread_local!(static MINE: OnceCell<Arc<dyn Watch>> = const { OnceCell::new() });
        MINE.with(|mine| mine.get_or_init(|| Arc::new(Alarm(waiter.clone()))).clone())
    }
}

impl Watch for Alarm {
    fn notify(&self, _events: Events, _napi: Option<NapiId>, wake: &mut WakeList) {
        wake.push(self.0.clone());
    }
}

/// Waits until one of `fds` is ready or `timeout` is over (`None`: never); returns how many are ready. Busy
/// polls for the host's `busy_poll` microseconds first, but only if a member has `SO_BUSY_POLL` > 0, as
/// poll(2) does; it polls the queues of all members, where Linux polls those it meets first.
///
/// # Errors
/// `Interrupted` by a signal; no descriptor left for the thread's eventfd.
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
    let ready = look(fds);
    if ready > 0 {
        return Ok(ready);
    }
    // The memory of one wait serves the next.
    thread_local!(static CONTEXTS: Cell<Vec<Arc<Context>>> = const { Cell::new(Vec::new()) });
    let mut contexts = CONTEXTS.take();
    learn(fds, &mut contexts);
    let result = wait(fds, timeout, &contexts);
    contexts.clear();
    CONTEXTS.set(contexts);
    result
}

/// Busy polls, then sleeps.
fn wait(
    fds: &mut [PollFd<'_>],
    timeout: Option<Duration>,
    contexts: &[Arc<Context>],
) -> io::Result<usize> {
    let deadline = timeout.map(|timeout| time::now() + timeout);
    if let Some(micros) = busy_poll_micros(fds) {
        let terms = Terms {
            span: Duration::from_micros(micros.into()),
            budget: BUSY_POLL_BUDGET,
            deadline,
        };
        let mut poller = Poller::new(fds.as_ptr().addr());
        let any = || fds.iter().any(|fd| fd.socket.source().is_ready_for(fd.events));
        busy_loop(contexts, &terms, &mut poller, any);
        let ready = look(fds);
        if ready > 0 {
            return Ok(ready);
        }
    }
    if timeout == Some(Duration::ZERO) {
        return Ok(0);
    }
    let waiter = Waiter::of_this_thread()?;
    let alarm = Alarm::of_this_thread(&waiter);
    for fd in &*fds {
        fd.socket.source().watch(alarm.clone());
    }
    let result = loop {
        waiter.start();
        // Watched since before this look: what comes after it wakes us.
        let ready = look(fds);
        if ready > 0 {
            break Ok(ready);
        }
        let left = deadline.map(|deadline| deadline - time::now());
        let wake = match contexts.first() {
            Some(context) => context.sleep(&waiter, left),
            None => waiter.sleep(left),
        };
        match wake {
            Wake::Woken | Wake::Readable => {}
            Wake::Timeout => break Ok(look(fds)),
            Wake::Interrupted => match look(fds) {
                0 => break Err(io::ErrorKind::Interrupted.into()),
                ready => break Ok(ready),
            },
        }
    };
    for fd in &*fds {
        fd.socket.source().unwatch(&alarm);
    }
    result
}

fn look(fds: &mut [PollFd<'_>]) -> usize {
    let mut ready = 0;
    for fd in fds {
        fd.revents = fd.socket.source().readiness().reported(fd.events);
        ready += usize::from(!fd.revents.is_empty());
    }
    ready
}

/// How long to busy poll; `None`: no member asks for it, or its host does not allow it.
fn busy_poll_micros(fds: &[PollFd<'_>]) -> Option<u32> {
    let willing = fds.iter().filter(|fd| fd.socket.busy_poll() > 0);
    willing.map(|fd| fd.socket.host().busy_poll()).max().filter(|micros| *micros > 0)
}

/// The contexts that packets for `fds` come from, each once.
fn learn(fds: &[PollFd<'_>], contexts: &mut Vec<Arc<Context>>) {
    for context in fds.iter().filter_map(|fd| fd.socket.source().context()) {
        if !contexts.iter().any(|known| Arc::ptr_eq(known, &context)) {
            contexts.push(context);
        }
    }
}
