//! The life of a connection, from the first SYN to the end of TIME_WAIT.

use super::hosts::*;
use crate::{
    inet::{
        Count,
        tcp::{
            Config, ListenOptions, Ready,
            connection::State,
            segment::{Flags, Segment},
            seq::Seq,
        },
    },
    sync::lock,
};
use std::{
    io::{IoSlice, IoSliceMut},
    net::Shutdown,
    sync::Arc,
};

/// The peer may answer, and another thread learn of it, before the caller has stored the flow at its socket.
#[test]
fn a_flow_is_made_before_its_syn_leaves() {
    let net = Net::new();
    let (from, to) = ("0.0.0.0:0".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
    let (options, endpoint) = (Default::default(), Arc::new(TestEndpoint::default()));
    let inet = &net.hosts[A].inet;
    let flow = inet.tcp_connect(from, to, &options, None, endpoint, &mut net.pass()).unwrap();
    assert_eq!(net.hosts[A].sent().len(), 0);
    flow.send_syn(&mut net.pass());
    assert_eq!(net.hosts[A].sent().len(), 1);
}

#[test]
fn connect_accept_echo_close() {
    let mut net = Net::new();
    let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    let endpoint = Arc::new(TestEndpoint::default());
    let client = net
        .connect_with(A, "0.0.0.0:0", "10.0.0.2:80", &Default::default(), endpoint.clone())
        .unwrap();
    assert_eq!(client.local().ip().to_string(), "10.0.0.1");
    assert!(!client.ready().any(Ready::WRITABLE | Ready::READABLE));
    assert_eq!(server.queued(), 0);
    net.settle();
    assert_eq!(*endpoint.ready.lock().unwrap(), Ready::WRITABLE);
    assert_eq!(server.queued(), 1);
    let served = server.accept().unwrap();
    assert_eq!((served.local(), served.remote()), (client.remote(), client.local()));
    assert!(server.accept().is_none());

    net.send(&client, b"ping");
    assert_eq!(net.recv(&served), b"ping");
    net.send(&served, b"pong");
    assert!(endpoint.ready.lock().unwrap().has(Ready::READABLE));
    assert_eq!(net.recv(&client), b"pong");

    net.close(&client);
    assert!(served.ready().has(Ready::READABLE | Ready::READ_CLOSED));
    assert_eq!(net.recv(&served), b"");
    net.close(&served);
    drop((client, served));
    assert_eq!(net.hosts.each_ref().map(|host| host.inet.tcp_connections()), [1, 0]);
    net.advance(secs(61));
    drop(server);
    for host in &net.hosts {
        assert_eq!(host.inet.tcp_connections(), 0);
        assert!(lock(&host.inet.tcp.claims).is_empty());
        assert_eq!(host.inet.tcp.timers(), 0);
    }
    assert_eq!(net.hosts[A].count(Count::TcpActiveOpens), 1);
    assert_eq!(net.hosts[B].count(Count::TcpPassiveOpens), 1);
    assert_eq!(net.hosts[A].count(Count::TcpExtTW), 1);
}

#[test]
fn time_waits_that_begin_at_about_the_same_time_end_together() {
    // Each end costs a wake-up; also if the last acknowledgment was lost, and TIME_WAIT restarted.
    for lost in [false, true] {
        let mut net = Net::new();
        let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
        let mut joined = Vec::new();
        for _ in 0..20 {
            let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
            net.settle();
            joined.push((client, server.accept().unwrap()));
        }
        for (client, served) in &joined {
            net.advance(ms(5));
            net.close(client);
            net.lose = Box::new(move |from, _| lost && from == A);
            net.close(served);
            net.lose = Box::new(|_, _| false);
        }
        let over = |net: &Net| net.hosts[A].count(Count::TcpExtTW);
        net.advance(secs(59));
        assert_eq!(over(&net), 0);
        let mut ends = 0;
        for _ in 0..800 {
            let before = over(&net);
            net.advance(ms(5));
            ends += u64::from(over(&net) > before);
        }
        assert_eq!(over(&net), 20);
        assert!(ends <= 2, "lost {lost}: at {ends} times");
    }
}

#[test]
fn data_sent_before_close_still_arrives() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let data: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    let mut left = &data[..];
    let mut got = Vec::new();
    while !left.is_empty() {
        let sent = client.send(&[IoSlice::new(left)], false, &mut net.pass());
        left = &left[sent.unwrap_or(0)..];
        if left.is_empty() {
            client.close(&mut net.pass());
        }
        net.advance(ms(1));
        got.extend(net.recv(&served));
    }
    drop(client);
    net.advance(secs(1));
    got.extend(net.recv(&served));
    assert!(got == data);
    assert!(served.ready().has(Ready::READ_CLOSED));
}

#[test]
fn a_flow_dropped_without_a_call_is_closed_by_the_timer_wheel() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    drop(client);
    net.advance(ms(1));
    assert!(served.ready().has(Ready::READ_CLOSED));
    assert_eq!(served.state(), State::CloseWait);
}

