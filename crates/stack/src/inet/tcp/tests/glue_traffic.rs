//! Data transfer: recovery without application calls, passes, doorbells, full rings, and ICMP errors.

use super::hosts::*;
use crate::{
    inet::{
        Count,
        tcp::{
            ConnectOptions, Flow, ListenOptions, Ready, TcpOptions, connection::State,
            segment::Flags,
        },
    },
    wire::{Protocol, icmp},
};
use std::{
    io::{IoSlice, IoSliceMut},
    net::Shutdown,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

#[test]
fn a_lost_segment_is_recovered_without_calls_of_the_applications() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let mut count = 0;
    net.lose = Box::new(move |from, frame| {
        count += usize::from(from == A && frame.len() > 1000);
        from == A && frame.len() > 1000 && count == 4
    });
    let data = vec![9; 14_000];
    let sent = client.send(&[IoSlice::new(&data)], false, &mut net.pass()).unwrap();
    assert_eq!(sent, data.len());
    net.settle();
    net.advance(ms(500));
    assert_eq!(served.unread(), data.len());
    assert_eq!(client.unacknowledged(), 0);
    assert_eq!(net.recv(&served), data);
}

#[test]
fn a_lost_last_segment_is_recovered_too() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let mut once = true;
    net.lose =
        Box::new(move |from, frame| from == A && frame.len() > 60 && std::mem::take(&mut once));
    net.send(&client, &[5; 100]);
    assert_eq!(served.unread(), 0);
    net.advance(ms(500));
    assert_eq!(served.unread(), 100);
}

/// Data segments of the client, not delivered.
fn stream(net: &Net, client: &Flow, len: usize) -> Vec<Vec<u8>> {
    client.send(&[IoSlice::new(&vec![1; len])], false, &mut net.pass()).unwrap();
    net.hosts[A].sent()
}

#[test]
fn the_segments_of_a_pass_are_answered_at_its_end_with_one_doorbell() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    net.hosts.iter().for_each(|host| _ = host.doorbells());
    let frames = stream(&net, &client, 10 * 1448);
    assert_eq!((frames.len(), net.hosts[A].doorbells()), (10, 1));
    net.receive_all(B, &frames);
    let acks = net.segments(B);
    assert_eq!(net.hosts[B].doorbells(), 1);
    assert_eq!(acks.len(), 1, "{acks:?}");
    assert_eq!(served.unread(), 10 * 1448);
    // In passes of their own at least every second one is acknowledged.
    net.inject(A, "10.0.0.2:80", &client.local().to_string(), &acks[0].header);
    let frames = stream(&net, &client, 10 * 1448);
    frames.iter().for_each(|frame| net.receive(B, frame));
    assert!(net.segments(B).len() >= 5);
}

#[test]
fn many_flows_in_one_pass_are_each_answered() {
    let mut net = Net::new();
    let (first, served, server) = net.joined();
    let mut pairs = vec![(first, served)];
    for _ in 0..5 {
        let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
        net.settle();
        pairs.push((client, server.accept().unwrap()));
    }
    let mut frames = Vec::new();
    for (client, _) in &pairs {
        frames.extend(stream(&net, client, 2 * 1448));
    }
    frames.sort_by_key(|frame| frame.len() ^ usize::from(frame[35]));
    net.receive_all(B, &frames);
    let acks = net.segments(B);
    assert_eq!(acks.len(), pairs.len());
    assert!(pairs.iter().all(|(_, served)| served.unread() == 2 * 1448));
}

#[test]
fn a_pass_that_polls_for_one_flow_delivers_the_segments_of_others() {
    let mut net = Net::new();
    let (first, served, server) = net.joined();
    let second = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
    net.settle();
    let other = server.accept().unwrap();
    let mut frames = stream(&net, &first, 10);
    frames.extend(stream(&net, &second, 20));
    net.receive_for(&served, B, &frames);
    net.settle();
    assert_eq!((served.unread(), other.unread()), (10, 20));
}

