//! Local ports, TIME_WAIT, and connections by the thousand.

use super::hosts::*;
use crate::inet::{
    Count, EPHEMERAL,
    tcp::{
        Config, ConnectOptions, Flow, ListenOptions, PortRef,
        connection::State,
        segment::{Flags, Options, Segment},
        seq::Seq,
        table::Entry,
        tuple::Tuple,
    },
};
use std::{
    collections::HashSet,
    io,
    sync::{Arc, Weak},
};

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn each_destination_can_use_every_ephemeral_port() {
    let mut net = Net::new();
    let mut flows = Vec::new();
    let mut connect = |to: &str| {
        let result = net.connect("10.0.0.1:0", to);
        net.hosts[A].sent();
        result.map(|flow| flows.push(flow))
    };
    let all = EPHEMERAL.len();
    for _ in 0..all {
        connect("10.0.0.2:80").unwrap();
    }
    assert_eq!(errno(connect("10.0.0.2:80")), Some(libc::EADDRNOTAVAIL));
    for _ in 0..100 {
        connect("10.0.0.2:81").unwrap();
    }
    let ports: HashSet<u16> = flows[..all].iter().map(|flow| flow.local().port()).collect();
    assert_eq!(ports.len(), all);
    // Hard to guess: the ports of one destination do not show those of another.
    let near = |a: &Flow, b: &Flow| a.local().port().abs_diff(b.local().port()) < 1000;
    assert!(!near(&flows[0], &flows[all]));
    drop(flows);
    net.advance(ms(10));
    assert_eq!(net.hosts[A].inet.tcp_connections(), 0);
    assert!(crate::sync::lock(&net.hosts[A].inet.tcp.claims).is_empty());
}

#[test]
fn a_named_port_is_not_shared() {
    let net = Net::new();
    let (plain, reuse) =
        (ConnectOptions::default(), ConnectOptions { reuse_address: true, ..Default::default() });
    let connect = |from: &str, to: &str, options: &ConnectOptions| {
        net.connect_with(A, from, to, options, Default::default())
    };
    let first = connect("10.0.0.1:4000", "10.0.0.2:80", &reuse).unwrap();
    assert_eq!(errno(connect("10.0.0.1:4000", "10.0.0.2:81", &plain)), Some(libc::EADDRINUSE));
    assert_eq!(errno(connect("10.0.0.1:4000", "10.0.0.2:80", &reuse)), Some(libc::EADDRNOTAVAIL));
    let _second = connect("10.0.0.1:4000", "10.0.0.2:81", &reuse).unwrap();
    drop(first);
    let _listener = net.listen(A, "10.0.0.1:5000", ListenOptions::default());
    assert_eq!(errno(connect("10.0.0.1:5000", "10.0.0.2:80", &reuse)), Some(libc::EADDRINUSE));
    assert_eq!(errno(connect("10.0.0.9:0", "10.0.0.2:80", &plain)), Some(libc::EADDRNOTAVAIL));
    for to in ["255.255.255.255:1", "10.0.0.255:1", "224.0.0.1:1"] {
        assert_eq!(errno(connect("10.0.0.1:0", to, &plain)), Some(libc::ENETUNREACH), "{to}");
    }
}

/// A connection whose TIME_WAIT is at A, with port 4000 there.
fn time_wait(net: &mut Net) -> (Sent, Sent) {
    let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    let options = ConnectOptions { reuse_address: true, ..Default::default() };
    let client =
        net.connect_with(A, "10.0.0.1:4000", "10.0.0.2:80", &options, Default::default()).unwrap();
    net.settle();
    let served = server.accept().unwrap();
    net.close(&client);
    served.close(&mut net.pass());
    let frames = net.hosts[B].sent();
    let fin = frames.iter().filter_map(|frame| Sent::read(frame)).next_back().unwrap();
    assert!(fin.is(Flags::FIN | Flags::ACK));
    net.receive_all(A, &frames);
    let ack = net.segments(A).pop().unwrap();
    net.inject(B, "10.0.0.1:4000", "10.0.0.2:80", &ack.header);
    assert_eq!(net.hosts.each_ref().map(|host| host.inet.tcp_connections()), [1, 0]);
    (fin, ack)
}

