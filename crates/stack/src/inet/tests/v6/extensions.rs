//! Extension headers, and dropped packets counted by cause.

use super::*;

/// A datagram from B to A after the extension headers `headers`; `first` is the type of the first.
fn after_headers(first: u8, headers: &[u8]) -> Vec<u8> {
    let (_, _, udp) = udp6("[fd00::2]:9", "[fd00::1]:7", b"x");
    packet6(B6, A6, Protocol(first), &[headers, &udp].concat())
}

#[test]
fn extension_headers_that_need_no_action_are_skipped() {
    let a = a();
    let (_binding, mailbox) = a.bind("[::]:7");
    let pad = [1, 4, 0, 0, 0, 0];
    let cases = [
        (0, [&[17, 0][..], &pad].concat()),
        (60, [&[17, 0][..], &pad].concat()),
        // An option that may be skipped.
        (60, vec![17, 0, 0x1e, 4, 1, 2, 3, 4]),
        // A routing header with no segments left.
        (43, vec![17, 0, 0, 0, 0, 0, 0, 0]),
        // An atomic fragment (RFC 6946).
        (44, vec![17, 0, 0, 0, 1, 2, 3, 4]),
        (0, [&[60, 0][..], &pad, &[17, 0], &pad].concat()),
    ];
    for (first, headers) in cases {
        a.receive(&to_a6(&after_headers(first, &headers)));
        let expected = data("[fd00::2]:9", "[fd00::1]:7", b"x");
        assert_eq!(mailbox.take(), [expected], "{first} {headers:02x?}");
    }
    assert!(a.sent().is_empty());
}

#[test]
fn invalid_extension_headers_drop_the_packet_with_an_error_where_rfc_8200_says() {
    let a = a();
    meet(&a);
    let (_binding, mailbox) = a.bind("[::]:7");
    // First header, headers, and the code and pointer of the error, if one is sent.
    type Case = (u8, &'static [u8], Option<(u8, u32)>);
    let cases: [Case; 6] = [
        // RFC 5095: a type 0 routing header with segments left.
        (43, &[17, 0, 0, 1, 0, 0, 0, 0], Some((0, 42))),
        // An option to be discarded silently, one to be reported.
        (60, &[17, 0, 0x40, 4, 0, 0, 0, 0], None),
        (60, &[17, 0, 0x80, 4, 0, 0, 0, 0], Some((2, 42))),
        // Hop-by-hop options that are not first.
        (60, &[0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0], Some((1, 40))),
        // A header that ends beyond its packet.
        (60, &[17, 99, 1, 4, 0, 0, 0, 0], None),
        // A first fragment without all headers (RFC 7112).
        (44, &[60, 0, 0, 1, 0, 0, 0, 0], Some((3, 0))),
    ];
    for (first, headers, expected) in cases {
        let mut packet = after_headers(first, headers);
        if first == 44 {
            packet.truncate(56);
            packet[5] = 16;
            packet[48..].copy_from_slice(&[17, 9, 0, 0, 0, 0, 0, 0]);
        }
        a.receive(&to_a6(&packet));
        let sent = a.sent();
        let got = sent.first().map(|frame| {
            let packet = ip6_of(frame);
            assert_eq!(packet[40], 4, "a parameter problem");
            (packet[41], u32::from_be_bytes(packet[44..48].try_into().unwrap()))
        });
        assert_eq!(got, expected, "{first} {headers:02x?}");
    }
    assert!(mailbox.take().is_empty());
    let refused = a.count(Count::Ip6InHdrErrors) + a.count(Count::Ip6InTruncatedPkts);
    assert_eq!((refused, a.count(Count::Icmp6OutParmProblems)), (6, 4));
}

#[test]
fn dropped_packets_are_counted_by_cause() {
    let a = a();
    let (_binding, mailbox) = a.bind("[::]:7");
    let good = udp6_packet("[fd00::2]:9", "[fd00::1]:7", b"x");
    let from = |address: &str| to_a6(&udp6_packet(&format!("[{address}]:9"), "[fd00::1]:7", b"x"));
    let to = |address: &str| to_a6(&udp6_packet("[fd00::2]:9", &format!("[{address}]:7"), b"x"));
    let change = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        to_a6(&bytes)
    };
    let cases = [
        (to_a6(&good[..39]), Count::Ip6InTruncatedPkts),
        (to_a6(&good[..48]), Count::Ip6InTruncatedPkts),
        (change(|bytes| bytes[0] = 0x45), Count::Ip6InHdrErrors),
        (to("fd00::3"), Count::Ip6InAddrErrors),
        (to("ff02::5"), Count::Ip6InAddrErrors),
        (to("ff01::1"), Count::Ip6InAddrErrors),
        (to("::1"), Count::Ip6InAddrErrors),
        (frame_of(MacAddr::BROADCAST, MAC_B, EtherType::IPV6, &good), Count::Ip6InAddrErrors),
        (from("ff02::1"), Count::Ip6InMartians),
        (from("::1"), Count::Ip6InMartians),
        (from("fd00::1"), Count::Ip6InMartians),
        (from("::ffff:10.0.0.2"), Count::Ip6InMartians),
        (to("::ffff:10.0.0.1"), Count::Ip6InMartians),
        // RFC 8200 section 8.1: over IPv6 a datagram must have a checksum.
        (change(|bytes| bytes[46..48].fill(0)), Count::UdpInCsumErrors),
        (change(|bytes| bytes[48] ^= 1), Count::UdpInCsumErrors),
    ];
    for (frame, count) in cases {
        let before = a.count(count);
        a.receive(&frame);
        assert_eq!(a.count(count), before + 1, "{count:?} {frame:02x?}");
    }
    assert!(mailbox.take().is_empty());
    // Padding is not data.
    a.receive(&[&to_a6(&good)[..], &[0; 20]].concat());
    assert_eq!(mailbox.take(), [data("[fd00::2]:9", "[fd00::1]:7", b"x")]);
    // An interface without an IPv6 address drops all IPv6.
    let v4 = Station::a();
    v4.receive(&to_a6(&good));
    assert_eq!(v4.count(Count::LinkInUnknownProtos), 1);
}

#[test]
fn a_packet_with_no_next_header_is_ignored() {
    let a = a();
    meet(&a);
    a.receive(&to_a6(&packet6(B6, A6, Protocol(59), &[0; 8])));
    assert!(a.sent().is_empty());
}
