//! The messages between a guard and the processes it guards. A guard holds the interface. A process claims it, is
//! granted what it needs to drive the queues, and keeps the connection open as long as it drives them: when the process
//! ends in any way, the guard sees the connection close. The address is an abstract unix socket's name and a secret
//! word of the run, `NAME/WORD`. If the guard of another run of the same user holds the interface, the guard asks that
//! one in its process's name, and passes the connection on.
//!
//! | message | meaning |
//! |---|---|
//! | `prepare WORD` | take the interface: a claim may follow; not answered |
//! | `watch WORD` | list my sockets; I may claim the interface later |
//! | `claim WORD` | grant me the interface; with the ledger, if it has one |
//! | `repair HOW WORD` | set `TCP_REPAIR` of the socket sent along, which takes CAP_NET_ADMIN |
//! | `priority VALUE WORD` | set `SO_PRIORITY` of the socket sent along, to a value that names a slot |
//! | `share WORD` | the socket sent along is a listener that a program without the interface has: share its port |
//! | `join PID` | grant it to that process, whose pidfd is sent along, and its ledger; of the guard of another run |
//! | `list` | show me what you guard; answered to the user that started the guard, and to root |
//! | `W…` | watched: the ledger to write, and ICMP sockets |
//! | `G…` | granted: the ledger to write, ICMP sockets, and the [`Grant`] |
//! | `J` | another guard answers, over the connection sent along |
//! | `L…` | the ledgers of the processes that have the interface, and their pidfds; then the connection ends |
//! | `O…` | another process has the interface: its PID |
//! | `X` | to the process that has the interface: it no longer exists |
//! | `R` | the option is set |
//! | `F…` | refused: the reason in one line |

mod socket;

pub use crate::unix::peer;
pub use socket::{accept, listen};

use self::socket::{BYTES, as_timed_out, connect, receive, send};
use crate::{icmp_sockets::IcmpSockets, ledger::Ledger, nic::xdp::Grant, sys, thread};
use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a claim waits for the guard. When an interface is taken, its driver may have to reinitialise all its rings.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(20);

/// How often a claim is made. A guard closes the connection of a process that is slow to send its request, for example
/// because it was stopped meanwhile.
const MAX_CLAIMS: u32 = 3;

/// How long other requests wait; their answers come at once. Any process may listen at a name like a guard's and never
/// answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a request may take that is not answered: the guard's backlog has room, or the request is left out.
const PREPARE_TIMEOUT: Duration = Duration::from_millis(1);

/// An interface that this process may drive.
#[derive(Debug)]
pub struct Lease {
    /// Everything needed to drive the queues.
    pub grant: Grant,
    /// The ledger to write, so that the guard can reset connections if this process is killed.
    pub ledger: Arc<Ledger>,
    /// Sockets that receive ICMP errors.
    pub icmp: IcmpSockets,
}

/// What a process has of a guard that watches it.
#[derive(Debug)]
pub struct Watched {
    /// The ledger to write, so that the process's sockets are listed.
    pub ledger: Arc<Ledger>,
    /// Sockets that receive ICMP errors.
    pub icmp: IcmpSockets,
    /// It is watched for as long as this is open.
    pub connection: OwnedFd,
}

/// A guard's answer to a claim.
#[derive(Debug)]
pub enum Answer {
    /// Granted for as long as the connection to the guard is open.
    Granted(Box<Lease>, OwnedFd),
    /// Another process has it: its PID, or 0 if its PID namespace is not visible from here.
    OwnedBy(i32),
    /// Refused: the reason in one line.
    Refused(String),
}

