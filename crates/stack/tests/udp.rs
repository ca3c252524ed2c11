//! UDP sockets over the cable follow the rules that an application relies on.

mod common;

use busypoll_stack::{
    Host, Incoming, Outgoing, UdpSocket,
    nic::{Coalesce, cable},
    options::{
        IP_TTL, IPPROTO_IP, SO_ACCEPTCONN, SO_BROADCAST, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET,
        SO_DOMAIN, SO_ERROR, SO_INCOMING_NAPI_ID, SO_PREFER_BUSY_POLL, SO_PROTOCOL, SO_RCVBUF,
        SO_SNDBUF, SO_TYPE, SOL_SOCKET,
    },
    signal,
};
use common::{cpus, hosts, pin, sockets};
use std::{
    io::ErrorKind,
    net::{Shutdown, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

#[test]
fn a_datagram_and_its_answer_arrive() {
    let (one, two) = hosts();
    let server = UdpSocket::bind(&two, "0.0.0.0:7").unwrap();
    let client = UdpSocket::bind(&one, "0.0.0.0:0").unwrap();
    client.send_to(b"hello", "10.0.0.2:7").unwrap();
    let mut buffer = [0; 64];
    let (len, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from.ip().to_string().as_str()), (&b"hello"[..], "10.0.0.1"));
    server.send_to(b"world!", from).unwrap();
    assert_eq!(client.recv_from(&mut buffer).unwrap(), (6, "10.0.0.2:7".parse().unwrap()));
    assert_eq!(&buffer[..6], b"world!");
}

#[test]
fn every_size_arrives_whole_from_empty_to_the_largest() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let mut buffer = vec![0; 65_536];
    for size in [0, 1, 17, 18, 1471, 1472, 1473, 8_000, 32_768, 65_507] {
        let payload: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
        left.send(&payload).unwrap();
        let len = right.recv(&mut buffer).unwrap();
        assert!(buffer[..len] == payload[..], "{size} bytes");
    }
    let error = left.send(&vec![0; 65_508]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn a_busy_polling_receive_finds_its_datagrams_itself() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let mut buffer = [0; 16];
    // Without a napi id no queue is polled: the first datagram comes by the interrupt.
    left.send(b"first").unwrap();
    right.recv(&mut buffer).unwrap();
    let napi = right.incoming_napi_id().expect("known from the first datagram");
    assert_eq!(right.getsockopt(SOL_SOCKET, SO_INCOMING_NAPI_ID).unwrap(), napi.get() as i32);
    right.set_busy_poll(1_000_000).unwrap();
    let rounds = 100;
    let [first, second, ..] = cpus()[..] else {
        return busypoll_lab::needs::skipped(module_path!(), "two CPUs");
    };
    pin(first);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(second);
            let mut buffer = [0; 16];
            left.set_busy_poll(1_000_000).unwrap();
            for _ in 0..rounds {
                left.send(b"ping").unwrap();
                left.recv(&mut buffer).unwrap();
            }
        });
        for _ in 0..rounds {
            right.recv(&mut buffer).unwrap();
            right.send(b"pong").unwrap();
        }
    });
    let stats = right.stats();
    assert!(stats.own_polls > rounds / 2, "{stats:?}");
    let context = two.contexts().next().unwrap().stats();
    assert!(context.bp_cleaned > rounds / 2, "{context:?}");
}

/// Two spinners on one CPU would alternate once per time slice: seconds instead of milliseconds.
#[test]
fn one_of_two_spinners_on_one_cpu_sleeps_instead() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    // A socket that has received knows which queue to poll.
    right.send(b"I am").unwrap();
    left.recv(&mut [0; 8]).unwrap();
    // Threads started from here on share the CPU.
    pin(cpus()[0]);
    let crowded =
        |host: &Host| host.contexts().map(|context| context.stats().bp_crowded).sum::<u64>();
    for (socket, timeout) in [(&left, 60_000), (&right, 10)] {
        socket.set_busy_poll(60_000_000).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(timeout))).unwrap();
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| left.recv(&mut [0; 8]));
        while crowded(&one) + crowded(&two) == 0 && !waiting.is_finished() {
            assert_eq!(right.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        right.send(b"pong").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 4, "no spinner slept");
    });
}

