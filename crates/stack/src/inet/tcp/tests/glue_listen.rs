//! Listening: the two queues, cookies, which listener gets a connection, and which sockets may listen.

use super::hosts::*;
use crate::inet::{
    Count,
    tcp::{
        Config, ListenOptions, Ready,
        connection::State,
        segment::{Flags, Options, Segment},
        seq::Seq,
    },
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

const HERE: &str = "10.0.0.2:80";

fn backlog(backlog: u32) -> ListenOptions {
    ListenOptions { backlog, ..ListenOptions::default() }
}

fn syn(seq: u32) -> Segment<'static> {
    let options = Options {
        mss: Some(1400),
        window_scale: Some(9),
        sack_permitted: true,
        timestamps: Some((5000, 0)),
        ..Options::default()
    };
    Segment { seq: Seq(seq), flags: Flags::SYN, window: 64240, options, ..Segment::default() }
}

fn answer(syn_ack: &Sent) -> Segment<'static> {
    let timestamps = syn_ack.header.options.timestamps.map(|(value, _)| (5001, value));
    Segment {
        seq: syn_ack.header.ack,
        ack: syn_ack.header.seq + 1,
        flags: Flags::ACK,
        window: 500,
        options: Options { timestamps, ..Options::default() },
        ..Segment::default()
    }
}

#[test]
fn an_accept_queue_takes_one_more_than_its_backlog_and_goes_on_when_there_is_room() {
    let mut net = Net::new();
    let server = net.listen(B, HERE, backlog(1));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let client = net.connect("10.0.0.1:0", HERE).unwrap();
            net.settle();
            client
        })
        .collect();
    assert_eq!(server.queued(), 2);
    // The third SYN was not answered.
    let states = clients.iter().map(|client| client.state());
    assert!(states.eq([State::Established, State::Established, State::SynSent]));
    assert_eq!(net.hosts[B].count(Count::TcpExtListenOverflows), 1);
    assert_eq!(net.hosts[B].count(Count::TcpExtListenDrops), 1);
    let _first = server.accept().unwrap();
    net.advance(secs(2));
    assert_eq!(clients[2].state(), State::Established);
    assert_eq!(server.queued(), 2);
}

#[test]
fn a_handshake_that_finds_the_accept_queue_full_is_finished_later() {
    let mut net = Net::new();
    let server = net.listen(B, HERE, backlog(1));
    // Three handshakes get a SYN-ACK, as many as the two queues take.
    let froms = ["10.0.0.1:1001", "10.0.0.1:1002"];
    for from in froms {
        net.inject(B, from, HERE, &syn(1));
    }
    let syn_acks: Vec<_> =
        net.segments(B).into_iter().filter(|sent| sent.is(Flags::SYN | Flags::ACK)).collect();
    // The backlog is one: the second SYN was answered with a cookie.
    assert_eq!(syn_acks.len(), 2);
    assert_eq!(net.hosts[B].count(Count::TcpExtSyncookiesSent), 1);
    for (from, syn_ack) in froms.iter().zip(&syn_acks) {
        net.inject(B, from, HERE, &answer(syn_ack));
    }
    assert_eq!(server.queued(), 2);
    net.inject(B, "10.0.0.1:1003", HERE, &syn(1));
    assert!(net.segments(B).is_empty());
    drop(server.accept());
    net.inject(B, "10.0.0.1:1003", HERE, &syn(1));
    let third = net.segments(B).into_iter().find(|sent| sent.to.port() == 1003).unwrap();
    let fourth = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    assert_eq!(fourth.state(), State::Established, "by a cookie");
    // Full again: the ACK of the third is ignored, and its SYN-ACK is sent again.
    net.inject(B, "10.0.0.1:1003", HERE, &answer(&third));
    assert_eq!(server.queued(), 2);
    assert!(net.segments(B).is_empty());
    server.accept().unwrap();
    net.now = net.now + ms(1001);
    net.hosts[B].inet.tick(&mut net.pass());
    let again = net.segments(B).into_iter().find(|sent| sent.is(Flags::SYN | Flags::ACK)).unwrap();
    net.inject(B, "10.0.0.1:1003", HERE, &answer(&again));
    assert_eq!(server.queued(), 2);
}

