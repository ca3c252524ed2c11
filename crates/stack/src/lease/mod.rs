//! What a guard and the processes it guards say to each other. A guard holds the interface; a process claims it, gets
//! what it takes to drive its queues, and keeps the connection open for as long as it does: however it ends, the guard
//! sees that. The address is an abstract unix socket's name and a word that only the run knows, `NAME/WORD`.
//!
//! | message | what it says |
//! |---|---|
//! | `claim WORD` | give me the interface |
//! | `repair HOW WORD` | set `TCP_REPAIR` of the socket that comes with it: to hand a connection to the kernel takes rights |
//! | `list` | show me what you guard: for the user who started it, and root |
//! | `G…` | granted: a ledger to keep, sockets for ICMP, and the [`Grant`] |
//! | `L…` | its owner's PID and its ledger, if it has one; then the connection ends |
//! | `O…` | another process has it: its PID |
//! | `X` | to who has it: it is no more |
//! | `R` | it is set |
//! | `F…` | it cannot be had: one line of why |

mod socket;

pub use crate::unix::peer;
pub use socket::{accept, listen};

use self::socket::{BYTES, connect, late, receive, send};
use crate::{IcmpSockets, ledger::Ledger, nic::xdp::Grant, sys, thread};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a claim waits for its guard: to take an interface, a driver may have to set up all its rings anew.
const CLAIMS: Duration = Duration::from_secs(20);

/// How often it is made: a guard closes the connection of who is slow to say what he wants, as one is who is stopped
/// meanwhile.
const TRIES: u32 = 3;

/// How long a list does, which is to come at once. Anybody may listen at a name like a guard's and say nothing.
const LISTS: Duration = Duration::from_secs(2);

/// An interface that this process may drive, and what it is to do for it.
#[derive(Debug)]
pub struct Lease {
    /// What it takes to drive the queues.
    pub grant: Grant,
    /// To be kept, so that peers can be told when this process is killed.
    pub ledger: Arc<Ledger>,
    /// Sockets that hear ICMP errors.
    pub icmp: IcmpSockets,
}

/// A guard's answer to a claim.
#[derive(Debug)]
pub enum Answer {
    /// It is ours, for as long as the connection to the guard is open.
    Granted(Box<Lease>, OwnedFd),
    /// It is this process's; 0 if that is in a PID namespace out of sight.
    OwnedBy(i32),
    /// It cannot be had: one line of why.
    Refused(String),
}

/// What was asked of a guard.
#[derive(Debug)]
pub enum Request {
    /// The interface, with this word.
    Claim(String),
    /// What it guards.
    List,
    /// `TCP_REPAIR` of a socket, to be set so, with this word.
    Repair(String, i32, OwnedFd),
}

/// Asks the guard at `address` for the interface. `keep` is given each descriptor that comes, for those who have a
/// place for them.
///
/// # Errors
/// Nobody is there, or it says what nobody understands; `TimedOut` if it says nothing.
pub fn claim(address: &str, mut keep: impl FnMut(OwnedFd) -> OwnedFd) -> io::Result<Answer> {
    let (name, word) = address.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    let until = Some(Instant::now() + CLAIMS);
    let mut left = TRIES;
    loop {
        left -= 1;
        match claim_once((name, word), until, &mut keep) {
            Err(error) if left > 0 && is_closed(&error) => {}
            answered => return answered,
        }
    }
}

