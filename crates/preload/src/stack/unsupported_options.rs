//! Options that the kernel supports and our stack does not, where ignoring them would be wrong: a filter, another
//! device. A socket that sets one before it is activated stays with the kernel. That is reported only when it would be
//! activated, as programs try options on sockets that they never use. On an active socket such an option is refused.

use super::{
    address,
    file::{File, Live, deactivate},
    host, route, sockets,
};
use crate::{
    real,
    report::OncePer,
    stack::{FILES, Ref},
};
use libc::c_int;
use std::{fmt, net::SocketAddr};

// include/uapi/asm-generic/socket.h, linux/tcp.h, linux/in.h, linux/in6.h.
const SO_BINDTOIFINDEX: c_int = 62;
const SO_TIMESTAMPING_NEW: c_int = 65;
const TCP_MD5SIG_EXT: c_int = 32;
const TCP_AO_ADD_KEY: c_int = 38;
const IP_MINTTL: c_int = 21;
const IPV6_MINHOPCOUNT: c_int = 73;
const UDP_CORK: c_int = 1;
const UDP_ENCAP: c_int = 100;

/// `SOF_TIMESTAMPING_TX_HARDWARE`, `_SOFTWARE`, `_SCHED`, `_ACK` and `_COMPLETION` (linux/net_tstamp.h).
pub const TX_TIMESTAMPS: c_int = 1 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 18;

/// A line for each reason.
static REPORTED: OncePer<32> = OncePer::new();

/// An option that a socket has set, and its name for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedOption {
    pub level: c_int,
    pub name: c_int,
    pub what: &'static str,
}

/// `O_ASYNC`, which has no option level.
pub const ASYNC: UnsupportedOption =
    UnsupportedOption { level: -1, name: libc::O_ASYNC, what: "O_ASYNC" };

/// Datagrams sent in parts, by a flag of send(2).
pub const MORE: UnsupportedOption =
    UnsupportedOption { level: -1, name: libc::MSG_MORE, what: "MSG_MORE of datagrams" };

/// Multipath TCP.
pub const MPTCP: UnsupportedOption =
    UnsupportedOption { level: -1, name: libc::IPPROTO_MPTCP, what: "MPTCP" };

/// Not an option: another process has made the socket.
pub const INHERITED: UnsupportedOption =
    UnsupportedOption { level: NOT_AN_OPTION, name: 0, what: "was inherited over exec" };
pub const RECEIVED: UnsupportedOption =
    UnsupportedOption { level: NOT_AN_OPTION, name: 1, what: "was received from another process" };

const NOT_AN_OPTION: c_int = -2;
/// Not an option: system calls that bypass the hooks use the socket.
pub const LIBC_IO: c_int = -3;

impl UnsupportedOption {
    /// Why it stays with the kernel.
    pub fn reason_for(self, socket: &'static str) -> Reason {
        Reason { socket, option: self }
    }
}

/// Why a socket, named by its kind, stays with the kernel.
pub struct Reason {
    socket: &'static str,
    option: UnsupportedOption,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reason { socket, option: UnsupportedOption { level, what, .. } } = *self;
        let device = host::device();
        match level {
            NOT_AN_OPTION => {
                write!(f, "{device}: a {socket} {what}, so other processes may have it")
            }
            LIBC_IO => write!(
                f,
                "{device}: a {socket} is used {what}, whose system calls do not come to busypoll"
            ),
            _ => write!(
                f,
                "{device}: a {socket} uses {what}, which busypoll's stack does not support"
            ),
        }
    }
}

