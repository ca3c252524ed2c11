//! TCP sockets over the cable follow the rules that an application relies on.

mod common;

use busypoll_stack::{
    Events, Host, IncomingStreams, PollFd, TcpConfig, TcpListener, TcpStream, nic::cable,
    options::*, poll,
};
use common::{
    cpus,
    filter::{Filter, tcp_payload},
    hosts, pin, streams,
};
use std::{
    io::{ErrorKind, IoSlice, IoSliceMut, Read, Write},
    net::{Shutdown, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than any expected event takes.
const SOON: Option<Duration> = Some(Duration::from_secs(20));

fn errno(result: std::io::Result<impl Sized>) -> i32 {
    result.map(drop).expect_err("it fails").raw_os_error().expect("an errno")
}

/// Bytes that differ by their position.
fn pattern(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Two hosts; the first sends only the frames that `verdict` accepts.
fn filtered(
    config: TcpConfig,
    verdict: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
) -> (Host, Host) {
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let a = Filter::new(a, verdict);
    let one = Host::builder().interface(a, "10.0.0.1/24").tcp(config).build().unwrap();
    let two = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
    (one, two)
}

/// Of connections from chosen ports, too, whose paths were looked up before they had one.
#[test]
fn every_segment_has_the_ports_of_its_connection() {
    let strangers = Arc::new(AtomicU32::new(0));
    let seen = strangers.clone();
    let (one, two) = filtered(TcpConfig::default(), move |frame| {
        // An Ethernet and an IPv4 header without options.
        let is_tcp = frame[12..14] == [8, 0] && frame[23] == 6;
        seen.fetch_add(u32::from(is_tcp && frame[34..36] == [0, 0]), Ordering::Relaxed);
        true
    });
    for _ in 0..3 {
        let (mut left, mut right) = streams(&one, &two);
        for _ in 0..5 {
            left.write_all(b"?").unwrap();
            right.read_exact(&mut [0]).unwrap();
            right.write_all(b"!").unwrap();
            left.read_exact(&mut [0]).unwrap();
        }
    }
    assert_eq!(strangers.load(Ordering::Relaxed), 0);
}

#[test]
fn every_size_arrives_whole_and_in_order() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    let sizes = [1, 2, 1447, 1448, 1449, 65_535, 65_536, 1 << 20, 5_000_003];
    thread::scope(|scope| {
        scope.spawn(|| {
            for size in sizes {
                // Every other size with `TCP_NOTSENT_LOWAT` 1, so that as little as possible may wait unsent.
                let mark = i32::from(size % 2 == 1);
                left.setsockopt(IPPROTO_TCP, TCP_NOTSENT_LOWAT, mark).unwrap();
                (&left).write_all(&pattern(0..size)).unwrap();
            }
            left.shutdown(Shutdown::Write).unwrap();
        });
        for size in sizes {
            let mut got = vec![0; size];
            (&right).read_exact(&mut got).unwrap();
            assert!(got == pattern(0..size), "{size} bytes");
        }
        assert_eq!((&right).read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn vectored_calls_gather_and_scatter() {
    let (one, two) = hosts();
    let (mut left, mut right) = streams(&one, &two);
    let text = pattern(0..40_000);
    let pieces: Vec<IoSlice> = text.chunks(997).map(IoSlice::new).collect();
    assert_eq!(
        left.write_vectored(&pieces).unwrap(),
        text.len(),
        "more buffers than are passed down at once"
    );
    drop(left);
    let mut got: Vec<u8> = Vec::new();
    loop {
        let (mut head, mut none, mut tail) = ([0; 10], [0; 0], [0; 3000]);
        let rooms = &mut [&mut head[..], &mut none, &mut tail].map(IoSliceMut::new);
        let len = right.read_vectored(rooms).unwrap();
        got.extend(head.iter().chain(&tail).take(len));
        if len == 0 {
            break;
        }
    }
    assert!(got == text);
}

#[test]
fn a_blocking_write_returns_when_all_of_it_is_in_the_buffer() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    left.set_send_buffer_size(10_000).unwrap();
    right.set_recv_buffer_size(10_000).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| (&left).write(&pattern(0..1_000_000)).unwrap());
        thread::sleep(Duration::from_millis(50));
        assert!(!writer.is_finished(), "no byte has been read yet");
        let mut got = vec![0; 1_000_000];
        (&right).read_exact(&mut got).unwrap();
        assert!(got == pattern(0..1_000_000));
        assert_eq!(writer.join().unwrap(), 1_000_000);
    });
    left.set_write_timeout(Some(Duration::from_millis(30))).unwrap();
    let part = (&left).write(&[0; 1_000_000]).unwrap();
    assert!(part > 0 && part < 1_000_000, "{part} bytes in 30 ms, and no reader");
    // A little room may have become free since.
    let full = loop {
        if let Err(error) = (&left).write(&[0; 1_000_000]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
}

/// A busy-polling sender finds room again and again and goes on, but not for longer than its timeout.
#[test]
fn a_busy_polling_send_ends_at_its_timeout_even_while_data_moves() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    left.set_busy_poll(10_000).unwrap();
    left.set_write_timeout(Some(Duration::from_millis(30))).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || while (&right).read(&mut [0; 1 << 16]).is_ok_and(|len| len > 0) {});
        let chunk = vec![7; 1 << 20];
        let endless = vec![IoSlice::new(&chunk); 1 << 16];
        let part = (&left).write_vectored(&endless).unwrap();
        assert!(part > 0 && part < chunk.len() * endless.len(), "64 GiB in 30 ms");
        left.shutdown(Shutdown::Both).unwrap();
    });
}

