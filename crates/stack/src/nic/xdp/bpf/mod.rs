//! The eBPF side: an assembler for the few instructions we need ([`asm`]), the steering program written
//! with it ([`program`]), and the bpf(2) calls that create maps and load the program ([`sys`]).

mod asm;
pub(super) mod program;
pub(super) mod sys;
