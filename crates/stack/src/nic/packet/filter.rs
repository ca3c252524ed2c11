//! The filters of multicast datagrams, as classic BPF (Documentation/networking/filter.rst): which of them a packet
//! socket copies, and which of them a UDP socket leaves to that copy.

use crate::sys::set_option;
use libc::sock_filter as Instruction;
use std::{io, net::IpAddr, os::fd::AsRawFd};

// linux/bpf_common.h
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
/// With the index register added to the offset.
const LOAD_HALF_INDEXED: u16 = 0x48;
/// The index register becomes the length of the IPv4 header at an offset.
const LOAD_HEADER_LEN: u16 = 0xb1;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALL: u32 = u32::MAX;
const NOTHING: u32 = 0;

// The ancillary loads, linux/filter.h.
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
const INTERFACE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned();
const VLAN_TAG_PRESENT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT).cast_unsigned();
const NETWORK_HEADER: u32 = libc::SKF_NET_OFF.cast_unsigned();

// Offsets in a frame.
const ETHERTYPE: u32 = 12;
const PACKET: u32 = 14;
// In an IP packet.
const V4_FRAGMENT: u32 = 6;
const V4_PROTOCOL: u32 = 9;
const V4_DESTINATION: u32 = 16;
const V6_NEXT_HEADER: u32 = 6;
const V6_DESTINATION: u32 = 24;
const V6_LEN: u32 = 40;
/// In a UDP header.
const PORT: u32 = 2;

const UDP: u32 = 17;

fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

/// Skips the next `then` instructions if the comparison holds, else the next `or`.
fn skip(code: u16, k: u32, then: u8, or: u8) -> Instruction {
    Instruction { code, jt: then, jf: or, k }
}

/// Returns `verdict` unless the comparison holds.
fn unless(code: u16, k: u32, verdict: u32) -> [Instruction; 2] {
    [skip(code, k, 1, 0), op(RETURN, verdict)]
}

/// Returns `verdict` if the destination at `at` is `group`, and if its `port`, loaded as it says, is that one.
fn if_to(
    at: u32,
    group: IpAddr,
    port: Option<(Instruction, u16)>,
    verdict: u32,
) -> Vec<Instruction> {
    let words: Vec<u32> = match group {
        IpAddr::V4(group) => vec![group.to_bits()],
        IpAddr::V6(group) => {
            group.octets().as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
        }
    };
    let mut compared: Vec<(Instruction, u32)> =
        (0..).zip(words).map(|(word, is)| (op(LOAD_WORD, at + 4 * word), is)).collect();
    compared.extend(port.map(|(load, port)| (load, port.into())));
    let last = compared.len() as u8;
    let mut code = Vec::new();
    for (n, (load, is)) in (1..).zip(compared) {
        // To the end: the comparisons that are left, and the return.
        code.extend([load, skip(IF_EQUAL, is, 0, 2 * (last - n) + 1)]);
    }
    code.push(op(RETURN, verdict));
    code
}