#[test]
fn a_non_blocking_receive_makes_one_pass() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let mut buffer = [0; 16];
    left.send(b"x").unwrap();
    right.recv(&mut buffer).unwrap();
    right.set_nonblocking(true).unwrap();
    right.set_busy_poll(50).unwrap();
    let before = two.contexts().next().unwrap().stats();
    assert_eq!(right.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    let after = two.contexts().next().unwrap().stats();
    let passes = |stats: &busypoll_stack::napi::Stats| stats.bp_misses + stats.bp_yields;
    assert_eq!(passes(&after) - passes(&before), 1);
}

#[test]
fn a_computing_application_loses_no_datagram_that_fits_its_buffer() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    right.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20).unwrap();
    // More datagrams than the ring holds, without a call by the receiver: the interrupt thread must take them.
    let count = 2_000u32;
    for n in 0..count {
        left.send(&n.to_be_bytes()).unwrap();
    }
    let mut buffer = [0; 8];
    for n in 0..count {
        assert_eq!(right.recv(&mut buffer).unwrap(), 4);
        assert_eq!(buffer[..4], n.to_be_bytes());
    }
    assert_eq!(right.stats().drops, 0);
}

#[test]
fn datagrams_beyond_the_receive_buffer_are_dropped_and_counted() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    right.setsockopt(SOL_SOCKET, SO_RCVBUF, 10 * (64 + 100)).unwrap();
    for _ in 0..50 {
        left.send(&[0; 100]).unwrap();
    }
    let settled = Instant::now() + Duration::from_secs(10);
    while right.stats().drops + (right.waiting().0 as u64) < 50 {
        assert!(Instant::now() < settled, "{:?} {:?}", right.stats(), right.waiting());
        thread::yield_now();
    }
    assert_eq!((right.waiting(), right.stats().drops), ((10, 100), 40));
}

