//! `Epoll` on TCP sockets follows the rules of epoll(7), over the cable.

mod common;

use busypoll_stack::{
    Epoll, EpollEvent, EpollParams, Events, Host, Socket, TcpListener, TcpStream,
};
use common::{hosts, streams};
use std::{
    io::{Read, Write},
    net::Shutdown,
    thread,
    time::Duration,
};

const SOON: Option<Duration> = Some(Duration::from_secs(10));
/// Long enough to conclude that nothing comes.
const SHORT: Option<Duration> = Some(Duration::from_millis(30));
const IN: Events = Events::READABLE;
const OUT: Events = Events::WRITABLE;
const END: Events = Events(IN.0 | Events::READ_HANGUP.0);

/// The events of one wait: each member's number and events.
fn wait(epoll: &Epoll, timeout: Option<Duration>) -> Vec<(u64, Events)> {
    let mut events = Vec::new();
    epoll.wait(&mut events, 16, timeout).unwrap();
    events.iter().map(|event: &EpollEvent| (event.data, event.events)).collect()
}

fn watching(host: &Host, socket: &dyn Socket, events: Events) -> Epoll {
    let epoll = Epoll::new(host);
    epoll.add(socket, events, 7).unwrap();
    epoll
}

/// Fills the buffers towards a peer that does not read. Returns the number of bytes.
fn fill(mut stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    for _ in 0..20 {
        while let Ok(len) = stream.write(&[7; 1 << 16]) {
            sent += len;
        }
        thread::sleep(Duration::from_millis(5));
    }
    sent
}

fn read_all(mut stream: &TcpStream, bytes: usize) {
    stream.read_exact(&mut vec![0; bytes]).unwrap();
}

#[test]
fn level_triggered_reports_while_the_condition_holds() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    let epoll = watching(&two, &right, IN | Events::READ_HANGUP);
    assert_eq!(wait(&epoll, SHORT), []);
    (&left).write_all(b"ab").unwrap();
    for _ in 0..2 {
        assert_eq!(wait(&epoll, SOON), [(7, IN)]);
        read_all(&right, 1);
    }
    assert_eq!(wait(&epoll, SHORT), []);
    left.shutdown(Shutdown::Write).unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&epoll, SOON), [(7, END)]);
    }
    right.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, END | Events::HANGUP)]);
}

#[test]
fn edge_triggered_reports_new_data_only() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    let epoll = watching(&two, &right, IN | OUT | Events::EDGE);
    assert_eq!(wait(&epoll, SOON), [(7, OUT)], "the readiness when added");
    assert_eq!(wait(&epoll, SHORT), []);
    (&left).write_all(b"a").unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, IN | OUT)]);
    assert_eq!(wait(&epoll, SHORT), [], "unread, but reported");
    (&left).write_all(b"b").unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, IN | OUT)], "more data is a new event");
    read_all(&right, 2);
    (&right).write_all(b"c").unwrap();
    read_all(&left, 1);
    assert_eq!(wait(&epoll, SHORT), [], "unchanged room is no event");
    let sent = fill(&right);
    assert_eq!(wait(&epoll, SHORT), []);
    read_all(&left, sent);
    assert_eq!(wait(&epoll, SOON), [(7, OUT)], "room again");
}

#[test]
fn room_after_a_short_write_is_reported() {
    let (one, _two) = hosts();
    let listener = TcpListener::bind(&one, "127.0.0.1:0").unwrap();
    let left = TcpStream::connect(&one, listener.local_addr().unwrap()).unwrap();
    let right = listener.accept().unwrap().0;
    let epoll = watching(&one, &left, OUT | Events::EDGE);
    assert_eq!(wait(&epoll, SOON), [(7, OUT)]);
    left.set_nonblocking(true).unwrap();
    // epoll(7): a short write is as good as EAGAIN. Room that the peer's acknowledgments make during the call is
    // reported during the call.
    let sent = (&left).write(&vec![7; 64 << 20]).unwrap();
    assert!(sent < 64 << 20);
    wait(&epoll, SHORT);
    read_all(&right, sent);
    assert_eq!(wait(&epoll, SOON), [(7, OUT)]);
}

#[test]
fn one_shot_reports_once_until_modified() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    let epoll = watching(&two, &right, IN | Events::ONE_SHOT);
    (&left).write_all(b"a").unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, IN)]);
    (&left).write_all(b"b").unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    epoll.modify(&right, IN | Events::ONE_SHOT).unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, IN)]);
}

#[test]
fn a_reset_is_reported_without_interest() {
    let (one, two) = hosts();
    let (left, right) = streams(&one, &two);
    let epoll = watching(&two, &right, Events::default());
    left.set_linger(Some(Duration::ZERO)).unwrap();
    drop(left);
    assert_eq!(wait(&epoll, SOON), [(7, Events::ERROR | Events::HANGUP)]);
    assert!(right.take_error().unwrap().is_some());
    assert_eq!(wait(&epoll, SOON), [(7, Events::HANGUP)]);
    drop(right);
    assert_eq!(wait(&epoll, SHORT), [], "it is removed from the set");
}

