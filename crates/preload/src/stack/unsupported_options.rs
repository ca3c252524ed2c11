//! Options that the kernel supports and our stack does not, where ignoring them would be wrong: a filter, another
//! device. A socket that sets one before it is activated stays with the kernel. That is reported only when it would be
//! activated, as programs try options on sockets that they never use. On an active socket such an option is refused.

use super::not_accelerated;
use libc::c_int;
use std::fmt;

/// `SOF_TIMESTAMPING_TX_HARDWARE`, `_SOFTWARE`, `_SCHED`, `_ACK` and `_COMPLETION` (linux/net_tstamp.h).
pub const TX_TIMESTAMPS: c_int = 1 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 18;

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

/// The level of what is not an option.
pub const NOT_AN_OPTION: c_int = -2;
/// Not an option: system calls that bypass the hooks use the socket.
const LIBC_IO: c_int = -3;

pub const STANDARD: UnsupportedOption = used("as standard input, output or error");

/// System calls that bypass the hooks, by their name for messages.
pub const fn used(what: &'static str) -> UnsupportedOption {
    UnsupportedOption { level: LIBC_IO, name: 0, what }
}

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
        let device = not_accelerated::device();
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