#[test]
fn options_are_set_by_level_and_name() {
    let (one, _two) = hosts();
    one.set_busy_read(33);
    let socket = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    assert_eq!(socket.getsockopt(SOL_SOCKET, SO_BUSY_POLL).unwrap(), 33);
    for (name, value) in [
        (SO_BUSY_POLL, 50),
        (SO_PREFER_BUSY_POLL, 1),
        (SO_BUSY_POLL_BUDGET, 16),
        (SO_RCVBUF, 4096),
        (SO_SNDBUF, 100),
    ] {
        socket.setsockopt(SOL_SOCKET, name, value).unwrap();
        assert_eq!(socket.getsockopt(SOL_SOCKET, name).unwrap(), value);
    }
    let refused = |name, value| {
        socket.setsockopt(SOL_SOCKET, name, value).unwrap_err().raw_os_error().unwrap()
    };
    assert_eq!(refused(SO_BUSY_POLL, -1), libc::EINVAL);
    assert_eq!(refused(SO_BUSY_POLL_BUDGET, 65_536), libc::EINVAL);
    assert_eq!(refused(SO_BUSY_POLL_BUDGET, 0), libc::EINVAL);
    assert_eq!(refused(SO_INCOMING_NAPI_ID, 1), libc::ENOPROTOOPT);
    assert_eq!(refused(9999, 1), libc::ENOPROTOOPT);
    assert_eq!(socket.getsockopt(SOL_SOCKET, SO_INCOMING_NAPI_ID).unwrap(), 0, "no packet yet");
    let error = socket.send_to(&[0; 101], "10.0.0.2:9").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn typed_methods_set_the_same_options() {
    let (one, _two) = hosts();
    let socket = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    let named = |level, name| socket.getsockopt(level, name).unwrap();
    socket.set_prefer_busy_poll(true).unwrap();
    socket.set_busy_poll_budget(12).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.set_ttl(3).unwrap();
    assert_eq!(named(SOL_SOCKET, SO_PREFER_BUSY_POLL), 1);
    assert_eq!(named(SOL_SOCKET, SO_BUSY_POLL_BUDGET), 12);
    assert_eq!(named(SOL_SOCKET, SO_BROADCAST), 1);
    assert_eq!((named(IPPROTO_IP, IP_TTL), socket.ttl().unwrap()), (3, 3));
    assert!(socket.prefer_busy_poll() && socket.broadcast().unwrap());
    assert_eq!(socket.set_ttl(256).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert_eq!(named(SOL_SOCKET, SO_DOMAIN), libc::AF_INET);
    assert_eq!(named(SOL_SOCKET, SO_TYPE), libc::SOCK_DGRAM);
    assert_eq!(named(SOL_SOCKET, SO_PROTOCOL), libc::IPPROTO_UDP);
    assert_eq!(named(SOL_SOCKET, SO_ACCEPTCONN), 0);
    assert_eq!((socket.read_timeout().unwrap(), socket.write_timeout().unwrap()), (None, None));
    socket.set_read_timeout(Some(Duration::from_micros(7))).unwrap();
    socket.set_write_timeout(Some(Duration::from_secs(8))).unwrap();
    assert_eq!(socket.read_timeout().unwrap(), Some(Duration::from_micros(7)));
    assert_eq!(socket.write_timeout().unwrap(), Some(Duration::from_secs(8)));
    assert!(!socket.nonblocking());
    socket.set_nonblocking(true).unwrap();
    assert!(socket.nonblocking());
}

#[test]
fn a_changed_option_applies_to_a_cached_path() {
    let (one, _two) = hosts();
    let socket = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    let broadcast = "10.0.0.255:9";
    let refused = || socket.send_to(b"x", broadcast).unwrap_err().raw_os_error();
    assert_eq!(refused(), Some(libc::EACCES));
    socket.set_broadcast(true).unwrap();
    socket.send_to(b"x", broadcast).unwrap();
    socket.set_broadcast(false).unwrap();
    assert_eq!(refused(), Some(libc::EACCES));
}

#[test]
fn a_clone_is_the_same_socket_and_the_last_one_closes_it() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let port = right.local_addr().unwrap();
    let clone = right.try_clone().unwrap();
    clone.set_nonblocking(true).unwrap();
    assert!(right.nonblocking(), "as file descriptors share O_NONBLOCK");
    clone.set_nonblocking(false).unwrap();
    drop(right);
    left.send(b"still here").unwrap();
    let mut buffer = [0; 16];
    assert_eq!(clone.peek(&mut buffer).unwrap(), 10);
    assert_eq!(clone.recv(&mut buffer).unwrap(), 10);
    assert!(UdpSocket::bind(&two, port).is_err());
    drop(clone);
    UdpSocket::bind(&two, port).unwrap();
}

#[test]
fn a_port_can_be_taken_once_and_is_free_again_after() {
    let (one, _two) = hosts();
    let first = UdpSocket::bind(&one, "10.0.0.1:5000").unwrap();
    let taken = UdpSocket::bind(&one, "10.0.0.1:5000").unwrap_err();
    assert_eq!(taken.raw_os_error(), Some(libc::EADDRINUSE));
    let wildcard = UdpSocket::bind(&one, "0.0.0.0:5000").unwrap_err();
    assert_eq!(wildcard.raw_os_error(), Some(libc::EADDRINUSE));
    drop(first);
    UdpSocket::bind(&one, "0.0.0.0:5000").unwrap();
    let foreign = UdpSocket::bind(&one, "10.9.9.9:5000").unwrap_err();
    assert_eq!(foreign.raw_os_error(), Some(libc::EADDRNOTAVAIL));
}

#[test]
fn a_refused_datagram_is_reported_to_a_connected_socket() {
    let (one, _two) = hosts();
    let client = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    client.connect("10.0.0.2:9").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.send(b"anyone?").unwrap();
    let error = client.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(client.getsockopt(SOL_SOCKET, SO_ERROR).unwrap(), 0, "reported once");
}

#[test]
fn a_neighbour_that_does_not_answer_is_no_error() {
    let (one, _two) = hosts();
    let client = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    client.connect("10.0.0.77:9").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client.send(b"anyone?").unwrap();
    // Linux does not report it to a socket without IP_RECVERR.
    assert_eq!(client.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(one.counters().contains(&("NeighFailed", 1)), "{:?}", one.counters());
    client.send(b"anyone?").unwrap();
}

#[test]
fn a_connected_socket_receives_only_from_its_peer() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let stranger = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    stranger.send_to(b"stranger", right.local_addr().unwrap()).unwrap();
    left.send(b"peer").unwrap();
    let mut buffer = [0; 16];
    let len = right.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"peer");
    right.disconnect();
    stranger.send_to(b"stranger", right.local_addr().unwrap()).unwrap();
    let len = right.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"stranger");
}

