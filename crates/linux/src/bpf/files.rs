//! Every socket, epoll instance and io_uring that a process has open, with its busy-poll settings, of which
//! `ss` and `getsockopt` show only some. Program: `bpf/files.bpf.c`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use aya::include_bytes_aligned;
use aya::maps::{Array, HashMap};

use super::{Programs, Record, failed};
use crate::epoll::EpollParams;
use crate::error::{Error, Result};
use crate::sockopt::NapiId;
use crate::{sys, topology};

/// An open file that busy polling can apply to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// The process.
    pub pid: u32,
    /// Its number there.
    pub fd: RawFd,
    /// The same for all descriptors of one open file, also in other processes. Has no other meaning.
    pub identity: u64,
    /// What it is.
    pub kind: Kind,
}

/// What an open file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A socket of a family that packets reach: IPv4, IPv6, AF_PACKET, AF_XDP.
    Socket(Box<Socket>),
    /// An epoll instance.
    Epoll {
        /// Its own parameters; `EPIOCGPARAMS`.
        params: EpollParams,
        /// The NAPI instance it polls: that of the last member that had data.
        napi: Option<NapiId>,
    },
    /// An io_uring.
    Uring(Uring),
}

/// A socket, as the kernel keeps it (`struct sock`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The number in `socket:[…]` of `/proc/PID/fd`.
    pub inode: u64,
    /// `SO_COOKIE`; 0 until a program has asked for it.
    pub cookie: u64,
    /// The inode of its network namespace, as of `/proc/PID/ns/net`.
    pub netns: u32,
    /// `AF_INET`, `AF_INET6`, `AF_PACKET`, `AF_XDP`.
    pub family: u32,
    /// `SOCK_STREAM`, `SOCK_DGRAM`, `SOCK_RAW`.
    pub kind: u32,
    /// `IPPROTO_…`; not meaningful for AF_PACKET and AF_XDP.
    pub protocol: u32,
    /// The kernel's name for the protocol: `TCP`, `UDPv6`, `MPTCP`, `PACKET`.
    pub protocol_name: String,
    /// `TCP_ESTABLISHED` (1) … as in `/proc/net/tcp`; UDP: 1 once connected, else 7.
    pub state: u32,
    /// The upper layer protocol on TCP: `tls`; else empty.
    pub ulp: String,
    /// The local address; port 0 = not bound.
    pub local: Option<SocketAddr>,
    /// The peer's address, if connected.
    pub peer: Option<SocketAddr>,
    /// `SO_BINDTODEVICE`.
    pub bound_ifindex: Option<u32>,
    /// The CPU that processed its last packet; `None` before the first. Kept for TCP, and for UDP only if
    /// connected.
    pub incoming_cpu: Option<u32>,
    /// `SO_BUSY_POLL`, in microseconds.
    pub busy_poll_usecs: u32,
    /// `SO_PREFER_BUSY_POLL`.
    pub prefer_busy_poll: bool,
    /// `SO_BUSY_POLL_BUDGET`, which `getsockopt` does not return; 0 = the kernel's 8.
    pub busy_poll_budget: u16,
    /// The NAPI id it last learnt from its packets; kept when the instance dies.
    pub napi: Option<NapiId>,
}

/// An io_uring, as the kernel keeps it (`struct io_ring_ctx`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uring {
    /// `IORING_SETUP_…`.
    pub flags: u32,
    /// `IORING_REGISTER_NAPI`: how long a wait may busy poll, in nanoseconds; 0 = off.
    pub busy_poll_ns: u64,
    /// Its `prefer_busy_poll`.
    pub prefer_busy_poll: bool,
}

/// `sizeof(struct record)` in the program.
const RECORD: usize = 184;
const SOCKET: u32 = 1;
const EPOLL: u32 = 2;
const URING: u32 = 3;
static OBJECT: &[u8] = include_bytes_aligned!("../../bpf/files.bpf.o");

/// The program in the kernel, ready to run as often as wanted.
pub struct Files(Programs);

impl Files {
    /// Loads the program.
    ///
    /// ```no_run
    /// use busypoll_linux::bpf::files::{Files, Kind};
    /// for file in Files::load()?.of(None)? {
    ///     if let Kind::Socket(socket) = file.kind {
    ///         println!("{} fd {}: SO_BUSY_POLL {}", file.pid, file.fd, socket.busy_poll_usecs);
    ///     }
    /// }
    /// # Ok::<(), busypoll_linux::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`super::available`].
    pub fn load() -> Result<Self> {
        let mut programs = Programs::load("files", OBJECT, &[])?;
        programs.load_iterator("files", "task_file")?;
        let mut files = Files(programs);
        files.learn()?;
        Ok(files)
    }

