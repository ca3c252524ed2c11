//! Sent fragments, reassembly, and invalid fragments.

use super::*;
use crate::inet::reassembly::{BYTES, DATAGRAMS, FRAGMENTS, Frag, Outcome, Reassembly};
use proptest::prelude::*;

/// A fragment: the bytes `start..end` of `whole`.
fn fragment(whole: &[u8], ident: u16, start: usize, end: usize) -> Vec<u8> {
    let mut bytes = packet(B, A, Protocol::UDP, &whole[start..end]);
    let mut ip = ipv4::Packet::new_checked(&mut bytes[..]).unwrap();
    ip.set_ident(ident);
    ip.set_fragment(start, end < whole.len()).unwrap();
    bytes
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

#[test]
fn the_largest_datagram_is_reassembled_from_reversed_fragments() {
    let a = Station::a();
    let b = Station::new("10.0.0.2/24", MAC_B);
    a.learn_neighbour(B, MAC_B);
    let (_binding, mailbox) = b.bind("10.0.0.2:2");
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    let data_sent = payload(MAX_PAYLOAD);
    a.send(&path, &data_sent).unwrap();
    let mut frames = a.sent();
    assert_eq!(frames.len(), 45);
    assert!(frames.iter().all(|frame| frame.len() <= 1514));
    assert_eq!((a.count(Count::IpFragOKs), a.count(Count::IpFragCreates)), (1, 45));
    frames.reverse();
    frames.iter().for_each(|frame| b.receive(frame));
    assert_eq!(mailbox.take(), [data("10.0.0.1:1", "10.0.0.2:2", &data_sent)]);
    assert_eq!(b.count(Count::IpReasmOKs), 1);
    assert_eq!(lock(&b.inet.reassembly).size().0, 0);
}

#[test]
fn ip_pmtudisc_do_forbids_fragmentation_and_a_datagram_has_a_maximum() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let options = PathOptions { discover: crate::inet::PmtuDiscover::DO, ..PathOptions::default() };
    let path = a.path_with("0.0.0.0:1", "10.0.0.2:2", options).unwrap();
    assert_eq!(a.send(&path, &payload(1473)), Err(SendError::TooBig));
    a.send(&path, &payload(1472)).unwrap();
    let sent = a.sent_packet();
    assert!(ipv4::Packet::new_checked(&sent[..]).unwrap().dont_fragment());
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    assert_eq!(a.send(&path, &payload(MAX_PAYLOAD + 1)), Err(SendError::TooBig));
}

#[test]
fn the_pmtu_discovery_option_decides_about_datagrams_above_the_path_mtu() {
    use crate::inet::PmtuDiscover;
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let quote = udp_packet("10.0.0.1:1", "10.0.0.2:2", b"");
    let _bound = a.bind("0.0.0.0:1");
    a.receive(&super::errors::error_frame(icmp::Type::UNREACHABLE, 4, 1000, &quote));
    // Whether 1400 bytes leave in one frame, and if so its DF bit; whether a datagram above the interface's MTU is
    // fragmented.
    let cases = [
        (PmtuDiscover::DONT, None, true),
        (PmtuDiscover::WANT, None, true),
        (PmtuDiscover::DO, None, false),
        (PmtuDiscover::PROBE, Some(true), false),
        (PmtuDiscover::INTERFACE, Some(false), false),
        (PmtuDiscover::OMIT, Some(false), true),
    ];
    for (discover, whole, cuts) in cases {
        let options = PathOptions { discover, ..PathOptions::default() };
        let path = a.path_with("0.0.0.0:1", "10.0.0.2:2", options).unwrap();
        let sent = a.send(&path, &payload(1400)).map(|()| a.sent().len());
        match whole {
            Some(_) => assert_eq!(sent, Ok(1), "{discover:?}"),
            None => assert_eq!(sent, if cuts { Ok(2) } else { Err(SendError::TooBig) }),
        }
        a.send(&path, &payload(500)).unwrap();
        let small = a.sent_packet();
        let dont_fragment = ipv4::Packet::new_checked(&small[..]).unwrap().dont_fragment();
        let expected =
            !matches!(discover, PmtuDiscover::DONT | PmtuDiscover::INTERFACE | PmtuDiscover::OMIT);
        assert_eq!(dont_fragment, expected, "{discover:?}");
        assert!(whole.is_none_or(|whole| whole == dont_fragment));
        let large = a.send(&path, &payload(2_000)).map(|()| a.sent().len() > 1);
        assert_eq!(large, if cuts { Ok(true) } else { Err(SendError::TooBig) }, "{discover:?}");
    }
}

