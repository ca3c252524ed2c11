//! The steering program: it decides which packets are redirected to our queues. Owns the program and the layout of
//! its lookup key; [`steering`](super::super::steering) fills the map.
//!
//! An IPv4 or IPv6 packet, UDP or TCP, without VLAN tags, is redirected to the socket of the queue it came in on if the
//! map has its (protocol, destination address, destination port), unless the map also has an entry for its connection that
//! says otherwise; and a TCP packet if the map has its connection. The entry names the process, by its slot, whose socket
//! of the queue it is. The first packet of a connection to a port that several processes share passes to the kernel, and
//! so do the packets of the connections that the kernel has there. Of a UDP port that several processes share, the
//! kernel's own lookup finds the socket, and its priority names the process. All other packets pass to the kernel, and so
//! does a redirected packet on a queue without a socket. IPv4 options and IPv6 extension headers are skipped, on a branch
//! of their own so that packets without them are not slower. Inet interprets them. Fragments have a branch of their own,
//! too ([`fragments`]).

use super::{
    asm::{Assembler, If, Instruction, Label, Reg, Size},
    fragments::{self, Places, look_up as look_up_in},
};
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

    /// The local port of a key of a TCP connection.
    pub(in super::super) fn connection_port(&self) -> Option<u16> {
        let [high, low, ..] = self.address;
        (self.protocol == CONNECTION).then_some(u16::from_be_bytes([high, low]))
    }

    /// The port of a key of a TCP port.
    pub(in super::super) fn tcp_port(&self) -> Option<u16> {
        (i32::from(self.protocol) == TCP).then_some(u16::from_be_bytes(self.port))
    }

    /// The key of a mark: the process of `slot` steers single connections of the local port.
    pub(in super::super) fn mark(local: u16, slot: u8) -> Key {
        Key { port: local.to_be_bytes(), protocol: MARK, zero: slot, address: [0; 16] }
    }

    /// Whether it is the key of a UDP port.
    pub(in super::super) fn is_udp_port(&self) -> bool {
        i32::from(self.protocol) == UDP
    }

    /// The key of a mark: the process of `slot` has sockets of this UDP port, which other processes may have, too.
    pub(in super::super) fn member(self, slot: u8) -> Key {
        Key { protocol: MEMBER, zero: slot, ..self }
    }

    /// The key of a mark: the process of `slot` waits for connections to this TCP port, which it does not steer; or
    /// programs [outside](OUTSIDE) do.
    pub(in super::super) fn sharer(self, slot: u8) -> Key {
        Key { protocol: SHARER, zero: slot, ..self }
    }

    /// Whether it is the key of a mark for programs outside.
    pub(in super::super) fn is_of_outside(&self) -> bool {
        (self.protocol, self.zero) == (SHARER, OUTSIDE)
    }
}

/// A flag of an entry's value: the port or connection is ours. Without it, it is the kernel's.
pub(in super::super) const OURS: u8 = 1;
/// A flag of the value of a port of ours: its connections must be looked up, too, see [`Key::connection`]. Those of other
/// ports always are.
pub(in super::super) const BY_CONNECTION: u8 = 2;
/// A flag of the value of a TCP port of ours: packets of connections that the kernel has are the kernel's.
pub(in super::super) const KERNEL_FIRST: u8 = 4;
/// The slot of the process that made an entry stands above these flags of its value.
const SLOT_SHIFT: u8 = 3;
const SLOT_MASK: u8 = 7;
/// A flag of the value of a port of ours: other processes have it, too. Of a TCP port it implies the two flags above, and
/// a connection begins with the kernel. Of a UDP port the socket that the kernel finds names the process.
pub(in super::super) const SHARED: u8 = 1 << 6;

/// The bits of a value that name its process.
pub(in super::super) fn of_slot(slot: u8) -> u8 {
    slot << SLOT_SHIFT
}

