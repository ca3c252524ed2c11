//! One line of the report: a socket or an epoll instance, with its settings before and after.

use std::fmt;
use std::os::fd::RawFd;

use busypoll_linux::EpollParams;
use busypoll_policy::units::show;
use serde::Serialize;

use super::inspect::Socket;

/// A socket, an epoll instance or an io_uring of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub fd: RawFd,
    /// Other descriptors of the same socket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<RawFd>,
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The descriptors that an epoll instance watches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watches: Option<Vec<RawFd>>,
    /// The threads that wait on it now.
    pub waiting_threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub napi_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub was: State,
    pub now: State,
    pub changed: bool,
    /// Why it was left unchanged, or which part of the change failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// The busy-poll settings of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct State {
    /// Microseconds; `None` if it has no such setting.
    #[serde(rename = "busy_poll_usecs", skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<u32>,
    pub prefer_busy_poll: bool,
    /// Packets; `None` where it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_poll_budget: Option<u16>,
}

impl State {
    pub fn of_socket(socket: &Socket) -> Self {
        State {
            busy_poll: Some(socket.busy_poll),
            prefer_busy_poll: socket.prefer,
            busy_poll_budget: None,
        }
    }
}

impl From<EpollParams> for State {
    fn from(p: EpollParams) -> Self {
        State {
            busy_poll: Some(p.busy_poll_usecs),
            prefer_busy_poll: p.prefer_busy_poll,
            busy_poll_budget: Some(p.busy_poll_budget),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(us) = self.busy_poll else { return f.write_str("-") };
        match us {
            0 => f.write_str("off")?,
            us => f.write_str(&show(std::time::Duration::from_micros(us.into())))?,
        }
        if self.prefer_busy_poll {
            f.write_str(", prefer")?;
        }
        match self.busy_poll_budget {
            Some(packets @ 1..) => write!(f, ", budget {packets}"),
            _ => Ok(()),
        }
    }
}

/// The kind of socket, in words.
pub(super) fn socket_kind(socket: &Socket) -> String {
    let info = &socket.info;
    let family = match i32::from(info.family) {
        libc::AF_INET | libc::AF_INET6 => {
            let six = i32::from(info.family) == libc::AF_INET6;
            let protocol = match info.protocol as i32 {
                libc::IPPROTO_TCP => "tcp",
                libc::IPPROTO_UDP => "udp",
                libc::IPPROTO_UDPLITE => "udplite",
                libc::IPPROTO_MPTCP => "mptcp",
                libc::IPPROTO_SCTP => "sctp",
                _ => "raw",
            };
            let state = if info.listening { " listener" } else { "" };
            return format!("{protocol}{}{state}", if six { "6" } else { "" });
        }
        libc::AF_UNIX => "unix",
        libc::AF_NETLINK => "netlink",
        libc::AF_PACKET => "packet",
        libc::AF_VSOCK => "vsock",
        libc::AF_XDP => "xdp",
        libc::AF_ALG => "alg",
        other => return format!("family {other}"),
    };
    family.to_owned()
}
