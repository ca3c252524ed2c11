//! A panic of the library's ends a call, not the program. It unwinds what the call has begun, as far as the frame of
//! [`run`]; a thread that is cancelled is unwound past it, to its own end.
//!
//! That is why `catch_unwind` alone will not do: it ends the program if anything but a panic comes by, and the C library
//! ends threads by unwinding them. So a frame of our own has a personality that stops panics and nothing else, and hands
//! them to `catch_unwind` then.

#[cfg(all(panic = "unwind", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod frame {
    use libc::{c_int, c_void};
    use std::{
        arch::global_asm,
        panic::{AssertUnwindSafe, catch_unwind},
    };

    // Calls its first argument with the second, and returns null; or, from `busypoll_guard_landing` on, the exception
    // that the personality has stopped, which it has put where a function returns its value.
    #[cfg(target_arch = "x86_64")]
    global_asm!(
        ".pushsection .text.busypoll_guard,\"ax\",@progbits",
        ".hidden busypoll_guard",
        ".hidden busypoll_guard_landing",
        ".globl busypoll_guard",
        ".globl busypoll_guard_landing",
        ".p2align 4",
        ".type busypoll_guard,@function",
        "busypoll_guard:",
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "busypoll_guard_landing:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        ".size busypoll_guard, . - busypoll_guard",
        ".popsection",
        personality = sym personality,
    );

    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".pushsection .text.busypoll_guard,\"ax\",@progbits",
        ".hidden busypoll_guard",
        ".hidden busypoll_guard_landing",
        ".globl busypoll_guard",
        ".globl busypoll_guard_landing",
        ".p2align 4",
        ".type busypoll_guard,@function",
        "busypoll_guard:",
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
        "busypoll_guard_landing:",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore w30",
        ".cfi_restore w29",
        "ret",
        ".cfi_endproc",
        ".size busypoll_guard, . - busypoll_guard",
        ".popsection",
        personality = sym personality,
    );

    unsafe extern "C-unwind" {
        fn busypoll_guard(
            call: unsafe extern "C-unwind" fn(*mut c_void),
            data: *mut c_void,
        ) -> *mut c_void;
        fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
    }

    unsafe extern "C" {
        static busypoll_guard_landing: u8;
        fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
        fn _Unwind_SetIP(context: *mut c_void, address: usize);
    }

    /// The class of a panic, in either order of bytes: std has had both.
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
        // SAFETY: the context is the unwinder's; register 0 is where either machine returns a value, and one of those that
        // may be set.
        unsafe {
            _Unwind_SetGR(context, 0, exception.expose_provenance());
            _Unwind_SetIP(context, (&raw const busypoll_guard_landing).expose_provenance());
        }
        INSTALL_CONTEXT
    }

    struct Call<F, T> {
        call: Option<F>,
        result: Option<T>,
    }

    unsafe extern "C-unwind" fn make<F: FnOnce() -> T, T>(data: *mut c_void) {
        // SAFETY: what `run` gave, which waits for this.
        let data = unsafe { &mut *data.cast::<Call<F, T>>() };
        if let Some(call) = data.call.take() {
            data.result = Some(call());
        }
    }

    /// Makes `call`. `None`: it has panicked.
    #[inline]
    pub fn run<F: FnOnce() -> T, T>(call: F) -> Option<T> {
        let mut call = Call { call: Some(call), result: None };
        // SAFETY: `make` is given what it takes.
        let exception = unsafe { busypoll_guard(make::<F, T>, (&raw mut call).cast()) };
        if !exception.is_null() {
            drop_panic(exception);
        }
        call.result
    }

    /// Raises a panic once more, right below one who takes it.
    #[cold]
    fn drop_panic(exception: *mut c_void) {
        let raise = || {
            // SAFETY: a panic that was stopped, and is nobody else's.
            unsafe { _Unwind_RaiseException(exception) }
        };
        drop(catch_unwind(AssertUnwindSafe(raise)));
    }
}

#[cfg(all(panic = "unwind", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use frame::run;

/// Makes `call`. A build that does not unwind ends with a panic.
#[cfg(not(all(panic = "unwind", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline]
pub fn run<F: FnOnce() -> T, T>(call: F) -> Option<T> {
    Some(call())
}

use crate::{errno, real::Failed, say::Once};
use std::panic;

/// What the C function returns, EIO if the library panics.
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

/// To be called when the library is loaded: a panic is said in one line.
pub fn prepare() {
    #[cfg(debug_assertions)]
    failing::prepare();
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or(("?", 0), |place| (place.file(), place.line()));
        let what = info.payload_as_str().unwrap_or("no word");
        PANICKED.say(format_args!(
            "a fault of the library's own ({}:{}: {what}); the call it was in fails with EIO, the program goes on",
            place.0, place.1
        ));
    }));
}

/// For tests, in builds made for them only: the call whose number `BUSYPOLL_TEST_PANIC` gives
/// panics.
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
