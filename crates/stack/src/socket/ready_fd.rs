//! A descriptor that says when a socket is ready, for programs that wait in the kernel: poll(2), epoll(7), mio, an async
//! runtime's reactor. A socket without one pays nothing for it: the descriptor is one more watcher.

use super::{
    readiness::{Events, Watch},
    source::{Socket, Source},
};
use crate::{
    host::PollerSlot,
    napi::{NapiId, Waiter, WakeList},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{Arc, Weak},
};

/// An eventfd that is readable while a socket, or an [`Epoll`](super::Epoll), has one of the events that it was made
/// for. Watch it for reading, also if it stands for [`Events::WRITABLE`].
///
/// It becomes readable by itself and unreadable by [`clear`](ReadyFd::clear) alone. So use it as an edge: call the
/// socket, which is to be non-blocking, until it returns `WouldBlock`, then `clear`; [`try_io`](ReadyFd::try_io) does
/// both. Then a level-triggered wait returns as long as there is something to do, and an edge-triggered one reports
/// every event that comes after `clear`. It may report an event that another thread has handled meanwhile.
///
/// One descriptor has one set of events. A socket that is waited for in both directions has two, as a socket is
/// writable nearly always.
///
/// ```
/// use busypoll_stack::{Events, Host, ReadyFd, UdpSocket, nic::cable};
/// use std::{io, os::fd::AsRawFd};
/// # let (a, _b) = cable::pair(cable::Config::default())?;
/// # let host = Host::builder().interface(a, "10.0.0.1/24").build()?;
/// let socket = UdpSocket::bind(&host, "10.0.0.1:5000")?;
/// socket.set_nonblocking(true)?;
/// let ready = ReadyFd::new(&socket, Events::READABLE)?;
/// socket.send_to(b"to myself", "10.0.0.1:5000")?;
///
/// let mut fds = [libc::pollfd { fd: ready.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
/// // SAFETY: one entry.
/// assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, -1) }, 1);
/// let mut buffer = [0; 16];
/// assert_eq!(ready.try_io(|| socket.recv(&mut buffer))?, 9);
/// let empty = ready.try_io(|| socket.recv(&mut buffer)).unwrap_err();
/// assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
/// // SAFETY: as above.
/// assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) }, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ReadyFd {
    signal: Arc<Signal>,
    source: Weak<dyn Source>,
    poller_slot: Option<Arc<PollerSlot>>,
}

/// The watcher behind a descriptor.
#[derive(Debug)]
struct Signal {
    waiter: Arc<Waiter>,
    interest: Events,
}

impl Watch for Signal {
    fn notify(&self, events: Events, _: Option<NapiId>, wake: &mut WakeList) -> bool {
        let concerned = !events.reported(self.interest).is_empty();
        if concerned {
            wake.push(self.waiter.clone());
        }
        concerned
    }

    fn closed(&self) {
        self.waiter.wake();
    }
}

impl ReadyFd {
    /// A descriptor for `events` of `socket`; errors and hang-ups always count as well.
    ///
    /// # Errors
    /// No descriptor is left (EMFILE, ENFILE).
    pub fn new(socket: &dyn Socket, events: Events) -> io::Result<ReadyFd> {
        let poller_slot = socket.host().poller_slot().clone();
        ReadyFd::of_source(&socket.shared_source(), events, Some(poller_slot))
    }

    pub(super) fn of_source(
        source: &Arc<dyn Source>,
        interest: Events,
        poller_slot: Option<Arc<PollerSlot>>,
    ) -> io::Result<ReadyFd> {
        let signal = Arc::new(Signal { waiter: Arc::new(Waiter::new()?), interest });
        source.watch(signal.clone());
        let ready_fd = ReadyFd { signal, source: Arc::downgrade(source), poller_slot };
        ready_fd.clear();
        Ok(ready_fd)
    }

    /// Makes the descriptor unreadable until the next event; it stays readable if there is one already. To be called
    /// after a call on the socket has returned `WouldBlock`. Returns the events found.
    pub fn clear(&self) -> Events {
        self.signal.waiter.arm_event();
        let Some(source) = self.source.upgrade().filter(|source| !source.is_closed()) else {
            self.signal.waiter.wake();
            return Events::HANGUP;
        };
        let found = source.readiness().reported(self.signal.interest);
        if !found.is_empty() {
            self.signal.waiter.wake();
        } else if let Some(slot) = &self.poller_slot {
            source.for_each_context(&mut |context| slot.begin_wait(Some(context)));
        }
        found
    }

    /// Makes `call`, and [clears](ReadyFd::clear) the descriptor if it returns `WouldBlock`.
    ///
    /// # Errors
    /// The call's own.
    pub fn try_io<T>(&self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let result = call();
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.clear();
        }
        result
    }
}

impl AsFd for ReadyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.waiter.event_fd().expect("the waiter was made with an eventfd")
    }
}

impl AsRawFd for ReadyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for ReadyFd {
    fn drop(&mut self) {
        if let Some(source) = self.source.upgrade() {
            let watch: Arc<dyn Watch> = self.signal.clone();
            source.unwatch(&watch);
        }
    }
}
