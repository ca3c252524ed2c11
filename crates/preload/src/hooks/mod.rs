//! The functions that this library exports in place of the C library's, made from the [table](crate::table).

mod raw;
pub mod variadic;

use crate::{
    errno,
    inside::{self, cancel},
    kernel, panics, process, real, signals, stack,
};

/// What a handler returns; a call that succeeds leaves errno alone.
#[inline(always)]
fn answer<T: real::Failed + PartialEq>(handler: impl FnOnce() -> T) -> T {
    let errno = errno::Kept::new();
    let result = panics::answer(handler);
    if result != T::FAILED {
        errno.put_back();
    }
    result
}

macro_rules! exported_functions {
    ($(
        $name:ident $(, $alias:ident)*: $args:tt -> $ret:ty
            = $handler:path $(, ours($fd:ident) $ours:path)? $(, then $then:path)? $(, unless($($first:ident),+) $bypasses:path)?;
    )*) => {
        // A thread that is cancelled is unwound through these, so their ABI must allow unwinding (`crate::cancel`).
        $(
            #[cfg(panic = "unwind")]
            exported_functions!(@export "C-unwind" $name $args -> $ret = $handler $(, $fd $ours)? $(, then $then)? $(, unless ($($first),+) $bypasses)?);
            #[cfg(not(panic = "unwind"))]
            exported_functions!(@export "C" $name $args -> $ret = $handler $(, $fd $ours)? $(, then $then)? $(, unless ($($first),+) $bypasses)?);
            $( exported_functions!(@alias $alias $name $args -> $ret); )*
        )*
    };

    (@export $abi:literal $name:ident ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $handler:path) => {
        /// The hook of this name.
        ///
        /// # Safety
        /// That of the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the caller keeps the C function's contract, which is the handler's.
            answer(move || unsafe { $handler($($arg),*) })
        }
    };
    (@export $abi:literal $name:ident ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $handler:path, then $then:path) => {
        /// The hook of this name.
        ///
        /// # Safety
        /// That of the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the caller keeps the C function's contract, which is the handler's.
            panics::answer(move || unsafe { $handler($($arg),*) });
            // SAFETY: as above.
            unsafe { $then($($arg),*) }
        }
    };
    (@export $abi:literal $name:ident ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $handler:path, unless ($first:ident) $bypasses:path) => {
        /// The hook of this name.
        ///
        /// # Safety
        /// That of the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $name($($arg: $ty),*) -> $ret {
            if $bypasses($first) {
                // SAFETY: the caller keeps the C function's contract.
                return unsafe { real::$name($($arg),*) };
            }
            // SAFETY: the caller keeps the C function's contract, which is the handler's.
            answer(move || unsafe { $handler($($arg),*) })
        }
    };
    (@export $abi:literal $name:ident ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $handler:path, $fd:ident $ours:path $(, unless ($($first:ident),+) $bypasses:path)?) => {
        /// The hook of this name.
        ///
        /// # Safety
        /// That of the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $name($($arg: $ty),*) -> $ret {
            // Out of line: where no descriptor is a socket of the stack plane, a hook must cost next to nothing.
            #[inline(never)]
            unsafe fn perhaps_ours($($arg: $ty),*) -> $ret {
                // SAFETY: the caller keeps the C function's contract, which is both handlers'.
                unsafe {
                    loop {
                        let Some(file) = $crate::stack::FILES.get($fd) else { return $handler($($arg),*) };
                        let errno = errno::Kept::new();
                        // By value: the call is behind a pointer, and references would be one more to each argument.
                        let result = panics::answer(move || $ours(file, $($arg),*));
                        if result != <$ret as real::Failed>::FAILED {
                            errno.put_back();
                            return result;
                        }
                        if errno::get() != inside::ERESTARTSYS {
                            return result;
                        }
                        errno.put_back();
                    }
                }
            }
            // SAFETY: as above.
            unsafe {
                match $crate::stack::FILES.end() == 0 $(|| $bypasses($($first),+))? {
                    true => $handler($($arg),*),
                    false => perhaps_ours($($arg),*),
                }
            }
        }
    };
    (@alias $alias:ident $name:ident ($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty) => {
        /// Another name of the same hook.
        ///
        /// # Safety
        /// That of the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $alias($($arg: $ty),*) -> $ret {
            // SAFETY: another name of the same function.
            unsafe { $name($($arg),*) }
        }
    };
}

for_each_hook!(exported_functions);
