//! The eBPF side: an assembler for the few instructions we need ([`asm`]), the steering program written
//! in it ([`program`]), and the bpf(2) calls that bring both into the kernel ([`sys`]).

mod asm;
pub(super) mod program;
pub(super) mod sys;