#[test]
fn a_failed_connect_returns_the_errno_of_linux() {
    let (one, two) = hosts();
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let refused = TcpStream::connect(&one, "10.0.0.2:9").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let nowhere = TcpStream::connect(&one, "192.0.2.1:9");
    assert_eq!(errno(nowhere), libc::ENETUNREACH);
    let absent = TcpStream::connect(&one, "10.0.0.77:9");
    assert_eq!(errno(absent), libc::EHOSTUNREACH, "it does not answer ARP");
    let soon = Duration::from_millis(20);
    let late = TcpStream::connect_timeout(&one, &address("10.0.0.77:9"), soon).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let socket = TcpStream::new(&one);
    socket.set_write_timeout(Some(soon)).unwrap();
    assert_eq!(errno(socket.connect_to(address("10.0.0.77:9"))), libc::EINPROGRESS);
    let _listener = TcpListener::bind(&two, "10.0.0.2:9").unwrap();
    let foreign = TcpStream::new(&one).bind_to(address("10.0.0.2:0"));
    assert_eq!(errno(foreign), libc::EADDRNOTAVAIL);
    // It connects to the first address that works.
    let several = [address("10.0.0.2:8"), address("10.0.0.2:9")];
    let stream = TcpStream::connect(&one, &several[..]).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), several[1]);
    assert_eq!(TcpStream::connect(&one, &[][..]).unwrap_err().kind(), ErrorKind::InvalidInput);
}

//= RFC 9293 3.9.1.1 test
//# A TCP implementation MUST reject as an error a local OPEN call for an invalid remote IP address (e.g., a [...]
#[test]
fn no_connection_has_the_address_of_a_group_or_of_all_hosts() {
    let (one, _two) = hosts();
    for address in ["255.255.255.255:7", "224.0.0.1:7", "[ff02::1]:7"] {
        assert_eq!(errno(TcpListener::bind(&one, address)), libc::EADDRNOTAVAIL, "{address}");
        assert_eq!(errno(TcpStream::connect(&one, address)), libc::ENETUNREACH, "{address}");
    }
}

