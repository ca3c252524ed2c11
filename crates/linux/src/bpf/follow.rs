//! What chosen processes open, reported at once: sockets, accepted connections, epoll instances, io_urings;
//! and their children's, if wanted. Program: `bpf/follow.bpf.c`.
//!
//! While this value lives every system call on the machine costs some tens of nanoseconds more. On
//! processors other than x86-64 openings are not reported.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use aya::include_bytes_aligned;
use aya::maps::{HashMap, MapData, RingBuf};

use super::{Programs, Record, failed};
use crate::error::Result;

/// An event of a followed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The process, in the initial PID namespace.
    pub pid: u32,
    /// The thread of it.
    pub tid: u32,
    /// The event.
    pub kind: EventKind,
}

/// What a followed process did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It has a new descriptor, which may be closed or reused by the time this is read.
    Opened {
        /// The descriptor.
        fd: i32,
        /// What kind of call made it.
        by: Opener,
    },
    /// It has a child, which is followed from now on.
    Forked {
        /// The child.
        child: u32,
    },
    /// It now runs another program; descriptors without close-on-exec remain.
    Executed,
    /// It has ended, and is no longer followed.
    Exited,
}

/// The system calls that make files to which busy polling can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// socket(2), of any family.
    Socket,
    /// accept(2), accept4(2). Busy-poll options are inherited from the listener.
    Accept,
    /// epoll_create(2), epoll_create1(2).
    Epoll,
    /// io_uring_setup(2).
    Uring,
}

const OPENED: u32 = 1;
const FORKED: u32 = 2;
const EXITED: u32 = 3;
const EXECUTED: u32 = 4;
static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/follow.bpf.o");

const CALLS: [(i64, Opener); 6] = [
    (libc::SYS_socket, Opener::Socket),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_accept, Opener::Accept),
    (libc::SYS_accept4, Opener::Accept),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_create, Opener::Epoll),
    (libc::SYS_epoll_create1, Opener::Epoll),
    (libc::SYS_io_uring_setup, Opener::Uring),
];

/// The events of the followed processes, from the start of this value.
///
/// ```no_run
/// use busypoll_linux::bpf::follow::{Follow, EventKind};
/// let mut follow = Follow::start(&[1234], true)?;
/// // poll(2) or epoll on `follow` sleeps until there is something
/// while let Some(event) = follow.next_event() {
///     if let EventKind::Opened { fd, by } = event.kind {
///         println!("{} has a new descriptor {fd} by {by:?}", event.pid);
///     }
/// }
/// # Ok::<(), busypoll_linux::Error>(())
/// ```
pub struct Follow {
    programs: Programs,
    events: RingBuf<MapData>,
}

impl Follow {
    /// Follows these processes, and with `children` those they start from now on.
    ///
    /// Files that are open already are not reported: list them *after* this returns, and none is missed.
    ///
    /// # Errors
    /// As [`super::available`].
    pub fn start(pids: &[u32], children: bool) -> Result<Self> {
        let children = u32::from(children).to_ne_bytes();
        let mut programs = Programs::load("follow", OBJECT, &[("children", &children)])?;
        let mut calls: HashMap<_, i64, u32> = programs.map("calls")?;
        for (number, _) in CALLS {
            calls.insert(number, 1, 0).map_err(|e| failed("follow", "filling calls", &e))?;
        }
        let events = programs.take_ring("events")?;
        let mut follow = Follow { programs, events };
        for pid in pids {
            follow.add(*pid)?;
        }
        for tracepoint in
            ["sched_process_exit", "sched_process_fork", "sched_process_exec", "sys_exit"]
        {
            follow.programs.attach_tracepoint(tracepoint)?;
        }
        Ok(follow)
    }

    /// Follows one more process.
    ///
    /// # Errors
    /// [`crate::Error::Os`] with more than 16,384 of them.
    pub fn add(&mut self, pid: u32) -> Result<()> {
        self.programs.add_process(pid)
    }

    /// Stops following a process.
    pub fn remove(&mut self, pid: u32) -> Result<()> {
        self.programs.remove_process(pid)
    }

    /// The next event, if there is one; does not wait. [`Follow::as_fd`] is a descriptor that poll(2) and
    /// epoll report readable when there is one.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let item = self.events.next()?;
            // An unknown kind of event is skipped.
            if let Some(event) = read(&item) {
                return Some(event);
            }
        }
    }

    /// The number of events dropped because the ring was full; if it grows, list the files
    /// again.
    pub fn lost(&mut self) -> Result<u64> {
        self.programs.lost()
    }
}

impl AsFd for Follow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsRawFd for Follow {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

fn read(item: &[u8]) -> Option<Event> {
    let mut r = Record(item);
    let [kind, pid, tid, fd] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let call = i64::from_ne_bytes(r.bytes());
    let kind = match kind {
        OPENED => {
            let (_, by) = CALLS.iter().find(|(number, _)| *number == call)?;
            EventKind::Opened { fd: i32::try_from(fd).ok()?, by: *by }
        }
        FORKED => EventKind::Forked { child: fd },
        EXECUTED => EventKind::Executed,
        EXITED => EventKind::Exited,
        _ => return None,
    };
    Some(Event { pid, tid, kind })
}