//= RFC 9293 3.10.7.4 test
//# The only thing that can arrive in this state is a retransmission of the remote FIN. Acknowledge it, and [...]
#[test]
fn time_wait_answers_old_segments_and_restarts() {
    let mut net = Net::new();
    let (fin, ack) = time_wait(&mut net);
    net.now = net.now + secs(40);
    // The peer has not received our acknowledgment.
    net.inject(A, "10.0.0.2:80", "10.0.0.1:4000", &fin.header);
    let again = net.segments(A).pop().unwrap();
    assert_eq!((again.header.seq, again.header.ack), (ack.header.seq, ack.header.ack));
    net.advance(secs(59));
    assert_eq!(net.hosts[A].inet.tcp_connections(), 1);
    net.advance(secs(2));
    assert_eq!(net.hosts[A].inet.tcp_connections(), 0);
}

#[test]
fn a_reset_ends_time_wait_unless_tcp_rfc1337_is_set() {
    for tcp_rfc1337 in [false, true] {
        let mut net = Net::with(Config { tcp_rfc1337, ..Config::default() });
        let (fin, _) = time_wait(&mut net);
        let seq = fin.header.seq + 1;
        let reset = Segment { seq, flags: Flags::RST, ..Segment::default() };
        net.inject(A, "10.0.0.2:80", "10.0.0.1:4000", &Segment { seq: seq + 1, ..reset.clone() });
        assert_eq!(net.hosts[A].inet.tcp_connections(), 1);
        net.inject(A, "10.0.0.2:80", "10.0.0.1:4000", &reset);
        assert_eq!(net.hosts[A].inet.tcp_connections(), usize::from(tcp_rfc1337));
    }
}

//= RFC 9293 3.6.1 test
//# However, it MAY accept a new SYN from the remote TCP endpoint to reopen the connection directly from [...]
#[test]
fn a_new_syn_replaces_time_wait_and_an_old_one_does_not() {
    let mut net = Net::new();
    let (fin, ack) = time_wait(&mut net);
    let server = net.listen(A, "10.0.0.1:4000", reusing());
    let (value, _) = fin.header.options.timestamps.unwrap();
    let syn = |seq, stamp: u32| {
        let options =
            Options { timestamps: Some((stamp, 0)), mss: Some(1460), ..Options::default() };
        Segment { seq, flags: Flags::SYN, options, ..Segment::default() }
    };
    // Older by both: an old duplicate, which gets our present ACK.
    let stale = syn(fin.header.seq - 10, value);
    net.inject(A, "10.0.0.2:80", "10.0.0.1:4000", &stale);
    let answers = net.segments(A);
    assert!(answers.iter().all(|sent| sent.is(Flags::ACK)), "{answers:?}");
    // Newer by its timestamp, although its number is less.
    net.inject(A, "10.0.0.2:80", "10.0.0.1:4000", &syn(fin.header.seq - 10, value + 1));
    let answer = net.segments(A).pop().unwrap();
    assert!(answer.is(Flags::SYN | Flags::ACK));
    assert!(answer.header.seq.after(ack.header.seq + 65_535), "beyond the old connection's window");
    let third = Segment {
        seq: fin.header.seq - 9,
        ack: answer.header.seq + 1,
        flags: Flags::ACK,
        options: Options {
            timestamps: Some((value + 2, answer.header.options.timestamps.unwrap().0)),
            ..Options::default()
        },
        ..Segment::default()
    };
    net.inject(A, "10.0.0.2:80", "10.0.0.1:4000", &third);
    assert_eq!(server.accept().unwrap().state(), State::Established);
}

fn reusing() -> ListenOptions {
    ListenOptions { reuse_address: true, ..ListenOptions::default() }
}

/// Reuses the 4-tuple of TIME_WAIT for a connection whose port is chosen.
fn reuse_4_tuple(net: &Net) -> Option<Seq> {
    let inet = &net.hosts[A].inet;
    let tuple = Tuple::new("10.0.0.1:4000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    match inet.tcp.table.find(&tuple, Entry::clone) {
        Some(Entry::TimeWait(time_wait)) => time_wait.try_reuse(inet, false, net.now),
        _ => panic!("no TIME_WAIT"),
    }
}

//= RFC 9293 3.6.1 test
//# This algorithm for reducing TIME-WAIT is a Best Current Practice that SHOULD be implemented since Timestamp [...]
#[test]
fn a_port_in_time_wait_is_chosen_once_timestamps_have_advanced() {
    let mut net = Net::new();
    let (_, ack) = time_wait(&mut net);
    assert_eq!(reuse_4_tuple(&net), None);
    net.now = net.now + ms(1100);
    assert!(reuse_4_tuple(&net).unwrap().after(ack.header.seq + 65_535));
    assert_eq!(net.hosts[A].inet.tcp_connections(), 0);
    assert_eq!(net.hosts[A].count(Count::TcpExtTWRecycled), 1);
    let mut net = Net::with(Config { tcp_tw_reuse: false, ..Config::default() });
    time_wait(&mut net);
    net.now = net.now + secs(30);
    assert_eq!(reuse_4_tuple(&net), None);
}

