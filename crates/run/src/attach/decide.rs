//! Decides what to change, and gives the reason where nothing is changed. Pure: inspects and changes nothing itself.
//!
//! `linux::polls` says whether the kernel can poll; `busypoll doctor` uses it as well.

use std::collections::HashMap;
use std::os::fd::RawFd;

use busypoll_linux::EpollParams;
use busypoll_linux::polls::{self, Class, Facts, Kind, Obstacle, Queue, WaitMethod};
use busypoll_policy::{Names, Plane, Policy, Protocol, Settings};

use super::inspect::{Epoll, Socket, Waits};

/// The wanted options of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketOptions {
    pub busy_poll: u32,
    pub prefer: bool,
    pub budget: u16,
}

/// What to do with a socket or an epoll instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision<T> {
    /// Set these values.
    Set(T),
    /// Leave it unchanged, for this reason.
    Leave(String),
}

/// The facts that decide besides the object itself.
pub(super) struct Context<'a> {
    pub policy: &'a Policy,
    pub program: &'a Names,
    pub waits: &'a Waits,
    pub watchers: &'a Watchers,
    /// `net.core.busy_poll`, in microseconds, which applies to poll and select. `None` where it cannot be read.
    pub host_busy_poll: Option<u32>,
}

/// Which epoll instances watch what.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchers {
    /// By the inode of a socket, the epoll instances that watch it.
    sockets: HashMap<u64, Vec<RawFd>>,
    /// By the descriptor of an epoll instance, those that watch it.
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

