//! Every call beside every other on TCP sockets, one host and one queue a side: nothing hangs, nothing panics, and
//! each byte that arrives is the one that was written there. Not about speed; `tcp_sleep_wake.rs` is about waking.

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

/// What the threads share.
struct Ground {
    one: Host,
    to: SocketAddr,
    listener: TcpListener,
    /// Both ends of a stream that lasts.
    left: TcpStream,
    right: TcpStream,
    epoll: Epoll,
}

const BRIEF: Duration = Duration::from_micros(200);
const LONG: Option<Duration> = Some(Duration::from_secs(60));
/// What a connection says that does not last.
const WORDS: &[u8] = b"brief";

/// Each is told how far it has come, and says how far it is now.
type Runner = fn(&Ground, u64) -> u64;

/// The first two write at one end and read at the other, the next two the other way.
const RUNNERS: [Runner; 11] = [
    |ground, at| at + write(&ground.left, at),
    |ground, at| at + read(&ground.right, at),
    |ground, at| at + write(&ground.right, at),
    |ground, at| at + read(&ground.left, at),
    |ground, lap| {
        for stream in [&ground.left, &ground.right] {
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
    |ground, lap| {
        let events = Events::READABLE | Events::WRITABLE;
        let ends: [&TcpStream; 2] = [&ground.left, &ground.right];
        let mut fds = ends.map(|socket| PollFd { socket, events, revents: Events::default() });
        poll(&mut fds, Some(BRIEF)).unwrap();
        let bad = |fd: &PollFd<'_>| fd.revents.has(Events::ERROR) || fd.revents.has(Events::HANGUP);
        assert!(!fds.iter().any(bad));
        lap + 1
    },
    |ground, lap| {
        ground.epoll.wait(&mut Vec::new(), 2, Some(BRIEF)).unwrap();
        lap + 1
    },
    |ground, lap| {
        ground.epoll.add(&ground.left, Events::READABLE | Events::ONE_SHOT, 1).unwrap();
        ground.epoll.modify(&ground.left, Events::WRITABLE | Events::EDGE).unwrap();
        ground.epoll.remove(&ground.left).unwrap();
        lap + 1
    },
    // A connection that is written, shut down and read at once.
    |ground, lap| {
        let stream = TcpStream::connect(&ground.one, ground.to).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                (&stream).write_all(WORDS).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            ends(&stream, b"");
        });
        lap + 1
    },
    // One that is closed, or reset, while it is waited for and shut down.
    |ground, lap| {
        let stream = TcpStream::connect(&ground.one, ground.to).unwrap();
        ground.epoll.add(&stream, Events::READABLE, 2).unwrap();
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
    |ground, lap| match ground.listener.accept() {
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

/// The byte at each place of a stream. Of a prime period, so that pieces that change places are seen.
fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

/// Writes pieces of all sizes; how much of it.
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

/// Reads a piece and compares it; how long it is, 0 also if there was none.
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

/// Reads to the end, and has got `all`; or to a reset, and has got none but its beginning.
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
fn every_call_beside_every_other() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    for stream in [&left, &right] {
        stream.set_read_timeout(Some(BRIEF)).unwrap();
        stream.set_write_timeout(Some(BRIEF)).unwrap();
    }
    let listener = TcpListener::bind(&two, "10.0.0.2:0").unwrap();
    listener.set_accept_timeout(Some(BRIEF)).unwrap();
    let (to, epoll) = (listener.local_addr().unwrap(), Epoll::new(&one));
    let ground = Arc::new(Ground { one, to, listener, left, right, epoll });
    // Each has come some way beside the others.
    let come = race::<_, { RUNNERS.len() }>(
        &ground,
        Duration::from_secs(120),
        |ground, runner, so_far| RUNNERS[runner](ground, so_far),
        |come| {
            come[..4].iter().all(|bytes| *bytes > 2_000_000)
                && come[4..].iter().all(|laps| *laps >= 200)
        },
        // Nobody else accepts any more.
        || {
            RUNNERS[RUNNERS.len() - 1](&ground, 0);
        },
    );
    // What was still on the way arrives, to the last byte.
    let [left_sent, right_got, right_sent, left_got, ..] = come;
    for (from, to, sent, mut got) in [
        (&ground.left, &ground.right, left_sent, right_got),
        (&ground.right, &ground.left, right_sent, left_got),
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
