//! What is to be changed, and why not where not. Looks at nothing and changes nothing.
//!
//! Kernel source of the reasons: `net/core/dev.c` (`napi_busy_loop`), `fs/eventpoll.c` (`ep_busy_loop_on`),
//! `fs/select.c`, `net/ipv4/tcp.c`, `net/ipv4/udp.c`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;

use busypoll_linux::EpollParams;
use busypoll_policy::{Names, Plane, Policy, Protocol, Settings};

use super::look::{Epoll, Socket, Waits};

/// What is wanted of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketWish {
    pub busy_poll: u32,
    pub prefer: bool,
    pub budget: u16,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision<T> {
    /// This is to stand there.
    Set(T),
    /// It stays as it is, because.
    Leave(String),
}

/// What decides besides the object itself.
pub(super) struct Around<'a> {
    pub policy: &'a Policy,
    pub program: &'a Names,
    pub waits: &'a Waits,
    pub watchers: &'a Watchers,
    /// `net.core.busy_poll`, in microseconds; what poll and select go by.
    pub host_busy_poll: u32,
}

/// Who watches what.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchers {
    /// By the inode of a socket, the epoll instances that watch it.
    sockets: HashMap<u64, Vec<RawFd>>,
    /// By the number of an epoll instance, those that watch it.
    epolls: HashMap<RawFd, Vec<RawFd>>,
}

impl Watchers {
    pub fn of(epolls: &[Epoll]) -> Self {
        let mut watchers = Watchers::default();
        for outer in epolls {
            for watch in &outer.watches {
                if watch.socket {
                    watchers.sockets.entry(watch.inode).or_default().push(outer.fd);
                } else if epolls.iter().any(|inner| inner.fd == watch.fd) {
                    watchers.epolls.entry(watch.fd).or_default().push(outer.fd);
                }
            }
        }
        watchers
    }
}

impl Around<'_> {
    fn settings(&self, socket: &Socket) -> Option<Settings> {
        let protocol = protocol(socket)?;
        let (local, peer) = (socket.info.local, socket.info.peer);
        Some(self.policy.for_socket(self.program, protocol, local, peer))
    }

    /// The first epoll instance that watches it.
    fn watcher(&self, socket: &Socket) -> Option<RawFd> {
        self.watchers.sockets.get(&socket.inode)?.first().copied()
    }

    /// What is wanted of a socket.
    pub fn socket(&self, socket: &Socket) -> Decision<SocketWish> {
        let settings = match self.can_poll(socket) {
            Ok(settings) => settings,
            Err(why) => return Decision::Leave(why),
        };
        let info = &socket.info;
        let watcher = self.watcher(socket).filter(|_| info.nonblocking);
        if let Some(epoll) = watcher {
            return Decision::Leave(if info.listening {
                format!("the connections it accepts are waited for in epoll {epoll}")
            } else {
                format!("is waited for in epoll {epoll}, which polls by its own parameters")
            });
        }
        if info.ulp.as_deref() == Some("tls") {
            return Decision::Leave("a receive through kernel TLS does not poll".into());
        }
        let polled = self.waits.poll.contains_key(&socket.fd) && !info.listening;
        if polled && self.host_busy_poll == 0 && settings.polls_for() > 0 {
            return Decision::Leave(
                "waits in poll or select, which poll the queue only with net.core.busy_poll; \
                 `busypoll run` needs no such setting"
                    .into(),
            );
        }
        // One that does not poll has nothing to prefer and no passes to bound, as under `run`.
        let polls = settings.polls_for() > 0;
        Decision::Set(SocketWish {
            busy_poll: settings.polls_for(),
            prefer: polls && settings.prefer_busy_poll,
            budget: if polls { settings.busy_poll_budget } else { 0 },
        })
    }

    /// The settings of a socket on which busy polling can have an effect, or why it cannot.
    fn can_poll(&self, socket: &Socket) -> Result<Settings, String> {
        let info = &socket.info;
        if !matches!(i32::from(info.family), libc::AF_INET | libc::AF_INET6) {
            return Err("has no receive queue".to_owned());
        }
        if info.protocol == libc::IPPROTO_MPTCP as u32 {
            return Err("MPTCP takes the option and never polls".to_owned());
        }
        let settings = self.settings(socket).ok_or("this protocol learns no NAPI instance")?;
        match settings.plane {
            Plane::Off => return Err("the policy leaves it alone".to_owned()),
            Plane::Stack => {
                return Err("only `busypoll run` can put a socket into the stack".to_owned());
            }
            Plane::Kernel => {}
        }
        if loops(socket) {
            return Err("loopback: its packets come from no device's queue".to_owned());
        }
        Ok(settings)
    }

    /// What is wanted of an epoll instance; `sockets` are all of the process, by inode.
    pub fn epoll(&self, epoll: &Epoll, sockets: &HashMap<u64, Socket>) -> Decision<EpollParams> {
        if let Some(outer) = self.watchers.epolls.get(&epoll.fd).and_then(|list| list.first()) {
            return Decision::Leave(format!(
                "is waited for through epoll {outer}, and no nested instance is polled"
            ));
        }
        let members = epoll.watches.iter().filter(|watch| watch.socket);
        let members = members.filter_map(|watch| sockets.get(&watch.inode));
        let mut why = "watches no socket".to_owned();
        let mut wish: Option<EpollParams> = None;
        for socket in members {
            match self.can_poll(socket) {
                Ok(s) => {
                    let wish = wish.get_or_insert_default();
                    // One that does not poll asks for nothing (`Settings::joined`).
                    if s.polls_for() > 0 {
                        wish.busy_poll_usecs = wish.busy_poll_usecs.max(s.polls_for());
                        wish.busy_poll_budget = wish.busy_poll_budget.max(s.busy_poll_budget);
                        wish.prefer_busy_poll |= s.prefer_busy_poll;
                    }
                }
                Err(reason) => {
                    why = format!("watches no socket that can poll (fd {}: {reason})", socket.fd);
                }
            }
        }
        wish.map_or(Decision::Leave(why), Decision::Set)
    }
}

/// The protocol, if it is one whose sockets learn a NAPI instance.
fn protocol(socket: &Socket) -> Option<Protocol> {
    match (socket.info.kind as i32, socket.info.protocol as i32) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP) => Some(Protocol::Tcp),
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE) => Some(Protocol::Udp),
        _ => None,
    }
}

/// Whether packets come to it over a queue that can be polled. To a listener none come.
pub(super) fn has_queue(socket: &Socket) -> bool {
    !socket.info.listening && protocol(socket).is_some() && !loops(socket)
}

/// Whether its packets go over the loopback device. A connection to any other address of this host has that address
/// at both ends (`ip_route_output_key_hash_rcu`), unless it was bound to a third.
fn loops(socket: &Socket) -> bool {
    let [local, peer] =
        [socket.info.local, socket.info.peer].map(|end| end.map(|end| end.ip().to_canonical()));
    let own = |end: Option<IpAddr>| end.is_some_and(|ip| ip.is_loopback());
    own(local) || own(peer) || peer.is_some() && local == peer
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
