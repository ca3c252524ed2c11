//! The guard at work: it answers requests, watches the processes that have the interface, and resets a process's
//! connections when it has gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_stack::lease::{self, Request};
use busypoll_stack::ledger::{Ledger, LedgerEntry};
use busypoll_stack::nic::xdp::{Attachment, names_slot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open};

use super::interface::Interface;
use super::{liveness, reset};

/// When the resets are repeated: some peers answer an unexpected segment only twice a second (`tcp_invalid_ratelimit`
/// of Linux).
const REPEAT_AFTER: Duration = Duration::from_millis(600);

/// How often the guard checks whether the last frames of an ended process are sent.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);

/// How often the guard checks whether any process of the run is left, once the program has gone.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How soon it checks again if there was none: a process has no environment for a moment during execve.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How often the guard looks whether the listeners of programs without the interface are still open, and where.
const LISTENERS_INTERVAL: Duration = Duration::from_secs(1);

/// The most connections without a request: from this user and root together, and from all others. A further one
/// replaces the oldest, which has had time to send its request.
const MAX_WAITING: usize = 16;

/// How long a connection may stay without a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// When accept is tried again after it failed for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The state of a guard.
pub(super) struct Guard {
    /// Where processes of the run connect.
    pub(super) listener: OwnedFd,
    /// The secret that shows that a process is of the run.
    pub(super) secret: String,
    /// The program's pidfd.
    pub(super) program: OwnedFd,
    pub(super) interface: Interface,
    /// Listener and secret, as in the environment of the run.
    pub(super) address: String,
}

/// A process that has the interface, or may claim it.
pub(super) struct Owner {
    pub(super) pid: i32,
    /// Its pidfd; `None` if it is not visible here.
    pub(super) process: Option<OwnedFd>,
    pub(super) connection: OwnedFd,
    pub(super) ledger: Ledger,
    /// Its slot, if others can have the interface, too.
    pub(super) slot: Option<u8>,
    pub(super) has: Has,
}

/// What a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    /// The interface.
    Interface,
    /// Links to other processes.
    Links,
    /// It has both by another connection.
    More,
}

impl Owner {
    pub(super) fn has_interface(&self) -> bool {
        self.has == Has::Interface
    }

    /// Whether the process has ended, or its exec has closed the connection.
    fn has_gone(&self) -> bool {
        let process = self.process.as_ref().map(AsFd::as_fd);
        process.is_some_and(is_readable) || is_readable(self.connection.as_fd())
    }
}

/// The process gets the interface, too, and is listed by that connection. One that it had before an exec ends on its own.
pub(super) fn has_more(owners: &mut [Owner], pid: i32) {
    let links = owners.iter_mut().filter(|owner| owner.pid == pid && owner.has == Has::Links);
    links.for_each(|owner| owner.has = Has::More);
}

/// A process that claims the interface.
pub(super) struct Claimant {
    pub(super) pid: i32,
    /// Its pidfd; `None` if it is not visible here.
    pub(super) process: Option<OwnedFd>,
    /// The memory of the ledger that it writes already.
    pub(super) ledger: Option<OwnedFd>,
}

/// A connection that has not sent its request yet.
struct PendingConnection {
    connection: OwnedFd,
    /// Neither of this user nor of root. A process of the run can be one, if it has dropped its privileges.
    untrusted: bool,
    until: Instant,
}

/// What the guard currently watches.
#[derive(Default)]
struct Watched {
    /// The one that came last is last.
    owners: Vec<Owner>,
    /// The oldest first.
    waiting: Vec<PendingConnection>,
    /// accept failed for lack of descriptors, so polling the listener is of no use.
    accept_failed: bool,
    /// Connections whose resets are to be repeated, and when; in order.
    repeat: Vec<(Instant, Vec<LedgerEntry>)>,
    /// Some ended process's last frames may not be sent.
    unsettled: bool,
    /// When the guard looks at the listeners of programs without the interface, if there are any.
    listeners: Option<Instant>,
    /// Readable when SIGTERM has come.
    term: Option<OwnedFd>,
}

impl Guard {
    /// Runs until no process of the run is left.
    pub(super) fn serve(self) {
        // Without it SIGTERM is ignored.
        self.watch_all(Watched { term: block_sigterm().ok(), ..Watched::default() });
    }