#[test]
fn one_more_than_tcp_max_orphans_is_reset() {
    let mut net = Net::with(Config { tcp_max_orphans: 1, ..Config::default() });
    let (first, _served, server) = net.joined();
    let second = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
    net.settle();
    let other = server.accept().unwrap();
    net.lose = Box::new(|from, _| from == B);
    for flow in [&first, &second] {
        net.send(flow, b"never acknowledged");
        net.close(flow);
    }
    assert_eq!((first.state(), second.state()), (State::FinWait1, State::Closed));
    assert_eq!(net.hosts[A].count(Count::TCPAbortOnMemory), 1);
    assert_eq!(other.take_error(), Some(libc::ECONNRESET));
}

#[test]
fn a_half_closed_connection_still_carries_data() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    client.shutdown(Shutdown::Write, &mut net.pass()).unwrap();
    net.settle();
    assert!(served.ready().has(Ready::READ_CLOSED));
    net.send(&served, b"still here");
    assert_eq!(net.recv(&client), b"still here");
}

#[test]
fn a_connect_without_a_listener_is_refused() {
    let mut net = Net::new();
    let client = net.connect("10.0.0.1:0", "10.0.0.2:81").unwrap();
    net.settle();
    assert!(client.ready().has(Ready::ERROR | Ready::HANGUP));
    assert_eq!(client.take_error(), Some(libc::ECONNREFUSED));
    assert_eq!(net.hosts[A].inet.tcp_connections(), 0);
    assert_eq!(net.hosts[B].count(Count::TcpOutRsts), 1);
    assert_eq!(net.hosts[A].count(Count::TcpAttemptFails), 1);
}

#[test]
fn a_connect_fails_if_the_neighbour_does_not_answer() {
    let mut net = Net::new();
    let client = net.connect("10.0.0.1:0", "10.0.0.9:80").unwrap();
    net.advance(secs(4));
    assert_eq!(client.take_error(), Some(libc::EHOSTUNREACH));
    let error = net.connect("0.0.0.0:0", "192.168.0.1:80").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
}

#[test]
fn a_connect_without_any_answer_times_out() {
    let mut net = Net::new();
    net.lose = Box::new(|from, frame| from == B && Sent::read(frame).is_some());
    let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
    net.advance(secs(300));
    assert_eq!(client.take_error(), Some(libc::ETIMEDOUT));
    assert_eq!(net.hosts[A].inet.tcp_connections(), 0);
    let config = net.hosts[A].inet.tcp.config();
    let again = config.tcp_syn_linear_timeouts + config.tcp_syn_retries;
    assert_eq!(net.hosts[A].count(Count::TcpRetransSegs), again.into());
}

#[test]
fn abort_resets_the_peer() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    client.abort(&mut net.pass());
    net.settle();
    let error = served.recv(&mut [IoSliceMut::new(&mut [0; 8])], false, &mut net.pass());
    assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
    assert_eq!(net.hosts.each_ref().map(|host| host.inet.tcp_connections()), [0, 0]);
    assert_eq!(net.hosts.each_ref().map(|host| host.count(Count::TcpEstabResets)), [1, 1]);
    assert_eq!(net.hosts.each_ref().map(|host| host.count(Count::TcpOutRsts)), [1, 0]);
}

/// `TcpCurrEstab` and `TcpEstabResets` of both hosts.
fn established(net: &Net) -> [[u64; 2]; 2] {
    [Count::TcpCurrEstab, Count::TcpEstabResets]
        .map(|count| net.hosts.each_ref().map(|host| host.count(count)))
}

#[test]
fn established_and_reset_connections_are_counted() {
    let mut net = Net::new();
    let _refused = net.connect("10.0.0.1:0", "10.0.0.2:81").unwrap();
    net.settle();
    assert_eq!(established(&net), [[0, 0], [0, 0]], "neither was ever made");
    let (client, served, server) = net.joined();
    assert_eq!(established(&net), [[1, 1], [0, 0]]);
    client.shutdown(Shutdown::Write, &mut net.pass()).unwrap();
    net.settle();
    assert_eq!(established(&net), [[0, 1], [0, 0]], "one half is closed");
    net.close(&served);
    assert_eq!(established(&net), [[0, 0], [0, 0]], "ended in order");
    drop(server);
    // Reset by either side, in either state; by unread data; by the wheel.
    let (client, _served, server) = net.joined();
    client.abort(&mut net.pass());
    net.settle();
    assert_eq!(established(&net), [[0, 0], [1, 1]]);
    drop(server);
    let (client, served, server) = net.joined();
    client.shutdown(Shutdown::Write, &mut net.pass()).unwrap();
    net.settle();
    served.abort(&mut net.pass());
    net.settle();
    assert_eq!(established(&net), [[0, 0], [1, 2]], "A had closed, B had not");
    drop(server);
    let (client, served, server) = net.joined();
    net.send(&served, b"never read");
    net.close(&client);
    assert_eq!(established(&net), [[0, 0], [2, 3]]);
    drop(server);
    let (client, _served, _server) = net.joined();
    net.lose = Box::new(|_, _| true);
    net.send(&client, b"lost");
    net.advance(secs(2_000));
    assert!(client.take_error().is_some());
    assert_eq!(established(&net), [[0, 1], [3, 3]], "B has received no reset");
}

