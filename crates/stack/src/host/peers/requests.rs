//! What the processes of this machine ask each other: a request is one message on a connection of its own, and so is
//! the answer. A process is found by its process id within a network namespace; between two, the connections come by
//! the channel of the link that both have, as neither can find the other by a name.

use crate::{
    sys::{has_hung_up, poll_all},
    unix::{self, message},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// The requests: hand this connection over; take it back, as its listener may be accepted from by another process; let
/// me join those that wait at this address; give me their memory; answer.
pub(super) const HAND_OVER: u8 = b'H';
pub(super) const TAKE_BACK: u8 = b'T';
pub(super) const JOIN: u8 = b'J';
pub(super) const GROUP: u8 = b'G';
pub(super) const PING: u8 = b'P';

/// Of processes of another network namespace: give me a link. After the addresses comes the process that asks.
pub(super) const LINK: u8 = b'C';

/// On the channel of such a link: the descriptor with it is a connection, for one request.
const CALL: u8 = b'c';

/// Of AF_UNIX streams: move it to the link; leave it to the kernel.
pub(super) const MOVE_STREAM: u8 = b'M';
pub(super) const LEAVE_STREAM: u8 = b'L';

/// The answers. After the third comes what the listener had received: the number after it, and the data in parts; after
/// the last what is still to be sent: the number of its first byte, and the data in parts.
pub(super) const DONE: u8 = b'D';
pub(super) const NOT_NOW: u8 = b'N';
pub(super) const NOT_ACCEPTED: u8 = b'A';
pub(super) const CLOSED: u8 = b'E';

/// The most in one message.
pub(super) const PART: usize = 32 * 1024;

/// The most data of an answer, as much as a process may have in the buffers of all its connections (`tcp_mem`).
const MOST_DATA: usize = 256 << 20;

/// How long the data of one answer may take.
const DATA_PATIENCE: Duration = Duration::from_secs(5);

/// A kind and two addresses with ports, IPv4 as mapped IPv6.
pub(super) const REQUEST: usize = 1 + 2 * 18;

/// A request for a link.
pub(super) const LINK_REQUEST: usize = REQUEST + 8;

/// A process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// Its PID namespace, in which `pid` is its process id, if it is of another network namespace. Otherwise 0: `pid`
    /// is as this process sees it.
    pub(super) namespace: u32,
    pub(super) pid: u32,
}

/// A process that can be asked.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) process: Process,
    /// The channel to it, if it is of another network namespace.
    pub(super) channel: Option<Arc<OwnedFd>>,
}

impl Process {
    /// Of this network namespace.
    pub(super) fn here(pid: u32) -> Process {
        Process { namespace: 0, pid }
    }
}

impl Peer {
    /// Of this network namespace.
    pub(super) fn here(pid: u32) -> Peer {
        Peer { process: Process::here(pid), channel: None }
    }

    /// A connection for one request; each step may take so long.
    ///
    /// # Errors
    /// It does not answer, or is another user's.
    pub(super) fn connect(&self, patience: Duration) -> io::Result<OwnedFd> {
        // Zero would be no limit.
        let patience = patience.max(Duration::from_millis(1));
        if let Some(channel) = &self.channel {
            let (ours, theirs) = unix::pair(libc::SOCK_SEQPACKET)?;
            unix::set_timeouts(&ours, patience)?;
            let flags = libc::MSG_DONTWAIT;
            message::send(channel.as_fd(), &[CALL], &[theirs.as_raw_fd()], flags)?;
            return Ok(ours);
        }
        let pid = self.process.pid;
        let socket = unix::connect(&control_name(pid), libc::SOCK_SEQPACKET, patience)?;
        let (peer, user) = unix::peer(socket.as_fd())?;
        match peer.cast_unsigned() == pid && unix::trusts(user) {
            true => Ok(socket),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// The connection that has come by a channel; `None`: the channel has ended.
pub(super) fn called(channel: &OwnedFd) -> Option<OwnedFd> {
    let (len, mut descriptors) = message::receive(channel.as_fd(), &mut [0]).ok()?;
    if len == 0 || has_hung_up(channel.as_raw_fd()) {
        return None;
    }
    descriptors.pop()
}

/// What the listener at the other end had received of a connection that it has not accepted.
pub(crate) struct Received {
    /// The number after it.
    pub(crate) next: u32,
    pub(crate) data: Vec<u8>,
}

/// What the other end of a connection had still to send when its program had closed it.
pub(crate) struct Rest {
    /// The number of its first byte.
    pub(crate) first: u32,
    pub(crate) data: Vec<u8>,
}

/// What has become of the other end of a connection.
pub(crate) enum OtherEnd {
    /// The kernel has it.
    Kernels,
    /// It was not accepted, and is no more.
    NotAccepted(Received),
    /// Its program has closed it, and it is no more.
    Closed(Rest),
}

pub(super) enum Answer {
    Done,
    NotNow,
    NotAccepted(Received),
    Closed(Rest),
}

pub(super) fn control_name(pid: u32) -> String {
    format!("busypoll-process-{pid}")
}

/// Sends a request about a connection with these ends, local and remote, to a process; each step may take so long.
pub(super) fn ask(
    peer: &Peer,
    kind: u8,
    ends: (SocketAddr, SocketAddr),
    patience: Duration,
) -> io::Result<Answer> {
    let socket = request(peer, kind, ends, patience)?;
    wait_for_answer(&socket, patience)?;
    answer_on(&socket)
}

/// Waits for an answer to arrive, whatever signals and stops interrupt.
///
/// # Errors
/// `TimedOut`.
pub(super) fn wait_for_answer(socket: &OwnedFd, patience: Duration) -> io::Result<()> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut entry = [libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        match poll_all(&mut entry, Some(left)) {
            1.. => return Ok(()),
            _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            _ => {}
        }
    }
}

/// Sends the request. Returns the connection, over which the answer comes.
pub(super) fn request(
    peer: &Peer,
    kind: u8,
    ends: (SocketAddr, SocketAddr),
    patience: Duration,
) -> io::Result<OwnedFd> {
    let socket = peer.connect(patience)?;
    send_request(&socket, kind, ends).map(|()| socket)
}

/// Sends the request on a connection.
pub(super) fn send_request(
    socket: &OwnedFd,
    kind: u8,
    ends: (SocketAddr, SocketAddr),
) -> io::Result<()> {
    let request = of(kind, ends);
    message::send(socket.as_fd(), &request, &[], 0).map(drop)
}

/// Asks for a link to the process at the other end of `socket`, for a connection with these ends.
pub(super) fn send_link_request(
    socket: &OwnedFd,
    ends: (SocketAddr, SocketAddr),
    own: Process,
) -> io::Result<()> {
    let mut request = [0; LINK_REQUEST];
    request[..REQUEST].copy_from_slice(&of(LINK, ends));
    request[REQUEST..REQUEST + 4].copy_from_slice(&own.namespace.to_ne_bytes());
    request[REQUEST + 4..].copy_from_slice(&own.pid.to_ne_bytes());
    message::send(socket.as_fd(), &request, &[], 0).map(drop)
}

/// The process that asks for a link.
pub(super) fn process_of(request: &[u8; LINK_REQUEST]) -> Process {
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or_default());
    Process { namespace: word(REQUEST), pid: word(REQUEST + 4) }
}

fn of(kind: u8, (local, remote): (SocketAddr, SocketAddr)) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    request[0] = kind;
    write(local, &mut request[1..19]);
    write(remote, &mut request[19..]);
    request
}

