//! exec and spawn: a child is part of the run. That holds also where the program gives the child an environment of its
//! own making, or where the library cannot be preloaded into it ([`unpreloadable`]).
//!
//! A child finds the run by two variables, `LD_PRELOAD` and `BUSYPOLL_RUN`. Where the given environment lacks the
//! second, both are added, in memory that is mapped for this: the caller may be the child of a fork in a threaded
//! program, where malloc could wait for ever.

mod exec_list;
mod unpreloadable;

pub use exec_list::{List, execl, execle, execlp};

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;

use libc::{c_int, c_void, pid_t};

use crate::config::Config;
use crate::{real, stack};
use unpreloadable::ChildCommand;

type Strings = *const *const c_char;

const RUN: &[u8] = b"BUSYPOLL_RUN=";
const PRELOAD: &[u8] = b"LD_PRELOAD=";

unsafe extern "C" {
    /// The program's environment (environ(7)).
    static environ: Strings;
}

/// # Safety
/// That of execv(3).
pub unsafe fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller's contract; the C library keeps `environ` valid.
    unsafe { exec(path, argv, environ, false) }
}

/// # Safety
/// That of execvp(3).
pub unsafe fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as in `execv`.
    unsafe { exec(file, argv, environ, true) }
}

/// # Safety
/// That of execve(2).
pub unsafe fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(path, argv, envp, false) }
}

/// # Safety
/// That of execvpe(3).
pub unsafe fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(file, argv, envp, true) }
}

/// # Safety
/// That of execve(2), or of execvpe(3) with `search`.
unsafe fn exec(path: *const c_char, argv: Strings, envp: Strings, search: bool) -> c_int {
    // SAFETY: the caller's contract; the environment is one too.
    unsafe {
        stack::before_exec();
        let environment = Environment::with_run(envp);
        if let Some(command) = ChildCommand::of(path, argv, search) {
            // Returns where the child cannot execute the command.
            real::execve(command.path(), command.argv(), environment.pointer());
        }
        match search {
            true => real::execvpe(path, argv, environment.pointer()),
            false => real::execve(path, argv, environment.pointer()),
        }
    }
}

/// # Safety
/// That of fexecve(3).
pub unsafe fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as in `exec`.
    unsafe {
        stack::before_exec();
        real::fexecve(fd, argv, Environment::with_run(envp).pointer())
    }
}

/// # Safety
/// That of execveat(2).
pub unsafe fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: as in `exec`.
    unsafe {
        stack::before_exec();
        real::execveat(dir, path, argv, Environment::with_run(envp).pointer(), flags)
    }
}

/// # Safety
/// That of posix_spawn(3).
pub unsafe fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { spawn((pid, path, actions, attributes, argv, envp), false) }
}

/// # Safety
/// That of posix_spawnp(3).
pub unsafe fn posix_spawnp(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { spawn((pid, path, actions, attributes, argv, envp), true) }
}

/// # Safety
/// That of system(3).
pub unsafe fn system(command: *const c_char) -> c_int {
    stack::before_spawn();
    // SAFETY: the caller's contract.
    unsafe { real::system(command) }
}

/// # Safety
/// That of popen(3).
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    stack::before_spawn();
    // SAFETY: the caller's contract.
    unsafe { real::popen(command, mode) }
}

type Spawn = (*mut pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings);

/// # Safety
/// That of posix_spawn(3), or of posix_spawnp(3) with `search`.
unsafe fn spawn(call: Spawn, search: bool) -> c_int {
    let (pid, path, actions, attributes, argv, envp) = call;
    stack::before_spawn();
    // SAFETY: as in `exec`.
    unsafe {
        let environment = Environment::with_run(envp);
        let environment = environment.pointer();
        let at = |path, argv| real::posix_spawn(pid, path, actions, attributes, argv, environment);
        match ChildCommand::of(path, argv, search) {
            Some(command) if at(command.path(), command.argv()) == 0 => 0,
            _ if search => real::posix_spawnp(pid, path, actions, attributes, argv, environment),
            _ => at(path, argv),
        }
    }
}

/// What the library adds to an environment: written at load time, when it may still allocate.
pub struct Ours {
    /// `LD_PRELOAD=` and the path of this library.
    preload: Vec<u8>,
    /// `BUSYPOLL_RUN=` and its text.
    run: Vec<u8>,
    /// The command that starts programs the library cannot be preloaded into.
    command: Option<CString>,
}

