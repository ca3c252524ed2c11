//! Two worlds, the kernel's and ours, in which a script runs, and the log of its results.

use crate::common::{hosts, sockets};
use busypoll_stack::{Events, Host, PollFd, Socket, TcpListener, TcpStream, poll};
use std::{
    cell::RefCell,
    fmt::Debug,
    io::{self, ErrorKind, Read, Write},
    mem::{size_of, size_of_val},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// The calls that a script may make on a socket, by the names of the C library.
pub trait Tcp: Sized {
    fn bind(&self, local: SocketAddr) -> io::Result<()>;
    fn listen(&self, backlog: i32) -> io::Result<()>;
    fn accept(&self) -> io::Result<Self>;
    fn connect(&self, to: SocketAddr) -> io::Result<()>;
    fn send(&self, data: &[u8]) -> io::Result<usize>;
    fn recv(&self, into: &mut [u8]) -> io::Result<usize>;
    fn peek(&self, into: &mut [u8]) -> io::Result<usize>;
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn set_linger(&self, seconds: Option<u64>) -> io::Result<()>;
    fn setsockopt(&self, level: i32, name: i32, value: i32) -> io::Result<()>;
    fn getsockopt(&self, level: i32, name: i32) -> io::Result<i32>;
    /// The events of poll(2) now, with all events requested.
    fn poll(&self) -> u32;

    fn take_error(&self) -> io::Result<i32> {
        self.getsockopt(libc::SOL_SOCKET, libc::SO_ERROR)
    }
}

/// Two hosts.
pub trait World {
    type Socket: Tcp;
    fn socket(&self, host: usize) -> Self::Socket;
    fn address(&self, host: usize) -> Ipv4Addr;
    /// A port of a host.
    fn at(&self, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(host).into(), port)
    }
    /// A port of any address of a host.
    fn any(&self, _host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
    }
}

const EVERYTHING: libc::c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;

/// The kernel, which is its own peer.
pub struct Kernel;

pub struct KernelSocket(OwnedFd);

fn check(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl KernelSocket {
    fn with_address(
        &self,
        call: unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32,
        address: SocketAddr,
    ) -> io::Result<()> {
        let SocketAddr::V4(address) = address else { panic!("IPv4 alone") };
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
            sin_zero: [0; 8],
        };
        let len = size_of_val(&address) as u32;
        // SAFETY: a valid sockaddr_in of that length.
        check(unsafe { call(self.0.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
    }

    fn name(
        &self,
        call: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
    ) -> io::Result<SocketAddr> {
        // SAFETY: an all-zero sockaddr_in is valid.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&address) as u32;
        // SAFETY: room for a sockaddr_in.
        check(unsafe { call(self.0.as_raw_fd(), (&raw mut address).cast(), &raw mut len) })?;
        let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
        Ok(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
    }

    fn set<T>(&self, level: i32, name: i32, value: T) -> io::Result<()> {
        let (fd, len) = (self.0.as_raw_fd(), size_of::<T>() as u32);
        // SAFETY: `value` is valid for the call.
        check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) })
            .map(drop)
    }

    fn set_timeout(&self, name: i32, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let timeout = timeout.unwrap_or_default();
        let (tv_sec, tv_usec) = (timeout.as_secs() as i64, timeout.subsec_micros().into());
        self.set(libc::SOL_SOCKET, name, libc::timeval { tv_sec, tv_usec })
    }

    fn receive(&self, into: &mut [u8], flags: i32) -> io::Result<usize> {
        // SAFETY: the buffer is writable for its length.
        let len =
            unsafe { libc::recv(self.0.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) };
        usize::try_from(len).map_err(|_| io::Error::last_os_error())
    }
}

impl Tcp for KernelSocket {
    fn bind(&self, local: SocketAddr) -> io::Result<()> {
        self.with_address(libc::bind, local)
    }

    fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: a plain system call.
        check(unsafe { libc::listen(self.0.as_raw_fd(), backlog) }).map(drop)
    }

    fn accept(&self) -> io::Result<KernelSocket> {
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let fd =
            unsafe { libc::accept4(self.0.as_raw_fd(), none, none.cast(), libc::SOCK_CLOEXEC) };
        check(fd)?;
        // SAFETY: a fresh descriptor.
        Ok(KernelSocket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        self.with_address(libc::connect, to)
    }

    fn send(&self, data: &[u8]) -> io::Result<usize> {
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_NOSIGNAL);
        // SAFETY: the data is readable for its length.
        let len = unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), flags) };
        usize::try_from(len).map_err(|_| io::Error::last_os_error())
    }

    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, 0)
    }

    fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, libc::MSG_PEEK)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: a plain system call.
        check(unsafe { libc::shutdown(self.0.as_raw_fd(), how) }).map(drop)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.name(libc::getsockname)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.name(libc::getpeername)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        let mut on = libc::c_int::from(on);
        // SAFETY: `on` is valid for the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::FIONBIO, &raw mut on) }).map(drop)
    }

    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(libc::SO_RCVTIMEO, timeout)
    }

    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(libc::SO_SNDTIMEO, timeout)
    }

    fn set_linger(&self, seconds: Option<u64>) -> io::Result<()> {
        let (l_onoff, l_linger) = (seconds.is_some().into(), seconds.unwrap_or(0) as i32);
        self.set(libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff, l_linger })
    }

    fn setsockopt(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        self.set(level, name, value)
    }

    fn getsockopt(&self, level: i32, name: i32) -> io::Result<i32> {
        let mut value = 0i32;
        let mut len = size_of_val(&value) as u32;
        let (fd, value_at) = (self.0.as_raw_fd(), (&raw mut value).cast());
        // SAFETY: room for an int.
        check(unsafe { libc::getsockopt(fd, level, name, value_at, &raw mut len) })?;
        Ok(value)
    }

    fn poll(&self) -> u32 {
        let mut fd = libc::pollfd { fd: self.0.as_raw_fd(), events: EVERYTHING, revents: 0 };
        // SAFETY: one entry, valid for the call.
        unsafe { libc::poll(&raw mut fd, 1, 0) };
        fd.revents as u32
    }
}