/// Of a packet socket: UDP datagrams to these groups and ports. A fragment that may lack the port comes if its group is
/// one of them, and so does an IPv6 packet with extension headers. A frame that was not sent to a multicast address of
/// the link is left to the kernel.
pub(super) fn to_groups(groups: &[(IpAddr, u16)]) -> Vec<Instruction> {
    let of_family = |is_v4: bool| groups.iter().filter(move |(group, _)| group.is_ipv4() == is_v4);
    let nothing = || op(RETURN, NOTHING);
    let mut first_four = vec![op(LOAD_HEADER_LEN, PACKET)];
    let (mut later_four, mut six, mut headers_six) = (Vec::new(), Vec::new(), Vec::new());
    for &(group, port) in of_family(true) {
        let load = op(LOAD_HALF_INDEXED, PACKET + PORT);
        let at = PACKET + V4_DESTINATION;
        first_four.extend(if_to(at, group, Some((load, port)), ALL));
        later_four.extend(if_to(at, group, None, ALL));
    }
    for &(group, port) in of_family(false) {
        let load = op(LOAD_HALF, PACKET + V6_LEN + PORT);
        let at = PACKET + V6_DESTINATION;
        six.extend(if_to(at, group, Some((load, port)), ALL));
        headers_six.extend(if_to(at, group, None, ALL));
    }
    for part in [&mut first_four, &mut later_four, &mut six, &mut headers_six] {
        part.push(nothing());
    }
    // The parts follow in this order.
    let over = |part: &[Instruction]| op(JUMP, part.len() as u32);
    let mut four = vec![op(LOAD_BYTE, PACKET + V4_PROTOCOL)];
    four.extend(unless(IF_EQUAL, UDP, NOTHING));
    four.extend([
        op(LOAD_HALF, PACKET + V4_FRAGMENT),
        skip(IF_ANY_BIT, 0x1fff, 0, 1),
        over(&first_four),
    ]);
    four.append(&mut first_four);
    four.append(&mut later_four);
    let mut code = vec![op(LOAD_WORD, PACKET_TYPE)];
    code.extend(unless(IF_EQUAL, libc::PACKET_MULTICAST.into(), NOTHING));
    code.push(op(LOAD_WORD, VLAN_TAG_PRESENT));
    code.extend(unless(IF_EQUAL, 0, NOTHING));
    code.push(op(LOAD_HALF, ETHERTYPE));
    code.extend([skip(IF_EQUAL, libc::ETH_P_IP.cast_unsigned(), 2, 0)]);
    code.extend([skip(IF_EQUAL, libc::ETH_P_IPV6.cast_unsigned(), 2, 0), nothing()]);
    code.extend([op(JUMP, 1), over(&four)]);
    code.append(&mut four);
    code.extend([op(LOAD_BYTE, PACKET + V6_NEXT_HEADER), skip(IF_EQUAL, UDP, 1, 0), over(&six)]);
    code.append(&mut six);
    code.append(&mut headers_six);
    code
}

/// Makes a UDP socket drop the datagrams to these groups, each with the index of the interface, that a packet socket
/// copies; with none, all datagrams come again. The host's own come always.
///
/// # Errors
/// More than the kernel takes.
pub(crate) fn drop_copies(socket: &impl AsRawFd, groups: &[(u32, IpAddr)]) -> io::Result<()> {
    if groups.is_empty() {
        return match set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
            // There is none.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        };
    }
    attach(socket, &not_to_groups(groups))
}

fn not_to_groups(groups: &[(u32, IpAddr)]) -> Vec<Instruction> {
    let mut code = vec![op(LOAD_WORD, PACKET_TYPE)];
    code.extend(unless(IF_EQUAL, libc::PACKET_MULTICAST.into(), ALL));
    let (mut four, mut six) = (Vec::new(), Vec::new());
    for &(interface, group) in groups {
        let (part, at) = match group {
            IpAddr::V4(_) => (&mut four, NETWORK_HEADER.wrapping_add(V4_DESTINATION)),
            IpAddr::V6(_) => (&mut six, NETWORK_HEADER.wrapping_add(V6_DESTINATION)),
        };
        let drop = if_to(at, group, None, NOTHING);
        part.extend([op(LOAD_WORD, INTERFACE), skip(IF_EQUAL, interface, 0, drop.len() as u8)]);
        part.extend(drop);
    }
    for part in [&mut four, &mut six] {
        part.push(op(RETURN, ALL));
    }
    code.extend([op(LOAD_BYTE, NETWORK_HEADER), op(AND, 0xf0)]);
    code.extend([skip(IF_EQUAL, 0x60, 0, 1), op(JUMP, four.len() as u32)]);
    code.append(&mut four);
    code.append(&mut six);
    code
}

/// Attaches a filter to a socket, in place of the one it has.
pub(super) fn attach(socket: &impl AsRawFd, code: &[Instruction]) -> io::Result<()> {
    let too_long = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let program = libc::sock_fprog {
        len: u16::try_from(code.len()).map_err(too_long)?,
        filter: code.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}