static OURS: OnceLock<Option<Ours>> = OnceLock::new();

/// Prepares the variables for children. Called once, at load time.
pub fn prepare(config: &Config) {
    OURS.get_or_init(|| {
        let mut about = libc::Dl_info {
            dli_fname: ptr::null(),
            dli_fbase: ptr::null_mut(),
            dli_sname: ptr::null(),
            dli_saddr: ptr::null_mut(),
        };
        let here: fn(&Config) = prepare;
        // SAFETY: `about` is valid for writes; the address is in this library.
        let found = unsafe { libc::dladdr(here as *const c_void, &raw mut about) };
        if found == 0 || about.dli_fname.is_null() {
            return None;
        }
        // SAFETY: dladdr gave a C string that lives as long as the library.
        let path = unsafe { CStr::from_ptr(about.dli_fname) };
        let variable = |name: &[u8], value: &CStr| [name, value.to_bytes_with_nul()].concat();
        let command = config.launch.command.as_deref();
        let command = command
            .filter(|path| path.as_bytes() != config.program.executable.as_os_str().as_bytes());
        let command = command.and_then(|path| CString::new(path).ok());
        Some(Ours { preload: variable(PRELOAD, path), run: variable(RUN, config.text), command })
    });
}

/// New zeroed memory, which the caller unmaps.
fn mapping(len: usize) -> Option<*mut c_void> {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start)
}

/// The environment a child gets.
enum Environment {
    /// As the caller made it.
    Theirs(Strings),
    /// With our variables, in a mapping of its own: the array of pointers, then the joined `LD_PRELOAD`.
    Mapped { start: *mut c_void, len: usize },
}

impl Environment {
    /// # Safety
    /// `envp` is an environment or null.
    unsafe fn with_run(envp: Strings) -> Self {
        let Some(Some(ours)) = OURS.get() else { return Self::Theirs(envp) };
        let mut count = 0;
        let mut theirs: Option<&CStr> = None;
        if !envp.is_null() {
            // SAFETY: an environment ends with a null pointer, and the loop stops there.
            while let Some(variable) = unsafe { string(*envp.add(count)) } {
                if variable.to_bytes().starts_with(RUN) {
                    return Self::Theirs(envp);
                }
                if variable.to_bytes().starts_with(PRELOAD) {
                    theirs = Some(variable);
                }
                count += 1;
            }
        }
        // The caller's LD_PRELOAD goes behind ours.
        let rest = theirs.map_or(&b""[..], |t| t.to_bytes().get(PRELOAD.len()..).unwrap_or(b""));
        let pointers = count + 3;
        let len = pointers * size_of::<*const c_char>() + ours.preload.len() + rest.len() + 1;
        let Some(start) = mapping(len) else { return Self::Theirs(envp) };
        // SAFETY: the mapping has room for `pointers` pointers, then for both texts, the `:` between them and the final
        // zero, which is there already. It is page-aligned.
        unsafe {
            let array = start.cast::<*const c_char>();
            let text = array.add(pointers).cast::<u8>();
            let own = ours.preload.len() - 1;
            ptr::copy_nonoverlapping(ours.preload.as_ptr(), text, own);
            if !rest.is_empty() {
                *text.add(own) = b':';
                ptr::copy_nonoverlapping(rest.as_ptr(), text.add(own + 1), rest.len());
            }
            let mut at = 0;
            for index in 0..count {
                let variable = *envp.add(index);
                if theirs.is_none_or(|t| t.as_ptr() != variable) {
                    *array.add(at) = variable;
                    at += 1;
                }
            }
            *array.add(at) = text.cast();
            *array.add(at + 1) = ours.run.as_ptr().cast();
        }
        Self::Mapped { start, len }
    }

    fn pointer(&self) -> Strings {
        match *self {
            Self::Theirs(envp) => envp,
            Self::Mapped { start, .. } => start.cast_const().cast(),
        }
    }
}

impl Drop for Environment {
    /// Runs after an exec that failed, or a spawn.
    fn drop(&mut self) {
        if let Self::Mapped { start, len } = *self {
            let _errno = crate::errno::Saved::new();
            // SAFETY: the mapping is this value's own, and not read any more.
            unsafe { libc::munmap(start, len) };
        }
    }
}

/// # Safety
/// `text` is a C string or null.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null; a C string by this function's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