#[test]
fn timeouts_shutdown_and_close_end_a_wait() {
    let (one, two) = hosts();
    let (_left, right) = sockets(&one, &two);
    for busy_poll in [0, 200] {
        right.set_busy_poll(busy_poll).unwrap();
        right.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert_eq!(right.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    right.set_read_timeout(None).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| right.recv(&mut [0; 8]));
        thread::sleep(Duration::from_millis(20));
        right.shutdown(Shutdown::Read).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 0);
    });
    right.shutdown(Shutdown::Write).unwrap();
    assert_eq!(right.send(b"x").unwrap_err().raw_os_error(), Some(libc::EPIPE));
    assert_eq!(right.recv(&mut [0; 8]).unwrap(), 0, "and returns at once from then on");
}

/// As in Linux: a socket shut down for reading still receives, but a receiver does not wait any more.
#[test]
fn datagrams_after_a_read_shutdown_are_received_and_not_counted_as_drops() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    right.shutdown(Shutdown::Read).unwrap();
    left.send(b"late").unwrap();
    let of = |name| two.counters().iter().find(|(known, _)| *known == name).unwrap().1;
    let deadline = Instant::now() + Duration::from_secs(10);
    while right.waiting().0 == 0 {
        assert!(Instant::now() < deadline, "{:?}", right.stats());
        thread::yield_now();
    }
    assert_eq!(of("UdpInErrors"), 0);
    assert_eq!(right.recv(&mut [0; 8]).unwrap(), 4);
    assert_eq!(right.recv(&mut [0; 8]).unwrap(), 0);
}

/// A busy loop cannot see that a handler ran. A handler that calls `note_deferred_signal` ends it, and the sleep
/// after it.
#[test]
fn a_signals_handler_can_end_a_busy_poll() {
    extern "C" fn handler(_: libc::c_int) {
        signal::note_deferred_signal();
    }
    // SAFETY: all zeros is a valid sigaction, and the handler does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    left.send(b"x").unwrap();
    right.recv(&mut [0; 8]).unwrap();
    for busy_poll in [600_000_000, 0] {
        right.set_busy_poll(busy_poll).unwrap();
        thread::scope(|scope| {
            let (sender, started) = mpsc::channel();
            let receiver = scope.spawn(|| {
                // SAFETY: a plain call.
                sender.send(unsafe { libc::pthread_self() }).unwrap();
                drop(sender);
                let error = right.recv(&mut [0; 8]).unwrap_err();
                signal::clear_deferred();
                error.kind()
            });
            let thread = started.recv().unwrap();
            thread::sleep(Duration::from_millis(20));
            // SAFETY: the thread has not been joined.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
            assert_eq!(receiver.join().unwrap(), ErrorKind::Interrupted);
        });
    }
}

#[test]
fn batches_keep_order_and_the_senders_address() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let payloads: Vec<[u8; 2]> = (0..100u16).map(u16::to_be_bytes).collect();
    let batch: Vec<_> = payloads.iter().map(|p| Outgoing { payload: p, to: None }).collect();
    assert_eq!(left.send_many(&batch).unwrap(), 100);
    let mut got = Vec::new();
    while got.len() < 100 {
        let mut rooms = [[0u8; 16]; 32];
        let mut incoming: Vec<_> = rooms.iter_mut().map(|room| Incoming::new(room)).collect();
        let count = right.recv_many(&mut incoming).unwrap();
        for one in &incoming[..count] {
            assert_eq!(one.from, Some(left.local_addr().unwrap()));
            assert!(one.napi.is_some());
            got.push([one.buffer[0], one.buffer[1]]);
        }
    }
    assert_eq!(got, payloads);
}

