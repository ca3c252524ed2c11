//! Arbitrary input: nothing panics, and memory stays bounded.

use super::*;
use crate::inet::reassembly::{BYTES, DATAGRAMS};
use proptest::prelude::*;

/// A valid frame of each kind, to be corrupted.
fn seeds() -> Vec<Vec<u8>> {
    let mut ping = [0; 16];
    icmp::Packet::init_echo(&mut ping, icmp::Type::ECHO_REQUEST, 1, 1).unwrap().fill_checksum();
    let mut error = [0; 8 + 28];
    let quote = udp_packet("10.0.0.1:7", "10.0.0.2:9", b"");
    icmp::Packet::init_error(&mut error[..], icmp::Type::UNREACHABLE, 4, 600, &quote).unwrap();
    let mut fragment = udp_packet("10.0.0.2:9", "10.0.0.1:7", &[1; 64]);
    ipv4::Packet::new_checked(&mut fragment[..]).unwrap().set_fragment(0, true).unwrap();
    vec![
        udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"hello"),
        udp_to_a("10.0.0.2:9", "10.0.0.1:8", b"closed"),
        arp_frame(arp::Operation::REQUEST, (MAC_B, B), (MAC_A, A)),
        arp_frame(arp::Operation::REPLY, (MAC_B, B), (MAC_A, A)),
        to_a(&packet(B, A, Protocol::ICMP, &ping)),
        to_a(&packet(B, A, Protocol::ICMP, &error)),
        to_a(&fragment),
    ]
}

/// Corrupts `frame`, and corrects its IP header checksum if `fix_checksum` is set.
fn corrupt(frame: &mut Vec<u8>, changes: &[(usize, u8)], cut: usize, fix_checksum: bool) {
    for (at, byte) in changes {
        let at = at % frame.len();
        frame[at] = *byte;
    }
    frame.truncate(frame.len().saturating_sub(cut));
    if fix_checksum
        && frame.len() > 14
        && let Ok(mut ip) = ipv4::Packet::new_checked(&mut frame[14..])
    {
        ip.fill_checksum();
    }
}

fn check(a: &Station) {
    let (bytes, datagrams, queue) = lock(&a.inet.reassembly).size();
    assert!(bytes <= BYTES && datagrams <= DATAGRAMS && queue <= 2 * DATAGRAMS + 1);
    assert!(lock(&a.iface.neighbours).table.len() <= NEIGHBOURS);
}

const KINDS: [Checksum; 3] = [Checksum::Unverified, Checksum::MaybePartial, Checksum::Partial];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn corrupted_frames_cause_no_panic_and_no_growth(
        frames in prop::collection::vec(
            (0usize..7, prop::collection::vec((0usize..60, any::<u8>()), 0..4),
             0usize..6, any::<bool>(), 0usize..3, 0u64..2000),
            1..60)
    ) {
        let seeds = seeds();
        let mut a = Station::a();
        let (_binding, _mailbox) = a.bind("0.0.0.0:7");
        for (seed, changes, cut, fix_checksum, kind, millis) in frames {
            let mut frame = seeds[seed].clone();
            corrupt(&mut frame, &changes, cut, fix_checksum);
            a.receive_as(&frame, KINDS[kind]);
            if frame.len() > 14 {
                a.inet.icmp_error_input(&frame[14..], &mut a.pass());
            }
            a.wait(Duration::from_millis(millis));
            a.sent();
        }
        check(&a);
    }

    #[test]
    fn random_bytes_cause_no_panic(noise in prop::collection::vec(any::<u8>(), 0..200), kind in 0usize..3) {
        let a = Station::a();
        a.receive_as(&noise, KINDS[kind]);
        let framed = frame_of(MAC_A, MAC_B, EtherType::IPV4, &noise);
        a.receive_as(&framed, KINDS[kind]);
        a.inet.icmp_error_input(&noise, &mut a.pass());
        check(&a);
    }
}

#[test]
fn a_flood_of_fragments_and_of_new_neighbours_stays_within_the_limits() {
    let a = Station::new("10.0.0.1/8", MAC_A);
    for n in 0..20_000u32 {
        let from = Ipv4Addr::from_bits(0x0a01_0000 + n);
        let mut bytes = packet(from, A, Protocol::UDP, &[0; 1400]);
        ipv4::Packet::new_checked(&mut bytes[..]).unwrap().set_fragment(1400, true).unwrap();
        a.receive(&to_a(&bytes));
        a.receive(&arp_frame(arp::Operation::REQUEST, (MAC_B, from), (MAC_A, A)));
        a.send(
            &a.path("0.0.0.0:1", &format!("{}:9", Ipv4Addr::from_bits(0x0a10_0000 + n))),
            &[0; 999],
        )
        .unwrap();
        a.sent();
    }
    check(&a);
    assert!(a.count(Count::IpReasmEvicted) > 0 && a.count(Count::NeighDropped) > 0);
}
