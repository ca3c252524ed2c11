//! The library that is loaded before a program: its socket calls, busy polling.
//!
//! | module | owns |
//! |---|---|
//! | [`table`] | the names this library puts in front of the C library's, and who answers each |
//! | [`real`] | the way to the C library's own functions |
//! | [`kernel`] | the kernel plane: Linux's own busy polling, switched on as the program waits |
//! | [`stack`] | the stack plane: sockets of the chosen interface, run in this process |
//! | [`fds`] | which descriptors are sockets of the stack plane |
//! | [`harm`] | whether a wait may spin |
//! | [`process`] | exec and spawn: children are part of the run |
//! | [`raw`] | system calls by number |
//! | [`signals`] | the program's signal handlers |
//! | [`ending`] | signals that end the process |
//! | [`handler`] | whether one runs |
//! | [`ordered`] | signals that are queued, in their order |
//! | [`cancel`] | threads that others cancel |
//! | [`inside`] | being inside the library: no hooks then, and no signals |
//! | [`local`] | what a thread has for itself |
//! | [`guard`] | what becomes of a panic |
//! | [`memory`] | where all that is allocated comes from |
//! | [`config`] | what `busypoll run` has resolved |
//! | [`say`] | one line to the user, once per cause |
//!
//! The rules inside: no panic, and one that comes all the same ends a call, not the program ([`guard`]); `errno` is the
//! program's; own system calls go through rustix, past the hooks; nothing the program does before [`load`] ran
//! starts anything; no memory is the program's allocator's ([`memory`]), no lock is taken where a signal handler could
//! have interrupted the same, no thread-local has a destructor ([`local`]).

#[macro_use]
mod local;

mod cancel;
mod config;
mod ending;
mod errno;
mod fds;
mod guard;
mod handler;
mod harm;
mod inside;
mod kernel;
mod memory;
mod ordered;
mod process;
mod raw;
mod real;
mod say;
mod signals;
mod stack;
mod table;

/// Runs when the library is loaded, before `main` and all threads.
extern "C" fn load() {
    memory::prepare();
    table::resolve_all();
    say::prepare();
    if let Some(config) = config::get() {
        guard::prepare();
        process::prepare(config);
        kernel::prepare(config);
        signals::prepare(config);
        stack::prepare(config);
        // SAFETY: a function of the library, which is never unloaded. Registered first, it runs last.
        unsafe { __cxa_at_quick_exit(end_quickly, std::ptr::null_mut()) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Runs when the process ends by exit(3), after what the program has registered for that.
extern "C" fn end() {
    guard::run(stack::close_all);
}

/// Runs when the process ends by quick_exit(3), likewise.
extern "C" fn end_quickly(_: *mut libc::c_void) {
    guard::run(stack::close_all);
}

unsafe extern "C" {
    /// What at_quick_exit(3) is made of, which stands in the part of the C library that each program has for itself.
    fn __cxa_at_quick_exit(
        function: extern "C" fn(*mut libc::c_void),
        library: *mut libc::c_void,
    ) -> libc::c_int;
}

const BUILD: [u8; busypoll_policy::BUILD.len()] = {
    let mut bytes = [0; busypoll_policy::BUILD.len()];
    bytes.copy_from_slice(busypoll_policy::BUILD.as_bytes());
    bytes
};

/// An ELF note (elf(5)): the command compares the build of the library with its own.
#[repr(C, align(4))]
struct Note {
    owner_len: u32,
    len: u32,
    kind: u32,
    owner: [u8; 12],
    build: [u8; BUILD.len()],
}

#[used]
#[unsafe(link_section = ".note.busypoll")]
static NOTE: Note = Note {
    owner_len: busypoll_policy::NOTE_OWNER.len() as u32 + 1,
    len: BUILD.len() as u32,
    kind: 1,
    owner: *b"busypoll\0\0\0\0",
    build: BUILD,
};

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
