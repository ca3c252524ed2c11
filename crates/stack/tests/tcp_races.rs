//! Every call runs concurrently with every other on TCP sockets, one host and one queue per side: nothing hangs,
//! nothing panics, and each byte arrives as it was written. Speed is not tested; `tcp_sleep_wake.rs` tests wake-ups.

mod common;

use busypoll_stack::{Epoll, Events, Host, PollFd, TcpListener, TcpStream, poll};
use common::{hosts, race::race, streams};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};

/// The state shared by the threads.
struct Shared {
    one: Host,
    to: SocketAddr,
    listener: TcpListener,
    /// Both ends of a long-lived stream.
    left: TcpStream,
    right: TcpStream,
    epoll: Epoll,
}

const BRIEF: Duration = Duration::from_micros(200);
const LONG: Option<Duration> = Some(Duration::from_secs(60));
/// The data of a short-lived connection.
const WORDS: &[u8] = b"brief";

/// Gets the thread's progress so far and returns its new progress.
type Runner = fn(&Shared, u64) -> u64;

/// The first two write at one end and read at the other, the next two in the other direction.
const RUNNERS: [Runner; 11] = [
    |shared, at| at + write(&shared.left, at),
    |shared, at| at + read(&shared.right, at),
    |shared, at| at + write(&shared.right, at),
    |shared, at| at + read(&shared.left, at),
    |shared, lap| {
        for stream in [&shared.left, &shared.right] {
            stream.set_nodelay(lap % 2 == 0).unwrap();
            stream.set_busy_poll([0, 20][lap as usize % 2]).unwrap();
            stream.set_send_buffer_size([8_192, 1 << 20][lap as usize / 2 % 2]).unwrap();
            stream.set_recv_buffer_size([8_192, 1 << 20][lap as usize / 3 % 2]).unwrap();
            stream.set_congestion(["cubic", "reno"][lap as usize % 2]).unwrap();
            assert!(stream.info().unwrap().snd_mss > 0);
            assert!(stream.take_error().unwrap().is_none());
            assert!(stream.unread() <= 8 << 20 && stream.unacknowledged() <= 8 << 20);
        }
        lap + 1
    },
    |shared, lap| {
        let events = Events::READABLE | Events::WRITABLE;
        let ends: [&TcpStream; 2] = [&shared.left, &shared.right];
        let mut fds = ends.map(|socket| PollFd { socket, events, revents: Events::default() });
        poll(&mut fds, Some(BRIEF)).unwrap();
        let bad = |fd: &PollFd<'_>| fd.revents.has(Events::ERROR) || fd.revents.has(Events::HANGUP);
        assert!(!fds.iter().any(bad));
        lap + 1
    },
    |shared, lap| {
        shared.epoll.wait(&mut Vec::new(), 2, Some(BRIEF)).unwrap();
        lap + 1
    },
    |shared, lap| {
        shared.epoll.add(&shared.left, Events::READABLE | Events::ONE_SHOT, 1).unwrap();
        shared.epoll.modify(&shared.left, Events::WRITABLE | Events::EDGE).unwrap();
        shared.epoll.remove(&shared.left).unwrap();
        lap + 1
    },
    // A connection that is written, shut down and read at once.
    |shared, lap| {
        let stream = TcpStream::connect(&shared.one, shared.to).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                (&stream).write_all(WORDS).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            ends(&stream, b"");
        });
        lap + 1
    },
    // A connection that is closed, or reset, while a set waits for it and another thread shuts it down.
    |shared, lap| {
        let stream = TcpStream::connect(&shared.one, shared.to).unwrap();
        shared.epoll.add(&stream, Events::READABLE, 2).unwrap();
        stream.set_linger((lap % 2 == 0).then_some(Duration::ZERO)).unwrap();
        let other = stream.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let _ = other.shutdown(Shutdown::Both);
            });
            drop(stream);
        });
        lap + 1
    },
    |shared, lap| match shared.listener.accept() {
        Ok((stream, _)) => {
            stream.set_read_timeout(LONG).unwrap();
            // The peer may be gone.
            let _ = stream.shutdown(Shutdown::Write);
            ends(&stream, WORDS);
            lap + 1
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            lap
        }
    },
];

/// The byte at each position of a stream. Its period is prime, so that swapped pieces are noticed.
fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

/// Writes pieces of all sizes; returns the number of bytes written.
fn write(mut stream: &TcpStream, at: u64) -> u64 {
    let len = 1 + at % 7_919 * (at % 5);
    let piece: Vec<u8> = (at..at + len).map(byte).collect();
    match stream.write(&piece) {
        Ok(len) => len as u64,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            0
        }
    }
}

/// Reads a piece and compares it; returns its length, 0 also if there was none.
fn read(mut stream: &TcpStream, at: u64) -> u64 {
    let mut piece = [0; 5_003];
    match stream.read(&mut piece) {
        Ok(len) => {
            let right = |(got, at): (&u8, u64)| *got == byte(at);
            assert!(piece[..len].iter().zip(at..).all(right), "among {len} bytes at {at}");
            len as u64
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            0
        }
    }
}

/// Reads to the end, and has got `all`; or to a reset, and has got a part of its beginning.
fn ends(mut stream: &TcpStream, all: &[u8]) {
    let mut got = Vec::new();
    match stream.read_to_end(&mut got) {
        Ok(_) => assert!(got.is_empty() || got == all, "{got:?}"),
        Err(error) => {
            let reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
            assert!(reset && all.starts_with(&got), "{error} after {got:?}");
        }
    }
}

#[test]
fn every_call_runs_concurrently_with_every_other() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    for stream in [&left, &right] {
        stream.set_read_timeout(Some(BRIEF)).unwrap();
        stream.set_write_timeout(Some(BRIEF)).unwrap();
    }
    let listener = TcpListener::bind(&two, "10.0.0.2:0").unwrap();
    listener.set_accept_timeout(Some(BRIEF)).unwrap();
    let (to, epoll) = (listener.local_addr().unwrap(), Epoll::new(&one));
    let shared = Arc::new(Shared { one, to, listener, left, right, epoll });
    // Each has made some progress at the same time as the others.
    let come = race::<_, { RUNNERS.len() }>(
        &shared,
        Duration::from_secs(120),
        |shared, runner, so_far| RUNNERS[runner](shared, so_far),
        |come| {
            come[..4].iter().all(|bytes| *bytes > 2_000_000)
                && come[4..].iter().all(|laps| *laps >= 200)
        },
        // No other thread accepts any more.
        || {
            RUNNERS[RUNNERS.len() - 1](&shared, 0);
        },
    );
    // Bytes in flight arrive, to the last one.
    let [left_sent, right_got, right_sent, left_got, ..] = come;
    for (from, to, sent, mut got) in [
        (&shared.left, &shared.right, left_sent, right_got),
        (&shared.right, &shared.left, right_sent, left_got),
    ] {
        from.shutdown(Shutdown::Write).unwrap();
        to.set_read_timeout(LONG).unwrap();
        loop {
            match read(to, got) {
                0 => break,
                len => got += len,
            }
        }
        assert_eq!(got, sent, "bytes");
    }
}
