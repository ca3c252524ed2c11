//! TCP segments between IP and TCP: runs over the ring, to an unresolved neighbour, and to this host; and receiving.

use super::*;

/// A segment from port 1 to port 2, without options, with `data`.
fn segment(data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 20 + data.len()];
    bytes[1] = 1;
    bytes[3] = 2;
    bytes[12] = 0x50;
    // A RST, which gets no answer.
    bytes[13] = 4;
    bytes[20..].copy_from_slice(data);
    bytes
}

fn write(room: template::TransportBuf<'_>, bytes: &[u8]) {
    let checksum = room.checksum(|| Sum::of(bytes));
    room.bytes.copy_from_slice(bytes);
    room.bytes[16..18].copy_from_slice(&checksum.to_be_bytes());
}

fn tcp_path(a: &Station, remote: &str) -> Path {
    let ends = ("0.0.0.0:1".parse().unwrap(), remote.parse().unwrap());
    a.inet
        .path_of(Protocol::TCP, ends, 0, PathOptions { tos: 0x13, ..Default::default() }, a.now)
        .unwrap()
}

/// The segment in a packet from A, with its headers and checksum checked.
fn checked(packet: &[u8]) -> Vec<u8> {
    let ip = ipv4::Packet::new_checked(packet).unwrap();
    assert_eq!((ip.protocol(), ip.dont_fragment()), (Protocol::TCP, true));
    let len = ip.payload().len() as u16;
    let pseudo = ip.address_sum().plus_word(6).plus_word(len);
    assert!(pseudo.plus(Sum::of(ip.payload())).is_intact());
    let mut bytes = ip.payload().to_vec();
    bytes[16..18].fill(0);
    bytes
}

#[test]
fn a_run_is_sent_in_order_with_its_ecn_fields() {
    for tx_checksum in [false, true] {
        let own = Addressing::Own(vec!["10.0.0.1/24".parse().unwrap()]);
        let a = Station::with(Info { tx_checksum, ..info(MAC_A) }, own);
        a.learn_neighbour(B, MAC_B);
        let path = tcp_path(&a, "10.0.0.2:2");
        let mut batch = a.inet.segment_batch(&path, a.now);
        let segments = [segment(b""), segment(b"odd"), segment(&[9; 1460])];
        for (bytes, ecn) in segments.iter().zip([0, 2, 1]) {
            batch.push(bytes.len(), ecn, |room| write(room, bytes)).unwrap();
        }
        assert_eq!(batch.push(1481, 0, |_| unreachable!()), Err(SendError::TooBig));
        drop(batch);
        let packets: Vec<_> = a.sent().iter().map(|frame| ip_of(frame)).collect();
        let tos: Vec<_> = packets.iter().map(|packet| packet[1]).collect();
        assert_eq!(tos, [0x10, 0x12, 0x11], "ECN from TCP, the rest from the socket");
        assert!(packets.iter().map(|packet| checked(packet)).eq(segments));
        assert_eq!(a.count(Count::TcpOutSegs), 3);
    }
}

#[test]
fn a_full_ring_ends_a_run() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = tcp_path(&a, "10.0.0.2:2");
    let mut batch = a.inet.segment_batch(&path, a.now);
    let mut send = || batch.push(20, 0, |room| write(room, &segment(b"")));
    assert!((0..1000).all(|_| send().is_ok()));
    assert_eq!(send(), Err(SendError::RingFull));
    assert_eq!(a.count(Count::TcpOutSegs), 1000);
}

#[test]
fn segments_are_queued_until_their_neighbour_is_resolved() {
    let a = Station::a();
    let path = tcp_path(&a, "10.0.0.2:2");
    let bytes = segment(b"early");
    a.inet.segment_batch(&path, a.now).push(bytes.len(), 2, |room| write(room, &bytes)).unwrap();
    let sent = a.sent();
    assert_eq!((sent.len(), &sent[0][12..14]), (1, &[8, 6][..]), "an ARP request only");
    a.receive(&arp_frame(arp::Operation::REPLY, (MAC_B, B), (MAC_A, A)));
    let packet = a.sent_packet();
    assert_eq!((checked(&packet), packet[1]), (bytes, 0x12));
    assert!(!path.is_current(&a.inet));
}

#[test]
fn a_segment_to_this_host_is_queued_until_deliver_local() {
    let mut a = Station::a();
    let path = tcp_path(&a, "10.0.0.1:2");
    let send =
        |path| a.inet.segment_batch(path, a.now).push(20, 0, |room| write(room, &segment(b"")));
    send(&path).unwrap();
    assert_eq!(a.count(Count::TcpInSegs), 0);
    a.inet.deliver_local(&mut a.pass());
    assert_eq!(a.count(Count::TcpInSegs), 1);
    // The queue is bounded; the next tick delivers what a burst leaves.
    (0..1500).for_each(|_| send(&path).unwrap());
    assert_eq!(a.count(Count::IpOutDiscards), 500);
    a.inet.deliver_local(&mut a.pass());
    assert_eq!(a.count(Count::TcpInSegs), 257);
    for _ in 0..3 {
        a.wait(Duration::ZERO);
    }
    assert_eq!(a.count(Count::TcpInSegs), 1001);
    assert_eq!((a.count(Count::TcpInErrs), a.sent().len()), (0, 0));
}

//= RFC 9293 3.1 test
//# The sender MUST generate it (MUST-2) and the receiver MUST check it (MUST-3).
//= RFC 9293 3.9.2.3 test
//# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a broadcast or [...]
#[test]
fn invalid_segments_are_counted_by_cause() {
    let a = Station::a();
    let mut good = segment(b"x");
    let pseudo = ipv4::address_sum(B, A).plus_word(6).plus_word(21);
    let sum = pseudo.plus(Sum::of(&good)).checksum();
    let mut partial = good.clone();
    good[16..18].copy_from_slice(&sum.to_be_bytes());
    partial[16..18].copy_from_slice(&pseudo.fold().to_be_bytes());
    let mut bad = good.clone();
    bad[20] ^= 1;
    let receive = |bytes: &[u8], checksum| {
        a.receive_as(&to_a(&packet(B, A, Protocol::TCP, bytes)), checksum);
        [Count::TcpInSegs, Count::TcpInPartialCsums, Count::TcpInErrs, Count::TcpInCsumErrors]
            .map(|count| a.count(count))
    };
    assert_eq!(receive(&good, Checksum::Unverified), [1, 0, 0, 0]);
    assert_eq!(receive(&good, Checksum::MaybePartial), [2, 0, 0, 0]);
    assert_eq!(receive(&partial, Checksum::MaybePartial), [3, 1, 0, 0]);
    assert_eq!(
        receive(&bad, Checksum::Partial),
        [4, 2, 0, 0],
        "a partial checksum is not verified"
    );
    assert_eq!(receive(&bad, Checksum::Unverified), [4, 2, 1, 1]);
    assert_eq!(receive(&partial, Checksum::Unverified), [4, 2, 2, 2]);
    assert_eq!(receive(&good[..19], Checksum::Unverified), [4, 2, 3, 2]);
    let many = packet(B, [10, 0, 0, 255].into(), Protocol::TCP, &good);
    a.receive(&frame_of(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &many));
    assert_eq!(a.count(Count::TcpInErrs), 4);
}
