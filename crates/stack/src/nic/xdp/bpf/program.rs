//! The steering program: it decides which packets are redirected to our queues. Owns the program and the layout of
//! its lookup key; [`steering`](super::super::steering) fills the map.
//!
//! An unfragmented IPv4 or IPv6 packet, UDP or TCP, without VLAN tags, is redirected to the socket of the queue it came
//! in on if the map has its (protocol, destination address, destination port), unless the map also has an entry for its
//! connection that says otherwise; and a TCP packet if the map has its connection. All other packets pass to the kernel, and so does a redirected packet on a queue
//! without a socket. IPv4 options and IPv6 extension headers are skipped, on a branch of their own so that packets
//! without them are not slower. Inet interprets them.

use super::asm::{Assembler, If, Instruction, Label, Reg, Size};
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
};

/// The map's key: the destination of a packet. IPv4 addresses are mapped into IPv6 (RFC 4291 section 2.5.5.2),
/// so that one map serves both.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Key {
    /// Destination port, in network order.
    port: [u8; 2],
    protocol: u8,
    zero: u8,
    address: [u8; 16],
}

impl Key {
    pub(in super::super) fn new(protocol: u8, local: SocketAddr) -> Key {
        let address = match local.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Key { port: local.port().to_be_bytes(), protocol, zero: 0, address: address.octets() }
    }

    /// The key of a TCP connection from `remote` to a local port: the remote address and port, with the local port in
    /// place of the address's first two bytes. Addresses that differ only there share a key, and so its decision.
    pub(in super::super) fn connection(local: u16, remote: SocketAddr) -> Key {
        let mut key = Key::new(CONNECTION, remote);
        key.address[..2].copy_from_slice(&local.to_be_bytes());
        key
    }
}

/// A flag of an entry's value: the port or connection is ours. Without it, it is the kernel's.
pub(in super::super) const OURS: u8 = 1;
/// A flag of the value of a port of ours: its connections must be looked up, too, see [`Key::connection`]. Those of other
/// ports always are.
pub(in super::super) const BY_CONNECTION: u8 = 2;
/// A flag of the value of a TCP port of ours: packets of connections that the kernel has are the kernel's.
pub(in super::super) const KERNEL_FIRST: u8 = 4;
/// In the key's protocol field: the key is that of a TCP connection.
const CONNECTION: u8 = 0x86;

/// The offset of the key on the program's stack, and those of its fields.
const KEY: i16 = -(size_of::<Key>() as i16);
const KEY_PORT: i16 = KEY;
const KEY_PROTOCOL: i16 = KEY + 2;
const KEY_ZERO: i16 = KEY + 3;
const KEY_ADDRESS: i16 = KEY + 4;

/// A `struct bpf_sock_tuple` on the stack, below the key: the source address, the destination address, and both ports.
/// Above it the state of the socket that was found.
const STATE: i16 = KEY - 4;
const TUPLE: i16 = STATE - TUPLE_V6;
const TUPLE_V4: i16 = 12;
const TUPLE_V6: i16 = 36;

/// In `struct bpf_sock`.
const SOCKET_STATE: i16 = 72;
/// include/net/tcp_states.h.
const LISTEN: i32 = 10;
/// The network namespace of the device.
const CURRENT_NETNS: i32 = -1;

/// `struct xdp_md`, include/uapi/linux/bpf.h.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_RX_QUEUE_INDEX: i16 = 16;

const XDP_PASS: i32 = 2;
const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const SK_RELEASE: i32 = 86;
const SKC_LOOKUP_TCP: i32 = 99;

const ETHERNET: i16 = 14;
const IPV4: i16 = 20;
const IPV6: i16 = 40;
const PORTS: i16 = 4;
/// Offsets from the end of the ports.
const SOURCE_PORT: i16 = -4;
const DESTINATION_PORT: i16 = -2;

const TCP: i32 = 6;
const UDP: i32 = 17;
const HOP_BY_HOP: i32 = 0;
const ROUTING: i32 = 43;
const FRAGMENT: i32 = 44;
const DESTINATION_OPTIONS: i32 = 60;
/// The most extension headers of a packet that is ours: those of RFC 8200 section 4.1 without IPsec's two.
const EXTENSION_HEADERS: usize = 5;

/// A 16-bit field as the CPU loads it from a packet.
const fn loaded(network: u16) -> i32 {
    network.to_be() as i32
}

