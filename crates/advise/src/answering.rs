//! The server of the measurement: it waits for a request as the program does, computes for as long as the request
//! says, and answers. It uses the C library's calls only, so that `busypoll run` reaches it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

use busypoll_linux::bpf::waits::WaitCall;

/// The bytes of a request and of its answer. A request holds the nanoseconds that the server computes for.
pub(crate) const MESSAGE: usize = 8;

/// How a server waits, and where: `udp,epoll,7000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// UDP, else TCP.
    pub udp: bool,
    /// The call it waits in.
    pub call: WaitCall,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.udp { "udp" } else { "tcp" };
        write!(f, "{protocol},{},{}", self.call.word(), self.port)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let no_shape = || format!("'{text}' is not a protocol, a way of waiting and a port");
        let udp = words.next() == Some("udp");
        let call = match words.next().ok_or_else(no_shape)? {
            "poll" => WaitCall::Poll,
            "epoll" => WaitCall::Epoll,
            // io_uring and accept are measured as receive calls.
            _ => WaitCall::Receive,
        };
        let port = words.next().and_then(|port| port.parse().ok()).ok_or_else(no_shape)?;
        Ok(Shape { udp, call, port })
    }
}

/// Waits until the descriptor is readable, as `call` does.
enum Waiting {
    InReceive,
    Poll(RawFd),
    Epoll(RawFd),
}

impl Waiting {
    fn new(call: WaitCall, fd: RawFd) -> io::Result<Self> {
        match call {
            WaitCall::Poll => Ok(Waiting::Poll(fd)),
            WaitCall::Epoll => {
                // SAFETY: plain calls on descriptors of our own, which live as long as the process.
                unsafe {
                    let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                    // Event loops have one, and the stack plane asks the kernel for its events.
                    let never = libc::eventfd(0, libc::EFD_CLOEXEC);
                    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
                    let mut add =
                        |fd| libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) == 0;
                    match epoll >= 0 && never >= 0 && add(never) && add(fd) {
                        true => Ok(Waiting::Epoll(epoll)),
                        false => Err(io::Error::last_os_error()),
                    }
                }
            }
            _ => Ok(Waiting::InReceive),
        }
    }

    fn wait(&self) {
        match self {
            Waiting::InReceive => {}
            Waiting::Poll(fd) => {
                let mut entry = libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid entry. A failure is noticed by the receive call.
                unsafe { libc::poll(&raw mut entry, 1, -1) };
            }
            Waiting::Epoll(epoll) => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: room for one event.
                unsafe { libc::epoll_wait(*epoll, &raw mut event, 1, -1) };
            }
        }
    }
}

/// Serves until the process is killed.
///
/// # Errors
/// The error of the system call.
pub fn serve(shape: Shape) -> io::Result<()> {
    let at = (Ipv4Addr::UNSPECIFIED, shape.port);
    let mut message = [0; MESSAGE];
    if shape.udp {
        let socket = UdpSocket::bind(at)?;
        let waiting = Waiting::new(shape.call, socket.as_raw_fd())?;
        ready()?;
        loop {
            waiting.wait();
            let (_, peer) = socket.recv_from(&mut message)?;
            compute(message);
            socket.send_to(&message, peer)?;
        }
    }
    let listener = TcpListener::bind(at)?;
    ready()?;
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let waiting = Waiting::new(shape.call, stream.as_raw_fd())?;
        loop {
            waiting.wait();
            // Requests are shorter than a segment.
            if !matches!(stream.read(&mut message), Ok(MESSAGE)) {
                break;
            }
            compute(message);
            stream.write_all(&message)?;
        }
    }
}

fn ready() -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "ready")?;
    out.flush()
}

fn compute(message: [u8; MESSAGE]) {
    let time = Duration::from_nanos(u64::from_ne_bytes(message));
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_read_as_it_is_written() {
        for call in [WaitCall::Receive, WaitCall::Poll, WaitCall::Epoll] {
            let shape = Shape { udp: call == WaitCall::Poll, call, port: 7000 };
            assert_eq!(shape.to_string().parse(), Ok(shape));
        }
        assert!("udp,recv".parse::<Shape>().is_err());
        assert!("".parse::<Shape>().is_err());
    }
}
