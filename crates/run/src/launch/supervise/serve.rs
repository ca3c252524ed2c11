//! The supervisor at work: answers notifications, and watches what has appeared.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_linux::process::{Descriptor, Kind, Process, Wait};
use busypoll_linux::spinners::Spinners;
use busypoll_linux::{EpollParams, epoll, socket, sockopt};
use busypoll_policy::{Launch, Plane, Policy, Protocol, Settings, say};
use libc::{seccomp_notif, seccomp_notif_addfd, seccomp_notif_resp};
use rustix::event::epoll as instance;
use rustix::event::{PollFd, PollFlags, poll};

use super::outstanding::Outstanding;
use super::spin_policy::{OurValues, Watched};
use crate::names;

/// When a process is scanned after it has made a datagram socket.
const SCAN_DELAYS: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(20), Duration::from_millis(300)];

/// The length of the queue to the watching thread, which may block while it writes a line that is not read.
const QUEUE_LEN: usize = 1 << 12;

/// How many sockets that programs have set are remembered. Of forgotten ones only the value shows it.
const MAX_PROGRAM_SET: usize = 1 << 16;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: the supervisor runs at once, on the CPU that the caller leaves (Linux 6.6).
const SYNC_WAKE_UP: u64 = 1;

/// Serves until the last process under the filter has ended. First the call continues that a previous worker has left
/// `outstanding`.
pub(super) fn serve(notifications: &OwnedFd, outstanding: &Outstanding, launch: &Launch) {
    outstanding.resume(notifications);
    // SAFETY: the request takes a number. A kernel without it is only slower.
    unsafe {
        libc::ioctl(notifications.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP);
    }
    let policy =
        Applied { launch, ours: values(&launch.policy), program_set: ProgramSet::default() };
    thread::scope(|scope| {
        let (send, events) = mpsc::sync_channel(QUEUE_LEN);
        let mut watcher = Watcher {
            policy: &policy,
            scans: Vec::new(),
            watched: HashMap::new(),
            lines: HashSet::new(),
            spinners: launch
                .shared
                .as_deref()
                .and_then(|path| Spinners::open(Path::new(path)).ok()),
        };
        // If no thread can be started, no process is watched.
        let _ = thread::Builder::new().spawn_scoped(scope, move || watcher.run(&events));
        Responder { notifications, outstanding, policy: &policy, send }.serve();
    });
}

/// Sockets, by cookie, whose value the program has set, whatever it is.
#[derive(Default)]
pub(super) struct ProgramSet(Mutex<HashSet<u64>>);

impl ProgramSet {
    /// Does `work` with a socket, unless it is one of them. The lock is held, so it cannot become one meanwhile.
    pub fn if_not_set(&self, taken: &OwnedFd, work: impl FnOnce()) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() || !socket::cookie(taken).is_ok_and(|cookie| all.contains(&cookie)) {
            work();
        }
    }

    fn add(&self, cookie: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == MAX_PROGRAM_SET {
            all.clear();
        }
        all.insert(cookie);
    }
}

/// The policy, and what was applied to sockets.
struct Applied<'a> {
    launch: &'a Launch,
    /// The values that we may have written to a socket or an epoll instance, in microseconds. Any other value is the
    /// program's own.
    ours: HashSet<u32>,
    program_set: ProgramSet,
}

impl Applied<'_> {
    /// Applies the settings to a socket, and returns them; `None` if it has none. Failures are added to `lines`.
    fn configure_socket(
        &self,
        process: &Process,
        fd: RawFd,
        lines: &mut Vec<String>,
    ) -> Option<Settings> {
        let taken = match process.duplicate_fd(fd) {
            Ok(taken) => taken?,
            Err(error) => {
                lines.extend(failed(process, &error));
                return None;
            }
        };
        let settings = settings_of(&self.launch.policy, process, &taken)?;
        let micros = settings.kernel_micros();
        // The program's own choice stands.
        self.program_set.if_not_set(&taken, || {
            let current = sockopt::busy_poll(&taken).unwrap_or(0);
            if !self.ours.contains(&current) || current == micros {
                return;
            }
            if let Err(error) = sockopt::set_busy_poll(&taken, micros) {
                lines.extend(failed(process, &error));
            }
            if micros > 0 && settings.prefer_busy_poll {
                let _ = sockopt::set_prefer_busy_poll(&taken, true);
            }
            if micros > 0 && settings.busy_poll_budget > 0 {
                let _ = sockopt::set_busy_poll_budget(&taken, settings.busy_poll_budget);
            }
        });
        Some(settings)
    }
}