/// A request to a guard.
#[derive(Debug)]
pub enum Request {
    /// Take the interface. With the secret word.
    Prepare(String),
    /// List the process's sockets. With the secret word.
    Watch(String),
    /// Grant the interface. With the secret word, and the process's ledger if it is watched.
    Claim(String, Option<OwnedFd>),
    /// Grant the interface to a process of another run: its PID, its pidfd, and its ledger if it has one.
    Join(i32, OwnedFd, Option<OwnedFd>),
    /// Show what is guarded.
    List,
    /// Set `TCP_REPAIR` of a socket to a value. With the secret word.
    Repair(String, i32, OwnedFd),
    /// Set `SO_PRIORITY` of a socket. With the secret word.
    Priority(String, u32, OwnedFd),
    /// Share the port of a listener. With the secret word; one of another run's guard has none.
    Share(String, OwnedFd),
}

/// Claims the interface from the guard at `address`, with the ledger of a process that is [watched](watch). Each received
/// descriptor passes through `keep`, so that the caller can move it to another number.
///
/// # Errors
/// No guard listens, or its answer is not understood; `TimedOut` if it does not answer.
pub fn claim(
    address: &str,
    ledger: Option<&Ledger>,
    mut keep: impl FnMut(OwnedFd) -> OwnedFd,
) -> io::Result<Answer> {
    repeated(address, |name, word| claim_once(name, word, ledger, &mut keep))
}

/// Asks the guard at `address` to list this process's sockets. `Err` with the reason, if it refuses.
///
/// # Errors
/// As [`claim`].
pub fn watch(
    address: &str,
    mut keep: impl FnMut(OwnedFd) -> OwnedFd,
) -> io::Result<Result<Watched, String>> {
    repeated(address, |name, word| {
        let connection = keep(connect(name, CLAIM_TIMEOUT)?);
        send(&connection, format!("watch {word}").as_bytes(), &[])?;
        let until = Some(Instant::now() + CLAIM_TIMEOUT);
        let (bytes, descriptors) = receive(&connection, until).map_err(as_timed_out)?;
        let (kind, rest) = bytes.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
        match (kind, rest) {
            (b'W', [has_v6]) => {
                let mut descriptors = descriptors.into_iter().map(&mut keep);
                let (ledger, icmp) = ledger_and_icmp(*has_v6, &mut descriptors)?;
                Ok(Ok(Watched { ledger, icmp, connection }))
            }
            (b'F', why) => Ok(Err(String::from_utf8_lossy(why).into_owned())),
            _ => Err(nonsense()),
        }
    })
}

