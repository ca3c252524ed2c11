//! The addresses of the C library's functions: the next definition of a name after ours.
//!
//! Owns the slots that hold the addresses. They are filled at load time by [`crate::load`], or at
//! the first call if another library's constructor runs before ours.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// One function's address.
pub struct Slot {
    /// Its name, with the zero that ends it for C.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

/// Marks a name that no library defines: no function is at an odd address this low.
const ABSENT: *mut c_void = ptr::without_provenance_mut(1);

impl Slot {
    pub const fn new(name: &'static str) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The address, `None` where the C library is older than the function.
    #[inline]
    pub fn address(&self) -> Option<*mut c_void> {
        let address = self.address.load(Ordering::Relaxed);
        if address > ABSENT { Some(address) } else { self.find() }
    }

    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: the name ends with a zero; RTLD_NEXT asks for the definition after this
            // library's.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
            if address.is_null() {
                address = ABSENT;
            }
            // A thread that resolves it a second time finds the same address.
            self.address.store(address, Ordering::Relaxed);
        }
        (address != ABSENT).then_some(address)
    }
}

/// The result of a function that does not exist: -1 and `ENOSYS`.
pub fn absent<T: Failed>() -> T {
    crate::errno::set(libc::ENOSYS);
    T::FAILED
}

/// The value by which a C function reports failure.
pub trait Failed {
    const FAILED: Self;
}

impl Failed for i32 {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl Failed for i64 {
    const FAILED: Self = -1;
}

/// `SIG_ERR`.
impl Failed for usize {
    const FAILED: Self = usize::MAX;
}

impl Failed for *mut libc::FILE {
    const FAILED: Self = ptr::null_mut();
}

impl Failed for () {
    const FAILED: Self = ();
}

macro_rules! real_functions {
    ($(
        $name:ident $(, $alias:ident)*: ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty
            = $handler:path $(, ours($fd:ident) $ours:path)? $(, then $then:path)? $(, unless($($first:ident),+) $bypasses:path)?;
    )*) => {
        #[expect(non_upper_case_globals, reason = "each is named after its function")]
        mod slots {
            use super::Slot;
            $( pub static $name: Slot = Slot::new(concat!(stringify!($name), "\0")); )*
        }

        /// Finds every real function at load time: a signal handler may not call dlsym(3).
        pub fn resolve_all() {
            $( slots::$name.address(); )*
        }

        // A thread that is cancelled is unwound through these, so their ABI must allow unwinding (`crate::cancel`).
        $(
            #[cfg(panic = "unwind")]
            real_functions!(@real "C-unwind" $name ($($arg: $ty),*) -> $ret);
            #[cfg(not(panic = "unwind"))]
            real_functions!(@real "C" $name ($($arg: $ty),*) -> $ret);
        )*
    };

    (@real $abi:literal $name:ident ($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        /// The function behind the hook of this name.
        ///
        /// # Safety
        /// That of the C function.
        #[allow(dead_code, reason = "a hook may answer without the function it hides")]
        #[allow(non_snake_case, reason = "it is named after its function")]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            type Function = unsafe extern $abi fn($($ty),*) -> $ret;
            let Some(address) = slots::$name.address() else { return absent() };
            // SAFETY: the address is that of the C function of this name, whose signature the row
            // states.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
            // SAFETY: the caller keeps the C function's contract.
            unsafe { function($($arg),*) }
        }
    };
}

for_each_hook!(real_functions);