#[test]
fn a_pass_that_polls_for_a_closed_flow_delivers_to_the_next_flow_of_the_4_tuple() {
    let mut net = Net::new();
    let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    let client = net.connect("10.0.0.1:4000", "10.0.0.2:80").unwrap();
    net.settle();
    let over = server.accept().unwrap();
    client.abort(&mut net.pass());
    net.settle();
    assert_eq!(over.state(), State::Closed);
    drop(client);
    net.advance(ms(1));
    let client = net.connect("10.0.0.1:4000", "10.0.0.2:80").unwrap();
    net.settle();
    let served = server.accept().unwrap();
    let frames = stream(&net, &client, 10);
    net.receive_for(&over, B, &frames);
    net.settle();
    assert_eq!((over.unread(), served.unread()), (0, 10));
    assert_eq!(client.unacknowledged(), 0);
}

#[test]
fn a_pass_older_than_another_threads_does_not_turn_timestamps_back() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let mut early = net.pass();
    net.now = net.now + ms(5);
    net.send(&client, b"later");
    client.send(&[IoSlice::new(b", earlier")], false, &mut early).unwrap();
    net.settle();
    assert_eq!(net.recv(&served), b"later, earlier");
    assert_eq!(net.hosts[B].count(Count::PAWSEstab), 0);
}

/// The headers of these connections take 66 bytes: with fewer in the first buffer a frame is made whole.
#[test]
fn a_stream_is_read_as_sent_whatever_buffers_its_segments_lie_in() {
    for buffer in [20, 65, 66, 67, 300, 1000, 1513] {
        let mut net = Net::new();
        let (client, served, _server) = net.joined();
        net.buffer = buffer;
        let data: Vec<u8> = (0..9 * 1448u32).map(|at| (at * at / 77) as u8).collect();
        // In order; out of order, and then again from the middle of what has come.
        for order in [vec![0, 1, 2], vec![2, 1, 1, 0, 2], vec![1, 0]] {
            let sent = order.iter().max().unwrap() + 1;
            let part = &data[..sent * 1448 + 7];
            client.send(&[IoSlice::new(part)], false, &mut net.pass()).unwrap();
            let frames = net.hosts[A].sent();
            order.iter().for_each(|&at| net.receive(B, &frames[at]));
            net.advance(ms(500));
            assert_eq!(net.recv(&served), part, "{buffer} {order:?}");
        }
        // A reader takes all or nothing.
        let endpoint = Arc::new(TestEndpoint::default());
        served.attach(endpoint.clone(), &mut net.pass());
        for (room, taken) in [(1448, 1448), (1447, 0)] {
            endpoint.room.store(room, Ordering::Relaxed);
            net.send(&client, &data[room..room + 1448]);
            let took = std::mem::take(&mut *endpoint.taken.lock().unwrap());
            assert_eq!(took, data[room..room + taken], "{buffer}");
            assert_eq!(net.recv(&served).len(), 1448 - taken);
            let in_pieces = endpoint.in_pieces.swap(0, Ordering::Relaxed) > 0;
            assert_eq!(in_pieces, buffer > 65, "{buffer}");
        }
        assert_eq!(net.hosts[B].count(Count::TcpInErrs), 0);
    }
}

#[test]
fn a_full_ring_is_tried_again() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    net.hosts[A].tape.room.store(3, Ordering::Relaxed);
    client.send(&[IoSlice::new(&[1; 10 * 1448])], false, &mut net.pass()).unwrap();
    assert_eq!(net.hosts[A].tape.frames.lock().unwrap().len(), 3);
    net.hosts[A].tape.room.store(u64::MAX, Ordering::Relaxed);
    let before = net.now;
    net.now = net.now + ms(2);
    net.hosts[A].inet.tick(&mut net.pass());
    assert_eq!(net.hosts[A].tape.frames.lock().unwrap().len(), 10);
    net.settle();
    assert_eq!(served.unread(), 10 * 1448);
    assert!(net.now - before < ms(200), "not by the retransmission timer");
}