//= RFC 9293 3.9.1.1 test
//# If an application on a multihomed host does not specify the local IP address when actively opening a TCP [...]
#[test]
fn the_route_chooses_the_local_address() {
    let (a, _a) = cable::pair(cable::Config::default()).unwrap();
    let (b, _b) = cable::pair(cable::Config::default()).unwrap();
    let host = Host::builder().interface(a, "10.0.0.1/24").interface(b, "10.1.0.1/24");
    let host = host.build().unwrap();
    for (remote, local) in [("10.0.0.2:7", [10, 0, 0, 1]), ("10.1.0.2:7", [10, 1, 0, 1])] {
        let stream = TcpStream::new(&host);
        stream.set_nonblocking(true).unwrap();
        assert_eq!(errno(stream.connect_to(remote.parse().unwrap())), libc::EINPROGRESS);
        assert_eq!(stream.local_addr().unwrap().ip(), std::net::IpAddr::from(local));
    }
}

#[test]
fn max_segment_of_an_unconnected_socket_is_what_was_set() {
    let (one, _two) = hosts();
    let socket = TcpStream::new(&one);
    let read = || socket.getsockopt(libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap();
    assert_eq!(read(), 536);
    socket.set_max_segment(1_000).unwrap();
    assert_eq!(read(), 1_000);
}

#[test]
fn a_peer_that_has_vanished_is_timed_out() {
    let cut = Arc::new(AtomicBool::new(false));
    let line = cut.clone();
    let (one, two) = filtered(TcpConfig::default(), move |_| !line.load(Ordering::Relaxed));
    let (left, right) = streams(&one, &two);
    cut.store(true, Ordering::Relaxed);
    let unheard = TcpStream::new(&one);
    unheard.setsockopt(IPPROTO_TCP, TCP_SYNCNT, 1).unwrap();
    let to = "10.0.0.2:9".parse().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            assert_eq!(errno(unheard.connect_to(to)), libc::ETIMEDOUT);
            assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
        });
        left.set_user_timeout(Some(Duration::from_millis(400))).unwrap();
        left.set_read_timeout(SOON).unwrap();
        (&left).write_all(b"anyone there?").unwrap();
        assert_eq!(errno((&left).read(&mut [0])), libc::ETIMEDOUT);
        assert_eq!(errno((&left).write(b"x")), libc::EPIPE);
    });
    drop(right);
}

#[test]
fn keep_alive_notices_a_peer_that_has_vanished() {
    let cut = Arc::new(AtomicBool::new(false));
    let line = cut.clone();
    let (one, two) = filtered(TcpConfig::default(), move |_| !line.load(Ordering::Relaxed));
    let (left, _right) = streams(&one, &two);
    let second = Duration::from_secs(1);
    left.set_keepalive_times(second, second, 1).unwrap();
    assert!(left.keepalive().unwrap());
    cut.store(true, Ordering::Relaxed);
    left.set_read_timeout(SOON).unwrap();
    assert_eq!(errno((&left).read(&mut [0])), libc::ETIMEDOUT);
}

#[test]
fn close_waits_for_the_peer_or_resets_as_so_linger_says() {
    let cut = Arc::new(AtomicBool::new(false));
    let line = cut.clone();
    let (one, two) = filtered(TcpConfig::default(), move |_| !line.load(Ordering::Relaxed));
    let (left, right) = streams(&one, &two);
    assert_eq!(left.linger().unwrap(), None);
    left.set_linger(Some(Duration::from_secs(20))).unwrap();
    (&left).write_all(&[7; 100_000]).unwrap();
    let begun = Instant::now();
    drop(left);
    assert!(begun.elapsed() < Duration::from_secs(10), "the peer has it all in no time");
    let mut got = Vec::new();
    (&right).read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), 100_000);

    let (left, right) = streams(&one, &two);
    left.set_linger(Some(Duration::ZERO)).unwrap();
    drop(left);
    right.set_read_timeout(SOON).unwrap();
    assert_eq!(errno((&right).read(&mut [0])), libc::ECONNRESET);

    let (left, _right) = streams(&one, &two);
    left.set_linger(Some(Duration::from_millis(300))).unwrap();
    cut.store(true, Ordering::Relaxed);
    (&left).write_all(b"never arrives").unwrap();
    let begun = Instant::now();
    drop(left);
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
}

