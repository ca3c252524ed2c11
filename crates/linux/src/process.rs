//! Another process: its sockets and epoll instances, duplicated by pidfd_getfd(2), and how its threads wait.
//! Changes nothing in it; but a change to a duplicated descriptor's file affects the process too.
//!
//! Access is decided by `ptrace_may_access` (`kernel/ptrace.c`): the same user and a dumpable process, or
//! `CAP_SYS_PTRACE` in the process's user namespace.
//!
//! Kernel source: `kernel/pid.c` (`pidfd_getfd`), `fs/proc/fd.c`, `fs/eventpoll.c` (`ep_show_fdinfo`).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, geteuid, pidfd_getfd, pidfd_open};

use crate::caps::Capability;
use crate::error::{Error, Result};
use crate::stat::status_field;
use crate::topology::CpuList;

mod exec_path;
mod waits;
mod watch;

pub use waits::{Thread, Wait};
pub use watch::Watch;

/// A process, held by a pidfd: a later process with the same PID is not mistaken for it.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
    start_time: u64,
}

/// A descriptor that busy polling can apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its number in the process.
    pub fd: RawFd,
    /// What it is.
    pub kind: Kind,
}

/// The kind of a descriptor, by its link in `/proc/PID/fd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A socket of any family, with the number in `socket:[…]`.
    Socket {
        /// The same for every descriptor of the socket; reused only after the socket is gone.
        inode: u64,
    },
    /// An epoll instance.
    Epoll,
    /// An io_uring.
    Uring,
    /// A process of `busypoll run` that drives an interface's queues itself has this: the ledger of its sockets in
    /// the stack plane (`stack::ledger`). The library does not pass it on to children.
    StackPlane,
}