#[test]
fn a_ring_without_room_for_all_fragments_sends_none() {
    let mut tight = Station::a().tape;
    tight.room = 3;
    let own = Addressing::Own(vec!["10.0.0.1/24".parse().unwrap()]);
    let mut a = Station::a();
    a.inet = Inet::new(1, Box::new(|_| ()));
    a.iface = a.inet.add_interface(info(MAC_A), vec![Box::new(tight.clone())], own);
    a.learn_neighbour(B, MAC_B);
    tight.frames.lock().unwrap().clear();
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    assert_eq!(a.send(&path, &payload(9000)), Err(SendError::RingFull));
    assert!(tight.frames.lock().unwrap().is_empty());
    a.send(&path, &payload(4000)).unwrap();
    assert_eq!(tight.frames.lock().unwrap().len(), 3);
    assert_eq!(a.send(&path, b"x"), Err(SendError::RingFull));
    assert_eq!((a.count(Count::IpFragFails), a.count(Count::UdpSndbufErrors)), (1, 1));
}

#[test]
fn an_incomplete_datagram_expires_after_30_seconds_with_an_error_to_its_sender() {
    let mut a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let whole = payload(100);
    a.receive(&to_a(&fragment(&whole, 1, 0, 48)));
    a.receive(&to_a(&fragment(&whole, 2, 48, 100)));
    let deadline = a.now + Duration::from_secs(30);
    assert_eq!(a.wakes.lock().unwrap().first(), Some(&deadline));
    assert_eq!(a.wait(Duration::from_secs(29)), Some(deadline));
    a.wait(Duration::from_secs(1));
    assert_eq!(a.count(Count::IpReasmTimeout), 2);
    // Only the datagram whose first fragment has arrived causes an error.
    assert_eq!(a.count(Count::IcmpOutTimeExcds), 1);
    a.receive(&to_a(&fragment(&whole, 1, 48, 100)));
    assert_eq!(a.count(Count::IpReasmOKs), 0);
    // RFC 1122 section 3.2.2: no error about ICMP.
    let mut bytes = packet(B, A, Protocol::ICMP, &whole[..48]);
    ipv4::Packet::new_checked(&mut bytes[..]).unwrap().set_fragment(0, true).unwrap();
    a.receive(&to_a(&bytes));
    a.wait(Duration::from_secs(31));
    assert_eq!((a.count(Count::IpReasmTimeout), a.count(Count::IcmpOutTimeExcds)), (4, 1));
}

#[test]
fn overlapping_fragments_drop_their_datagram() {
    let whole = payload(200);
    let cases: [&[Vec<u8>]; 5] = [
        // Overlap with the end, with the start, and inside (teardrop).
        &[fragment(&whole, 1, 0, 48), fragment(&whole, 1, 40, 96)],
        &[fragment(&whole, 1, 48, 96), fragment(&whole, 1, 0, 56)],
        &[fragment(&whole, 1, 0, 96), fragment(&whole, 1, 8, 16)],
        // Two different ends, and a fragment beyond the end.
        &[fragment(&whole, 1, 96, 200), fragment(&whole[..80], 1, 48, 80)],
        &[fragment(&whole[..80], 1, 48, 80), fragment(&whole, 1, 96, 104)],
    ];
    for (n, case) in cases.iter().enumerate() {
        let a = Station::a();
        case.iter().for_each(|bytes| a.receive(&to_a(bytes)));
        assert_eq!(a.count(Count::IpReasmOverlaps), 1, "case {n}");
        assert_eq!(lock(&a.inet.reassembly).size().0, 0);
    }
    // A duplicated fragment is no overlap.
    let a = Station::a();
    [fragment(&whole, 1, 0, 48), fragment(&whole, 1, 0, 48)]
        .iter()
        .for_each(|p| a.receive(&to_a(p)));
    assert_eq!(a.count(Count::IpReasmOverlaps), 0);
}