/// The slot of the process that made an entry with this value.
pub(in super::super) fn slot_of(value: u8) -> u8 {
    value >> SLOT_SHIFT & SLOT_MASK
}
/// In the key's protocol field: the key is that of a TCP connection.
const CONNECTION: u8 = 0x86;
/// In the key's protocol field: the key is that of a [mark](Key::mark). No packet has it.
const MARK: u8 = 0x87;
/// In the key's protocol field: the key is that of a [sharer](Key::sharer).
const SHARER: u8 = 0x88;
/// In place of a slot: the programs that have none.
pub(in super::super) const OUTSIDE: u8 = 31;
/// In the key's protocol field: the key is that of a [member](Key::member).
const MEMBER: u8 = 0x89;

/// The priority of a UDP socket whose port several processes may share: these bits, then the slot of its process, and in
/// the low byte the priority that it had. Queueing disciplines look at the low bits.
const PRIORITY: u32 = 0xb500_0000;
const PRIORITY_SLOT: u32 = 8;
const PRIORITY_ABOVE_SLOT: u32 = PRIORITY_SLOT + SLOT_MASK.count_ones();

/// The priority of a socket of the process of `slot`; `None` if `before`, its own, does not fit.
pub(in super::super) fn priority_of(slot: u8, before: u32) -> Option<u32> {
    let before = own_priority(before);
    (before <= 0xff).then_some(PRIORITY | u32::from(slot) << PRIORITY_SLOT | before)
}

/// The slot that a socket's priority names.
pub(in super::super) fn slot_of_priority(priority: u32) -> Option<u8> {
    let is_ours = priority & !(u32::from(SLOT_MASK) << PRIORITY_SLOT | 0xff) == PRIORITY;
    is_ours.then_some((priority >> PRIORITY_SLOT) as u8 & SLOT_MASK)
}

/// Whether a socket's priority names a slot.
#[must_use]
pub fn names_slot(priority: u32) -> bool {
    slot_of_priority(priority).is_some()
}

/// The priority that a socket had before it named a slot.
#[must_use]
pub fn own_priority(priority: u32) -> u32 {
    if names_slot(priority) { priority & 0xff } else { priority }
}

/// The offset of the key on the program's stack, and those of its fields.
pub(super) const KEY: i16 = -(size_of::<Key>() as i16);
const KEY_PORT: i16 = KEY;
const KEY_PROTOCOL: i16 = KEY + 2;
const KEY_ZERO: i16 = KEY + 3;
const KEY_ADDRESS: i16 = KEY + 4;

/// A `struct bpf_sock_tuple` on the stack, below the key: the source address, the destination address, and both ports.
/// Above it the state or the priority of the socket that was found.
const STATE: i16 = KEY - 4;
const TUPLE: i16 = STATE - TUPLE_V6;
const TUPLE_V4: i16 = 12;
const TUPLE_V6: i16 = 36;

/// In `struct bpf_sock`.
const SOCKET_PRIORITY: i16 = 20;
const SOCKET_STATE: i16 = 72;
/// include/net/tcp_states.h.
const LISTEN: i32 = 10;
/// The network namespace of the device.
const CURRENT_NETNS: i32 = -1;

/// `struct xdp_md`, include/uapi/linux/bpf.h.
const CONTEXT_DATA: i16 = 0;
pub(super) const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_RX_QUEUE_INDEX: i16 = 16;

const XDP_PASS: i32 = 2;
pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const SK_LOOKUP_UDP: i32 = 85;
const SK_RELEASE: i32 = 86;
const SKC_LOOKUP_TCP: i32 = 99;

const ETHERNET: i16 = 14;
pub(super) const IPV4: i16 = 20;
pub(super) const IPV6: i16 = 40;
const PORTS: i16 = 4;
/// Offsets from the end of the ports.
const SOURCE_PORT: i16 = -4;
const DESTINATION_PORT: i16 = -2;
const TCP_FLAGS: i16 = 9;
const SYN: i32 = 0x02;
const ACK: i32 = 0x10;