//= RFC 9293 3.10.7.1 test
//# all data in the incoming segment is discarded. An incoming segment containing a RST is discarded. An [...]
//= RFC 9293 3.10.7.1 test
//# If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK> If the ACK [...]
#[test]
fn segments_of_no_connection_get_the_reset_of_rfc_9293() {
    let net = Net::new();
    let (seq, ack) = (Seq(1000), Seq(77));
    let refused = |flags, payload| {
        let segment = Segment { seq, ack, flags, payload, ..Segment::default() };
        net.inject(B, "10.0.0.1:9", "10.0.0.2:81", &segment);
        let mut sent = net.segments(B);
        assert!(sent.len() <= 1);
        sent.pop().map(|sent| (sent.header.flags, sent.header.seq, sent.header.ack))
    };
    let reset = Flags::RST | Flags::ACK;
    assert_eq!(refused(Flags::SYN, b""), Some((reset, Seq(0), Seq(1001))));
    assert_eq!(refused(Flags::FIN, b"abc"), Some((reset, Seq(0), Seq(1004))));
    assert_eq!(refused(Flags::ACK, b"abc"), Some((Flags::RST, Seq(77), Seq(0))));
    assert_eq!(refused(Flags::SYN | Flags::ACK, b""), Some((Flags::RST, Seq(77), Seq(0))));
    assert_eq!(refused(Flags::RST, b""), None);
    assert_eq!(refused(Flags::RST | Flags::ACK, b""), None);
}

//= RFC 9293 3.10.7.2 test
//# Any acknowledgment is bad if it arrives on a connection still in the LISTEN state. An acceptable reset [...]
#[test]
fn a_listener_answers_a_syn_and_an_acknowledgment_and_nothing_else() {
    let net = Net::new();
    let _server = net.listen(B, "10.0.0.2:81", ListenOptions::default());
    let answer = |flags| {
        let segment = Segment { seq: Seq(1000), ack: Seq(77), flags, ..Segment::default() };
        net.inject(B, "10.0.0.1:9", "10.0.0.2:81", &segment);
        net.segments(B).pop().map(|sent| sent.header.flags)
    };
    for dropped in [Flags::default(), Flags::FIN, Flags::FIN | Flags::PSH, Flags::SYN | Flags::FIN]
    {
        assert_eq!(answer(dropped), None, "{dropped:?}");
    }
    assert_eq!(answer(Flags::ACK), Some(Flags::RST));
    assert_eq!(answer(Flags::SYN | Flags::ACK), Some(Flags::RST));
    assert_eq!(answer(Flags::SYN), Some(Flags::SYN | Flags::ACK));
}

#[test]
fn a_connection_with_ourselves_needs_no_wire_and_no_recursion() {
    let mut net = Net::new();
    let server = net.listen(A, "127.0.0.1:80", ListenOptions::default());
    let client = net.connect("0.0.0.0:0", "127.0.0.1:80").unwrap();
    let served = server.accept().expect("connected within the call");
    let data = vec![7; 300_000];
    let (mut sent, mut got) = (0, 0);
    while got < data.len() {
        sent += client.send(&[IoSlice::new(&data[sent..])], false, &mut net.pass()).unwrap_or(0);
        got += net.recv(&served).len();
        net.advance(ms(1));
    }
    assert_eq!(got, data.len());
    net.close(&client);
    net.close(&served);
    assert!(net.hosts[A].sent().is_empty());
}

#[test]
fn deferred_segments_to_ourselves_are_delivered_before_the_pass_ends() {
    let net = Net::new();
    let server = net.listen(A, "127.0.0.1:80", ListenOptions::default());
    let client = net.connect("0.0.0.0:0", "127.0.0.1:80").unwrap();
    let served = server.accept().unwrap();
    // To be answered, and delivered in a pass for another host's frames, as happens to what another thread sends.
    let stray = Segment { seq: Seq(1), ack: Seq(1), flags: Flags::ACK, ..Segment::default() };
    let (from, to) = (client.local().to_string(), served.local().to_string());
    let inet = &net.hosts[A].inet;
    let seen = || (inet.count(Count::TcpOutSegs), inet.count(Count::TcpInSegs));
    let (sent, came) = seen();
    inet.queue_local(frame(A, &from, &to, &stray)[14..].to_vec());
    net.receive(A, &frame(B, "10.0.0.2:80", "10.0.0.1:9", &stray));
    assert_eq!(seen(), (sent + 2, came + 3), "a reset for the frame, an answer for the stray");
}

#[test]
fn a_connection_of_a_port_with_itself() {
    let mut net = Net::new();
    let flow = net.connect("127.0.0.1:4000", "127.0.0.1:4000").unwrap();
    net.settle();
    assert_eq!(flow.state(), State::Established);
    net.send(&flow, b"me");
    assert_eq!(net.recv(&flow), b"me");
}
