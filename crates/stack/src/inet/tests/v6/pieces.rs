//! IPv6 fragments.

use super::*;

/// A fragment from B to A: the bytes `start..end` of `whole`.
fn fragment(whole: &[u8], ident: u32, start: usize, end: usize) -> Vec<u8> {
    let mut bytes = vec![0; 8 + end - start];
    let more = end < whole.len();
    extension::put_fragment(&mut bytes, Protocol::UDP, start, more, ident).unwrap();
    bytes[8..].copy_from_slice(&whole[start..end]);
    to_a6(&packet6(B6, A6, Protocol::FRAGMENT, &bytes))
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

#[test]
fn the_largest_datagram_is_reassembled_from_reversed_fragments() {
    let a = a();
    meet(&a);
    let mut b = fresh("10.0.0.2/24", "fd00::2/64", MAC_B);
    b.wait(Duration::ZERO);
    let (_binding, mailbox) = b.bind("[::]:2");
    let path = a.path("[::]:1", "[fd00::2]:2");
    let sent = payload(MAX_PAYLOAD + 20);
    a.send(&path, &sent).unwrap();
    let mut frames = a.sent();
    assert!(frames.iter().all(|frame| frame.len() <= 1514));
    assert_eq!((a.count(Count::Ip6FragOKs), a.count(Count::Ip6FragCreates)), (1, 46));
    frames.reverse();
    frames.iter().for_each(|frame| b.receive(frame));
    assert_eq!(mailbox.take(), [data("[fd00::1]:1", "[fd00::2]:2", &sent)]);
    assert_eq!(b.count(Count::Ip6ReasmOKs), 1);
    assert_eq!(lock(&b.inet.reassembly6).size().0, 0);
    assert_eq!(a.send(&path, &payload(MAX_PAYLOAD + 21)), Err(SendError::TooBig));
    let whole = PathOptions { discover: crate::inet::PmtuDiscover::DO, ..PathOptions::default() };
    let path = a.path_with("[::]:1", "[fd00::2]:2", whole).unwrap();
    assert_eq!(a.send(&path, &payload(1453)), Err(SendError::TooBig));
    assert_eq!(a.send(&path, &payload(1452)), Ok(()));
}

#[test]
fn overlapping_fragments_drop_their_packet() {
    let a = a();
    let (_binding, mailbox) = a.bind("[::]:7");
    let (_, _, whole) = udp6("[fd00::2]:9", "[fd00::1]:7", &payload(100));
    // RFC 5722 section 4; an exact duplicate is no overlap (RFC 8200 section 4.5).
    for (ident, overlap) in [(1, (8, 32)), (2, (0, 16)), (3, (16, 48))] {
        a.receive(&fragment(&whole, ident, 0, 24));
        a.receive(&fragment(&whole, ident, overlap.0, overlap.1));
        a.receive(&fragment(&whole, ident, 24, 108));
    }
    assert!(mailbox.take().is_empty());
    assert_eq!(a.count(Count::Ip6ReasmOverlaps), 3);
    a.receive(&fragment(&whole, 9, 0, 24));
    a.receive(&fragment(&whole, 9, 0, 24));
    a.receive(&fragment(&whole, 9, 24, 108));
    assert_eq!(mailbox.take().len(), 1);
}

#[test]
fn a_ce_mark_on_one_fragment_marks_the_packet() {
    use crate::{
        inet::{
            reassembly::{Frag, Outcome, Reassembly},
            tests::fragments::ECN_CASES,
        },
        wire::extension::Content,
    };
    for (marks, expected) in ECN_CASES {
        let mut reassembly = Reassembly::v6();
        let whole = payload(120);
        let mut outcome = Outcome::Waiting;
        for (mark, start) in marks.into_iter().zip([0, 40, 80]) {
            let mut bytes = ip6_of(&fragment(&whole, 1, start, start + 40));
            ipv6::Packet::new_checked(&mut bytes[..]).unwrap().set_traffic_class(0xb8 | mark);
            let packet = ipv6::Packet::new_checked(&bytes[..]).unwrap();
            let Content::Fragment(fragment) = packet.content().unwrap() else { panic!() };
            outcome = reassembly.add(&Frag::v6(&packet, &fragment), Instant::ZERO).0;
        }
        match (outcome, expected) {
            (Outcome::Whole(bytes), Some(mark)) => {
                let packet = ipv6::Packet::new_checked(&bytes[..]).unwrap();
                assert_eq!((packet.dscp(), packet.ecn()), (0x2e, mark), "{marks:?}");
            }
            (outcome, expected) => {
                assert_eq!((outcome, expected), (Outcome::EcnConflict, None), "{marks:?}");
            }
        }
    }
}

#[test]
fn an_incomplete_packet_expires_after_a_minute() {
    let mut a = a();
    meet(&a);
    let (_, _, whole) = udp6("[fd00::2]:9", "[fd00::1]:7", &payload(100));
    a.receive(&fragment(&whole, 1, 0, 24));
    a.receive(&fragment(&whole, 2, 24, 48));
    a.wait(Duration::from_secs(59));
    assert_eq!(a.count(Count::Ip6ReasmTimeout), 0);
    a.wait(Duration::from_secs(1));
    assert_eq!((a.count(Count::Ip6ReasmTimeout), a.count(Count::Ip6ReasmFails)), (2, 2));
    // Only a packet whose first fragment has arrived causes an error, which quotes it (RFC 8200 section 4.5).
    let mut sent = a.sent();
    sent.retain(|frame| ip6_of(frame)[40] == 3);
    assert_eq!(sent.len(), 1);
    let packet = ip6_of(&sent[0]);
    assert_eq!((packet[41], a.count(Count::Icmp6OutTimeExcds)), (1, 1));
    assert_eq!(packet[48..], fragment(&whole, 1, 0, 24)[14..]);
}

#[test]
fn a_fragment_inside_a_reassembled_packet_is_dropped() {
    let a = a();
    let (_binding, mailbox) = a.bind("[::]:7");
    let (_, _, udp) = udp6("[fd00::2]:9", "[fd00::1]:7", &payload(100));
    let inner = fragment(&udp, 5, 0, 24)[14 + 40..].to_vec();
    for (start, end) in [(0, 16), (16, 32)] {
        let mut bytes = vec![0; 8 + end - start];
        extension::put_fragment(&mut bytes, Protocol::FRAGMENT, start, end < 32, 6).unwrap();
        bytes[8..].copy_from_slice(&inner[start..end]);
        a.receive(&to_a6(&packet6(B6, A6, Protocol::FRAGMENT, &bytes)));
    }
    assert!(mailbox.take().is_empty());
    assert_eq!(a.count(Count::Ip6InHdrErrors), 1);
}
