//! The eBPF side: an assembler for the few instructions we need ([`asm`]), the steering program written
//! with it ([`program`], [`fragments`]), and the bpf(2) calls that create maps and load the program ([`sys`]).

mod asm;
mod fragments;
pub(super) mod program;
pub(super) mod sys;