/// RFC 3168 section 5.3: the ECN fields of three fragments (0: not ECN-capable, 1 and 2: capable, 3: congestion
/// experienced), and that of the reassembled packet; `None` if it is dropped.
pub(super) const ECN_CASES: [([u8; 3], Option<u8>); 8] = [
    ([0, 0, 0], Some(0)),
    ([2, 2, 2], Some(2)),
    ([2, 1, 2], Some(2)),
    ([2, 0, 2], Some(2)),
    ([2, 2, 3], Some(3)),
    ([3, 2, 1], Some(3)),
    ([0, 0, 3], None),
    ([3, 0, 2], None),
];

#[test]
fn a_ce_mark_on_one_fragment_marks_the_packet() {
    for (marks, expected) in ECN_CASES {
        let mut reassembly = Reassembly::v4();
        let whole = payload(120);
        let mut outcome = Outcome::Waiting;
        for (mark, start) in marks.into_iter().zip([0, 40, 80]) {
            let mut bytes = fragment(&whole, 1, start, start + 40);
            ipv4::Packet::new_checked(&mut bytes[..]).unwrap().set_tos(0xb8 | mark);
            let packet = ipv4::Packet::new_checked(&bytes[..]).unwrap();
            outcome = reassembly.add(&Frag::v4(&packet), Instant::ZERO).0;
        }
        match (outcome, expected) {
            (Outcome::Whole(bytes), Some(mark)) => {
                let packet = ipv4::Packet::new_checked(&bytes[..]).unwrap();
                packet.verify_checksum().unwrap();
                assert_eq!((packet.dscp(), packet.ecn()), (0x2e, mark), "{marks:?}");
            }
            (outcome, expected) => {
                assert_eq!((outcome, expected), (Outcome::EcnConflict, None), "{marks:?}");
            }
        }
        assert_eq!(reassembly.size().0, 0);
    }
    let a = Station::a();
    for (mark, start, end) in [(0, 0, 48), (3, 48, 100)] {
        let mut bytes = fragment(&payload(100), 1, start, end);
        ipv4::Packet::new_checked(&mut bytes[..]).unwrap().set_tos(mark);
        a.receive(&to_a(&bytes));
    }
    assert_eq!((a.count(Count::IpReasmFails), a.count(Count::IpReasmOverlaps)), (1, 0));
}

#[test]
fn bytes_datagrams_and_fragments_are_bounded() {
    let mut reassembly = Reassembly::v4();
    let whole = vec![0; 65_000];
    let mut evicted = 0;
    let mut add = |reassembly: &mut Reassembly, bytes: &[u8]| {
        let packet = ipv4::Packet::new_checked(bytes).unwrap();
        let (outcome, gone) = reassembly.add(&Frag::v4(&packet), Instant::ZERO);
        evicted += gone;
        outcome
    };
    for ident in 0..5000 {
        add(&mut reassembly, &fragment(&whole, ident, 8, 16));
    }
    assert_eq!(reassembly.size().1, DATAGRAMS);
    for ident in 0..500 {
        for start in (0..60_000).step_by(20_000) {
            add(&mut reassembly, &fragment(&whole, ident, start, start + 20_000));
        }
    }
    for ident in 0..5000 {
        add(&mut reassembly, &fragment(&whole[..16], ident, 0, 8));
        add(&mut reassembly, &fragment(&whole[..16], ident, 8, 16));
    }
    let (bytes, datagrams, queue) = reassembly.size();
    assert!(bytes <= BYTES && datagrams <= DATAGRAMS && queue <= 2 * DATAGRAMS + 1);
    let outcomes: Vec<_> = (0..=FRAGMENTS)
        .map(|n| add(&mut reassembly, &fragment(&whole, 9999, n * 16, n * 16 + 8)))
        .collect();
    assert_eq!(outcomes.last(), Some(&Outcome::Inconsistent));
    assert!(evicted > 4000);
}