#[test]
fn a_named_port_is_reused_at_once_after_both_ends_have_closed() {
    for half in [false, true] {
        let mut net = Net::new();
        let options = ConnectOptions { reuse_address: true, ..Default::default() };
        let connect = |net: &Net| {
            net.connect_with(A, "10.0.0.1:4000", "10.0.0.2:80", &options, Default::default())
        };
        let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
        let first = connect(&net).unwrap();
        net.settle();
        let served = server.accept().unwrap();
        net.lose = Box::new(|from, _| from == B);
        net.close(&first);
        drop(first);
        assert_eq!(errno(connect(&net)), Some(libc::EADDRNOTAVAIL), "FIN_WAIT_1");
        net.lose = Box::new(|_, _| false);
        net.advance(secs(1));
        if !half {
            net.close(&served);
        }
        // FIN_WAIT_2: the peer still has the connection and answers the SYN with an ACK; our RST then ends that
        // connection.
        let second = connect(&net).unwrap();
        assert_eq!(second.state(), State::SynSent);
        net.advance(secs(2));
        assert_eq!(second.state(), State::Established, "half {half}");
        net.send(&second, b"new");
        assert_eq!(net.recv(&server.accept().unwrap()), b"new");
    }
}

#[test]
fn time_wait_entries_are_bounded() {
    let mut net = Net::with(Config { tcp_max_tw_buckets: 3, ..Config::default() });
    let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    for _ in 0..5 {
        let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
        net.settle();
        let served = server.accept().unwrap();
        net.close(&client);
        net.close(&served);
    }
    assert_eq!(net.hosts[A].inet.tcp_connections(), 3);
    assert_eq!(net.hosts[A].count(Count::TcpExtTCPTimeWaitOverflow), 2);
    net.advance(secs(61));
    assert_eq!(net.hosts[A].inet.tcp_connections(), 0);
}

/// Each entry keeps a descriptor that the program may need.
#[test]
fn time_wait_entries_that_keep_a_port_are_bounded() {
    let mut net = Net::with(Config { tcp_max_tw_ports: 2, ..Config::default() });
    let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    let over = |net: &mut Net, port_ref: PortRef| {
        let (from, to) = ("10.0.0.1:0".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let (options, endpoint) = (ConnectOptions::default(), Arc::new(TestEndpoint::default()));
        let inet = &net.hosts[A].inet;
        let client =
            inet.tcp_connect(from, to, &options, Some(port_ref), endpoint, &mut net.pass());
        let client = client.unwrap();
        client.send_syn(&mut net.pass());
        net.settle();
        net.close(&client);
        net.close(&server.accept().unwrap());
    };
    let shared = Arc::new(Held);
    for _ in 0..2 {
        let mut port_refs = Vec::new();
        for _ in 0..5 {
            let port_ref = Arc::new(Held);
            port_refs.push(Arc::downgrade(&port_ref));
            over(&mut net, port_ref);
            over(&mut net, shared.clone());
        }
        let kept = port_refs.iter().map(Weak::strong_count).collect::<Vec<_>>();
        assert_eq!(kept, [1, 1, 0, 0, 0]);
        assert_eq!(Arc::strong_count(&shared), 6, "a shared reference needs no entry of its own");
        net.advance(secs(61));
        assert!(port_refs.iter().all(|port_ref| port_ref.strong_count() == 0));
    }
    assert_eq!(net.hosts[A].count(Count::TcpExtTCPTimeWaitOverflow), 6);
}

#[test]
fn ten_thousand_connections() {
    let mut net = Net::new();
    let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    let mut pairs = Vec::new();
    for _ in 0..10_000 {
        let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
        net.settle();
        pairs.push((client, server.accept().unwrap()));
    }
    assert_eq!(net.hosts[B].inet.tcp_connections(), 10_000);
    for (client, served) in pairs.iter().step_by(97) {
        net.send(client, b"one");
        assert_eq!(net.recv(served), b"one");
    }
    // An idle connection needs no timer.
    net.advance(secs(5));
    assert_eq!(net.hosts.each_ref().map(|host| host.inet.tcp.timers()), [0, 0]);
    for (client, served) in pairs.iter().step_by(97) {
        net.send(served, b"two");
        assert_eq!(net.recv(client), b"two");
    }
    drop(pairs);
    net.advance(secs(62));
    assert_eq!(net.hosts.each_ref().map(|host| host.inet.tcp_connections()), [0, 0]);
}
