//! The library that is loaded before a program: its socket calls, busy polling.
//!
//! | module | owns |
//! |---|---|
//! | [`hooks`] | the exported functions, made from the table; system calls by number |
//! | `table` | the names this library puts in front of the C library's, and the handler of each |
//! | [`real`] | the way to the C library's own functions |
//! | [`kernel`] | the kernel plane: Linux's own busy polling, switched on as the program waits |
//! | [`stack`] | the stack plane: sockets of the chosen interface, run in this process |
//! | [`fds`] | a table from descriptors to files; the stack plane keeps its sockets in one |
//! | [`spin_policy`] | whether a wait may spin |
//! | [`process`] | exec and spawn: children are part of the run |
//! | [`signals`] | the program's signal handlers; signals that end the process |
//! | [`handler_frames`] | whether a signal handler runs on this thread |
//! | [`queued_signals`] | the order of queued (real-time) signals |
//! | [`inside`] | being inside the library: no hooks, no signal handlers and no cancellation then |
//! | [`local`] | thread-locals without destructors |
//! | [`panics`] | panics end a call, not the program |
//! | [`memory`] | the library's own allocator |
//! | [`seccomp`] | whether the program has restricted its system calls |
//! | [`config`] | the settings that `busypoll run` has resolved |
//! | [`report`] | lines on standard error, each once per cause and program |
//!
//! The rules inside. Code does not panic; if it does, the panic ends a call and not the program ([`panics`]). `errno`
//! belongs to the program. The library's own system calls go through rustix, past the hooks. Nothing that the program
//! does before [`load`] has run starts anything. No memory comes from the program's allocator ([`memory`]). No lock is
//! taken that an interrupted frame of the same thread may hold. No thread-local has a destructor ([`local`]).

#[macro_use]
mod local;
#[macro_use]
mod table;

use std::sync::atomic::{AtomicBool, Ordering};

mod config;
mod errno;
mod fds;
mod handler_frames;
mod hooks;
mod inside;
mod kernel;
mod memory;
mod panics;
mod process;
mod queued_signals;
mod real;
mod report;
mod seccomp;
mod signals;
mod spin_policy;
mod stack;

static LOADED: AtomicBool = AtomicBool::new(false);

/// Whether the loader still relocates the program, as in an IFUNC resolver of its own: thread-locals cannot be used
/// yet, and there is no environment.
pub(crate) fn is_too_early() -> bool {
    // SAFETY: the C library's variable, read before there are threads.
    !LOADED.load(Ordering::Relaxed) && unsafe { environ.is_null() }
}

/// Runs when the library is loaded, before `main` and all threads.
extern "C" fn load() {
    LOADED.store(true, Ordering::Relaxed);
    memory::prepare();
    real::resolve_all();
    hooks::variadic::resolve_all();
    report::prepare();
    if let Some(config) = config::get() {
        panics::prepare();
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

/// Runs when the process ends by exit(3), after the functions that the program has registered.
extern "C" fn end() {
    panics::run(stack::close_all);
}

/// Runs when the process ends by quick_exit(3), after the functions that the program has registered.
extern "C" fn end_quickly(_: *mut libc::c_void) {
    panics::run(stack::close_all);
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;

    /// at_quick_exit(3) is built on this. at_quick_exit itself is linked statically into each program.
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