#[test]
fn connect_and_accept_report_their_events() {
    let (one, two) = hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    listener.set_nonblocking(true).unwrap();
    let accepting = watching(&two, &listener, IN);
    assert_eq!(wait(&accepting, SHORT), []);
    let client = TcpStream::new(&one);
    client.set_nonblocking(true).unwrap();
    let connecting = watching(&one, &client, OUT);
    assert_eq!(wait(&connecting, SOON), [(7, OUT | Events::HANGUP)], "no connection yet");
    let error = client.connect_to("10.0.0.2:80".parse().unwrap()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
    while wait(&connecting, SOON) != [(7, OUT)] {}
    assert!(client.take_error().unwrap().is_none());
    for _ in 0..2 {
        assert_eq!(wait(&accepting, SOON), [(7, IN)]);
    }
    listener.accept().unwrap();
    assert_eq!(wait(&accepting, SHORT), []);
    let refused = TcpStream::new(&one);
    refused.set_nonblocking(true).unwrap();
    refused.connect_to("10.0.0.2:81".parse().unwrap()).unwrap_err();
    let connecting = watching(&one, &refused, OUT);
    let all = OUT | Events::ERROR | Events::HANGUP;
    while wait(&connecting, SOON) != [(7, all)] {}
    let error = refused.take_error().unwrap().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_shutdown_aborts_a_connect_in_progress() {
    let (one, two) = hosts();
    let _listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    let client = TcpStream::new(&one);
    client.set_nonblocking(true).unwrap();
    // No host answers ARP there.
    let connect = |to: &str| client.connect_to(to.parse().unwrap()).unwrap_err().raw_os_error();
    let all = IN | OUT | Events::READ_HANGUP;
    let off = OUT | Events::HANGUP;
    for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
        assert_eq!(connect("10.0.0.77:80"), Some(libc::EINPROGRESS));
        let epoll = watching(&one, &client, all);
        assert_eq!(wait(&epoll, SHORT), []);
        client.shutdown(how).unwrap();
        assert_eq!(wait(&epoll, SOON), [(7, off | Events::ERROR)]);
        let error = client.take_error().unwrap().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
        assert_eq!(wait(&epoll, SOON), [(7, off)]);
        let read = (&client).read(&mut [0; 1]).unwrap_err();
        assert_eq!(read.raw_os_error(), Some(libc::ENOTCONN));
        let again = client.shutdown(how).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::ENOTCONN));
        let end = if how == Shutdown::Write { off } else { off | END };
        assert_eq!(wait(&epoll, SOON), [(7, end)]);
        epoll.remove(&client).unwrap();
    }
    // A connect aborted without a waiter leaves no event, and the next begins at once.
    assert_eq!(connect("10.0.0.77:80"), Some(libc::EINPROGRESS));
    client.shutdown(Shutdown::Both).unwrap();
    assert_eq!(connect("10.0.0.2:80"), Some(libc::EINPROGRESS));
    let epoll = watching(&one, &client, all);
    while wait(&epoll, SOON) != [(7, OUT)] {}
    assert!(client.take_error().unwrap().is_none());
}

#[test]
fn an_event_loop_serves_many_connections_busy_polled_and_asleep() {
    let (one, two) = hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    listener.set_nonblocking(true).unwrap();
    for busy_poll_usecs in [0, 50] {
        let epoll = watching(&two, &listener, IN);
        epoll.set_params(EpollParams { busy_poll_usecs, ..Default::default() }).unwrap();
        thread::scope(|scope| {
            for client in 0..20u8 {
                let one = &one;
                scope.spawn(move || {
                    let mut stream = TcpStream::connect(one, "10.0.0.2:80").unwrap();
                    for round in 0..50u8 {
                        stream.write_all(&[client, round]).unwrap();
                        let mut answer = [0; 2];
                        stream.read_exact(&mut answer).unwrap();
                        assert_eq!(answer, [client, round]);
                    }
                });
            }
            let mut streams: Vec<Option<TcpStream>> = Vec::new();
            let mut over = 0;
            while over < 20 {
                for (member, _) in wait(&epoll, SOON) {
                    if member == 7 {
                        while let Ok((stream, _)) = listener.accept() {
                            stream.set_nonblocking(true).unwrap();
                            stream.set_nodelay(true).unwrap();
                            let number = 100 + streams.len() as u64;
                            epoll.add(&stream, IN | Events::EDGE, number).unwrap();
                            streams.push(Some(stream));
                        }
                        continue;
                    }
                    let slot = &mut streams[member as usize - 100];
                    let Some(mut stream) = slot.as_ref() else { continue };
                    let mut buffer = [0; 64];
                    loop {
                        match stream.read(&mut buffer) {
                            Ok(0) => {
                                *slot = None;
                                over += 1;
                                break;
                            }
                            Ok(len) => stream.write_all(&buffer[..len]).unwrap(),
                            Err(_) => break,
                        }
                    }
                }
            }
        });
    }
}
