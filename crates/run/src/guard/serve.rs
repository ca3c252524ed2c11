//! The guard at work: it answers requests, watches the owner of the interface, and resets the owner's connections when
//! it has gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use busypoll_stack::IcmpSockets;
use busypoll_stack::lease::{self, Request};
use busypoll_stack::ledger::{self, Ledger, LedgerEntry};
use busypoll_stack::nic::xdp::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open};

use super::interface::{Interface, Refusal};
use super::{liveness, reset};

/// When the resets are repeated: some peers answer an unexpected segment only twice a second (`tcp_invalid_ratelimit`
/// of Linux).
const REPEAT_AFTER: Duration = Duration::from_millis(600);

/// How often the guard checks whether any process of the run is left, once the program has gone.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How soon it checks again if there was none: a process has no environment for a moment during execve.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

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

/// The process that has the interface.
struct Owner {
    pid: i32,
    /// Its pidfd; `None` if it is not visible here.
    process: Option<OwnedFd>,
    connection: OwnedFd,
    ledger: Ledger,
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
    owner: Option<Owner>,
    /// The oldest first.
    waiting: Vec<PendingConnection>,
    /// accept failed for lack of descriptors, so polling the listener is of no use.
    accept_failed: bool,
    /// Connections whose resets are to be repeated.
    repeat: Option<(Instant, Vec<LedgerEntry>)>,
}

impl Guard {
    /// Runs until no process of the run is left.
    pub(super) fn serve(mut self) {
        let mut watched = Watched::default();
        let (mut program_has_gone, mut interval) = (false, CHECK_INTERVAL);
        loop {
            program_has_gone = self.wait(&watched, program_has_gone.then_some(interval));
            self.check_interface(&watched);
            self.check_owner(&mut watched);
            self.repeat_resets(&mut watched);
            if let Some(held) = self.interface.held() {
                held.close_queries();
            }
            self.handle_connections(&mut watched);
            let idle = watched.owner.is_none() && watched.repeat.is_none();
            let is_alone = program_has_gone && idle && !liveness::any_process_left(&self.address);
            if is_alone && interval == RECHECK_INTERVAL {
                return;
            }
            interval = if is_alone { RECHECK_INTERVAL } else { CHECK_INTERVAL };
        }
    }

    /// Waits for an event, or for the time `interval` if the program has gone; returns whether it has.
    fn wait(&self, watched: &Watched, interval: Option<Duration>) -> bool {
        let mut fds = Vec::new();
        if !watched.accept_failed {
            fds.push(self.listener.as_fd());
            fds.extend(self.interface.held().map(AsFd::as_fd));
            fds.extend(self.interface.link_watch().map(AsFd::as_fd));
        }
        // Its pidfd stays readable once it has gone.
        fds.extend(interval.is_none().then_some(self.program.as_fd()));
        if let Some(owner) = &watched.owner {
            fds.push(owner.connection.as_fd());
            fds.extend(owner.process.as_ref().map(AsFd::as_fd));
        }
        fds.extend(watched.waiting.iter().map(|pending| pending.connection.as_fd()));
        let repeat = watched.repeat.as_ref().map(|(at, _)| *at);
        let due =
            repeat.into_iter().chain(watched.waiting.iter().map(|pending| pending.until)).min();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        let room = watched.accept_failed.then_some(ACCEPT_RETRY);
        let interval = interval.filter(|_| watched.owner.is_none());
        let limit = due.into_iter().chain(interval).chain(room).min();
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
                Ok(Some(request)) => self.answer(pending.connection, &request, &mut watched.owner),
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

    /// Tells the owner that the interface is gone. The next process that needs one takes the interface that exists
    /// then.
    fn check_interface(&mut self, watched: &Watched) {
        if !self.interface.is_gone() {
            return;
        }
        match &watched.owner {
            // An owner that has gone is handled next.
            Some(owner) => drop(lease::send_interface_gone(&owner.connection)),
            None => self.interface.release(),
        }
    }

    /// Takes the interface back from an owner that has gone.
    fn check_owner(&mut self, watched: &mut Watched) {
        let Some(owner) = &watched.owner else { return };
        // The process has ended, or its exec has closed the connection.
        let process = owner.process.as_ref().is_some_and(|process| is_readable(process.as_fd()));
        if !process && !is_readable(owner.connection.as_fd()) {
            return;
        }
        // The interface first: the kernel must get the peers' answers.
        self.interface.release();
        let mut lines = owner.ledger.list();
        lines.retain(LedgerEntry::is_live);
        reset::all(&lines, self.interface.index());
        watched.owner = None;
        watched.repeat =
            Some((Instant::now() + REPEAT_AFTER, lines)).filter(|(_, lines)| !lines.is_empty());
    }

    fn repeat_resets(&self, watched: &mut Watched) {
        if let Some((_, lines)) = watched.repeat.take_if(|(at, _)| *at <= Instant::now()) {
            reset::all(&lines, self.interface.index());
        }
    }

    /// Answers a request. A process that is granted the interface becomes its owner. Errors of sending are ignored.
    fn answer(&mut self, connection: OwnedFd, request: &Request, owner: &mut Option<Owner>) {
        let Ok((pid, user)) = lease::peer(connection.as_fd()) else { return };
        match request {
            Request::List => {
                if let Some(owner) = owner.as_ref().filter(|_| is_trusted(user)) {
                    let _ = lease::answer_listed(&connection, owner.pid, &owner.ledger);
                }
            }
            Request::Claim(secret) | Request::Repair(secret, ..) if *secret != self.secret => {}
            Request::Repair(_, how, socket) => {
                // No answer means that it failed.
                if busypoll_stack::repair(socket.as_raw_fd(), *how).is_ok() {
                    let _ = lease::answer_repaired(&connection);
                }
            }
            Request::Claim(_) => {
                let _ = match owner {
                    Some(owner) => lease::answer_owned(&connection, owner.pid),
                    None => match self.grant(&connection) {
                        Ok(ledger) => {
                            let process = Pid::from_raw(pid)
                                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                            *owner = Some(Owner { pid, process, connection, ledger });
                            Ok(())
                        }
                        Err(Refusal::System(Error::Owned { pid, .. })) => {
                            lease::answer_owned(&connection, pid)
                        }
                        Err(refusal) => lease::answer_refused(&connection, &refusal.to_string()),
                    },
                };
            }
        }
    }

    fn grant(&mut self, connection: &OwnedFd) -> Result<Ledger, Refusal> {
        let grant = self.interface.take()?.grant().map_err(Refusal::System)?;
        let granted = (|| {
            let ledger = Ledger::create(ledger::LINES)?;
            lease::answer_granted(connection, grant, &ledger, &IcmpSockets::open()?)?;
            io::Result::Ok(ledger)
        })();
        granted.map_err(|error| {
            self.interface.release();
            Refusal::Other(error.to_string())
        })
    }
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
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    poll(&mut fds, limit.as_ref()).is_ok_and(|ready| ready > 0)
}
