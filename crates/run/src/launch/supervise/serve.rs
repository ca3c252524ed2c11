//! The supervisor at work: answers what it is told of, and looks after what has appeared.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use busypoll_linux::process::{Kind, Process, Wait};
use busypoll_linux::{EpollParams, epoll, socket, sockopt};
use busypoll_policy::{Launch, Plane, Policy, Protocol, Settings};
use libc::{seccomp_notif, seccomp_notif_addfd, seccomp_notif_resp};
use rustix::event::epoll as instance;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::harm::{Ours, Watched};

/// When a process is looked at after a datagram socket of its has appeared.
const LOOKS: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(20), Duration::from_millis(300)];

/// So many sockets that programs have set are kept in mind; of those forgotten their values tell.
const THEIRS: usize = 1 << 16;

/// Serves until the last process under the filter has ended.
pub(super) fn serve(notifications: &OwnedFd, launch: &Launch) {
    let mut supervisor = Supervisor {
        launch,
        looks: Vec::new(),
        ours: values(&launch.policy),
        theirs: HashSet::new(),
        watched: HashMap::new(),
        said: HashSet::new(),
    };
    loop {
        let mut fds = [PollFd::new(notifications, PollFlags::IN)];
        match poll(&mut fds, supervisor.next().as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(0) => {}
            Err(_) => return,
            Ok(_) if fds[0].revents().contains(PollFlags::IN) => {
                if let Some(call) = told(notifications) {
                    supervisor.answer(notifications, &call);
                }
            }
            Ok(_) => return,
        }
        supervisor.look_around();
    }
}

struct Supervisor<'a> {
    launch: &'a Launch,
    /// Processes to look at, and when.
    looks: Vec<(Instant, u32)>,
    /// What may have been written to a socket or an epoll instance, in microseconds. Any other value is the program's
    /// own wish.
    ours: HashSet<u32>,
    /// Sockets, by their cookies, whose value the program has set, whatever it is.
    theirs: HashSet<u64>,
    /// Processes with sockets that poll.
    watched: HashMap<u32, Watched>,
    said: HashSet<String>,
}