#[test]
fn accepted_connections_inherit_options_and_come_in_order() {
    let (one, two) = hosts();
    let socket = TcpStream::new(&two);
    socket.set_recv_buffer_size(33_333).unwrap();
    socket.set_busy_poll(44).unwrap();
    socket.bind_to("10.0.0.2:80".parse().unwrap()).unwrap();
    let listener = socket.listen(16).unwrap();
    assert_eq!(listener.busy_poll(), 44);
    for (level, name, value) in [
        (SOL_SOCKET, SO_BUSY_POLL, 55),
        (SOL_SOCKET, SO_KEEPALIVE, 1),
        (IPPROTO_TCP, TCP_NODELAY, 1),
        (IPPROTO_IP, IP_TTL, 3),
    ] {
        listener.setsockopt(level, name, value).unwrap();
        assert_eq!(listener.getsockopt(level, name).unwrap(), value);
    }
    let clients: Vec<_> =
        (0..3).map(|_| TcpStream::connect(&one, "10.0.0.2:80").unwrap()).collect();
    for (client, accepted) in clients.iter().zip(listener.incoming()) {
        let accepted = accepted.unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), client.local_addr().unwrap());
        assert!(accepted.nodelay().unwrap() && accepted.keepalive().unwrap());
        assert_eq!((accepted.busy_poll(), accepted.ttl().unwrap()), (55, 3));
        assert_eq!(accepted.recv_buffer_size().unwrap(), 33_333);
        assert_eq!(accepted.incoming_napi_id(), two.contexts().next().map(|context| context.id()));
        assert!(!accepted.nonblocking());
    }
    let _: IncomingStreams<'_> = listener.incoming();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_full_backlog_makes_clients_wait_and_loses_none() {
    let (one, two) = hosts();
    let socket = TcpStream::new(&two);
    socket.bind_to("10.0.0.2:80".parse().unwrap()).unwrap();
    let listener = socket.listen(2).unwrap();
    thread::scope(|scope| {
        for n in 0..12u8 {
            let one = &one;
            scope.spawn(move || {
                let mut stream = TcpStream::connect(one, "10.0.0.2:80").unwrap();
                stream.write_all(&[n]).unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer, [n]);
            });
        }
        thread::sleep(Duration::from_millis(100));
        assert!(listener.queued() <= 3, "{}", listener.queued());
        for stream in listener.incoming().take(12) {
            let mut stream = stream.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(&byte).unwrap();
        }
    });
}

#[test]
fn listeners_that_share_a_port_share_its_connections() {
    let (one, two) = hosts();
    let listen = || {
        let socket = TcpStream::new(&two);
        socket.set_reuse_port(true).unwrap();
        socket.bind_to("10.0.0.2:80".parse().unwrap()).unwrap();
        let listener = socket.listen(128).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    };
    let listeners = [listen(), listen()];
    let _clients: Vec<_> =
        (0..40).map(|_| TcpStream::connect(&one, "10.0.0.2:80").unwrap()).collect();
    let mut accepted = [0; 2];
    while accepted.iter().sum::<usize>() < 40 {
        for (listener, count) in listeners.iter().zip(&mut accepted) {
            *count += std::iter::from_fn(|| listener.accept().ok()).count();
        }
    }
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
}

