//! Calls every accessor of a TCP segment.

use busypoll_stack::wire::checksum::Sum;
use busypoll_stack::wire::tcp::{Header, MAX_OPTIONS_LEN, Opt, Options, Packet};
use busypoll_stack::wire::{Error, Result, udp};

pub(super) fn segment(bytes: &[u8], addresses: Sum) -> Result<()> {
    let tcp = Packet::new_checked(bytes)?;
    assert!((20..=60).contains(&tcp.header_len()));
    assert_eq!(tcp.header_len() + tcp.payload().len(), bytes.len());
    assert!(tcp.option_bytes().len() <= MAX_OPTIONS_LEN);
    assert_eq!(udp::ports(bytes), Ok((tcp.src_port(), tcp.dst_port())));
    assert!(tcp.options().eq(Options::new(tcp.option_bytes())));
    options(tcp.option_bytes());

    // The accessors cover the whole segment, except for the checksum and the reserved bits.
    let header = Header {
        src_port: tcp.src_port(),
        dst_port: tcp.dst_port(),
        seq: tcp.seq(),
        ack: tcp.ack(),
        flags: tcp.flags(),
        window: tcp.window(),
        urgent: tcp.urgent(),
    };
    let mut copy = vec![0; bytes.len()];
    let mut again = Packet::init(&mut copy[..], &header, tcp.option_bytes().len())?;
    again.options_mut().copy_from_slice(tcp.option_bytes());
    again.payload_mut().copy_from_slice(tcp.payload());
    again.fill_partial_checksum(addresses);
    assert!(again.has_partial_checksum(addresses));
    again.complete_checksum();
    let completed = again.checksum();
    again.fill_checksum(addresses);
    assert_eq!(completed, again.checksum());
    assert_eq!(again.verify_checksum(addresses), Ok(()));
    copy[12] |= bytes[12] & 0x0f;
    copy[16..18].copy_from_slice(&bytes[16..18]);
    assert_eq!(copy, bytes);

    match tcp.verify_checksum(addresses) {
        Err(Error::BadChecksum) if tcp.has_partial_checksum(addresses) => Ok(()),
        other => other,
    }
}

/// Any bytes as options: their length is at most that of the input.
pub(super) fn options(bytes: &[u8]) {
    let len = |option: Opt<'_>| match option {
        Opt::Mss(_) => 4,
        Opt::WindowScale(_) => 3,
        Opt::Timestamps(..) => 10,
        Opt::Sack(blocks) => {
            let pairs: Vec<(u32, u32)> = blocks.iter().collect();
            assert!(!pairs.is_empty());
            2 + 8 * pairs.len()
        }
        Opt::SackPermitted | Opt::Other(_) => 2,
    };
    assert!(Options::new(bytes).map(len).sum::<usize>() <= bytes.len());
}
