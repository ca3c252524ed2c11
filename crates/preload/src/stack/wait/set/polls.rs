//! How an epoll of the program busy polls: by whose wish.

use busypoll_policy::{Plane, Settings};
use busypoll_stack::EpollParams;

/// By whose wish our half busy polls.
#[derive(Clone, Copy, Debug)]
pub enum Polls {
    /// The policy's for the program.
    Program(Settings),
    /// The policy's for the sockets it has watched.
    Sockets(Settings),
    /// The program's own, which prevails.
    Own(EpollParams),
}

impl Polls {
    pub fn params(self) -> EpollParams {
        match self {
            Polls::Own(params) => params,
            Polls::Program(settings) | Polls::Sockets(settings) => EpollParams {
                busy_poll_usecs: settings.micros_on(Plane::Stack),
                busy_poll_budget: settings.busy_poll_budget,
                prefer_busy_poll: settings.prefers_on(Plane::Stack),
            },
        }
    }
}