/// The program over `ports` (a hash map with [`Key`] keys) and `sockets` (an XSKMAP by queue).
pub(super) fn steering(ports: BorrowedFd<'_>, sockets: BorrowedFd<'_>) -> Vec<Instruction> {
    use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
    let mut a = Assembler::default();
    let pass = a.label();

    // R6 = context, R7 = packet, R1 = its end.
    a.copy(R6, R1);
    a.load(Size::U32, R7, R6, CONTEXT_DATA);
    a.load(Size::U32, R1, R6, CONTEXT_DATA_END);

    // R3 = EtherType.
    a.copy(R2, R7);
    a.add(R2, ETHERNET.into());
    a.jump_if_reg(R2, If::Above, R1, pass);
    a.load(Size::U16, R3, R7, ETHERNET - 2);

    // IP only: ARP and the rest are the kernel's, and so are tagged frames, which are for its VLAN interfaces.
    // R7 = packet, R8 = the end of the ports, wherever they are.
    let (ipv6, look_up) = (a.label(), a.label());
    a.add(R7, ETHERNET.into());
    a.copy(R8, R7);
    a.jump_if(R3, If::Equal, loaded(0x86dd), ipv6);
    a.jump_if(R3, If::NotEqual, loaded(0x0800), pass);
    a.add(R8, (IPV4 + PORTS).into());
    a.jump_if_reg(R8, If::Above, R1, pass);

    // Version 4, and a header of five words, or more with options.
    let no_options = a.label();
    a.load(Size::U8, R3, R7, 0);
    a.jump_if(R3, If::Equal, 0x45, no_options);
    a.add(R3, -0x45);
    a.jump_if(R3, If::Above, 10, pass);
    a.shift_left(R3, 2);
    a.add_reg(R8, R3);
    a.jump_if_reg(R8, If::Above, R1, pass);
    a.place(no_options);

    // Not a fragment: neither "more fragments" nor an offset.
    a.load(Size::U16, R3, R7, 6);
    a.and(R3, loaded(0x3fff));
    a.jump_if(R3, If::NotEqual, 0, pass);

    // The key: protocol, destination port (below), destination address as ::ffff:a.b.c.d.
    a.load(Size::U8, R4, R7, 9);
    a.store_value(Size::U64, R10, KEY_ADDRESS, 0);
    a.store_value(Size::U32, R10, KEY_ADDRESS + 8, 0x0000_ffff_u32.to_be() as i32);
    a.load(Size::U32, R3, R7, 16);
    a.store(Size::U32, R10, KEY_ADDRESS + 12, R3);

    // UDP or TCP: ICMP, IGMP and the rest are the kernel's.
    a.jump_if(R4, If::Equal, UDP, look_up);
    a.jump_if(R4, If::Equal, TCP, look_up);
    a.jump(pass);

    a.place(ipv6);
    a.add(R8, (IPV6 + PORTS).into());
    a.jump_if_reg(R8, If::Above, R1, pass);

    // Version 6.
    a.load(Size::U8, R3, R7, 0);
    a.and(R3, 0xf0);
    a.jump_if(R3, If::NotEqual, 0x60, pass);

    // The key.
    a.load(Size::U8, R4, R7, 6);
    for word in [0, 4, 8, 12] {
        a.load(Size::U32, R3, R7, 24 + word);
        a.store(Size::U32, R10, KEY_ADDRESS + word, R3);
    }
    a.jump_if(R4, If::Equal, UDP, look_up);
    a.jump_if(R4, If::Equal, TCP, look_up);
    for at in 0..EXTENSION_HEADERS {
        extension_header(&mut a, at == 0, pass);
        a.jump_if(R4, If::Equal, UDP, look_up);
        a.jump_if(R4, If::Equal, TCP, look_up);
    }
    a.jump(pass);

    a.place(look_up);
    a.load(Size::U16, R5, R8, DESTINATION_PORT);
    a.store(Size::U8, R10, KEY_PROTOCOL, R4);
    a.store_value(Size::U8, R10, KEY_ZERO, 0);
    a.store(Size::U16, R10, KEY_PORT, R5);

    // Is it ours?
    a.set_map(R1, ports);
    a.copy(R2, R10);
    a.add(R2, KEY.into());
    a.call(MAP_LOOKUP_ELEM);
    let (port, connection) = (a.label(), a.label());
    a.jump_if(R0, If::NotEqual, 0, port);

    // A single connection may be ours where the port is not.
    a.load(Size::U8, R4, R10, KEY_PROTOCOL);
    a.jump_if(R4, If::NotEqual, TCP, pass);
    a.set(R9, 0);
    a.jump(connection);

    // Is this connection of the port ours, too? R9 = the map's value.
    let (six, look_again, decide, ours) = (a.label(), a.label(), a.label(), a.label());
    a.place(port);
    a.load(Size::U8, R9, R0, 0);
    kernel_first(&mut a, pass);
    a.copy(R1, R9);
    a.and(R1, BY_CONNECTION.into());
    a.jump_if(R1, If::Equal, 0, ours);
    a.place(connection);
    a.load(Size::U8, R3, R7, 0);
    a.and(R3, 0xf0);
    a.jump_if(R3, If::Equal, 0x60, six);
    a.load(Size::U32, R3, R7, 12);
    a.store(Size::U32, R10, KEY_ADDRESS + 12, R3);
    a.jump(look_again);
    a.place(six);
    for word in [0, 4, 8, 12] {
        a.load(Size::U32, R3, R7, 8 + word);
        a.store(Size::U32, R10, KEY_ADDRESS + word, R3);
    }
    a.place(look_again);
    a.load(Size::U16, R4, R8, DESTINATION_PORT);
    a.load(Size::U16, R5, R8, SOURCE_PORT);
    a.store(Size::U16, R10, KEY_ADDRESS, R4);
    a.store(Size::U16, R10, KEY_PORT, R5);
    a.store_value(Size::U8, R10, KEY_PROTOCOL, CONNECTION.into());
    a.set_map(R1, ports);
    a.copy(R2, R10);
    a.add(R2, KEY.into());
    a.call(MAP_LOOKUP_ELEM);
    a.jump_if(R0, If::Equal, 0, decide);
    a.load(Size::U8, R9, R0, 0);
    a.place(decide);
    a.and(R9, OURS.into());
    a.jump_if(R9, If::Equal, 0, pass);
    a.place(ours);

    // Yes: redirect to this queue's socket; pass to the kernel if the queue has none.
    a.set_map(R1, sockets);
    a.load(Size::U32, R2, R6, CONTEXT_RX_QUEUE_INDEX);
    a.set(R3, XDP_PASS);
    a.call(REDIRECT_MAP);
    a.exit();

    a.place(pass);
    a.set(R0, XDP_PASS);
    a.exit();
    a.finish()
}