/// Makes a request to the guard at `address` again if the guard has closed the connection.
fn repeated<T>(address: &str, mut ask: impl FnMut(&str, &str) -> io::Result<T>) -> io::Result<T> {
    let (name, word) = address.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    let mut left = MAX_CLAIMS;
    loop {
        left -= 1;
        match ask(name, word) {
            Err(error) if left > 0 && is_closed(&error) => {}
            answered => return answered,
        }
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the guard's answer is malformed")
}

fn ledger_and_icmp(
    has_v6: u8,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> io::Result<(Arc<Ledger>, IcmpSockets)> {
    let mut next = || descriptors.next().ok_or_else(nonsense);
    let ledger = Arc::new(Ledger::open(next()?)?);
    let v4 = next()?;
    let v6 = if has_v6 == 1 { Some(next()?) } else { None };
    Ok((ledger, IcmpSockets { v4, v6 }))
}

/// Whether the guard has closed the connection without an answer.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn claim_once(
    name: &str,
    word: &str,
    ledger: Option<&Ledger>,
    mut keep: impl FnMut(OwnedFd) -> OwnedFd,
) -> io::Result<Answer> {
    let until = Some(Instant::now() + CLAIM_TIMEOUT);
    let mut connection = keep(connect(name, CLAIM_TIMEOUT)?);
    let memory = ledger.map(|ledger| ledger.memory().as_raw_fd());
    send(&connection, format!("claim {word}").as_bytes(), memory.as_slice())?;
    let (mut bytes, mut descriptors) = receive(&connection, until).map_err(as_timed_out)?;
    if bytes == b"J" {
        connection = keep(descriptors.pop().ok_or(io::ErrorKind::UnexpectedEof)?);
        (bytes, descriptors) = receive(&connection, until).map_err(as_timed_out)?;
    }
    let (kind, rest) = bytes.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(match kind {
        b'G' => {
            let mut descriptors = descriptors.into_iter().map(&mut keep);
            let (has_v6, grant) = rest.split_first().ok_or_else(nonsense)?;
            let (ledger, icmp) = ledger_and_icmp(*has_v6, &mut descriptors)?;
            let grant = Grant::from_parts(grant, descriptors.collect()).ok_or_else(nonsense)?;
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

/// Asks the guard at `address` to set `TCP_REPAIR` of `socket`, for a process without the capability.
///
/// # Errors
/// No guard listens, or it refuses; `TimedOut` if it does not answer.
pub fn repair(address: &str, socket: RawFd, how: i32) -> io::Result<()> {
    set_option(address, socket, format_args!("repair {how}"))
}

/// Asks the guard at `address` to set `SO_PRIORITY` of `socket`, for a process without the capability.
///
/// # Errors
/// As [`repair`].
pub fn priority(address: &str, socket: RawFd, priority: u32) -> io::Result<()> {
    set_option(address, socket, format_args!("priority {priority}"))
}

/// Asks the guard at `address` to [share](crate::nic::xdp::Attachment::share_listener) the port of a listener. The guard of
/// another run is asked by its name alone.
///
/// # Errors
/// As [`repair`].
pub fn share(address: &str, socket: RawFd) -> io::Result<()> {
    set_option(address, socket, format_args!("share"))
}

fn set_option(address: &str, socket: RawFd, what: fmt::Arguments<'_>) -> io::Result<()> {
    let (name, word) = address.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    let until = Some(Instant::now() + REQUEST_TIMEOUT);
    let connection = connect(name, REQUEST_TIMEOUT)?;
    send(&connection, format!("{what} {word}").as_bytes(), &[socket])?;
    match receive(&connection, until).map_err(as_timed_out)? {
        (bytes, _) if bytes == b"R" => Ok(()),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Asks the guard at `address` to take the interface for a claim that may follow. Does not wait until it has done so.
///
/// # Errors
/// No guard listens, or it does not accept the request.
pub fn prepare(address: &str) -> io::Result<()> {
    let (name, word) = address.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    send(&connect(name, PREPARE_TIMEOUT)?, format!("prepare {word}").as_bytes(), &[])
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The interface no longer exists: it was deleted, or moved to another network namespace.
    Interface,
    /// The guard has ended.
    Guard,
}

/// Starts a thread that calls `said` when the lease ends. It keeps the connection until the guard ends.
///
/// # Errors
/// The thread cannot be started.
pub fn on_end(connection: OwnedFd, said: impl Fn(End) + Send + 'static) -> io::Result<()> {
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

/// Asks the guard of another run, at this abstract name, to grant its interface to the process with that PID and pidfd.
/// The answer comes over the returned connection, to be [passed on](answer_joined).
///
/// # Errors
/// No guard of this user or root listens.
pub fn join(
    name: &str,
    pid: i32,
    process: BorrowedFd<'_>,
    ledger: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let connection = connect(name, CLAIM_TIMEOUT)?;
    let descriptors = Vec::from_iter([process].iter().chain(&ledger).map(AsRawFd::as_raw_fd));
    send(&connection, format!("join {pid}").as_bytes(), &descriptors)?;
    Ok(connection)
}

/// Whether the guard that was asked over this connection grants its interface. For a caller that has no use for it.
pub fn is_joined(connection: &OwnedFd) -> bool {
    let until = Some(Instant::now() + CLAIM_TIMEOUT);
    receive(connection, until).is_ok_and(|(bytes, _)| bytes.first() == Some(&b'G'))
}

/// The PIDs and the ledgers of the processes that have the interface of the guard at this abstract name; the PID is 0
/// for a process that has none in the guard's or in this namespace. None if no process has it, or the guard does not
/// show them to this user.
///
/// # Errors
/// No guard listens; `TimedOut` if it does not answer.
pub fn list(name: &str) -> io::Result<Vec<(i32, Ledger)>> {
    let connection = connect(name, REQUEST_TIMEOUT)?;
    ask_list(&connection, REQUEST_TIMEOUT)
}

/// As [`list`], of a guard of any user, with that user's id. Any user may listen at a guard's name and answer anything:
/// what it lists is that user's word, and it gets `timeout` to answer.
///
/// # Errors
/// As [`list`].
pub fn list_of_any_user(name: &str, timeout: Duration) -> io::Result<(u32, Vec<(i32, Ledger)>)> {
    let connection = socket::connect_to_any(name, timeout)?;
    let (_, user) = peer(connection.as_fd())?;
    Ok((user, ask_list(&connection, timeout)?))
}

fn ask_list(connection: &OwnedFd, timeout: Duration) -> io::Result<Vec<(i32, Ledger)>> {
    let until = Some(Instant::now() + timeout);
    send(connection, b"list", &[])?;
    let (bytes, descriptors) = receive(connection, until).map_err(as_timed_out)?;
    let visible = bytes.strip_prefix(b"L").unwrap_or_default();
    let mut descriptors = descriptors.into_iter();
    let mut listed = Vec::new();
    for (visible, memory) in visible.iter().zip(descriptors.by_ref()) {
        listed.push((i32::from(*visible), Ledger::open(memory)?));
    }
    for (pid, _) in listed.iter_mut().filter(|(visible, _)| *visible != 0) {
        *pid = descriptors.next().map_or(0, |process| pid_here(process.as_fd()));
    }
    Ok(listed)
}

/// The PID of a process in this namespace, which need not be that of its guard; 0 if it has none here or has ended.
fn pid_here(process: BorrowedFd<'_>) -> i32 {
    let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let info = std::fs::read_to_string(path).unwrap_or_default();
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    pid.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0).max(0)
}

/// In the guard: grants `grant` over `connection`.
///
/// # Errors
/// The process has ended; more queues than a message can carry.
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

/// In the guard: the process is watched.
///
/// # Errors
/// The process has ended.
pub fn answer_watched(connection: &OwnedFd, ledger: &Ledger, icmp: &IcmpSockets) -> io::Result<()> {
    let mut descriptors = vec![ledger.memory().as_raw_fd(), icmp.v4.as_raw_fd()];
    descriptors.extend(icmp.v6.as_ref().map(AsRawFd::as_raw_fd));
    send(connection, &[b'W', u8::from(icmp.v6.is_some())], &descriptors)
}

/// In the guard: notifies the process that has the interface that it no longer exists.
///
/// # Errors
/// The process has ended.
pub fn send_interface_gone(connection: &OwnedFd) -> io::Result<()> {
    send(connection, b"X", &[])
}

/// In the guard: answers that another process has the interface.
///
/// # Errors
/// The process has ended.
pub fn answer_owned(connection: &OwnedFd, pid: i32) -> io::Result<()> {
    send(connection, &[b"O", &pid.to_ne_bytes()[..]].concat(), &[])
}

/// In the guard: passes on the connection over which another guard answers.
///
/// # Errors
/// The process has ended.
pub fn answer_joined(connection: &OwnedFd, joined: &OwnedFd) -> io::Result<()> {
    send(connection, b"J", &[joined.as_raw_fd()])
}

/// In the guard: refuses the claim.
///
/// # Errors
/// The process has ended.
pub fn answer_refused(connection: &OwnedFd, why: &str) -> io::Result<()> {
    let why = why.as_bytes().get(..BYTES - 1).unwrap_or(why.as_bytes());
    send(connection, &[b"F", why].concat(), &[])
}

/// In the guard: answers that the option is set.
///
/// # Errors
/// The process has ended.
pub fn answer_set(connection: &OwnedFd) -> io::Result<()> {
    send(connection, b"R", &[])
}

/// In the guard: answers which processes, by their pidfds as far as they are visible to it, have the interface, with
/// their ledgers.
///
/// # Errors
/// The process has ended.
pub fn answer_listed(
    connection: &OwnedFd,
    listed: &[(Option<BorrowedFd<'_>>, &Ledger)],
) -> io::Result<()> {
    let mut bytes = b"L".to_vec();
    bytes.extend(listed.iter().map(|(process, _)| u8::from(process.is_some())));
    let ledgers = listed.iter().map(|(_, ledger)| ledger.memory().as_raw_fd());
    let processes = listed.iter().filter_map(|(process, _)| Some(process.as_ref()?.as_raw_fd()));
    send(connection, &bytes, &ledgers.chain(processes).collect::<Vec<_>>())
}

/// In the guard: receives a request over a connection. `None`: the request is malformed, or the process has ended.
///
/// # Errors
/// `WouldBlock` if no request has come yet.
pub fn receive_request(connection: &OwnedFd) -> io::Result<Option<Request>> {
    let (bytes, descriptors) = receive(connection, None)?;
    let Ok(text) = str::from_utf8(&bytes) else { return Ok(None) };
    let mut words = text.splitn(3, ' ');
    Ok(match (words.next(), words.next(), words.next()) {
        (Some("list"), None, None) => Some(Request::List),
        (Some("prepare"), Some(word), None) => Some(Request::Prepare(word.to_owned())),
        (Some("share"), Some(word), None) => {
            descriptors.into_iter().next().map(|socket| Request::Share(word.to_owned(), socket))
        }
        (Some("watch"), Some(word), None) => Some(Request::Watch(word.to_owned())),
        (Some("claim"), Some(word), None) => {
            Some(Request::Claim(word.to_owned(), descriptors.into_iter().next()))
        }
        (Some("join"), Some(pid), None) => {
            let mut descriptors = descriptors.into_iter();
            let pid = pid.parse().ok().zip(descriptors.next());
            pid.map(|(pid, process)| Request::Join(pid, process, descriptors.next()))
        }
        (Some("repair"), Some(how), Some(word)) => {
            let how = how.parse().ok().zip(descriptors.into_iter().next());
            how.map(|(how, socket)| Request::Repair(word.to_owned(), how, socket))
        }
        (Some("priority"), Some(value), Some(word)) => {
            let value = value.parse().ok().zip(descriptors.into_iter().next());
            value.map(|(value, socket)| Request::Priority(word.to_owned(), value, socket))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn name(what: &str) -> String {
        format!("busypoll/test/{what}/{}", std::process::id())
    }

    /// Repeats a non-blocking call until it succeeds.
    fn soon<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
        loop {
            match call() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                other => break other.unwrap(),
            }
        }
    }

    #[test]
    fn a_refused_claim_gets_the_reason_or_the_owners_pid() {
        let name = name("refused");
        let listener = listen(&name).unwrap();
        let guard = thread::spawn(move || {
            for at in 0..2 {
                let connection = soon(|| accept(listener.as_fd()));
                let request = soon(|| receive_request(&connection));
                assert!(matches!(request, Some(Request::Claim(word, None)) if word == "secret"));
                match at {
                    0 => answer_refused(&connection, "it is raining").unwrap(),
                    _ => answer_owned(&connection, 4711).unwrap(),
                }
            }
        });
        let address = format!("{name}/secret");
        let claim = || super::claim(&address, None, |fd| fd).unwrap();
        assert!(matches!(claim(), Answer::Refused(why) if why == "it is raining"));
        assert!(matches!(claim(), Answer::OwnedBy(4711)));
        guard.join().unwrap();
        assert!(super::claim(&address, None, |fd| fd).is_err(), "the listener is closed");
    }

    /// A guard closes a connection without a request after a while, for example that of a stopped process.
    #[test]
    fn a_claim_is_repeated_if_the_guard_closes_the_connection() {
        let name = name("stopped");
        let listener = listen(&name).unwrap();
        let guard = thread::spawn(move || {
            drop(soon(|| accept(listener.as_fd())));
            let connection = soon(|| accept(listener.as_fd()));
            assert!(matches!(soon(|| receive_request(&connection)), Some(Request::Claim(..))));
            answer_owned(&connection, 4711).unwrap();
            listener
        });
        let address = format!("{name}/secret");
        assert!(matches!(claim(&address, None, |fd| fd).unwrap(), Answer::OwnedBy(4711)));
        // The claim is not repeated for ever.
        let listener = guard.join().unwrap();
        let claiming = thread::spawn(move || claim(&address, None, |fd| fd));
        while !claiming.is_finished() {
            sys::poll(listener.as_raw_fd(), Some(Duration::from_millis(10)));
            drop(accept(listener.as_fd()));
        }
        assert!(claiming.join().unwrap().is_err());
    }

    #[test]
    fn a_guard_lists_its_processes_and_their_ledgers() {
        let name = name("list");
        let listener = listen(&name).unwrap();
        let guard = thread::spawn(move || {
            let connection = soon(|| accept(listener.as_fd()));
            assert!(matches!(soon(|| receive_request(&connection)), Some(Request::List)));
            let ledgers = [(); 2].map(|()| Ledger::create(4).unwrap());
            // SAFETY: a plain system call.
            let this = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
            let this = sys::owned(this as libc::c_int).unwrap();
            let listed = [(None, &ledgers[0]), (Some(this.as_fd()), &ledgers[1])];
            answer_listed(&connection, &listed).unwrap();
        });
        let listed = list(&name).unwrap();
        guard.join().unwrap();
        let listed: Vec<_> = listed.iter().map(|(pid, ledger)| (*pid, ledger.list())).collect();
        let this = std::process::id() as i32;
        assert_eq!(listed, [(0, vec![]), (this, vec![])]);
    }

    /// Neither a connection that is not accepted nor a full backlog blocks for ever.
    #[test]
    fn a_list_times_out_if_the_guard_does_not_answer() {
        let name = name("silent");
        let listener = listen(&name).unwrap();
        let timed_out =
            |result: io::Result<_>| result.unwrap_err().kind() == io::ErrorKind::TimedOut;
        assert!(timed_out(list(&name)), "connected, but not accepted");
        let connections: Vec<_> =
            std::iter::from_fn(|| connect(&name, Duration::from_millis(50)).ok()).collect();
        assert!(connections.len() > 100);
        assert!(timed_out(list(&name)), "the backlog is full");
        drop(listener);
    }

    /// Each signal interrupts the wait, which then starts again with its full timeout.
    #[test]
    fn a_list_times_out_even_if_signals_keep_coming() {
        extern "C" fn nothing(_: libc::c_int) {}
        let name = name("interrupted");
        let listener = listen(&name).unwrap();
        // SAFETY: a handler that does nothing, for a signal that no other test uses.
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
            assert!(begun.elapsed() < 5 * REQUEST_TIMEOUT, "the wait never ends");
            // SAFETY: the thread is not joined yet, so its id is valid.
            unsafe { libc::pthread_kill(listing_thread as libc::pthread_t, libc::SIGWINCH) };
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(listing.join().unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(listener);
    }

    /// The listener runs in a thread with another user id: after a guard has ended, any user may take its name.
    #[test]
    fn a_listener_of_another_user_than_root_or_this_one_is_not_trusted() {
        busypoll_lab::needs_root!();
        let name = name("forged");
        let forged = {
            let name = name.clone();
            thread::spawn(move || {
                // SAFETY: a plain call, which changes only this thread. The thread ends with its work.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
                listen(&name).unwrap()
            })
        };
        let _forged = forged.join().unwrap();
        let listed = list(&name).map(drop).unwrap_err();
        let claimed = super::claim(&format!("{name}/word"), None, |fd| fd).map(drop).unwrap_err();
        for error in [listed, claimed] {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        }
    }
}
