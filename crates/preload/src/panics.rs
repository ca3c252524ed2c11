//! A panic in the library ends a call, not the program. It unwinds the call as far as the frame of [`run`]. A thread
//! that is cancelled is unwound past that frame, to its own end.
//!
//! `catch_unwind` alone does not do: it aborts on anything but a panic, and the C library ends threads by unwinding
//! them. So a frame of our own has a personality routine that stops panics and nothing else, and then passes them to
//! `catch_unwind`.

#[cfg(all(panic = "unwind", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod frame {
    use libc::{c_int, c_void};
    use std::{
        arch::global_asm,
        mem::{ManuallyDrop, MaybeUninit},
        panic::{AssertUnwindSafe, catch_unwind},
    };

    // Calls its first argument with the second, and returns null. When the personality routine has stopped an
    // exception, control continues at `busypoll_catch_landing` with the exception in the return register.
    #[cfg(target_arch = "x86_64")]
    global_asm!(
        ".pushsection .text.busypoll_catch,\"ax\",@progbits",
        ".hidden busypoll_catch",
        ".hidden busypoll_catch_landing",
        ".globl busypoll_catch",
        ".globl busypoll_catch_landing",
        ".p2align 4",
        ".type busypoll_catch,@function",
        "busypoll_catch:",
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "busypoll_catch_landing:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        ".size busypoll_catch, . - busypoll_catch",
        ".popsection",
        personality = sym personality,
    );

    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".pushsection .text.busypoll_catch,\"ax\",@progbits",
        ".hidden busypoll_catch",
        ".hidden busypoll_catch_landing",
        ".globl busypoll_catch",
        ".globl busypoll_catch_landing",
        ".p2align 4",
        ".type busypoll_catch,@function",
        "busypoll_catch:",
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset w30, -8",
        ".cfi_offset w29, -16",
        "mov x29, sp",
        "mov x8, x0",
        "mov x0, x1",
        "blr x8",
        "mov x0, xzr",
        "busypoll_catch_landing:",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore w30",
        ".cfi_restore w29",
        "ret",
        ".cfi_endproc",
        ".size busypoll_catch, . - busypoll_catch",
        ".popsection",
        personality = sym personality,
    );

    unsafe extern "C-unwind" {
        fn busypoll_catch(
            call: unsafe extern "C-unwind" fn(*mut c_void),
            data: *mut c_void,
        ) -> *mut c_void;
        fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
    }

    unsafe extern "C" {
        static busypoll_catch_landing: u8;
        fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
        fn _Unwind_SetIP(context: *mut c_void, address: usize);
    }

    /// The exception class of a panic, in either byte order: std has had both.
    const PANIC: u64 = u64::from_ne_bytes(*b"MOZ\0RUST");

    // unwind.h.
    const SEARCH_PHASE: c_int = 1;
    const HANDLER_FRAME: c_int = 4;
    const FORCE_UNWIND: c_int = 8;
    const HANDLER_FOUND: c_int = 6;
    const INSTALL_CONTEXT: c_int = 7;
    const CONTINUE_UNWIND: c_int = 8;

    unsafe extern "C" fn personality(
        _version: c_int,
        actions: c_int,
        class: u64,
        exception: *mut c_void,
        context: *mut c_void,
    ) -> c_int {
        if ![PANIC, PANIC.swap_bytes()].contains(&class) || actions & FORCE_UNWIND != 0 {
            return CONTINUE_UNWIND;
        }
        if actions & SEARCH_PHASE != 0 {
            return HANDLER_FOUND;
        }
        if actions & HANDLER_FRAME == 0 {
            return CONTINUE_UNWIND;
        }
        // SAFETY: the context is the unwinder's. Register 0 holds the return value on both machines and may be set.
        unsafe {
            _Unwind_SetGR(context, 0, exception.expose_provenance());
            _Unwind_SetIP(context, (&raw const busypoll_catch_landing).expose_provenance());
        }
        INSTALL_CONTEXT
    }

    struct Call<F, T> {
        /// Moved out by the call.
        call: ManuallyDrop<F>,
        /// Valid if the call has returned.
        result: MaybeUninit<T>,
    }

    unsafe extern "C-unwind" fn make<F: FnOnce() -> T, T>(data: *mut c_void) {
        // SAFETY: the pointer that `run` passed, which outlives this call.
        let data = unsafe { &mut *data.cast::<Call<F, T>>() };
        // SAFETY: `run` calls this once and does not use the field any more.
        let call = unsafe { ManuallyDrop::take(&mut data.call) };
        data.result.write(call());
    }

    /// Makes `call`. `None` if it panicked.
    #[inline]
    pub fn run<F: FnOnce() -> T, T>(call: F) -> Option<T> {
        let mut call = Call { call: ManuallyDrop::new(call), result: MaybeUninit::uninit() };
        // SAFETY: `make` gets the type it expects.
        let exception = unsafe { busypoll_catch(make::<F, T>, (&raw mut call).cast()) };
        if !exception.is_null() {
            drop_panic(exception);
            return None;
        }
        // SAFETY: no exception was stopped, so `make` has returned.
        Some(unsafe { call.result.assume_init() })
    }

    /// Raises the panic once more, right below a `catch_unwind`.
    #[cold]
    fn drop_panic(exception: *mut c_void) {
        let raise = || {
            // SAFETY: a stopped panic that nothing else refers to.
            unsafe { _Unwind_RaiseException(exception) }
        };
        drop(catch_unwind(AssertUnwindSafe(raise)));
    }
}

#[cfg(all(panic = "unwind", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use frame::run;

/// Makes `call`. In a build that does not unwind a panic aborts.
#[cfg(not(all(panic = "unwind", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline]
pub fn run<F: FnOnce() -> T, T>(call: F) -> Option<T> {
    Some(call())
}

use crate::{errno, real::Failed, report::Once};
use std::panic;

/// Returns what `call` returns; if the library panics, fails with EIO.
#[inline]
pub fn answer<T: Failed>(call: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let call = || {
        failing::count();
        call()
    };
    run(call).unwrap_or_else(|| {
        errno::set(libc::EIO);
        T::FAILED
    })
}

static PANICKED: Once = Once::new();

/// Called when the library is loaded: a panic is reported in one line.
pub fn prepare() {
    #[cfg(debug_assertions)]
    failing::prepare();
    panic::set_hook(Box::new(|info| {
        let location =
            info.location().map_or(("?", 0), |location| (location.file(), location.line()));
        let what = info.payload_as_str().unwrap_or("no message");
        PANICKED.report(format_args!(
            "a bug in the preload library ({}:{}: {what}): the call fails with EIO, and the program goes on",
            location.0, location.1
        ));
    }));
}

/// For tests, in debug builds only: the call whose number `BUSYPOLL_TEST_PANIC` gives panics.
#[cfg(debug_assertions)]
mod failing {
    use std::sync::atomic::{AtomicU64, Ordering};

    static LEFT: AtomicU64 = AtomicU64::new(0);

    pub(super) fn prepare() {
        // SAFETY: the name is a C string, and at load time no other thread changes the environment.
        let text = unsafe {
            let text = libc::getenv(c"BUSYPOLL_TEST_PANIC".as_ptr());
            if text.is_null() {
                return;
            }
            std::ffi::CStr::from_ptr(text)
        };
        let left = text.to_str().ok().and_then(|text| text.parse().ok());
        LEFT.store(left.unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn count() {
        if LEFT.load(Ordering::Relaxed) > 0 && LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
            let _inside = crate::inside::Inside::enter();
            panic!("as the test wants it");
        }
    }
}