#[test]
fn tcp_abort_on_overflow_resets_a_handshake_that_finds_the_accept_queue_full() {
    let mut net = Net::with(Config { tcp_abort_on_overflow: true, ..Config::default() });
    let server = net.listen(B, HERE, backlog(1));
    let _first = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    net.inject(B, "10.0.0.1:1003", HERE, &syn(1));
    let syn_ack = net.segments(B).pop().unwrap();
    let _second = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    assert_eq!(server.queued(), 2);
    net.inject(B, "10.0.0.1:1003", HERE, &answer(&syn_ack));
    let refused = net.segments(B).pop().expect("an answer");
    assert!(refused.is(Flags::RST), "{refused:?}");
    assert_eq!(refused.header.seq, syn_ack.header.seq + 1);
}

#[test]
fn syn_acks_are_retransmitted_and_then_given_up() {
    let mut net = Net::new();
    let _server = net.listen(B, HERE, backlog(10));
    net.inject(B, "10.0.0.1:1001", HERE, &syn(1));
    assert_eq!(net.segments(B).len(), 1);
    let sent = Arc::new(AtomicU32::new(0));
    let count = sent.clone();
    net.lose = Box::new(move |from, frame| {
        let lost = from == B && Sent::read(frame).is_some();
        count.fetch_add(lost.into(), Ordering::Relaxed);
        lost
    });
    let mut times = Vec::new();
    for second in 0..100 {
        net.advance(secs(1));
        if sent.swap(0, Ordering::Relaxed) > 0 {
            times.push(second);
        }
        if second == 62 {
            assert_eq!(net.hosts[B].inet.tcp_connections(), 1);
        }
    }
    assert_eq!(times, [1, 3, 7, 15, 31]);
    assert_eq!(net.hosts[B].inet.tcp_connections(), 0);
    assert_eq!(net.hosts[B].count(Count::TcpAttemptFails), 1);
    assert_eq!(net.hosts[B].inet.tcp.timers(), 0);
}

#[test]
fn a_syn_flood_takes_no_memory_and_keeps_no_client_out() {
    let mut net = Net::new();
    let server = net.listen(B, HERE, backlog(16));
    for n in 0..10_000u32 {
        let from = format!("10.0.0.1:{}", n + 1);
        net.inject(B, &from, HERE, &syn(n));
        net.hosts[B].sent();
    }
    assert!(net.hosts[B].inet.tcp_connections() <= 16);
    assert_eq!(net.hosts[B].count(Count::TcpExtTCPReqQFullDoCookies), 10_000 - 16);
    // A real client connects, with all options negotiated.
    let client = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    assert_eq!(net.hosts[B].count(Count::TcpExtSyncookiesRecv), 1);
    let served = server.accept().expect("a connection by a cookie");
    let info = served.info(net.now);
    assert!(info.sack && info.timestamps && info.window_scale.is_some());
    net.send(&client, &[3; 9000]);
    assert_eq!(net.recv(&served), [3; 9000]);
    // A guess is refused.
    let guess = Segment { ack: Seq(0x1234_5678), flags: Flags::ACK, ..Segment::default() };
    net.inject(B, "10.0.0.1:20000", HERE, &guess);
    let refused = net.segments(B);
    assert!(refused.iter().any(|sent| sent.is(Flags::RST)), "{refused:?}");
    assert_eq!(net.hosts[B].count(Count::TcpExtSyncookiesFailed), 1);
}

