//! Every call runs concurrently with every other on one socket: nothing hangs, nothing panics, and no datagram reaches
//! a socket it was not sent to. Speed and order are not tested; `sleep_wake.rs` tests wake-ups.

mod common;

use busypoll_stack::{Epoll, Events, Host, UdpSocket, nic::cable};
use common::{hosts, race::race, sockets};
use std::{io::ErrorKind, net::Shutdown, sync::Arc, thread, time::Duration};

/// The state shared by the threads of the race.
struct Shared {
    one: Host,
    two: Host,
    left: UdpSocket,
    right: UdpSocket,
    other: UdpSocket,
    epoll: Epoll,
}

type Runner = fn(&Shared);

const RUNNERS: [Runner; 8] = [
    // Either to the current peer or, between two connects, to none.
    |shared| match shared.left.send(b"peer") {
        Ok(_) => {}
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EDESTADDRREQ)),
    },
    |shared| {
        shared.left.send_to(b"right", shared.right.local_addr().unwrap()).unwrap();
    },
    |shared| {
        shared.left.connect(shared.other.local_addr().unwrap()).unwrap();
        shared.left.disconnect();
        shared.left.connect(shared.right.local_addr().unwrap()).unwrap();
    },
    |shared| {
        shared.right.set_busy_poll(20).unwrap();
        let _ = shared.right.recv(&mut [0; 8]);
        shared.right.set_busy_poll(0).unwrap();
    },
    |shared| {
        let mut buffer = [0; 8];
        if let Ok(len) = shared.other.recv(&mut buffer) {
            assert_eq!(&buffer[..len], b"peer", "only datagrams to the peer come here");
        }
    },
    |shared| {
        let _ = shared.epoll.wait(&mut Vec::new(), 2, Some(Duration::from_micros(100)));
    },
    |shared| {
        let events = Events::READABLE | Events::ONE_SHOT;
        shared.epoll.add(&shared.right, events, 1).unwrap();
        shared.epoll.modify(&shared.right, Events::READABLE | Events::EDGE).unwrap();
        shared.epoll.remove(&shared.right).unwrap();
    },
    // A socket that is closed while its datagrams are in flight, and while a set waits for it.
    |shared| {
        let brief = UdpSocket::bind(&shared.two, "10.0.0.2:0").unwrap();
        shared.epoll.add(&brief, Events::READABLE, 2).unwrap();
        let sender = UdpSocket::bind(&shared.one, "10.0.0.1:0").unwrap();
        sender.send_to(b"brief", brief.local_addr().unwrap()).unwrap();
        let _ = brief.shutdown(Shutdown::Read);
    },
];

#[test]
fn every_call_runs_concurrently_with_every_other() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    right.disconnect();
    let other = UdpSocket::bind(&two, "10.0.0.2:0").unwrap();
    for receiver in [&right, &other] {
        receiver.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
    }
    let epoll = Epoll::new(&two);
    let shared = Arc::new(Shared { one, two, left, right, other, epoll });
    // Each has run some laps at the same time as the others.
    race::<_, { RUNNERS.len() }>(
        &shared,
        Duration::from_secs(60),
        |shared, runner, laps| {
            RUNNERS[runner](shared);
            laps + 1
        },
        |laps| laps.iter().all(|laps| *laps >= 500),
        || thread::sleep(Duration::from_millis(5)),
    );
}

#[test]
fn a_send_to_a_full_ring_is_would_block() {
    let (a, b) = cable::pair(cable::Config { ring: 8, ..cable::Config::default() }).unwrap();
    let one = Host::builder().interface(a, "10.0.0.1/24").build().unwrap();
    let two = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
    let (left, _right) = sockets(&one, &two);
    // From here on nothing leaves the ring: its receiver is gone.
    drop((two, _right));
    left.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
    for nonblocking in [false, true] {
        left.set_nonblocking(nonblocking).unwrap();
        let refused = (0..100).find_map(|_| left.send(b"x").err()).expect("the ring holds 8");
        assert_eq!(refused.kind(), ErrorKind::WouldBlock, "non-blocking: {nonblocking}");
    }
}
