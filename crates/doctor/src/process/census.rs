//! The processes under examination, with their sockets, epoll instances and threads, and how each thread
//! waits. Reads BPF iterators if they are allowed, else `/proc` and duplicated descriptors.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use busypoll_linux::bpf::files::{Files, Kind, OpenFile, Socket, Uring};
use busypoll_linux::bpf::threads::Threads;
use busypoll_linux::stat::ContextSwitches;
use busypoll_linux::{EpollParams, bpf, socket};

use super::descriptors::{Class, class};
use crate::{Error, Report, Scope, Subject};
use busypoll_linux::process::{self, Wait, Watch};

/// The processes with sockets that busy polling can apply to.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub(crate) processes: BTreeMap<u32, Process>,
}

/// A process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) threads: BTreeMap<u32, Thread>,
    /// What each epoll instance watches, by its descriptor; missing where it could not be read.
    pub(crate) watches: BTreeMap<RawFd, Vec<Watch>>,
    /// The sockets and threads of the process, indexed by how packets are waited for.
    wait_index: WaitIndex,
    /// Its sockets are in the stack plane of `busypoll run`. The process does not wait on their kernel companions, so
    /// these are left out.
    pub(crate) on_stack_plane: bool,
    /// `busypoll run` has started it: its library then decides for each wait whether the kernel polls, and turns polling
    /// off for a wait on a CPU that has a poller, or beyond `max_spinning_threads`.
    pub(crate) under_run: bool,
    /// Pins the process: a new process with the same PID is not read by mistake.
    handle: Option<process::Process>,
}

/// How a process waits for its sockets, indexed because there may be thousands of sockets.
#[derive(Debug, Default)]
pub(super) struct WaitIndex {
    /// The epoll instances that watch a socket, by its inode.
    pub(super) watchers: HashMap<u64, Vec<RawFd>>,
    pub(super) epolls: HashMap<RawFd, EpollParams>,
    /// Descriptors in poll or select; in blocking receive calls; in non-blocking ones of threads never seen asleep.
    pub(super) polled: HashSet<RawFd>,
    pub(super) received: HashSet<RawFd>,
    pub(super) spun: HashSet<RawFd>,
    pub(super) uring: bool,
}

/// A thread and the waits it was seen in.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub(crate) waits: BTreeSet<Wait>,
    /// Whether it was ever seen asleep.
    pub(crate) sleeps: bool,
    pub(crate) switches: ContextSwitches,
}

/// Enough samples to see a thread that works between two waits in one of them.
const SAMPLES: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(5);

impl Census {
    /// Takes the census, and reports what could not be seen.
    pub(crate) fn take(scope: &Scope, report: &mut Report) -> Result<Self, Error> {
        for pid in &scope.pids {
            if fs::metadata(format!("/proc/{pid}")).is_err() {
                let why = "no such process; ps lists the processes".to_owned();
                return Err(Error::Process { pid: *pid, why });
            }
        }
        let mut census = match Self::by_bpf(scope) {
            Ok(census) => census,
            Err(why) => super::unprivileged::census(scope, report, &why)?,
        };
        census.processes.retain(|_, p| p.sockets().next().is_some() || scope.pids.contains(&p.pid));
        for process in census.processes.values_mut() {
            // The guard maps the ledger too, but has no such socket.
            let has_companions = process.sockets().any(|(_, socket)| {
                !matches!(class(socket), Class::Raw | Class::Xdp | Class::Mptcp | Class::Other)
            });
            process.on_stack_plane = process.handle.as_ref().is_some_and(|handle| {
                let found = || handle.descriptors().unwrap_or_default();
                has_companions && found().iter().any(|f| f.kind == process::Kind::StackPlane)
            });
            process.under_run = process::has_mapped(process.pid, LIBRARY);
            if process.on_stack_plane {
                process.files.clear();
            }
            process.read_watches();
            process.index_waits();
        }
        Ok(census)
    }

