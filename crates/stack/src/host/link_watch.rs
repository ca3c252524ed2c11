//! Links whose other end is a process: a thread waits for that process to end, and then ends its connections.

use crate::{
    inet::{Context, Inet, Interface, Pass, Poller},
    napi::{BusyPoll, NAPI_POLL_WEIGHT, PolledBy},
    nic::Interrupt,
    sys,
    thread::{Thread, serve},
    time,
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::yield_now,
};

/// A process that goes on writing after it has hung up is read for as many passes: more than any ring holds.
const LAST_PASSES: usize = (1 << 16) / NAPI_POLL_WEIGHT + 1;

/// Not the number of a socket.
const NO_SOCKET: usize = usize::MAX;

/// One link to another process.
pub(super) struct Link {
    pub(super) interrupt: Arc<dyn Interrupt>,
    pub(super) context: Arc<Context>,
    pub(super) interface: Arc<Interface>,
}

/// The thread that watches links. Dropping this ends it.
pub(super) struct LinkWatch {
    stop: Arc<OwnedFd>,
    thread: Option<Thread>,
}

impl LinkWatch {
    /// # Errors
    /// No descriptor or thread left.
    pub(super) fn start(inet: Arc<Inet>, links: Vec<Link>) -> io::Result<LinkWatch> {
        let stop = Arc::new(sys::eventfd()?);
        let links: Vec<_> = links.into_iter().map(|link| (link, AtomicBool::new(false))).collect();
        let stopped = stop.clone();
        let thread = serve("busypoll/links", move || watch(&inet, &links, &stopped))?;
        Ok(LinkWatch { stop, thread: Some(thread) })
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        sys::signal(self.stop.as_raw_fd());
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// Each link, and whether it has ended.
fn watch(inet: &Inet, links: &[(Link, AtomicBool)], stop: &OwnedFd) {
    let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
    loop {
        let mut fds = vec![entry(stop.as_raw_fd(), libc::POLLIN)];
        fds.extend(links.iter().map(|(link, ended)| {
            let fd = link.interrupt.hang_up().filter(|_| !ended.load(Ordering::Relaxed));
            // No events: only a hang-up, no doorbell, wakes this thread.
            entry(fd.map_or(-1, |fd| fd.as_raw_fd()), 0)
        }));
        if sys::poll_all(&mut fds, None) < 0 {
            continue;
        }
        if fds[0].revents != 0 {
            return;
        }
        for ((link, ended), fd) in links.iter().zip(&fds[1..]) {
            if fd.revents != 0 {
                ended.store(true, Ordering::Relaxed);
                link.end(inet);
            }
        }
    }
}

impl Link {
    #[cold]
    fn end(&self, inet: &Inet) {
        self.interrupt.hung_up();
        self.take_last_frames();
        let mut pass = Pass::new(None, time::now(), PolledBy::Kernel);
        inet.end_link(&self.interface, &mut pass);
        pass.wake.wake_all();
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