impl Supervisor<'_> {
    /// How long nothing is to be done unasked.
    fn next(&self) -> Option<Timespec> {
        let looks = self.looks.iter().map(|(at, _)| *at);
        let first = looks.chain(self.watched.values().map(Watched::due)).min()?;
        let left = first.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }

    fn answer(&mut self, notifications: &OwnedFd, call: &seccomp_notif) {
        let number = libc::c_long::from(call.data.nr);
        let argument = call.data.args[0];
        let process = process_of(call.pid);
        match number {
            libc::SYS_epoll_create1 => {
                self.give_epoll(notifications, call, process.as_ref(), argument as i32);
                return;
            }
            #[cfg(target_arch = "x86_64")]
            // Its argument is a hint, and must be above zero.
            libc::SYS_epoll_create if argument as i32 > 0 => {
                self.give_epoll(notifications, call, process.as_ref(), 0);
                return;
            }
            libc::SYS_bind | libc::SYS_connect | libc::SYS_listen => {
                if let Some(process) = &process {
                    self.configure_socket(process, argument as RawFd);
                }
            }
            libc::SYS_setsockopt => {
                if let Some(process) = &process {
                    self.leave_alone(process, argument as RawFd);
                }
            }
            _ => {}
        }
        go_on(notifications, call.id);
        if let Some(process) = process {
            self.look_soon(process.pid());
        }
    }

    /// The program is about to say itself how this socket polls.
    fn leave_alone(&mut self, process: &Process, fd: RawFd) {
        if let Ok(Some(taken)) = process.take(fd)
            && let Ok(cookie) = socket::cookie(&taken)
        {
            if self.theirs.len() == THEIRS {
                self.theirs.clear();
            }
            self.theirs.insert(cookie);
        }
    }

    fn look_soon(&mut self, pid: u32) {
        let now = Instant::now();
        self.looks.extend(LOOKS.map(|after| (now + after, pid)));
    }

    /// Makes an epoll instance with its parameters, in place of the program.
    fn give_epoll(
        &mut self,
        notifications: &OwnedFd,
        call: &seccomp_notif,
        process: Option<&Process>,
        flags: i32,
    ) {
        let settings = process.map(|p| self.launch.policy.for_program(&p.program()));
        let params = settings.map(params).filter(|p| p.busy_poll_usecs > 0);
        let made = params.filter(|_| flags & !libc::EPOLL_CLOEXEC == 0).and_then(|params| {
            let made = instance::create(instance::CreateFlags::CLOEXEC).ok()?;
            set_params(&made, params).then_some(made)
        });
        let given = made.is_some_and(|made| {
            let add = seccomp_notif_addfd {
                id: call.id,
                flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
                srcfd: made.as_raw_fd().cast_unsigned(),
                newfd: 0,
                newfd_flags: flags.cast_unsigned(),
            };
            ioctl(notifications, libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const add) >= 0
        });
        if !given {
            go_on(notifications, call.id);
        }
        if let Some(process) = process {
            self.watch(process);
            // What it comes to watch decides, if sockets differ.
            if !self.launch.policy.rules.is_empty() {
                self.look_soon(process.pid());
            }
        }
    }

    fn look_around(&mut self) {
        let now = Instant::now();
        let due: HashSet<u32> =
            self.looks.extract_if(.., |(at, _)| *at <= now).map(|(_, pid)| pid).collect();
        for pid in due {
            self.look_at(pid);
        }
        let policy = &self.launch.policy;
        let ours = Ours { values: &self.ours, not: &self.theirs };
        let mut found = Vec::new();
        self.watched.retain(|_, one| one.due() > now || one.check(policy, &ours, &mut found));
        for line in found {
            self.say(line);
        }
    }

    fn look_at(&mut self, pid: u32) {
        let Ok(process) = Process::open(pid) else { return };
        let descriptors = match process.descriptors() {
            Ok(descriptors) => descriptors,
            Err(error) => return self.failed(&process, &error),
        };
        let (mut sockets, mut settings) = (HashSet::new(), HashMap::new());
        for descriptor in &descriptors {
            if let Kind::Socket { inode } = descriptor.kind
                && let Some(its) = self.configure_socket(&process, descriptor.fd)
            {
                settings.insert(inode, its);
                if its.kernel_micros() > 0 {
                    sockets.insert(descriptor.fd);
                }
            }
        }
        if !sockets.is_empty() {
            self.watch(&process);
        }
        for descriptor in descriptors.iter().filter(|d| d.kind == Kind::Epoll) {
            self.configure_epoll(&process, descriptor.fd, &settings);
        }
        let polls = |wait: &Wait| matches!(wait, Wait::Poll { fds } if fds.iter().any(|fd| sockets.contains(fd)));
        if process.threads().is_ok_and(|threads| threads.iter().any(|t| polls(&t.wait))) {
            self.say(format!(
                "{} waits for its sockets in poll or select, where the kernel polls for nobody; \
                 impossible in a program that no library sees",
                process.program().display()
            ));
        }
    }

    fn watch(&mut self, process: &Process) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.watched.entry(process.pid())
            && let Ok(process) = Process::open(process.pid())
        {
            entry.insert(Watched::new(process));
        }
    }

    /// Gives a socket its settings, and says which; `None` if it is one that has none.
    fn configure_socket(&mut self, process: &Process, fd: RawFd) -> Option<Settings> {
        let taken = match process.take(fd) {
            Ok(taken) => taken?,
            Err(error) => {
                self.failed(process, &error);
                return None;
            }
        };
        let settings = settings_of(&self.launch.policy, process, &taken)?;
        let micros = settings.kernel_micros();
        let current = sockopt::busy_poll(&taken).unwrap_or(0);
        // What the program has set itself stands.
        if self.ours.contains(&current) && current != micros && !is_one_of(&self.theirs, &taken) {
            if let Err(error) = sockopt::set_busy_poll(&taken, micros) {
                self.failed(process, &error);
            }
            if micros > 0 && settings.prefer_busy_poll {
                let _ = sockopt::set_prefer_busy_poll(&taken, true);
            }
            if micros > 0 && settings.busy_poll_budget > 0 {
                let _ = sockopt::set_busy_poll_budget(&taken, settings.busy_poll_budget);
            }
        }
        Some(settings)
    }

    /// Gives an epoll instance what the sockets need that it watches, whose settings are known by their inodes.
    fn configure_epoll(&self, process: &Process, fd: RawFd, sockets: &HashMap<u64, Settings>) {
        let Some(wanted) = settings_of_epoll(process, fd, sockets).map(params) else { return };
        let Ok(Some(taken)) = process.take(fd) else { return };
        if let Ok(current) = epoll::params(&taken)
            && self.ours.contains(&current.busy_poll_usecs)
            && current != wanted
        {
            set_params(&taken, wanted);
        }
    }

    /// Says what could not be done with a process, but for one that has ended meanwhile.
    fn failed(&mut self, process: &Process, error: &busypoll_linux::Error) {
        // On its way out it has no descriptors any more, and is alive still.
        let ends = matches!(error, busypoll_linux::Error::NoProcess { .. });
        if !ends && process.is_alive() {
            self.say(error.to_string());
        }
    }

    fn say(&mut self, line: String) {
        if !self.said.contains(&line) {
            eprintln!("busypoll: {line}");
            self.said.insert(line);
        }
    }
}

