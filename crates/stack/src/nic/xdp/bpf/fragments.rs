//! The part of the steering program that takes fragments. A datagram has its ports in its first fragment only, and its
//! fragments come in any order. A map has a *verdict* for each datagram, ours or the kernel's, which all its fragments
//! follow: that neither side gets some of them and lacks the others, whatever their order.
//!
//! The fragment that comes first of all decides. If it has the ports, the map of ports says whose the datagram is. If
//! it has not, the datagram is the kernel's, and its first fragment, which comes later, is the kernel's too. The verdict
//! of a datagram of ours reaches beyond its last fragment, whose copies may still come. So the map may have one of an
//! earlier datagram with the same identification. It lasts as long as fragments are kept for reassembly, or until the
//! next first fragment says otherwise. RFC 6864 section 4.3 forbids to use an identification again that early. The map
//! drops its oldest verdicts, and has fewer than there are identifications of IPv4: so those of a sender that counts
//! them up never meet.
//!
//! UDP only. Each fragment of TCP or ICMP is the kernel's, and so are an IPv6 datagram with a header between the fragment
//! header and UDP's, and one for a port that several processes share.

use super::{
    asm::{Assembler, If, Label, Reg, Size},
    program::{CONTEXT_DATA_END, IPV4, IPV6, KEY, MAP_LOOKUP_ELEM, Maps, SHARED, UDP, loaded},
};
use std::os::fd::BorrowedFd;

/// The verdicts that the map has room for. Linux keeps as many incomplete datagrams of one fragment each, in its 4 MiB
/// (`ipfrag_high_thresh`), as a quarter of this.
pub(super) const DATAGRAMS: u32 = 1 << 14;

/// What all fragments of a datagram have in common (RFC 791 section 3.2, RFC 8200 section 4.5).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Key {
    source: [u8; 16],
    destination: [u8; 16],
    identification: u32,
    /// 0 for IPv6, where the next header is the first fragment's.
    protocol: u32,
}

/// A verdict.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Value {
    /// When it was made, in units of 2^30 ns.
    made: u32,
    /// The value of the port's entry in the map of ports; 0: the datagram is the kernel's.
    verdict: u32,
}

/// No shorter than IPv6's reassembly (RFC 8200 section 4.5: 60 seconds), in units of 2^30 ns.
const LIFETIME: i32 = 57;
const UNIT: i32 = 30;

/// Above everything else on the program's stack, which it shares with no other part.
const DATAGRAM: i16 = -104;
const SOURCE: i16 = DATAGRAM;
const DESTINATION: i16 = DATAGRAM + 16;
const IDENTIFICATION: i16 = DATAGRAM + 32;
const PROTOCOL: i16 = DATAGRAM + 36;
const VALUE: i16 = DATAGRAM - 8;
const MADE: i16 = VALUE;
const VERDICT: i16 = VALUE + 4;
/// The fragment's offset: 0 only of the first.
const OFFSET: i16 = VALUE - 8;

/// In a value of the map.
const VALUE_MADE: i16 = 0;
const VALUE_VERDICT: i16 = 4;

const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
const KTIME_GET_NS: i32 = 5;
const NO_EXIST: i32 = 1;

/// Where the program goes on.
pub(super) struct Places {
    /// A fragment of IPv4. R7 = packet, R8 = the end of the ports.
    pub(super) four: Label,
    /// As above, but the ports would end beyond the packet.
    pub(super) short: Label,
    /// A fragment of IPv6. R7 = packet, R8 = four bytes into the fragment header.
    pub(super) six: Label,
    /// The first fragment: its port must be looked up. R4 = protocol, R8 = the end of the ports.
    pub(super) look_up: Label,
}

impl Places {
    pub(super) fn new(a: &mut Assembler) -> Places {
        Places { four: a.label(), short: a.label(), six: a.label(), look_up: a.label() }
    }
}