    fn by_bpf(scope: &Scope) -> busypoll_linux::Result<Self> {
        bpf::available()?;
        let only = match scope.pids[..] {
            [pid] => Some(pid),
            _ => None,
        };
        let mut census = Census::default();
        for file in Files::load()?.of(only)? {
            if scope.wants(file.pid) {
                census.process(file.pid).files.push(file);
            }
        }
        for pid in &scope.pids {
            census.process(*pid);
        }
        let mut threads = Threads::load(only)?;
        census.sample(|census| {
            for thread in threads.now()? {
                let Some(process) = census.processes.get_mut(&thread.pid) else { continue };
                let seen = process.threads.entry(thread.tid).or_default();
                seen.switches = thread.switches;
                seen.sleeps |= !thread.running;
                if let (Some(call), Some(handle)) = (thread.syscall, &process.handle) {
                    seen.waits.insert(handle.wait_in(call.number, &call.args));
                }
            }
            Ok(())
        })?;
        Ok(census)
    }

    /// Samples the threads several times.
    pub(super) fn sample<E>(
        &mut self,
        mut look: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        for sample in 0..SAMPLES {
            if sample > 0 {
                thread::sleep(BETWEEN);
            }
            look(self)?;
        }
        Ok(())
    }

    /// The process with this PID, added if new.
    pub(super) fn process(&mut self, pid: u32) -> &mut Process {
        self.processes.entry(pid).or_insert_with(|| Process {
            pid,
            name: super::name(pid),
            handle: process::Process::open(pid).ok(),
            ..Process::default()
        })
    }

    /// Merges an earlier census: how threads waited, and processes that have ended since.
    pub(crate) fn absorb(&mut self, earlier: Census) {
        for (pid, before) in earlier.processes {
            match self.processes.entry(pid) {
                Entry::Vacant(free) => drop(free.insert(before)),
                Entry::Occupied(mut now) => {
                    for (tid, thread) in before.threads {
                        let seen = now.get_mut().threads.entry(tid).or_default();
                        seen.waits.extend(thread.waits);
                        seen.sleeps |= thread.sleeps;
                    }
                    now.get_mut().index_waits();
                }
            }
        }
    }

    /// The sockets of all processes.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.processes.values().flat_map(|p| p.sockets().map(|(_, s)| s))
    }
}

impl Thread {
    /// Whether it was seen in epoll_wait on this instance, asleep or not.
    pub(crate) fn waits_in_epoll(&self, epoll: RawFd) -> bool {
        self.waits.iter().any(|wait| matches!(wait, Wait::Epoll { fd, .. } if *fd == epoll))
    }
}

/// The library that `busypoll run` loads into a program.
const LIBRARY: &str = "libbusypoll_preload.so";

impl Process {
    /// The threads that were seen in such a wait.
    pub(crate) fn threads_that(&self, waits: impl Fn(&Wait) -> bool) -> BTreeSet<u32> {
        let found = self.threads.iter().filter(|(_, thread)| thread.waits.iter().any(&waits));
        found.map(|(tid, _)| *tid).collect()
    }

    /// Whether every epoll_wait seen on this instance has a timeout of 0: such a call does not busy poll.
    pub(crate) fn spins_on_epoll(&self, epoll: RawFd) -> bool {
        let calls = |nonblock: bool| {
            let wanted = Wait::Epoll { fd: epoll, nonblock };
            self.threads.values().any(|thread| thread.waits.contains(&wanted))
        };
        calls(true) && !calls(false)
    }

    /// The epoll instance, of those that watch a socket, that threads wait in.
    pub(crate) fn epoll_of(&self, epolls: &[RawFd]) -> Option<RawFd> {
        let waited = |epoll: &&RawFd| self.threads.values().any(|t| t.waits_in_epoll(**epoll));
        epolls.iter().find(waited).or(epolls.first()).copied()
    }