#[test]
fn an_occasional_exchange_requests_no_tick() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    for _ in 0..20 {
        for host in &net.hosts {
            host.calls.store(0, Ordering::Relaxed);
        }
        // Time for five checks of the wheel.
        for _ in 0..20 {
            net.send(&client, b"q");
            assert_eq!(net.recv(&served), b"q");
            net.send(&served, b"a");
            assert_eq!(net.recv(&client), b"a");
            net.advance(ms(10));
        }
    }
    assert_eq!([A, B].map(|host| net.hosts[host].calls.load(Ordering::Relaxed)), [0, 0]);
    // Nor is the wheel checked needlessly.
    net.advance(ms(1000));
    let next = net.hosts[A].inet.tick(&mut net.pass());
    assert!(next.is_none_or(|next| next - net.now > ms(1000)), "{next:?} at {:?}", net.now);
}

#[test]
fn a_late_reader_opens_the_window_again() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let data = vec![1; 1 << 20];
    let mut sent = 0;
    for _ in 0..3000 {
        let result = client.send(&[IoSlice::new(&data[sent..])], false, &mut net.pass());
        sent += result.unwrap_or(0);
        net.advance(ms(1));
    }
    assert!(sent < data.len(), "the reader does not read");
    let mut got = 0;
    while got < data.len() {
        got += net.recv(&served).len();
        if sent < data.len() {
            let result = client.send(&[IoSlice::new(&data[sent..])], false, &mut net.pass());
            sent += result.unwrap_or(0);
        }
        net.advance(ms(1));
    }
}

/// An ICMP error from B about a frame of A's.
fn icmp_about(frame: &[u8], code: u8, word: u32) -> Vec<u8> {
    let quote = &frame[14..];
    let mut message = vec![0; 8 + 28];
    icmp::Packet::init_error(&mut message[..], icmp::Type::UNREACHABLE, code, word, &quote[..28])
        .unwrap();
    let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(std::net::Ipv4Addr::from);
    ip_frame(B, (b, a), Protocol::ICMP, &message)
}

#[test]
fn an_icmp_error_counts_only_if_it_quotes_data_in_flight() {
    let net = Net::new();
    let flow = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
    let syn = net.hosts[A].sent().pop().unwrap();
    let mut guess = syn.clone();
    guess[14 + 20 + 4] ^= 1;
    net.receive(A, &icmp_about(&guess, icmp::code::HOST_UNREACHABLE, 0));
    assert_eq!(flow.state(), State::SynSent);
    assert_eq!(net.hosts[A].count(Count::TcpExtOutOfWindowIcmps), 1);
    net.receive(A, &icmp_about(&syn, icmp::code::HOST_UNREACHABLE, 0));
    assert_eq!(flow.take_error(), Some(libc::EHOSTUNREACH));
}

#[test]
fn a_smaller_path_mtu_makes_segments_smaller() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let frames = stream(&net, &client, 3 * 1448);
    // A forged one first: it must not change the known path MTU.
    let mut guess = frames[0].clone();
    guess[14 + 20 + 4] ^= 0x40;
    net.receive(A, &icmp_about(&guess, icmp::code::FRAGMENTATION_NEEDED, 600));
    assert_eq!(client.info(net.now).snd_mss, 1448);
    net.receive(A, &icmp_about(&frames[0], icmp::code::FRAGMENTATION_NEEDED, 1000));
    net.advance(ms(300));
    assert_eq!(served.unread(), 3 * 1448);
    assert_eq!(client.info(net.now).snd_mss, 1000 - 40 - 12);
    let fresh = net.connect_with(
        A,
        "10.0.0.1:0",
        "10.0.0.2:81",
        &ConnectOptions::default(),
        Default::default(),
    );
    let syn = net.segments(A).pop().unwrap();
    assert!(fresh.is_ok() && syn.is(Flags::SYN));
    assert_eq!(syn.header.options.mss, Some(960));
}