    fn watch_all(mut self, mut watched: Watched) {
        let (mut program_has_gone, mut interval) = (false, CHECK_INTERVAL);
        loop {
            program_has_gone = self.wait(&watched, program_has_gone.then_some(interval));
            self.check_interface(&watched);
            self.check_owners(&mut watched);
            watched.unsettled = self.interface.held_mut().is_some_and(Attachment::settle);
            self.repeat_resets(&mut watched);
            if watched.listeners.is_some_and(|at| at <= Instant::now()) {
                let left =
                    self.interface.held_mut().is_some_and(Attachment::update_shared_listeners);
                watched.listeners = left.then(|| Instant::now() + LISTENERS_INTERVAL);
            }
            if let Some(held) = self.interface.held() {
                held.close_queries();
            }
            self.handle_connections(&mut watched);
            if watched.term.as_ref().is_some_and(has_come) && !self.is_needed(&watched) {
                return;
            }
            let idle = watched.owners.is_empty() && watched.repeat.is_empty();
            let is_alone = program_has_gone && idle && !liveness::any_process_left(&self.address);
            if is_alone && interval == RECHECK_INTERVAL {
                return;
            }
            interval = if is_alone { RECHECK_INTERVAL } else { CHECK_INTERVAL };
        }
    }

    /// Whether SIGTERM must not end it: a process of the run is left. The program may get the signal, too, and take its time
    /// to end.
    fn is_needed(&self, watched: &Watched) -> bool {
        let mut processes = watched.owners.iter().filter_map(|owner| owner.process.as_ref());
        !is_readable(self.program.as_fd())
            || processes.any(|process| !is_readable(process.as_fd()))
            || liveness::any_process_left(&self.address)
    }

    /// Waits for an event, or for the time `interval` if the program has gone; returns whether it has.
    fn wait(&self, watched: &Watched, interval: Option<Duration>) -> bool {
        let mut fds = Vec::new();
        if !watched.accept_failed {
            fds.push(self.listener.as_fd());
            fds.extend(self.interface.held().map(AsFd::as_fd));
            fds.extend(self.interface.link_watch().map(AsFd::as_fd));
        }
        fds.extend(self.interface.prepared_for());
        // Its pidfd stays readable once it has gone.
        fds.extend(interval.is_none().then_some(self.program.as_fd()));
        // Those of the same process need not be readable together.
        for owner in &watched.owners {
            fds.push(owner.connection.as_fd());
            fds.extend(owner.process.as_ref().map(AsFd::as_fd));
        }
        fds.extend(watched.term.as_ref().map(AsFd::as_fd));
        fds.extend(watched.waiting.iter().map(|pending| pending.connection.as_fd()));
        let repeat = watched.repeat.iter().map(|(at, _)| *at);
        let waiting = watched.waiting.iter().map(|pending| pending.until);
        let due = repeat.chain(waiting).chain(watched.listeners).min();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        let room = watched.accept_failed.then_some(ACCEPT_RETRY);
        let interval = interval.filter(|_| watched.owners.is_empty());
        let settle = watched.unsettled.then_some(SETTLE_INTERVAL);
        let limit = due.into_iter().chain(interval).chain(room).chain(settle).min();
        poll_for(&fds, limit);
        is_readable(self.program.as_fd())
    }

