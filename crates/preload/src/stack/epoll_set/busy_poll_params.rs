//! How an epoll set of the program busy polls, and where its parameters come from.

use busypoll_policy::{Plane, Settings};
use busypoll_stack::EpollParams;

/// The origin of the busy-poll parameters of our half.
#[derive(Clone, Copy, Debug)]
pub enum BusyPollParams {
    /// The policy's settings for the program.
    Program(Settings),
    /// The policy's settings for the sockets it has watched.
    Sockets(Settings),
    /// The program's own parameters, which prevail.
    Explicit(EpollParams),
}

impl BusyPollParams {
    pub fn params(self) -> EpollParams {
        match self {
            BusyPollParams::Explicit(params) => params,
            BusyPollParams::Program(settings) | BusyPollParams::Sockets(settings) => EpollParams {
                busy_poll_usecs: settings.micros_on(Plane::Stack),
                busy_poll_budget: settings.busy_poll_budget,
                prefer_busy_poll: settings.prefers_on(Plane::Stack),
            },
        }
    }
}