#[test]
fn a_cookie_without_timestamps_keeps_only_the_mss() {
    let net = Net::new();
    let server = net.listen(B, HERE, backlog(0));
    let mut bare = syn(9);
    bare.options.timestamps = None;
    net.inject(B, "10.0.0.1:1001", HERE, &bare);
    let syn_ack = net.segments(B).pop().unwrap();
    let options = &syn_ack.header.options;
    assert!(options.window_scale.is_none() && !options.sack_permitted);
    let mut data = answer(&syn_ack);
    data.payload = b"at once";
    net.inject(B, "10.0.0.1:1001", HERE, &data);
    let served = server.accept().expect("a connection by a cookie");
    assert_eq!(served.unread(), 7);
    assert_eq!(served.info(net.now).snd_mss, 1300);
}

#[test]
fn without_cookies_a_full_syn_queue_drops() {
    let net = Net::with(Config { tcp_syncookies: false, ..Config::default() });
    let _server = net.listen(B, HERE, backlog(2));
    for n in 1..=3 {
        net.inject(B, &format!("10.0.0.1:{n}"), HERE, &syn(n));
    }
    assert_eq!(net.segments(B).len(), 2);
    assert_eq!(net.hosts[B].count(Count::TcpExtTCPReqQFullDrop), 1);
}

#[test]
fn a_reset_ends_a_handshake_and_makes_room() {
    let net = Net::new();
    let _server = net.listen(B, HERE, backlog(1));
    net.inject(B, "10.0.0.1:1001", HERE, &syn(100));
    let wrong = Segment { seq: Seq(500), flags: Flags::RST, ..Segment::default() };
    net.inject(B, "10.0.0.1:1001", HERE, &wrong);
    assert_eq!(net.hosts[B].inet.tcp_connections(), 1);
    net.inject(B, "10.0.0.1:1001", HERE, &Segment { seq: Seq(101), ..wrong });
    assert_eq!(net.hosts[B].inet.tcp_connections(), 0);
    net.inject(B, "10.0.0.1:1002", HERE, &syn(100));
    assert_eq!(net.hosts[B].count(Count::TcpExtSyncookiesSent), 0);
}

#[test]
fn closing_resets_those_not_accepted_and_frees_the_port() {
    let mut net = Net::new();
    let server = net.listen(B, HERE, backlog(10));
    let client = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    assert_eq!(client.state(), State::Established);
    net.inject(B, "10.0.0.1:1001", HERE, &syn(1));
    drop(server);
    net.advance(ms(1));
    assert_eq!(client.take_error(), Some(libc::ECONNRESET));
    net.advance(secs(2));
    assert_eq!(net.hosts[B].inet.tcp_connections(), 0, "the half-open one is forgotten, too");
    net.listen(B, HERE, backlog(10));
}

#[test]
fn the_data_of_a_handshake_is_not_lost() {
    let net = Net::new();
    let server = net.listen(B, HERE, backlog(10));
    net.inject(B, "10.0.0.1:1001", HERE, &syn(1));
    let mut data = answer(&net.segments(B)[0]);
    (data.payload, data.flags) = (b"request", Flags::ACK | Flags::FIN);
    net.inject(B, "10.0.0.1:1001", HERE, &data);
    let served = server.accept().unwrap();
    assert!(served.ready().has(Ready::READABLE | Ready::READ_CLOSED));
    assert_eq!(served.unread(), 7);
}