/// Whether the other has closed the connection, and said nothing.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn claim_once(
    (name, word): (&str, &str),
    until: Option<Instant>,
    mut keep: impl FnMut(OwnedFd) -> OwnedFd,
) -> io::Result<Answer> {
    let connection = keep(connect(name, CLAIMS)?);
    send(&connection, format!("claim {word}").as_bytes(), &[])?;
    let (bytes, descriptors) = receive(&connection, until).map_err(late)?;
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the guard's answer is no answer");
    let (kind, rest) = bytes.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(match kind {
        b'G' => {
            let mut descriptors = descriptors.into_iter().map(&mut keep);
            let (has_v6, grant) = rest.split_first().ok_or_else(nonsense)?;
            let ledger = Arc::new(Ledger::open(descriptors.next().ok_or_else(nonsense)?)?);
            let v4 = descriptors.next().ok_or_else(nonsense)?;
            let v6 = match has_v6 {
                1 => Some(descriptors.next().ok_or_else(nonsense)?),
                _ => None,
            };
            let grant = Grant::from_parts(grant, descriptors.collect()).ok_or_else(nonsense)?;
            let icmp = IcmpSockets { v4, v6 };
            Answer::Granted(Box::new(Lease { grant, ledger, icmp }), connection)
        }
        b'O' => {
            let pid = rest.first_chunk().ok_or_else(nonsense)?;
            Answer::OwnedBy(i32::from_ne_bytes(*pid))
        }
        b'F' => Answer::Refused(String::from_utf8_lossy(rest).into_owned()),
        _ => return Err(nonsense()),
    })
}