    /// Accepts connections, and answers those that have sent a request. Any user of this machine may connect, any
    /// number of times.
    fn handle_connections(&mut self, watched: &mut Watched) {
        watched.accept_failed = false;
        let now = Instant::now();
        for _ in 0..MAX_WAITING {
            match lease::accept(self.listener.as_fd()) {
                Ok(connection) => {
                    let user = lease::peer(connection.as_fd()).ok().map(|(_, user)| user);
                    let untrusted = !user.is_some_and(is_trusted);
                    watched.waiting.push(PendingConnection {
                        connection,
                        untrusted,
                        until: now + REQUEST_TIMEOUT,
                    });
                }
                Err(error) => {
                    watched.accept_failed = error.kind() != io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        for pending in std::mem::take(&mut watched.waiting) {
            match lease::receive_request(&pending.connection) {
                Ok(Some(request)) => self.answer(pending.connection, request, watched),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && pending.until > now => {
                    watched.waiting.push(pending);
                }
                _ => {}
            }
        }
        for untrusted in [true, false] {
            let count =
                watched.waiting.iter().filter(|pending| pending.untrusted == untrusted).count();
            let mut too_many = count.saturating_sub(MAX_WAITING);
            watched.waiting.retain(|pending| {
                let goes = pending.untrusted == untrusted && too_many > 0;
                too_many -= usize::from(goes);
                !goes
            });
        }
    }

    /// Tells the processes that the interface is gone. The next process that needs one takes the interface that exists
    /// then.
    fn check_interface(&mut self, watched: &Watched) {
        if !self.interface.is_gone() {
            return;
        }
        for owner in watched.owners.iter().filter(|owner| owner.has_interface()) {
            // One that has gone is handled next.
            let _ = lease::send_interface_gone(&owner.connection);
        }
        if !watched.owners.iter().any(Owner::has_interface) {
            self.interface.release();
        }
    }

    /// Takes the interface back from processes that have gone.
    fn check_owners(&mut self, watched: &mut Watched) {
        if self.interface.prepared_for().is_some_and(is_readable) {
            self.interface.release();
        }
        let holders = watched.owners.iter().filter(|owner| owner.has_interface());
        let last = holders.last().map(|owner| owner.pid);
        let owners = std::mem::take(&mut watched.owners);
        let (gone, left): (Vec<_>, _) = owners.into_iter().partition(Owner::has_gone);
        watched.owners = left;
        // Links reset their connections themselves.
        for owner in gone.into_iter().filter(Owner::has_interface) {
            // The interface first: the kernel must get the peers' answers.
            match watched.owners.iter().any(Owner::has_interface) {
                false => self.interface.release(),
                true => {
                    if let Some((held, slot)) = self.interface.held_mut().zip(owner.slot) {
                        held.end(slot);
                    }
                }
            }
            let mut lines = owner.ledger.list();
            lines.retain(LedgerEntry::is_live);
            reset::all(&lines, self.interface.index());
            if !lines.is_empty() {
                watched.repeat.push((Instant::now() + REPEAT_AFTER, lines));
            }
            if let Some(held) = self.interface.held().filter(|_| last == Some(owner.pid)) {
                held.name_this_process();
            }
        }
    }

    fn repeat_resets(&self, watched: &mut Watched) {
        let now = Instant::now();
        for (_, lines) in watched.repeat.extract_if(.., |(at, _)| *at <= now) {
            reset::all(&lines, self.interface.index());
        }
    }

    /// Answers a request. A process that is granted the interface becomes one of its owners. Errors of sending are
    /// ignored.
    fn answer(&mut self, connection: OwnedFd, request: Request, watched: &mut Watched) {
        let Ok((pid, user)) = lease::peer(connection.as_fd()) else { return };
        let owners = &mut watched.owners;
        match request {
            Request::List => {
                if is_trusted(user) {
                    let listed: Vec<_> = owners
                        .iter()
                        .filter(|owner| owner.has != Has::More)
                        .map(|owner| (owner.process.as_ref().map(AsFd::as_fd), &owner.ledger))
                        .collect();
                    let _ = lease::answer_listed(&connection, &listed);
                }
            }
            Request::Prepare(secret)
            | Request::Watch(secret)
            | Request::Claim(secret, _)
            | Request::Repair(secret, ..)
            | Request::Priority(secret, ..)
                if secret != self.secret => {}
            Request::Prepare(_) => {
                if let Some(process) =
                    pidfd_of(pid).filter(|_| !owners.iter().any(Owner::has_interface))
                {
                    self.interface.prepare_for(process);
                }
            }
            Request::Repair(_, how, socket) => {
                // No answer means that it failed.
                if busypoll_stack::repair(socket.as_raw_fd(), how).is_ok() {
                    let _ = lease::answer_set(&connection);
                }
            }
            Request::Priority(_, priority, socket) => {
                if names_slot(priority)
                    && busypoll_stack::set_priority(socket.as_raw_fd(), priority).is_ok()
                {
                    let _ = lease::answer_set(&connection);
                }
            }
            Request::Watch(_) => owners.extend(self.watch(connection, pid, pidfd_of(pid))),
            Request::Share(secret, _) if secret != self.secret && !is_trusted(user) => {}
            Request::Share(_, socket) => {
                if self.share_listener(&socket) {
                    watched.listeners.get_or_insert_with(|| Instant::now() + LISTENERS_INTERVAL);
                    let _ = lease::answer_set(&connection);
                }
            }
            Request::Claim(_, ledger) => {
                let process = Claimant { pid, process: pidfd_of(pid), ledger };
                let owner = self.claim(connection, process, owners);
                owners.extend(owner);
            }
            // Frames are shared with processes of the same user only.
            Request::Join(..) if user != getuid().as_raw() => {
                let why = "another user's run has the interface";
                let _ = lease::answer_refused(&connection, why);
            }
            Request::Join(pid, process, ledger) => {
                let process = Claimant { pid, process: Some(process), ledger };
                let owner = self.grant(connection, process, owners);
                owners.extend(owner);
            }
        }
    }
}

/// From now on a SIGTERM that comes to this thread makes the descriptor readable.
fn block_sigterm() -> io::Result<OwnedFd> {
    // SAFETY: a set on the stack; plain system calls on it.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        match libc::signalfd(-1, &raw const signals, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Whether the signal has come since the last call.
fn has_come(term: &OwnedFd) -> bool {
    let mut came = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(term, &mut came[..]).is_ok()
}

/// `None` if the process is not visible here, or has ended.
fn pidfd_of(pid: i32) -> Option<OwnedFd> {
    Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
}

/// Whether this user may see everything, and must not be crowded out by others.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == getuid().as_raw()
}

/// Whether there is something to read, or the other end is closed.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll_for(&[fd], Some(Duration::ZERO))
}

/// Waits until one of them is readable, for at most `limit`; returns whether one is.
fn poll_for(fds: &[BorrowedFd<'_>], limit: Option<Duration>) -> bool {
    let mut fds: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let time = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let ready = poll(&mut fds, time.as_ref());
    if ready == Err(Errno::INVAL) {
        // More of them than the descriptors that it may have: it looks at each now and then.
        thread::sleep(limit.map_or(ACCEPT_RETRY, |limit| limit.min(ACCEPT_RETRY)));
    }
    ready.is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use super::*;

    fn guard(name: &str, program: u32) -> Guard {
        let program = pidfd_of(program.cast_signed()).unwrap();
        let name = format!("busypoll/test/{name}/{}", std::process::id());
        Guard {
            listener: lease::listen(&name).unwrap(),
            secret: String::new(),
            program,
            interface: Interface::new("lo", String::new(), false),
            address: name,
        }
    }

    fn owner(pid: u32, process: Option<OwnedFd>, has: Has) -> (Owner, UnixStream) {
        let (connection, its) = UnixStream::pair().unwrap();
        let (pid, ledger) = (pid.cast_signed(), Ledger::create(1).unwrap());
        (Owner { pid, process, connection: connection.into(), ledger, slot: None, has }, its)
    }

    /// The connections of a process close one after the other, in either order.
    #[test]
    fn the_close_of_each_connection_of_a_process_ends_the_wait() {
        let own = std::process::id();
        let guard = &mut guard("closes", own);
        for first in [0, 1] {
            let all =
                [Has::More, Has::Interface].map(|has| owner(own, pidfd_of(own.cast_signed()), has));
            let [(more, its), (interface, theirs)] = all;
            let mut watched = Watched { owners: vec![more, interface], ..Watched::default() };
            let mut ends = vec![its, theirs];
            // A child that another test starts has the ends, too, until it executes its program.
            drop(ends.remove(first));
            while watched.owners.len() > 1 {
                guard.check_owners(&mut watched);
            }
            drop(ends);
            while !watched.owners.is_empty() {
                // Without the event it would wait for ever.
                guard.wait(&watched, None);
                guard.check_owners(&mut watched);
            }
        }
    }

    /// The connection of the program that it was before is closed, and the guard has not seen that yet.
    #[test]
    fn the_interface_of_a_program_before_an_exec_is_not_forgotten() {
        let its = |pid, has| owner(pid, None, has).0;
        let all = [Has::More, Has::Interface, Has::Links];
        let mut owners: Vec<Owner> = all.map(|has| its(7, has)).into();
        owners.push(its(8, Has::Links));
        has_more(&mut owners, 7);
        let has: Vec<Has> = owners.iter().map(|owner| owner.has).collect();
        assert_eq!(has, [Has::More, Has::Interface, Has::More, Has::Links]);
    }

    /// Of a process of another PID namespace only the connection is known, and another process may hold that.
    #[test]
    fn sigterm_ends_a_guard_that_no_process_needs() {
        let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let its = guard("term", program.id());
        let name = its.address.clone();
        let (of_thread, thread_of) = mpsc::channel();
        let serves = thread::spawn(move || {
            let term = Some(block_sigterm().unwrap());
            // SAFETY: a plain call.
            of_thread.send(unsafe { libc::pthread_self() }).unwrap();
            let (owner, _its) = owner(1, None, Has::Interface);
            its.watch_all(Watched { owners: vec![owner], term, ..Watched::default() });
        });
        let thread = thread_of.recv().unwrap();
        // SAFETY: the thread is not joined yet.
        let terminate = || assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGTERM) }, 0);
        terminate();
        // It answers.
        lease::list(&name).unwrap();
        drop(program.stdin.take());
        program.wait().unwrap();
        terminate();
        serves.join().unwrap();
    }
}