const TCP: i32 = 6;
pub(super) const UDP: i32 = 17;
const HOP_BY_HOP: i32 = 0;
const ROUTING: i32 = 43;
const FRAGMENT: i32 = 44;
const DESTINATION_OPTIONS: i32 = 60;
/// The most extension headers of a packet that is ours: those of RFC 8200 section 4.1 without IPsec's two.
const EXTENSION_HEADERS: usize = 5;

/// A 16-bit field as the CPU loads it from a packet.
pub(super) const fn loaded(network: u16) -> i32 {
    network.to_be() as i32
}

/// The program's maps.
pub(super) struct Maps<'a> {
    /// A hash map with [`Key`] keys.
    pub(super) ports: BorrowedFd<'a>,
    /// An XSKMAP by slot and queue.
    pub(super) sockets: BorrowedFd<'a>,
    /// Whose the datagrams are that come in fragments, see [`fragments`].
    pub(super) datagrams: BorrowedFd<'a>,
}

/// The program over `maps`, with `queues` sockets for each slot.
pub(super) fn steering(maps: &Maps<'_>, queues: u32) -> Vec<Instruction> {
    use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
    let mut a = Assembler::default();
    let (pass, ours, fragment) = (a.label(), a.label(), Places::new(&mut a));

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
    a.jump_if_reg(R8, If::Above, R1, fragment.short);

    // Version 4, and a header of five words, or more with options.
    let no_options = a.label();
    a.load(Size::U8, R3, R7, 0);
    a.jump_if(R3, If::Equal, 0x45, no_options);
    a.add(R3, -0x45);
    a.jump_if(R3, If::Above, 10, pass);
    a.shift_left(R3, 2);
    a.add_reg(R8, R3);
    a.jump_if_reg(R8, If::Above, R1, fragment.short);
    a.place(no_options);

    // The key: protocol, destination port (below), destination address as ::ffff:a.b.c.d.
    a.load(Size::U8, R4, R7, 9);
    a.store_value(Size::U64, R10, KEY_ADDRESS, 0);
    a.store_value(Size::U32, R10, KEY_ADDRESS + 8, 0x0000_ffff_u32.to_be() as i32);
    a.load(Size::U32, R3, R7, 16);
    a.store(Size::U32, R10, KEY_ADDRESS + 12, R3);

    // A fragment has "more fragments" or an offset.
    a.load(Size::U16, R3, R7, 6);
    a.and(R3, loaded(0x3fff));
    a.jump_if(R3, If::NotEqual, 0, fragment.four);

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
        extension_header(&mut a, at == 0, fragment.six, pass);
        a.jump_if(R4, If::Equal, UDP, look_up);
        a.jump_if(R4, If::Equal, TCP, look_up);
    }
    a.jump(pass);

    a.place(look_up);
    port_of(&mut a);

    // Is it ours?
    look_up_in(&mut a, maps.ports, KEY);
    let (port, connection) = (a.label(), a.label());
    a.jump_if(R0, If::NotEqual, 0, port);

    // A single connection may be ours where the port is not.
    a.load(Size::U8, R4, R10, KEY_PROTOCOL);
    a.jump_if(R4, If::NotEqual, TCP, pass);
    a.set(R9, 0);
    a.jump(connection);

    // Is this connection of the port ours, too? R9 = the map's value.
    let (six, look_again, decide) = (a.label(), a.label(), a.label());
    let group = a.label();
    a.place(port);
    a.load(Size::U8, R9, R0, 0);
    a.copy(R1, R9);
    a.and(R1, (BY_CONNECTION | KERNEL_FIRST | SHARED).into());
    a.jump_if(R1, If::Equal, 0, ours);
    a.load(Size::U8, R4, R10, KEY_PROTOCOL);
    a.jump_if(R4, If::Equal, UDP, group);
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
    look_up_in(&mut a, maps.ports, KEY);
    let no_entry = a.label();
    a.jump_if(R0, If::Equal, 0, no_entry);
    a.load(Size::U8, R9, R0, 0);
    a.jump(decide);
    a.place(no_entry);
    begins_with_kernel(&mut a, pass);
    kernel_first(&mut a, pass);
    a.place(decide);
    a.copy(R1, R9);
    a.and(R1, OURS.into());
    a.jump_if(R1, If::Equal, 0, pass);
    a.jump(ours);

    a.place(group);
    process_of_socket(&mut a, maps.ports, pass);
    a.jump(ours);

    fragments::steer(&mut a, maps, &fragment, port_of, (ours, pass));
    a.place(ours);

    // Yes: redirect to the process's socket of this queue; pass to the kernel if the queue has none.
    a.load(Size::U32, R2, R6, CONTEXT_RX_QUEUE_INDEX);
    a.jump_if(R2, If::Above, queues.saturating_sub(1).cast_signed(), pass);
    a.shift_right(R9, SLOT_SHIFT.into());
    a.and(R9, SLOT_MASK.into());
    a.multiply(R9, queues.cast_signed());
    a.add_reg(R2, R9);
    a.set_map(R1, maps.sockets);
    a.set(R3, XDP_PASS);
    a.call(REDIRECT_MAP);
    a.exit();

    a.place(pass);
    a.set(R0, XDP_PASS);
    a.exit();
    a.finish()
}

