//! The guard at work: who asks is answered, who has the interface is watched, and when that one has gone its
//! connections are reset.

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

/// When peers are told a second time: some answer an unexpected segment only twice a second (`tcp_invalid_ratelimit` of
/// Linux).
const AGAIN: Duration = Duration::from_millis(600);

/// How often it is looked whether anybody of the run is left, once the program has gone.
const LOOK: Duration = Duration::from_secs(1);

/// When it is looked again if nobody was: one that is just being executed has no environment for a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// So many may have connected and said nothing: of this user and root together, and of all others. Whoever comes next
/// takes the place of who has waited longest, who has had the time to say it.
const SILENT: usize = 16;

/// For so long one may say nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// When it is tried again where no descriptor was left for who asks.
const NO_ROOM: Duration = Duration::from_millis(100);

/// What a guard is made of.
pub(super) struct Guard {
    /// Where processes of the run ask.
    pub(super) listener: OwnedFd,
    /// What they say to show that they are of the run.
    pub(super) word: String,
    /// The program, by pidfd.
    pub(super) program: OwnedFd,
    pub(super) interface: Interface,
    /// Listener and word, as they stand in the environment of the run.
    pub(super) address: String,
}

/// Who has the interface.
struct Owner {
    pid: i32,
    /// By pidfd; none if it is out of sight.
    process: Option<OwnedFd>,
    connection: OwnedFd,
    ledger: Ledger,
}

/// One that has connected and said nothing yet.
struct Asker {
    connection: OwnedFd,
    /// Neither of this user nor root. A process of the run can be: one that has given up its rights.
    stranger: bool,
    until: Instant,
}

/// Who is to be watched at the moment.
#[derive(Default)]
struct Watched {
    owner: Option<Owner>,
    /// Those who have waited longest first.
    asking: Vec<Asker>,
    /// Who asks cannot be let in, for want of descriptors: so it is no use to wait for that.
    no_room: bool,
    /// Connections whose peers are to be told again.
    again: Option<(Instant, Vec<Listed>)>,
}

impl Guard {
    /// Until nobody of the run is left.
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

    /// Until there is something to see to, or for the time `look` if the program has gone; whether it has by then.
    fn wait(&self, watched: &Watched, look: Option<Duration>) -> bool {
        let mut fds = Vec::new();
        if !watched.no_room {
            fds.push(self.listener.as_fd());
            fds.extend(self.interface.held().map(AsFd::as_fd));
            fds.extend(self.interface.presence().map(AsFd::as_fd));
        }
        // Once it has gone that is no news any more.
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

    /// Lets in who asks, and answers who has said what. Anybody on this machine may connect, as often as he likes.
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

    /// Tells its owner that the interface is no more. Who comes first takes what there is by then.
    fn see_to_interface(&mut self, watched: &Watched) {
        if !self.interface.has_ended() {
            return;
        }
        match &watched.owner {
            // One who has gone is seen to next.
            Some(owner) => drop(lease::tell_it_ended(&owner.connection)),
            None => self.interface.release(),
        }
    }

    /// Takes the interface back from an owner that has gone.
    fn see_to_owner(&mut self, watched: &mut Watched) {
        let Some(owner) = &watched.owner else { return };
        // By itself or by exec, which closes the connection.
        let process = owner.process.as_ref().is_some_and(|process| is_readable(process.as_fd()));
        if !process && !is_readable(owner.connection.as_fd()) {
            return;
        }
        // First the interface: what peers answer is for the kernel.
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

    /// Answers, and makes who was granted the interface its owner. Who does not listen goes without an answer.
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
                // Without an answer it has not been done.
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

/// Whether this user may see everything, and is not to be kept out by others.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == getuid().as_raw()
}

/// Whether there is something to be read, or nobody any more at the other end.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll_for(&[fd], Some(Duration::ZERO))
}

/// Waits until one of them is readable, for so long at the most; whether one is.
fn poll_for(fds: &[BorrowedFd<'_>], limit: Option<Duration>) -> bool {
    let mut fds: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    poll(&mut fds, limit.as_ref()).is_ok_and(|ready| ready > 0)
}
