//! What a thread has for itself. Nothing of it has a destructor: Rust would have the C library call it, which takes
//! memory of the program's allocator for that, and has none any more as the thread ends, when the program still calls.
//! What is to be given back is so by the end of the thread that `stack::own` hears of.

/// `thread_local!`, of what needs no destructor and none of the C library's help.
#[macro_export]
macro_rules! local {
    ($($(#[$about:meta])* static $name:ident: $type:ty = $value:expr;)+) => {
        ::std::thread_local! { $( $(#[$about])* static $name: $type = const { $value }; )+ }
        $( const _: () = assert!(!::std::mem::needs_drop::<$type>()); )+
    };
}
