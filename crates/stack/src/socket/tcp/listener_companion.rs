//! The kernel socket beside a listener, and how threads that wait for the listener learn of its connections. The host's
//! thread notifies them. While one client after the other comes by the kernel, threads in epoll waits poll the socket
//! themselves instead: another thread in between would double the cost of such a connection.

use super::{endpoint::Endpoint, stream::pass};
use crate::{
    host::{CompanionEndpoint, CompanionListener, CompanionService},
    inet::{
        Pass,
        tcp::{Ready, TcpEndpoint},
    },
    sync::lock,
    sys,
};
use std::{
    io,
    net::{TcpListener as KernelListener, TcpStream as KernelStream},
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

/// How many looks that find none one accepted connection is worth.
const ACCEPTED: u32 = 32;
/// From so many on threads poll, until none is left.
const MANY: u32 = 8 * ACCEPTED;
const MOST: u32 = 4 * MANY;

/// The kernel socket beside a listener.
#[derive(Debug)]
pub(super) struct ListenerCompanion {
    state: Arc<State>,
    kernel: CompanionListener,
    /// Grows by each connection that is accepted, and shrinks by each look that finds none.
    recent: AtomicU32,
    /// Threads that wait poll it; the host's thread does not notify them.
    is_polled: AtomicBool,
    /// Some waits do not poll it: the host's thread notifies them, from now on.
    is_notified: AtomicBool,
    /// Held while one of the two changes.
    changing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// Connections may wait at the kernel socket.
    may_be_readable: AtomicBool,
    /// A look has found one since the last accept, and was not used yet.
    is_seen: AtomicBool,
    endpoint: Arc<Endpoint>,
    /// The kernel socket, to be polled.
    kernel: RawFd,
    /// Held while it is polled or accepted from: so no waiter is notified of a connection that was accepted already.
    checking: Mutex<()>,
}

impl State {
    /// Notifies of a connection that waits there. False: there is none.
    fn look(&self, pass: &mut Pass<'_>) -> bool {
        let _checking = lock(&self.checking);
        let is_readable = sys::poll(self.kernel, Some(Duration::ZERO)) > 0;
        if is_readable {
            self.may_be_readable.store(true, Ordering::SeqCst);
            self.endpoint.changed(Ready::READABLE, None, pass);
        }
        is_readable
    }
}

impl CompanionEndpoint for State {
    fn readable(&self, pass: &mut Pass<'_>) {
        self.look(pass);
    }
}

impl ListenerCompanion {
    /// # Errors
    /// No memory left in the kernel.
    pub(super) fn new(
        service: &CompanionService,
        kernel: KernelListener,
        endpoint: &Arc<Endpoint>,
    ) -> io::Result<ListenerCompanion> {
        let state = Arc::new(State {
            may_be_readable: AtomicBool::new(true),
            is_seen: AtomicBool::new(false),
            endpoint: endpoint.clone(),
            kernel: kernel.as_raw_fd(),
            checking: Mutex::new(()),
        });
        Ok(ListenerCompanion {
            kernel: service.add_listener(kernel, state.clone())?,
            state,
            recent: AtomicU32::new(0),
            is_polled: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
            changing: Mutex::new(()),
        })
    }

    /// The next of the kernel's connections. `check`: tries even if no connection was notified.
    pub(super) fn accept(&self, check: bool) -> Option<io::Result<KernelStream>> {
        // Cleared before the check: a connection after the check sets it again.
        if !self.state.may_be_readable.swap(false, Ordering::SeqCst) && !check {
            return None;
        }
        let _checking = lock(&self.state.checking);
        self.state.is_seen.store(false, Ordering::SeqCst);
        let accepted = self.kernel.accept();
        if accepted.is_some() {
            self.accepted();
        }
        accepted
    }

    /// The kernel's next connection, taken by `accept`, which does not wait.
    pub(super) fn accept_by<T>(
        &self,
        accept: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let _checking = lock(&self.state.checking);
        // Cleared before: a connection that comes after it has found none sets it again.
        self.state.may_be_readable.store(false, Ordering::SeqCst);
        self.state.is_seen.store(false, Ordering::SeqCst);
        let accepted = accept(self.kernel.fd());
        if accepted.is_ok() {
            self.accepted();
        }
        accepted
    }

    fn accepted(&self) {
        self.state.may_be_readable.store(true, Ordering::SeqCst);
        let recent = self.recent.load(Ordering::Relaxed) + ACCEPTED;
        self.recent.store(recent.min(MOST), Ordering::Relaxed);
    }

    /// Whether a connection was notified and not accepted yet; true at first, before any check.
    pub(super) fn may_be_readable(&self) -> bool {
        self.state.may_be_readable.load(Ordering::SeqCst)
    }

    /// Whether there is a connection to accept.
    pub(super) fn is_readable(&self) -> bool {
        if self.state.is_seen.swap(false, Ordering::SeqCst) {
            return true;
        }
        let may_be = self.state.may_be_readable.swap(false, Ordering::SeqCst);
        if !may_be && !self.is_polled.load(Ordering::SeqCst) {
            return false;
        }
        let readable = self.kernel.is_readable();
        if readable {
            self.state.may_be_readable.store(true, Ordering::SeqCst);
        }
        readable
    }

    /// For a thread that begins to wait and has been counted in `threads`: the socket, if it is to poll it.
    pub(super) fn to_poll(&self, threads: impl Fn() -> u32) -> Option<RawFd> {
        let is_polled = self.is_polled.load(Ordering::SeqCst)
            || self.recent.load(Ordering::Relaxed) >= MANY && self.begin_polling(threads);
        is_polled.then_some(self.state.kernel)
    }

    #[cold]
    fn begin_polling(&self, threads: impl Fn() -> u32) -> bool {
        let _changing = lock(&self.changing);
        if self.is_notified.load(Ordering::SeqCst) {
            return false;
        }
        // A thread that waits already does not poll: it is counted here, or else sees this when it begins.
        self.is_polled.store(true, Ordering::SeqCst);
        let begins = threads() <= 1 && self.kernel.set_notified(false).is_ok();
        if !begins {
            self.is_polled.store(false, Ordering::SeqCst);
            self.recent.store(0, Ordering::Relaxed);
        }
        begins
    }

    fn end_polling(&self) {
        let _changing = lock(&self.changing);
        if self.is_polled.swap(false, Ordering::SeqCst) {
            // It is registered: it cannot fail.
            let _ = self.kernel.set_notified(true);
        }
    }

    /// The host's thread notifies of its connections from now on.
    pub(super) fn notify_always(&self) {
        if !self.is_notified.load(Ordering::Relaxed)
            && !self.is_notified.swap(true, Ordering::SeqCst)
        {
            self.end_polling();
        }
    }

    /// A look by a thread that polls it.
    pub(super) fn look(&self) {
        if !self.is_polled.load(Ordering::SeqCst) {
            return;
        }
        let mut pass = pass();
        if self.state.look(&mut pass) {
            self.state.is_seen.store(true, Ordering::SeqCst);
        } else {
            let recent = self.recent.load(Ordering::Relaxed).saturating_sub(1);
            self.recent.store(recent, Ordering::Relaxed);
            if recent == 0 {
                self.end_polling();
            }
        }
        pass.wake.wake_all();
    }
}