#[test]
fn a_clone_is_the_same_socket_and_the_last_one_closes_it() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    let clone = left.try_clone().unwrap();
    drop(left);
    (&clone).write_all(b"still open").unwrap();
    let mut buffer = [0; 10];
    (&right).read_exact(&mut buffer).unwrap();
    drop(clone);
    assert_eq!((&right).read(&mut buffer).unwrap(), 0);
    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    let clone = listener.try_clone().unwrap();
    drop(listener);
    let _stream = TcpStream::connect(&one, "10.0.0.2:80").unwrap();
    drop(clone);
    let refused = TcpStream::connect(&one, "10.0.0.2:80").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn tcp_info_describes_the_connection() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    (&left).write_all(&[0; 100_000]).unwrap();
    (&right).read_exact(&mut [0; 100_000]).unwrap();
    let (info, theirs) = (left.info().unwrap(), right.info().unwrap());
    assert_eq!((info.bytes_sent, theirs.bytes_received), (100_000, 100_000));
    assert!(info.timestamps && info.sack && info.window_scale.is_some(), "{info:?}");
    assert_eq!((info.snd_mss, info.total_retrans), (1448, 0), "{info:?}");
    assert_eq!(left.max_segment().unwrap(), 1448);
    assert!(info.rtt > Duration::ZERO && info.snd_cwnd >= 10, "{info:?}");
    assert_eq!(right.unread(), 0);
    left.set_congestion("reno").unwrap();
    assert_eq!(left.congestion().unwrap(), "reno");
    assert_eq!(errno(left.set_congestion("vegas")), libc::ENOENT);
    assert_eq!(right.congestion().unwrap(), "cubic");
}

#[test]
fn corked_data_is_sent_in_full_segments_or_when_uncorked() {
    let segments = Arc::new(AtomicU32::new(0));
    let count = segments.clone();
    let (one, two) = filtered(TcpConfig::default(), move |frame| {
        count.fetch_add(u32::from(!tcp_payload(frame).is_empty()), Ordering::Relaxed);
        true
    });
    let (left, right) = streams(&one, &two);
    left.set_cork(true).unwrap();
    for _ in 0..10 {
        (&left).write_all(&[1; 100]).unwrap();
    }
    left.set_cork(false).unwrap();
    (&right).read_exact(&mut [0; 1000]).unwrap();
    left.write_more(&[2; 10]).unwrap();
    (&left).write_all(&[3; 10]).unwrap();
    (&right).read_exact(&mut [0; 20]).unwrap();
    // Two, unless this thread was descheduled for the 200 ms that a cork holds.
    let segments = segments.load(Ordering::Relaxed);
    assert!(segments <= 4, "{segments} segments of 12 writes");
}

/// Other threads may have the CPU at the wrong time, and then a packet comes by the interrupt. So both ends go on until
/// each has found enough packets itself, for at most twenty times as many rounds as an idle machine needs.
#[test]
fn a_busy_polling_caller_finds_its_packets_itself() {
    const ENOUGH: u64 = 500;
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    // Two threads that poll must not share a CPU.
    let cpus = cpus();
    for socket in [&left, &right] {
        socket.set_busy_poll(1_000_000).unwrap();
    }
    let enough = || [&left, &right].iter().all(|end| end.stats().own_polls >= ENOUGH);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus[0]);
            let mut byte = [0];
            while (&right).read(&mut byte).unwrap() > 0 {
                (&right).write_all(&byte).unwrap();
            }
        });
        pin(cpus[cpus.len() - 1]);
        for _ in (0..20 * ENOUGH).take_while(|_| !enough()) {
            (&left).write_all(b"x").unwrap();
            (&left).read_exact(&mut [0]).unwrap();
        }
        left.shutdown(Shutdown::Write).unwrap();
    });
    assert!(enough(), "{:?} {:?}", left.stats(), right.stats());

    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    listener.set_busy_poll(1_000_000).unwrap();
    let enough = || listener.stats().own_polls >= 50;
    let (asked, taken) = mpsc::sync_channel(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            pin(cpus[0]);
            while asked.send(()).is_ok() {
                drop(TcpStream::connect(&one, "10.0.0.2:80").unwrap());
            }
        });
        for () in taken.into_iter().take(1_000).take_while(|()| !enough()) {
            drop(listener.accept().unwrap());
        }
    });
    assert!(enough(), "{:?}", listener.stats());
}

