//! Calls every accessor of a frame. Shared by the tests and the fuzz target.
//!
//! It asserts what `new_checked` promises, so every failure is a panic.

mod six;
mod tcp;

use busypoll_stack::wire::checksum::Sum;
use busypoll_stack::wire::{Error, EtherType, Protocol, Result, arp, ethernet, icmp, ipv4, udp};

/// Parses from the frame inwards as a receiver does, then offers the bytes to every view as they are. Returns the error
/// that the receiver would count.
pub(crate) fn frame(bytes: &[u8]) -> Result<()> {
    let _ = arp(bytes);
    let _ = ip(bytes);
    let _ = icmp(bytes);
    let _ = six::ip(bytes);
    let _ = six::icmp(bytes, Sum::ZERO);
    if let Some(addresses) = bytes.get(..8) {
        let _ = udp(bytes, Sum::of(addresses));
        let _ = tcp::segment(bytes, Sum::of(addresses));
    }
    tcp::options(bytes);

    let frame = ethernet::Frame::new_checked(bytes)?;
    let _ = (frame.dst(), frame.src(), frame.ethertype());
    assert_eq!(frame.payload().len() + ethernet::HEADER_LEN, bytes.len());
    let inner = frame.untag()?;
    assert!(!inner.ethertype.is_tag());
    assert_eq!(inner.payload, &bytes[inner.offset..]);
    let tags = inner.tags().inspect(|t| assert!(t.tpid.is_tag() && t.vid() < 4096)).count();
    assert_eq!(inner.offset, ethernet::HEADER_LEN + tags * ethernet::TAG_LEN);
    match inner.ethertype {
        EtherType::ARP => arp(inner.payload),
        EtherType::IPV4 => ip(inner.payload),
        EtherType::IPV6 => six::ip(inner.payload),
        _ => Ok(()),
    }
}

/// A TCP segment with its checksum corrected, so that all of it is parsed. For the fuzz target.
#[allow(dead_code)]
pub(crate) fn segment(bytes: &[u8]) {
    tcp::options(bytes);
    let mut bytes = bytes.to_vec();
    if let Ok(mut segment) = busypoll_stack::wire::tcp::Packet::new_checked(&mut bytes[..]) {
        segment.fill_checksum(Sum::ZERO);
        assert_eq!(tcp::segment(&bytes, Sum::ZERO), Ok(()));
    }
}

/// An IPv6 packet with its version and length corrected. For the fuzz target.
#[allow(dead_code)]
pub(crate) fn packet(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let (Some(len @ ..=65535), Some(first)) = (bytes.len().checked_sub(40), bytes.first_mut()) {
        *first = *first & 0x0f | 0x60;
        bytes[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    }
    let _ = six::ip(&bytes);
}

fn arp(bytes: &[u8]) -> Result<()> {
    let arp = arp::Packet::new_checked(bytes)?;
    let sender = (arp.sender_mac(), arp.sender_ip());
    let target = (arp.target_mac(), arp.target_ip());
    let mut again = [0; arp::LEN];
    arp::Packet::init(&mut again, arp.operation(), sender, target)?;
    assert_eq!(again, bytes[..arp::LEN], "the accessors cover the whole packet");
    Ok(())
}

fn ip(bytes: &[u8]) -> Result<()> {
    let ip = ipv4::Packet::new_checked(bytes)?;
    header(&ip);
    assert_eq!(ip.header_len() + ip.payload().len(), ip.total_len());

    let mut copy = bytes.to_vec();
    let mut changed = ipv4::Packet::new_checked(&mut copy[..])?;
    changed.payload_mut().fill(0x5a);
    changed.fill_checksum();
    changed.verify_checksum()?;
    changed.set_tos(0xb8);
    changed.set_ttl(ip.ttl().wrapping_sub(1));
    changed.set_src(ip.dst());
    changed.set_dst(ip.src());
    changed.set_ident(!ip.ident());
    changed.set_dont_fragment(!ip.dont_fragment());
    let _ = changed.set_fragment(ip.fragment_offset(), ip.more_fragments());
    assert_eq!(changed.verify_checksum(), Ok(()), "setters keep the checksum");

    ip.verify_checksum()?;
    if ip.is_fragment() {
        return Ok(());
    }
    match ip.protocol() {
        Protocol::ICMP => icmp(ip.payload()),
        Protocol::TCP => tcp::segment(ip.payload(), ip.address_sum()),
        Protocol::UDP => udp(ip.payload(), ip.address_sum()),
        _ => Ok(()),
    }
}

/// The accessors of any header, quoted ones too.
fn header(ip: &ipv4::Packet<&[u8]>) {
    assert!((20..=60).contains(&ip.header_len()));
    assert_eq!(ip.options().len() + ipv4::HEADER_LEN, ip.header_len());
    assert!(ip.dscp() < 64 && ip.ecn() < 4);
    assert_eq!(ip.is_fragment(), ip.more_fragments() || ip.fragment_offset() != 0);
    assert_eq!(ip.address_sum().fold(), ipv4::address_sum(ip.src(), ip.dst()).fold());
    let _ = (ip.ident(), ip.dont_fragment(), ip.ttl(), ip.protocol(), ip.checksum());
    let _ = ip.verify_checksum();
}

fn icmp(bytes: &[u8]) -> Result<()> {
    let icmp = icmp::Packet::new_checked(bytes)?;
    let _ = (icmp.code(), icmp.checksum(), icmp.ident(), icmp.sequence());
    let _ = (icmp.next_hop_mtu(), icmp.pointer());
    assert_eq!(icmp.payload().len() + icmp::HEADER_LEN, bytes.len());
    if let Ok(quoted) = icmp.quoted() {
        header(&quoted);
        assert!(quoted.header_len() + quoted.payload().len() <= quoted.total_len());
        let _ = udp::ports(quoted.payload());
    }

    let mut copy = bytes.to_vec();
    let mut reply = icmp::Packet::new_checked(&mut copy[..])?;
    reply.fill_checksum();
    reply.turn_into_reply();
    assert_eq!(reply.verify_checksum(), Ok(()));
    reply.payload_mut().fill(0);
    let mut error = vec![0; bytes.len().min(576)];
    let _ = icmp::Packet::init_error(&mut error, icmp::Type::UNREACHABLE, 4, 1400, bytes);

    icmp.verify_checksum()?;
    if icmp.kind().is_error() { icmp.quoted().map(|_| ()) } else { Ok(()) }
}

fn udp(bytes: &[u8], addresses: Sum) -> Result<()> {
    let udp = udp::Packet::new_checked(bytes)?;
    assert_eq!(udp.payload().len() + udp::HEADER_LEN, udp.len());
    assert_eq!(udp::ports(bytes), Ok((udp.src_port(), udp.dst_port())));

    let mut copy = bytes.to_vec();
    let mut changed = udp::Packet::new_checked(&mut copy[..])?;
    changed.payload_mut().reverse();
    changed.set_src_port(udp.dst_port());
    changed.set_dst_port(udp.src_port());
    changed.fill_partial_checksum(addresses);
    assert!(changed.has_partial_checksum(addresses));
    changed.complete_checksum();
    let completed = changed.checksum();
    changed.fill_checksum(addresses);
    assert_eq!(completed, changed.checksum());
    assert!(changed.has_checksum());
    assert_eq!(changed.verify_checksum(addresses), Ok(()));

    match udp.verify_checksum(addresses) {
        Err(Error::BadChecksum) if udp.has_partial_checksum(addresses) => Ok(()),
        other => other,
    }
}
