//! The forms of exec whose arguments are a list in place of an array: `execl`, `execlp` and `execle`.

use super::{environ, exec, mapping};
use crate::errno;
use libc::{c_char, c_int};

/// Arguments as they lie in memory.
pub type List = *const *const c_char;

/// The arguments after the first: how many of them are in the first list, and the rest.
pub type Lists = (List, usize);

/// # Safety
/// That of execl(3).
pub unsafe fn execl(path: *const c_char, first: Lists, rest: List) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec_list((path, false), first, rest, false) }
}

/// # Safety
/// That of execlp(3).
pub unsafe fn execlp(file: *const c_char, first: Lists, rest: List) -> c_int {
    // SAFETY: as in `execl`.
    unsafe { exec_list((file, true), first, rest, false) }
}

/// # Safety
/// That of execle(3).
pub unsafe fn execle(path: *const c_char, first: Lists, rest: List) -> c_int {
    // SAFETY: as in `execl`.
    unsafe { exec_list((path, false), first, rest, true) }
}

/// Looks the program up in PATH with `search`. With `has_environment` the environment comes after the null pointer at
/// the end of the arguments.
///
/// # Safety
/// The arguments are such.
unsafe fn exec_list(
    (path, search): (*const c_char, bool),
    (first, in_first): Lists,
    rest: List,
    has_environment: bool,
) -> c_int {
    let argument = |at: usize| {
        let (list, at) = if at < in_first { (first, at) } else { (rest, at - in_first) };
        // SAFETY: not past the null pointer, or the one that comes after it.
        unsafe { *list.add(at) }
    };
    let count = (0..).take_while(|at| !argument(*at).is_null()).count();
    let len = (count + 1) * size_of::<*const c_char>();
    // Without malloc, as the child of a threaded program may call this.
    let Some(start) = mapping(len) else {
        errno::set(libc::ENOMEM);
        return -1;
    };
    let argv = start.cast::<*const c_char>();
    // SAFETY: the mapping has room for them, and for the null pointer, which is there already.
    (0..count).for_each(|at| unsafe { *argv.add(at) = argument(at) });
    // SAFETY: the caller's contract; the C library keeps `environ` valid.
    let failed = unsafe {
        let environment = if has_environment { argument(count + 1).cast() } else { environ };
        exec(path, argv.cast_const(), environment, search)
    };
    let _errno = errno::Saved::new();
    // SAFETY: the mapping is this call's own, and not read any more.
    unsafe { libc::munmap(start, len) };
    failed
}
