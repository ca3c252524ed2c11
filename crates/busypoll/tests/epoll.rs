//! epoll busy polls by its own parameters, and not by `SO_BUSY_POLL`.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use busypoll::linux::{stat, sysctl::Sysctl};
use busypoll::{BusyPollExt, EpollBusyPollExt, EpollParams};
use busypoll_lab::{Lab, LabHost};
use mio::{Events, Interest, Poll, Token};

const TIMEOUT: Duration = Duration::from_secs(20);

fn connected(host: &LabHost, peer: &LabHost) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind((host.ipv4(), 7777))).unwrap().unwrap();
    socket.connect((peer.ipv4(), 7777)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

#[test]
fn epoll_polls_by_its_own_parameters_and_not_by_so_busy_poll() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    let client = connected(&lab.client, &lab.server);
    let server = connected(&lab.server, &lab.client);
    server.set_nonblocking(true).unwrap();
    server.set_busy_poll(1000).unwrap();
    let mut server = mio::net::UdpSocket::from_std(server);
    let mut poll = Poll::new().unwrap();
    poll.registry().register(&mut server, Token(0), Interest::READABLE).unwrap();
    let count = || lab.server.enter(|| stat::busy_poll_rx_packets().unwrap()).unwrap();

    // One packet is in flight at a time, so each wait ends with exactly one to receive, and no receive
    // finds the queue empty: all polling counted here is epoll's.
    let mut events = Events::with_capacity(4);
    let mut answer = |poll: &mut Poll| {
        poll.poll(&mut events, Some(TIMEOUT)).unwrap();
        assert!(!events.is_empty(), "the client is silent");
        server.recv(&mut [0; 8]).unwrap();
        server.send(b"y").unwrap();
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                client.send(b"x").unwrap();
                client.recv(&mut [0; 8]).unwrap();
            }
        });

        answer(&mut poll);
        if Sysctl::BusyPoll.get().unwrap() == 0 {
            let before = count();
            (0..200).for_each(|_| answer(&mut poll));
            assert_eq!(count(), before, "SO_BUSY_POLL alone makes no epoll poll");
        }
        let params = EpollParams { busy_poll_usecs: 1000, ..Default::default() };
        poll.registry().set_busy_poll_params(params).unwrap();
        let before = count();
        let mut rounds = 0;
        while count() == before && rounds < 100_000 {
            answer(&mut poll);
            rounds += 1;
        }
        assert!(count() > before, "epoll busy polling found no packet in {rounds}");
        done.store(true, Ordering::Relaxed);
        // Wakes the client if it waits for an answer.
        server.send(b"y").unwrap();
    });
}