#[test]
fn a_burst_larger_than_the_ring_waits_for_room() {
    let (a, b) = cable::pair(cable::Config { ring: 8, ..cable::Config::default() }).unwrap();
    let one = Host::builder().interface(a, "10.0.0.1/24").build().unwrap();
    let two = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
    let (left, right) = sockets(&one, &two);
    right.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (0..1000u32).for_each(|n| assert!(left.send(&n.to_be_bytes()).is_ok())));
        let mut buffer = [0; 4];
        for n in 0..1000u32 {
            right.recv(&mut buffer).unwrap();
            assert_eq!(buffer, n.to_be_bytes());
        }
    });
}

/// A moderated interrupt may fire together with a wake-up: neither may be lost.
#[test]
fn a_moderated_line_loses_no_wake_up() {
    for coalesce in [
        Coalesce { rx_usecs: 10, ..Coalesce::default() },
        Coalesce { adaptive: true, ..Coalesce::default() },
    ] {
        let (a, b) = cable::pair(cable::Config { coalesce, ..cable::Config::default() }).unwrap();
        let one = Host::builder().interface(a, "10.0.0.1/24").build().unwrap();
        let two = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
        let (left, right) = sockets(&one, &two);
        for socket in [&left, &right] {
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Threads that hog the CPUs, so that wake-ups come late and together.
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            scope.spawn(|| {
                let mut buffer = [0; 8];
                for _ in 0..2_000 {
                    right.recv(&mut buffer).expect("a request");
                    right.send(b"pong").unwrap();
                }
            });
            let mut buffer = [0; 8];
            for _ in 0..2_000 {
                left.send(b"ping").unwrap();
                left.recv(&mut buffer).expect("an answer");
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn many_threads_share_a_host_a_queue_and_a_socket() {
    let (one, two) = hosts();
    let server = UdpSocket::bind(&two, "10.0.0.2:7").unwrap();
    let shared = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    shared.connect("10.0.0.2:7").unwrap();
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        for echo in 0..3 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut buffer = [0; 64];
                if echo == 0 {
                    server.set_busy_poll(20).unwrap();
                }
                server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = server.recv_from(&mut buffer) {
                        server.send_to(&buffer[..len], from).unwrap();
                    }
                }
            });
        }
        let own: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let socket = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
                    socket.connect("10.0.0.2:7").unwrap();
                    for n in 0..2_000u32 {
                        socket.send(&n.to_be_bytes()).unwrap();
                        let mut buffer = [0; 4];
                        socket.recv(&mut buffer).unwrap();
                        assert_eq!(buffer, n.to_be_bytes());
                    }
                })
            })
            .collect();
        let together: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        shared.send(b"together").unwrap();
                        let mut buffer = [0; 8];
                        assert_eq!(shared.recv(&mut buffer).unwrap(), 8);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for thread in own.into_iter().chain(together) {
            thread.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(answered.into_inner(), 2_000);
}

#[test]
fn a_host_ends_while_its_sockets_are_in_use_elsewhere() {
    for _ in 0..20 {
        let (one, two) = hosts();
        let (left, right) = sockets(&one, &two);
        let right = Arc::new(right);
        let waiting = {
            let right = right.clone();
            thread::spawn(move || right.recv(&mut [0; 8]))
        };
        drop((one, two));
        left.send(b"still").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 5);
    }
}

#[test]
fn a_socket_on_the_same_host_is_reached_without_the_wire() {
    let (one, _two) = hosts();
    let here = UdpSocket::bind(&one, "10.0.0.1:5000").unwrap();
    let there = UdpSocket::bind(&one, "10.0.0.1:5001").unwrap();
    there.send_to(b"next door", "10.0.0.1:5000").unwrap();
    let mut buffer = [0; 16];
    let (len, from) = here.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..len], from),
        (&b"next door"[..], SocketAddr::from(([10, 0, 0, 1], 5001)))
    );
    assert_eq!(here.stats().kernel, 1);
}