    /// The files that one process, or every process, has open now.
    pub fn of(&mut self, pid: Option<u32>) -> Result<Vec<OpenFile>> {
        let records = self.run([pid.unwrap_or(0), 0])?;
        let cpus = topology::max_cpus();
        Ok(records.chunks_exact(RECORD).filter_map(|record| read(record, cpus)).collect())
    }

    /// Learns the `f_op` of epoll instances and io_urings from one of each of our own.
    fn learn(&mut self) -> Result<()> {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
            .map_err(|e| Error::os("making an epoll instance", e.into()))?;
        // If io_uring is forbidden here, other processes hardly have one.
        let uring = sys::io_uring().ok();
        let records = self.run([std::process::id(), 1])?;
        let mut kinds: HashMap<_, u64, u32> = self.0.map("kinds")?;
        for record in records.chunks_exact(RECORD) {
            let mut r = Record(record);
            let [_, _, fd, _] = [r.u32(), r.u32(), r.u32(), r.u32()];
            let kind = match i32::try_from(fd) {
                Ok(fd) if fd == epoll.as_raw_fd() => EPOLL,
                Ok(fd) if Some(fd) == uring.as_ref().map(AsRawFd::as_raw_fd) => URING,
                _ => continue,
            };
            kinds.insert(r.u64(), kind, 0).map_err(|e| failed("files", "filling kinds", &e))?;
        }
        Ok(())
    }

    fn run(&mut self, [only_pid, learn]: [u32; 2]) -> Result<Vec<u8>> {
        let mut wishes: Array<_, [u32; 2]> = self.0.map("wishes")?;
        wishes.set(0, [only_pid, learn], 0).map_err(|e| failed("files", "setting wishes", &e))?;
        self.0.run_iterator("files")
    }
}

fn read(record: &[u8], cpus: u32) -> Option<OpenFile> {
    let mut r = Record(record);
    let [kind, pid, fd, netns] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [identity, inode, cookie] = [r.u64(), r.u64(), r.u64()];
    let [usecs, napi, budget, prefer] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [family, socket_kind, protocol, state] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [bound, local_port, peer_port, cpu] = [r.u32(), r.u32(), r.u32(), r.u32()];
    let [local, peer] = [r.bytes::<16>(), r.bytes::<16>()];
    let (ulp, protocol_name) = (r.string::<16>(), r.string::<32>());
    let (busy_poll_ns, flags) = (r.u64(), r.u32());
    let (busy_poll_budget, prefer_busy_poll) =
        (u16::try_from(budget).unwrap_or(u16::MAX), prefer != 0);
    // For local packets this field holds the sender's CPU (include/net/busy_poll.h, MIN_NAPI_ID).
    let napi = NapiId::new(napi).filter(|napi| napi.get() > cpus);
    let kind = match kind {
        SOCKET => Kind::Socket(Box::new(Socket {
            inode,
            cookie,
            netns,
            family,
            kind: socket_kind,
            protocol,
            protocol_name,
            state,
            ulp,
            local: address(family, local, local_port),
            peer: address(family, peer, peer_port).filter(|a| a.port() != 0),
            bound_ifindex: (bound != 0).then_some(bound),
            incoming_cpu: (cpu != u32::MAX).then_some(cpu),
            busy_poll_usecs: usecs,
            prefer_busy_poll,
            busy_poll_budget,
            napi,
        })),
        EPOLL => Kind::Epoll {
            params: EpollParams { busy_poll_usecs: usecs, busy_poll_budget, prefer_busy_poll },
            napi,
        },
        URING => Kind::Uring(Uring { flags, busy_poll_ns, prefer_busy_poll }),
        _ => return None,
    };
    Some(OpenFile { pid, fd: RawFd::try_from(fd).ok()?, identity, kind })
}

fn address(family: u32, bytes: [u8; 16], port: u32) -> Option<SocketAddr> {
    let [a, b, c, d, ..] = bytes;
    let ip = match i32::try_from(family) {
        Ok(libc::AF_INET) => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        Ok(libc::AF_INET6) => IpAddr::V6(Ipv6Addr::from(bytes)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
}
