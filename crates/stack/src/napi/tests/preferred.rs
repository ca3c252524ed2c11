//! Preferred busy polling changes how long a queue stays with its pollers while a thread sleeps on it. The watchdog's
//! period is a minute, so that the tests do not depend on time.

use super::super::*;
use crate::{Epoll, EpollParams, Events, Host, UdpSocket, nic::cable, time};

const MINUTE: Duration = Duration::from_secs(60);

/// A socket that has a napi id, its host, and its peer's host.
fn receiver() -> (UdpSocket, Host, Host) {
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let far = Host::builder().interface(a, "10.0.0.1/24").build().unwrap();
    let near = Host::builder().watchdog(MINUTE).interface(b, "10.0.0.2/24").build().unwrap();
    let socket = UdpSocket::bind(&near, "10.0.0.2:7").unwrap();
    UdpSocket::new(&far).send_to(b"x", "10.0.0.2:7").unwrap();
    socket.recv(&mut [0; 8]).unwrap();
    socket.set_nonblocking(true).unwrap();
    (socket, near, far)
}

/// Whether the queue stays with its poller for two minutes after a pass of `poll`.
fn is_left_for_long(host: &Host, poll: impl Fn()) -> bool {
    let context = host.contexts().next().unwrap();
    let misses = || context.stats().bp_misses;
    let before = misses();
    while misses() == before {
        poll();
    }
    // As if a thread slept on the queue: without a sleeper, every poller keeps the queue that long.
    assert!(context.handoff.lead());
    assert!(context.is_polled(time::now() + MINUTE / 2));
    context.is_polled(time::now() + MINUTE * 2)
}

#[test]
fn so_prefer_busy_poll_keeps_the_queue_with_its_poller_for_longer() {
    for prefer in [false, true] {
        let (socket, near, _far) = receiver();
        socket.set_busy_poll(50).unwrap();
        socket.set_prefer_busy_poll(prefer).unwrap();
        let poll = || assert!(socket.recv(&mut [0; 8]).is_err());
        assert_eq!(is_left_for_long(&near, poll), prefer);
    }
}

#[test]
fn an_epoll_with_prefer_busy_poll_keeps_the_queue_for_longer() {
    for prefer_busy_poll in [false, true] {
        let (socket, near, _far) = receiver();
        let epoll = Epoll::new(&near);
        epoll.add(&socket, Events::READABLE, 0).unwrap();
        let params = EpollParams { busy_poll_usecs: 50, prefer_busy_poll, busy_poll_budget: 0 };
        epoll.set_params(params).unwrap();
        let poll = || assert_eq!(epoll.wait(&mut Vec::new(), 1, Some(Duration::ZERO)).unwrap(), 0);
        assert_eq!(is_left_for_long(&near, poll), prefer_busy_poll);
    }
}
