//! What this kernel and this user allow, found by trying it on a socket and an epoll instance of
//! our own.

use std::net::UdpSocket;

use busypoll_linux::{EpollParams, Error, epoll, sockopt};
use busypoll_policy::{Policy, Settings};
use rustix::event::epoll as instance;

/// What the policy requests and the kernel plane refuses, in words; empty if nothing.
pub(super) fn missing(policy: &Policy) -> Vec<String> {
    let all = policy
        .rules
        .iter()
        .map(|rule| rule.change.apply(policy.defaults))
        .chain([policy.defaults])
        .filter(|s| s.kernel_micros() > 0);
    let mut missing: Vec<String> = Vec::new();
    for settings in all {
        for error in refusals(settings) {
            let line = error.to_string();
            if !missing.contains(&line) {
                missing.push(line);
            }
        }
    }
    missing
}

fn refusals(settings: Settings) -> Vec<Error> {
    let mut refusals = Vec::new();
    let mut tried = |result: busypoll_linux::Result<()>| refusals.extend(result.err());
    // A system without IPv4 has other problems, which are not reported here.
    if let Ok(socket) = UdpSocket::bind("127.0.0.1:0") {
        tried(sockopt::set_busy_poll(&socket, settings.kernel_micros()));
        if settings.prefer_busy_poll {
            tried(sockopt::set_prefer_busy_poll(&socket, true));
        }
        if settings.busy_poll_budget > 0 {
            tried(sockopt::set_busy_poll_budget(&socket, settings.busy_poll_budget));
        }
    }
    if let Ok(instance) = instance::create(instance::CreateFlags::CLOEXEC) {
        tried(epoll::set_params(&instance, params(settings)));
    }
    refusals
}

/// The parameters of an epoll instance of a program with these settings.
pub(super) fn params(settings: Settings) -> EpollParams {
    EpollParams {
        busy_poll_usecs: settings.kernel_micros(),
        busy_poll_budget: settings.busy_poll_budget,
        prefer_busy_poll: settings.prefer_busy_poll,
    }
}