impl World for Kernel {
    type Socket = KernelSocket;

    fn socket(&self, _host: usize) -> KernelSocket {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_INET, kind, 0) };
        assert!(fd >= 0);
        // SAFETY: a fresh descriptor.
        KernelSocket(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 0, 1 + host as u8)
    }
}

/// Ours: two hosts on a cable.
pub struct Cable([Host; 2]);

/// One of our sockets, which becomes a listener by `listen`.
pub struct OurSocket(RefCell<Kind>);

enum Kind {
    Stream(TcpStream),
    Listener(TcpListener),
    Gone,
}

fn invalid<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

/// Makes the same call on either kind.
macro_rules! either {
    ($socket:expr, $it:ident => $call:expr) => {
        match &*$socket.0.borrow() {
            Kind::Stream($it) => $call,
            Kind::Listener($it) => $call,
            Kind::Gone => panic!("an earlier listen has failed"),
        }
    };
    ($socket:expr, $it:ident => $call:expr, listener: $errno:ident) => {
        match &*$socket.0.borrow() {
            Kind::Stream($it) => $call,
            _ => invalid(libc::$errno),
        }
    };
}

impl Tcp for OurSocket {
    fn bind(&self, local: SocketAddr) -> io::Result<()> {
        either!(self, stream => stream.bind_to(local), listener: EINVAL)
    }

    fn listen(&self, backlog: i32) -> io::Result<()> {
        match self.0.replace(Kind::Gone) {
            Kind::Stream(stream) => {
                self.0.replace(Kind::Listener(stream.listen(backlog as u32)?));
            }
            other => drop(self.0.replace(other)),
        }
        Ok(())
    }

