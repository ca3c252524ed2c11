//! No wake-up is lost under any race, with TCP: see [`wake_game`]; and with threads that wait for room, or for
//! connections.

mod common;
mod wake_game;

use busypoll_stack::{Epoll, Events, Host, PollFd, TcpListener, TcpStream, poll};
use common::{hosts, streams};
use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use wake_game::{Player, STANDSTILL, duels, hand_overs, many_threads, neighbours};

impl Player for TcpStream {
    fn pair(one: &Host, two: &Host) -> (TcpStream, TcpStream) {
        streams(one, two)
    }

    fn send(&self) {
        assert_eq!((&mut &*self).write(b"b").unwrap(), 1);
    }

    fn receive(&self) -> bool {
        (&mut &*self).read(&mut [0; 1]).unwrap() > 0
    }

    fn end(&self) {
        self.shutdown(Shutdown::Both).unwrap();
    }

    fn set_busy_poll(&self, micros: u32) {
        self.set_busy_poll(micros).unwrap();
    }

    fn drive(&self) {
        assert!((&mut &*self).read(&mut [0; 1]).is_err());
    }

    fn set_nonblocking(&self) {
        self.set_nonblocking(true).unwrap();
    }

    fn report(&self) -> String {
        let info = self.info();
        format!(
            "{} unread, {} unacknowledged, {:?}, {info:?}",
            self.unread(),
            self.unacknowledged(),
            self.stats()
        )
    }
}

/// Runs `game` in its own thread and fails if its count stands still for too long.
fn watched(what: &str, game: impl FnOnce(&AtomicU64) + Send + 'static) {
    let moves = Arc::new(AtomicU64::new(0));
    let (count, (sender, done)) = (moves.clone(), mpsc::channel());
    let player = thread::spawn(move || {
        game(&count);
        let _ = sender.send(());
    });
    let mut last = (0, Instant::now());
    while done.recv_timeout(Duration::from_millis(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
        let now = moves.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
        assert!(last.1.elapsed() < STANDSTILL, "{what}: no progress after {now} moves");
    }
    player.join().unwrap();
}

/// A writer that fills the pipe again and again, and a reader that reads pieces of all sizes.
fn pipes(bytes: usize) {
    for wait in 0..3 {
        for busy_poll in [0, 50] {
            watched("a writer that waits for room", move |moves| {
                let (one, two) = hosts();
                let (left, right) = <TcpStream as Player>::pair(&one, &two);
                left.set_busy_poll(busy_poll).unwrap();
                left.set_send_buffer_size(8_192).unwrap();
                thread::scope(|scope| {
                    let left = &left;
                    scope.spawn(move || write_all(&one, left, bytes, wait));
                    let mut room = vec![0; 40_000];
                    let (mut got, mut next) = (0, 1);
                    while got < bytes {
                        next = next * 7_919 % 39_989;
                        let len = (&right).read(&mut room[..next]).unwrap();
                        assert!(len > 0);
                        assert!(room[..len].iter().zip(got..).all(|(byte, at)| *byte == at as u8));
                        got += len;
                        moves.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
    }
}

/// Writes a pattern by blocking writes, or by non-blocking ones after a poll or an epoll wait.
fn write_all(host: &Host, stream: &TcpStream, bytes: usize, wait: usize) {
    let pattern: Vec<u8> = (0..256 * 300).map(|at| at as u8).collect();
    let epoll = Epoll::new(host);
    if wait > 0 {
        stream.set_nonblocking(true).unwrap();
        epoll.add(stream, Events::WRITABLE | Events::EDGE, 0).unwrap();
    }
    let mut sent = 0;
    let mut events = Vec::new();
    while sent < bytes {
        let from = sent % 256;
        let len = (bytes - sent).min(70_000);
        match (&mut &*stream).write(&pattern[from..from + len]) {
            Ok(len) => sent += len,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                let socket = stream;
                let mut fds =
                    [PollFd { socket, events: Events::WRITABLE, revents: Events::default() }];
                match wait {
                    1 => assert_eq!(poll(&mut fds, None).unwrap(), 1),
                    _ => assert_eq!(epoll.wait(&mut events, 1, None).unwrap(), 1),
                }
            }
        }
    }
}

/// Threads that accept from one listener, each with another kind of wait, while others connect.
fn acceptors(connections: u64) {
    for busy_poll in [0, 50] {
        watched("a thread that connects or accepts", move |moves| {
            let (one, two) = hosts();
            let listener = TcpListener::bind(&two, "10.0.0.2:0").unwrap();
            listener.set_busy_poll(busy_poll).unwrap();
            let to = listener.local_addr().unwrap();
            let accepted = AtomicU64::new(0);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        loop {
                            let (stream, _) = listener.accept().unwrap();
                            let mut byte = [0];
                            if (&stream).read(&mut byte).unwrap() == 1 && byte == [0] {
                                return;
                            }
                            accepted.fetch_add(1, Ordering::Relaxed);
                            moves.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                let connect = || {
                    for _ in 0..connections / 2 {
                        let stream = TcpStream::connect(&one, to).unwrap();
                        (&stream).write_all(b"x").unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                        assert_eq!((&stream).read(&mut [0]).unwrap_or(0), 0);
                    }
                };
                let clients = [scope.spawn(connect), scope.spawn(connect)];
                clients.into_iter().for_each(|client| client.join().unwrap());
                for _ in 0..3 {
                    (&TcpStream::connect(&one, to).unwrap()).write_all(&[0]).unwrap();
                }
            });
            assert_eq!(accepted.load(Ordering::Relaxed), connections / 2 * 2);
        });
    }
}

#[test]
fn two_sleepers_lose_no_wake_up() {
    duels::<TcpStream>(1_000);
}

#[test]
fn a_packet_on_the_way_to_sleep_loses_no_wake_up() {
    hand_overs::<TcpStream>(4_000);
}

#[test]
fn many_sleepers_on_one_socket_lose_no_wake_up() {
    many_threads::<TcpStream>(4);
}

#[test]
fn many_sleepers_on_one_queue_lose_no_wake_up() {
    neighbours::<TcpStream>(2_000);
}

#[test]
fn writers_that_wait_for_room_lose_no_wake_up() {
    pipes(20_000_000);
}

#[test]
fn threads_that_wait_for_connections_lose_no_wake_up() {
    acceptors(2_000);
}

#[test]
#[ignore = "millions of rounds take minutes; run it in release after any change to waiting"]
fn millions_of_rounds() {
    let begun = Instant::now();
    duels::<TcpStream>(20_000);
    hand_overs::<TcpStream>(100_000);
    many_threads::<TcpStream>(100);
    neighbours::<TcpStream>(30_000);
    pipes(2_000_000_000);
    acceptors(20_000);
    println!("{:?}", begun.elapsed());
}