/// If the port's value, R9, has [`KERNEL_FIRST`]: jumps to `pass` if the kernel has the packet's connection. R6 = context,
/// R7 = packet, R8 = the end of the ports, and the key has the destination.
fn kernel_first(a: &mut Assembler, pass: Label) {
    use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
    let (six, look_up, no) = (a.label(), a.label(), a.label());
    a.copy(R1, R9);
    a.and(R1, KERNEL_FIRST.into());
    a.jump_if(R1, If::Equal, 0, no);
    a.load(Size::U32, R4, R8, SOURCE_PORT);
    a.load(Size::U8, R3, R7, 0);
    a.and(R3, 0xf0);
    a.jump_if(R3, If::Equal, 0x60, six);
    a.load(Size::U32, R3, R7, 12);
    a.store(Size::U32, R10, TUPLE, R3);
    a.load(Size::U32, R3, R10, KEY_ADDRESS + 12);
    a.store(Size::U32, R10, TUPLE + 4, R3);
    a.store(Size::U32, R10, TUPLE + 8, R4);
    a.set(R3, TUPLE_V4.into());
    a.jump(look_up);
    a.place(six);
    for word in [0, 4, 8, 12] {
        a.load(Size::U32, R3, R7, 8 + word);
        a.store(Size::U32, R10, TUPLE + word, R3);
        a.load(Size::U32, R3, R10, KEY_ADDRESS + word);
        a.store(Size::U32, R10, TUPLE + 16 + word, R3);
    }
    a.store(Size::U32, R10, TUPLE + 32, R4);
    a.set(R3, TUPLE_V6.into());
    a.place(look_up);
    a.copy(R1, R6);
    a.copy(R2, R10);
    a.add(R2, TUPLE.into());
    a.set(R4, CURRENT_NETNS);
    a.set(R5, 0);
    a.call(SKC_LOOKUP_TCP);
    a.jump_if(R0, If::Equal, 0, no);
    a.load(Size::U32, R3, R0, SOCKET_STATE);
    a.store(Size::U32, R10, STATE, R3);
    a.copy(R1, R0);
    a.call(SK_RELEASE);
    // A listener is the companion of ours.
    a.load(Size::U32, R3, R10, STATE);
    a.jump_if(R3, If::NotEqual, LISTEN, pass);
    a.place(no);
}

/// Skips the extension header of type R4, whose first four bytes end at R8. Afterwards R4 = the type of the next header
/// and R8 = four bytes into it. Jumps to `pass` if R4 is no extension header, if the packet must be forwarded, or if
/// the header reaches beyond the packet's end, R1.
fn extension_header(a: &mut Assembler, first: bool, pass: Label) {
    use Reg::{R1, R3, R4, R8};
    let (fragment, options, go_on) = (a.label(), a.label(), a.label());
    if first {
        a.jump_if(R4, If::Equal, HOP_BY_HOP, options);
    }
    a.jump_if(R4, If::Equal, DESTINATION_OPTIONS, options);
    a.jump_if(R4, If::Equal, FRAGMENT, fragment);
    a.jump_if(R4, If::NotEqual, ROUTING, pass);

    // With segments left the packet goes on to another node.
    a.load(Size::U8, R3, R8, -1);
    a.jump_if(R3, If::NotEqual, 0, pass);
    a.place(options);
    a.load(Size::U8, R3, R8, -3);
    a.jump(go_on);

    // Only an atomic fragment (RFC 6946); its header has no length field.
    a.place(fragment);
    a.load(Size::U16, R3, R8, -2);
    a.and(R3, loaded(0xfff9));
    a.jump_if(R3, If::NotEqual, 0, pass);

    // Units of eight bytes, not counting the first.
    a.place(go_on);
    a.load(Size::U8, R4, R8, -4);
    a.shift_left(R3, 3);
    a.add_reg(R8, R3);
    a.add(R8, 8);
    a.jump_if_reg(R8, If::Above, R1, pass);
}