pub(super) fn answer_on(socket: &OwnedFd) -> io::Result<Answer> {
    let mut answer = [0; 9];
    match (message::receive(socket.as_fd(), &mut answer)?.0, answer) {
        (1, [DONE, ..]) => Ok(Answer::Done),
        (9, [kind @ (NOT_ACCEPTED | CLOSED), number @ .., l0, l1, l2, l3]) => {
            let number = u32::from_ne_bytes(number);
            let data = receive_parts(socket, u32::from_ne_bytes([l0, l1, l2, l3]) as usize)?;
            Ok(match kind {
                CLOSED => Answer::Closed(Rest { first: number, data }),
                _ => Answer::NotAccepted(Received { next: number, data }),
            })
        }
        _ => Ok(Answer::NotNow),
    }
}

/// The ends in a request, local and remote.
pub(super) fn ends_of(request: &[u8]) -> (SocketAddr, SocketAddr) {
    (read(&request[1..19]), read(&request[19..]))
}

/// Receives so much data, in parts. The peer may be hostile, so neither the time nor the memory is its choice.
///
/// # Errors
/// The peer has closed the connection, or is too slow (`TimedOut`); more data than a process can hold (`InvalidData`).
pub(super) fn receive_parts(socket: &OwnedFd, len: usize) -> io::Result<Vec<u8>> {
    if len > MOST_DATA {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let until = Instant::now() + DATA_PATIENCE;
    let (mut data, mut part) = (Vec::new(), vec![0; PART]);
    while data.len() < len {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match message::receive(socket.as_fd(), &mut part) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((got, _)) => data.extend_from_slice(&part[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(data)
}

/// An answer with data.
pub(super) fn send_data(socket: &OwnedFd, kind: u8, number: u32, data: &[u8]) -> io::Result<()> {
    let mut answer = [kind; 9];
    answer[1..5].copy_from_slice(&number.to_ne_bytes());
    answer[5..].copy_from_slice(&(data.len() as u32).to_ne_bytes());
    message::send(socket.as_fd(), &answer, &[], 0)?;
    for part in data.chunks(PART) {
        message::send(socket.as_fd(), part, &[], 0)?;
    }
    Ok(())
}

fn write(end: SocketAddr, to: &mut [u8]) {
    let ip = match end.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    to[..16].copy_from_slice(&ip.octets());
    to[16..].copy_from_slice(&end.port().to_be_bytes());
}

fn read(from: &[u8]) -> SocketAddr {
    let ip: [u8; 16] = from[..16].try_into().unwrap_or_default();
    let port = u16::from_be_bytes([from[16], from[17]]);
    SocketAddr::new(IpAddr::from(ip).to_canonical(), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixStream, thread};

    fn answer(kind: u8, len: u32) -> [u8; 9] {
        let mut answer = [kind; 9];
        answer[5..].copy_from_slice(&len.to_ne_bytes());
        answer
    }

    #[test]
    fn an_answer_of_more_data_than_a_process_can_hold_is_refused_at_once() {
        let (near, far) = UnixStream::pair().unwrap();
        message::send(far.as_fd(), &answer(CLOSED, u32::MAX), &[], 0).unwrap();
        let Err(refused) = answer_on(&near.into()) else { panic!("it was taken") };
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_peer_that_sends_a_byte_now_and_then_does_not_hold_a_process_up() {
        let (near, far) = UnixStream::pair().unwrap();
        message::send(far.as_fd(), &answer(NOT_ACCEPTED, 1 << 20), &[], 0).unwrap();
        let slow = thread::spawn(move || {
            while message::send(far.as_fd(), &[0], &[], libc::MSG_NOSIGNAL).is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let Err(refused) = answer_on(&near.into()) else { panic!("it was taken") };
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        slow.join().unwrap();
    }
}