impl Process {
    /// Opens a pidfd of a process.
    ///
    /// ```
    /// use busypoll_linux::process::{Kind, Process};
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let myself = Process::open(std::process::id())?;
    /// for found in myself.descriptors()? {
    ///     if let (Kind::Socket { .. }, Some(fd)) = (found.kind, myself.duplicate_fd(found.fd)?) {
    ///         println!("fd {}: {} us", found.fd, busypoll_linux::sockopt::busy_poll(&fd)?);
    ///     }
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoProcess`], also for the number of a thread other than the first, and for a
    /// zombie.
    pub fn open(pid: u32) -> Result<Self> {
        let gone = || Error::NoProcess { pid };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|e| match e {
            rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT => gone(),
            rustix::io::Errno::NOSYS => {
                Error::Unsupported { what: "pidfd_open(2)", since: "5.3", with: "" }
            }
            e => Error::os(format!("opening a pidfd of process {pid}"), e.into()),
        })?;
        let start_time = stat(pid).ok_or_else(gone)?.start_time;
        let process = Process { pid, pidfd, start_time };
        // The PID could have passed to another process before its start time was read.
        if process.is_alive() { Ok(process) } else { Err(gone()) }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it started, in clock ticks since boot (`/proc/PID/stat`): with the PID this identifies a
    /// process while the machine runs.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0) | Err(rustix::io::Errno::INTR))
    }

    /// Its open descriptors that busy polling can apply to, by ascending number.
    ///
    /// # Errors
    /// [`Error::Denied`] if this user has no access; [`Error::NoProcess`] once it has ended.
    pub fn descriptors(&self) -> Result<Vec<Descriptor>> {
        let folder = self.path("fd");
        let entries = fs::read_dir(&folder).map_err(|e| self.explain("listing", e))?;
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| self.explain("listing", e))?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // A descriptor closed meanwhile has no link any more.
            let link = fs::read_link(entry.path());
            if let (Some(fd), Ok(link)) = (number, link)
                && let Some(kind) = kind_of(&link)
            {
                found.push(Descriptor { fd, kind });
            }
        }
        // The folder of a process that is ending reads as empty.
        if found.is_empty() && !self.is_alive() {
            return Err(Error::NoProcess { pid: self.pid });
        }
        found.sort_unstable_by_key(|descriptor| descriptor.fd);
        Ok(found)
    }

    /// The current kind of a descriptor; `None` if it is closed or of another kind.
    pub fn kind(&self, fd: RawFd) -> Option<Kind> {
        kind_of(&fs::read_link(self.path("fd").join(fd.to_string())).ok()?)
    }

    /// A descriptor of ours for the same open file; `None` if it is closed there.
    ///
    /// The number may have been reused since it was listed. To make sure, compare the duplicate: a
    /// socket by [`crate::socket::cookie`] and [`kind_of_own`], an epoll by [`watches_of_own`].
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::NoProcess`]; [`Error::Unsupported`] before Linux 5.6.
    pub fn duplicate_fd(&self, fd: RawFd) -> Result<Option<OwnedFd>> {
        match pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty()) {
            Ok(taken) => Ok(Some(taken)),
            Err(rustix::io::Errno::BADF) => Ok(None),
            Err(rustix::io::Errno::NOSYS) => {
                Err(Error::Unsupported { what: "pidfd_getfd(2)", since: "5.6", with: "" })
            }
            Err(e) => Err(self.explain("taking", e.into())),
        }
    }

    /// What one of its epoll instances watches, by ascending number; `None` if the descriptor is closed.
    /// Empty also if it is not an epoll instance.
    pub fn watches(&self, fd: RawFd) -> Option<Vec<Watch>> {
        watch::read(&self.path("fdinfo").join(fd.to_string()))
    }

    /// Its threads and how each waits at this moment.
    ///
    /// # Errors
    /// [`Error::NoProcess`] once it has ended.
    pub fn threads(&self) -> Result<Vec<Thread>> {
        waits::of(&self.path(""))
            .ok()
            .filter(|threads| !threads.is_empty())
            .ok_or(Error::NoProcess { pid: self.pid })
    }

    /// The wait of a thread of this process that is in a system call with these arguments, as
    /// `linux::bpf::threads` reports it.
    pub fn wait_in(&self, number: i64, args: &[u64; 6]) -> Wait {
        waits::of_call(&self.path(""), number, args)
    }

    /// Its executable; without permission only its name.
    pub fn program(&self) -> PathBuf {
        let name = || fs::read_to_string(self.path("comm")).unwrap_or_default().trim_end().into();
        fs::read_link(self.path("exe")).unwrap_or_else(|_| name())
    }

    /// The path it was started by, which may be a symbolic link or a script; `None` without permission.
    pub fn exec_path(&self) -> Option<PathBuf> {
        exec_path::exec_path(&self.path(""))
    }

    /// The name of its program, under which it was started: that of a symbolic link to its executable, else the
    /// executable's.
    pub fn program_name(&self) -> String {
        let executable = self.program();
        let is_it = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|path| path == executable);
        let path = self.exec_path().filter(is_it).unwrap_or(executable);
        path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    }

    /// The CPUs its main thread may run on; `None` once it has ended.
    pub fn allowed_cpus(&self) -> Option<CpuList> {
        let status = self.path("status");
        status_field(&status.to_string_lossy(), "Cpus_allowed_list").ok()?.parse().ok()
    }

    /// Its child processes.
    pub fn children(&self) -> Vec<u32> {
        let ours = |pid: &u32| stat(*pid).is_some_and(|stat| stat.parent == self.pid);
        all().into_iter().filter(ours).collect()
    }

    /// The network namespace of its main thread; sockets opened earlier may be in another one.
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::NoProcess`].
    pub fn netns(&self) -> Result<File> {
        let e = |e| self.explain("looking up the network namespace of", e);
        File::open(self.path("ns/net")).map_err(e)
    }

    /// Whether its main thread is in the calling thread's network namespace; `None` without
    /// permission.
    pub fn shares_our_netns(&self) -> Option<bool> {
        let theirs = fs::metadata(self.path("ns/net")).ok()?;
        let ours = fs::metadata("/proc/thread-self/ns/net").ok()?;
        Some((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    fn explain(&self, doing: &str, e: io::Error) -> Error {
        let pid = self.pid;
        if !self.is_alive() {
            return Error::NoProcess { pid };
        }
        let doing = format!("{doing} descriptors of process {pid}");
        match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::Denied {
                doing,
                capability: Capability::SysPtrace,
                scope: " in the process's user namespace",
                remedy: self.remedy(),
            },
            Some(libc::ESRCH | libc::ENOENT) => Error::NoProcess { pid },
            _ => Error::os(doing, e),
        }
    }

    fn remedy(&self) -> &'static str {
        let status = self.path("status");
        let uid = status_field(&status.to_string_lossy(), "Uid").unwrap_or_default();
        let ours = geteuid().as_raw().to_string();
        if uid.split_whitespace().any(|uid| uid != ours) {
            return "it belongs to another user: run as that user or as root";
        }
        // The files of a process that is not dumpable belong to root.
        if fs::metadata(self.path("fd")).is_ok_and(|m| m.uid() != geteuid().as_raw()) {
            return "it has made itself not dumpable (prctl PR_SET_DUMPABLE, or set-id): run as root";
        }
        "a security module (Yama's kernel.yama.ptrace_scope, SELinux, AppArmor) forbids it: run as root"
    }
}

impl AsFd for Process {
    /// The pidfd: readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// The scheduler state of a process or thread, and its real-time priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedState {
    /// `R`, `S`, `D`, `T` (stopped), `t` (stopped by a tracer), `Z` (zombie), ….
    pub state: char,
    /// The priority under `SCHED_FIFO` and `SCHED_RR`, 1 to 99; else 0.
    pub real_time: u32,
}

/// The state of a thread; a PID means its first thread. `None` if it has ended.
pub fn sched_state(tid: u32) -> Option<SchedState> {
    let stat = fs::read(format!("/proc/{tid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    // Fields 3 and 40 of proc_pid_stat(5).
    let state = fields.next()?.chars().next()?;
    Some(SchedState { state, real_time: fields.nth(36)?.parse().ok()? })
}

/// The name of a process or thread; `None` if it has ended.
pub fn name(tid: u32) -> Option<String> {
    // The kernel cuts names by bytes, possibly inside a character.
    let name = fs::read(format!("/proc/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// Whether a process has mapped a file of this name, as it does a library. False also of one that may not be read.
pub fn has_mapped(pid: u32, name: &str) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_it = |line: &[u8]| {
        let path = String::from_utf8_lossy(line);
        let path = path.trim_end_matches(" (deleted)");
        path.rsplit_once('/').is_some_and(|(_, file)| file == name)
    };
    maps.split(|byte| *byte == b'\n').any(is_it)
}

/// The CPU time of a process, all its threads, in nanoseconds; the kernel counts ticks of 10 ms. `None` if it has
/// ended.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, fields) = stat.rsplit_once(") ")?;
    // Fields 14 and 15 of proc_pid_stat(5).
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    Some(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

/// The kind of a descriptor of our own.
pub fn kind_of_own(fd: impl AsFd) -> Option<Kind> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    kind_of(&fs::read_link(path).ok()?)
}

/// What an epoll instance of our own watches; one that was duplicated from another process watches the same, with
/// that process's numbers.
pub fn watches_of_own(fd: impl AsFd) -> Option<Vec<Watch>> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    watch::read(Path::new(&path))
}

/// All processes that are visible here, by ascending PID.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    parent: u32,
    start_time: u64,
}

/// `None` for a process that has ended, reaped or not.
fn stat(pid: u32) -> Option<Stat> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any bytes, such as parentheses and a cut UTF-8 character. Fields 3, 4 and 22.
    let stat = String::from_utf8_lossy(&stat);
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    Some(Stat { parent: fields.next()?.parse().ok()?, start_time: fields.nth(17)?.parse().ok()? })
}

fn kind_of(link: &Path) -> Option<Kind> {
    match link.to_str()? {
        "anon_inode:[eventpoll]" => Some(Kind::Epoll),
        "anon_inode:[io_uring]" => Some(Kind::Uring),
        "/memfd:busypoll-ledger (deleted)" => Some(Kind::StackPlane),
        link => {
            let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
            Some(Kind::Socket { inode })
        }
    }
}
