//! What a guard and the processes it guards say to each other. A guard holds the interface; a process claims it, gets
//! what it takes to drive its queues, and keeps the connection open for as long as it does: however it ends, the guard
//! sees that. The address is an abstract unix socket's name and a word that only the run knows, `NAME/WORD`.
//!
//! | message | what it says |
//! |---|---|
//! | `claim WORD` | give me the interface |
//! | `list` | show me what you guard: for the user who started it, and root |
//! | `G…` | granted: a ledger to keep, sockets for ICMP, and the [`Grant`] |
//! | `L…` | its owner's PID and its ledger, for each who has one; then the connection ends |
//! | `O…` | another process has it: its PID |
//! | `F…` | it cannot be had: one line of why |

use crate::{IcmpSockets, ledger::Ledger, nic::xdp::Grant, sys};
use std::{
    io, mem,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        linux::net::SocketAddrExt,
        unix::net::SocketAddr,
    },
    ptr,
};

/// The most descriptors in one message: the kernel takes 253 (SCM_MAX_FD).
const DESCRIPTORS: usize = 250;

/// The longest message.
const BYTES: usize = 1024;

/// An interface that this process may drive, and what it is to do for it.
#[derive(Debug)]
pub struct Lease {
    /// What it takes to drive the queues.
    pub grant: Grant,
    /// To be kept, so that peers can be told when this process is killed.
    pub ledger: Ledger,
    /// Sockets that hear ICMP errors.
    pub icmp: IcmpSockets,
    /// The guard sees when this is closed; it closes when the guard has gone.
    pub connection: OwnedFd,
}

/// A guard's answer to a claim.
#[derive(Debug)]
pub enum Answer {
    /// It is ours.
    Granted(Box<Lease>),
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
}

/// Asks the guard at `address` for the interface. `keep` is given each descriptor that comes, for those who have a
/// place for them.
///
/// # Errors
/// Nobody is there, or it says what nobody understands.
pub fn claim(address: &str, mut keep: impl FnMut(OwnedFd) -> OwnedFd) -> io::Result<Answer> {
    let (name, word) = address.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    let connection = keep(connect(name)?);
    send(&connection, format!("claim {word}").as_bytes(), &[])?;
    let (bytes, descriptors) = receive(&connection)?;
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the guard's answer is no answer");
    let (kind, rest) = bytes.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(match kind {
        b'G' => {
            let mut descriptors = descriptors.into_iter().map(&mut keep);
            let (has_v6, grant) = rest.split_first().ok_or_else(nonsense)?;
            let ledger = Ledger::open(descriptors.next().ok_or_else(nonsense)?)?;
            let v4 = descriptors.next().ok_or_else(nonsense)?;
            let v6 = match has_v6 {
                1 => Some(descriptors.next().ok_or_else(nonsense)?),
                _ => None,
            };
            let grant = Grant::from_parts(grant, descriptors.collect()).ok_or_else(nonsense)?;
            let icmp = IcmpSockets { v4, v6 };
            Answer::Granted(Box::new(Lease { grant, ledger, icmp, connection }))
        }
        b'O' => {
            let pid = rest.first_chunk().ok_or_else(nonsense)?;
            Answer::OwnedBy(i32::from_ne_bytes(*pid))
        }
        b'F' => Answer::Refused(String::from_utf8_lossy(rest).into_owned()),
        _ => return Err(nonsense()),
    })
}

/// What the guard at this abstract name guards: PIDs and ledgers.
///
/// # Errors
/// Nobody is there, or does not tell us.
pub fn list(name: &str) -> io::Result<Vec<(i32, Ledger)>> {
    let connection = connect(name)?;
    send(&connection, b"list", &[])?;
    let mut found = Vec::new();
    loop {
        let (bytes, descriptors) = receive(&connection)?;
        let Some(pid) = bytes.strip_prefix(b"L").and_then(|rest| rest.first_chunk()) else {
            return Ok(found);
        };
        if let Some(memory) = descriptors.into_iter().next() {
            found.push((i32::from_ne_bytes(*pid), Ledger::open(memory)?));
        }
    }
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
    let (bytes, _) = receive(connection)?;
    Ok(match bytes.as_slice() {
        b"list" => Some(Request::List),
        other => {
            let word = other.strip_prefix(b"claim ").and_then(|word| str::from_utf8(word).ok());
            word.map(|word| Request::Claim(word.to_owned()))
        }
    })
}

/// A socket that listens at an abstract name. It and what it accepts do not wait.
///
/// # Errors
/// The name is taken; no descriptor left.
pub fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(libc::SOCK_NONBLOCK)?;
    let (address, len) = address(name)?;
    // SAFETY: a valid address of that length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    // SAFETY: a plain system call.
    if bound != 0 || unsafe { libc::listen(socket.as_raw_fd(), 128) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// The next connection to `listener`.
///
/// # Errors
/// `WouldBlock` if there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is wanted.
    sys::owned(unsafe {
        libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags)
    })
}

/// Who is at the other end: the PID, 0 if out of sight, and the user.
///
/// # Errors
/// It is no unix socket.
pub fn peer(connection: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for a ucred, and its length.
    let got = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if got == 0 { Ok((credentials.pid, credentials.uid)) } else { Err(io::Error::last_os_error()) }
}

fn socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: a plain system call.
    sys::owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

fn address(name: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // Checks the length.
    SocketAddr::from_abstract_name(name)?;
    // SAFETY: all zeros is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, len as libc::socklen_t))
}

fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(0)?;
    let (address, len) = address(name)?;
    // SAFETY: a valid address of that length.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Room for the descriptors of one message, as the kernel lays them out.
#[repr(C, align(8))]
struct Control([u8; 64 + DESCRIPTORS * size_of::<RawFd>()]);

fn send(connection: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS {
        return Err(io::Error::other(
            "the interface has more queues than one process can be given",
        ));
    }
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let size = size_of_val(descriptors) as u32;
    // SAFETY: `control` has room for the descriptors and their header; all that the message points to outlives the
    // call, which only reads it.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            let to = libc::CMSG_DATA(header);
            ptr::copy_nonoverlapping(descriptors.as_ptr().cast(), to, size_of_val(descriptors));
        }
        libc::sendmsg(connection.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One message; nothing if the other has gone.
fn receive(connection: &OwnedFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; BYTES];
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut descriptors = Vec::new();
    // SAFETY: all that the message points to is writable for the length given, and outlives the call; the control
    // messages are read as the kernel laid them out, and each descriptor is taken once.
    let received = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of_val(&control) as _;
        let received = loop {
            let flags = libc::MSG_CMSG_CLOEXEC;
            let received = libc::recvmsg(connection.as_raw_fd(), &raw mut message, flags);
            let interrupted =
                received < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
            if !interrupted {
                break received;
            }
        };
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while received >= 0 && !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for at in 0..bytes / size_of::<RawFd>() {
                    let fd = first.add(at).read_unaligned();
                    descriptors.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        received
    };
    match usize::try_from(received) {
        Ok(len) => {
            bytes.truncate(len);
            Ok((bytes, descriptors))
        }
        Err(_) => Err(io::Error::last_os_error()),
    }
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
        let listed = list(&name).unwrap();
        guard.join().unwrap();
        assert_eq!(listed.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [17]);
        assert_eq!(listed[0].1.list(), []);
    }
}
