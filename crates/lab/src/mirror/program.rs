//! The mirror's XDP program, instruction by instruction (RFC 9669). It compares every offset with the end of the
//! packet before it reads a byte there.

use std::net::{Ipv4Addr, Ipv6Addr};

/// One instruction (`struct bpf_insn`): code, registers (source << 4 | destination), offset, constant.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Instruction(u8, u8, i16, i32);

const XDP_PASS: i32 = 2;
/// `bpf_redirect`.
const REDIRECT: i32 = 23;

/// Registers: start and end of the packet, and two for swapping.
const PACKET: u8 = 7;
const END: u8 = 8;
const ONE: u8 = 2;
const OTHER: u8 = 3;
/// The register of the program's argument.
const CONTEXT: u8 = 1;

/// Offsets in bytes from the start of the frame.
const ETHERTYPE: i16 = 12;
const IP: i16 = 14;
const V4: Header = Header { length: 20, protocol: 9, source: 12, destination: 16, words: 1 };
const V6: Header = Header { length: 40, protocol: 6, source: 8, destination: 24, words: 4 };
/// The length of the ICMP header before the packet that an ICMP error quotes.
const ICMP: i16 = 8;

/// The offsets of the fields of an IP header without options, and the length of an address.
struct Header {
    length: i16,
    protocol: i16,
    source: i16,
    destination: i16,
    words: i16,
}

/// The target of a jump: the index of its first instruction.
#[derive(Clone, Copy)]
struct Label(usize);

#[derive(Default)]
struct Program {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    places: Vec<usize>,
}

/// Swaps the addresses of packets to these two, and passes all others.
pub(super) fn mirror(v4: Ipv4Addr, v6: Ipv6Addr) -> Vec<Instruction> {
    let mut p = Program::default();
    let (pass, is_v6, send) = (p.label(), p.label(), p.label());
    // struct xdp_md: data, data_end.
    p.load(4, PACKET, CONTEXT, 0);
    p.load(4, END, CONTEXT, 4);
    p.needs(IP, pass);
    p.load(2, ONE, PACKET, ETHERTYPE);
    p.jump_if_equal(ONE, 0x86dd_u16.to_be().into(), is_v6);
    p.jump_unless_equal(ONE, 0x0800_u16.to_be().into(), pass);
    p.header(&V4, &v4.octets(), pass);
    p.jump_unless_equal(OTHER, 1, send);
    p.needs(IP + V4.length + 1, send);
    // ICMP errors. A header with options is not searched for one.
    let error = p.label();
    p.load(1, ONE, PACKET, IP);
    p.jump_unless_equal(ONE, 0x45, send);
    p.load(1, ONE, PACKET, IP + V4.length);
    for kind in [3, 11, 12] {
        p.jump_if_equal(ONE, kind, error);
    }
    p.jump(send);
    p.place(error);
    p.quoted(&V4, send);
    p.jump(send);

    p.place(is_v6);
    p.header(&V6, &v6.octets(), pass);
    p.jump_unless_equal(OTHER, 58, send);
    p.needs(IP + V6.length + 1, send);
    p.load(1, ONE, PACKET, IP + V6.length);
    // ICMPv6's errors are those below 128 (RFC 4443 section 2.1).
    p.jump_if_above(ONE, 127, send);
    p.quoted(&V6, send);

    p.place(send);
    p.swap(4, 0, 6);
    p.swap(2, 4, 10);
    // return bpf_redirect(ctx->ingress_ifindex, 0). XDP_TX would not wake the other end: veth_xdp_flush wakes only an
    // end that has an XDP program of its own.
    p.load(4, CONTEXT, CONTEXT, 12);
    p.emit(0xb7, ONE, 0, 0, 0);
    p.emit(0x85, 0, 0, 0, REDIRECT);
    p.emit(0x95, 0, 0, 0, 0);
    p.place(pass);
    p.emit(0xb7, 0, 0, 0, XDP_PASS);
    p.emit(0x95, 0, 0, 0, 0);
    p.finish()
}

impl Program {
    /// Passes a packet to another address; else swaps the addresses, and leaves the protocol in `OTHER`.
    fn header(&mut self, header: &Header, address: &[u8], pass: Label) {
        self.needs(IP + header.length, pass);
        for (word, bytes) in (0..).zip(address.chunks_exact(4)) {
            let value = i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            self.load(4, ONE, PACKET, IP + header.destination + 4 * word);
            // Compared as 32 bits, like the packet's word: a 64-bit jump would sign-extend the constant.
            self.emit(0xb4, OTHER, 0, 0, value);
            self.jumps.push((self.code.len(), pass));
            self.emit(0x5d, ONE, OTHER, 0, 0);
        }
        self.swap_addresses(header, IP);
        self.load(1, OTHER, PACKET, IP + header.protocol);
    }

    /// Swaps the addresses of the packet that an ICMP error quotes, if its header is complete.
    fn quoted(&mut self, header: &Header, send: Label) {
        let at = IP + header.length + ICMP;
        self.needs(at + header.length, send);
        self.swap_addresses(header, at);
    }

    fn swap_addresses(&mut self, header: &Header, at: i16) {
        for word in 0..header.words {
            self.swap(4, at + header.source + 4 * word, at + header.destination + 4 * word);
        }
    }

    /// Jumps to `otherwise` unless the packet has this many bytes.
    fn needs(&mut self, bytes: i16, otherwise: Label) {
        self.emit(0xbf, ONE, PACKET, 0, 0);
        self.emit(0x07, ONE, 0, 0, bytes.into());
        self.jumps.push((self.code.len(), otherwise));
        self.emit(0x2d, ONE, END, 0, 0);
    }

    fn swap(&mut self, bytes: u8, a: i16, b: i16) {
        self.load(bytes, ONE, PACKET, a);
        self.load(bytes, OTHER, PACKET, b);
        self.emit(0x63 | width(bytes), PACKET, ONE, b, 0);
        self.emit(0x63 | width(bytes), PACKET, OTHER, a, 0);
    }

    fn load(&mut self, bytes: u8, to: u8, from: u8, offset: i16) {
        self.emit(0x61 | width(bytes), to, from, offset, 0);
    }

    fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(0x05, 0, 0, 0, 0);
    }

    fn jump_if_equal(&mut self, register: u8, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(0x15, register, 0, 0, value);
    }

    fn jump_if_above(&mut self, register: u8, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(0x25, register, 0, 0, value);
    }

    fn jump_unless_equal(&mut self, register: u8, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(0x55, register, 0, 0, value);
    }

    fn label(&mut self) -> Label {
        self.places.push(0);
        Label(self.places.len() - 1)
    }

    fn place(&mut self, label: Label) {
        self.places[label.0] = self.code.len();
    }

    fn emit(&mut self, code: u8, to: u8, from: u8, offset: i16, constant: i32) {
        self.code.push(Instruction(code, to | from << 4, offset, constant));
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            // All jumps go forward, over at most some hundred instructions.
            self.code[at].2 = (self.places[label.0] - at - 1) as i16;
        }
        self.code
    }
}

/// The size bits of a load or store.
fn width(bytes: u8) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        _ => 0,
    }
}
