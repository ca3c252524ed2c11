//! Hooks of C functions with variable arguments, which cannot be passed on from Rust. Those of stdio first call a
//! function of ours with the descriptor, and then jump to the real function with all registers as they were; those of
//! exec store the arguments, and call ours in its place.

use crate::{panics, process, real::Slot, stack};
use libc::{c_char, c_int, c_void};
use process::List;

static DPRINTF: Slot = Slot::new("dprintf\0");
static DPRINTF_CHK: Slot = Slot::new("__dprintf_chk\0");

/// Finds the real functions at load time.
pub fn resolve_all() {
    DPRINTF.address();
    DPRINTF_CHK.address();
}

extern "C" fn absent() -> c_int {
    crate::real::absent()
}

/// Returns the function to jump to.
fn before(fd: c_int, function: &Slot) -> *const c_void {
    if stack::FILES.end() > 0 {
        panics::run(|| stack::before_dprintf(fd));
    }
    function.address().map_or(absent as *const c_void, <*mut c_void>::cast_const)
}

extern "C-unwind" fn before_dprintf(fd: c_int) -> *const c_void {
    before(fd, &DPRINTF)
}

extern "C-unwind" fn before_dprintf_chk(fd: c_int) -> *const c_void {
    before(fd, &DPRINTF_CHK)
}

/// A hook made of these instructions, in which `{calls}` is a function of ours.
macro_rules! naked_hook {
    ($name:ident, $calls:path, $($line:literal),* $(,)?) => {
        /// The hook of this name.
        ///
        /// # Safety
        /// That of the C function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                $($line,)*
                ".cfi_endproc",
                calls = sym $calls,
            );
        }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! hook {
    ($name:ident, $before:path) => {
        naked_hook! { $name, $before,
            "sub rsp, 184",
            ".cfi_adjust_cfa_offset 184",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], rax",
            "movups [rsp + 56], xmm0",
            "movups [rsp + 72], xmm1",
            "movups [rsp + 88], xmm2",
            "movups [rsp + 104], xmm3",
            "movups [rsp + 120], xmm4",
            "movups [rsp + 136], xmm5",
            "movups [rsp + 152], xmm6",
            "movups [rsp + 168], xmm7",
            "call {calls}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov rax, [rsp + 48]",
            "movups xmm0, [rsp + 56]",
            "movups xmm1, [rsp + 72]",
            "movups xmm2, [rsp + 88]",
            "movups xmm3, [rsp + 104]",
            "movups xmm4, [rsp + 120]",
            "movups xmm5, [rsp + 136]",
            "movups xmm6, [rsp + 152]",
            "movups xmm7, [rsp + 168]",
            "add rsp, 184",
            ".cfi_adjust_cfa_offset -184",
            "jmp r11",
        }
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! hook {
    ($name:ident, $before:path) => {
        naked_hook! { $name, $before,
            "stp x29, x30, [sp, #-224]!",
            ".cfi_def_cfa_offset 224",
            ".cfi_offset w30, -216",
            ".cfi_offset w29, -224",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "bl {calls}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore w30",
            ".cfi_restore w29",
            "br x16",
        }
    };
}

/// # Safety
/// That of execl(3).
unsafe extern "C-unwind" fn execl(path: *const c_char, registers: List, stack: List) -> c_int {
    // SAFETY: the caller's contract.
    panics::answer(|| unsafe { process::execl(path, (registers, IN_REGISTERS), stack) })
}

/// # Safety
/// That of execlp(3).
unsafe extern "C-unwind" fn execlp(file: *const c_char, registers: List, stack: List) -> c_int {
    // SAFETY: the caller's contract.
    panics::answer(|| unsafe { process::execlp(file, (registers, IN_REGISTERS), stack) })
}

/// # Safety
/// That of execle(3).
unsafe extern "C-unwind" fn execle(path: *const c_char, registers: List, stack: List) -> c_int {
    // SAFETY: the caller's contract.
    panics::answer(|| unsafe { process::execle(path, (registers, IN_REGISTERS), stack) })
}

/// How many arguments after the first one are in registers.
#[cfg(target_arch = "x86_64")]
const IN_REGISTERS: usize = 5;
#[cfg(not(target_arch = "x86_64"))]
const IN_REGISTERS: usize = 7;

#[cfg(target_arch = "x86_64")]
macro_rules! exec_hook {
    ($name:ident, $exec:path) => {
        naked_hook! { $name, $exec,
            "sub rsp, 40",
            ".cfi_adjust_cfa_offset 40",
            "mov [rsp], rsi",
            "mov [rsp + 8], rdx",
            "mov [rsp + 16], rcx",
            "mov [rsp + 24], r8",
            "mov [rsp + 32], r9",
            "mov rsi, rsp",
            "lea rdx, [rsp + 48]",
            "call {calls}",
            "add rsp, 40",
            ".cfi_adjust_cfa_offset -40",
            "ret",
        }
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! exec_hook {
    ($name:ident, $exec:path) => {
        naked_hook! { $name, $exec,
            "stp x29, x30, [sp, #-80]!",
            ".cfi_def_cfa_offset 80",
            ".cfi_offset w30, -72",
            ".cfi_offset w29, -80",
            "mov x29, sp",
            "stp x1, x2, [sp, #16]",
            "stp x3, x4, [sp, #32]",
            "stp x5, x6, [sp, #48]",
            "str x7, [sp, #64]",
            "add x1, sp, #16",
            "add x2, sp, #80",
            "bl {calls}",
            "ldp x29, x30, [sp], #80",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore w30",
            ".cfi_restore w29",
            "ret",
        }
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod exported {
    use super::{before_dprintf, before_dprintf_chk};

    hook!(dprintf, before_dprintf);
    hook!(__dprintf_chk, before_dprintf_chk);
    exec_hook!(execl, super::execl);
    exec_hook!(execlp, super::execlp);
    exec_hook!(execle, super::execle);
}