/// The line for a failure with a process, unless it has ended meanwhile.
fn failed(process: &Process, error: &busypoll_linux::Error) -> Option<String> {
    // An exiting process has no descriptors any more, but is still alive.
    let ends = matches!(error, busypoll_linux::Error::NoProcess { .. });
    (!ends && process.is_alive()).then(|| error.to_string())
}

/// Messages from the answering thread to the watching thread.
enum Event {
    /// Scan this process soon.
    Scan(u32),
    /// This process may begin to poll.
    Watch(u32),
    Report(String),
}

/// Receives notifications and answers them, and does nothing else, as the callers wait for it.
struct Responder<'a> {
    notifications: &'a OwnedFd,
    outstanding: &'a Outstanding,
    policy: &'a Applied<'a>,
    send: mpsc::SyncSender<Event>,
}

impl Responder<'_> {
    fn serve(&self) {
        loop {
            let mut fds = [PollFd::new(self.notifications, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) if fds[0].revents().contains(PollFlags::IN) => {
                    if let Some(call) = self.outstanding.receive(self.notifications) {
                        self.answer(&call);
                    }
                }
                _ => return,
            }
        }
    }

    fn answer(&self, call: &seccomp_notif) {
        let number = libc::c_long::from(call.data.nr);
        let argument = call.data.args[0];
        let process = process_of(call.pid);
        let mut lines = Vec::new();
        match number {
            libc::SYS_epoll_create1 => {
                self.make_epoll(call, process.as_ref(), argument as i32);
                return;
            }
            #[cfg(target_arch = "x86_64")]
            // Its argument is a hint, and must be above zero.
            libc::SYS_epoll_create if argument as i32 > 0 => {
                self.make_epoll(call, process.as_ref(), 0);
                return;
            }
            libc::SYS_bind | libc::SYS_connect | libc::SYS_listen => {
                if let Some(process) = &process {
                    self.policy.configure_socket(process, argument as RawFd, &mut lines);
                }
            }
            libc::SYS_setsockopt => {
                if let Some(process) = &process {
                    self.leave_alone(process, argument as RawFd);
                }
            }
            _ => {}
        }
        // All before the answer: after it, the next notification waits.
        let scans = process.map(|process| Event::Scan(process.pid()));
        lines.into_iter().map(Event::Report).chain(scans).for_each(|event| self.send(event));
        continue_call(self.notifications, call.id);
    }

    fn send(&self, event: Event) {
        // The watching thread may be missing or too slow; the caller does not wait for it.
        let _ = self.send.try_send(event);
    }

    /// The program is about to set the polling of this socket itself.
    fn leave_alone(&self, process: &Process, fd: RawFd) {
        if let Ok(Some(taken)) = process.duplicate_fd(fd)
            && let Ok(cookie) = socket::cookie(&taken)
        {
            self.policy.program_set.add(cookie);
        }
    }

    /// Makes an epoll instance with its parameters, in place of the program.
    fn make_epoll(&self, call: &seccomp_notif, process: Option<&Process>, flags: i32) {
        let policy = &self.policy.launch.policy;
        let settings = process.map(|p| policy.for_program(&names::if_needed(policy, p)));
        let params = settings.map(params).filter(|p| p.busy_poll_usecs > 0);
        let made = params.filter(|_| flags & !libc::EPOLL_CLOEXEC == 0).and_then(|params| {
            let made = instance::create(instance::CreateFlags::CLOEXEC).ok()?;
            set_params(&made, params).then_some(made)
        });
        if let Some(process) = process {
            self.send(Event::Watch(process.pid()));
            // If the rules differ between sockets, what it watches decides later.
            if !policy.rules.is_empty() {
                self.send(Event::Scan(process.pid()));
            }
        }
        let given = made.is_some_and(|made| {
            let add = seccomp_notif_addfd {
                id: call.id,
                flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
                srcfd: made.as_raw_fd().cast_unsigned(),
                newfd: 0,
                newfd_flags: flags.cast_unsigned(),
            };
            ioctl(self.notifications, libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const add) >= 0
        });
        if !given {
            continue_call(self.notifications, call.id);
        }
    }
}