/// Tests a new connection, whose data would be acknowledged at once, in rounds where the reader's own poll found the
/// data. In other rounds another thread was faster, or this one was descheduled until the acknowledgment was overdue.
#[test]
fn data_of_an_own_poll_is_acknowledged_by_the_answer_or_when_the_reader_waits_again() {
    let (one, two) = hosts();
    let mut alone = 0;
    for way in (0..200).map(|n| n % 4) {
        let (left, right) = streams(&one, &two);
        right.set_busy_poll(1_000_000).unwrap();
        let sent = || right.info().unwrap().segs_out;
        let before = sent();
        (&left).write_all(b"?").unwrap();
        // The last way does not wait.
        right.set_nonblocking(way == 3).unwrap();
        while (&right).read(&mut [0]).is_err() {}
        if right.stats().own_polls == 0 {
            continue;
        }
        match way {
            0 => {
                (&right).write_all(b"!").unwrap();
                alone += u32::from(sent() - before == 1);
                continue;
            }
            1 => {
                right.set_nonblocking(true).unwrap();
                assert_eq!((&right).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
            2 => {
                let events = Events::READABLE;
                let mut there = [PollFd { socket: &right, events, revents: events }];
                assert_eq!(poll(&mut there, Some(Duration::ZERO)).unwrap(), 0);
            }
            _ => {}
        }
        assert_eq!(sent() - before, 1, "way {way}");
    }
    assert!(alone > 0);
}

#[test]
fn data_of_an_own_poll_arrives_whole_in_reads_of_any_size() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    for socket in [&left, &right] {
        socket.set_busy_poll(1_000_000).unwrap();
    }
    let sizes = || (0..500).map(|n| n * 37 % 300 + 1);
    let text = pattern(0..sizes().sum());
    let got = thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = &text[..];
            for size in sizes() {
                (&left).write_all(rest.split_off(..size).unwrap()).unwrap();
                (&left).read_exact(&mut [0]).unwrap();
            }
        });
        let mut got: Vec<u8> = Vec::new();
        for (n, size) in sizes().enumerate() {
            let end = got.len() + size;
            while got.len() < end {
                let (mut head, mut tail) = (vec![0; n % 5], vec![0; n * 13 % 290 + 1]);
                assert!(n % 10 > 0 || right.peek(&mut tail).unwrap() > 0);
                let rooms = &mut [&mut head[..], &mut tail].map(IoSliceMut::new);
                let len = (&right).read_vectored(rooms).unwrap();
                got.extend(head.iter().chain(&tail).take(len));
            }
            (&right).write_all(b"!").unwrap();
        }
        got
    });
    assert!(got == text);
}

#[test]
fn what_another_socket_s_poll_delivers_is_not_counted_as_an_own_poll() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    let (poller, _far) = streams(&one, &two);
    poller.set_nonblocking(true).unwrap();
    poller.set_busy_poll(1).unwrap();
    let before = left.stats().own_polls;
    // The interrupt thread may be faster.
    for _ in 0..1_000 {
        (&right).write_all(b"x").unwrap();
        while (&poller).read(&mut [0]).is_ok() {}
        if left.stats().other_polls > 0 {
            break;
        }
    }
    assert!(left.stats().other_polls > 0, "{:?}", left.stats());
    assert_eq!(left.stats().own_polls, before);
}

#[test]
fn a_non_blocking_call_makes_one_pass() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    right.set_nonblocking(true).unwrap();
    right.set_busy_poll(1).unwrap();
    let passes = || {
        let stats = two.contexts().next().unwrap().stats();
        stats.bp_misses + stats.bp_yields
    };
    thread::sleep(Duration::from_millis(50));
    let before = passes();
    assert_eq!((&right).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(passes() - before, 1);
    drop(left);
}

#[test]
fn a_sender_that_never_waits_still_polls_its_queue() {
    let (one, two) = hosts();
    let (left, _right) = streams(&one, &two);
    left.set_send_buffer_size(1 << 20).unwrap();
    let looks = || {
        let stats = one.contexts().next().unwrap().stats();
        stats.bp_misses + stats.bp_yields + stats.bp_cleaned
    };
    let pour = || (0..8).for_each(|_| (&left).write_all(&[0; 16 * 1024]).unwrap());
    pour();
    assert_eq!(looks(), 0);
    left.set_busy_poll(1).unwrap();
    pour();
    assert!(looks() > 0);
}