#[test]
fn an_expired_path_mtu_makes_segments_larger_again() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let frames = stream(&net, &client, 1448);
    net.receive(A, &icmp_about(&frames[0], icmp::code::FRAGMENTATION_NEEDED, 1000));
    net.advance(secs(1));
    assert_eq!(client.info(net.now).snd_mss, 1000 - 40 - 12);
    // An ICMP report expires after ten minutes.
    net.advance(secs(601));
    stream(&net, &client, 2 * 1448);
    assert_eq!(client.info(net.now).snd_mss, 1448);
    net.advance(ms(300));
    assert_eq!(served.unread(), 3 * 1448);
}

#[test]
fn a_waiter_that_found_no_room_is_notified_of_write_space() {
    // Linux's SOCK_NOSPACE, here without a send that was cut short. The second case: TCP_NOTSENT_LOWAT.
    let little = TcpOptions { send_buffer: 3_000, ..TcpOptions::default() };
    let low = TcpOptions { send_buffer: 99_000, notsent_low_water: 9, ..TcpOptions::default() };
    for (tcp, len) in [(little, 2_500), (low, 30_000)] {
        let mut net = Net::new();
        let _server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
        let (endpoint, options) =
            (Arc::<TestEndpoint>::default(), ConnectOptions { tcp, ..Default::default() });
        let client =
            net.connect_with(A, "10.0.0.1:0", "10.0.0.2:80", &options, endpoint.clone()).unwrap();
        net.settle();
        assert!(client.ready().has(Ready::WRITABLE));
        let sent = client.send(&[IoSlice::new(&vec![1; len])], false, &mut net.pass());
        assert_eq!(sent.unwrap(), len);
        assert!(!client.ready().has(Ready::WRITABLE));
        *endpoint.ready.lock().unwrap() = Ready::default();
        net.advance(ms(300));
        assert!(endpoint.ready.lock().unwrap().has(Ready::WRITABLE), "{tcp:?}");
    }
}

#[test]
fn a_low_water_mark_holds_for_sends_and_half_of_it_for_readiness() {
    let mut net = Net::new();
    let (client, _served, _server) = net.joined();
    let options =
        TcpOptions { send_buffer: 200_000, notsent_low_water: 10_000, ..client.options() };
    client.set_options(options, &mut net.pass());
    let send = |len: usize| {
        let sent = client.send(&[IoSlice::new(&vec![1; len])], false, &mut net.pass()).ok();
        (sent, client.info(net.now).notsent_bytes, client.ready().has(Ready::WRITABLE))
    };
    // The first ten segments are sent.
    assert_eq!(send(14_480 + 4_999), (Some(14_480 + 4_999), 4_999, true));
    assert_eq!(send(1), (Some(1), 5_000, false));
    // Of the rest a large segment is filled: half of the peer's window.
    assert_eq!(send(100_000), (Some(31_856 - 5_000), 31_856, false));
    assert_eq!(send(1), (None, 31_856, false));
    assert!(!client.has_room());
}

#[test]
fn write_space_made_by_sending_is_notified_at_once() {
    let mut net = Net::new();
    let (client, _served, _server) = net.joined();
    let endpoint = Arc::new(TestEndpoint::default());
    client.attach(endpoint.clone(), &mut net.pass());
    client.set_options(TcpOptions { notsent_low_water: 2, ..client.options() }, &mut net.pass());
    // The first is sent, and Nagle's algorithm holds the second back.
    for _ in 0..2 {
        client.send(&[IoSlice::new(b"x")], false, &mut net.pass()).unwrap();
    }
    assert!(!client.ready().has(Ready::WRITABLE));
    *endpoint.ready.lock().unwrap() = Ready::default();
    net.receive_all(B, &net.hosts[A].sent());
    net.receive_all(A, &net.hosts[B].sent());
    assert_eq!(net.segments(A).len(), 1);
    assert!(endpoint.ready.lock().unwrap().has(Ready::WRITABLE | Ready::WRITE_SPACE));
}