/// All that a policy has for sockets, in microseconds, and 0.
fn values(policy: &Policy) -> HashSet<u32> {
    let of_rules = policy.rules.iter().map(|rule| rule.change.apply(policy.defaults));
    of_rules.chain([policy.defaults]).map(|s| s.kernel_micros()).chain([0]).collect()
}

/// Whether it is among these sockets.
pub(super) fn is_one_of(cookies: &HashSet<u64>, taken: &OwnedFd) -> bool {
    !cookies.is_empty() && socket::cookie(taken).is_ok_and(|cookie| cookies.contains(&cookie))
}

/// What an epoll instance needs for the sockets it watches; `None` if it watches none.
pub(super) fn settings_of_epoll(
    process: &Process,
    fd: RawFd,
    sockets: &HashMap<u64, Settings>,
) -> Option<Settings> {
    let watches = process.watches(fd)?;
    let watched = watches.iter().filter(|w| w.socket).filter_map(|w| sockets.get(&w.inode));
    watched.copied().reduce(|all, one| all.joined(one, Plane::Kernel))
}

/// What the policy has for a TCP or UDP socket.
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
    let settings = policy.for_socket(&process.program(), protocol, info.local, info.peer);
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

/// Sets them, if need be with the kernel's own budget: a large one is not for every user.
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

fn told(notifications: &OwnedFd) -> Option<seccomp_notif> {
    // SAFETY: plain data, for which zeroes are valid, as the kernel demands here.
    let mut call: seccomp_notif = unsafe { std::mem::zeroed() };
    (ioctl(notifications, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) >= 0).then_some(call)
}

/// Lets the call run as if nobody had been asked.
fn go_on(notifications: &OwnedFd, id: u64) {
    let answer = seccomp_notif_resp {
        id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // Fails only if a signal has ended the call, or the caller.
    ioctl(notifications, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer);
}

fn ioctl<T>(notifications: &OwnedFd, request: libc::Ioctl, argument: *const T) -> i32 {
    loop {
        // SAFETY: each request is called with the struct it takes, which outlives the call.
        let result = unsafe { libc::ioctl(notifications.as_raw_fd(), request, argument) };
        if result >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return result;
        }
    }
}