#[test]
fn a_thousand_connections_come_and_go() {
    let (one, two) = hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming().take(1000) {
                let mut stream = stream.unwrap();
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                stream.write_all(&byte).unwrap();
            }
        });
        for n in 0..1000 {
            let mut stream = TcpStream::connect(&one, "10.0.0.2:80").unwrap();
            stream.write_all(&[n as u8]).unwrap();
            let mut answer = [0];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [n as u8]);
            assert_eq!(stream.read(&mut answer).unwrap(), 0, "the server closes first");
        }
    });
}

/// Both ends on one host: no packet reaches the wire, and no lock may be taken twice.
#[test]
fn a_host_talks_to_itself() {
    let (one, _two) = hosts();
    let listener = TcpListener::bind(&one, "10.0.0.1:80").unwrap();
    let mut client = TcpStream::connect(&one, "10.0.0.1:80").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for round in 0..100usize {
        client.write_all(&pattern(round..round + 2000)).unwrap();
        let mut got = vec![0; 2000];
        server.read_exact(&mut got).unwrap();
        assert!(got == pattern(round..round + 2000));
        server.write_all(&got[..1]).unwrap();
        client.read_exact(&mut got[..1]).unwrap();
    }
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

/// The sending application makes no call for five seconds, and one of its segments is lost meanwhile: acknowledgments
/// and the retransmission happen all the same.
#[test]
fn an_application_that_computes_recovers_from_a_loss_meanwhile() {
    let sent = Arc::new(AtomicU32::new(0));
    let count = sent.clone();
    let (one, two) = filtered(TcpConfig::default(), move |frame| {
        // The hundredth segment with data, once.
        tcp_payload(frame).is_empty() || count.fetch_add(1, Ordering::Relaxed) != 100
    });
    let (left, right) = streams(&one, &two);
    left.set_send_buffer_size(4 << 20).unwrap();
    right.set_recv_buffer_size(4 << 20).unwrap();
    let size = 2 << 20;
    (&left).write_all(&pattern(0..size)).unwrap();
    // Both applications compute, and make no call that polls.
    let give_up = Instant::now() + Duration::from_secs(20);
    while (right.unread(), left.unacknowledged()) != (size, 0) && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((right.unread(), left.unacknowledged()), (size, 0));
    let info = left.info().unwrap();
    assert!(info.total_retrans >= 1 && info.bytes_retrans < 100_000, "{info:?}");
    let mut got = vec![0; size];
    (&right).read_exact(&mut got).unwrap();
    assert!(got == pattern(0..size));
}

#[test]
fn a_host_ends_while_its_connections_are_in_use_elsewhere() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    drop(one);
    let (dropped, there) = (left, right);
    let waiting = thread::spawn(move || {
        there.set_read_timeout(SOON).unwrap();
        (&there).read(&mut [0]).map(drop).map_err(|error| error.kind())
    });
    thread::sleep(Duration::from_millis(20));
    drop(dropped);
    waiting.join().unwrap().unwrap();
}

/// connect(2) of a non-blocking socket while an earlier call goes on.
#[test]
fn a_second_connect_in_progress_is_ealready() {
    let (near, _silent) = cable::pair(cable::Config::default()).unwrap();
    let host = Host::builder().interface(near, "10.0.0.1/24").build().unwrap();
    let stream = TcpStream::new(&host);
    stream.set_nonblocking(true).unwrap();
    let to = "10.0.0.2:7".parse().unwrap();
    let errors = [(); 3].map(|()| stream.connect_to(to).unwrap_err().raw_os_error());
    assert_eq!(errors, [libc::EINPROGRESS, libc::EALREADY, libc::EALREADY].map(Some));
}