#[test]
fn readiness_below_the_low_water_mark_is_notified_when_the_mark_is_raised_and_after_a_read() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let endpoint = Arc::new(TestEndpoint::default());
    served.attach(endpoint.clone(), &mut net.pass());
    let is = |ready| endpoint.ready.lock().unwrap().has(ready);
    net.send(&client, b"abcdef");
    assert!(is(Ready::READABLE));
    for (mark, readable) in [(7, false), (4, true)] {
        let options = TcpOptions { receive_low_water: mark, ..served.options() };
        served.set_options(options, &mut net.pass());
        assert_eq!((is(Ready::READABLE), is(Ready::BELOW_LOWAT)), (readable, !readable), "{mark}");
    }
    served.recv(&mut [IoSliceMut::new(&mut [0; 4])], false, &mut net.pass()).unwrap();
    assert!(is(Ready::BELOW_LOWAT) && !is(Ready::READABLE));
    net.recv(&served);
    assert!(!is(Ready::BELOW_LOWAT) && !is(Ready::READABLE));
}

#[test]
fn a_host_that_is_dropped_drops_all_connections() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    net.inject(
        B,
        "10.0.0.1:9",
        "10.0.0.2:80",
        &crate::inet::tcp::segment::Segment { flags: Flags::SYN, ..Default::default() },
    );
    let inet = &net.hosts[B].inet;
    assert_eq!(inet.tcp_connections(), 2);
    inet.tcp_forget_all();
    assert_eq!((inet.tcp_connections(), inet.tcp.timers()), (0, 0));
    // Calls do no harm.
    let _ = served.recv(&mut [IoSliceMut::new(&mut [0; 8])], false, &mut net.pass());
    served.close(&mut net.pass());
    drop((client, served));
    net.advance(secs(1));
}

#[test]
fn a_window_used_up_by_directly_taken_data_opens_at_once() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let endpoint = Arc::new(TestEndpoint::default());
    served.attach(endpoint.clone(), &mut net.pass());
    endpoint.room.store(usize::MAX, Ordering::Relaxed);
    let clamped = TcpOptions { window_clamp: 4 * 1448, ..served.options() };
    served.set_options(clamped, &mut net.pass());
    // Past the acknowledgments that a new connection sends at once.
    let data = vec![7; 4 * 1448];
    for _ in 0..100 {
        net.send(&client, &data);
        net.advance(Duration::from_millis(2));
    }
    endpoint.taken.lock().unwrap().clear();
    client.send(&[IoSlice::new(&data)], false, &mut net.pass()).unwrap();
    net.receive_all(B, &net.hosts[A].sent());
    let came = endpoint.taken.lock().unwrap().len();
    assert!(0 < came && came < data.len());
    assert!(!net.hosts[B].sent().is_empty());
}

