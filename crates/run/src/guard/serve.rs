//! The guard at work: it answers requests, watches the owner of the interface, and resets the owner's connections when
//! it has gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use busypoll_stack::IcmpSockets;
use busypoll_stack::lease::{self, Request};
use busypoll_stack::ledger::{self, Ledger, Listed};
use busypoll_stack::nic::xdp::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open};

use super::interface::{Interface, Refusal};
use super::{kin, reset};

/// When the resets are repeated: some peers answer an unexpected segment only twice a second (`tcp_invalid_ratelimit`
/// of Linux).
const AGAIN: Duration = Duration::from_millis(600);

/// How often the guard checks whether any process of the run is left, once the program has gone.
const LOOK: Duration = Duration::from_secs(1);

/// How soon it checks again if there was none: a process has no environment for a moment during execve.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The most connections without a request: from this user and root together, and from all others. A further one
/// replaces the oldest, which has had time to send its request.
const SILENT: usize = 16;

/// How long a connection may stay without a request.
const PATIENCE: Duration = Duration::from_secs(1);

/// When accept is tried again after it failed for lack of descriptors.
const NO_ROOM: Duration = Duration::from_millis(100);

/// The state of a guard.
pub(super) struct Guard {
    /// Where processes of the run connect.
    pub(super) listener: OwnedFd,
    /// The secret that shows that a process is of the run.
    pub(super) word: String,
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
struct Asker {
    connection: OwnedFd,
    /// Neither of this user nor of root. A process of the run can be one, if it has dropped its privileges.
    stranger: bool,
    until: Instant,
}

/// What the guard currently watches.
#[derive(Default)]
struct Watched {
    owner: Option<Owner>,
    /// The oldest first.
    asking: Vec<Asker>,
    /// accept failed for lack of descriptors, so polling the listener is of no use.
    no_room: bool,
    /// Connections whose resets are to be repeated.
    again: Option<(Instant, Vec<Listed>)>,
}

impl Guard {
    /// Runs until no process of the run is left.
    pub(super) fn serve(mut self) {
        let mut watched = Watched::default();
        let (mut program_has_gone, mut look) = (false, LOOK);
        loop {
            program_has_gone = self.wait(&watched, program_has_gone.then_some(look));
            self.see_to_interface(&watched);
            self.see_to_owner(&mut watched);
            self.see_to_again(&mut watched);
            if let Some(held) = self.interface.held() {
                held.dismiss_askers();
            }
            self.see_to_askers(&mut watched);
            let idle = watched.owner.is_none() && watched.again.is_none();
            let is_alone = program_has_gone && idle && !kin::is_left(&self.address);
            if is_alone && look == LOOK_AGAIN {
                return;
            }
            look = if is_alone { LOOK_AGAIN } else { LOOK };
        }
    }

    /// Waits for an event, or for the time `look` if the program has gone; returns whether it has.
    fn wait(&self, watched: &Watched, look: Option<Duration>) -> bool {
        let mut fds = Vec::new();
        if !watched.no_room {
            fds.push(self.listener.as_fd());
            fds.extend(self.interface.held().map(AsFd::as_fd));
            fds.extend(self.interface.presence().map(AsFd::as_fd));
        }
        // Its pidfd stays readable once it has gone.
        fds.extend(look.is_none().then_some(self.program.as_fd()));
        if let Some(owner) = &watched.owner {
            fds.push(owner.connection.as_fd());
            fds.extend(owner.process.as_ref().map(AsFd::as_fd));
        }
        fds.extend(watched.asking.iter().map(|asker| asker.connection.as_fd()));
        let again = watched.again.as_ref().map(|(at, _)| *at);
        let due = again.into_iter().chain(watched.asking.iter().map(|asker| asker.until)).min();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        let room = watched.no_room.then_some(NO_ROOM);
        let look = look.filter(|_| watched.owner.is_none());
        let limit = due.into_iter().chain(look).chain(room).min();
        poll_for(&fds, limit);
        is_readable(self.program.as_fd())
    }

    /// Accepts connections, and answers those that have sent a request. Any user of this machine may connect, any
    /// number of times.
    fn see_to_askers(&mut self, watched: &mut Watched) {
        watched.no_room = false;
        let now = Instant::now();
        for _ in 0..SILENT {
            match lease::accept(self.listener.as_fd()) {
                Ok(connection) => {
                    let user = lease::peer(connection.as_fd()).ok().map(|(_, user)| user);
                    let stranger = !user.is_some_and(is_trusted);
                    watched.asking.push(Asker { connection, stranger, until: now + PATIENCE });
                }
                Err(error) => {
                    watched.no_room = error.kind() != io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        for asker in std::mem::take(&mut watched.asking) {
            match lease::asked(&asker.connection) {
                Ok(Some(request)) => self.answer(asker.connection, &request, &mut watched.owner),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && asker.until > now => {
                    watched.asking.push(asker);
                }
                _ => {}
            }
        }
        for stranger in [true, false] {
            let silent = watched.asking.iter().filter(|asker| asker.stranger == stranger).count();
            let mut too_many = silent.saturating_sub(SILENT);
            watched.asking.retain(|asker| {
                let goes = asker.stranger == stranger && too_many > 0;
                too_many -= usize::from(goes);
                !goes
            });
        }
    }

    /// Tells the owner that the interface is gone. The next process that needs one takes the interface that exists
    /// then.
    fn see_to_interface(&mut self, watched: &Watched) {
        if !self.interface.has_ended() {
            return;
        }
        match &watched.owner {
            // An owner that has gone is handled next.
            Some(owner) => drop(lease::tell_it_ended(&owner.connection)),
            None => self.interface.release(),
        }
    }

    /// Takes the interface back from an owner that has gone.
    fn see_to_owner(&mut self, watched: &mut Watched) {
        let Some(owner) = &watched.owner else { return };
        // The process has ended, or its exec has closed the connection.
        let process = owner.process.as_ref().is_some_and(|process| is_readable(process.as_fd()));
        if !process && !is_readable(owner.connection.as_fd()) {
            return;
        }
        // The interface first: the kernel must get the peers' answers.
        self.interface.release();
        let mut lines = owner.ledger.list();
        lines.retain(Listed::is_live);
        reset::all(&lines, self.interface.index());
        watched.owner = None;
        watched.again =
            Some((Instant::now() + AGAIN, lines)).filter(|(_, lines)| !lines.is_empty());
    }

    fn see_to_again(&self, watched: &mut Watched) {
        if let Some((_, lines)) = watched.again.take_if(|(at, _)| *at <= Instant::now()) {
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
            Request::Claim(word) | Request::Repair(word, ..) if *word != self.word => {}
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