#[test]
fn listeners_conflict_by_linuxs_rules() {
    let mut net = Net::new();
    let plain = ListenOptions::default();
    let reuse = ListenOptions { reuse_address: true, ..plain };
    let group = ListenOptions { reuse_port: true, ..plain };
    let errno =
        |result: std::io::Result<_>| result.err().and_then(|e: std::io::Error| e.raw_os_error());
    let first = net.listen(B, HERE, reuse);
    assert_eq!(errno(net.try_listen(B, HERE, reuse)), Some(libc::EADDRINUSE));
    assert_eq!(errno(net.try_listen(B, "0.0.0.0:80", reuse)), Some(libc::EADDRINUSE));
    assert_eq!(errno(net.try_listen(B, "10.0.0.7:80", plain)), Some(libc::EADDRNOTAVAIL));
    assert_eq!(errno(net.try_listen(B, "127.0.0.1:80", plain)), None);
    let client = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    let served = first.accept().unwrap();
    drop(first);
    // A server restarts while a connection of its predecessor still exists.
    assert_eq!(errno(net.try_listen(B, HERE, plain)), Some(libc::EADDRINUSE));
    let _second = net.listen(B, HERE, reuse);
    // And while its TIME_WAIT entry exists.
    net.close(&served);
    net.close(&client);
    drop((client, served, _second));
    assert_eq!(net.hosts[B].inet.tcp_connections(), 1);
    assert_eq!(errno(net.try_listen(B, HERE, plain)), Some(libc::EADDRINUSE));
    drop(net.listen(B, HERE, reuse));
    net.advance(secs(61));
    drop(net.listen(B, HERE, plain));
    let _a = net.listen(B, HERE, group);
    let _b = net.listen(B, HERE, group);
    assert_eq!(errno(net.try_listen(B, HERE, plain)), Some(libc::EADDRINUSE));
    assert_ne!(net.listen(B, "10.0.0.2:0", plain).local().port(), 0);
}

#[test]
fn a_reuseport_group_shares_new_connections() {
    let mut net = Net::new();
    let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let group: Vec<_> = (0..4).map(|_| net.listen(B, "0.0.0.0:80", options)).collect();
    let clients: Vec<_> = (0..200).map(|_| net.connect("10.0.0.1:0", HERE).unwrap()).collect();
    net.settle();
    let shares: Vec<usize> = group.iter().map(|server| server.queued()).collect();
    assert_eq!(shares.iter().sum::<usize>(), 200);
    assert!(shares.iter().all(|share| (20..=90).contains(share)), "{shares:?}");
    drop(group);
    net.advance(ms(10));
    assert!(clients.iter().all(|client| client.take_error() == Some(libc::ECONNRESET)));
    // A listener at the address itself comes before those at any address.
    let any = net.listen(B, "0.0.0.0:81", ListenOptions { reuse_port: true, ..options });
    let own = net.listen(B, "10.0.0.2:81", ListenOptions { reuse_port: true, ..options });
    let _client = net.connect("10.0.0.1:0", "10.0.0.2:81").unwrap();
    net.settle();
    assert_eq!((any.queued(), own.queued()), (0, 1));
}

#[test]
fn a_listener_at_any_ipv6_address_accepts_ipv4_unless_v6only() {
    let mut net = Net::new();
    let both = net.listen(B, "[::]:80", ListenOptions::default());
    let only_v6 = ListenOptions { only_v6: true, ..ListenOptions::default() };
    let _six = net.listen(B, "[::]:81", only_v6);
    let _four = net.listen(B, "0.0.0.0:81", ListenOptions::default());
    let _client = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    assert_eq!(both.accept().unwrap().local(), HERE.parse().unwrap());
    assert!(net.try_listen(B, HERE, ListenOptions::default()).is_err());
}

#[test]
fn a_hold_lives_as_long_as_listener_flows_and_time_wait() {
    let mut net = Net::new();
    let port_ref = Arc::new(Held);
    let server = net.hosts[B]
        .inet
        .tcp_listen(
            HERE.parse().unwrap(),
            backlog(5),
            Some(port_ref.clone()),
            Arc::new(TestEndpoint::default()),
        )
        .unwrap();
    let client = net.connect("10.0.0.1:0", HERE).unwrap();
    net.settle();
    let served = server.accept().unwrap();
    drop(server);
    assert_eq!(Arc::strong_count(&port_ref), 2);
    net.close(&served);
    net.close(&client);
    drop((client, served));
    assert_eq!(Arc::strong_count(&port_ref), 2, "TIME_WAIT");
    net.advance(secs(61));
    assert_eq!(Arc::strong_count(&port_ref), 1);
}
