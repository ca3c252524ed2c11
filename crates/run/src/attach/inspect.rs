//! What a process has: facts about its sockets and epoll instances.
//!
//! While we hold a duplicate of a descriptor, the process's close(2) does not close the file: no FIN is sent, and an
//! epoll instance goes on watching. So each is held for a few system calls only, and nothing is written to a disk
//! meanwhile.

use std::collections::{HashMap, HashSet};
use std::os::fd::{OwnedFd, RawFd};

use busypoll_linux::process::{self, Kind, Process, Wait, Watch};
use busypoll_linux::socket::{self, SocketInfo};
use busypoll_linux::{EpollParams, Error, NapiId, epoll, sockopt};

/// The state of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub fd: RawFd,
    pub inode: u64,
    pub info: SocketInfo,
    pub busy_poll: u32,
    pub prefer: bool,
    pub napi: Option<NapiId>,
}

/// The state of an epoll instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Epoll {
    pub fd: RawFd,
    pub watches: Vec<Watch>,
    /// Or why this kernel does not return them.
    pub params: Result<EpollParams, String>,
}

/// Takes a socket, checks that it is the one that was listed, reads its state and releases it; `None` if it is gone.
pub(super) fn socket(process: &Process, fd: RawFd) -> Result<Option<Socket>, Error> {
    let Some(Kind::Socket { inode }) = process.kind(fd) else { return Ok(None) };
    let Some(taken) = take(process, fd, Kind::Socket { inode })? else { return Ok(None) };
    let info = socket::info(&taken)?;
    Ok(Some(Socket {
        fd,
        inode,
        busy_poll: sockopt::busy_poll(&taken)?,
        // Older kernels without the option have nothing switched on.
        prefer: sockopt::prefer_busy_poll(&taken).unwrap_or(false),
        napi: sockopt::incoming_napi_id(&taken).unwrap_or(None),
        info,
    }))
}

/// Takes a descriptor if it is still of that kind, and for a socket still of that inode.
pub(super) fn take(process: &Process, fd: RawFd, kind: Kind) -> Result<Option<OwnedFd>, Error> {
    let taken = process.duplicate_fd(fd)?;
    Ok(taken.filter(|taken| process::kind_of_own(taken) == Some(kind)))
}

/// Takes an epoll instance whose list of watches equals the one in the process's fdinfo. `None` if there is none, or if
/// it changes too fast.
pub(super) fn take_epoll(
    process: &Process,
    fd: RawFd,
) -> Result<Option<(OwnedFd, Vec<Watch>)>, Error> {
    // A busy program adds and removes watches all the time.
    for _ in 0..8 {
        let before = process.watches(fd);
        let Some(taken) = take(process, fd, Kind::Epoll)? else { return Ok(None) };
        let own = process::watches_of_own(&taken);
        if let Some(own) = own.filter(|own| Some(own) == before.as_ref()) {
            return Ok(Some((taken, own)));
        }
    }
    Ok(None)
}

/// What an epoll instance watches and how it polls.
pub(super) fn epoll(process: &Process, fd: RawFd) -> Result<Option<Epoll>, Error> {
    let Some((taken, watches)) = take_epoll(process, fd)? else { return Ok(None) };
    Ok(Some(Epoll { fd, watches, params: epoll::params(&taken).map_err(|e| e.to_string()) }))
}

/// How the threads of a process wait, and on which descriptors.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    /// Threads in epoll_wait, by instance.
    pub epoll: HashMap<RawFd, usize>,
    /// The instances on which a thread waits that may sleep there.
    pub asleep: HashSet<RawFd>,
    /// Threads in poll or select, for each descriptor they wait on.
    pub poll: HashMap<RawFd, usize>,
    /// Threads in a receive call, by socket.
    pub receive: HashMap<RawFd, usize>,
    /// The number of threads.
    pub threads: usize,
    /// Threads that could not be inspected.
    pub unknown: usize,
    /// Threads that ran at every look.
    pub running: usize,
}

impl Waits {
    /// Looks a few times, as a thread that runs now may wait in a moment.
    pub fn of(process: &Process) -> Result<Self, Error> {
        let mut seen: HashMap<u32, Wait> = HashMap::new();
        for round in 0..4 {
            for thread in process.threads()? {
                let first = seen.get(&thread.tid).is_none_or(|wait| *wait == Wait::Running);
                if first {
                    seen.insert(thread.tid, thread.wait);
                }
            }
            if round == 3 || !seen.values().any(|wait| *wait == Wait::Running) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let mut waits = Waits { threads: seen.len(), ..Waits::default() };
        for wait in seen.into_values() {
            match wait {
                Wait::Epoll { fd, nonblock } => {
                    *waits.epoll.entry(fd).or_default() += 1;
                    if !nonblock {
                        waits.asleep.insert(fd);
                    }
                }
                Wait::Receive { fd, .. } => *waits.receive.entry(fd).or_default() += 1,
                Wait::Poll { fds } => {
                    fds.into_iter().for_each(|fd| *waits.poll.entry(fd).or_default() += 1);
                }
                Wait::Running => waits.running += 1,
                Wait::Unknown => waits.unknown += 1,
                Wait::Accept { .. } | Wait::Uring { .. } | Wait::Other(_) => {}
            }
        }
        Ok(waits)
    }
}
