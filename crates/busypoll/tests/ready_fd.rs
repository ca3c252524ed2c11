//! The readiness descriptor of sockets and of `Epoll`: for poll(2), for mio, and for tokio's `AsyncFd`.

use busypoll::{
    stack::{
        Epoll, EpollEvent, Events, Host, ReadyFd, TcpListener, TcpStream, UdpSocket, nic::cable,
    },
    tokio::PollerTask,
};
use mio::{Interest, Poll, Token, unix::SourceFd};
use std::{
    io::{self, ErrorKind, Read, Write},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};
use tokio::io::unix::AsyncFd;

const LONG: Duration = Duration::from_secs(20);

fn hosts() -> [Host; 2] {
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let host = |nic, address| Host::builder().interface(nic, address).build().unwrap();
    [host(a, "10.0.0.1/24"), host(b, "10.0.0.2/24")]
}

fn sockets([left, right]: &[Host; 2]) -> [UdpSocket; 2] {
    let server = UdpSocket::bind(right, "10.0.0.2:7").unwrap();
    let client = UdpSocket::bind(left, "10.0.0.1:8").unwrap();
    client.connect("10.0.0.2:7").unwrap();
    server.connect("10.0.0.1:8").unwrap();
    server.set_nonblocking(true).unwrap();
    [client, server]
}

/// poll(2): level-triggered.
fn is_readable(ready: &ReadyFd, timeout: Duration) -> bool {
    let mut fd = libc::pollfd { fd: ready.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut fd, 1, timeout.as_millis() as i32) == 1 }
}

#[test]
fn a_descriptor_is_readable_from_an_event_until_it_is_cleared() {
    let hosts = hosts();
    let [client, server] = sockets(&hosts);
    client.send(b"before").unwrap();
    while !server.readiness().has(Events::READABLE) {
        thread::yield_now();
    }
    let ready = ReadyFd::new(&server, Events::READABLE).unwrap();
    assert!(is_readable(&ready, Duration::ZERO), "data that was there before");
    client.send(b"one").unwrap();
    client.send(b"more").unwrap();
    let mut received = 0;
    while received < 3 {
        assert!(is_readable(&ready, LONG), "{received} of 3 datagrams");
        // One a time: a level-triggered wait returns again for the rest.
        match ready.try_io(|| server.recv(&mut [0; 8])) {
            Ok(_) => received += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    // The event of a datagram that was received already may come late.
    let late = Instant::now() + LONG;
    while is_readable(&ready, Duration::ZERO) {
        assert!(Instant::now() < late);
        ready.clear();
    }
    drop(server);
    assert!(is_readable(&ready, Duration::ZERO), "its socket is closed");
}

#[test]
fn a_listener_and_a_full_stream_have_descriptors() {
    let [left, right] = hosts();
    let listener = TcpListener::bind(&right, "10.0.0.2:7").unwrap();
    listener.set_nonblocking(true).unwrap();
    let accepts = ReadyFd::new(&listener, Events::READABLE).unwrap();
    assert!(!is_readable(&accepts, Duration::ZERO));
    let mut client = TcpStream::connect(&left, "10.0.0.2:7").unwrap();
    assert!(is_readable(&accepts, LONG), "a connection to accept");
    let (mut server, _) = listener.accept().unwrap();
    assert_eq!(accepts.try_io(|| listener.accept()).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!is_readable(&accepts, Duration::ZERO));

    client.set_nonblocking(true).unwrap();
    let room = ReadyFd::new(&client, Events::WRITABLE).unwrap();
    assert!(is_readable(&room, Duration::ZERO));
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        server.read_to_end(&mut all).map(|_| all.len())
    });
    let mut written = 0;
    while written < 16 << 20 {
        match room.try_io(|| client.write(&[7; 1 << 16])) {
            Ok(len) => written += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(is_readable(&room, LONG), "room was made without an event");
            }
            Err(error) => panic!("{error}"),
        }
    }
    drop((room, client));
    assert_eq!(reader.join().unwrap().unwrap(), written);
}

#[test]
fn an_epoll_set_has_a_descriptor() {
    let hosts = hosts();
    let [client, server] = sockets(&hosts);
    let epoll = Epoll::new(&hosts[1]);
    epoll.add(&server, Events::READABLE, 1).unwrap();
    let ready = epoll.ready_fd().unwrap();
    let mut events: Vec<EpollEvent> = Vec::new();
    for _ in 0..20 {
        assert!(!is_readable(&ready, Duration::ZERO));
        client.send(b"x").unwrap();
        assert!(is_readable(&ready, LONG));
        while epoll.wait(&mut events, 8, Some(Duration::ZERO)).unwrap() > 0 {
            while server.recv(&mut [0; 8]).is_ok() {}
        }
        ready.clear();
    }
}

/// Two ends, both of which wait in mio, edge-triggered: a lost event stops the exchange.
#[test]
fn mio_waits_for_a_socket_of_the_stack() {
    let hosts = hosts();
    let ends = sockets(&hosts);
    ends[0].set_nonblocking(true).unwrap();
    ends[0].send(b"x").unwrap();
    thread::scope(|scope| {
        for socket in &ends {
            scope.spawn(move || {
                let ready = ReadyFd::new(socket, Events::READABLE).unwrap();
                let mut poll = Poll::new().unwrap();
                let fd = ready.as_raw_fd();
                poll.registry().register(&mut SourceFd(&fd), Token(0), Interest::READABLE).unwrap();
                let mut events = mio::Events::with_capacity(4);
                let mut left = 500;
                while left > 0 {
                    poll.poll(&mut events, Some(LONG)).unwrap();
                    assert!(!events.is_empty(), "an event was lost; {left} rounds left");
                    while let Ok(len) = ready.try_io(|| socket.recv(&mut [0; 8])) {
                        socket.send(&[7; 8][..len]).unwrap();
                        left -= 1;
                    }
                }
            });
        }
    });
}

#[test]
fn tokio_waits_for_a_descriptor() {
    for polls in [false, true] {
        let hosts = hosts();
        let [client, server] = sockets(&hosts);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answers = thread::spawn(move || {
            for _ in 0..200 {
                client.send(b"x").unwrap();
                client.recv(&mut [0; 8]).unwrap();
            }
        });
        runtime
            .block_on(async {
                if polls {
                    let span = Duration::from_micros(50);
                    tokio::spawn(PollerTask::new(&hosts[1], span).unwrap());
                }
                let ready = ReadyFd::new(&server, Events::READABLE).unwrap();
                // SAFETY: the descriptor is `ready`'s own, until it is dropped.
                let ready = unsafe { AsyncFd::register(ready) }.unwrap();
                let mut buffer = [0; 8];
                for _ in 0..200 {
                    let receive = ready.async_io(tokio::io::Interest::READABLE, |ready| {
                        ready.try_io(|| server.recv(&mut buffer))
                    });
                    let len =
                        tokio::time::timeout(LONG, receive).await.expect("an event was lost")?;
                    server.send(&buffer[..len])?;
                }
                io::Result::Ok(())
            })
            .unwrap();
        answers.join().unwrap();
    }
}