    fn accept(&self) -> io::Result<OurSocket> {
        match &*self.0.borrow() {
            Kind::Listener(listener) => {
                listener.accept().map(|(stream, _)| OurSocket(RefCell::new(Kind::Stream(stream))))
            }
            _ => invalid(libc::EINVAL),
        }
    }

    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        either!(self, stream => stream.connect_to(to), listener: EISCONN)
    }

    fn send(&self, data: &[u8]) -> io::Result<usize> {
        either!(self, stream => (&mut &*stream).write(data), listener: EPIPE)
    }

    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => (&mut &*stream).read(into), listener: ENOTCONN)
    }

    fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.peek(into), listener: ENOTCONN)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        either!(self, stream => stream.shutdown(how), listener: ENOTCONN)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self, socket => socket.local_addr())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        either!(self, stream => stream.peer_addr(), listener: ENOTCONN)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        either!(self, socket => socket.set_nonblocking(on))
    }

    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &*self.0.borrow() {
            Kind::Listener(listener) => listener.set_accept_timeout(timeout),
            Kind::Stream(stream) => stream.set_read_timeout(timeout),
            Kind::Gone => invalid(libc::EBADF),
        }
    }

    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        either!(self, stream => stream.set_write_timeout(timeout), listener: EBADF)
    }

    fn set_linger(&self, seconds: Option<u64>) -> io::Result<()> {
        let linger = seconds.map(Duration::from_secs);
        either!(self, stream => stream.set_linger(linger), listener: EBADF)
    }

    fn setsockopt(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        either!(self, socket => socket.setsockopt(level, name, value))
    }

    fn getsockopt(&self, level: i32, name: i32) -> io::Result<i32> {
        either!(self, socket => socket.getsockopt(level, name))
    }

    fn poll(&self) -> u32 {
        either!(self, socket => {
            let socket: &dyn Socket = socket;
            let mut fds = [PollFd { socket, events: Events(EVERYTHING as u32), revents: Events(0) }];
            poll(&mut fds, Some(Duration::ZERO)).unwrap();
            fds[0].revents.0
        })
    }
}

impl World for Cable {
    type Socket = OurSocket;

    fn socket(&self, host: usize) -> OurSocket {
        OurSocket(RefCell::new(Kind::Stream(TcpStream::new(&self.0[host]))))
    }

    fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, 1 + host as u8)
    }
}

/// The results of a script, line by line.
#[derive(Default, PartialEq, Eq)]
pub struct Log(Vec<String>);

impl Log {
    pub fn note<T: Debug>(&mut self, step: &str, result: io::Result<T>) -> Option<T> {
        self.0.push(match &result {
            Ok(value) => format!("{step}: {value:?}"),
            Err(error) => match (error.raw_os_error(), error.kind()) {
                (_, ErrorKind::WouldBlock) => format!("{step}: EAGAIN"),
                (Some(errno), _) => format!("{step}: errno {errno}"),
                (None, kind) => format!("{step}: {kind:?}"),
            },
        });
        result.ok()
    }

    pub fn recv(&mut self, step: &str, socket: &impl Tcp) {
        let mut buffer = [0; 64];
        let got = socket.recv(&mut buffer);
        self.note(step, got.map(|len| String::from_utf8_lossy(&buffer[..len]).into_owned()));
    }

    /// All events of poll(2), after `awaited` have come.
    pub fn events(&mut self, step: &str, socket: &impl Tcp, awaited: u32) {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut events = socket.poll();
        while events & awaited != awaited && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
            events = socket.poll();
        }
        if awaited == 0 {
            std::thread::sleep(Duration::from_millis(10));
            events = socket.poll();
        }
        let names = [
            (libc::POLLIN, "IN"),
            (libc::POLLOUT, "OUT"),
            (libc::POLLRDHUP, "RDHUP"),
            (libc::POLLHUP, "HUP"),
            (libc::POLLERR, "ERR"),
        ];
        let there =
            names.iter().filter(|(bit, _)| events & *bit as u32 != 0).map(|(_, name)| *name);
        self.0.push(format!("{step}: {}", there.collect::<Vec<_>>().join("|")));
    }
}

/// Runs a script in both worlds and compares.
pub fn same(kernel: impl FnOnce(&Kernel, &mut Log), ours: impl FnOnce(&Cable, &mut Log)) {
    let (mut theirs, mut mine) = (Log::default(), Log::default());
    kernel(&Kernel, &mut theirs);
    let (one, two) = hosts();
    // The hosts have each other's neighbour entry from here on, as the kernel needs none for itself.
    drop(sockets(&one, &two));
    ours(&Cable([one, two]), &mut mine);
    for (theirs, mine) in theirs.0.iter().zip(&mine.0) {
        let differ = if theirs == mine { " " } else { "!" };
        println!("{differ} {theirs:40} | {mine}");
    }
    assert!(theirs == mine, "left the kernel, right ours; ! marks a difference");
}

/// Makes a test of a script.
macro_rules! script {
    ($name:ident, $script:ident) => {
        #[test]
        fn $name() {
            crate::like_linux::same($script, $script);
        }
    };
}
pub(crate) use script;
