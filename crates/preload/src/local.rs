//! Thread-locals. None has a destructor: Rust would register it with the C library, which allocates from the program's
//! allocator for that, and the value would be gone while the ending thread still makes calls. `stack::internal_fds` is
//! notified of a thread's end and releases what must be released.

/// `thread_local!` for types that need no destructor and no help of the C library.
#[macro_export]
macro_rules! local {
    ($($(#[$about:meta])* static $name:ident: $type:ty = $value:expr;)+) => {
        ::std::thread_local! { $( $(#[$about])* static $name: $type = const { $value }; )+ }
        $( const _: () = assert!(!::std::mem::needs_drop::<$type>()); )+
    };
}