#[test]
fn a_poller_takes_data_directly_if_all_of_it_fits_and_nothing_else_is_to_be_notified() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let endpoint = Arc::new(TestEndpoint::default());
    served.attach(endpoint.clone(), &mut net.pass());
    endpoint.room.store(10, Ordering::Relaxed);
    let notifications = || endpoint.notifications.swap(0, Ordering::Relaxed);
    let taken = || std::mem::take(&mut *endpoint.taken.lock().unwrap());
    notifications();

    net.send(&client, b"0123456789");
    assert_eq!((taken(), notifications(), served.unread()), (b"0123456789".to_vec(), 0, 0));
    served.reader_waits(&mut net.pass());
    net.settle();
    // While buffered data is unread it takes nothing.
    net.send(&client, b"eleven byte");
    net.send(&client, b"!");
    assert_eq!(
        (taken(), notifications(), net.recv(&served)),
        (vec![], 2, b"eleven byte!".to_vec())
    );
    let low = TcpOptions { receive_low_water: 4, ..served.options() };
    served.set_options(low, &mut net.pass());
    notifications();
    net.send(&client, b"low");
    assert_eq!((taken(), notifications(), served.unread()), (vec![], 1, 3));
    net.send(&client, b"er");
    assert_eq!((taken(), notifications(), net.recv(&served)), (vec![], 1, b"lower".to_vec()));
    notifications();
    net.send(&client, b"once");
    assert_eq!((taken(), notifications(), net.recv(&served)), (vec![], 1, b"once".to_vec()));
    served.set_options(TcpOptions { receive_low_water: 1, ..low }, &mut net.pass());
    notifications();
    net.send(&client, b"again");
    assert_eq!((taken(), notifications(), served.unread()), (b"again".to_vec(), 0, 0));

    // A thread that waits to send is notified of write space.
    let full = vec![7; 1 << 20];
    let few = TcpOptions { send_buffer: 28_960, ..served.options() };
    served.set_options(few, &mut net.pass());
    notifications();
    assert!(served.send(&[IoSlice::new(&full)], false, &mut net.pass()).unwrap() < full.len());
    net.receive_all(A, &net.hosts[B].sent());
    net.hosts[A].sent();
    client.send(&[IoSlice::new(b"data")], false, &mut net.pass()).unwrap();
    net.receive_all(B, &net.hosts[A].sent());
    assert!(endpoint.ready.lock().unwrap().has(Ready::WRITABLE));
    assert_eq!((taken(), notifications(), net.recv(&served)), (vec![], 1, b"data".to_vec()));
    net.recv(&client);

    // And a thread that waits for the end is notified of it.
    notifications();
    client.send(&[IoSlice::new(b"last")], true, &mut net.pass()).unwrap();
    client.shutdown(Shutdown::Write, &mut net.pass()).unwrap();
    net.settle();
    assert!(notifications() > 0 && endpoint.ready.lock().unwrap().has(Ready::READ_CLOSED));
    assert_eq!((taken(), net.recv(&served)), (vec![], b"last".to_vec()));
}

#[test]
fn directly_taken_data_is_acknowledged_by_the_answer_or_when_the_reader_waits_again() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    let endpoint = Arc::new(TestEndpoint::default());
    served.attach(endpoint.clone(), &mut net.pass());
    endpoint.room.store(10, Ordering::Relaxed);
    let left = || endpoint.ack_left.swap(0, Ordering::Relaxed);
    let ask = |net: &mut Net| {
        client.send(&[IoSlice::new(b"?")], false, &mut net.pass()).unwrap();
        net.receive_all(B, &net.hosts[A].sent());
    };
    // The first ACKs of a connection are sent at once.
    ask(&mut net);
    assert_eq!((left(), net.segments(B)), (1, vec![]));
    served.reader_waits(&mut net.pass());
    let ack = net.segments(B);
    assert_eq!((ack.len(), ack[0].len), (1, 0), "{ack:?}");
    served.reader_waits(&mut net.pass());
    assert_eq!(net.segments(B), [], "once");
    net.inject(A, "10.0.0.2:80", &client.local().to_string(), &ack[0].header);
    ask(&mut net);
    assert_eq!(left(), 1);
    served.send(&[IoSlice::new(b"!")], false, &mut net.pass()).unwrap();
    let answer = net.hosts[B].sent();
    assert_eq!(answer.len(), 1);
    net.receive_all(A, &answer);
    assert_eq!(client.unacknowledged(), 0);
    net.recv(&client);
    // Without an answer or a waiting reader the ACK is as late as any other.
    served.set_options(TcpOptions { quick_ack: Some(false), ..served.options() }, &mut net.pass());
    ask(&mut net);
    assert_eq!((left(), net.segments(B)), (0, vec![]));
    net.advance(ms(45));
    assert_eq!(client.unacknowledged(), 0);
    // The ACK of a burst that the reader polls itself is left to it until the burst is over.
    let full = vec![7; 1448];
    let burst = |net: &mut Net| {
        for _ in 0..3 {
            client.send(&[IoSlice::new(&full)], false, &mut net.pass()).unwrap();
        }
        net.receive_all(B, &net.hosts[A].sent());
        let mut room = [0; 8192];
        let into = &mut [IoSliceMut::new(&mut room)];
        assert_eq!(served.recv(into, false, &mut net.pass()).unwrap(), 3 * full.len());
    };
    for _ in 0..20 {
        burst(&mut net);
        net.settle();
    }
    left();
    burst(&mut net);
    assert_eq!((left(), net.segments(B).len()), (0, 1), "the pass of another thread");
    endpoint.receives.store(true, Ordering::Relaxed);
    burst(&mut net);
    assert_eq!((left() > 0, net.segments(B)), (true, vec![]));
    served.reader_waits(&mut net.pass());
    assert_eq!(net.segments(B).len(), 1);
    endpoint.receives.store(false, Ordering::Relaxed);
    net.settle();
    // With TCP_QUICKACK: at once.
    served.set_options(TcpOptions { quick_ack: Some(true), ..served.options() }, &mut net.pass());
    ask(&mut net);
    assert_eq!((left(), net.segments(B).len()), (0, 1));
}