/// Whose fragments these are. Jumps to `pass` if they are the kernel's, and else to `ours` with R9 = the value of the
/// port's entry. The key of the map of ports has the destination address. R6 = context.
pub(super) fn steer(
    a: &mut Assembler,
    maps: &Maps<'_>,
    places: &Places,
    decide_port: impl FnOnce(&mut Assembler),
    (ours, pass): (Label, Label),
) {
    use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
    let (datagram, decided) = (a.label(), a.label());

    // A last fragment may be shorter than the ports.
    a.place(places.short);
    a.load(Size::U32, R1, R6, CONTEXT_DATA_END);
    a.copy(R2, R7);
    a.add(R2, IPV4.into());
    a.jump_if_reg(R2, If::Above, R1, pass);
    a.load(Size::U8, R3, R7, 0);
    a.and(R3, 0xf0);
    a.jump_if(R3, If::NotEqual, 0x40, pass);
    a.load(Size::U16, R5, R7, 6);
    a.and(R5, loaded(0x1fff));
    a.jump_if(R5, If::Equal, 0, pass);
    key_of_four(a, pass);
    a.jump(datagram);

    a.place(places.four);
    a.load(Size::U16, R5, R7, 6);
    a.and(R5, loaded(0x1fff));
    key_of_four(a, pass);
    a.jump_if(R5, If::NotEqual, 0, datagram);
    a.jump(places.look_up);

    a.place(places.six);
    // The verifier knows nothing of R1 here.
    a.load(Size::U32, R1, R6, CONTEXT_DATA_END);
    a.copy(R2, R7);
    a.add(R2, IPV6.into());
    a.jump_if_reg(R2, If::Above, R1, pass);
    a.copy(R2, R8);
    a.add(R2, 4);
    a.jump_if_reg(R2, If::Above, R1, pass);
    for (at, of) in [(SOURCE, 8), (DESTINATION, 24)] {
        for word in [0, 4, 8, 12] {
            a.load(Size::U32, R3, R7, of + word);
            a.store(Size::U32, R10, at + word, R3);
        }
    }
    a.load(Size::U32, R3, R8, 0);
    a.store(Size::U32, R10, IDENTIFICATION, R3);
    a.store_value(Size::U32, R10, PROTOCOL, 0);
    a.load(Size::U16, R5, R8, -2);
    a.and(R5, loaded(0xfff8));
    a.store(Size::U64, R10, OFFSET, R5);
    a.store_value(Size::U32, R10, VERDICT, 0);
    a.jump_if(R5, If::NotEqual, 0, datagram);
    // RFC 7112: a first fragment has all headers. The next one must be UDP's.
    a.load(Size::U8, R4, R8, -4);
    a.add(R8, 8);
    a.jump_if_reg(R8, If::Above, R1, pass);
    a.jump_if(R4, If::NotEqual, UDP, pass);

    // R9 = the first fragment's own verdict; 0, the kernel's, of all others.
    let no_port = a.label();
    a.place(places.look_up);
    decide_port(a);
    look_up(a, maps.ports, KEY);
    a.jump_if(R0, If::Equal, 0, no_port);
    a.load(Size::U8, R3, R0, 0);
    a.copy(R1, R3);
    a.and(R1, SHARED.into());
    a.jump_if(R1, If::NotEqual, 0, no_port);
    a.store(Size::U32, R10, VERDICT, R3);
    a.place(no_port);

    a.place(datagram);
    a.call(KTIME_GET_NS);
    a.shift_right(R0, UNIT);
    a.store(Size::U32, R10, MADE, R0);
    a.load(Size::U32, R9, R10, VERDICT);
    look_up(a, maps.datagrams, DATAGRAM);
    let (make, replace) = (a.label(), a.label());
    a.jump_if(R0, If::Equal, 0, make);
    // How old is it? Another CPU may have made it just now.
    a.load(Size::U32, R1, R10, MADE);
    a.add(R1, 1);
    a.load(Size::U32, R2, R0, VALUE_MADE);
    a.subtract_reg(R1, R2);
    a.load(Size::U32, R3, R0, VALUE_VERDICT);
    a.jump_if(R1, If::Above, LIFETIME + 1, replace);
    // A verdict for the kernel stands. So does ours, unless the first fragment says that it is of an earlier datagram.
    a.jump_if_reg(R3, If::Equal, R9, decided);
    let follow = a.label();
    a.jump_if(R3, If::Equal, 0, follow);
    a.load(Size::U64, R1, R10, OFFSET);
    a.jump_if(R1, If::Equal, 0, replace);
    a.place(follow);
    a.copy(R9, R3);
    a.jump(decided);

    a.place(replace);
    a.set_map(R1, maps.datagrams);
    a.copy(R2, R10);
    a.add(R2, DATAGRAM.into());
    a.call(MAP_DELETE_ELEM);
    a.place(make);
    a.set_map(R1, maps.datagrams);
    a.copy(R2, R10);
    a.add(R2, DATAGRAM.into());
    a.copy(R3, R10);
    a.add(R3, VALUE.into());
    a.set(R4, NO_EXIST);
    a.call(MAP_UPDATE_ELEM);
    a.jump_if(R0, If::Equal, 0, decided);
    // Another CPU has decided meanwhile.
    look_up(a, maps.datagrams, DATAGRAM);
    a.jump_if(R0, If::Equal, 0, pass);
    a.load(Size::U32, R9, R0, VALUE_VERDICT);

    a.place(decided);
    a.jump_if(R9, If::Equal, 0, pass);
    a.jump(ours);
}

/// The key of a fragment of IPv4. R5 = its offset, R7 = packet. Jumps to `pass` if it is not UDP's. R4 = protocol.
fn key_of_four(a: &mut Assembler, pass: Label) {
    use Reg::{R3, R4, R5, R7, R10};
    a.load(Size::U8, R4, R7, 9);
    a.jump_if(R4, If::NotEqual, UDP, pass);
    for (at, of) in [(SOURCE, 12), (DESTINATION, 16)] {
        a.store_value(Size::U64, R10, at, 0);
        a.store_value(Size::U32, R10, at + 8, 0);
        a.load(Size::U32, R3, R7, of);
        a.store(Size::U32, R10, at + 12, R3);
    }
    a.load(Size::U16, R3, R7, 4);
    a.store(Size::U32, R10, IDENTIFICATION, R3);
    a.store_value(Size::U32, R10, PROTOCOL, UDP);
    a.store(Size::U64, R10, OFFSET, R5);
    a.store_value(Size::U32, R10, VERDICT, 0);
}

/// R0 = the value of the key at `key` on the stack, or 0.
pub(super) fn look_up(a: &mut Assembler, map: BorrowedFd<'_>, key: i16) {
    use Reg::{R1, R2, R10};
    a.set_map(R1, map);
    a.copy(R2, R10);
    a.add(R2, key.into());
    a.call(MAP_LOOKUP_ELEM);
}