/// Completes the key: R4 = protocol, R8 = the end of the ports.
fn port_of(a: &mut Assembler) {
    use Reg::{R4, R5, R8, R10};
    a.load(Size::U16, R5, R8, DESTINATION_PORT);
    a.store(Size::U8, R10, KEY_PROTOCOL, R4);
    a.store_value(Size::U8, R10, KEY_ZERO, 0);
    a.store(Size::U16, R10, KEY_PORT, R5);
}

/// If the port's value, R9, has [`SHARED`]: jumps to `pass` if the TCP packet begins a connection. R6 = context, R8 = the
/// end of the ports.
fn begins_with_kernel(a: &mut Assembler, pass: Label) {
    use Reg::{R1, R2, R3, R6, R8, R9};
    let no = a.label();
    a.copy(R1, R9);
    a.and(R1, SHARED.into());
    a.jump_if(R1, If::Equal, 0, no);
    a.load(Size::U32, R1, R6, CONTEXT_DATA_END);
    a.copy(R2, R8);
    a.add(R2, i32::from(TCP_FLAGS) + 1);
    a.jump_if_reg(R2, If::Above, R1, pass);
    a.load(Size::U8, R3, R8, TCP_FLAGS);
    a.and(R3, SYN | ACK);
    a.jump_if(R3, If::Equal, SYN, pass);
    a.place(no);
}

/// If the port's value, R9, has [`KERNEL_FIRST`] or [`SHARED`]: jumps to `pass` if the kernel has the packet's connection.
/// As for [`look_socket_up`].
fn kernel_first(a: &mut Assembler, pass: Label) {
    use Reg::{R1, R3, R9};
    let no = a.label();
    a.copy(R1, R9);
    a.and(R1, (KERNEL_FIRST | SHARED).into());
    a.jump_if(R1, If::Equal, 0, no);
    look_socket_up(a, SKC_LOOKUP_TCP, SOCKET_STATE, R3, (no, pass));
    // A listener is the companion of ours.
    a.jump_if(R3, If::NotEqual, LISTEN, pass);
    a.place(no);
}