/// In how many milliseconds `host` sends a frame of more than `len` bytes by its timers.
fn leaves_in(net: &mut Net, host: usize, len: usize) -> u64 {
    for at in 1..20_000 {
        net.now = net.now + ms(1);
        net.hosts[host].inet.tick(&mut net.pass());
        if net.hosts[host].sent().iter().any(|frame| frame.len() > len) {
            return at;
        }
    }
    u64::MAX
}

/// A segment with data may report a loss too, also if a poller takes the data.
#[test]
fn directly_taken_data_may_set_an_earlier_timer() {
    let mut net = Net::new();
    let (client, served, _server) = net.joined();
    // The round trip is known: 10 ms.
    for _ in 0..20 {
        served.send(&[IoSlice::new(b"q")], false, &mut net.pass()).unwrap();
        net.now = net.now + ms(5);
        net.receive_all(A, &net.hosts[B].sent());
        net.recv(&client);
        client.send(&[IoSlice::new(b"a")], false, &mut net.pass()).unwrap();
        net.now = net.now + ms(5);
        net.receive_all(B, &net.hosts[A].sent());
        net.recv(&served);
    }
    net.advance(secs(2));
    let endpoint = Arc::new(TestEndpoint::default());
    served.attach(endpoint.clone(), &mut net.pass());
    endpoint.room.store(100, Ordering::Relaxed);
    served.send(&[IoSlice::new(&[1; 3 * 1448])], false, &mut net.pass()).unwrap();
    let frames = net.hosts[B].sent();
    // Of three segments the last arrives, which the answer reports by SACK: RFC 8985's timer is a quarter of a round
    // trip.
    net.now = net.now + ms(5);
    net.receive_all(A, &frames[2..]);
    net.hosts[A].sent();
    client.send(&[IoSlice::new(b"x")], false, &mut net.pass()).unwrap();
    net.now = net.now + ms(5);
    net.receive_all(B, &net.hosts[A].sent());
    assert_eq!((frames.len(), endpoint.taken.lock().unwrap().len()), (3, 1));
    let after = leaves_in(&mut net, B, 1_000);
    assert!(after <= 3, "{after} ms");
}

/// The round-trip sample of an ACK is used before a timer is derived from it.
#[test]
fn corked_data_waits_by_the_latest_round_trip_sample() {
    let config = crate::inet::tcp::Config { tcp_timestamps: false, ..Default::default() };
    let mut net = Net::with(config);
    let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
    // The SYN is lost: the timeout is 3 s until a round trip is measured.
    net.hosts[A].sent();
    net.advance(ms(1_500));
    let served = server.accept().unwrap();
    client.send(&[IoSlice::new(b"request")], false, &mut net.pass()).unwrap();
    net.receive_all(B, &net.hosts[A].sent());
    net.now = net.now + ms(10);
    net.recv(&served);
    served.send(&[IoSlice::new(b"response")], false, &mut net.pass()).unwrap();
    net.receive_all(A, &net.hosts[B].sent());
    net.recv(&client);
    client.set_options(TcpOptions { cork: true, ..client.options() }, &mut net.pass());
    client.send(&[IoSlice::new(&[7; 100])], false, &mut net.pass()).unwrap();
    let after = leaves_in(&mut net, A, 100);
    assert!(after <= 300, "{after} ms");
}
