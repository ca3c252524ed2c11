//! An assembler for a few eBPF instructions (RFC 9669; include/uapi/linux/bpf.h). Owns encodings
//! and forward jumps; knows nothing of packets.

use std::os::fd::{AsRawFd, BorrowedFd};

/// One instruction in the kernel's layout (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    opcode: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. R0 holds results, R1 to R5 arguments, R6 to R9 survive calls, R10 is the frame pointer.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6 = 6,
    R7,
    R8,
    R9,
    R10 = 10,
}

/// The width of a memory access.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Size {
    U8 = 0x10,
    U16 = 0x08,
    U32 = 0x00,
    U64 = 0x18,
}

/// A jump's condition, unsigned.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum If {
    Equal = 0x10,
    Above = 0x20,
    NotEqual = 0x50,
}

/// A jump target, which may be placed after the jump.
#[derive(Clone, Copy)]
pub(super) struct Label(usize);

const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const ALU64: u8 = 0x07;
const JMP: u8 = 0x05;
const MEM: u8 = 0x60;
const FROM_REGISTER: u8 = 0x08;
const ADD: u8 = 0x00;
const SUB: u8 = 0x10;
const AND: u8 = 0x50;
const LSH: u8 = 0x60;
const RSH: u8 = 0x70;
const MUL: u8 = 0x20;
const MOV: u8 = 0xb0;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const PSEUDO_MAP_FD: u8 = 1;

/// A program being written.
#[derive(Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, opcode: u8, to: Reg, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { opcode, registers: to as u8 | from << 4, offset, immediate });
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Reg, from: Reg) {
        self.emit(ALU64 | MOV | FROM_REGISTER, to, from as u8, 0, 0);
    }

    /// `to = value`
    pub(super) fn set(&mut self, to: Reg, value: i32) {
        self.emit(ALU64 | MOV, to, 0, 0, value);
    }

    /// `to += value`
    pub(super) fn add(&mut self, to: Reg, value: i32) {
        self.emit(ALU64 | ADD, to, 0, 0, value);
    }

    /// `to += from`
    pub(super) fn add_reg(&mut self, to: Reg, from: Reg) {
        self.emit(ALU64 | ADD | FROM_REGISTER, to, from as u8, 0, 0);
    }

    /// `to -= from`
    pub(super) fn subtract_reg(&mut self, to: Reg, from: Reg) {
        self.emit(ALU64 | SUB | FROM_REGISTER, to, from as u8, 0, 0);
    }

    /// `to <<= bits`
    pub(super) fn shift_left(&mut self, to: Reg, bits: i32) {
        self.emit(ALU64 | LSH, to, 0, 0, bits);
    }

    /// `to >>= bits`
    pub(super) fn shift_right(&mut self, to: Reg, bits: i32) {
        self.emit(ALU64 | RSH, to, 0, 0, bits);
    }

    /// `to *= value`
    pub(super) fn multiply(&mut self, to: Reg, value: i32) {
        self.emit(ALU64 | MUL, to, 0, 0, value);
    }

    /// `to &= value`
    pub(super) fn and(&mut self, to: Reg, value: i32) {
        self.emit(ALU64 | AND, to, 0, 0, value);
    }

    /// `to = *(size *)(from + offset)`
    pub(super) fn load(&mut self, size: Size, to: Reg, from: Reg, offset: i16) {
        self.emit(LDX | MEM | size as u8, to, from as u8, offset, 0);
    }

    /// `*(size *)(to + offset) = from`
    pub(super) fn store(&mut self, size: Size, to: Reg, offset: i16, from: Reg) {
        self.emit(STX | MEM | size as u8, to, from as u8, offset, 0);
    }

    /// `*(size *)(to + offset) = value`
    pub(super) fn store_value(&mut self, size: Size, to: Reg, offset: i16, value: i32) {
        self.emit(ST | MEM | size as u8, to, 0, offset, value);
    }

    /// `to = map` (the kernel replaces the descriptor by the map's address)
    pub(super) fn set_map(&mut self, to: Reg, map: BorrowedFd<'_>) {
        self.emit(LD | Size::U64 as u8, to, PSEUDO_MAP_FD, 0, map.as_raw_fd());
        self.emit(0, Reg::R0, 0, 0, 0);
    }

    /// Calls the helper function number `helper`.
    pub(super) fn call(&mut self, helper: i32) {
        self.emit(JMP | CALL, Reg::R0, 0, 0, helper);
    }

    /// Returns R0.
    pub(super) fn exit(&mut self) {
        self.emit(JMP | EXIT, Reg::R0, 0, 0, 0);
    }

    /// A label to be placed later.
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places `label` here.
    pub(super) fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.code.len());
    }

    /// Jumps to `label`.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(JMP, Reg::R0, 0, 0, 0);
    }

    /// Jumps to `label` if the comparison of `left` with the value holds.
    pub(super) fn jump_if(&mut self, left: Reg, condition: If, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(JMP | condition as u8, left, 0, 0, value);
    }

    /// Jumps to `label` if the comparison of `left` with `right` holds.
    pub(super) fn jump_if_reg(&mut self, left: Reg, condition: If, right: Reg, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(JMP | condition as u8 | FROM_REGISTER, left, right as u8, 0, 0);
    }

    /// The program, with all jumps resolved.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.places[label.0].unwrap_or(self.code.len());
            debug_assert!(target > at, "only forward jumps, to placed labels");
            // Fits: a program here has some three hundred instructions.
            self.code[at].offset = (target - at - 1) as i16;
        }
        self.code
    }
}