/// Watches processes and writes lines; no caller waits for it.
struct Watcher<'a> {
    policy: &'a Applied<'a>,
    /// Processes to scan, and when.
    scans: Vec<(Instant, u32)>,
    /// Processes with sockets that poll.
    watched: HashMap<u32, Watched>,
    lines: HashSet<String>,
    /// Where harm is counted.
    spinners: Option<Spinners>,
}

impl Watcher<'_> {
    /// Runs until the answering thread has ended.
    fn run(&mut self, events: &mpsc::Receiver<Event>) {
        loop {
            let one = match self.next() {
                Some(left) => events.recv_timeout(left),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match one {
                Ok(Event::Scan(pid)) => self.schedule_scans(pid),
                Ok(Event::Watch(pid)) => self.watch(pid),
                Ok(Event::Report(line)) => self.report(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.run_due();
        }
    }

    fn schedule_scans(&mut self, pid: u32) {
        let now = Instant::now();
        for after in SCAN_DELAYS {
            // One scan serves many calls: it takes longer than they do, and takes CPU time from the answering thread.
            let about_then = now + after / 2..=now + after;
            if !self.scans.iter().any(|(at, of)| *of == pid && about_then.contains(at)) {
                self.scans.push((now + after, pid));
            }
        }
    }

    /// How long until something is due; `None`: nothing is.
    fn next(&self) -> Option<Duration> {
        let scans = self.scans.iter().map(|(at, _)| *at);
        let first = scans.chain(self.watched.values().map(Watched::due)).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    fn run_due(&mut self) {
        let now = Instant::now();
        let due: HashSet<u32> =
            self.scans.extract_if(.., |(at, _)| *at <= now).map(|(_, pid)| pid).collect();
        for pid in due {
            self.scan(pid);
        }
        let policy = &self.policy.launch.policy;
        let ours = OurValues { values: &self.policy.ours, program_set: &self.policy.program_set };
        let mut found = Vec::new();
        self.watched.retain(|_, one| one.due() > now || one.check(policy, &ours, &mut found));
        for line in found {
            if let Some(spinners) = &self.spinners {
                spinners.count_harm();
            }
            self.report(line);
        }
    }

    fn scan(&mut self, pid: u32) {
        let Ok(process) = Process::open(pid) else { return };
        let mut lines = Vec::new();
        match process.descriptors() {
            Ok(descriptors) => self.scan_descriptors(&process, &descriptors, &mut lines),
            Err(error) => lines.extend(failed(&process, &error)),
        }
        for line in lines {
            self.report(line);
        }
    }

    fn scan_descriptors(
        &mut self,
        process: &Process,
        descriptors: &[Descriptor],
        lines: &mut Vec<String>,
    ) {
        let (mut sockets, mut settings) = (HashSet::new(), HashMap::new());
        for descriptor in descriptors {
            if let Kind::Socket { inode } = descriptor.kind
                && let Some(its) = self.policy.configure_socket(process, descriptor.fd, lines)
            {
                settings.insert(inode, its);
                if its.kernel_micros() > 0 {
                    sockets.insert(descriptor.fd);
                }
            }
        }
        if !sockets.is_empty() {
            self.watch(process.pid());
        }
        for descriptor in descriptors.iter().filter(|d| d.kind == Kind::Epoll) {
            self.configure_epoll(process, descriptor.fd, &settings);
        }
        let polls = |wait: &Wait| matches!(wait, Wait::Poll { fds } if fds.iter().any(|fd| sockets.contains(fd)));
        if process.threads().is_ok_and(|threads| threads.iter().any(|t| polls(&t.wait))) {
            lines.push(format!(
                "{} waits for its sockets in poll or select; busy polling there is \
                 impossible in a program that cannot be preloaded",
                process.program().display()
            ));
        }
    }

    fn watch(&mut self, pid: u32) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.watched.entry(pid)
            && let Ok(process) = Process::open(pid)
        {
            entry.insert(Watched::new(process));
        }
    }

    /// Gives an epoll instance the parameters that its sockets need, whose settings are given by inode.
    fn configure_epoll(&self, process: &Process, fd: RawFd, sockets: &HashMap<u64, Settings>) {
        let Some(wanted) = settings_of_epoll(process, fd, sockets).map(params) else { return };
        let Ok(Some(taken)) = process.duplicate_fd(fd) else { return };
        if let Ok(current) = epoll::params(&taken)
            && self.policy.ours.contains(&current.busy_poll_usecs)
            && current != wanted
        {
            set_params(&taken, wanted);
        }
    }

    fn report(&mut self, line: String) {
        if !self.lines.contains(&line) {
            say(&line);
            self.lines.insert(line);
        }
    }
}

/// All polling times of a policy, in microseconds, and 0.
fn values(policy: &Policy) -> HashSet<u32> {
    let of_rules = policy.rules.iter().map(|rule| rule.change.apply(policy.defaults));
    of_rules.chain([policy.defaults]).map(|s| s.kernel_micros()).chain([0]).collect()
}

/// The settings that an epoll instance needs for the sockets it watches; `None` if it watches none.
pub(super) fn settings_of_epoll(
    process: &Process,
    fd: RawFd,
    sockets: &HashMap<u64, Settings>,
) -> Option<Settings> {
    let watches = process.watches(fd)?;
    let watched = watches.iter().filter(|w| w.socket).filter_map(|w| sockets.get(&w.inode));
    watched.copied().reduce(|all, one| all.joined(one, Plane::Kernel))
}

/// The policy's settings for a TCP or UDP socket.
pub(super) fn settings_of(policy: &Policy, process: &Process, taken: &OwnedFd) -> Option<Settings> {
    let info = socket::info(taken).ok()?;
    if !matches!(i32::from(info.family), libc::AF_INET | libc::AF_INET6) {
        return None;
    }
    let protocol = match info.kind.cast_signed() {
        libc::SOCK_STREAM => Protocol::Tcp,
        libc::SOCK_DGRAM => Protocol::Udp,
        _ => return None,
    };
    let settings =
        policy.for_socket(&names::if_needed(policy, process), protocol, info.local, info.peer);
    (settings.plane == Plane::Kernel).then_some(settings)
}

/// The parameters of an epoll instance of a program with these settings.
pub(super) fn params(settings: Settings) -> EpollParams {
    EpollParams {
        busy_poll_usecs: settings.kernel_micros(),
        busy_poll_budget: settings.busy_poll_budget,
        prefer_busy_poll: settings.prefer_busy_poll,
    }
}

/// Sets the parameters; if that fails, with the kernel's default budget, as a large one needs CAP_NET_ADMIN.
pub(super) fn set_params(epoll: impl AsFd, params: EpollParams) -> bool {
    let epoll = epoll.as_fd();
    epoll::set_params(epoll, params)
        .or_else(|_| epoll::set_params(epoll, EpollParams { busy_poll_budget: 0, ..params }))
        .is_ok()
}

/// The process of a thread.
fn process_of(tid: u32) -> Option<Process> {
    Process::open(tid).ok().or_else(|| {
        let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
        let status = String::from_utf8_lossy(&status);
        let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        Process::open(leader.trim().parse().ok()?).ok()
    })
}

/// Lets the call continue in the kernel.
pub(super) fn continue_call(notifications: &OwnedFd, id: u64) {
    let answer = seccomp_notif_resp {
        id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // It fails only if a signal has ended the call, or the caller.
    ioctl(notifications, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer);
}

pub(super) fn ioctl<T>(notifications: &OwnedFd, request: libc::Ioctl, argument: *const T) -> i32 {
    loop {
        // SAFETY: each request is called with the struct it takes, which outlives the call.
        let result = unsafe { libc::ioctl(notifications.as_raw_fd(), request, argument) };
        if result >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return result;
        }
    }
}