/// Has the guard at `address` set `TCP_REPAIR` of `socket`, for who may not.
///
/// # Errors
/// Nobody is there, or it has not done it; `TimedOut` if it does not answer.
pub fn repair(address: &str, socket: RawFd, how: i32) -> io::Result<()> {
    let (name, word) = address.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    let until = Some(Instant::now() + LISTS);
    let connection = connect(name, LISTS)?;
    send(&connection, format!("repair {how} {word}").as_bytes(), &[socket])?;
    match receive(&connection, until).map_err(late)? {
        (bytes, _) if bytes == b"R" => Ok(()),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// What becomes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The interface is no more: deleted, or in another network namespace.
    Interface,
    /// The guard has gone.
    Guard,
}

/// Has a thread of the stack's own say what has ended. It keeps the connection until the guard has.
///
/// # Errors
/// No thread to be had.
pub fn when_it_ends(connection: OwnedFd, said: impl Fn(End) + Send + 'static) -> io::Result<()> {
    thread::spawn("busypoll/guard", move || {
        loop {
            while sys::poll(connection.as_raw_fd(), None) <= 0 {}
            match receive(&connection, None) {
                Ok((bytes, _)) if !bytes.is_empty() => said(End::Interface),
                _ => return said(End::Guard),
            }
        }
    })
    .map(drop)
}

/// What the guard at this abstract name guards: PID and ledger of who has the interface, if anybody has and we may know.
///
/// # Errors
/// Nobody is there; `TimedOut` if it does not answer.
pub fn list(name: &str) -> io::Result<Option<(i32, Ledger)>> {
    let until = Some(Instant::now() + LISTS);
    let connection = connect(name, LISTS)?;
    send(&connection, b"list", &[])?;
    let (bytes, descriptors) = receive(&connection, until).map_err(late)?;
    let pid = bytes.strip_prefix(b"L").and_then(|rest| rest.first_chunk());
    let Some((pid, memory)) = pid.zip(descriptors.into_iter().next()) else { return Ok(None) };
    Ok(Some((i32::from_ne_bytes(*pid), Ledger::open(memory)?)))
}

/// The guard's end: grants `grant` over `connection`.
///
/// # Errors
/// The other has gone; more queues than a message takes.
pub fn answer_granted(
    connection: &OwnedFd,
    grant: Grant,
    ledger: &Ledger,
    icmp: &IcmpSockets,
) -> io::Result<()> {
    let (described, granted) = grant.into_parts();
    let mut bytes = vec![b'G', u8::from(icmp.v6.is_some())];
    bytes.extend(described);
    let mut descriptors = vec![ledger.memory().as_raw_fd(), icmp.v4.as_raw_fd()];
    descriptors.extend(icmp.v6.as_ref().map(AsRawFd::as_raw_fd));
    descriptors.extend(granted.iter().map(AsRawFd::as_raw_fd));
    send(connection, &bytes, &descriptors)
}

/// The guard's end: who has the interface is told that it is no more.
///
/// # Errors
/// The other has gone.
pub fn tell_it_ended(connection: &OwnedFd) -> io::Result<()> {
    send(connection, b"X", &[])
}

/// The guard's end: another process has it.
///
/// # Errors
/// The other has gone.
pub fn answer_owned(connection: &OwnedFd, pid: i32) -> io::Result<()> {
    send(connection, &[b"O", &pid.to_ne_bytes()[..]].concat(), &[])
}

/// The guard's end: it cannot be had.
///
/// # Errors
/// The other has gone.
pub fn answer_refused(connection: &OwnedFd, why: &str) -> io::Result<()> {
    let why = why.as_bytes().get(..BYTES - 1).unwrap_or(why.as_bytes());
    send(connection, &[b"F", why].concat(), &[])
}

/// The guard's end: `TCP_REPAIR` is set.
///
/// # Errors
/// The other has gone.
pub fn answer_repaired(connection: &OwnedFd) -> io::Result<()> {
    send(connection, b"R", &[])
}

/// The guard's end: this process has an interface, and keeps this ledger.
///
/// # Errors
/// The other has gone.
pub fn answer_listed(connection: &OwnedFd, pid: i32, ledger: &Ledger) -> io::Result<()> {
    let bytes = [b"L", &pid.to_ne_bytes()[..]].concat();
    send(connection, &bytes, &[ledger.memory().as_raw_fd()])
}

/// The guard's end: what was asked over a connection. `None`: nothing that makes sense, or the other has gone.
///
/// # Errors
/// `WouldBlock` if it has not asked yet.
pub fn asked(connection: &OwnedFd) -> io::Result<Option<Request>> {
    let (bytes, descriptors) = receive(connection, None)?;
    let Ok(text) = str::from_utf8(&bytes) else { return Ok(None) };
    let mut words = text.splitn(3, ' ');
    Ok(match (words.next(), words.next(), words.next()) {
        (Some("list"), None, None) => Some(Request::List),
        (Some("claim"), Some(word), None) => Some(Request::Claim(word.to_owned())),
        (Some("repair"), Some(how), Some(word)) => {
            let how = how.parse().ok().zip(descriptors.into_iter().next());
            how.map(|(how, socket)| Request::Repair(word.to_owned(), how, socket))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::fd::AsFd, thread};

    fn name(what: &str) -> String {
        format!("busypoll/test/{what}/{}", std::process::id())
    }

    /// Waits for what does not wait.
    fn soon<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                other => break other.unwrap(),
            }
        }
    }

    #[test]
    fn a_claim_is_refused_in_words_and_by_pid() {
        let name = name("refused");
        let listener = listen(&name).unwrap();
        let guard = thread::spawn(move || {
            for at in 0..2 {
                let connection = soon(|| accept(listener.as_fd()));
                let request = soon(|| asked(&connection));
                assert!(matches!(request, Some(Request::Claim(word)) if word == "secret"));
                match at {
                    0 => answer_refused(&connection, "it is raining").unwrap(),
                    _ => answer_owned(&connection, 4711).unwrap(),
                }
            }
        });
        let address = format!("{name}/secret");
        let claim = || super::claim(&address, |fd| fd).unwrap();
        assert!(matches!(claim(), Answer::Refused(why) if why == "it is raining"));
        assert!(matches!(claim(), Answer::OwnedBy(4711)));
        guard.join().unwrap();
        assert!(super::claim(&address, |fd| fd).is_err(), "nobody listens any more");
    }

    /// A guard closes the connection of who says nothing for a while, as one who is stopped does.
    #[test]
    fn who_is_stopped_before_it_claims_claims_again() {
        let name = name("stopped");
        let listener = listen(&name).unwrap();
        let guard = thread::spawn(move || {
            drop(soon(|| accept(listener.as_fd())));
            let connection = soon(|| accept(listener.as_fd()));
            assert!(matches!(soon(|| asked(&connection)), Some(Request::Claim(_))));
            answer_owned(&connection, 4711).unwrap();
            listener
        });
        let address = format!("{name}/secret");
        assert!(matches!(claim(&address, |fd| fd).unwrap(), Answer::OwnedBy(4711)));
        // One that answers nobody is not asked for ever.
        let listener = guard.join().unwrap();
        let claiming = thread::spawn(move || claim(&address, |fd| fd));
        while !claiming.is_finished() {
            sys::poll(listener.as_raw_fd(), Some(Duration::from_millis(10)));
            drop(accept(listener.as_fd()));
        }
        assert!(claiming.join().unwrap().is_err());
    }

    #[test]
    fn a_guard_shows_what_it_guards() {
        let name = name("list");
        let listener = listen(&name).unwrap();
        let guard = thread::spawn(move || {
            let connection = soon(|| accept(listener.as_fd()));
            assert!(matches!(soon(|| asked(&connection)), Some(Request::List)));
            let ledger = Ledger::create(4).unwrap();
            answer_listed(&connection, 17, &ledger).unwrap();
        });
        let (pid, listed) = list(&name).unwrap().unwrap();
        guard.join().unwrap();
        assert_eq!((pid, listed.list()), (17, vec![]));
    }

    /// Neither one that takes no connection nor one that takes it and says nothing.
    #[test]
    fn nobody_waits_for_ever_for_who_says_nothing() {
        let name = name("silent");
        let listener = listen(&name).unwrap();
        let late = |result: io::Result<_>| result.unwrap_err().kind() == io::ErrorKind::TimedOut;
        assert!(late(list(&name)), "it is in the backlog");
        let connections: Vec<_> =
            std::iter::from_fn(|| connect(&name, Duration::from_millis(50)).ok()).collect();
        assert!(connections.len() > 100);
        assert!(late(list(&name)), "the backlog is full");
        drop(listener);
    }

    /// Handlers end each wait, and the next one begins anew.
    #[test]
    fn nobody_waits_for_ever_where_signals_keep_coming() {
        extern "C" fn nothing(_: libc::c_int) {}
        let name = name("interrupted");
        let listener = listen(&name).unwrap();
        // SAFETY: a handler that does nothing, of a signal that nobody else here uses.
        unsafe { libc::signal(libc::SIGWINCH, nothing as *const () as libc::sighandler_t) };
        let (say, hear) = std::sync::mpsc::channel();
        let listing = thread::spawn(move || {
            // SAFETY: a plain call.
            say.send(unsafe { libc::pthread_self() } as usize).unwrap();
            list(&name)
        });
        let listing_thread = hear.recv().unwrap();
        let begun = Instant::now();
        while !listing.is_finished() {
            assert!(begun.elapsed() < 5 * LISTS, "it waits for ever");
            // SAFETY: not joined yet, so the thread's number is its own.
            unsafe { libc::pthread_kill(listing_thread as libc::pthread_t, libc::SIGWINCH) };
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(listing.join().unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(listener);
    }

    /// In a thread that is another user's: a name that its guard has left may be taken by anybody.
    #[test]
    fn who_is_neither_root_nor_of_this_user_is_not_believed() {
        busypoll_lab::needs_root!();
        let name = name("forged");
        let forged = {
            let name = name.clone();
            thread::spawn(move || {
                // SAFETY: a plain call, which concerns this thread alone. It ends with its work.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
                listen(&name).unwrap()
            })
        };
        let _forged = forged.join().unwrap();
        let listed = list(&name).map(drop).unwrap_err();
        let claimed = super::claim(&format!("{name}/word"), |fd| fd).map(drop).unwrap_err();
        for error in [listed, claimed] {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        }
    }
}