    /// The outer instance through which threads wait for this one. It watches this one, in which no thread waits.
    pub(crate) fn waited_through(&self, epoll: RawFd) -> Option<RawFd> {
        let waited = Wait::Epoll { fd: epoll, nonblock: false };
        if self.threads.values().any(|thread| thread.waits.contains(&waited)) {
            return None;
        }
        let watches = |watched: &[Watch]| watched.iter().any(|w| !w.socket && w.fd == epoll);
        self.watches
            .iter()
            .find(|(outer, watched)| **outer != epoll && watches(watched))
            .map(|(o, _)| *o)
    }

    pub(super) fn wait_index(&self) -> &WaitIndex {
        &self.wait_index
    }

    fn index_waits(&mut self) {
        let mut index = WaitIndex::default();
        for (epoll, watched) in &self.watches {
            for watch in watched.iter().filter(|watch| watch.socket) {
                index.watchers.entry(watch.inode).or_default().push(*epoll);
            }
        }
        for file in &self.files {
            if let Kind::Epoll { params, .. } = file.kind {
                index.epolls.entry(file.fd).or_insert(params);
            }
        }
        for thread in self.threads.values() {
            for wait in &thread.waits {
                match wait {
                    // A thread that sleeps elsewhere only drains the socket with such a call.
                    Wait::Receive { fd, nonblock: true } if !thread.sleeps => {
                        index.spun.insert(*fd);
                    }
                    Wait::Receive { fd, nonblock: false } => {
                        index.received.insert(*fd);
                    }
                    Wait::Poll { fds } => index.polled.extend(fds),
                    Wait::Uring { .. } => index.uring = true,
                    _ => {}
                }
            }
        }
        self.wait_index = index;
    }

    fn read_watches(&mut self) {
        let Some(handle) = &self.handle else { return };
        for file in &self.files {
            // An instance that cannot be read is left out: an empty list would mean that it watches nothing.
            if matches!(file.kind, Kind::Epoll { .. })
                && let Some(watched) = handle.watches(file.fd)
            {
                self.watches.insert(file.fd, watched);
            }
        }
    }

    /// Its sockets with their descriptors.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (RawFd, &Socket)> {
        self.files.iter().filter_map(|f| match &f.kind {
            Kind::Socket(socket) => Some((f.fd, &**socket)),
            _ => None,
        })
    }

    /// Its io_urings.
    pub(crate) fn rings(&self) -> impl Iterator<Item = Uring> {
        self.files.iter().filter_map(|f| match f.kind {
            Kind::Uring(ring) => Some(ring),
            _ => None,
        })
    }

    /// Whether busy polling is switched on for any of its descriptors.
    pub(crate) fn has_switched_on(&self) -> bool {
        self.files.iter().any(|file| match &file.kind {
            Kind::Socket(socket) => socket.busy_poll_usecs > 0 || socket.prefer_busy_poll,
            Kind::Epoll { params, .. } => params.busy_poll_usecs > 0 || params.prefer_busy_poll,
            Kind::Uring(ring) => ring.busy_poll_ns > 0,
        })
    }

    /// Whether the kernel decrypts what one of its kTLS sockets receives; assumed true if the socket cannot be
    /// read.
    pub(super) fn decrypts(&self, fd: RawFd) -> bool {
        let socket = self.handle.as_ref().and_then(|handle| handle.duplicate_fd(fd).ok().flatten());
        socket.and_then(|socket| socket::receives_by_ktls(socket).ok()).unwrap_or(true)
    }

    /// The handle of the process, unless it has ended.
    pub(super) fn handle(&self) -> Option<&process::Process> {
        self.handle.as_ref()
    }

    /// The process as the subject of a finding.
    pub(crate) fn subject(&self) -> Subject {
        Subject::Process { pid: self.pid, name: self.name.clone() }
    }

    /// One of its descriptors as the subject of a finding.
    pub(crate) fn descriptor(&self, fd: RawFd, what: impl Into<String>) -> Subject {
        let fd = fd.unsigned_abs();
        Subject::Descriptor { pid: self.pid, name: self.name.clone(), fd, what: what.into() }
    }
}

impl Scope {
    /// Whether this process was asked for.
    pub(crate) fn wants(&self, pid: u32) -> bool {
        self.pids.is_empty() || self.pids.contains(&pid)
    }
}