/// A model of reassembly: a datagram as an array of bytes that are present or not.
#[derive(Default)]
struct Model {
    bytes: Vec<Option<u8>>,
    ranges: Vec<(usize, usize)>,
    end: Option<usize>,
}

impl Model {
    /// `Err`: the fragment is inconsistent, so the datagram is dropped.
    fn add(&mut self, start: usize, data: &[u8], more: bool) -> Result<Option<Vec<u8>>, ()> {
        let end = start + data.len();
        if self.ranges.contains(&(start, end)) {
            return Ok(None);
        }
        self.bytes.resize(self.bytes.len().max(end), None);
        let clash = self.bytes[start..end].iter().any(Option::is_some);
        if !more {
            if self.end.is_some_and(|old| old != end) {
                return Err(());
            }
            self.end = Some(end);
        }
        if clash || self.end.is_some_and(|end| self.bytes.len() > end) {
            return Err(());
        }
        self.ranges.push((start, end));
        for (slot, byte) in self.bytes[start..end].iter_mut().zip(data) {
            *slot = Some(*byte);
        }
        match self.end {
            Some(_) => Ok(self.bytes.iter().copied().collect()),
            None => Ok(None),
        }
    }
}

proptest! {
    #[test]
    fn reassembly_equals_the_model(
        pieces in prop::collection::vec((0u16..3, 0usize..12, 1usize..5, any::<bool>(), 0usize..8), 1..80)
    ) {
        let mut reassembly = Reassembly::v4();
        let mut models: [Model; 3] = Default::default();
        let mut stamp = 0u8;
        for (ident, start, len, more, odd) in pieces {
            stamp = stamp.wrapping_add(1);
            let len = if more { len * 8 } else { len * 8 - odd };
            let data = vec![stamp; len];
            let mut bytes = packet(B, A, Protocol::UDP, &data);
            let mut ip = ipv4::Packet::new_checked(&mut bytes[..]).unwrap();
            ip.set_ident(ident);
            if start == 0 && !more {
                continue; // no fragment
            }
            ip.set_fragment(start * 8, more).unwrap();
            let packet = ipv4::Packet::new_checked(&bytes[..]).unwrap();
            let (outcome, evicted) = reassembly.add(&Frag::v4(&packet), Instant::ZERO);
            prop_assert_eq!(evicted, 0);
            let model = &mut models[usize::from(ident)];
            let expected = model.add(start * 8, &data, more);
            if expected != Ok(None) {
                *model = Model::default();
            }
            match (outcome, expected) {
                (Outcome::Waiting, Ok(None)) | (Outcome::Inconsistent, Err(())) => {}
                (Outcome::Whole(got), Ok(Some(wanted))) => {
                    let packet = ipv4::Packet::new_checked(&got[..]).unwrap();
                    prop_assert!(!packet.is_fragment() && packet.verify_checksum().is_ok());
                    prop_assert_eq!(packet.payload(), &wanted[..]);
                }
                (got, wanted) => prop_assert!(false, "{:?}, not {:?}", got, wanted),
            }
        }
        let left = models.iter().filter(|model| !model.ranges.is_empty()).count();
        prop_assert_eq!(reassembly.size().1, left);
    }
}
