//! Frames in several buffers: whatever they hold and wherever they are cut, what happens is what happens to the same frame
//! in one buffer.

use super::{
    v6::{to_a6, udp6_packet},
    *,
};
use proptest::prelude::*;

/// A station with a socket that each of the [`seeds`] finds or misses.
fn station() -> (Station, Binding, Arc<Mailbox>) {
    let a = v6::a();
    let (binding, mailbox) = a.bind("[::]:7");
    (a, binding, mailbox)
}

fn udp6(to: &str, payload: &[u8]) -> Vec<u8> {
    to_a6(&udp6_packet("[fd00::2]:9", to, payload))
}

/// A valid frame of each kind.
fn seeds() -> Vec<Vec<u8>> {
    let long: Vec<u8> = (0..1001u32).map(|at| (at * 7) as u8).collect();
    let mut segment = vec![0; 32];
    (segment[1], segment[3], segment[12], segment[13]) = (9, 8, 0x80, 0x10);
    segment.extend_from_slice(&long);
    let pseudo = ipv4::address_sum(B, A).plus_word(6).plus_word(segment.len() as u16);
    let sum = pseudo.plus(Sum::of(&segment)).checksum();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut fragment = udp_packet("10.0.0.2:9", "10.0.0.1:7", &long[..800]);
    ipv4::Packet::new_checked(&mut fragment[..]).unwrap().set_fragment(0, true).unwrap();
    let mut ping = vec![3; 900];
    icmp::Packet::init_echo(&mut ping, icmp::Type::ECHO_REQUEST, 1, 1).unwrap().fill_checksum();
    let mut partial = udp_to_a("10.0.0.2:9", "10.0.0.1:7", &long);
    let sum = ipv4::address_sum(B, A).plus_word(17).plus_word(1009).fold();
    partial[40..42].copy_from_slice(&sum.to_be_bytes());
    let mut unsummed = udp_to_a("10.0.0.2:9", "10.0.0.1:7", &long);
    unsummed[40..42].fill(0);
    let mut padded = udp_to_a("10.0.0.2:9", "10.0.0.1:7", &long);
    padded.extend_from_slice(&[1; 9]);
    let mut shorter = udp_to_a("10.0.0.2:9", "10.0.0.1:7", &long);
    shorter[38..40].copy_from_slice(&900u16.to_be_bytes());
    let mut unsummed6 = udp6("[fd00::1]:7", &long);
    unsummed6[60..62].fill(0);
    vec![
        udp_to_a("10.0.0.2:9", "10.0.0.1:7", &long),
        udp_to_a("10.0.0.2:9", "10.0.0.1:7", b""),
        udp_to_a("10.0.0.2:9", "10.0.0.1:8", &long),
        udp_to_a("10.0.0.2:9", "10.0.0.9:7", &long),
        frame_of(MAC_B, MAC_A, EtherType::IPV4, &[0; 60]),
        udp6("[fd00::1]:7", &long),
        udp6("[fd00::1]:8", &long),
        udp6("[fd00::9]:7", &long),
        to_a(&packet(B, A, Protocol::TCP, &segment)),
        to_a(&packet(B, A, Protocol::ICMP, &ping)),
        to_a(&fragment),
        partial,
        unsummed,
        padded,
        shorter,
        unsummed6,
        arp_frame(arp::Operation::REQUEST, (MAC_B, B), (MAC_A, A)),
    ]
}

const KINDS: [Checksum; 3] = [Checksum::Unverified, Checksum::MaybePartial, Checksum::Partial];

/// All that shows of what has happened.
fn traces((a, _, mailbox): &(Station, Binding, Arc<Mailbox>)) -> impl PartialEq + std::fmt::Debug {
    (mailbox.take(), a.sent(), a.inet.counters())
}

fn receive_in_pieces(a: &Station, frame: &[u8], cuts: &[usize], checksum: Checksum) {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (frame.len() + 1)).collect();
    cuts.sort_unstable();
    let first = cuts[0];
    cuts.push(frame.len());
    let rest: Vec<&[u8]> = cuts.windows(2).map(|cut| &frame[cut[0]..cut[1]]).collect();
    let rest = &rest[..];
    let frame = Frame { bytes: &frame[..first], rest: Rest::of(&rest), checksum };
    a.inet.receive(&a.iface, 0, frame, &mut a.pass());
}

#[test]
fn each_kind_of_frame_is_processed_alike_wherever_it_is_cut() {
    let (whole, pieces) = (station(), station());
    for (n, frame) in seeds().iter().enumerate() {
        for kind in KINDS {
            for cut in 0..=frame.len() {
                whole.0.receive_as(frame, kind);
                receive_in_pieces(&pieces.0, frame, &[cut, cut + cut / 2], kind);
                assert_eq!(traces(&whole), traces(&pieces), "frame {n}, {kind:?}, cut at {cut}");
            }
        }
    }
    assert!(whole.0.count(Count::UdpInDatagrams) > 10_000);
    let in_pieces = [&whole, &pieces].map(|of| of.2.in_pieces.load(Ordering::Relaxed));
    assert_eq!(in_pieces, [false, true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn corrupted_frames_are_processed_alike_wherever_they_are_cut(
        frames in prop::collection::vec(
            (0usize..17, prop::collection::vec((0usize..70, any::<u8>()), 0..3), 0usize..6,
             0usize..3, prop::collection::vec(0usize..1100, 1..50)),
            1..20)
    ) {
        let seeds = seeds();
        let (whole, pieces) = (station(), station());
        for (seed, changes, shorter, kind, cuts) in frames {
            let mut frame = seeds[seed].clone();
            for (at, byte) in changes {
                let at = at % frame.len();
                frame[at] = byte;
            }
            frame.truncate(frame.len() - shorter);
            whole.0.receive_as(&frame, KINDS[kind]);
            receive_in_pieces(&pieces.0, &frame, &cuts, KINDS[kind]);
            prop_assert_eq!(traces(&whole), traces(&pieces));
        }
    }
}