impl Context<'_> {
    fn settings(&self, socket: &Socket) -> Option<Settings> {
        let protocol = protocol(socket)?;
        let (local, peer) = (socket.info.local, socket.info.peer);
        Some(self.policy.for_socket(self.program, protocol, local, peer))
    }

    /// The first epoll instance that watches it.
    fn watcher(&self, socket: &Socket) -> Option<RawFd> {
        self.watchers.sockets.get(&socket.inode)?.first().copied()
    }

    /// The outer instance through which threads wait for an epoll instance.
    fn outer(&self, epoll: RawFd) -> Option<RawFd> {
        let outer = self.watchers.epolls.get(&epoll)?.first().copied();
        outer.filter(|_| !self.waits.asleep.contains(&epoll))
    }

    /// How the program waits for a socket.
    fn wait_method(&self, socket: &Socket) -> WaitMethod {
        let watcher = self.watcher(socket).filter(|_| socket.info.nonblocking);
        if let Some(fd) = watcher {
            // Its own parameters decide whether it polls.
            return WaitMethod::Epoll {
                fd,
                polls: Some(false),
                through: self.outer(fd),
                spins: false,
            };
        }
        match self.waits.poll.contains_key(&socket.fd) && !socket.info.listening {
            true => WaitMethod::Poll,
            false => WaitMethod::Receive,
        }
    }

    /// The decision for a socket.
    pub fn socket(&self, socket: &Socket) -> Decision<SocketOptions> {
        let settings = match self.can_poll(socket) {
            Ok(settings) => settings,
            Err(why) => return Decision::Leave(why),
        };
        let wait_method = self.wait_method(socket);
        if let (WaitMethod::Epoll { fd, .. }, true) = (wait_method, socket.info.listening) {
            let why = format!("the connections it accepts are waited for in epoll {fd}");
            return Decision::Leave(why);
        }
        match polls::of_waiting(&self.facts(socket, wait_method)) {
            // Only a certain obstacle leaves it unchanged: if the sysctl cannot be read, it may well poll.
            None | Some(Obstacle::HostUnseen) => {}
            Some(Obstacle::PollSilent) if settings.polls_for() == 0 => {}
            Some(obstacle) => return Decision::Leave(obstacle.to_string()),
        }
        // A socket that does not poll has nothing to prefer and no budget, as under `run`.
        let polls = settings.polls_for() > 0;
        Decision::Set(SocketOptions {
            busy_poll: settings.polls_for(),
            // The program's own choice stays.
            prefer: polls && (settings.prefer_busy_poll || socket.prefer),
            budget: if polls { settings.busy_poll_budget } else { 0 },
        })
    }

    /// The settings of a socket on which busy polling can have an effect, or why it cannot.
    fn can_poll(&self, socket: &Socket) -> Result<Settings, String> {
        let (class, is_loopback) = (class(socket), is_loopback(socket));
        if let Some(obstacle) = polls::kind_obstacle(class, is_loopback) {
            return Err(obstacle.to_string());
        }
        let settings = self.settings(socket).ok_or_else(|| Obstacle::LearnsNothing.to_string())?;
        match settings.plane {
            Plane::Off => return Err("the policy leaves it alone".to_owned()),
            Plane::Stack => {
                return Err("only `busypoll run` can put a socket into the stack".to_owned());
            }
            Plane::Kernel => {}
        }
        Ok(settings)
    }

    fn facts(&self, socket: &Socket, wait_method: WaitMethod) -> Facts {
        Facts {
            class: class(socket),
            option: socket.busy_poll > 0 || socket.prefer,
            is_loopback: is_loopback(socket),
            queue: Queue::Unknown,
            wait_method,
            host_busy_poll: self.host_busy_poll,
        }
    }

    /// The warnings for a socket that should poll: that it cannot yet, or that this is unknown.
    pub fn warnings(&self, socket: &Socket, gone: bool) -> Vec<String> {
        if socket.info.listening {
            return Vec::new();
        }
        let queue = match socket.napi {
            None => Queue::None,
            Some(_) if gone => Queue::Dead,
            Some(_) => Queue::Alive,
        };
        let unseen = polls::of_waiting(&self.facts(socket, self.wait_method(socket)));
        let unseen = unseen.filter(|obstacle| *obstacle == Obstacle::HostUnseen);
        let all = unseen.into_iter().chain(polls::of_queue(class(socket), queue));
        all.map(|obstacle| obstacle.to_string()).collect()
    }

    /// The decision for an epoll instance; `sockets` are all of the process, by inode.
    pub fn epoll(&self, epoll: &Epoll, sockets: &HashMap<u64, Socket>) -> Decision<EpollParams> {
        if let Some(outer) = self.outer(epoll.fd) {
            return Decision::Leave(Obstacle::Nested { inner: epoll.fd, outer }.to_string());
        }
        let members = epoll.watches.iter().filter(|watch| watch.socket);
        let members = members.filter_map(|watch| sockets.get(&watch.inode));
        let mut why = "watches no socket".to_owned();
        let mut wanted: Option<EpollParams> = None;
        for socket in members {
            match self.can_poll(socket) {
                Ok(s) => {
                    let wanted = wanted.get_or_insert_default();
                    // A socket that does not poll needs nothing (`Settings::joined`).
                    if s.polls_for() > 0 {
                        wanted.busy_poll_usecs = wanted.busy_poll_usecs.max(s.polls_for());
                        wanted.busy_poll_budget = wanted.busy_poll_budget.max(s.busy_poll_budget);
                        wanted.prefer_busy_poll |= s.prefer_busy_poll;
                    }
                }
                Err(reason) => {
                    why = format!("watches no socket that can poll (fd {}: {reason})", socket.fd);
                }
            }
        }
        // The program's own choice stays, unless nothing polls.
        if let (Some(wanted), Ok(own)) = (&mut wanted, &epoll.params)
            && wanted.busy_poll_usecs > 0
        {
            wanted.prefer_busy_poll |= own.prefer_busy_poll;
            if wanted.busy_poll_budget == 0 {
                wanted.busy_poll_budget = own.busy_poll_budget;
            }
        }
        wanted.map_or(Decision::Leave(why), Decision::Set)
    }
}

/// The protocol, if its sockets learn a NAPI id.
fn protocol(socket: &Socket) -> Option<Protocol> {
    match (socket.info.kind as i32, socket.info.protocol as i32) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP) => Some(Protocol::Tcp),
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE) => Some(Protocol::Udp),
        _ => None,
    }
}

/// Whether it receives packets from a queue that can be polled. A listener receives none.
pub(super) fn has_queue(socket: &Socket) -> bool {
    !socket.info.listening && protocol(socket).is_some() && !is_loopback(socket)
}

/// Whether its packets go over the loopback device.
fn is_loopback(socket: &Socket) -> bool {
    polls::is_loopback(socket.info.local, socket.info.peer)
}

fn class(socket: &Socket) -> Class {
    let info = &socket.info;
    polls::class(Kind {
        family: info.family.into(),
        kind: info.kind,
        protocol: info.protocol,
        listening: info.listening,
        connected: info.peer.is_some(),
        ulp: info.ulp.as_deref().unwrap_or_default(),
    })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