/// The unsupported option that (`level`, `name`) is, and whether `value` sets or clears it.
pub fn classify(level: c_int, name: c_int, value: &[u8]) -> Option<(UnsupportedOption, bool)> {
    let number = value.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
    let (what, asked) = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => {
            let device = value.split(|byte| *byte == 0).next().unwrap_or_default();
            ("SO_BINDTODEVICE", !device.is_empty() && device != host::device().as_bytes())
        }
        (libc::SOL_SOCKET, SO_BINDTOIFINDEX) => {
            ("SO_BINDTOIFINDEX", number != 0 && number.cast_unsigned() != route::index())
        }
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) => ("SO_ATTACH_FILTER", true),
        (libc::SOL_SOCKET, libc::SO_ATTACH_BPF) => ("SO_ATTACH_BPF", true),
        (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF) => ("SO_ATTACH_REUSEPORT_CBPF", true),
        (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF) => ("SO_ATTACH_REUSEPORT_EBPF", true),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW) => {
            ("SO_TIMESTAMPING of what it sends", number & TX_TIMESTAMPS != 0)
        }
        (libc::SOL_SOCKET, libc::SO_TXTIME) => ("SO_TXTIME", true),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => ("SO_PEEK_OFF", number >= 0),
        (libc::SOL_SOCKET, libc::SO_MARK) => ("SO_MARK", number != 0),
        (libc::IPPROTO_TCP, libc::TCP_MD5SIG | TCP_MD5SIG_EXT) => ("TCP_MD5SIG", true),
        (libc::IPPROTO_TCP, TCP_AO_ADD_KEY) => ("TCP_AO_ADD_KEY", true),
        // Errors are queued at the companion, where a thread that waits for our socket would not see them.
        (libc::IPPROTO_IP, libc::IP_RECVERR) => ("IP_RECVERR", number != 0),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => ("IPV6_RECVERR", number != 0),
        (libc::IPPROTO_IP, IP_MINTTL) => ("IP_MINTTL", number != 0),
        (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT) => ("IPV6_MINHOPCOUNT", number != 0),
        (libc::IPPROTO_UDP, UDP_CORK) => ("UDP_CORK", number != 0),
        (libc::IPPROTO_UDP, UDP_ENCAP) => ("UDP_ENCAP", number != 0),
        (libc::IPPROTO_UDP, libc::UDP_SEGMENT) => ("UDP_SEGMENT", number != 0),
        _ => return None,
    };
    Some((UnsupportedOption { level, name, what }, asked))
}

/// `file`, at `fd`, needs `option`. False where it cannot have it: it is a connection or an active listener of ours.
pub fn require(file: &Ref, fd: c_int, option: UnsupportedOption) -> bool {
    match file.live() {
        None => {
            file.require(option);
            true
        }
        Some(Live::Udp(udp)) => {
            let peer = udp.peer_addr().ok();
            let file = deactivate(file);
            // The program may have connected it when it was ours.
            if let Some(peer) = peer.filter(|peer| super::sockets::remote(fd) != Some(*peer)) {
                connect_companion(&file, fd, peer);
            }
            file.require(option);
            release_if_required(&file, fd);
            true
        }
        Some(_) => false,
    }
}

/// Connects the companion of a UDP socket. It cannot fail: our stack had a route.
fn connect_companion(file: &File, fd: c_int, peer: SocketAddr) {
    let (name, len) = address::laid_out(peer, file.domain);
    // SAFETY: a valid address of that length.
    unsafe { real::connect(fd, (&raw const name).cast(), len) };
}

/// If `file`, at `fd` and in use, has set an unsupported option, it stays with the kernel from now on.
pub fn release_if_required(file: &Ref, fd: c_int) {
    if stays_with_kernel(file) {
        // It must not be activated in a child either.
        FILES.clear_if(fd, file);
    }
}

/// Whether `file`, which would be activated, stays with the kernel because of an unsupported option.
pub fn stays_with_kernel(file: &File) -> bool {
    let Some(option) = file.unsupported() else { return false };
    host::report_not_accelerated(
        REPORTED.of(option.what),
        format_args!("{}", option.reason_for("socket")),
        "it stays with the kernel",
    );
    file.set_kernel_owned();
    true
}

/// As [`stays_with_kernel`] if `file`, at `fd`, is a connection that another process has made; it is never activated
/// here.
pub fn report_if_foreign(file: &File, fd: c_int) {
    if file.unsupported().is_some_and(|option| option.level == NOT_AN_OPTION)
        && sockets::remote(fd).is_some()
    {
        stays_with_kernel(file);
    }
}
