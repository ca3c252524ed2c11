//! `poll` follows the rules of poll(2), over the cable.

mod common;

use busypoll_stack::{Events, Host, PollFd, UdpSocket, poll};
use common::{hosts, sockets};
use std::{net::Shutdown, thread, time::Duration};

const SOON: Option<Duration> = Some(Duration::from_secs(10));
/// Long enough to conclude that nothing comes.
const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// Polls the sockets for `events`: returns how many are ready, and each socket's events.
fn look<const N: usize>(
    sockets: [&UdpSocket; N],
    events: Events,
    timeout: Option<Duration>,
) -> (usize, [Events; N]) {
    let mut fds = sockets.map(|socket| PollFd { socket, events, revents: Events(u32::MAX) });
    let ready = poll(&mut fds, timeout).unwrap();
    (ready, fds.each_ref().map(|fd| fd.revents))
}

#[test]
fn reports_each_ready_socket_with_its_events() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let idle = UdpSocket::bind(&two, "10.0.0.2:0").unwrap();
    assert_eq!(look([&idle, &right], Events::READABLE, SHORT), (0, [Events(0); 2]));
    left.send(b"x").unwrap();
    for _ in 0..2 {
        let ready = look([&idle, &right], Events::READABLE, SOON);
        assert_eq!(ready, (1, [Events(0), Events::READABLE]), "as long as the data is there");
    }
    let both = Events::READABLE | Events::WRITABLE;
    assert_eq!(look([&idle, &right], both, SOON), (2, [Events::WRITABLE, both]));
    assert_eq!(look([&right, &right], Events::READABLE, SOON).0, 2, "named twice, counted twice");
}

#[test]
fn a_zero_timeout_does_not_wait() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    assert_eq!(look([&right], Events::READABLE, Some(Duration::ZERO)).0, 0);
    left.send(b"x").unwrap();
    right.peek_from(&mut [0; 4]).unwrap();
    assert_eq!(look([&right], Events::READABLE, Some(Duration::ZERO)).0, 1);
    assert_eq!(poll(&mut [], Some(Duration::ZERO)).unwrap(), 0);
    assert_eq!(poll(&mut [], Some(Duration::from_millis(1))).unwrap(), 0);
}

#[test]
fn a_sleeper_is_woken_by_any_member_and_for_any_reason() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let idle = UdpSocket::bind(&two, "10.0.0.2:0").unwrap();
    let woken = |events, act: &dyn Fn()| {
        thread::scope(|scope| {
            let polling = scope.spawn(|| look([&idle, &right], events, SOON));
            thread::sleep(Duration::from_millis(10));
            act();
            polling.join().unwrap()
        })
    };
    let data = woken(Events::READABLE, &|| assert_eq!(left.send(b"x").unwrap(), 1));
    assert_eq!(data, (1, [Events(0), Events::READABLE]));
    right.recv(&mut [0; 4]).unwrap();
    let end = woken(Events::READABLE, &|| right.shutdown(Shutdown::Read).unwrap());
    assert_eq!(end, (1, [Events(0), Events::READABLE]));
    let hang_up = woken(Events::default(), &|| right.shutdown(Shutdown::Write).unwrap());
    assert_eq!(hang_up, (1, [Events(0), Events::HANGUP]));
}

#[test]
fn errors_are_reported_without_interest() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    drop(right);
    left.send(b"anyone?").unwrap();
    assert_eq!(look([&left], Events::default(), SOON), (1, [Events::ERROR]));
    let error = left.recv(&mut [0; 4]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    assert_eq!(look([&left], Events::default(), SHORT).0, 0);
}

#[test]
fn several_threads_poll_one_socket() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    thread::scope(|scope| {
        let polling: Vec<_> =
            (0..4).map(|_| scope.spawn(|| look([&right], Events::READABLE, SOON))).collect();
        thread::sleep(Duration::from_millis(10));
        left.send(b"x").unwrap();
        for thread in polling {
            assert_eq!(thread.join().unwrap().0, 1, "poll returns in all of them");
        }
    });
}

/// Busy-poll passes of `host` so far, with or without packets.
fn passes(host: &Host) -> u64 {
    host.contexts()
        .map(|context| context.stats())
        .map(|stats| stats.bp_misses + stats.bp_yields)
        .sum()
}

#[test]
fn busy_polls_only_if_the_host_allows_it_and_a_member_asks_for_it() {
    let (one, two) = hosts();
    let (_left, right) = sockets(&one, &two);
    let idle = UdpSocket::bind(&two, "10.0.0.2:0").unwrap();
    for (host, member) in [(0, 0), (0, 100), (100, 0), (100, 100)] {
        two.set_busy_poll(host);
        right.set_busy_poll(member).unwrap();
        let before = passes(&two);
        assert_eq!(look([&idle, &right], Events::READABLE, Some(Duration::from_millis(2))).0, 0);
        let polled = passes(&two) - before;
        assert_eq!(polled > 0, host > 0 && member > 0, "busy_poll {host}, SO_BUSY_POLL {member}");
    }
}
