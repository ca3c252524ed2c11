//! Every call beside every other on one socket: nothing hangs, nothing panics, and no datagram goes where
//! nobody sent it. Not about speed or order; `sleep_wake.rs` is about waking.

mod common;

use busypoll_stack::{Epoll, Events, Host, UdpSocket, nic::cable};
use common::{hosts, race::race, sockets};
use std::{io::ErrorKind, net::Shutdown, sync::Arc, thread, time::Duration};

/// What is shared by the threads of the race.
struct Ground {
    one: Host,
    two: Host,
    left: UdpSocket,
    right: UdpSocket,
    other: UdpSocket,
    epoll: Epoll,
}

type Runner = fn(&Ground);

const RUNNERS: [Runner; 8] = [
    // Either the peer of the moment or, between two connects, none.
    |ground| match ground.left.send(b"peer") {
        Ok(_) => {}
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EDESTADDRREQ)),
    },
    |ground| {
        ground.left.send_to(b"right", ground.right.local_addr().unwrap()).unwrap();
    },
    |ground| {
        ground.left.connect(ground.other.local_addr().unwrap()).unwrap();
        ground.left.disconnect();
        ground.left.connect(ground.right.local_addr().unwrap()).unwrap();
    },
    |ground| {
        ground.right.set_busy_poll(20).unwrap();
        let _ = ground.right.recv(&mut [0; 8]);
        ground.right.set_busy_poll(0).unwrap();
    },
    |ground| {
        let mut buffer = [0; 8];
        if let Ok(len) = ground.other.recv(&mut buffer) {
            assert_eq!(&buffer[..len], b"peer", "only sends to the peer go here");
        }
    },
    |ground| {
        let _ = ground.epoll.wait(&mut Vec::new(), 2, Some(Duration::from_micros(100)));
    },
    |ground| {
        let events = Events::READABLE | Events::ONE_SHOT;
        ground.epoll.add(&ground.right, events, 1).unwrap();
        ground.epoll.modify(&ground.right, Events::READABLE | Events::EDGE).unwrap();
        ground.epoll.remove(&ground.right).unwrap();
    },
    // A socket that is closed while its datagrams are on their way, and while it is waited for.
    |ground| {
        let brief = UdpSocket::bind(&ground.two, "10.0.0.2:0").unwrap();
        ground.epoll.add(&brief, Events::READABLE, 2).unwrap();
        let sender = UdpSocket::bind(&ground.one, "10.0.0.1:0").unwrap();
        sender.send_to(b"brief", brief.local_addr().unwrap()).unwrap();
        let _ = brief.shutdown(Shutdown::Read);
    },
];

#[test]
fn every_call_beside_every_other() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    right.disconnect();
    let other = UdpSocket::bind(&two, "10.0.0.2:0").unwrap();
    for receiver in [&right, &other] {
        receiver.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
    }
    let epoll = Epoll::new(&two);
    let ground = Arc::new(Ground { one, two, left, right, other, epoll });
    // Each has some laps beside the others.
    race::<_, { RUNNERS.len() }>(
        &ground,
        Duration::from_secs(60),
        |ground, runner, laps| {
            RUNNERS[runner](ground);
            laps + 1
        },
        |laps| laps.iter().all(|laps| *laps >= 500),
        || thread::sleep(Duration::from_millis(5)),
    );
}

#[test]
fn a_full_ring_is_would_block() {
    let (a, b) = cable::pair(cable::Config { ring: 8, ..cable::Config::default() }).unwrap();
    let one = Host::builder().interface(a, "10.0.0.1/24").build().unwrap();
    let two = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
    let (left, _right) = sockets(&one, &two);
    // Nobody takes anything off the ring from here on: its host is gone.
    drop((two, _right));
    left.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
    for nonblocking in [false, true] {
        left.set_nonblocking(nonblocking).unwrap();
        let refused = (0..100).find_map(|_| left.send(b"x").err()).expect("the ring holds 8");
        assert_eq!(refused.kind(), ErrorKind::WouldBlock, "non-blocking: {nonblocking}");
    }
}