/// Of a UDP port that several processes share: R9 = the value of the process whose socket the kernel would give the packet
/// to. Jumps to `pass` if that has no process, or one that does not have the port. R6 = context, R7 = packet, R8 = the
/// end of the ports; the key on the stack is the port's.
fn process_of_socket(a: &mut Assembler, ports: BorrowedFd<'_>, pass: Label) {
    use Reg::{R0, R3, R9, R10};
    look_socket_up(a, SK_LOOKUP_UDP, SOCKET_PRIORITY, R9, (pass, pass));
    a.copy(R3, R9);
    a.shift_right(R3, PRIORITY_ABOVE_SLOT.cast_signed());
    a.jump_if(R3, If::NotEqual, (PRIORITY >> PRIORITY_ABOVE_SLOT).cast_signed(), pass);
    a.shift_right(R9, PRIORITY_SLOT.cast_signed());
    a.and(R9, SLOT_MASK.into());
    // The process may have ended, and another one have its socket.
    a.store(Size::U8, R10, KEY_ZERO, R9);
    a.store_value(Size::U8, R10, KEY_PROTOCOL, MEMBER.into());
    look_up_in(a, ports, KEY);
    a.jump_if(R0, If::Equal, 0, pass);
    a.shift_left(R9, SLOT_SHIFT.into());
}

/// `to` = a field of the kernel's socket for the packet, by a helper that looks one up. Jumps to `none` if there is no
/// socket, and to `pass` if the packet is cut. R6 = context, R7 = packet, R8 = the end of the ports.
fn look_socket_up(
    a: &mut Assembler,
    helper: i32,
    field: i16,
    to: Reg,
    (none, pass): (Label, Label),
) {
    use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R10};
    let (six, look_up) = (a.label(), a.label());
    a.load(Size::U32, R4, R8, SOURCE_PORT);
    a.load(Size::U8, R3, R7, 0);
    a.and(R3, 0xf0);
    a.jump_if(R3, If::Equal, 0x60, six);
    a.load(Size::U32, R3, R7, 12);
    a.store(Size::U32, R10, TUPLE, R3);
    a.load(Size::U32, R3, R7, 16);
    a.store(Size::U32, R10, TUPLE + 4, R3);
    a.store(Size::U32, R10, TUPLE + 8, R4);
    a.set(R3, TUPLE_V4.into());
    a.jump(look_up);
    a.place(six);
    // The verifier does not know that this packet is the longer one.
    a.load(Size::U32, R1, R6, CONTEXT_DATA_END);
    a.copy(R2, R7);
    a.add(R2, IPV6.into());
    a.jump_if_reg(R2, If::Above, R1, pass);
    for word in [0, 4, 8, 12] {
        a.load(Size::U32, R3, R7, 8 + word);
        a.store(Size::U32, R10, TUPLE + word, R3);
        a.load(Size::U32, R3, R7, 24 + word);
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
    a.call(helper);
    a.jump_if(R0, If::Equal, 0, none);
    a.load(Size::U32, R3, R0, field);
    a.store(Size::U32, R10, STATE, R3);
    a.copy(R1, R0);
    a.call(SK_RELEASE);
    a.load(Size::U32, to, R10, STATE);
}

/// Skips the extension header of type R4, whose first four bytes end at R8. Afterwards R4 = the type of the next header
/// and R8 = four bytes into it. Jumps to `piece` if it is the header of a fragment, and to `pass` if R4 is no extension
/// header, if the packet must be forwarded, or if the header reaches beyond the packet's end, R1.
fn extension_header(a: &mut Assembler, first: bool, piece: Label, pass: Label) {
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

    // An atomic fragment (RFC 6946) is a whole packet; its header has no length field.
    a.place(fragment);
    a.load(Size::U16, R3, R8, -2);
    a.and(R3, loaded(0xfff9));
    a.jump_if(R3, If::NotEqual, 0, piece);

    // Units of eight bytes, not counting the first.
    a.place(go_on);
    a.load(Size::U8, R4, R8, -4);
    a.shift_left(R3, 3);
    a.add_reg(R8, R3);
    a.add(R8, 8);
    a.jump_if_reg(R8, If::Above, R1, pass);
}
