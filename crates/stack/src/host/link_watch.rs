//! Links whose other end is a process: a thread waits for that process to end, and then ends its connections.

use super::DatagramLinks;
use crate::{
    inet::{Context, Inet, Interface, Pass, Poller, Serving},
    ledger::QueuePlace,
    napi::{BusyPoll, NAPI_POLL_WEIGHT, PolledBy},
    nic::Interrupt,
    sync::lock,
    sys,
    thread::{Thread, serve},
    time,
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::yield_now,
};

/// A process that goes on writing after it has hung up is read for as many passes: more than any ring holds.
const LAST_PASSES: usize = (1 << 16) / NAPI_POLL_WEIGHT + 1;

/// The contexts of links. The interrupt thread of the first one runs the timers of a host without an interface.
pub(super) type LinkTimers = Arc<Mutex<Vec<Weak<Context>>>>;

/// Not the number of a socket.
const NO_SOCKET: usize = usize::MAX;

/// One link to another process.
pub(super) struct Link {
    pub(super) interrupt: Arc<dyn Interrupt>,
    pub(super) context: Arc<Context>,
    pub(super) interface: Arc<Interface>,
    /// Where its addresses are known; `None`: it is an interface of the host.
    pub(super) datagrams: Option<Arc<DatagramLinks>>,
    /// The contexts of all links; `None`: it is an interface of the host.
    pub(super) timers: Option<LinkTimers>,
    /// What serves its queue, for as long as the link exists; `None`: the host does.
    pub(super) _serving: Option<Serving>,
    /// Where its queue counts; after `_serving`, which counts there until it is dropped.
    pub(super) _place: Option<QueuePlace>,
}

/// The thread that watches links. Dropping this ends it, and the links that it has.
pub(super) struct LinkWatch {
    watched: Arc<Watched>,
    thread: Option<Thread>,
}

struct Watched {
    links: Mutex<Vec<Link>>,
    /// The numbers of links to be closed.
    closing: Mutex<Vec<u32>>,
    /// The thread looks at the other fields again.
    changed: OwnedFd,
    stop: AtomicBool,
}

impl LinkWatch {
    /// # Errors
    /// No descriptor or thread left.
    pub(super) fn start(inet: Arc<Inet>, links: Vec<Link>) -> io::Result<LinkWatch> {
        let (links, stop, closing) = (Mutex::new(links), AtomicBool::new(false), Mutex::default());
        let watched = Arc::new(Watched { links, closing, changed: sys::eventfd()?, stop });
        let shared = watched.clone();
        let thread = serve("busypoll/links", move || shared.watch(&inet))?;
        Ok(LinkWatch { watched, thread: Some(thread) })
    }

    /// Takes the frames that have come over each link so far.
    pub(super) fn take_frames(&self) {
        lock(&self.watched.links).iter().for_each(Link::take_last_frames);
    }

    /// Watches one more.
    pub(super) fn add(&self, link: Link) {
        lock(&self.watched.links).push(link);
        sys::signal(self.watched.changed.as_raw_fd());
    }

    /// Closes the link of that number.
    pub(super) fn close(&self, number: u32) {
        lock(&self.watched.closing).push(number);
        sys::signal(self.watched.changed.as_raw_fd());
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.watched.stop.store(true, Ordering::Relaxed);
        sys::signal(self.watched.changed.as_raw_fd());
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Watched {
    fn watch(&self, inet: &Inet) {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        while !self.stop.load(Ordering::Relaxed) {
            let mut fds = vec![entry(self.changed.as_raw_fd(), libc::POLLIN)];
            fds.extend(lock(&self.links).iter().map(|link| {
                // No events: only a hang-up, no doorbell, wakes this thread.
                entry(link.interrupt.hang_up().map_or(-1, |fd| fd.as_raw_fd()), 0)
            }));
            if sys::poll_all(&mut fds, None) < 0 {
                continue;
            }
            if fds[0].revents != 0 {
                sys::drain(self.changed.as_raw_fd());
                self.close_some(inet);
                // What was polled may be others' numbers now.
                continue;
            }
            // Only this thread removes links, and new ones come last.
            for at in (1..fds.len()).rev().filter(|at| fds[*at].revents != 0) {
                let link = lock(&self.links).remove(at - 1);
                link.end(inet);
            }
        }
    }

    fn close_some(&self, inet: &Inet) {
        for number in std::mem::take(&mut *lock(&self.closing)) {
            let mut links = lock(&self.links);
            let at = links.iter().position(|link| link.interface.link() == number);
            let link = at.map(|at| links.remove(at));
            drop(links);
            link.into_iter().for_each(|link| link.end(inet));
        }
    }
}

impl Link {
    #[cold]
    fn end(&self, inet: &Inet) {
        self.datagrams.iter().for_each(|known| known.remove(self.interface.link()));
        self.interrupt.hung_up();
        self.take_last_frames();
        let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
        inet.end_link(&self.interface, &mut pass);
        pass.wake.wake_all();
        self.leave_timers();
    }

    /// Another link's interrupt thread runs the timers from now on.
    fn leave_timers(&self) {
        let Some(timers) = &self.timers else { return };
        let own = Arc::downgrade(&self.context);
        let mut timers = lock(timers);
        timers.retain(|context| !context.ptr_eq(&own));
        let next = timers.iter().find_map(Weak::upgrade);
        drop(timers);
        if let Some(context) = next {
            context.tick_by(time::now());
        }
    }

    /// The connections get what the other process had sent.
    fn take_last_frames(&self) {
        let mut passes = 0;
        while passes < LAST_PASSES {
            match self.context.busy_poll(NAPI_POLL_WEIGHT, time::now(), &mut Poller::new(NO_SOCKET))
            {
                BusyPoll::Found(0) | BusyPoll::Gone => return,
                BusyPoll::Found(_) => passes += 1,
                // Another thread takes them.
                BusyPoll::Refused => yield_now(),
            }
        }
    }
}
